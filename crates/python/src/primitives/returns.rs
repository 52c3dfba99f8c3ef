//! Returns: what came of each step.

use echoic_primitives::Real;
use echoic_primitives::gae::gae;
use echoic_primitives::returns::{discounted_sums, nstep_returns, upgo};
use pyo3::prelude::*;

use super::input::{count, finite, in_precision};
use super::steps::{Options, Pair, Steps};

/// Discounted sums of rewards to go: ``G_t = r_t + γ G_{t+1}``.
///
/// After a step that terminated an episode ``G_{t+1}`` is zero; after one that truncated it, it is
/// ``final_values[t]``, and after the last step of a sequence ``last_value``.
///
/// Args:
///     rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
///     dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
///         or numbers (whatever is not zero is set), or ``None``.
///     gamma: The discount.
///     last_value: What comes after the last step is worth: a number, or one for each sequence.
///         Nothing if left out.
///     truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
///         ``final_values``.
///     final_values: What the observation after each truncated step is worth, in an array like
///         ``rewards``; unused, and not looked at, where ``truncated`` is not set.
///     time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
///     offsets: For sequences of different lengths one after the other in 1-D arrays: where each
///         begins, and where the last one ends.
///
/// Returns:
///     Sums, shaped like ``rewards``, in its dtype and of its kind.
///
/// Raises:
///     ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
///         ``final_values``, or a number out of range. Nothing was computed.
///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
///
/// Example:
///     >>> from echoic.primitives import compute_discounted_sums
///     >>> compute_discounted_sums([1.0, 1.0, 1.0], [False, True, False], 0.5)
///     array([1.5, 1. , 1. ])
#[pyfunction]
#[pyo3(signature = (
    rewards, dones, gamma, last_value=None, *,
    truncated=None, final_values=None, time_axis=None, offsets=None,
))]
#[expect(clippy::too_many_arguments, reason = "they are the function's in Python")]
pub fn compute_discounted_sums<'py>(
    rewards: &Bound<'py, PyAny>,
    dones: &Bound<'py, PyAny>,
    gamma: f64,
    last_value: Option<&Bound<'py, PyAny>>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
    time_axis: Option<i64>,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Options { truncated, final_values, time_axis, offsets, n_steps: None };
    let zero = pyo3::types::PyFloat::new(rewards.py(), 0.0).into_any();
    let last = ("last_value", last_value.unwrap_or(&zero));
    let steps = Steps::new(("rewards", rewards), None, ("dones", dones), last, &options, None)?;
    finite(rewards.py(), "gamma", gamma)?;
    in_precision!(steps.precision(), T => {
        steps.one(move |rollout, out| discounted_sums(rollout, T::from_f64(gamma), out))
    })
}

/// λ-returns: all n-step returns, weighted by ``(1 - λ) λ^(n-1)``.
///
/// ``G_t = r_t + γ ((1 - λ) v'_t + λ G_{t+1})``
///
/// (Sutton and Barto, Reinforcement Learning, 12.1). ``v'_t``, what the rest of the episode is
/// worth after step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if
/// it truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. At all
/// but the last of these ``G_t = r_t + γ v'_t``.
///
/// Args:
///     rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
///     values: The value of the observation that each step began with; shaped like ``rewards``.
///     dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
///         or numbers (whatever is not zero is set), or ``None``.
///     last_value: The value of the observation after the last step: a number, or one for each
///         sequence.
///     gamma: The discount.
///     lam: 0 for one-step returns, 1 for whole ones.
///     truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
///         ``final_values``.
///     final_values: What the observation after each truncated step is worth, in an array like
///         ``rewards``; unused, and not looked at, where ``truncated`` is not set.
///     time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
///     offsets: For sequences of different lengths one after the other in 1-D arrays: where each
///         begins, and where the last one ends.
///
/// Returns:
///     Returns, shaped like ``rewards``, in its dtype and of its kind. They are the second result
///     of :func:`compute_gae`.
///
/// Raises:
///     ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
///         ``final_values``, or a number out of range. Nothing was computed.
///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
///
/// Example:
///     >>> from echoic.primitives import compute_lambda_returns
///     >>> compute_lambda_returns([1.0, 1.0], [0.5, 0.25], [False, True], 4.0, 1.0, 0.5)
///     array([1.625, 1.   ])
#[pyfunction]
#[pyo3(signature = (
    rewards, values, dones, last_value, gamma, lam, *,
    truncated=None, final_values=None, time_axis=None, offsets=None,
))]
#[expect(clippy::too_many_arguments, reason = "they are the function's in Python")]
pub fn compute_lambda_returns<'py>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: &Bound<'py, PyAny>,
    last_value: &Bound<'py, PyAny>,
    gamma: f64,
    lam: f64,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
    time_axis: Option<i64>,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Options { truncated, final_values, time_axis, offsets, n_steps: None };
    let (values, last) = (Some(("values", values)), ("last_value", last_value));
    let steps = Steps::new(("rewards", rewards), values, ("dones", dones), last, &options, None)?;
    finite(rewards.py(), "gamma", gamma)?;
    finite(rewards.py(), "lam", lam)?;
    in_precision!(steps.precision(), T => {
        let (gamma, lam) = (T::from_f64(gamma), T::from_f64(lam));
        steps.one(move |rollout, out| gae(rollout, gamma, lam, None, Some(out)))
    })
}

/// The rewards of the next ``n`` steps, and what the rest of the episode is worth after them.
///
/// ``G_t = r_t + γ r_{t+1} + … + γ^(m-1) r_{t+m-1} + γ^m v'_{t+m-1}``
///
/// (Sutton and Barto, Reinforcement Learning, 7.1), where ``m`` is ``n``, or fewer if the episode
/// or the sequence ends before. ``v'_t``, what the rest of the episode is worth after step ``t``,
/// is zero if the step terminated the episode; else ``final_values[t]`` if it truncated it; else
/// ``last_value`` at the end of the sequence; else ``values[t + 1]``.
///
/// Args:
///     rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
///     values: The value of the observation that each step began with; shaped like ``rewards``.
///     dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
///         or numbers (whatever is not zero is set), or ``None``.
///     last_value: The value of the observation after the last step: a number, or one for each
///         sequence.
///     n: How many steps, at least 1. Time grows with it; for whole returns
///         :func:`compute_lambda_returns` with ``lam=1`` takes none of that.
///     gamma: The discount.
///     truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
///         ``final_values``.
///     final_values: What the observation after each truncated step is worth, in an array like
///         ``rewards``; unused, and not looked at, where ``truncated`` is not set.
///     time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
///     offsets: For sequences of different lengths one after the other in 1-D arrays: where each
///         begins, and where the last one ends.
///
/// Returns:
///     Returns, shaped like ``rewards``, in its dtype and of its kind.
///
/// Raises:
///     ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
///         ``final_values``, or a number out of range. Nothing was computed.
///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
///
/// Example:
///     >>> from echoic.primitives import compute_n_step_returns
///     >>> compute_n_step_returns([1.0, 1.0, 1.0], [0.0, 4.0, 8.0], None, 16.0, 2, 0.5)
///     array([3.5, 5.5, 9. ])
#[pyfunction]
#[pyo3(signature = (
    rewards, values, dones, last_value, n, gamma, *,
    truncated=None, final_values=None, time_axis=None, offsets=None,
))]
#[expect(clippy::too_many_arguments, reason = "they are the function's in Python")]
pub fn compute_n_step_returns<'py>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: &Bound<'py, PyAny>,
    last_value: &Bound<'py, PyAny>,
    n: i64,
    gamma: f64,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
    time_axis: Option<i64>,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Options { truncated, final_values, time_axis, offsets, n_steps: None };
    let (values, last) = (Some(("values", values)), ("last_value", last_value));
    let steps = Steps::new(("rewards", rewards), values, ("dones", dones), last, &options, None)?;
    finite(rewards.py(), "gamma", gamma)?;
    let n = count(rewards.py(), "n", n, 1)?;
    in_precision!(steps.precision(), T => {
        steps.one(move |rollout, out| nstep_returns(rollout, n, T::from_f64(gamma), out))
    })
}

/// Returns that follow what happened while it is at least as good as expected: UPGO.
///
/// ``G_t = r_t + γ (G_{t+1} if r_{t+1} + γ v'_{t+1} >= v_{t+1} else v_{t+1})``, ``A_t = G_t - v_t``
///
/// (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z). ``v'_t``, what the rest of the episode is
/// worth after step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if
/// it truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. At the
/// end of an episode or sequence ``G_t = r_t + γ v'_t``. For off-policy data multiply the
/// advantages by clipped importance weights.
///
/// Args:
///     rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
///     values: The value of the observation that each step began with; shaped like ``rewards``.
///     dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
///         or numbers (whatever is not zero is set), or ``None``.
///     last_value: The value of the observation after the last step: a number, or one for each
///         sequence.
///     gamma: The discount.
///     truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
///         ``final_values``.
///     final_values: What the observation after each truncated step is worth, in an array like
///         ``rewards``; unused, and not looked at, where ``truncated`` is not set.
///     time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
///     offsets: For sequences of different lengths one after the other in 1-D arrays: where each
///         begins, and where the last one ends.
///
/// Returns:
///     Returns and advantages, in this order, shaped like ``rewards``, in its dtype and of its
///     kind.
///
/// Raises:
///     ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
///         ``final_values``, or a number out of range. Nothing was computed.
///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
///
/// Example:
///     >>> from echoic.primitives import compute_upgo
///     >>> compute_upgo([0.0, 1.0, 0.0], [0.0, 1.0, 2.0], None, 0.0, 1.0)
///     (array([3., 3., 0.]), array([ 3.,  2., -2.]))
#[pyfunction]
#[pyo3(signature = (
    rewards, values, dones, last_value, gamma, *,
    truncated=None, final_values=None, time_axis=None, offsets=None,
))]
#[expect(clippy::too_many_arguments, reason = "they are the function's in Python")]
pub fn compute_upgo<'py>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: &Bound<'py, PyAny>,
    last_value: &Bound<'py, PyAny>,
    gamma: f64,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
    time_axis: Option<i64>,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<Pair<'py>> {
    let options = Options { truncated, final_values, time_axis, offsets, n_steps: None };
    let (values, last) = (Some(("values", values)), ("last_value", last_value));
    let steps = Steps::new(("rewards", rewards), values, ("dones", dones), last, &options, None)?;
    finite(rewards.py(), "gamma", gamma)?;
    in_precision!(steps.precision(), T => {
        steps.two(move |rollout, returns, advantages| {
            upgo(rollout, T::from_f64(gamma), returns, advantages)
        })
    })
}
