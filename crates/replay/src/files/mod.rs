//! Directories and files of which a crash may happen in the middle.
//!
//! - [`Dir`]: an open directory. Names are looked up in it and never lead out of it.
//! - [`OwnedDir`]: one that a [`Marker`] says to be ours, and that is locked.
//! - [`Output`]: a file being written.
//! - [`FileError`]: what failed, on which path.
//!
//! # Invariants
//!
//! 1. Nothing here follows a symbolic link in the last part of a name, or opens what is no regular
//!    file: a name found in a manifest can't lead to another place or block on a pipe.
//! 2. Every change on disk goes through this module, so that its tests can stop the world before any
//!    of them (`faults`).

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod dir;
#[cfg(test)]
pub(crate) mod faults;
mod output;
mod owned;

use std::io;
use std::path::{Path, PathBuf};

pub(crate) use dir::{Dir, Lock};
pub(crate) use output::Output;
pub(crate) use owned::{Marker, OwnedDir};

/// The system refused to do something with a file.
#[derive(Debug, thiserror::Error)]
#[error("can't {what} {}: {source}", path.display())]
pub struct FileError {
    /// What was to be done.
    pub what: &'static str,
    /// With which file or directory.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn new(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self { what, path: path.to_owned(), source: source.into() }
    }

    /// Whether the file is not there.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}
