"""The parts of a screen that are about rollout tables, each as text that fits into its width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from echoic.cli.text import amount
from echoic.views.terminal import sections
from echoic.views.terminal.charts import bar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from echoic.views.flows import RolloutFlow
    from echoic.views.rollout_reading import RolloutReading, Waits

__all__ = ["numbers", "sources", "waiting"]

# More producers than anybody reads would only make the terminal slow.
MOST_SOURCES = 50


def waiting(side: dict[str, Waits]) -> Text:
    """How many calls wait, and what most of them wait for."""
    count = sum(waits.waiting for waits in side.values())
    if not count:
        return Text("0", "dim")
    most = max(side, key=lambda reason: side[reason].waiting)
    return Text.assemble(f"{count:,d} ", (most, sections.STYLES["stuck"]))


def _side(side: dict[str, Waits], of_late: dict[str, float]) -> Text:
    """For what calls waited, reason by reason."""
    words = Text()
    for reason, waits in sorted(side.items(), key=lambda pair: -pair[1].seconds):
        if words:
            words.append("\n")
        words.append(f"{reason:<9} ", "bold")
        words.append(f"{waits.waiting:,d} now, {of_late.get(reason, 0.0):.2g} of late,")
        words.append(f" {waits.seconds:,.1f} s so far")
    return words or Text("nobody ever waited")


def numbers(table: RolloutReading, flow: RolloutFlow) -> RenderableType:
    """All numbers of a rollout table."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    depth = "no bound" if table.depth is None else f"{table.depth} versions ahead"
    most = "no bound" if table.max_lag is None else f"at most {table.max_lag}"
    ready_lag = "" if table.ready_lag is None else f"; the oldest that is ready: {table.ready_lag}"
    for title, value in (
        ("version", f"{table.version:,d}; the next batch is for {table.target:,d}"),
        (
            "groups now",
            (
                f"{table.running:,d} are made ({table.suspended:,d} of them were left),"
                f" {table.ready:,d} ready, {table.leased:,d} leased"
            ),
        ),
        (
            "a batch",
            f"{table.batch_groups:,d} groups  {bar(table.fill, sections.BAR)} {table.fill:.0%}",
        ),
        (
            "room",
            (
                f"{table.room:,d} more may begin; {depth}, max_running"
                f" {table.max_running:,d}, capacity {table.capacity:,d}"
            ),
        ),
        ("versions old", f"{table.lags} ({most}){ready_lag}"),
        (
            "so far",
            (
                f"{table.submitted:,d} submitted = {table.running:,d} running + {table.accepted:,d}"
                f" accepted + {table.rejected:,d} rejected + {table.filtered:,d} filtered"
            ),
        ),
        (
            "let go of",
            (
                f"{table.stale:,d} too old, {table.expired:,d} with their reservation,"
                f" {table.removed:,d} removed"
            ),
        ),
        (
            "delivered",
            (
                f"{table.delivered:,d} groups in {table.batches:,d} batches,"
                f" {table.redelivered:,d} again, {table.lost:,d} lost, {table.overdue:,d} overdue;"
                f" {table.expired_leases:,d} leases ran out"
            ),
        ),
        ("groups per second", f"in {amount(flow.reserved)}, out {amount(flow.delivered)}"),
        ("producers waited", _side(table.producers, flow.producers)),
        ("consumers waited", _side(table.consumers, flow.consumers)),
        ("paused", "yes, on purpose: nothing is reserved or delivered" if table.paused else "no"),
    ):
        grid.add_row(title, value)
    return grid


def sources(table: RolloutReading) -> RenderableType:
    """What was counted for each producer."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    grid.add_column("source", no_wrap=True, overflow="ellipsis", max_width=30)
    for heading in ("submitted", "made now", "accepted", "rejected", "filtered", "tokens"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("waits", no_wrap=True)
    for one in table.sources[:MOST_SOURCES]:
        counts = (one.submitted, one.running, one.accepted, one.rejected, one.filtered, one.tokens)
        waits = Text(f"{one.waiting:,d} for {sections.age(one.waited)}" if one.waiting else "")
        if one.is_starving:
            waits.stylize(sections.STYLES["slow"])
        grid.add_row(Text(one.name or "(no name)"), *map(amount, counts), waits)
    return grid
