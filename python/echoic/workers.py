"""Worker processes: fresh interpreters that are watched, replaced when they die, and ended in time.

:class:`Process` runs a command. :class:`Worker` calls a Python function in a process of its own and
has a connection to it. :class:`Supervisor` keeps several of them and replaces those that die.

Invariants:

- No process is left behind. Each one leads a session of its own, which is killed with all that it
  started when the process is stopped or garbage-collected, and when this process exits. If this
  process is killed, its workers notice within `_ORPHAN_CHECK` seconds and exit.
- Ctrl-C in a terminal reaches this process alone. It stops its workers when it handles that.
- A process that has died is reaped, and :meth:`Process.ending` says how it died.

POSIX only. Workers on other machines are not started from here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from echoic.errors import CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Connection", "Process", "Supervisor", "Worker", "orphaned", "stop_all"]

# Seconds that a process has for an orderly end before it is killed.
_GRACE = 1.0
# Seconds between two looks of a worker for its parent.
_ORPHAN_CHECK = 0.1
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import echoic.workers as workers; "
    "workers._main(int(sys.argv[2]), int(sys.argv[3]))"
)
_parent = 0


class Process:
    """A command in a process that does not outlive this one.

    Args:
        command: The program and its arguments.
        name: Names the process in messages.
        env: Environment variables to set beside those of this process.
        **options: More options of :class:`subprocess.Popen`, such as pipes.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.started = time.monotonic()
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            list(command),
            bufsize=0,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            **options,
        )
        self.pid = self.process.pid
        self._end = weakref.finalize(self, _kill, self.process, os.getpid())

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return not self.killed and self.process.poll() is None

    @property
    def killed(self) -> bool:
        """Whether :meth:`stop` or :meth:`kill` was called."""
        return not self._end.alive

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the process to end; return whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        return self.process.returncode is not None

    def ending(self) -> str:
        """Wait for the end, and say how it was: "ended with code 3", "was killed by SIGKILL"."""
        code = self.process.wait()
        if code >= 0:
            return f"ended with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def terminate(self) -> None:
        """Ask the process to end, without waiting for it."""
        if self.alive:
            self.process.terminate()

    def stop(self, timeout: float = _GRACE) -> None:
        """End the process: ask it, wait ``timeout`` seconds, then kill it with what it started."""
        self.terminate()
        self.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the process and what it started. Safe to call more than once, from any thread."""
        self._end()


class Worker(Process):
    """A process that calls ``function(connection, *args)`` and ends when it returns.

    The function and its arguments are pickled, so it must be importable. What it raises is reported
    by :meth:`ending`. SIGTERM raises `SystemExit` in it, so that its ``finally`` blocks run.

    Args:
        function: What to call. Its first argument is the worker's end of :attr:`connection`.
        *args: Its further arguments.
        name: Names the worker in messages.
        env: Environment variables to set beside those of this process.
        log: File to append what the worker prints to. Default: the output of this process.

    Examples:
        >>> import operator
        >>> from echoic.workers import Worker
        >>> worker = Worker(operator.methodcaller("send", "hello"), name="worker 0")
        >>> worker.connection.recv()
        'hello'
        >>> worker.ending()
        'ended with code 0'
    """

    def __init__(
        self,
        function: Callable[..., object],
        *args: Any,
        name: str,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        # The worker's standard input: what to call. If that fails, its traceback replaces it.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - read when the worker has ended
        weakref.finalize(self, self._file.close)
        pickle.dump((function, args), self._file)
        self._file.seek(0)
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        with theirs, contextlib.ExitStack() as stack:
            options: dict[str, Any] = {}
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                options = dict.fromkeys(("stdout", "stderr"), stack.enter_context(log.open("ab")))
            fd = theirs.fileno()
            # Not multiprocessing's "spawn", which would run the user's script again.
            command = [
                sys.executable,
                "-c",
                _START,
                json.dumps(sys.path),
                str(fd),
                str(os.getpid()),
            ]
            super().__init__(
                command, name=name, env=env, stdin=self._file, pass_fds=[fd], **options
            )

    def send(self, message: Any) -> None:
        """Send a message, unless the worker is gone. Waits while the worker reads nothing."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def messages(self, timeout: float = 0.0) -> Iterator[Any]:
        """Iterate over messages of the worker, until none comes within ``timeout`` seconds."""
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll(timeout):
                yield self.connection.recv()

    @property
    def traceback(self) -> str | None:
        """The traceback with which the function ended; `None` if it has not failed."""
        size = os.fstat(self._file.fileno()).st_size
        text = os.pread(self._file.fileno(), size, 0)
        return text.decode().rstrip() if text.startswith(b"Traceback") else None

    def ending(self) -> str:
        """Wait for the end, and say how it was; with the traceback if the function failed."""
        ending = super().ending()
        return ending if self.traceback is None else f"failed:\n{self.traceback}"

    def kill(self) -> None:
        """Kill the worker and what it started, and close the connection."""
        super().kill()
        self.connection.close()


_P = TypeVar("_P", bound=Process)


class Supervisor(Generic[_P]):
    """Several processes, of which a limited number is replaced when they die.

    Args:
        start: Starts a process, given its index and how many processes were replaced before: 0 at
            first.
        count: The number of processes.
        max_restarts: How many replacements there may be altogether.
    """

    def __init__(self, start: Callable[[int, int], _P], count: int, max_restarts: int = 0) -> None:
        self._start = start
        self._count = count
        self._max_restarts = max_restarts
        #: How many processes were replaced.
        self.restarts = 0
        #: The processes, by index.
        self.members: list[_P] = []

    def start(self) -> None:
        """Start all processes; if one can't be started, end the others."""
        try:
            for i in range(self._count):
                self.members.append(self._start(i, 0))
        except BaseException:
            self.stop(0.0)
            raise

    def check(self) -> dict[int, str]:
        """Replace the processes that have ended; return how, by index. See :meth:`replace`."""
        return {i: self.replace(i) for i, one in enumerate(self.members) if not one.alive}

    def replace(self, i: int) -> str:
        """Kill a process if it runs, start another in its place, and return how the old one ended.

        Raises:
            CollectorError: If there were ``max_restarts`` replacements before. The message says
                which process ended, and how.
        """
        old = self.members[i]
        old.kill()
        ending = old.ending()
        if self.restarts >= self._max_restarts:
            raise CollectorError(
                f"{old.name} {ending}, and no worker may be replaced any more: "
                f"max_restarts is {self._max_restarts}"
            )
        self.restarts += 1
        self.members[i] = self._start(i, self.restarts)
        return ending

    def stop(self, timeout: float = _GRACE) -> None:
        """End all processes within ``timeout`` seconds; those that run then are killed."""
        stop_all(self.members, timeout)


def stop_all(processes: Sequence[Process], timeout: float = _GRACE) -> None:
    """Ask all processes to end at once; kill those that run after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    for one in processes:
        one.terminate()
    for one in processes:
        one.stop(max(0.0, deadline - time.monotonic()))


def orphaned() -> bool:
    """Whether this is a worker whose parent has died."""
    return _parent != 0 and os.getppid() != _parent


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    # In a forked child it is not ours to kill.
    if os.getpid() != owner:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _main(descriptor: int, parent: int) -> None:
    """Do what a :class:`Worker` is for, in its process."""
    global _parent
    _parent = parent
    signal.signal(signal.SIGTERM, _leave)
    connection = Connection(descriptor)
    with os.fdopen(os.dup(0), "r+b") as file, open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
        try:
            function, args = pickle.load(file)
            file.truncate(0)
            # Not before: a function that has begun can clean up.
            threading.Thread(target=_follow, daemon=True).start()
            function(connection, *args)
        except Exception:  # the parent reports it
            file.seek(0)
            file.truncate()
            file.write(traceback.format_exc().encode())
            sys.exit(1)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit


def _follow() -> None:
    """End this worker when its parent dies: in order first, and by force if that takes too long."""
    while not orphaned():
        time.sleep(_ORPHAN_CHECK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os.killpg(0, signal.SIGKILL)
