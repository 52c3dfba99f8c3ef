//! One flag per step, in whatever form the caller has it.

use std::ops::Range;

use crate::exp::Real;

/// Flags of steps: whatever is not zero is set, NaN included.
#[derive(Clone, Copy, Debug)]
pub enum Flags<'a> {
    /// None is set.
    None,
    /// Booleans or bytes.
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
            Self::Bytes(flags) => Some(flags.len()),
            Self::Single(flags) => Some(flags.len()),
            Self::Double(flags) => Some(flags.len()),
        }
    }

    /// Whether it is said that there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Writes one where a flag is set, and zero elsewhere.
    #[inline(always)]
    pub(crate) fn mark<R: Real>(&self, at: Range<usize>, marks: &mut [R]) {
        match self {
            Self::None => marks.fill(R::ZERO),
            Self::Bytes(flags) => mark(marks, &flags[at]),
            Self::Single(flags) => mark(marks, &flags[at]),
            Self::Double(flags) => mark(marks, &flags[at]),
        }
    }

    /// Writes the values and one, or two zeros where a flag is set.
    #[inline(always)]
    pub(crate) fn cut<R: Real>(
        &self,
        at: Range<usize>,
        values: &[R],
        next: &mut [R],
        keep: &mut [R],
    ) {
        match self {
            Self::None => {
                next.copy_from_slice(values);
                keep.fill(R::ONE);
            }
            Self::Bytes(flags) => cut(&flags[at], values, next, keep),
            Self::Single(flags) => cut(&flags[at], values, next, keep),
            Self::Double(flags) => cut(&flags[at], values, next, keep),
        }
    }
}

#[inline(always)]
fn mark<T: Copy + Default + PartialEq, R: Real>(marks: &mut [R], flags: &[T]) {
    let len = marks.len();
    let (unset, flags) = (T::default(), &flags[..len]);
    for i in 0..len {
        marks[i] = if flags[i] == unset { R::ZERO } else { R::ONE };
    }
}

/// From one slice to another: where it is decided whether to write at all, processors are slow.
#[inline(always)]
fn cut<T: Copy + Default + PartialEq, R: Real>(
    flags: &[T],
    values: &[R],
    next: &mut [R],
    keep: &mut [R],
) {
    let (unset, len) = (T::default(), flags.len());
    let (values, next, keep) = (&values[..len], &mut next[..len], &mut keep[..len]);
    for i in 0..len {
        let on = flags[i] == unset;
        next[i] = if on { values[i] } else { R::ZERO };
        keep[i] = if on { R::ONE } else { R::ZERO };
    }
}
