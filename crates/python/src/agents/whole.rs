//! Whole numbers from arrays, read where they are if they are stored as such.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::array::Header;
use crate::error::{argument_error, dtype_error};
use crate::primitives::kind::{Kind, numpy};
use crate::primitives::plain;

/// An argument: signed whole numbers in C order.
pub struct Whole<'py>(Bound<'py, PyUntypedArray>);

impl<'py> Whole<'py> {
    /// Arrays of `int64` stay what they are; other whole numbers are converted.
    pub fn new(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let array = Kind::of(object)?.to_numpy(name, object)?;
        let dtype = array.dtype();
        // An empty list becomes floats.
        if !(matches!(dtype.kind(), b'i' | b'u') || array.len() == 0) {
            let text = format!("`{name}` must be whole numbers, got {dtype}");
            return Err(dtype_error(py, text));
        }
        if dtype.kind() == b'u' && dtype.itemsize() == 8 && array.len() > 0 {
            let most = array.call_method0("max")?;
            if most.extract::<i64>().is_err() {
                let text = format!("`{name}` must be at most 2**63 - 1, got {most}");
                return Err(argument_error(py, text));
            }
        }
        let array = numpy(py)?.call_method1("asarray", (array, "int64", "C"))?;
        Ok(Self(array.cast_into()?))
    }

    /// The lengths of its axes.
    pub fn shape(&self) -> &[usize] {
        Header::of(self.0.as_any()).map_or(&[], |header| header.shape())
    }

    /// The numbers.
    pub fn numbers(&self) -> &[i64] {
        plain::read(&self.0).unwrap_or_default()
    }
}

/// Hashes of one sequence: an array in one axis, or a sequence of Python's numbers.
pub enum Hashes<'py> {
    Array(Bound<'py, PyUntypedArray>),
    List(Vec<u64>),
}

impl<'py> Hashes<'py> {
    pub fn new(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let Some(header) = Header::of(object) else {
            // numpy would make floats of whole numbers that fit in no one type.
            return object.extract().map(Self::List).map_err(|_| {
                let text = format!("`{name}` must be hashes: whole numbers from 0 to 2**64 - 1");
                dtype_error(py, text)
            });
        };
        let (kind, shape) = (header.descr().kind(), header.shape());
        if shape.len() != 1 || !(matches!(kind, b'i' | b'u') || shape == [0]) {
            let text = format!(
                "`{name}` must be whole numbers in one axis, got {} in {}",
                header.descr(),
                shape.len()
            );
            return Err(dtype_error(py, text));
        }
        if kind == b'i' && shape != [0] && object.call_method0("min")?.lt(0)? {
            return Err(argument_error(py, format!("`{name}` must be at least 0")));
        }
        let array = numpy(py)?.call_method1("asarray", (object, "uint64", "C"))?;
        Ok(Self::Array(array.cast_into()?))
    }

    /// The hashes.
    pub fn numbers(&self) -> &[u64] {
        match self {
            Self::Array(array) => plain::read(array).unwrap_or_default(),
            Self::List(list) => list,
        }
    }
}
