"""What has happened so far: the numbers behind the view, the plot and the verdict.

A :class:`Traffic` looks at how much comes through each connection to the server.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.demo import rollout

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


class Flow(NamedTuple):
    """One connection, over the last few seconds."""

    address: str  # of the server
    peer: str
    rate: float  # steps per second
    blocked: float  # the share of the time that it waited for room


class Traffic:
    """Looks at the connections twice a second, however often it is asked."""

    INTERVAL = 0.5
    # Workers that write into shared memory tell the server once a second how much: over a shorter
    # time the rates would jump.
    LOOKS = 4

    def __init__(
        self,
        connections: Callable[[], list[dict[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._next = clock() + self.INTERVAL
        self._looks: deque[tuple[float, dict[int, dict[str, Any]]]] = deque(maxlen=self.LOOKS)
        self._flows: list[Flow] = []

    def flows(self) -> list[Flow]:
        """Return the connections that stand, in the order in which they came."""
        now = self._clock()
        if now >= self._next:
            found = {connection["id"]: connection for connection in self._connections()}
            since, before = self._looks[0] if self._looks else (now, {})
            self._flows = [
                self._flow(connection, before.get(number), now - since)
                for number, connection in sorted(found.items())
            ]
            self._looks.append((now, found))
            self._next = now + self.INTERVAL
        return self._flows

    @staticmethod
    def _flow(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> Flow:
        if before is None:
            before = {"samples": 0, "blocked_time": 0.0}
            seconds = now["age"]
        steps = (now["samples"] - before["samples"]) * rollout.LENGTH
        blocked = now["blocked_time"] - before["blocked_time"]
        # A long wait is noted when it is over, and may be longer than the time looked at.
        return Flow(now["address"], now["peer"], steps / seconds, min(blocked / seconds, 1.0))
