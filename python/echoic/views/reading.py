"""An observation of a server as things with numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from echoic.cli.text import printable
from echoic.views.rollout_reading import RolloutReading, read_rollouts

if TYPE_CHECKING:
    from echoic.watch import Connection, Family, Number, Observation

__all__ = ["DoorsReading", "Reading", "Side", "StreamReading", "TableReading", "read"]


@dataclass(frozen=True)
class Side:
    """One side of a table: inserts, or samples.

    Attributes:
        waiting: Calls that wait now.
        wait_seconds: How long calls waited since the start, together.
        reason: Why a call would have to wait now, such as ``"RATIO"``, or nothing.
    """

    waiting: int = 0
    wait_seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class TableReading:
    """A table.

    Attributes:
        name: Of the table.
        items: That are there.
        max_items: That there may be.
        inserts: Since the start.
        samples: As above.
        deletions: As above.
        ratio: Samples for each insert so far.
        target_ratio: What the limiter holds it to, if it does.
        min_items: How many items its limiter wants before the first sample.
        paused: Whether someone paused it.
        version: The learner's policy version.
        row_bytes: Bytes of rows ever used.
        insert: Those who insert.
        sample: Those who sample.
        times_sampled: Items by how often they were sampled: at most so often (cumulative).
        priorities: Items by priority: at most so high (cumulative).
        lags: Samples by how many versions old they were: at most so many (cumulative).
    """

    name: str
    items: int = 0
    max_items: int = 0
    inserts: int = 0
    samples: int = 0
    deletions: int = 0
    ratio: float = 0.0
    target_ratio: float | None = None
    min_items: int = 0
    paused: bool = False
    version: int = 0
    row_bytes: int = 0
    insert: Side = Side()
    sample: Side = Side()
    times_sampled: dict[str, float] = field(default_factory=dict)
    priorities: dict[str, float] = field(default_factory=dict)
    lags: dict[str, float] = field(default_factory=dict)

    @property
    def fill(self) -> float:
        """How full it is, from 0 to 1."""
        return min(self.items / max(self.max_items, 1), 1.0)


@dataclass(frozen=True)
class StreamReading:
    """The stream.

    Attributes:
        samples: Stored since the start.
        bytes: What they hold.
        stored: In the ring and not yet taken.
        capacity: Samples that the ring holds.
        batch_size: Samples of a batch.
        ready: Complete batches that wait for a consumer.
        held: Batches whose memory someone still holds.
        free: Buffers that are free.
        delivered: Batches taken since the start.
        oldest_hold: For how many seconds the batch that was taken first has been held.
        waiting_pushes: Pushes that wait now for room, in the server's process or over connections.
        waiting_samples: Calls for a batch that wait now.
        blocked_seconds: How long pushes waited for room, together.
        starved_seconds: How long calls for a batch waited, together.
        memory: Bytes of the ring.
    """

    samples: int = 0
    bytes: int = 0
    stored: int = 0
    capacity: int = 0
    batch_size: int = 0
    ready: int = 0
    held: int = 0
    free: int = 0
    delivered: int = 0
    oldest_hold: float = 0.0
    waiting_pushes: int = 0
    waiting_samples: int = 0
    blocked_seconds: float = 0.0
    starved_seconds: float = 0.0
    memory: int = 0

    @property
    def fill(self) -> float:
        """How full the ring is, from 0 to 1."""
        return min(self.stored / max(self.capacity, 1), 1.0)


@dataclass(frozen=True)
class DoorsReading:
    """All addresses of the server together.

    Attributes:
        connections: That stand.
        accepted: Since the start.
        reconnects: Clients that came back.
        duplicates: Samples that came twice and were dropped.
        malformed: Connections closed because of bytes that made no sense.
        silent: Connections closed because nothing came for too long.
        refused: Connections refused, by reason.
        bytes: Received.
        blocked_seconds: How long samples of connections waited for room, together.
        blocked: Connections that wait now, by what they wait for.
        chunk_bytes: Bytes of trajectories that came and are still there.
    """

    connections: int = 0
    accepted: int = 0
    reconnects: int = 0
    duplicates: int = 0
    malformed: int = 0
    silent: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    blocked_seconds: float = 0.0
    blocked: dict[str, int] = field(default_factory=dict)
    chunk_bytes: int = 0


@dataclass(frozen=True)
class Reading:
    """A server at one moment.

    Attributes:
        age: For how many seconds the server has been there; what rates are computed with.
        life: Another number after the server was started anew; 0 is not known.
        release: Which release of Echoic it runs.
        stream: Its stream, if it has one.
        tables: Its tables.
        rollouts: Its rollout tables.
        doors: Its addresses together.
        connections: Each connection; those that wait for something come first.
        told: What the server's program tells of itself, by name.
    """

    age: float
    life: int = 0
    release: str = ""
    stream: StreamReading | None = None
    tables: tuple[TableReading, ...] = ()
    rollouts: tuple[RolloutReading, ...] = ()
    doors: DoorsReading = field(default_factory=DoorsReading)
    connections: tuple[Connection, ...] = ()
    told: dict[str, float] = field(default_factory=dict)

    def table(self, name: str) -> TableReading | None:
        """Return a table by its name."""
        return next((table for table in self.tables if table.name == name), None)

    def rollout(self, name: str) -> RolloutReading | None:
        """Return a rollout table by its name."""
        return next((table for table in self.rollouts if table.name == name), None)


def read(seen: Observation) -> Reading:
    """Read an observation."""
    tables = _by_table(seen, "table_items")
    rollouts = _by_table(seen, "rollouts_version")
    return Reading(
        age=seen.age,
        life=seen.life,
        release=printable(seen.release),
        stream=_stream(seen) if "stream_capacity_samples" in seen.families else None,
        tables=tuple(_table(about, name) for name, about in tables.items()),
        rollouts=tuple(read_rollouts(about, name) for name, about in rollouts.items()),
        doors=_doors(seen),
        connections=tuple(
            replace(
                one,
                address=printable(one.address),
                peer=printable(one.peer),
                name=printable(one.name),
                blocked_by=printable(one.blocked_by),
            )
            for one in seen.connections
        ),
        told={printable(name): value for name, value in seen.values("told", "name").items()},
    )


def _by_table(seen: Observation, always: str) -> dict[str, Observation]:
    """Split what is about tables, in one pass: there may be thousands.

    Args:
        seen: What there is of all.
        always: What each table of their kind has a number of.
    """
    found: dict[str, dict[str, tuple[Family, list[Number]]]] = {
        name: {} for name in seen.values(always, "table")
    }
    for name, family in seen.families.items():
        for number in family.numbers:
            if number.labels.get("table") in found:
                own = found[number.labels["table"]].setdefault(name, (family, []))
                own[1].append(number)
    return {
        table: replace(
            seen,
            families={
                name: replace(family, numbers=tuple(numbers))
                for name, (family, numbers) in families.items()
            },
        )
        for table, families in found.items()
    }


def _stream(seen: Observation) -> StreamReading:
    def number(name: str) -> float:
        return seen.value(f"stream_{name}") or 0.0

    samples = int(number("inserted_samples_total"))
    return StreamReading(
        samples=samples,
        bytes=samples * int(number("sample_bytes")),
        stored=int(number("stored_samples")),
        capacity=int(number("capacity_samples")),
        batch_size=int(number("batch_samples")),
        ready=int(number("ready_batches")),
        held=int(number("held_batches")),
        free=int(number("free_batches")),
        delivered=int(number("delivered_batches_total")),
        oldest_hold=number("oldest_hold_seconds"),
        waiting_pushes=int(number("waiting_pushes")),
        waiting_samples=int(number("waiting_samples")),
        blocked_seconds=number("blocked_seconds_total"),
        starved_seconds=number("sample_wait_seconds_total"),
        memory=int(number("memory_bytes")),
    )


def _table(seen: Observation, name: str) -> TableReading:
    def number(what: str, **labels: str) -> float:
        return seen.value(f"table_{what}", table=name, **labels) or 0.0

    def side(which: str) -> Side:
        reasons = seen.values("table_blocked", "reason", table=name, side=which)
        return Side(
            waiting=int(number("waiting", side=which)),
            wait_seconds=number("wait_seconds_total", side=which),
            reason=next((printable(reason) for reason, blocked in reasons.items() if blocked), ""),
        )

    def histogram(what: str) -> dict[str, float]:
        return seen.values(f"table_{what}", "le", table=name)

    return TableReading(
        name=printable(name),
        items=int(number("items")),
        max_items=int(number("max_items")),
        inserts=int(number("inserts_total")),
        samples=int(number("samples_total")),
        deletions=int(number("deletions_total")),
        ratio=number("samples_per_insert"),
        target_ratio=seen.value("table_target_samples_per_insert", table=name),
        min_items=int(number("min_items")),
        paused=bool(number("paused")),
        version=int(number("policy_version")),
        row_bytes=int(number("row_bytes")),
        insert=side("insert"),
        sample=side("sample"),
        times_sampled=histogram("times_sampled"),
        priorities=histogram("priorities"),
        lags=histogram("sampled_lag"),
    )


def _doors(seen: Observation) -> DoorsReading:
    def number(name: str) -> float:
        return seen.value(name) or 0.0

    def counts(name: str, by: str) -> dict[str, int]:
        return {printable(key): int(count) for key, count in seen.values(name, by).items()}

    return DoorsReading(
        connections=int(number("connections")),
        accepted=int(number("connections_accepted_total")),
        reconnects=int(number("reconnects_total")),
        duplicates=int(number("received_duplicates_total")),
        malformed=int(number("connections_malformed_total")),
        silent=int(number("connections_silent_total")),
        refused=counts("connections_refused_total", "code"),
        bytes=int(number("received_bytes_total")),
        blocked_seconds=number("connections_blocked_seconds_total"),
        blocked=counts("connections_blocked", "reason"),
        chunk_bytes=int(number("received_chunk_bytes")),
    )
