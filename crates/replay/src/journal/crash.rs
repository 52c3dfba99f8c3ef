//! Stops the world before every change that a journal makes on disk.

use std::io::ErrorKind;
use std::path::Path;

use super::*;
use crate::Error;
use crate::files::faults::{self, Armed};

const RECORDS: u64 = 12;

fn record(sequence: u64) -> Vec<u8> {
    vec![sequence as u8; 3 * sequence as usize]
}

fn options(durability: Durability) -> Options {
    // Some records to a segment.
    Options { durability, segment_bytes: 100, ..Options::default() }
}

/// Appends record after record until something fails. Returns how many are kept, and how many were
/// appended.
fn work(dir: &Path, durability: Durability) -> (u64, u64) {
    let (mut kept, mut appended) = (0, 0);
    for run in 1..=2 {
        let Ok((journal, _)) = Journal::open(dir, options(durability)) else { break };
        while appended < run * RECORDS / 2 {
            let sequence = appended;
            match journal.append(&record(sequence)) {
                Ok(found) => assert_eq!(found, sequence),
                Err(error) => {
                    assert!(matches!(error, Error::Failed { .. }), "{error}");
                    break;
                }
            }
            appended += 1;
            match journal.wait(sequence, None) {
                Ok(()) => kept = appended,
                Err(error) => {
                    assert!(matches!(error, Error::Failed { .. }), "{error}");
                    let refused = journal.append(b"more").unwrap_err();
                    assert!(matches!(refused, Error::Failed { .. }), "{refused}");
                    let cause = journal.failure().unwrap().to_string();
                    assert!(refused.to_string().contains(&cause), "{refused}");
                }
            }
        }
        if journal.close().is_err() {
            break;
        }
    }
    (kept, appended)
}

fn stop_anywhere(durability: Durability, all_kept: bool, after: impl Fn(&Armed)) {
    let mut stops = 0;
    loop {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("journal");
        let armed = faults::arm(parent.path(), stops, ErrorKind::StorageFull);
        let (kept, appended) = work(&dir, durability);
        let stopped = armed.is_stopped();
        after(&armed);
        drop(armed);
        let (journal, mut replay) = Journal::open(&dir, options(durability)).unwrap();
        let end = replay.end();
        assert!(end <= appended, "{end} of {appended} after {stops}");
        assert!(end >= kept || !all_kept, "{end} of {kept} after {stops}");
        for expected in 0..end {
            let (sequence, found) = replay.next_record().unwrap().unwrap();
            assert_eq!((sequence, found), (expected, &record(expected)[..]), "after {stops}");
        }
        assert!(replay.next_record().unwrap().is_none());
        assert_eq!(journal.append(b"more").unwrap(), end);
        journal.close().unwrap();
        if !stopped {
            assert_eq!(kept, RECORDS);
            assert!(stops > 30, "the world was stopped too seldom: {stops}");
            return;
        }
        stops += 1;
    }
}

#[test]
fn a_disk_that_is_full_loses_nothing_that_was_kept() {
    for durability in [Durability::Async, Durability::Sync] {
        stop_anywhere(durability, true, |_| ());
    }
}

#[test]
fn a_loss_of_power_loses_nothing_that_was_kept_on_disk() {
    stop_anywhere(Durability::Sync, true, Armed::lose_power);
}

#[test]
fn a_loss_of_power_leaves_the_first_records_whatever_the_durability() {
    for durability in [Durability::None, Durability::Async] {
        stop_anywhere(durability, false, Armed::lose_power);
    }
}
