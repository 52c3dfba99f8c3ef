//! Rewards, values and ends of episodes, and how they lie in memory.
//!
//! Step `t` is: observation `s_t`, then an action, then `rewards[t]`, and what came next. What the rest
//! of the episode is worth after step `t`, the *next value*, is
//!
//! - zero, if step `t` terminated the episode;
//! - else `final_values[t]`, if step `t` truncated it: the value of the last observation, which is no
//!   step's observation because the next step begins another episode;
//! - else the sequence's last value, if `t` is its last step;
//! - else `values[t + 1]`.
//!
//! Nothing runs from one episode into another. A value that is not used is not looked at, so it may be
//! NaN.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::simd::{prefetch, vectorized};

/// How the steps of several sequences lie in one slice: where step `t` of sequence `n` is.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'a> {
    /// `(steps, sequences)` in C order: at `t * sequences + n`.
    TimeMajor {
        /// Steps of each.
        steps: usize,
        /// How many sequences.
        sequences: usize,
    },
    /// `(sequences, steps)` in C order: at `n * steps + t`. One sequence is one of these.
    SequenceMajor {
        /// How many sequences.
        sequences: usize,
        /// Steps of each.
        steps: usize,
    },
    /// Sequences of different lengths, one after the other: at `offsets[n] + t`.
    Ragged {
        /// Where each sequence begins, and where the last one ends.
        offsets: &'a [usize],
    },
}

impl Layout<'_> {
    /// One sequence.
    pub fn one(steps: usize) -> Self {
        Self::SequenceMajor { sequences: 1, steps }
    }

    /// How many steps all sequences have.
    pub fn len(&self) -> usize {
        match *self {
            Self::TimeMajor { steps, sequences } | Self::SequenceMajor { sequences, steps } => {
                steps * sequences
            }
            Self::Ragged { offsets } => offsets.last().copied().unwrap_or(0),
        }
    }

    /// Whether there is no step.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        match *self {
            Self::TimeMajor { sequences, .. } | Self::SequenceMajor { sequences, .. } => sequences,
            Self::Ragged { offsets } => offsets.len().saturating_sub(1),
        }
    }

    /// An error if the offsets are none.
    pub fn check(&self) -> Result<(), Error> {
        let Self::Ragged { offsets } = self else { return Ok(()) };
        match offsets.first() {
            Some(0) => {}
            Some(&offset) => return Err(Error::Offsets { index: 0, offset }),
            None => return Err(Error::Length { name: "offsets", len: 0, expected: 1 }),
        }
        match offsets.windows(2).position(|pair| pair[1] < pair[0]) {
            Some(at) => Err(Error::Offsets { index: at + 1, offset: offsets[at + 1] }),
            None => Ok(()),
        }
    }
}

/// One flag per step, in whatever form the caller has it: whatever is not zero is set, NaN included.
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

/// Episodes that were cut off.
#[derive(Clone, Copy, Debug)]
pub struct Truncation<'a, R> {
    /// Which steps were the last before a cut.
    pub truncated: Flags<'a>,
    /// What the observation after such a step is worth; unused at all others.
    pub final_values: &'a [R],
}

/// What happened in one or several sequences of steps.
#[derive(Clone, Copy, Debug)]
pub struct Rollout<'a, R> {
    /// How the steps lie in each of the slices.
    pub layout: Layout<'a>,
    /// The reward of each step.
    pub rewards: &'a [R],
    /// The value of the observation that each step began with, or nothing for functions that have no
    /// use for it.
    pub values: Option<&'a [R]>,
    /// For each sequence, the value of the observation after its last step.
    pub last_values: &'a [R],
    /// Which steps terminated an episode.
    pub terminated: Flags<'a>,
    /// Which steps truncated one.
    pub truncation: Option<Truncation<'a, R>>,
}

impl<R: Real> Rollout<'_, R> {
    /// An error if lengths differ.
    pub fn check(&self) -> Result<(), Error> {
        self.layout.check()?;
        let expected = self.layout.len();
        let flags = |name, flags: &Flags<'_>| match flags.len() {
            Some(len) if len != expected => Err(Error::Length { name, len, expected }),
            _ => Ok(()),
        };
        Error::unless_length("rewards", self.rewards, expected)?;
        Error::unless_length("last_values", self.last_values, self.layout.sequences())?;
        flags("terminated", &self.terminated)?;
        if let Some(values) = self.values {
            Error::unless_length("values", values, expected)?;
        }
        if let Some(truncation) = &self.truncation {
            flags("truncated", &truncation.truncated)?;
            Error::unless_length("final_values", truncation.final_values, expected)?;
        }
        Ok(())
    }

    /// Has the processor fetch what is there of some steps.
    pub(crate) fn prefetch(&self, at: Range<usize>) {
        prefetch(&self.rewards[at.clone()]);
        self.values.into_iter().for_each(|values| prefetch(&values[at.clone()]));
        if let Some(Truncation { truncated, final_values }) = &self.truncation {
            truncated.prefetch(at.clone());
            prefetch(&final_values[at.clone()]);
        }
        self.terminated.prefetch(at);
    }

    /// Writes the next values of some steps, and for each of them one or, where an episode ends with
    /// it, zero. `width` sequences lie side by side; `following` is what comes after the last row.
    ///
    /// Compiled once for all functions that need it: it has a loop for each form of flags.
    #[inline(never)]
    pub(crate) fn ends(
        &self,
        at: Range<usize>,
        width: usize,
        following: Option<&[R]>,
        next: &mut [R],
        keep: &mut [R],
    ) {
        let inner = at.len() - width;
        let (next, next_last) = next.split_at_mut(inner);
        let (keep, keep_last) = keep.split_at_mut(inner);
        let split = at.start + inner;
        let values = self.values.map(|values| &values[at.start + width..at.end]);
        vectorized(
            #[inline(always)]
            || {
                self.ends_of(at.start..split, values, next, keep);
                self.ends_of(split..at.end, following, next_last, keep_last);
            },
        );
    }

    #[inline(always)]
    fn ends_of(&self, at: Range<usize>, values: Option<&[R]>, next: &mut [R], keep: &mut [R]) {
        self.terminated.unset(at.clone(), keep);
        if let Some(truncation) = &self.truncation {
            let (zeros, mut going) = ([R::ZERO; FEW], [R::ZERO; FEW]);
            for start in (0..at.len()).step_by(FEW) {
                let some = start..at.len().min(start + FEW);
                let steps = at.start + some.start..at.start + some.end;
                let (going, keep) = (&mut going[..some.len()], &mut keep[some.clone()]);
                truncation.truncated.unset(steps.clone(), going);
                let values = values.map_or(&zeros[..some.len()], |values| &values[some.clone()]);
                choose(&mut next[some], keep, going, &truncation.final_values[steps], values);
                multiply(keep, going);
            }
        } else if let Some(values) = values {
            keep_those(next, keep, values);
        } else {
            next.fill(R::ZERO);
        }
    }
}

/// Steps of which marks are on the stack.
const FEW: usize = 64;

// Where it is decided whether to write at all, processors are slow: so what is chosen never goes to where it
// was.

#[inline(always)]
fn keep_those<R: Real>(next: &mut [R], keep: &[R], values: &[R]) {
    let len = next.len();
    let (keep, values) = (&keep[..len], &values[..len]);
    for i in 0..len {
        next[i] = if keep[i] == R::ZERO { R::ZERO } else { values[i] };
    }
}

#[inline(always)]
fn choose<R: Real>(next: &mut [R], keep: &[R], going: &[R], finals: &[R], values: &[R]) {
    let len = next.len();
    let (keep, going) = (&keep[..len], &going[..len]);
    let (finals, values) = (&finals[..len], &values[..len]);
    for i in 0..len {
        let open = if going[i] == R::ZERO { finals[i] } else { values[i] };
        next[i] = if keep[i] == R::ZERO { R::ZERO } else { open };
    }
}

#[inline(always)]
fn multiply<R: Real>(keep: &mut [R], going: &[R]) {
    let len = keep.len();
    let going = &going[..len];
    for i in 0..len {
        keep[i] = keep[i] * going[i];
    }
}
