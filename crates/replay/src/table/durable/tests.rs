//! What happens when there is no room in a journal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::log::EffectLog;
use crate::WaitReason;
use crate::journal::{Journal, Options};
use crate::stream::Wait;
use crate::table::core::Core;
use crate::table::{Form, Obstacle, Table, TableConfig, TableError};
use crate::{Dtype, Leaf, Spec};

const QUEUE: usize = 1000;

fn table(dir: &std::path::Path, max_times_sampled: u32) -> Arc<Table> {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![100] };
    let form = Form::Rows(Spec::new(vec![leaf]).unwrap());
    let config = TableConfig { max_times_sampled, ..TableConfig::new("t", form, 50) };
    let table = Arc::new(Table::new(config.clone()).unwrap());
    let options = Options { queue_bytes: QUEUE, ..Options::default() };
    let (journal, _) = Journal::open(dir, options).unwrap();
    let log = EffectLog::new(&table, journal, "id".into(), 0);
    table.install(Core::new(&config, &table.room).unwrap(), Some(log));
    table
}

fn keep(table: &Table) {
    table.keep(Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!() }).unwrap();
}

#[test]
fn inserts_wait_for_room_in_the_journal_and_samples_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path(), 0);
    table.try_reserve(1).unwrap().commit(&[1.0], None).unwrap();
    keep(&table);
    let journal = table.log().unwrap().journal();
    let room = journal.try_room(QUEUE).unwrap().unwrap();
    assert_eq!(table.try_reserve(1).unwrap_err(), Obstacle::Blocked(WaitReason::Capacity));
    let before = journal.next();
    table.try_sample(3).unwrap();
    table.try_sample(4).unwrap();
    assert_eq!(journal.next(), before, "counts wait for room");
    // What a caller waits for is not held up by others, and is little.
    assert_eq!(table.update_priorities(&table.items().keys, &[2.0]), Ok(1));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!() };
            table.reserve(1, wait).unwrap().commit(&[1.0], None).unwrap();
        });
        // Whether it waits already or not, it must see the room.
        std::thread::sleep(Duration::from_millis(10));
        drop(room);
        waiting.join().unwrap();
    });
    table.try_sample(5).unwrap();
    keep(&table);
    assert_eq!(journal.info().held_bytes, 0, "all room was given back");
    table.close();

    let (_, mut replay) = Journal::open(dir.path(), Options::default()).unwrap();
    let mut samples = 0;
    while let Some((_, record)) = replay.next_record().unwrap() {
        if let super::entry::Entry::Sampled { count, .. } =
            super::entry::Entry::read(record).unwrap()
        {
            samples += count;
        }
    }
    assert_eq!(samples, 12);
}

#[test]
fn room_that_an_insertion_does_not_use_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path(), 0);
    for _ in 0..20 {
        drop(table.try_reserve(3).unwrap());
    }
    assert_eq!(table.log().unwrap().journal().info().held_bytes, 0);
}

#[test]
fn changes_and_draws_that_are_told_wait_for_a_disk_that_is_stalled() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path(), 1);
    for _ in 0..3 {
        table.try_reserve(1).unwrap().commit(&[1.0], None).unwrap();
        keep(&table);
    }
    let room = table.log().unwrap().journal().try_room(QUEUE).unwrap().unwrap();
    let full = Obstacle::Blocked(WaitReason::Capacity);
    assert_eq!(table.check_room(), Err(full.clone()));
    assert_eq!(table.try_sample(1).unwrap_err(), full);
    assert_eq!(table.blocked().sample, Some(WaitReason::Capacity));
    let none =
        Wait { deadline: Some(Instant::now()), tick: None, on_tick: &mut |_| unreachable!() };
    assert_eq!(table.wait_for_room(none), Err(TableError::TimedOut(WaitReason::Capacity)));
    std::thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!() };
            table.sample(1, wait).unwrap().len()
        });
        let changing = scope.spawn(|| {
            let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| unreachable!() };
            table.wait_for_room(wait).unwrap();
        });
        while table.info().sample_waits.waiting == 0 {
            std::thread::yield_now();
        }
        drop(room);
        assert_eq!(sampling.join().unwrap(), 1);
        changing.join().unwrap();
    });
    assert_eq!(table.info().size, 2);
}
