"""The screen that says what keys and words mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

__all__ = ["Help"]

PARTS = (
    (
        "keys",
        (
            ("↑ ↓", "move in a list"),
            ("Enter", "open the table under the cursor"),
            ("Esc", "back"),
            ("Tab", "go to the next list"),
            ("s", "sort the connections by something else"),
            ("p", "hold everything still, to read in peace; again: go on"),
            ("q", "leave"),
        ),
    ),
    (
        "problems, the worst first",
        (
            ("STUCK", "somebody waits, and nothing moved of late"),
            ("SLOW", "somebody waits, though things move"),
            ("NOTE", "good to know"),
            ("AWAY", "the server does not answer; this goes on looking"),
        ),
    ),
    (
        "what somebody waits for",
        (
            ("MIN_SIZE", "the table has too few items to sample from"),
            ("RATIO", "samples are ahead of inserts, or inserts of samples"),
            ("PAUSED", "somebody paused the table on purpose"),
            ("STALENESS", "what is under way would be too old, or the learner must publish"),
            ("GROUP", "too few groups of rollouts are complete"),
            ("CAPACITY", "there is no room until somebody takes something"),
            ("LEASED", "what would make room is still held"),
            ("EMPTY", "no batch is complete"),
        ),
    ),
    (
        "columns",
        (
            ("ratio", "samples for each insert so far, and what the limiter holds it to"),
            ("rate", "inserts and samples per second, over the last 3 seconds"),
            ("tokens", "of rollouts that came, and that were delivered, in the same way"),
            ("lag", "how many versions old the oldest token was that was delivered last"),
            ("waiting", "calls that wait now: for inserts above, for samples below"),
            ("of late", "the rates, one character for each look"),
            ("waited", "for which share of the last seconds samples waited for room"),
        ),
    ),
)


class Help(Screen[None]):
    """What keys and words mean."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "back")]

    def compose(self) -> ComposeResult:
        """Put the parts below each other, in one page that scrolls."""
        with VerticalScroll(id="page"):
            for title, lines in PARTS:
                text = Text()
                for word, meaning in lines:
                    text.append(f"{word:<9}", "bold").append(f" {meaning}\n")
                text.rstrip()
                part = Static(text, classes="part")
                part.border_title = title
                yield part
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Give the keys to the page."""
        self.query_one("#page").focus()
