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

MakeServer = Callable[..., echoic.Server]

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


def test_the_counter_counts(make_server: MakeServer) -> None:
    before = allocation_count()
    make_server(OBS)
    assert allocation_count() > before


@pytest.mark.parametrize("name", SAMPLES)
def test_submitting_allocates_nothing(make_server: MakeServer, name: str) -> None:
    sample = SAMPLES[name]
    # Many small batches, so that their completion is covered.
    server = make_server(sample, batch_size=8, capacity=16000)
    for _ in range(100):
        server.add(sample)

    def work() -> None:
        for _ in range(4000):
            server.add(sample)

    assert fewest(work) == 0
    assert server.info.inserted_total == 12_100


@pytest.mark.parametrize("rows", [1, 7, 8, 20])
def test_submitting_rows_allocates_nothing(make_server: MakeServer, rows: int) -> None:
    server = make_server(SIX, batch_size=8, capacity=32000)
    batch = {name: np.zeros((rows, 3), np.float32) for name in SIX}
    for _ in range(10):
        server.extend(batch)

    def work() -> None:
        for _ in range(500):
            server.extend(batch)

    assert fewest(work) == 0


def cycles(server: echoic.Server, sample: Any, count: int) -> int:
    """Allocations of `count` rounds of filling a batch, taking it and dropping it."""
    before = allocation_count()
    for _ in range(count):
        for _ in range(server.batch_size):
            server.add(sample)
        server.sample()
    return allocation_count() - before


# What is left: one short list of lengths per batch, from which numpy takes the shapes.
def test_taking_and_dropping_a_batch_of_six_leaves_allocates_at_most_twice(
    make_server: MakeServer,
) -> None:
    server = make_server(SIX, batch_size=8, capacity=24)
    cycles(server, SIX, 20)
    assert cycles(server, SIX, 1000) <= 2 * 1000


def test_memory_does_not_grow_with_the_number_of_batches(make_server: MakeServer) -> None:
    server = make_server(SAMPLES["nested"], batch_size=2, capacity=6)
    cycles(server, SAMPLES["nested"], 20)

    def work() -> None:
        cycles(server, SAMPLES["nested"], 500)

    assert fewest(work) == fewest(work)


def test_a_producer_that_blocks_allocates_nothing(make_server: MakeServer, background: Any) -> None:
    server = make_server(OBS, batch_size=1, capacity=2)
    rounds = 200

    def consume() -> None:
        for _ in range(rounds + 20):
            server.sample(timeout=20)

    consumed = background.start(consume)
    for _ in range(20):
        server.add(OBS, timeout=20)
    before = allocation_count()
    for _ in range(rounds):
        server.add(OBS, timeout=20)
    grown = allocation_count() - before
    consumed()
    # The consumer's own, as above, and nothing on top.
    assert grown <= 2 * (rounds + 20)
