"""The screen of one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.screen import Screen
from textual.widgets import Footer, Static

from echoic.views.terminal import sections

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from echoic.views.terminal.moment import Moment

__all__ = ["Detail"]

CHART_LINES = 3


class Detail(Screen[None]):
    """All that is known of a table."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "back")]

    def __init__(self, moment: Moment, table: str) -> None:
        """Show the table of this name whenever `redraw` is called."""
        super().__init__()
        self._moment = moment
        self._table = table
        # Kept here for the same reason as in the first screen.
        self._header = Static(id="header")
        self._problems = Static(id="problems")
        self._inserts = Static(id="inserts")
        self._samples = Static(id="samples")
        self._numbers = Static(id="numbers")
        self._histograms = Static(id="histograms")
        span = sections.age(moment.interval * moment.history.length)
        # What is in a name is not markup.
        self._problems.border_title = escape(f"table {table!r}")
        self._inserts.border_title = f"inserts of the last {span}"
        self._samples.border_title = f"samples of the last {span}"
        self._numbers.border_title = "numbers"
        self._histograms.border_title = "histograms"

    def compose(self) -> ComposeResult:
        """Put the parts below each other, in one page that scrolls."""
        yield self._header
        with VerticalScroll(id="page"):
            yield self._problems
            yield self._inserts
            yield self._samples
            yield self._numbers
            yield self._histograms
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Show the table as soon as the screen is there."""
        self.redraw()

    def on_resize(self) -> None:
        """Make use of the room."""
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Show what there is now."""
        moment, history = self._moment, self._moment.history
        self._header.update(sections.header(moment))
        table = history.last.table(self._table) if history.last else None
        for part in (self._inserts, self._samples, self._numbers):
            part.display = table is not None
        self._histograms.display = bool(
            table and (table.times_sampled or table.priorities or table.lags)
        )
        if table is None:
            self._problems.update(Text("the server has no such table any more"))
            return
        self._problems.update(sections.problem_list(moment, f"table {self._table!r}"))
        width = max(self.size.width - 4, 20)
        self._inserts.update(
            sections.table_flow(history, table.name, "inserts", width, CHART_LINES)
        )
        self._samples.update(
            sections.table_flow(history, table.name, "samples", width, CHART_LINES)
        )
        self._numbers.update(sections.numbers(table))
        self._histograms.update(sections.histograms(table, width))
