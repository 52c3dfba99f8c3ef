//! Functions on arrays.
//!
//! - `input`: arguments as numbers without gaps. `output`: results, in memory that is used again.
//! - `kind`: arrays of PyTorch and JAX. `plain`: numbers of arrays as slices.
//! - `steps`: the arguments of functions on time. `gae`, `returns`, `corrections`: those functions.
//! - `sequences`: which numbers belong together. `kl`, `groups`, `weights`, `packing`: functions on them.
//! - `stats`: means and variances of what went by.

mod corrections;
mod gae;
mod groups;
pub mod input;
pub mod kind;
mod kl;
pub mod output;
mod packing;
pub mod plain;
mod returns;
mod sequences;
pub mod stats;
mod steps;
mod weights;

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
    module.add_function(wrap_pyfunction!(groups::compute_group_advantages, module)?)?;
    module.add_function(wrap_pyfunction!(groups::compute_batch_group_advantages, module)?)?;
    module.add_function(wrap_pyfunction!(kl::compute_token_kl, module)?)?;
    module.add_function(wrap_pyfunction!(kl::compute_token_kl_schulman, module)?)?;
    module.add_function(wrap_pyfunction!(kl::compute_batch_token_kl, module)?)?;
    module.add_function(wrap_pyfunction!(kl::compute_batch_token_kl_schulman, module)?)?;
    module.add_function(wrap_pyfunction!(kl::compute_categorical_kl, module)?)?;
    module.add_function(wrap_pyfunction!(weights::compute_importance_weights, module)?)?;
    module.add_function(wrap_pyfunction!(weights::compute_effective_sample_size, module)?)?;
    module.add_function(wrap_pyfunction!(packing::pack_sequences, module)?)?;
    module.add_function(wrap_pyfunction!(packing::plan_packing, module)?)?;
    module.add_function(wrap_pyfunction!(packing::balance_sequences, module)?)?;
    module.add_function(wrap_pyfunction!(packing::plan_micro_batches, module)?)?;
    module.add_class::<stats::RunningStats>()?;
    module.add_class::<stats::RunningStatsVec>()?;
    Ok(())
}
