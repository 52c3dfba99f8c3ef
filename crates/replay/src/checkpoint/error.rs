//! What can go wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::FileError;

/// Why a checkpoint can't be written, read or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// See what the system said: the disk may be full, or not yours.
    #[error(transparent)]
    File(#[from] FileError),
    /// Wait for the other one, or use another directory.
    #[error("{} is in use: somebody writes or removes checkpoints there", root.display())]
    Locked {
        /// The directory.
        root: PathBuf,
    },
    /// Give the right directory.
    #[error("{} is not ours: expected {expected}, found {found}", path.display())]
    Foreign {
        /// What was given.
        path: PathBuf,
        /// What a directory of ours has.
        expected: &'static str,
        /// What this one has.
        found: String,
    },
    /// Write one first.
    #[error("{} has no complete checkpoint", root.display())]
    Empty {
        /// The directory.
        root: PathBuf,
    },
    /// Read it with the release that wrote it, which the manifest names.
    #[error("{} has format {got}; this release reads format {expected}", path.display())]
    Format {
        /// The manifest.
        path: PathBuf,
        /// The format that this release reads.
        expected: u32,
        /// Its own.
        got: u32,
    },
    /// Use an older checkpoint, or bring the file back.
    #[error("{} is missing: the manifest names it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Use an older checkpoint, or bring the file back.
    #[error("{} has {got} bytes, the manifest says {expected}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length when it was written.
        expected: u64,
        /// Its length now.
        got: u64,
    },
    /// Use an older checkpoint.
    #[error("{} is damaged at byte {offset}: {what} should be {expected}, and is {got}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Ask for one that the checkpoint has.
    #[error("{} has no {what}", path.display())]
    Unknown {
        /// The checkpoint.
        path: PathBuf,
        /// What was asked for.
        what: String,
    },
    /// Use other names.
    #[error("the section {name:?} is there already")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Write less at once.
    #[error("{what} must be at most {limit}, got {got}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The most allowed.
        limit: u64,
        /// What was given.
        got: u64,
    },
    /// Call [`finish`](super::SectionWriter::finish) on every section before the commit.
    #[error("the section {name:?} was begun and not finished")]
    Unfinished {
        /// The name.
        name: String,
    },
    /// Give an id to one content only, also after a restart.
    #[error("blob {id:032x} has {got}, but {} has it with {expected}", path.display())]
    BlobDiffers {
        /// The id.
        id: u128,
        /// The checkpoint that has it.
        path: PathBuf,
        /// Length and checksum there.
        expected: String,
        /// Length and checksum here.
        got: String,
    },
    /// Begin anew. What an earlier error left is not used.
    #[error("an earlier error ended this work on a checkpoint")]
    Failed,
    /// The caller's own callback ended the work.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(super) fn damaged(
        path: &Path,
        offset: u64,
        what: &'static str,
        expected: impl ToString,
        got: impl ToString,
    ) -> Self {
        let (expected, got) = (expected.to_string(), got.to_string());
        Self::Damaged { path: path.to_owned(), offset, what, expected, got }
    }

    /// A checksum that is wrong.
    pub(super) fn checksum(
        path: &Path,
        offset: u64,
        what: &'static str,
        expected: u32,
        got: u32,
    ) -> Self {
        Self::damaged(path, offset, what, format_args!("{expected:08x}"), format_args!("{got:08x}"))
    }

    /// A file that is not there is told apart: the manifest says that it must be.
    pub(super) fn named(error: FileError) -> Self {
        if error.is_missing() { Self::Missing { path: error.path } } else { error.into() }
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
