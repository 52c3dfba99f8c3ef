//! Advantages within groups of answers.

use echoic_primitives::groups::{Baseline, Options, Scale, advantages};
use pyo3::prelude::*;

use super::input::{Input, amount, choice, in_precision, text_of};
use super::kind::Kind;
use super::output::filled;
use super::sequences::Sequences;
use crate::error::argument_error;

const BASELINES: [(&str, Baseline); 2] =
    [("mean", Baseline::Mean), ("leave_one_out", Baseline::LeaveOneOut)];
const SCALES: [(&str, Scale); 3] =
    [("group", Scale::Group), ("batch", Scale::Batch), ("none", Scale::None)];

/// Advantages of the answers to one prompt over each other.
///
/// One group of :func:`compute_batch_group_advantages`.
///
/// Examples:
///     >>> from echoic.primitives import compute_group_advantages
///     >>> compute_group_advantages([1.0, 2.0, 3.0, 4.0]).round(4)
///     array([-1.3416, -0.4472,  0.4472,  1.3416])
///     >>> compute_group_advantages([0.1, 0.1, 0.1])
///     array([0., 0., 0.])
#[pyfunction]
#[pyo3(signature = (rewards, *, baseline="mean", scale="group", ddof=0, min_std=1e-8))]
pub fn compute_group_advantages<'py>(
    rewards: &Bound<'py, PyAny>,
    baseline: &str,
    scale: &str,
    ddof: i64,
    min_std: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = rewards.py();
    let options = options(py, baseline, scale, ddof, min_std)?;
    let (rewards, kind) = Input::leading("rewards", rewards)?;
    let &[length] = rewards.shape() else {
        let shape = text_of(rewards.shape());
        let text = format!(
            "`rewards` of one group have one axis, got shape {shape}: see \
             compute_batch_group_advantages"
        );
        return Err(argument_error(py, text));
    };
    let sequences = Sequences::Equal { count: 1, length };
    advantages_of(py, &rewards, kind, &sequences, options)
}

/// Advantages of answers over the others to the same prompt: ``(r_i - baseline_i) / scale``.
///
/// - GRPO (Shao et al. 2024, arXiv:2402.03300): ``baseline="mean", scale="group"``.
/// - Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): ``baseline="mean", scale="none"``.
/// - RLOO (Ahmadian et al. 2024, arXiv:2402.14740): ``baseline="leave_one_out", scale="none"``.
///
/// The standard deviation is that of the group itself (``ddof=0``), without anything added to it,
/// as in rlox; TRL and verl use ``ddof=1``. A group without spread gives zeros: exactly, when its
/// rewards are equal, whatever they are.
///
/// Args:
///     rewards: ``(n_prompts * group_size,)``, ``(n_prompts, group_size)``, or groups of any sizes
///         one after the other, with ``offsets``.
///     group_size: Answers to each prompt; not needed for two axes.
///     baseline: ``"mean"`` of the group, or ``"leave_one_out"``: the mean of the others (its
///         own reward, where a group has one answer).
///     scale: The standard deviation of the ``"group"``, or that of all rewards of the ``"batch"``,
///         or ``"none"``.
///     ddof: 0 or 1: what the count is reduced by for a variance.
///     min_std: Where the standard deviation is smaller, advantages are 0.
///     offsets: ``(n_prompts + 1,)``: where each group begins and the last one ends.
///
/// Returns:
///     The shape, dtype and library of ``rewards``. A NaN makes its group NaN, and no other (but
///     all, with ``scale="batch"``).
///
/// Raises:
///     ArgumentError: ``group_size`` does not divide the number of rewards, or does not fit their
///         shape; or the offsets are not valid.
///     DtypeError: Not real numbers, or not on the CPU.
///
/// Examples:
///     >>> from echoic.primitives import compute_batch_group_advantages
///     >>> rewards = [1.0, 3.0, 5.0, 5.0]
///     >>> compute_batch_group_advantages(rewards, 2)
///     array([-1.,  1.,  0.,  0.])
///     >>> compute_batch_group_advantages(
///     ...     [0.0, 0.0, 3.0, 1.0], offsets=[0, 3, 4], baseline="leave_one_out", scale="none"
///     ... )
///     array([-1.5, -1.5,  3. ,  0. ])
#[pyfunction]
#[pyo3(signature = (
    rewards, group_size=None, *,
    baseline="mean", scale="group", ddof=0, min_std=1e-8, offsets=None,
))]
pub fn compute_batch_group_advantages<'py>(
    rewards: &Bound<'py, PyAny>,
    group_size: Option<i64>,
    baseline: &str,
    scale: &str,
    ddof: i64,
    min_std: f64,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = rewards.py();
    let options = options(py, baseline, scale, ddof, min_std)?;
    let (rewards, kind) = Input::leading("rewards", rewards)?;
    let named = ("rewards", rewards.shape());
    let sequences = Sequences::new(py, named, ("group_size", group_size), offsets)?;
    advantages_of(py, &rewards, kind, &sequences, options)
}

#[inline]
fn options(
    py: Python<'_>,
    baseline: &str,
    scale: &str,
    ddof: i64,
    min_std: f64,
) -> PyResult<Options> {
    let baseline = choice(py, "baseline", baseline, &BASELINES)?;
    let scale = choice(py, "scale", scale, &SCALES)?;
    let ddof = match ddof {
        0 => 0,
        1 => 1,
        _ => return Err(argument_error(py, format!("`ddof` must be 0 or 1, got {ddof}"))),
    };
    Ok(Options { baseline, scale, ddof, min_std: amount(py, "min_std", min_std)? })
}

fn advantages_of<'py>(
    py: Python<'py>,
    rewards: &Input<'py>,
    kind: Kind,
    sequences: &Sequences,
    options: Options,
) -> PyResult<Bound<'py, PyAny>> {
    in_precision!(rewards.precision(), T => {
        let (numbers, ends) = (rewards.numbers::<T>(), sequences.ends());
        filled(py, rewards.shape(), kind, numbers.len(), move |out| {
            advantages(numbers, ends, &options, out);
        })
    })
}
