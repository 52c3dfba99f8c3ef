"""An engine in a child process, seen from the parent.

The parent asks for one repeat of a workload at a time, and the child answers with the
measurement, or with the reason why there is none. So the parent can interleave engines, and a
child sleeps while another is measured. A peer that stalls is killed and reported as stalled.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from benchmarks.child import Child, ChildError
from benchmarks.content import ContentError
from benchmarks.peers.environment import interpreter
from benchmarks.timing import Measure, Measurement, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.peers import Peer


class EngineProcess:
    """Runs workloads of a suite on the engine of a module, with this interpreter.

    Each session has a process of its own, so that the peak of its memory is the session's.
    """

    def __init__(self, module: str, *, suite: str, quick: bool) -> None:
        """Prepare; nothing starts yet."""
        self._arguments = [
            "-m",
            "benchmarks.peers.worker",
            module,
            suite,
            *(["--quick"] if quick else []),
        ]

    @contextlib.contextmanager
    def session(self, workload: str) -> Iterator[Measure]:
        """Run ``workload`` in a child, one repeat a call."""
        with Child([self._python(), *self._arguments]) as child:
            child.ask({"open": workload})

            def measure() -> Measurement:
                answer = child.ask({"measure": workload})
                return Measurement(answer["value"], answer["extras"])

            yield measure
            child.ask({"close": workload})

    def _python(self) -> str:
        return sys.executable


class PeerProcess(EngineProcess):
    """Runs workloads on a peer, in the peer's own environment.

    However a peer fails, the others are still measured: every failure is an
    [`UnavailableError`].
    """

    def __init__(self, peer: Peer, *, suite: str, quick: bool) -> None:
        """Install ``peer`` if need be; that it cannot be is told by each session."""
        super().__init__(peer.module, suite=suite, quick=quick)
        self.peer = peer
        self._not_installed: str | None = None
        try:
            interpreter(peer)
        except UnavailableError as error:
            self._not_installed = str(error)

    @contextlib.contextmanager
    def session(self, workload: str) -> Iterator[Measure]:
        """Run ``workload`` in a child; what goes wrong there makes it unavailable."""
        with contextlib.ExitStack() as stack:
            with _failures_as_unavailable():
                measure = stack.enter_context(super().session(workload))

            def guarded() -> Measurement:
                with _failures_as_unavailable():
                    return measure()

            yield guarded
            # How a peer ends is no result.
            with contextlib.suppress(UnavailableError), _failures_as_unavailable():
                stack.close()

    def _python(self) -> str:
        if self._not_installed is not None:
            raise UnavailableError(self._not_installed)
        return str(interpreter(self.peer))


@contextlib.contextmanager
def _failures_as_unavailable() -> Iterator[None]:
    try:
        yield
    except ContentError as error:
        raise UnavailableError(f"wrong content: {error}") from error
    except ChildError as error:
        raise UnavailableError(str(error)) from error
