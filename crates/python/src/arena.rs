//! Memory for batches, used again once nobody looks at it.

use echoic_memory::sync::Mutex;
use pyo3::prelude::*;

use crate::array::is_shared;
use crate::memory::Memory;

/// How many batches' memory is kept. One is being read while the next is gathered; a few more wait in
/// prefetched batches.
const KEPT: usize = 8;

/// Memory of past batches. Fresh memory costs four times a copy, because the system gives it page by
/// page.
#[derive(Default)]
pub struct Arena(Mutex<Vec<Py<Memory>>>);

impl Arena {
    /// Memory of at least this size that nobody else has, and is not zeroed.
    pub fn take(&self, py: Python<'_>, bytes: usize) -> PyResult<Py<Memory>> {
        let mut kept = self.0.lock();
        let fits = |memory: &Py<Memory>| {
            let len = memory.get().len();
            // Memory that is far too large is for larger batches.
            len >= bytes && len / 4 <= bytes.max(1 << 16) && !is_shared(memory.bind(py))
        };
        match kept.iter().position(fits) {
            Some(index) => Ok(kept.swap_remove(index)),
            None => {
                drop(kept);
                Memory::new(py, bytes)
            }
        }
    }

    /// Keeps memory for another batch, whoever still looks at it now.
    pub fn give_back(&self, memory: Py<Memory>) {
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(memory);
    }
}
