"""Render the parts of a screen as text that fits its width; charts are block characters.

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from echoic.views.history import History
    from echoic.views.monitor import Monitor
    from echoic.views.reading import Line, StreamReading, Thing

__all__ = [
    "bar",
    "bars",
    "chart",
    "flow",
    "header",
    "numbers",
    "problem_list",
    "sources",
    "sparkline",
    "stream",
]

STYLES = {
    "away": "bold white on red",
    "stuck": "bold white on red",
    "slow": "black on yellow",
    "note": "reverse dim",
    "ok": "reverse green",
}
BAR = 20
BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1
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


def bar(share: float, width: int) -> str:
    """Draw a share from 0 to 1 as a bar of `width` characters."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    # Only 0 is drawn as empty, and only 1 as full.
    if 0 < share < 1:
        filled = min(max(filled, 1), max(width - 1, 1))
    return "█" * filled + "░" * (width - filled)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last values in a line, a character each, the newest at the right end."""
    return chart(values[-width:], width, 1)[0] if width > 0 else ""


def chart(values: Sequence[float], width: int, height: int, most: int = 0) -> list[str]:
    """Draw values as columns, the newest at the right end.

    The bottom is 0 and the top is the highest value: textual's own sparkline begins at the lowest
    value, where noise looks like a crash.

    Args:
        values: The values. Those that share a column are averaged.
        width: Characters in a line.
        height: Lines.
        most: The number of values that must fit, so that the scale of time stays as values are
            added.
    """
    each = max(-(-max(len(values), most) // width), 1)
    columns = [values[max(end - each, 0) : end] for end in range(len(values), 0, -each)]
    means = [sum(column) / len(column) for column in reversed(columns)]
    top = max(means, default=0.0)
    eighths = []
    for mean in means:
        share = mean / top if top > 0 else 0.0
        # Zero is drawn as a low block, unlike a missing value.
        eighths.append(max(round(share * EIGHTHS * height), 2 if mean > 0 else 1))
    lines = []
    for line in reversed(range(height)):
        drawn = (min(max(many - line * EIGHTHS, 0), EIGHTHS) for many in eighths)
        lines.append("".join(BLOCKS[level] for level in drawn).rjust(width))
    return lines
