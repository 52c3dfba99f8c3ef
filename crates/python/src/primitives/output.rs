//! Results as arrays, in memory that is used again.

use std::sync::LazyLock;

use pyo3::prelude::*;

use super::kind::Kind;
use super::plain::{Fresh, Plain};
use crate::arena::Arena;
use crate::memory::Memory;

/// From how many bytes on memory is pooled. The system hands out and takes back smaller pieces without
/// touching page tables.
const POOLED: usize = 64 << 10;

/// Up to how many bytes memory is kept for other results.
const KEPT: usize = 256 << 20;

/// Memory of results that nobody looks at any more. What it saves is the first touch of fresh pages, which
/// takes longer than most of the mathematics.
static ARENA: LazyLock<Arena> = LazyLock::new(Arena::default);

/// A result on its way.
pub struct Output<'py, T> {
    fresh: Fresh<'py, T>,
    memory: Option<Py<Memory>>,
}

impl<'py, T: Plain> Output<'py, T> {
    /// Room for a result of this shape. What is in it is left over from something else.
    #[inline]
    pub fn new(py: Python<'py>, shape: &[usize], kind: Kind) -> PyResult<Self> {
        let bytes = shape.iter().product::<usize>() * size_of::<T>();
        // JAX takes over only memory that begins with a cache line.
        if bytes < POOLED && kind != Kind::Jax {
            return Ok(Self { fresh: Fresh::zeros(py, shape), memory: None });
        }
        let memory = ARENA.take(py, bytes)?;
        Ok(Self { fresh: Fresh::over(py, shape, &memory)?, memory: Some(memory) })
    }

    /// The numbers, in C order.
    #[inline]
    pub fn numbers(&mut self) -> &mut [T] {
        self.fresh.elements()
    }

    /// The result, as an array of this kind.
    #[inline]
    pub fn finish(self, kind: Kind) -> PyResult<Bound<'py, PyAny>> {
        kind.from_numpy(self.into_numpy())
    }

    /// The result as an array of numpy.
    #[inline]
    pub fn into_numpy(self) -> Bound<'py, PyAny> {
        let array = self.fresh.into_array();
        if let Some(memory) = self.memory
            && (POOLED..=KEPT).contains(&memory.get().len())
        {
            ARENA.give_back(memory);
        }
        array
    }
}
