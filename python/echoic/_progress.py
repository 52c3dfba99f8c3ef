"""Show the progress of long work in a terminal or notebook.

The rule: work is shown if it is called from the main thread, takes longer than half a second, and
rich is installed (``pip install 'echoic[cli]'``), and if standard error is a terminal or the
program is a notebook. Otherwise nothing is written and nothing imported. What is shown disappears
when the work is done.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["each", "working"]

_DELAY = 0.5

_shown: _Shown | None = None


class Update(Protocol):
    """Reports how much work is done, and how much there is."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


@contextmanager
def working(what: str, *, of_bytes: bool = False) -> Iterator[Update]:
    """Show that the block is at work: elapsed time, and a bar once the total is known.

    There is one line at a time: a block inside another one updates the line of the outer one.

    Args:
        what: The work, such as ``"reading data.npz"``.
        of_bytes: Whether the yielded function gets bytes.
    """
    global _shown
    if not _is_watched():
        yield lambda _done, _total=None: None
        return
    if _shown is not None:
        yield _shown.update
        return
    _shown = _Shown(what, of_bytes=of_bytes)
    # The block may be one native call, so another thread starts to show it.
    timer = threading.Timer(_DELAY, _shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield _shown.update
    finally:
        timer.cancel()
        _shown.stop()
        _shown = None


def each(things: Iterable[Any], total: int | None) -> Iterator[Any]:
    """Iterate, and report each thing to the line of the block that this runs in."""
    for done, thing in enumerate(things):
        if _shown is not None:
            _shown.update(done, total)
        yield thing


def _is_watched() -> bool:
    """Return whether a person may be watching, and rich can show the work."""
    is_notebook = "ipykernel" in sys.modules
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not (is_notebook or is_terminal):
        return False
    from importlib.util import find_spec

    # Without ipywidgets, rich warns in a notebook.
    return all(map(find_spec, ("rich", "ipywidgets") if is_notebook else ("rich",)))


class _Shown:
    """A line of rich that appears when `start` is called."""

    def __init__(self, what: str, *, of_bytes: bool) -> None:
        self._what = what
        self._of_bytes = of_bytes
        self._state: tuple[int, int | None] = (0, None)
        self._lock = threading.Lock()
        self._progress: Any = None
        self._is_over = False

    def start(self) -> None:
        from rich import progress
        from rich.console import Console

        with self._lock:
            if self._is_over:
                return
            shown = progress.Progress(
                progress.SpinnerColumn(),
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[amount]}"),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            shown.add_task(self._what, total=None, amount="")
            shown.start()
            self._progress = shown
        self.update(*self._state)

    def update(self, done: int, total: int | None = None, /) -> None:
        self._state = (done, total)
        if self._progress is not None:
            from echoic.cli.text import size

            form = size if self._of_bytes else "{:,d}".format
            amount = "" if total is None else f"{form(done)} of {form(total)}"
            (task,) = self._progress.task_ids
            self._progress.update(task, completed=done, total=total, amount=amount)

    def stop(self) -> None:
        with self._lock:
            self._is_over = True
            if self._progress is not None:
                self._progress.stop()
