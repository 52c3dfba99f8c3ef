//! Native environments and collectors.
//!
//! - `envs`: many copies of one environment. `collector`: a thread that collects rollouts.
//! - `rollout`: a rollout as arrays over its own memory.

mod collector;
mod envs;
mod rollout;

use echoic_collect::Error;
use pyo3::prelude::*;

use crate::error::{Raise, closed_error, set, spec_error, timeout_error};

/// Adds them to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<collector::Collector>()?;
    module.add_class::<envs::Environments>()
}

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
