//! What a writer refuses. It is as it was before the refused call.

use crate::trajectory::TrajectoryError;

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WriterError {
    /// Keep at least as many steps as a chunk has, and at least one.
    #[error(
        "a column must keep at least 1 step and have from 1 to that many in a chunk, \
         got {keep_alive} kept and {length} in a chunk"
    )]
    Config {
        /// Steps kept.
        keep_alive: u32,
        /// Steps of a chunk.
        length: u32,
    },
    /// Give a column values of one dtype and shape only.
    #[error("column `{path}` has {expected} steps, got {got}")]
    Kind {
        /// Which column.
        path: String,
        /// What its steps are.
        expected: String,
        /// What was given.
        got: String,
    },
    /// Use smaller values.
    #[error("column `{path}`: a step has more bytes than an address can hold")]
    TooLarge {
        /// Which column.
        path: String,
    },
    /// Name columns that were declared.
    #[error("the writer has {columns} columns, there is no number {column}")]
    Column {
        /// Which column.
        column: usize,
        /// How many there are.
        columns: usize,
    },
    /// Give as many bytes as the steps have.
    #[error("column `{path}`: {steps} steps are {expected} bytes, got {got}")]
    Length {
        /// Which column.
        path: String,
        /// How many steps.
        steps: usize,
        /// Their bytes.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// Give a column one value in a step.
    #[error("column `{path}` has a value in step {step} already")]
    Twice {
        /// Which column.
        path: String,
        /// Which step.
        step: u64,
    },
    /// Complete the open step before many are appended.
    #[error("step {step} is open: complete it before a batch of steps is appended")]
    StepOpen {
        /// Which step.
        step: u64,
    },
    /// Keep more steps alive, or create the item earlier.
    #[error(
        "column `{path}`: step {step} is gone, only the last {keep_alive} of the episode are kept"
    )]
    Gone {
        /// Which column.
        path: String,
        /// Which step.
        step: u64,
        /// Steps kept.
        keep_alive: u64,
    },
    /// Append this many steps before they are named together.
    #[error("the last {last} steps: the history of column `{path}` has {found}")]
    Short {
        /// Which column.
        path: String,
        /// Steps asked for.
        last: u32,
        /// Steps that can be named.
        found: u64,
    },
    /// Name steps that have a value in this column.
    #[error("column `{path}` has no value in step {step}")]
    Absent {
        /// Which column.
        path: String,
        /// Which step.
        step: u64,
    },
    /// Make a writer of at least one environment.
    #[error("a writer has at least 1 environment, got 0")]
    NoEnvironment,
    /// Give as many values as there are environments.
    #[error("expected {expected} {what}, one for each environment, got {got}")]
    Environments {
        /// What was counted.
        what: &'static str,
        /// Environments.
        expected: usize,
        /// Values given.
        got: usize,
    },
    /// Give a priority that is finite and not negative.
    #[error("a priority must be finite and at least 0, got {0}")]
    Priority(f64),
    /// Give the steps that the signature asks for.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
}
