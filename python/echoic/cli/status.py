"""Show a running server: in a live panel, or in a line at intervals.

Both views turn readings into rates, and write to standard error, since standard output has the
addresses for programs to read.
"""

import re
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from echoic.cli.console import say
from echoic.cli.text import amount, duration, size
from echoic.views import flows
from echoic.views.history import History
from echoic.views.reading import DoorsReading, Reading
from echoic.views.rollout_reading import Waits

__all__ = ["LineView", "PanelView", "View", "choose_view"]


class View(Protocol):
    """Show readings between `__enter__` and `__exit__`."""

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
        # Rates are since the line before.
        self._recent = History(2)
        self._recent.add(start or Reading(0.0))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, reading: Reading) -> None:
        """Print a line."""
        self._recent.add(reading)
        doors = reading.doors
        refused = "".join(f" refused.{code}={n}" for code, n in sorted(doors.refused.items()))
        words = [time.strftime("%Y-%m-%dT%H:%M:%S")]
        if reading.stream is not None:
            rates = flows.stream(self._recent, 0.0)
            words.append(
                f"samples={reading.stream.samples}"
                f" samples/s={rates.samples:.0f} MB/s={rates.bytes / 1e6:.2f}"
                f" connections={doors.connections} fill={reading.stream.fill:.2f}"
                f" blocked={rates.blocked:.2f} reconnects={doors.reconnects}"
                f" duplicates={doors.duplicates}"
            )
        else:
            words.append(f"connections={doors.connections}")
        words.append(f"refused={sum(doors.refused.values())}{refused}")
        for table in reading.tables:
            inserts = self._recent.rate(flows.table(table.name, "inserts"), 0.0)
            samples = self._recent.rate(flows.table(table.name, "samples"), 0.0)
            # A name may be any text; lines are split at spaces and equal signs.
            name = re.sub(r"[\s=]", "_", table.name)
            words.append(
                f"{name}.size={table.items}"
                f" {name}.inserts={table.inserts} {name}.inserts/s={inserts:.0f}"
                f" {name}.inserts_waiting={table.insert.waiting}"
                f" {name}.samples={table.samples} {name}.samples/s={samples:.0f}"
                f" {name}.samples_waiting={table.sample.waiting}"
            )
        for rollouts in reading.rollouts:
            flow = flows.rollout(rollouts.name, self._recent, 0.0)
            name = re.sub(r"[\s=]", "_", rollouts.name)
            words.append(
                f"{name}.version={rollouts.version} {name}.running={rollouts.running}"
                f" {name}.ready={rollouts.ready} {name}.delivered={rollouts.delivered}"
                f" {name}.delivered/s={flow.delivered:.0f} {name}.tokens/s={flow.tokens:.0f}"
                f" {name}.producers_waiting={calls(rollouts.producers)}"
                f" {name}.consumers_waiting={calls(rollouts.consumers)}"
            )
        say(" ".join(words))


class PanelView:
    """Draw a panel, updated four times a second; the last one stays on the screen."""

    interval = 0.25
    # Seconds that rates are averaged over; over less they would change too fast to read.
    WINDOW = 1.0

    def __init__(
        self, console: Console, title: str, details: list[str], start: Reading | None = None
    ) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._details = details
        self._recent = History(2 + int(self.WINDOW / self.interval))
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
        stream, doors = reading.stream, reading.doors
        if stream is not None:
            rates = flows.stream(self._recent, self.WINDOW)
            grid.add_row("rate", f"{amount(rates.samples)} samples/s", f"{size(rates.bytes)}/s")
            grid.add_row("total", f"{stream.samples:,d} samples", size(stream.bytes))
            grid.add_row("ring", f"{stream.fill:.0%} full", bar(stream.fill, "cyan"))
            grid.add_row("waiting for room", f"{rates.blocked:.0%}", bar(rates.blocked, "yellow"))
        grid.add_row(
            "connections",
            f"{doors.connections:,d}",
            f"{doors.accepted:,d} since the start, {doors.reconnects:,d} came back",
        )
        grid.add_row("refused", f"{sum(doors.refused.values()):,d}", reasons(doors))
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
        grid = Table(box=None, pad_edge=False, expand=True, header_style="dim")
        grid.add_column("table", ratio=1, overflow="ellipsis", no_wrap=True)
        for heading in ("items", "most", "inserts", "/s", "waiting", "samples", "/s", "waiting"):
            grid.add_column(heading, justify="right", no_wrap=True)
        for table in reading.tables:
            inserts = self._recent.rate(flows.table(table.name, "inserts"), self.WINDOW)
            samples = self._recent.rate(flows.table(table.name, "samples"), self.WINDOW)
            grid.add_row(
                escape(table.name),
                amount(table.items),
                amount(table.max_items),
                amount(table.inserts),
                amount(inserts),
                amount(table.insert.waiting),
                amount(table.samples),
                amount(samples),
                amount(table.sample.waiting),
            )
        return grid

    def _rollouts(self, reading: Reading) -> Table:
        """Return a row for each rollout table."""
        grid = Table(box=None, pad_edge=False, expand=True, header_style="dim")
        grid.add_column("rollouts", ratio=1, overflow="ellipsis", no_wrap=True)
        for heading in ("version", "made", "ready", "groups/s", "tokens/s", "waiting", "waiting"):
            grid.add_column(heading, justify="right", no_wrap=True)
        for table in reading.rollouts:
            flow = flows.rollout(table.name, self._recent, self.WINDOW)
            grid.add_row(
                escape(table.name),
                amount(table.version),
                amount(table.running),
                f"{amount(table.ready)} of {amount(table.batch_groups)}",
                amount(flow.delivered),
                amount(flow.tokens),
                f"{calls(table.producers)} in",
                f"{calls(table.consumers)} out",
            )
        return grid


def calls(side: dict[str, Waits]) -> int:
    """Return how many calls of one side of a rollout table wait now."""
    return sum(waits.waiting for waits in side.values())


def bar(share: float, style: str) -> ProgressBar:
    """Return a bar from 0 to 1."""
    return ProgressBar(total=1.0, completed=share, complete_style=style, finished_style=style)


def reasons(doors: DoorsReading) -> str:
    """List why connections were refused."""
    return ", ".join(f"{count:,d} {code}" for code, count in sorted(doors.refused.items()))
