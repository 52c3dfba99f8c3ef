//! Batches column by column, in memory that is used again once nobody looks at them.

use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

use crate::array;
use crate::memory::{Arena, Memory};
use crate::sources::DETACH_BYTES;

/// Each column starts at a multiple of this, as XLA and AVX-512 want.
const ALIGNMENT: usize = 64;

/// Where the columns of a batch are in its memory.
pub struct Plan {
    offsets: Vec<usize>,
    bytes: Vec<usize>,
    pub total: usize,
}

impl Plan {
    /// For columns of so many bytes.
    pub fn new(bytes: Vec<usize>) -> PyResult<Self> {
        let mut total = 0usize;
        let mut offsets = Vec::with_capacity(bytes.len());
        for bytes in &bytes {
            offsets.push(total);
            let end = bytes.checked_next_multiple_of(ALIGNMENT).and_then(|b| total.checked_add(b));
            total = end.ok_or_else(|| {
                pyo3::exceptions::PyMemoryError::new_err("the batch is larger than any memory")
            })?;
        }
        Ok(Self { offsets, bytes, total })
    }

    /// The columns as parts of the memory.
    pub fn split<'a>(&self, mut memory: &'a mut [u8]) -> Vec<&'a mut [u8]> {
        let mut columns = Vec::with_capacity(self.bytes.len());
        for bytes in &self.bytes {
            let (column, rest) = memory.split_at_mut(bytes.next_multiple_of(ALIGNMENT));
            memory = rest;
            columns.push(&mut column[..*bytes]);
        }
        columns
    }
}

/// Memory that `gather` has filled, from chunks that it must decode if they are `encoded`.
pub fn filled(
    py: Python<'_>,
    arena: &Arena,
    plan: &Plan,
    encoded: bool,
    gather: impl Fn(&mut [&mut [u8]]) + Sync,
) -> PyResult<Py<Memory>> {
    let mut memory = arena.take(py, plan.total)?;
    let written = Memory::write(&mut memory, py, 0, plan.total, |bytes| {
        let mut columns = plan.split(bytes);
        // Of a large chunk that is decoded little may be wanted.
        if encoded || plan.total >= DETACH_BYTES {
            py.detach(|| gather(&mut columns));
        } else {
            gather(&mut columns);
        }
    });
    assert!(written, "memory from the arena is nobody else's");
    Ok(memory)
}

/// A column as an array, which keeps the memory.
pub fn view<'py>(
    py: Python<'py>,
    memory: &Py<Memory>,
    plan: &Plan,
    column: usize,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let values: usize = shape.iter().product();
    assert!(values * descr.itemsize() == plan.bytes[column] && plan.total <= memory.get().len());
    let start = memory.get().pointer().wrapping_add(plan.offsets[column]);
    // SAFETY: the plan puts this column's bytes, which are as many as the shape has, inside the memory;
    // nobody writes them before the arena finds that no array holds the memory any more.
    unsafe { array::view(py, descr, shape, start, memory.bind(py).as_any()) }
}
