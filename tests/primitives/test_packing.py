"""Sequences in rows, and on ranks."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from echoic.errors import ArgumentError, DtypeError
from echoic.primitives import (
    balance_sequences,
    pack_sequences,
    plan_micro_batches,
    plan_packing,
)
from hypothesis import given, settings
from hypothesis import strategies as st

METHODS = ["first_fit_decreasing", "first_fit", "next_fit"]


def naive(lengths, max_len, method):
    """Rows of sequences, by a search from the first row on (or only in the last)."""
    order = list(range(len(lengths)))
    if method == "first_fit_decreasing":
        order.sort(key=lambda at: -lengths[at])
    rows: list[list[int]] = []
    for at in order:
        candidates = rows[-1:] if method == "next_fit" else rows
        for row in candidates:
            if sum(lengths[other] for other in row) + lengths[at] <= max_len:
                row.append(at)
                break
        else:
            rows.append([at])
    return rows


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), max_size=60),
    slack=st.integers(0, 15),
    method=st.sampled_from(METHODS),
    dtype=st.sampled_from([np.int64, np.int32, np.uint32, np.uint16, np.int8]),
)
def test_every_token_is_where_the_naive_method_puts_it(lengths, slack, method, dtype) -> None:
    max_len = 20 + slack
    rng = np.random.default_rng(len(lengths))
    tokens = [rng.integers(1, 100, length).astype(dtype) for length in lengths]
    rows = naive(lengths, max_len, method)
    packed, masks, positions = pack_sequences(tokens, max_len, method=method)
    _, numbered, _ = pack_sequences(tokens, max_len, method=method, segments=True)
    assert packed.shape == masks.shape == positions.shape == numbered.shape == (len(rows), max_len)
    assert (masks.dtype, positions.dtype, numbered.dtype) == (np.bool_, np.int32, np.int32)
    assert packed.dtype == (dtype if tokens else np.int64)
    for row, members in enumerate(rows):
        want = np.concatenate([tokens[at] for at in members])
        used = len(want)
        np.testing.assert_array_equal(packed[row, :used], want)
        where = np.concatenate([np.arange(lengths[at]) for at in members])
        np.testing.assert_array_equal(positions[row, :used], where)
        number = np.repeat(np.arange(len(members)) + 1, [lengths[at] for at in members])
        np.testing.assert_array_equal(numbered[row, :used], number)
        assert masks[row].sum() == used
        assert masks[row, :used].all()
        for rest in (packed, positions, numbered):
            assert not rest[row, used:].any()

    planned_rows, starts = plan_packing(lengths, max_len, method=method)
    for row, members in enumerate(rows):
        assert planned_rows[members].tolist() == [row] * len(members)
        begins = itertools.accumulate([0, *(lengths[at] for at in members[:-1])])
        assert starts[members].tolist() == list(begins)


def test_lengths_give_indices_that_pack_any_array() -> None:
    tokens = [np.array([7, 8, 9]), np.array([4, 5]), np.array([6]), np.array([1, 2])]
    expected, masks, positions = pack_sequences(tokens, 4)
    for lengths in ([3, 2, 1, 2], np.array([3, 2, 1, 2]), np.array([3, 2, 1, 2], np.uint8)):
        packed, same_masks, same_positions = pack_sequences(lengths, 4)
        assert packed.dtype == np.int64
        np.testing.assert_array_equal(np.concatenate(tokens)[packed], expected)
        np.testing.assert_array_equal(same_masks, masks)
        np.testing.assert_array_equal(same_positions, positions)


def test_the_rows_of_rlox() -> None:
    tokens = [np.array(t, np.uint32) for t in ([1, 2, 3], [4, 5], [6], [7, 7])]
    packed, masks, positions = pack_sequences(tokens, 4)
    assert packed.tolist() == [[1, 2, 3, 6], [4, 5, 7, 7]]
    assert masks.all()
    assert positions.tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]


def test_padding_is_what_is_asked_for() -> None:
    packed, masks, _ = pack_sequences([[1, 2], [3, 4]], 3, pad_token=-1)
    assert packed.tolist() == [[1, 2, -1], [3, 4, -1]]
    assert masks.tolist() == [[True, True, False]] * 2


def test_empty_sequences_take_no_room() -> None:
    packed, masks, _ = pack_sequences([[], [5], np.zeros(0, np.int32)], 2, segments=True)
    assert packed.tolist() == [[5, 0]]
    assert masks.tolist() == [[1, 0]]
    assert packed.dtype == np.int64
    assert pack_sequences([], 3)[0].shape == (0, 3)
    assert plan_packing([], 3)[0].shape == (0,)


def test_different_dtypes_become_one_that_holds_both() -> None:
    tokens = [np.array([-1], np.int16), np.array([60000], np.uint16)]
    packed, _, _ = pack_sequences(tokens, 2)
    assert packed.dtype == np.int32
    assert sorted(packed.ravel().tolist()) == [-1, 60000]


def test_first_fit_decreasing_needs_few_rows() -> None:
    lengths = np.random.default_rng(0).integers(1, 2048, 10_000)
    rows, starts = plan_packing(lengths, 2048)
    fewest = -(-int(lengths.sum()) // 2048)
    assert rows.max() + 1 <= 11 / 9 * fewest + 6 / 9
    assert (starts + lengths).max() <= 2048


def test_many_short_sequences_do_not_take_quadratic_time() -> None:
    lengths = np.full(200_000, 3)
    start = time.perf_counter()
    rows, _ = plan_packing(lengths, 4)
    # A search from the first row on takes 2e10 steps.
    assert rows.max() == 199_999
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([[1, 2], [1] * 9], 4), {}, "sequence 1 has 9 tokens, which is more than a row's 4"),
        (([2, 9], 4), {}, "sequence 1 has 9 tokens, which is more than a row's 4"),
        (([2], 0), {}, "`max_len` must be from 1 to 2147483647, got 0"),
        (([2], -1), {}, "got -1"),
        (([2, -3], 4), {}, r"`sequences`\[1\] must be at least 0, got -3"),
        (([[1], [[1]]], 4), {}, r"sequence 1 must have one axis, got shape \(1, 1\)"),
        (
            ([2], 4),
            {"method": "best"},
            '"first_fit_decreasing", "first_fit", "next_fit", got "best"',
        ),
        (
            ([np.array([1], np.int32)], 4),
            {"pad_token": 2**40},
            "`pad_token`=1099511627776 is no int32",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_values(arguments, options, text) -> None:
    with pytest.raises(ArgumentError, match=text):
        pack_sequences(*arguments, **options)


def test_tokens_and_lengths_are_whole_numbers() -> None:
    with pytest.raises(DtypeError, match="sequence 1 has float64"):
        pack_sequences([np.array([1]), np.array([0.5])], 4)
    with pytest.raises(DtypeError, match=r"`sequences` must be whole numbers in one axis.*float64"):
        pack_sequences([1.5, 2.0], 4)
    with pytest.raises(DtypeError, match=r"got int64 of shape \(2, 2\)"):
        pack_sequences(np.ones((2, 2), np.int64), 4)


def test_lengths_may_lie_anywhere() -> None:
    odd = np.zeros(33, np.uint8)[1:].view(np.int64)
    odd[:] = [3, 2, 1, 2]
    assert not odd.flags.aligned
    for lengths in (odd, odd.astype(np.longlong), odd.astype(">i8"), odd.astype(np.uint64)):
        np.testing.assert_array_equal(plan_packing(lengths, 4)[0], [0, 1, 0, 1])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4000), max_size=120),
    n_ranks=st.integers(1, 9),
    cost=st.sampled_from(["tokens", "squared"]),
    equal_counts=st.booleans(),
)
def test_ranks_have_about_the_same_to_do(lengths, n_ranks, cost, equal_counts) -> None:
    ranks = balance_sequences(lengths, n_ranks, cost=cost, equal_counts=equal_counts)
    assert ranks.dtype == np.int64
    assert ranks.shape == (len(lengths),)
    costs = np.array(lengths, np.int64) ** (2 if cost == "squared" else 1)
    loads = np.array([costs[ranks == rank].sum() for rank in range(n_ranks)])
    assert loads.sum() == costs.sum()
    counts = np.bincount(ranks, minlength=n_ranks)
    assert len(counts) == n_ranks
    if equal_counts:
        assert np.ptp(counts) <= 1
    elif len(lengths):
        assert np.ptp(loads) <= costs.max()


def test_balance_is_closer_than_the_greedy_one() -> None:
    lengths = np.random.default_rng(1).integers(100, 4000, 256)
    for equal_counts in (False, True):
        ranks = balance_sequences(lengths, 8, equal_counts=equal_counts)
        ours = np.bincount(ranks, weights=lengths)
        loads = np.zeros(8)
        for length in np.sort(lengths)[::-1]:
            loads[loads.argmin()] += length
        assert np.ptp(ours) < np.ptp(loads)
        assert np.ptp(ours) < 0.001 * ours.mean()


def test_squared_lengths_are_another_balance() -> None:
    lengths = np.array([10, 5, 5, 5, 5])
    tokens = balance_sequences(lengths, 2)
    squared = balance_sequences(lengths, 2, cost="squared")
    assert sorted(np.bincount(tokens, weights=lengths)) == [15, 15]
    assert np.bincount(squared, weights=lengths**2).tolist() == [100, 100]


def test_ranks_that_cannot_be_are_refused() -> None:
    with pytest.raises(ArgumentError, match="`n_ranks` must be at least 1, got 0"):
        balance_sequences([1], 0)
    with pytest.raises(ArgumentError, match='"tokens", "squared", got "cubed"'):
        balance_sequences([1], 1, cost="cubed")
    with pytest.raises(ArgumentError, match=r"`lengths`\[0\] must be at least 0, got -1"):
        balance_sequences([-1], 1)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4000), max_size=120),
    n_ranks=st.integers(1, 6),
    slack=st.integers(0, 8000),
    cost=st.sampled_from(["tokens", "squared"]),
    equal_counts=st.booleans(),
)
def test_all_ranks_have_as_many_micro_batches(lengths, n_ranks, slack, cost, equal_counts) -> None:
    max_tokens = 4000 + slack
    lengths = np.array(lengths, np.int64)
    ranks = balance_sequences(lengths, n_ranks, cost=cost, equal_counts=equal_counts)
    arguments = (lengths, ranks, n_ranks, max_tokens)
    batches, count = plan_micro_batches(*arguments, cost=cost, allow_empty=True)
    assert batches.dtype == np.int64
    assert batches.shape == lengths.shape
    sequences = np.zeros((n_ranks, count), np.int64)
    tokens = np.zeros_like(sequences)
    np.add.at(sequences, (ranks, batches), 1)
    np.add.at(tokens, (ranks, batches), lengths)
    assert (tokens <= max_tokens).all()
    for row in sequences:
        filled = min(int(row.sum()), count)
        assert (row[:filled] > 0).all()
        assert (row[filled:] == 0).all()
    most = max(int(np.max(rows, initial=-1)) + 1 for rows in rows_of(*arguments))
    assert -(-int(tokens.sum(axis=1).max()) // max_tokens) <= count <= most
    if sequences.all():
        again, same = plan_micro_batches(*arguments, cost=cost)
        assert (again.tolist(), same) == (batches.tolist(), count)
    else:
        with pytest.raises(ArgumentError, match=f"than there are micro-batches \\({count}\\)"):
            plan_micro_batches(*arguments, cost=cost)


def rows_of(lengths, ranks, n_ranks, max_tokens):
    """The rows of each rank when nobody waits for anybody."""
    return [plan_packing(lengths[ranks == rank], max_tokens)[0] for rank in range(n_ranks)]


def test_micro_batches_that_meet_cost_about_the_same() -> None:
    lengths = np.random.default_rng(2).integers(100, 4000, 512)
    ranks = balance_sequences(lengths, 8, cost="squared", equal_counts=True)
    batches, count = plan_micro_batches(lengths, ranks, 8, 16384, cost="squared")
    costs = np.zeros((8, count))
    np.add.at(costs, (ranks, batches), lengths.astype(float) ** 2)
    # All wait for the dearest rank in each.
    assert costs.max(axis=0).sum() < 1.02 * costs.sum(axis=1).mean()


def test_many_sequences_are_split_in_little_time() -> None:
    lengths = np.random.default_rng(3).integers(1, 3000, 100_000)
    start = time.perf_counter()
    _, count = plan_micro_batches(lengths, np.zeros(100_000, np.int64), 1, 4096)
    assert count < 1.01 * lengths.sum() / 4096
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([2, 9], [0, 1], 2, 8), {}, "sequence 1 has 9 tokens, .* more than a micro-batch's 8"),
        (
            ([8, 8, 1], [0, 0, 1], 2, 8),
            {},
            (
                r"rank 1 has fewer sequences \(1\) than there are micro-batches \(2\): "
                "balance with equal_counts=True, raise `max_tokens`, or pass allow_empty=True"
            ),
        ),
        (([8, 8], [0, 2], 2, 8), {}, r"`ranks`\[1\] must be below n_ranks=2, got 2"),
        (([8, 8], [0, -1], 2, 8), {}, r"`ranks`\[1\] must be at least 0, got -1"),
        (([8, 8], [0], 2, 8), {}, "`ranks` has 1 elements, expected 2, as `lengths` has"),
        (([8, 8], [0, 1], 0, 8), {}, "`n_ranks` must be at least 1, got 0"),
        (([8, 8], [0, 1], 2, 0), {}, "`max_tokens` must be at least 1, got 0"),
        (([8], [0], 1, 8), {"cost": "cubed"}, '"tokens", "squared", got "cubed"'),
    ],
)
def test_micro_batches_that_cannot_be_are_refused(arguments, options, text) -> None:
    with pytest.raises(ArgumentError, match=text):
        plan_micro_batches(*arguments, **options)


def test_a_rank_with_too_few_sequences_has_empty_micro_batches_if_told_to() -> None:
    got, count = plan_micro_batches([8, 8, 1], [0, 0, 2], 10**12, 8, allow_empty=True)
    assert (got.tolist(), count) == ([0, 1, 0], 2)
    got, count = plan_micro_batches([], [], 3, 8)
    assert (got.tolist(), count) == ([], 0)
