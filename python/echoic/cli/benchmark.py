"""`echoic benchmark`: compare methods on the same tasks, and write rows and a report."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echoic._json import finite
from echoic.cli.console import INTERRUPTED, fail, say
from echoic.cli.options import AsJson, Imports, Settings
from echoic.cli.train import import_all, pairs
from echoic.errors import EchoicError

if TYPE_CHECKING:
    from echoic.agents.evaluation import BenchmarkResult

__all__ = ["benchmark"]


def benchmark(
    *,
    tasks: Annotated[
        str | None, typer.Option(help="Names of environments, with commas.  [default: the five]")
    ] = None,
    backbones: Annotated[
        str | None, typer.Option(help="Names of language models.  [default: the six]")
    ] = None,
    baselines: Annotated[
        str | None, typer.Option(help="Names of methods to compare with.  [default: the five]")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="The method that the others are compared with.")
    ] = "echo-rl",
    num_seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 10,
    num_episodes: Annotated[int, typer.Option(min=1, help="Episodes of an evaluation.")] = 100,
    max_steps: Annotated[int, typer.Option(min=1, help="Most steps of an episode.")] = 1000,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Longest time of an episode.")
    ] = 300.0,
    timesteps: Annotated[int, typer.Option(min=1, help="Training steps of a run.")] = 100_000,
    num_actors: Annotated[int, typer.Option(min=1, help="Environments side by side.")] = 128,
    num_learners: Annotated[int, typer.Option(min=1, help="Parts of a gradient.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Replayed steps of an update.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or one of torch's.")] = "auto",
    output_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where rows, report and checkpoints go.")
    ] = Path("benchmark_results"),
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    parallel: Annotated[int, typer.Option(min=1, help="Episodes of a cell side by side.")] = 1,
    task_setting: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK.NAME=VALUE", help="A setting of an environment, as JSON."),
    ] = None,
    setting: Settings = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on tasks.

    Every method that trains gets the same number of steps; all are evaluated on the same episodes.
    If a key or a package is missing, its cells are listed as skipped. Run the same command again to
    continue; nothing is done twice. The status is 1 if a cell failed.
    """
    lists = {"tasks": tasks, "backbones": backbones, "baselines": baselines}
    named: dict[str, Any] = {name: names(text) for name, text in lists.items() if text is not None}
    try:
        from echoic.agents import runs
        from echoic.agents.evaluation import BenchmarkConfig, EchoRLBenchmark

        import_all(imports)
        with runs.log_to(output_dir / "echo_rl_benchmark.log", log_level):
            given = pairs(setting, "--setting")
            # Settings that only one method can have.
            reward: dict[str, Any] = {}
            backbone: dict[str, Any] = {}
            for name, of_one in (("reward", reward), ("backbone", backbone)):
                if name in given:
                    of_one[name] = given.pop(name)
            training = {
                "num_actors": num_actors,
                "num_learners": num_learners,
                "batch_size": batch_size,
                "device": device,
                **given,
            }
            config = BenchmarkConfig(
                **named,
                task_configs=by_task(task_setting),
                num_seeds=num_seeds,
                num_episodes=num_episodes,
                max_steps_per_episode=max_steps,
                evaluation_timeout=timeout,
                echo_rl_configs={"total_timesteps": timesteps, **training, **backbone},
                output_dir=str(output_dir),
                reference=reference,
                parallel_episodes=parallel,
            )
            config.baseline_configs = {
                name: {**training, **(reward if name == "ppo-rlhf" else {})}
                for name in (reference, *config.baselines)
                if trains(name)
            }
            result = asyncio.run(EchoRLBenchmark(config, log=say).run_benchmark())
    except KeyboardInterrupt:
        fail("interrupted; run the same command to continue", INTERRUPTED)
    except (EchoicError, ImportError, OSError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(finite(asdict(result)), allow_nan=False))
    else:
        typer.echo("\n".join(lines(result)))
    if result.failed:
        raise typer.Exit(1)


def trains(name: str) -> bool:
    """Return whether a method other than ours is trained."""
    from echoic.agents.baselines import maker_of
    from echoic.errors import ArgumentError

    try:
        return name != "echo-rl" and bool(getattr(maker_of(name), "trains", False))
    except (ImportError, ArgumentError):
        # The rows of the benchmark report it.
        return False


def names(text: str) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def by_task(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """Read `TASK.NAME=VALUE`."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in pairs(given, "--task-setting").items():
        task, point, setting = name.partition(".")
        if not point or not setting:
            raise typer.BadParameter(
                f"expected TASK.NAME=VALUE, not {name!r}", param_hint="--task-setting"
            )
        found.setdefault(task, {})[setting] = value
    return found


def lines(result: "BenchmarkResult") -> list[str]:
    """Return the result as lines for people."""
    text = []
    for one in result.tasks:
        ends = one.success_interval
        interval = f" ({ends[0]:.3f} … {ends[1]:.3f})" if ends else ""
        text.append(
            f"{one.provenance}: {one.arm}: success {one.success_rate:.3f}{interval},"
            f" reward {one.avg_reward:.3f}, {one.episodes} episodes"
        )
    for title, rows in (
        ("skipped", result.skipped),
        ("failed", result.failed),
        ("not applicable", result.not_applicable),
    ):
        if rows:
            text.append(f"{title}: {len(rows)} cells; the report says why")
    return [*text, *(f"{name}: {path}" for name, path in result.files.items())]
