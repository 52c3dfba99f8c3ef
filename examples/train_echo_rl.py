"""Train an agent with a latent plan, surprise replay and many actors side by side.

Run ``python examples/train_echo_rl.py --task minigrid --timesteps 20000 --num-actors 16``. It
leaves, in the folder where it is run:

- ``echo_rl_training.log``: what was logged,
- ``checkpoints/TASK_BACKBONE/``: what ``--resume`` goes on from,
- ``results/TASK_BACKBONE/``: ``training_metrics.log`` (a line of JSON for each second) and
  ``performance_report.json``.

``--backbone local:SmolLM2-135M``, or a folder of transformers, trains that language model, and
``mlp`` a policy of vectors. The weights of a hosted model, as ``gpt-4o``, the default, are not here
and can't learn: the program says so and trains ``mlp``, and results are saved under that name.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from echoic.agents.runs import LOG_LEVELS, log_to, watch_training
from echoic.agents.training import EchoRLTrainer, TrainingConfig
from echoic.errors import EchoicError

HOSTED = ("gpt-4o", "claude-3.5-sonnet", "gemini-1.5-pro", "llama-4", "qwen-7b", "deepseek-r1")
TASKS = ("alfworld", "webshop", "cruxeval", "arc", "minigrid")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train an agent with EchoRL.")
    add = parser.add_argument
    add("--task", choices=TASKS, default="alfworld", help="environment")
    add("--backbone", default="gpt-4o", help="mlp, local:NAME, a folder, or a hosted model")
    add("--timesteps", type=int, default=100_000, help="steps of the environment")
    add("--num-actors", type=int, default=128, help="environments side by side")
    add("--num-learners", type=int, default=2, help="no effect: torch's threads share an update")
    add("--batch-size", type=int, default=256, help="replayed steps of an update")
    add("--seed", type=int, default=42, help="of everything random")
    add("--log-level", choices=LOG_LEVELS, default="INFO")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--resume", action="store_true", help="go on from the newest checkpoint")
    return parser.parse_args(given)


def trained(backbone: str) -> str:
    """What is trained: a policy of vectors in place of a hosted model."""
    return "mlp" if backbone in HOSTED else backbone


def settings(options: argparse.Namespace) -> TrainingConfig:
    """The settings of the training."""
    backbone = trained(options.backbone)
    name = f"{options.task}_{backbone}".replace("/", "_")
    return TrainingConfig(
        env_name=options.task,
        backbone=backbone,
        total_timesteps=options.timesteps,
        num_actors=options.num_actors,
        num_learners=options.num_learners,
        batch_size=options.batch_size,
        seed=options.seed,
        device=options.device,
        log_level=options.log_level,
        checkpoint_dir=f"checkpoints/{name}",
        results_dir=f"results/{name}",
    )


async def train(options: argparse.Namespace) -> None:
    """Train, and print the results."""
    config = settings(options)
    if config.backbone != options.backbone:
        print(f"The weights of {options.backbone} are not here: training {config.backbone}")
    trainer = EchoRLTrainer(config, resume=options.resume)
    try:
        metrics = await watch_training(trainer, Path(config.results_dir), report=print)
    finally:
        trainer.close()
    print(
        f"{metrics.total_timesteps:,d} steps, {metrics.total_episodes:,d} episodes,"
        f" {metrics.training_time:.0f} s"
    )
    results = metrics.evaluation_results
    if results:
        print(f"Success rate: {results['success_rate']:.3f}")
        print(f"Avg reward: {results['avg_reward']:.3f}")


def main(given: list[str] | None = None) -> None:
    """Run the example."""
    options = arguments(given)
    with log_to(Path("echo_rl_training.log"), options.log_level):
        try:
            asyncio.run(train(options))
        except (EchoicError, ImportError) as error:
            # Such as a package that the task needs.
            sys.exit(f"train_echo_rl: {error}")
        except KeyboardInterrupt:
            sys.exit("interrupted; --resume goes on from the last checkpoint")


if __name__ == "__main__":
    main()
