//! What a writer by patterns refuses.

use crate::writer::error::WriterError;

/// Why a pattern or a call was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StructuredError {
    /// Give the pattern a leaf.
    #[error("a pattern has no leaves: its items would have no data")]
    Empty,
    /// Give steps of the past, in the order of time.
    #[error(
        "pattern `{path}`: steps [{start}:{stop}:{step}], expected a negative start, a stop after it \
         and at most 0, and a positive step"
    )]
    Slice {
        /// Which leaf.
        path: String,
        /// The first step.
        start: i64,
        /// Where it ends.
        stop: i64,
        /// Distance between steps.
        step: u32,
    },
    /// Divide by a positive number.
    #[error("a condition takes a remainder of a division by 0")]
    Modulo,
    /// Give a constant that is finite and not negative.
    #[error("a priority must be finite and at least 0, got {0}")]
    Priority(f64),
    /// Name a leaf that there is.
    #[error("the priority is computed from leaf {leaf} of a pattern that has {leaves}")]
    PriorityLeaf {
        /// Which leaf.
        leaf: usize,
        /// How many there are.
        leaves: usize,
    },
    /// Give a number from 0 to 1.
    #[error("the part of the maximum in a mixed priority must be from 0 to 1, got {0}")]
    Mixed(f64),
    /// Compare and reduce columns whose steps are one real number.
    #[error("column `{path}` has {got} steps; a condition or priority needs one real number")]
    NotScalar {
        /// Which column.
        path: String,
        /// What its steps are.
        got: String,
    },
    /// As of the writer beneath.
    #[error(transparent)]
    Writer(#[from] WriterError),
}
