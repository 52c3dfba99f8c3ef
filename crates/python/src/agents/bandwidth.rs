//! What sequences cost, and who goes first.

use echoic_primitives::bandwidth::{Weights, cost, costs, efficiency, priorities};
use pyo3::prelude::*;

use crate::primitives::input::{
    Input, Precision, Whole, amount, count, divisor, finite, same_shape,
};
use crate::primitives::kind::Kind;
use crate::primitives::output::try_filled;

/// ``scale * seq_len * (seq_len + 1) / 2``.
#[pyfunction]
#[pyo3(signature = (seq_len, scale=1.0))]
pub fn attention_bandwidth_cost(py: Python<'_>, seq_len: i64, scale: f64) -> PyResult<f64> {
    effective_bandwidth_cost(py, seq_len, 0, scale)
}

/// [`attention_bandwidth_cost`] of each length.
#[pyfunction]
#[pyo3(signature = (seq_lengths, scale=1.0))]
pub fn attention_bandwidth_cost_batch<'py>(
    seq_lengths: &Bound<'py, PyAny>,
    scale: f64,
) -> PyResult<Bound<'py, PyAny>> {
    effective_bandwidth_cost_batch(seq_lengths, None, scale)
}

/// The cost of a sequence less that of the beginning that was reused.
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

/// [`effective_bandwidth_cost`] of each length.
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

/// ``reward / (bandwidth_weight * cost + queue_weight * queue_time + epsilon)`` of each request.
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

/// ``reward / (queue_time + epsilon)`` of each request.
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

/// ``total_reward / (rollout_cost + learner_cost)``.
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
