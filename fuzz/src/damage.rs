//! What may happen to a file while nobody looks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

use arbitrary::Arbitrary;

/// A change to a file.
#[derive(Debug, Arbitrary)]
pub enum Change {
    /// Some bits of a byte.
    Flip {
        /// Which.
        at: u16,
        /// Which of its bits.
        bits: u8,
    },
    /// All behind a byte is gone.
    Cut {
        /// Which.
        at: u16,
    },
    /// Something is in between.
    Insert {
        /// Where.
        at: u16,
        /// What.
        bytes: Vec<u8>,
    },
    /// A part is there twice.
    Repeat {
        /// Where it begins.
        at: u16,
        /// How long it is.
        len: u8,
    },
    /// The file is gone.
    Remove,
    /// Something else altogether.
    Replace(Vec<u8>),
}

impl Change {
    /// Makes the change.
    pub fn make(&self, path: &Path) {
        if matches!(self, Self::Remove) {
            fs::remove_file(path).expect("it is there");
            return;
        }
        let mut bytes = fs::read(path).expect("it is there");
        self.apply(&mut bytes);
        fs::write(path, bytes).expect("it is there");
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: u16, len: usize| usize::from(at) % (len + 1);
        match self {
            Self::Flip { at, bits } => {
                let at = place(*at, bytes.len());
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= bits);
            }
            Self::Cut { at } => bytes.truncate(place(*at, bytes.len())),
            Self::Insert { at, bytes: more } => {
                let at = place(*at, bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Repeat { at, len } => {
                let at = place(*at, bytes.len());
                let part = bytes[at..].iter().copied().take((*len).into()).collect::<Vec<_>>();
                bytes.splice(at..at, part);
            }
            Self::Replace(other) => bytes.clone_from(other),
            Self::Remove => {}
        }
    }
}

/// A place of this process, in memory where there is such a thing.
pub fn place(name: &str) -> PathBuf {
    static SWEPT: Once = Once::new();
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let prefix = format!("echoic-fuzz-{name}-");
    SWEPT.call_once(|| sweep(&parent, &prefix));
    parent.join(format!("{prefix}{}", std::process::id()))
}

/// Removes what processes have left that are gone: a fuzzer ends without clean-up.
fn sweep(parent: &Path, prefix: &str) {
    // Elsewhere nobody can be seen, and everything stays.
    if !Path::new("/proc/self").exists() {
        return;
    }
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
}
