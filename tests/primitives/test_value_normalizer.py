"""Targets of a value function at one scale."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from echoic.errors import ArgumentError
from echoic.primitives import ValueNormalizer


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
def test_a_state_comes_back(decay: float | None) -> None:
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
