"""The screen of one rollout table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from echoic.views import flows
from echoic.views.rollout_reading import RolloutReading
from echoic.views.terminal import rollout_sections, sections
from echoic.views.terminal.table_screen import CHART_LINES, TableScreen

if TYPE_CHECKING:
    from echoic.views.terminal.moment import Moment

__all__ = ["RolloutDetail"]


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
