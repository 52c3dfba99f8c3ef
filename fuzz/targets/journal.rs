//! A journal whose files somebody has changed: what is replayed is what was appended, or there is an
//! error.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};

use arbitrary::Arbitrary;
use echoic_replay::journal::{Durability, Journal, Options};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Change {
    /// Some bits of a byte.
    Flip { at: u16, bits: u8 },
    /// All behind a byte is gone.
    Cut { at: u16 },
    /// Something is in between.
    Insert { at: u16, bytes: Vec<u8> },
    /// A part is there twice.
    Repeat { at: u16, len: u8 },
    /// The file is gone.
    Remove,
    /// Something else altogether.
    Replace(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
struct Session {
    records: Vec<Vec<u8>>,
    durable: bool,
    small_segments: bool,
    changes: Vec<(u8, Change)>,
    from: u8,
}

/// A directory of this process, in memory where there is such a thing.
fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    parent.join(format!("echoic-fuzz-journal-{}", std::process::id()))
}

fn apply(change: &Change, bytes: &mut Vec<u8>) {
    let place = |at: u16, len: usize| usize::from(at) % (len + 1);
    match change {
        Change::Flip { at, bits } => {
            let at = place(*at, bytes.len());
            bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= bits);
        }
        Change::Cut { at } => bytes.truncate(place(*at, bytes.len())),
        Change::Insert { at, bytes: more } => {
            let at = place(*at, bytes.len());
            bytes.splice(at..at, more.iter().copied());
        }
        Change::Repeat { at, len } => {
            let at = place(*at, bytes.len());
            let part = bytes[at..].iter().copied().take((*len).into()).collect::<Vec<_>>();
            bytes.splice(at..at, part);
        }
        Change::Replace(other) => bytes.clone_from(other),
        Change::Remove => {}
    }
}

fuzz_target!(|session: Session| {
    let dir = folder();
    let _ = fs::remove_dir_all(&dir);
    let durability = if session.durable { Durability::Sync } else { Durability::None };
    let segment_bytes = if session.small_segments { 60 } else { 1 << 20 };
    let options = Options { durability, segment_bytes, ..Options::default() };
    let (journal, _) = Journal::open(&dir, options).expect("a new journal");
    for record in &session.records {
        let sequence = journal.append(record).expect("room");
        // So that there are marks.
        if session.durable {
            journal.wait(sequence, None).expect("a disk");
        }
    }
    drop(journal);
    let segments = || {
        let paths =
            fs::read_dir(&dir).expect("a directory").map(|entry| entry.expect("one").path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.extension() == Some("log".as_ref())).collect();
        paths.sort();
        paths
    };
    for (which, change) in session.changes.iter().take(4) {
        let paths = segments();
        let Some(path) = paths.get(usize::from(*which) % paths.len().max(1)) else { break };
        if matches!(change, Change::Remove) {
            fs::remove_file(path).expect("it is there");
            continue;
        }
        let mut bytes = fs::read(path).expect("it is there");
        apply(change, &mut bytes);
        fs::write(path, bytes).expect("it is there");
    }
    let from = u64::from(session.from) % (session.records.len() as u64 + 2);
    let Ok((journal, mut replay)) = Journal::open(&dir, Options { from, ..options }) else {
        return;
    };
    let (mut next, end) = (from, replay.end());
    while let Some((sequence, record)) = replay.next_record().expect("it was read before") {
        assert_eq!(sequence, next);
        assert_eq!(Some(record), session.records.get(sequence as usize).map(Vec::as_slice));
        next += 1;
    }
    assert_eq!(next, end, "records are missing");
    assert_eq!(journal.append(b"more").expect("room"), end);
    drop(journal);
    let (_, again) =
        Journal::open(&dir, Options { from, ..options }).expect("what was left is good");
    assert_eq!(again.end(), end + 1);
    assert_eq!(again.torn(), None, "what was torn is cut off once");
});
