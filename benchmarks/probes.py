"""Physical bounds: the same bytes or the same hand-over without any system around it.

Each probe is opened like the workload beside it and runs on the same interleaved
rounds. They are Python loops too: the loop costs both sides the same and is not
subtracted, only the empty call is, and only where a result says ``above_bound``.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.content import CHECKED_ROUNDS, Receiver
from benchmarks.payload import (
    Array,
    Pool,
    Tree,
    flatten,
    packed,
    placed,
    rebuild,
    touched_bytes,
)
from benchmarks.timing import Measure, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.engine import Engine


@contextlib.contextmanager
def empty_calls(engine: Engine, pool: Pool, calls: int) -> Iterator[Measure]:
    """Call an empty native function with the samples of ``pool``: µs a call."""
    empty_call = engine.empty_call()
    trees = itertools.cycle(pool.entries)

    def measure() -> Measurement:
        start = time.perf_counter_ns()
        for tree in itertools.islice(trees, calls):
            empty_call(tree)
        return Measurement((time.perf_counter_ns() - start) / calls / 1e3)

    yield measure


@contextlib.contextmanager
def plain_copies(
    pool: Pool, *, slots_per_batch: int, num_buffers: int, batches: int
) -> Iterator[Measure]:
    """Copy the entries of ``pool`` round a ring of the same size with numpy: GB/s.

    One ``np.copyto`` moves all bytes of one call at once, into slots that were touched before.
    What happens off the clock is the workload's own: the same checks of the same rows. Work
    between two copies slows the second one down, so without it the bound would be another one.
    """
    sources = [placed(packed(entry), 0) for entry in pool.entries]
    nbytes = sources[0].nbytes
    # Whole cache lines apart, so that no slot is a few bytes further into its page than a source
    # is; see `touched_bytes` for what that would cost.
    stride = -(-nbytes // 64) * 64
    ring = touched_bytes(slots_per_batch * num_buffers * stride, 0)
    starts = range(0, ring.nbytes, stride)
    slots = [ring[start : start + nbytes] for start in starts]
    pairs = zip(itertools.cycle(slots), itertools.cycle(sources), strict=False)
    trees = itertools.cycle(
        [_batch(pool, ring, start, stride, slots_per_batch) for start in starts[::slots_per_batch]]
    )
    rows = slots_per_batch * pool.rows
    receiver = Receiver(pool)

    def fill(count: int, check: Callable[[Tree, int], None]) -> int:
        elapsed = 0
        for tree in itertools.islice(trees, count):
            start = time.perf_counter_ns()
            for slot, source in itertools.islice(pairs, slots_per_batch):
                np.copyto(slot, source)
            elapsed += time.perf_counter_ns() - start
            check(tree, rows)
        return elapsed

    def measure() -> Measurement:
        fill(CHECKED_ROUNDS * num_buffers, receiver.check)
        elapsed = fill(batches, receiver.check_ends)
        return Measurement(batches * slots_per_batch * nbytes / elapsed)

    yield measure


def _batch(pool: Pool, ring: Array, start: int, stride: int, slots: int) -> Tree:
    """View ``slots`` packed entries as a batch of the pool's tree."""
    leaves = []
    for _, leaf in flatten(pool.entries[0]):
        view: Array = np.ndarray(
            (slots, *leaf.shape), leaf.dtype, ring.data, start, (stride, *leaf.strides)
        )
        leaves.append(view if pool.rows == 1 else view[0])
        start += leaf.nbytes
    return rebuild(pool.example, iter(leaves))


@contextlib.contextmanager
def lock_handovers(handovers: int, pause: float) -> Iterator[Measure]:
    """Wake a Python thread that is parked on a plain lock: µs, median and p99."""

    def measure() -> Measurement:
        gate = threading.Lock()
        gate.acquire()
        sent: list[int] = []

        received: list[int] = []

        def consume() -> None:
            for _ in range(handovers):
                gate.acquire()
                received.append(time.perf_counter_ns())

        with ThreadPoolExecutor(1) as threads:
            consumer = threads.submit(consume)
            for _ in range(handovers):
                time.sleep(pause)
                # On a busy machine the consumer may still be on its way to the gate.
                while len(received) < len(sent):
                    time.sleep(pause)
                sent.append(time.perf_counter_ns())
                gate.release()
            consumer.result()
        delays = (np.array(received) - np.array(sent)) / 1e3
        median, p99 = np.percentile(delays, [50, 99])
        return Measurement(float(median), {"p99_us": float(p99)})

    yield measure


@contextlib.contextmanager
def numpy_slices(example: Tree, *, batch_size: int, batches: int) -> Iterator[Measure]:
    """Slice one numpy column per leaf into a dict, in plain Python: µs a batch.

    The least work that gives a person a batch of views, without taking or giving back
    anything. It is a reference rather than a bound: native code may be faster.
    """
    columns = [
        (path, np.zeros((batch_size * batches, *leaf.shape), leaf.dtype))
        for path, leaf in flatten(example)
    ]

    def measure() -> Measurement:
        start = time.perf_counter_ns()
        for first in range(0, batch_size * batches, batch_size):
            last = first + batch_size
            {path: column[first:last] for path, column in columns}
        return Measurement((time.perf_counter_ns() - start) / batches / 1e3)

    yield measure
