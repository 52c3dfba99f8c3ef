//! Stops the world before every change that a rollout table makes on disk.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use super::super::ledger::{Change, Outcome};
use super::super::table::{CallError, RolloutTable};
use super::Durability;
use super::tests::{call, item, open, reserve, sample};
use crate::files::faults::{self, Armed};
use crate::journal::Options;

/// The answers that callers got.
#[derive(Debug, Default)]
struct ProgramGauges {
    reserved: u64,
    complete: u64,
    delivered: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    version: i64,
}

fn options() -> Options {
    // Some records to a segment.
    Options { segment_bytes: 300, ..Options::default() }
}

fn round(table: &RolloutTable, told: &mut ProgramGauges) -> Result<(), CallError> {
    for _ in 0..3 {
        let Outcome::Reserved(reservations) = call(table, &reserve())? else { panic!() };
        told.reserved += 1;
        if !told.reserved.is_multiple_of(4) {
            call(table, &item(reservations[0].hold, 20))?;
            told.complete += 1;
        } else {
            call(table, &Change::Fail { holds: vec![reservations[0].hold] })?;
        }
    }
    let Outcome::Delivered(share) = call(table, &sample(2))? else { panic!() };
    let ids: Vec<u64> = share.groups.iter().map(|group| group.id).collect();
    assert!(ids.iter().all(|id| told.delivered.insert(*id)), "{ids:?} came twice");
    if share.lease.batch.is_multiple_of(3) {
        call(table, &Change::Nack(share.lease))?;
        let Outcome::Delivered(again) = call(table, &sample(2))? else { panic!() };
        assert_eq!((again.lease.attempt, &again.groups), (2, &share.groups));
        call(table, &Change::Ack(again.lease))?;
    } else {
        call(table, &Change::Ack(share.lease))?;
    }
    told.acked.extend(ids);
    call(table, &Change::Publish { version: told.version + 1 })?;
    told.version += 1;
    Ok(())
}

/// Works until the world stops.
fn work(dir: &Path, durability: Durability) -> ProgramGauges {
    let mut told = ProgramGauges::default();
    for _ in 0..2 {
        let Ok(table) = open(dir, durability, options()) else { break };
        for number in 0..2 {
            if round(&table, &mut told).is_err() {
                let refused = call(&table, &reserve()).unwrap_err();
                assert!(matches!(refused, CallError::Journal(_)), "{refused}");
                return told;
            }
            if number % 2 == 1 && table.checkpoint().is_err() {
                // The journal may be all right.
                break;
            }
        }
    }
    told
}

fn stop_anywhere(durability: Durability, after: impl Fn(&Armed)) {
    let mut stops = 0;
    loop {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("table");
        let armed = faults::arm(parent.path(), stops, ErrorKind::StorageFull);
        let told = work(&dir, durability);
        let stopped = armed.is_stopped();
        after(&armed);
        drop(armed);
        let table = open(&dir, durability, options()).unwrap();
        let counts = table.info().counts;
        let sum = counts.running + counts.accepted + counts.rejected + counts.filtered;
        assert_eq!(counts.submitted, sum);
        // At most the one change without an answer is there, too.
        for (what, found, told) in [
            ("reserved", counts.submitted, told.reserved),
            ("complete", counts.accepted, told.complete),
            ("delivered", counts.delivered, told.delivered.len() as u64),
            ("acked", counts.acked, told.acked.len() as u64),
            ("version", table.version() as u64, told.version as u64),
        ] {
            assert!((told..=told + 2).contains(&found), "{what}: {found} of {told}, after {stops}");
        }
        // The rest is delivered, and nothing of what was done.
        let mut left = BTreeSet::new();
        while let Ok(Outcome::Delivered(share)) = table.apply(&sample(1)) {
            for group in &share.groups {
                assert!(!told.acked.contains(&group.id), "{} again, after {stops}", group.id);
                assert!(left.insert(group.id));
            }
        }
        table.close();
        if !stopped {
            assert!(stops > 60, "the world was stopped too seldom: {stops}");
            return;
        }
        stops += 1;
    }
}

#[test]
fn a_disk_that_is_full_loses_nothing_that_callers_were_told_of() {
    stop_anywhere(Durability::Async, |_| ());
}

#[test]
fn a_loss_of_power_loses_nothing_that_callers_were_told_of() {
    stop_anywhere(Durability::Sync, Armed::lose_power);
}
