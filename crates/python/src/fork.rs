//! A server or client belongs to the process that made it.
//!
//! A forked child has a copy of the ring that no other thread will ever fill or empty, taken at a
//! moment when some thread may have been in the middle of a step. Using it would store samples where
//! nobody looks, or wait for ever; so it is refused.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

use crate::error::closed_error;

/// How many forks lie between this process and the one that loaded the module.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process in which something was made.
pub struct Process(u64);

impl Process {
    pub fn current() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still that process.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Refuses to go on in a forked child.
    #[inline]
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_current() { Ok(()) } else { Err(forked(py)) }
    }
}

#[cold]
fn forked(py: Python<'_>) -> PyErr {
    closed_error(
        py,
        "this server or client was made before a fork and belongs to the parent process; make it \
         after the fork, or use threads",
    )
}

/// Has every fork counted, in the child. Called once, when the module is loaded.
pub fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let count = pyo3::types::PyCFunction::new_closure(py, None, None, |_, _| {
        FORKS.fetch_add(1, Ordering::Relaxed);
    })?;
    let os = py.import("os")?;
    // Not on Windows, where nothing forks.
    if os.hasattr("register_at_fork")? {
        let arguments = pyo3::types::PyDict::new(py);
        arguments.set_item("after_in_child", count)?;
        os.call_method("register_at_fork", (), Some(&arguments))?;
    }
    Ok(())
}
