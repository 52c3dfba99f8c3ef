"""The parts of a screen, each as text that fits into its width.

Colours are the sixteen of the terminal, on its own background, so that they suit light and dark
ones; where a colour carries a meaning it is behind a word, since some yellows can't be read on
white.
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
# More producers than can be read would only make the terminal slow.
MOST_SOURCES = 50


def header(monitor: Monitor) -> Text:
    """Which server is watched, and whether what is shown is of now."""
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
    """What is wrong, or that nothing is; of one subject if it is given."""
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
    """Two columns, the second as wide as there is room."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style=style)
    grid.add_column(ratio=1)
    return grid


def stream(reading: StreamReading, history: History, width: int) -> RenderableType:
    """The stream, in three lines."""
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
    """A rate over the last minutes."""
    drawn = history.series(thing, name)
    most = f"  at most {amount(max(drawn, default=0.0))}/s"
    title = Text.assemble((f"{amount(history.rates(thing)[name])}/s", "bold"), (most, "dim"))
    lines = chart(drawn, width, height, most=history.length)
    return Group(title, Text("\n".join(lines), "cyan", no_wrap=True))


def numbers(lines: Iterable[Line]) -> RenderableType:
    """All numbers of a thing."""
    grid = _grid("dim")
    for label, value, note in lines:
        grid.add_row(f"{label} ", Text.assemble(value, (f"  {note}", "dim")))
    return grid


def bars(histograms: list[tuple[str, list[tuple[str, float]]]], width: int) -> RenderableType:
    """Histograms, below each other."""
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
    """What was counted for each producer of a rollout table."""
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
