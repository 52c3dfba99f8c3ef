//! Bytes for arrays of our own, used again once nobody looks at them.
//!
//! An array over such memory does not own it, so numpy refuses to resize it, and whatever a user does
//! to the array's header harms no other.

use std::cell::UnsafeCell;

use echoic_memory::roomy;
use echoic_memory::sync::Mutex;
use pyo3::prelude::*;

use crate::array::is_shared;

#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "it is touched through pointers only")] [u8; 64]);

/// The base object of arrays.
#[pyclass(frozen, module = "echoic._native")]
pub struct Memory {
    lines: Box<[UnsafeCell<Line>]>,
}

// SAFETY: Rust touches the bytes only in `write`, whose caller is the only one that has the memory.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of at least this size.
    pub fn new(py: Python<'_>, bytes: usize) -> PyResult<Py<Self>> {
        let count = bytes.div_ceil(64).max(1);
        let mut lines = roomy(count);
        if lines.capacity() < count {
            let message = format!("there is no memory for {bytes} bytes");
            return Err(pyo3::exceptions::PyMemoryError::new_err(message));
        }
        lines.extend((0..count).map(|_| UnsafeCell::new(Line([0; 64]))));
        Py::new(py, Self { lines: lines.into() })
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.lines.len() * 64
    }

    /// Where the bytes start.
    pub fn pointer(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.lines.as_ptr()).cast()
    }

    /// Lends some bytes to `fill`, if no array refers to the memory; whether it did.
    ///
    /// # Panics
    ///
    /// When there are no such bytes.
    pub fn write(
        this: &mut Py<Self>,
        py: Python<'_>,
        offset: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if is_shared(this.bind(py)) {
            return false;
        }
        let memory = this.get();
        assert!(offset.checked_add(len).is_some_and(|end| end <= memory.lines.len() * 64));
        // SAFETY: inside the memory by the assertion.
        let start = unsafe { memory.pointer().add(offset) };
        // SAFETY: the bytes are initialised, and nobody else can reach them: ours is the only
        // reference to the object, and it is borrowed for the length of this call.
        fill(unsafe { std::slice::from_raw_parts_mut(start, len) });
        true
    }
}

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
