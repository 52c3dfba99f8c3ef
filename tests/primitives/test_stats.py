"""Means and variances of what went by, and targets of a value function at one scale."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from echoic.errors import ArgumentError, DtypeError
from echoic.primitives import RunningStats, RunningStatsVec, ValueNormalizer
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.integers(0, 3000), max_size=5),
    offset=st.floats(-1e6, 1e6),
    dtype=st.sampled_from([np.float32, np.float64, np.int32]),
    seed=st.integers(0, 2**32),
)
def test_any_parts_give_the_numbers_of_the_whole(parts, offset, dtype, seed) -> None:
    rng = np.random.default_rng(seed)
    arrays = [(rng.normal(size=part) * 50 + offset).astype(dtype) for part in parts]
    whole = np.concatenate([*arrays, np.zeros(0, dtype)]).astype(np.float64)
    stats, merged = RunningStats(), RunningStats()
    for array in arrays:
        stats.batch_update(array)
        other = RunningStats()
        other.batch_update(array)
        merged.merge(other)
    for got in (stats, merged):
        assert got.count() == len(whole)
        if len(whole):
            np.testing.assert_allclose(got.mean(), whole.mean(), rtol=1e-12, atol=1e-9)
            np.testing.assert_allclose(got.var(), whole.var(), rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(got.std(), whole.std(), rtol=1e-7, atol=1e-9)
        if len(whole) > 1:
            np.testing.assert_allclose(got.var(ddof=1), whole.var(ddof=1), rtol=1e-7, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    rows=st.lists(st.integers(0, 40), max_size=4),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32),
)
def test_arrays_are_counted_place_by_place(shape, rows, dtype, seed) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.normal(3, 5, (n, *shape)).astype(dtype) for n in rows]
    whole = np.concatenate([*batches, np.zeros((0, *shape), dtype)]).astype(np.float64)
    stats = RunningStatsVec(shape)
    for number, batch in enumerate(batches):
        if number % 2:
            stats.batch_update(batch.ravel(), len(batch))
        else:
            stats.batch_update(batch)
    assert (stats.count(), stats.shape, stats.dim()) == (len(whole), shape, np.prod(shape))
    if len(whole):
        np.testing.assert_allclose(stats.mean(), whole.mean(0), atol=1e-12)
        np.testing.assert_allclose(stats.var(), whole.var(0), atol=1e-10)
    one_by_one = RunningStatsVec(shape)
    for row in whole:
        one_by_one.update(row)
    np.testing.assert_allclose(one_by_one.std(), stats.std(), atol=1e-10)
    values = rng.normal(size=(2, 3, *shape)).astype(dtype)
    got = stats.normalize(values)
    assert got.dtype == dtype
    assert got.shape == values.shape
    std = stats.std()
    wide = np.where(std < 1e-8, np.inf, std)
    np.testing.assert_allclose(got, (values - stats.mean()) / wide, rtol=1e-4, atol=1e-5)
    flat = stats.normalize_batch(values.ravel(), 6)
    np.testing.assert_array_equal(flat, got.ravel())


def test_a_large_mean_cancels_nothing() -> None:
    values = 1e9 + np.arange(3000) % 3
    # What the difference of mean square and squared mean has left.
    assert abs(np.mean(values**2) - np.mean(values) ** 2 - 2 / 3) > 0.5
    batched, single = RunningStats(), RunningStats()
    batched.batch_update(values)
    for value in values:
        single.update(value)
    assert abs(batched.var() - 2 / 3) < 1e-9
    assert abs(single.var() - 2 / 3) < 1e-6


def test_the_numbers_of_rlox() -> None:
    stats = RunningStatsVec(2)
    stats.update(np.array([1.0, 2.0]))
    stats.batch_update(np.array([3.0, 4, 5, 7]), 2)
    np.testing.assert_allclose(stats.mean(), [3, 4.33333333])
    np.testing.assert_allclose(stats.var(), [2.66666667, 4.22222222])
    np.testing.assert_allclose(stats.normalize(np.array([1.0, 2])), [-1.22474487, -1.13554995])


def test_without_a_spread_everything_is_normal() -> None:
    stats = RunningStats()
    assert (stats.mean(), stats.var(), stats.std(), stats.count()) == (0.0, 0.0, 0.0, 0)
    assert stats.normalize(5.0) == 0.0
    stats.update(2.0)
    stats.update(2.0)
    assert stats.normalize(5.0) == 0.0
    assert stats.var(ddof=1) == 0.0
    assert stats.normalize([5.0, 2.0]).tolist() == [0.0, 0.0]
    stats.update(2.0 + 3e-9)
    assert stats.normalize(5.0) == 0.0
    assert stats.normalize(5.0, min_std=0.0) > 1e9


def test_outliers_are_clipped() -> None:
    stats = RunningStats()
    stats.batch_update([-1.0, 1.0])
    assert stats.normalize(7.0, clip=5.0) == 5.0
    assert stats.normalize([-7.0, 2.0], clip=5.0).tolist() == [-5.0, 2.0]
    assert stats.normalize([7.0], clip=5.0).tolist() == [5.0]
    assert isinstance(stats.normalize(7), float)
    assert np.isnan(stats.normalize(float("nan"), clip=5.0))


def test_what_is_not_finite_is_refused_and_nothing_of_it_is_taken() -> None:
    stats = RunningStats()
    stats.batch_update([1.0, 2.0])
    before = stats.state_dict()
    with pytest.raises(ArgumentError, match="`value` is NaN, and statistics must stay finite"):
        stats.update(float("nan"))
    with pytest.raises(ArgumentError, match="`values` has inf at flat index 2"):
        stats.batch_update([1.0, 2.0, float("inf")])
    with pytest.raises(ArgumentError, match="too large a spread"):
        stats.batch_update([1e200, -1e200])
    vector = RunningStatsVec(2)
    with pytest.raises(ArgumentError, match="`values` has NaN at flat index 3"):
        vector.batch_update(np.array([[0.0, 1.0], [2.0, np.nan]], np.float32))
    assert vector.count() == 0
    after = stats.state_dict()
    assert before == after


def test_a_state_comes_back() -> None:
    stats = RunningStatsVec((2, 3))
    stats.batch_update(np.random.default_rng(0).normal(size=(7, 2, 3)))
    state = stats.state_dict()
    assert state["mean"].shape == state["squares"].shape == (2, 3)
    other = RunningStatsVec((2, 3))
    other.load_state_dict(state)
    for same in (other, pickle.loads(pickle.dumps(stats)), copy.deepcopy(stats)):
        assert same.count() == 7
        assert same.shape == (2, 3)
        np.testing.assert_array_equal(same.mean(), stats.mean())
        np.testing.assert_array_equal(same.var(), stats.var())
    number = RunningStats()
    number.update(3.0)
    again = pickle.loads(pickle.dumps(number))
    assert (again.count(), again.mean()) == (1, 3.0)
    number.reset()
    assert (number.count(), number.mean()) == (0, 0.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"squares": np.array([-1.0, 0.0])}, "no numbers can have"),
        ({"mean": np.array([np.nan, 0.0])}, "no numbers can have"),
        ({"mean": np.zeros(3)}, r'`state`\["mean"\] has shape \(3,\), expected \(2,\)'),
        ({"mean": None}, "has no"),
    ],
)
def test_a_state_that_cannot_be_changes_nothing(change, text) -> None:
    stats = RunningStatsVec(2)
    stats.update([1.0, 2.0])
    state = {**stats.state_dict(), **change}
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(ArgumentError, match=text):
        stats.load_state_dict(state)
    assert stats.mean().tolist() == [1.0, 2.0]


def test_merging_with_itself_counts_everything_twice() -> None:
    stats = RunningStats()
    stats.batch_update([1.0, 3.0])
    stats.merge(stats)
    assert (stats.count(), stats.mean(), stats.var()) == (4, 2.0, 1.0)


def test_threads_lose_nothing() -> None:
    stats, vector = RunningStats(), RunningStatsVec(3)
    batch = np.arange(30_000.0) % 7

    def work() -> None:
        for _ in range(30):
            stats.batch_update(batch)
            stats.update(1.0)
            vector.batch_update(batch.reshape(-1, 3))
            stats.normalize(batch)
            vector.mean()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats.count() == 4 * 30 * 30_001
    assert vector.count() == 4 * 30 * 10_000
    np.testing.assert_allclose(vector.mean(), batch.reshape(-1, 3).mean(0))


def test_shapes_that_do_not_fit_are_refused_with_their_values() -> None:
    stats = RunningStatsVec((2, 3))
    with pytest.raises(ArgumentError, match=r"`values` has shape \(3, 2\), expected \(2, 3\)"):
        stats.update(np.zeros((3, 2)))
    with pytest.raises(ArgumentError, match=r"\(5, 3, 2\), expected \(n, ...\) with \(2, 3\)"):
        stats.batch_update(np.zeros((5, 3, 2)))
    with pytest.raises(
        ArgumentError, match=r"\(11,\), expected 2 arrays of shape \(2, 3\), or their 12"
    ):
        stats.batch_update(np.zeros(11), 2)
    with pytest.raises(ArgumentError, match="expected 3 arrays"):
        stats.batch_update(np.zeros((2, 2, 3)), 3)
    with pytest.raises(ArgumentError, match=r"behind any other axes"):
        stats.normalize(np.zeros((2, 2)))
    with pytest.raises(ArgumentError, match=r"`other` has shape \(6,\), expected \(2, 3\)"):
        stats.merge(RunningStatsVec(6))
    with pytest.raises(ArgumentError, match="`clip` must be at least 0, got -1"):
        stats.normalize(np.zeros((2, 3)), clip=-1.0)
    for shape in (0, -1, (2, 0)):
        with pytest.raises(ArgumentError, match="`shape` must have positive lengths"):
            RunningStatsVec(shape)
    with pytest.raises(DtypeError, match="`values`"):
        RunningStats().batch_update(["a"])
    with pytest.raises(TypeError):
        RunningStats().update("a")


def test_normalized_returns_have_no_mean_and_unit_spread() -> None:
    returns = np.random.default_rng(0).normal(1e6, 30, (50, 20))
    normalizer = ValueNormalizer()
    for part in returns:
        normalizer.update(part)
    normal = normalizer.normalize(returns)
    assert abs(normal.mean()) < 1e-6
    assert abs(normal.std() - 1) < 1e-6
    np.testing.assert_allclose(normalizer.denormalize(normal), returns, rtol=1e-12)


def test_before_the_first_return_nothing_is_changed() -> None:
    for decay in (None, 0.9):
        normalizer = ValueNormalizer(decay)
        assert (normalizer.mean, normalizer.std, normalizer.normalize(3.0)) == (0.0, 1.0, 3.0)
        normalizer.update([])
        assert (normalizer.mean, normalizer.std) == (0.0, 1.0)


def test_decay_weighs_later_returns_more_and_has_no_bias_to_zero() -> None:
    rng = np.random.default_rng(1)
    batches = [rng.normal(1e7 + step, 2, 100) for step in range(40)]
    normalizer = ValueNormalizer(decay=0.8)
    normalizer.update(batches[0])
    assert normalizer.mean == pytest.approx(batches[0].mean(), rel=1e-14)
    assert normalizer.std == pytest.approx(batches[0].std(), rel=1e-6)
    for batch in batches[1:]:
        normalizer.update(batch)
    weights = 0.8 ** np.arange(39, -1, -1)
    weights /= weights.sum()
    means = np.array([batch.mean() for batch in batches])
    mean = weights @ means
    variance = weights @ [np.mean((batch - mean) ** 2) for batch in batches]
    assert normalizer.mean == pytest.approx(mean, rel=1e-14)
    assert normalizer.std == pytest.approx(variance**0.5, rel=1e-6)


@pytest.mark.parametrize("decay", [None, 0.5])
def test_rescaling_the_last_layer_keeps_the_values(decay: float | None) -> None:
    rng = np.random.default_rng(2)
    normalizer = ValueNormalizer(decay)
    normalizer.update(rng.normal(5, 2, 100))
    features, weight, bias = rng.normal(size=(7, 4)), rng.normal(size=4), 0.3
    before = normalizer.denormalize(features @ weight + bias)
    std = normalizer.std
    weight, bias = normalizer.rescale(rng.normal(500, 90, 100), weight, bias)
    assert normalizer.std > 2 * std
    np.testing.assert_allclose(normalizer.denormalize(features @ weight + bias), before)


@pytest.mark.parametrize("decay", [None, 0.99])
def test_the_state_of_a_normalizer_comes_back(decay: float | None) -> None:
    normalizer = ValueNormalizer(decay, min_std=0.5)
    normalizer.update([1.0, 5.0, 9.0])
    normalizer.update([2.0, 2.5])
    other = ValueNormalizer(decay, min_std=0.5)
    other.load_state_dict(normalizer.state_dict())
    for same in (other, pickle.loads(pickle.dumps(normalizer))):
        assert (same.mean, same.std) == (normalizer.mean, normalizer.std)
        same.update([100.0])
        assert same.mean > normalizer.mean


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    for decay in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="`decay` must be None or between 0 and 1"):
            ValueNormalizer(decay)
    with pytest.raises(ArgumentError, match="`min_std` must be a finite number above 0, got 0"):
        ValueNormalizer(min_std=0.0)
    for decay in (None, 0.9):
        normalizer = ValueNormalizer(decay)
        normalizer.update([1.0, 3.0])
        with pytest.raises(ArgumentError, match="`values` has NaN at flat index 1"):
            normalizer.update([1.0, float("nan")])
        with pytest.raises(ArgumentError, match="`state` has no 'squares'"):
            normalizer.load_state_dict({"weight": 1.0, "mean": 2.0})
        with pytest.raises(ArgumentError, match="not finite"):
            normalizer.load_state_dict({**normalizer.state_dict(), "mean": float("nan")})
        assert (normalizer.mean, normalizer.std) == (2.0, 1.0)
