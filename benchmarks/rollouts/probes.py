"""Bounds of rollouts: the same bytes in numpy's hands, in one thread, without any system."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.rollouts.groups import POOL, Groups
from benchmarks.timing import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.timing import Measure

# Batches that memory is used up by before it is used again, as by a table with a few of them.
_TARGETS = 4


@contextlib.contextmanager
def copies(items: int, tokens: int, *, batch: int, seconds: float) -> Iterator[Measure]:
    """Copy each group of the pool, column by column, into its place in a batch: groups/s."""
    groups = Groups(items, tokens)
    entries = [groups.entry(serial) for serial in range(POOL)]
    targets = [
        {name: np.zeros((batch, *c.shape), c.dtype) for name, c in entries[0].items()}
        for _ in range(_TARGETS)
    ]

    def measure() -> Measurement:
        done, start = 0, time.perf_counter_ns()
        end = start + int(seconds * 1e9 / 3)
        while time.perf_counter_ns() < end:
            for target in targets:
                for place in range(batch):
                    for name, column in entries[done % POOL].items():
                        np.copyto(target[name][place], column)
                    done += 1
        return Measurement(done / (time.perf_counter_ns() - start) * 1e9)

    yield measure


@contextlib.contextmanager
def gather_groups(*, live: int, batch: int, rounds: int) -> Iterator[Measure]:
    """Gather the numbers of random groups, a batch at a time: µs a group."""
    generator = np.random.default_rng(20)
    rows, index = np.arange(live), generator.integers(0, live, (rounds, batch))

    def measure() -> Measurement:
        start = time.perf_counter_ns()
        for row in index:
            rows.take(row)
        return Measurement((time.perf_counter_ns() - start) / rounds / batch / 1e3)

    yield measure
