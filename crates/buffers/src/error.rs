//! What can be wrong with a call.

use echoic_memory::AllocError;

/// Why a call was refused. Nothing was changed by it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// Give it room for something.
    #[error("the capacity must be at least 1, got 0")]
    NoCapacity,
    /// Push something first.
    #[error("the buffer is empty: there is nothing to sample")]
    Empty,
    /// Take at least one.
    #[error("a batch has at least 1 transition, got batch_size=0")]
    NoBatch,
    /// Make the buffer with `episodes=True`.
    #[error(
        "{what} needs to know which transitions follow each other: make the buffer with episodes=True"
    )]
    NoEpisodes {
        /// What was asked for.
        what: &'static str,
    },
    /// Make the buffer with priorities.
    #[error("this buffer has no priorities: use a PrioritizedReplayBuffer")]
    NoPriorities,
    /// Priorities are numbers that are not negative.
    #[error("a priority is a finite number >= 0, got {got} at index {at}")]
    Priority {
        /// The number.
        got: f64,
        /// Where it stood in what was given.
        at: usize,
    },
    /// Give what the text asks for.
    #[error("{0}")]
    Argument(String),
    /// A setting is out of its range.
    #[error("{name} must be {range}, got {got}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What it may be.
        range: &'static str,
        /// What it was.
        got: f64,
    },
    /// The memory could not be had.
    #[error(transparent)]
    Memory(#[from] AllocError),
}

impl BufferError {
    /// Positions of rows are kept in 32 bits where there are priorities.
    pub(crate) fn too_large(most: u64, got: u64) -> Self {
        let what = "the capacity of a prioritized buffer";
        Self::Argument(format!("{what} is at most {most}, got {got}"))
    }

    /// No sample has given this index, at a place in what was given. All are below `next`.
    pub(crate) fn index(got: i128, at: usize, next: u64) -> Self {
        let never = "was never given: the next one will be";
        Self::Argument(format!("index {got} at position {at} {never} {next}"))
    }

    /// Two things that belong together differ in length.
    pub fn lengths(what: &str, of: &str, got: usize, expected: usize) -> Self {
        Self::Argument(format!("expected as many {what} as {of}, got {got} and {expected}"))
    }
}
