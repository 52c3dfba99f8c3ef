"""Flashbax as an engine of one process, which has buffers of JAX arrays, on the processor.

Its functions are compiled, and give their state's memory to the next one, as its users have them
do. A batch is there when JAX has computed it, which is waited for. Windows are those of its
trajectory buffer, which knows no ends of episodes. Integers of 64 bits have 32 in
it, unless JAX is told otherwise.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.local.engine import ALPHA, BETA, Engine, Plan
from benchmarks.local.items import NAMES, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree


class Flashbax(Engine):
    """The peer."""

    name = "flashbax"

    def store(self, plan: Plan) -> Buffer:
        """Make a buffer of items."""
        if plan.hot:
            raise self.missing(f"buffer of this kind: {plan}")
        return Buffer(plan)


class Buffer:
    """A replay buffer: its functions, and its state."""

    indices = "indices"
    actions = "actions"

    def __init__(self, plan: Plan) -> None:
        """Allocate the state."""
        self._jax = importlib.import_module("jax")
        self._plan = plan
        self._example = Rows(plan.kind).example
        self._state: Any = self._functions(1).init(self._example)
        self._key: Any = self._jax.random.PRNGKey(20)
        jit = self._jax.jit
        self._add = jit(self._functions(1).add, donate_argnums=0)
        self._extend = jit(self._functions(1, add_sequences=True).add, donate_argnums=0)
        if plan.prioritized:
            self._set = jit(self._functions(1).set_priorities, donate_argnums=0)

    def push(self, *transition: Any) -> None:
        """Add one."""
        self._state = self._add(self._state, dict(zip(NAMES, transition, strict=True)))

    def extend(self, columns: Tree) -> None:
        """Add many."""
        rows = {name: columns[name] for name in NAMES}
        if self._plan.length > 1:
            # Of one environment.
            rows = {name: column[None] for name, column in rows.items()}
        self._state = self._extend(self._state, rows)
        # Its caller may use the memory of the columns again.
        self._jax.block_until_ready(self._state)

    def draws(self, size: int) -> Callable[[], Tree]:
        """Draw with one key after the other."""
        functions, random = self._functions(size), self._jax.random
        prioritized = self._plan.prioritized

        def step(state: Any, key: Any) -> tuple[Any, Tree]:
            key, now = random.split(key)
            sample = functions.sample(state, now)
            drawn = dict(sample.experience)
            if prioritized:
                weights = sample.probabilities**-BETA
                drawn |= {"indices": sample.indices, "weights": weights / weights.max()}
            return key, drawn

        step = self._jax.jit(step)

        def draw() -> Tree:
            self._key, drawn = step(self._state, self._key)
            return self._jax.block_until_ready(drawn)

        return draw

    def columns(self, drawn: Tree) -> Tree:
        """Return what was drawn in the types that were stored."""
        return {
            name: np.asarray(column).astype(self._example[name].dtype, copy=False)
            if name in self._example
            else np.asarray(column)
            for name, column in drawn.items()
        }

    def update(self, indices: Any, priorities: Array) -> None:
        """Update in one call."""
        self._state = self._set(self._state, indices, priorities)

    def __len__(self) -> int:
        """How many transitions are stored."""
        return self._plan.capacity if self._state.is_full else int(self._state.current_index)

    def close(self) -> None:
        """Forget the state."""
        self._state = None

    def _functions(self, size: int, *, add_sequences: bool = False) -> Any:
        """The buffer's functions for batches of a size."""
        flashbax = importlib.import_module("flashbax")
        if self._plan.length > 1:
            return flashbax.make_trajectory_buffer(
                add_batch_size=1,
                sample_batch_size=size,
                sample_sequence_length=self._plan.length,
                period=1,
                min_length_time_axis=self._plan.length,
                max_length_time_axis=self._plan.capacity,
            )
        settings = {
            "max_length": self._plan.capacity,
            "min_length": 1,
            "sample_batch_size": size,
            "add_sequences": add_sequences,
        }
        if self._plan.prioritized:
            return flashbax.make_prioritised_item_buffer(
                **settings, priority_exponent=ALPHA, device="cpu"
            )
        return flashbax.make_item_buffer(**settings)


ENGINE = Flashbax()
