"""A running server for people: a live panel, or a line now and then.

Both views write to standard error, since standard output has the addresses for programs to read.
"""

import re
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from echoic.cli.console import say
from echoic.cli.text import amount, duration
from echoic.views.history import History
from echoic.views.reading import UNKNOWN, Reading, Thing

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
        stream = (reading.stream,) if reading.stream else ()
        for thing in (*stream, reading.server):
            for line in thing.lines(self._recent.rates(thing, self.WINDOW)):
                if line[1:] != UNKNOWN:
                    grid.add_row(*map(escape, line))
        parts: list[RenderableType] = [*self._details, "", grid]
        if reading.tables or reading.rollouts:
            parts += ["", self._tables([*reading.tables, *reading.rollouts])]
        return Panel(
            Group(*parts),
            title=self._title,
            subtitle=f"{duration(reading.age)} · Ctrl-C drains and ends",
            width=min(self._live.console.width, 96),
            padding=(1, 2),
        )

    def _tables(self, tables: Sequence[Thing]) -> Table:
        """Return a row for each table of any kind: rates and waiting calls of both sides."""
        grid = Table(box=None, pad_edge=False, expand=True, header_style="dim")
        grid.add_column("table", ratio=1, overflow="ellipsis", no_wrap=True)
        for heading in ("", "in/s", "waiting", "out/s", "waiting"):
            grid.add_column(heading, justify="right", no_wrap=True)
        for table in tables:
            rates = self._recent.rates(table, self.WINDOW)
            _, value, note = table.lines(rates)[0]
            sides = zip(table.FLOW, table.sides.values(), strict=True)
            cells = [
                (amount(rates[name]), f"{side.waiting:,d} {side.reason}") for name, side in sides
            ]
            grid.add_row(
                escape(table.name), f"{value} {note}", *(it for pair in cells for it in pair)
            )
        return grid
