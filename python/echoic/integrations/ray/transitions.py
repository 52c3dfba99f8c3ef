"""Insert transitions of episodes into a table and draw them again, for RLlib's buffers.

A :class:`Transitions` makes transitions of pieces of episodes, inserts them, draws, and updates the
priorities of the last draw. There is one for each policy, since their observations differ.

# Invariants

1. A transition that was made is inserted once, unless the table is closed or gone: what a timeout
   left over is kept, and is inserted before anything else.
2. At most the transitions of one ``add`` are kept. While they can't be inserted, no more are taken.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic.errors import ArgumentError, WaitTimeoutError
from echoic.integrations.ray.nsteps import NSteps
from echoic.selectors import Prioritized, Uniform
from echoic.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Settings", "Transitions", "transition_table"]

# RLlib's own lowest priority: an item of priority 0 would never be drawn and corrected.
_LEAST = 1e-12


def transition_table(
    name: str,
    observation_space: Any,
    action_space: Any,
    *,
    capacity: int,
    alpha: float = 0.6,
    **options: Any,
) -> Table:
    """Return a table for the transitions of an environment, for a server or a cluster.

    Args:
        name: The table's name.
        observation_space: Gymnasium's space of observations.
        action_space: Gymnasium's space of actions.
        capacity: How many transitions fit.
        alpha: The exponent of priorities when drawing; with 0 all are equally likely.
        **options: Further options of :class:`~echoic.Table`, such as ``durability`` or ``limiter``.
    """
    observation, action = (_example(space) for space in (observation_space, action_space))
    spec = {
        "obs": observation,
        "actions": action,
        "rewards": np.float32(0),
        "new_obs": observation,
        "terminateds": np.bool_(0),
        "truncateds": np.bool_(0),
        "n_step": np.int32(1),
    }
    sampler = Prioritized(alpha) if alpha else Uniform()
    return Table(name, spec, capacity=capacity, sampler=sampler, **options)


@dataclass(frozen=True)
class Settings:
    """How transitions are made and drawn: arguments of a buffer."""

    capacity: int
    alpha: float
    n_step: int | tuple[int, int]
    gamma: float
    num_learners: int
    timeout: float | None
    seed: int | None


class Transitions:
    """The transitions of one policy.

    Args:
        settings: The settings of its buffer.
        name: The name of a table that is made here.
        table: The table of a server, or ``None`` to make one with the first transitions.
    """

    def __init__(self, settings: Settings, name: str, table: Any = None) -> None:
        """Check that the table has a spec."""
        if table is not None and table.spec is None:
            raise ArgumentError(f"expected table {name!r} to be a transition_table, it has no spec")
        self.table: Any = table
        self.max_priority = 1.0
        # How many were made, whether they are in the table or kept.
        self.made = 0
        self._settings = settings
        self._name = name
        self._is_here = table is None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._makes = NSteps(self._settings.n_step, self._settings.gamma, self._settings.seed)
        # The keys of the last draw.
        self._keys = np.zeros(0, np.uint64)
        # Rows that a timeout left over, and their priorities.
        self._kept: tuple[Any, Any] | None = None

    def __len__(self) -> int:
        """Return how many the table has, of all clients."""
        return 0 if self.table is None else len(self.table)

    @property
    def waiting(self) -> int:
        """The number of transitions kept because of a timeout."""
        return 0 if self._kept is None else len(self._kept[1])

    def deliver(self) -> None:
        """Insert what is kept.

        Raises:
            WaitTimeoutError: If some are still kept; ``stored`` says how many were inserted now.
        """
        if self._kept is not None:
            self._insert(*self._kept)

    def add(self, episodes: Sequence[Any], weight: float | None = None) -> None:
        """Make transitions of pieces of episodes and add them; nothing may be kept before.

        Args:
            episodes: RLlib's ``SingleAgentEpisode``.
            weight: Their priority; the highest so far if ``None``.

        Raises:
            WaitTimeoutError: If some are kept; ``stored`` says how many were inserted.
        """
        rows = self._makes.take(episodes)
        if rows is None:
            return
        count = len(rows["n_step"])
        self.made += count
        priority = self.max_priority if weight is None else weight
        self._insert(rows, np.full(count, priority, np.float64))

    def _insert(self, rows: Any, priorities: Any) -> None:
        if self.table is None:
            self.table = self._make_table(rows)
        timeout = self._settings.timeout
        fitted = _fitted(rows, self.table.spec)
        try:
            self.table.extend(fitted, priorities, None, timeout)
        except WaitTimeoutError as error:
            stored = error.stored
            # Copied, so that the inserted rows can be freed.
            rest = _trees.tree_map(lambda leaf: leaf[stored:].copy(), rows)
            self._kept = rest, priorities[stored:].copy()
            late = WaitTimeoutError(
                f"timed out: table {self._name!r} let {stored} of {len(priorities)} transitions in "
                f"within {timeout} s; {self.waiting} are kept for the next add: {error}"
            )
            late.reason, late.stored = error.reason, stored
            raise late from error
        self._kept = None

    def _make_table(self, rows: Any) -> Table:
        spec = _trees.tree_map(lambda leaf: leaf[0], rows)
        alpha = self._settings.alpha
        sampler = Prioritized(alpha) if alpha else Uniform()
        return Table(
            self._name,
            spec,
            capacity=self._settings.capacity,
            sampler=sampler,
            seed=self._settings.seed,
        )

    def draw(self, count: int, beta: float) -> Any:
        """Draw a batch from the table, and remember its keys.

        Raises:
            WaitTimeoutError: If the table blocked samples for too long.
        """
        if self.table is None:
            raise ArgumentError("expected episodes to be added before the first sample, got none")
        batch = self.table.sample(count, self._settings.timeout, beta)
        self._keys = batch.keys
        return batch

    def update_priorities(self, priorities: Any) -> None:
        """Set the priorities of the last draw, in the order in which the learners return them."""
        keys, self._keys = self._keys, np.zeros(0, np.uint64)
        if len(priorities) != len(keys):
            raise ArgumentError(
                f"expected a priority for each of the {len(keys)} that were drawn last, got "
                f"{len(priorities)}"
            )
        if not self._settings.alpha or not len(keys):
            return
        learners = self._settings.num_learners
        if learners > 1:
            if len(keys) % learners:
                raise ArgumentError(
                    f"expected a batch that {learners} learners share evenly, got "
                    f"{len(keys)} transitions: the errors can't be assigned"
                )
            keys = np.concatenate([keys[one::learners] for one in range(learners)])
        values = np.maximum(np.asarray(priorities, np.float64), _LEAST)
        self.table.update_priorities(keys, values, False)
        self.max_priority = max(self.max_priority, float(values.max()))

    def get_state(self) -> dict[str, Any]:
        """Return the highest priority, what is kept, and the rows of a table made here."""
        rows = None
        if self._is_here and self.table is not None:
            known = self.table.items()
            rows = self.table.get(known.keys).data, known.info.priorities
        return {"max_priority": self.max_priority, "transitions": rows, "waiting": self._kept}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; a table made here then has exactly its transitions."""
        self._begin_anew()
        if self._is_here:
            self.table = None
            if state["transitions"] is not None:
                self._insert(*state["transitions"])
        self.max_priority = state["max_priority"]
        # States of earlier releases do not have it.
        self._kept = state.get("waiting")


def _example(space: Any) -> Any:
    # Drawing from a space changes it.
    return copy.deepcopy(space).sample()


def _fitted(rows: Any, spec: Any) -> Any:
    """Convert numbers to the table's dtypes of the same kind: RLlib's actions differ."""
    leaves, form = _trees.tree_flatten(rows)
    wanted = [np.dtype(leaf.dtype) for leaf in spec.leaves]
    if len(wanted) == len(leaves):
        leaves = [
            leaf.astype(dtype, copy=False) if np.can_cast(leaf.dtype, dtype, "same_kind") else leaf
            for leaf, dtype in zip(leaves, wanted, strict=True)
        ]
    return _trees.tree_unflatten(form, leaves)
