"""The screen of one rollout table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.screen import Screen
from textual.widgets import Footer, Static

from echoic.views import flows
from echoic.views.terminal import rollout_sections, sections

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from echoic.views.terminal.moment import Moment

__all__ = ["RolloutDetail"]

CHART_LINES = 3


class RolloutDetail(Screen[None]):
    """All that is known of a rollout table."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "back")]

    def __init__(self, moment: Moment, table: str) -> None:
        """Show the rollout table of this name whenever `redraw` is called."""
        super().__init__()
        self._moment = moment
        self._table = table
        # Kept here for the same reason as in the first screen.
        self._header = Static(id="header")
        self._problems = Static(id="problems")
        self._tokens = Static(id="tokens")
        self._delivered = Static(id="delivered")
        self._numbers = Static(id="numbers")
        self._sources = Static(id="sources")
        span = sections.age(moment.interval * moment.history.length)
        # What is in a name is not markup.
        self._problems.border_title = escape(f"rollout table {table!r}")
        self._tokens.border_title = f"tokens that came, of the last {span}"
        self._delivered.border_title = f"tokens delivered, of the last {span}"
        self._numbers.border_title = "numbers"
        self._sources.border_title = "sources"

    def compose(self) -> ComposeResult:
        """Put the parts below each other, in one page that scrolls."""
        yield self._header
        with VerticalScroll(id="page"):
            yield self._problems
            yield self._tokens
            yield self._delivered
            yield self._numbers
            yield self._sources
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
        table = history.last.rollout(self._table) if history.last else None
        for part in (self._tokens, self._delivered, self._numbers):
            part.display = table is not None
        self._sources.display = bool(table and table.sources)
        if table is None:
            self._problems.update(Text("the server has no such table any more"))
            return
        self._problems.update(sections.problem_list(moment, f"rollout table {self._table!r}"))
        width = max(self.size.width - 4, 20)
        come = flows.rollouts(table.name, "tokens")
        go = flows.rollouts(table.name, "delivered_tokens")
        self._tokens.update(sections.flow_chart(history, come, "tokens", width, CHART_LINES))
        self._delivered.update(sections.flow_chart(history, go, "tokens", width, CHART_LINES))
        flow = flows.rollout(table.name, history)
        self._numbers.update(rollout_sections.numbers(table, flow))
        self._sources.update(rollout_sections.sources(table))
