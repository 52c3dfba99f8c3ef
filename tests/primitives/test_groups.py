"""Advantages within groups of answers."""

from __future__ import annotations

import numpy as np
import pytest
from echoic.errors import ArgumentError, DtypeError
from echoic.primitives import compute_batch_group_advantages, compute_group_advantages
from hypothesis import given, settings
from hypothesis import strategies as st


def oracle(groups, baseline, scale, ddof):
    """As the definitions say, group by group."""
    everything = np.concatenate(groups)
    result = []
    for group in groups:
        n = len(group)
        alone = baseline == "mean" or n == 1
        compared = group.mean() if alone else (group.sum() - group) / (n - 1)
        spread = {"group": group, "batch": everything}.get(scale)
        if spread is None:
            result.append(group - compared)
        elif len(spread) <= ddof or spread.std(ddof=ddof) < 1e-8:
            result.append(np.zeros(n))
        else:
            result.append((group - compared) / spread.std(ddof=ddof))
    return np.concatenate(result)


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    baseline=st.sampled_from(["mean", "leave_one_out"]),
    scale=st.sampled_from(["group", "batch", "none"]),
    ddof=st.integers(0, 1),
    dtype=st.sampled_from([np.float32, np.float64]),
    levels=st.sampled_from([2, 1000]),
    seed=st.integers(0, 2**32),
)
def test_groups_are_what_their_definitions_say(
    sizes, baseline, scale, ddof, dtype, levels, seed
) -> None:
    rng = np.random.default_rng(seed)
    groups = [rng.integers(0, levels, size).astype(dtype) / 8 for size in sizes]
    expected = oracle([group.astype(np.float64) for group in groups], baseline, scale, ddof)
    options = {"baseline": baseline, "scale": scale, "ddof": ddof}
    offsets = np.cumsum([0, *sizes])
    got = compute_batch_group_advantages(np.concatenate(groups), offsets=offsets, **options)
    assert got.dtype == dtype
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == np.float32 else {"atol": 1e-10}
    np.testing.assert_allclose(got, expected, **tolerance)
    first = compute_group_advantages(groups[0], **options)
    alone = oracle([groups[0].astype(np.float64)], baseline, scale, ddof)
    np.testing.assert_allclose(first, alone, **tolerance)


def test_the_numbers_of_rlox() -> None:
    expected = [-1.34164079, -0.4472136, 0.4472136, 1.34164079]
    np.testing.assert_allclose(compute_group_advantages([1, 2, 3, 4]), expected, rtol=1e-7)
    both = compute_batch_group_advantages(np.array([1.0, 2, 3, 4, 1, 1, 1, 1]), 4)
    np.testing.assert_allclose(both, [*expected, 0, 0, 0, 0], rtol=1e-7)


@pytest.mark.parametrize("reward", [0.1, 1e300, -1 / 3, 0.0])
@pytest.mark.parametrize("size", [1, 3, 7, 33])
def test_a_group_without_spread_gives_zeros_exactly(reward: float, size: int) -> None:
    for dtype in (np.float64, np.float32):
        if abs(reward) > 1e30 and dtype is np.float32:
            continue
        rewards = np.full(2 * size, reward, dtype)
        for scale in ("group", "batch", "none"):
            got = compute_batch_group_advantages(rewards, size, scale=scale)
            np.testing.assert_array_equal(got, np.zeros(2 * size))


def test_almost_no_spread_is_none_unless_that_is_asked_for() -> None:
    rewards = [0.0, 2e-9]
    np.testing.assert_array_equal(compute_group_advantages(rewards), [0, 0])
    np.testing.assert_allclose(compute_group_advantages(rewards, min_std=0.0), [-1, 1])


def test_two_axes_are_groups_of_rows() -> None:
    rewards = np.arange(12.0).reshape(3, 4) ** 2
    got = compute_batch_group_advantages(rewards)
    assert got.shape == (3, 4)
    flat = compute_batch_group_advantages(rewards.ravel(), 4)
    np.testing.assert_array_equal(got.ravel(), flat)
    np.testing.assert_array_equal(compute_batch_group_advantages(rewards, 4), got)


def test_a_large_offset_loses_no_digits() -> None:
    rewards = np.array([0.0, 1.0, 2.0, 3.0]) + 2.0**40
    np.testing.assert_allclose(
        compute_group_advantages(rewards), compute_group_advantages([0, 1, 2, 3]), rtol=1e-14
    )


def test_nan_stays_in_its_group() -> None:
    got = compute_batch_group_advantages([1.0, np.nan, 1.0, 3.0], 2)
    np.testing.assert_array_equal(got, [np.nan, np.nan, -1, 1])
    assert np.isnan(compute_batch_group_advantages([1.0, np.nan, 1.0, 3.0], 2, scale="batch")).all()


def test_nothing_gives_nothing() -> None:
    assert compute_group_advantages([]).shape == (0,)
    assert compute_batch_group_advantages([], 4).shape == (0,)
    assert compute_batch_group_advantages(np.zeros((3, 0))).shape == (3, 0)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([1.0] * 5, 4), {}, "`rewards` has 5 elements, which group_size=4 does not divide"),
        (([1.0] * 5, 0), {}, "`group_size` must be at least 1, got 0"),
        (([1.0] * 5,), {}, "`group_size` or `offsets` must say where sequences end"),
        ((np.zeros((2, 3)), 2), {}, r"has shape \(2, 3\), expected \(..., group_size=2\)"),
        ((np.zeros((2, 3, 1)), 1), {}, r"must have one or two axes, got shape \(2, 3, 1\)"),
        (([1.0], 1), {"scale": "std"}, '"group", "batch", "none", got "std"'),
        (([1.0], 1), {"baseline": "max"}, '"mean", "leave_one_out", got "max"'),
        (([1.0], 1), {"ddof": 2}, "`ddof` must be 0 or 1, got 2"),
        (([1.0], 1), {"min_std": -1.0}, "`min_std` must be a finite number of at least 0, got -1"),
        (([1.0], 1), {"min_std": np.nan}, "got NaN"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_values(arguments, options, text) -> None:
    with pytest.raises(ArgumentError, match=text):
        compute_batch_group_advantages(*arguments, **options)


def test_one_group_has_one_axis() -> None:
    with pytest.raises(ArgumentError, match=r"got shape \(2, 2\): see compute_batch_group"):
        compute_group_advantages(np.zeros((2, 2)))
    with pytest.raises(DtypeError, match="`rewards`"):
        compute_group_advantages(["a", "b"])
