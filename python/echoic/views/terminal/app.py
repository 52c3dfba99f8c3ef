"""The application of ``echoic top``: polls a server, and redraws the top screen."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.message import Message

from echoic.views.monitor import Monitor
from echoic.views.terminal.detail import Detail, Help, LiveScreen
from echoic.views.terminal.overview import Overview, Things

if TYPE_CHECKING:
    from textual.binding import BindingType
    from textual.widgets import DataTable

    from echoic.connection import Connection

__all__ = ["Top"]


class Changed(Message):
    """Posted after each reading, and each failed request."""


class Top(App[None]):
    """Shows a server in a terminal.

    Args:
        watch: The connection to the server; nothing else may use it.
        interval: Seconds between two requests.
    """

    TITLE = "echoic top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("p", "pause", "pause"),
        ("question_mark", "help", "help"),
        ("q", "quit", "quit"),
        ("ctrl+c", "quit"),
    ]
    CSS = """
    #header { height: 1; }
    .part {
        border-top: solid ansi_bright_black;
        border-title-style: bold;
        border-title-color: ansi_default;
        height: auto;
        padding: 0 1;
    }
    Overview #problems { max-height: 7; min-height: 2; }
    Overview #tables, Overview #rollouts { max-height: 30%; padding: 0; }
    Overview #gauges { max-height: 5; }
    Overview #connections { height: 1fr; min-height: 4; padding: 0; }
    #page { height: 1fr; }
    #problems, #page, LiveGrid { scrollbar-size-vertical: 1; }
    LiveGrid, LiveGrid:focus { background: ansi_default; background-tint: ansi_default; }
    LiveGrid:ansi > .datatable--header {
        background: ansi_default; color: ansi_default; text-style: dim;
    }
    LiveGrid > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: none;
    }
    LiveGrid:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    #problems:focus, LiveGrid:focus { border-title-style: bold reverse; }
    """

    def __init__(self, connection: Connection, interval: float = 1.0) -> None:
        super().__init__()
        # The terminal's own sixteen colours on its own background.
        self.theme = "ansi-dark"
        self.monitor = Monitor(connection, interval, changed=self._notify)

    def get_default_screen(self) -> Overview:
        """Make the first screen."""
        return Overview(self.monitor)

    def on_mount(self) -> None:
        """Start polling."""
        # While the server is away, only this updates for how long.
        self.set_interval(1.0, self._redraw_when_away)
        self.monitor.__enter__()

    def on_unmount(self) -> None:
        """Stop."""
        self.monitor.__exit__()

    def on_changed(self) -> None:
        """Redraw the top screen."""
        # While the application ends there is no screen.
        for screen in self.screen_stack[-1:]:
            if isinstance(screen, LiveScreen):
                screen.redraw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a table."""
        if isinstance(event.data_table, Things) and event.row_key.value is not None:
            self.push_screen(Detail(self.monitor, (event.data_table.KIND, event.row_key.value)))

    def action_pause(self) -> None:
        """Pause polling, or resume it."""
        self.monitor.pause()
        self.on_changed()

    def action_help(self) -> None:
        """Show what keys and words mean."""
        if not isinstance(self.screen, Help):
            self.push_screen(Help())

    def _redraw_when_away(self) -> None:
        if self.monitor.away and not self.monitor.paused:
            self.on_changed()

    def _notify(self) -> None:
        """Post a message from the polling thread."""
        # The application may end at any moment; then its loop takes no messages.
        with contextlib.suppress(RuntimeError):
            self.post_message(Changed())
