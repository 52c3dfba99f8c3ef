//! Native environments and collectors.
//!
//! - `envs`: many copies of one environment. `collector`: a thread that collects rollouts.
//! - `rollout`: a rollout as arrays over its own memory.

pub mod collector;
pub mod envs;
mod rollout;

use echoic_collect::Error;
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;

use crate::error::{Raise, closed_error, set, spec_error, timeout_error};

impl Raise for Error {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Stopped | Self::Thread(_) | Self::ResetNeeded(_) => closed_error(py, text),
            Self::TimedOut => set(py, timeout_error(py, text), "reason", "EMPTY"),
            Self::Memory(_) => pyo3::exceptions::PyMemoryError::new_err(text),
            _ => spec_error(py, text),
        }
    }
}

/// Numbers as rows of this width.
fn rows<T: Element>(
    py: Python<'_>,
    numbers: Vec<T>,
    width: usize,
) -> PyResult<Bound<'_, PyArray2<T>>> {
    let count = numbers.len() / width;
    PyArray1::from_vec(py, numbers).reshape([count, width])
}
