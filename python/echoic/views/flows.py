"""How fast things go on, and how long somebody waits: what views compute from counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.views.history import History
    from echoic.views.reading import Reading

    Counter: TypeAlias = Callable[[Reading], float | None]

__all__ = [
    "ConnectionFlow",
    "RolloutFlow",
    "StreamFlow",
    "blocked_pushes",
    "connections",
    "rollout",
    "rollouts",
    "stream",
    "stream_samples",
    "table",
]

# Rates are those of this many seconds, or they could not be read.
WINDOW = 3.0


@dataclass(frozen=True)
class StreamFlow:
    """What happened to the stream of late.

    Attributes:
        samples: Stored per second.
        bytes: The same in bytes.
        batches: Taken per second.
        starved: For which share of the time a call for a batch waited.
        blocked: For which share of the time an average connection waited for room, or pushes of the
            server's process did, whichever is more.
    """

    samples: float
    bytes: float
    batches: float
    starved: float
    blocked: float


@dataclass(frozen=True)
class ConnectionFlow:
    """What happened to a connection of late.

    Attributes:
        samples: Stored per second.
        bytes: Received per second.
        blocked: For which share of the time its samples waited for room.
    """

    samples: float = 0.0
    bytes: float = 0.0
    blocked: float = 0.0


@dataclass(frozen=True)
class RolloutFlow:
    """What happened to a rollout table of late.

    Attributes:
        reserved: Groups that were reserved per second.
        delivered: Groups that were delivered per second.
        tokens: That came per second.
        delivered_tokens: Of groups that were delivered, per second.
        stale: Groups that were let go of because they were too old, per second.
        producers: How many calls of producers waited on average, by reason.
        consumers: The same of consumers: 1 is one that did nothing else.
    """

    reserved: float
    delivered: float
    tokens: float
    delivered_tokens: float
    stale: float
    producers: dict[str, float]
    consumers: dict[str, float]


def rollouts(
    name: str,
    counter: Literal["submitted", "delivered", "tokens", "delivered_tokens", "stale"],
) -> Counter:
    """Make a function that counts groups or tokens of a rollout table."""

    def count(reading: Reading) -> float | None:
        found = reading.rollout(name)
        return None if found is None else float(getattr(found, counter))

    return count


def rollout(name: str, history: History, seconds: float = WINDOW) -> RolloutFlow:
    """Compute what happened to a rollout table in the last seconds."""

    def waited(side: Literal["producers", "consumers"]) -> dict[str, float]:
        last = history.last.rollout(name) if history.last else None
        found: dict[str, float] = {}
        for reason in getattr(last, side) if last else ():

            def count(reading: Reading, reason: str = reason) -> float | None:
                table = reading.rollout(name)
                waits = None if table is None else getattr(table, side).get(reason)
                # A reason that there never was has no number.
                return None if table is None else (waits.seconds if waits else 0.0)

            found[reason] = history.rate(count, seconds)
        return found

    return RolloutFlow(
        reserved=history.rate(rollouts(name, "submitted"), seconds),
        delivered=history.rate(rollouts(name, "delivered"), seconds),
        tokens=history.rate(rollouts(name, "tokens"), seconds),
        delivered_tokens=history.rate(rollouts(name, "delivered_tokens"), seconds),
        stale=history.rate(rollouts(name, "stale"), seconds),
        producers=waited("producers"),
        consumers=waited("consumers"),
    )


def stream_samples(reading: Reading) -> float | None:
    """Count samples of the stream."""
    return None if reading.stream is None else reading.stream.samples


def table(name: str, counter: Literal["inserts", "samples"]) -> Counter:
    """Make a function that counts inserts or samples of a table."""

    def count(reading: Reading) -> float | None:
        found = reading.table(name)
        if found is None:
            return None
        return found.inserts if counter == "inserts" else found.samples

    return count


def stream(history: History, seconds: float = WINDOW) -> StreamFlow:
    """Compute what happened to the stream in the last seconds."""

    def rate(
        counter: Literal["samples", "bytes", "delivered", "starved_seconds"],
    ) -> float:
        def count(reading: Reading) -> float | None:
            return None if reading.stream is None else getattr(reading.stream, counter)

        return history.rate(count, seconds)

    return StreamFlow(
        samples=rate("samples"),
        bytes=rate("bytes"),
        batches=rate("delivered"),
        starved=min(rate("starved_seconds"), 1.0),
        blocked=blocked_pushes(history, seconds),
    )


def blocked_pushes(history: History, seconds: float = WINDOW) -> float:
    """Compute for which share of the time an average producer waited for room.

    That is an average connection that pushes, or the server's own process, whichever waited more.
    """

    def count(reading: Reading) -> float | None:
        return None if reading.stream is None else reading.stream.blocked_seconds

    last = history.last
    pushing = (
        {(one.address, one.id) for one in last.connections if one.purpose == "push"}
        if last
        else set()
    )
    flowing = connections(history, seconds) if pushing else {}
    far = sum(flowing[one].blocked for one in pushing if one in flowing)
    # What the stream counts includes the connections.
    here = history.rate(count, seconds) - far
    return min(max(far / max(len(pushing), 1), here), 1.0)


def connections(history: History, seconds: float = WINDOW) -> dict[tuple[str, int], ConnectionFlow]:
    """Compute what happened to each connection, by its address and number.

    It is done for all at once, because there may be thousands.
    """
    last = history.last
    if last is None:
        return {}
    before = last
    for reading in reversed(history.readings[:-1]):
        before = reading
        if reading.age <= last.age - seconds:
            break
    between = last.age - before.age
    if between <= 0:
        return {}
    known = {(one.address, one.id): one for one in before.connections}
    flows = {}
    for one in last.connections:
        first = known.get((one.address, one.id))
        # One that is new has counted since it came.
        span = between if first else max(min(one.age, between), 1e-9)
        flows[one.address, one.id] = ConnectionFlow(
            samples=(one.samples - (first.samples if first else 0)) / span,
            bytes=(one.bytes - (first.bytes if first else 0)) / span,
            blocked=min((one.blocked_time - (first.blocked_time if first else 0)) / span, 1.0),
        )
    return flows
