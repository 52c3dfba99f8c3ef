//! When a pattern is applied.

use crate::scalar::Scalar;

/// What has to hold; all conditions of a pattern must.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// The episode ends now. A pattern without this condition is applied when steps are appended, one
    /// with it only when the episode ends.
    EndOfEpisode,
    /// A number compares to a constant.
    Compare {
        /// The number.
        term: Term,
        /// Take its remainder of a division by this first, which is never negative.
        modulo: Option<u32>,
        /// How.
        test: Test,
        /// The constant.
        value: Scalar,
    },
}

/// A number that changes from step to step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// The newest step's index in its episode, from 0.
    StepIndex,
    /// How many steps were appended since the pattern was last applied, the newest one included; since
    /// the writer was made, if it never was. Goes on over the end of an episode.
    StepsSinceApplied,
    /// The newest step's value in this column; without one the condition does not hold.
    Data(String),
}

/// A comparison. A NaN is unequal to everything, and all else does not hold for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Test {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl Test {
    /// Whether it holds.
    pub(super) fn holds(self, left: Scalar, right: Scalar) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::More => left > right,
            Self::AtLeast => left >= right,
        }
    }
}
