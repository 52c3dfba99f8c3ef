"""A peer's child process, seen from inside: runs workloads on the peer's engine."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.content import ContentError
from benchmarks.stream import workloads
from benchmarks.timing import Measure, UnavailableError

if TYPE_CHECKING:
    from benchmarks.engine import Engine


def serve(engine: Engine) -> None:
    """Answer the parent's requests until it closes the pipe."""
    known = {workload.name: workload for workload in workloads("--quick" in sys.argv)}
    # Whatever the peer prints goes to standard error; the answers have the pipe alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.ExitStack() as stack:
        measure: Measure | None = None
        for line in sys.stdin:
            request = json.loads(line)
            answer: dict[str, Any] = {}
            try:
                if "open" in request:
                    session = known[request["open"]].session(engine)
                    measure = stack.enter_context(session)
                elif "measure" in request and measure is not None:
                    measurement = measure()
                    answer = {
                        "value": measurement.value,
                        "extras": dict(measurement.extras),
                    }
                else:
                    measure = None
                    stack.close()
            except UnavailableError as error:
                answer = {"unavailable": str(error)}
            except ContentError as error:
                answer = {"unavailable": f"wrong content: {error}"}
            except Exception as error:  # noqa: BLE001 - however a peer fails is its result
                answer = {"unavailable": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers)
