"""Parts of screens; the screen of one table of any kind, and that of keys and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.screen import Screen
from textual.widgets import Footer, Static

from echoic.cli.text import age
from echoic.views.terminal import sections

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from echoic.views.monitor import Monitor
    from echoic.views.reading import Key

__all__ = ["Detail", "Help", "LiveScreen", "Part"]

CHART_LINES = 3
HELP = {
    "keys": """
        ↑ ↓:       move in a list
        Enter:     open the table under the cursor
        Esc:       back
        Tab:       go to the next list
        s:         change the order of the connections
        p:         pause; again: resume
        q:         quit""",
    "problems, the worst first": """
        STUCK:     calls wait, and nothing moved in the last seconds
        SLOW:      calls wait, but things move
        NOTE:      no call waits
        AWAY:      the server does not answer; it is polled further""",
    "what a call waits for": """
        MIN_SIZE:  the table has too few items to sample from
        RATIO:     samples are ahead of inserts, or inserts of samples
        PAUSED:    pause() was called
        STALENESS: new groups would become too old, or the learner must publish
        GROUP:     too few groups of rollouts are complete
        CAPACITY:  there is no room until something is taken
        LEASED:    memory that would make room is still held
        EMPTY:     no batch is complete""",
    "columns": """
        ratio:     samples per insert so far, and the limiter's target
        rate:      inserts and samples per second, over the last 3 seconds
        tokens:    tokens per second, received and delivered, over the last 3 seconds
        lag:       age in versions of the oldest token of the last delivery
        waiting:   calls that wait now: inserts above, samples below
        of late:   the last rates, one character for each reading
        waited:    the share of the last seconds for which samples waited for room""",
}


class Part(Static):
    """A part of a screen with a title."""

    def __init__(self, name: str, title: str = "") -> None:
        """Make an empty part; the title is plain text, not markup."""
        super().__init__(id=name, classes="part")
        self.border_title = escape(title)


class LiveScreen(Screen[None]):
    """A screen that shows the readings of a monitor."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self._monitor = monitor

    def on_screen_resume(self) -> None:
        """Redraw after another screen was on top."""
        self.redraw()

    def on_resize(self) -> None:
        """Redraw in the new size."""
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Draw the current readings."""
        with self._monitor.lock:
            self.draw(self._monitor)

    def draw(self, monitor: Monitor) -> None:
        """Fill the parts."""
        raise NotImplementedError


class Detail(LiveScreen):
    """All numbers of a table of any kind."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "back")]

    def __init__(self, monitor: Monitor, key: Key) -> None:
        super().__init__(monitor)
        self._key = key
        # Attributes for the same reason as in the first screen.
        self._header = Static(id="header")
        self._problems = Part("problems", f"{key[0]} {key[1]!r}")
        self._charts = (Part("in"), Part("out"))
        self._numbers = Part("numbers", "numbers")
        self._bars = Part("bars", "histograms")
        self._sources = Part("sources", "sources")

    def compose(self) -> ComposeResult:
        """Stack the parts in a page that scrolls."""
        yield self._header
        with VerticalScroll(id="page"):
            yield from (self._problems, *self._charts, self._numbers, self._bars, self._sources)
        yield Footer(show_command_palette=False)

    def draw(self, monitor: Monitor) -> None:
        """Fill the parts."""
        history = monitor.history
        self._header.update(sections.header(monitor))
        thing = history.last.things.get(self._key) if history.last else None
        for part in (*self._charts, self._numbers):
            part.display = thing is not None
        histograms, sources = thing.bars() if thing else [], getattr(thing, "sources", ())
        self._bars.display, self._sources.display = bool(histograms), bool(sources)
        if thing is None:
            self._problems.update(Text("the server no longer has this table"))
            return
        width = max(self.size.width - 4, 20)
        span = age(monitor.interval * history.length)
        chart = thing.CHARTS[0]
        for part, (label, name) in zip(self._charts, chart.lines.items(), strict=True):
            what = label if chart.title == "Per second" else f"tokens {label}"
            part.border_title = f"{what} of the last {span}"
            part.update(sections.flow(thing, history, name, width, CHART_LINES))
        self._problems.update(sections.problem_list(monitor, thing.title))
        self._numbers.update(sections.numbers(thing.lines(history.rates(thing))))
        self._bars.update(sections.bars(histograms, width))
        self._sources.update(sections.sources(sources))


class Help(Screen[None]):
    """The meanings of keys and words."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "back")]

    def compose(self) -> ComposeResult:
        """Stack the parts in a page that scrolls."""
        with VerticalScroll(id="page"):
            for number, (title, lines) in enumerate(HELP.items()):
                text = Text()
                for line in lines.strip().splitlines():
                    word, _, meaning = line.strip().partition(":")
                    text.append(f"{word:<10}", "bold").append(f"{meaning.strip()}\n")
                text.rstrip()
                part = Part(f"help-{number}", title)
                part.update(text)
                yield part
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Focus the page, which handles the keys."""
        self.query_one("#page").focus()
