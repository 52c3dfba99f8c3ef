"""Find what is stuck in a server, why, and what helps, in words for readers new to Echoic."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from echoic.views.reading import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.views.history import History
    from echoic.views.reading import (
        Rates,
        RolloutReading,
        ServerReading,
        SourceReading,
        StreamReading,
        TableReading,
    )

__all__ = ["Problem", "find_problems", "why_rollouts_wait"]

Level: TypeAlias = Literal["away", "stuck", "slow", "note"]
# A side that waits for at least this share of the time is reported.
_NOTABLE = 0.5
# A producer with at least this many groups is reported if more than this share of them is lost.
_MANY, _MOST = 8, 0.5
_REFUSED = {
    "AUTH": "their token is not the server's",
    "SPEC": "their samples differ from the server's example; their error says how",
    "LIMIT": "there are as many connections as max_connections allows",
    "VERSION": "they run another release",
    "SERVICE": "they ask for a stream, tables or weights that the server does not have",
    "PROTOCOL": "they sent invalid bytes",
    "CLOSED": "they use tables that are closed",
    "CLOSING": "the server was closing",
    "STALE": "a later start of the same producer has connected",
}
_DROP = "drop the arrays of old batches (or copy them), or raise capacity"


@dataclass(frozen=True)
class Problem:
    """A reason why calls wait, or an error.

    Attributes:
        level: ``"stuck"`` if calls wait because of it and nothing moved in the last seconds,
            ``"slow"`` if calls wait but things move, ``"note"`` for other facts, ``"away"`` if the
            server does not answer.
        subject: The thing concerned, such as ``"table 'replay'"`` or ``"the stream"``.
        reason: The code in metrics and errors, such as ``"RATIO"``.
        text: What happens.
        advice: What to do.
    """

    level: Level
    subject: str
    reason: str
    text: str
    advice: str


def find_problems(history: History) -> list[Problem]:
    """Return the problems that the last readings show, the worst first."""
    last = history.last
    if last is None:
        return []
    found = [one for table in last.tables for one in _of_table(table, history)]
    found += [one for table in last.rollouts for one in _of_rollouts(table, history)]
    if last.stream is not None:
        found += _of_stream(last.stream, history)
    found += _of_server(last.server)
    return sorted(found, key=lambda problem: ("stuck", "slow", "note").index(problem.level))


def _of_server(server: ServerReading) -> Iterator[Problem]:
    for reason, many in sorted(server.refused.items()):
        were = "was" if many == 1 else "were"
        text = f"{count(many, 'connection')} {were} refused since the start"
        advice = _REFUSED.get(reason, "their error says why")
        yield Problem("note", "connections", reason, text, advice)


# Tables.


def _of_table(table: TableReading, history: History) -> Iterator[Problem]:
    rates = history.rates(table)
    for call, side in table.sides.items():
        # A reason alone is no problem: no call may be waiting.
        if not side.reason or not (side.waiting or table.paused):
            continue
        calls = "call waits" if side.waiting == 1 else "calls wait"
        begin = f"{side.waiting} {call} {calls}: " if side.waiting else ""
        text, advice = _why_table(table, call, side.reason, rates)
        # A short history does not show whether what the call waits for still comes.
        comes = rates["samples" if call == "sample" and side.reason != "MIN_SIZE" else "inserts"]
        moves = side.reason != "PAUSED" and (comes > 0 or not history.is_long)
        level: Level = "slow" if moves else "stuck"
        yield Problem(level, table.title, side.reason, begin + text, advice)


def _why_table(table: TableReading, call: str, reason: str, rates: Rates) -> tuple[str, str]:
    """Return why calls of one side wait, and what helps."""
    inserts, samples = f"{rates['inserts']:,.3g} inserts/s", f"{rates['samples']:,.3g} samples/s"
    if reason == "MIN_SIZE":
        return (
            f"the table has {table.items:,} items, its limiter wants {table.min_items:,} before"
            " the first sample"
        ), f"{inserts} come in; wait for workers, or lower min_size"
    if reason == "RATIO":
        ahead, behind = ("inserts", "samples") if call == "insert" else ("samples", "inserts")
        target = "" if table.target_ratio is None else f" of {table.target_ratio:g}"
        return (
            f"{ahead} are ahead of {behind}: {table.ratio:.3g} samples per insert so far,"
            f" and the limiter holds the table to its ratio{target}"
        ), (
            f"{behind} are the slow side ({samples if behind == 'samples' else inserts});"
            " speed them up, or change samples_per_insert or error_buffer"
        )
    if reason == "PAUSED":
        return "the table is paused", "pause() was called: resume() ends that"
    if reason == "CAPACITY":
        return f"there is no room: {table.items:,} of {table.capacity:,} items", (
            f"samples are the slow side ({samples}); a full queue waits for them, and a table with"
            " a journal also for the disk"
        )
    if reason == "LEASED":
        return (
            "all free rows are still being read by batches that are being copied",
            "fewer or smaller samples at once, or a larger capacity",
        )
    return f"the reason is {reason}", "see the guide to metrics"


# The stream.


def _of_stream(stream: StreamReading, history: History) -> Iterator[Problem]:
    rates = history.rates(stream)
    found = [*_of_pushes(stream, history, rates), *_of_learner(stream, history, rates)]
    for level, reason, text, advice in found:
        yield Problem(level, stream.title, reason, text, advice)


def _of_pushes(
    stream: StreamReading, history: History, rates: Rates
) -> Iterator[tuple[Level, str, str, str]]:
    """Yield a problem if pushes wait for room."""
    if stream.free:
        return
    connections = history.last.connections if history.last else ()
    # Connections that insert into tables wait for other things.
    waiting = sum(one.purpose == "push" and bool(one.blocked_by) for one in connections)
    waiting = max(waiting, stream.waiting_pushes)
    are = "is" if stream.ready == 1 else "are"
    full = f"the ring is full, {count(stream.ready, 'batch')} {are} ready"
    taken = rates["batches"] > 0
    if not waiting and rates["blocked"] <= _NOTABLE:
        # Workers that write into shared memory are not seen to wait.
        if stream.ready and history.is_long and not taken:
            text = f"{full}, and no batch is taken: a worker that pushes waits"
            yield "note", "CAPACITY", text, "the learner has stopped, or is gone"
        return
    level: Level = "slow" if taken else "stuck"
    pushes = count(waiting, "push") if waiting else "pushes"
    begin = f"{pushes} wait{'s' if waiting == 1 else ''}: "
    if stream.ready or not stream.is_held:
        text = f"{begin}{full}{'' if taken else ', and no batch is taken'}"
        advice = "the learner is the slow side: speed it up, or use fewer workers"
        yield level, "CAPACITY", text, advice
    else:
        held = f"all {stream.held} buffers are held, one for {stream.oldest_hold:.1f} s"
        yield level, "LEASED", begin + held, _DROP


def _of_learner(
    stream: StreamReading, history: History, rates: Rates
) -> Iterator[tuple[Level, str, str, str]]:
    """Yield a problem if the learner waits for batches."""
    if stream.ready:
        return
    if stream.is_held:
        if stream.waiting_samples:
            text = f"the learner holds all {stream.held} buffers, and waits for another batch"
            yield "stuck", "LEASED", text, _DROP
        return
    comes = rates["samples"]
    if not stream.samples:
        advice = "no sample has come yet: check that workers are connected"
    elif not comes:
        advice = "samples have stopped coming: check the workers"
    else:
        advice = f"{comes:,.3g} samples/s come in: the workers are the slow side"
    there = f"{stream.stored:,} samples are there, a batch takes {stream.batch_size:,}"
    if rates["starved"] > _NOTABLE:
        level: Level = "stuck" if stream.waiting_samples and not comes else "slow"
        text = f"the learner waits for batches {rates['starved']:.0%} of the time: {there}"
        yield level, "EMPTY", text, advice
    elif history.is_long and not comes:
        text = f"no samples come in ({there}): a learner that samples waits"
        yield "note", "EMPTY", text, advice


# Rollout tables.

_EITHER = {
    "PAUSED": (
        "the table is paused: no group is reserved or delivered",
        "pause() was called: resume() ends that",
    ),
    "RATIO": (
        "the limiter holds the table to its ratio of samples to inserts",
        "the side that does not wait is the slow one; or change the limiter",
    ),
    "MIN_SIZE": ("the limiter wants more groups before the first batch", "wait for workers"),
}


def why_rollouts_wait(table: RolloutReading) -> list[str]:
    """Return a sentence for each reason for which calls of producers and learners wait now."""
    texts = [text for _, _, text, _ in _rollout_waits(table, defaultdict(float))]
    return texts or ([_EITHER["PAUSED"][0]] if table.paused else [])


def _rollout_waits(table: RolloutReading, rates: Rates) -> Iterator[tuple[str, str, str, str]]:
    """Yield the side and the reason of calls that wait, why they do, and what helps."""
    sides = (
        ("producers", table.producers, "1 call of a producer waits", "calls of producers wait"),
        ("consumers", table.consumers, "the learner waits", "calls of learners wait"),
    )
    for side, by_reason, one, more in sides:
        why = _why_producers if side == "producers" else _why_consumers
        for reason, waits in by_reason.items():
            if waits.waiting:
                calls = one if waits.waiting == 1 else f"{waits.waiting:,d} {more}"
                text, advice = why(table, reason, rates)
                yield side, reason, f"{calls}: {text}", advice


def _of_rollouts(table: RolloutReading, history: History) -> Iterator[Problem]:
    rates, title = history.rates(table), table.title
    waiting = list(_rollout_waits(table, rates))
    for side, reason, text, advice in waiting:
        moved = rates["delivered"] or rates["reserved"] or (side == "consumers" and rates["tokens"])
        level: Level = "slow" if moved or not history.is_long else "stuck"
        if reason == "PAUSED":
            level = "stuck"
        elif (side, reason) == ("producers", "GROUP"):
            # Having nothing to resume is normal.
            level = "note"
        yield Problem(level, title, reason, text, advice)
    if table.paused and not any(reason == "PAUSED" for _, reason, _, _ in waiting):
        yield Problem("stuck", title, "PAUSED", *_EITHER["PAUSED"])
    if rates["stale"]:
        most = "" if table.max_lag is None else f" than max_lag = {table.max_lag}"
        text = f"{rates['stale']:,.3g} groups/s are dropped because they became older{most}"
        advice = (
            "some take much longer than others: a larger max_lag, a smaller pipeline_depth,"
            " redundancy or a group_deadline"
        )
        yield Problem("note", title, "STALENESS", text, advice)
    if table.lost:
        text = f"{_groups(table.lost, 'lost')}: their consumers did not call ack() in time"
        advice = "consumers died, or take longer than their lease; at_least_once delivers again"
        yield Problem("note", title, "LEASED", text, advice)
    for source in table.sources:
        for level, reason, text, advice in _of_source(source):
            yield Problem(level, title, reason, text, advice)


def _groups(many: int, what: str) -> str:
    return f"{count(many, 'group')} {'is' if many == 1 else 'are'} {what}"


def _why_producers(table: RolloutReading, reason: str, rates: Rates) -> tuple[str, str]:
    """Return why producers wait, and what helps."""
    slow = f"the learner is the slow side ({rates['delivered']:,.3g} groups/s are taken)"
    running = _groups(table.running, "being made")
    if reason == "STALENESS":
        ahead = "" if table.depth is None else f", {table.depth} versions ahead at most"
        return (
            f"enough is under way for version {table.version} of the learner{ahead}:"
            f" {running}, {_groups(table.ready, 'ready')}"
        ), f"{slow}: publish_version after each update; or allow a larger max_lag or pipeline_depth"
    if reason == "CAPACITY":
        if table.max_running and table.running >= table.max_running:
            return f"{running}, as many as max_running allows", (
                "raise it, or look for workers that hold reservations and add nothing"
                f" ({rates['tokens']:,.3g} tokens/s come in)"
            )
        room = f"there is no room for more than {table.capacity:,} groups, or the disk is behind"
        return room, f"{slow}; or raise capacity"
    if reason == "GROUP":
        return "no group is suspended, so there is nothing to resume", "nothing is wrong"
    return _EITHER.get(reason, (f"the reason is {reason}", "see the guide to rollouts"))


def _why_consumers(table: RolloutReading, reason: str, rates: Rates) -> tuple[str, str]:
    """Return why consumers wait, and what helps."""
    if reason == "GROUP":
        there = f"{_groups(table.ready, 'ready')}, a batch takes {table.batch_groups:,}"
        return f"{there}; {_groups(table.running, 'being made')}", _why_few(table, rates)
    if reason == "STALENESS":
        if table.ready + table.running < table.batch_groups and not table.room:
            return (
                "too few groups are there, and no more may be reserved at this version",
                "publish_version, or ask for smaller batches",
            )
        return (
            f"a batch for version {table.target} may not leave while the learner has published"
            f" {table.version}, or what is ready is too old on average"
        ), "publish_version after each update, or allow a larger target_lag or max_mean_lag"
    if reason == "LEASED":
        return (
            f"other consumers have all groups: {_groups(table.leased, 'with them')}",
            "ack() sooner, or take shorter leases: those of dead consumers expire",
        )
    return _EITHER.get(reason, (f"the reason is {reason}", "see the guide to rollouts"))


def _why_few(table: RolloutReading, rates: Rates) -> str:
    """Return why too few groups are ready."""
    if table.running and table.suspended == table.running:
        return "all running groups are suspended: resume() or acquire() them"
    if rates["tokens"]:
        return f"{rates['tokens']:,.3g} tokens/s come in: the workers are the slow side"
    if table.running:
        return "no tokens come in: check the workers that hold the reservations"
    if any(waits.waiting for waits in table.producers.values()):
        return "producers wait, too: see their reason"
    if not table.room:
        return "no more may be reserved: publish_version, or ask for smaller batches"
    return "no worker asks for a reservation: check that workers are connected"


def _of_source(source: SourceReading) -> Iterator[tuple[Level, str, str, str]]:
    """Yield a problem if a producer starves, or most of its groups are lost."""
    name = repr(source.name) if source.name else "without a name"
    if source.is_starving:
        text = (
            f"source {name} has waited {source.waited:,.0f} s for a reservation, while others got"
            f" {source.passed:,} groups"
        )
        advice = (
            "others ask more often: let each reserve fewer groups at once, or raise max_running"
        )
        yield "slow", "STARVING", text, advice
    ended = source.submitted - source.running
    crash = "it crashes or fails them, or is silent for longer than reservation_ttl: renew() them"
    dull = "its prompts may be too easy or too hard, or its rewards broken"
    for lost, reason, verb, advice in (
        (source.rejected, "REJECTED", "rejected", crash),
        (source.filtered, "FILTERED", "filtered out", dull),
    ):
        if ended >= _MANY and lost > ended * _MOST:
            text = f"{lost:,} of {ended:,} groups of source {name} were {verb}"
            yield "note", reason, text, advice
