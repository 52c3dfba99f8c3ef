//! Arrays, tensors and sequences of numbers as Rust has them: keys, priorities, and marks.

use echoic_replay::Dtype;
use numpy::PyArrayDescr;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::array::{Header, copy};
use crate::dtype;

/// Keys: whole numbers, as `batch.keys` gives them.
pub fn key_numbers(values: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    static DTYPE: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
    let py = values.py();
    let descr = DTYPE.get_or_try_init(py, || dtype::to_numpy(py, Dtype::UInt(8)))?.bind(py);
    if let Some(words) = words(values, descr) {
        return Ok(words.map(u64::from_ne_bytes).collect());
    }
    let array = py.import("numpy")?.call_method1("asarray", (on_host(values)?,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let empty = array.getattr("size")?.extract::<usize>()? == 0;
    let negative = || array.call_method0("min")?.lt(0);
    if !(empty || kind == "u" || (kind == "i" && !negative()?)) {
        let dtype = array.getattr("dtype")?;
        let text = format!("keys are whole numbers >= 0, as in batch.keys; got {dtype}");
        return Err(PyValueError::new_err(text));
    }
    converted(&array, descr, u64::from_ne_bytes)
}

/// Whole numbers of any integer dtype, or one of them.
pub fn index_numbers(values: &Bound<'_, PyAny>) -> PyResult<Vec<i128>> {
    static DTYPE: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
    let py = values.py();
    let descr = DTYPE.get_or_try_init(py, || dtype::to_numpy(py, Dtype::Int(8)))?.bind(py);
    if let Some(words) = words(values, descr) {
        return Ok(words.map(|word| i64::from_ne_bytes(word).into()).collect());
    }
    let array = py.import("numpy")?.call_method1("asarray", (on_host(values)?,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let empty = array.getattr("size")?.extract::<usize>()? == 0;
    if !(empty || kind == "u" || kind == "i") {
        let dtype = array.getattr("dtype")?;
        let text = format!("indices are whole numbers, as a sample gives them; got {dtype}");
        return Err(PyValueError::new_err(text));
    }
    array.call_method0("ravel")?.call_method0("tolist")?.extract()
}

/// Priorities, of whatever dtype.
pub fn float_numbers(values: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    static DTYPE: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
    let py = values.py();
    let descr = DTYPE.get_or_try_init(py, || dtype::to_numpy(py, Dtype::Float(8)))?.bind(py);
    match words(values, descr) {
        Some(words) => Ok(words.map(f64::from_ne_bytes).collect()),
        None => converted(&on_host(values)?, descr, f64::from_ne_bytes),
    }
}

/// Which of `count` things are meant: by a mask of as many booleans, or by their indices.
pub fn marks(values: &Bound<'_, PyAny>, count: usize) -> PyResult<Vec<bool>> {
    static DTYPE: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
    let py = values.py();
    let descr = DTYPE.get_or_try_init(py, || dtype::to_numpy(py, Dtype::Bool))?.bind(py);
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("asarray", (values,))?;
    let (kind, shape): (String, Vec<usize>) =
        (array.getattr("dtype")?.getattr("kind")?.extract()?, array.getattr("shape")?.extract()?);
    if kind == "b" {
        if shape != [count] {
            let text = format!("expected a mask of shape [{count}], got one of shape {shape:?}");
            return Err(PyValueError::new_err(text));
        }
        let array = numpy.call_method1("ascontiguousarray", (array, descr))?;
        let bytes = contiguous_bytes(&array, descr).unwrap_or_default();
        return Ok(bytes.into_iter().map(|byte| byte != 0).collect());
    }
    let empty = shape.contains(&0);
    if !(empty || kind == "i" || kind == "u") {
        let dtype = array.getattr("dtype")?;
        let text = format!("expected a mask of {count} booleans or indices, got {dtype}");
        return Err(PyValueError::new_err(text));
    }
    let mut marks = vec![false; count];
    let indices: Vec<i64> = array.call_method0("ravel")?.call_method0("tolist")?.extract()?;
    for index in indices {
        let at = if index < 0 { index + count as i64 } else { index };
        let mark = usize::try_from(at).ok().and_then(|at| marks.get_mut(at));
        let text = || PyIndexError::new_err(format!("index {index} of {count}"));
        *mark.ok_or_else(text)? = true;
    }
    Ok(marks)
}

/// The values of a tensor where numpy can read them; anything else as it is.
pub fn on_host<'py>(values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match values.getattr_opt("detach")? {
        Some(detach) => detach.call0()?.call_method0("cpu"),
        None => Ok(values.clone()),
    }
}

/// What numpy makes of the values in this dtype.
fn converted<T>(
    values: &Bound<'_, PyAny>,
    descr: &Bound<'_, PyArrayDescr>,
    number: fn([u8; 8]) -> T,
) -> PyResult<Vec<T>> {
    let numpy = values.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (values, descr))?;
    let array = numpy.call_method1("ascontiguousarray", (array,))?;
    let words = words(&array, descr).ok_or_else(|| {
        PyValueError::new_err("expected numbers, and numpy made no array of them")
    })?;
    Ok(words.map(number).collect())
}

/// The elements of a contiguous array of just this dtype of 8 bytes, copied, since they need not be
/// aligned; `None` for anything else.
fn words(
    values: &Bound<'_, PyAny>,
    descr: &Bound<'_, PyArrayDescr>,
) -> Option<impl Iterator<Item = [u8; 8]> + use<>> {
    let bytes = contiguous_bytes(values, descr)?;
    let count = bytes.len() / 8;
    Some((0..count).map(move |at| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
        word
    }))
}

/// A copy of the bytes of a contiguous array of just this dtype; `None` for anything else.
fn contiguous_bytes(values: &Bound<'_, PyAny>, descr: &Bound<'_, PyArrayDescr>) -> Option<Vec<u8>> {
    let header = Header::of_exact(values)?;
    if !(header.has_dtype(descr) && header.is_c_contiguous()) {
        return None;
    }
    let mut bytes = vec![0; header.nbytes()?];
    if !bytes.is_empty() {
        // SAFETY: a contiguous array has so many bytes, and is alive; nothing else runs meanwhile that
        // could give it other memory.
        unsafe { copy(header.data(), 0, &mut bytes) };
    }
    Some(bytes)
}
