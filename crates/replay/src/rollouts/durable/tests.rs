//! What happens when there is no room in the journal of a rollout table.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::super::config::{Order, RolloutConfig};
use super::super::item::{Finish, Run, Segment};
use super::super::ledger::{
    Append, Balance, Blocked, Change, ChangeError, GroupStatus, Hold, Outcome, Reserve, Size, Want,
};
use super::super::schema::{Column, Schema};
use super::super::table::{CallError, RolloutTable};
use super::replayed::Replayed;
use super::{Durability, DurableOptions, entry};
use crate::WaitReason;
use crate::journal::Options;
use crate::spec::Dtype;
use crate::stream::Wait;

/// Groups of one item, in the order of their reservation.
pub(in crate::rollouts) fn config() -> RolloutConfig {
    let ids = Column { name: "ids".into(), dtype: Dtype::UInt(1), shape: vec![] };
    RolloutConfig {
        max_running: 64,
        capacity: 64,
        max_tokens: 2000,
        order: Order::Submission,
        reservation_ttl_ms: 600_000,
        ..RolloutConfig::new("t", Schema { columns: vec![ids], ..Schema::default() }, 1, 2)
    }
}

pub(super) fn open(
    dir: &Path,
    durability: Durability,
    options: Options,
) -> Result<RolloutTable, crate::Error> {
    let durable = DurableOptions { durability, history: false };
    RolloutTable::open_with(config(), dir, durable, options)
}

pub(super) fn call(table: &RolloutTable, change: &Change) -> Result<Outcome, CallError> {
    let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
    table.call(change, wait)
}

pub(super) fn reserve() -> Change {
    Change::Reserve(Reserve { count: 1, source: "s".into(), ..Reserve::default() })
}

pub(super) fn item(hold: Hold, tokens: u32) -> Change {
    let runs = [Run { version: 0, tokens }].into_iter().collect();
    let segment = Arc::new(Segment {
        runs,
        tokens,
        bytes: vec![hold.group as u8; tokens as usize],
        absent: 0,
    });
    let finish = Some(Arc::new(Finish::default()));
    Change::Append(Append { hold, item: 0, sequence: 0, segment, finish, priority: 1.0 })
}

pub(super) fn sample(groups: u32) -> Change {
    let (size, balance) = (Size::Groups(groups), Balance::Count);
    Change::Sample(Want { size, rank: 0, ranks: 1, balance, lease_ms: Some(600_000), width: 0 })
}

#[test]
fn reservation_waits_for_room_in_the_journal_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { queue_bytes: 2000, ..Options::default() };
    let table = open(&dir.path().join("t"), Durability::Async, options).unwrap();
    let Ok(Outcome::Reserved(reservations)) = call(&table, &reserve()) else { panic!() };
    let room = table.log().unwrap().journal().try_room(2000).unwrap().unwrap();
    let blocked = Blocked::Limiter(WaitReason::Capacity);
    assert_eq!(table.apply(&reserve()), Err(CallError::Refused(ChangeError::Blocked(blocked))));
    let hold = reservations[0].hold;
    assert_eq!(table.apply(&item(hold, 100)), Ok(Outcome::Appended(GroupStatus::Complete)));
    assert!(matches!(table.apply(&sample(1)), Ok(Outcome::Delivered(_))));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call(&table, &reserve()));
        // Whether it waits already or not, it must see the room.
        std::thread::sleep(Duration::from_millis(10));
        drop(room);
        assert!(matches!(waiting.join().unwrap(), Ok(Outcome::Reserved(_))));
    });
    table.close();
    assert_eq!(table.journal_info().unwrap().held_bytes, 0);
}

#[test]
fn a_change_that_is_larger_than_a_record_is_refused_and_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { queue_bytes: 1500, ..Options::default() };
    let table = open(&dir.path().join("t"), Durability::Async, options).unwrap();
    let Ok(Outcome::Reserved(reservations)) = table.apply(&reserve()) else { panic!() };
    let refused = table.apply(&item(reservations[0].hold, 1600)).unwrap_err();
    assert!(
        matches!(&refused, CallError::Journal(text) if text.contains("in several parts")),
        "{refused}"
    );
    // A blob that is there so often that no memory could take all of it.
    let Change::Append(mut append) = item(reservations[0].hold, 1) else { panic!() };
    let blob = Arc::new(vec![0; 1 << 30]);
    let blobs = vec![(String::new(), blob); 1 << 17];
    append.finish = Some(Arc::new(Finish { blobs, ..Finish::default() }));
    table.apply(&Change::Append(append)).unwrap_err();
    assert_eq!(table.info().counts.tokens, 0);
    let kept = table.apply(&item(reservations[0].hold, 10));
    assert_eq!(kept, Ok(Outcome::Appended(GroupStatus::Complete)));
}

/// An opening, as it is written.
fn opening(again: bool) -> Vec<u8> {
    let mut record = entry::opened(&config(), 1_700_000_000_000, again, 0);
    let (len, mut bytes) = (record.len(), Vec::new());
    record.put_with(|frame| bytes.extend_from_slice(&frame[frame.len() - len..]));
    bytes
}

#[test]
fn a_generation_begins_where_a_directory_is_opened_again() {
    for again in [false, true] {
        let mut replayed = Replayed::new("t".into());
        let next = if again { 1_700_000_000_000 << 10 } else { 1 };
        for (at, again, group) in [(0, false, 0), (2, again, next)] {
            replayed.apply(at, &opening(again)).unwrap();
            let reserved = replayed.ledger.as_mut().unwrap().apply(0, &reserve()).unwrap();
            let Outcome::Reserved(reservations) = reserved else { panic!() };
            assert_eq!(reservations[0].hold.group, group);
        }
    }
}

#[test]
fn an_entry_of_another_format_says_so() {
    for other in [5, 7] {
        let mut record = opening(false);
        record[0] = other;
        let refused = Replayed::new("t".into()).apply(7, &record).unwrap_err().to_string();
        let what = format!("record 7 is invalid: it has format {other}; this release reads");
        assert!(refused.ends_with(&format!("{what} format 6")), "{refused}");
    }
}

#[test]
fn blobs_that_no_record_can_have_are_refused_at_the_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let config = RolloutConfig { max_blob_bytes: 64 << 20, ..config() };
    let opened = RolloutTable::open(config, dir.path().join("t"), DurableOptions::default());
    let refused = opened.unwrap_err().to_string();
    assert!(refused.starts_with("max_blob_bytes 67108864 and 0 bytes of fields"), "{refused}");
}
