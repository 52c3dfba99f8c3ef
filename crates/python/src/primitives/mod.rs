//! Functions on arrays.
//!
//! - `input`: arguments as numbers without gaps. `output`: results, in memory that is used again.
//! - `kind`: arrays of PyTorch and JAX. `plain`: the edge to memory, and the only `unsafe` here.
//! - `steps`: the arguments of functions on time. `gae`, `returns`, `corrections`: those functions.

mod corrections;
mod gae;
mod input;
mod kind;
mod output;
mod plain;
mod returns;
mod steps;

use pyo3::prelude::*;

/// Adds them to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(gae::compute_gae, module)?)?;
    module.add_function(wrap_pyfunction!(gae::compute_gae_batched, module)?)?;
    module.add_function(wrap_pyfunction!(gae::compute_gae_batched_f32, module)?)?;
    module.add_function(wrap_pyfunction!(returns::compute_discounted_sums, module)?)?;
    module.add_function(wrap_pyfunction!(returns::compute_lambda_returns, module)?)?;
    module.add_function(wrap_pyfunction!(returns::compute_n_step_returns, module)?)?;
    module.add_function(wrap_pyfunction!(returns::compute_upgo, module)?)?;
    module.add_function(wrap_pyfunction!(corrections::compute_vtrace, module)?)?;
    module.add_function(wrap_pyfunction!(corrections::compute_retrace, module)?)?;
    Ok(())
}
