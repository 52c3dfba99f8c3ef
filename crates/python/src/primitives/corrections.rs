//! Values of one policy from the steps of another.

use echoic_primitives::Real;
use echoic_primitives::corrections::{Clips, retrace, vtrace};
use pyo3::prelude::*;

use super::input::{finite, in_precision, not_negative};
use super::steps::{Options, Pair, Steps};

/// V-trace targets, and advantages for the policy's gradient.
///
/// With ``w_t = exp(log_rhos[t])``, ``ρ_t = min(ρ̄, w_t)`` and ``c_t = λ min(c̄, w_t)``
///
/// ``δ_t = ρ_t (r_t + γ v'_t - v_t)``, ``vs_t - v_t = δ_t + γ c_t (vs_{t+1} - v_{t+1})``,
/// ``A_t = min(ρ̄_A, w_t) (r_t + γ vs_{t+1} - v_t)``
///
/// (Espeholt et al. 2018, arXiv:1802.01561). ``v'_t``, what the rest of the episode is worth after
/// step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if it
/// truncated it; else ``bootstrap_value`` at the end of the sequence; else ``values[t + 1]``. At
/// all but the last of these ``vs_{t+1}`` is ``v'_t`` too, and no later error counts.
///
/// Args:
///     log_rhos: ``log π(a|s) - log μ(a|s)`` of the learner's policy and that which acted; shaped
///         like ``rewards``.
///     rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
///     values: The value of the observation that each step began with.
///     dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
///         or numbers (whatever is not zero is set), or ``None``.
///     bootstrap_value: The value of the observation after the last step: a number, or one for each
///         sequence.
///     gamma: The discount.
///     rho_bar: The largest weight of a step's own error; infinity clips nothing.
///     c_bar: The largest weight with which later errors count.
///     lam: With which weights of later errors are multiplied.
///     pg_rho_bar: The largest weight of an advantage, if not ``rho_bar``.
///     truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
///         ``final_values``.
///     final_values: What the observation after each truncated step is worth, in an array like
///         ``rewards``; unused, and not looked at, where ``truncated`` is not set.
///     time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
///     offsets: For sequences of different lengths one after the other in 1-D arrays: where each
///         begins, and where the last one ends.
///
/// Returns:
///     Targets ``vs`` and advantages, shaped like ``rewards``, in its dtype and of its kind.
///
/// Raises:
///     ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
///         ``final_values``, or a number out of range. Nothing was computed.
///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
///
/// Example:
///     >>> from echoic.primitives import compute_vtrace
///     >>> compute_vtrace([0.0, 0.0], [1.0, 1.0], [0.5, 0.25], [False, True], 4.0, 0.5, 1.0, 1.0)
///     (array([1.5, 1. ]), array([1.  , 0.75]))
#[pyfunction]
#[pyo3(signature = (
    log_rhos, rewards, values, dones, bootstrap_value, gamma, rho_bar=1.0, c_bar=1.0, *,
    lam=1.0, pg_rho_bar=None, truncated=None, final_values=None, time_axis=None, offsets=None,
))]
#[expect(clippy::too_many_arguments, reason = "they are the function's in Python")]
pub fn compute_vtrace<'py>(
    log_rhos: &Bound<'py, PyAny>,
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: &Bound<'py, PyAny>,
    bootstrap_value: &Bound<'py, PyAny>,
    gamma: f64,
    rho_bar: f64,
    c_bar: f64,
    lam: f64,
    pg_rho_bar: Option<f64>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
    time_axis: Option<i64>,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<Pair<'py>> {
    let py = rewards.py();
    let options = Options { truncated, final_values, time_axis, offsets, n_steps: None };
    let (values, last) = (Some(("values", values)), ("bootstrap_value", bootstrap_value));
    let steps = Steps::new(("rewards", rewards), values, ("dones", dones), last, &options, None)?;
    let log_rhos = steps.also(("log_rhos", log_rhos))?;
    let advantage = pg_rho_bar.unwrap_or(rho_bar);
    for (name, clip) in [("rho_bar", rho_bar), ("c_bar", c_bar), ("pg_rho_bar", advantage)] {
        // Infinity clips nothing.
        not_negative(py, name, clip)?;
    }
    finite(py, "gamma", gamma)?;
    finite(py, "lam", lam)?;
    in_precision!(steps.precision(), T => {
        let [rho, c, advantage, lam] = [rho_bar, c_bar, advantage, lam].map(T::from_f64);
        let (log_rhos, clips) = (log_rhos.numbers(), Clips { rho, c, advantage, lam });
        steps.two(move |rollout, targets, advantages| {
            vtrace(rollout, log_rhos, T::from_f64(gamma), clips, targets, advantages)
        })
    })
}

/// Retrace(λ) targets for the values of the actions that were taken.
///
/// With ``c_t = λ min(1, exp(log_rhos[t]))``
///
/// ``δ_t = r_t + γ v'_t - q_t``, ``G_t - q_t = δ_t + γ c_{t+1} (G_{t+1} - q_{t+1})``
///
/// (Munos et al. 2016, arXiv:1606.02647). ``v'_t``, what the rest of the episode is worth after
/// step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if it
/// truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. No error
/// runs from an episode into the one before it.
///
/// Args:
///     log_rhos: ``log π(a|s) - log μ(a|s)`` of the target policy and that which acted; shaped like
///         ``rewards``.
///     rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
///     q_values: ``Q(s_t, a_t)``, of the actions taken.
///     values: ``Σ_a π(a|s_t) Q(s_t, a)``, expected under the target policy.
///     dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
///         or numbers (whatever is not zero is set), or ``None``.
///     last_value: The expected value after the last step: a number, or one for each sequence.
///     gamma: The discount.
///     lam: With which weights of later errors are multiplied.
///     truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
///         ``final_values``.
///     final_values: What the observation after each truncated step is worth, in an array like
///         ``rewards``; unused, and not looked at, where ``truncated`` is not set.
///     time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
///     offsets: For sequences of different lengths one after the other in 1-D arrays: where each
///         begins, and where the last one ends.
///
/// Returns:
///     Targets for ``q_values``, shaped like ``rewards``, in its dtype and of its kind.
///
/// Raises:
///     ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
///         ``final_values``, or a number out of range. Nothing was computed.
///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
///
/// Example:
///     >>> from echoic.primitives import compute_retrace
///     >>> compute_retrace([0.0, 0.0], [1.0, 1.0], [0.0, 0.5], [0.0, 0.5], None, 2.0, 0.5)
///     array([2., 2.])
#[pyfunction]
#[pyo3(signature = (
    log_rhos, rewards, q_values, values, dones, last_value, gamma, lam=1.0, *,
    truncated=None, final_values=None, time_axis=None, offsets=None,
))]
#[expect(clippy::too_many_arguments, reason = "they are the function's in Python")]
pub fn compute_retrace<'py>(
    log_rhos: &Bound<'py, PyAny>,
    rewards: &Bound<'py, PyAny>,
    q_values: &Bound<'py, PyAny>,
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
    let log_rhos = steps.also(("log_rhos", log_rhos))?;
    let q_values = steps.also(("q_values", q_values))?;
    finite(rewards.py(), "gamma", gamma)?;
    finite(rewards.py(), "lam", lam)?;
    in_precision!(steps.precision(), T => {
        let (log_rhos, q_values) = (log_rhos.numbers(), q_values.numbers());
        let (gamma, lam) = (T::from_f64(gamma), T::from_f64(lam));
        steps.one(move |rollout, out| retrace(rollout, log_rhos, q_values, gamma, lam, out))
    })
}
