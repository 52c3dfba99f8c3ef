//! Kernels of agents that plan.
//!
//! - `plans`, `bandwidth`, `prefixes`, `draws`: the functions, as in `echoic_primitives`.
//! - `whole`: whole numbers from arrays, where they are.

mod bandwidth;
mod draws;
mod plans;
mod prefixes;
mod whole;

pub use plans::EMAPlanTracker;
use pyo3::prelude::*;

use crate::error::argument_error;

/// Adds them to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<plans::EMAPlanTracker>()?;
    module.add_function(wrap_pyfunction!(plans::plan_surprise, module)?)?;
    module.add_function(wrap_pyfunction!(plans::plan_surprise_batch, module)?)?;
    module.add_function(wrap_pyfunction!(plans::temporal_kl, module)?)?;
    module.add_function(wrap_pyfunction!(plans::temporal_kl_batch, module)?)?;
    module.add_function(wrap_pyfunction!(bandwidth::attention_bandwidth_cost, module)?)?;
    module.add_function(wrap_pyfunction!(bandwidth::attention_bandwidth_cost_batch, module)?)?;
    module.add_function(wrap_pyfunction!(bandwidth::effective_bandwidth_cost, module)?)?;
    module.add_function(wrap_pyfunction!(bandwidth::effective_bandwidth_cost_batch, module)?)?;
    module.add_function(wrap_pyfunction!(bandwidth::bandwidth_aware_priorities, module)?)?;
    module.add_function(wrap_pyfunction!(bandwidth::schedule_priorities, module)?)?;
    module.add_function(wrap_pyfunction!(bandwidth::bandwidth_efficiency, module)?)?;
    module.add_function(wrap_pyfunction!(prefixes::state_hash, module)?)?;
    module.add_function(wrap_pyfunction!(prefixes::state_hash_batch, module)?)?;
    module.add_function(wrap_pyfunction!(prefixes::prefix_match, module)?)?;
    module.add_function(wrap_pyfunction!(prefixes::prefix_match_batch, module)?)?;
    module.add_function(wrap_pyfunction!(draws::priority_sample, module)?)?;
    Ok(())
}

/// What the core refuses, as an exception.
fn refused(py: Python<'_>, error: echoic_primitives::Error) -> PyErr {
    argument_error(py, error.to_string())
}

/// An error unless a parameter is a finite number of at least 0.
fn amount(py: Python<'_>, name: &str, number: f64) -> PyResult<f64> {
    if number.is_finite() && number >= 0.0 {
        return Ok(number);
    }
    Err(argument_error(py, format!("`{name}` must be a finite number of at least 0, got {number}")))
}

/// An error unless a parameter can be divided by: above zero, finite, and not so small that its inverse is
/// infinite.
fn divisor(py: Python<'_>, name: &str, number: f64) -> PyResult<f64> {
    if number.is_normal() && number > 0.0 {
        return Ok(number);
    }
    Err(argument_error(py, format!("`{name}` must be a finite number above 0, got {number}")))
}
