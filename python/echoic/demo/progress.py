"""What has happened so far: the numbers behind the view, the plot and the verdict."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.demo.learner import Lesson

#: The score is the mean return of so many training episodes, the latest ones.
EPISODES = 100


class Tick(NamedTuple):
    """The state after a batch."""

    seconds: float
    steps: int
    episodes: int
    mean_return: float
    lag_mean: float
    lag_max: int


class Progress:
    """A record that grows by one `Tick` a batch, from the moment it is made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._step_marks = [0]
        self._time_marks = [0.0]
        self.ticks: list[Tick] = []
        self.returns: list[float] = []
        self.steps = 0
        self.seconds = 0.0

    def add(self, lesson: Lesson) -> None:
        """Record a batch that the learner is done with."""
        self.seconds = self._clock() - self._start
        self.steps += lesson.steps
        self.returns += lesson.returns
        self._time_marks.append(self.seconds)
        self._step_marks.append(self.steps)
        self.ticks.append(
            Tick(
                self.seconds,
                self.steps,
                len(self.returns),
                self.mean_return,
                sum(lesson.lag) / len(lesson.lag),
                max(lesson.lag),
            )
        )

    @property
    def mean_return(self) -> float:
        """Over the latest `EPISODES` episodes; NaN before the first one ends."""
        latest = self.returns[-EPISODES:]
        return sum(latest) / len(latest) if latest else math.nan

    def reached(self, target: float) -> bool:
        """Whether the score is there: fewer than `EPISODES` episodes do not count."""
        return len(self.returns) >= EPISODES and self.mean_return >= target

    def rate(self, at: float, window: float = 1.0) -> float:
        """Steps per second over the `window` seconds before `at`."""
        first = max(bisect_right(self._time_marks, at - window) - 1, 0)
        last = bisect_right(self._time_marks, at) - 1
        seconds = self._time_marks[last] - self._time_marks[first]
        steps = self._step_marks[last] - self._step_marks[first]
        return steps / seconds if seconds > 0 else 0.0
