//! One leaf: its rule, and a Python value checked against it as a source of bytes.

use echoic_replay::{Dtype, Leaf};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyList, PyTuple, PyType,
};
use smallvec::SmallVec;

use crate::array::{Header, copy, scalar_bytes};
use crate::dtype;
use crate::error::{is_ours, spec_error};

/// What values of one leaf must look like.
pub struct LeafRule {
    pub leaf: Leaf,
    /// In native byte order; also the dtype of the arrays handed out.
    pub descr: Py<PyArrayDescr>,
    pub cast: Cast,
}

/// What becomes of values of other dtypes than the leaf's.
pub enum Cast {
    /// They are refused.
    Never,
    /// They are refused, and the message says by which setting.
    Refused,
    /// Floats of any width become the leaf's, and integers become wider ones, in an array of their own.
    Apart,
    /// As above, but arrays of this dtype are cast where they are copied: float64 for a leaf of float32,
    /// and the other way round. The bytes of such a source can't be borrowed.
    InCopy(Py<PyArrayDescr>),
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
        // Of few axes: a call that compares memory costs more.
        leaf.shape.iter().eq(shape)
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
    /// In an array. The reference keeps the array alive, not its buffer: see [`Source::recheck`].
    Array { data: *const u8, nbytes: usize, owner: Py<PyAny> },
    /// In an array of floats that are cast when they are copied: from 64 bits to 32 if `narrows`, the
    /// other way round if not.
    Cast { data: *const u8, nbytes: usize, owner: Py<PyAny>, narrows: bool },
    /// A Python number, converted.
    Inline([u8; 16]),
}

// SAFETY: the pointer is read only, under the rules of `copy_to`, from any thread.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl Source {
    /// Checks that the array still has the memory that the rules accepted.
    ///
    /// Between the check of a leaf and the copy, Python code may have run: another leaf's
    /// `__array__`, or another thread while this one waited for room. It can have given the array
    /// other memory, with `resize(refcheck=False)` or `__setstate__`.
    #[inline]
    pub fn recheck(&self, py: Python<'_>, rule: &LeafRule) -> PyResult<()> {
        let (Bytes::Array { data, nbytes, owner } | Bytes::Cast { data, nbytes, owner, .. }) =
            &self.bytes
        else {
            return Ok(());
        };
        let same = Header::of(owner.bind(py)).is_some_and(|header| {
            std::ptr::addr_eq(header.data(), *data)
                && header.is_c_contiguous()
                && header.nbytes() == Some(*nbytes)
        });
        if same { Ok(()) } else { Err(changed(py, rule)) }
    }

    /// Copies the bytes from `offset` on into `to`.
    ///
    /// # Safety
    ///
    /// `offset + to.len()` must be at most the size of the value that the rules accepted, and
    /// [`Source::recheck`] must have succeeded since Python code could last run in this thread. What
    /// other threads do to the array meanwhile is under numpy's own rules: it may not be resized.
    #[inline]
    pub unsafe fn copy_to(&self, offset: usize, to: &mut [u8]) {
        match &self.bytes {
            // SAFETY: by the caller's promise both ends are inside the array's memory. It does not
            // overlap `to`: slots that are being written are in no array handed out.
            Bytes::Array { data, .. } => unsafe { copy(*data, offset, to) },
            Bytes::Cast { data, narrows, .. } => {
                let (start, len) = match narrows {
                    true => (2 * offset, 2 * to.len()),
                    false => (offset / 2, to.len() / 2),
                };
                // SAFETY: the array has a value of 8 bytes for each 4 that the leaf has, or the other
                // way round; by the caller's promise those values are inside its memory.
                let from = unsafe { data.add(start) };
                // SAFETY: as above; nobody resizes the array, and it does not overlap `to`.
                let from = unsafe { std::slice::from_raw_parts(from, len) };
                if *narrows {
                    cast(from, to, |wide| (f64::from_ne_bytes(wide) as f32).to_ne_bytes());
                } else {
                    cast(from, to, |narrow| f64::from(f32::from_ne_bytes(narrow)).to_ne_bytes());
                }
            }
            Bytes::Inline(bytes) => to.copy_from_slice(&bytes[offset..offset + to.len()]),
        }
    }
}

/// Casts values one after the other, wherever they are in memory.
fn cast<const FROM: usize, const TO: usize>(
    from: &[u8],
    to: &mut [u8],
    one: impl Fn([u8; FROM]) -> [u8; TO],
) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        *to = one(*from);
    }
}

impl Source {
    /// Whether the value is cast in its copy.
    pub fn is_cast(&self) -> bool {
        matches!(self.bytes, Bytes::Cast { .. })
    }

    /// The first `len` bytes, of a value that is not cast in its copy.
    ///
    /// # Safety
    ///
    /// As [`Source::copy_to`], for as long as the bytes are borrowed.
    pub unsafe fn bytes(&self, len: usize) -> &[u8] {
        match &self.bytes {
            // SAFETY: by the caller's promise they are inside the array's memory.
            Bytes::Array { data, .. } => unsafe { std::slice::from_raw_parts(*data, len) },
            Bytes::Cast { .. } => unreachable!("forms that borrow bytes cast apart"),
            Bytes::Inline(bytes) => &bytes[..len],
        }
    }

    /// Copies the values of consecutive samples, each of `bytes` bytes and the first at `offset`, into
    /// rows of `stride` bytes, each at `column`.
    ///
    /// # Safety
    ///
    /// As [`Source::copy_to`], for all of these samples.
    pub unsafe fn copy_to_rows(
        &self,
        offset: usize,
        bytes: usize,
        rows: &mut [u8],
        stride: usize,
        column: usize,
    ) {
        // The common sizes as constants: each copy is then a few instructions, not a call.
        match bytes {
            0 => {}
            bytes if self.is_cast() => {
                // SAFETY: the caller's promise.
                unsafe { self.copy_each_to_rows(offset, bytes, rows, stride, column) };
            }
            // SAFETY: the caller's promise, here and below.
            1 => unsafe { self.copy_few_to_rows::<1>(offset, rows, stride, column) },
            // SAFETY: as above.
            2 => unsafe { self.copy_few_to_rows::<2>(offset, rows, stride, column) },
            // SAFETY: as above.
            4 => unsafe { self.copy_few_to_rows::<4>(offset, rows, stride, column) },
            // SAFETY: as above.
            8 => unsafe { self.copy_few_to_rows::<8>(offset, rows, stride, column) },
            // SAFETY: as above.
            16 => unsafe { self.copy_few_to_rows::<16>(offset, rows, stride, column) },
            // SAFETY: as above.
            32 => unsafe { self.copy_few_to_rows::<32>(offset, rows, stride, column) },
            // SAFETY: as above.
            bytes => unsafe { self.copy_each_to_rows(offset, bytes, rows, stride, column) },
        }
    }

    /// As [`Source::copy_to_rows`] for values of any size.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn copy_each_to_rows(
        &self,
        offset: usize,
        bytes: usize,
        rows: &mut [u8],
        stride: usize,
        column: usize,
    ) {
        let mut from = offset;
        for row in rows.chunks_exact_mut(stride) {
            // SAFETY: the caller's promise.
            unsafe { self.copy_to(from, &mut row[column..column + bytes]) };
            from += bytes;
        }
    }

    /// As [`Source::copy_to_rows`] for values of a size that the compiler knows.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn copy_few_to_rows<const BYTES: usize>(
        &self,
        offset: usize,
        rows: &mut [u8],
        stride: usize,
        column: usize,
    ) {
        assert!(column + BYTES <= stride, "the column is inside the row");
        let from = match &self.bytes {
            // SAFETY: inside the array's memory by the caller's promise.
            Bytes::Array { data, .. } => unsafe { data.add(offset) },
            Bytes::Cast { .. } => unreachable!("such values are cast one by one"),
            Bytes::Inline(bytes) => bytes[offset..offset + BYTES].as_ptr(),
        };
        let (count, to) = (rows.len() / stride, rows.as_mut_ptr());
        for row in 0..count {
            // SAFETY: by the caller's promise there is a value for each row.
            let value = unsafe { from.add(row * BYTES) };
            // SAFETY: so many rows are there, and the column is inside each.
            let place = unsafe { to.add(row * stride + column) };
            // SAFETY: both are valid for so many bytes; no array has memory of rows.
            unsafe { value.copy_to_nonoverlapping(place, BYTES) };
        }
    }
}

#[cold]
fn changed(py: Python<'_>, rule: &LeafRule) -> PyErr {
    let name = display(&rule.leaf.path);
    spec_error(py, format!("leaf `{name}`: the array was changed while it was being submitted"))
}

impl LeafRule {
    /// The rule that an example sets.
    pub fn from_example(path: String, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let name = display(&path);
        let array = as_array(value).map_err(|error| unreadable(py, name, value, error))?;
        refuse_masked(py, name, &array)?;
        let descr = array.dtype();
        let dtype = dtype::from_numpy(&descr)
            .map_err(|advice| spec_error(py, format!("leaf `{name}` of the example: {advice}")))?;
        let native = match dtype {
            Dtype::BFloat16 => descr.unbind(),
            _ => dtype::to_numpy(py, dtype)?,
        };
        let leaf = Leaf { path, dtype, shape: array.shape().to_vec() };
        Ok(Self { leaf, descr: native, cast: Cast::Never })
    }

    /// The rule of a leaf that is known.
    pub fn from_leaf(py: Python<'_>, leaf: Leaf) -> PyResult<Self> {
        Ok(Self { descr: dtype::to_numpy(py, leaf.dtype)?, leaf, cast: Cast::Never })
    }

    /// Whether values of another dtype are cast to this one.
    pub fn casts(&self, from: &Bound<'_, PyArrayDescr>) -> bool {
        if matches!(self.cast, Cast::Never | Cast::Refused) {
            return false;
        }
        match (self.leaf.dtype, dtype::from_numpy(from)) {
            (Dtype::Float(_) | Dtype::BFloat16, Ok(Dtype::Float(_) | Dtype::BFloat16)) => true,
            (Dtype::Int(own), Ok(Dtype::Int(other)))
            | (Dtype::UInt(own), Ok(Dtype::UInt(other))) => own >= other,
            (Dtype::Int(own), Ok(Dtype::UInt(other))) => own > other,
            _ => false,
        }
    }

    /// Checks a value and makes it a source of bytes.
    #[inline]
    pub fn source(
        &self,
        index: usize,
        value: &Bound<'_, PyAny>,
        shapes: &mut impl ShapeRule,
    ) -> PyResult<Source> {
        if let Some(header) = Header::of_exact(value)
            && header.has_dtype(self.descr.bind(value.py()))
            && header.is_c_contiguous()
            && shapes.accepts(&self.leaf, header.shape())
        {
            return Ok(self.array_source(index, header, value));
        }
        self.source_of_other(index, value, shapes)
    }

    #[inline]
    fn array_source(
        &self,
        leaf: usize,
        header: Header<'_, '_>,
        owner: &Bound<'_, PyAny>,
    ) -> Source {
        let nbytes = header.nbytes().unwrap_or(usize::MAX);
        let bytes = Bytes::Array { data: header.data(), nbytes, owner: owner.clone().unbind() };
        Source { leaf, bytes }
    }

    /// Everything but a contiguous array of just this dtype.
    #[cold]
    fn source_of_other(
        &self,
        index: usize,
        value: &Bound<'_, PyAny>,
        shapes: &mut impl ShapeRule,
    ) -> PyResult<Source> {
        let py = value.py();
        if let Cast::InCopy(other) = &self.cast {
            if let Some(header) = Header::of_exact(value)
                && header.has_dtype(other.bind(py))
                && header.is_c_contiguous()
                && shapes.accepts(&self.leaf, header.shape())
            {
                let bytes = Bytes::Cast {
                    data: header.data(),
                    nbytes: header.nbytes().unwrap_or(usize::MAX),
                    owner: value.clone().unbind(),
                    narrows: self.leaf.dtype == Dtype::Float(4),
                };
                return Ok(Source { leaf: index, bytes });
            }
            // A scalar of float64 is a Python float, too.
            if self.leaf.dtype == Dtype::Float(4)
                && self.leaf.shape.is_empty()
                && let Ok(number) = value.cast::<PyFloat>()
                && !value.is_exact_instance_of::<PyFloat>()
                && shapes.accepts(&self.leaf, &[])
            {
                let bytes = Bytes::Inline(padded(&(number.value() as f32).to_ne_bytes()));
                return Ok(Source { leaf: index, bytes });
            }
        }
        let inline = !matches!(self.leaf.dtype, Dtype::Bytes(_) | Dtype::BFloat16);
        if inline && let Some(bytes) = scalar_bytes(value, self.descr.bind(py)) {
            if !shapes.accepts(&self.leaf, &[]) {
                return Err(self.mismatch(py, shapes, &describe_type(value)));
            }
            return Ok(Source { leaf: index, bytes: Bytes::Inline(bytes) });
        }
        if let Some(number) = self.python_scalar(value, shapes) {
            let bytes = number?;
            if !shapes.accepts(&self.leaf, &[]) {
                return Err(self.mismatch(py, shapes, &describe_type(value)));
            }
            return Ok(Source { leaf: index, bytes: Bytes::Inline(bytes) });
        }
        // numpy would make arrays of these, but in a tree they are nodes.
        if value.is_none()
            || value.is_instance_of::<PyList>()
            || value.is_instance_of::<PyTuple>()
            || value.is_instance_of::<PyDict>()
        {
            let class = value.get_type();
            return Err(self.mismatch(py, shapes, &format!("a {}", class.name()?)));
        }
        let name = display(&self.leaf.path);
        let array = match self.padded_bytes(value)? {
            Some(array) => array,
            None => as_array(value).map_err(|error| unreadable(py, name, value, error))?,
        };
        refuse_masked(py, name, &array)?;
        let descr = self.descr.bind(py);
        let fits = |array: &Bound<'_, PyUntypedArray>, shapes: &mut _| {
            (same_but_for_byte_order(&array.dtype(), descr) || self.casts(&array.dtype()))
                && ShapeRule::accepts(shapes, &self.leaf, array.shape())
        };
        if !fits(&array, shapes) {
            let mut got = format!("{}{:?}", array.dtype(), array.shape());
            if shapes.accepts(&self.leaf, array.shape()) {
                got.push_str(match self.cast {
                    Cast::Never => "",
                    Cast::Refused => "; with cast=False the dtype must be the same",
                    _ => "; only floats are cast to floats, and integers to wider ones",
                });
            }
            return Err(self.mismatch(py, shapes, &got));
        }
        if let Some(header) = Header::of(array.as_any())
            && header.is_c_contiguous()
            && header.has_dtype(descr)
        {
            return Ok(self.array_source(index, header, array.as_any()));
        }
        let shape = SmallVec::<[usize; 8]>::from_slice(array.shape());
        let array = contiguous(&array, descr)?;
        match Header::of(array.as_any()) {
            Some(header) if header.shape() == &*shape && header.has_dtype(descr) => {
                Ok(self.array_source(index, header, array.as_any()))
            }
            _ => Err(changed(py, self)),
        }
    }

    /// The bytes of a Python number of this leaf's kind; `None` for anything else.
    fn python_scalar(
        &self,
        value: &Bound<'_, PyAny>,
        shapes: &impl ShapeRule,
    ) -> Option<PyResult<[u8; 16]>> {
        let dtype = self.leaf.dtype;
        let converted = if let Ok(flag) = value.cast_exact::<PyBool>() {
            (dtype == Dtype::Bool).then(|| Ok(padded(&[u8::from(flag.is_true())])))
        } else if let Ok(number) = value.cast_exact::<PyFloat>() {
            let number = number.value();
            match dtype {
                _ if !holds(dtype, number) => None,
                Dtype::Float(4) => Some(Ok(padded(&(number as f32).to_ne_bytes()))),
                Dtype::Float(8) => Some(Ok(padded(&number.to_ne_bytes()))),
                // numpy knows how to round to the narrow ones.
                _ => Some(self.numpy_scalar(value)),
            }
        } else if value.is_exact_instance_of::<PyInt>() {
            self.integer(value).map(Ok)
        } else if let Ok(number) = value.cast_exact::<PyComplex>() {
            let complex = matches!(dtype, Dtype::Complex(_));
            (complex && holds(dtype, number.real()) && holds(dtype, number.imag()))
                .then(|| self.numpy_scalar(value))
        } else {
            return None;
        };
        let refused = || Err(self.mismatch(value.py(), shapes, &describe_type(value)));
        Some(converted.unwrap_or_else(refused))
    }

    /// A Python int in this leaf's width, if the leaf is an integer and it fits.
    fn integer(&self, value: &Bound<'_, PyAny>) -> Option<[u8; 16]> {
        let number: i128 = match value.extract::<i64>() {
            Ok(number) => number.into(),
            Err(_) => value.extract::<u64>().ok()?.into(),
        };
        Some(match self.leaf.dtype {
            Dtype::Int(1) => padded(&i8::try_from(number).ok()?.to_ne_bytes()),
            Dtype::Int(2) => padded(&i16::try_from(number).ok()?.to_ne_bytes()),
            Dtype::Int(4) => padded(&i32::try_from(number).ok()?.to_ne_bytes()),
            Dtype::Int(8) => padded(&i64::try_from(number).ok()?.to_ne_bytes()),
            Dtype::UInt(1) => padded(&u8::try_from(number).ok()?.to_ne_bytes()),
            Dtype::UInt(2) => padded(&u16::try_from(number).ok()?.to_ne_bytes()),
            Dtype::UInt(4) => padded(&u32::try_from(number).ok()?.to_ne_bytes()),
            Dtype::UInt(8) => padded(&u64::try_from(number).ok()?.to_ne_bytes()),
            _ => return None,
        })
    }

    /// A Python number converted by numpy.
    fn numpy_scalar(&self, value: &Bound<'_, PyAny>) -> PyResult<[u8; 16]> {
        let py = value.py();
        let array = numpy(py)?.call_method1(intern!(py, "array"), (value, self.descr.bind(py)))?;
        let raw: Bound<'_, PyBytes> = array.call_method0(intern!(py, "tobytes"))?.cast_into()?;
        Ok(padded(raw.as_bytes()))
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
        let array = numpy(py)?.call_method1(intern!(py, "array"), (value, self.descr.bind(py)))?;
        Ok(Some(array.cast_into()?))
    }

    fn mismatch(&self, py: Python<'_>, shapes: &impl ShapeRule, got: &str) -> PyErr {
        let name = display(&self.leaf.path);
        let expected = shapes.expected(&self.leaf);
        let dtype = self.leaf.dtype;
        spec_error(py, format!("leaf `{name}`: expected {dtype}{expected}, got {got}"))
    }
}

/// A number's bytes at the start of the room for the widest.
fn padded(number: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..number.len()].copy_from_slice(number);
    bytes
}

/// Whether a float is of this kind and does not overflow it.
fn holds(dtype: Dtype, number: f64) -> bool {
    // Half a unit in the last place above the largest number, where rounding gives infinity.
    let limit = match dtype {
        Dtype::Float(2) => 65_520.0,
        Dtype::Float(4) | Dtype::Complex(8) => 3.402_823_567_797_336_6e38,
        Dtype::BFloat16 => 3.396_177_5e38,
        Dtype::Float(_) | Dtype::Complex(_) => f64::INFINITY,
        _ => return false,
    };
    !number.is_finite() || number.abs() < limit
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

/// What to raise for a leaf that raised by itself: Ctrl-C and the like as they are.
fn unreadable(py: Python<'_>, name: &str, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py)
        || error.is_instance_of::<PyMemoryError>(py)
        || is_ours(py, &error)
    {
        return error;
    }
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

/// Whether two dtypes differ in nothing but the order of bytes.
fn same_but_for_byte_order(one: &Bound<'_, PyArrayDescr>, other: &Bound<'_, PyArrayDescr>) -> bool {
    // Dtypes that have no byte order to change are no dtypes of ours.
    let native = one.call_method1(intern!(one.py(), "newbyteorder"), ("=",));
    one.is_equiv_to(other)
        || native.is_ok_and(|native| {
            native.cast::<PyArrayDescr>().is_ok_and(|native| native.is_equiv_to(other))
        })
}

/// A masked array would lose its mask without a word.
fn refuse_masked(py: Python<'_>, name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    static MASKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if array.is_exact_instance_of::<PyUntypedArray>()
        || !array.is_instance(MASKED.import(py, "numpy.ma", "MaskedArray")?)?
    {
        return Ok(());
    }
    let advice = "a masked array would lose its mask; give its filled() values";
    Err(spec_error(py, format!("leaf `{name}`: {advice}")))
}

/// What numpy makes of an object: the object itself, its memory, or a new array of its elements.
pub fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = value.py();
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    // numpy's own scalars have `__array__` too.
    let known = value.hasattr(intern!(py, "__array__"))?
        || value.hasattr(intern!(py, "__array_interface__"))?
        || has_buffer(value);
    let array = if !known && value.hasattr(intern!(py, "__dlpack__"))? {
        numpy(py)?.call_method1(intern!(py, "from_dlpack"), (value,))?
    } else {
        match numpy(py)?.call_method1(intern!(py, "asarray"), (value,)) {
            Err(_) if is_bfloat16(value) => {
                py.import("echoic.tensors")?.call_method1("bfloat16_array", (value,))?
            }
            made => made?,
        }
    };
    Ok(array.cast_into()?)
}

/// Whether it is a tensor of torch of the dtype that torch does not give to numpy.
#[cold]
fn is_bfloat16(value: &Bound<'_, PyAny>) -> bool {
    let dtype = value.getattr(intern!(value.py(), "dtype"));
    dtype.is_ok_and(|dtype| dtype.to_string() == "torch.bfloat16")
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
    let array = numpy(py)?.call_method(intern!(py, "array"), (array, descr), Some(&order))?;
    Ok(array.cast_into()?)
}
