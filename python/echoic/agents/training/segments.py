"""Segments: a few steps of one actor, as they go through a table, and what learners make of them.

A segment has the states of the window before its first step in front, so that the window of every
step, and of the step before it, is made again without sending nine states for each. Each step has
the state that it led to, which is not the next one where an episode ends.

Invariants:

1. Windows that are made of a segment are those that were acted on, also where an episode ends in it
   or began before it.
2. A step that is not `valid` (its environment broke) is learned from by nobody, and nothing is
   traced back across it: it counts as cut off where it began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.latent_planning.windows import windows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from echoic.agents.training.config import TrainingConfig

__all__ = ["Batch", "batch_of", "example_of"]


def example_of(config: TrainingConfig) -> dict[str, Any]:
    """A segment of zeros: the spec of the table."""
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
        states: Acted on.
        next_states: That the steps led to.
        actions: What was done.
        allowed: Which actions there were.
        rewards: To learn from.
        log_probs: Of the actions, under the policy that acted.
        plans: Acted on.
        noise: Of the plans.
        dones: Whether the step terminated its episode.
        truncated: Whether it was cut off, or broke.
        valid: Whether there is something to learn from it.
        windows: Of which the plans were made; ``None`` without plans.
        masks: Which of their places hold a state.
        previous_windows: Of the steps before.
        previous_masks: Likewise.
        pairs: Where the step before is of the same episode.
        next_windows: Which end with the states that the steps led to.
        next_masks: Likewise.
        episode: The numbers of the episodes.
        versions: ``(N,)``, of the weights that acted.
        columns: All of the table's, as arrays ``(N, T, ...)``.
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
        """How many steps of environments these are."""
        return int(self.rewards.numel())


def batch_of(columns: Mapping[str, Any], config: TrainingConfig) -> Batch:
    """Segments of a table as a batch, in the order of their actors.

    The order in which they came depends on threads; a sum of gradients would, too.
    """
    order = np.argsort(columns["actor"], kind="stable")
    arrays = {name: np.asarray(value)[order] for name, value in columns.items()}

    def tensor(name: str) -> Any:
        # By time first, and owned: a batch outlives its table.
        return torch.from_numpy(np.ascontiguousarray(np.swapaxes(arrays[name], 0, 1)))

    states, starts = tensor("states"), tensor("starts")
    first = config.context
    next_states = tensor("next_states")
    made: dict[str, Any] = dict.fromkeys(
        (
            *("windows", "masks", "previous_windows", "previous_masks", "next_windows"),
            "next_masks",
        )
    )
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
    """Of windows, what ``plan_history`` lets a planner see."""
    history, last = config.plan_history, masks.shape[-1] - 1
    if history is None or history >= last:
        return windows, masks
    masks = masks.clone()
    masks[..., : last - history] = False
    return torch.where(masks[..., None], windows, torch.zeros_like(windows)), masks
