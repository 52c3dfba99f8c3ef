"""Segments: a few steps of one actor, as they go through a table, and the batches made of them.

The states of the window before a segment's first step come first, so that the window of each step,
and of the step before it, can be rebuilt without sending nine states for each. Each step has the
state that it led to, which is not the next one where an episode ends.

Invariants:

1. Windows rebuilt from a segment equal those that were acted on, also where an episode ends in it
   or started before it.
2. Nothing is learned from a step that is not `valid` (its environment failed), and no error is
   traced back across it: it counts as cut off where it started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.plans import PlanWindows, windows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from echoic.agents.training.config import TrainingConfig

__all__ = ["Batch", "batch_of", "example_of", "shown", "windows_for"]


def example_of(config: TrainingConfig) -> dict[str, Any]:
    """Return a segment of zeros, the example of the table."""
    steps, dim = config.train_frequency, config.plan_dim
    row = config.context + steps
    return {
        "states": np.zeros((row, config.state_dim), np.float32),
        "starts": np.zeros(row, np.bool_),
        "next_states": np.zeros((steps, config.state_dim), np.float32),
        "actions": np.zeros(steps, np.int64),
        "allowed": np.zeros((steps, config.action_dim), np.bool_),
        "rewards": np.zeros(steps, np.float32),
        "earned": np.zeros(steps, np.float32),
        "log_probs": np.zeros(steps, np.float32),
        "plans": np.zeros((steps, dim), np.float32),
        "noise": np.zeros((steps, dim), np.float32),
        "dones": np.zeros(steps, np.bool_),
        "truncated": np.zeros(steps, np.bool_),
        "valid": np.zeros(steps, np.bool_),
        "success": np.zeros(steps, np.bool_),
        "episode": np.zeros(steps, np.int64),
        "episode_reward": np.zeros(steps, np.float64),
        "episode_steps": np.zeros(steps, np.int64),
        "places": np.zeros(steps, np.int64),
        "actor": np.int64(0),
        "version": np.int64(0),
    }


@dataclass
class Batch:
    """Segments side by side: tensors are ``(T, N, ...)``, time first.

    Attributes:
        states: Acted on; ``next_states`` are those that steps led to.
        allowed: Which actions there were.
        rewards: Rewards to learn from.
        log_probs: Of the actions, under the policy that acted.
        plans: Acted on; ``noise`` is that of the plans, in standard deviations.
        dones: Whether a step terminated its episode; ``truncated``: whether it was cut off, or
            failed; ``valid``: whether it can be learned from.
        windows: Windows of the plans, and ``masks``, which of their places hold a state; None
            without plans. ``previous_windows`` are those of the steps before, ``next_windows`` end
            with the states that steps led to.
        pairs: Where the step before is of the same episode.
        episode: Numbers of the episodes.
        versions: ``(N,)``, of the weights that acted.
        columns: All columns of the table, ``(N, T, ...)``.
    """

    states: Any
    next_states: Any
    actions: Any
    allowed: Any
    rewards: Any
    log_probs: Any
    plans: Any
    noise: Any
    dones: Any
    truncated: Any
    valid: Any
    windows: Any
    masks: Any
    previous_windows: Any
    previous_masks: Any
    pairs: Any
    next_windows: Any
    next_masks: Any
    episode: Any
    versions: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]

    @property
    def steps(self) -> int:
        """Number of steps of environments."""
        return int(self.rewards.numel())


def batch_of(columns: Mapping[str, Any], config: TrainingConfig) -> Batch:
    """Make a batch of segments of a table, ordered by actor.

    The order of arrival depends on threads, and so would a sum of gradients.
    """
    order = np.argsort(columns["actor"], kind="stable")
    arrays = {name: np.asarray(value)[order] for name, value in columns.items()}

    def tensor(name: str) -> Any:
        # By time first, and owned: a batch outlives its table.
        return torch.from_numpy(np.ascontiguousarray(np.swapaxes(arrays[name], 0, 1)))

    states, starts = tensor("states"), tensor("starts")
    first = config.context
    next_states = tensor("next_states")
    made: dict[str, Any] = {
        f"{which}{what}": None
        for which in ("", "previous_", "next_")
        for what in ("windows", "masks")
    }
    if config.use_plans:
        size = config.planning_config.state_window_size
        windows, masks = windows_of(states, starts, size)
        following = torch.cat([windows[first:, :, 1:], next_states[:, :, None]], dim=2)
        seen = torch.cat([masks[first:, :, 1:], torch.ones_like(masks[first:, :, :1])], dim=2)
        for name, pair in {
            "": (windows[first:], masks[first:]),
            "previous_": (windows[first - 1 : -1], masks[first - 1 : -1]),
            "next_": (following, seen),
        }.items():
            made[f"{name}windows"], made[f"{name}masks"] = shown(*pair, config)
    return Batch(
        states=states[first:],
        next_states=next_states,
        pairs=~starts[first:],
        versions=arrays["version"],
        columns=arrays,
        **{
            name: tensor(name)
            for name in (
                *("actions", "allowed", "rewards", "log_probs", "plans", "noise", "dones"),
                *("truncated", "valid", "episode"),
            )
        },
        **made,
    )


def shown(windows: Any, masks: Any, config: TrainingConfig) -> tuple[Any, Any]:
    """Mask the places of windows that ``plan_history`` hides."""
    history, last = config.plan_history, masks.shape[-1] - 1
    if history is None or history >= last:
        return windows, masks
    masks = masks.clone()
    masks[..., : last - history] = False
    return torch.where(masks[..., None], windows, torch.zeros_like(windows)), masks


def windows_for(config: TrainingConfig, count: int) -> PlanWindows:
    """Return empty windows for some environments of a run."""
    size = config.planning_config.state_window_size if config.use_plans else 0
    return PlanWindows(count, config.state_dim, size, device="cpu")
