"""Tianshou as an engine of one process, which has buffers of batches.

Its buffer adds one step a call, and counts the returns of episodes on the way.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.local.engine import ALPHA, BETA, Engine, Plan
from benchmarks.local.items import NAMES, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree

# What it calls the columns.
_NAMES = ("obs", "act", "rew", "terminated", "truncated", "obs_next")


class Tianshou(Engine):
    """The peer."""

    name = "tianshou"

    def store(self, plan: Plan) -> Buffer:
        """Make a buffer."""
        if plan.hot or plan.length > 1:
            raise self.missing(f"buffer of this kind: {plan}")
        return Buffer(plan)


class Buffer:
    """A replay buffer of one environment."""

    indices = "indices"
    actions = "actions"

    def __init__(self, plan: Plan) -> None:
        """Make one; its memory is allocated with the first transition."""
        data = importlib.import_module("tianshou.data")
        self._batch = data.Batch
        self._example = Rows(plan.kind).example
        self._prioritized = plan.prioritized
        if plan.prioritized:
            self._buffer = data.PrioritizedReplayBuffer(plan.capacity, alpha=ALPHA, beta=BETA)
        else:
            self._buffer = data.ReplayBuffer(plan.capacity)

    def push(self, *transition: Any) -> None:
        """Add one."""
        self._buffer.add(self._batch(dict(zip(_NAMES, transition, strict=True))))

    def extend(self, columns: Tree) -> None:
        """Add one after the other."""
        for transition in zip(*(columns[name] for name in NAMES), strict=True):
            self.push(*transition)

    def draws(self, size: int) -> Callable[[], Any]:
        """Draw by its own generator; those with priorities say which rows they are."""
        if not self._prioritized:
            return partial(self._buffer.sample, size)

        def draw() -> Tree:
            batch, indices = self._buffer.sample(size)
            return {"batch": batch, "indices": indices, "actions": batch.act}

        return draw

    def columns(self, drawn: Any) -> Tree:
        """Return what was drawn, in the types that were stored."""
        batch = drawn["batch"] if self._prioritized else drawn[0]
        columns = {
            ours: np.asarray(batch[name]).astype(self._example[ours].dtype, copy=False)
            for name, ours in zip(_NAMES, NAMES, strict=True)
        }
        if self._prioritized:
            columns["weights"] = batch.weight
        return columns

    def update(self, indices: Array, priorities: Array) -> None:
        """Update in one call."""
        self._buffer.update_weight(indices, priorities)

    def __len__(self) -> int:
        """How many transitions are stored."""
        return len(self._buffer)

    def close(self) -> None:
        """Forget the buffer."""
        self._buffer = None


ENGINE = Tianshou()
