"""A running server for people: a live panel, or a line now and then.

Both views write to standard error, since standard output has the addresses for programs to read.
"""

import re
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from echoic.cli.console import say
from echoic.cli.text import amount, duration, size
from echoic.views.history import History
from echoic.views.reading import Reading

__all__ = ["LineView", "PanelView", "choose_view"]


def choose_view(
    console: Console,
    title: str,
    details: list[str],
    interval: float,
    start: Reading | None = None,
) -> "PanelView | LineView":
    """Return a panel for a terminal that can move its cursor, else lines.

    Args:
        console: Where it is shown.
        title: Of the panel.
        details: Lines at its top.
        interval: Seconds between two log lines.
        start: The reading that rates start from; `None` if nothing happened before.
    """
    if console.is_terminal and not console.is_dumb_terminal:
        return PanelView(console, title, details, start)
    return LineView(interval, start)


class LineView:
    """Print one line for each reading, made of `name=value`, for logs and pipes."""

    def __init__(self, interval: float, start: Reading | None = None) -> None:
        self.interval = interval
        self._recent = History(1)
        self._recent.add(start or Reading(0.0))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, reading: Reading) -> None:
        """Print a line; rates are those since the line before."""
        self._recent.add(reading)
        server, stream = reading.server, reading.stream
        found: dict[str, object] = {}
        if stream is not None:
            rates = self._recent.rates(stream, 0.0)
            found |= {"samples": stream.samples, "samples/s": f"{rates['samples']:.0f}"}
            found["MB/s"] = f"{rates['bytes'] / 1e6:.2f}"
        found["connections"] = server.connections
        if stream is not None:
            found |= {"fill": f"{stream.fill:.2f}", "blocked": f"{rates['blocked']:.2f}"}
            found |= {"reconnects": server.reconnects, "duplicates": server.duplicates}
        found["refused"] = sum(server.refused.values())
        found |= {f"refused.{code}": many for code, many in sorted(server.refused.items())}
        for table in reading.tables:
            rates = self._recent.rates(table, 0.0)
            numbers = {"size": table.items, "inserts": table.inserts, "samples": table.samples}
            numbers |= {f"{name}/s": round(rates[name]) for name in ("inserts", "samples")}
            numbers["inserts_waiting"] = table.insert.waiting
            numbers["samples_waiting"] = table.sample.waiting
            found |= {f"{word(table.name)}.{name}": value for name, value in numbers.items()}
        for rollouts in reading.rollouts:
            rates = self._recent.rates(rollouts, 0.0)
            names = ("version", "running", "ready", "delivered")
            numbers = {name: getattr(rollouts, name) for name in names}
            numbers |= {f"{name}/s": round(rates[name]) for name in ("delivered", "tokens")}
            numbers |= {f"{name}s_waiting": one.waiting for name, one in rollouts.sides.items()}
            found |= {f"{word(rollouts.name)}.{name}": value for name, value in numbers.items()}
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        say(" ".join([now, *(f"{name}={value}" for name, value in found.items())]))


def word(name: str) -> str:
    """A table's name without what a line is split at: spaces and equal signs."""
    return re.sub(r"[\s=]", "_", name)


class PanelView:
    """Draw a panel, updated four times a second; the last one stays on the screen."""

    interval = 0.25
    # Rates are those of this many seconds.
    WINDOW = 1.0

    def __init__(
        self, console: Console, title: str, details: list[str], start: Reading | None = None
    ) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._details = details
        self._recent = History(1)
        self._recent.add(start or Reading(0.0))

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, reading: Reading) -> None:
        """Redraw the panel."""
        self._recent.add(reading)
        self._live.update(self.render(reading), refresh=True)

    def render(self, reading: Reading) -> RenderableType:
        """Return the panel for one reading."""
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(ratio=1)
        stream, server = reading.stream, reading.server
        if stream is not None:
            rates = self._recent.rates(stream, self.WINDOW)
            grid.add_row(
                "rate", f"{amount(rates['samples'])} samples/s", f"{size(rates['bytes'])}/s"
            )
            grid.add_row("total", f"{stream.samples:,d} samples", size(stream.bytes))
            grid.add_row("ring", f"{stream.fill:.0%} full", bar(stream.fill, "cyan"))
            blocked = rates["blocked"]
            grid.add_row("waiting for room", f"{blocked:.0%}", bar(blocked, "yellow"))
        since = f"{server.accepted:,d} since the start, {server.reconnects:,d} came back"
        grid.add_row("connections", f"{server.connections:,d}", since)
        why = ", ".join(f"{many:,d} {code}" for code, many in sorted(server.refused.items()))
        grid.add_row("refused", f"{sum(server.refused.values()):,d}", why)
        parts: list[RenderableType] = [*self._details, "", grid]
        if reading.tables:
            parts += ["", self._tables(reading)]
        if reading.rollouts:
            parts += ["", self._rollouts(reading)]
        return Panel(
            Group(*parts),
            title=self._title,
            subtitle=f"{duration(reading.age)} · Ctrl-C drains and ends",
            width=min(self._live.console.width, 96),
            padding=(1, 2),
        )

    def _tables(self, reading: Reading) -> Table:
        """Return a row for each table."""
        grid = rows(
            "table", "items", "most", "inserts", "/s", "waiting", "samples", "/s", "waiting"
        )
        for table in reading.tables:
            rates = self._recent.rates(table, self.WINDOW)
            inserts = (table.inserts, rates["inserts"], table.insert.waiting)
            samples = (table.samples, rates["samples"], table.sample.waiting)
            numbers = (table.items, table.max_items, *inserts, *samples)
            grid.add_row(escape(table.name), *map(amount, numbers))
        return grid

    def _rollouts(self, reading: Reading) -> Table:
        """Return a row for each rollout table."""
        headings = ("version", "running", "ready", "groups/s", "tokens/s", "waiting", "waiting")
        grid = rows("rollouts", *headings)
        for table in reading.rollouts:
            rates = self._recent.rates(table, self.WINDOW)
            producer, consumer = table.sides.values()
            grid.add_row(
                escape(table.name),
                amount(table.version),
                amount(table.running),
                f"{amount(table.ready)} of {amount(table.batch_groups)}",
                amount(rates["delivered"]),
                amount(rates["tokens"]),
                f"{producer.waiting} in",
                f"{consumer.waiting} out",
            )
        return grid


def rows(title: str, *headings: str) -> Table:
    """A table whose first column has names, and the others numbers."""
    grid = Table(box=None, pad_edge=False, expand=True, header_style="dim")
    grid.add_column(title, ratio=1, overflow="ellipsis", no_wrap=True)
    for heading in headings:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid


def bar(share: float, style: str) -> ProgressBar:
    """Return a bar from 0 to 1."""
    return ProgressBar(total=1.0, completed=share, complete_style=style, finished_style=style)
