"""Render the parts of a screen as text that fits its width.

Colours are the terminal's sixteen on its own background, to suit light and dark terminals. A colour
with a meaning is the background of a word, since some yellows can't be read on white.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from echoic.cli.text import age, amount, size
from echoic.views.reading import SourceReading
from echoic.views.terminal.charts import bar, chart, sparkline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from echoic.views.history import History
    from echoic.views.monitor import Monitor
    from echoic.views.reading import Line, StreamReading, Thing

__all__ = ["bars", "flow", "header", "numbers", "problem_list", "sources", "stream"]

STYLES = {
    "away": "bold white on red",
    "stuck": "bold white on red",
    "slow": "black on yellow",
    "note": "reverse dim",
    "ok": "reverse green",
}
BAR = 20
# The most producers shown; more would slow down the terminal.
MOST_SOURCES = 50


def header(monitor: Monitor) -> Text:
    """Show the server's address, and whether the numbers are current."""
    state, style = ("PAUSED", "slow") if monitor.paused else ("LIVE", "ok")
    if monitor.away:
        state, style = "AWAY", "away"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f" {state} ", STYLES[style]).append(f" {monitor.address}", "bold")
    last = monitor.history.last
    if last is not None:
        text.append(f"  echoic {last.release}  up {age(last.age)}", "dim")
    return text


def problem_list(monitor: Monitor, subject: str | None = None) -> RenderableType:
    """Show the problems of the server, or of one subject."""
    rows = [
        one for one in monitor.problems() if subject in {None, one.subject} or one.level == "away"
    ]
    if not rows:
        if monitor.history.last is None:
            return Text("waiting for the first answer", "dim")
        return Text.assemble((" OK ", STYLES["ok"]), " nothing is stuck")
    grid = _grid()
    for one in rows:
        words = Text.assemble((one.subject, "bold"), f" ({one.reason}): {one.text}. ")
        words.append(f"→ {one.advice}", "italic")
        grid.add_row(Text(f" {one.level.upper()} ", STYLES[one.level]), words)
    return grid


def _grid(style: str = "") -> Table:
    """Make a grid of two columns, of which the second gets the rest of the width."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style=style)
    grid.add_column(ratio=1)
    return grid


def stream(reading: StreamReading, history: History, width: int) -> RenderableType:
    """Show the stream in three lines."""
    rates = history.rates(reading)
    rate = f"{amount(rates['samples']):>6} samples/s  {size(rates['bytes']):>8}/s  "
    room = max(width - len(rate), 0)
    lines = Text(no_wrap=True, overflow="ellipsis")
    lines.append(rate, "bold")
    lines.append(sparkline(history.series(reading, "samples", room), room), "cyan")
    lines.append(
        f"\nring {bar(reading.fill, BAR)} {reading.fill:4.0%}  batches of {reading.batch_size:,d}:"
        f" {reading.ready} ready, {reading.held} held, {reading.free} free"
        f"\nthe learner waited {rates['starved']:.0%} of the time, workers {rates['blocked']:.0%};"
        f" {amount(reading.samples)} samples so far"
    )
    return lines


def flow(thing: Thing, history: History, name: str, width: int, height: int) -> RenderableType:
    """Show a chart of a rate over the last minutes."""
    drawn = history.series(thing, name)
    most = f"  at most {amount(max(drawn, default=0.0))}/s"
    title = Text.assemble((f"{amount(history.rates(thing)[name])}/s", "bold"), (most, "dim"))
    lines = chart(drawn, width, height, most=history.length)
    return Group(title, Text("\n".join(lines), "cyan", no_wrap=True))


def numbers(lines: Iterable[Line]) -> RenderableType:
    """Show all numbers of a thing."""
    grid = _grid("dim")
    for label, value, note in lines:
        grid.add_row(f"{label} ", Text.assemble(value, (f"  {note}", "dim")))
    return grid


def bars(histograms: list[tuple[str, list[tuple[str, float]]]], width: int) -> RenderableType:
    """Show histograms below each other."""
    parts: list[RenderableType] = []
    for title, found in histograms:
        longest, most = max(len(label) for label, _ in found), max(many for _, many in found)
        room = max(width - longest - 12, 10)
        parts.append(Text(f"{title}\n" if not parts else f"\n{title}\n", "bold", end=""))
        for label, many in found:
            filled = max(round(many / most * room), int(many > 0)) if most else 0
            words = f" {label:<{longest}} {amount(many):>7} "
            parts.append(Text.assemble(words, ("█" * filled, "cyan")))
    return Group(*parts)


def sources(found: tuple[SourceReading, ...]) -> RenderableType:
    """Show the counts of each producer of a rollout table."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in SourceReading("").cells():
        grid.add_column(heading, justify="left" if heading == "source" else "right", max_width=30)
    for one in found[:MOST_SOURCES]:
        style = STYLES["slow"] if one.is_starving else ""
        grid.add_row(
            *(Text(cell, no_wrap=True, overflow="ellipsis") for cell in one.cells().values()),
            style=style,
        )
    return grid
