//! What can be wrong with a call.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use echoic_memory::AllocError;
use echoic_replay::{Error as Stored, FileError};

/// Why a call was refused. It changed nothing; what is in memory is not lost when a file can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Push something first.
    #[error("the buffer is empty: there is nothing to sample")]
    Empty,
    /// Give what the text asks for.
    #[error("{0}")]
    Argument(String),
    /// Give priorities that can be, to a buffer that has them.
    #[error("{0}")]
    Priority(String),
    /// The memory could not be had.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// See what is wrong with the file. One that is not ours is never changed.
    #[error(transparent)]
    File(#[from] Stored),
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
    #[error("{0}")]
    Differs(String),
    /// Use one that is open.
    #[error("the cold file is closed")]
    Closed,
}

impl Error {
    pub(crate) fn no_capacity() -> Self {
        Self::Argument("the capacity must be at least 1, got 0".into())
    }

    pub(crate) fn no_batch() -> Self {
        Self::Argument("a batch has at least 1 transition, got batch_size=0".into())
    }

    /// A setting is out of its range.
    pub(crate) fn setting(name: &str, range: &str, got: f64) -> Self {
        Self::Argument(format!("{name} must be {range}, got {got}"))
    }

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

    /// `what` was asked of a buffer that was made without `episodes=True`.
    pub fn no_episodes(what: &str) -> Self {
        let needs = "needs to know which transitions follow each other";
        Self::Argument(format!("{what} {needs}: make the buffer with episodes=True"))
    }

    /// A buffer without priorities was asked for them.
    pub fn no_priorities() -> Self {
        Self::Priority("this buffer has no priorities: use a PrioritizedReplayBuffer".into())
    }

    pub(crate) fn missing(column: &str) -> Self {
        Self::Argument(format!("leaf `{column}`: it is missing"))
    }

    /// A column, or flags, that have not a row for each step.
    pub(crate) fn rows(column: &str, expected: usize, got: usize) -> Self {
        Self::Argument(format!("`{column}`: expected {expected} rows, got {got}"))
    }

    /// A record of another size than those of the file.
    pub(crate) fn row_bytes(expected: usize, got: usize) -> Self {
        Self::Argument(format!("a record has {expected} bytes, got {got}"))
    }

    pub(crate) fn io(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Stored::from(FileError { what, path: path.to_owned(), source: source.into() }).into()
    }

    /// The file has `got` where that of such a buffer has `expected`.
    pub(crate) fn differs(
        path: &Path,
        what: &str,
        expected: impl Display,
        got: impl Display,
    ) -> Self {
        let path = path.display();
        let text =
            format!("{path} was made for another buffer: expected {what} {expected}, found {got}");
        Self::Differs(text)
    }

    /// A file that is no cold file has `found` in the place of what one has.
    pub(crate) fn foreign(path: &Path, found: impl Into<String>) -> Self {
        let expected = "a cold file".into();
        Stored::Foreign { path: path.to_owned(), expected, found: found.into() }.into()
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Stored::Damaged { path: path.to_owned(), offset, what: what.into() }.into()
    }
}
