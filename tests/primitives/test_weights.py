"""Importance weights."""

from __future__ import annotations

import numpy as np
import pytest
from echoic.errors import ArgumentError
from echoic.primitives import compute_effective_sample_size, compute_importance_weights
from hypothesis import given, settings
from hypothesis import strategies as st

P = np.array([0.4, 0.3, 0.2, 0.1])
Q = np.array([0.1, 0.2, 0.3, 0.4])


def test_weighted_means_are_those_of_the_other_policy() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.choice(4, size=(100_000, 3), p=Q)
    rewards = drawn.sum(1) ** 2.0
    log_p, log_q = np.log(P)[drawn], np.log(Q)[drawn]
    weights = compute_importance_weights(log_p, log_q, level="sequence")
    other = (rng.choice(4, size=(100_000, 3), p=P).sum(1) ** 2.0).mean()
    error = (weights * rewards).std() / 100_000**0.5
    assert abs((weights * rewards).mean() - other) < 6 * error < 0.5
    assert abs(weights.mean() - 1) < 0.05
    size = compute_effective_sample_size(weights)
    assert 1 < size < 20_000


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(0, 4),
    seq_len=st.integers(1, 300),
    dtype=st.sampled_from([np.float32, np.float64]),
    level=st.sampled_from(["token", "sequence", "sequence_mean"]),
    clip=st.sampled_from([None, 1.5, (0.5, 2.0)]),
    masked=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_weights_are_what_numpy_makes_of_them(
    batch, seq_len, dtype, level, clip, masked, seed
) -> None:
    rng = np.random.default_rng(seed)
    new, old = (-rng.random((batch, seq_len)).astype(dtype) for _ in range(2))
    mask = rng.random((batch, seq_len)) < 0.6 if masked else np.ones((batch, seq_len), bool)
    ratio = (new - old).astype(np.float64) * mask
    if level == "sequence":
        ratio = ratio.sum(1)
    elif level == "sequence_mean":
        ratio = ratio.sum(1) / np.maximum(mask.sum(1), 1)
    low, high = clip if isinstance(clip, tuple) else (0.0, clip or np.inf)
    expected = np.clip(np.exp(ratio), low, high)
    if level == "token":
        expected *= mask
    got = compute_importance_weights(
        new, old, level=level, clip=clip, mask=mask if masked else None
    )
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=1e-3 if dtype == np.float32 else 1e-10)
    if level != "token":
        options = {"level": level, "clip": clip, "mask": mask.ravel() if masked else None}
        flat = compute_importance_weights(new.ravel(), old.ravel(), seq_len=seq_len, **options)
        np.testing.assert_array_equal(flat, got)
        offsets = np.arange(batch + 1) * seq_len
        flat = compute_importance_weights(new.ravel(), old.ravel(), offsets=offsets, **options)
        np.testing.assert_array_equal(flat, got)


def test_a_sequence_without_tokens_weighs_one() -> None:
    got = compute_importance_weights([0.5], [0.0], level="sequence", offsets=[0, 0, 1])
    np.testing.assert_allclose(got, [1.0, np.exp(0.5)])


def test_extremes_are_exact_and_nan_stays() -> None:
    new, old = np.array([0.0, -np.inf, 800.0, np.nan]), np.array([0.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(compute_importance_weights(new, old), [1, 0, np.inf, np.nan])
    got = compute_importance_weights(new, old, clip=(0.5, 2.0))
    np.testing.assert_array_equal(got, [1, 0.5, 2, np.nan])


def test_the_effective_size_counts_equal_weights() -> None:
    assert compute_effective_sample_size(np.full((3, 4), 0.1)) == pytest.approx(12)
    assert compute_effective_sample_size([1.0, 0.0, 0.0]) == 1.0
    assert compute_effective_sample_size([1e-200, 3e-200]) == pytest.approx(1.6)
    assert compute_effective_sample_size([-900.0, -900.0 + np.log(3)], log=True) == pytest.approx(
        1.6
    )
    assert compute_effective_sample_size([]) == 0.0
    assert compute_effective_sample_size([0.0, 0.0]) == 0.0
    assert np.isnan(compute_effective_sample_size([1.0, np.nan]))
    weights = np.random.default_rng(0).random(20_000).astype(np.float32)
    wide = weights.astype(np.float64)
    expected = wide.sum() ** 2 / (wide**2).sum()
    assert compute_effective_sample_size(weights) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (
            ([0.0, 1.0], [0.0]),
            {},
            r"`log_p_old` has shape \(1,\), expected that of `log_p_new`, \(2,",
        ),
        (([0.0], [0.0]), {"level": "word"}, 'must be one of "token", "sequence", "sequence_mean"'),
        (([0.0], [0.0]), {"seq_len": 1}, "`seq_len` and `offsets` are for weights of sequences"),
        (([0.0], [0.0]), {"level": "sequence"}, "`seq_len` or `offsets` must say"),
        (([0.0], [0.0]), {"clip": -1.0}, "0 <= low <= high, got low=0, high=-1"),
        (([0.0], [0.0]), {"clip": (2.0, 1.0)}, "got low=2, high=1"),
        (([0.0], [0.0]), {"clip": float("nan")}, "high=NaN"),
        (([0.0], [0.0]), {"mask": [[1]]}, r"`mask` has shape \(1, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_values(arguments, options, text) -> None:
    with pytest.raises(ArgumentError, match=text):
        compute_importance_weights(*arguments, **options)


def test_negative_weights_are_refused() -> None:
    with pytest.raises(ArgumentError, match="weights are at least 0, got -2 at 1"):
        compute_effective_sample_size([1.0, -2.0])
