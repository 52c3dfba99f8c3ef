//! Generalised advantage estimation, in the forms that it is called in.

use echoic_primitives::Real;
use echoic_primitives::gae::gae;
use pyo3::prelude::*;

use super::input::{Precision, finite, in_precision};
use super::steps::{Options, Pair, Steps};

/// Advantages by GAE, and the λ-returns that they amount to.
///
/// ``δ_t = r_t + γ v'_t - v_t``, ``A_t = δ_t + γ λ A_{t+1}``, ``G_t = A_t + v_t``
///
/// (Schulman et al. 2016, arXiv:1506.02438). ``v'_t``, what the rest of the episode is worth after
/// step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if it
/// truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. No
/// advantage runs from an episode into the one before it.
///
/// Args:
///     rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
///     values: The value of the observation that each step began with; shaped like ``rewards``.
///     dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
///         or numbers (whatever is not zero is set), or ``None``.
///     last_value: The value of the observation after the last step: a number, or one for each
///         sequence.
///     gamma: The discount.
///     lam: 0 for one-step errors, 1 for whole returns.
///     truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
///         ``final_values``.
///     final_values: What the observation after each truncated step is worth, in an array like
///         ``rewards``; unused, and not looked at, where ``truncated`` is not set.
///     time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
///     offsets: For sequences of different lengths one after the other in 1-D arrays: where each
///         begins, and where the last one ends.
///
/// Returns:
///     Advantages and returns, shaped like ``rewards``, in its dtype and of its kind: numpy,
///     PyTorch or JAX.
///
/// Raises:
///     ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
///         ``final_values``, or a number out of range. Nothing was computed.
///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
///
/// Example:
///     >>> from echoic.primitives import compute_gae
///     >>> advantages, returns = compute_gae([1.0, 1.0], [0.5, 0.25], [0, 1], 4.0, 1.0, 0.5)
///     >>> advantages, returns
///     (array([1.125, 0.75 ]), array([1.625, 1.   ]))
#[pyfunction]
#[pyo3(signature = (
    rewards, values, dones, last_value, gamma, lam, *,
    truncated=None, final_values=None, time_axis=None, offsets=None,
))]
#[expect(clippy::too_many_arguments, reason = "they are the function's arguments in Python")]
pub fn compute_gae<'py>(
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
) -> PyResult<Pair<'py>> {
    let options = Options { truncated, final_values, time_axis, offsets, n_steps: None };
    let (values, last) = (Some(("values", values)), ("last_value", last_value));
    let steps = Steps::new(("rewards", rewards), values, ("dones", dones), last, &options, None)?;
    advantages(rewards.py(), &steps, gamma, lam)
}

macro_rules! batched {
    ($(#[$doc:meta])* $name:ident, $precision:expr) => {
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (
            rewards_flat, values_flat, dones_flat, last_vals, n_steps, gamma, lam, *,
            truncated=None, final_values=None,
        ))]
        #[expect(clippy::too_many_arguments, reason = "they are the function's in Python")]
        pub fn $name<'py>(
            rewards_flat: &Bound<'py, PyAny>,
            values_flat: &Bound<'py, PyAny>,
            dones_flat: &Bound<'py, PyAny>,
            last_vals: &Bound<'py, PyAny>,
            n_steps: i64,
            gamma: f64,
            lam: f64,
            truncated: Option<&Bound<'py, PyAny>>,
            final_values: Option<&Bound<'py, PyAny>>,
        ) -> PyResult<Pair<'py>> {
            let n_steps = Some(n_steps);
            let options = Options { truncated, final_values, n_steps, ..Options::default() };
            let steps = Steps::new(
                ("rewards_flat", rewards_flat),
                Some(("values_flat", values_flat)),
                ("dones_flat", dones_flat),
                ("last_vals", last_vals),
                &options,
                $precision,
            )?;
            advantages(rewards_flat.py(), &steps, gamma, lam)
        }
    };
}

batched! {
    /// :func:`compute_gae` for several environments in flat arrays, one environment after the other.
    ///
    /// Args:
    ///     rewards_flat: ``(N * n_steps,)``: all steps of the first environment, then of the second.
    ///         From ``(N, T)`` this is ``.ravel()``; ``(T, N)`` would have to be transposed first, or
    ///         goes to :func:`compute_gae` as it is.
    ///     values_flat: The value of the observation that each step began with.
    ///     dones_flat: Which steps terminated an episode.
    ///     last_vals: ``(N,)``, the value of the observation after each environment's last step.
    ///     n_steps: ``T``, the steps of each environment.
    ///     gamma: The discount.
    ///     lam: 0 for one-step errors, 1 for whole returns.
    ///     truncated: Which steps truncated an episode. Needs ``final_values``.
    ///     final_values: What the observation after each truncated step is worth.
    ///
    /// Returns:
    ///     Advantages and returns, flat too, in the dtype of the rewards and of their kind.
    ///
    /// Raises:
    ///     ArgumentError: Shapes differ, or ``n_steps`` does not divide them.
    ///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
    ///
    /// Example:
    ///     >>> from echoic.primitives import compute_gae_batched
    ///     >>> compute_gae_batched([1.0, 1.0, 2.0, 2.0], [0.0] * 4, None, [0.0, 8.0], 2, 0.5, 1)[0]
    ///     array([1.5, 1. , 5. , 6. ])
    compute_gae_batched, None
}
batched! {
    /// :func:`compute_gae_batched`, computed in ``float32`` whatever comes in.
    ///
    /// Args:
    ///     rewards_flat: ``(N * n_steps,)``: all steps of the first environment, then of the second.
    ///     values_flat: The value of the observation that each step began with.
    ///     dones_flat: Which steps terminated an episode.
    ///     last_vals: ``(N,)``, the value of the observation after each environment's last step.
    ///     n_steps: ``T``, the steps of each environment.
    ///     gamma: The discount.
    ///     lam: 0 for one-step errors, 1 for whole returns.
    ///     truncated: Which steps truncated an episode. Needs ``final_values``.
    ///     final_values: What the observation after each truncated step is worth.
    ///
    /// Returns:
    ///     Advantages and returns in ``float32``, flat too and of the rewards' kind.
    ///
    /// Raises:
    ///     ArgumentError: Shapes differ, or ``n_steps`` does not divide them.
    ///     DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
    compute_gae_batched_f32, Some(Precision::Single)
}

#[inline]
fn advantages<'py>(
    py: Python<'py>,
    steps: &Steps<'py>,
    gamma: f64,
    lam: f64,
) -> PyResult<Pair<'py>> {
    finite(py, "gamma", gamma)?;
    finite(py, "lam", lam)?;
    in_precision!(steps.precision(), T => {
        let (gamma, lam) = (T::from_f64(gamma), T::from_f64(lam));
        steps.two(move |rollout, advantages, returns| {
            gae(rollout, gamma, lam, Some(advantages), Some(returns))
        })
    })
}
