"""`echoic train`: train an agent, and write checkpoints, metrics and a report."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echoic._json import finite
from echoic.cli.console import INTERRUPTED, fail, say
from echoic.cli.options import AsJson, Imports, Settings
from echoic.errors import ArgumentError, EchoicError

if TYPE_CHECKING:
    from echoic.agents.training import TrainingMetrics

__all__ = ["pairs", "train"]

# Most tokens of a conversation, and of what is learned from at a time.
_LONGEST = 2048
# What --setting changes: of two cores and minutes.
_MODEL_SETTINGS = {
    "max_length": _LONGEST,
    "prompts_per_step": 4,
    "answers_per_prompt": 8,
    "max_new_tokens": 24,
    "evaluate_every": 10,
    "evaluate_prompts": 32,
    "progress": True,
}


def train(
    task: Annotated[
        str | None,
        typer.Option(help="An environment; with --model, or a task such as gsm8k-like."),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A language model to train: a folder, or local:SmolLM2-135M."
        ),
    ] = None,
    algo: Annotated[str, typer.Option(help="With --model: grpo, rloo or ppo.")] = "grpo",
    updates: Annotated[int, typer.Option(min=1, help="With --model: updates.")] = 50,
    max_lag: Annotated[
        int, typer.Option(min=0, help="With --model: versions that answers may be behind.")
    ] = 0,
    workers: Annotated[
        int, typer.Option(min=0, help="With --model: processes that answer; needs --max-lag.")
    ] = 0,
    lora: Annotated[
        int, typer.Option(min=0, help="With --model: rank of adapters; 0 learns all weights.")
    ] = 8,
    learning_rate: Annotated[
        float | None, typer.Option(help="With --model.  [default: 1e-3, or 1e-6 with --lora 0]")
    ] = None,
    backbone: Annotated[
        str,
        typer.Option(
            help="mlp: the policy of vectors. Methods that prompt a model take its name here."
        ),
    ] = "mlp",
    method: Annotated[str, typer.Option(help="The name of a method that trains.")] = "echo-rl",
    timesteps: Annotated[int, typer.Option(min=1, help="Steps of the environment.")] = 100_000,
    num_actors: Annotated[int, typer.Option(min=1, help="Environments side by side.")] = 128,
    num_learners: Annotated[int, typer.Option(min=1, help="No effect: torch's threads learn.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Replayed steps of an update.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 42,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or one of torch's.")] = "auto",
    output_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where checkpoints/, results/ and the log go.")
    ] = Path(),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint there.")
    ] = False,
    task_setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the task, as JSON."),
    ] = None,
    setting: Settings = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Train an agent in an environment, or with --model a language model in a task.

    `checkpoints/` and `results/TASK_MODEL/` appear in the output folder: `metrics.jsonl` of the
    trainer, and for an agent `training_metrics.log` with the machine's numbers and
    `performance_report.json`. Ctrl-C stops after the current update; --resume continues.
    """
    from echoic.agents import runs

    import_all(imports)
    settings = pairs(setting, "--setting")
    task_settings = pairs(task_setting, "--task-setting")
    task = task or ("alfworld" if model is None else "gsm8k-like")
    name = backbone if model is None else model.removeprefix("local:").rstrip("/").split("/")[-1]
    folder = output_dir / "results" / f"{task}_{name}".replace("/", "_")
    # A method without a model has no model's name.
    named = task if backbone == "mlp" else folder.name
    given = {
        "num_actors": num_actors,
        "num_learners": num_learners,
        "batch_size": batch_size,
        "log_level": log_level,
        **settings,
    }
    try:
        with runs.log_to(output_dir / "echo_rl_training.log", log_level):
            if model is not None:
                learner = learner_of(algo, lora, learning_rate)
                config: dict[str, Any] = {
                    "steps": updates,
                    "max_lag": max_lag,
                    "workers": workers,
                    "seed": seed,
                }
                config |= {"learner": learner, "dir": folder, **settings}
                outcome = asyncio.run(
                    train_model(model, task, task_settings, config, device, resume=resume)
                )
            elif method == "echo-rl":
                given |= {
                    "env_name": task,
                    "env_config": task_settings,
                    "backbone": backbone,
                    "device": device,
                    "total_timesteps": timesteps,
                    "seed": seed,
                    "checkpoint_dir": str(output_dir / "checkpoints" / folder.name),
                    "results_dir": str(folder),
                    "tensorboard_log": str(output_dir / "logs" / "tensorboard" / folder.name),
                }
                outcome = asyncio.run(train_ours(given, folder, resume=resume))
            else:
                cell = {
                    "task": task,
                    "task_config": task_settings,
                    "seed": seed,
                    "steps": timesteps,
                    "folder": output_dir / "checkpoints" / f"{named}_{method}",
                    "settings": {**given, "device": device},
                }
                outcome = asyncio.run(train_other(method, backbone, cell))
    except KeyboardInterrupt:
        fail("interrupted; --resume continues from the last checkpoint", INTERRUPTED)
    except (EchoicError, ImportError, OSError, TypeError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(finite(outcome), allow_nan=False))
    else:
        typer.echo("\n".join(lines(outcome)))


def learner_of(algo: str, rank: int, rate: float | None) -> Any:
    """Return the settings of a learner of tokens."""
    from echoic.agents.llm import GRPOConfig, LoRAConfig, PPOTokenConfig, RLOOConfig

    kinds: dict[str, Any] = {"grpo": GRPOConfig, "rloo": RLOOConfig, "ppo": PPOTokenConfig}
    if algo not in kinds:
        raise typer.BadParameter(
            f"expected one of {', '.join(kinds)}, not {algo!r}", param_hint="--algo"
        )
    adapters = LoRAConfig(rank=rank, alpha=2.0 * rank) if rank else None
    if rate is None:
        rate = 1e-3 if rank else 1e-6
    return kinds[algo](learning_rate=rate, lora=adapters, max_tokens=_LONGEST)


async def train_model(
    model: str,
    task: str,
    task_settings: dict[str, Any],
    config: dict[str, Any],
    device: str,
    *,
    resume: bool,
) -> dict[str, Any]:
    """Train a language model, and evaluate it before and after."""
    from echoic.agents.llm import LLMConfig, LLMTrainer

    settings = LLMConfig(**{**_MODEL_SETTINGS, **config})
    named = (task, task_settings)
    trainer = LLMTrainer(model, named, settings, device=device, resume=resume)
    say(f"{model} learns {trainer.task.name}")
    history = await trainer.train()
    trainer.export(Path(config["dir"]) / "model")
    evaluations = [row["success_rate"] for row in trainer.evaluations] or [None]
    found: dict[str, Any] = {"updates": trainer.learner.updates}
    # A run that is over, and whose metrics.jsonl is gone, has none.
    if history:
        few = max(1, min(10, len(history) // 4))
        found |= {
            "seconds": history[-1]["seconds"],
            "reward at first": sum(row["reward"] for row in history[:few]) / few,
            "reward at last": sum(row["reward"] for row in history[-few:]) / few,
        }
    return {
        **found,
        "held-out success before": evaluations[0],
        "held-out success after": evaluations[-1],
        "results": str(config["dir"]),
    }


async def train_ours(given: dict[str, Any], folder: Path, *, resume: bool) -> dict[str, Any]:
    """Train with Echoic's own trainer, and watch it."""
    from echoic.agents import runs
    from echoic.agents.training import EchoRLTrainer, TrainingConfig

    trainer = EchoRLTrainer(TrainingConfig(**given), resume=resume)
    try:
        metrics: TrainingMetrics = await runs.watch_training(trainer, folder, report=say)
    finally:
        trainer.close()
    results = metrics.evaluation_results
    return {
        "steps": metrics.total_timesteps,
        "episodes": metrics.total_episodes,
        "seconds": metrics.training_time,
        "success_rate": results.get("success_rate"),
        "avg_reward": results.get("avg_reward"),
        "results": str(folder),
    }


async def train_other(name: str, backbone: str, cell: dict[str, Any]) -> dict[str, Any]:
    """Train a method of the benchmark."""
    from echoic.agents.baselines import Cell, maker_of, method_of

    model = None
    if getattr(maker_of(name), "needs_backbone", False):
        from echoic.agents import backbones

        model = backbones.make_backbone(backbone)
    elif backbone != "mlp":
        raise ArgumentError(f"{name} has no language model, so --backbone {backbone} has no effect")
    try:
        method = method_of(name, Cell(**cell, backbone=model))
        try:
            if not method.trains:
                fail(f"{name} has nothing to train")
            cell["folder"].mkdir(parents=True, exist_ok=True)
            measures = await method.train()
        finally:
            await method.aclose()
    finally:
        if model is not None:
            await model.aclose()
    return {**finite(dict(measures)), "results": str(cell["folder"])}


def lines(outcome: dict[str, Any]) -> list[str]:
    """Return the outcome as lines for people."""

    def text(value: Any) -> str:
        return f"{value:.3f}" if isinstance(value, float) else "-" if value is None else str(value)

    return [f"{name.replace('_', ' ')}: {text(value)}" for name, value in outcome.items()]


def pairs(given: list[str] | None, option: str) -> dict[str, Any]:
    """Read `NAME=VALUE`; a value that is not JSON is text."""
    found: dict[str, Any] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected NAME=VALUE, not {pair!r}", param_hint=option)
        found[name] = value_of(value)
    return found


def value_of(text: str) -> Any:
    """Parse a text as JSON, or return it as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def import_all(modules: list[str] | None) -> None:
    """Import modules that register a user's names."""
    import importlib
    import sys

    # As with `python -m`, so that a module in the working directory is found.
    sys.path.insert(0, "")
    try:
        for module in modules or ():
            importlib.import_module(module)
    except ImportError as error:
        fail(f"--import: {error}")
