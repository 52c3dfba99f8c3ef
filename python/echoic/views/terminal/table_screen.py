"""The screens of one table: of one with items, and of one with rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.screen import Screen
from textual.widgets import Footer, Static

from echoic.views import flows
from echoic.views.reading import TableReading
from echoic.views.rollout_reading import RolloutReading
from echoic.views.terminal import rollout_sections, sections

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from echoic.views.terminal.looker import Moment

__all__ = ["CHART_LINES", "Detail", "RolloutDetail", "TableScreen"]

CHART_LINES = 3

_Table = TypeVar("_Table")


class TableScreen(Screen[None], Generic[_Table]):
    """All that is known of a table; each kind says which parts there are, and fills them."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "back")]
    #: What the table is called in titles.
    KIND: ClassVar[str]

    def __init__(self, moment: Moment, table: str, parts: dict[str, str]) -> None:
        """Show the table of this name whenever `redraw` is called; parts by name, with titles."""
        super().__init__()
        self._moment = moment
        self._table = table
        # Kept here for the same reason as in the first screen.
        self._header = Static(id="header")
        self._problems = Static(id="problems")
        self._parts = {name: Static(id=name) for name in parts}
        # What is in a name is not markup.
        self._problems.border_title = escape(self._called)
        for name, title in parts.items():
            self._parts[name].border_title = title

    @property
    def _called(self) -> str:
        return f"{self.KIND} {self._table!r}"

    def find(self) -> _Table | None:
        """The table, if the server has it still."""
        raise NotImplementedError

    def fill(self, table: _Table, width: int) -> None:
        """Show the table in the parts."""
        raise NotImplementedError

    def show(self, name: str, content: Any, shown: bool = True) -> None:
        """Put something into a part, or hide the part."""
        self._parts[name].display = shown
        self._parts[name].update(content)

    def compose(self) -> ComposeResult:
        """Put the parts below each other, in one page that scrolls."""
        yield self._header
        with VerticalScroll(id="page"):
            yield self._problems
            yield from self._parts.values()
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Show the table as soon as the screen is there."""
        self.redraw()

    def on_resize(self) -> None:
        """Make use of the room."""
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Show what there is now."""
        self._header.update(sections.header(self._moment))
        table = self.find()
        if table is None:
            for part in self._parts.values():
                part.display = False
            self._problems.update(Text("the server has no such table any more"))
            return
        self._problems.update(sections.problem_list(self._moment, self._called))
        self.fill(table, max(self.size.width - 4, 20))


class Detail(TableScreen[TableReading]):
    """All that is known of a table."""

    KIND: ClassVar[str] = "table"

    def __init__(self, moment: Moment, table: str) -> None:
        """Show the table of this name."""
        span = sections.age(moment.interval * moment.history.length)
        parts = {
            "inserts": f"inserts of the last {span}",
            "samples": f"samples of the last {span}",
            "numbers": "numbers",
            "histograms": "histograms",
        }
        super().__init__(moment, table, parts)

    def find(self) -> TableReading | None:
        """The table, if the server has it still."""
        last = self._moment.history.last
        return last.table(self._table) if last else None

    def fill(self, table: TableReading, width: int) -> None:
        """Show the table in the parts."""
        history = self._moment.history
        self.show(
            "inserts", sections.table_flow(history, table.name, "inserts", width, CHART_LINES)
        )
        self.show(
            "samples", sections.table_flow(history, table.name, "samples", width, CHART_LINES)
        )
        self.show("numbers", sections.numbers(table))
        counted = bool(table.times_sampled or table.priorities or table.lags)
        self.show("histograms", sections.histograms(table, width), counted)


class RolloutDetail(TableScreen[RolloutReading]):
    """All that is known of a rollout table."""

    KIND: ClassVar[str] = "rollout table"

    def __init__(self, moment: Moment, table: str) -> None:
        """Show the rollout table of this name."""
        span = sections.age(moment.interval * moment.history.length)
        parts = {
            "tokens": f"tokens that came, of the last {span}",
            "delivered": f"tokens delivered, of the last {span}",
            "numbers": "numbers",
            "sources": "sources",
        }
        super().__init__(moment, table, parts)

    def find(self) -> RolloutReading | None:
        """The table, if the server has it still."""
        last = self._moment.history.last
        return last.rollout(self._table) if last else None

    def fill(self, table: RolloutReading, width: int) -> None:
        """Show the table in the parts."""
        history = self._moment.history
        come = flows.rollouts(table.name, "tokens")
        go = flows.rollouts(table.name, "delivered_tokens")
        for part, counter in (("tokens", come), ("delivered", go)):
            self.show(part, sections.flow_chart(history, counter, "tokens", width, CHART_LINES))
        flow = flows.rollout(table.name, history)
        self.show("numbers", rollout_sections.numbers(table, flow))
        self.show("sources", rollout_sections.sources(table), bool(table.sources))
