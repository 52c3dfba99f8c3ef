//! Arguments as arrays of numbers without gaps, and as numbers in their ranges.

use echoic_primitives::{Flags, Real};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

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

/// A block for the [`Number`] of a precision, which it knows by this name.
macro_rules! in_precision {
    ($precision:expr, $number:ident => $block:expr) => {
        match $precision {
            $crate::primitives::input::Precision::Single => {
                type $number = f32;
                $block
            }
            $crate::primitives::input::Precision::Double => {
                type $number = f64;
                $block
            }
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
        Ok((Self::converted(&array, precision)?, kind))
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
        Self::converted(&array, precision)
    }

    fn converted(array: &Bound<'py, PyUntypedArray>, precision: Precision) -> PyResult<Self> {
        let array = in_precision!(precision, T => plain::readable::<T>(array)?);
        Ok(Self { array, precision })
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

/// An argument: signed whole numbers in C order.
pub struct Whole<'py>(Bound<'py, PyUntypedArray>);

impl<'py> Whole<'py> {
    /// Arrays of `int64` stay what they are; other whole numbers are converted.
    pub fn new(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::of(name, object, "", |_| true)
    }

    /// As [`Whole::new`], of an array in one axis.
    pub fn in_one_axis(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::of(name, object, " in one axis", |axes| axes == 1)
    }

    fn of(
        name: &str,
        object: &Bound<'py, PyAny>,
        expected: &str,
        fits: impl FnOnce(usize) -> bool,
    ) -> PyResult<Self> {
        let py = object.py();
        let array = Kind::of(object)?.to_numpy(name, object)?;
        let dtype = array.dtype();
        // An empty list becomes floats.
        let whole = matches!(dtype.kind(), b'i' | b'u') || array.len() == 0;
        if !(whole && fits(array.ndim())) {
            let shape = text_of(array.shape());
            let text =
                format!("`{name}` must be whole numbers{expected}, got {dtype} of shape {shape}");
            return Err(dtype_error(py, text));
        }
        if dtype.kind() == b'u' && dtype.itemsize() == 8 && array.len() > 0 {
            let most = array.call_method0("max")?;
            if most.extract::<i64>().is_err() {
                let text = format!("`{name}` must be at most 2**63 - 1, got {most}");
                return Err(argument_error(py, text));
            }
        }
        Ok(Self(plain::readable::<i64>(&array)?))
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

/// Whole numbers that are not negative, in one axis.
pub fn whole_numbers(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let checked = |(at, number): (usize, &i64)| {
        usize::try_from(*number).map_err(|_| {
            let text = format!("`{name}`[{at}] must be at least 0, got {number}");
            argument_error(object.py(), text)
        })
    };
    Whole::in_one_axis(name, object)?.numbers().iter().enumerate().map(checked).collect()
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

/// An entry of a state.
pub fn entry<'py>(state: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let missing = || argument_error(state.py(), format!("`state` has no {name:?}"));
    state.get_item(name)?.ok_or_else(missing)
}

/// The numbers of an entry of a state, of this shape.
pub fn entry_numbers(state: &Bound<'_, PyDict>, name: &str, shape: &[usize]) -> PyResult<Vec<f64>> {
    let input = Input::following(name, &entry(state, name)?, Precision::Double)?;
    if input.shape() == shape {
        return Ok(input.numbers::<f64>().to_vec());
    }
    let (got, expected) = (text_of(input.shape()), text_of(shape));
    let text = format!("`state`[{name:?}] has shape {got}, expected {expected}");
    Err(argument_error(state.py(), text))
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
    let expected = text_of(expected);
    Err(wrong_shape(py, name, shape, &format!("that of `{other}`, {expected}")))
}

/// The error for an argument of another shape than it should have.
#[cold]
pub fn wrong_shape(py: Python<'_>, name: &str, shape: &[usize], expected: &str) -> PyErr {
    argument_error(py, format!("`{name}` has shape {}, expected {expected}", text_of(shape)))
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

/// The value that a name stands for.
pub fn choice<T: Copy>(
    py: Python<'_>,
    argument: &str,
    name: &str,
    choices: &[(&str, T)],
) -> PyResult<T> {
    if let Some((_, value)) = choices.iter().find(|(choice, _)| *choice == name) {
        return Ok(*value);
    }
    let names: Vec<_> = choices.iter().map(|(choice, _)| format!("{choice:?}")).collect();
    let names = names.join(", ");
    Err(argument_error(py, format!("`{argument}` must be one of {names}, got {name:?}")))
}

/// A count of at least so many.
#[inline]
pub fn count(py: Python<'_>, name: &str, number: i64, least: usize) -> PyResult<usize> {
    match usize::try_from(number) {
        Ok(number) if number >= least => Ok(number),
        _ => Err(argument_error(py, format!("`{name}` must be at least {least}, got {number}"))),
    }
}

/// An error unless a parameter is a finite number.
#[inline]
pub fn finite(py: Python<'_>, name: &str, number: f64) -> PyResult<()> {
    number_that(py, name, number, number.is_finite(), "a finite number").map(drop)
}

/// A parameter that is at least 0, infinity included.
#[inline]
pub fn not_negative(py: Python<'_>, name: &str, number: f64) -> PyResult<f64> {
    number_that(py, name, number, number >= 0.0, "at least 0")
}

/// A parameter that is a finite number of at least 0.
#[inline]
pub fn amount(py: Python<'_>, name: &str, number: f64) -> PyResult<f64> {
    let good = number.is_finite() && number >= 0.0;
    number_that(py, name, number, good, "a finite number of at least 0")
}

/// A parameter that can be divided by: above zero, finite, and not so small that its inverse is infinite.
#[inline]
pub fn divisor(py: Python<'_>, name: &str, number: f64) -> PyResult<f64> {
    let good = number.is_normal() && number > 0.0;
    number_that(py, name, number, good, "a finite number above 0")
}

#[inline]
fn number_that(
    py: Python<'_>,
    name: &str,
    number: f64,
    good: bool,
    expected: &str,
) -> PyResult<f64> {
    if good {
        return Ok(number);
    }
    Err(argument_error(py, format!("`{name}` must be {expected}, got {number}")))
}
