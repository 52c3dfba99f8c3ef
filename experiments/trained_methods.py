"""The full method beside its ablations and the baselines that train, on grids and in a text world.

Each task is trained on by each method with the same networks, steps and seeds, and evaluated on
episodes that no training has seen. It is a benchmark like any user's: its rows, its report with
intervals and tests, and its curves are in ``out/trained_methods``; a run that was stopped goes on.

Sharing of keys and values is no ablation here, since a policy of vectors has none: see the study
``kv_sharing``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from echoic.agents.baselines import Cell, Method, register_method
from echoic.agents.baselines.trained import EchoRL
from echoic.agents.environments import make_environment, register_environment
from echoic.agents.evaluation import BenchmarkConfig, EchoRLBenchmark
from echoic.agents.plans import PlanningConfig
from echoic.agents.replay import ReplayConfig
from echoic.agents.training import PPOConfig

from experiments._seeds import show

if TYPE_CHECKING:
    from pathlib import Path

NAME = "trained_methods"
STEPS, SEEDS, EPISODES = 100_000, 5, 50
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "navigation-8": ("minigrid", {"task_type": "navigation", "grid_size": 8}),
    # Chance solves 5 %, and the way of who knows the world has 14 commands. Only one room is seen.
    "rooms-5": (
        "rooms",
        {"num_rooms": 5, "locked_doors": 2, "containers": 2, "max_steps": 30},
    ),
    "doorkey-5": ("minigrid", {"task_type": "key_door", "grid_size": 5}),
    "memory-7": ("minigrid", {"task_type": "memory", "grid_size": 7}),
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "no plan": {"use_plans": False},
    "no memory": {"plan_history": 0},
    "uniform replay": {"replay": "uniform"},
    "no replay": {"replay": "none"},
}
BASELINES = ("ppo", "impala")
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "num_actors": 16,
    "num_learners": 1,
    "train_frequency": 64,
    "learning_starts": 0,
    "batch_size": 256,
    "target_update_interval": 1 << 40,
    "evaluation_episodes": 16,
    "evaluation_greedy": False,
    "save_frequency": 50_000,
    "latent_dim": 32,
    "planning_config": PlanningConfig(
        embedding_dim=32,
        num_layers=1,
        num_heads=4,
        feedforward_factor=2,
        hidden_dim=64,
        learning_rate=1e-3,
    ),
    "ppo_config": PPOConfig(learning_rate=1e-3, target_kl=0.03, batch_size=256, kl_coef=0.0),
    "replay_config": ReplayConfig(hot_buffer_size=50_000, cold_buffer_size=50_000),
}


def _ablation(changes: dict[str, Any]) -> Any:
    def make(cell: Cell) -> Method:
        return EchoRL(dataclasses.replace(cell, settings={**cell.settings, **changes}))

    return make


def _environment(name: str, own: dict[str, Any]) -> Any:
    return lambda **given: make_environment(name, **{**own, **given})


def run(out: Path, quick: bool, steps: int | None = None, tasks: list[str] | None = None) -> None:
    """Do what is missing, and print how often each method succeeds.

    Args:
        out: Where the benchmark's folder is made, or gone on with.
        quick: One task, two seeds, few episodes and few steps.
        steps: How long each method trains; with another length than the study's own the folder is
            called after it.
        tasks: Which, when not all; they may be of several runs with as many steps.
    """
    torch.set_num_threads(1)
    for task, (name, settings) in TASKS.items():
        register_environment(task, _environment(name, settings))
    for name, changes in ABLATIONS.items():
        register_method(name, _ablation(changes))
    tasks = tasks or (["navigation-8"] if quick else list(TASKS))
    if unknown := sorted(set(tasks) - set(TASKS)):
        raise SystemExit(f"there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    folder = out / (NAME if steps is None else f"{NAME}-{steps}")
    steps = steps or (2_048 if quick else STEPS)
    settings = {**SETTINGS, "evaluation_frequency": steps // 10}
    if quick:
        settings["evaluation_episodes"] = 4
    widths = {"minigrid": 7, "rooms": 20}
    config = BenchmarkConfig(
        tasks=tasks,
        task_configs={task: {"action_space_size": widths[TASKS[task][0]]} for task in tasks},
        backbones=[],
        baselines=[*ABLATIONS, *BASELINES],
        num_seeds=2 if quick else SEEDS,
        num_episodes=5 if quick else EPISODES,
        echo_rl_configs={"total_timesteps": steps, **settings},
        baseline_configs=dict.fromkeys((*ABLATIONS, *BASELINES), settings),
        output_dir=str(folder),
    )
    result = asyncio.run(EchoRLBenchmark(config).run_benchmark())
    lines = [
        {
            "task": one.task,
            "method": one.arm,
            "success": f"{one.success_rate:.2f}",
            "interval": "{:.2f} to {:.2f}".format(*one.success_interval)
            if one.success_interval
            else "",
        }
        for one in result.tasks
    ]
    show(f"Success after {steps} steps, {config.num_seeds} seeds", lines)
