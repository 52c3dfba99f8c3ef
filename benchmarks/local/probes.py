"""Physical bounds: the same bytes copied by numpy, and what else nothing can do without."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.content import ContentError
from benchmarks.local.items import Rows
from benchmarks.payload import touched_bytes
from benchmarks.probes import empty_calls
from benchmarks.tables.probes import gather
from benchmarks.timing import Measure, Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.engine import Echoic
    from benchmarks.local.engine import Plan

# A source of images that no cache holds.
_IMAGES = 4096
_FIRST_RATE = 100.0


@contextlib.contextmanager
def native_calls(engine: Echoic, *, seconds: float, scale: float = 0.0) -> Iterator[Measure]:
    """Call an empty native function: µs a call, or calls per second times ``scale``."""
    pool = Rows("small").pool(61)
    with empty_calls(engine, pool, max(1000, int(seconds * 5e6))) as measure:

        def scaled() -> Measurement:
            value = measure().value
            return Measurement(scale * 1e6 / value if scale else value)

        yield scaled


@contextlib.contextmanager
def copies(
    nbytes: int, *, sources: int, targets: int, seconds: float, scale: float = 0.0
) -> Iterator[Measure]:
    """Copy ``nbytes`` with numpy, from so many places to so many in turn.

    µs a copy, or copies per second times ``scale``.
    """
    stride = -(-nbytes // 64) * 64
    source, target = (touched_bytes(stride * count, 1) for count in (sources, targets))
    source[:] = np.arange(len(source), dtype=np.uint8)
    pairs = zip(
        itertools.cycle([source[i * stride :][:nbytes] for i in range(sources)]),
        itertools.cycle([target[i * stride :][:nbytes] for i in range(targets)]),
        strict=False,
    )
    rate = _FIRST_RATE

    def measure() -> Measurement:
        nonlocal rate
        count = max(1, round(rate * seconds))
        start = time.perf_counter_ns()
        for one, other in itertools.islice(pairs, count):
            np.copyto(other, one)
        elapsed = time.perf_counter_ns() - start
        rate = count / elapsed * 1e9
        if not np.array_equal(one, other):
            raise ContentError("a copy that is not its source")
        return Measurement(rate * scale if scale else elapsed / count / 1e3)

    yield measure


@contextlib.contextmanager
def gathers(plan: Plan, *, batch: int, seconds: float) -> Iterator[Measure]:
    """Gather random rows of a packed array into another that is used again: µs a batch."""
    with gather(Rows(plan.kind), rows=gathered_rows(plan), batch=batch, seconds=seconds) as measure:
        yield measure


def gathered_rows(plan: Plan) -> int:
    """From how many rows a gather takes its batches: of images, as many as no cache holds."""
    return min(plan.capacity, _IMAGES) if plan.kind == "image" else plan.capacity


@contextlib.contextmanager
def reads(plan: Plan, *, batch: int, seconds: float) -> Iterator[Measure]:
    """Read random rows of a file in the order in which they lie there: µs a batch.

    The file has just been written, so that what it costs is the system's calls and copies.
    """
    items = Rows(plan.kind)
    nbytes = items.nbytes
    generator = np.random.default_rng(20)
    draws = [np.sort(generator.integers(0, plan.capacity, batch)) * nbytes for _ in range(61)]
    row = np.arange(nbytes, dtype=np.uint64).astype(np.uint8)
    target = np.zeros((batch, nbytes), np.uint8)
    slots = [[each.data] for each in target]
    rate = _FIRST_RATE
    with tempfile.TemporaryFile() as file:
        for number in range(plan.capacity):
            file.write(row.data)
            row[0] = (number + 1) % 256
        file.flush()

        def measure() -> Measurement:
            nonlocal rate
            count = max(1, round(rate * seconds))
            start = time.perf_counter_ns()
            for offsets in itertools.islice(itertools.cycle(draws), count):
                for slot, offset in zip(slots, offsets.tolist(), strict=True):
                    os.preadv(file.fileno(), slot, offset)
            elapsed = time.perf_counter_ns() - start
            rate = count / elapsed * 1e9
            if not np.array_equal(target[:, 0], offsets // nbytes % 256):
                raise ContentError("a row of the file that is not the one asked for")
            return Measurement(elapsed / count / 1e3)

        yield measure


@contextlib.contextmanager
def products(*, envs: int, hidden: int, seconds: float) -> Iterator[Measure]:
    """Multiply by the matrices of an actor and a critic, and nothing else: rows per second."""
    generator = np.random.default_rng(20)
    networks = [
        [
            generator.normal(0, 0.1, size).astype(np.float32)
            for size in ((4, hidden), (hidden, hidden), (hidden, out))
        ]
        for out in (2, 1)
    ]
    obs = generator.normal(size=(envs, 4)).astype(np.float32)
    rate = _FIRST_RATE

    def measure() -> Measurement:
        nonlocal rate
        count = max(1, round(rate * seconds))
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, count):
            for first, second, third in networks:
                obs @ first @ second @ third
        rate = count / (time.perf_counter_ns() - start) * 1e9
        return Measurement(rate * envs)

    yield measure
