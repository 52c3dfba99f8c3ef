//! Selectors and limiters as Python gives them: a name and numbers.

use echoic_replay::limiter::{Limiter, Parameters};
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::Durability;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::limiter_error;

/// What `selectors` and `limiters` are made of.
#[derive(FromPyObject)]
pub struct Settings(String, Vec<f64>);

impl Settings {
    /// As a selector; its parameters are checked by the table.
    pub fn selector(&self) -> PyResult<SelectorKind> {
        Ok(match (self.0.as_str(), self.1.as_slice()) {
            ("uniform", []) => SelectorKind::Uniform,
            ("prioritized", [exponent]) => SelectorKind::Prioritized { exponent: *exponent },
            ("fifo", []) => SelectorKind::Fifo,
            ("lifo", []) => SelectorKind::Lifo,
            ("min_heap", []) => SelectorKind::MinHeap,
            ("max_heap", []) => SelectorKind::MaxHeap,
            ("epoch", []) => SelectorKind::Epoch,
            ("hot_cold", [age_threshold, hot_fraction, exponent]) => SelectorKind::HotCold {
                age_threshold: whole("age_threshold", *age_threshold)?,
                hot_fraction: *hot_fraction,
                exponent: *exponent,
            },
            _ => return Err(self.unknown("selector")),
        })
    }

    /// As a limiter.
    pub fn limiter(&self, py: Python<'_>) -> PyResult<Limiter> {
        let made = match (self.0.as_str(), self.1.as_slice()) {
            ("min_size", [size]) => Limiter::min_size(least(py, *size)?),
            ("sample_to_insert_ratio", [ratio, size, buffer]) => {
                Limiter::sample_to_insert_ratio(*ratio, least(py, *size)?, *buffer)
            }
            ("sample_to_insert_ratio", [ratio, size, low, high]) => {
                Limiter::sample_to_insert_ratio(*ratio, least(py, *size)?, (*low, *high))
            }
            ("queue", [size]) => Limiter::queue(least(py, *size)?),
            ("stack", [size]) => Limiter::stack(least(py, *size)?),
            ("raw", [size, ratio, low, high]) => Limiter::raw(Parameters {
                min_size: least(py, *size)?,
                samples_per_insert: *ratio,
                min_diff: *low,
                max_diff: *high,
            }),
            _ => return Err(self.unknown("limiter")),
        };
        made.map_err(|error| limiter_error(py, error.to_string()))
    }

    fn unknown(&self, what: &str) -> PyErr {
        PyValueError::new_err(format!("there is no {what} {:?} with {:?}", self.0, self.1))
    }
}

/// What a table survives; `None` without a journal.
pub fn durability(name: &str) -> PyResult<Option<Durability>> {
    match name {
        "none" => Ok(None),
        "async" => Ok(Some(Durability::Async)),
        "sync" => Ok(Some(Durability::Sync)),
        got => {
            let text = format!("durability must be \"none\", \"async\" or \"sync\", got {got:?}");
            Err(PyValueError::new_err(text))
        }
    }
}

/// The name of a durability.
pub fn durability_name(durability: Option<Durability>) -> &'static str {
    match durability {
        None | Some(Durability::None) => "none",
        Some(Durability::Async) => "async",
        Some(Durability::Sync) => "sync",
    }
}

/// The size of a limiter.
fn least(py: Python<'_>, size: f64) -> PyResult<u64> {
    if size < 0.0 && size.fract() == 0.0 {
        return Err(limiter_error(py, format!("min_size must be at least 1, got {size}")));
    }
    whole("size", size)
}

/// A number that counts something.
fn whole(name: &str, value: f64) -> PyResult<u64> {
    // From here on not every whole number is a double.
    let exact = (1u64 << 53) as f64;
    if value.fract() != 0.0 || !(0.0..exact).contains(&value) {
        let text = format!("{name} must be a whole number >= 0, got {value}");
        return Err(PyValueError::new_err(text));
    }
    Ok(value as u64)
}
