//! Which numbers belong to which sequence, and which of them count.

use std::borrow::Cow;

use echoic_primitives::Flags;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::input::{FlagInput, same_shape, text_of};
use super::kind::{Kind, numpy};
use super::plain;
use crate::error::{argument_error, dtype_error};

/// From how many numbers on other threads of Python run meanwhile: below, handing over costs more
/// than it gives.
const LONG: usize = 8192;

/// Sequences in a flat array, one after the other.
pub enum Sequences {
    /// All of the same length.
    Equal {
        /// How many.
        count: usize,
        /// How long.
        length: usize,
    },
    /// From each number to the next.
    Ragged(Vec<usize>),
}

impl Sequences {
    /// What the arguments of a function say about an array of this shape: rows of two axes, or
    /// equal parts of one, or parts between offsets.
    pub fn new(
        py: Python<'_>,
        (name, shape): (&str, &[usize]),
        (length_name, length): (&str, Option<i64>),
        offsets: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if length.is_some_and(|length| length < 1) {
            let length = length.unwrap_or_default();
            let text = format!("`{length_name}` must be at least 1, got {length}");
            return Err(argument_error(py, text));
        }
        let length = length.and_then(|length| usize::try_from(length).ok());
        let text = match (shape, length, offsets) {
            (_, Some(_), Some(_)) => format!("give `{length_name}` or `offsets`, not both"),
            (&[len], None, Some(offsets)) => {
                return Ok(Self::Ragged(bounds(name, len, offsets)?));
            }
            (&[len], Some(length), None) if len.is_multiple_of(length) => {
                return Ok(Self::Equal { count: len / length, length });
            }
            (&[len], Some(length), None) => {
                format!("`{name}` has {len} elements, which {length_name}={length} does not divide")
            }
            (&[count, length], None, None) => return Ok(Self::Equal { count, length }),
            (&[count, len], Some(length), None) if len == length => {
                return Ok(Self::Equal { count, length });
            }
            (&[count, len], Some(length), None) => {
                format!(
                    "`{name}` has shape ({count}, {len}), expected (..., {length_name}={length})"
                )
            }
            (&[_], None, None) => format!(
                "`{name}` has one axis, so `{length_name}` or `offsets` must say where sequences end"
            ),
            (_, _, offsets) => {
                let axes = if offsets.is_some() { "one axis" } else { "one or two axes" };
                format!("`{name}` must have {axes}, got shape {}", text_of(shape))
            }
        };
        Err(argument_error(py, text))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Equal { count, .. } => *count,
            Self::Ragged(offsets) => offsets.len() - 1,
        }
    }

    /// Where each ends.
    #[inline]
    pub fn ends(&self) -> impl Iterator<Item = usize> + Send {
        let (length, offsets) = match self {
            Self::Equal { length, .. } => (*length, None),
            Self::Ragged(offsets) => (0, Some(offsets.as_slice())),
        };
        (1..=self.count()).map(
            #[inline(always)]
            move |at| match offsets {
                None => at * length,
                Some(offsets) => offsets[at],
            },
        )
    }
}

/// Offsets that begin with 0, never fall, and end with the length of the array.
fn bounds(name: &str, len: usize, offsets: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let py = offsets.py();
    let offsets = whole_numbers("offsets", offsets)?;
    let text = match offsets.as_slice() {
        [] => "`offsets` must have at least one element, 0".to_owned(),
        [first, ..] if *first != 0 => format!("`offsets`[0] must be 0, got {first}"),
        all => match all.windows(2).position(|pair| pair[1] < pair[0]) {
            Some(at) => {
                let (before, fallen) = (all[at], all[at + 1]);
                let at = at + 1;
                format!("`offsets` must never fall, but `offsets`[{at}] is {fallen} after {before}")
            }
            None if all.last() == Some(&len) => return Ok(offsets),
            None => {
                let last = all[all.len() - 1];
                format!("`offsets` must end with the {len} elements of `{name}`, got {last}")
            }
        },
    };
    Err(argument_error(py, text))
}

/// Whole numbers that are not negative, in one axis.
pub fn whole_numbers(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let py = object.py();
    let array = Kind::of(object)?.to_numpy(name, object)?;
    let dtype = array.dtype();
    // An empty list becomes floats.
    let whole = matches!(dtype.kind(), b'i' | b'u') || array.len() == 0;
    if !whole || array.ndim() != 1 {
        let shape = text_of(array.shape());
        let text =
            format!("`{name}` must be whole numbers in one axis, got {dtype} of shape {shape}");
        return Err(dtype_error(py, text));
    }
    let array = numpy(py)?.call_method1("ascontiguousarray", (array, "int64"))?;
    let array = array.cast_into::<PyUntypedArray>()?;
    let numbers = plain::read::<i64>(&array).unwrap_or_default().iter().enumerate();
    let checked = |(at, number): (usize, &i64)| {
        usize::try_from(*number).map_err(|_| {
            argument_error(py, format!("`{name}`[{at}] must be at least 0, got {number}"))
        })
    };
    numbers.map(checked).collect()
}

/// A mask, if there is one.
pub fn mask_input<'py>(
    py: Python<'py>,
    mask: Option<&Bound<'py, PyAny>>,
) -> PyResult<FlagInput<'py>> {
    match mask {
        Some(mask) => FlagInput::new("mask", mask),
        None => FlagInput::new("mask", py.None().bind(py)),
    }
}

/// The bytes of a mask that has the shape of another argument, zero where nothing counts; `None` if
/// there is no mask.
pub fn mask_bytes<'a>(
    py: Python<'_>,
    mask: &'a FlagInput<'_>,
    other: &str,
    expected: &[usize],
) -> PyResult<Option<Cow<'a, [u8]>>> {
    let Some(shape) = mask.shape() else { return Ok(None) };
    same_shape(py, "mask", shape, other, expected)?;
    Ok(match mask.flags() {
        Flags::None => None,
        Flags::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
        Flags::Bools(flags) => Some(flags.iter().copied().map(u8::from).collect()),
        Flags::Single(numbers) => Some(numbers.iter().map(|on| u8::from(*on != 0.0)).collect()),
        Flags::Double(numbers) => Some(numbers.iter().map(|on| u8::from(*on != 0.0)).collect()),
    })
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

/// Runs work on so many numbers, without the GIL where that pays.
#[inline]
pub fn detached<T: Send>(py: Python<'_>, len: usize, work: impl FnOnce() -> T + Send) -> T {
    if len < LONG { work() } else { py.detach(work) }
}
