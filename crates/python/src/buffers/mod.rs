//! Local buffers: `form` says what a transition looks like, `replay` has the classes, `framed`
//! stores observations once, `state` takes the content out and puts it back. `offline` has data sets that do
//! not change, `lent` the arrays that they are made from.

mod form;
mod framed;
mod lent;
mod offline;
mod replay;
mod state;

use pyo3::prelude::*;

/// Adds them to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<replay::ReplayBuffer>()?;
    module.add_class::<replay::PrioritizedReplayBuffer>()?;
    module.add_class::<offline::OfflineDatasetBuffer>()?;
    Ok(())
}
