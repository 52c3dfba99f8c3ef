"""Processes of a run: started, fed with JSON, watched, and replaced when they are gone.

A worker is `python -m echoic.agents.training.worker`; what it is to do is one line of JSON on its
standard input. Its errors go to a file of its own.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from echoic.errors import CollectorError

__all__ = ["IMPORTS", "Worker", "Workers"]

_log = logging.getLogger("echoic.agents.training")
_MODULE = "echoic.agents.training.worker"
_TAIL = 2000
# How long a process may take until it does anything, on a machine that is busy.
IMPORTS = 180.0


class Worker:
    """A process that does one thing until it is stopped.

    Args:
        task: What it is to do.
        errors: The file that its errors are added to.
    """

    def __init__(self, task: dict[str, Any], errors: Path) -> None:
        line = (json.dumps(task, default=os.fspath) + "\n").encode()
        self.errors = errors
        self._began = time.monotonic()
        errors.parent.mkdir(parents=True, exist_ok=True)
        # A process has one thread of torch: there are as many processes as are wanted.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _search_path()}
        with errors.open("ab") as sink:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, and this module
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                bufsize=0,
                env=environment,
            )
        self.write(line)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def patience(self, timeout: float) -> float:
        """For how long it may be silent: longer while it is still importing."""
        return max(timeout, self._began + IMPORTS - time.monotonic())

    def write(self, data: bytes | memoryview) -> None:
        """Give it bytes, all of them; an OSError where it is gone."""
        pipe = self.process.stdin
        if pipe is None:
            raise BrokenPipeError("the worker has no input")
        view = memoryview(data)
        while view:
            view = view[pipe.write(view) or 0 :]

    def read(self, count: int) -> bytes:
        """Take so many bytes from it; an EOFError where it is gone."""
        pipe = self.process.stdout
        parts: list[bytes] = []
        while count:
            part = b"" if pipe is None else pipe.read(count)
            if not part:
                raise EOFError(f"the worker is gone: {self.last_words()}")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def stop(self, patience: float = 2.0) -> None:
        """End it: its input ends, and soon after, if it must be, it is killed."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError as error:
                _log.debug("closing a worker's input: %r", error)
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def last_words(self) -> str:
        """The end of its errors."""
        try:
            said = self.errors.read_bytes()[-_TAIL:].decode(errors="replace").strip()
        except OSError:
            said = ""
        return said.rsplit("\n", 1)[-1] or "it said nothing"


class Workers:
    """Workers that are there, or are replaced.

    Args:
        tasks: What each is to do. A replacement is told its ``generation``.
        folder: Where their errors go.
        max_restarts: How many replacements there may be.
        generation: That of the first ones; each replacement has the next.
    """

    def __init__(
        self, tasks: list[dict[str, Any]], folder: Path, max_restarts: int, generation: int = 0
    ) -> None:
        self._tasks = tasks
        self._generation = generation
        self._folder = folder
        self._max_restarts = max_restarts
        self.restarts = 0
        self.members: list[Worker] = []
        try:
            for i in range(len(tasks)):
                self.members.append(self._start(i, 0))
        except BaseException:
            self.close()
            raise

    def check(self) -> list[int]:
        """Replace those that are gone; which these were.

        Raises:
            CollectorError: There were more than ``max_restarts`` altogether.
        """
        gone = [i for i, one in enumerate(self.members) if not one.is_alive]
        for i in gone:
            self.replace(i)
        return gone

    def replace(self, i: int) -> None:
        """End one, if it has not ended, and start another in its place."""
        old = self.members[i]
        if old.is_alive:
            old.process.kill()
        old.stop()
        self.restarts += 1
        if self.restarts > self._max_restarts:
            raise CollectorError(
                f"workers ended {self.restarts} times, and max_restarts is {self._max_restarts}; "
                f"the last one said: {old.last_words()}"
            )
        _log.warning("worker %d ended (%s): %s", i, old.process.returncode, old.last_words())
        self.members[i] = self._start(i, self.restarts)

    def close(self) -> None:
        """End all."""
        for one in self.members:
            if one.process.stdin is not None and one.is_alive:
                one.process.stdin.close()
        for one in self.members:
            one.stop()

    def _start(self, i: int, generation: int) -> Worker:
        task = self._tasks[i]
        name = f"{task['kind']}-{i}.log"
        told = {**task, "generation": self._generation + generation}
        return Worker(told, self._folder / name)


def _search_path() -> str:
    """Where this process finds its modules, so that a worker finds the same."""
    return os.pathsep.join(one or str(Path.cwd()) for one in sys.path)
