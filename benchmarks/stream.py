"""The workloads of the in-process stream.

Each is a session on one open server: entering it opens the server, every call of the yielded
function is one repeat, leaving it closes the server. All of them check what they received before
they return a number.

# What is timed

`add` and `extend` loops run over prebuilt arguments; the loop itself (some ten
nanoseconds a turn) is in the number, on every side. In the alternating workloads only the filling
of a batch is on the clock; taking and checking it is not, and the total rate with the taking
stands beside it. In the threaded workload the clock runs from the first `add` until the
consumer has the last batch, and the interpreter's switch interval is part of the result.

Every repeat begins with a pass off the clock in which all rows are checked. In the timed pass
only the first and last row of each batch are: reading whole batches would leave the caches in
another state than the copies of the bound find.

Where a workload is compared with a copy round a ring of the same size, the last batches are kept
in hand, so that all buffers go round: a ring that may use any free buffer would otherwise stay in
a hotter corner of the cache than the bound. `buffers_used` shows it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks import payload, probes
from benchmarks.content import CHECKED_ROUNDS, ContentError, Receiver
from benchmarks.limits import suite as limits
from benchmarks.payload import Pool
from benchmarks.timing import Measure, Measurement
from benchmarks.workload import (
    COPY_NAME,
    Check,
    Ring,
    Session,
    Target,
    Workload,
    any_engine,
    copies,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.engine import Engine, Stream


@contextlib.contextmanager
def submit_alternating(
    engine: Engine,
    pool: Pool,
    *,
    ring: Ring,
    batches: int,
    unit: Literal["us", "GB/s"],
) -> Iterator[Measure]:
    """Fill a batch one sample at a time, take it, check it, all in one thread."""
    stream = ring.open(engine, pool)
    receiver = Receiver(pool)
    trees = itertools.cycle(pool.entries)
    held: deque[Any] = deque(maxlen=ring.num_buffers - 2)
    samples = batches * ring.batch_size
    sample_bytes = payload.sample_bytes(pool.example)

    def fill_and_take(count: int, check: Check) -> tuple[int, int]:
        add, sample = stream.add, stream.sample
        filling = taking = 0
        for _ in range(count):
            start = time.perf_counter_ns()
            for tree in itertools.islice(trees, ring.batch_size):
                add(tree)
            filled = time.perf_counter_ns()
            held.append(sample().data)
            taking += time.perf_counter_ns() - filled
            filling += filled - start
            check(held[-1], ring.batch_size)
        return filling, taking

    def measure() -> Measurement:
        fill_and_take(CHECKED_ROUNDS * ring.num_buffers, receiver.check)
        filling, taking = fill_and_take(batches, receiver.check_ends)
        extras = {
            "samples_per_s_with_taking": samples / (filling + taking) * 1e9,
            "buffers_used": float(receiver.buffers),
        }
        if unit == "us":
            return Measurement(filling / samples / 1e3, extras)
        extras["us_per_sample"] = filling / samples / 1e3
        return Measurement(samples * sample_bytes / filling, extras)

    with contextlib.closing(stream):
        yield measure


@contextlib.contextmanager
def submit_threaded(engine: Engine, pool: Pool, *, ring: Ring, batches: int) -> Iterator[Measure]:
    """Submit in one Python thread while another takes the batches."""
    stream = ring.open(engine, pool)
    receiver = Receiver(pool)
    trees = itertools.cycle(pool.entries)
    samples = batches * ring.batch_size
    # The first pass, which is not counted, checks every row; the timed ones the ends.
    checks = itertools.chain([receiver.check], itertools.repeat(receiver.check_ends))

    def consume(check: Check, ready: threading.Event) -> int:
        failure: ContentError | None = None
        ready.set()
        for _ in range(batches):
            batch = stream.sample().data
            # A failed check must not stop the draining: the producer would wait on.
            if failure is None:
                try:
                    check(batch, ring.batch_size)
                except ContentError as error:
                    failure = error
        finished = time.perf_counter_ns()
        if failure is not None:
            raise failure
        return finished

    def measure() -> Measurement:
        add = stream.add
        ready = threading.Event()
        with ThreadPoolExecutor(1) as threads, _closed_on_error(stream):
            consumer = threads.submit(consume, next(checks), ready)
            ready.wait()
            start = time.perf_counter_ns()
            for tree in itertools.islice(trees, samples):
                add(tree)
            elapsed = consumer.result() - start
        return Measurement(elapsed / samples / 1e3, {"samples_per_s": samples / elapsed * 1e9})

    with contextlib.closing(stream):
        yield measure


@contextlib.contextmanager
def submit_blocks(
    engine: Engine, pool: Pool, *, ring: Ring, batches: int, aliased: bool
) -> Iterator[Measure]:
    """Fill a batch with one `extend`, take it, check it, all in one thread.

    ``aliased`` puts the sources where a plain `memcpy` into the ring is slowest (see
    `payload.touched_bytes`). Batches are whole pages there, so all of them start alike.
    """
    stream = ring.open(engine, pool)
    with contextlib.closing(stream):
        extend = engine.extend(stream)
        receiver = Receiver(pool)
        blocks = itertools.cycle(pool.entries)
        if aliased:
            extend(next(blocks))
            batch = stream.sample().data
            receiver.check(batch, pool.rows)
            pool = pool.aliased_to(batch)
            blocks = itertools.cycle(pool.entries)
            next(blocks)
            # Kept, it would take a buffer out of the round.
            del batch
            # Of the moved blocks, the second is due next.
            receiver = Receiver(pool)
            receiver.skip(pool.rows)
        held: deque[Any] = deque(maxlen=ring.num_buffers - 2)
        rows = batches * pool.rows
        sample_bytes = payload.sample_bytes(pool.example)

        def fill_and_take(count: int, check: Check) -> int:
            filling = 0
            for block in itertools.islice(blocks, count):
                start = time.perf_counter_ns()
                extend(block)
                filling += time.perf_counter_ns() - start
                held.append(stream.sample().data)
                check(held[-1], pool.rows)
            return filling

        def measure() -> Measurement:
            fill_and_take(CHECKED_ROUNDS * ring.num_buffers, receiver.check)
            filling = fill_and_take(batches, receiver.check_ends)
            extras = {
                "samples_per_s": rows / filling * 1e9,
                "buffers_used": float(receiver.buffers),
            }
            return Measurement(rows * sample_bytes / filling, extras)

        yield measure


@contextlib.contextmanager
def handover(
    engine: Engine,
    pool: Pool,
    *,
    ring: Ring,
    handovers: int,
    pause: float,
) -> Iterator[Measure]:
    """Time from the `add` that completes a batch until a parked consumer has it.

    The clock starts before that `add`, so its own cost is in the number. The
    producer rests ``pause`` seconds before it completes a batch. A hand-over counts only if the
    consumer had been in `sample` for a quarter of that by then, and ``parked_share`` says how
    many did.
    """
    stream = ring.open(engine, pool)
    receiver = Receiver(pool)
    trees = itertools.cycle(pool.entries)

    def consume() -> tuple[list[int], list[int]]:
        entered, received = [], []
        failure: ContentError | None = None
        for _ in range(handovers):
            entered.append(time.perf_counter_ns())
            batch = stream.sample().data
            received.append(time.perf_counter_ns())
            if failure is None:
                try:
                    receiver.check(batch, ring.batch_size)
                except ContentError as error:
                    failure = error
        if failure is not None:
            raise failure
        return entered, received

    def measure() -> Measurement:
        add = stream.add
        sent = []
        with ThreadPoolExecutor(1) as threads, _closed_on_error(stream):
            consumer = threads.submit(consume)
            for _ in range(handovers):
                # Going on at once would keep the GIL from the consumer that is waking up.
                time.sleep(pause)
                for tree in itertools.islice(trees, ring.batch_size - 1):
                    add(tree)
                last = next(trees)
                time.sleep(pause)
                sent.append(time.perf_counter_ns())
                add(last)
            entered, received = (np.array(times) for times in consumer.result())
        parked = np.array(sent) - entered >= pause / 4 * 1e9
        if not parked.any():
            raise RuntimeError("the consumer was never parked: the machine is too busy")
        delays = (received - np.array(sent))[parked] / 1e3
        median, p99 = np.percentile(delays, [50, 99])
        return Measurement(
            float(median), {"p99_us": float(p99), "parked_share": float(parked.mean())}
        )

    with contextlib.closing(stream):
        yield measure


@contextlib.contextmanager
def take_ready(engine: Engine, pool: Pool, *, ring: Ring, rounds: int) -> Iterator[Measure]:
    """Call `sample` and reach for its tree while batches lie ready; µs a batch.

    Giving back the previous batch is in the number, as in any real loop. One round of
    each repeat is off the clock and checks every batch it takes.
    """
    stream = ring.open(engine, pool)
    receiver = Receiver(pool)
    trees = itertools.cycle(pool.entries)
    ready = _ready(ring)

    def fill() -> None:
        for tree in itertools.islice(trees, ready * ring.batch_size):
            stream.add(tree)

    def measure() -> Measurement:
        sample = stream.sample
        fill()
        for _ in range(ready):
            receiver.check(sample().data, ring.batch_size)
        elapsed = 0
        for _ in range(rounds):
            fill()
            start = time.perf_counter_ns()
            for _ in range(ready):
                batch = sample().data
            elapsed += time.perf_counter_ns() - start
            receiver.skip((ready - 1) * ring.batch_size)
            receiver.check(batch, ring.batch_size)
        return Measurement(elapsed / (rounds * ready) / 1e3)

    with contextlib.closing(stream):
        yield measure


@contextlib.contextmanager
def _closed_on_error(stream: Stream) -> Iterator[None]:
    """End the stream if the producer fails, or its consumer would wait for ever."""
    try:
        yield
    except BaseException:
        stream.close()
        raise


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones do little work and say little."""
    return [
        _submit_small(quick, threaded=False),
        _submit_small(quick, threaded=True),
        *(_submit_batch_small(quick, rows) for rows in (4096, 16384, 65536)),
        _submit_batch_small(quick, 16384, aliased=True),
        _frames(quick),
        _frame_blocks(quick),
        _layers(quick),
        _handover(quick),
        _take_ready(quick),
    ]


def _submit_small(quick: bool, *, threaded: bool) -> Workload:
    pool = Pool.of_samples(payload.small(), 61)
    ring = Ring(1024)
    batches = 8 if quick else 200
    session: Session = partial(
        submit_threaded if threaded else partial(submit_alternating, unit="us"),
        pool=pool,
        ring=ring,
        batches=batches,
    )
    return Workload(
        name="submit_small_threaded" if threaded else "submit_small_alternating",
        kind="stream",
        what="submit of {obs: (4,) f32, reward: (1,) f32}, "
        + ("producer and consumer thread" if threaded else "one thread fills and takes"),
        unit="us/sample",
        better="lower",
        session=session,
        bound_name="empty native call with the same argument, one thread",
        bound=partial(probes.empty_calls, pool=pool, calls=batches * ring.batch_size),
        parameters={**asdict(ring), "batches": batches},
        targets=() if threaded else (Target("above_bound", at_most=0.5),),
    )


def _submit_batch_small(quick: bool, rows: int, *, aliased: bool = False) -> Workload:
    pool = Pool.of_blocks(payload.small(), 3, rows)
    ring = Ring(rows)
    batches = 8 if quick else 2**25 // (rows * 8)
    return Workload(
        name=f"submit_batch_small_{rows}" + ("_aliased" if aliased else ""),
        kind="stream",
        what=f"submit_batch of {{obs: (4,) f32, reward: (1,) f32}}, {rows} rows a call"
        + (", 16 bytes earlier in their pages than the ring" if aliased else ""),
        unit="GB/s",
        better="higher",
        session=partial(submit_blocks, pool=pool, ring=ring, batches=batches, aliased=aliased),
        bound_name=COPY_NAME,
        bound=copies(pool, ring, slots_per_batch=1, batches=batches),
        **_limit(pool, ring, slots_per_batch=1, quick=quick),
        parameters={**asdict(ring), "batches": batches},
        targets=(
            Target("ratio_to_bound", at_least=0.8),
            Target("samples_per_s", at_least=20e6),
        ),
        steady=rows == 16384 and not aliased,
    )


def _frames(quick: bool) -> Workload:
    return _submit_bytes(
        name="submit_frames",
        what="submit of an 84x84x4 u8 frame with three scalars, one thread",
        pool=Pool.of_samples(payload.frame(), 7),
        ring=Ring(64),
        batches=2 if quick else 100,
        quick=quick,
        targets=(Target("ratio_to_bound", at_least=0.85),),
    )


def _layers(quick: bool) -> Workload:
    return _submit_bytes(
        name="submit_layers",
        what="submit of a 1.02 MB tree of 44 leaves, one thread",
        pool=Pool.of_samples(payload.layers(), 3),
        ring=Ring(8),
        batches=1 if quick else 20,
        quick=quick,
        targets=(),
    )


def _submit_bytes(
    *,
    name: str,
    what: str,
    pool: Pool,
    ring: Ring,
    batches: int,
    quick: bool,
    targets: tuple[Target, ...],
) -> Workload:
    return Workload(
        name=name,
        kind="stream",
        what=what,
        unit="GB/s",
        better="higher",
        session=partial(submit_alternating, pool=pool, ring=ring, batches=batches, unit="GB/s"),
        bound_name=COPY_NAME,
        bound=copies(pool, ring, slots_per_batch=ring.batch_size, batches=batches),
        **_limit(pool, ring, slots_per_batch=ring.batch_size, quick=quick),
        parameters={
            **asdict(ring),
            "batches": batches,
            "sample_bytes": payload.sample_bytes(pool.example),
        },
        targets=targets,
        # Frames lie at the edge of a cache, so their bound has several speeds.
        steady=name == "submit_layers",
    )


def _frame_blocks(quick: bool) -> Workload:
    ring = Ring(64)
    pool = Pool.of_blocks(payload.frame(), 3, ring.batch_size)
    batches = 2 if quick else 100
    return Workload(
        name="submit_batch_frames",
        kind="stream",
        what=f"submit_batch of 84x84x4 u8 frames with scalars, {ring.batch_size} rows a call",
        unit="GB/s",
        better="higher",
        session=partial(submit_blocks, pool=pool, ring=ring, batches=batches, aliased=False),
        bound_name=COPY_NAME,
        bound=copies(pool, ring, slots_per_batch=1, batches=batches),
        **_limit(pool, ring, slots_per_batch=1, quick=quick),
        parameters={**asdict(ring), "batches": batches},
        targets=(Target("ratio_to_bound", at_least=0.85),),
        steady=True,
    )


def _handover(quick: bool) -> Workload:
    ring = Ring(32)
    pool = Pool.of_samples(payload.small(), 61)
    handovers = 20 if quick else 300
    pause = 0.001
    return Workload(
        name="handover",
        kind="stream",
        what="from before the submit that completes a batch until a parked consumer thread has "
        "it in hand",
        unit="us",
        better="lower",
        session=partial(handover, pool=pool, ring=ring, handovers=handovers, pause=pause),
        bound_name="wake-up of a Python thread parked on a threading.Lock",
        bound=any_engine(partial(probes.lock_handovers, handovers, 2 * pause)),
        parameters={**asdict(ring), "handovers": handovers, "pause_s": pause},
        targets=(Target("value", at_most=20), Target("p99_us", at_most=100)),
    )


def _take_ready(quick: bool) -> Workload:
    ring = Ring(8, num_buffers=16)
    pool = Pool.of_samples(payload.six_leaves(), 61)
    rounds = 4 if quick else 500
    slices = partial(
        probes.numpy_slices,
        pool.example,
        batch_size=ring.batch_size,
        batches=rounds * _ready(ring),
    )
    return Workload(
        name="take_ready",
        kind="stream",
        what="sample and its tree of six leaves while batches lie ready",
        unit="us/batch",
        better="lower",
        session=partial(take_ready, pool=pool, ring=ring, rounds=rounds),
        bound_name="six numpy slices in a dict, plain Python: a reference, not a bound",
        bound=any_engine(slices),
        parameters={**asdict(ring), "rounds": rounds},
        targets=(Target("value", at_most=2),),
    )


def _limit(pool: Pool, ring: Ring, *, slots_per_batch: int, quick: bool) -> limits.Fields:
    """The same copies by a program in Rust."""
    return limits.copies(
        pool.rows * payload.sample_bytes(pool.example),
        sources=len(pool.entries),
        targets=ring.num_buffers * slots_per_batch,
        seconds=0.02 if quick else 0.1,
    )


def _ready(ring: Ring) -> int:
    # Fewer than the ring holds: the batch in hand occupies a buffer too.
    return ring.num_buffers - 2
