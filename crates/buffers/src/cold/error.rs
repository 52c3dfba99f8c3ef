//! What can go wrong with a cold file.

use std::io;
use std::path::{Path, PathBuf};

use echoic_replay::{Error, FileError};

/// Why a cold file can't be opened, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColdError {
    /// See what is wrong with the file. Nothing that is held in memory was lost, and a file that is not ours is never
    /// changed.
    #[error(transparent)]
    File(#[from] Error),
    /// Open the file to go on with it, or ask for it to be overwritten.
    #[error(
        "{} exists already: it may be what a crashed process left; open it to go on with it, or ask \
         for it to be overwritten",
        path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file was made for something else; give what it was made for, or another path.
    #[error("{} was made for another buffer: expected {what} {expected}, found {got}", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// In what it differs.
        what: &'static str,
        /// What was asked for.
        expected: String,
        /// What the file has.
        got: String,
    },
    /// A file of such a size can't be.
    #[error("a file of {slots} records of {row_bytes} bytes can't be made: {why}")]
    Geometry {
        /// Bytes of a record.
        row_bytes: usize,
        /// How many there are to be.
        slots: u64,
        /// Why not.
        why: &'static str,
    },
    /// Read what is there.
    #[error("there is no record {position}: the file has those from {first} to before {end}")]
    Missing {
        /// What was to be read.
        position: u64,
        /// The oldest one that is there.
        first: u64,
        /// The position after the newest.
        end: u64,
    },
    /// Give rows of the right size.
    #[error("a record has {expected} bytes, got {got}")]
    RowBytes {
        /// Bytes of a record.
        expected: usize,
        /// Bytes that were given, or asked for.
        got: usize,
    },
    /// Use one that is open.
    #[error("the cold file is closed")]
    Closed,
}

impl ColdError {
    pub(super) fn io(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::from(FileError { what, path: path.to_owned(), source: source.into() }).into()
    }

    pub(super) fn foreign(path: &Path, found: String) -> Self {
        Error::Foreign { path: path.to_owned(), expected: "a cold file".into(), found }.into()
    }

    pub(super) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Error::Damaged { path: path.to_owned(), offset, what: what.into() }.into()
    }
}
