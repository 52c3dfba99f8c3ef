"""The first screen: problems, the stream, tables of both kinds, connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Static

from echoic.cli.text import amount
from echoic.views.reading import RolloutReading, TableReading
from echoic.views.terminal import sections
from echoic.views.terminal.detail import LiveScreen, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from echoic.views.history import Client, History
    from echoic.views.monitor import Monitor

__all__ = ["LiveGrid", "Overview", "Things"]

Row: TypeAlias = "tuple[str, Sequence[Text | str]]"

# The most connections shown; more would slow down the terminal.
MOST_CONNECTIONS = 100
# Widths of columns. A table fits into 80 characters; `of late` gets the rest.
SHORTEST_NAME, LONGEST_NAME = 5, 30
WIDTHS = {"items": 13, "groups": 13, "ratio": 7, "version": 7, "rate": 12, "tokens": 12}
WIDTHS |= {"waiting": 11}
LATE = 11
CONNECTIONS = {"client": 24, "age": 6, "samples/s": 9, "bytes/s": 9, "waited": 7, "waits for": 11}
PEER = 21
SPACE = 2  # Around each cell.

# The orders of connections: a title and a sort key.
ORDERS: tuple[tuple[str, Callable[[Client], tuple[object, ...]]], ...] = (
    (
        "those that wait first",
        lambda it: (not it.connection.blocked_by, -it.blocked, it.connection.id),
    ),
    ("the fastest first", lambda it: (-it.samples, -it.bytes, it.connection.id)),
    ("the slowest first", lambda it: (it.samples, it.bytes, it.connection.id)),
    ("the oldest first", lambda it: (-it.connection.age,)),
    ("by name", lambda it: (it.connection.name or it.connection.peer, it.connection.id)),
)


class LiveGrid(DataTable["Text | str"]):
    """Rows with a cursor that stays with its row."""

    def __init__(self, *, lines: int, name: str) -> None:
        """Make an empty grid; `lines` is the height of a row."""
        super().__init__(cursor_type="row", id=name, classes="part")
        self._lines = lines
        self._columns: dict[str, int] = {}

    @property
    def chosen(self) -> str | None:
        """The key of the row with the cursor."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def show(self, columns: dict[str, int], rows: Sequence[Row]) -> None:
        """Show rows; each has a unique key and a cell for each column."""
        shown = [row.key.value for row in self.ordered_rows]
        if columns == self._columns and shown == [key for key, _ in rows]:
            for key, cells in rows:
                for title, cell in zip(columns, cells, strict=True):
                    self.update_cell(key, title, cell)
            return
        chosen, scrolled = self.chosen, self.scroll_y
        self.clear(columns=True)
        self._columns = columns
        for title, width in columns.items():
            self.add_column(title, width=width, key=title)
        for index, (key, cells) in enumerate(rows):
            self.add_row(*cells, key=key, height=self._lines)
            if key == chosen:
                self.move_cursor(row=index, scroll=False)
        self.scroll_to(y=scrolled, animate=False)


class Things(LiveGrid):
    """Tables of one kind, two lines each: in and out."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "select_cursor", "open table")]
    KIND: ClassVar[str]

    def refill(self, things: Sequence[TableReading | RolloutReading], history: History) -> None:
        """Show these tables."""
        every = [(thing, self.cells(thing, history.rates(thing))) for thing in things]
        middle = {title: WIDTHS[title] for title in every[0][1]} if every else {}
        room = self.scrollable_content_region.width - sum(middle.values())
        room -= (len(middle) + 2) * SPACE
        longest = max((len(thing.name) for thing in things), default=0)
        name = max(min(longest, LONGEST_NAME, room - LATE), SHORTEST_NAME)
        room = max(room - name, LATE)
        rows: list[Row] = []
        for thing, cells in every:
            lines = [
                sections.sparkline(history.series(thing, series, room), room)
                for series in thing.CHARTS[0].lines.values()
            ]
            late = Text("\n".join(lines), "cyan")
            rows.append((thing.name, (_title(thing, name), *cells.values(), late)))
        self.show({"table": name, **middle, "of late": room}, rows)

    def cells(
        self, thing: TableReading | RolloutReading, rates: Mapping[str, float]
    ) -> dict[str, Text]:
        """Make the cells in the middle, by the names of their columns."""
        waiting = Text("\n").join(
            Text.assemble(f"{side.waiting:,d} ", (side.reason or "waits", sections.STYLES["stuck"]))
            if side.waiting
            else Text(f"0 {side.reason}", "dim")
            for side in thing.sides.values()
        )
        come, go = thing.CHARTS[0].lines.values()
        rate = Text(f"in  {amount(rates[come])}/s\nout {amount(rates[go])}/s")
        if isinstance(thing, TableReading):
            target = "" if thing.target_ratio is None else f"of {amount(thing.target_ratio)}"
            items = f"{amount(thing.items)} ({thing.fill:.0%})\nof {amount(thing.capacity)}"
            ratio = Text(f"{amount(thing.ratio)}\n{target}")
            return {"items": Text(items), "ratio": ratio, "rate": rate, "waiting": waiting}
        ready = f"{amount(thing.ready)} of {amount(thing.batch_groups)} ready"
        lag = "" if thing.lag_oldest is None else f"lag {amount(thing.lag_oldest)}"
        version = Text(f"{amount(thing.version)}\n{lag}")
        groups = Text(f"{amount(thing.running)} running\n{ready}")
        return {"groups": groups, "version": version, "tokens": rate, "waiting": waiting}


class Tables(Things):
    """The tables."""

    KIND: ClassVar[str] = TableReading.KIND


class Rollouts(Things):
    """The rollout tables."""

    KIND: ClassVar[str] = RolloutReading.KIND


def _title(thing: TableReading | RolloutReading, width: int) -> Text:
    """Return a name, of which a long one continues in the second line if that is free."""
    begin, rest = thing.name[:width], thing.name[width:]
    title = Text(f"{begin}\n", "bold", no_wrap=True, overflow="ellipsis")
    if thing.paused:
        return title.append("PAUSED", sections.STYLES["slow"])
    return title.append(rest if len(rest) <= width else f"…{rest[1 - width :]}")


class Connections(LiveGrid):
    """The connections, in a chosen order."""

    order = 0

    def refill(self, history: History, count: int) -> None:
        """Show the connections; `count` is their number, which may exceed those known."""
        title, key = ORDERS[self.order]
        known = sorted(history.clients(), key=key)
        more = f", {MOST_CONNECTIONS} shown" if len(known) > MOST_CONNECTIONS else ""
        noun = "connection" if count == 1 else "connections"
        self.border_title = f"{count:,d} {noun}{more}, {title}"
        columns = dict(CONNECTIONS)
        # The client's address, if there is room.
        taken = sum(width + SPACE for width in columns.values())
        if self.scrollable_content_region.width >= taken + PEER + SPACE:
            columns["from"] = PEER
        self.show(columns, [self._row(one, columns) for one in known[:MOST_CONNECTIONS]])

    def _row(self, client: Client, columns: dict[str, int]) -> Row:
        styles = {"waits for": sections.STYLES["stuck"]}
        right = ("samples/s", "bytes/s", "waited")
        cells = [
            Text(
                cell,
                styles.get(name, ""),
                justify="right" if name in right else None,
                no_wrap=True,
                overflow="ellipsis",
            )
            for name, cell in client.cells().items()
            if name in columns
        ]
        return f"{client.connection.address} {client.connection.id}", cells


class Overview(LiveScreen):
    """An overview of a server."""

    # `draw` focuses the first list that is not empty.
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        ("tab", "app.focus_next", "next list"),
        ("s", "sort", "sort"),
    ]

    def __init__(self, monitor: Monitor) -> None:
        super().__init__(monitor)
        # Attributes rather than looked up by id: readings also come while a screen is mounted or
        # removed.
        self._header = Static(id="header")
        self._problems = Static()
        self._stream = Part("stream", "stream")
        self._tables = Tables(lines=2, name="tables")
        self._rollouts = Rollouts(lines=2, name="rollouts")
        self._gauges = Part("gauges", "reported by the program")
        self._connections = Connections(lines=1, name="connections")
        self._tables.border_title = "tables"
        self._rollouts.border_title = "rollout tables"

    def compose(self) -> ComposeResult:
        """Stack the parts."""
        yield self._header
        with VerticalScroll(id="problems", classes="part") as problems:
            problems.border_title = "problems"
            yield self._problems
        yield from (self._stream, self._tables, self._rollouts, self._gauges, self._connections)
        yield Footer(show_command_palette=False)

    def draw(self, monitor: Monitor) -> None:
        """Fill the parts."""
        history = monitor.history
        self._header.update(sections.header(monitor))
        self._problems.update(sections.problem_list(monitor))
        reading = history.last
        self._stream.display = bool(reading and reading.stream)
        self._tables.display = bool(reading and reading.tables)
        self._rollouts.display = bool(reading and reading.rollouts)
        self._gauges.display = bool(reading and reading.gauges)
        if reading is None:
            return
        if reading.stream:
            width = max(self.size.width - 4, 20)
            self._stream.update(sections.stream(reading.stream, history, width))
        self._tables.refill(reading.tables, history)
        self._rollouts.refill(reading.rollouts, history)
        gauges = [
            ((f"{name} ", "dim"), (f"{it:.4g}  ", "bold")) for name, it in reading.gauges.items()
        ]
        self._gauges.update(Text.assemble(*(words for pair in gauges for words in pair)))
        self._connections.refill(history, reading.server.connections)
        if self.focused is None or not self.focused.display:
            lists = (one for one in (self._tables, self._rollouts) if one.display)
            next(lists, self._connections).focus()

    def action_sort(self) -> None:
        """Change the order of the connections."""
        self._connections.order = (self._connections.order + 1) % len(ORDERS)
        self.redraw()
