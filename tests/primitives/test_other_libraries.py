"""Tensors of PyTorch and arrays of JAX go in, and come out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from echoic import primitives
from echoic.errors import DtypeError


@pytest.fixture(params=["torch", pytest.param("jax", marks=pytest.mark.nightly)])
def library(request: Any) -> tuple[Any, type]:
    """How to make an array of a library, and what it is then."""
    module = pytest.importorskip(request.param)
    if request.param == "torch":
        return module.tensor, module.Tensor
    return module.numpy.asarray, module.Array


LOG_P = np.log([[0.5, 0.2], [0.3, 0.9]]).astype(np.float32)
LOG_Q = np.log([[0.4, 0.3], [0.3, 0.2]]).astype(np.float32)
CALLS = {
    "sequences": lambda make: primitives.compute_batch_token_kl(make(LOG_P), make(LOG_Q)),
    "terms": lambda make: primitives.compute_token_kl(
        make(LOG_P), make(LOG_Q), estimator="k3", reduction="none"
    ),
    "vocabulary": lambda make: primitives.compute_categorical_kl(make(LOG_P), make(LOG_Q)),
    "mask": lambda make: primitives.compute_batch_token_kl_schulman(
        make(LOG_P), make(LOG_Q), mask=make(np.array([[True, False], [True, True]]))
    ),
    "offsets": lambda make: primitives.compute_batch_token_kl(
        make(LOG_P.ravel()), make(LOG_Q.ravel()), offsets=make(np.array([0, 3, 4], np.int32))
    ),
    "groups": lambda make: primitives.compute_batch_group_advantages(make(LOG_P)),
    "group": lambda make: primitives.compute_group_advantages(make(LOG_P[0])),
    "weights": lambda make: primitives.compute_importance_weights(make(LOG_P), make(LOG_Q)),
    "long": lambda make: primitives.compute_importance_weights(
        make(np.tile(LOG_P, 20_000)), make(np.tile(LOG_Q, 20_000))
    ),
    "ranks": lambda make: primitives.balance_sequences(make(np.array([3, 2, 1], np.int32)), 2),
    "micro-batches": lambda make: primitives.plan_micro_batches(
        make(np.array([3, 2, 1], np.int32)), [0, 0, 0], 1, 4
    )[0],
    "rows": lambda make: primitives.plan_packing(make(np.array([3, 2, 1], np.int32)), 4)[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_comes_out_is_of_the_library_that_went_in(name: str, library: Any) -> None:
    make, kind = library
    got = CALLS[name](make)
    assert isinstance(got, kind)
    expected = CALLS[name](lambda array: array)
    # JAX has no 64 bits unless it is told.
    np.testing.assert_array_equal(np.asarray(got), expected)


def test_packed_tokens_are_of_the_library_that_went_in(library: Any) -> None:
    make, kind = library
    tokens = [np.array(t, np.int32) for t in ([1, 2, 3], [4, 5], [6])]
    expected = primitives.pack_sequences(tokens, 4)
    got = primitives.pack_sequences([make(t) for t in tokens], 4)
    for ours, theirs in zip(expected, got, strict=True):
        assert isinstance(theirs, kind)
        assert str(ours.dtype) in str(theirs.dtype)
        np.testing.assert_array_equal(np.asarray(theirs), ours)


def test_statistics_take_and_give_them(library: Any) -> None:
    make, kind = library
    stats, vector = primitives.RunningStats(), primitives.RunningStatsVec(2)
    stats.batch_update(make(LOG_P))
    vector.batch_update(make(LOG_P))
    assert (stats.count(), vector.count()) == (4, 2)
    for each in (stats, vector):
        got = each.normalize(make(LOG_Q))
        assert isinstance(got, kind)
        np.testing.assert_array_equal(np.asarray(got), each.normalize(LOG_Q))
    normalizer = primitives.ValueNormalizer()
    normalizer.update(make(LOG_P))
    assert isinstance(normalizer.normalize(make(LOG_Q)), kind)


def test_bfloat16_is_computed_in_float32(library: Any) -> None:
    make, kind = library
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves = [array.astype(ml_dtypes.bfloat16) for array in (LOG_P, LOG_Q)]
    expected = primitives.compute_batch_token_kl(*halves)
    if kind.__module__.startswith("torch"):
        tensors = [make(half.astype(np.float32)).bfloat16() for half in halves]
    else:
        tensors = [make(half) for half in halves]
    got = primitives.compute_batch_token_kl(*tensors)
    assert isinstance(got, kind)
    assert "float32" in str(got.dtype)
    np.testing.assert_array_equal(np.asarray(got), expected)


def test_a_gradient_does_not_end_unnoticed() -> None:
    torch = pytest.importorskip("torch")
    log_p = torch.zeros(3, requires_grad=True)
    with pytest.raises(DtypeError, match=r"`log_p` requires a gradient.*log_p.detach\(\)"):
        primitives.compute_token_kl(log_p, torch.zeros(3))
    normalizer = primitives.ValueNormalizer()
    normalizer.update([1.0, 3.0])
    assert normalizer.denormalize(log_p).requires_grad
