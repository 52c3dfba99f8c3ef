//! Draws in proportion to the exponentials of priorities.

use echoic_primitives::draws::{Refusal, draw};
use echoic_replay::rng::Rng;
use pyo3::prelude::*;

use super::{amount, divisor};
use crate::error::argument_error;
use crate::primitives::input::{Input, Number, in_precision, text_of};
use crate::primitives::kind::Kind;
use crate::primitives::output::Output;
use crate::primitives::sequences::detached;

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
    let form = Form {
        temperature: divisor(py, "temperature", temperature)?,
        beta: amount(py, "importance_beta", importance_beta)?,
        seed: u64::try_from(seed).map_err(|_| {
            argument_error(py, format!("`seed` must be from 0 to 2**64 - 1, got {seed}"))
        })?,
    };
    let (priorities, _) = Input::leading("priorities", priorities)?;
    let [len] = *priorities.shape() else {
        let shape = text_of(priorities.shape());
        return Err(argument_error(py, format!("`priorities` must have one axis, got {shape}")));
    };
    let Ok(size) = usize::try_from(sample_size) else {
        let text = format!("`sample_size` must be at least 0, got {sample_size}");
        return Err(argument_error(py, text));
    };
    in_precision!(priorities.precision(), draw_in(py, &priorities, size.min(len), form))
}

/// How items are drawn.
#[derive(Clone, Copy)]
struct Form {
    temperature: f64,
    beta: f64,
    seed: u64,
}

fn draw_in<'py, T: Number>(
    py: Python<'py>,
    priorities: &Input<'py>,
    size: usize,
    form: Form,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let mut indices = Output::<i64>::new(py, &[size], Kind::Numpy)?;
    let mut weights = Output::<f32>::new(py, &[size], Kind::Numpy)?;
    let priorities = priorities.numbers::<T>();
    if size > 0 {
        let (indices, weights) = (indices.numbers(), weights.numbers());
        let mut rng = Rng::new(form.seed);
        detached(py, priorities.len(), move || {
            draw(priorities, form.temperature, form.beta, || rng.unit(), indices, weights)
        })
        .map_err(|refusal| match refusal {
            Refusal::Score(at) => {
                let value = priorities.get(at).copied().unwrap_or_default();
                let text =
                    format!("`priorities` must be numbers below infinity, got {value} at {at}");
                argument_error(py, text)
            }
            Refusal::Nothing => {
                argument_error(py, "`priorities` has nothing above minus infinity to draw")
            }
        })?;
    }
    Ok((indices.into_numpy(), weights.into_numpy()))
}
