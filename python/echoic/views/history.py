"""Readings of the last minutes, and rates between them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.views.reading import Reading

__all__ = ["History"]


class History:
    """The last readings, at most ``length``."""

    def __init__(self, length: int = 300) -> None:
        """Begin with none."""
        self._readings: deque[Reading] = deque(maxlen=length)

    def add(self, reading: Reading) -> None:
        """Add a reading. After one of a server that was started anew, nothing before it counts."""
        last = self.last
        if last is not None and last.life not in {0, reading.life}:
            self._readings.clear()
        self._readings.append(reading)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All of them, the newest last."""
        return tuple(self._readings)

    @property
    def length(self) -> int:
        """How many readings are kept at most."""
        return self._readings.maxlen or 0

    @property
    def last(self) -> Reading | None:
        """The newest."""
        return self._readings[-1] if self._readings else None

    def rates(
        self, counter: Callable[[Reading], float | None], most: int | None = None
    ) -> list[float]:
        """Return how much a number that only grows grew per second, between each two readings.

        Args:
            counter: Returns the number.
            most: How many rates there may be: the newest. All, if it is not given.
        """
        readings = self.readings
        if most is not None:
            readings = readings[-most - 1 :]
        rates = []
        for index in range(1, len(readings)):
            before, after = readings[index - 1], readings[index]
            first, last = counter(before), counter(after)
            grown = 0.0 if first is None or last is None else max(last - first, 0.0)
            rates.append(grown / max(after.age - before.age, 1e-9))
        return rates

    def rate(self, counter: Callable[[Reading], float | None], seconds: float = 3.0) -> float:
        """Return how much a number that only grows grew per second, of late."""
        last = self.last
        if last is None:
            return 0.0
        # The newest of those before it that are old enough; the first when none is.
        first = self._readings[0]
        for reading in self.readings[:-1]:
            if reading.age > last.age - seconds:
                break
            first = reading
        begun, ended = counter(first), counter(last)
        if begun is None or ended is None or last.age <= first.age:
            return 0.0
        return max(ended - begun, 0.0) / (last.age - first.age)
