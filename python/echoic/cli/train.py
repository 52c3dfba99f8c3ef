"""`echoic train`: train an agent, and write checkpoints, metrics and a report."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echoic._json import finite
from echoic.cli.console import INTERRUPTED, fail, say
from echoic.cli.options import AsJson, Imports, Settings
from echoic.errors import EchoicError

if TYPE_CHECKING:
    from echoic.agents.training import TrainingMetrics

__all__ = ["pairs", "train"]


def train(
    task: Annotated[str, typer.Option(help="The name of an environment.")] = "alfworld",
    *,
    backbone: Annotated[
        str,
        typer.Option(
            help="The language model of methods that need one. It is part of the results' folder."
        ),
    ] = "gpt-4o",
    method: Annotated[str, typer.Option(help="The name of a method that trains.")] = "echo-rl",
    timesteps: Annotated[int, typer.Option(min=1, help="Steps of the environment.")] = 100_000,
    num_actors: Annotated[int, typer.Option(min=1, help="Environments side by side.")] = 128,
    num_learners: Annotated[int, typer.Option(min=1, help="Parts of a gradient.")] = 2,
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
        typer.Option(metavar="NAME=VALUE", help="A setting of the environment, as JSON."),
    ] = None,
    setting: Settings = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Train an agent in an environment.

    `checkpoints/` and `results/TASK_BACKBONE/` appear in the output folder: `metrics.jsonl` of the
    trainer, `training_metrics.log` with the machine's numbers, `performance_report.json`. Ctrl-C
    stops after the current update; --resume continues.
    """
    from echoic.agents import runs

    import_all(imports)
    settings = pairs(setting, "--setting")
    folder = output_dir / "results" / f"{task}_{backbone}".replace("/", "_")
    given = {
        "num_actors": num_actors,
        "num_learners": num_learners,
        "batch_size": batch_size,
        "log_level": log_level,
        **settings,
    }
    try:
        with runs.log_to(output_dir / "echo_rl_training.log", log_level):
            given["device"] = runs.device_named(device)
            if method == "echo-rl":
                given |= {
                    "env_name": task,
                    "env_config": pairs(task_setting, "--task-setting"),
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
                    "task_config": pairs(task_setting, "--task-setting"),
                    "seed": seed,
                    "steps": timesteps,
                    "folder": output_dir / "checkpoints" / f"{folder.name}_{method}",
                    "settings": given,
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

    maker = maker_of(name)
    model = None
    if getattr(maker, "needs_backbone", False):
        from echoic.agents import backbones

        model = backbones.make_backbone(backbone)
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
    return {
        **{key: float(value) for key, value in measures.items()},
        "results": str(cell["folder"]),
    }


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
