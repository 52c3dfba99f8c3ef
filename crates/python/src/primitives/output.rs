//! Results as arrays, in memory that is used again, and work without the GIL.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::LazyLock;

use pyo3::prelude::*;

use super::kind::Kind;
use super::plain::Plain;
use crate::array::{self, Header};
use crate::error::argument_error;
use crate::memory::{Arena, Memory};

/// From how many numbers on other threads of Python run meanwhile: below, handing over costs more
/// than it gives.
const LONG: usize = 8192;

/// From how many bytes on memory is pooled. The system hands out and takes back smaller pieces without
/// touching page tables.
const POOLED: usize = 64 << 10;

/// Up to how many bytes memory is kept for other results.
const KEPT: usize = 256 << 20;

/// Memory of results that nobody looks at any more. What it saves is the first touch of fresh pages, which
/// takes longer than most of the mathematics.
static ARENA: LazyLock<Arena> = LazyLock::new(Arena::default);

/// Runs work on so many numbers, without the GIL where that pays.
#[inline]
pub fn detached<T: Send>(py: Python<'_>, len: usize, work: impl FnOnce() -> T + Send) -> T {
    if len < LONG { work() } else { py.detach(work) }
}

/// As [`detached`], for work that may refuse its arguments.
#[inline]
pub fn attempt<E: Display + Send>(
    py: Python<'_>,
    len: usize,
    work: impl FnOnce() -> Result<(), E> + Send,
) -> PyResult<()> {
    detached(py, len, work).map_err(|error| argument_error(py, error.to_string()))
}

/// A new array of this shape and kind, which `work` on so many numbers fills.
#[inline]
pub fn filled<'py, T: Plain>(
    py: Python<'py>,
    shape: &[usize],
    kind: Kind,
    len: usize,
    work: impl FnOnce(&mut [T]) + Send,
) -> PyResult<Bound<'py, PyAny>> {
    try_filled(py, shape, kind, len, |out| {
        work(out);
        Ok::<(), Infallible>(())
    })
}

/// As [`filled`], for work that may refuse its arguments.
#[inline]
pub fn try_filled<'py, T: Plain, E: Display + Send>(
    py: Python<'py>,
    shape: &[usize],
    kind: Kind,
    len: usize,
    work: impl FnOnce(&mut [T]) -> Result<(), E> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let mut output = Output::new(py, shape, kind)?;
    let out = output.numbers();
    attempt(py, len, || work(out))?;
    output.finish(kind)
}

/// These numbers as an array of numpy.
pub fn copied<'py>(
    py: Python<'py>,
    shape: &[usize],
    numbers: &[f64],
) -> PyResult<Bound<'py, PyAny>> {
    filled(py, shape, Kind::Numpy, numbers.len(), |out| out.copy_from_slice(numbers))
}

/// A result on its way: a fresh array that nobody else has yet.
pub struct Output<'py, T> {
    array: Bound<'py, PyAny>,
    data: *mut T,
    len: usize,
    /// Where the numbers are, if not in memory of numpy.
    memory: Option<Py<Memory>>,
}

impl<'py, T: Plain> Output<'py, T> {
    /// Room for a result of this shape. What is in it is left over from something else.
    #[inline]
    pub fn new(py: Python<'py>, shape: &[usize], kind: Kind) -> PyResult<Self> {
        let len = shape.iter().product::<usize>();
        let bytes = len * size_of::<T>();
        // JAX takes over only memory that begins with a cache line.
        if bytes < POOLED && kind != Kind::Jax {
            let array = numpy::PyArrayDyn::<T>::zeros(py, shape, false).into_any();
            let data = match Header::of(&array) {
                Some(header) => header.data().cast(),
                None => std::ptr::dangling_mut(),
            };
            return Ok(Self { array, data, len, memory: None });
        }
        let memory = ARENA.take(py, bytes)?;
        let owner = memory.bind(py);
        assert!(!array::is_shared(owner) && bytes <= memory.get().len());
        let data = memory.get().pointer();
        // SAFETY: the memory is large and aligned enough, and the array keeps it; ours was the only
        // reference, and nobody writes through it before the array is gone.
        let array =
            unsafe { array::view(py, &numpy::dtype::<T>(py), shape, data, owner.as_any()) }?;
        Ok(Self { array, data: data.cast(), len, memory: Some(memory) })
    }

    /// The numbers, in C order.
    #[inline]
    pub fn numbers(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: initialised memory of as many elements, aligned, that only this array has, which
        // nobody else has yet.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }

    /// The result, as an array of this kind.
    #[inline]
    pub fn finish(self, kind: Kind) -> PyResult<Bound<'py, PyAny>> {
        if let Some(memory) = self.memory
            && (POOLED..=KEPT).contains(&memory.get().len())
        {
            ARENA.give_back(memory);
        }
        kind.from_numpy(self.array)
    }
}
