"""A child process that answers questions: one JSON object a line each way, in turn.

The parent asks with a [`Child`], the child answers with [`answer_requests`]. A child that can't do
what was asked answers why, and the parent raises that as its own error.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks.content import ContentError
from benchmarks.timing import UnavailableError, garbage_collector_off

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

ROOT = Path(__file__).resolve().parent.parent
ANSWER_TIMEOUT = 90.0

Message = dict[str, Any]


class ChildError(Exception):
    """A child failed, died or stalled."""


_ERRORS = {
    "unavailable": UnavailableError,
    "wrong_content": ContentError,
    "failed": ChildError,
}


class Child:
    """Starts the child; a context manager that ends it."""

    def __init__(
        self, command: Sequence[str], on_failure: Callable[[], object] = lambda: None
    ) -> None:
        """Start ``command`` in the repository's root.

        ``on_failure`` is called, in another thread, when the child has failed or died: whoever
        waits for what it was to do can be told so.
        """
        self._on_failure = on_failure
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        """Return the child, which runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.stop()

    def tell(self, request: Message) -> None:
        """Send a request whose answer [`hear`] takes later."""
        # The reader finds that a child has died, and says so in place of an answer.
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._process.stdin).write(json.dumps(request) + "\n")
            _pipe(self._process.stdin).flush()

    def hear(self) -> Message:
        """Wait for the answer to the oldest request.

        Raises:
            UnavailableError, ContentError: what the child could not do.
            ChildError: it failed, died or stalled; one that stalled is killed.
        """
        try:
            line = self._answers.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            self.stop()
            raise ChildError(f"no answer within {ANSWER_TIMEOUT:.0f} s") from None
        if not line:
            self.stop()
            raise ChildError(f"its process ended with status {self._process.returncode}")
        answer: Message = json.loads(line)
        for key, error in _ERRORS.items():
            if key in answer:
                raise error(answer[key])
        return answer

    def ask(self, request: Message) -> Message:
        """Send a request and wait for its answer."""
        self.tell(request)
        return self.hear()

    def stop(self) -> None:
        """End the child, which ends by itself when its input does; kill it if it does not."""
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # It may be this thread that found the child dead.
        if threading.current_thread() is not self._reader:
            self._reader.join()
            _pipe(self._process.stdout).close()

    def _read(self) -> None:
        for line in _pipe(self._process.stdout):
            self._answers.put(line)
            if _ERRORS.keys() & json.loads(line).keys():
                self._on_failure()
        self._answers.put("")
        self._on_failure()


def answer_requests(answer: Callable[[Message], Message | None]) -> None:
    """Answer the parent's requests until it closes the pipe.

    The cyclic garbage collector is off meanwhile, as it is in the parent.
    """
    # A terminal tells Ctrl-C to all; the parent then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever else is printed goes to standard error; the answers have the pipe alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with garbage_collector_off():
        for line in sys.stdin:
            try:
                reply = answer(json.loads(line)) or {}
            except UnavailableError as error:
                reply = {"unavailable": str(error)}
            except ContentError as error:
                reply = {"wrong_content": str(error)}
            except Exception as error:  # however a child fails is its answer
                reply = {"failed": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=answers)


def _pipe(stream: IO[str] | None) -> IO[str]:
    """Return a stream that `Popen` was asked to open, so that it is there."""
    if stream is None:
        raise RuntimeError("the child was started without its pipes")
    return stream
