//! Divergences of token policies.

use echoic_primitives::Real;
use echoic_primitives::kl::{Estimator, Reduction, categorical, reduce, terms};
use pyo3::prelude::*;

use super::input::{Input, Number, choice, in_precision, same_shape};
use super::kind::Kind;
use super::output::{detached, filled};
use super::sequences::{Mask, Sequences};
use crate::error::argument_error;

const ESTIMATORS: [(&str, Estimator); 3] =
    [("k1", Estimator::K1), ("k2", Estimator::K2), ("k3", Estimator::K3)];
const REDUCTIONS: [(&str, Option<Reduction>); 3] =
    [("sum", Some(Reduction::Sum)), ("mean", Some(Reduction::Mean)), ("none", None)];

/// KL divergence of two policies, estimated from tokens drawn from the first.
///
/// With ``d = log_q - log_p`` for each token, drawn from ``p``, the terms are::
///
///     k1 = -d                 no bias, high variance, may be negative
///     k2 = d**2 / 2           small bias, low variance, never negative
///     k3 = exp(d) - 1 - d     no bias, low variance, never negative
///
/// (Schulman, 2020, "Approximating KL divergence"). The mean of k1 or of k3 over many tokens is
/// ``KL(p || q)``. The terms are not weighted by ``p``: that a token was drawn from it is its
/// weight. k3 keeps its digits where ``d`` is tiny.
///
/// rlox 1.2 has two other formulas under this name and :func:`compute_token_kl_schulman`:
/// ``sum(exp(log_p) * (log_p - log_q))``, which weights drawn tokens by their probability once more
/// and estimates no divergence; and ``exp(-d) - 1 + d``, whose mean is ``KL(q || p)``, the other
/// way round, if tokens are drawn from ``q``. For the whole vocabulary there is
/// :func:`compute_categorical_kl`.
///
/// Args:
///     log_p: Log-probabilities of the tokens under the policy that drew them, of any shape.
///     log_q: Those under the other policy (the reference), of the same shape.
///     estimator: ``"k1"``, ``"k2"`` or ``"k3"``.
///     mask: Which tokens count (not zero), of the same shape. The others may be anything, NaN too.
///     reduction: ``"sum"`` of the terms, their ``"mean"`` (over what counts; 0 for no token), or
///         ``"none"``: the terms, 0 where the mask is.
///
/// Returns:
///     A float; with ``"none"`` an array of the shape, dtype (shorter floats become float32, which
///     they are computed in) and library of ``log_p``.
///
/// Raises:
///     ArgumentError: Shapes differ, or a name is unknown.
///     DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.
///
/// A NaN makes the result NaN. A token that ``q`` can't draw is infinitely far.
///
/// Examples:
///     >>> from echoic.primitives import compute_token_kl
///     >>> import numpy as np
///     >>> log_p, log_q = np.log([0.5, 0.2]), np.log([0.4, 0.3])
///     >>> round(compute_token_kl(log_p, log_q), 4)
///     -0.1823
///     >>> compute_token_kl(log_p, log_q, estimator="k3", reduction="none").round(4)
///     array([0.0231, 0.0945])
#[pyfunction]
#[pyo3(signature = (log_p, log_q, *, estimator="k1", mask=None, reduction="sum"))]
pub fn compute_token_kl<'py>(
    log_p: &Bound<'py, PyAny>,
    log_q: &Bound<'py, PyAny>,
    estimator: &str,
    mask: Option<&Bound<'py, PyAny>>,
    reduction: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let estimator = choice(log_p.py(), "estimator", estimator, &ESTIMATORS)?;
    Tokens::new(log_p, log_q, mask, estimator, reduction)?.one()
}

/// KL divergence of two policies by Schulman's estimator, from tokens drawn from the first.
///
/// :func:`compute_token_kl` with ``estimator="k3"``: ``exp(d) - 1 - d`` with ``d = log_q - log_p``,
/// for tokens drawn from ``p``. rlox 1.2 has the sign of ``d`` reversed.
///
/// Examples:
///     >>> from echoic.primitives import compute_token_kl_schulman
///     >>> import numpy as np
///     >>> round(compute_token_kl_schulman(np.log([0.5, 0.2]), np.log([0.4, 0.3])), 4)
///     0.1177
#[pyfunction]
#[pyo3(signature = (log_p, log_q, *, mask=None, reduction="sum"))]
pub fn compute_token_kl_schulman<'py>(
    log_p: &Bound<'py, PyAny>,
    log_q: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    reduction: &str,
) -> PyResult<Bound<'py, PyAny>> {
    Tokens::new(log_p, log_q, mask, Estimator::K3, reduction)?.one()
}

/// KL divergence of two policies for each sequence of tokens drawn from the first.
///
/// Formulas, and the difference to rlox, as in :func:`compute_token_kl`.
///
/// Args:
///     log_p: Log-probabilities under the policy that drew the tokens: ``(batch * seq_len,)``,
///         ``(batch, seq_len)``, or sequences of any lengths one after the other, with ``offsets``.
///     log_q: Those under the other policy, of the same shape.
///     seq_len: Tokens of each sequence; not needed for two axes.
///     estimator: ``"k1"``, ``"k2"`` or ``"k3"``.
///     mask: Which tokens count (not zero), of the same shape.
///     offsets: ``(batch + 1,)``: where each sequence begins and the last one ends.
///     reduction: ``"sum"`` or ``"mean"`` over the tokens of each sequence; or ``"none"``.
///
/// Returns:
///     ``(batch,)``, in the dtype and library of ``log_p``; with ``"none"`` the terms, in the shape
///     of ``log_p``. No sequence gives an empty array, a sequence without tokens 0.
///
/// Raises:
///     ArgumentError: Shapes differ, ``seq_len`` does not divide the number of tokens, or offsets
///         do not begin with 0, fall, or end elsewhere.
///     DtypeError: As in :func:`compute_token_kl`.
///
/// Examples:
///     >>> from echoic.primitives import compute_batch_token_kl
///     >>> import numpy as np
///     >>> log_p, log_q = np.log([0.5, 0.2, 0.3, 0.9]), np.log([0.4, 0.3, 0.3, 0.2])
///     >>> compute_batch_token_kl(log_p, log_q, 2).round(4)
///     array([-0.1823,  1.5041])
///     >>> compute_batch_token_kl(log_p, log_q, offsets=[0, 1, 4], reduction="mean").round(4)
///     array([0.2231, 0.3662])
#[pyfunction]
#[pyo3(signature = (
    log_p, log_q, seq_len=None, *, estimator="k1", mask=None, offsets=None, reduction="sum",
))]
pub fn compute_batch_token_kl<'py>(
    log_p: &Bound<'py, PyAny>,
    log_q: &Bound<'py, PyAny>,
    seq_len: Option<i64>,
    estimator: &str,
    mask: Option<&Bound<'py, PyAny>>,
    offsets: Option<&Bound<'py, PyAny>>,
    reduction: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let estimator = choice(log_p.py(), "estimator", estimator, &ESTIMATORS)?;
    Tokens::new(log_p, log_q, mask, estimator, reduction)?.each(seq_len, offsets)
}

/// KL divergence of two policies by Schulman's estimator, for each sequence.
///
/// :func:`compute_batch_token_kl` with ``estimator="k3"``.
///
/// Examples:
///     >>> from echoic.primitives import compute_batch_token_kl_schulman
///     >>> import numpy as np
///     >>> log_p, log_q = np.log([0.5, 0.2, 0.3, 0.9]), np.log([0.4, 0.3, 0.3, 0.2])
///     >>> compute_batch_token_kl_schulman(log_p, log_q, 2).round(4)
///     array([0.1177, 0.7263])
#[pyfunction]
#[pyo3(signature = (log_p, log_q, seq_len=None, *, mask=None, offsets=None, reduction="sum"))]
pub fn compute_batch_token_kl_schulman<'py>(
    log_p: &Bound<'py, PyAny>,
    log_q: &Bound<'py, PyAny>,
    seq_len: Option<i64>,
    mask: Option<&Bound<'py, PyAny>>,
    offsets: Option<&Bound<'py, PyAny>>,
    reduction: &str,
) -> PyResult<Bound<'py, PyAny>> {
    Tokens::new(log_p, log_q, mask, Estimator::K3, reduction)?.each(seq_len, offsets)
}

/// KL divergence of distributions over a whole vocabulary.
///
/// ``sum over x of p(x) * (log p(x) - log q(x))``: the divergence itself, with nothing drawn and
/// nothing estimated. What ``p`` never does counts as 0.
///
/// Args:
///     log_p: Log-probabilities ``(..., vocabulary)``.
///     log_q: Those of the other distributions, of the same shape.
///
/// Returns:
///     ``(...)``, in the dtype and library of ``log_p``.
///
/// Raises:
///     ArgumentError: Shapes differ, or there is no vocabulary.
///     DtypeError: As in :func:`compute_token_kl`.
///
/// Examples:
///     >>> from echoic.primitives import compute_categorical_kl
///     >>> import numpy as np
///     >>> compute_categorical_kl(np.log([[0.75, 0.25]]), np.log([[0.5, 0.5]])).round(4)
///     array([0.1308])
#[pyfunction]
pub fn compute_categorical_kl<'py>(
    log_p: &Bound<'py, PyAny>,
    log_q: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = log_p.py();
    let (log_p, kind) = Input::leading("log_p", log_p)?;
    let log_q = Input::following("log_q", log_q, log_p.precision())?;
    same_shape(py, "log_q", log_q.shape(), "log_p", log_p.shape())?;
    if log_p.shape().last().is_none_or(|vocabulary| *vocabulary == 0) {
        let text = "the last axis of `log_p` must be the vocabulary, with at least one token";
        return Err(argument_error(py, text));
    }
    let (vocabulary, rows) = log_p.shape().split_last().unwrap_or((&0, &[]));
    in_precision!(log_p.precision(), T => {
        let (p, q) = (log_p.numbers::<T>(), log_q.numbers::<T>());
        filled(py, rows, kind, p.len(), |out| categorical(p, q, *vocabulary, out))
    })
}

/// The arguments that all estimates share.
struct Tokens<'py> {
    py: Python<'py>,
    log_p: Input<'py>,
    log_q: Input<'py>,
    mask: Mask<'py>,
    kind: Kind,
    estimator: Estimator,
    reduction: Option<Reduction>,
}

impl<'py> Tokens<'py> {
    #[inline]
    fn new(
        log_p: &Bound<'py, PyAny>,
        log_q: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
        estimator: Estimator,
        reduction: &str,
    ) -> PyResult<Self> {
        let py = log_p.py();
        let reduction = choice(py, "reduction", reduction, &REDUCTIONS)?;
        let (log_p, kind) = Input::leading("log_p", log_p)?;
        let log_q = Input::following("log_q", log_q, log_p.precision())?;
        same_shape(py, "log_q", log_q.shape(), "log_p", log_p.shape())?;
        let mask = Mask::new(py, mask, ("log_p", log_p.shape()))?;
        Ok(Self { py, log_p, log_q, mask, kind, estimator, reduction })
    }

    /// One number for all of them, or one for each.
    fn one(&self) -> PyResult<Bound<'py, PyAny>> {
        let Some(reduction) = self.reduction else { return self.terms() };
        in_precision!(self.log_p.precision(), T => {
            let (p, q, mask) = self.slices::<T>();
            let (estimator, ends, mut out) = (self.estimator, std::iter::once(p.len()), [T::ZERO]);
            detached(self.py, p.len(), || reduce(estimator, reduction, p, q, mask, ends, &mut out));
            Ok(out[0].to_f64().into_pyobject(self.py)?.into_any())
        })
    }

    /// One number for each sequence, or for each token.
    fn each(
        &self,
        seq_len: Option<i64>,
        offsets: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = ("log_p", self.log_p.shape());
        let sequences = Sequences::new(self.py, named, ("seq_len", seq_len), offsets)?;
        let Some(reduction) = self.reduction else { return self.terms() };
        in_precision!(self.log_p.precision(), T => {
            let (p, q, mask) = self.slices::<T>();
            let (estimator, ends) = (self.estimator, sequences.ends());
            filled(self.py, &[sequences.count()], self.kind, p.len(), move |out| {
                reduce(estimator, reduction, p, q, mask, ends, out);
            })
        })
    }

    fn terms(&self) -> PyResult<Bound<'py, PyAny>> {
        in_precision!(self.log_p.precision(), T => {
            let ((p, q, mask), estimator) = (self.slices::<T>(), self.estimator);
            filled(self.py, self.log_p.shape(), self.kind, p.len(), |out| {
                terms(estimator, p, q, mask, out);
            })
        })
    }

    fn slices<T: Number>(&self) -> (&[T], &[T], Option<&[u8]>) {
        (self.log_p.numbers(), self.log_q.numbers(), self.mask.bytes())
    }
}
