"""Divergences of token policies: what they estimate, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from echoic.errors import ArgumentError, DtypeError
from echoic.primitives import (
    compute_batch_token_kl,
    compute_batch_token_kl_schulman,
    compute_categorical_kl,
    compute_token_kl,
    compute_token_kl_schulman,
)
from hypothesis import given, settings
from hypothesis import strategies as st

# Distributions over five tokens, and their divergence.
P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
Q = np.array([0.25, 0.2, 0.3, 0.05, 0.2])
KL = float(np.sum(P * np.log(P / Q)))


def drawn(p: np.ndarray, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(p), size=count, p=p)


def terms(estimator: str, log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    d = (log_q - log_p).astype(np.float64)
    return {"k1": -d, "k2": d * d / 2, "k3": np.expm1(d) - d}[estimator]


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_over_drawn_tokens_is_the_divergence(estimator: str, dtype: type) -> None:
    tokens = drawn(P, 400_000, seed=1)
    log_p, log_q = np.log(P)[tokens].astype(dtype), np.log(Q)[tokens].astype(dtype)
    estimates = compute_token_kl(log_p, log_q, estimator=estimator, reduction="none")
    assert estimates.dtype == dtype
    error = float(estimates.std(dtype=np.float64)) / len(tokens) ** 0.5
    mean = compute_token_kl(log_p, log_q, estimator=estimator, reduction="mean")
    assert abs(mean - KL) < 5 * error < 0.01


def test_schulmans_estimator_varies_less_than_the_plain_one() -> None:
    tokens = drawn(P, 10_000, seed=2)
    log_p, log_q = np.log(P)[tokens], np.log(Q)[tokens]
    plain, schulman, square = (
        compute_token_kl(log_p, log_q, estimator=name, reduction="none")
        for name in ("k1", "k3", "k2")
    )
    assert schulman.std() < plain.std()
    assert schulman.min() >= 0
    assert square.min() >= 0 > plain.min()


def test_the_formulas_of_rlox_estimate_something_else() -> None:
    """On tokens drawn from `p`; the divergence is 0.2057."""
    tokens = drawn(P, 400_000, seed=3)
    log_p, log_q = np.log(P)[tokens], np.log(Q)[tokens]
    ratio = log_p - log_q
    weighted_again = float(np.mean(np.exp(log_p) * ratio))
    sign_reversed = float(np.mean(np.exp(ratio) - 1 - ratio))
    assert round(KL, 4) == 0.2057
    assert abs(weighted_again - 0.0996) < 0.005
    assert abs(sign_reversed - 0.1719) < 0.005
    assert abs(compute_token_kl_schulman(log_p, log_q, reduction="mean") - KL) < 0.005


def test_the_numbers_of_rlox_and_ours_for_two_tokens() -> None:
    log_p, log_q = np.log([0.5, 0.2]), np.log([0.4, 0.3])
    # rlox 1.2: 0.030479 and 0.098988.
    assert np.isclose(np.sum(np.exp(log_p) * (log_p - log_q)), 0.03047875403547201)
    reversed_ = np.exp(log_p - log_q) - 1 - (log_p - log_q)
    assert np.isclose(np.sum(reversed_), 0.09898822346062142)
    assert np.isclose(compute_token_kl(log_p, log_q), np.log(1.25) + np.log(2 / 3))
    expected = (0.8 - 1 - np.log(0.8)) + (1.5 - 1 - np.log(1.5))
    assert np.isclose(compute_token_kl_schulman(log_p, log_q), expected)


def test_the_whole_vocabulary_needs_no_estimate() -> None:
    p, q = np.log(np.stack([P, Q, P])), np.log(np.stack([Q, Q, P[::-1]]))
    backwards = np.sum(P * np.log(P / P[::-1]))
    np.testing.assert_allclose(compute_categorical_kl(p, q), [KL, 0.0, backwards], rtol=1e-14)
    assert compute_categorical_kl(p[None], q[None]).shape == (1, 3)
    never = compute_categorical_kl([[-np.inf, 0.0]], [[-3.0, -0.05]])
    np.testing.assert_allclose(never, [0.05])


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(0, 5),
    seq_len=st.integers(1, 700),
    dtype=st.sampled_from([np.float32, np.float64]),
    estimator=st.sampled_from(["k1", "k2", "k3"]),
    reduction=st.sampled_from(["sum", "mean"]),
    masked=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_sequences_are_what_numpy_makes_of_them(
    batch, seq_len, dtype, estimator, reduction, masked, seed
) -> None:
    rng = np.random.default_rng(seed)
    log_p, log_q = (-rng.exponential(2, size=(batch, seq_len)).astype(dtype) for _ in range(2))
    mask = rng.random((batch, seq_len)) < 0.7 if masked else np.ones((batch, seq_len), bool)
    expected = (terms(estimator, log_p, log_q) * mask).sum(1)
    if reduction == "mean":
        expected = expected / np.maximum(mask.sum(1), 1)
    options = {"estimator": estimator, "reduction": reduction}
    tolerance = {"rtol": 2e-5, "atol": 2e-4} if dtype == np.float32 else {"atol": 1e-10}
    given_mask = mask if masked else None
    flat = {**options, "mask": mask.ravel() if masked else None}
    offsets = np.arange(batch + 1) * seq_len
    for got in (
        compute_batch_token_kl(log_p, log_q, mask=given_mask, **options),
        compute_batch_token_kl(log_p, log_q, seq_len, mask=given_mask, **options),
        compute_batch_token_kl(log_p.ravel(), log_q.ravel(), seq_len, **flat),
        compute_batch_token_kl(log_p.ravel(), log_q.ravel(), offsets=offsets, **flat),
    ):
        assert got.dtype == dtype
        assert got.shape == (batch,)
        np.testing.assert_allclose(got, expected, **tolerance)
    for row in range(batch):
        single = compute_token_kl(log_p[row], log_q[row], mask=mask[row], **options)
        np.testing.assert_allclose(single, expected[row], **tolerance)


def test_ragged_sequences_may_be_empty() -> None:
    log_p, log_q = [-1.0, -2.0, -3.0], [-2.0, -2.0, -5.0]
    got = compute_batch_token_kl(log_p, log_q, offsets=[0, 0, 2, 3, 3])
    np.testing.assert_array_equal(got, [0.0, 1.0, 2.0, 0.0])


def test_nothing_gives_nothing() -> None:
    assert compute_token_kl([], []) == 0.0
    assert compute_token_kl([], [], reduction="mean") == 0.0
    assert compute_batch_token_kl([], [], 4).shape == (0,)
    assert compute_batch_token_kl_schulman(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)
    assert compute_batch_token_kl([], [], offsets=[0]).shape == (0,)


def test_what_is_masked_may_be_anything() -> None:
    log_p, log_q = [-1.0, np.nan, -2.0], [-3.0, np.inf, -2.5]
    for mask in ([True, False, True], [1, 0, 2], [1.0, 0.0, 0.5], np.array([1, 0, 1], np.float32)):
        assert compute_token_kl(log_p, log_q, mask=mask) == 2.5
        assert compute_token_kl(log_p, log_q, mask=mask, reduction="mean") == 1.25
    got = compute_token_kl(log_p, log_q, mask=[True, False, True], reduction="none")
    np.testing.assert_array_equal(got, [2.0, 0.0, 0.5])


def test_nan_stays_in_its_sequence() -> None:
    got = compute_batch_token_kl_schulman([0.0, np.nan, -1.0, -1.0], [0.0, 0.0, -1.0, -1.0], 2)
    np.testing.assert_array_equal(got, [np.nan, 0.0])


def test_tokens_that_cannot_be_drawn_are_infinitely_far() -> None:
    for estimator in ("k1", "k2", "k3"):
        assert compute_token_kl([-1.0], [-np.inf], estimator=estimator) == np.inf


def test_digits_survive_where_the_policies_are_almost_equal() -> None:
    d = np.array([1e-9, -1e-7, 1e-5])
    got = compute_token_kl(np.zeros(3), d, estimator="k3", reduction="none")
    np.testing.assert_allclose(got, d**2 / 2 + d**3 / 6 + d**4 / 24, rtol=1e-14)
    # The formula as it is written has none of them left.
    assert abs((np.exp(d[0]) - 1 - d[0]) / got[0] - 1) > 1


def test_shorter_floats_are_computed_in_float32() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    log_p, log_q = np.log([[0.5, 0.2]] * 3), np.log([[0.4, 0.3]] * 3)
    expected = compute_batch_token_kl(log_p, log_q, estimator="k3")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        got = compute_batch_token_kl_schulman(log_p.astype(dtype), log_q.astype(dtype))
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0.1)


def test_strides_and_orders_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    log_p, log_q = -rng.random((6, 8)), -rng.random((6, 8))
    expected = compute_batch_token_kl(log_p[:, ::2].copy(), log_q[:, ::2].copy())
    np.testing.assert_array_equal(compute_batch_token_kl(log_p[:, ::2], log_q[:, ::2]), expected)
    turned = compute_batch_token_kl(np.asfortranarray(log_p), log_q)
    np.testing.assert_array_equal(turned, compute_batch_token_kl(log_p, log_q))


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([0.0] * 5, [0.0] * 5, 2), {}, "`log_p` has 5 elements, which seq_len=2 does not divide"),
        (
            ([0.0] * 4, [0.0] * 3, 2),
            {},
            r"`log_q` has shape \(3,\), expected that of `log_p`, \(4,",
        ),
        (([0.0] * 4, [0.0] * 4, 0), {}, "`seq_len` must be at least 1, got 0"),
        (([0.0] * 4, [0.0] * 4, -2), {}, "`seq_len` must be at least 1, got -2"),
        (([0.0] * 4, [0.0] * 4), {}, "`seq_len` or `offsets` must say where sequences end"),
        (
            ([[0.0] * 4], [[0.0] * 4], 2),
            {},
            r"`log_p` has shape \(1, 4\), expected \(..., seq_len=2",
        ),
        (([0.0], [0.0], 1), {"offsets": [0, 1]}, "give `seq_len` or `offsets`, not both"),
        (([0.0], [0.0]), {"offsets": []}, "`offsets` must have at least one element"),
        (([0.0], [0.0]), {"offsets": [1, 1]}, r"`offsets`\[0\] must be 0, got 1"),
        (([0.0], [0.0]), {"offsets": [0, 2, 1]}, r"never fall, but `offsets`\[2\] is 1 after 2"),
        (([0.0], [0.0]), {"offsets": [0, 2]}, "must end with the 1 elements of `log_p`, got 2"),
        (([0.0], [0.0]), {"offsets": [0, -1]}, r"`offsets`\[1\] must be at least 0, got -1"),
        (
            ([[0.0]], [[0.0]]),
            {"offsets": [0, 1]},
            r"`log_p` must have one axis, got shape \(1, 1\)",
        ),
        (([0.0], [0.0], 1), {"estimator": "k4"}, 'must be one of "k1", "k2", "k3", got "k4"'),
        (
            ([0.0], [0.0], 1),
            {"reduction": "max"},
            'must be one of "sum", "mean", "none", got "max"',
        ),
        (([0.0], [0.0], 1), {"mask": [1, 0]}, r"`mask` has shape \(2,\), expected that of `log_p`"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_values(arguments, options, text) -> None:
    with pytest.raises(ArgumentError, match=text) as caught:
        compute_batch_token_kl(*arguments, **options)
    assert isinstance(caught.value, ValueError)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(DtypeError, match="`log_q`"):
        compute_token_kl([0.0], ["a"])
    with pytest.raises(DtypeError, match=r"`log_p`.*complex"):
        compute_token_kl([1j], [0.0])
    with pytest.raises(ArgumentError, match="vocabulary"):
        compute_categorical_kl(np.zeros((2, 0)), np.zeros((2, 0)))
