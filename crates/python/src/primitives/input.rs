//! Arguments as arrays of numbers without gaps.

use echoic_primitives::{Flags, Real};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::kind::{Kind, numpy};
use super::plain::{self, Plain};
use crate::array::Header;
use crate::error::{argument_error, dtype_error};

/// In which numbers something is computed and returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// `float32`.
    Single,
    /// `float64`.
    Double,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Self::Single => "float32",
            Self::Double => "float64",
        }
    }

    fn is_of(self, array: &Bound<'_, PyUntypedArray>) -> bool {
        match self {
            Self::Single => plain::is_plain::<f32>(array),
            Self::Double => plain::is_plain::<f64>(array),
        }
    }
}

/// Numbers of a [`Precision`].
pub trait Number: Real + Plain {}

impl Number for f32 {}
impl Number for f64 {}

/// Calls a function that is generic in a [`Number`] with the one of a precision.
macro_rules! in_precision {
    ($precision:expr, $function:ident $arguments:tt) => {
        match $precision {
            $crate::primitives::input::Precision::Single => $function::<f32> $arguments,
            $crate::primitives::input::Precision::Double => $function::<f64> $arguments,
        }
    };
}
pub(crate) use in_precision;

/// An argument: numbers in C order.
pub struct Input<'py> {
    array: Bound<'py, PyUntypedArray>,
    precision: Precision,
}

impl<'py> Input<'py> {
    /// The argument that says in which precision to compute. `float32` and `float64` stay what they are;
    /// shorter floats are widened to `float32`, whole numbers and booleans to `float64`.
    #[inline]
    pub fn leading(name: &str, object: &Bound<'py, PyAny>) -> PyResult<(Self, Kind)> {
        if let Some(array) = exact(object) {
            for precision in [Precision::Single, Precision::Double] {
                if precision.is_of(array) {
                    return Ok((Self { array: array.clone(), precision }, Kind::Numpy));
                }
            }
        }
        let kind = Kind::of(object)?;
        let array = kind.to_numpy(name, object)?;
        let precision = natural(name, &array)?;
        Ok((Self { array: converted(&array, precision)?, precision }, kind))
    }

    /// Another argument, in this precision whatever it comes in.
    #[inline]
    pub fn following(
        name: &str,
        object: &Bound<'py, PyAny>,
        precision: Precision,
    ) -> PyResult<Self> {
        if let Some(array) = exact(object)
            && precision.is_of(array)
        {
            return Ok(Self { array: array.clone(), precision });
        }
        let array = Kind::of(object)?.to_numpy(name, object)?;
        natural(name, &array)?;
        Ok(Self { array: converted(&array, precision)?, precision })
    }

    /// In which numbers it is.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The lengths of its axes.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        Header::of(self.array.as_any()).map_or(&[], |header| header.shape())
    }

    /// How many numbers there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// The numbers.
    ///
    /// # Panics
    ///
    /// When they are of the other precision.
    #[inline]
    pub fn numbers<T: Number>(&self) -> &[T] {
        plain::read(&self.array).expect("the numbers of an input are of its precision")
    }
}

/// An argument: one flag per step.
pub struct FlagInput<'py>(Option<Bound<'py, PyUntypedArray>>);

impl<'py> FlagInput<'py> {
    /// Booleans, `uint8`, `float32` and `float64` are read where they are; other numbers are converted.
    /// `None` says that there are none.
    #[inline]
    pub fn new(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Some(array) = exact(object)
            && flags(array).is_some()
        {
            return Ok(Self(Some(array.clone())));
        }
        if object.is_none() {
            return Ok(Self(None));
        }
        let array = Kind::of(object)?.to_numpy(name, object)?;
        // Any dtype, but in C order.
        let array = numpy(object.py())?.call_method1("asarray", (array, None::<u8>, "C"))?;
        let array = array.cast_into::<PyUntypedArray>()?;
        if flags(&array).is_some() {
            return Ok(Self(Some(array)));
        }
        natural(name, &array)?;
        Ok(Self(Some(array.call_method1("astype", ("bool",))?.cast_into()?)))
    }

    /// The lengths of its axes, if flags were given.
    #[inline]
    pub fn shape(&self) -> Option<&[usize]> {
        self.0.as_ref().and_then(|array| Some(Header::of(array.as_any())?.shape()))
    }

    /// The flags.
    #[inline]
    pub fn flags(&self) -> Flags<'_> {
        self.0.as_ref().and_then(flags).unwrap_or(Flags::None)
    }
}

fn flags<'a>(array: &'a Bound<'_, PyUntypedArray>) -> Option<Flags<'a>> {
    plain::read_bools(array)
        .or_else(|| plain::read(array))
        .map(Flags::Bytes)
        .or_else(|| plain::read(array).map(Flags::Single))
        .or_else(|| plain::read(array).map(Flags::Double))
}

/// Where sequences begin and the last one ends: whole numbers.
pub fn offsets(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let py = object.py();
    let array = Kind::of(object)?.to_numpy(name, object)?;
    if !matches!(array.dtype().kind(), b'i' | b'u') || array.ndim() != 1 {
        let (dtype, shape) = (array.dtype(), text_of(array.shape()));
        let text = format!("`{name}` must be whole numbers in 1-D, got {dtype} of shape {shape}");
        return Err(dtype_error(py, text));
    }
    let array = numpy(py)?.call_method1("ascontiguousarray", (array, "int64"))?;
    let array = array.cast_into::<PyUntypedArray>()?;
    let numbers = plain::read::<i64>(&array).unwrap_or_default().iter().enumerate();
    let whole = |(at, number): (usize, &i64)| {
        usize::try_from(*number).map_err(|_| {
            argument_error(py, format!("`{name}`[{at}] is {number}, but offsets are at least 0"))
        })
    };
    numbers.map(whole).collect()
}

/// An error unless two arguments have the same shape.
#[inline]
pub fn same_shape(
    py: Python<'_>,
    name: &str,
    shape: &[usize],
    other: &str,
    expected: &[usize],
) -> PyResult<()> {
    if shape == expected {
        return Ok(());
    }
    let (shape, expected) = (text_of(shape), text_of(expected));
    let text = format!("`{name}` has shape {shape}, expected that of `{other}`, {expected}");
    Err(argument_error(py, text))
}

/// An error unless a parameter is a finite number.
#[inline]
pub fn finite(py: Python<'_>, name: &str, number: f64) -> PyResult<()> {
    if number.is_finite() {
        return Ok(());
    }
    Err(argument_error(py, format!("`{name}` must be a finite number, got {number}")))
}

/// A shape as Python writes it.
pub fn text_of(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        axes => {
            let axes: Vec<_> = axes.iter().map(usize::to_string).collect();
            format!("({})", axes.join(", "))
        }
    }
}

/// An array of numpy itself, which needs no calls of Python.
#[inline]
fn exact<'a, 'py>(object: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyUntypedArray>> {
    Header::of_exact(object)?;
    object.cast().ok()
}

/// In which precision numbers of a dtype are computed with.
fn natural(name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<Precision> {
    let dtype = array.dtype();
    match (dtype.kind(), dtype.itemsize()) {
        (b'f', ..=4) => Ok(Precision::Single),
        (b'f', 8) | (b'i' | b'u' | b'b', _) => Ok(Precision::Double),
        _ if dtype.to_string() == "bfloat16" => Ok(Precision::Single),
        _ => {
            let text = format!("`{name}` must be real numbers of at most 64 bits, got {dtype}");
            Err(dtype_error(array.py(), text))
        }
    }
}

/// The same shape and numbers in C order, aligned and in this precision; the array itself if it is that.
fn converted<'py>(
    array: &Bound<'py, PyUntypedArray>,
    precision: Precision,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if precision.is_of(array) {
        return Ok(array.clone());
    }
    let converted = array.call_method1("astype", (precision.name(), "C"))?;
    Ok(converted.cast_into()?)
}
