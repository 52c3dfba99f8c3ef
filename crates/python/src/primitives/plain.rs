//! Numbers of arrays as slices.

use numpy::{Element, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::array::Header;

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

/// The array itself if [`read`] can read it as this type, else a copy that it can.
pub fn readable<'py, T: Plain>(
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if is_plain::<T>(array) {
        return Ok(array.clone());
    }
    Ok(array.call_method1("astype", (numpy::dtype::<T>(array.py()), "C"))?.cast_into()?)
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
