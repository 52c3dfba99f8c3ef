"""The screen of one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from echoic.views.reading import TableReading
from echoic.views.terminal import sections
from echoic.views.terminal.table_screen import CHART_LINES, TableScreen

if TYPE_CHECKING:
    from echoic.views.terminal.moment import Moment

__all__ = ["Detail"]


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
