//! Local buffers: `form` says what a transition looks like and how many become a batch, `rows` puts one into its
//! place, `replay` has the classes. `mmap` has the class with a file, and `written` is what that says of its rows.
//! `surprise` has experiences in two tiers. `offline` has data sets that do not change.

mod form;
mod mmap;
mod offline;
mod replay;
mod rows;
mod surprise;
mod written;

use pyo3::prelude::*;

/// Adds them to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<replay::ReplayBuffer>()?;
    module.add_class::<replay::PrioritizedReplayBuffer>()?;
    module.add_class::<offline::OfflineDatasetBuffer>()?;
    module.add_class::<mmap::MmapReplayBuffer>()?;
    module.add_class::<surprise::SurpriseReplay>()?;
    mmap::watch(module)?;
    Ok(())
}
