//! The thin edge to numpy's C API: reading array headers, and arrays over memory of the ring.

use std::ffi::c_int;
use std::mem::size_of;

use numpy::npyffi::{self, PY_ARRAY_API, PyArrayObject, flags, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// An array of its own with these bytes, which are as many as its dtype and shape say.
pub fn owned<'py>(
    bytes: &[u8],
    descr: &Bound<'py, PyArrayDescr>,
    shape: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = descr.py().import("numpy")?;
    if bytes.is_empty() {
        return numpy.call_method1("empty", (shape, descr));
    }
    let flat = numpy.call_method1("frombuffer", (PyBytes::new(descr.py(), bytes), descr))?;
    flat.call_method1("reshape", (shape,))?.call_method0("copy")
}

/// A numpy array whose header this file reads without going through Python.
#[derive(Clone, Copy)]
pub struct Header<'a, 'py>(&'a Bound<'py, PyUntypedArray>);

impl<'a, 'py> Header<'a, 'py> {
    /// `object` as an array, if it is one or of a subclass.
    #[inline]
    pub fn of(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        object.cast::<PyUntypedArray>().ok().map(Self)
    }

    /// `object` as an array, if it is one and of no subclass, which could mean more than its data.
    #[inline]
    pub fn of_exact(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        // SAFETY: reading a type object of an initialised API.
        let class = unsafe { npyffi::get_type_object(object.py(), npyffi::NpyTypes::PyArray_Type) };
        // SAFETY: an object of just the class of arrays is one.
        std::ptr::eq(object.get_type_ptr(), class)
            .then(|| Self(unsafe { object.cast_unchecked::<PyUntypedArray>() }))
    }

    fn fields(&self) -> &npyffi::objects::PyArrayObject_fields {
        let array: *mut PyArrayObject = self.0.as_ptr().cast();
        // SAFETY: a `PyUntypedArray` is an array object, which numpy keeps initialised while our
        // reference is alive. Its header changes only by calls that hold the GIL, as we do (on a
        // free-threaded build, changing an array that another thread uses is the user's data race
        // by numpy's own rules).
        unsafe { &(*array).fields }
    }

    /// Whether the elements are of this dtype, byte order included.
    #[inline]
    pub fn has_dtype(&self, descr: &Bound<'py, PyArrayDescr>) -> bool {
        // Almost always both are numpy's one object for a plain dtype.
        std::ptr::addr_eq(self.fields().descr, descr.as_ptr()) || self.0.dtype().is_equiv_to(descr)
    }

    /// The lengths of the axes.
    #[inline]
    pub fn shape(&self) -> &'a [usize] {
        const { assert!(size_of::<npy_intp>() == size_of::<usize>()) };
        let (dimensions, axes) = (self.fields().dimensions, self.fields().nd as usize);
        if axes == 0 {
            // The pointer of a 0-dimensional array may be null.
            return &[];
        }
        // SAFETY: numpy keeps `nd` lengths there, none negative, so they are valid as `usize`.
        unsafe { std::slice::from_raw_parts(dimensions.cast(), axes) }
    }

    /// Whether elements follow each other in C order without gaps.
    #[inline]
    pub fn is_c_contiguous(&self) -> bool {
        self.fields().flags & flags::NPY_ARRAY_C_CONTIGUOUS != 0
    }

    /// Whether its elements may be changed.
    #[inline]
    pub fn is_writeable(&self) -> bool {
        self.fields().flags & flags::NPY_ARRAY_WRITEABLE != 0
    }

    /// The dtype of the elements.
    pub fn descr(&self) -> Bound<'py, PyArrayDescr> {
        self.0.dtype()
    }

    /// How many bytes a contiguous array of this shape and dtype has.
    #[inline]
    pub fn nbytes(&self) -> Option<usize> {
        // SAFETY: the dtype of a live array, by whose reference it is kept.
        let itemsize = unsafe { npyffi::PyDataType_ELSIZE(self.0.py(), self.fields().descr) };
        let itemsize = usize::try_from(itemsize).ok()?;
        self.shape().iter().try_fold(itemsize, |bytes, axis| bytes.checked_mul(*axis))
    }

    /// Where the elements start.
    #[inline]
    pub fn data(&self) -> *mut u8 {
        self.fields().data.cast()
    }
}

/// An array over memory that `owner` keeps alive, writable and in C order.
///
/// # Safety
///
/// `data` must be valid for reads and writes of the elements, by nobody else, until `owner` is
/// dropped.
pub unsafe fn view<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    data: *mut u8,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the caller's promise.
    unsafe { array_over(py, descr, shape, data, owner, flags::NPY_ARRAY_CARRAY) }
}

/// As [`view`], to be read only: the owner offers no buffer, so numpy does not let anyone make it writable.
///
/// # Safety
///
/// `data` must be valid for reads of the elements, which nobody changes, until `owner` is dropped.
pub unsafe fn view_to_read<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    data: *const u8,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the caller's promise; numpy does not write arrays without the flag for it.
    unsafe { array_over(py, descr, shape, data.cast_mut(), owner, flags::NPY_ARRAY_CARRAY_RO) }
}

/// An array over memory that `owner` keeps alive.
///
/// # Safety
///
/// As [`view`], or without the right to write if `flags` do not give it.
unsafe fn array_over<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    data: *mut u8,
    owner: &Bound<'py, PyAny>,
    flags: c_int,
) -> PyResult<Bound<'py, PyAny>> {
    let dimensions: *mut npy_intp = shape.as_ptr().cast_mut().cast();
    // SAFETY: reading a type object of an initialised API.
    let class = unsafe { npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type) };
    // SAFETY: numpy copies the dimensions, takes over the dtype reference given here, and does not
    // free memory that it was handed.
    let array = unsafe {
        PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            class,
            descr.clone().into_ptr().cast(),
            shape.len() as c_int,
            dimensions,
            std::ptr::null_mut(),
            data.cast(),
            flags,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: numpy returned a new reference, or null with an exception set.
    let array = unsafe { Bound::from_owned_ptr_or_err(py, array) }?;
    // SAFETY: a fresh array without a base; the reference to the owner is handed over.
    let failed = unsafe {
        PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), owner.clone().into_ptr())
    };
    if failed != 0 { Err(PyErr::fetch(py)) } else { Ok(array) }
}

/// That no two of these contiguous arrays have bytes in common.
pub fn refuse_overlaps(arrays: &[Bound<'_, PyAny>]) -> Result<(), String> {
    let range = |array| {
        let header = Header::of(array)?;
        let start = header.data() as usize;
        Some(start..start + header.nbytes()?)
    };
    let mut ranges: Vec<_> = arrays.iter().filter_map(range).filter(|r| !r.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    let apart = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
    if apart { Ok(()) } else { Err("two of the arrays to be written share memory".into()) }
}

/// The bytes of contiguous, writable arrays.
///
/// # Safety
///
/// Nobody else may read or write the arrays' elements while the bytes are borrowed, no two of the arrays
/// may share memory, and all must stay alive and be given no other memory.
pub unsafe fn bytes_mut<'a>(arrays: &'a mut [Bound<'_, PyAny>]) -> Vec<&'a mut [u8]> {
    let bytes = |array| match Header::of(array) {
        Some(header) if header.nbytes().is_some_and(|bytes| bytes > 0) => {
            // SAFETY: a contiguous array has so many initialised bytes; the rest is the caller's promise.
            unsafe {
                std::slice::from_raw_parts_mut(header.data(), header.nbytes().unwrap_or_default())
            }
        }
        _ => Default::default(),
    };
    arrays.iter().map(bytes).collect()
}

/// The bytes of a numpy scalar of just this dtype, which must be one of numpy's own of a fixed size;
/// `None` for anything else.
pub fn scalar_bytes(value: &Bound<'_, PyAny>, descr: &Bound<'_, PyArrayDescr>) -> Option<[u8; 16]> {
    let py = value.py();
    // SAFETY: reading a type object of an initialised API.
    let generic = unsafe { npyffi::get_type_object(py, npyffi::NpyTypes::PyGenericArrType_Type) };
    // SAFETY: both are live objects.
    if unsafe { pyo3::ffi::PyObject_TypeCheck(value.as_ptr(), generic) } == 0 {
        return None;
    }
    // SAFETY: the object is a numpy scalar.
    let own = unsafe { PY_ARRAY_API.PyArray_DescrFromScalar(py, value.as_ptr()) };
    // SAFETY: numpy returned a new reference, or null with an exception set.
    let own = unsafe { Bound::from_owned_ptr_or_opt(py, own.cast()) }?;
    if !own.is(descr) || descr.itemsize() > 16 {
        return None;
    }
    let mut bytes = [0; 16];
    // SAFETY: the scalar has `itemsize` bytes, at most those that there are.
    unsafe { PY_ARRAY_API.PyArray_ScalarAsCtype(py, value.as_ptr(), bytes.as_mut_ptr().cast()) };
    Some(bytes)
}

/// Whether anyone but the holder of this one reference has the object.
pub fn is_shared<T>(object: &Bound<'_, T>) -> bool {
    // SAFETY: reads a field of a live object.
    unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) > 1 }
}

/// Copies `to.len()` bytes from `offset` bytes behind `from`.
///
/// # Safety
///
/// That range must be valid, inside one allocation with `from`, and not overlap `to`.
#[inline]
pub unsafe fn copy(from: *const u8, offset: usize, to: &mut [u8]) {
    // SAFETY: the caller's promise.
    let from = unsafe { from.add(offset) };
    let ahead = (to.as_ptr() as usize).wrapping_sub(from as usize) % PAGE;
    if to.len() <= SHORT_COPY || !(1..LINE).contains(&ahead) {
        // SAFETY: the caller's promise; `to` is a slice.
        return unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
    for (at, part) in to.chunks_mut(SHORT_COPY).enumerate() {
        // SAFETY: inside the caller's range.
        let from = unsafe { from.add(at * SHORT_COPY) };
        // SAFETY: the caller's promise; `part` is a slice.
        unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
    }
}

/// Where the target lies less than a cache line ahead of the source within their pages, the string
/// instructions that the C library uses for long copies are ten to twenty times slower on Zen
/// processors (2 against 40 GB/s measured). Copies of this length use vector instructions instead.
const SHORT_COPY: usize = 2048;
const LINE: usize = 64;
const PAGE: usize = 4096;
