//! What can go wrong with a cold file.

use std::io;
use std::path::{Path, PathBuf};

/// Why a cold file can't be opened, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColdError {
    /// See what the system said: the disk may be full. Nothing that is held in memory was lost.
    #[error("can't {what} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
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
    /// Close the other one, or use another path.
    #[error("{} is in use: a buffer of this or another process has it open", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Give the right path. A file that is not ours is never changed.
    #[error("{} is no cold file of Echoic: {found}", path.display())]
    Foreign {
        /// What was given.
        path: PathBuf,
        /// What it has in the place of what one of ours has.
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
    /// Somebody else changed the file.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        what: String,
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
        Self::Io { what, path: path.to_owned(), source: source.into() }
    }

    pub(super) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}
