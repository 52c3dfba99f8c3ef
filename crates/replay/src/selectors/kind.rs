//! Which selector a table has: a plain value that can be written down, sent and compared.

use std::fmt;

use super::{Epoch, Heap, HotCold, Order, Prioritized, Selector, Uniform};
use crate::codec::{CodecError, Decode, Encode, Reader};

/// A way to pick, with its parameters.
///
/// ```
/// use echoic_replay::selectors::SelectorKind;
///
/// let kind = SelectorKind::Prioritized { exponent: 0.6 };
/// assert!(kind.build()?.is_empty());
/// assert_eq!(SelectorKind::from_words(kind.to_words())?, kind);
/// assert_eq!(kind.to_string(), "prioritized(exponent=0.6)");
///
/// let error = SelectorKind::Prioritized { exponent: -1.0 }.build().expect_err("it is below zero");
/// assert_eq!(
///     error.to_string(),
///     "exponent of a prioritized selector must be finite and at least 0, got -1",
/// );
/// # Ok::<(), echoic_replay::selectors::SelectorError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum SelectorKind {
    /// All alike.
    Uniform,
    /// In proportion to `priority ^ exponent`.
    Prioritized {
        /// Finite, at least 0. With 0, all priorities above zero count alike.
        exponent: f64,
    },
    /// The oldest.
    Fifo,
    /// The newest.
    Lifo,
    /// The lowest priority; among equals, the one updated longest ago.
    MinHeap,
    /// The highest priority; among equals, the one updated longest ago.
    MaxHeap,
    /// Each once in every epoch, in random order.
    Epoch,
    /// Young and old items by share, and within each by priority.
    HotCold {
        /// How many versions older than the learner an item may be and still be hot.
        age_threshold: u64,
        /// The share of hot items in what is picked, from 0 to 1.
        hot_fraction: f64,
        /// As in [`SelectorKind::Prioritized`].
        exponent: f64,
    },
}

/// What makes no selector.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectorError {
    /// Give a value in the range.
    #[error("{parameter} of a {selector} selector must be {expected}, got {got}")]
    Parameter {
        /// The kind.
        selector: &'static str,
        /// Which of its parameters.
        parameter: &'static str,
        /// What is allowed.
        expected: &'static str,
        /// What was given.
        got: f64,
    },
    /// The words were damaged, or written by a later release.
    #[error("{0:?} stands for no kind of selector")]
    Words([u64; SelectorKind::WORDS]),
}

impl SelectorKind {
    /// How many words a kind takes when it is written down.
    pub const WORDS: usize = 4;

    /// The name without the parameters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Prioritized { .. } => "prioritized",
            Self::Fifo => "fifo",
            Self::Lifo => "lifo",
            Self::MinHeap => "min_heap",
            Self::MaxHeap => "max_heap",
            Self::Epoch => "epoch",
            Self::HotCold { .. } => "hot_cold",
        }
    }

    /// A selector with no items.
    pub fn build(&self) -> Result<Box<dyn Selector>, SelectorError> {
        self.check()?;
        Ok(match *self {
            Self::Uniform => Box::new(Uniform::default()),
            Self::Prioritized { exponent } => Box::new(Prioritized::new(exponent)),
            Self::Fifo => Box::new(Order::fifo()),
            Self::Lifo => Box::new(Order::lifo()),
            Self::MinHeap => Box::new(Heap::min()),
            Self::MaxHeap => Box::new(Heap::max()),
            Self::Epoch => Box::new(Epoch::default()),
            Self::HotCold { age_threshold, hot_fraction, exponent } => {
                Box::new(HotCold::new(age_threshold, hot_fraction, exponent))
            }
        })
    }

    /// Whether a selector can be built.
    ///
    /// # Errors
    ///
    /// [`SelectorError::Parameter`] when a parameter is out of its range.
    pub fn check(&self) -> Result<(), SelectorError> {
        let selector = self.name();
        let refuse = |parameter, expected, got| {
            Err(SelectorError::Parameter { selector, parameter, expected, got })
        };
        match *self {
            Self::HotCold { hot_fraction, .. } if !(0.0..=1.0).contains(&hot_fraction) => {
                refuse("hot_fraction", "from 0 to 1", hot_fraction)
            }
            Self::Prioritized { exponent } | Self::HotCold { exponent, .. }
                if !(0.0..f64::INFINITY).contains(&exponent) =>
            {
                refuse("exponent", "finite and at least 0", exponent)
            }
            _ => Ok(()),
        }
    }

    /// Whether it takes no random numbers: its draws follow from the items alone.
    pub fn is_deterministic(&self) -> bool {
        matches!(self, Self::Fifo | Self::Lifo | Self::MinHeap | Self::MaxHeap)
    }

    /// The kind as numbers, for checkpoints.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        match *self {
            Self::Uniform => [0, 0, 0, 0],
            Self::Prioritized { exponent } => [1, exponent.to_bits(), 0, 0],
            Self::Fifo => [2, 0, 0, 0],
            Self::Lifo => [3, 0, 0, 0],
            Self::MinHeap => [4, 0, 0, 0],
            Self::MaxHeap => [5, 0, 0, 0],
            Self::Epoch => [6, 0, 0, 0],
            Self::HotCold { age_threshold, hot_fraction, exponent } => {
                [7, age_threshold, hot_fraction.to_bits(), exponent.to_bits()]
            }
        }
    }

    /// The kind that was written down.
    ///
    /// # Errors
    ///
    /// [`SelectorError`] when the words are those of no kind, or of one that can't be built.
    pub fn from_words(words: [u64; Self::WORDS]) -> Result<Self, SelectorError> {
        let kind = match words {
            [0, 0, 0, 0] => Self::Uniform,
            [1, exponent, 0, 0] => Self::Prioritized { exponent: f64::from_bits(exponent) },
            [2, 0, 0, 0] => Self::Fifo,
            [3, 0, 0, 0] => Self::Lifo,
            [4, 0, 0, 0] => Self::MinHeap,
            [5, 0, 0, 0] => Self::MaxHeap,
            [6, 0, 0, 0] => Self::Epoch,
            [7, age_threshold, hot_fraction, exponent] => Self::HotCold {
                age_threshold,
                hot_fraction: f64::from_bits(hot_fraction),
                exponent: f64::from_bits(exponent),
            },
            _ => return Err(SelectorError::Words(words)),
        };
        kind.check()?;
        Ok(kind)
    }
}

impl Encode for SelectorKind {
    fn encode(&self, out: &mut Vec<u8>) {
        self.to_words().encode(out);
    }
}

impl Decode for SelectorKind {
    const LEAST: usize = <[u64; Self::WORDS]>::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let words: [u64; Self::WORDS] = from.get(field)?;
        let [got, ..] = words;
        Self::from_words(words).map_err(|_| CodecError::Meaningless { field, got })
    }
}

impl fmt::Display for SelectorKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())?;
        match self {
            Self::Prioritized { exponent } => write!(out, "(exponent={exponent})"),
            Self::HotCold { age_threshold, hot_fraction, exponent } => write!(
                out,
                "(age_threshold={age_threshold}, hot_fraction={hot_fraction}, exponent={exponent})"
            ),
            _ => Ok(()),
        }
    }
}
