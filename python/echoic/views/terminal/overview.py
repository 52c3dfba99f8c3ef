"""The first screen: what is wrong, the stream, tables of both kinds, the connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from echoic.cli.text import amount, size
from echoic.views import flows
from echoic.views.terminal import rollout_sections, sections
from echoic.views.terminal.charts import sparkline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from echoic.views.flows import ConnectionFlow
    from echoic.views.history import History
    from echoic.views.reading import Reading, TableReading
    from echoic.views.rollout_reading import RolloutReading
    from echoic.views.terminal.looker import Moment
    from echoic.watch import Connection

__all__ = ["Column", "LiveGrid", "Overview", "Row"]

Column: TypeAlias = tuple[str, int]
Row: TypeAlias = tuple[str, "Sequence[Text | str]"]


class LiveGrid(DataTable["Text | str"]):
    """Rows with a cursor that stays with its row."""

    def __init__(self, *, lines: int, name: str) -> None:
        """Make it empty; every row will have so many lines."""
        super().__init__(cursor_type="row", id=name)
        self._lines = lines
        self._columns: list[Column] = []

    @property
    def chosen(self) -> str | None:
        """The key of the row with the cursor."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def show(self, columns: list[Column], rows: Sequence[Row]) -> None:
        """Show these rows; each has a key of its own and a cell for each column."""
        shown = [row.key.value for row in self.ordered_rows]
        if columns == self._columns and shown == [key for key, _ in rows]:
            for key, cells in rows:
                for (title, _), cell in zip(columns, cells, strict=True):
                    self.update_cell(key, title, cell)
            return
        chosen, scrolled = self.chosen, self.scroll_y
        self.clear(columns=True)
        self._columns = columns
        for title, width in columns:
            self.add_column(title, width=width, key=title)
        for key, cells in rows:
            self.add_row(*cells, key=key, height=self._lines)
        for index, (key, _) in enumerate(rows):
            if key == chosen:
                self.move_cursor(row=index, scroll=False)
        self.scroll_to(y=scrolled, animate=False)


# More connections than anybody reads would only make the terminal slow.
MOST_CONNECTIONS = 100
# How wide columns are. All of a table fits into 80 characters; `of late` gets what is left.
SHORTEST_NAME, LONGEST_NAME = 5, 30
ITEMS, RATIO, RATE, WAITING, LATE = 13, 7, 12, 11, 11
CLIENT, PEER, AGE, COUNT, SHARE = 24, 21, 6, 9, 7
SPACE = 2  # Around each cell.

# How connections may be sorted: what it is called, and what comes first.
ORDERS: tuple[tuple[str, Callable[[Connection, ConnectionFlow], tuple[object, ...]]], ...] = (
    ("those that wait first", lambda one, flow: (not one.blocked_by, -flow.blocked, one.id)),
    ("the fastest first", lambda one, flow: (-flow.samples, -flow.bytes, one.id)),
    ("the slowest first", lambda one, flow: (flow.samples, flow.bytes, one.id)),
    ("the oldest first", lambda one, _: (-one.age,)),
    ("by name", lambda one, _: (one.name or one.peer, one.id)),
)


class Tables(LiveGrid):
    """The tables, two lines each: what comes in, and what goes out."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "select_cursor", "open table")]

    def refill(self, reading: Reading, history: History) -> None:
        """Show the tables of a reading."""
        room = self.scrollable_content_region.width - 6 * SPACE - ITEMS - RATIO - RATE - WAITING
        longest = max((len(table.name) for table in reading.tables), default=0)
        name = max(min(longest, LONGEST_NAME, room - LATE), SHORTEST_NAME)
        room = max(room - name, LATE)
        columns: list[Column] = [
            ("table", name),
            ("items", ITEMS),
            ("ratio", RATIO),
            ("rate", RATE),
            ("waiting", WAITING),
            ("of late", room),
        ]
        self.show(columns, [self._row(table, history, name, room) for table in reading.tables])

    def _row(self, table: TableReading, history: History, width: int, room: int) -> Row:
        insert, sample = (
            flows.table(table.name, "inserts"),
            flows.table(table.name, "samples"),
        )
        target = "" if table.target_ratio is None else f"of {amount(table.target_ratio)}"
        # A long name goes on in the second line, if that is free.
        begin, rest = table.name[:width], table.name[width:]
        rest = rest if len(rest) <= width else f"…{rest[1 - width :]}"
        title = Text(f"{begin}\n", "bold", no_wrap=True, overflow="ellipsis")
        if table.paused:
            title.append("PAUSED", sections.STYLES["slow"])
        else:
            title.append(rest)
        return table.name, (
            title,
            Text(f"{amount(table.items)} ({table.fill:.0%})\nof {amount(table.max_items)}"),
            Text(f"{amount(table.ratio)}\n{target}"),
            Text(
                f"in  {amount(history.rate(insert, flows.WINDOW))}/s\n"
                f"out {amount(history.rate(sample, flows.WINDOW))}/s"
            ),
            Text("\n").join([sections.waiting(table.insert), sections.waiting(table.sample)]),
            Text(
                f"{sparkline(history.rates(insert, room), room)}\n"
                f"{sparkline(history.rates(sample, room), room)}",
                "cyan",
            ),
        )


class Rollouts(LiveGrid):
    """The rollout tables, two lines each: producers, and consumers."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "select_cursor", "open table")]

    def refill(self, reading: Reading, history: History) -> None:
        """Show the rollout tables of a reading."""
        room = self.scrollable_content_region.width - 6 * SPACE - ITEMS - RATIO - RATE - WAITING
        longest = max((len(table.name) for table in reading.rollouts), default=0)
        name = max(min(longest, LONGEST_NAME, room - LATE), SHORTEST_NAME)
        room = max(room - name, LATE)
        columns: list[Column] = [
            ("table", name),
            ("groups", ITEMS),
            ("version", RATIO),
            ("tokens", RATE),
            ("waiting", WAITING),
            ("of late", room),
        ]
        self.show(columns, [self._row(table, history, name, room) for table in reading.rollouts])

    def _row(self, table: RolloutReading, history: History, width: int, room: int) -> Row:
        come, go = (
            flows.rollouts(table.name, "tokens"),
            flows.rollouts(table.name, "delivered_tokens"),
        )
        title = Text(f"{table.name[:width]}\n", "bold", no_wrap=True, overflow="ellipsis")
        if table.paused:
            title.append("PAUSED", sections.STYLES["slow"])
        lag = "" if table.lag_oldest is None else f"lag {amount(table.lag_oldest)}"
        return table.name, (
            title,
            Text(
                f"{amount(table.running)} made\n"
                f"{amount(table.ready)} of {amount(table.batch_groups)} ready"
            ),
            Text(f"{amount(table.version)}\n{lag}"),
            Text(
                f"in  {amount(history.rate(come, flows.WINDOW))}/s\n"
                f"out {amount(history.rate(go, flows.WINDOW))}/s"
            ),
            Text("\n").join(
                rollout_sections.waiting(side) for side in (table.producers, table.consumers)
            ),
            Text(
                f"{sparkline(history.rates(come, room), room)}\n"
                f"{sparkline(history.rates(go, room), room)}",
                "cyan",
            ),
        )


class Connections(LiveGrid):
    """The connections, in an order of choice."""

    order = 0

    def refill(self, reading: Reading, history: History) -> None:
        """Show the connections of a reading."""
        title, key = ORDERS[self.order]
        rates = flows.connections(history)
        known = [
            (one, rates.get((one.address, one.id), flows.ConnectionFlow()))
            for one in reading.connections
        ]
        known.sort(key=lambda pair: key(*pair))
        count = reading.doors.connections
        more = f", {MOST_CONNECTIONS} shown" if len(known) > MOST_CONNECTIONS else ""
        noun = "connection" if count == 1 else "connections"
        self.border_title = f"{count:,d} {noun}{more}, {title}"
        columns: list[Column] = [
            ("client", CLIENT),
            ("age", AGE),
            ("samples/s", COUNT),
            ("bytes/s", COUNT),
            ("waited", SHARE),
            ("waits for", WAITING),
        ]
        # Where it is, as far as there is room.
        taken = sum(width + SPACE for _, width in columns)
        if self.scrollable_content_region.width >= taken + PEER + SPACE:
            columns.append(("from", PEER))
        rows = [self._row(*pair) for pair in known[:MOST_CONNECTIONS]]
        self.show(columns, [(key, cells[: len(columns)]) for key, cells in rows])

    def _row(self, one: Connection, flow: ConnectionFlow) -> Row:
        blocked = Text(one.blocked_by, sections.STYLES["stuck"])
        return f"{one.address} {one.id}", (
            Text(one.name or one.peer, no_wrap=True, overflow="ellipsis"),
            sections.age(one.age),
            Text(amount(flow.samples), justify="right"),
            Text(size(round(flow.bytes)), justify="right"),
            Text(f"{flow.blocked:.0%}", justify="right"),
            blocked,
            Text(one.peer, no_wrap=True, overflow="ellipsis"),
        )


class Overview(Screen[None]):
    """All of a server at a glance."""

    # The first list that has something in it.
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        ("tab", "app.focus_next", "next list"),
        ("s", "sort", "sort"),
    ]

    def __init__(self, moment: Moment) -> None:
        """Show what the moment has whenever `redraw` is called."""
        super().__init__()
        self._moment = moment
        # Kept here rather than looked up, because readings also come while a screen is being put
        # together or taken down.
        self._header = Static(id="header")
        self._problems = Static()
        self._stream = Static(id="stream")
        self._tables = Tables(lines=2, name="tables")
        self._rollouts = Rollouts(lines=2, name="rollouts")
        self._told = Static(id="told")
        self._connections = Connections(lines=1, name="connections")
        self._stream.border_title = "stream"
        self._tables.border_title = "tables"
        self._rollouts.border_title = "rollout tables"
        self._told.border_title = "told by the program"

    def compose(self) -> ComposeResult:
        """Put the parts below each other."""
        yield self._header
        with VerticalScroll(id="problems") as problems:
            problems.border_title = "problems"
            yield self._problems
        yield self._stream
        yield self._tables
        yield self._rollouts
        yield self._told
        yield self._connections
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Show what happened meanwhile."""
        self.redraw()

    def on_resize(self) -> None:
        """Make use of the room."""
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Show what there is now."""
        moment, history = self._moment, self._moment.history
        self._header.update(sections.header(moment))
        self._problems.update(sections.problem_list(moment))
        reading = history.last
        self._stream.display = bool(reading and reading.stream)
        self._tables.display = bool(reading and reading.tables)
        self._rollouts.display = bool(reading and reading.rollouts)
        self._told.display = bool(reading and reading.told)
        if reading is None:
            return
        self._stream.update(sections.stream(history, max(self.size.width - 4, 20)))
        self._tables.refill(reading, history)
        self._rollouts.refill(reading, history)
        self._told.update(sections.told(reading))
        self._connections.refill(reading, history)
        if self.focused is None or not self.focused.display:
            lists = (one for one in (self._tables, self._rollouts) if one.display)
            next(lists, self._connections).focus()

    def action_sort(self) -> None:
        """Sort the connections by something else."""
        self._connections.order = (self._connections.order + 1) % len(ORDERS)
        self.redraw()
