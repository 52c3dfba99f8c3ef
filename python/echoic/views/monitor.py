"""Poll a server for its numbers, in a thread."""

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
    """A server that does not answer: the error of the last attempt, and the time of the first."""

    reason: str
    since: float = field(default_factory=time.time)


class Monitor:
    """Polls a server at an interval, in a thread, from ``__enter__`` to ``__exit__``.

    A request may wait for seconds if the server's machine is gone, so it must not run in an event
    loop. The thread is a daemon: the end of the process does not wait for it.

    Args:
        connection: A connection to one server, which is closed at the end.
        interval: Seconds between two requests.
        history: Keeps the readings; read it with `lock` held.
        changed: Called in the thread after each reading and each failed request.
    """

    def __init__(
        self,
        connection: Connection,
        interval: float = 1.0,
        history: History | None = None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
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
        name = f"echoic-monitor {self.address}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop. The answer of a pending request is dropped."""
        self._stopped.set()
        self._wanted.set()

    @property
    def paused(self) -> bool:
        """Whether polling is paused."""
        return not self._wanted.is_set()

    def pause(self) -> None:
        """Pause polling, or resume it."""
        (self._wanted.set if self.paused else self._wanted.clear)()

    def ask(self) -> None:
        """Ask once, and keep the reading.

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
        """Return the problems, the worst first; a server that does not answer is one."""
        found = find_problems(self.history)
        if self.away is None:
            return found
        since = time.strftime("%H:%M:%S %Z", time.localtime(self.away.since))
        text = f"it has not answered since {since}: {self.away.reason}"
        advice = f"the numbers are its last answer; retrying every {duration(self.interval)}"
        return [Problem("away", "the server", "AWAY", text, advice), *found]

    def _run(self) -> None:
        with self._connection:
            while not self._stopped.is_set():
                try:
                    self.ask()
                except Exception as error:  # shown in the view, which must not stop
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
