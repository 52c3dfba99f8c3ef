"""The application: looks at a server, and shows what it sees on the screen that is on top."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.message import Message

from echoic.views.terminal.help import Help
from echoic.views.terminal.looker import Away, Looker, Moment
from echoic.views.terminal.overview import Overview, Rollouts, Tables
from echoic.views.terminal.table_screen import Detail, RolloutDetail

if TYPE_CHECKING:
    from textual.binding import BindingType
    from textual.widgets import DataTable

    from echoic.views.reading import Reading
    from echoic.watch import Watch

__all__ = ["Top"]


class Seen(Message):
    """A look succeeded."""

    def __init__(self, reading: Reading) -> None:
        """Bring what was seen."""
        super().__init__()
        self.reading = reading


class Lost(Message):
    """A look failed."""

    def __init__(self, error: Exception) -> None:
        """Bring the reason."""
        super().__init__()
        self.error = error


class Top(App[None]):
    """What happens in a server, in a terminal.

    Args:
        watch: With which it looks at the server; it must not be used elsewhere meanwhile.
        interval: Seconds between two looks.
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
    #problems, #stream, #tables, #rollouts, #connections, #inserts, #samples, #numbers,
    #histograms, #tokens, #delivered, #sources, #told, .part {
        border-top: solid ansi_bright_black;
        border-title-style: bold;
        border-title-color: ansi_default;
        height: auto;
        padding: 0 1;
    }
    Overview #problems { max-height: 7; min-height: 2; }
    Overview #tables, Overview #rollouts { max-height: 30%; padding: 0; }
    Overview #told { max-height: 5; }
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

    def __init__(self, watch: Watch, interval: float = 1.0) -> None:
        """Begin to look when it runs."""
        super().__init__()
        # The terminal's own sixteen colours on its own background.
        self.theme = "ansi-dark"
        self._moment = Moment(watch.address, interval)
        self._looker = Looker(watch, interval, self._tell_seen, self._tell_lost)

    @property
    def moment(self) -> Moment:
        """What is shown."""
        return self._moment

    def get_default_screen(self) -> Overview:
        """Make the first screen."""
        return Overview(self._moment)

    def on_mount(self) -> None:
        """Begin to look."""
        # While the server is away nothing else says how long that is.
        self.set_interval(1.0, self._redraw_when_away)
        self._looker.start()

    def on_unmount(self) -> None:
        """Look no more."""
        self._looker.stop()

    def on_seen(self, message: Seen) -> None:
        """Show a reading."""
        if not self._moment.paused:
            self._moment.away = None
            self._moment.history.add(message.reading)
            self._redraw()

    def on_lost(self, message: Lost) -> None:
        """Say that the server is away, and since when."""
        if self._moment.paused:
            return
        why = str(message.error).removeprefix(f"{self._moment.address}: ")
        before = self._moment.away
        self._moment.away = Away(why, before.clock, before.since) if before else Away(why)
        self._redraw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a table."""
        if isinstance(event.data_table, Tables) and event.row_key.value is not None:
            self.push_screen(Detail(self._moment, event.row_key.value))
        if isinstance(event.data_table, Rollouts) and event.row_key.value is not None:
            self.push_screen(RolloutDetail(self._moment, event.row_key.value))

    def action_pause(self) -> None:
        """Hold everything still, or go on."""
        self._moment.paused = not self._moment.paused
        if self._moment.paused:
            self._looker.pause()
        else:
            self._looker.resume()
        self._redraw()

    def action_help(self) -> None:
        """Say what keys and words mean."""
        if not isinstance(self.screen, Help):
            self.push_screen(Help())

    def _redraw(self) -> None:
        # There is no screen any more while the application ends.
        for screen in self.screen_stack[-1:]:
            if isinstance(screen, (Overview, Detail, RolloutDetail)):
                screen.redraw()

    def _redraw_when_away(self) -> None:
        if self._moment.away and not self._moment.paused:
            self._redraw()

    def _tell_seen(self, reading: Reading) -> None:
        self._tell(Seen(reading))

    def _tell_lost(self, error: Exception) -> None:
        self._tell(Lost(error))

    def _tell(self, message: Message) -> None:
        """Pass a message from the thread that looks."""
        # The application may end at any moment; then its loop takes no more.
        with contextlib.suppress(RuntimeError):
            self.post_message(message)
