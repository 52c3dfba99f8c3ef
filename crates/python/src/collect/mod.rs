//! Native environments and collectors.
//!
//! - `envs`: many copies of one environment. `collector`: a thread that collects rollouts.
//! - `rollout`: a rollout as arrays over its own memory.
//! - `error`: what the core refuses, as the classes of `echoic.errors`.

mod collector;
mod envs;
mod error;
mod rollout;

use pyo3::prelude::*;

/// Adds them to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<collector::Collector>()?;
    module.add_class::<envs::Environments>()
}
