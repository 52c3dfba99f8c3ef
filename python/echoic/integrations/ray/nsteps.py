"""Make transitions of n steps from pieces of episodes, as RLlib's environments deliver them.

Each step of an episode becomes one transition: from its observation to the one ``n_step`` steps
later, or to the episode's last one if that is nearer, with the discounted sum of the rewards in
between. A step whose transition needs later steps waits for the next piece.

# Invariants

1. A step becomes a transition at most once, and not at all if the pieces after it never come.
2. At most ``n_step - 1`` steps wait of each episode, and at most ``MAX_OPEN`` episodes wait. Beyond
   that, the waiting steps of the episode that was updated least recently are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_OPEN", "NSteps"]

MAX_OPEN = 65_536


@dataclass(frozen=True)
class _Piece:
    """Consecutive steps of an episode; it has one observation more than steps."""

    observations: Any
    actions: Any
    rewards: np.ndarray[Any, np.dtype[np.float64]]
    # The number of the step after the last one, counted from the episode's start.
    end: int


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
        if not made:
            return None
        return _trees.tree_map(lambda *leaves: np.concatenate(leaves), *made)

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
            piece = _joined(before, piece)
        # The last steps wait for the next piece, unless the episode is over.
        steps = len(piece.rewards)
        ready = steps if episode.is_done else max(0, steps - (self._end - 2))
        if ready < steps:
            self._wait(episode.id_, _last(piece, steps - ready))
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
            "obs": _trees.tree_map(lambda leaf: leaf[:ready], piece.observations),
            "actions": _trees.tree_map(lambda leaf: leaf[:ready], piece.actions),
            "rewards": rewards.astype(np.float32),
            "new_obs": _trees.tree_map(lambda leaf: leaf[last], piece.observations),
            "terminateds": is_end & episode.is_terminated,
            "truncateds": is_end & episode.is_truncated,
            "n_step": spans.astype(np.int32),
        }


def _rows(values: Any) -> Any:
    """Stack a list of trees into a tree of arrays; arrays that RLlib has made stay."""
    if not isinstance(values, list):
        return values
    return _trees.tree_map(lambda *leaves: np.stack(leaves), *values)


def _joined(before: _Piece, after: _Piece) -> _Piece:
    # The observation between the two is in both.
    observations = _trees.tree_map(
        lambda one, other: np.concatenate([one[:-1], other]),
        before.observations,
        after.observations,
    )
    actions = _trees.tree_map(
        lambda one, other: np.concatenate([one, other]), before.actions, after.actions
    )
    return _Piece(observations, actions, np.concatenate([before.rewards, after.rewards]), after.end)


def _last(piece: _Piece, steps: int) -> _Piece:
    """Copy the last steps of a piece, so that the rest can be freed."""
    return _Piece(
        _trees.tree_map(lambda leaf: leaf[-steps - 1 :].copy(), piece.observations),
        _trees.tree_map(lambda leaf: leaf[-steps:].copy(), piece.actions),
        piece.rewards[-steps:].copy(),
        piece.end,
    )
