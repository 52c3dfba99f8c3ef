"""What a person sees on standard error while the benchmarks run.

A moving bar where `rich` is installed and standard error is a terminal, plain lines
otherwise. Standard output belongs to the results.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Progress:
    """Counts rounds and prints finished workloads; a context manager."""

    def __init__(self) -> None:
        """Expect nothing yet."""
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Show the bar, if there can be one."""
        if sys.stderr.isatty():
            self._bar = _rich_bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def expect(self, rounds: int) -> None:
        """Expect so many rounds."""
        if self._bar is not None:
            self._bar.update(self._task, total=rounds)

    def begin(self, name: str) -> None:
        """Name the workload that starts."""
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def advance(self) -> None:
        """Count one round."""
        if self._bar is not None:
            self._bar.advance(self._task)


def _rich_bar() -> Any:
    """Return a bar of `rich`, or None where it is not installed: it is optional."""
    try:
        console = importlib.import_module("rich.console")
        bars = importlib.import_module("rich.progress")
    except ImportError:
        return None
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        console=console.Console(stderr=True),
        transient=True,
    )
