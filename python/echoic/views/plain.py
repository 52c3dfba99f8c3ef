"""One reading as plain text for people, or as data for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from echoic.cli.text import amount, duration, size
from echoic.views import flows
from echoic.views.problems import find_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.views.history import History
    from echoic.views.reading import Reading, Side, TableReading
    from echoic.views.rollout_reading import RolloutReading, Waits

__all__ = ["as_data", "as_text"]


def as_data(address: str, history: History) -> dict[str, Any]:
    """Return the newest reading, its rates and its problems as dicts, lists and numbers.

    Keys stay what they are from one release to the next; there may be more of them.
    """
    reading = latest(history)
    stream = None
    if reading.stream is not None:
        stream = {**asdict(reading.stream), "rates": asdict(flows.stream(history))}
    rates = flows.connections(history)
    return {
        "address": address,
        "release": reading.release,
        "age": reading.age,
        "problems": [asdict(problem) for problem in find_problems(history)],
        "stream": stream,
        "tables": [
            {
                **asdict(table),
                "rates": {
                    "inserts": history.rate(flows.table(table.name, "inserts")),
                    "samples": history.rate(flows.table(table.name, "samples")),
                },
            }
            for table in reading.tables
        ],
        "rollouts": [
            {**asdict(table), "rates": asdict(flows.rollout(table.name, history))}
            for table in reading.rollouts
        ],
        "doors": asdict(reading.doors),
        "connections": [
            {
                **asdict(one),
                "rates": asdict(rates.get((one.address, one.id), flows.ConnectionFlow())),
            }
            for one in reading.connections
        ],
        # JSON has no other numbers than finite ones.
        "told": {
            name: value if math.isfinite(value) else None for name, value in reading.told.items()
        },
    }


def as_text(address: str, history: History) -> str:
    """Return the newest reading as lines, what is wrong first."""
    reading = latest(history)
    lines = [f"{address}: echoic {reading.release}, up {duration(reading.age)}", ""]
    for problem in find_problems(history):
        lines += [
            f"{problem.level.upper()}: {problem.subject} ({problem.reason})",
            f"  {problem.text}",
            f"  what helps: {problem.advice}",
        ]
    if len(lines) == 2:  # noqa: PLR2004 - only the title so far
        lines.append("nothing is stuck")
    lines += ["", *stream_lines(history)]
    for table in reading.tables:
        lines += table_lines(table, history)
    for rollouts in reading.rollouts:
        lines += rollout_lines(rollouts, history)
    doors = reading.doors
    lines.append(
        f"connections: {doors.connections:,d}, {doors.accepted:,d} accepted since the start,"
        f" {doors.reconnects:,d} came back, {sum(doors.refused.values()):,d} refused"
    )
    rates = flows.connections(history)
    for one in reading.connections:
        flow = rates.get((one.address, one.id), flows.ConnectionFlow())
        waits = f", waits: {one.blocked_by}" if one.blocked_by else ""
        who = f"{one.name} ({one.peer})" if one.name else one.peer
        lines.append(
            f"  {who}: {duration(one.age)}, {amount(one.samples)} samples,"
            f" {amount(flow.samples)} samples/s, {size(round(flow.bytes))}/s{waits}"
        )
    if reading.told:
        lines += [
            "told by the program:",
            *(f"  {name}: {value:g}" for name, value in reading.told.items()),
        ]
    return "\n".join(lines)


def latest(history: History) -> Reading:
    """Return the newest reading, which must be there."""
    if history.last is None:
        raise ValueError("there is no reading yet")
    return history.last


def stream_lines(history: History) -> Iterator[str]:
    """Tell of the stream, if there is one."""
    stream = latest(history).stream
    if stream is None:
        return
    flow = flows.stream(history)
    yield (
        f"stream: {amount(flow.samples)} samples/s, {size(flow.bytes)}/s,"
        f" {amount(stream.samples)} samples since the start"
    )
    yield (
        f"  ring {stream.fill:.0%} full, batches of {stream.batch_size:,d}: {stream.ready} ready,"
        f" {stream.held} held, {stream.free} free"
    )
    yield f"  the learner waited {flow.starved:.0%} of the time, workers {flow.blocked:.0%}"


def table_lines(table: TableReading, history: History) -> Iterator[str]:
    """Tell of a table."""
    target = "" if table.target_ratio is None else f" (target {table.target_ratio:g})"
    yield (
        f"table {table.name!r}: {table.items:,d} of {table.max_items:,d} items,"
        f" {table.ratio:.3g} samples for each insert{target}{', paused' if table.paused else ''}"
    )
    inserts = history.rate(flows.table(table.name, "inserts"))
    samples = history.rate(flows.table(table.name, "samples"))
    yield f"  {amount(table.inserts)} inserts, {amount(inserts)}/s, {waits(table.insert)}"
    yield f"  {amount(table.samples)} samples, {amount(samples)}/s, {waits(table.sample)}"


def rollout_lines(table: RolloutReading, history: History) -> Iterator[str]:
    """Tell of a rollout table."""
    flow = flows.rollout(table.name, history)
    yield (
        f"rollout table {table.name!r}: version {table.version:,d}, the next batch is for"
        f" {table.target:,d}{', paused' if table.paused else ''}"
    )
    yield (
        f"  {table.running:,d} groups are made, {table.ready:,d} ready (a batch takes"
        f" {table.batch_groups:,d}), {table.leased:,d} leased; {table.room:,d} more may begin"
    )
    yield (
        f"  in:  {amount(flow.reserved)} groups/s, {amount(flow.tokens)} tokens/s;"
        f" {table.submitted:,d} submitted, {table.accepted:,d} accepted,"
        f" {table.rejected:,d} rejected, {table.filtered:,d} filtered, {table.stale:,d} too old"
    )
    yield (
        f"  out: {amount(flow.delivered)} groups/s, {amount(flow.delivered_tokens)} tokens/s;"
        f" {table.delivered:,d} delivered in {table.batches:,d} batches,"
        f" {table.redelivered:,d} again, {table.lost:,d} lost"
    )
    most = "" if table.max_lag is None else f" (at most {table.max_lag})"
    yield f"  versions old when delivered: {table.lags}{most}"
    yield f"  producers: {idle(table.producers, flow.producers)}"
    yield f"  consumers: {idle(table.consumers, flow.consumers)}"
    for source in table.sources:
        yield (
            f"  source {source.name!r}: {source.submitted:,d} submitted, {source.running:,d} made"
            f" now, {source.accepted:,d} accepted, {source.rejected:,d} rejected,"
            f" {source.filtered:,d} filtered, {amount(source.tokens)} tokens"
            + (f"; {source.waiting:,d} waiting" if source.waiting else "")
            + (", STARVING" if source.is_starving else "")
        )


def idle(side: dict[str, Waits], of_late: dict[str, float]) -> str:
    """Say who waits now, and for what calls waited of late."""
    now = [f"{waits.waiting:,d} {reason}" for reason, waits in side.items() if waits.waiting]
    late = [f"{calls:.2g} {reason}" for reason, calls in of_late.items() if calls]
    words = f"waiting now: {', '.join(now)}" if now else "nobody waits"
    return f"{words}; on average of late: {', '.join(late)}" if late else words


def waits(side: Side) -> str:
    """Say who waits, and why."""
    if not side.waiting:
        return "nobody waits"
    calls = "1 call waits" if side.waiting == 1 else f"{side.waiting:,d} calls wait"
    return f"{calls}: {side.reason}" if side.reason else calls
