"""The numbers of a server at one moment, as things.

:func:`read` turns an observation into a :class:`Reading`. Its things are the server itself, its
stream, its tables and its rollout tables. A :class:`Thing` has its counts (numbers that only grow),
its charts, its state, and all its numbers as text, so that terminal, page, notebook and scripts
show the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from echoic.cli.text import age, amount, duration, printable, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.watch import Family, Number, Observation, Peer

__all__ = [
    "UNKNOWN",
    "Chart",
    "Reading",
    "RolloutReading",
    "ServerReading",
    "Side",
    "SourceReading",
    "StreamReading",
    "TableReading",
    "Thing",
    "Waits",
    "read",
]

#: The kind and the name of a thing.
Key: TypeAlias = tuple[str, str]
Rates: TypeAlias = Mapping[str, float]
#: A label, a value, and a note, which may be empty.
Line: TypeAlias = tuple[str, str, str]
#: The value and the note of a line whose number the program does not report.
UNKNOWN = ("?", "not reported by the program")


@dataclass(frozen=True)
class Chart:
    """A chart of lines over time.

    Attributes:
        title: What the lines show.
        lines: A label for each line, and the rate or gauge that it shows.
        target: The attribute with the target value of the lines, if there is one.
        top: The attribute with the largest possible value.
    """

    title: str
    lines: dict[str, str]
    target: str = ""
    top: str = ""


@dataclass(frozen=True)
class Side:
    """Calls of one side: those that add, or those that take."""

    waiting: int = 0  # Calls that wait now.
    wait_seconds: float = 0.0  # How long calls waited since the start, together.
    reason: str = ""  # Why a call would have to wait now, such as "RATIO"; empty if it would not.
    waits: int = 0  # Calls that had to wait since the start, where that is counted.

    def line(self, label: str) -> Line:
        """Describe the side."""
        mean = f", {duration(self.wait_seconds / self.waits)} each" if self.waits else ""
        so_far = f"waited {duration(self.wait_seconds)} in all{mean}"
        return label, f"{self.waiting:,d}", f"{self.reason + '; ' if self.reason else ''}{so_far}"


@dataclass(frozen=True)
class Waits:
    """Calls of one side of a rollout table that wait for one reason."""

    waiting: int = 0  # Calls that wait now.
    seconds: float = 0.0  # How long calls waited for it since the start, together.


class Thing:
    """A part of a server that has numbers."""

    KIND: ClassVar[str]
    CHARTS: ClassVar[tuple[Chart, ...]]
    #: The counts of samples, items or groups that came in, and that went out.
    FLOW: ClassVar[tuple[str, ...]] = ()
    name: Any = ""
    paused: Any = False

    @property
    def key(self) -> Key:
        """The key in readings."""
        return self.KIND, self.name

    @property
    def title(self) -> str:
        """The name in sentences."""
        return f"{self.KIND} {self.name!r}"

    @property
    def sides(self) -> dict[str, Side]:
        """Both sides, in and out, by the name of one of their calls."""
        return {}

    @property
    def state(self) -> tuple[str, str]:
        """The level ``"stuck"``, ``"slow"`` or ``"good"``, and a description."""
        calls = [
            f"{count(side.waiting, call)} wait{'s' if side.waiting == 1 else ''}: {side.reason}"
            for call, side in self.sides.items()
            if side.waiting and side.reason
        ]
        level = "slow" if self.paused else "stuck" if calls else "good"
        words = ["paused", *calls] if self.paused else calls
        return level, ", ".join(words) or "no call waits"

    @classmethod
    def series(cls) -> tuple[str, ...]:
        """Name the rates and gauges that are drawn."""
        return tuple(name for chart in cls.CHARTS for name in chart.lines.values())

    def counts(self) -> dict[str, float]:
        """Return the numbers that only grow; views show their growth per second."""
        return {}

    def lines(self, rates: Rates) -> list[Line]:
        """Return all numbers as lines, given the growth per second of its counts."""
        raise NotImplementedError

    def bars(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """Return histograms: titles, and of each bar its label and count."""
        return []


def count(many: int, what: str) -> str:
    """Format a number of things, such as `1 group`, `2 groups` or `2 batches`."""
    plural = "es" if what.endswith("h") else "s"
    return f"{many:,d} {what}{'' if many == 1 else plural}"


def _of(number: str, kind: Callable[[float], Any] = int, **labels: str) -> Any:
    """Define a field that holds the number of this name; by default None if kind is `_maybe`."""
    metadata = {"number": number, "kind": kind, "labels": labels}
    return field(default=None if kind is _maybe else kind(0), metadata=metadata)


def _maybe(value: float) -> int:
    return int(value)


@dataclass(frozen=True)
class ServerReading(Thing):
    """The connections of a server, and its process."""

    KIND: ClassVar[str] = "server"
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart("Received, bytes per second", {"received": "bytes"}),
        Chart("Answer to one request, seconds", {"answer": "answer"}),
        Chart("Memory, bytes", {"of data": "memory_bytes", "of the process": "resident"}),
        Chart("CPU, cores", {"busy": "cpu"}),
    )
    connections: int = _of("connections")  # Open now.
    accepted: int = _of("connections_accepted_total")
    reconnects: int = _of("reconnects_total")  # Clients that came back.
    duplicates: int = _of("received_duplicates_total")  # Samples that came twice and were dropped.
    malformed: int = _of("connections_malformed_total")  # Closed because of invalid bytes.
    silent: int = _of("connections_silent_total")  # Closed because nothing came for too long.
    refused: dict[str, int] = field(default_factory=dict)  # By reason.
    bytes: int = _of("received_bytes_total")
    blocked_seconds: float = _of("connections_blocked_seconds_total", float)
    blocked: dict[str, int] = field(default_factory=dict)  # Connections that wait now, by reason.
    memory: dict[str, float] = field(default_factory=dict)  # Bytes of data, by their holder.
    answer: float = 0.0  # Seconds until the server had answered the request for these numbers.
    # Memory and CPU time of the process, if the program reports them as gauges.
    resident: float | None = None
    cpu_seconds: float | None = None

    @property
    def title(self) -> str:
        """The name in sentences."""
        return "the server"

    @property
    def memory_bytes(self) -> float:
        """Bytes of data."""
        return sum(self.memory.values())

    def counts(self) -> dict[str, float]:
        """Return the numbers that only grow."""
        found = {"bytes": float(self.bytes)}
        return found if self.cpu_seconds is None else {**found, "cpu": self.cpu_seconds}

    def lines(self, rates: Rates) -> list[Line]:
        """Return all numbers as lines."""
        parts = ", ".join(f"{size(held)} {by}" for by, held in self.memory.items() if held)
        refused = ", ".join(f"{many:,d} {code}" for code, many in sorted(self.refused.items()))
        cpu = UNKNOWN if self.cpu_seconds is None else (f"{rates['cpu']:.2f} cores", "")
        resident = UNKNOWN if self.resident is None else (size(self.resident), "")
        closed = f"{self.malformed:,d} for invalid bytes, {self.silent:,d} for silence"
        return [
            ("connections", f"{self.connections:,d}", f"{self.accepted:,d} since the start"),
            ("reconnects", f"{self.reconnects:,d}", f"{self.duplicates:,d} duplicates dropped"),
            ("refused", f"{sum(self.refused.values()):,d}", refused),
            ("closed", f"{self.malformed + self.silent:,d}", closed),
            ("received", f"{size(rates['bytes'])}/s", f"{size(self.bytes)} in all"),
            ("memory of data", size(self.memory_bytes), parts.replace("_", " ")),
            ("memory of process", *resident),
            ("CPU", *cpu),
        ]


@dataclass(frozen=True)
class StreamReading(Thing):
    """The stream."""

    KIND: ClassVar[str] = "stream"
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart("Samples per second", {"samples": "samples"}),
        Chart("Batches per second", {"batches": "batches"}),
        Chart("Samples in the ring", {"stored": "stored"}, top="capacity"),
        Chart("Share of the time spent waiting", {"learner": "starved", "workers": "blocked"}),
    )
    FLOW: ClassVar[tuple[str, ...]] = ("samples", "taken")
    samples: int = _of("stream_inserted_samples_total")
    bytes: int = 0  # Bytes of these samples.
    stored: int = _of("stream_stored_samples")  # In the ring and not yet taken.
    capacity: int = _of("stream_capacity_samples")
    batch_size: int = _of("stream_batch_samples")
    ready: int = _of("stream_ready_batches")
    held: int = _of("stream_held_batches")  # Batches whose memory is still in use.
    free: int = _of("stream_free_batches")
    delivered: int = _of("stream_delivered_batches_total")
    oldest_hold: float = _of("stream_oldest_hold_seconds", float)  # Of a batch that is held.
    waiting_pushes: int = _of("stream_waiting_pushes")
    waiting_samples: int = _of("stream_waiting_samples")
    blocked_seconds: float = _of("stream_blocked_seconds_total", float)  # Pushes waited for room.
    starved_seconds: float = _of("stream_sample_wait_seconds_total", float)  # For a batch.
    memory: int = _of("stream_memory_bytes")
    # Seconds by quantile.
    submit_latency: dict[str, float] = field(default_factory=dict)
    copy_latency: dict[str, float] = field(default_factory=dict)
    hold_latency: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name in sentences."""
        return "the stream"

    @property
    def fill(self) -> float:
        """How full the ring is, from 0 to 1."""
        return min(self.stored / max(self.capacity, 1), 1.0)

    @property
    def is_held(self) -> bool:
        """Whether all buffers are held, so that no sample fits."""
        return self.held * self.batch_size >= self.capacity

    @property
    def sides(self) -> dict[str, Side]:
        """Both sides by the name of one of their calls."""
        full = "LEASED" if self.is_held else "CAPACITY"
        return {
            "push": Side(self.waiting_pushes, self.blocked_seconds, full),
            "sample call": Side(self.waiting_samples, self.starved_seconds, "EMPTY"),
        }

    def counts(self) -> dict[str, float]:
        """Return the numbers that only grow; of times, the growth is a share."""
        return {
            "samples": self.samples,
            "bytes": self.bytes,
            "batches": self.delivered,
            "taken": self.delivered * self.batch_size,
            "starved": self.starved_seconds,
            "blocked": self.blocked_seconds,
        }

    def lines(self, rates: Rates) -> list[Line]:
        """Return all numbers as lines."""
        in_all = f"{size(rates['bytes'])}/s, {amount(self.samples)} in all"
        ring = f"{self.stored:,d} of {self.capacity:,d}, {size(self.memory)}"
        since = f", one for {duration(self.oldest_hold)}" if self.held else ""
        held = f"{self.held:,d} held{since}, {self.free:,d} free"
        starved, blocked = (f"{rates[one]:.0%} of the time" for one in ("starved", "blocked"))
        latencies = {
            "from submit to batch": self.submit_latency,
            "copy of a sample": self.copy_latency,
            "hold of a batch": self.hold_latency,
        }
        return [
            ("samples/s", amount(rates["samples"]), in_all),
            ("ring", f"{self.fill:.0%} full", ring),
            (f"batches of {self.batch_size:,d}", f"{self.ready:,d} ready", held),
            ("batches/s", amount(rates["batches"]), f"{amount(self.delivered)} in all"),
            ("learner waited", starved, f"{duration(self.starved_seconds)} in all"),
            ("workers waited", blocked, f"{duration(self.blocked_seconds)} in all"),
            *(percentiles(label, one) for label, one in latencies.items() if any(one.values())),
        ]


def percentiles(label: str, found: Mapping[str, float]) -> Line:
    """Return a line of times by quantile: the median, and the others as a note."""
    words = [f"p{float(q) * 100:g} {duration(value)}" for q, value in found.items()]
    return label, words[0], ", ".join(words[1:])


@dataclass(frozen=True)
class TableReading(Thing):
    """A table."""

    KIND: ClassVar[str] = "table"
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart("Per second", {"inserts": "inserts", "samples": "samples"}),
        Chart("Samples per insert", {"ratio": "ratio"}, target="target_ratio"),
        Chart("Items", {"items": "items"}, top="capacity"),
        Chart("Calls that wait", {"inserts": "insert_wait", "samples": "sample_wait"}),
    )
    FLOW: ClassVar[tuple[str, ...]] = ("inserts", "samples")
    name: str
    items: int = _of("table_items")
    capacity: int = _of("table_capacity")
    inserts: int = _of("table_inserts_total")
    samples: int = _of("table_samples_total")
    deletions: int = _of("table_deletions_total")
    ratio: float = _of("table_samples_per_insert", float)  # Samples per insert so far.
    target_ratio: float | None = None  # The limiter's ratio, if it has one.
    min_items: int = _of("table_min_items")  # The limiter's least number of items for a sample.
    paused: bool = _of("table_paused", bool)
    version: int = _of("table_policy_version")
    row_bytes: int = _of("table_row_bytes")
    insert: Side = Side()
    sample: Side = Side()
    # Cumulative histograms: the number of items or samples up to each value.
    times_sampled: dict[str, float] = field(default_factory=dict)
    priorities: dict[str, float] = field(default_factory=dict)
    lags: dict[str, float] = field(default_factory=dict)

    @property
    def fill(self) -> float:
        """The share of the capacity in use, from 0 to 1."""
        return min(self.items / max(self.capacity, 1), 1.0)

    @property
    def sides(self) -> dict[str, Side]:
        """Both sides by the name of one of their calls."""
        return {"insert": self.insert, "sample": self.sample}

    def counts(self) -> dict[str, float]:
        """Return the numbers that only grow; the growth of times is the number of waiting calls."""
        return {
            "inserts": self.inserts,
            "samples": self.samples,
            "insert_wait": self.insert.wait_seconds,
            "sample_wait": self.sample.wait_seconds,
        }

    def lines(self, rates: Rates) -> list[Line]:
        """Return all numbers as lines."""
        target = "" if self.target_ratio is None else f"target {self.target_ratio:g}"
        return [
            ("items", amount(self.items), f"of {amount(self.capacity)} ({self.fill:.0%})"),
            ("inserts/s", amount(rates["inserts"]), f"{amount(self.inserts)} in all"),
            ("samples/s", amount(rates["samples"]), f"{amount(self.samples)} in all"),
            ("samples per insert", f"{self.ratio:.3g}", target),
            self.insert.line("inserts waiting"),
            self.sample.line("samples waiting"),
            ("first sample at", count(self.min_items, "item"), ""),
            ("deletions", amount(self.deletions), ""),
            ("policy version", f"{self.version:,d}", ""),
            ("memory of rows", size(self.row_bytes), ""),
        ]

    def bars(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """Return the histograms that are not empty."""
        known = (
            ("Items by how often they were sampled", self.times_sampled),
            ("Items by priority", self.priorities),
            ("Samples by how many versions old they were", self.lags),
        )
        return [(title, found) for title, counts in known if (found := buckets(counts))]


def buckets(cumulative: Mapping[str, float]) -> list[tuple[str, float]]:
    """Convert cumulative counts to one for each bucket; leave out empty buckets at both ends."""
    found, below, lowest = [], 0.0, ""
    for bound, many in sorted(cumulative.items(), key=lambda pair: float(pair[0])):
        # At most six characters, such as `6.1e-05`.
        short = bound if len(bound) <= 6 else f"{float(bound):.2g}"
        above = f"above {lowest}" if lowest else "any"
        found.append((above if bound == "+Inf" else f"up to {short}", max(many - below, 0.0)))
        below, lowest = many, short
    used = [at for at, (_, many) in enumerate(found) if many]
    return found[used[0] : used[-1] + 1] if used else []


@dataclass(frozen=True)
class SourceReading:
    """The counts of the producers with one name; the name may be empty."""

    name: str
    submitted: int = 0  # Reserved groups.
    running: int = 0  # Groups in progress.
    accepted: int = 0  # Complete groups that passed the filter.
    rejected: int = 0  # Groups that were given up, or lost.
    filtered: int = 0  # Complete groups that the filter dropped.
    tokens: int = 0  # Tokens of accepted groups.
    waiting: int = 0  # Calls that wait now for a reservation.
    waited: float = 0.0  # Seconds for which the oldest of them has waited.
    passed: int = 0  # Groups that others reserved meanwhile.
    is_starving: bool = False  # Whether it waits for too long while others get reservations.

    def cells(self) -> dict[str, str]:
        """Return its numbers as text, by the names of columns."""
        names = ("submitted", "running", "accepted", "rejected", "filtered", "tokens")
        waits = f"{self.waiting:,d} for {age(self.waited)}" if self.waiting else ""
        return {
            "source": self.name or "(no name)",
            **{name: amount(getattr(self, name)) for name in names},
            "waits": f"{waits}{' STARVING' if self.is_starving else ''}",
        }


@dataclass(frozen=True)
class RolloutReading(Thing):
    """A rollout table."""

    KIND: ClassVar[str] = "rollout table"
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart("Tokens per second", {"received": "tokens", "delivered": "delivered_tokens"}),
        Chart("Groups per second", {"reserved": "reserved", "delivered": "delivered"}),
        Chart("Groups", {"running": "running", "ready": "ready"}),
        Chart(
            "Versions old when delivered",
            {"oldest": "lag_oldest", "mean": "lag_mean"},
            target="max_lag",
        ),
        Chart("Calls that wait", {"producers": "producers", "consumers": "consumers"}),
    )
    FLOW: ClassVar[tuple[str, ...]] = ("reserved", "delivered")
    name: str
    version: int = _of("rollouts_version")  # The learner's last published version.
    target: int = _of("rollouts_target")  # The version that the next batch will update.
    running: int = _of("rollouts_running_groups")  # In progress, or suspended.
    suspended: int = _of("rollouts_suspended_groups")  # Suspended ones among them.
    ready: int = _of("rollouts_queued_groups")  # Complete, and not leased.
    leased: int = _of("rollouts_leased_groups")  # With consumers.
    room: int = _of("rollouts_room_groups")  # Groups that could be reserved now.
    batch_groups: int = _of("rollouts_batch_groups")
    max_running: int = _of("rollouts_max_running_groups")
    capacity: int = _of("rollouts_capacity_groups")
    max_lag: int | None = _of("rollouts_max_lag", _maybe)  # Versions, if bounded.
    depth: int | None = _of("rollouts_pipeline_depth", _maybe)  # Versions ahead, if bounded.
    ready_lag: int | None = _of("rollouts_oldest_lag", _maybe)  # Of the oldest ready group.
    lag_oldest: int | None = _of("rollouts_delivered_lag", _maybe, of="oldest")
    lag_mean: float | None = None  # Of the last delivery: its groups' oldest tokens.
    lag_newest: int | None = _of("rollouts_delivered_lag", _maybe, of="newest")
    paused: bool = _of("rollouts_paused", bool)
    submitted: int = _of("rollouts_groups", outcome="submitted")
    accepted: int = _of("rollouts_groups", outcome="accepted")
    rejected: int = _of("rollouts_groups", outcome="rejected")
    filtered: int = _of("rollouts_groups", outcome="filtered")
    expired: int = _of("rollouts_losses_total", why="expired")  # Not complete in time.
    stale: int = _of("rollouts_losses_total", why="stale")  # Dropped because too old.
    removed: int = _of("rollouts_losses_total", why="removed")
    overdue: int = _of("rollouts_losses_total", why="overdue")  # Delivered although too old.
    batches: int = _of("rollouts_batches_total")
    delivered: int = _of("rollouts_groups", outcome="delivered")  # Repeated ones included.
    redelivered: int = _of("rollouts_groups", outcome="redelivered")
    lost: int = _of("rollouts_groups", outcome="lost")  # Lost with their consumer.
    expired_leases: int = _of("rollouts_expired_leases_total")
    tokens: int = _of("rollouts_tokens_total")
    delivered_tokens: int = _of("rollouts_delivered_tokens_total")
    producers: dict[str, Waits] = field(default_factory=dict)  # By reason.
    consumers: dict[str, Waits] = field(default_factory=dict)
    sources: tuple[SourceReading, ...] = ()  # The ones with the most reservations.

    @property
    def fill(self) -> float:
        """The share of a batch that is ready, from 0 to 1."""
        return min(self.ready / max(self.batch_groups, 1), 1.0)

    @property
    def lags(self) -> str:
        """The age of the last delivery in versions: least, most and mean."""
        if self.lag_oldest is None or self.lag_mean is None or self.lag_newest is None:
            return "no group was delivered yet"
        return f"{self.lag_newest} to {self.lag_oldest}, {self.lag_mean:.3g} on average"

    @property
    def sides(self) -> dict[str, Side]:
        """Both sides by the name of one of their calls; the reason is the most frequent one."""
        found = {}
        for call, by_reason in (("producer", self.producers), ("consumer", self.consumers)):
            waiting = sum(one.waiting for one in by_reason.values())
            seconds = sum(one.seconds for one in by_reason.values())
            most = sorted(by_reason, key=lambda why, of=by_reason: -of[why].waiting)  # type: ignore[misc]
            found[call] = Side(waiting, seconds, most[0] if waiting else "")
        return found

    def counts(self) -> dict[str, float]:
        """Return the numbers that only grow; the growth of times is the number of waiting calls."""
        found: dict[str, float] = {
            "reserved": self.submitted,
            "delivered": self.delivered,
            "tokens": self.tokens,
            "delivered_tokens": self.delivered_tokens,
            "stale": self.stale,
        }
        for side, by_reason in (("producers", self.producers), ("consumers", self.consumers)):
            found[side] = sum(waits.seconds for waits in by_reason.values())
            found |= {f"{side}.{reason}": one.seconds for reason, one in by_reason.items()}
        return found

    def lines(self, rates: Rates) -> list[Line]:
        """Return all numbers as lines."""
        lag = "no bound" if self.max_lag is None else f"at most {self.max_lag}"
        ready_lag = "" if self.ready_lag is None else f", oldest ready {self.ready_lag}"
        depth = "" if self.depth is None else f", {self.depth} versions ahead"
        room = f"max_running {self.max_running:,d}, capacity {self.capacity:,d}{depth}"
        tokens, groups = (
            f"{amount(rates[it])} delivered" for it in ("delivered_tokens", "delivered")
        )
        sums = (
            f"= {self.running:,d} running + {self.accepted:,d} accepted"
            f" + {self.rejected:,d} rejected + {self.filtered:,d} filtered"
        )
        dropped = self.stale + self.expired + self.removed
        why = f"{self.stale:,d} too old, {self.expired:,d} expired, {self.removed:,d} removed"
        delivered = (
            f"in {self.batches:,d} batches, {self.redelivered:,d} again, {self.lost:,d} lost,"
            f" {self.overdue:,d} overdue"
        )
        producer, consumer = (f"{side.waiting:,d}" for side in self.sides.values())
        return [
            ("version", f"{self.version:,d}", f"next batch for {self.target:,d}"),
            ("running", count(self.running, "group"), f"{self.suspended:,d} suspended"),
            ("ready", count(self.ready, "group"), f"a batch takes {self.batch_groups:,d}"),
            ("leased", count(self.leased, "group"), f"{self.expired_leases:,d} leases ran out"),
            ("room for", count(self.room, "group"), room),
            ("tokens/s", amount(rates["tokens"]), tokens),
            ("groups/s", amount(rates["reserved"]), groups),
            ("submitted", f"{self.submitted:,d}", sums),
            ("dropped", f"{dropped:,d}", why),
            ("delivered", f"{self.delivered:,d}", delivered),
            ("versions old", self.lags, f"{lag}{ready_lag}"),
            ("producers waiting", producer, _reasons("producers", self.producers, rates)),
            ("consumers waiting", consumer, _reasons("consumers", self.consumers, rates)),
        ]

    def bars(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """Return the seconds that calls waited, by reason."""
        sides = (("producers", self.producers), ("consumers", self.consumers))
        return [
            (f"Seconds that {side} waited", [(why, one.seconds) for why, one in found.items()])
            for side, found in sides
            if found
        ]


def _reasons(side: str, by_reason: Mapping[str, Waits], rates: Rates) -> str:
    """Describe the waits of one side, by reason."""
    return "; ".join(
        f"{reason} {waits.waiting:,d} now, {rates.get(f'{side}.{reason}', 0.0):.2g} on average,"
        f" {duration(waits.seconds)} in all"
        for reason, waits in sorted(by_reason.items(), key=lambda pair: -pair[1].seconds)
    )


@dataclass(frozen=True)
class Reading:
    """A server at one moment."""

    age: float  # Seconds since the server was started; the time axis of rates.
    incarnation: int = 0  # Changes when the server is restarted; 0 if not known.
    release: str = ""  # The server's release of Echoic.
    server: ServerReading = field(default_factory=ServerReading)
    stream: StreamReading | None = None
    tables: tuple[TableReading, ...] = ()
    rollouts: tuple[RolloutReading, ...] = ()
    connections: tuple[Peer, ...] = ()  # Connections that wait come first.
    gauges: dict[str, float] = field(default_factory=dict)  # Set by the program.

    @cached_property
    def things(self) -> dict[Key, Thing]:
        """The server, its stream and all tables."""
        stream = () if self.stream is None else (self.stream,)
        every: tuple[Thing, ...] = (self.server, *stream, *self.tables, *self.rollouts)
        return {one.key: one for one in every}


def read(seen: Observation, answer: float = 0.0) -> Reading:
    """Read an observation; `answer` is the seconds that the server took for it."""
    tables = _by_table(seen, "table_items")
    rollouts = _by_table(seen, "rollouts_version")
    gauges = {printable(name): value for name, value in seen.values("gauge", "name").items()}
    return Reading(
        age=seen.age,
        incarnation=seen.incarnation,
        release=printable(seen.release),
        server=_server(seen, gauges, answer),
        stream=_stream(seen) if "stream_capacity_samples" in seen.families else None,
        tables=tuple(_table(about, name) for name, about in tables.items()),
        rollouts=tuple(_rollouts(about, name) for name, about in rollouts.items()),
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
        gauges=gauges,
    )


def _by_table(seen: Observation, always: str) -> dict[str, Observation]:
    """Split the numbers by table, in one pass: there may be thousands.

    Args:
        seen: All numbers.
        always: A number that each table of the wanted kind has.
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


def _numbers(kind: type[Any], seen: Observation) -> dict[str, Any]:
    """Return the values of fields that :func:`_of` defined."""
    found = {}
    for one in fields(kind):
        if one.metadata:
            value = seen.value(one.metadata["number"], **one.metadata["labels"])
            if value is not None:
                found[one.name] = one.metadata["kind"](value)
    return found


def _server(seen: Observation, gauges: Mapping[str, float], answer: float) -> ServerReading:
    def counts(name: str, by: str) -> dict[str, int]:
        return {printable(key): int(many) for key, many in seen.values(name, by).items()}

    return ServerReading(
        **_numbers(ServerReading, seen),
        refused=counts("connections_refused_total", "code"),
        blocked=counts("connections_blocked", "reason"),
        memory=seen.values("memory_bytes", "tier"),
        answer=answer,
        resident=gauges.get("process_resident_memory_bytes"),
        cpu_seconds=gauges.get("process_cpu_seconds_total"),
    )


def _stream(seen: Observation) -> StreamReading:
    found = _numbers(StreamReading, seen)
    return StreamReading(
        **found,
        bytes=found.get("samples", 0) * int(seen.value("stream_sample_bytes") or 0),
        submit_latency=seen.values("stream_submit_to_available_seconds", "quantile"),
        copy_latency=seen.values("stream_copy_seconds", "quantile"),
        hold_latency=seen.values("stream_hold_seconds", "quantile"),
    )


def _table(seen: Observation, name: str) -> TableReading:
    def side(which: str) -> Side:
        reasons = seen.values("table_blocked", "reason", side=which)
        return Side(
            waiting=int(seen.value("table_waiting", side=which) or 0),
            wait_seconds=seen.value("table_wait_seconds_total", side=which) or 0.0,
            reason=next((printable(reason) for reason, blocked in reasons.items() if blocked), ""),
            waits=int(seen.value("table_waits_total", side=which) or 0),
        )

    return TableReading(
        **_numbers(TableReading, seen),
        name=printable(name),
        target_ratio=seen.value("table_target_samples_per_insert"),
        insert=side("insert"),
        sample=side("sample"),
        times_sampled=seen.values("table_times_sampled", "le"),
        priorities=seen.values("table_priorities", "le"),
        lags=seen.values("table_sampled_lag", "le"),
    )


def _rollouts(seen: Observation, name: str) -> RolloutReading:
    def waits(side: str) -> dict[str, Waits]:
        waiting = seen.values("rollouts_waiting", "reason", side=side)
        seconds = seen.values("rollouts_wait_seconds_total", "reason", side=side)
        return {
            printable(reason): Waits(int(calls), seconds.get(reason, 0.0))
            for reason, calls in waiting.items()
        }

    return RolloutReading(
        **_numbers(RolloutReading, seen),
        name=printable(name),
        lag_mean=seen.value("rollouts_delivered_lag", of="mean"),
        producers=waits("producer"),
        consumers=waits("consumer"),
        sources=_sources(seen),
    )


def _sources(seen: Observation) -> tuple[SourceReading, ...]:
    """Read all producers in one pass: there may be many."""
    found: dict[str, dict[str, float]] = {}
    groups = seen.families.get("rollouts_source_groups")
    for number in groups.numbers if groups else ():
        counts = found.setdefault(number.labels.get("source", ""), {})
        counts[number.labels.get("outcome", "")] = number.value
    for name, number_of in (
        ("tokens", "tokens_total"),
        ("waiting", "waiting"),
        ("waited", "oldest_wait_seconds"),
        ("passed", "passed_groups"),
        ("is_starving", "starving"),
    ):
        # A source that waits for the first time has no groups yet.
        for source, value in seen.values(f"rollouts_source_{number_of}", "source").items():
            found.setdefault(source, {})[name] = value
    return tuple(
        SourceReading(
            name=printable(source),
            waited=counts.get("waited", 0.0),
            is_starving=bool(counts.get("is_starving")),
            **{
                one.name: int(counts.get(one.name, 0))
                for one in fields(SourceReading)
                if one.type == "int"
            },
        )
        for source, counts in found.items()
    )
