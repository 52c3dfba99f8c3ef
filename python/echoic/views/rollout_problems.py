"""What keeps producers and consumers of a rollout table waiting, in words, and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from echoic.views import flows
from echoic.views.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.views.flows import RolloutFlow
    from echoic.views.history import History
    from echoic.views.rollout_reading import RolloutReading, SourceReading

__all__ = ["of_rollouts"]

# For so many seconds nothing must have happened for it to be called stuck.
_WHILE = 0.9
# A producer that reserved so many groups is worth a line when few of them came to anything.
_MANY = 8
_MOST = 0.5


def of_rollouts(table: RolloutReading, history: History) -> Iterator[Problem]:
    """Find what is wrong with a table by the last readings."""
    flow = flows.rollout(table.name, history)
    for side in ("producers", "consumers"):
        waits = getattr(table, side)
        for reason in waits:
            if waits[reason].waiting:
                yield _of_wait(table, side, reason, flow, _is_long(history))
    if table.paused and not any(
        waits.get("PAUSED") and waits["PAUSED"].waiting
        for waits in (table.producers, table.consumers)
    ):
        text, advice = _PAUSED
        yield Problem("stuck", _subject(table), "PAUSED", text, advice)
    yield from _of_losses(table, flow)
    for source in table.sources:
        yield from _of_source(table, source)


def _subject(table: RolloutReading) -> str:
    return f"rollout table {table.name!r}"


_PAUSED = (
    "the table is paused: nothing is reserved, and nothing is delivered",
    "somebody paused it on purpose: resume() ends that",
)


def _of_wait(
    table: RolloutReading,
    side: Literal["producers", "consumers"],
    reason: str,
    flow: RolloutFlow,
    is_long: bool,
) -> Problem:
    count = getattr(table, side)[reason].waiting
    calls = "1 call of a producer waits" if count == 1 else f"{count:,} calls of producers wait"
    if side == "consumers":
        calls = "the learner waits" if count == 1 else f"{count:,} calls of learners wait"
    text, advice = (_of_producers if side == "producers" else _of_consumers)(table, reason, flow)
    # Of the first looks nobody knows whether anything moves.
    moves = not is_long or bool(flow.delivered or flow.reserved)
    if side == "consumers":
        moves = moves or bool(flow.tokens)
    level: Literal["stuck", "slow", "note"] = "slow" if moves else "stuck"
    if reason == "PAUSED":
        level = "stuck"
    elif side == "producers" and reason == "GROUP":
        # To have nothing to resume is no fault.
        level = "note"
    return Problem(level, _subject(table), reason, f"{calls}: {text}", advice)


def _groups(count: int, what: str) -> str:
    return f"1 group is {what}" if count == 1 else f"{count:,} groups are {what}"


def _of_producers(table: RolloutReading, reason: str, flow: RolloutFlow) -> tuple[str, str]:
    """Say why producers wait, and what helps."""
    taken = f"{flow.delivered:,.3g} groups/s are taken"
    if reason == "STALENESS":
        ahead = "" if table.depth is None else f", {table.depth} versions ahead at most"
        return (
            (
                f"enough is under way for version {table.version} of the learner{ahead}: "
                f"{_groups(table.running, 'being made')}, {_groups(table.ready, 'ready')}"
            ),
            (
                f"the learner is the slow side ({taken}): publish_version after each update;"
                " or allow a larger max_lag or pipeline_depth"
            ),
        )
    if reason == "CAPACITY":
        if table.max_running and table.running >= table.max_running:
            return (
                f"{_groups(table.running, 'being made')}, as many as max_running allows",
                (
                    "raise it, or look for workers that hold reservations and bring nothing"
                    f" ({flow.tokens:,.3g} tokens/s come in)"
                ),
            )
        return (
            f"there is no room for more than {table.capacity:,} groups, or the disk is behind",
            f"the learner is the slow side ({taken}); or raise capacity",
        )
    if reason == "GROUP":
        return "no group was left by its producer, so there is none to resume", "nothing is wrong"
    return _of_both(reason)


def _of_consumers(table: RolloutReading, reason: str, flow: RolloutFlow) -> tuple[str, str]:
    """Say why consumers wait, and what helps."""
    if reason == "GROUP":
        return (
            f"{_groups(table.ready, 'ready')}, a batch takes {table.batch_groups:,};"
            f" {_groups(table.running, 'being made')}"
        ), _of_workers(table, flow)
    if reason == "STALENESS":
        if table.ready + table.running < table.batch_groups and not table.room:
            return (
                "too few groups are there, and no more are reserved at this version",
                "publish_version, or ask for smaller batches",
            )
        return (
            (
                f"a batch for version {table.target} may not leave while the learner has published"
                f" {table.version}, or what is ready is too old on average"
            ),
            "publish_version after each update, or allow a larger target_lag or max_mean_lag",
        )
    if reason == "LEASED":
        return (
            f"other consumers have what there is: {_groups(table.leased, 'with them')}",
            "ack() sooner, or take shorter leases: those of dead consumers end by themselves",
        )
    return _of_both(reason)


def _of_workers(table: RolloutReading, flow: RolloutFlow) -> str:
    """Say why too few groups are ready."""
    if table.running and table.suspended == table.running:
        return "all that run were left by their producers: resume() or acquire() them"
    if flow.tokens:
        return f"{flow.tokens:,.3g} tokens/s come in: the workers are the slow side"
    if table.running:
        return "no tokens come in: look at the workers that hold the reservations"
    if any(waits.waiting for waits in table.producers.values()):
        return "producers wait too: see what for"
    if not table.room:
        return "no more may be reserved: publish_version, or ask for smaller batches"
    return "nobody asks for a reservation: look whether workers are connected"


def _of_both(reason: str) -> tuple[str, str]:
    if reason == "PAUSED":
        return _PAUSED
    if reason == "RATIO":
        return (
            "the limiter holds the table to its ratio of samples to inserts",
            "the side that does not wait is the slow one; or change the limiter",
        )
    if reason == "MIN_SIZE":
        return "the limiter wants more groups before the first batch", "wait for workers"
    return f"because of {reason}", "see the guide to rollouts"


def _of_losses(table: RolloutReading, flow: RolloutFlow) -> Iterator[Problem]:
    if flow.stale:
        most = "" if table.max_lag is None else f" than max_lag = {table.max_lag}"
        yield Problem(
            "note",
            _subject(table),
            "STALENESS",
            f"{flow.stale:,.3g} groups/s are let go of because they became older{most}",
            "some take much longer than others: a larger max_lag, a smaller pipeline_depth,"
            " redundancy or a group_deadline",
        )
    if table.lost:
        yield Problem(
            "note",
            _subject(table),
            "LEASED",
            f"{_groups(table.lost, 'lost')}: their consumers did not say ack() in time",
            "consumers died, or take longer than their lease; at_least_once delivers again",
        )


def _of_source(table: RolloutReading, source: SourceReading) -> Iterator[Problem]:
    """Whether a producer is passed over, or what it makes comes to nothing."""
    name = repr(source.name) if source.name else "without a name"
    if source.is_starving:
        yield Problem(
            "slow",
            _subject(table),
            "STARVING",
            f"source {name} has waited {source.waited:,.0f} s for a reservation, while others got"
            f" {source.passed:,} groups",
            "others ask more often: let each reserve fewer groups at once, or raise max_running",
        )
    ended = source.submitted - source.running
    if ended < _MANY:
        return
    for lost, reason, verb, advice in (
        (
            source.rejected,
            "REJECTED",
            "given up, or died with it",
            "it crashes, or is silent for longer than reservation_ttl: renew() in between",
        ),
        (
            source.filtered,
            "FILTERED",
            "filtered out",
            "its prompts may be too easy or too hard, or its rewards broken",
        ),
    ):
        if lost > ended * _MOST:
            yield Problem(
                "note",
                _subject(table),
                reason,
                f"{lost:,} of {ended:,} groups of source {name} were {verb}",
                advice,
            )


def _is_long(history: History) -> bool:
    """Whether it is known what happened for a while."""
    readings = history.readings
    return bool(readings) and readings[-1].age - readings[0].age >= _WHILE
