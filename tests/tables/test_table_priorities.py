"""Priorities: what they do, how they change, and that a bad one never harms a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from echoic import selectors
from echoic.errors import PriorityError

pytestmark = pytest.mark.timeout(60)

MakeTable = Callable[..., echoic.Table]

BAD = [-1.0, -1e-300, float("nan"), float("inf"), float("-inf")]


def contents(table: echoic.Table) -> dict[int, float]:
    """Items and their priorities, of a table that samples by epochs."""
    # The rest of the epoch that has begun, and a whole one.
    batch = table.sample(2 * len(table))
    return dict(zip(batch.data.tolist(), batch.info.priorities.tolist(), strict=True))


def keys_of(table: echoic.Table) -> dict[int, int]:
    """Items and their keys, of such a table."""
    batch = table.sample(2 * len(table))
    return dict(zip(batch.data.tolist(), batch.keys.tolist(), strict=True))


def test_items_are_drawn_as_their_priorities_say(make_table: MakeTable) -> None:
    # The seed is fixed, so this passes always or never. A right generator leaves the six standard
    # deviations of one of the eight counts with probability 8 * 2e-9.
    priorities = np.array([0, 0.1, 0.5, 1, 1, 2, 5, 20])
    for exponent in (0.0, 0.6, 1.0, 2.0):
        table = make_table(np.int64(0), sampler=selectors.Prioritized(exponent), seed=20)
        table.extend(np.arange(8), priorities=priorities)
        counts = np.zeros(8)
        for _ in range(200):
            batch = table.sample(1000)
            counts += np.bincount(batch.data, minlength=8)
        odds = np.where(priorities > 0, priorities**exponent, 0)
        odds /= odds.sum()
        deviations = np.sqrt(200_000 * odds * (1 - odds))
        assert (abs(counts - 200_000 * odds) <= 6 * deviations).all(), exponent
        assert counts[0] == 0
        np.testing.assert_allclose(batch.info.probabilities, odds[batch.data], rtol=1e-12)


def test_items_that_are_all_of_priority_zero_are_drawn_alike(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Prioritized(0.6))
    table.extend(np.arange(4), priorities=np.zeros(4))
    batch = table.sample(100)
    assert set(batch.data.tolist()) == {0, 1, 2, 3}
    assert batch.info.probabilities.tolist() == [0.25] * 100
    table.update_priorities(batch.keys[:1], [1.0])
    assert set(table.sample(100).data.tolist()) == {int(batch.data[0])}


def test_priorities_as_far_apart_as_can_be_are_kept_apart(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Prioritized(2.0))
    table.extend(np.arange(3), priorities=[5e-324, 1.7e308, 1.7e308])
    batch = table.sample(100)
    assert set(batch.data.tolist()) == {1, 2}
    np.testing.assert_allclose(batch.info.probabilities, 0.5)


def test_an_update_changes_what_is_drawn(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.MaxHeap(), remover=selectors.MinHeap())
    table.extend(np.arange(3), priorities=[1, 2, 3])
    assert table.sample(1).data.tolist() == [2]
    assert table.update_priorities(table.sample(1).keys, [0.5]) == 1
    assert table.sample(2).data.tolist() == [1, 1]


def test_of_a_key_that_is_there_twice_the_last_value_counts(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Epoch())
    table.extend(np.arange(3))
    key = keys_of(table)[1]
    table.update_priorities([key, key, key], [5.0, 6.0, 7.0])
    assert contents(table) == {0: 1, 1: 7, 2: 1}


def test_keys_of_items_that_are_gone_are_passed_over(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Epoch(), capacity=3)
    table.extend(np.arange(3))
    keys = keys_of(table)
    table.add(3)
    table.remove([keys[1]])
    assert table.update_priorities([keys[0], keys[1], keys[2], 12345 << 32], [9.0] * 4) == 1
    assert contents(table) == {2: 9, 3: 1}
    # Later items in the same memory have keys of their own.
    table.extend(np.arange(10, 30))
    assert table.update_priorities(list(keys.values()), [9.0] * 3) == 0
    table.clear()
    table.extend(np.arange(3))
    assert table.update_priorities(list(keys.values()), [9.0] * 3) == 0


@pytest.mark.parametrize(
    "values",
    [
        [2.0, 3.0],
        (2, 3),
        np.array([2, 3], np.float16),
        np.array([2, 3], np.uint8),
        np.array([2.0, 3.0], ">f8"),
        np.array([[2.0], [3.0]]),
        np.array([2.0, 0.0, 3.0])[::2],
    ],
    ids=["list", "tuple", "float16", "uint8", "byte-swapped", "column", "strided"],
)
def test_priorities_may_be_any_numbers(make_table: MakeTable, values: Any) -> None:
    table = make_table(np.int64(0), sampler=selectors.Epoch())
    table.extend(np.arange(2))
    keys = keys_of(table)
    for order in ([keys[0], keys[1]], np.array([keys[0], keys[1]]), np.array([[keys[0], keys[1]]])):
        assert table.update_priorities(order, values) == 2
        assert contents(table) == {0: 2, 1: 3}
        table.update_priorities(order, [1, 1])
    if np.ndim(values) == 1:
        table.extend(np.arange(2, 4), priorities=values)
        assert contents(table) == {0: 1, 1: 1, 2: 2, 3: 3}


def test_a_single_key_needs_no_list(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Epoch())
    table.extend(np.arange(2))
    keys = keys_of(table)
    assert table.update_priorities(keys[0], 4.0) == 1
    assert table.remove(keys[1]) == 1
    assert contents(table) == {0: 4}


def test_nothing_to_update_is_fine(make_table: MakeTable) -> None:
    table = make_table(np.int64(0))
    assert table.update_priorities([], []) == 0
    assert table.remove([]) == 0


# Bad values. In Reverb 0.14 one negative priority stops a prioritized table for good, and a NaN for
# which an update was refused stays stored.


def assert_lives(table: echoic.Table, expected: dict[int, float]) -> None:
    """It has what it had, and does all that tables do."""
    batch = table.sample(200, timeout=0)
    found = dict(zip(batch.data.tolist(), batch.info.priorities.tolist(), strict=True))
    assert found.items() <= expected.items()
    assert np.isfinite(batch.info.probabilities).all()
    assert (batch.info.probabilities > 0).all()
    assert len(table) == len(expected)
    assert table.update_priorities(batch.keys, batch.info.priorities) == 200
    table.add(99, priority=2.0, timeout=0)
    table.sample(10, timeout=0)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("with_spec", [True, False], ids=["spec", "any form"])
def test_a_bad_priority_of_an_insert_is_refused_and_the_table_lives_on(
    make_table: MakeTable, selector: selectors.Selector, bad: float, with_spec: bool
) -> None:
    table = make_table(np.int64(0) if with_spec else None, sampler=selector, remover=selector)
    for value in range(4):
        table.add(value, priority=value + 1)
    with pytest.raises(PriorityError, match="priority 0: expected a finite number >= 0, got"):
        table.add(9, priority=bad)
    if with_spec:
        with pytest.raises(PriorityError, match="priority 2: expected a finite number >= 0, got"):
            table.extend(np.arange(4), priorities=[1.0, 2.0, bad, 3.0])
    assert table.stats().inserts == 4
    assert_lives(table, {0: 1, 1: 2, 2: 3, 3: 4})


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_priority_of_an_update_changes_nothing_and_the_table_lives_on(
    make_table: MakeTable, selector: selectors.Selector, bad: float
) -> None:
    table = make_table(np.int64(0), sampler=selector, remover=selector)
    table.extend(np.arange(4), priorities=[1, 2, 3, 4])
    keys = table.sample(4).keys
    with pytest.raises(PriorityError, match="priority 1: expected a finite number >= 0, got"):
        table.update_priorities(keys, [7.0, bad, 7.0, 7.0])
    with pytest.raises(PriorityError, match="priority 0: expected"):
        # Not even for an item that there is not.
        table.update_priorities([1 << 60], [bad])
    assert_lives(table, {0: 1, 1: 2, 2: 3, 3: 4})


def test_it_is_a_value_error_too() -> None:
    assert issubclass(PriorityError, ValueError)
    assert issubclass(PriorityError, echoic.EchoicError)


def test_keys_and_priorities_come_in_pairs(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Epoch())
    table.extend(np.arange(2))
    keys = list(keys_of(table).values())
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        table.update_priorities(keys, [5.0])
    with pytest.raises(ValueError, match="3 items and 2 priorities"):
        table.extend(np.arange(3), priorities=[1.0, 2.0])
    for bad in (["a", "b"], [1j, 2j], [None, 1.0]):
        with pytest.raises((ValueError, TypeError)):
            table.update_priorities(keys, bad)
    assert contents(table) == {0: 1, 1: 1}


@pytest.mark.parametrize(
    "keys",
    [np.array([0.5, 0.7]), np.array([-1, -1]), [-1, -1], ["a", "b"], [None, None]],
    ids=["floats", "negative", "negative list", "text", "none"],
)
def test_what_is_no_key_is_refused(make_table: MakeTable, keys: Any) -> None:
    # Priorities in the place of keys, most likely; as numbers, they might be the keys of others.
    table = make_table(np.int64(0), sampler=selectors.Epoch())
    table.extend(np.arange(2))
    with pytest.raises((ValueError, TypeError, OverflowError)):
        table.update_priorities(keys, [5.0, 6.0])
    with pytest.raises((ValueError, TypeError, OverflowError)):
        table.remove(keys)
    assert contents(table) == {0: 1, 1: 1}


@pytest.mark.parametrize("with_spec", [True, False], ids=["spec", "any form"])
def test_a_bad_priority_is_refused_before_the_insert_waits(
    make_table: MakeTable, with_spec: bool
) -> None:
    table = make_table(np.int64(0) if with_spec else None)
    table.pause()
    with pytest.raises(PriorityError):
        table.add(1, priority=-1.0, timeout=0)


def test_deleted_items_are_never_drawn_again(
    make_table: MakeTable, selector: selectors.Selector
) -> None:
    table = make_table(np.int64(0), sampler=selectors.Epoch(), remover=selector, capacity=10)
    table.extend(np.arange(10))
    keys = keys_of(table)
    assert table.remove([keys[value] for value in range(0, 10, 2)]) == 5
    assert table.remove([keys[0], keys[1], keys[1]]) == 1
    assert sorted(contents(table)) == [3, 5, 7, 9]
    assert (table.stats().size, table.stats().deletions) == (4, 6)
