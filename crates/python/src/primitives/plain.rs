//! Numbers in arrays as slices: the only `unsafe` of the functions on arrays.

use numpy::{Element, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::array::{self, Header};
use crate::memory::Memory;

/// Numbers that any bytes are one of, and that numpy has.
///
/// # Safety
///
/// Every pattern of bits must be valid, and the dtype's elements must have the type's layout.
pub unsafe trait Plain: Copy + Send + Sync + Element {}

// SAFETY: numbers of these kinds have no invalid bits, and numpy's have the same layout.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for i64 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}

/// Whether an array can be read by [`read`]. Its dtype must be numpy's one object for it, which it
/// nearly always is, and always in a fresh array.
#[inline]
pub fn is_plain<T: Plain>(array: &Bound<'_, PyUntypedArray>) -> bool {
    is_contiguous::<T, T>(array)
}

#[inline]
fn is_contiguous<D: Element, T>(array: &Bound<'_, PyUntypedArray>) -> bool {
    let Some(header) = Header::of(array.as_any()) else { return false };
    header.is_c_contiguous()
        && header.data().cast::<T>().is_aligned()
        && array.dtype().is(numpy::dtype::<D>(array.py()))
}

/// The elements of an array in C order, if they are of this type and without gaps.
pub fn read<'a, T: Plain>(array: &'a Bound<'_, PyUntypedArray>) -> Option<&'a [T]> {
    if is_plain::<T>(array) { Some(elements(array)) } else { None }
}

/// The bytes of an array of booleans, without gaps.
#[inline]
pub fn read_bools<'a>(array: &'a Bound<'_, PyUntypedArray>) -> Option<&'a [u8]> {
    if is_contiguous::<bool, u8>(array) { Some(elements(array)) } else { None }
}

/// What is there is checked by the callers.
fn elements<'a, T: Plain>(array: &'a Bound<'_, PyUntypedArray>) -> &'a [T] {
    let Some(header) = Header::of(array.as_any()) else { return &[] };
    let len = header.shape().iter().product();
    if len == 0 {
        return &[];
    }
    // SAFETY: a contiguous array of as many elements of this type, aligned, which lives as long as the
    // reference. Changing it in another thread meanwhile is the user's data race by numpy's own rules.
    unsafe { std::slice::from_raw_parts(header.data().cast(), len) }
}

/// A fresh array that nobody else has yet.
pub struct Fresh<'py, T> {
    array: Bound<'py, PyAny>,
    data: *mut T,
    len: usize,
}

impl<'py, T: Plain> Fresh<'py, T> {
    /// Zeros in memory of numpy.
    pub fn zeros(py: Python<'py>, shape: &[usize]) -> Self {
        let array = numpy::PyArrayDyn::<T>::zeros(py, shape, false).into_any();
        let data = match Header::of(&array) {
            Some(header) => header.data().cast(),
            None => std::ptr::dangling_mut(),
        };
        Self { array, data, len: shape.iter().product() }
    }

    /// An array in this memory, which nobody else may have a reference to, with any content.
    ///
    /// # Panics
    ///
    /// When the memory is shared or too small.
    pub fn over(py: Python<'py>, shape: &[usize], memory: &Py<Memory>) -> PyResult<Self> {
        let len = shape.iter().product::<usize>();
        let memory = memory.bind(py);
        assert!(!array::is_shared(memory) && len * size_of::<T>() <= memory.get().len());
        let data = memory.get().pointer();
        // SAFETY: the memory is large and aligned enough, and the array keeps it; ours was the only
        // reference, and nobody writes through it before the array is gone.
        let array =
            unsafe { array::view(py, &numpy::dtype::<T>(py), shape, data, memory.as_any()) }?;
        Ok(Self { array, data: data.cast(), len })
    }

    /// The elements.
    pub fn elements(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: initialised memory of as many elements, aligned, that only this array has, which
        // nobody else has yet.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }

    /// The array.
    pub fn into_array(self) -> Bound<'py, PyAny> {
        self.array
    }
}
