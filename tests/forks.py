"""Programs of tests in processes of their own, which start in a moment.

An interpreter takes a third of a second to import echoic and numpy, and tests start hundreds. Here
one process imports what is asked for and does nothing else; programs are forks of it. It has one
thread, so a fork is as good as a fresh interpreter, but for a test of what is imported when.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Fork(subprocess.Popen[str]):
    """A process that was forked: it is another's child, which says how it ended."""

    _communication_started, _input = False, None

    def __init__(self, args: list[str], status: int, stdin: int, *output: int) -> None:
        # Not that of `Popen`, which starts a process.
        self.args = args
        self.text_mode = True
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self.stdin = os.fdopen(stdin, "w")
        self.stdout, self.stderr = [*map(os.fdopen, output), None][:2]
        self.returncode = None

    def poll(self) -> int | None:
        """Return how it ended, if it has."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode


class Forks:
    """Starts programs as forks of a process that has imported them."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            settings = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, __file__]
            self._server = subprocess.Popen(command, stdin=theirs, env={**os.environ, **settings})

    def start(self, program: str, *words: str, errors_apart: bool = False) -> Fork:
        """Run a program, which is `module:function`, with the words of a command line.

        Unless its errors have a pipe of their own, they are in `stdout`.
        """
        (stdin, write), (told, status) = os.pipe(), os.pipe()
        outputs = [os.pipe() for _ in range(1 + errors_apart)]
        theirs = [status, stdin, *(end for _, end in outputs)]
        with self._lock:
            socket.send_fds(self._socket, [json.dumps([program, words]).encode()], theirs)
            for end in theirs:
                os.close(end)
            return Fork([program, *words], told, write, *(end for end, _ in outputs))

    def run(self, source: str, *words: str) -> Fork:
        """Run Python source."""
        return self.start("forks:main", source, *words)

    def close(self) -> None:
        """End the process that forks; what it has started goes on."""
        # Not only `close`: a fork of this process may have the socket too.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._server.wait()


class Killable:
    """A program that says its address, and may be killed and started again."""

    def __init__(self, start: Callable[..., Fork], *words: str) -> None:
        self._start, self._words = start, words
        self.start()

    def start(self) -> None:
        """Start it, and wait for its address."""
        self._popen = self._start(*self._words)
        assert self._popen.stdout is not None
        self.address = self._popen.stdout.readline().strip()
        assert "://" in self.address, self._popen.communicate()

    def kill(self) -> None:
        """As `kill -9` does."""
        self._popen.kill()
        self._popen.communicate(timeout=60)


def main() -> None:
    """Run Python source, whose names are there until the end, as those of a script are."""
    source = sys.argv.pop(1)
    exec(compile(source, "<source>", "exec"), vars(sys.modules["__main__"]))


def serve() -> None:
    """Fork for each message, and tell the end of each fork; a fork returns when its program has."""
    control = socket.socket(fileno=os.dup(0))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Echoic imports optree for the first tree.
    for module in ("echoic", "optree"):
        importlib.import_module(module)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 10)
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                # Whoever started it may no longer want to know.
                with suppress(BrokenPipeError), os.fdopen(running.pop(ended[0]), "w") as status:
                    status.write(f"{os.waitstatus_to_exitcode(ended[1])}\n")
        if control not in ready:
            continue
        message, (*theirs,), _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not message:
            return
        program, words = json.loads(message)
        module, _, function = program.partition(":")
        call = getattr(importlib.import_module(module), function)
        status, *streams = theirs
        pid = os.fork()
        if pid:
            os.write(status, f"{pid}\n".encode())
            running[pid] = status
            for end in streams:
                os.close(end)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Errors go where the output goes, unless they have a pipe.
        for number, end in enumerate([*streams, streams[1]][:3]):
            os.dup2(end, number)
        for end in (*theirs, *running.values(), woken, wake):
            os.close(end)
        control.close()
        sys.argv = [program, *words]
        sys.exit(call())


if __name__ == "__main__":
    serve()
