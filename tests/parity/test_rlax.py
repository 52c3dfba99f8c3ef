"""rlax gives the same returns and advantages: ``make parity`` runs this."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from echoic import primitives

try:
    with warnings.catch_warnings():
        # Its dependencies' own.
        warnings.simplefilter("ignore")
        import rlax
except ImportError:
    rlax = None

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(rlax is None, reason="rlax is not installed; see `make parity`"),
    pytest.mark.filterwarnings("ignore"),
]

GAMMA, LAM, STEPS = 0.95, 0.8, 60


class Data:
    """One sequence; rlax has discounts instead of flags, and values of the next observations."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (4, STEPS)
        self.r, self.v, self.q, self.log_rhos = rng.normal(size=shape).astype(np.float32)
        self.dones = rng.random(STEPS) < 0.1
        self.last = np.float32(rng.normal())
        self.discounts = (GAMMA * ~self.dones).astype(np.float32)
        self.all_values = np.append(self.v, self.last)
        self.v_next = self.all_values[1:]
        self.inputs = (self.r, self.v, self.dones, self.last)


@pytest.fixture(params=range(5))
def data(request: pytest.FixtureRequest) -> Data:
    return Data(request.param)


def assert_same(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_gae(data: Data) -> None:
    advantages, _ = primitives.compute_gae(*data.inputs, GAMMA, LAM)
    wanted = rlax.truncated_generalized_advantage_estimation(
        data.r, data.discounts, LAM, data.all_values
    )
    assert_same(advantages, wanted)


def test_lambda_returns(data: Data) -> None:
    returns = primitives.compute_lambda_returns(*data.inputs, GAMMA, LAM)
    assert_same(returns, rlax.lambda_returns(data.r, data.discounts, data.v_next, LAM))


@pytest.mark.parametrize("n", [1, 3, 10])
def test_n_step_returns(data: Data, n: int) -> None:
    returns = primitives.compute_n_step_returns(*data.inputs, n, GAMMA)
    wanted = rlax.n_step_bootstrapped_returns(data.r, data.discounts, data.v_next, n)
    assert_same(returns, wanted)


def test_discounted_sums(data: Data) -> None:
    sums = primitives.compute_discounted_sums(data.r, data.dones, GAMMA, data.last)
    wanted = rlax.discounted_returns(
        data.r, data.discounts, np.full(STEPS, data.last, dtype=np.float32)
    )
    assert_same(sums, wanted)


def test_vtrace(data: Data) -> None:
    targets, _ = primitives.compute_vtrace(
        data.log_rhos, *data.inputs, GAMMA, 1.0, 1.0, lam=LAM, pg_rho_bar=1.2
    )
    wanted = rlax.vtrace_td_error_and_advantage(
        data.v,
        data.v_next,
        data.r,
        data.discounts,
        np.exp(data.log_rhos),
        lambda_=LAM,
        clip_rho_threshold=1.0,
        clip_pg_rho_threshold=1.2,
    )
    assert_same(targets - data.v, wanted.errors)
    # rlax mixes next values into the targets of its advantages unless λ is one.
    _, advantages = primitives.compute_vtrace(data.log_rhos, *data.inputs, GAMMA, pg_rho_bar=1.2)
    wanted = rlax.vtrace_td_error_and_advantage(
        data.v,
        data.v_next,
        data.r,
        data.discounts,
        np.exp(data.log_rhos),
        clip_pg_rho_threshold=1.2,
    )
    assert_same(advantages, wanted.pg_advantage)


def test_retrace(data: Data) -> None:
    targets = primitives.compute_retrace(
        data.log_rhos, data.r, data.q, data.v, data.dones, data.last, GAMMA, LAM
    )
    traces = LAM * np.minimum(1.0, np.exp(data.log_rhos))
    wanted = rlax.general_off_policy_returns_from_q_and_v(
        data.q[1:], data.v_next, data.r, data.discounts, traces[1:]
    )
    assert_same(targets, wanted)
