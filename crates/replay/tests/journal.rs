//! What a journal promises to writers, and to readers after a crash.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Instant;

use echoic_replay::Error;
use echoic_replay::journal::{Durability, Journal, Options, Replay};
use echoic_replay::rng::Rng;
use proptest::prelude::*;
use tempfile::tempdir;

#[path = "common/killed.rs"]
mod killed;
#[path = "common/waiting.rs"]
mod waiting;

use killed::{kill_once, orders, say};
use waiting::until;

const DURABILITIES: [Durability; 3] = [Durability::None, Durability::Async, Durability::Sync];

fn small_segments(durability: Durability) -> Options {
    Options { durability, segment_bytes: 200, ..Options::default() }
}

fn records(replay: &mut Replay) -> Vec<(u64, Vec<u8>)> {
    let mut records = Vec::new();
    while let Some((sequence, record)) = replay.next_record().unwrap() {
        records.push((sequence, record.to_vec()));
    }
    records
}

fn reopen(dir: &Path, options: Options) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    Journal::open(dir, options).map(|(_, mut replay)| records(&mut replay))
}

/// The files of all segments, the oldest first.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension() == Some("log".as_ref())).collect();
    paths.sort();
    paths
}

/// A journal of some records, closed.
fn written(dir: &Path, options: Options, count: u8) -> Vec<(u64, Vec<u8>)> {
    let (journal, _) = Journal::open(dir, options).unwrap();
    let records: Vec<_> = (0..count).map(|n| (u64::from(n), vec![n; usize::from(n) * 3])).collect();
    for (sequence, record) in &records {
        assert_eq!(journal.append(record).unwrap(), *sequence);
        journal.wait(*sequence, None).unwrap();
    }
    records
}

#[test]
fn what_many_threads_append_is_replayed_once_in_the_order_of_the_numbers() {
    for durability in DURABILITIES {
        let dir = tempdir().unwrap();
        let (journal, _) = Journal::open(dir.path(), small_segments(durability)).unwrap();
        let told = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let (journal, told) = (&journal, &told);
                scope.spawn(move || {
                    for n in 0..50_u8 {
                        let record = vec![thread; usize::from(n)];
                        let sequence = journal.append_parts(&[&record, &[n]], None).unwrap();
                        if n % 7 == 0 {
                            journal.wait(sequence, None).unwrap();
                            assert!(journal.kept() > sequence);
                        }
                        told.lock().unwrap().insert(sequence, [&record[..], &[n]].concat());
                    }
                });
            }
        });
        journal.close().unwrap();
        assert!(matches!(journal.append(b""), Err(Error::Closed(_))));
        let info = journal.info();
        assert_eq!((info.next, info.kept, info.durable, info.held_bytes), (200, 200, 200, 0));
        assert!(info.segments > 10);
        drop(journal);
        let found = reopen(dir.path(), small_segments(durability)).unwrap();
        assert_eq!(found, told.into_inner().unwrap().into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_journal_cut_at_any_byte_replays_the_records_before_it() {
    let dir = tempdir().unwrap();
    let all = written(dir.path(), Options::default(), 6);
    let [path] = &segments(dir.path())[..] else { panic!("one segment") };
    let bytes = fs::read(path).unwrap();
    let mut before = 0;
    // A segment has its whole header before it has its name.
    for len in 24..=bytes.len() {
        fs::write(path, &bytes[..len]).unwrap();
        let (journal, mut replay) = Journal::open(dir.path(), Options::default()).unwrap();
        let found = records(&mut replay);
        assert_eq!(found, all[..found.len()]);
        assert!(found.len() == before || found.len() == before + 1, "{len}");
        let torn = replay.torn().map_or(0, |torn| torn.bytes);
        assert_eq!(torn == 0, len == 24 || found.len() > before, "{len}");
        before = found.len();
        // What comes now is behind the last whole record.
        assert_eq!(journal.append(b"next").unwrap(), found.len() as u64);
        drop(journal);
        let again = reopen(dir.path(), Options::default()).unwrap();
        assert_eq!(again[..before], all[..before]);
        assert_eq!(again[before..], [(before as u64, b"next".to_vec())]);
    }
    assert_eq!(before, all.len());
}

#[test]
fn a_wrong_bit_before_the_last_segment_is_an_error_that_says_where() {
    let dir = tempdir().unwrap();
    let all = written(dir.path(), small_segments(Durability::Async), 20);
    let paths = segments(dir.path());
    assert!(paths.len() > 3);
    for path in &paths[..paths.len() - 1] {
        let bytes = fs::read(path).unwrap();
        for (byte, bit) in (0..bytes.len()).flat_map(|byte| [(byte, 0), (byte, 7)]) {
            let mut wrong = bytes.clone();
            wrong[byte] ^= 1 << bit;
            fs::write(path, &wrong).unwrap();
            match reopen(dir.path(), small_segments(Durability::Async)).unwrap_err() {
                Error::Damaged { path: found, offset, .. } => {
                    assert_eq!(found, *path);
                    assert!(offset <= byte as u64);
                }
                Error::Format { got, .. } => assert!(got != 1 && (8..12).contains(&byte)),
                error => panic!("{error}"),
            }
        }
        fs::write(path, &bytes).unwrap();
    }
    assert_eq!(reopen(dir.path(), small_segments(Durability::Async)).unwrap(), all);
}

#[test]
fn a_wrong_bit_in_what_was_durable_is_an_error_and_no_end() {
    let dir = tempdir().unwrap();
    let options = Options { durability: Durability::Sync, ..Options::default() };
    let all = written(dir.path(), options, 5);
    let [path] = &segments(dir.path())[..] else { panic!("one segment") };
    let bytes = fs::read(path).unwrap();
    // Each record was waited for, so all but the last are known to have been durable. Marks are
    // between them.
    let mut ends = 0;
    for byte in 24..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[byte] ^= 4;
        fs::write(path, &wrong).unwrap();
        match reopen(dir.path(), options) {
            Err(Error::Damaged { .. }) => {}
            Ok(found) => {
                assert!(found.len() >= 4, "{byte}");
                assert_eq!(found, all[..found.len()]);
                ends += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(ends < 60, "only the last record, and marks, may count as an end: {ends}");
}

#[test]
fn a_segment_that_is_missing_is_an_error() {
    let dir = tempdir().unwrap();
    written(dir.path(), small_segments(Durability::Async), 20);
    let options = small_segments(Durability::Async);
    let paths = segments(dir.path());
    let moved = dir.path().join("away");
    for missing in [0, 1] {
        fs::rename(&paths[missing], &moved).unwrap();
        let error = reopen(dir.path(), options).unwrap_err();
        let after = format!("{} starts with record ", paths[missing + 1].display());
        assert!(error.to_string().starts_with(&after), "{error}");
        fs::rename(&moved, &paths[missing]).unwrap();
    }
}

#[test]
fn segments_that_a_checkpoint_covers_are_given_back() {
    let dir = tempdir().unwrap();
    let all = written(dir.path(), small_segments(Durability::Async), 30);
    let options = small_segments(Durability::Async);
    for from in [0, 1, 7, 15, 29, 30] {
        let options = Options { from, ..options };
        let (journal, mut replay) = Journal::open(dir.path(), options).unwrap();
        assert_eq!(records(&mut replay), all[usize::try_from(from).unwrap()..]);
        let before = segments(dir.path()).len();
        let removed = journal.truncate_before(from).unwrap();
        assert_eq!(segments(dir.path()).len(), before - removed);
        let info = journal.info();
        assert!(info.first <= from && info.segments == before - removed);
        assert_eq!(info.next, 30);
    }
    assert!(segments(dir.path()).len() <= 2);
    let error = reopen(dir.path(), options).unwrap_err();
    assert!(error.to_string().contains("expected 0: the records before it are"), "{error}");
    // A checkpoint that has more than the journal.
    let later = Options { from: 40, ..options };
    let (journal, mut replay) = Journal::open(dir.path(), later).unwrap();
    assert_eq!(records(&mut replay), []);
    assert_eq!(journal.append(b"forty").unwrap(), 40);
    drop(journal);
    assert_eq!(reopen(dir.path(), later).unwrap(), [(40, b"forty".to_vec())]);
    assert_eq!(segments(dir.path()).len(), 1);
}

#[test]
fn who_appends_waits_for_room_until_the_deadline() {
    let dir = tempdir().unwrap();
    let options = Options { queue_bytes: 1000, ..Options::default() };
    let (journal, _) = Journal::open(dir.path(), options).unwrap();
    let error = journal.append(&[0; 993]).unwrap_err();
    assert!(error.to_string().ends_with("at most 992, got 993"), "{error}");
    // Appending without any wait is refused when the thread is behind, and then only.
    let (mut taken, mut refused) = (0, 0);
    while refused < 3 {
        match journal.append_parts(&[&[7; 900]], Some(Instant::now())) {
            Ok(_) => taken += 1,
            Err(Error::TimedOut(what)) => {
                assert!(what.ends_with(" of 1000 bytes waiting to be written"), "{what}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(taken < 1_000_000, "the thread is never behind");
        assert!(journal.info().held_bytes <= 1000);
    }
    // With time enough there is room.
    journal.append(&[7; 900]).unwrap();
    drop(journal);
    assert_eq!(reopen(dir.path(), options).unwrap().len(), taken + 1);
}

#[test]
fn a_task_is_woken_when_more_is_kept() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dir = tempdir().unwrap();
    let options = Options { durability: Durability::Sync, ..Options::default() };
    let (journal, _) = Journal::open(dir.path(), options).unwrap();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    for rounds in 1..=5 {
        journal.wake_on_progress(&waker);
        journal.wake_on_progress(&waker);
        let sequence = journal.append(b"record").unwrap();
        until("the waker is called", || count.0.load(Ordering::SeqCst) >= rounds);
        assert_eq!(count.0.load(Ordering::SeqCst), rounds);
        assert!(journal.kept() > sequence);
    }
}

#[test]
fn records_are_made_durable_on_request() {
    let dir = tempdir().unwrap();
    for durability in DURABILITIES {
        let (journal, _) = Journal::open(
            dir.path().join(format!("{durability:?}")),
            Options { durability, ..Options::default() },
        )
        .unwrap();
        journal.sync(None).unwrap();
        for _ in 0..3 {
            let sequence = journal.append(b"record").unwrap();
            journal.sync(None).unwrap();
            assert!(journal.info().durable > sequence);
        }
        let error = journal.wait(3, None).unwrap_err();
        assert!(
            error.to_string().ends_with("no record 3 to wait for; the next one is 3"),
            "{error}"
        );
    }
}

#[test]
fn a_journal_is_open_once_and_only_in_a_directory_of_its_own() {
    let dir = tempdir().unwrap();
    let (journal, _) = Journal::open(dir.path(), Options::default()).unwrap();
    let error = Journal::open(dir.path(), Options::default()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    drop(journal);
    Journal::open(dir.path(), Options::default()).unwrap();
    let other = tempdir().unwrap();
    fs::write(other.path().join("thesis.tex"), "years of work").unwrap();
    let error = Journal::open(other.path(), Options::default()).unwrap_err();
    assert!(matches!(&error, Error::Foreign { found, .. } if found.contains("thesis")), "{error}");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
}

#[test]
fn a_segment_of_another_format_is_told_apart_from_damage() {
    let dir = tempdir().unwrap();
    written(dir.path(), Options::default(), 2);
    let [path] = &segments(dir.path())[..] else { panic!("one segment") };
    for other in [0, 2] {
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[other], 8).unwrap();
        let error = reopen(dir.path(), Options::default()).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        let what = format!(".log has format {other}; this release reads format 1");
        assert!(error.to_string().ends_with(&what), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Against a plain list: records of any size, closed and opened at any moment, covered to any number.
    #[test]
    fn a_journal_is_a_list(
        steps in prop::collection::vec((0..5_u8, 0..300_usize), 1..60),
        durability in 0..3_usize,
    ) {
        let dir = tempdir().unwrap();
        let options = small_segments(DURABILITIES[durability]);
        let (mut list, mut from) = (Vec::new(), 0_u64);
        let (mut journal, _) = Journal::open(dir.path(), options).unwrap();
        for (action, size) in steps {
            match action {
                0 => {
                    drop(journal);
                    let (opened, mut replay) =
                        Journal::open(dir.path(), Options { from, ..options }).unwrap();
                    let expected: Vec<_> = (0_u64..).zip(list.iter().cloned()).collect();
                    let skip = usize::try_from(from).unwrap();
                    prop_assert_eq!(records(&mut replay), &expected[skip..]);
                    prop_assert!(replay.torn().is_none());
                    journal = opened;
                }
                1 => {
                    from = from.max((size as u64).min(list.len() as u64));
                    journal.truncate_before(from).unwrap();
                }
                _ => {
                    let record = vec![action; size];
                    prop_assert_eq!(journal.append(&record).unwrap(), list.len() as u64);
                    list.push(record);
                }
            }
        }
    }

    /// Whatever stands in a segment, opening it says so or replays something, and does not panic.
    #[test]
    fn any_bytes_are_a_journal_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        which in any::<prop::sample::Index>(),
    ) {
        let dir = tempdir().unwrap();
        let all = written(dir.path(), small_segments(Durability::Async), 12);
        let paths = segments(dir.path());
        let path = which.get(&paths);
        let mut bytes = fs::read(path).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() * 2));
        fs::write(path, &bytes).unwrap();
        if let Ok(found) = reopen(dir.path(), small_segments(Durability::Async)) {
            prop_assert_eq!(&found, &all[..found.len()]);
        }
    }
}

fn options_of_child(durability: Durability) -> Options {
    Options { durability, segment_bytes: 20_000, ..Options::default() }
}

fn noise(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let len = rng.below(300);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

/// Not a test by itself: what a child process does, until it is killed.
#[test]
fn child() {
    let Some(orders) = orders() else { return };
    let [dir, durability, seed] = &orders.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{orders}")
    };
    let durability = DURABILITIES[durability.parse::<usize>().unwrap()];
    let seed: u64 = seed.parse().unwrap();
    let (journal, _) = Journal::open(dir, options_of_child(durability)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0.. {
                    let name = seed << 32 | thread << 24 | n;
                    let record = [&name.to_le_bytes()[..], &noise(name)].concat();
                    let sequence = journal.append(&record).unwrap();
                    journal.wait(sequence, None).unwrap();
                    say(&format!("{sequence} {name}"));
                }
            });
        }
    });
}

/// Kills a process that appends, again and again, and looks after what it said to be kept.
fn kill_again_and_again(durability: usize, kills: u64) {
    let dir = tempdir().unwrap();
    let mut kept = BTreeMap::<u64, u64>::new();
    let mut rng = Rng::new(durability as u64);
    let mut torn = 0;
    for round in 0..kills {
        let orders = format!("{}\n{durability}\n{round}", dir.path().display());
        let mut left = rng.below(60);
        let is_enough = |_: &str| {
            left = left.saturating_sub(1);
            left == 0
        };
        for line in kill_once("child", &orders, is_enough) {
            let (sequence, name) = line.split_once(' ').unwrap();
            let before = kept.insert(sequence.parse().unwrap(), name.parse().unwrap());
            assert_eq!(before, None, "two records have one number");
        }
        let options = options_of_child(DURABILITIES[durability]);
        let (_, mut replay) = Journal::open(dir.path(), options).unwrap();
        torn += u32::from(replay.torn().is_some());
        let mut names = BTreeMap::new();
        while let Some((sequence, record)) = replay.next_record().unwrap() {
            let (name, rest) = record.split_first_chunk().unwrap();
            let name = u64::from_le_bytes(*name);
            assert_eq!(rest, noise(name), "round {round}, record {sequence}");
            names.insert(sequence, name);
        }
        for (sequence, name) in &kept {
            assert_eq!(names.get(sequence), Some(name), "round {round}, record {sequence}");
        }
        // Every record that is there had a chance to be said.
        kept.extend(names);
    }
    assert!(kept.len() as u64 > 5 * kills, "{} records, {torn} torn", kept.len());
}

#[test]
fn a_killed_process_loses_nothing_that_the_system_had() {
    kill_again_and_again(1, 60);
}

#[test]
fn a_killed_process_loses_nothing_that_was_on_disk() {
    kill_again_and_again(2, 60);
}
