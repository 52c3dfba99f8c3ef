"""A T-maze that only a memory solves, and how a planner learns it; other examples use it.

An agent is shown a cue, left or right, on its first step only. It walks a corridor of six steps, at
whose end it has to turn to the side of the cue. Nothing that it sees on the way or at the end tells
which side that was: without memory, half of all turns are right.

All mazes of a batch are walked at once, and all episodes have the same length. What is done in the
corridor does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from echoic.agents.plans import LatentPlanningOptimizer, PlanDivergence, PlanningConfig
from echoic.agents.training import GAECalculator, PPOConfig, PPOLearner, PPOTrainingStep

if TYPE_CHECKING:
    from collections.abc import Callable

CORRIDOR = 6
# Cue left, cue right, in the corridor, at the junction.
STATE_DIM = 4
ACTION_DIM = 2
# The cue, the corridor, and the junction.
STEPS = CORRIDOR + 2


class TMaze:
    """Mazes side by side.

    Args:
        num_envs: How many.
        seed: Of the cues.
    """

    def __init__(self, num_envs: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.cue = np.zeros(num_envs, np.int64)
        self._at = 0

    def reset(self) -> np.ndarray:
        """Begin an episode in every maze, and return what is seen: the cue."""
        self.cue = self._rng.integers(0, 2, len(self.cue))
        self._at = 0
        return self._see()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Walk on; the turn at the junction earns 1 if it is right, and ends the episode."""
        done = self._at == STEPS - 1
        reward = (action == self.cue).astype(np.float32) if done else np.zeros(len(action), "f4")
        self._at += 1
        return self._see(), reward, done

    def _see(self) -> np.ndarray:
        seen = np.zeros((len(self.cue), STATE_DIM), np.float32)
        if self._at == 0:
            seen[np.arange(len(self.cue)), self.cue] = 1.0
        else:
            seen[:, 2 if self._at < STEPS - 1 else 3] = 1.0
        return seen


def small_plans(**changes: Any) -> PlanningConfig:
    """An encoder as small as the task; what is not a size or a rate is the default."""
    sizes: dict[str, Any] = {
        "embedding_dim": 32,
        "num_layers": 1,
        "num_heads": 4,
        "feedforward_factor": 2,
        "hidden_dim": 32,
        "learning_rate": 5e-4,
        **changes,
    }
    return PlanningConfig(**sizes)


def quick_ppo(**changes: Any) -> PPOConfig:
    """Rates for a task of minutes; what is not one is the default."""
    rates: dict[str, Any] = {"learning_rate": 1e-3, "target_kl": 0.02, **changes}
    return PPOConfig(**rates)


@dataclass
class Run:
    """What a run left: which method learned, and the share of right turns in each iteration."""

    planner: LatentPlanningOptimizer
    learner: PPOLearner
    success: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def train(
    seed: int,
    *,
    history: int | None = None,
    iterations: int = 60,
    num_envs: int = 64,
    planning: PlanningConfig | None = None,
    ppo: PPOConfig | None = None,
    divergence: type[PlanDivergence] | None = None,
    until: float = 1.1,
    watch: Callable[[int, float], None] | None = None,
) -> Run:
    """Learn the maze.

    Args:
        seed: Of everything.
        history: How many earlier states the plan is made of; 0 for a plan without memory, of the
            same parameters. By default all of the window.
        iterations: Of acting and learning, `num_envs` episodes each.
        num_envs: Mazes side by side.
        planning: Settings of the planner.
        ppo: Settings of the learner.
        divergence: Another cost of the plan's changes.
        until: Stop when the last five iterations turned right this often, and so do the likeliest
            actions in fresh mazes: a step of learning may undo much, and the five are of before it.
        watch: Is called with the iteration and its share of right turns.
    """
    torch.manual_seed(seed)
    planning = small_plans() if planning is None else planning
    ppo = quick_ppo() if ppo is None else ppo
    planner = LatentPlanningOptimizer(STATE_DIM, ACTION_DIM, planning, "cpu", seed=seed)
    if divergence is not None:
        planner.divergence = divergence(planning)
    learner = PPOLearner(
        STATE_DIM, ACTION_DIM, planning.embedding_dim, ppo, "cpu", planner=planner, seed=seed
    )
    run = Run(planner, learner)
    maze = TMaze(num_envs, seed)
    for iteration in range(iterations):
        rollout = walk(maze, planner, learner, history=history)
        right = float(rollout["rewards"][-1].mean())
        run.success.append(right)
        run.metrics = learner.update(
            PPOTrainingStep.from_rollout(
                GAECalculator(ppo), next_values=np.zeros(num_envs), **rollout
            )
        )
        if watch is not None:
            watch(iteration, right)
        if len(run.success) >= 5 and np.mean(run.success[-5:]) >= until:  # noqa: SIM102
            if evaluate(run, seed + 10_000, history=history) >= until:
                break
    return run


def walk(
    maze: TMaze,
    planner: LatentPlanningOptimizer,
    learner: PPOLearner,
    *,
    history: int | None = None,
    greedy: bool = False,
) -> dict[str, Any]:
    """Walk one episode in every maze; arrays are `(STEPS, mazes, ...)`."""
    windows = planner.windows(len(maze.cue), history=history)
    states, starts = maze.reset(), np.ones(len(maze.cue), bool)
    rows: dict[str, list[Any]] = {}
    done = False
    while not done:
        window, mask = windows.push(states, starts)
        planned = planner.act(window, mask, greedy=greedy)
        plans = planned.prior.latent_plan
        following, reward, done = maze.step(planned.action.numpy())
        row = {
            "states": window[:, -1],
            "latent_plans": plans,
            "actions": planned.action,
            "rewards": torch.as_tensor(reward),
            "values": learner.get_value_estimate(window[:, -1], plans),
            "log_probs": planned.log_prob,
            "dones": torch.full((len(reward),), done),
            "starts": torch.as_tensor(starts),
            "windows": window,
            "masks": mask,
            "plan_noise": planned.prior.noise,
        }
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
        states, starts = following, np.zeros(len(maze.cue), bool)
    return {name: torch.stack(values) for name, values in rows.items()}


def evaluate(run: Run, seed: int, *, history: int | None = None, num_envs: int = 1000) -> float:
    """The share of right turns of the likeliest actions, in mazes that were not learned from."""
    rollout = walk(TMaze(num_envs, seed), run.planner, run.learner, history=history, greedy=True)
    return float(rollout["rewards"][-1].mean())


def probe(run: Run, seed: int, *, history: int | None = None, num_envs: int = 2000) -> float:
    """How often a linear classifier reads the cue from the plan at the junction, on held-out rows.

    The plans are those acted on, with their noise.
    """
    maze = TMaze(num_envs, seed)
    plans = (
        walk(maze, run.planner, run.learner, history=history)["latent_plans"][-1].double().numpy()
    )
    features = np.column_stack(
        [(plans - plans.mean(0)) / (plans.std(0) + 1e-12), np.ones(num_envs)]
    )
    half = num_envs // 2
    sides = 2.0 * maze.cue - 1.0
    ridge = features[:half].T @ features[:half] + 1e-3 * np.eye(features.shape[1])
    weights = np.linalg.solve(ridge, features[:half].T @ sides[:half])
    return float(np.mean((features[half:] @ weights > 0) == (sides[half:] > 0)))
