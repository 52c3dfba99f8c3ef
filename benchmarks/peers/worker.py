"""An engine's child process, seen from inside: runs the workloads of a suite on the engine.

``python -m benchmarks.peers.worker MODULE SUITE [--quick]``, where the module has an ``ENGINE``.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING

from benchmarks.child import Message, answer_requests
from benchmarks.suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.timing import Measure


def serve(arguments: Sequence[str]) -> None:
    """Answer the parent's requests until it closes the pipe."""
    module, suite, *options = arguments
    engine = importlib.import_module(module).ENGINE
    known = {workload.name: workload for workload in SUITES[suite].workloads("--quick" in options)}
    with contextlib.ExitStack() as stack:
        measures: list[Measure] = []

        def answer(request: Message) -> Message | None:
            if "open" in request:
                session = known[request["open"]].session(engine)
                measures.append(stack.enter_context(session))
                return None
            if "measure" in request:
                measurement = measures[-1]()
                return {"value": measurement.value, "extras": dict(measurement.extras)}
            stack.close()
            return None

        answer_requests(answer)


if __name__ == "__main__":
    serve(sys.argv[1:])
