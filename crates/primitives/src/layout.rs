//! How the steps of several sequences lie in one slice.

use crate::error::Error;

/// Where step `t` of sequence `n` is.
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
