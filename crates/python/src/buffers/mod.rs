//! Local buffers: `form` says what a transition looks like, `rows` puts one into its place, `replay` has the
//! classes, `framed` stores observations once, `state` takes the content out and puts it back. `mmap` has the
//! class with a file, and `written` is what that says of its rows. `surprise` has experiences in two tiers. `offline` has data sets that do not change,
//! `lent` the arrays that they are made from.

mod form;
mod framed;
mod lent;
mod mmap;
mod offline;
mod replay;
mod rows;
mod state;
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
