"""EchoRL's claims with SmolLM2-135M in the loop: reuse, tokens a second, steps, and costs.

``reuse``: four episodes of the generated web shop side by side, of five turns and of ten, with the
prefix cache and without; answers are greedy, so both do the same work. A token is effective
whether it was computed or reused: all tokens before each answer, and the answer.

``learning``: sums (``gsm8k-like``, level 1) are learned with LoRA and GRPO until the mean reward of
two batches is 0.8, as the trainer is and with plans, surprise replay, or both. A step is an answer.
The cost of a solved problem is the time of the run by the right answers that it has had.

Each run is a process with one thread, and seconds are its processor's.
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

from experiments._seeds import Rows, show, spread

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "language_models"
EPISODES, NEW_TOKENS = 4, 12
PROMPTS, ANSWERS, MOST_UPDATES, THRESHOLD = 4, 8, 16, 0.8
ARMS = ("plain", "plans", "replay", "both")


def run(out: Path, quick: bool) -> None:
    """Run what is not there yet, and print tables of all."""
    rows = Rows(out / f"{NAME}.jsonl", ("part", "seed", "turns", "cached", "arm"))
    for seed in range(1 if quick else 5):
        for turns in (2,) if quick else (5, 10):
            for cached in (True, False):
                _add(rows, {"part": "reuse", "seed": seed, "turns": turns, "cached": cached})
        for arm in ("both",) if quick else ARMS:
            most = 1 if quick else MOST_UPDATES
            _add(rows, {"part": "learning", "seed": seed, "arm": arm}, most=most)
    _show_reuse(rows.of(part="reuse"))
    _show_learning(rows.of(part="learning"))


def _add(rows: Rows, key: dict[str, Any], **settings: Any) -> None:
    if rows.has(**key):
        return
    paths = [str(Path(__file__).parents[1] / "python"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{NAME}", json.dumps({**key, **settings})],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows.add({**key, **json.loads(done.stdout.splitlines()[-1])})


async def play(seed: int, turns: int, *, cached: bool) -> dict[str, Any]:
    """Play episodes side by side; return their tokens and seconds."""
    from echoic.agents.backbones import smollm2
    from echoic.agents.llm import (
        AsyncExecutionEngine,
        Conversation,
        ExecutionConfig,
        SamplingParams,
        make_task,
    )
    from echoic.agents.llm.transformers import TransformersModel

    model, tokenizer = smollm2.load("cpu")
    task = make_task("webshop", max_turns=turns, seed=seed)
    settings = ExecutionConfig(enable_prefix_cache=cached, timeout=1e4)
    sampling = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0)
    async with AsyncExecutionEngine(settings, TransformersModel(model), "cpu") as engine:
        warm = Conversation(engine, tokenizer, sampling, limit=1000)
        warm.say("user", "Hello!")
        await warm.answer()
        talks = [Conversation(engine, tokenizer, sampling, limit=8000) for _ in range(EPISODES)]
        began = time.process_time()
        await asyncio.gather(
            *(task.run(task.prompt(index), talk) for index, talk in enumerate(talks))
        )
        seconds = time.process_time() - began
    task.close()
    # What was given to a turn, and what was drawn before it, is read again by it.
    effective = drawn = 0
    for talk in talks:
        length = 0
        for turn in talk.turns:
            length += turn.given + turn.drawn
            effective += length
            drawn += turn.drawn
    reused = sum(talk.reused_tokens for talk in talks)
    computed = sum(talk.computed_tokens for talk in talks)
    return {
        "effective": effective,
        "drawn": drawn,
        "answers": sum(len(talk.turns) for talk in talks),
        "reuse": reused / (reused + computed),
        "seconds": seconds,
    }


def learn(seed: int, arm: str, most: int) -> dict[str, Any]:
    """Train until the threshold or for ``most`` updates; return what each update cost."""
    from echoic.agents.llm import GRPOConfig, LLMConfig, LLMTrainer, LoRAConfig
    from echoic.agents.plans import PlanningConfig

    plans = PlanningConfig(embedding_dim=128, num_layers=2, num_heads=4, state_window_size=2)
    settings = LLMConfig(
        steps=most,
        prompts_per_step=PROMPTS,
        answers_per_prompt=ANSWERS,
        max_new_tokens=NEW_TOKENS,
        learner=GRPOConfig(learning_rate=1e-3, lora=LoRAConfig(rank=8, alpha=16.0)),
        plans=plans if arm in ("plans", "both") else None,
        plan_state_dim=128,
        replay=2 if arm in ("replay", "both") else 0,
        seed=seed,
    )
    task = ("gsm8k-like", {"level": 1, "seed": seed})
    trainer = LLMTrainer("local:SmolLM2-135M", task, settings, device="cpu")
    updates: list[dict[str, float]] = []
    began = time.process_time()

    def listen(kind: str, row: dict[str, Any]) -> None:
        if kind != "update":
            return
        updates.append(
            {
                "reward": float(np.mean(row["rewards"])),
                "success": row["success"],
                "tokens": row["tokens"],
                "seconds": time.process_time() - began,
            }
        )
        if len(updates) > 1 and np.mean([one["reward"] for one in updates[-2:]]) >= THRESHOLD:
            trainer.stop()

    trainer.listeners.append(listen)
    asyncio.run(trainer.train())
    return {"updates": updates}


def _show_reuse(rows: list[dict[str, Any]]) -> None:
    lines = []
    for turns in sorted({row["turns"] for row in rows}):
        own = {
            cached: sorted(
                (row for row in rows if (row["turns"], row["cached"]) == (turns, cached)),
                key=lambda row: row["seed"],
            )
            for cached in (True, False)
        }
        speeds = {
            cached: [row["effective"] / row["seconds"] for row in found]
            for cached, found in own.items()
        }
        ratios = [a / b for a, b in zip(speeds[True], speeds[False], strict=True)]
        lines.append(
            {
                "turns": str(turns),
                "reused": spread([row["reuse"] for row in own[True]]),
                "effective tokens/s": spread(speeds[True], ".0f"),
                "without the cache": spread(speeds[False], ".0f"),
                "ratio": spread(ratios, ".2f"),
                "seconds of an episode": spread(
                    [row["seconds"] / EPISODES for row in own[True]], ".2f"
                ),
            }
        )
    show("Episodes of the generated web shop", lines)


def _show_learning(rows: list[dict[str, Any]]) -> None:
    plain = {row["seed"]: row for row in rows if row["arm"] == "plain"}
    lines = []
    for arm in ARMS:
        own = sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["seed"])
        if not own:
            continue

        def more(of: Callable[[dict[str, Any]], float], own: list[Any] = own) -> str:
            pairs = [(of(row), of(plain[row["seed"]])) for row in own if row["seed"] in plain]
            return spread([one / other for one, other in pairs], ".2f") if pairs else ""

        lines.append(
            {
                "": arm,
                "reached": f"{sum(map(_reached, own))} of {len(own)}",
                "steps": spread([_steps(row) for row in own], ".0f"),
                "by plain": more(_steps),
                "seconds": spread([_seconds(row) for row in own], ".0f"),
                "seconds by plain": more(_seconds),
                "seconds a solved problem": spread([_cost(row) for row in own], ".2f"),
                "cost by plain": more(_cost),
            }
        )
    show(f"Steps until the reward is {THRESHOLD}", lines)


def _reached(row: dict[str, Any]) -> bool:
    return bool(np.mean([one["reward"] for one in row["updates"][-2:]]) >= THRESHOLD)


def _steps(row: dict[str, Any]) -> float:
    return float(PROMPTS * ANSWERS * len(row["updates"]))


def _seconds(row: dict[str, Any]) -> float:
    return float(row["updates"][-1]["seconds"])


def _cost(row: dict[str, Any]) -> float:
    solved = sum(one["success"] for one in row["updates"]) * PROMPTS * ANSWERS
    return _seconds(row) / max(solved, 1.0)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["part"] == "reuse":
        found = asyncio.run(play(given["seed"], given["turns"], cached=given["cached"]))
    else:
        found = learn(given["seed"], given["arm"], given["most"])
    print(json.dumps(found))
