//! A directory that is marked as ours, and locked against other processes.

use std::path::Path;

use super::{Dir, Lock};
use crate::Error;

/// The file that marks a directory of a kind, which its owner holds a lock on.
pub(crate) struct Marker {
    /// The name of the file.
    pub(crate) file: &'static str,
    /// What it says to people.
    pub(crate) text: &'static str,
    /// What is missing in a directory without it.
    pub(crate) expected: &'static str,
    /// What the holder of the lock does.
    pub(crate) holder: &'static str,
}

/// A marked directory, for as long as the lock is held.
#[derive(Debug)]
pub(crate) struct OwnedDir {
    pub(crate) dir: Dir,
    pub(crate) lock: Lock,
    /// There was nothing in it before.
    pub(crate) is_new: bool,
}

impl Marker {
    /// The directory has another owner.
    pub(crate) fn locked(&self, path: &Path) -> Error {
        Error::Locked { path: path.to_owned(), holder: self.holder }
    }

    /// Has a directory for itself alone. With `make`, one that is not there or empty is marked.
    pub(crate) fn own(&self, path: &Path, make: bool) -> Result<OwnedDir, Error> {
        let dir = if make { Dir::open_or_make(path)? } else { Dir::open(path)? };
        let names = dir.names()?;
        let is_new = names.is_empty();
        if !(make && is_new) {
            self.check(&dir, &names, make)?;
        }
        match dir.lock(self.file, self.text)? {
            Some(lock) => Ok(OwnedDir { dir, lock, is_new }),
            None => Err(self.locked(path)),
        }
    }

    /// Shares a directory with other readers: no process owns it meanwhile.
    pub(crate) fn share(&self, path: &Path) -> Result<OwnedDir, Error> {
        let dir = Dir::open(path)?;
        self.check(&dir, &dir.names()?, false)?;
        match dir.share(self.file)? {
            Some(lock) => Ok(OwnedDir { dir, lock, is_new: false }),
            None => Err(self.locked(path)),
        }
    }

    /// Refuses a directory with these names in it that is not marked.
    pub(crate) fn check(
        &self,
        dir: &Dir,
        names: &[String],
        may_be_empty: bool,
    ) -> Result<(), Error> {
        if names.iter().any(|name| name == self.file) {
            return Ok(());
        }
        let found = names.first().map_or_else(|| "nothing".into(), |name| format!("{name:?}"));
        let or_empty = if may_be_empty { ", or an empty directory" } else { "" };
        let expected = format!("{}{or_empty}", self.expected);
        Err(Error::Foreign { path: dir.path().to_owned(), expected, found })
    }
}
