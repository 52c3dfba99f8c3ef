//! What sequences cost, and who goes first.

use echoic_primitives::bandwidth::{Weights, cost, costs, efficiency, priorities};
use pyo3::prelude::*;

use crate::primitives::input::{
    Input, Precision, Whole, amount, count, divisor, finite, same_shape,
};
use crate::primitives::kind::Kind;
use crate::primitives::output::try_filled;

/// What it costs to read a sequence with attention: ``scale * seq_len * (seq_len + 1) / 2``.
///
/// Pairs of tokens are counted in whole numbers, so the result is the number nearest to the exact
/// one however long the sequence is.
///
/// Args:
///     seq_len: Tokens, at least 0.
///     scale: What a pair of a token and one that it attends to costs, at least 0.
///
/// Raises:
///     ArgumentError: An argument is out of range.
///
/// Examples:
///     >>> from echoic.agents.kernels import attention_bandwidth_cost
///     >>> attention_bandwidth_cost(10)
///     55.0
///     >>> attention_bandwidth_cost(100_001)
///     5000150001.0
#[pyfunction]
#[pyo3(signature = (seq_len, scale=1.0))]
pub fn attention_bandwidth_cost(py: Python<'_>, seq_len: i64, scale: f64) -> PyResult<f64> {
    effective_bandwidth_cost(py, seq_len, 0, scale)
}

/// :func:`attention_bandwidth_cost` of whole numbers of any shape: float64 of that shape.
///
/// Examples:
///     >>> from echoic.agents.kernels import attention_bandwidth_cost_batch
///     >>> attention_bandwidth_cost_batch([3, 10])
///     array([ 6., 55.])
#[pyfunction]
#[pyo3(signature = (seq_lengths, scale=1.0))]
pub fn attention_bandwidth_cost_batch<'py>(
    seq_lengths: &Bound<'py, PyAny>,
    scale: f64,
) -> PyResult<Bound<'py, PyAny>> {
    effective_bandwidth_cost_batch(seq_lengths, None, scale)
}

/// What a sequence costs whose first tokens a cache had: its cost less that of this beginning.
///
/// Args:
///     seq_len: Tokens, at least 0.
///     reuse_len: How many of them a cache had; more than there are count as all of them.
///     scale: As in :func:`attention_bandwidth_cost`.
///
/// Raises:
///     ArgumentError: An argument is out of range.
///
/// Examples:
///     >>> from echoic.agents.kernels import effective_bandwidth_cost
///     >>> effective_bandwidth_cost(seq_len=128, reuse_len=96, scale=1.0)
///     3600.0
#[pyfunction]
#[pyo3(signature = (seq_len, reuse_len=0, scale=1.0))]
pub fn effective_bandwidth_cost(
    py: Python<'_>,
    seq_len: i64,
    reuse_len: i64,
    scale: f64,
) -> PyResult<f64> {
    let scale = amount(py, "scale", scale)?;
    let (tokens, reused) =
        (count(py, "seq_len", seq_len, 0)?, count(py, "reuse_len", reuse_len, 0)?);
    Ok(cost(tokens as u64, reused as u64, scale))
}

/// :func:`effective_bandwidth_cost` of whole numbers of any shape: float64 of that shape.
///
/// Raises:
///     ArgumentError: Shapes differ, or a number is negative.
///     DtypeError: Lengths are not whole numbers.
///
/// Examples:
///     >>> from echoic.agents.kernels import effective_bandwidth_cost_batch
///     >>> effective_bandwidth_cost_batch([10, 3], [5, 2])
///     array([40.,  3.])
#[pyfunction]
#[pyo3(signature = (seq_lengths, reuse_lengths=None, scale=1.0))]
pub fn effective_bandwidth_cost_batch<'py>(
    seq_lengths: &Bound<'py, PyAny>,
    reuse_lengths: Option<&Bound<'py, PyAny>>,
    scale: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = seq_lengths.py();
    let scale = amount(py, "scale", scale)?;
    let lengths = Whole::new("seq_lengths", seq_lengths)?;
    let reused = reuse_lengths.map(|reused| Whole::new("reuse_lengths", reused)).transpose()?;
    if let Some(reused) = &reused {
        same_shape(py, "reuse_lengths", reused.shape(), "seq_lengths", lengths.shape())?;
    }
    let (numbers, reused) = (lengths.numbers(), reused.as_ref().map(Whole::numbers));
    try_filled(py, lengths.shape(), Kind::Numpy, numbers.len(), |out| {
        costs(numbers, reused, scale, out)
    })
}

/// ``reward / (w_b * cost + w_q * queue_time + epsilon)`` of each request: float64.
///
/// The formula as it stands: a negative reward puts the dearest first, and a longer wait puts a
/// request behind. :class:`echoic.agents.bandwidth.BandwidthAwareScheduler` guards against both.
///
/// Args:
///     rewards: What each request is expected to earn, of any shape.
///     bandwidth_costs: What each costs, at least 0, of the same shape.
///     queue_times: How long each has waited, at least 0, of the same shape.
///     epsilon: Above 0, so that nothing is divided by 0.
///     bandwidth_weight: ``w_b``, at least 0.
///     queue_weight: ``w_q``, at least 0.
///
/// Raises:
///     ArgumentError: Shapes differ, or a number is not finite or out of range.
///     DtypeError: Not real numbers, or not on the CPU.
///
/// Examples:
///     >>> from echoic.agents.kernels import bandwidth_aware_priorities
///     >>> bandwidth_aware_priorities([1.0, 1.0], [3.0, 1.0], [1.0, 1.0], 1e-9).round(3)
///     array([0.25, 0.5 ])
#[pyfunction]
#[pyo3(signature = (
    rewards, bandwidth_costs, queue_times, epsilon=1e-6, *, bandwidth_weight=1.0, queue_weight=1.0,
))]
pub fn bandwidth_aware_priorities<'py>(
    rewards: &Bound<'py, PyAny>,
    bandwidth_costs: &Bound<'py, PyAny>,
    queue_times: &Bound<'py, PyAny>,
    epsilon: f64,
    bandwidth_weight: f64,
    queue_weight: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = rewards.py();
    let weights = Weights {
        bandwidth: amount(py, "bandwidth_weight", bandwidth_weight)?,
        queue: amount(py, "queue_weight", queue_weight)?,
        epsilon: divisor(py, "epsilon", epsilon)?,
    };
    ranked(rewards, Some(bandwidth_costs), queue_times, weights)
}

/// ``reward / (queue_time + epsilon)`` of each request: float64, without its bandwidth.
///
/// Examples:
///     >>> from echoic.agents.kernels import schedule_priorities
///     >>> schedule_priorities([1.0, 3.0], [1.0, 2.0], 1e-9).round(3)
///     array([1. , 1.5])
#[pyfunction]
#[pyo3(signature = (rewards, queue_times, epsilon=1e-6))]
pub fn schedule_priorities<'py>(
    rewards: &Bound<'py, PyAny>,
    queue_times: &Bound<'py, PyAny>,
    epsilon: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let epsilon = divisor(rewards.py(), "epsilon", epsilon)?;
    ranked(rewards, None, queue_times, Weights { bandwidth: 0.0, queue: 1.0, epsilon })
}

fn ranked<'py>(
    rewards: &Bound<'py, PyAny>,
    costs: Option<&Bound<'py, PyAny>>,
    waits: &Bound<'py, PyAny>,
    weights: Weights,
) -> PyResult<Bound<'py, PyAny>> {
    let py = rewards.py();
    let rewards = Input::following("rewards", rewards, Precision::Double)?;
    let beside = |name: &str, object: &Bound<'py, PyAny>| {
        let input = Input::following(name, object, Precision::Double)?;
        same_shape(py, name, input.shape(), "rewards", rewards.shape())?;
        PyResult::Ok(input)
    };
    let waits = beside("queue_times", waits)?;
    let costs = costs.map(|costs| beside("bandwidth_costs", costs)).transpose()?;
    let (numbers, waits) = (rewards.numbers::<f64>(), waits.numbers::<f64>());
    let costs = costs.as_ref().map(Input::numbers::<f64>);
    try_filled(py, rewards.shape(), Kind::Numpy, numbers.len(), |out| {
        priorities(numbers, costs, waits, weights, out)
    })
}

/// ``total_reward / (rollout_cost + learner_cost)``; 0 where at most ``1e-12`` was spent.
///
/// The two costs have different units, so report them beside it, as
/// :class:`echoic.agents.bandwidth.BandwidthMetrics` does.
///
/// Raises:
///     ArgumentError: A number is not finite, or a cost is negative.
///
/// Examples:
///     >>> from echoic.agents.kernels import bandwidth_efficiency
///     >>> round(bandwidth_efficiency(0.5, 904.0, 0.02), 10)
///     0.0005530851
#[pyfunction]
pub fn bandwidth_efficiency(
    py: Python<'_>,
    total_reward: f64,
    rollout_cost: f64,
    learner_cost: f64,
) -> PyResult<f64> {
    finite(py, "total_reward", total_reward)?;
    let rollout_cost = amount(py, "rollout_cost", rollout_cost)?;
    Ok(efficiency(total_reward, rollout_cost, amount(py, "learner_cost", learner_cost)?))
}
