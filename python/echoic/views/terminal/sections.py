"""The parts of a screen, each as text that fits into its width.

Colours are the sixteen of the terminal, on its own background, so that they suit light and dark
ones; where a colour carries a meaning it is behind a word, since some yellows can't be read on
white.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from echoic.cli.text import amount, duration, size
from echoic.views import flows
from echoic.views.buckets import buckets
from echoic.views.problems import Problem, find_problems
from echoic.views.terminal.charts import bar, chart, sparkline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from rich.console import RenderableType

    from echoic.views.history import History
    from echoic.views.reading import Reading, Side, TableReading
    from echoic.views.terminal.looker import Away, Moment

__all__ = [
    "age",
    "flow_chart",
    "header",
    "histograms",
    "numbers",
    "problem_list",
    "stream",
    "table_flow",
    "told",
    "waiting",
]

STYLES = {
    "away": "bold white on red",
    "stuck": "bold white on red",
    "slow": "black on yellow",
    "note": "reverse dim",
}
MINUTE, HOUR, DAY = 60, 3600, 86_400
BAR = 20


def age(seconds: float) -> str:
    """How old something is, in the unit in which people say it."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def header(moment: Moment) -> Text:
    """Who is watched, and whether what is shown is of now."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if moment.away:
        text.append(" AWAY ", STYLES["away"])
    elif moment.paused:
        text.append(" PAUSED ", STYLES["slow"])
    else:
        text.append(" LIVE ", "reverse green")
    text.append(f" {moment.address}", "bold")
    last = moment.history.last
    if last is not None:
        text.append(f"  echoic {last.release}  up {age(last.age)}", "dim")
    return text


def problem_list(moment: Moment, subject: str | None = None) -> RenderableType:
    """What is wrong, or that nothing is.

    Args:
        moment: What there is to show.
        subject: What it must be about; anything if it is not given.
    """
    found = [
        problem
        for problem in find_problems(moment.history)
        if subject is None or problem.subject == subject
    ]
    rows = [_problem(problem) for problem in found]
    if moment.away:
        rows.insert(0, _away(moment.away, moment))
    if rows:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for badge, words in rows:
            grid.add_row(badge, words)
        return grid
    if moment.history.last is None:
        return Text("looking for the first time", "dim")
    return Text.assemble((" OK ", "reverse green"), " nothing is stuck")


def _problem(problem: Problem) -> tuple[Text, Text]:
    words = Text.assemble(
        (problem.subject, "bold"),
        f" ({problem.reason}): {problem.text}. ",
        (f"→ {problem.advice}", "italic"),
    )
    return Text(f" {problem.level.upper()} ", STYLES[problem.level]), words


def _away(away: Away, moment: Moment) -> tuple[Text, Text]:
    words = Text.assemble(
        ("the server", "bold"),
        f" has not answered since {away.clock}, for {age(away.seconds)}: {away.why}. ",
        (
            f"→ numbers are of before; this goes on looking every {duration(moment.interval)}",
            "italic",
        ),
    )
    return Text(" AWAY ", STYLES["away"]), words


def stream(history: History, width: int) -> RenderableType:
    """The stream, in three lines; nothing if there is none."""
    last = history.last
    if last is None or last.stream is None:
        return ""
    reading, flow = last.stream, flows.stream(history)
    rate = f"{amount(flow.samples):>6} samples/s  {size(flow.bytes):>8}/s  "
    room = max(width - len(rate), 0)
    lines = Text(no_wrap=True, overflow="ellipsis")
    lines.append(rate, "bold")
    lines.append(sparkline(history.rates(flows.stream_samples, room), room), "cyan")
    lines.append(f"\nring {bar(reading.fill, BAR)} {reading.fill:4.0%}  ")
    lines.append(
        f"batches of {reading.batch_size:,d}: {reading.ready} ready, {reading.held} held,"
        f" {reading.free} free"
    )
    lines.append(
        f"\nthe learner waited {flow.starved:.0%} of the time, workers {flow.blocked:.0%};"
        f" {amount(reading.samples)} samples so far"
    )
    return lines


def told(reading: Reading) -> Text:
    """What the server's program tells of itself, one after another."""
    lines = Text()
    for name, value in reading.told.items():
        lines.append(f"{name} ", "dim")
        lines.append(f"{value:.4g}  ", "bold")
    return lines


def waiting(side: Side) -> Text:
    """How many calls wait, and why; dim, why a call would have to wait."""
    if side.waiting:
        return Text.assemble(f"{side.waiting:,d} ", (side.reason or "waits", STYLES["stuck"]))
    return Text(f"0 {side.reason}", "dim")


def table_flow(
    history: History, name: str, counter: Literal["inserts", "samples"], width: int, height: int
) -> RenderableType:
    """The rate of inserts or samples over the last minutes."""
    return flow_chart(history, flows.table(name, counter), counter, width, height)


def flow_chart(
    history: History, count: flows.Counter, what: str, width: int, height: int
) -> RenderableType:
    """The rate at which something that is counted grew over the last minutes."""
    rates = history.rates(count)
    title = Text.assemble(
        (f"{amount(history.rate(count, flows.WINDOW))} {what}/s", "bold"),
        (f"  at most {amount(max(rates, default=0.0))}/s", "dim"),
    )
    lines = chart(rates, width, height, most=history.length)
    return Group(title, Text("\n".join(lines), "cyan", no_wrap=True))


def numbers(table: TableReading) -> RenderableType:
    """All numbers of a table."""
    target = "its limiter does not say how many there should be"
    if table.target_ratio is not None:
        target = f"its limiter holds it to {table.target_ratio:g}"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for title, value in (
        (
            "items",
            f"{table.items:,d} of {table.max_items:,d}  {bar(table.fill, BAR)} {table.fill:.0%}",
        ),
        (
            "so far",
            (
                f"{table.inserts:,d} inserts, {table.samples:,d} samples,"
                f" {table.deletions:,d} deletions"
            ),
        ),
        ("samples per insert", f"{table.ratio:.3g}; {target}"),
        ("first sample", f"when items are at least {table.min_items:,d}"),
        ("inserts", _side(table.insert)),
        ("samples", _side(table.sample)),
        ("paused", "yes, on purpose: inserts and samples wait" if table.paused else "no"),
        ("policy version", f"{table.version:,d}"),
        ("memory of rows", size(table.row_bytes)),
    ):
        grid.add_row(title, value)
    return grid


def _side(side: Side) -> Text:
    words = Text(f"calls waited {side.wait_seconds:,.1f} s so far, together; ")
    if side.waiting:
        return words.append_text(Text("now wait ")).append_text(waiting(side))
    if side.reason:
        return words.append(f"one would have to wait now ({side.reason})")
    return words.append("nobody waits now")


def histograms(table: TableReading, width: int) -> RenderableType:
    """Those histograms that there are."""
    parts: list[RenderableType] = []
    for title, counts in (
        ("items by how often they were sampled", table.times_sampled),
        ("items by priority", table.priorities),
        ("samples by how many versions old they were", table.lags),
    ):
        if counts:
            parts += [Text(title, "bold"), Padding(_histogram(counts, width), (0, 0, 1, 1))]
    return Group(*parts) if parts else ""


def _histogram(cumulative: dict[str, float], width: int) -> RenderableType:
    found = buckets(cumulative)
    most = max((bucket.count for bucket in found), default=0.0)
    labels: Sequence[str] = [bucket.label for bucket in found]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, width=max(map(len, labels), default=0))
    grid.add_column(no_wrap=True, justify="right", width=7)
    grid.add_column(no_wrap=True)
    room = max(width - max(map(len, labels), default=0) - 12, 10)
    for bucket in found:
        filled = round(bucket.count / most * room) if most else 0
        grid.add_row(
            bucket.label,
            amount(bucket.count),
            Text("█" * max(filled, int(bucket.count > 0)), "cyan"),
        )
    return grid
