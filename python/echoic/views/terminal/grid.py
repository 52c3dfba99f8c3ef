"""A list of rows that change while somebody reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from textual.widgets import DataTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

__all__ = ["Column", "LiveGrid", "Row"]

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
