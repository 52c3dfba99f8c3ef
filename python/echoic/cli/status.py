"""What a person sees of a running server: a live panel, or a line now and then.

A `Reading` is what there is to see at one moment; views turn two of them into rates. Both views
write to standard error, since standard output has the addresses for programs to read.
"""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

import echoic
from echoic.cli.console import say
from echoic.cli.text import amount, duration, size

__all__ = ["LineView", "PanelView", "Reading", "View", "choose_view", "read"]


@dataclass(frozen=True)
class Reading:
    """The numbers of a server at one moment.

    Attributes:
        seconds: Since the server started.
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
    """

    seconds: float
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

    @property
    def fill(self) -> float:
        """How full the ring is, from 0 to 1."""
        return min(self.stored / self.capacity, 1.0)


def read(server: echoic.Server, seconds: float) -> Reading:
    """Look at a server."""
    metrics = server.metrics()
    prefix = "connections_refused."
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
        refused={
            name.removeprefix(prefix): int(count)
            for name, count in metrics.items()
            if name.startswith(prefix)
        },
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


def choose_view(console: Console, title: str, details: list[str], interval: float) -> View:
    """A panel for a terminal that can move its cursor, else lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        return PanelView(console, title, details)
    return LineView(interval)


class LineView:
    """One line for each reading, made of `name=value`, for logs and pipes."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._before = Reading(0.0)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, reading: Reading) -> None:
        """Write a line."""
        rates = Rates.between(self._before, reading)
        self._before = reading
        refused = "".join(f" refused.{code}={n}" for code, n in sorted(reading.refused.items()))
        say(
            f"{time.strftime('%Y-%m-%dT%H:%M:%S')} samples={reading.samples}"
            f" samples/s={rates.samples:.0f} MB/s={rates.bytes / 1e6:.2f}"
            f" connections={reading.connections} fill={reading.fill:.2f}"
            f" blocked={rates.blocked:.2f} reconnects={reading.reconnects}"
            f" duplicates={reading.duplicates}"
            f" refused={sum(reading.refused.values())}{refused}"
        )


class PanelView:
    """A panel that is drawn anew four times a second, and stays when all is over."""

    interval = 0.25
    # Rates are those of this many seconds, or they could not be read.
    WINDOW = 1.0

    def __init__(self, console: Console, title: str, details: list[str]) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._details = details
        self._recent = [Reading(0.0)]

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
        rates = Rates.between(self._recent[0], reading)
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(ratio=1)
        grid.add_row("rate", f"{amount(rates.samples)} samples/s", f"{size(rates.bytes)}/s")
        grid.add_row("total", f"{reading.samples:,d} samples", size(reading.bytes))
        grid.add_row("ring", f"{reading.fill:.0%} full", bar(reading.fill, "cyan"))
        grid.add_row("waiting for room", f"{rates.blocked:.0%}", bar(rates.blocked, "yellow"))
        grid.add_row(
            "connections",
            f"{reading.connections:,d}",
            f"{reading.accepted:,d} since the start, {reading.reconnects:,d} came back",
        )
        grid.add_row("refused", f"{sum(reading.refused.values()):,d}", reasons(reading))
        return Panel(
            Group(*self._details, "", grid),
            title=self._title,
            subtitle=f"{duration(reading.seconds)} · Ctrl-C drains and ends",
            width=min(self._live.console.width, 96),
            padding=(1, 2),
        )


def bar(share: float, style: str) -> ProgressBar:
    """A bar from 0 to 1."""
    return ProgressBar(total=1.0, completed=share, complete_style=style, finished_style=style)


def reasons(reading: Reading) -> str:
    """Why connections were refused."""
    return ", ".join(f"{count:,d} {code}" for code, count in sorted(reading.refused.items()))
