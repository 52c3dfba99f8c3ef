//! Native environments and collectors.

use pyo3::prelude::*;

/// Adds them to the module.
pub fn add(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
