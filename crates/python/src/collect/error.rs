//! What environments and collectors refuse, as Python exceptions.

use echoic_collect::Error;
use pyo3::prelude::*;

use crate::error::{closed_error, set, spec_error, timeout_error};

/// The exception for an error.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Stopped | Error::Thread(_) | Error::ResetNeeded(_) => closed_error(py, text),
        Error::TimedOut => set(py, timeout_error(py, text), "reason", "EMPTY"),
        Error::Memory(_) => pyo3::exceptions::PyMemoryError::new_err(text),
        _ => spec_error(py, text),
    }
}
