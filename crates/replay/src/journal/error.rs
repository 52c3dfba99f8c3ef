//! What can go wrong with a journal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::FileError;

/// Why a journal can't be opened, or a record not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// See what the system said: the disk may be full, or not yours.
    #[error(transparent)]
    File(#[from] FileError),
    /// Close the other one, or use another directory.
    #[error("{} is in use: somebody has this journal open", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Give the right directory.
    #[error("{} is not ours: expected {expected}, found {found}", path.display())]
    Foreign {
        /// What was given.
        path: PathBuf,
        /// What one of ours has.
        expected: &'static str,
        /// What this one has.
        found: String,
    },
    /// Read it with the release that wrote it.
    #[error("{} has format {got}; this release reads format {expected}", path.display())]
    Format {
        /// The segment.
        path: PathBuf,
        /// The format that this release reads.
        expected: u32,
        /// Its own.
        got: u32,
    },
    /// Bring the missing segment back, or start from a later checkpoint.
    #[error(
        "{} starts with record {got}, expected {expected}: the records before it are missing",
        path.display()
    )]
    Gap {
        /// The segment after the gap.
        path: PathBuf,
        /// The first record that is missing.
        expected: u64,
        /// The first one that is there.
        got: u64,
    },
    /// Bring the file back. It is not the end that a crash leaves: there are kept records behind this.
    #[error("{} is damaged at byte {offset}, record {sequence}: {what}", path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// Which record was expected there.
        sequence: u64,
        /// What is wrong.
        what: String,
    },
    /// Write smaller records, or have a larger queue.
    #[error("a record has at most {limit} bytes, got {got}")]
    TooLarge {
        /// The most allowed.
        limit: usize,
        /// Bytes of the record.
        got: usize,
    },
    /// Wait longer, or write less: the disk is slower than the records come.
    #[error("the wait ended with {held} of {limit} bytes waiting to be written")]
    Full {
        /// Bytes that wait.
        held: usize,
        /// The most allowed.
        limit: usize,
    },
    /// Wait longer.
    #[error("the wait for record {sequence} ended; all before {kept} are kept")]
    TimedOut {
        /// What was waited for.
        sequence: u64,
        /// What is kept.
        kept: u64,
    },
    /// Append it first.
    #[error("there is no record {sequence} to wait for; the next one is {next}")]
    Unknown {
        /// What was waited for.
        sequence: u64,
        /// The number of the next record.
        next: u64,
    },
    /// Open the journal anew, when the cause is gone. Records that were not kept are to be appended
    /// again.
    #[error("the journal takes no more records: {cause}")]
    Failed {
        /// What went wrong.
        #[source]
        cause: Arc<Error>,
    },
    /// The journal's thread could not be started.
    #[error("can't start the thread of the journal: {0}")]
    Thread(#[source] std::io::Error),
    /// Append to one that is open.
    #[error("the journal is closed")]
    Closed,
}

impl Error {
    pub(super) fn damaged(path: &Path, offset: u64, sequence: u64, what: String) -> Self {
        Self::Damaged { path: path.to_owned(), offset, sequence, what }
    }
}
