"""Returns, advantages and off-policy corrections against their definitions, in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from echoic import primitives
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GAMMA, LAM = 0.9, 0.8
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-10}

shared = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
lengths = st.one_of(
    # Equal lengths fit every layout; 300 are more than are taken at once.
    st.tuples(st.integers(1, 12), st.integers(0, 12)).map(lambda n: [n[1]] * n[0]),
    st.tuples(st.integers(1, 3), st.integers(250, 300)).map(lambda n: [n[1]] * n[0]),
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
)
cases = {
    "seed": st.integers(0, 2**32 - 1),
    "lengths": lengths,
    "layout": st.sampled_from(["time", "sequence", "ragged"]),
    "dtype": st.sampled_from([np.float32, np.float64]),
}


class Case:
    """A rollout in one layout."""

    def __init__(self, rollouts: Any, seed: int, lengths: list[int], layout: str, dtype: Any):
        self.layout = layout if len(set(lengths)) == 1 else "ragged"
        self.dtype = dtype
        self.rollout = rollouts.random(seed, lengths, dtype)
        arranged = self.rollout.arranged(self.layout)
        ends = {name: arranged[name] for name in ("truncated", "final_values")}
        self.options = {**arranged.pop("options"), **ends}
        self.__dict__.update(arranged)

    def check(self, result: Any, expected: list[Any]) -> None:
        assert result.dtype == self.dtype
        assert result.shape == self.rewards.shape
        for got, want in zip(self.rollout.split(result, self.layout), expected, strict=True):
            np.testing.assert_allclose(
                got, want, rtol=TOLERANCE[self.dtype], atol=TOLERANCE[self.dtype]
            )


@shared
@given(**cases)
def test_gae_is_the_sum_of_decayed_errors(rollouts: Any, **drawn: Any) -> None:
    case = Case(rollouts, **drawn)
    advantages, returns = primitives.compute_gae(
        case.rewards, case.values, case.terminated, case.last, GAMMA, LAM, **case.options
    )
    expected = [sequence.gae(GAMMA, LAM) for sequence in case.rollout.sequences()]
    case.check(advantages, expected)
    with_values = [e + s.v for e, s in zip(expected, case.rollout.sequences(), strict=True)]
    case.check(returns, with_values)
    alone = primitives.compute_lambda_returns(
        case.rewards, case.values, case.terminated, case.last, GAMMA, LAM, **case.options
    )
    np.testing.assert_array_equal(alone, returns)


@shared
@given(**cases)
def test_discounted_sums_go_to_the_end_of_the_episode(rollouts: Any, **drawn: Any) -> None:
    case = Case(rollouts, **drawn)
    sums = primitives.compute_discounted_sums(
        case.rewards, case.terminated, GAMMA, case.last, **case.options
    )
    rollout = case.rollout
    expected = [
        sequence.discounted(GAMMA, rollout.last[n], rollout.truncated[n], rollout.final_values[n])
        for n, sequence in enumerate(rollout.sequences())
    ]
    case.check(sums, expected)


@shared
@given(n=st.integers(1, 40), **cases)
def test_n_step_returns_look_n_steps_ahead(rollouts: Any, n: int, **drawn: Any) -> None:
    case = Case(rollouts, **drawn)
    returns = primitives.compute_n_step_returns(
        case.rewards, case.values, case.terminated, case.last, n, GAMMA, **case.options
    )
    case.check(returns, [sequence.n_step(n, GAMMA) for sequence in case.rollout.sequences()])


@shared
@given(**cases)
def test_vtrace_is_the_sum_of_weighted_errors(rollouts: Any, **drawn: Any) -> None:
    case = Case(rollouts, **drawn)
    inputs = (case.log_rhos, case.rewards, case.values, case.terminated, case.last)
    targets, advantages = primitives.compute_vtrace(
        *inputs, GAMMA, 1.2, 0.9, lam=0.95, pg_rho_bar=1.5, **case.options
    )
    expected = [s.vtrace(GAMMA, 1.2, 0.9, 0.95, 1.5) for s in case.rollout.sequences()]
    case.check(targets, [vs for vs, _ in expected])
    case.check(advantages, [advantage for _, advantage in expected])


@shared
@given(**cases)
def test_retrace_is_the_sum_of_traced_errors(rollouts: Any, **drawn: Any) -> None:
    case = Case(rollouts, **drawn)
    inputs = (case.log_rhos, case.rewards, case.q_values, case.values, case.terminated, case.last)
    targets = primitives.compute_retrace(*inputs, GAMMA, LAM, **case.options)
    case.check(targets, [sequence.retrace(GAMMA, LAM) for sequence in case.rollout.sequences()])


@shared
@given(**cases)
def test_upgo_follows_what_went_well(rollouts: Any, **drawn: Any) -> None:
    case = Case(rollouts, **drawn)
    # Steps exactly as good as expected may be taken for either, so there are none.
    returns, advantages = primitives.compute_upgo(
        case.rewards, case.values, case.terminated, case.last, GAMMA, **case.options
    )
    expected = [sequence.upgo(GAMMA) for sequence in case.rollout.sequences()]
    case.check(returns, expected)
    less = [e - s.v for e, s in zip(expected, case.rollout.sequences(), strict=True)]
    case.check(advantages, less)


@pytest.mark.parametrize("sequences", [255, 256, 257, 4097])
def test_many_sequences_side_by_side_are_each_computed_alone(sequences: int) -> None:
    rng = np.random.default_rng(sequences)
    shape = (5, sequences)
    rewards, values, log_rhos = (rng.normal(size=shape) for _ in range(3))
    dones, last = rng.random(shape) < 0.2, rng.normal(size=sequences)
    time = primitives.compute_vtrace(
        log_rhos, rewards, values, dones, last, GAMMA, 1.0, 1.0, time_axis=0
    )
    flipped = [np.ascontiguousarray(array.T) for array in (log_rhos, rewards, values, dones)]
    sequence = primitives.compute_vtrace(*flipped, last, GAMMA, 1.0, 1.0, time_axis=1)
    for a, b in zip(time, sequence, strict=True):
        np.testing.assert_allclose(a, b.T, rtol=1e-12, atol=1e-12)
    n_step = primitives.compute_n_step_returns(rewards, values, dones, last, 3, GAMMA, time_axis=0)
    flipped_n_step = primitives.compute_n_step_returns(*flipped[1:], last, 3, GAMMA, time_axis=1)
    np.testing.assert_allclose(n_step, flipped_n_step.T, rtol=1e-12, atol=1e-12)


def test_a_long_sequence_carries_over_from_tile_to_tile() -> None:
    ones = np.ones(1000)
    sums = primitives.compute_discounted_sums(ones, None, 1.0, 5.0)
    np.testing.assert_array_equal(sums, np.arange(1005.0, 5.0, -1.0))


def test_gae_by_hand() -> None:
    # δ = (1 + 0.5·2 - 1, 1 - 2, 3 + 0.5·8 - 4) = (1, -1, 3), and γλ = 0.25.
    advantages, returns = primitives.compute_gae(
        [1.0, 1.0, 3.0], [1.0, 2.0, 4.0], [0, 1, 0], 8.0, 0.5, 0.5
    )
    assert advantages.tolist() == [0.75, -1.0, 3.0]
    assert returns.tolist() == [1.75, 1.0, 7.0]


def test_vtrace_by_hand() -> None:
    # ρ = c = (1, 0.5), δ = (1 + 2 - 1, 0.5 (1 + 4 - 2)) = (2, 1.5), so vs = (1 + 2 + 1.5, 3.5).
    targets, advantages = primitives.compute_vtrace(
        np.log([2.0, 0.5]), [1.0, 1.0], [1.0, 2.0], [0, 0], 4.0, 1.0
    )
    np.testing.assert_allclose(targets, [4.5, 3.5])
    np.testing.assert_allclose(advantages, [1 + 3.5 - 1, 0.5 * (1 + 4 - 2)])


def test_truncation_goes_on_from_the_final_value_and_termination_does_not() -> None:
    inputs = ([1.0, 1.0], [0.0, 0.0])
    ended, _ = primitives.compute_gae(*inputs, [1, 0], 0.0, 0.5, 1.0)
    cut, _ = primitives.compute_gae(
        *inputs, None, 0.0, 0.5, 1.0, truncated=[1, 0], final_values=[10.0, np.nan]
    )
    assert ended.tolist() == [1.0, 1.0]
    assert cut.tolist() == [6.0, 1.0]


def test_a_step_that_is_both_terminated_and_truncated_is_terminated() -> None:
    sums = primitives.compute_discounted_sums(
        [1.0], [1], 0.5, 7.0, truncated=[1], final_values=[np.nan]
    )
    assert sums.tolist() == [1.0]


def test_the_last_value_does_not_count_after_an_end() -> None:
    advantages, _ = primitives.compute_gae([1.0], [0.0], [True], np.nan, 0.9, 0.9)
    assert advantages.tolist() == [1.0]


def test_nan_spreads_to_earlier_steps_of_its_sequence_only() -> None:
    rewards = np.ones((2, 4))
    rewards[0, 1] = np.nan
    for time_axis, array in ((1, rewards), (0, rewards.T.copy())):
        sums = primitives.compute_discounted_sums(array, None, 0.5, time_axis=time_axis)
        sums = sums if time_axis else sums.T
        assert np.isnan(sums[0, :2]).all()
        np.testing.assert_array_equal(sums[0, 2:], [1.5, 1.0])
        np.testing.assert_array_equal(sums[1], [1.875, 1.75, 1.5, 1.0])


def test_retrace_with_equal_policies_and_lambda_one_sums_all_rewards() -> None:
    rewards = np.arange(6.0)
    q_values, values = np.full(6, 3.0), np.full(6, 3.0)
    targets = primitives.compute_retrace(np.zeros(6), rewards, q_values, values, None, 2.0, 0.5)
    sums = primitives.compute_discounted_sums(rewards, None, 0.5, 2.0)
    np.testing.assert_allclose(targets, sums)


def test_n_steps_beyond_the_end_are_whole_returns() -> None:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=(2, 50))
    whole = primitives.compute_lambda_returns(rewards, values, None, 1.5, 0.9, 1.0)
    for n in (50, 51, 2**62):
        got = primitives.compute_n_step_returns(rewards, values, None, 1.5, n, 0.9)
        np.testing.assert_allclose(got, whole)


def test_infinite_clips_are_plain_importance_weights() -> None:
    targets, advantages = primitives.compute_vtrace(
        [1.0], [2.0], [0.5], None, 0.0, 0.9, np.inf, np.inf
    )
    np.testing.assert_allclose(targets, [0.5 + np.e * 1.5])
    np.testing.assert_allclose(advantages, [np.e * 1.5])
