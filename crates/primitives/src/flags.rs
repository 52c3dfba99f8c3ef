//! One flag per step, in whatever form the caller has it.

use std::ops::Range;

use crate::exp::Real;
use crate::simd::prefetch;

/// Flags of steps: whatever is not zero is set, NaN included.
#[derive(Clone, Copy, Debug)]
pub enum Flags<'a> {
    /// None is set.
    None,
    /// Booleans.
    Bools(&'a [bool]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// Numbers of 32 bits.
    Single(&'a [f32]),
    /// Numbers of 64 bits.
    Double(&'a [f64]),
}

impl Flags<'_> {
    /// How many there are, if that is said.
    pub fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Bools(flags) => Some(flags.len()),
            Self::Bytes(flags) => Some(flags.len()),
            Self::Single(flags) => Some(flags.len()),
            Self::Double(flags) => Some(flags.len()),
        }
    }

    /// Whether it is said that there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Has the processor fetch some of them.
    pub(crate) fn prefetch(&self, at: Range<usize>) {
        match self {
            Self::None => {}
            Self::Bools(flags) => prefetch(&flags[at]),
            Self::Bytes(flags) => prefetch(&flags[at]),
            Self::Single(flags) => prefetch(&flags[at]),
            Self::Double(flags) => prefetch(&flags[at]),
        }
    }

    /// Writes zero where a flag is set, and one elsewhere.
    #[inline(always)]
    pub(crate) fn unset<R: Real>(&self, at: Range<usize>, marks: &mut [R]) {
        match self {
            Self::None => marks.fill(R::ONE),
            Self::Bools(flags) => unset(marks, &flags[at]),
            Self::Bytes(flags) => unset(marks, &flags[at]),
            Self::Single(flags) => unset(marks, &flags[at]),
            Self::Double(flags) => unset(marks, &flags[at]),
        }
    }
}

#[inline(always)]
fn unset<T: Copy + Default + PartialEq, R: Real>(marks: &mut [R], flags: &[T]) {
    let len = marks.len();
    let (zero, flags) = (T::default(), &flags[..len]);
    for i in 0..len {
        marks[i] = if flags[i] == zero { R::ONE } else { R::ZERO };
    }
}
