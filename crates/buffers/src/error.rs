//! What can be wrong with a call.

use echoic_memory::AllocError;

/// Why a call was refused. Nothing was changed by it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// Give it room for something.
    #[error("the capacity must be at least 1, got 0")]
    NoCapacity,
    /// Use a smaller buffer: positions of rows are kept in 32 bits where there are priorities.
    #[error("the capacity of a prioritized buffer is at most {most}, got {got}")]
    TooLarge {
        /// The most there can be.
        most: u64,
        /// What was asked for.
        got: u64,
    },
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
    /// Use an index that a sample has given.
    #[error("index {got} at position {at} was never given: the next one will be {next}")]
    Index {
        /// The index.
        got: i128,
        /// Where it stood in what was given.
        at: usize,
        /// Indices are below this.
        next: u64,
    },
    /// Two things that belong together differ in length.
    #[error("expected as many {what} as {of}, got {got} and {expected}")]
    Lengths {
        /// What there are too many or too few of.
        what: &'static str,
        /// What they belong to.
        of: &'static str,
        /// How many there are.
        got: usize,
        /// How many there should be.
        expected: usize,
    },
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
