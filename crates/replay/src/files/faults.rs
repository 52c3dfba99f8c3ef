//! For tests: stops the world before any change on disk, and then takes back what a loss of power may.
//!
//! A test arms a directory with a number of steps. The step after these fails, and all later ones in
//! that directory, so that not even a destructor can change anything: as after a kill. What was not made
//! durable is known, so that a test can [lose](Armed::lose_power) it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use echoic_memory::sync::Mutex;

#[derive(Debug)]
struct Plan {
    left: u64,
    /// Steps that failed.
    failed: u64,
    /// What a step that fails says.
    kind: io::ErrorKind,
    /// Files with bytes that were never made durable, and the length that was.
    unsynced: BTreeMap<PathBuf, u64>,
    /// Changes of names that were not made durable, in order.
    names: Vec<Name>,
}

#[derive(Debug)]
enum Name {
    Made(PathBuf),
    Renamed(PathBuf, PathBuf),
}

static PLANS: Mutex<Vec<(PathBuf, Plan)>> = Mutex::new(Vec::new());

fn with<T>(path: &Path, act: impl FnOnce(&mut Plan) -> T) -> Option<T> {
    let mut plans = PLANS.lock();
    let found = plans.iter_mut().find(|(root, _)| path.starts_with(root));
    found.map(|(_, plan)| act(plan))
}

/// A directory in which the world stops; until dropped.
#[derive(Debug)]
pub(crate) struct Armed(PathBuf);

/// Lets `steps` changes below `root` pass.
pub(crate) fn arm(root: &Path, steps: u64, kind: io::ErrorKind) -> Armed {
    let plan = Plan { left: steps, failed: 0, kind, unsynced: BTreeMap::new(), names: Vec::new() };
    PLANS.lock().push((root.to_owned(), plan));
    Armed(root.to_owned())
}

impl Armed {
    /// Whether the world stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        with(&self.0, |plan| plan.failed > 0).unwrap()
    }

    /// Takes back what was not made durable: names first, in reverse, then bytes of the files that are
    /// left.
    pub(crate) fn lose_power(&self) {
        let (names, unsynced) = with(&self.0, |plan| {
            (std::mem::take(&mut plan.names), std::mem::take(&mut plan.unsynced))
        })
        .unwrap();
        for (path, len) in unsynced {
            // A file that was removed has nothing to lose.
            if let Ok(file) = OpenOptions::new().write(true).open(&path) {
                file.set_len(len).unwrap();
            }
        }
        for name in names.into_iter().rev() {
            match name {
                Name::Renamed(from, to) => fs::rename(to, from).unwrap_or_default(),
                Name::Made(path) if path.is_dir() => fs::remove_dir_all(path).unwrap(),
                Name::Made(path) => fs::remove_file(path).unwrap_or_default(),
            }
        }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        PLANS.lock().retain(|(root, _)| *root != self.0);
    }
}

/// To be called before a change.
pub(crate) fn step(path: &Path) -> io::Result<()> {
    with(path, |plan| {
        if plan.left == 0 {
            plan.failed += 1;
            return Err(io::Error::from(plan.kind));
        }
        plan.left -= 1;
        Ok(())
    })
    .unwrap_or(Ok(()))
}

/// How much of a write that fails is done.
pub(crate) fn torn(path: &Path, len: usize) -> usize {
    with(path, |plan| if plan.failed == 1 { len / 2 } else { 0 }).unwrap_or(0)
}

/// A file or directory is there.
pub(crate) fn made(path: &Path) {
    with(path, |plan| plan.names.push(Name::Made(path.to_owned())));
}

/// A name was changed.
pub(crate) fn renamed(from: &Path, to: &Path) {
    with(from, |plan| {
        plan.names.push(Name::Renamed(from.to_owned(), to.to_owned()));
        let unsynced = std::mem::take(&mut plan.unsynced);
        plan.unsynced =
            unsynced.into_iter().map(|(path, len)| (moved(path, from, to), len)).collect();
    });
}

/// What a path is called after a rename.
fn moved(path: PathBuf, from: &Path, to: &Path) -> PathBuf {
    match path.strip_prefix(from) {
        Ok(rest) if rest.as_os_str().is_empty() => to.to_owned(),
        Ok(rest) => to.join(rest),
        Err(_) => path,
    }
}

/// Bytes are written behind the first `len` ones.
pub(crate) fn wrote(path: &Path, len: u64) {
    with(path, |plan| *plan.unsynced.entry(path.to_owned()).or_insert(len));
}

/// A file's bytes, or a directory's names, count as durable. Whether that is all that is needed: where
/// the world may stop, no disk is waited for.
pub(crate) fn synced(path: &Path) -> bool {
    let synced = with(path, |plan| {
        plan.unsynced.remove(path);
        let mut names: Vec<Name> = Vec::new();
        for name in std::mem::take(&mut plan.names) {
            match name {
                Name::Made(made) if made.parent() == Some(path) => {}
                Name::Renamed(from, to) if to.parent() == Some(path) => {
                    // What was made under the former name is found under the latter from now on.
                    for name in &mut names {
                        if let Name::Made(made) = name {
                            *made = moved(std::mem::take(made), &from, &to);
                        }
                    }
                }
                kept => names.push(kept),
            }
        }
        plan.names = names;
    });
    synced.is_some()
}
