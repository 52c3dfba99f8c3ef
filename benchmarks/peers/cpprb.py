"""cpprb as an engine of one process, which has buffers only."""

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


class Cpprb(Engine):
    """The peer."""

    name = "cpprb"

    def store(self, plan: Plan) -> Buffer:
        """Make a buffer of the columns as they are."""
        if plan.hot or plan.length > 1:
            raise self.missing(f"buffer of this kind: {plan}")
        cpprb = importlib.import_module("cpprb")
        columns = {
            name: {"shape": leaf.shape or 1, "dtype": leaf.dtype}
            for name, leaf in Rows(plan.kind).example.items()
        }
        if plan.prioritized:
            buffer = cpprb.PrioritizedReplayBuffer(plan.capacity, columns, alpha=ALPHA)
            return Buffer(buffer, partial(buffer.sample, beta=BETA), plan)
        buffer = cpprb.ReplayBuffer(plan.capacity, columns)
        return Buffer(buffer, buffer.sample, plan)


class Buffer:
    """A replay buffer; whatever has no axis gets one of length 1 in it."""

    indices = "indexes"
    actions = "actions"

    def __init__(self, buffer: Any, sample: Callable[[int], Tree], plan: Plan) -> None:
        """Wrap a buffer."""
        self._buffer = buffer
        self._sample = sample
        self._example = Rows(plan.kind).example
        self._prioritized = plan.prioritized
        self.update = getattr(buffer, "update_priorities", None)

    def push(self, *transition: Any) -> None:
        """Add one."""
        self._buffer.add(**dict(zip(NAMES, transition, strict=True)))

    def extend(self, columns: Tree) -> None:
        """Add many."""
        if self._prioritized:
            self._buffer.add(**columns, priorities=np.ones(len(columns["rewards"])))
        else:
            self._buffer.add(**columns)

    def draws(self, size: int) -> Callable[[], Tree]:
        """Draw by its own generator."""
        return partial(self._sample, size)

    def columns(self, drawn: Tree) -> Tree:
        """Take the axes of length 1 away."""
        shaped: dict[str, Array] = {
            name: column.reshape(-1, *self._example[name].shape)
            if name in self._example
            else column
            for name, column in drawn.items()
        }
        return shaped

    def __len__(self) -> int:
        """How many transitions are stored."""
        return int(self._buffer.get_stored_size())

    def close(self) -> None:
        """Forget the buffer."""
        self._buffer = self.update = None


ENGINE = Cpprb()
