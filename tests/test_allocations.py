"""The steady state allocates nothing in Rust: the module counts, these tests compare."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from echoic._native import allocation_count

MakeStream = Callable[..., echoic.Stream]

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Step:
    obs: Any
    reward: Any


OBS = np.zeros(4, np.float32)
SIX = {name: np.zeros(3, np.float32) for name in "abcdef"}

SAMPLES = {
    "dict": {"obs": OBS, "reward": np.zeros(1, np.float32)},
    "six leaves": SIX,
    "nested": {"a": (OBS, [OBS, {"b": OBS}]), "c": None},
    "namedtuple": Pair(OBS, OBS),
    "dataclass": Step(OBS, OBS),
    "single leaf": OBS,
    "python numbers": {"float": 1.5, "int": 3, "flag": True, "complex": 1j},
    "numpy scalars": {"reward": np.float32(1), "action": np.int64(3), "done": np.bool_(0)},
    "not contiguous": np.zeros((4, 6), np.float32)[:, ::2],
    "byte-swapped": np.zeros(4, ">f4"),
    "bytes": b"abcde",
    "buffer": memoryview(bytes(8)),
}


def fewest(work: Callable[[], None]) -> int:
    """How often Rust allocates while `work` is done, the fewest of three times.

    All threads of the process are counted: one that an earlier test has left, such as a client
    that says now and then that it is there, may come in between.
    """
    counts = []
    for _ in range(3):
        before = allocation_count()
        work()
        counts.append(allocation_count() - before)
    return min(counts)


def test_the_counter_counts(make_stream: MakeStream) -> None:
    before = allocation_count()
    make_stream(OBS)
    assert allocation_count() > before


@pytest.mark.parametrize("name", SAMPLES)
def test_submitting_allocates_nothing(make_stream: MakeStream, name: str) -> None:
    sample = SAMPLES[name]
    # Many small batches, so that their completion is covered.
    stream = make_stream(sample, batch_size=8, capacity=16000)
    for _ in range(100):
        stream.add(sample)

    def work() -> None:
        for _ in range(4000):
            stream.add(sample)

    assert fewest(work) == 0
    assert stream.stats().inserted_total == 12_100


@pytest.mark.parametrize("rows", [1, 7, 8, 20])
def test_submitting_rows_allocates_nothing(make_stream: MakeStream, rows: int) -> None:
    stream = make_stream(SIX, batch_size=8, capacity=32000)
    batch = {name: np.zeros((rows, 3), np.float32) for name in SIX}
    for _ in range(10):
        stream.extend(batch)

    def work() -> None:
        for _ in range(500):
            stream.extend(batch)

    assert fewest(work) == 0


def cycles(stream: echoic.Stream, sample: Any, count: int) -> int:
    """Allocations of `count` rounds of filling a batch, taking it and dropping it."""
    before = allocation_count()
    for _ in range(count):
        for _ in range(stream.batch_size):
            stream.add(sample)
        stream.sample()
    return allocation_count() - before


# What is left: one short list of lengths per batch, from which numpy takes the shapes.
def test_taking_and_dropping_a_batch_of_six_leaves_allocates_at_most_twice(
    make_stream: MakeStream,
) -> None:
    stream = make_stream(SIX, batch_size=8, capacity=24)
    cycles(stream, SIX, 20)
    assert cycles(stream, SIX, 1000) <= 2 * 1000


def test_memory_does_not_grow_with_the_number_of_batches(make_stream: MakeStream) -> None:
    stream = make_stream(SAMPLES["nested"], batch_size=2, capacity=6)
    cycles(stream, SAMPLES["nested"], 20)

    def work() -> None:
        cycles(stream, SAMPLES["nested"], 500)

    assert fewest(work) == fewest(work)


def test_a_producer_that_blocks_allocates_nothing(make_stream: MakeStream, background: Any) -> None:
    stream = make_stream(OBS, batch_size=1, capacity=2)
    rounds = 200

    def consume() -> None:
        for _ in range(rounds + 20):
            stream.sample(timeout=20)

    consumed = background.start(consume)
    for _ in range(20):
        stream.add(OBS, timeout=20)
    before = allocation_count()
    for _ in range(rounds):
        stream.add(OBS, timeout=20)
    grown = allocation_count() - before
    consumed()
    # The consumer's own, as above, and nothing on top.
    assert grown <= 2 * (rounds + 20)
