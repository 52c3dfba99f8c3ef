//! Inputs that do not fit together.

use crate::exp::Real;

/// Why nothing was computed. Outputs are untouched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two slices that go together have different lengths.
    #[error("`{name}` has {len} elements, expected {expected}")]
    Length {
        /// Which slice.
        name: &'static str,
        /// How long it is.
        len: usize,
        /// How long it should be.
        expected: usize,
    },
    /// Offsets of sequences must begin with 0 and never fall.
    #[error("`offsets` must begin with 0 and never fall, but offset {index} is {offset}")]
    Offsets {
        /// Which of them.
        index: usize,
        /// What it is.
        offset: usize,
    },
    /// A number is NaN or infinite, where that would spoil what is computed from it.
    #[error("`{name}` must be finite, but element {index} is not")]
    NotFinite {
        /// Which slice.
        name: &'static str,
        /// Which of its elements.
        index: usize,
    },
    /// A length, a cost or a time is negative.
    #[error("`{name}` must be at least 0, but element {index} is not")]
    Negative {
        /// Which slice.
        name: &'static str,
        /// Which of its elements.
        index: usize,
    },
    /// There is at least one step in an n-step return.
    #[error("`n` must be at least 1, got 0")]
    NoSteps,
}

impl Error {
    /// An error unless `slice` has this length.
    pub(crate) fn unless_length<T>(
        name: &'static str,
        slice: &[T],
        expected: usize,
    ) -> Result<(), Self> {
        let len = slice.len();
        if len == expected { Ok(()) } else { Err(Self::Length { name, len, expected }) }
    }

    /// An error unless all numbers are finite.
    pub(crate) fn unless_finite<R: Real>(name: &'static str, numbers: &[R]) -> Result<(), Self> {
        match numbers.iter().position(|number| !number.to_f64().is_finite()) {
            Some(index) => Err(Self::NotFinite { name, index }),
            None => Ok(()),
        }
    }
}
