//! A journal whose files somebody has changed: what is replayed is what was appended, or there is an
//! error.
#![no_main]

use std::fs;

use arbitrary::Arbitrary;
use echoic_fuzz::damage::{Change, place};
use echoic_replay::journal::{Durability, Journal, Options};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Session {
    records: Vec<Vec<u8>>,
    durable: bool,
    small_segments: bool,
    changes: Vec<(u8, Change)>,
    from: u8,
}

fuzz_target!(|session: Session| {
    let dir = place("journal");
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
        change.make(path);
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
