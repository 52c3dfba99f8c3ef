//! Kernels of agents that plan.
//!
//! The functions of each file are those of the module of `echoic_primitives` that it is named after.

mod bandwidth;
mod draws;
mod plans;
mod prefixes;

pub use plans::EMAPlanTracker;
use pyo3::prelude::*;

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
