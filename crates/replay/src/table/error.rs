//! What a table can't do.

use echoic_memory::AllocError;

use super::MAX_METADATA;
use crate::WaitReason;
use crate::limiter::LimiterError;
use crate::selectors::SelectorError;
use crate::trajectory::TrajectoryError;

/// Why a call to a table failed. The table is as it was before.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Give a name of 1 to 256 bytes.
    #[error("a table's name has 1 to 256 bytes, got {0:?}")]
    Name(String),
    /// Give each its own.
    #[error("two tables have the name {0:?}")]
    Twice(String),
    /// Use a name that the server has.
    #[error("there is no table {name:?}; the server has {known:?}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// Keep less with the table.
    #[error("a table's metadata has at most {MAX_METADATA} bytes, got {0}")]
    Metadata(usize),
    /// Give it room for something.
    #[error("capacity must be at least 1")]
    Capacity,
    /// Give other parameters.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// Give other parameters, or a batch of another size.
    #[error(transparent)]
    Limiter(#[from] LimiterError),
    /// Sample smaller batches, or make the table larger.
    #[error(
        "a batch of {count} may use up an item with each draw, so it needs {needed} items at once, \
         and the table has room for {capacity}"
    )]
    Batch {
        /// Items asked for.
        count: u64,
        /// Items that must be there.
        needed: u64,
        /// Items that there can be.
        capacity: u64,
    },
    /// Sample smaller batches.
    #[error("a batch has at most {most} items, got {count}")]
    BatchSize {
        /// Items asked for.
        count: u64,
        /// The most there may be.
        most: u64,
    },
    /// Make the table smaller.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// Give a finite number that is not negative.
    #[error("priority {index}: expected a finite number >= 0, got {got}")]
    Priority {
        /// Which one, in the order given.
        index: usize,
        /// What was given.
        got: f64,
    },
    /// Give as many of one as of the other.
    #[error("{keys} keys and {values} values")]
    Lengths {
        /// How many keys.
        keys: usize,
        /// How many values.
        values: usize,
    },
    /// Make the item as the table's spec says.
    #[error("{0}")]
    Spec(String),
    /// Slice other steps.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
    /// Wait longer, or see to it that the reason goes away.
    #[error("the wait ended because of {0}")]
    TimedOut(WaitReason),
    /// The caller's own callback ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
    /// Nothing can be done with it any more.
    #[error("the table is closed")]
    Closed,
    /// See what the disk is missing. The table lives on: it can be sampled, and a checkpoint can be made of
    /// it; after a restart the journal is taken up again.
    #[error("{0}")]
    Journal(String),
    /// Let the later one insert, or give this one another name.
    #[error("a later incarnation of this producer has been here")]
    Stale,
    /// The checkpoint was damaged or is another table's.
    #[error("{0}")]
    Restore(String),
}

/// Why something can't be done now.
#[derive(Debug, Clone, PartialEq)]
pub enum Obstacle {
    /// It may be later.
    Blocked(WaitReason),
    /// It never will.
    Failed(TableError),
}

impl From<TableError> for Obstacle {
    fn from(error: TableError) -> Self {
        Self::Failed(error)
    }
}

crate::from_wait_over!(TableError);

impl From<WaitReason> for Obstacle {
    fn from(reason: WaitReason) -> Self {
        Self::Blocked(reason)
    }
}

/// Refuses priorities that would harm a table.
///
/// # Errors
///
/// [`TableError::Priority`] for the first of them.
pub fn check_priorities(priorities: &[f64]) -> Result<(), TableError> {
    match priorities.iter().position(|priority| !priority.is_finite() || *priority < 0.0) {
        Some(index) => Err(TableError::Priority { index, got: priorities[index] }),
        None => Ok(()),
    }
}
