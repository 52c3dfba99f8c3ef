//! Which numbers belong to which sequence, and which of them count.

use echoic_primitives::Flags;
use pyo3::prelude::*;

use super::input::{FlagInput, count, same_shape, text_of, whole_numbers};
use crate::error::argument_error;

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
        let length = length.map(|length| count(py, length_name, length, 1)).transpose()?;
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

/// Which numbers count.
pub struct Mask<'py> {
    flags: FlagInput<'py>,
    /// The flags as bytes, where they were given as something else.
    bytes: Option<Vec<u8>>,
}

impl<'py> Mask<'py> {
    /// A mask, if there is one, of the shape of another argument.
    pub fn new(
        py: Python<'py>,
        mask: Option<&Bound<'py, PyAny>>,
        (other, expected): (&str, &[usize]),
    ) -> PyResult<Self> {
        let flags = FlagInput::new("mask", mask.unwrap_or(py.None().bind(py)))?;
        if let Some(shape) = flags.shape() {
            same_shape(py, "mask", shape, other, expected)?;
        }
        let bytes = match flags.flags() {
            Flags::None | Flags::Bytes(_) => None,
            Flags::Bools(flags) => Some(flags.iter().copied().map(u8::from).collect()),
            Flags::Single(numbers) => Some(numbers.iter().map(|on| u8::from(*on != 0.0)).collect()),
            Flags::Double(numbers) => Some(numbers.iter().map(|on| u8::from(*on != 0.0)).collect()),
        };
        Ok(Self { flags, bytes })
    }

    /// A byte for each number, zero where it does not count; `None` if there is no mask.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self.flags.flags() {
            Flags::Bytes(bytes) => Some(bytes),
            _ => self.bytes.as_deref(),
        }
    }
}
