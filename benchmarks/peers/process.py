"""A peer's child process, seen from the parent.

The protocol is one JSON object a line, in turn: the parent asks for one repeat of a
workload, the child answers with the measurement, or with the reason why there is none.
One repeat at a time lets the parent interleave the peer with Echoic, and the child
sleeps while the parent measures. A peer that stalls is killed and reported as stalled.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks.peers.environment import interpreter
from benchmarks.timing import Measure, Measurement, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from benchmarks.peers import Peer

ROOT = Path(__file__).resolve().parent.parent.parent
ANSWER_TIMEOUT = 90.0


class PeerProcess:
    """Starts the child when the first session needs it, and again after a stall."""

    def __init__(self, peer: Peer, *, quick: bool) -> None:
        """Prepare for ``peer``; nothing starts yet."""
        self.peer = peer
        self._quick = quick
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._not_installed: str | None = None

    def __enter__(self) -> Self:
        """Install the peer if need be; that it cannot be is told by each session."""
        try:
            interpreter(self.peer)
        except UnavailableError as error:
            self._not_installed = str(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the child."""
        self._stop()

    @contextlib.contextmanager
    def session(self, workload: str) -> Iterator[Measure]:
        """Run ``workload`` in the child, one repeat a call."""
        self._ask({"open": workload})

        def measure() -> Measurement:
            answer = self._ask({"measure": workload})
            return Measurement(answer["value"], answer["extras"])

        try:
            yield measure
        finally:
            if self._child is not None:
                # The next session starts a fresh child if this one fails to close.
                with contextlib.suppress(UnavailableError):
                    self._ask({"close": workload})

    def _ask(self, request: dict[str, str]) -> dict[str, Any]:
        if self._not_installed is not None:
            raise UnavailableError(self._not_installed)
        child = self._child or self._start()
        try:
            _pipe(child.stdin).write(json.dumps(request) + "\n")
            _pipe(child.stdin).flush()
            line = self._answers.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            self._stop()
            raise UnavailableError(f"no answer within {ANSWER_TIMEOUT:.0f} s") from None
        except BrokenPipeError:
            line = ""
        if not line:
            self._stop()
            raise UnavailableError(f"its process ended with status {child.returncode}")
        answer: dict[str, Any] = json.loads(line)
        if "unavailable" in answer:
            raise UnavailableError(answer["unavailable"])
        return answer

    def _start(self) -> subprocess.Popen[str]:
        command = [str(interpreter(self.peer)), "-m", self.peer.module]
        if self._quick:
            command.append("--quick")
        child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._child = child
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers = answers

        def read() -> None:
            for line in _pipe(child.stdout):
                answers.put(line)
            answers.put("")

        threading.Thread(target=read, daemon=True).start()
        return child

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(BrokenPipeError):
            _pipe(child.stdin).close()
        try:
            child.wait(timeout=2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _pipe(stream: IO[str] | None) -> IO[str]:
    """Return a stream that `Popen` was asked to open, so that it is there."""
    if stream is None:
        raise RuntimeError("the child was started without its pipes")
    return stream
