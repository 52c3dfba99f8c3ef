//! Why a rollout table can't be kept, or brought back.

use std::path::{Path, PathBuf};

use super::super::config::ConfigError;
use super::super::ledger::StateError;
use crate::checkpoint;
use crate::files::FileError;
use crate::journal;

/// Why a rollout table can't be kept, brought back, or looked at. Nothing was changed, then, but what a crash had
/// left at the end of the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DurableError {
    /// See what the system said: the disk may be full, or not yours.
    #[error(transparent)]
    File(#[from] FileError),
    /// See what is wrong with the journal.
    #[error("the journal: {0}")]
    Journal(#[from] journal::Error),
    /// See what is wrong with the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// Close the table that has it, or use another directory.
    #[error("{} is in use: somebody has this table open", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Give the right directory.
    #[error("{} is no directory of a rollout table: expected echoic-rollouts.lock{}, found {found}",
        path.display(), if *.may_be_empty { ", or an empty directory" } else { "" })]
    Foreign {
        /// What was given.
        path: PathBuf,
        /// Whether an empty one would do.
        may_be_empty: bool,
        /// What it has.
        found: String,
    },
    /// Bring the right files back.
    #[error("{}: {what}", path.display())]
    Unfit {
        /// The directory, or the checkpoint.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// Make the table with the settings that it had, or with another directory.
    #[error("{} has a table with other settings: {what}", path.display())]
    Settings {
        /// The directory, or the checkpoint.
        path: PathBuf,
        /// Which, and both values.
        what: String,
    },
    /// A checkpoint that lies.
    #[error("{}: {source}", path.display())]
    State {
        /// The checkpoint.
        path: PathBuf,
        /// What it is that makes no sense.
        #[source]
        source: StateError,
    },
    /// Bring the file back. It is whole, so it was written like this.
    #[error("the journal in {}: record {sequence} makes no sense: {what}", path.display())]
    Record {
        /// The directory.
        path: PathBuf,
        /// Which record.
        sequence: u64,
        /// What is wrong with it.
        what: String,
    },
    /// Name one of those that there are: checkpoints cut off what they cover, unless the history is kept.
    #[error("the history in {} does not have {point:?}, or not any more", path.display())]
    NotThere {
        /// The directory.
        path: PathBuf,
        /// What was named.
        point: super::Point,
    },
    /// Use the release that wrote it: this one does otherwise what the journal tells.
    #[error("the journal in {}: at record {sequence} something else comes of it: {what}", path.display())]
    Differs {
        /// The directory.
        path: PathBuf,
        /// Which record.
        sequence: u64,
        /// What was to come of it, and what did.
        what: String,
    },
    /// Make `max_blob_bytes` smaller, or have no directory.
    #[error(
        "max_blob_bytes {blobs} and {fields} bytes of fields make a record of more than {most} bytes, which is the \
         most that the journal takes: an item's blobs come at once, so max_blob_bytes can be at most {}",
        .most.saturating_sub(*.fields)
    )]
    TooLarge {
        /// What an item's blobs may have.
        blobs: u64,
        /// What its fields have.
        fields: u64,
        /// What both can have.
        most: u64,
    },
    /// Give settings that can work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Give the table a directory.
    #[error("the table has no directory, so it writes no checkpoints of its own")]
    NoDirectory,
    /// Open it again.
    #[error("the table is closed")]
    Closed,
}

impl DurableError {
    /// What the system said, if it refused to do something with a file.
    pub fn file(&self) -> Option<&FileError> {
        match self {
            Self::File(file)
            | Self::Checkpoint(checkpoint::Error::File(file))
            | Self::Journal(journal::Error::File(file)) => Some(file),
            Self::Journal(journal::Error::Failed { cause }) => match &**cause {
                journal::Error::File(file) => Some(file),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn unfit(path: &Path, what: impl Into<String>) -> Self {
        Self::Unfit { path: path.to_owned(), what: what.into() }
    }

    pub(super) fn record(path: &Path, sequence: u64, what: impl ToString) -> Self {
        Self::Record { path: path.to_owned(), sequence, what: what.to_string() }
    }
}
