"""The suite of weights: one publication, and subscribers in processes of their own.

What is timed is from the call of ``publish`` until the last of them has all of it: mapped, and one
element of every page of it read and checked. The bound is a memory copy of as many bytes by each of
them, all at the same time, into memory that it has: what each would need at least if nothing were
shared.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.subscriber import subscribers
from benchmarks.timing import Measurement
from benchmarks.workload import Target, Workload, any_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.timing import Measure

TRANSPORTS = ("shm", "unix", "tcp")
_SUBSCRIBERS = 4
_LEAVES = 64
# The first publications take memory from the system, which later ones use again.
_WARM = 3


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones publish little."""
    megabytes, times = (8, 2) if quick else (100, 9)
    return [_published(transport, megabytes, times) for transport in TRANSPORTS]


def _published(transport: str, megabytes: int, times: int) -> Workload:
    return Workload(
        name=f"weights_{transport}",
        kind="weights",
        what=f"{megabytes} MiB in {_LEAVES} arrays are published, until {_SUBSCRIBERS} local "
        f"subscribers have all of it, over {transport}",
        unit="ms",
        better="lower",
        session=partial(published, transport=transport, megabytes=megabytes, times=times),
        bound_name=f"a memory copy of as many bytes by each of {_SUBSCRIBERS} processes, all at "
        "once",
        bound=any_engine(partial(copies, megabytes=megabytes, times=times)),
        parameters={
            "transport": transport,
            "megabytes": megabytes,
            "subscribers": _SUBSCRIBERS,
            "publications": times,
        },
        # Less than twice the time of one copy each, where memory is shared.
        targets=(Target("ratio_to_bound", at_least=0.5),) if transport == "shm" else (),
        peers=False,
        steady=transport in {"shm", "tcp"},
    )


@contextlib.contextmanager
def published(_engine: Any, *, transport: str, megabytes: int, times: int) -> Iterator[Measure]:
    """Publish some versions: milliseconds until the last subscriber has one, the median."""
    # Here, since a peer's environment has the suites without Echoic.
    import echoic
    from echoic.weights import WeightStore

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if transport == "tcp":
            address = "tcp://127.0.0.1:0"
        elif transport == "unix":
            address = f"unix://{folder}/weights.sock"
        else:
            address = f"shm://echoic-bench-weights-{os.getpid()}"
        store = WeightStore()
        server = stack.enter_context(echoic.Server(store, listen=address))
        readers = stack.enter_context(subscribers(_SUBSCRIBERS, megabytes, server.address))
        version = 0

        def publish() -> tuple[float, float]:
            nonlocal version
            version += 1
            tree = weights(megabytes, version)
            readers.tell(do="wait", version=version)
            # They wait when the version comes: what is measured is not how they begin to.
            time.sleep(0.02)
            started = time.perf_counter()
            store.publish(tree, version)
            returned = time.perf_counter()
            return max(readers.hear()) - started, returned - started

        for _ in range(_WARM):
            publish()

        def measure() -> Measurement:
            reached, returned = zip(*(publish() for _ in range(times)), strict=True)
            extras = {"publish_ms": statistics.median(returned) * 1e3}
            return Measurement(statistics.median(reached) * 1e3, extras)

        yield measure


@contextlib.contextmanager
def copies(*, megabytes: int, times: int) -> Iterator[Measure]:
    """Copy as many bytes in each of as many processes: milliseconds of the slowest, the median."""
    with subscribers(_SUBSCRIBERS, megabytes) as copiers:

        def copy() -> float:
            copiers.tell(do="copy")
            return max(copiers.hear())

        def measure() -> Measurement:
            return Measurement(statistics.median(copy() for _ in range(times)) * 1e3)

        yield measure


def weights(megabytes: int, value: float) -> dict[str, Any]:
    """Return a policy of this size, whose every number is its version."""
    count = (megabytes << 18) // _LEAVES
    return {f"layer{number:02}": np.full(count, value, np.float32) for number in range(_LEAVES)}
