"""What a table may be told, and what it refuses with which words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from echoic import limiters, selectors
from echoic.errors import LimiterError

pytestmark = pytest.mark.timeout(60)

MakeTable = Callable[..., echoic.Table]

INF = float("inf")
NAN = float("nan")

# Of a limiter where each insert makes 4 samples, with room for no more than 2.
DEADLOCK = (
    "after 10 inserts and 1 samples everyone would wait for ever: one more insert makes "
    "10 × 4 − 1 + 4 = 43, above max_diff 41; one more sample makes 10 × 4 − 1 − 1 = 38, "
    "below min_diff 39; a max_diff − min_diff of 1 + samples_per_insert = 5 is always "
    "enough, this is 2"
)


def test_a_new_table_says_what_it_is(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), capacity=7)
    assert table.stats().as_dict() == {
        "name": "replay",
        "size": 0,
        "total_weight": 0.0,
        "capacity": 7,
        "inserts": 0,
        "samples": 0,
        "deletions": 0,
        "add_calls_waiting": 0,
        "add_calls_limited": 0,
        "add_wait_seconds": 0.0,
        "sample_calls_waiting": 0,
        "sample_calls_limited": 0,
        "sample_wait_seconds": 0.0,
        "unique_samples": 0,
        "episodes": 0,
        "deleted_episodes": 0,
        "sampler": "uniform",
        "remover": "fifo",
        "seed": 1,
        "min_size": 1,
        "samples_per_insert": 1.0,
        "min_diff": -INF,
        "max_diff": INF,
        "paused": False,
        "version": 0,
        "memory_bytes": 0,
    }
    assert (table.name, len(table), table.capacity) == ("replay", 0, 7)
    assert repr(table) == "Table('replay', size=0, capacity=7)"


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (selectors.Uniform(), "uniform"),
        (selectors.Prioritized(), "prioritized(exponent=1)"),
        (selectors.Prioritized(0.6), "prioritized(exponent=0.6)"),
        (selectors.Prioritized(0), "prioritized(exponent=0)"),
        (selectors.Fifo(), "fifo"),
        (selectors.Lifo(), "lifo"),
        (selectors.MinHeap(), "min_heap"),
        (selectors.MaxHeap(), "max_heap"),
        (selectors.Epoch(), "epoch"),
        (selectors.HotCold(3), "hot_cold(age_threshold=3, hot_fraction=0.7, exponent=1)"),
        (
            selectors.HotCold(0, 0.25, exponent=2),
            "hot_cold(age_threshold=0, hot_fraction=0.25, exponent=2)",
        ),
    ],
)
def test_every_selector_may_sample_and_remove(
    make_table: MakeTable, selector: selectors.Selector, text: str
) -> None:
    info = make_table(np.int64(0), sampler=selector).stats()
    assert (info.sampler, info.remover) == (text, "fifo")
    info = make_table(np.int64(0), remover=selector).stats()
    assert (info.sampler, info.remover) == ("uniform", text)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (
            selectors.Prioritized(-1),
            "exponent of a prioritized selector must be finite and at least 0, got -1",
        ),
        (
            selectors.Prioritized(NAN),
            "exponent of a prioritized selector must be finite and at least 0, got NaN",
        ),
        (
            selectors.Prioritized(INF),
            "exponent of a prioritized selector must be finite and at least 0, got inf",
        ),
        (
            selectors.HotCold(3, 1.5),
            "hot_fraction of a hot_cold selector must be from 0 to 1, got 1.5",
        ),
        (
            selectors.HotCold(3, NAN),
            "hot_fraction of a hot_cold selector must be from 0 to 1, got NaN",
        ),
        (
            selectors.HotCold(3, 0.5, -1),
            "exponent of a hot_cold selector must be finite and at least 0, got -1",
        ),
        (selectors.HotCold(-1), "age_threshold"),
        (selectors.HotCold(NAN), "age_threshold"),  # type: ignore[arg-type]
        (selectors.HotCold(1.5), "age_threshold"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("role", ["sampler", "remover"])
def test_a_selector_with_a_bad_number_is_refused(
    make_table: MakeTable, role: str, selector: selectors.Selector, text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        make_table(np.int64(0), **{role: selector})


@pytest.mark.parametrize(
    ("limiter", "numbers"),
    [
        (limiters.MinSize(), (1, 1.0, -INF, INF)),
        (limiters.MinSize(50), (50, 1.0, -INF, INF)),
        (limiters.Queue(10), (1, 1.0, 0.0, 10.0)),
        (limiters.Stack(10), (1, 1.0, 0.0, 10.0)),
        # Around min_size * samples_per_insert, where samples begin.
        (limiters.SampleToInsertRatio(4.0, 10, 8.0), (10, 4.0, 32.0, 48.0)),
        (limiters.SampleToInsertRatio(0.5, 10, (3.0, 9.0)), (10, 0.5, 3.0, 9.0)),
        (limiters.RateLimiter(2, 3.0, -5.0, INF), (2, 3.0, -5.0, INF)),
    ],
)
def test_every_limiter_has_four_numbers(
    make_table: MakeTable, limiter: limiters.Limiter, numbers: tuple[float, ...]
) -> None:
    stats = make_table(np.int64(0), limiter=limiter).stats()
    found = (stats.min_size, stats.samples_per_insert, stats.min_diff, stats.max_diff)
    assert found == numbers


@pytest.mark.parametrize(
    ("limiter", "text"),
    [
        (limiters.MinSize(0), "min_size must be at least 1, got 0"),
        (limiters.MinSize(-3), "min_size must be at least 1, got"),
        (limiters.MinSize(101), "min_size 101 is never reached by a table of capacity 100"),
        (limiters.Queue(0), "the size of a queue or a stack must be at least 1, got 0"),
        (limiters.Stack(0), "the size of a queue or a stack must be at least 1, got 0"),
        (
            limiters.SampleToInsertRatio(0.0, 1, 1.0),
            "samples_per_insert must be a finite number above 0, got 0",
        ),
        (limiters.SampleToInsertRatio(NAN, 1, 1.0), "samples_per_insert must be a finite number"),
        (limiters.SampleToInsertRatio(1.0, 0, 1.0), "min_size must be at least 1, got 0"),
        (
            limiters.SampleToInsertRatio(1.0, 1, -1.0),
            "error_buffer must be a number of at least 0, got -1",
        ),
        (limiters.SampleToInsertRatio(1.0, 1, NAN), "error_buffer must be a number"),
        (
            limiters.SampleToInsertRatio(4.0, 10, 1.0),
            DEADLOCK,
        ),
        (limiters.SampleToInsertRatio(1.0, 1, (3.0, 1.0)), "everyone would wait for ever"),
        (limiters.RateLimiter(1, 1.0, NAN, 1.0), "min_diff must be a number below infinity"),
        (limiters.RateLimiter(1, 1.0, INF, INF), "min_diff must be a number below infinity"),
        (limiters.RateLimiter(1, 1.0, 0.0, -INF), "max_diff must be a number above minus infinity"),
        (limiters.RateLimiter(1, INF, 0.0, 1.0), "samples_per_insert must be a finite number"),
        (limiters.RateLimiter(1, 1.0, 5.0, 1.0), "everyone would wait for ever"),
    ],
)
def test_a_limiter_under_which_somebody_waits_for_ever_is_refused(
    make_table: MakeTable, limiter: limiters.Limiter, text: str
) -> None:
    with pytest.raises(LimiterError, match=re.escape(text)):
        make_table(np.int64(0), limiter=limiter)
    # The same words when it comes later, and then the old one goes on.
    table = make_table(np.int64(0), limiter=limiters.MinSize(2))
    with pytest.raises(LimiterError, match=re.escape(text)):
        table.set_limiter(limiter)
    assert table.stats().min_size == 2
    table.add(1)
    assert not table.can_sample(1)
    table.add(2)
    assert table.can_sample(1)


@pytest.mark.parametrize(
    "limiter",
    [
        limiters.MinSize(1.5),  # type: ignore[arg-type]
        limiters.MinSize(NAN),  # type: ignore[arg-type]
        limiters.Queue(2.5),  # type: ignore[arg-type]
        limiters.SampleToInsertRatio(1.0, 1.5, 5.0),  # type: ignore[arg-type]
    ],
)
def test_a_size_that_is_no_whole_number_is_refused(
    make_table: MakeTable, limiter: limiters.Limiter
) -> None:
    with pytest.raises((ValueError, TypeError)):
        make_table(np.int64(0), limiter=limiter)


@pytest.mark.parametrize("value", ["uniform", selectors.Uniform, None, 1])
def test_what_is_no_selector_or_limiter_is_refused_by_its_type(
    make_table: MakeTable, value: Any
) -> None:
    if value is not None:
        for role in ("sampler", "remover"):
            with pytest.raises(TypeError, match=f"{role} must be one of echoic.selectors, got a"):
                make_table(np.int64(0), **{role: value})
        with pytest.raises(TypeError, match=r"limiter must be one of echoic.limiters, got a"):
            make_table(np.int64(0), limiter=value)
    table = make_table(np.int64(0))
    with pytest.raises(TypeError, match=r"limiter must be one of echoic.limiters, got a"):
        table.set_limiter(value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"capacity": -1}, "capacity must be positive, got -1"),
        ({"capacity": 1 << 32}, "capacity must be below 4294967295, got 4294967296"),
        (
            {"max_times_sampled": 0},
            "max_times_sampled must be at least 1, or None for no limit, got 0",
        ),
        ({"max_times_sampled": -1}, "max_times_sampled must be positive, got -1"),
    ],
)
def test_a_size_that_makes_no_table_is_refused(
    make_table: MakeTable, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        make_table(np.int64(0), **settings)


@pytest.mark.parametrize("name", ["", "n" * 257])
def test_a_name_has_1_to_256_bytes(name: str) -> None:
    with pytest.raises(ValueError, match=r"a table's name has 1 to 256 bytes, got"):
        echoic.Table(name, np.int64(0), capacity=1)
    assert echoic.Table("n" * 256, np.int64(0), capacity=1).name == "n" * 256


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_that_is_no_64_bit_number_is_refused(make_table: MakeTable, seed: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        make_table(np.int64(0), seed=seed)


def test_a_table_larger_than_the_machine_is_refused(make_table: MakeTable) -> None:
    with pytest.raises(MemoryError, match=r"bytes of memory"):
        make_table(np.broadcast_to(np.uint8(0), (1 << 40,)), capacity=1 << 20)
    with pytest.raises(MemoryError, match=r"more bytes than an address can hold"):
        make_table(np.broadcast_to(np.uint8(0), (1 << 40,)), capacity=1 << 31)


def test_a_spec_that_can_not_be_stored_is_refused(make_table: MakeTable) -> None:
    with pytest.raises(echoic.errors.SpecError, match="there is nothing to store"):
        make_table({})
    with pytest.raises(echoic.errors.SpecError, match="leaf `a` of the example: object arrays"):
        make_table({"a": object()})


def test_the_spec_of_a_table_can_be_read(make_table: MakeTable) -> None:
    spec = make_table({"obs": np.zeros(4, np.float32), "reward": np.float32(0)}).spec
    assert spec is not None
    assert [(leaf.path, leaf.dtype, leaf.shape) for leaf in spec.leaves] == [
        ("obs", "float32", (4,)),
        ("reward", "float32", ()),
    ]
    assert make_table().spec is None


def test_selectors_and_limiters_are_values() -> None:
    assert selectors.Prioritized(0.6) == selectors.Prioritized(0.6) != selectors.Prioritized(0.7)
    assert limiters.Queue(3) == limiters.Queue(3) != limiters.Stack(3)
    assert repr(selectors.HotCold(3)) == (
        "HotCold(age_threshold=3, hot_fraction=0.7, exponent=1.0)"
    )
    with pytest.raises(AttributeError):
        limiters.MinSize(3).min_size = 4  # type: ignore[misc]
