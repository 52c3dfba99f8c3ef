"""A game for the examples, in the shape that Reverb's users know from dm_env: time steps, specs.

`adders` needs no more of a time step than what `TimeStep` has, so that those of dm_env fit as well.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


class StepType(enum.Enum):
    """Where in its episode a time step is."""

    FIRST = enum.auto()
    MID = enum.auto()
    LAST = enum.auto()


class TimeStep(NamedTuple):
    """What an environment answers to an action."""

    step_type: StepType
    reward: Any  # for the action before; None at first
    discount: Any  # what the future counts for: 0 when there is none; None at first
    observation: Any

    def first(self) -> bool:
        """Whether an episode begins here."""
        return self.step_type is StepType.FIRST

    def last(self) -> bool:
        """Whether the episode ends here."""
        return self.step_type is StepType.LAST


def restart(observation: Any) -> TimeStep:
    """Begin an episode."""
    return TimeStep(StepType.FIRST, None, None, observation)


def transition(reward: float, observation: Any) -> TimeStep:
    """Go on."""
    return TimeStep(StepType.MID, np.float32(reward), np.float32(1), observation)


def termination(reward: float, observation: Any) -> TimeStep:
    """End the episode: nothing comes after."""
    return TimeStep(StepType.LAST, np.float32(reward), np.float32(0), observation)


def truncation(reward: float, observation: Any) -> TimeStep:
    """End the episode early: something would have come after."""
    return TimeStep(StepType.LAST, np.float32(reward), np.float32(1), observation)


class EnvironmentSpec(NamedTuple):
    """Trees whose leaves have a shape and a dtype: arrays, or specs of any library."""

    observations: Any
    actions: Any
    rewards: Any
    discounts: Any


class Catch:
    """A ball falls in a random column; a paddle in the last row is to be below it in the end.

    Actions are left, stay and right. The only reward is 1 or -1 at the end.
    """

    ROWS = 8
    COLUMNS = 5
    ACTIONS = 3
    SPEC = EnvironmentSpec(
        observations=np.zeros(ROWS * COLUMNS, np.float32),
        actions=np.zeros((), np.int32),
        rewards=np.zeros((), np.float32),
        discounts=np.zeros((), np.float32),
    )

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._ball = self._row = self._paddle = 0

    def reset(self) -> TimeStep:
        """Drop a new ball."""
        self._ball = int(self._rng.integers(self.COLUMNS))
        self._paddle = self.COLUMNS // 2
        self._row = 0
        return restart(self._observation())

    def step(self, action: int) -> TimeStep:
        """Move the paddle and let the ball fall by one row."""
        self._paddle = min(max(self._paddle + action - 1, 0), self.COLUMNS - 1)
        self._row += 1
        if self._row < self.ROWS - 1:
            return transition(0.0, self._observation())
        return termination(1.0 if self._ball == self._paddle else -1.0, self._observation())

    def _observation(self) -> Array:
        board = np.zeros((self.ROWS, self.COLUMNS), np.float32)
        board[-1, self._paddle] = 1
        board[self._row, self._ball] = 1
        return board.ravel()
