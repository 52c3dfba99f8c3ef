//! An open file that no other process has.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use echoic_replay::Error as Stored;

use crate::error::Error;

/// A file and the lock on it, held until this is dropped, or the process has died.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: File,
    path: PathBuf,
    /// Who has the lock: a forked child has the file open, too, but is not to touch it.
    process: u32,
}

impl LockedFile {
    /// Makes a file that was not there.
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = made.map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Exists { path: path.to_owned() },
            _ => Error::io("create", path, source),
        })?;
        Self::lock(file, path)
    }

    /// Opens a file that is there, and changes nothing.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|source| Error::io("open", path, source))?;
        let kind = file.metadata().map_err(|source| Error::io("look at", path, source))?;
        if !kind.is_file() {
            return Err(Error::foreign(path, "it is no regular file"));
        }
        Self::lock(file, path)
    }

    fn lock(file: File, path: &Path) -> Result<Self, Error> {
        // After a change of the working directory it is still the same file.
        let absolute =
            std::path::absolute(path).map_err(|source| Error::io("find", path, source))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file, path: absolute, process: std::process::id() }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let holder = "a buffer of this or another process has it open";
                Err(Stored::Locked { path: path.to_owned(), holder }.into())
            }
            Err(source) => Err(Error::io("lock", path, source)),
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is the process that opened the file.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// How long the file is.
    pub(super) fn len(&self) -> Result<u64, Error> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(|source| Error::io("look at", &self.path, source))?.len())
    }

    /// Removes the file's name, if it is still the name of this file.
    pub(super) fn remove(&self) -> Result<(), Error> {
        let failed = |source| Error::io("remove", &self.path, source);
        let ours = self.file.metadata().map_err(failed)?;
        match std::fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                std::fs::remove_file(&self.path).map_err(failed)
            }
            // Another process removed it, or put something else there.
            Ok(_) => Ok(()),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(failed(source)),
        }
    }

    /// Lets go of the lock.
    pub(super) fn unlock(&self) {
        // Closing alone would leave the lock to children that were forked meanwhile. One of these must
        // not give away the lock of its parent.
        if self.is_ours() {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        self.unlock();
    }
}
