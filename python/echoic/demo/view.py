"""What a person sees while it runs: a live panel, or plain lines where none can be.

A view only reads. Both are called after every batch and decide themselves how often to
draw, so that watching costs the learner next to nothing.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from echoic.demo.progress import EPISODES, Progress

if TYPE_CHECKING:
    from types import TracebackType

    import echoic
    from echoic.demo.progress import Flow

HIGHEST_RETURN = 500.0
BLOCKS = "▁▂▃▄▅▆▇█"
# So many connections are shown one by one.
CONNECTIONS = 8


class View(Protocol):
    """Shows progress between `__enter__` and `__exit__`."""

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def update(self, progress: Progress, info: echoic.StreamStats, flows: list[Flow]) -> None:
        """Draw, if it is time to."""
        ...


def choose_view(console: Console, budget: int, target: float) -> View:
    """A live view for a terminal that can move its cursor, else plain lines."""
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return LiveView(console, budget, target)
    return PlainView()


class PlainView:
    """A line every few seconds, for logs and pipes."""

    INTERVAL = 2.0

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, progress: Progress, info: echoic.StreamStats, flows: list[Flow]) -> None:
        """Print a line, if the last one is old enough."""
        if progress.seconds < self._next:
            return
        self._next = progress.seconds + self.INTERVAL
        tick = progress.ticks[-1]
        traffic = f"{info.blocked_pushes:6d} blocked pushes"
        if flows:
            rates = [flow.rate for flow in flows]
            traffic = f"{len(flows)} connections, {min(rates):,.0f} to {max(rates):,.0f} steps/s"
        print(
            f"{tick.seconds:6.1f} s  {tick.steps:9,d} steps"
            f"  {progress.rate(tick.seconds):8,.0f} steps/s"
            f"  {len(progress.ticks):5d} batches"
            f"  lag {tick.lag_mean:.1f} (max {tick.lag_max})"
            f"  mean return {tick.mean_return:6.1f}  {traffic}",
            flush=True,
        )


class LiveView:
    """A panel that is drawn anew a few times a second, and stays when all is over."""

    INTERVAL = 0.1

    def __init__(self, console: Console, budget: int, target: float) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._budget = budget
        self._target = target
        self._next = 0.0
        self._latest: tuple[Progress, echoic.StreamStats, list[Flow]] | None = None

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._latest:
            self._live.update(self.render(*self._latest))
        self._live.stop()

    def update(self, progress: Progress, info: echoic.StreamStats, flows: list[Flow]) -> None:
        """Draw the panel anew, if the last drawing is old enough."""
        self._latest = progress, info, flows
        if progress.seconds >= self._next:
            self._next = progress.seconds + self.INTERVAL
            self._live.update(self.render(progress, info, flows), refresh=True)

    def render(
        self, progress: Progress, info: echoic.StreamStats, flows: list[Flow]
    ) -> RenderableType:
        """The panel for one moment."""
        columns = Table.grid(expand=True, padding=(0, 2))
        columns.add_column(ratio=3)
        columns.add_column(ratio=4)
        columns.add_row(self._training(progress), self._transport(info, flows))
        return Panel(
            Group(self._score(progress), Text(), columns, *self._connections(flows)),
            title="CartPole through Echoic",
            width=min(self._live.console.width, 96),
            padding=(1, 2),
        )

    def _score(self, progress: Progress) -> RenderableType:
        mean = progress.mean_return
        bars = Table.grid(expand=True, padding=(0, 2))
        bars.add_column(no_wrap=True)
        bars.add_column(no_wrap=True, justify="right")
        bars.add_column(ratio=1)
        bars.add_row(
            "return",
            f"[bold]{mean:.1f}[/] of {self._target:g}",
            ProgressBar(
                total=self._target,
                completed=0 if math.isnan(mean) else mean,
                complete_style="green",
            ),
        )
        bars.add_row(
            "steps",
            f"{progress.steps:,d} of {self._budget:,d}",
            ProgressBar(total=self._budget, completed=progress.steps, complete_style="cyan"),
        )
        curve = sparkline([tick.mean_return for tick in progress.ticks], 50)
        bars.add_row("", f"last {EPISODES} episodes", Text(curve, style="green"))
        return bars

    def _training(self, progress: Progress) -> RenderableType:
        tick = progress.ticks[-1]
        return rows(
            "Training",
            ("time", f"{tick.seconds:.1f} s"),
            ("throughput", f"{progress.rate(tick.seconds):,.0f} steps/s"),
            ("batches", f"{len(progress.ticks):,d}"),
            ("episodes", f"{tick.episodes:,d}"),
            ("lag, mean", f"{tick.lag_mean:.1f} versions"),
            ("lag, largest", f"{tick.lag_max} versions"),
        )

    def _connections(self, flows: list[Flow]) -> list[RenderableType]:
        """What each connection brings; nothing where there are only threads."""
        if not flows:
            return []
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        table.add_row("[bold]Connections[/]", "[dim]throughput[/]", "[dim]waited for room[/]")
        for flow in flows[:CONNECTIONS]:
            table.add_row(
                f"[dim]{flow.peer}[/]", f"{flow.rate:,.0f} steps/s", f"{flow.blocked:.0%}"
            )
        more = len(flows) - CONNECTIONS
        if more > 0:
            table.add_row(f"[dim]and {more} more[/]")
        return [Text(), table, Text(f"to {flows[0].address}", style="dim")]

    def _transport(self, info: echoic.StreamStats, flows: list[Flow]) -> RenderableType:
        # Only threads push; who comes through a door waits at its own end.
        pushes = [] if flows else [("blocked pushes", f"{info.blocked_pushes:,d}")]
        return rows(
            "Echoic",
            ("rollouts in", f"{info.inserted_total:,d}"),
            ("stored now", f"{info.store_size} of {info.capacity}"),
            *pushes,
            ("learner waited", f"{info.sample_wait_time:.1f} s"),
            ("", "[dim]p50 / p99[/]"),
            ("submit to available", quantiles(info.submit_to_available)),
            ("copy", quantiles(info.copy_time)),
            ("batch held", quantiles(info.hold_time)),
        )


def rows(title: str, *pairs: tuple[str, str]) -> Table:
    """A small table of names and values."""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(f"[bold]{title}[/]", "")
    for name, value in pairs:
        table.add_row(f"[dim]{name}[/]", value)
    return table


def quantiles(histogram: echoic.Histogram) -> str:
    """The middle and the slow end of a histogram of seconds."""
    if histogram.count == 0:
        return "-"
    return f"{duration(histogram.p50)} / {duration(histogram.p99)}"


def duration(seconds: float) -> str:
    """A time with the unit in which it has few digits."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def sparkline(values: list[float], width: int) -> str:
    """Returns as a row of blocks, the latest at the right end."""
    if len(values) > width:
        values = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    top = len(BLOCKS) - 1
    return "".join(
        BLOCKS[min(int(value / HIGHEST_RETURN * top + 0.5), top)]
        for value in values
        if not math.isnan(value)
    )
