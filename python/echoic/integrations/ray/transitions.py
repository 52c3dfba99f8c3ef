"""Make transitions of RLlib's episodes, insert them into a table, and draw them again.

:class:`NSteps` makes transitions of ``n_step`` steps from pieces of episodes, as RLlib's
environments deliver them. Each step of an episode becomes one: from its observation to the one
``n_step`` steps later, or to the episode's last one if that is nearer, with the discounted sum of
the rewards in between. A step whose transition needs later steps waits for the next piece.

:class:`Transitions` inserts them, draws, and updates the priorities of the last draw. There is one
for each policy, since their observations differ.

# Invariants

1. A step becomes a transition at most once, and not at all if the pieces after it never come.
2. At most ``n_step - 1`` steps wait of each episode, and at most ``MAX_OPEN`` episodes wait. Beyond
   that, the waiting steps of the episode that was updated least recently are dropped.
3. A transition that was made is inserted once, unless the table is closed or gone: what a timeout
   left over is kept, and is inserted before anything else.
4. At most the transitions of one ``add`` are kept. While they can't be inserted, no more are taken.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic.errors import ArgumentError, WaitTimeoutError
from echoic.selectors import Prioritized, Uniform
from echoic.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MAX_OPEN", "NSteps", "Settings", "Transitions", "transition_table"]

MAX_OPEN = 65_536
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
    # Drawing from a space changes it.
    observation, action = (
        copy.deepcopy(space).sample() for space in (observation_space, action_space)
    )
    spec = {
        "obs": observation,
        "actions": action,
        "rewards": np.float32(0),
        "new_obs": observation,
        "terminateds": np.bool_(0),
        "truncateds": np.bool_(0),
        "n_step": np.int32(1),
    }
    return Table(name, spec, capacity=capacity, sampler=_sampler(alpha), **options)


def _sampler(alpha: float) -> Prioritized | Uniform:
    return Prioritized(alpha) if alpha else Uniform()


class NSteps:
    """Make transitions from pieces of episodes.

    Args:
        n_step: How many steps a transition has. Given two numbers ``(least, end)``, each has a
            random number from ``least`` to ``end - 1``.
        gamma: The discount of the rewards.
        seed: Seed of random numbers of steps; random if ``None``.
    """

    def __init__(
        self, n_step: int | tuple[int, int] = 1, gamma: float = 0.99, seed: int | None = None
    ) -> None:
        least, end = (n_step, n_step + 1) if isinstance(n_step, int) else n_step
        if not 1 <= least < end:
            raise ArgumentError(
                f"n_step must be at least 1, or (least, end) with 1 <= least < end, got {n_step}"
            )
        self._least, self._end = least, end
        self._gamma = gamma
        self._random = np.random.default_rng(seed)
        self._waiting: OrderedDict[str, _Piece] = OrderedDict()

    def take(self, episodes: Iterable[Any]) -> Any:
        """Return the transitions that can be made now, with an axis of them, or ``None``.

        Args:
            episodes: RLlib's ``SingleAgentEpisode``.
        """
        made = [rows for episode in episodes if (rows := self._take(episode)) is not None]
        return _concatenated(*made) if made else None

    def _take(self, episode: Any) -> Any:
        before = self._waiting.pop(episode.id_, None)
        count = len(episode)
        if count == 0:
            if before is not None and not episode.is_done:
                self._wait(episode.id_, before)
            return None
        piece = _Piece(
            _rows(episode.get_observations(slice(0, count + 1))),
            _rows(episode.get_actions(slice(0, count))),
            np.asarray(episode.get_rewards(slice(0, count)), np.float64),
            episode.t_started + count,
        )
        # If a piece in between is missing, the waiting steps can't be continued.
        if before is not None and before.end == episode.t_started:
            piece = _Piece(
                # The observation between the two is in both.
                _concatenated(
                    _map(lambda leaf: leaf[:-1], before.observations), piece.observations
                ),
                _concatenated(before.actions, piece.actions),
                np.concatenate([before.rewards, piece.rewards]),
                piece.end,
            )
        # The last steps wait for the next piece, unless the episode is over.
        steps = len(piece.rewards)
        ready = steps if episode.is_done else max(0, steps - (self._end - 2))
        if ready < steps:
            # Copied, so that the rest can be freed.
            rest = _Piece(
                _map(lambda leaf: leaf[ready:].copy(), piece.observations),
                _map(lambda leaf: leaf[ready:].copy(), piece.actions),
                piece.rewards[ready:].copy(),
                piece.end,
            )
            self._wait(episode.id_, rest)
        return self._transitions(piece, ready, episode) if ready else None

    def _wait(self, name: str, piece: _Piece) -> None:
        self._waiting[name] = piece
        if len(self._waiting) > MAX_OPEN:
            self._waiting.popitem(last=False)

    def _transitions(self, piece: _Piece, ready: int, episode: Any) -> dict[str, Any]:
        """Make the transitions of a piece's first steps, under RLlib's names of columns."""
        steps = len(piece.rewards)
        first = np.arange(ready)
        wanted: Any = self._least
        if self._end - self._least > 1:
            wanted = self._random.integers(self._least, self._end, ready)
        spans = np.minimum(wanted, steps - first)
        rewards = np.zeros(ready)
        for step in range(self._end - 1):
            inside = step < spans
            later = piece.rewards[np.minimum(first + step, steps - 1)]
            rewards += np.where(inside, self._gamma**step * later, 0.0)
        last = first + spans
        is_end = last == steps
        return {
            "obs": _map(lambda leaf: leaf[:ready], piece.observations),
            "actions": _map(lambda leaf: leaf[:ready], piece.actions),
            "rewards": rewards.astype(np.float32),
            "new_obs": _map(lambda leaf: leaf[last], piece.observations),
            "terminateds": is_end & episode.is_terminated,
            "truncateds": is_end & episode.is_truncated,
            "n_step": spans.astype(np.int32),
        }


@dataclass(frozen=True)
class _Piece:
    """Consecutive steps of an episode; it has one observation more than steps."""

    observations: Any
    actions: Any
    rewards: np.ndarray[Any, np.dtype[np.float64]]
    end: int  # The number of the step after the last one, counted from the episode's start.


_map = _trees.tree_map


def _concatenated(*trees: Any) -> Any:
    return _map(lambda *leaves: np.concatenate(leaves), *trees)


def _rows(values: Any) -> Any:
    """Stack a list of trees into a tree of arrays; arrays that RLlib has made stay."""
    return _map(lambda *leaves: np.stack(leaves), *values) if isinstance(values, list) else values


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
        self._makes = NSteps(settings.n_step, settings.gamma, settings.seed)
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
        settings = self._settings
        if self.table is None:
            self.table = Table(
                self._name,
                _map(lambda leaf: leaf[0], rows),
                capacity=settings.capacity,
                sampler=_sampler(settings.alpha),
                seed=settings.seed,
            )
        try:
            self.table.extend(_fitted(rows, self.table.spec), priorities, None, settings.timeout)
        except WaitTimeoutError as error:
            stored = error.stored
            # Copied, so that the inserted rows can be freed.
            rest = _map(lambda leaf: leaf[stored:].copy(), rows)
            self._kept = rest, priorities[stored:].copy()
            late = WaitTimeoutError(
                f"timed out: table {self._name!r} let {stored} of {len(priorities)} transitions in "
                f"within {settings.timeout} s; {self.waiting} are kept for the next add: {error}"
            )
            late.reason, late.stored = error.reason, stored
            raise late from error
        self._kept = None

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
        """Restore a state, before anything was added."""
        if self._is_here and state["transitions"] is not None:
            self._insert(*state["transitions"])
        self.max_priority = state["max_priority"]
        self._kept = state["waiting"]


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
