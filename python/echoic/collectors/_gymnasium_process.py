"""The worker processes of a :class:`~echoic.collectors.GymnasiumCollector`, as it sees them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from echoic.collectors._gymnasium_worker import Setup

__all__ = ["Process", "by_value", "end_all"]

# How many seconds a worker has to end by itself.
_GRACE = 1.0

_START = (
    "import json, sys; path, fd, file = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from echoic.collectors._gymnasium_worker import main; main(fd, file)"
)


class Process:
    """A worker process, as the collector sees it. Replaced in place when it dies."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self._folder = folder
        self.groups: deque[dict[str, Any]] = deque()
        # Whether its end of the connection is closed.
        self.gone = False
        # The versions of the rollouts that were asked for and have not come.
        self.asked: deque[int] = deque()
        self.ready = False
        # The version of the weights with which it is asked what a step looks like.
        self.first = 0
        self._start()

    def _start(self) -> None:
        file = self._folder / f"worker-{self.setup.worker}"
        file.write_bytes(pickle.dumps(self.setup))
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            arguments = json.dumps([sys.path, descriptor, str(file)])
            # A fresh interpreter: multiprocessing's would run the user's script again.
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", _START, arguments],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
            )
        self.connection = Connection(ours.detach())

    def send(self, message: Any) -> None:
        """Tell the worker, if it is still there; messages are small, so nobody waits."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def messages(self, timeout: float) -> Iterator[tuple[str, Any]]:
        """What the worker has said, waiting so long for each; at the end, whether it is gone."""
        try:
            while self.connection.poll(timeout):
                yield self.connection.recv()
        except (EOFError, OSError):
            self.gone = True

    def restart(self) -> None:
        """Start another process in its place, with random numbers of its own."""
        self.end()
        self.asked.clear()
        self.ready = self.gone = False
        life = self.setup.life + 1
        # Its environments start anew, and are not to do again what they did.
        seeds = np.random.SeedSequence([life, *self.setup.seeds]).generate_state(
            len(self.setup.seeds)
        )
        self.setup = self.setup._replace(life=life, seeds=[int(seed) for seed in seeds])
        self._start()

    def end(self) -> None:
        """End the process, kindly at first."""
        self.connection.close()
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def fate(self) -> str:
        """How the process ended."""
        code = self.process.wait()
        if code >= 0:
            return f"ended with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


def end_all(workers: list[Process], folder: Path, process: int) -> None:
    """End all workers and remove what they read; not in a forked child, whose they are not."""
    if os.getpid() != process:
        return
    # All connections first, so that they end at the same time.
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.end()
    shutil.rmtree(folder, ignore_errors=True)


def by_value(thing: Any) -> bytes:
    """Pickle a function with its code, where it could not be imported."""
    try:
        import cloudpickle  # noqa: PLC0415 - Gymnasium brings it along
    except ImportError:
        return pickle.dumps(thing)
    dumped: bytes = cloudpickle.dumps(thing)
    return dumped
