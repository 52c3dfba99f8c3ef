"""What a person sees of a running server: a live panel, or a line now and then.

A `Reading` is what there is to see at one moment; views turn two of them into rates. Both views
write to standard error, since standard output has the addresses for programs to read.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

import echoic
from echoic.cli.console import say
from echoic.cli.text import amount, duration, size

__all__ = ["LineView", "PanelView", "Reading", "TableReading", "View", "choose_view", "read"]


@dataclass(frozen=True)
class TableReading:
    """The numbers of a table at one moment.

    Attributes:
        name: Of the table.
        size: Items that are there.
        max_size: Items that there may be.
        inserts: That its limiter has counted; like the next two those of a checkpoint or journal
            that the table was loaded from are among them.
        samples: As above.
        deletions: As above.
        inserts_waiting: Inserts that the limiter holds back.
        samples_waiting: Samples that it holds back.
    """

    name: str
    size: int
    max_size: int
    inserts: int
    samples: int
    deletions: int
    inserts_waiting: int
    samples_waiting: int


@dataclass(frozen=True)
class Reading:
    """The numbers of a server at one moment.

    Attributes:
        seconds: Since the server started.
        has_stream: Whether there is a stream, or tables only; then the numbers of the stream say
            nothing, nor do those of connections but how many stand.
        samples: Stored since then.
        bytes: What those samples hold.
        stored: In the ring and not yet taken.
        capacity: Samples that the ring holds.
        blocked_time: Seconds for which samples waited for room, summed over connections.
        connections: Connections that stand.
        accepted: Connections since the start.
        reconnects: Clients that came back.
        duplicates: Samples that came twice, and were dropped.
        refused: Connections refused, by reason.
        tables: Those of the tables.
    """

    seconds: float
    has_stream: bool = True
    samples: int = 0
    bytes: int = 0
    stored: int = 0
    capacity: int = 1
    blocked_time: float = 0.0
    connections: int = 0
    accepted: int = 0
    reconnects: int = 0
    duplicates: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    tables: tuple[TableReading, ...] = ()

    @property
    def fill(self) -> float:
        """How full the ring is, from 0 to 1."""
        return min(self.stored / self.capacity, 1.0)


def read(server: echoic.Server, seconds: float, tables: Sequence[echoic.Table] = ()) -> Reading:
    """Look at a server, and at its tables."""
    metrics = server.metrics()
    prefix = "connections_refused."
    refused = {
        name.removeprefix(prefix): int(count)
        for name, count in metrics.items()
        if name.startswith(prefix)
    }
    shown = tuple(map(read_table, tables))
    if "capacity" not in metrics:
        return Reading(
            seconds=seconds,
            has_stream=False,
            connections=len(server.connections()),
            refused=refused,
            tables=shown,
        )
    return Reading(
        seconds=seconds,
        samples=int(metrics["inserted_total"]),
        bytes=int(metrics["inserted_total"] * metrics["bytes_per_sample"]),
        stored=int(metrics["store_size"]),
        capacity=int(metrics["capacity"]),
        blocked_time=metrics["connections_blocked_time"],
        connections=int(metrics["connections"]),
        accepted=int(metrics["connections_accepted"]),
        reconnects=int(metrics["reconnects"]),
        duplicates=int(metrics["received_duplicates"]),
        refused=refused,
        tables=shown,
    )


def read_table(table: echoic.Table) -> TableReading:
    """Look at a table."""
    info = table.info
    return TableReading(
        name=info["name"],
        size=info["size"],
        max_size=info["max_size"],
        inserts=info["inserts"],
        samples=info["samples"],
        deletions=info["deletions"],
        inserts_waiting=info["insert_calls_waiting"],
        samples_waiting=info["sample_calls_waiting"],
    )


@dataclass(frozen=True)
class Rates:
    """What happened between two readings, per second."""

    samples: float
    bytes: float
    # The share of the time for which the samples of an average connection waited.
    blocked: float

    @classmethod
    def between(cls, before: Reading, after: Reading) -> "Rates":
        """The rates from one reading to a later one."""
        seconds = max(after.seconds - before.seconds, 1e-9)
        blocked = (after.blocked_time - before.blocked_time) / seconds
        return cls(
            samples=(after.samples - before.samples) / seconds,
            bytes=(after.bytes - before.bytes) / seconds,
            blocked=min(blocked / max(after.connections, 1), 1.0),
        )


@dataclass(frozen=True)
class TableRates:
    """What happened to a table between two readings, per second."""

    inserts: float
    samples: float

    @classmethod
    def between(cls, before: Reading, after: Reading) -> "list[TableRates]":
        """The rates of each table; none of one that was not looked at before or was reset since."""
        seconds = max(after.seconds - before.seconds, 1e-9)
        known = {table.name: table for table in before.tables}
        rates = []
        for table in after.tables:
            first = known.get(table.name, table)
            inserts = max(table.inserts - first.inserts, 0) / seconds
            samples = max(table.samples - first.samples, 0) / seconds
            rates.append(cls(inserts, samples))
        return rates


class View(Protocol):
    """Shows readings between `__enter__` and `__exit__`."""

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    def interval(self) -> float:
        """Seconds between two readings."""
        ...

    def update(self, reading: Reading) -> None:
        """Show a reading."""
        ...


def choose_view(
    console: Console,
    title: str,
    details: list[str],
    interval: float,
    start: Reading | None = None,
) -> View:
    """A panel for a terminal that can move its cursor, else lines.

    Args:
        console: Where it is shown.
        title: Of the panel.
        details: Lines at its top.
        interval: Seconds between two log lines.
        start: What rates begin with; nothing happened before when `None`.
    """
    if console.is_terminal and not console.is_dumb_terminal:
        return PanelView(console, title, details, start)
    return LineView(interval, start)


class LineView:
    """One line for each reading, made of `name=value`, for logs and pipes."""

    def __init__(self, interval: float, start: Reading | None = None) -> None:
        self.interval = interval
        self._before = start or Reading(0.0)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, reading: Reading) -> None:
        """Write a line."""
        before, self._before = self._before, reading
        refused = "".join(f" refused.{code}={n}" for code, n in sorted(reading.refused.items()))
        words = [time.strftime("%Y-%m-%dT%H:%M:%S")]
        if reading.has_stream:
            rates = Rates.between(before, reading)
            words.append(
                f"samples={reading.samples}"
                f" samples/s={rates.samples:.0f} MB/s={rates.bytes / 1e6:.2f}"
                f" connections={reading.connections} fill={reading.fill:.2f}"
                f" blocked={rates.blocked:.2f} reconnects={reading.reconnects}"
                f" duplicates={reading.duplicates}"
            )
        else:
            words.append(f"connections={reading.connections}")
        words.append(f"refused={sum(reading.refused.values())}{refused}")
        for table, flow in zip(reading.tables, TableRates.between(before, reading), strict=True):
            # A name may be any text; a line is to be split at its spaces and equal signs.
            name = re.sub(r"[\s=]", "_", table.name)
            words.append(
                f"{name}.size={table.size}"
                f" {name}.inserts={table.inserts} {name}.inserts/s={flow.inserts:.0f}"
                f" {name}.inserts_waiting={table.inserts_waiting}"
                f" {name}.samples={table.samples} {name}.samples/s={flow.samples:.0f}"
                f" {name}.samples_waiting={table.samples_waiting}"
            )
        say(" ".join(words))


class PanelView:
    """A panel that is drawn anew four times a second, and stays when all is over."""

    interval = 0.25
    # Rates are those of this many seconds, or they could not be read.
    WINDOW = 1.0

    def __init__(
        self, console: Console, title: str, details: list[str], start: Reading | None = None
    ) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._details = details
        self._recent = [start or Reading(0.0)]

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, reading: Reading) -> None:
        """Draw the panel anew."""
        self._recent.append(reading)
        # Of the readings that are too old the last one stays, as the beginning of the window.
        while len(self._recent) > 2 and self._recent[1].seconds <= reading.seconds - self.WINDOW:  # noqa: PLR2004 - the two that a rate is between
            self._recent.pop(0)
        self._live.update(self.render(reading), refresh=True)

    def render(self, reading: Reading) -> RenderableType:
        """The panel for one reading."""
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(ratio=1)
        if reading.has_stream:
            rates = Rates.between(self._recent[0], reading)
            grid.add_row("rate", f"{amount(rates.samples)} samples/s", f"{size(rates.bytes)}/s")
            grid.add_row("total", f"{reading.samples:,d} samples", size(reading.bytes))
            grid.add_row("ring", f"{reading.fill:.0%} full", bar(reading.fill, "cyan"))
            grid.add_row("waiting for room", f"{rates.blocked:.0%}", bar(rates.blocked, "yellow"))
        grid.add_row(
            "connections",
            f"{reading.connections:,d}",
            f"{reading.accepted:,d} since the start, {reading.reconnects:,d} came back"
            if reading.has_stream
            else "",
        )
        grid.add_row("refused", f"{sum(reading.refused.values()):,d}", reasons(reading))
        parts: list[RenderableType] = [*self._details, "", grid]
        if reading.tables:
            parts += ["", tables_grid(self._recent[0], reading)]
        return Panel(
            Group(*parts),
            title=self._title,
            subtitle=f"{duration(reading.seconds)} · Ctrl-C drains and ends",
            width=min(self._live.console.width, 96),
            padding=(1, 2),
        )


def tables_grid(before: Reading, after: Reading) -> Table:
    """A row for each table."""
    grid = Table(box=None, pad_edge=False, expand=True, header_style="dim")
    grid.add_column("table", ratio=1, overflow="ellipsis", no_wrap=True)
    for heading in ("items", "most", "inserts", "/s", "waiting", "samples", "/s", "waiting"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for table, rates in zip(after.tables, TableRates.between(before, after), strict=True):
        grid.add_row(
            escape(table.name),
            amount(table.size),
            amount(table.max_size),
            amount(table.inserts),
            amount(rates.inserts),
            amount(table.inserts_waiting),
            amount(table.samples),
            amount(rates.samples),
            amount(table.samples_waiting),
        )
    return grid


def bar(share: float, style: str) -> ProgressBar:
    """A bar from 0 to 1."""
    return ProgressBar(total=1.0, completed=share, complete_style=style, finished_style=style)


def reasons(reading: Reading) -> str:
    """Why connections were refused."""
    return ", ".join(f"{count:,d} {code}" for code, count in sorted(reading.refused.items()))
