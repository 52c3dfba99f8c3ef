"""A watchdog: finds calls that wait while what they wait for is true.

# What counts as a hang

A call says which condition it waits for. A poll looks at all conditions, again and again; a call is
hung when its condition was true in every poll of two seconds, and the table did not change in that
way. While others are served the call may be unlucky, for a few seconds more.

On a busy machine the watchdog itself may be late, and so may all others be. When a poll comes late
or takes long, or a file takes long to be synced, the two seconds begin anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WINDOW = 2.0
# While others are served in the same way.
UNLUCKY = 12.0
# How often conditions are looked at, and how late a poll is that says nothing.
INTERVAL = 0.04
LATE = 0.25
# For how long a poll itself may hang while there is somebody to answer it.
DEAF = 15.0


class HangError(Exception):
    """A call waits for what is true."""


@dataclass
class Call:
    """A call that has not returned."""

    what: str
    # A condition's name; the call also ends when its timeout is over, and at a close.
    condition: str
    started: float
    deadline: float | None
    thread: str
    # Since when every poll found its condition true: while nothing else moved, and at all.
    still: float | None = None
    true: float | None = None
    progress: int = -1


@dataclass
class Sight:
    """What a poll saw: which conditions hold, and counters that move when somebody is served."""

    conditions: dict[str, bool]
    progress: dict[str, int]


class Watch:
    """Looks at all calls of this process, in a thread."""

    def __init__(self, poll: Callable[[], Sight | None], folder: Path) -> None:
        self._poll = poll
        self._folder = folder
        self._calls: dict[int, Call] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._polling: float | None = None
        self._disk = 0.0
        # Whether there is somebody to answer a poll; set by whoever kills servers.
        self.served = threading.Event()
        # Conditions of which a close has made an end to all waiting.
        self.closed: set[str] = set()
        self.hang: str | None = None
        self.found = threading.Event()
        self.last: Sight | None = None
        self._threads = [
            threading.Thread(target=run, name=f"watch-{name}", daemon=True)
            for name, run in (("poll", self._run), ("poller", self._mind), ("disk", self._sync))
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._over.set()

    @contextlib.contextmanager
    def call(self, what: str, condition: str, timeout: float | None = None) -> Iterator[None]:
        """Watch what is done in the block."""
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        call = Call(what, condition, now, deadline, threading.current_thread().name)
        with self._lock:
            self._calls[id(call)] = call
        try:
            yield
        finally:
            with self._lock:
                del self._calls[id(call)]

    def suspects(self) -> bool:
        """Whether a call waits for what is true, for whatever time."""
        with self._lock:
            return any(call.true is not None for call in self._calls.values())

    def pending(self) -> list[str]:
        """The calls that have not returned."""
        now = time.monotonic()
        with self._lock:
            calls = list(self._calls.values())
        return [
            f"{call.thread}: {call.what} (waits for {call.condition}) {now - call.started:.2f} s"
            for call in calls
        ]

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(INTERVAL):
            begun = time.monotonic()
            self._polling = begun
            sight = self._poll()
            self._polling = None
            ended = time.monotonic()
            self.last = sight
            late = ended - last > LATE or self._disk > LATE
            last = ended
            self._judge(sight, begun, ended, late=late)

    def _judge(self, sight: Sight | None, begun: float, ended: float, *, late: bool) -> None:
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            if call.started > begun:
                continue
            closed = call.condition in self.closed
            over = call.deadline is not None and begun > call.deadline
            holds = closed or over or (sight is not None and sight.conditions[call.condition])
            if not holds:
                call.still = call.true = None
                continue
            progress = 0 if sight is None else sight.progress.get(call.condition, 0)
            if late or call.true is None:
                call.still = call.true = ended
            elif progress != call.progress and not (closed or over):
                call.still = ended
            call.progress = progress
            assert call.still is not None
            assert call.true is not None
            if ended - call.still >= WINDOW or ended - call.true >= UNLUCKY:
                why = "a close" if closed else "its timeout" if over else call.condition
                self._report(
                    f"{call.what} in {call.thread} has waited for {ended - call.started:.1f} s, "
                    f"although {why!r} holds for {ended - call.true:.1f} s; seen: {sight}"
                )

    def _report(self, hang: str) -> None:
        if self.hang is None:
            self.hang = hang
            self.found.set()

    def _mind(self) -> None:
        """Look whether the poll itself hangs."""
        last = since = time.monotonic()
        while not self._over.wait(INTERVAL):
            now, begun = time.monotonic(), self._polling
            if not self.served.is_set() or now - last > LATE or begun is None:
                since = now
            last = now
            if begun is not None and now - max(begun, since) > DEAF:
                self._report(f"a look at the table has not been answered for {now - begun:.1f} s")

    def _sync(self) -> None:
        """Measure how long the disk takes, which durable inserts and checkpoints wait for."""
        with (self._folder / "disk").open("wb") as file:
            while not self._over.wait(INTERVAL):
                begun = time.monotonic()
                file.seek(0)
                file.write(b"?")
                file.flush()
                os.fsync(file.fileno())
                # Remembered for a while: whoever waited for the same disk has yet to go on.
                taken = time.monotonic() - begun
                self._disk = max(taken, self._disk * 0.8)
