"""Asking a server again and again, for all who want to see the answers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from echoic.cli.text import duration
from echoic.views.history import History
from echoic.views.problems import Problem, find_problems
from echoic.views.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from echoic.connection import Connection

__all__ = ["Away", "Monitor"]


@dataclass(frozen=True)
class Away:
    """That a server does not answer, since when, and what the last attempt said."""

    reason: str
    since: float = field(default_factory=time.time)


class Monitor:
    """Asks a server every so many seconds, in a thread, from ``__enter__`` on.

    An answer is waited for, for seconds when the server's machine is gone. So that is no work for
    an event loop; and the thread is a daemon's, so that nothing waits for it at the end.

    Args:
        connection: A connection to one server, which is closed at the end.
        interval: Seconds between two requests.
        history: What keeps the answers; read it with `lock` held.
        changed: Is called in the thread after each answer, and after each that did not come.
    """

    def __init__(
        self,
        connection: Connection,
        interval: float = 1.0,
        history: History | None = None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """Ask nothing yet."""
        self.address = connection.address
        self.interval = interval
        self.history = history or History()
        self.away: Away | None = None
        self.lock = threading.Lock()
        self._connection = connection
        self._changed = changed
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._wanted.set()

    def __enter__(self) -> Self:
        """Begin to ask."""
        name = f"echoic-monitor {self.address}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop. An answer that is waited for is ignored."""
        self._stopped.set()
        self._wanted.set()

    @property
    def paused(self) -> bool:
        """Whether nothing is asked, and nothing changes."""
        return not self._wanted.is_set()

    def pause(self) -> None:
        """Stop for a while, or go on."""
        (self._wanted.set if self.paused else self._wanted.clear)()

    def ask(self) -> None:
        """Ask once, and keep the answer.

        Raises:
            EchoicError: If the server can't be reached, or refuses.
        """
        began = time.monotonic()
        [seen] = self._connection.server_stats().values()
        reading = read(seen, time.monotonic() - began)
        with self.lock:
            if not (self.paused or self._stopped.is_set()):
                self.away = None
                self.history.add(reading)

    def problems(self) -> list[Problem]:
        """Find what is wrong, the worst first: that the server does not answer, and all else."""
        found = find_problems(self.history)
        if self.away is None:
            return found
        since = time.strftime("%H:%M:%S %Z", time.localtime(self.away.since))
        text = f"it has not answered since {since}: {self.away.reason}"
        advice = f"what is shown is its last answer; it is asked every {duration(self.interval)}"
        return [Problem("away", "the server", "AWAY", text, advice), *found]

    def _run(self) -> None:
        with self._connection:
            while not self._stopped.is_set():
                try:
                    self.ask()
                except Exception as error:  # a view that stands still is worse
                    self._miss(str(error).removeprefix(f"{self.address}: ") or repr(error))
                if not self._stopped.is_set():
                    self._changed()
                self._stopped.wait(self.interval)
                self._wanted.wait()

    def _miss(self, reason: str) -> None:
        with self.lock:
            if not self.paused:
                before = self.away
                self.away = Away(reason, before.since) if before else Away(reason)
