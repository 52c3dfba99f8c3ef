//! What can go wrong with files, logs and snapshots.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::FileError;
use crate::table::TableError;

/// Why something can't be written, or brought back. The text says what does not fit, and in which file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// See what the system said: the disk may be full, or not yours.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system gives no thread.
    #[error("can't start the thread {what}: {source}")]
    Thread {
        /// What it was to do.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Wait for the other one, or use another directory.
    #[error("{} is in use: {holder}", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// What has it.
        holder: &'static str,
    },
    /// Give the right directory or file.
    #[error("{} is not ours: expected {expected}, found {found}", path.display())]
    Foreign {
        /// What was given.
        path: PathBuf,
        /// What one of ours has.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// Read it with the release that wrote it.
    #[error("{} has format {got}; this release reads format {expected}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format that this release reads.
        expected: u32,
        /// Its own.
        got: u32,
    },
    /// Bring the file back, or use an older checkpoint. No crash leaves such a file.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Bring the file back, or use an older checkpoint.
    #[error("{} is missing: the manifest names it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Wait longer, or write less: the disk is slower than the records come.
    #[error("the wait ended {0}")]
    TimedOut(String),
    /// Open the journal again, when the cause is gone. Append the records again that were not kept.
    #[error("the journal takes no more records: {cause}")]
    Failed {
        /// What went wrong.
        #[source]
        cause: Arc<Error>,
    },
    /// Use one that is open.
    #[error("the {0} is closed")]
    Closed(&'static str),
    /// The caller's own callback ended the work.
    #[error("interrupted")]
    Interrupted,
    /// Make the table with other settings.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Give the rollout table settings that work, and those that it had.
    #[error("{0}")]
    Settings(String),
    /// Bring tables back once, and before something is inserted.
    #[error("table {table:?} {what}")]
    Used {
        /// Which table.
        table: String,
        /// What it has already.
        what: String,
    },
    /// The journal of a table of a server: see what is wrong with it.
    #[error("the journal of table {table:?}: {source}")]
    Journal {
        /// Which table.
        table: String,
        /// What is wrong.
        #[source]
        source: Box<Error>,
    },
    /// Whatever else does not fit.
    #[error("{0}")]
    Unfit(String),
}

impl Error {
    /// What the error is about, without the table's name around it, and why a journal failed.
    pub fn innermost(&self) -> &Self {
        match self {
            Self::Journal { source, .. } => source.innermost(),
            Self::Failed { cause } => cause.innermost(),
            error => error,
        }
    }

    /// Something on a path that does not fit.
    pub(crate) fn unfit(path: &Path, what: impl Display) -> Self {
        Self::Unfit(format!("{}: {what}", path.display()))
    }

    /// A table of this name, and what is wrong with it.
    pub(crate) fn of_table(name: &str, what: impl Display) -> Self {
        Self::Unfit(format!("table {name:?}: {what}"))
    }

    pub(crate) fn of_stream(what: impl Display) -> Self {
        Self::Unfit(format!("the stream: {what}"))
    }

    pub(crate) fn too_large(what: &str, limit: u64, got: u64) -> Self {
        Self::Unfit(format!("{what} must be at most {limit}, got {got}"))
    }

    pub(crate) fn damaged(
        path: &Path,
        offset: u64,
        what: &str,
        expected: impl Display,
        got: impl Display,
    ) -> Self {
        let what = format!("{what} should be {expected}, and is {got}");
        Self::Damaged { path: path.to_owned(), offset, what }
    }

    /// A checksum that is wrong.
    pub(crate) fn checksum(path: &Path, offset: u64, what: &str, expected: u32, got: u32) -> Self {
        Self::damaged(path, offset, what, format_args!("{expected:08x}"), format_args!("{got:08x}"))
    }
}

/// For [`io::Read`] and [`io::Write`]: [`io::Error::downcast`] gives the error back.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::File(FileError { ref source, .. }) => Self::new(source.kind(), error),
            error => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}
