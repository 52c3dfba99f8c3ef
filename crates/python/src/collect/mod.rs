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

use crate::error::{closed_error, set, spec_error, timeout_error};

/// What the core refuses, as an exception.
fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Stopped | Error::Thread(_) | Error::ResetNeeded(_) => closed_error(py, text),
        Error::TimedOut => set(py, timeout_error(py, text), "reason", "EMPTY"),
        Error::Memory(_) => pyo3::exceptions::PyMemoryError::new_err(text),
        _ => spec_error(py, text),
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
