//! One leaf: its rule, and a Python value checked against it as a source of bytes.

use echoic_replay::{Dtype, Leaf};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt};

use crate::array::{Header, array_data, copy, scalar_bytes};
use crate::dtype;
use crate::error::spec_error;

/// What values of one leaf must look like.
pub struct LeafRule {
    pub leaf: Leaf,
    /// In native byte order; also the dtype of the arrays handed out.
    pub descr: Py<PyArrayDescr>,
}

/// Which shapes a value may have, given its leaf.
pub trait ShapeRule {
    /// Whether this shape is right.
    fn accepts(&mut self, leaf: &Leaf, shape: &[usize]) -> bool;
    /// The right shape, for an error message.
    fn expected(&self, leaf: &Leaf) -> String;
}

/// One sample: the shape of the leaf itself.
pub struct One;

impl ShapeRule for One {
    #[inline]
    fn accepts(&mut self, leaf: &Leaf, shape: &[usize]) -> bool {
        leaf.shape == shape
    }

    fn expected(&self, leaf: &Leaf) -> String {
        format!("{:?}", leaf.shape)
    }
}

/// Many samples: a leading axis, of the same length in every leaf.
#[derive(Default)]
pub struct Many {
    /// The length of the leading axis, once a leaf was seen.
    pub rows: Option<usize>,
}

impl ShapeRule for Many {
    fn accepts(&mut self, leaf: &Leaf, shape: &[usize]) -> bool {
        match shape.split_first() {
            Some((rows, rest)) => rest == leaf.shape && *self.rows.get_or_insert(*rows) == *rows,
            None => false,
        }
    }

    fn expected(&self, leaf: &Leaf) -> String {
        let rows = self.rows.map_or("n".to_owned(), |rows| rows.to_string());
        let axes: Vec<String> = leaf.shape.iter().map(usize::to_string).collect();
        format!("[{}]", [vec![rows], axes].concat().join(", "))
    }
}

/// Bytes of one leaf, checked and contiguous.
pub struct Source {
    /// Index of the leaf.
    pub leaf: usize,
    bytes: Bytes,
}

enum Bytes {
    /// In an array, whose reference keeps them alive. The length was checked against the rule.
    Array { data: *const u8, _owner: Py<PyAny> },
    /// A Python number, converted.
    Inline([u8; 16]),
}

// SAFETY: the pointer is read only, into memory that `_owner` keeps alive, from any thread.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl Source {
    /// Copies the bytes from `offset` on into `to`.
    ///
    /// # Safety
    ///
    /// `offset + to.len()` must be at most the size of the value that the rules accepted.
    #[inline]
    pub unsafe fn copy_to(&self, offset: usize, to: &mut [u8]) {
        match &self.bytes {
            // SAFETY: by the caller's promise both ends are inside the array, which is alive. It
            // does not overlap `to`: slots that are being written are in no array handed out.
            Bytes::Array { data, .. } => unsafe { copy(*data, offset, to) },
            Bytes::Inline(bytes) => to.copy_from_slice(&bytes[offset..offset + to.len()]),
        }
    }
}

impl LeafRule {
    /// The rule that an example sets.
    pub fn from_example(path: String, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let name = display(&path);
        let array = as_array(value).map_err(|error| unreadable(py, name, value, error))?;
        let descr = array.dtype();
        let dtype = dtype::from_numpy(&descr)
            .map_err(|advice| spec_error(py, format!("leaf `{name}` of the example: {advice}")))?;
        // numpy has one object for each of its plain dtypes; given a name it finds that one, which
        // makes the comparison with an array's dtype that of two addresses.
        let native = match dtype {
            Dtype::BFloat16 => descr,
            _ => numpy(py)?.call_method1("dtype", (dtype.to_string(),))?.cast_into()?,
        };
        let leaf = Leaf { path, dtype, shape: array.shape().to_vec() };
        Ok(Self { leaf, descr: native.unbind() })
    }

    /// Checks a value and makes it a source of bytes.
    #[inline]
    pub fn source(
        &self,
        index: usize,
        value: &Bound<'_, PyAny>,
        shapes: &mut impl ShapeRule,
    ) -> PyResult<Source> {
        if let Some(header) = Header::of(value)
            && header.has_dtype(self.descr.bind(value.py()))
            && header.is_c_contiguous()
            && shapes.accepts(&self.leaf, header.shape())
        {
            let bytes = Bytes::Array { data: header.data(), _owner: value.clone().unbind() };
            return Ok(Source { leaf: index, bytes });
        }
        self.source_of_other(index, value, shapes)
    }

    /// Everything but a contiguous array of just this dtype object.
    #[cold]
    fn source_of_other(
        &self,
        index: usize,
        value: &Bound<'_, PyAny>,
        shapes: &mut impl ShapeRule,
    ) -> PyResult<Source> {
        let py = value.py();
        let inline = !matches!(self.leaf.dtype, Dtype::Bytes(_) | Dtype::BFloat16);
        if inline && let Some(bytes) = scalar_bytes(value, self.descr.bind(py)) {
            if !shapes.accepts(&self.leaf, &[]) {
                return Err(self.mismatch(py, shapes, &describe_type(value)));
            }
            return Ok(Source { leaf: index, bytes: Bytes::Inline(bytes) });
        }
        if let Some(number) = self.python_scalar(value) {
            let bytes = number?;
            if !shapes.accepts(&self.leaf, &[]) {
                return Err(self.mismatch(py, shapes, &describe_type(value)));
            }
            return Ok(Source { leaf: index, bytes: Bytes::Inline(bytes) });
        }
        let name = display(&self.leaf.path);
        let array = match self.padded_bytes(value)? {
            Some(array) => array,
            None => as_array(value).map_err(|error| unreadable(py, name, value, error))?,
        };
        let got = || format!("{}{:?}", array.dtype(), array.shape());
        let descr = self.descr.bind(py);
        let same_but_for_order = || -> PyResult<bool> {
            let native = array.dtype().call_method1("newbyteorder", ("=",))?;
            Ok(native.cast::<PyArrayDescr>()?.is_equiv_to(descr))
        };
        if !array.dtype().is_equiv_to(descr) && !same_but_for_order()? {
            return Err(self.mismatch(py, shapes, &got()));
        }
        if !shapes.accepts(&self.leaf, array.shape()) {
            return Err(self.mismatch(py, shapes, &got()));
        }
        let array = if array.is_c_contiguous() && array.dtype().is_equiv_to(descr) {
            array
        } else {
            contiguous(&array, descr)?
        };
        let data = array_data(&array);
        Ok(Source { leaf: index, bytes: Bytes::Array { data, _owner: array.into_any().unbind() } })
    }

    /// The bytes of a Python number of this leaf's kind; `None` for anything else.
    fn python_scalar(&self, value: &Bound<'_, PyAny>) -> Option<PyResult<[u8; 16]>> {
        let py = value.py();
        let mut bytes = [0; 16];
        let mut put = |number: &[u8]| bytes[..number.len()].copy_from_slice(number);
        if let Ok(flag) = value.cast_exact::<PyBool>() {
            if self.leaf.dtype != Dtype::Bool {
                return Some(Err(self.wrong_number(py, value)));
            }
            put(&[u8::from(flag.is_true())]);
        } else if let Ok(number) = value.cast_exact::<PyFloat>() {
            match self.leaf.dtype {
                Dtype::Float(4) => put(&(number.value() as f32).to_ne_bytes()),
                Dtype::Float(8) => put(&number.value().to_ne_bytes()),
                // numpy knows how to round to the narrow ones.
                Dtype::Float(_) | Dtype::BFloat16 | Dtype::Complex(_) => {
                    return Some(self.numpy_scalar(value));
                }
                _ => return Some(Err(self.wrong_number(py, value))),
            }
        } else if value.is_exact_instance_of::<PyInt>() {
            let Some(number) = self.integer(value) else {
                return Some(Err(self.wrong_number(py, value)));
            };
            put(&number);
        } else if value.is_exact_instance_of::<PyComplex>() {
            return Some(match self.leaf.dtype {
                Dtype::Complex(_) => self.numpy_scalar(value),
                _ => Err(self.wrong_number(py, value)),
            });
        } else {
            return None;
        }
        Some(Ok(bytes))
    }

    /// A Python int in this leaf's width, if the leaf is an integer and it fits.
    fn integer(&self, value: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
        let number: i128 = match value.extract::<i64>() {
            Ok(number) => number.into(),
            Err(_) => value.extract::<u64>().ok()?.into(),
        };
        Some(match self.leaf.dtype {
            Dtype::Int(1) => i8::try_from(number).ok()?.to_ne_bytes().into(),
            Dtype::Int(2) => i16::try_from(number).ok()?.to_ne_bytes().into(),
            Dtype::Int(4) => i32::try_from(number).ok()?.to_ne_bytes().into(),
            Dtype::Int(8) => i64::try_from(number).ok()?.to_ne_bytes().into(),
            Dtype::UInt(1) => u8::try_from(number).ok()?.to_ne_bytes().into(),
            Dtype::UInt(2) => u16::try_from(number).ok()?.to_ne_bytes().into(),
            Dtype::UInt(4) => u32::try_from(number).ok()?.to_ne_bytes().into(),
            Dtype::UInt(8) => u64::try_from(number).ok()?.to_ne_bytes().into(),
            _ => return None,
        })
    }

    /// A Python number converted by numpy.
    fn numpy_scalar(&self, value: &Bound<'_, PyAny>) -> PyResult<[u8; 16]> {
        let py = value.py();
        let array = numpy(py)?.call_method1("array", (value, self.descr.bind(py)))?;
        let raw: Bound<'_, PyBytes> = array.call_method0("tobytes")?.cast_into()?;
        let mut bytes = [0; 16];
        bytes[..raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
        Ok(bytes)
    }

    /// A Python `bytes` for a leaf of bytes, zero-padded; `None` for anything else.
    fn padded_bytes<'py>(
        &self,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
        let (Dtype::Bytes(width), Ok(bytes)) = (self.leaf.dtype, value.cast::<PyBytes>()) else {
            return Ok(None);
        };
        let py = value.py();
        let len = bytes.as_bytes().len();
        if len > width as usize {
            let name = display(&self.leaf.path);
            let message = format!("leaf `{name}`: expected at most {width} bytes, got {len}");
            return Err(spec_error(py, message));
        }
        let array = numpy(py)?.call_method1("array", (value, self.descr.bind(py)))?;
        Ok(Some(array.cast_into()?))
    }

    fn wrong_number(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyErr {
        self.mismatch(py, &One, &describe_type(value))
    }

    fn mismatch(&self, py: Python<'_>, shapes: &impl ShapeRule, got: &str) -> PyErr {
        let name = display(&self.leaf.path);
        let expected = shapes.expected(&self.leaf);
        let dtype = self.leaf.dtype;
        spec_error(py, format!("leaf `{name}`: expected {dtype}{expected}, got {got}"))
    }
}

/// A path as a person reads it.
pub fn display(path: &str) -> &str {
    if path.is_empty() { "(root)" } else { path }
}

fn describe_type(value: &Bound<'_, PyAny>) -> String {
    let class = value.get_type().name().map_or("?".into(), |name| name.to_string());
    match value.repr().map(|text| text.to_string()) {
        Ok(text) if text.chars().count() <= 40 => format!("the {class} {text}"),
        _ => format!("a value of type {class}"),
    }
}

fn unreadable(py: Python<'_>, name: &str, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let class = value.get_type().name().map_or("?".into(), |name| name.to_string());
    let wrapped =
        spec_error(py, format!("leaf `{name}`: a {class} can't be read as an array: {error}"));
    wrapped.set_cause(py, Some(error));
    wrapped
}

fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static NUMPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || py.import("numpy").map(|m| m.into_any().unbind()))?;
    Ok(module.bind(py))
}

/// Anything that can be an array without copying its elements one by one.
fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = value.py();
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    // numpy's own scalars have `__array__` too.
    let known =
        value.hasattr("__array__")? || value.hasattr("__array_interface__")? || has_buffer(value);
    let array = if !known && value.hasattr("__dlpack__")? {
        numpy(py)?.call_method1("from_dlpack", (value,))?
    } else {
        numpy(py)?.call_method1("asarray", (value,))?
    };
    Ok(array.cast_into()?)
}

fn has_buffer(value: &Bound<'_, PyAny>) -> bool {
    // `PyObject_CheckBuffer` is not in the stable ABI of Python 3.10.
    value.py().get_type::<pyo3::types::PyMemoryView>().call1((value,)).is_ok()
}

/// A copy of `array` in C order and native byte order.
fn contiguous<'py>(
    array: &Bound<'py, PyUntypedArray>,
    descr: &Bound<'py, PyArrayDescr>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    let order = PyDict::new(py);
    order.set_item("order", "C")?;
    // Not `ascontiguousarray`, which turns 0-dimensional arrays into 1-dimensional ones.
    let array = numpy(py)?.call_method("array", (array, descr), Some(&order))?;
    Ok(array.cast_into()?)
}
