"""Our side of a worker: a process that is asked and answers by lines of JSON, or is killed.

A worker is also killed when it is late with an answer.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import select
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import gymnasium

from echoic import errors
from echoic.workers import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["EnvironmentProcessError", "JsonProcess"]

_LONGEST_ANSWER = 64 << 20
_KEPT_OF_STDERR = 4000
_SHOWN_OF_STDERR = 1500
_CHUNK = 1 << 16
# Errors that mean the same on both sides. Others are told as they were.
_KNOWN = (
    "ImportError",
    "FileNotFoundError",
    "KeyError",
    "ModuleNotFoundError",
    "OSError",
    "TypeError",
    "ValueError",
)


class EnvironmentProcessError(errors.EchoicError, RuntimeError):
    """An environment's worker process died, hung, or failed; the message says which and why.

    The episode is over. The next ``reset`` starts another process.
    """


class JsonProcess(Process):
    """A worker process. One request at a time; any thread may close it meanwhile.

    Args:
        command: What to run, and its arguments.
        name: What errors call it.
        environment: Variables beside those of this process.
        hook: What to make of objects in answers, as ``object_hook`` of :func:`json.loads`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        hook: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self._hook = hook
        self._busy = threading.Lock()
        self._read = bytearray()
        self._said = b""
        try:
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            super().__init__(command, name=name, env=environment, **pipes)
        except OSError as error:
            raise EnvironmentProcessError(f"{name} can't be started: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._in = self.process.stdin.fileno()
        self._out = self.process.stdout.fileno()
        self._err = self.process.stderr.fileno()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        """What becomes readable when an answer comes, for ``select``."""
        return self._out

    def ask(self, do: str, timeout: float, **arguments: Any) -> Any:
        """Ask and wait for the answer."""
        self.send(do, timeout, **arguments)
        return self.receive(timeout)

    def send(self, do: str, timeout: float, **arguments: Any) -> None:
        """Ask without waiting for the answer, which must take no longer than so many seconds."""
        line = json.dumps({"do": do, "with": arguments, "limit": timeout}).encode() + b"\n"
        rest = memoryview(line)
        deadline = time.monotonic() + timeout
        with self._busy:
            while rest:
                self._wait(self._in, select.POLLOUT, deadline, timeout, do)
                try:
                    rest = rest[os.write(self._in, rest) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise self._lost(do) from error

    def receive(self, timeout: float, limit: float | None = None) -> Any:
        """The answer to the oldest request that has none.

        Args:
            timeout: Seconds to wait from now.
            limit: Of how many seconds these are the rest, for the error that says so.

        Raises:
            EnvironmentProcessError: None came in time, or the process is dead; it is killed in
                both cases. Or it failed with an error that means nothing here.
        """
        deadline = time.monotonic() + timeout
        limit = timeout if limit is None else limit
        with self._busy:
            while (end := self._read.find(b"\n")) < 0:
                self._wait(self._out, select.POLLIN, deadline, limit, "an answer")
                try:
                    came = os.read(self._out, _CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    came = b""
                if not came:
                    raise self._lost("an answer")
                self._read += came
                if len(self._read) > _LONGEST_ANSWER:
                    self.kill()
                    raise EnvironmentProcessError(
                        f"{self.name} was killed: its answer is longer than {_LONGEST_ANSWER} bytes"
                    )
            line = bytes(self._read[:end])
            del self._read[: end + 1]
        try:
            answer = json.loads(line, object_hook=self._hook)
        except ValueError as error:
            self.close()
            raise EnvironmentProcessError(
                f"{self.name} was killed: it said what is no JSON: {line[:80]!r}"
            ) from error
        if "is" in answer:
            return answer["is"]
        raise self._error(answer["error"])

    def close(self) -> None:
        """Kill the process, and what it started. Safe to call at any time, and more than once."""
        self.kill()
        with self._busy:
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _wait(self, descriptor: int, event: int, deadline: float, limit: float, what: str) -> None:
        """Wait for a pipe, and keep the end of what the worker prints meanwhile."""
        if self.killed:
            raise EnvironmentProcessError(f"{self.name} is closed")
        poll = select.poll()
        poll.register(descriptor, event)
        poll.register(self._err, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = dict(poll.poll(max(0.0, left) * 1000))
            if self._err in ready and not self._keep_stderr():
                poll.unregister(self._err)
            if descriptor in ready:
                return
            if not ready and left <= 0:
                self.kill()
                raise EnvironmentProcessError(
                    f"{self.name} was killed: {what} took longer than {limit:g} s{self._told()}"
                )

    def _keep_stderr(self) -> bool:
        try:
            came = os.read(self._err, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._said = (self._said + came)[-_KEPT_OF_STDERR:]
        return bool(came)

    def _told(self) -> str:
        text = self._said.decode(errors="replace").strip()[-_SHOWN_OF_STDERR:]
        return f"; it had printed:\n{text}" if text else ""

    def _lost(self, what: str) -> EnvironmentProcessError:
        """The process is gone."""
        closed = self.killed
        how = self.ending() if self.wait(1) else "closed its output"
        self.kill()
        if closed:
            return EnvironmentProcessError(f"{self.name} is closed")
        for _ in range(_KEPT_OF_STDERR):
            before = self._said
            if not self._keep_stderr() or self._said == before:
                break
        return EnvironmentProcessError(f"{self.name} {how} before {what}{self._told()}")

    def _error(self, told: Mapping[str, str]) -> Exception:
        kind, text = told["kind"], told["text"]
        known: Any = None
        if kind in _KNOWN:
            known = getattr(builtins, kind)
        elif kind == "ResetNeeded":
            known = gymnasium.error.ResetNeeded
        elif kind in errors.__all__:
            known = getattr(errors, kind)
        if known is not None:
            error = known(text)
            assert isinstance(error, Exception)
            return error
        return EnvironmentProcessError(f"{self.name} failed: {kind}: {text}\n{told['trace']}")
