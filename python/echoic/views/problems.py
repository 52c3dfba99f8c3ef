"""What is stuck, why, and what helps: in words for somebody who has never seen the code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from echoic.views import flows
from echoic.views.problem import Problem
from echoic.views.rollout_problems import of_rollouts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.views.history import History
    from echoic.views.reading import DoorsReading, Reading, StreamReading, TableReading

__all__ = ["Problem", "find_problems"]

# A side that spends at least this share of the time waiting is worth a line.
_NOTABLE = 0.5
# For so many seconds nothing must have happened for it to be worth a line.
_WHILE = 0.9


def find_problems(history: History) -> list[Problem]:
    """Find what is wrong by the last readings, the worst first."""
    last = history.last
    if last is None:
        return []
    problems = [problem for table in last.tables for problem in _of_table(table, history)]
    problems += [problem for table in last.rollouts for problem in of_rollouts(table, history)]
    if last.stream is not None:
        problems += _of_stream(last.stream, last, history)
    problems += _of_doors(last.doors)
    return sorted(problems, key=lambda problem: ("stuck", "slow", "note").index(problem.level))


def _of_table(table: TableReading, history: History) -> Iterator[Problem]:
    subject = f"table {table.name!r}"
    for side, name in ((table.insert, "insert"), (table.sample, "sample")):
        if not side.reason:
            continue
        # A table that nobody samples from yet keeps nobody waiting.
        if not side.waiting and not table.paused:
            continue
        calls = "call waits" if side.waiting == 1 else "calls wait"
        who = f"{side.waiting} {name} {calls}: " if side.waiting else ""
        text, advice = _explain(table, name, side.reason, history)
        moves = _moves(table, name, side.reason, history)
        yield Problem("slow" if moves else "stuck", subject, side.reason, who + text, advice)


def _moves(table: TableReading, side: str, reason: str, history: History) -> bool:
    """Whether a side that waits gets on all the same, or what it waits for comes."""
    if reason == "PAUSED":
        return False
    if not _is_long(history):
        # Of the first looks nobody knows whether anything moves.
        return True
    inserts = _rate(history, table.name, "inserts") > 0
    if reason == "MIN_SIZE":
        return inserts
    return inserts if side == "insert" else _rate(history, table.name, "samples") > 0


def _explain(table: TableReading, side: str, reason: str, history: History) -> tuple[str, str]:
    """Say why calls of one side wait, and what helps."""
    inserts = _rate(history, table.name, "inserts")
    samples = _rate(history, table.name, "samples")
    if reason == "MIN_SIZE":
        return (
            (
                f"the table has {table.items:,} items, its limiter wants {table.min_items:,} before"
                " the first sample"
            ),
            f"{inserts:,.3g} inserts/s come in; wait for workers, or lower min_size",
        )
    if reason == "RATIO":
        ahead, behind = ("inserts", "samples") if side == "insert" else ("samples", "inserts")
        slow = (
            f"those who sample are the slow side ({samples:,.3g} samples/s)"
            if side == "insert"
            else f"those who insert are the slow side ({inserts:,.3g} inserts/s)"
        )
        target = "" if table.target_ratio is None else f" of {table.target_ratio:g}"
        return (
            (
                f"{ahead} are ahead of {behind}: {table.ratio:.3g} samples for each insert so far,"
                f" and the limiter holds the table to its ratio{target}"
            ),
            f"{slow}; speed them up, or change samples_per_insert or error_buffer",
        )
    if reason == "PAUSED":
        return "the table is paused", "somebody paused it on purpose: resume() ends that"
    if reason == "CAPACITY":
        return (
            f"there is no room: {table.items:,} of {table.max_items:,} items",
            (
                f"those who sample are the slow side ({samples:,.3g} samples/s); a full queue waits"
                " for them, and a table with a journal also for the disk"
            ),
        )
    if reason == "LEASED":
        return (
            "all free rows are still being read by batches that are being copied",
            "fewer or smaller samples at once, or a larger capacity",
        )
    return f"because of {reason}", "see the guide to metrics"


def _rate(history: History, name: str, counter: Literal["inserts", "samples"]) -> float:
    def count(reading: Reading) -> float | None:
        table = reading.table(name)
        return None if table is None else float(getattr(table, counter))

    return history.rate(count)


def _of_stream(stream: StreamReading, last: Reading, history: History) -> Iterator[Problem]:
    yield from _of_pushes(stream, last, history)
    yield from _of_learner(stream, history)


def _of_pushes(stream: StreamReading, last: Reading, history: History) -> Iterator[Problem]:
    """Whether those who push wait for room."""
    # Those who insert into tables wait for other things.
    waiting = sum(one.purpose == "push" and bool(one.blocked_by) for one in last.connections)
    waiting = max(waiting, stream.waiting_pushes)
    share = flows.blocked_pushes(history)
    if stream.free:
        return
    if not waiting and share <= _NOTABLE:
        # Those who write into shared memory are not seen to wait.
        if stream.ready and _still(history, "delivered"):
            yield Problem(
                "note",
                "the stream",
                "CAPACITY",
                f"the ring is full, {stream.ready} batches are ready, and nobody takes batches:"
                " a worker that pushes waits",
                "the learner stands still, or is gone",
            )
        return
    level: Literal["stuck", "slow"] = "slow" if _delivers(history) else "stuck"
    who = "pushes wait: "
    if waiting:
        who = "1 push waits: " if waiting == 1 else f"{waiting} pushes wait: "
    if stream.ready or not _holds_all(stream):
        ready = "1 batch is ready" if stream.ready == 1 else f"{stream.ready} batches are ready"
        nobody = ", and nobody takes batches" if level == "stuck" else ""
        yield Problem(
            level,
            "the stream",
            "CAPACITY",
            f"{who}the ring is full, {ready}{nobody}",
            "the learner is the slow side: speed it up, or use fewer workers",
        )
    else:
        yield Problem(
            level,
            "the stream",
            "LEASED",
            f"{who}all {stream.held} buffers are held, one for {stream.oldest_hold:.1f} s",
            "drop the arrays of old batches (or copy them), or give more num_buffers",
        )


def _of_learner(stream: StreamReading, history: History) -> Iterator[Problem]:
    """Whether the learner waits for batches."""

    def starved(reading: Reading) -> float | None:
        return None if reading.stream is None else reading.stream.starved_seconds

    def stored(reading: Reading) -> float | None:
        return None if reading.stream is None else float(reading.stream.samples)

    share = min(history.rate(starved), 1.0)
    if stream.ready:
        return
    if _holds_all(stream):
        if stream.waiting_samples:
            yield Problem(
                "stuck",
                "the stream",
                "LEASED",
                f"the learner holds all {stream.held} buffers, and waits for another batch",
                "drop the arrays of old batches (or copy them), or give more num_buffers",
            )
        return
    comes = history.rate(stored)
    if not stream.samples:
        advice = "no sample has come yet: look whether workers are connected"
    elif not comes:
        advice = "no samples come any more: look at the workers"
    else:
        advice = f"{comes:,.3g} samples/s come in: the workers are the slow side"
    there = f"{stream.stored:,} samples are there, a batch takes {stream.batch_size:,}"
    if share > _NOTABLE:
        yield Problem(
            "stuck" if stream.waiting_samples and not comes else "slow",
            "the stream",
            "EMPTY",
            f"the learner waits for batches {share:.0%} of the time: {there}",
            advice,
        )
    elif _still(history, "samples"):
        yield Problem(
            "note",
            "the stream",
            "EMPTY",
            f"no samples come in ({there}): a learner that asks for a batch waits",
            advice,
        )


def _holds_all(stream: StreamReading) -> bool:
    """Whether the learner holds every buffer, so that none can be filled."""
    return stream.held * stream.batch_size >= stream.capacity


def _still(history: History, counter: Literal["samples", "delivered"]) -> bool:
    """Whether a number of the stream has been the same for a while."""

    def count(reading: Reading) -> float | None:
        return None if reading.stream is None else float(getattr(reading.stream, counter))

    return _is_long(history) and history.rate(count) == 0


def _is_long(history: History) -> bool:
    """Whether it is known what happened for a while."""
    readings = history.readings
    return bool(readings) and readings[-1].age - readings[0].age >= _WHILE


def _delivers(history: History) -> bool:
    """Whether batches were taken of late."""

    def delivered(reading: Reading) -> float | None:
        return None if reading.stream is None else float(reading.stream.delivered)

    return history.rate(delivered) > 0


def _of_doors(doors: DoorsReading) -> Iterator[Problem]:
    advice = {
        "AUTH": "their token is not the server's",
        "SPEC": "their samples are of another kind; their error says what differs",
        "LIMIT": "there are as many connections as max_connections allows",
        "VERSION": "they run another release",
        "STREAM": "they ask for a stream or tables that the server does not have",
        "PROTOCOL": "they sent bytes that make no sense",
        "CLOSED": "they work with tables that are closed",
        "CLOSING": "the server was closing",
        "STALE": "a later start of the same producer has been there",
    }
    for reason, count in sorted(doors.refused.items()):
        were = "connection was" if count == 1 else "connections were"
        yield Problem(
            "note",
            "connections",
            reason,
            f"{count:,} {were} refused since the start",
            advice.get(reason, "their error says why"),
        )
