//! Importance weights.

use echoic_primitives::Real;
use echoic_primitives::weights::{
    Bounds, Level, effective_sample_size, effective_sample_size_of_logs, sequence_weights,
    token_weights,
};
use pyo3::prelude::*;

use super::input::{Input, choice, in_precision, same_shape};
use super::output::{detached, filled};
use super::sequences::{Mask, Sequences};
use crate::error::argument_error;

const LEVELS: [(&str, Option<Level>); 3] =
    [("token", None), ("sequence", Some(Level::Product)), ("sequence_mean", Some(Level::Mean))];

/// How much likelier actions are under one policy than under another.
///
/// With ``r_t = log_p_new - log_p_old`` of each token::
///
///     token           exp(r_t)
///     sequence        exp(sum of r_t over the sequence)
///     sequence_mean   exp(mean of r_t over the sequence)    GSPO, arXiv:2507.18071
///
/// With ``clip`` these are truncated weights (Ionides, 2008): ``min(w, clip)``.
///
/// Args:
///     log_p_new: Log-probabilities under the policy that is wanted, of any shape for tokens; for
///         sequences as in :func:`compute_batch_token_kl`.
///     log_p_old: Those under the policy that acted, of the same shape.
///     level: Whose weights: ``"token"``, ``"sequence"`` or ``"sequence_mean"``.
///     clip: The largest weight, or the smallest and the largest.
///     mask: Which tokens count (not zero), of the same shape; the others have the weight 0, and no
///         part in that of their sequence.
///     seq_len: Tokens of each sequence, for sequences in one axis.
///     offsets: Where each sequence begins and the last one ends.
///
/// Returns:
///     The shape of ``log_p_new`` for tokens, ``(batch,)`` for sequences, in its dtype and library.
///     A sequence without tokens has the weight 1. NaN stays NaN.
///
/// Raises:
///     ArgumentError: Shapes differ, sequences do not fit them, or not ``0 <= low <= high``.
///     DtypeError: Not real numbers, or not on the CPU.
///
/// Examples:
///     >>> from echoic.primitives import compute_importance_weights
///     >>> import numpy as np
///     >>> new, old = np.log([[0.5, 0.4], [0.9, 0.2]]), np.log([[0.25, 0.4], [0.3, 0.2]])
///     >>> compute_importance_weights(new, old, clip=2.5).round(4)
///     array([[2. , 1. ],
///            [2.5, 1. ]])
///     >>> compute_importance_weights(new, old, level="sequence_mean").round(4)
///     array([1.4142, 1.7321])
#[pyfunction]
#[pyo3(signature = (
    log_p_new, log_p_old, *, level="token", clip=None, mask=None, seq_len=None, offsets=None,
))]
pub fn compute_importance_weights<'py>(
    log_p_new: &Bound<'py, PyAny>,
    log_p_old: &Bound<'py, PyAny>,
    level: &str,
    clip: Option<&Bound<'py, PyAny>>,
    mask: Option<&Bound<'py, PyAny>>,
    seq_len: Option<i64>,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = log_p_new.py();
    let level = choice(py, "level", level, &LEVELS)?;
    let bounds = bounds(py, clip)?;
    let (new, kind) = Input::leading("log_p_new", log_p_new)?;
    let old = Input::following("log_p_old", log_p_old, new.precision())?;
    same_shape(py, "log_p_old", old.shape(), "log_p_new", new.shape())?;
    let mask = Mask::new(py, mask, ("log_p_new", new.shape()))?;
    let sequences = match level {
        Some(level) => {
            let named = ("log_p_new", new.shape());
            Some((level, Sequences::new(py, named, ("seq_len", seq_len), offsets)?))
        }
        None if seq_len.is_some() || offsets.is_some() => {
            let text = "`seq_len` and `offsets` are for weights of sequences: pass level=\"sequence\" \
                        or \"sequence_mean\"";
            return Err(argument_error(py, text));
        }
        None => None,
    };
    in_precision!(new.precision(), T => {
        let (log_new, log_old, mask) = (new.numbers::<T>(), old.numbers::<T>(), mask.bytes());
        match &sequences {
            None => filled(py, new.shape(), kind, log_new.len(), |out| {
                token_weights(log_new, log_old, mask, bounds, out);
            }),
            Some((level, sequences)) => {
                let (level, ends) = (*level, sequences.ends());
                filled(py, &[sequences.count()], kind, log_new.len(), move |out| {
                    sequence_weights(level, log_new, log_old, mask, ends, bounds, out);
                })
            }
        }
    })
}

/// The number of samples of equal weight that are worth as much.
///
/// ``sum(w)**2 / sum(w**2)`` (Kish, 1965).
///
/// Args:
///     weights: Weights of any shape, at least 0 each.
///     log: They are logarithms of weights, and their exponentials may be too large or too small
///         for a number.
///
/// Returns:
///     From 1 to the number of weights; 0 where none is above 0; NaN where one is.
///
/// Raises:
///     ArgumentError: A weight is negative.
///     DtypeError: Not real numbers, or not on the CPU.
///
/// Examples:
///     >>> from echoic.primitives import compute_effective_sample_size
///     >>> compute_effective_sample_size([2.0, 2.0, 0.0, 2.0])
///     3.0
///     >>> compute_effective_sample_size([-1000.0, -1000.0], log=True)
///     2.0
#[pyfunction]
#[pyo3(signature = (weights, *, log=false))]
pub fn compute_effective_sample_size(weights: &Bound<'_, PyAny>, log: bool) -> PyResult<f64> {
    let (input, _) = Input::leading("weights", weights)?;
    let py = weights.py();
    in_precision!(input.precision(), T => {
        let weights = input.numbers::<T>();
        if log {
            return Ok(detached(py, weights.len(), || effective_sample_size_of_logs(weights)));
        }
        if let Some(at) = weights.iter().position(|weight| *weight < T::ZERO) {
            let text = format!(
                "weights are at least 0, got {} at {at} (log=True is for their logarithms)",
                weights[at]
            );
            return Err(argument_error(py, text));
        }
        Ok(detached(py, weights.len(), || effective_sample_size(weights)))
    })
}

/// `None`, the largest weight, or the smallest and the largest.
fn bounds(py: Python<'_>, clip: Option<&Bound<'_, PyAny>>) -> PyResult<Bounds> {
    let Some(clip) = clip else { return Ok(Bounds::NONE) };
    let bounds = match clip.extract::<f64>() {
        Ok(high) => Bounds { low: 0.0, high },
        Err(_) => {
            let (low, high) = clip.extract()?;
            Bounds { low, high }
        }
    };
    if 0.0 <= bounds.low && bounds.low <= bounds.high {
        return Ok(bounds);
    }
    let Bounds { low, high } = bounds;
    let text = format!("`clip` must be 0 <= low <= high, got low={low}, high={high}");
    Err(argument_error(py, text))
}
