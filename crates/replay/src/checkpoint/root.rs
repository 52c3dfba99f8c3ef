//! A directory of checkpoints: its contents, its lock, and the remains of processes that died.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::thread;

use super::layout::{self, DirectoryStatus, MANIFEST, MANIFEST_PART, PACKS};
use super::manifest::{MAX_BYTES, Manifest};
use crate::Error;
use crate::files::{Dir, FileError, Lock, Marker, OwnedDir};

/// Marks a root. Whoever changes it holds the lock.
pub(super) const MARKER: Marker = Marker {
    file: "echoic-checkpoints.lock",
    text: "This directory has checkpoints of Echoic. Whoever changes them holds a lock on this file.\n",
    expected: "manifest.json (a checkpoint) or echoic-checkpoints.lock (a directory of them)",
    holder: "another process or thread writes or removes checkpoints there",
};

/// How many removed files are kept open until another thread closes them.
const FREED_LATER: usize = 64;

/// A complete checkpoint in a root.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Its number: a later one has a greater number.
    pub number: u64,
    /// Its directory.
    pub path: PathBuf,
}

/// The complete checkpoints of a root, the oldest first. Nothing in them is looked at.
///
/// # Errors
///
/// [`Error::File`], or [`Error::Foreign`] when it is no root.
pub fn list(root: impl AsRef<Path>) -> Result<Vec<Found>, Error> {
    let dir = Dir::open(root.as_ref())?;
    let names = dir.names()?;
    MARKER.check(&dir, &names, false)?;
    let found = numbers(&names, DirectoryStatus::Complete).into_iter();
    Ok(found
        .map(|number| Found {
            number,
            path: dir.at(&layout::checkpoint(number, DirectoryStatus::Complete)),
        })
        .collect())
}

fn numbers(names: &[String], state: DirectoryStatus) -> Vec<u64> {
    let found = names.iter().filter_map(|name| layout::read_checkpoint(name));
    let mut numbers: Vec<u64> =
        found.filter(|(_, found)| *found == state).map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers
}

/// The manifest says that the file must be there.
pub(super) fn named(error: FileError) -> Error {
    if error.is_missing() { Error::Missing { path: error.path } } else { error.into() }
}

/// The manifest in a checkpoint's directory.
pub(super) fn read_manifest(dir: &Dir) -> Result<Manifest, Error> {
    let path = dir.at(MANIFEST);
    match dir.read(MANIFEST, MAX_BYTES).map_err(named)? {
        Some(bytes) => Manifest::read(&bytes, &path),
        None => {
            let expected = "a manifest of at most 64 MiB".into();
            Err(Error::Foreign { path, expected, found: "a larger file".into() })
        }
    }
}

/// A root that only we change, until dropped.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) dir: Dir,
    pub(super) packs: Dir,
    _lock: Lock,
}

impl Root {
    /// Takes the root for itself. A directory that is not there or empty becomes one when `make` says
    /// so.
    pub(super) fn lock(path: &Path, make: bool) -> Result<Self, Error> {
        let OwnedDir { dir, lock, .. } = MARKER.own(path, make)?;
        let packs = match dir.dir(PACKS) {
            Err(error) if error.is_missing() => dir.make_dir(PACKS)?,
            opened => opened?,
        };
        // Whatever is changed in it makes these names durable, too.
        Ok(Self { dir, packs, _lock: lock })
    }

    /// The numbers of all checkpoints in a state, the smallest first.
    pub(super) fn numbers(&self, state: DirectoryStatus) -> Result<Vec<u64>, FileError> {
        Ok(numbers(&self.dir.names()?, state))
    }

    /// A checkpoint's directory.
    pub(super) fn checkpoint(&self, number: u64, state: DirectoryStatus) -> Result<Dir, FileError> {
        self.dir.dir(&layout::checkpoint(number, state))
    }

    /// Removes what a writer has left that did not finish: files with names that only the writer of
    /// this checkpoint gives. No complete checkpoint names them.
    pub(super) fn remove_partial(&self, number: u64) -> Result<(), Error> {
        let later = |state| Ok::<_, FileError>(self.numbers(state)?.last() >= Some(&number));
        // Not even somebody's copy of a complete one under this name leads to its packs.
        let named = later(DirectoryStatus::Complete)? || later(DirectoryStatus::Old)?;
        for name in self.packs.names()? {
            if !named && layout::read_pack(&name) == Some(number) {
                self.packs.remove_file(&name)?;
            }
        }
        let dir = match self.checkpoint(number, DirectoryStatus::Partial) {
            Err(error) if error.is_missing() => return Ok(()),
            opened => opened?,
        };
        for name in dir.names()? {
            let ours = [MANIFEST, MANIFEST_PART, layout::INDEX].contains(&name.as_str());
            if ours || layout::is_section(&name) {
                dir.remove_file(&name)?;
            }
        }
        self.remove_checkpoint_dir(number, DirectoryStatus::Partial)
    }

    /// Removes a directory, unless another process has put something into it.
    fn remove_checkpoint_dir(&self, number: u64, state: DirectoryStatus) -> Result<(), Error> {
        match self.dir.remove_dir(&layout::checkpoint(number, state)) {
            Err(error) if error.source.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Removes checkpoints that were marked as old, and packs that no other checkpoint names. What is
    /// removed is named by a manifest, which is removed last, so that a crash only means to begin
    /// again. Appends the paths.
    pub(super) fn remove_old(&self, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
        let old = self.numbers(DirectoryStatus::Old)?;
        if old.is_empty() {
            return Ok(());
        }
        // If one of these is not readable, the packs that it needs are unknown.
        let mut needed = HashSet::new();
        for number in self.numbers(DirectoryStatus::Complete)? {
            let manifest = read_manifest(&self.checkpoint(number, DirectoryStatus::Complete)?)?;
            needed.extend(manifest.packs.into_iter().map(|pack| pack.file));
        }
        // The memory of a file is freed when no process has it open any more, which takes nearly as long as to write it.
        let mut open = Vec::new();
        let mut remove = |dir: &Dir, name: &str| {
            if open.len() < FREED_LATER {
                open.extend(dir.file(name).ok());
            }
            removed.push(dir.at(name));
            dir.remove_file(name)
        };
        for number in old {
            let dir = self.checkpoint(number, DirectoryStatus::Old)?;
            let manifest = match read_manifest(&dir) {
                Ok(manifest) => manifest,
                // All files that it named are gone.
                Err(Error::Missing { .. }) => {
                    self.remove_checkpoint_dir(number, DirectoryStatus::Old)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let unneeded = manifest.packs.iter().filter(|pack| !needed.contains(&pack.file));
            for pack in unneeded.clone() {
                remove(&self.packs, &pack.file)?;
            }
            if unneeded.count() > 0 {
                self.packs.sync()?;
            }
            let index = manifest.blobs.iter().map(|blobs| &blobs.index);
            for section in manifest.sections.iter().chain(index) {
                remove(&dir, &section.file.file)?;
            }
            dir.sync()?;
            remove(&dir, MANIFEST)?;
            // Should this not be durable, the next time there is nothing left to remove in it.
            self.remove_checkpoint_dir(number, DirectoryStatus::Old)?;
        }
        // Without a thread they are closed here.
        let _ = thread::Builder::new().spawn(move || drop(open));
        Ok(())
    }
}
