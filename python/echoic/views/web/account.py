"""Readings as what JSON can say: for the page, which makes words and charts of it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from echoic.views.buckets import buckets, filled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from echoic.views.problems import Problem
    from echoic.views.reading import Reading
    from echoic.views.rollout_reading import RolloutReading
    from echoic.watch import Connection

__all__ = ["moment", "nothing", "now"]

# More than this many connections are counted, not listed.
_CONNECTIONS = 200


def nothing() -> dict[str, Any]:
    """Say that nothing was seen yet; has the keys of :func:`now`."""
    return {
        "age": None,
        "release": "",
        "problems": [],
        "stream": None,
        "tables": [],
        "rollouts": [],
        "doors": None,
        "connections": [],
        "told": {},
    }


def now(reading: Reading, before: Reading | None, problems: Iterable[Problem]) -> dict[str, Any]:
    """Say how the server is. Rates are those since the reading before."""
    told: dict[str, Any] = {
        "age": reading.age,
        "release": reading.release,
        "problems": [asdict(problem) for problem in problems],
        "stream": None,
        "tables": [],
        "rollouts": [
            {**asdict(table), "fill": table.fill, "lags": table.lags} for table in reading.rollouts
        ],
        "doors": asdict(reading.doors),
        "connections": _connections(reading, before),
        "told": reading.told,
    }
    if reading.stream is not None:
        told["stream"] = {**asdict(reading.stream), "fill": reading.stream.fill}
    for table in reading.tables:
        histograms = {
            name: [(one.label, one.count) for one in filled(buckets(getattr(table, name)))]
            for name in ("times_sampled", "priorities", "lags")
        }
        told["tables"].append({**asdict(table), "fill": table.fill, **histograms})
    return {name: _finite(value) for name, value in told.items()}


def moment(before: Reading, after: Reading) -> dict[str, Any]:
    """Say what is drawn of the time between two readings: numbers for each table and the stream."""
    seconds = max(after.age - before.age, 1e-9)
    earlier = {table.name: table for table in before.tables}
    tables = []
    for table in after.tables:
        first = earlier.get(table.name, table)
        tables.append(
            {
                "name": table.name,
                "inserts": max(table.inserts - first.inserts, 0) / seconds,
                "samples": max(table.samples - first.samples, 0) / seconds,
                "ratio": table.ratio,
                "items": table.items,
            }
        )
    before_rollouts = {table.name: table for table in before.rollouts}
    rollouts = [
        _rollouts(before_rollouts.get(table.name, table), table, seconds)
        for table in after.rollouts
    ]
    stream = None
    if after.stream is not None:
        start = before.stream or after.stream
        stream = {
            "samples": max(after.stream.samples - start.samples, 0) / seconds,
            "bytes": max(after.stream.bytes - start.bytes, 0) / seconds,
            "batches": max(after.stream.delivered - start.delivered, 0) / seconds,
            "stored": after.stream.stored,
        }
    return {
        "age": after.age,
        "stream": _finite(stream),
        "tables": _finite(tables),
        "rollouts": _finite(rollouts),
    }


def _rollouts(first: RolloutReading, last: RolloutReading, seconds: float) -> dict[str, Any]:
    """Say what is drawn of a rollout table between two readings."""

    def rate(counter: Literal["submitted", "delivered", "tokens", "delivered_tokens"]) -> float:
        return float(max(getattr(last, counter) - getattr(first, counter), 0)) / seconds

    def waited(side: Literal["producers", "consumers"]) -> float:
        before, after = (
            float(sum(waits.seconds for waits in getattr(one, side).values()))
            for one in (first, last)
        )
        return max(after - before, 0.0) / seconds

    return {
        "name": last.name,
        "reserved": rate("submitted"),
        "delivered": rate("delivered"),
        "tokens": rate("tokens"),
        "delivered_tokens": rate("delivered_tokens"),
        "running": last.running,
        "ready": last.ready,
        "lag_oldest": last.lag_oldest,
        "lag_mean": last.lag_mean,
        "producers": waited("producers"),
        "consumers": waited("consumers"),
    }


def _connections(reading: Reading, before: Reading | None) -> list[dict[str, Any]]:
    earlier = {_name(one): one for one in before.connections} if before else {}
    seconds = max(reading.age - before.age, 1e-9) if before else 1.0
    told = []
    for one in reading.connections[:_CONNECTIONS]:
        first = earlier.get(_name(one), one)
        told.append(
            {
                **asdict(one),
                "samples_rate": max(one.samples - first.samples, 0) / seconds,
                "bytes_rate": max(one.bytes - first.bytes, 0) / seconds,
            }
        )
    return told


def _name(connection: Connection) -> tuple[str, int]:
    return connection.address, connection.id


def _finite(value: Any) -> Any:
    """Put nothing where a number is infinite or none: JSON has no word for these."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value
