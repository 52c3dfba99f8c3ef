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

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.plans import PlanWindows, shown, windows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.training.config import TrainingConfig

__all__ = ["Batch", "batch_of", "example_of", "windows_for"]

# Tensors by name; see batch_of.
Batch = SimpleNamespace


def example_of(config: TrainingConfig) -> dict[str, Any]:
    """Return a segment of zeros, the example of the table.

    ``rewards`` are those to learn from and ``earned`` those of the environment; ``places`` counts
    the states of a plan's window; ``success``, ``episode_reward`` and ``episode_steps`` are of
    episodes that ended.
    """
    steps, row = config.train_frequency, config.context + config.train_frequency
    return {
        "states": np.zeros((row, config.state_dim), np.float32),
        "starts": np.zeros(row, np.bool_),
        "next_states": np.zeros((steps, config.state_dim), np.float32),
        "action_masks": np.zeros((steps, config.action_dim), np.bool_),
        "latent_plans": np.zeros((steps, config.plan_dim), np.float32),
        "plan_noise": np.zeros((steps, config.plan_dim), np.float32),
        **{name: np.zeros(steps, np.float32) for name in ("rewards", "earned", "log_probs")},
        **{name: np.zeros(steps, np.bool_) for name in ("dones", "truncated", "valid", "success")},
        **{name: np.zeros(steps, np.int64) for name in ("actions", "episode", "episode_steps")},
        "episode_reward": np.zeros(steps, np.float64),
        "places": np.zeros(steps, np.int64),
        "actor": np.int64(0),
        "version": np.int64(0),
    }


def batch_of(columns: Mapping[str, Any], config: TrainingConfig) -> Batch:
    """Make a batch of segments of a table, ordered by actor.

    The order of arrival depends on threads, and so would a sum of gradients.

    Returns:
        The columns of :func:`example_of` as tensors ``(T, N, ...)``, time first; ``columns``, the
        same as arrays ``(N, T, ...)``; ``versions`` ``(N,)``; ``pairs``, where the step before is
        of the same episode; and with plans ``windows`` and ``masks`` of the plans, those of the
        steps before (``previous_windows``) and of the states that steps led to (``next_windows``).
    """
    order = np.argsort(columns["actor"], kind="stable")
    arrays = {name: np.asarray(value)[order] for name, value in columns.items()}
    batch = Batch(columns=arrays, versions=arrays["version"])
    for name, array in arrays.items():
        if array.ndim > 1:
            # Owned: a batch outlives its table.
            owned = np.ascontiguousarray(np.swapaxes(array, 0, 1))
            setattr(batch, name, torch.from_numpy(owned))
    first, states, starts = config.context, batch.states, batch.starts
    batch.states, batch.pairs = states[first:], ~starts[first:]
    if config.use_plans:
        windows, masks = windows_of(states, starts, config.planning_config.state_window_size)
        after = torch.cat([windows[first:, :, 1:], batch.next_states[:, :, None]], dim=2)
        seen = torch.cat([masks[first:, :, 1:], torch.ones_like(masks[first:, :, :1])], dim=2)
        for which, pair in {
            "": (windows[first:], masks[first:]),
            "previous_": (windows[first - 1 : -1], masks[first - 1 : -1]),
            "next_": (after, seen),
        }.items():
            seen_of = pair if config.plan_history is None else shown(*pair, config.plan_history)
            for what, one in zip(("windows", "masks"), seen_of, strict=True):
                setattr(batch, which + what, one)
    return batch


def windows_for(config: TrainingConfig, count: int) -> PlanWindows:
    """Return empty windows for some environments of a run."""
    size, history = config.planning_config.state_window_size, config.plan_history
    if not config.use_plans:
        size, history = 0, None
    return PlanWindows(count, config.state_dim, size, history=history, device="cpu")
