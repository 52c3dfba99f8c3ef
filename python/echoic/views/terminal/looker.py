"""Looking at a server again and again, in a thread of its own, and what screens show of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from echoic.views.history import History
from echoic.views.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.views.reading import Reading
    from echoic.watch import Watch

__all__ = ["Away", "Looker", "Moment"]


@dataclass(frozen=True)
class Away:
    """That a server does not answer.

    Attributes:
        why: What the last look said.
        clock: The time of day since which.
        since: The same on the monotonic clock.
    """

    why: str
    clock: str = field(default_factory=lambda: time.strftime("%H:%M:%S"))
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """For how long."""
        return time.monotonic() - self.since


@dataclass
class Moment:
    """What there is to show now.

    Attributes:
        address: Of the server.
        interval: Seconds between two looks.
        history: Readings so far.
        away: Whether the server is not there, and why.
        paused: Whether somebody wants to read in peace.
    """

    address: str
    interval: float
    history: History = field(default_factory=History)
    away: Away | None = None
    paused: bool = False


class Looker:
    """Looks until it is stopped, with a pause between two looks.

    A look waits for the network, for seconds when the server's machine is gone. So it is no work
    for an event loop, nor for its executor, whose end an event loop waits for: who quits would wait
    too. The thread is a daemon's, and is left to itself.

    Args:
        watch: With which it looks. Nobody else may use it.
        interval: Seconds between two looks.
        seen: Gets every reading, in the thread.
        lost: Gets the error of every look that failed, in the thread.
    """

    def __init__(
        self,
        watch: Watch,
        interval: float,
        seen: Callable[[Reading], object],
        lost: Callable[[Exception], object],
    ) -> None:
        """Begin when told to."""
        self._watch = watch
        self._interval = interval
        self._seen = seen
        self._lost = lost
        self._stopped = threading.Event()
        self._wanted = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        self._wanted.set()
        threading.Thread(target=self._run, name="looker", daemon=True).start()

    def pause(self) -> None:
        """Do not look until it is resumed."""
        self._wanted.clear()

    def resume(self) -> None:
        """Look again."""
        self._wanted.set()

    def stop(self) -> None:
        """Look no more. A look that is under way tells nobody."""
        self._stopped.set()
        self._wanted.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                reading = read(self._watch.stats())
            except Exception as error:  # noqa: BLE001 - a screen that stands still is worse
                self._tell(self._lost, error)
            else:
                self._tell(self._seen, reading)
            self._stopped.wait(self._interval)
            self._wanted.wait()

    def _tell(self, whom: Callable[..., object], what: object) -> None:
        if not self._stopped.is_set():
            whom(what)
