//! A file of past transitions that somebody has changed: what is found in it is what was put there, or
//! there is an error.
#![no_main]

use std::fs;

use arbitrary::Arbitrary;
use echoic_buffers::cold::{ColdFile, Geometry, Wanted};
use echoic_fuzz::damage::{Change, place};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Session {
    row_bytes: u8,
    slots: u8,
    text: String,
    records: u8,
    /// Whether its process came to close it.
    closed: bool,
    changes: Vec<Change>,
}

/// What is in the record at a position.
fn record(position: u64, bytes: u8) -> Vec<u8> {
    (0..bytes).map(|at| (position as u8).wrapping_mul(31) ^ at).collect()
}

fuzz_target!(|session: Session| {
    let path = place("cold");
    let _ = fs::remove_file(&path);
    let Session { row_bytes, records, .. } = session;
    let geometry =
        Geometry { row_bytes: row_bytes.into(), slots: session.slots.into(), text: session.text };
    let Ok(cold) = ColdFile::create(&path, &geometry) else { return };
    let rows: Vec<_> = (0..records).map(|position| record(position.into(), row_bytes)).collect();
    cold.append(rows.iter().map(Vec::as_slice)).expect("a disk");
    let crashed = fs::read(&path).expect("it is there");
    cold.close(true).expect("it is ours");
    if !session.closed {
        fs::write(&path, crashed).expect("it is there");
    }
    let changes = &session.changes[..session.changes.len().min(4)];
    for change in changes {
        change.make(&path);
        if matches!(change, Change::Remove) {
            assert!(ColdFile::open(&path).is_err());
            return;
        }
    }
    let Ok(cold) = ColdFile::open(&path) else {
        assert!(!changes.is_empty(), "it was good");
        return;
    };
    // A text with another meaning has another checksum.
    cold.check(&geometry).expect("what the file is for");
    assert!(cold.end() <= records.into());
    let reading = cold.reading();
    for position in reading.oldest()..cold.end() {
        let mut got = vec![0; row_bytes.into()];
        let wanted = Wanted { position, into: [&mut got[..]].into_iter().collect() };
        // The sum of a record is looked at only when its file was not closed.
        let whole = cold.read(&reading, &mut [wanted]).is_ok();
        assert!(whole || session.closed);
        assert!(!whole || session.closed || got == record(position, row_bytes));
    }
    drop(reading);
    cold.append([record(cold.end(), row_bytes)].iter().map(Vec::as_slice)).expect("a disk");
    cold.close(false).expect("it is ours");
});
