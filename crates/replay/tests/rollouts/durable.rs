//! Rollout tables with a directory: what is restored, what is refused, and what their history has.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use echoic_replay::Error;
use echoic_replay::codec::Encode;
use echoic_replay::journal::{Journal, Options, Replay};
use echoic_replay::rollouts::batch::{Form, Layout};
use echoic_replay::rollouts::durable::{Durability, DurableOptions, History, Point};
use echoic_replay::rollouts::ledger::{Change, GroupStatus, Hold, Lease, Ledger, Outcome, Share};
use echoic_replay::rollouts::table::CallError;
use echoic_replay::rollouts::{OnStale, Order, RolloutConfig, RolloutTable};
use proptest::prelude::*;

use crate::crowd::{Crowd, Step, any_table, steps};
use crate::processes::tempdir;
use crate::table::{finish, marked, pairs, reserve, want};
use crate::waiting::soon;

const HISTORY: DurableOptions = DurableOptions { durability: Durability::Async, history: true };

fn open(config: &RolloutConfig, dir: &Path) -> RolloutTable {
    RolloutTable::open(config.clone(), dir, HISTORY).unwrap()
}

fn call(table: &RolloutTable, change: &Change) -> Result<Outcome, CallError> {
    soon(|wait| table.call(change, wait))
}

fn bytes(ledger: &Ledger) -> Vec<u8> {
    let moment = ledger.save();
    let mut bytes = Vec::new();
    moment.encode(&mut bytes);
    bytes.extend(moment.bulk().flatten());
    bytes
}

/// The past of a directory, at a point.
fn past_at(dir: &Path, point: Point) -> Result<History, Error> {
    let mut past = History::open(dir, Some(point))?;
    past.at(point, u64::MAX)?;
    past.check(point)?;
    Ok(past)
}

/// A share as its consumer sees it.
fn laid_out(share: &Share, config: &RolloutConfig) -> Vec<u8> {
    let layout = Layout::new(share, config, Form::Padded { width: 0, left: false }).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    layout.write(&mut bytes);
    layout.head().encode(&mut bytes);
    bytes
}

fn do_some(table: &RolloutTable, crowd: &mut Crowd, steps: &[Step]) {
    for step in steps {
        let (_, change) = crowd.change(*step);
        match table.apply(&change) {
            Ok(outcome) => crowd.hear(&change, &Ok(outcome)),
            Err(CallError::Refused(refusal)) => crowd.hear(&change, &Err(refusal)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The newest file of a journal.
fn last_segment(dir: &Path) -> std::path::PathBuf {
    let files = fs::read_dir(dir.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_table_is_as_it_was_however_it_ended(
        (config, want) in any_table(),
        rounds in prop::collection::vec((steps(60), 0_u8..4), 1..5),
        history: bool,
    ) {
        let dir = tempdir();
        let durable = DurableOptions { history, ..HISTORY };
        let again = || RolloutTable::open(config.clone(), dir.path(), durable).unwrap();
        let (mut crowd, mut shares) = (Crowd::new(&config, want), 0);
        let mut table = again();
        for (steps, end) in rounds {
            do_some(&table, &mut crowd, &steps);
            if end == 0 {
                table.checkpoint().unwrap();
                do_some(&table, &mut crowd, &steps);
            }
            let (info, time) = (table.info(), table.now());
            match end {
                // Closing twice is no harm.
                1 => { table.close(); table.close(); }
                2 => { table.checkpoint().unwrap(); }
                _ => {}
            }
            drop(table);
            table = again();
            let now = table.info();
            shares = shares.max(now.counts.batches);
            prop_assert_eq!((now.counts, &now.sources), (info.counts, &info.sources));
            prop_assert_eq!(now.totals, info.totals);
            prop_assert!(table.now() <= time + 1000, "no time passed: {} {time}", table.now());
        }
        let last = table.info();
        table.close();
        let mut seen = 0;
        let mut past = History::open(dir.path(), None).unwrap();
        while past.next_share(u64::MAX).unwrap().flatten().is_some() {
            seen += 1;
        }
        prop_assert!(seen <= shares * u64::from(want.ranks) + last.counts.redelivered);
        prop_assert_eq!(past.ledger().unwrap().counts(), last.counts);
    }

    #[test]
    fn a_torn_end_costs_what_was_torn_and_nothing_else(
        (config, want) in any_table(),
        before in steps(60),
        after in steps(60),
        cut: prop::sample::Index,
    ) {
        let dir = tempdir();
        let table = open(&config, dir.path());
        let mut crowd = Crowd::new(&config, want);
        do_some(&table, &mut crowd, &before);
        soon(|wait| table.keep(wait)).unwrap();
        let kept = table.receipt().unwrap();
        prop_assert!(table.is_durable(kept).unwrap());
        let (len, counts) = (fs::metadata(last_segment(dir.path())).unwrap().len(), table.info().counts);
        do_some(&table, &mut crowd, &after);
        table.close();
        let whole = fs::metadata(last_segment(dir.path())).unwrap().len();
        let cut = len + cut.index((whole - len + 1) as usize) as u64;
        let file = OpenOptions::new().write(true).open(last_segment(dir.path())).unwrap();
        file.set_len(cut).unwrap();
        // Who only looks leaves it as it is.
        let mut past = History::open(dir.path(), None).unwrap();
        prop_assert_eq!(past.at(Point::Record(u64::MAX), u64::MAX).unwrap(), Some(false));
        let found = past.ledger().unwrap().counts();
        prop_assert_eq!(fs::metadata(last_segment(dir.path())).unwrap().len(), cut);
        let torn = past.torn().cloned();
        drop(past);
        prop_assert!(found.submitted >= counts.submitted && found.tokens >= counts.tokens);
        let table = open(&config, dir.path());
        prop_assert_eq!(table.info().counts, found);
        prop_assert_eq!(table.dropped(), torn.as_ref());
    }
}

/// A reservation, and a batch that is leased, of which `given` gets to know.
fn give(table: &RolloutTable, given: &mut Vec<(u64, u32)>) -> (Hold, Lease) {
    let Ok(Outcome::Reserved(reservations)) = table.apply(&reserve(3)) else { panic!() };
    given.extend(
        reservations.iter().map(|reservation| (reservation.hold.group, reservation.hold.attempt)),
    );
    for reservation in &reservations[1..] {
        table.apply(&marked(reservation.hold, 0, 0, 1)).unwrap();
    }
    let sample = Change::Sample(want(2, Some(600_000)));
    let Ok(Outcome::Delivered(share)) = table.apply(&sample) else { panic!() };
    (reservations[0].hold, share.lease)
}

#[test]
fn what_the_lost_end_of_a_journal_gave_is_given_to_nobody_else() {
    let config = RolloutConfig {
        group_size: 1,
        redundancy: 0,
        max_lag: None,
        max_running: 64,
        capacity: 256,
        ..pairs()
    };
    // The end is lost, all is lost, and nothing is.
    for lost in [0, 1, 2] {
        let dir = tempdir();
        let (mut groups, mut batches) = (Vec::new(), BTreeSet::new());
        let table = open(&config, dir.path());
        let (hold, lease) = give(&table, &mut groups);
        assert_eq!((hold.group, lease.batch, batches.insert(lease.batch)), (0, 1, true));
        table.close();
        let (mut holds, mut leases) = (vec![hold], vec![lease]);
        for _ in 0..3 {
            let len = fs::metadata(last_segment(dir.path())).unwrap().len();
            let table = open(&config, dir.path());
            let (hold, lease) = give(&table, &mut groups);
            assert!(batches.insert(lease.batch), "{lease:?} again");
            table.close();
            let file = OpenOptions::new().write(true).open(last_segment(dir.path())).unwrap();
            match lost {
                0 => file.set_len(len).unwrap(),
                1 => fs::remove_dir_all(dir.path().join("journal")).unwrap(),
                _ => {}
            }
            let table = open(&config, dir.path());
            let status = |hold| match table.apply(&marked(hold, 0, 0, 1)).unwrap() {
                Outcome::Appended(status) => status,
                other => panic!("{other:?}"),
            };
            let fenced = table.info().counts.fenced;
            if lost < 2 {
                assert_eq!(status(hold), GroupStatus::Expired);
                let refused = table.apply(&Change::Ack(lease)).unwrap_err().to_string();
                let why = "the table went on from a moment that is older than the batch";
                assert!(refused.ends_with(why), "{refused}");
                assert_eq!(table.info().counts.fenced, fenced + 2);
            } else {
                holds.push(hold);
                leases.push(lease);
            }
            // What the journal has is theirs to whom it was given.
            let is_there = lost != 1;
            for hold in holds.drain(..).filter(|_| is_there) {
                assert_eq!(status(hold), GroupStatus::Complete);
            }
            for lease in leases.drain(..).filter(|_| is_there) {
                assert_eq!(table.apply(&Change::Ack(lease)), Ok(Outcome::Count(2)));
            }
            let (hold, lease) = give(&table, &mut groups);
            assert!(batches.insert(lease.batch), "{lease:?} again");
            holds.push(hold);
            leases.push(lease);
            let counts = table.info().counts;
            table.close();
            let mut past = History::open(dir.path(), None).unwrap();
            while past.next_share(u64::MAX).unwrap().flatten().is_some() {}
            assert_eq!(past.ledger().unwrap().counts(), counts);
            drop(past);
            let past = past_at(dir.path(), Point::Batch(lease.batch)).unwrap();
            assert_eq!(past.ledger().unwrap().counts().batches, counts.batches);
            drop(past);
            let none = past_at(dir.path(), Point::Batch(lease.batch - 1)).unwrap_err();
            assert!(none.to_string().contains("does not have Batch"), "{none}");
        }
        let many = groups.len();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), many, "a reservation was given twice");
    }
}

/// Producers and consumers in threads of their own, until this many batches were delivered; what they looked like.
fn race(table: &RolloutTable, batches: u64) -> Vec<(u64, u32, u32, Vec<u8>)> {
    let (seen, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (config, seen_by, is_over) = (table.config(), &seen, &over);
    std::thread::scope(|scope| {
        for producer in 0..3_u32 {
            scope.spawn(move || {
                let mut mark = producer << 16;
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(Outcome::Reserved(reservations)) = table.apply(&reserve(2)) else {
                        std::thread::yield_now();
                        continue;
                    };
                    for reservation in reservations {
                        for item in 0..2 {
                            let version = reservation.version;
                            let change = marked(reservation.hold, item, version, mark);
                            mark += 1;
                            table.apply(&change).unwrap();
                        }
                        // Some leave, some are late.
                        if mark % 11 == 0 {
                            let holds = vec![reservation.hold];
                            table.apply(&Change::Suspend { holds }).unwrap();
                        }
                    }
                }
            });
        }
        for rank in 0..2_u32 {
            scope.spawn(move || {
                let mut version = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let want = echoic_replay::rollouts::ledger::Want {
                        rank,
                        ranks: 2,
                        ..want(2, Some(50))
                    };
                    let Ok(Outcome::Delivered(share)) = table.apply(&Change::Sample(want)) else {
                        std::thread::yield_now();
                        continue;
                    };
                    let lease = share.lease;
                    let bytes = laid_out(&share, config);
                    seen_by.lock().unwrap().push((lease.batch, lease.rank, lease.attempt, bytes));
                    if lease.batch % 5 == 0 && lease.attempt == 1 {
                        table.apply(&Change::Nack(lease)).unwrap();
                        continue;
                    }
                    let _ = table.apply(&Change::Ack(lease));
                    if rank == 0 {
                        version = version.max(share.target + 1);
                        let _ = table.apply(&Change::Publish { version });
                    }
                    // Their numbers say nothing of how many there are.
                    if table.info().counts.batches >= batches {
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    seen.into_inner().unwrap()
}

#[test]
fn a_history_delivers_bit_by_bit_what_racing_threads_got() {
    for (order, on_stale) in [
        (Order::Submission, OnStale::Drop),
        (Order::Ready, OnStale::Wait),
        (Order::Weighted, OnStale::Mask),
    ] {
        let dir = tempdir();
        let config = RolloutConfig { order, on_stale, ..pairs() };
        let mut live = Vec::new();
        // Also over the end of the process, and with checkpoints in between.
        for batches in [40, 80] {
            let table = open(&config, dir.path());
            live.extend(race(&table, batches));
            table.checkpoint().unwrap();
            live.extend(race(&table, batches + 20));
        }
        let mut past = History::open(dir.path(), None).unwrap();
        assert_eq!(past.record(), 0);
        let (mut replayed, mut last) = (Vec::new(), 0);
        while let Some(delivered) = past.next_share(u64::MAX).unwrap().flatten() {
            let lease = delivered.share.lease;
            assert!(delivered.record > last);
            last = delivered.record;
            let bytes = laid_out(&delivered.share, past.config().unwrap());
            replayed.push((lease.batch, lease.rank, lease.attempt, bytes));
        }
        // Threads noted what they got when they had it, in some order.
        live.sort();
        replayed.sort();
        // Of each of the hundred batches at least one rank has its share.
        assert!(replayed.len() >= 100, "{}", replayed.len());
        assert_eq!(live, replayed, "{order:?}");
    }
}

#[test]
fn a_table_can_be_looked_at_as_it_was_at_any_time() {
    let (dir, config) = (tempdir(), RolloutConfig { order: Order::Weighted, ..pairs() });
    let table = open(&config, dir.path());
    race(&table, 20);
    table.checkpoint().unwrap();
    race(&table, 40);
    table.checkpoint().unwrap();
    race(&table, 60);
    drop(table);
    let mut past = History::open(dir.path(), None).unwrap();
    let mut states = Vec::new();
    while past.record() < past.end() {
        let next = past.record() + 1;
        assert_eq!(past.at(Point::Record(next), u64::MAX).unwrap(), Some(true));
        let ledger = past.ledger().unwrap();
        states.push((past.time(), ledger.counts().batches, bytes(ledger)));
    }
    let end = states.len() as u64;
    assert_eq!(past.at(Point::Record(end + 1), u64::MAX).unwrap(), Some(false));
    for record in [1, end / 3, end / 2, end - 1, end] {
        let past = past_at(dir.path(), Point::Record(record)).unwrap();
        assert_eq!(past.record(), record);
        assert!(bytes(past.ledger().unwrap()) == states[record as usize - 1].2, "{record}");
    }
    for batch in [1, 20, 41, 59] {
        let past = past_at(dir.path(), Point::Batch(batch)).unwrap();
        let first = states.iter().position(|(_, batches, _)| *batches >= batch).unwrap();
        assert_eq!(past.record(), first as u64 + 1);
        assert!(bytes(past.ledger().unwrap()) == states[first].2, "batch {batch}");
    }
    let last = states.last().unwrap().0;
    for time in [0, last / 2, last] {
        let past = past_at(dir.path(), Point::Time(time)).unwrap();
        let after = states.partition_point(|(when, ..)| *when <= time);
        assert_eq!(past.record(), after as u64, "time {time}");
        assert!(bytes(past.ledger().unwrap()) == states[after - 1].2, "time {time}");
    }
}

#[test]
fn a_history_goes_on_in_small_steps() {
    let (dir, config) = (tempdir(), pairs());
    let table = open(&config, dir.path());
    race(&table, 20);
    drop(table);
    let (mut past, mut first) = (History::open(dir.path(), None).unwrap(), None);
    while first.is_none() {
        first = past.next_share(1).unwrap().map(Option::unwrap);
    }
    assert_eq!(first.unwrap().record + 1, past.record());
    // A point that is further away than this many records is not reached, and then it is.
    let mut past = History::open(dir.path(), None).unwrap();
    assert_eq!(past.at(Point::Record(5), 3).unwrap(), None);
    assert_eq!(past.record(), 3);
    assert_eq!(past.at(Point::Record(5), 3).unwrap(), Some(true));
    assert!(past.check(Point::Record(5)).is_ok());
    let none = past.check(Point::Record(6)).unwrap_err();
    assert!(none.to_string().contains("does not have Record(6)"), "{none}");
}

#[test]
fn what_a_caller_got_that_never_hears_of_it_is_given_back() {
    let table =
        RolloutTable::new(RolloutConfig { group_size: 1, redundancy: 0, ..pairs() }).unwrap();
    let outcome = call(&table, &reserve(2)).unwrap();
    assert_eq!(table.info().counts.running, 2);
    table.take_back(&outcome);
    let counts = table.info().counts;
    assert_eq!((counts.running, counts.rejected), (0, 2));
    let outcome = call(&table, &reserve(1)).unwrap();
    // A group that was left is left again.
    let Outcome::Reserved(reservations) = outcome else { panic!("{outcome:?}") };
    call(&table, &Change::Suspend { holds: vec![reservations[0].hold] }).unwrap();
    let resume = Change::Resume { source: String::new(), ttl_ms: None };
    let outcome = call(&table, &resume).unwrap();
    assert_eq!(table.info().totals.suspended, 0);
    table.take_back(&outcome);
    assert_eq!(table.info().totals.suspended, 1);
    // A share that is leased is the next one's.
    let Outcome::Reserved(reservations) = call(&table, &reserve(2)).unwrap() else { panic!() };
    for reservation in reservations {
        call(&table, &marked(reservation.hold, 0, 0, 1)).unwrap();
    }
    let leased = Change::Sample(want(2, Some(60_000)));
    let outcome = call(&table, &leased).unwrap();
    table.take_back(&outcome);
    let (Outcome::Delivered(first), Outcome::Delivered(again)) =
        (outcome, call(&table, &leased).unwrap())
    else {
        panic!()
    };
    assert_eq!((again.lease.batch, again.lease.attempt), (first.lease.batch, 2));
    // Of what changed nothing for anybody, nothing is taken back.
    table.take_back(&Outcome::Done);
}

#[test]
fn a_directory_has_one_table_at_a_time_and_nobody_writes_while_somebody_looks() {
    let (dir, config) = (tempdir(), pairs());
    let table = open(&config, dir.path());
    let second = RolloutTable::open(config.clone(), dir.path(), HISTORY);
    assert!(matches!(second.unwrap_err(), Error::Locked { .. }));
    let past = History::open(dir.path(), None).unwrap_err();
    assert!(past.to_string().contains("in use: another process has this table open"), "{past}");
    table.close();
    assert!(matches!(table.checkpoint().unwrap_err(), Error::Closed(_)));
    let (one, _two) =
        (History::open(dir.path(), None).unwrap(), History::open(dir.path(), None).unwrap());
    assert_eq!(one.end(), 1);
    let again = RolloutTable::open(config.clone(), dir.path(), HISTORY);
    assert!(matches!(again.unwrap_err(), Error::Locked { .. }));
    drop((one, _two));
    open(&config, dir.path());
    let foreign = tempdir();
    fs::write(foreign.path().join("photo"), b"x").unwrap();
    let refused = RolloutTable::open(config, foreign.path(), HISTORY).unwrap_err();
    assert!(refused.to_string().ends_with("or an empty directory, found \"photo\""), "{refused}");
    assert!(matches!(History::open(foreign.path(), None).unwrap_err(), Error::Foreign { .. }));
    assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 1);
}

#[test]
fn other_settings_are_refused_but_for_those_that_may_change() {
    let (dir, first) = (tempdir(), pairs());
    let table = open(&first, dir.path());
    race(&table, 5);
    let counts = table.info().counts;
    drop(table);
    let other = RolloutConfig { group_size: 3, seed: 9, max_running: 2, ..first.clone() };
    let refused = RolloutTable::open(other, dir.path(), HISTORY).unwrap_err();
    let text = refused.to_string();
    assert!(text.ends_with("settings: group_size is 3, and was 2"), "{text}");
    let narrow = RolloutConfig {
        max_running: 3,
        capacity: 12,
        pipeline_depth: Some(1),
        reservation_ttl_ms: 5_000,
        seed: 9,
        ..first
    };
    let table = open(&narrow, dir.path());
    assert_eq!(table.config().seed, 7, "its random choices go on");
    assert_eq!((table.info().counts, table.info().totals.depth), (counts, Some(1)));
    race(&table, 10);
    let counts = table.info().counts;
    drop(table);
    // What was decided by either is decided so again.
    let mut past = History::open(dir.path(), None).unwrap();
    past.at(Point::Record(u64::MAX), u64::MAX).unwrap();
    assert_eq!(past.ledger().unwrap().counts(), counts);
    assert_eq!(past.config().unwrap().max_running, 3);
}

#[test]
fn a_history_that_differs_says_where() {
    let (dir, config) = (tempdir(), pairs());
    let table = open(&config, dir.path());
    race(&table, 3);
    drop(table);
    let mut records = Vec::new();
    let mut replay = Replay::open(dir.path().join("journal"), None).unwrap();
    while let Some((_, record)) = replay.next_record().unwrap() {
        records.push(record.to_vec());
    }
    drop(replay);
    let mut past = History::open(dir.path(), None).unwrap();
    let first = past.next_share(u64::MAX).unwrap().flatten().unwrap().record as usize;
    drop(past);
    let rewrite = |records: &[Vec<u8>]| {
        fs::remove_dir_all(dir.path().join("journal")).unwrap();
        let (journal, _) = Journal::open(dir.path().join("journal"), Options::default()).unwrap();
        for record in records {
            journal.append(record).unwrap();
        }
    };
    let mut lying = records.clone();
    // The digest is before the time.
    let at = lying[first].len() - 9;
    lying[first][at] ^= 1;
    rewrite(&lying);
    let differs = History::open(dir.path(), None).unwrap().next_share(u64::MAX).unwrap_err();
    let what = format!("at record {first} something else comes of it: batch 1, rank");
    assert!(differs.to_string().contains(&what), "{differs}");
    let refused = RolloutTable::open(config, dir.path(), HISTORY).unwrap_err();
    assert!(refused.to_string().contains(&what), "{refused}");
    // Without the change before it, the share can't come.
    let mut missing = records.clone();
    missing.remove(first - 1);
    rewrite(&missing);
    let mut past = History::open(dir.path(), None).unwrap();
    let end = past.at(Point::Record(u64::MAX), u64::MAX);
    assert!(end.is_err() || past.ledger().unwrap().counts().batches > 0);
    let mut nonsense = records;
    nonsense[1].truncate(5);
    rewrite(&nonsense);
    let error = History::open(dir.path(), None).unwrap().next_share(u64::MAX).unwrap_err();
    assert!(error.to_string().contains("record 1 is invalid"), "{error}");
}

#[test]
fn a_checkpoint_cuts_the_journal_off_unless_the_history_is_kept() {
    let mut config = pairs();
    (config.max_blob_bytes, config.order) = (8 << 20, Order::Submission);
    for history in [false, true] {
        let dir = tempdir();
        let durable = DurableOptions { durability: Durability::Async, history };
        let again = || RolloutTable::open(config.clone(), dir.path(), durable).unwrap();
        let table = again();
        for mark in 0..6 {
            let Outcome::Reserved(reservations) = call(&table, &reserve(1)).unwrap() else {
                panic!()
            };
            for item in 0..2 {
                let mut change = marked(reservations[0].hold, item, mark, 3 * mark as u32);
                let Change::Append(append) = &mut change else { panic!() };
                append.finish = finish(1.0, 7 << 20);
                call(&table, &change).unwrap();
            }
            if mark % 2 == 1 {
                let outcome = call(&table, &Change::Sample(want(2, None))).unwrap();
                let Outcome::Delivered(share) = outcome else { panic!() };
                call(&table, &Change::Publish { version: share.target + 1 }).unwrap();
            }
        }
        assert!(table.journal_info().unwrap().segments > 1);
        table.checkpoint().unwrap();
        let first = table.journal_info().unwrap().first;
        assert_eq!(first == 0, history, "{first}");
        let Outcome::Reserved(_) = call(&table, &reserve(1)).unwrap() else { panic!() };
        let counts = table.info().counts;
        drop(table);
        let table = again();
        assert_eq!(table.info().counts, counts);
        drop(table);
        let mut past = History::open(dir.path(), None).unwrap();
        let mut shares = 0;
        while past.next_share(u64::MAX).unwrap().flatten().is_some() {
            shares += 1;
        }
        assert_eq!(shares, if history { 3 } else { 0 });
        assert_eq!(past.ledger().unwrap().counts(), counts);
        drop(past);
        // Without its journal a checkpoint is not gone on from.
        fs::remove_dir_all(dir.path().join("journal")).unwrap();
        let refused = RolloutTable::open(config.clone(), dir.path(), durable);
        assert!(refused.unwrap_err().to_string().contains("no journal that goes on from them"));
    }
}

#[test]
fn reservations_and_leases_have_their_full_time_again() {
    let (dir, mut config) = (tempdir(), pairs());
    config.reservation_ttl_ms = 400;
    let table = open(&config, dir.path());
    let Outcome::Reserved(reservations) = call(&table, &reserve(3)).unwrap() else { panic!() };
    for reservation in &reservations[..2] {
        for item in 0..2 {
            call(&table, &marked(reservation.hold, item, 0, 1)).unwrap();
        }
    }
    let Outcome::Delivered(share) = call(&table, &Change::Sample(want(2, Some(300)))).unwrap()
    else {
        panic!()
    };
    let time = table.now();
    drop(table);
    let table = open(&config, dir.path());
    let (began, due) = (table.now(), table.next_due().unwrap());
    let left = due.saturating_duration_since(std::time::Instant::now()).as_millis() as u64;
    assert!((250..=300).contains(&left), "{left}");
    assert!(began <= time + 100);
    // Whoever had them goes on.
    assert_eq!(call(&table, &Change::Ack(share.lease)), Ok(Outcome::Count(2)));
    let append = call(&table, &marked(reservations[2].hold, 0, 0, 1)).unwrap();
    assert_eq!(append, Outcome::Appended(echoic_replay::rollouts::ledger::GroupStatus::Running));
}

#[test]
fn what_time_has_ended_is_over_also_when_only_a_refusal_saw_it() {
    let (dir, config) = (tempdir(), RolloutConfig { reservation_ttl_ms: 2, ..pairs() });
    let table = open(&config, dir.path());
    call(&table, &reserve(3)).unwrap();
    while table.info().counts.expired < 3 {
        let refused = table.apply(&Change::Sample(want(2, None)));
        assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
        std::thread::yield_now();
    }
    let counts = table.info().counts;
    drop(table);
    // Else these reservations would have their time again.
    assert_eq!(open(&config, dir.path()).info().counts, counts);
}
