"""Compare EchoRL with other methods, on tasks of five kinds and with six language models.

Run ``python examples/benchmark_echo_rl.py --tasks minigrid --baselines impala --num-seeds 3
--num-episodes 20 --timesteps 20000 --num-actors 16``. What is not there (the key of a model, the
package of a task) is listed as skipped, so that it runs anywhere. The same command again does only
what is missing.

It leaves ``benchmark_results.json`` and ``benchmark_report.md`` in the folder of ``--output-dir``,
beside ``rows.jsonl``, which has a line for every episode, and ``echo_rl_benchmark.log``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from echoic.agents.baselines import maker_of
from echoic.agents.evaluation import BenchmarkConfig, EchoRLBenchmark
from echoic.agents.runs import LOG_LEVELS, log_to
from echoic.errors import EchoicError

TASKS = ("alfworld", "webshop", "cruxeval", "arc", "minigrid")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    usual = BenchmarkConfig()
    parser = argparse.ArgumentParser(description="Compare EchoRL with other methods.")
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=usual.tasks, help="environments")
    add("--backbones", nargs="*", default=usual.backbones, help="language models")
    add("--baselines", nargs="*", default=usual.baselines, help="methods to compare with")
    add("--num-seeds", type=int, default=10, help="runs of each method")
    add("--num-episodes", type=int, default=100, help="of each evaluation")
    add("--max-steps", type=int, default=1000, help="of an episode")
    add("--timeout", type=float, default=300.0, help="seconds of an episode")
    add("--timesteps", type=int, default=100_000, help="of the training of each run")
    add("--num-actors", type=int, default=128, help="environments side by side in training")
    add("--num-learners", type=int, default=2, help="no effect: torch's threads share an update")
    add("--batch-size", type=int, default=256, help="replayed steps of an update")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--output-dir", type=Path, default=Path("benchmark_results"))
    add("--log-level", choices=LOG_LEVELS, default="INFO")
    return parser.parse_args(given)


def settings(options: argparse.Namespace) -> BenchmarkConfig:
    """The settings of the benchmark; all methods that train get the same ones."""
    training = {
        "num_actors": options.num_actors,
        "num_learners": options.num_learners,
        "batch_size": options.batch_size,
        "device": options.device,
    }
    return BenchmarkConfig(
        tasks=options.tasks,
        backbones=options.backbones,
        baselines=options.baselines,
        num_seeds=options.num_seeds,
        num_episodes=options.num_episodes,
        max_steps_per_episode=options.max_steps,
        evaluation_timeout=options.timeout,
        echo_rl_configs={"total_timesteps": options.timesteps, **training},
        baseline_configs={
            name: training for name in options.baselines if getattr(maker_of(name), "trains", False)
        },
        output_dir=str(options.output_dir),
    )


def main(given: list[str] | None = None) -> None:
    """Run the example."""
    options = arguments(given)
    with log_to(options.output_dir / "echo_rl_benchmark.log", options.log_level):
        try:
            benchmark = EchoRLBenchmark(settings(options), log=print)
            result = asyncio.run(benchmark.run_benchmark())
        except EchoicError as error:
            sys.exit(f"benchmark_echo_rl: {error}")
        except KeyboardInterrupt:
            sys.exit("interrupted; the same command goes on")
    for one in result.tasks:
        scores = f"success {one.success_rate:.3f}, reward {one.avg_reward:.3f}"
        print(f"{one.provenance}: {one.arm}: {scores}")
    print(f"{len(result.skipped)} cells skipped, {len(result.failed)} failed")
    print(f"report: {result.files.get('report')}")


if __name__ == "__main__":
    main()
