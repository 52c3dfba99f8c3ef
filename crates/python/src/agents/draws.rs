//! Draws in proportion to the exponentials of priorities.

use echoic_primitives::draws::{DrawError, draw};
use echoic_replay::rng::Rng;
use pyo3::prelude::*;

use crate::error::argument_error;
use crate::primitives::input::{Input, amount, count, divisor, in_precision, text_of};
use crate::primitives::kind::Kind;
use crate::primitives::output::{Output, detached};

/// Draw items by the softmax of their priorities, with replacement.
///
/// ``p_i = exp(priority_i / T) / sum_j exp(priority_j / T)``, ``w_i = (N * p_i)**-beta / max_j
/// w_j``, the maximum being over what was drawn. The largest priority is subtracted first, so
/// nothing overflows.
///
/// Args:
///     priorities: ``(N,)``. Minus infinity is never drawn.
///     sample_size: How many to draw, at most ``N``.
///     temperature: ``T``, above 0. The larger, the more evenly items are drawn.
///     importance_beta: From 0 (no correction) to 1 (all of it).
///     seed: Of the generator that all of Echoic uses. One seed gives the same draws everywhere,
///         and so the same again and again: give every call another.
///
/// Returns:
///     ``(indices, weights)``, int64 and float32, ``min(sample_size, N)`` each.
///
/// Raises:
///     ArgumentError: A priority is NaN or infinitely large, none is above minus infinity, or an
///         argument is out of range.
///     DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.
///
/// Examples:
///     >>> from echoic.agents.kernels import priority_sample
///     >>> indices, weights = priority_sample([0.0, 9.0, 0.0, 9.0], 4, importance_beta=1.0, seed=3)
///     >>> sorted(indices.tolist()), weights.tolist()
///     ([1, 3, 3, 3], [1.0, 1.0, 1.0, 1.0])
#[pyfunction]
#[pyo3(signature = (priorities, sample_size, temperature=1.0, importance_beta=0.4, seed=0))]
pub fn priority_sample<'py>(
    priorities: &Bound<'py, PyAny>,
    sample_size: i64,
    temperature: f64,
    importance_beta: f64,
    seed: i128,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = priorities.py();
    let temperature = divisor(py, "temperature", temperature)?;
    let beta = amount(py, "importance_beta", importance_beta)?;
    let seed = u64::try_from(seed).map_err(|_| {
        argument_error(py, format!("`seed` must be from 0 to 2**64 - 1, got {seed}"))
    })?;
    let (priorities, _) = Input::leading("priorities", priorities)?;
    let [len] = *priorities.shape() else {
        let shape = text_of(priorities.shape());
        return Err(argument_error(py, format!("`priorities` must have one axis, got {shape}")));
    };
    let size = count(py, "sample_size", sample_size, 0)?.min(len);
    let mut indices = Output::<i64>::new(py, &[size], Kind::Numpy)?;
    let mut weights = Output::<f32>::new(py, &[size], Kind::Numpy)?;
    if size > 0 {
        let (indices, weights, mut rng) = (indices.numbers(), weights.numbers(), Rng::new(seed));
        in_precision!(priorities.precision(), T => {
            let priorities = priorities.numbers::<T>();
            detached(py, len, || {
                draw(priorities, temperature, beta, || rng.unit(), indices, weights)
            })
            .map_err(|refusal| {
                argument_error(py, match refusal {
                    DrawError::Score(at) => {
                        let value = priorities[at];
                        format!("`priorities` must be numbers below infinity, got {value} at {at}")
                    }
                    DrawError::Nothing => {
                        "`priorities` has nothing above minus infinity to draw".to_owned()
                    }
                })
            })
        })?;
    }
    Ok((indices.finish(Kind::Numpy)?, weights.finish(Kind::Numpy)?))
}
