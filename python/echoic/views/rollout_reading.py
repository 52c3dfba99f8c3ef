"""A rollout table as a thing with numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from echoic.cli.text import printable

if TYPE_CHECKING:
    from echoic.watch import Observation

__all__ = ["RolloutReading", "SourceReading", "Waits", "read_rollouts"]


@dataclass(frozen=True)
class Waits:
    """Calls of one side that wait for one reason.

    Attributes:
        waiting: How many wait now.
        seconds: How long calls waited for it since the start, together.
    """

    waiting: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class SourceReading:
    """What was counted for a producer by the name that it gives.

    Attributes:
        name: Of the producer; nothing, of those who give none.
        submitted: Groups that it reserved.
        running: Groups that it makes now.
        accepted: Groups that were complete and kept.
        rejected: Groups that it gave up, or that died with it.
        filtered: Groups that the filter did not keep.
        tokens: Of its groups that were accepted.
        waiting: Calls that wait now for a reservation.
        waited: For how many seconds the one of them has waited that began first.
        passed: Groups that others reserved meanwhile.
        is_starving: Whether it waits for too long while others get reservations.
    """

    name: str
    submitted: int = 0
    running: int = 0
    accepted: int = 0
    rejected: int = 0
    filtered: int = 0
    tokens: int = 0
    waiting: int = 0
    waited: float = 0.0
    passed: int = 0
    is_starving: bool = False


@dataclass(frozen=True)
class RolloutReading:
    """A rollout table.

    Attributes:
        name: Of the table.
        version: That the learner published last.
        target: The version that the next batch will update.
        running: Groups that are made, or were left and wait for a producer.
        suspended: Those of them that were left.
        ready: Groups that are complete, and nobody has them.
        leased: Groups that are with consumers.
        room: Groups that could be reserved now.
        batch_groups: Groups of a batch.
        max_running: Groups that may be made at the same time.
        capacity: Groups that may be there.
        max_lag: How many versions old a group may be, if that is bounded.
        depth: How many versions ahead groups are reserved, if that is bounded.
        ready_lag: How many versions old the oldest group is that is ready.
        lag_oldest: Of what was delivered last: how many versions old its oldest token was.
        lag_mean: The same of its groups' oldest tokens, on average.
        lag_newest: The same of its youngest token.
        paused: Whether someone paused it.
        submitted: Groups that were reserved.
        accepted: Groups that were complete and kept.
        rejected: Groups that were given up, or whose producers died.
        filtered: Groups that the filter did not keep.
        expired: Groups whose reservation was over before they were complete.
        stale: Groups that were let go of because they were too old.
        removed: Groups that the learner removed.
        overdue: Groups that were delivered although they were too old.
        batches: That were made.
        delivered: Groups that were delivered, each as often as it was.
        redelivered: Groups that were delivered again.
        lost: Groups that were lost with their consumer.
        expired_leases: Leases that were over before their consumer was done.
        tokens: That came.
        delivered_tokens: Of the groups that were delivered.
        producers: Those who wait for a reservation or a group to go on with, by reason.
        consumers: Those who wait for a batch, by reason.
        sources: The producers that reserved most often.
    """

    name: str
    version: int = 0
    target: int = 0
    running: int = 0
    suspended: int = 0
    ready: int = 0
    leased: int = 0
    room: int = 0
    batch_groups: int = 0
    max_running: int = 0
    capacity: int = 0
    max_lag: int | None = None
    depth: int | None = None
    ready_lag: int | None = None
    lag_oldest: int | None = None
    lag_mean: float | None = None
    lag_newest: int | None = None
    paused: bool = False
    submitted: int = 0
    accepted: int = 0
    rejected: int = 0
    filtered: int = 0
    expired: int = 0
    stale: int = 0
    removed: int = 0
    overdue: int = 0
    batches: int = 0
    delivered: int = 0
    redelivered: int = 0
    lost: int = 0
    expired_leases: int = 0
    tokens: int = 0
    delivered_tokens: int = 0
    producers: dict[str, Waits] = field(default_factory=dict)
    consumers: dict[str, Waits] = field(default_factory=dict)
    sources: tuple[SourceReading, ...] = ()

    @property
    def fill(self) -> float:
        """Which part of a batch is ready, from 0 to 1."""
        return min(self.ready / max(self.batch_groups, 1), 1.0)

    @property
    def lags(self) -> str:
        """How old what was delivered last was: at least, on average, at most."""
        if self.lag_oldest is None or self.lag_mean is None or self.lag_newest is None:
            return "nothing was delivered yet"
        return f"{self.lag_newest} to {self.lag_oldest}, {self.lag_mean:.3g} on average"


def read_rollouts(seen: Observation, name: str) -> RolloutReading:
    """Read a table; the observation need have no other's numbers."""

    def number(what: str, **labels: str) -> int:
        return int(seen.value(f"rollouts_{what}", table=name, **labels) or 0)

    def maybe(what: str, **labels: str) -> int | None:
        value = seen.value(f"rollouts_{what}", table=name, **labels)
        return None if value is None else int(value)

    def count(outcome: str) -> int:
        return number("groups", outcome=outcome)

    def loss(why: str) -> int:
        return number("losses_total", why=why)

    def waits(side: str) -> dict[str, Waits]:
        waiting = seen.values("rollouts_waiting", "reason", table=name, side=side)
        seconds = seen.values("rollouts_wait_seconds_total", "reason", table=name, side=side)
        return {
            printable(reason): Waits(int(calls), seconds.get(reason, 0.0))
            for reason, calls in waiting.items()
        }

    return RolloutReading(
        name=printable(name),
        version=number("version"),
        target=number("target"),
        running=number("running_groups"),
        suspended=number("suspended_groups"),
        ready=number("queued_groups"),
        leased=number("leased_groups"),
        room=number("room_groups"),
        batch_groups=number("batch_groups"),
        max_running=number("max_running_groups"),
        capacity=number("capacity_groups"),
        max_lag=maybe("max_lag"),
        depth=maybe("pipeline_depth"),
        ready_lag=maybe("oldest_lag"),
        lag_oldest=maybe("delivered_lag", of="oldest"),
        lag_mean=seen.value("rollouts_delivered_lag", table=name, of="mean"),
        lag_newest=maybe("delivered_lag", of="newest"),
        paused=bool(number("paused")),
        submitted=count("submitted"),
        accepted=count("accepted"),
        rejected=count("rejected"),
        filtered=count("filtered"),
        expired=loss("expired"),
        stale=loss("stale"),
        removed=loss("removed"),
        overdue=loss("overdue"),
        batches=number("batches_total"),
        delivered=count("delivered"),
        redelivered=count("redelivered"),
        lost=count("lost"),
        expired_leases=number("expired_leases_total"),
        tokens=number("tokens_total"),
        delivered_tokens=number("delivered_tokens_total"),
        producers=waits("producer"),
        consumers=waits("consumer"),
        sources=_sources(seen, name),
    )


def _sources(seen: Observation, table: str) -> tuple[SourceReading, ...]:
    """Read all producers in one pass: there may be many."""
    found: dict[str, dict[str, int]] = {}
    family = seen.families.get("rollouts_source_groups")
    for number in family.numbers if family else ():
        if number.labels.get("table") == table:
            counts = found.setdefault(number.labels.get("source", ""), {})
            counts[number.labels.get("outcome", "")] = int(number.value)
    tokens = seen.values("rollouts_source_tokens_total", "source", table=table)
    waiting = seen.values("rollouts_source_waiting", "source", table=table)
    waited = seen.values("rollouts_source_oldest_wait_seconds", "source", table=table)
    passed = seen.values("rollouts_source_passed_groups", "source", table=table)
    starving = seen.values("rollouts_source_starving", "source", table=table)
    # Who waits for the first time has made no group yet.
    for source in waiting:
        found.setdefault(source, {})
    return tuple(
        SourceReading(
            name=printable(source),
            submitted=counts.get("submitted", 0),
            running=counts.get("running", 0),
            accepted=counts.get("accepted", 0),
            rejected=counts.get("rejected", 0),
            filtered=counts.get("filtered", 0),
            tokens=int(tokens.get(source, 0)),
            waiting=int(waiting.get(source, 0)),
            waited=waited.get(source, 0.0),
            passed=int(passed.get(source, 0)),
            is_starving=bool(starving.get(source, 0)),
        )
        for source, counts in found.items()
    )
