//! Removing old checkpoints.

use std::path::{Path, PathBuf};

use super::layout::{self, DirectoryStatus};
use super::root::{Root, read_manifest};
use crate::Error;

/// What [`retain`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retained {
    /// Files that are gone.
    pub removed: Vec<PathBuf>,
    /// Numbers of the checkpoints that are there.
    pub kept: Vec<u64>,
    /// Numbers of those among them that would have been removed, but are being read.
    pub held: Vec<u64>,
}

/// Keeps the newest `keep` checkpoints of a root, at least one, and removes the others: their files, and
/// packs that no other checkpoint names. A file that no manifest names is never removed. A checkpoint
/// that is open in a [`Reader`](super::Reader) is kept until the next time.
///
/// # Errors
///
/// [`Error::Locked`] while a checkpoint is written. Whatever a manifest can't be read for: then nobody
/// knows which packs are needed, and nothing is removed.
pub fn retain(root: impl AsRef<Path>, keep: usize) -> Result<Retained, Error> {
    let root = Root::lock(root.as_ref(), false)?;
    let mut retained =
        Retained { kept: root.numbers(DirectoryStatus::Complete)?, ..Retained::default() };
    for number in &retained.kept {
        read_manifest(&root.checkpoint(*number, DirectoryStatus::Complete)?)?;
    }
    for number in root.numbers(DirectoryStatus::Partial)? {
        root.remove_partial(number)?;
    }
    let excess = retained.kept.len().saturating_sub(keep.max(1));
    for number in retained.kept.drain(..excess).collect::<Vec<_>>() {
        let dir = root.checkpoint(number, DirectoryStatus::Complete)?;
        let Some(_reserved) = dir.reserve()? else {
            retained.held.push(number);
            continue;
        };
        let name = |state| layout::checkpoint(number, state);
        root.dir.rename(&name(DirectoryStatus::Complete), &name(DirectoryStatus::Old))?;
    }
    // No file of a checkpoint goes before its name.
    root.dir.sync()?;
    retained.kept.extend(&retained.held);
    retained.kept.sort_unstable();
    root.remove_old(&mut retained.removed)?;
    Ok(retained)
}
