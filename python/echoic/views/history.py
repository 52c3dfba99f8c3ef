"""The past readings of a server: current rates, and the series of charts.

Whole readings are kept for some seconds, which current rates and problems need. Of older readings
only the numbers of charts remain: each for a while, then the means of ten.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from echoic.cli.text import age, amount, size
from echoic.views.reading import StreamReading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from echoic.views.reading import Key, Reading, Thing
    from echoic.watch import Peer

__all__ = ["WINDOW", "Client", "History", "Point"]

#: Rates are those of this many seconds; those of single readings change too fast to be read.
WINDOW = 3.0
# Seconds for which whole readings are kept.
_KEPT = 3 * WINDOW
# The most things that have charts: a server may have thousands of tables.
_CHARTED = 256
_EACH = 10


@dataclass(frozen=True)
class Point:
    """The values of each thing's series at one moment. NaN is a gap."""

    age: float
    values: dict[Key, tuple[float, ...]]


@dataclass(frozen=True)
class Client:
    """A connection, and its rates of the last seconds."""

    connection: Peer
    samples: float = 0.0  # Stored per second.
    bytes: float = 0.0  # Received per second.
    blocked: float = 0.0  # The share of the time for which its samples waited for room.

    def cells(self) -> dict[str, str]:
        """Return its numbers as text, by the names of columns."""
        one = self.connection
        return {
            "client": one.name or one.peer,
            "age": age(one.age),
            "samples/s": amount(self.samples),
            "bytes/s": size(round(self.bytes)),
            "waited": f"{self.blocked:.0%}",
            "waits for": one.blocked_by,
            "from": one.peer,
            "samples": amount(one.samples),
            "at": one.address,
        }


class History:
    """The readings of one server since its last start.

    Args:
        length: Points that are kept.
        older: Means of ten points that are kept beyond these.
    """

    def __init__(self, length: int = 300, older: int = 0) -> None:
        self.length = length
        self._readings: deque[Reading] = deque()
        self._points: deque[Point] = deque()
        self._older: deque[Point] = deque(maxlen=older)

    def add(self, reading: Reading) -> None:
        """Add a reading. Drop all earlier ones if the server was restarted in between."""
        last = self.last
        if last is not None and last.incarnation not in {0, reading.incarnation}:
            for kept in (self._readings, self._points, self._older):
                kept.clear()
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].age < reading.age - _KEPT:
            self._readings.popleft()
        if len(self._readings) > 1:
            self._points.append(_point(self._readings[-2], reading))
        if len(self._points) >= self.length + _EACH:
            self._older.append(_mean([self._points.popleft() for _ in range(_EACH)]))

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The readings of the last seconds, the newest last."""
        return tuple(self._readings)

    @property
    def last(self) -> Reading | None:
        """The newest reading."""
        return self._readings[-1] if self._readings else None

    @property
    def is_long(self) -> bool:
        """Whether it is long enough to conclude that nothing moves."""
        return (
            bool(self._readings) and self._readings[-1].age - self._readings[0].age >= WINDOW * 0.3
        )

    def rates(self, thing: Thing, seconds: float = WINDOW) -> dict[str, float]:
        """Return the growth per second of each count of a thing, in the last seconds."""
        return _rates(self._before(seconds), self._readings[-1], thing.key) if self.last else {}

    def clients(self, seconds: float = WINDOW) -> list[Client]:
        """Return each connection with its rates of the last seconds."""
        return _clients(self._before(seconds), self._readings[-1]) if self.last else []

    def series(self, thing: Thing, name: str, most: int | None = None) -> list[float]:
        """Return the values of a rate or gauge of a chart: the newest `most` points, or all."""
        at = thing.series().index(name)
        first = 0 if most is None else max(len(self._points) - most, 0)
        points = islice(self._points, first, None)
        return [point.values[thing.key][at] for point in points if thing.key in point.values]

    def past(self, seconds: float, most: int) -> list[Point]:
        """Return the last seconds as about `most` points, each the mean of its interval."""
        groups: dict[int, list[Point]] = {}
        for point in chain(self._older, self._points):
            if self.last and point.age > self.last.age - seconds:
                groups.setdefault(int(point.age * most / seconds), []).append(point)
        return [_mean(group) for group in groups.values()]

    def _before(self, seconds: float) -> Reading:
        """Return the newest reading older than that, or the first; never the last one."""
        first = self._readings[0]
        for reading in islice(self._readings, len(self._readings) - 1):
            if reading.age > self._readings[-1].age - seconds:
                break
            first = reading
        return first


def _rates(before: Reading, after: Reading, key: Key) -> dict[str, float]:
    seconds = after.age - before.age
    earlier, thing = before.things.get(key), after.things.get(key)
    if thing is None:
        return {}
    counts, first = thing.counts(), earlier.counts() if earlier else {}
    # A new reason to wait starts at zero; a new thing has no rates yet.
    new = 0.0 if earlier else math.inf
    found = {
        name: max(value - first.get(name, new), 0.0) / seconds if seconds > 0 else 0.0
        for name, value in counts.items()
    }
    if isinstance(thing, StreamReading):
        found["starved"] = min(found["starved"], 1.0)
        found["blocked"] = _blocked(found["blocked"], before, after)
    return found


def _blocked(all_pushes: float, before: Reading, after: Reading) -> float:
    """Return the share of time for which an average connection, or this process, had no room."""
    clients = _clients(before, after)
    pushing = [one.blocked for one in clients if one.connection.purpose == "push"]
    # What the stream counts includes the connections.
    return min(max(sum(pushing) / max(len(pushing), 1), all_pushes - sum(pushing)), 1.0)


def _clients(before: Reading, after: Reading) -> list[Client]:
    between = after.age - before.age
    known = {(one.address, one.id): one for one in before.connections}
    found = []
    for one in after.connections:
        first = known.get((one.address, one.id))
        # A new connection has counted since it was opened.
        span = max(between if first else min(one.age, between), 1e-9)
        begun = (first.samples, first.bytes, first.blocked_time) if first else (0, 0, 0.0)
        ended = (one.samples, one.bytes, one.blocked_time)
        rates = [(last - start) / span for start, last in zip(begun, ended, strict=True)]
        rates[2] = min(rates[2], 1.0)
        found.append(Client(one, *rates) if between > 0 else Client(one))
    return found


def _point(before: Reading, after: Reading) -> Point:
    values = {}
    for key, thing in islice(after.things.items(), _CHARTED):
        rates = _rates(before, after, key)
        drawn = (rates.get(name, getattr(thing, name, None)) for name in thing.series())
        values[key] = tuple(math.nan if one is None else float(one) for one in drawn)
    return Point(after.age, values)


def _mean(points: list[Point]) -> Point:
    """Return the mean of some points, for the things of the last one."""
    last = points[-1]
    if len(points) == 1:
        return last

    def mean(values: Iterable[float]) -> float:
        known = [value for value in values if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan

    values = {}
    for key in last.values:
        rows = (point.values[key] for point in points if key in point.values)
        values[key] = tuple(map(mean, zip(*rows, strict=True)))
    return Point(last.age, values)
