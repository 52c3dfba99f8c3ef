//! Draws in proportion to the exponentials of priorities.

use echoic_primitives::draws::{DrawError, draw};
use echoic_replay::rng::Rng;
use pyo3::prelude::*;

use crate::error::argument_error;
use crate::primitives::input::{Input, amount, count, divisor, in_precision, text_of};
use crate::primitives::kind::Kind;
use crate::primitives::output::{Output, detached};

/// Draws items by the softmax of their priorities; indices and importance weights.
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
