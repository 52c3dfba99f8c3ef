"""LLMTrainer beside TRL's GRPOTrainer: the same model, problems, batches and settings, on one core.

SmolLM2-135M learns word problems of one sum with LoRA and GRPO. Each run is a process with one
thread, so its seconds are those of a processor, whatever else the machine does; loading the model
is not counted. TRL is not among this project's packages: ``make frameworks`` installs it, or
``ECHOIC_TRL_PYTHON`` names a Python that has it, peft, scipy and rich.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments._seeds import Rows, interval

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "trl_comparison"
SIDES = ("echoic", "trl")
UPDATES, PROMPTS, ANSWERS, NEW_TOKENS = 12, 4, 8, 12
RATE, RANK = 5e-4, 8


def run(out: Path, quick: bool) -> None:
    """Run what is not there yet, and print a table of all."""
    rows = Rows(out / f"{NAME}.jsonl", ("side", "seed", "updates", "update"))
    updates, seeds = (2, 1) if quick else (UPDATES, 5)
    pythons = {
        "echoic": sys.executable,
        "trl": os.environ.get("ECHOIC_TRL_PYTHON", "target/frameworks/bin/python"),
    }
    for seed in range(seeds):
        for side in SIDES:
            key = {"side": side, "seed": seed, "updates": updates}
            if not rows.has(**key, update=updates):
                for row in _run_side(pythons[side], side, seed, updates):
                    rows.add({**key, **row})
    print(summary(rows.of(updates=updates), updates))
    plot(rows.of(updates=updates), out / f"{NAME}.png")


def _run_side(python: str, side: str, seed: int, updates: int) -> list[dict[str, Any]]:
    command = [python, "-m", "experiments.trl_comparison", side, str(seed), str(updates)]
    paths = [str(Path(__file__).parents[1] / "python"), os.environ.get("PYTHONPATH", "")]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
    }
    done = subprocess.run(
        command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"update"')]
    return [json.loads(line) for line in lines]


def _report(update: int, reward: float, drawn: float, began: float) -> None:
    """Print what an update was learned from, and the processor's seconds up to its end."""
    row = {"update": update, "reward": reward, "drawn": drawn}
    print(json.dumps(row | {"seconds": time.process_time() - began}), flush=True)


def _problems(seed: int) -> tuple[list[Any], Callable[[Any, str], Any]]:
    """Return the chats of a run, and a function that scores an answer to a chat."""
    from echoic.agents.llm import make_task

    task = make_task("gsm8k-like", level=1)
    found = [task.prompt(1000 * seed + index) for index in range(UPDATES * PROMPTS)]
    by_text = {one.chat[-1]["content"]: one for one in found}
    return [one.chat for one in found], lambda chat, text: task.score(
        by_text[chat[-1]["content"]], text
    )


def learn_with_echoic(seed: int, updates: int) -> None:
    """Train with LLMTrainer, in lock-step."""
    from echoic.agents.llm import GRPOConfig, LLMConfig, LLMTrainer, LoRAConfig, PromptTask

    chats, score = _problems(seed)
    task = PromptTask(chats, lambda answer: score(answer.prompt, answer.text))
    settings = LLMConfig(
        steps=updates,
        prompts_per_step=PROMPTS,
        answers_per_prompt=ANSWERS,
        max_new_tokens=NEW_TOKENS,
        learner=GRPOConfig(learning_rate=RATE, lora=LoRAConfig(rank=RANK, alpha=2.0 * RANK)),
        seed=seed,
    )
    trainer = LLMTrainer("local:SmolLM2-135M", task, settings, device="cpu")
    drawn, began = 0.0, time.process_time()

    def listen(kind: str, row: dict[str, Any]) -> None:
        nonlocal drawn
        if kind == "update":
            drawn += row["tokens"]
            _report(row["step"], row["reward"], drawn, began)

    trainer.listeners.append(listen)
    asyncio.run(trainer.train())


def learn_with_trl(seed: int, updates: int) -> None:
    """Train with GRPOTrainer, whose answers come from transformers' batched ``generate``."""
    import tempfile

    from datasets import Dataset
    from echoic.agents.backbones import smollm2
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = smollm2.load("cpu")
    chats, score = _problems(seed)

    def reward(prompts: Any, completions: Any, **_: Any) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        return [score(prompt, completion[0]["content"]).reward for prompt, completion in pairs]

    began = time.process_time()

    class Listen(TrainerCallback):
        drawn = 0.0

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "reward" in logs:
                self.drawn += float(logs["completions/mean_length"]) * PROMPTS * ANSWERS
                _report(state.global_step, float(logs["reward"]), self.drawn, began)

    with tempfile.TemporaryDirectory(prefix="trl-") as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=PROMPTS * ANSWERS,
            num_generations=ANSWERS,
            max_completion_length=NEW_TOKENS,
            max_steps=updates,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            temperature=1.0,
            loss_type="dapo",
            scale_rewards="group",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            shuffle_dataset=False,
            seed=seed,
        )
        adapters = LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": chats}),
            processing_class=tokenizer,
            peft_config=adapters,
            callbacks=[Listen()],
        )
        began = time.process_time()
        trainer.train()


def summary(rows: list[dict[str, Any]], updates: int) -> str:
    """Compare rewards of the last quarter and seconds of an update, over seeds."""
    lines = []
    found: dict[str, dict[int, tuple[float, float, float]]] = {}
    for side in SIDES:
        seeds = sorted({row["seed"] for row in rows if row["side"] == side})
        for seed in seeds:
            own = sorted(
                (row for row in rows if (row["side"], row["seed"]) == (side, seed)),
                key=lambda row: row["update"],
            )
            late = [row["reward"] for row in own if row["update"] > 0.75 * updates]
            last = own[-1]
            found.setdefault(side, {})[seed] = (
                float(np.mean(late)),
                last["seconds"] / updates,
                last["drawn"] / last["seconds"],
            )
    for side, of in found.items():
        for name, at in (("reward, last quarter", 0), ("s an update", 1), ("drawn tokens/s", 2)):
            values = [one[at] for one in of.values()]
            low, high = interval(values)
            lines.append(f"{side}: {name} {np.mean(values):.3f} ({low:.3f} to {high:.3f})")
    both = sorted(set(found.get("echoic", {})) & set(found.get("trl", {})))
    if both:
        ratios = [found["trl"][seed][1] / found["echoic"][seed][1] for seed in both]
        low, high = interval(ratios)
        lines.append(f"seconds of TRL / Echoic: {np.mean(ratios):.2f} ({low:.2f} to {high:.2f})")
        more = [found["echoic"][seed][0] - found["trl"][seed][0] for seed in both]
        low, high = interval(more)
        lines.append(f"reward, Echoic - TRL: {np.mean(more):.3f} ({low:.3f} to {high:.3f})")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the rewards of each run against tokens and against seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, field, label in zip(
        panels, ("drawn", "seconds"), ("drawn tokens", "seconds of one processor"), strict=True
    ):
        for side, color in zip(SIDES, ("tab:blue", "tab:orange"), strict=True):
            name: str | None = {"echoic": "Echoic", "trl": "TRL 1.16"}[side]
            for seed in sorted({row["seed"] for row in rows}):
                own = [r for r in rows if (r["side"], r["seed"]) == (side, seed)]
                own.sort(key=lambda row: row["update"])
                if len(own) < 3:
                    continue
                rewards = np.convolve([row["reward"] for row in own], np.ones(3) / 3, "valid")
                places = [row[field] for row in own][2:]
                axes.plot(places, rewards, color=color, alpha=0.8, label=name)
                name = None
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="mean reward of three batches", ylim=(0, 1.02))
    panels[0].legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    {"echoic": learn_with_echoic, "trl": learn_with_trl}[sys.argv[1]](
        int(sys.argv[2]), int(sys.argv[3])
    )
