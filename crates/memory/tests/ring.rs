//! What callers of the ring and its store may rely on. Interleavings are in `loom.rs`.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::{BatchStore, Blocked, Lease, Ring, Unavailable, Writer};
use proptest::prelude::*;

fn store(buffers: usize, batch_size: usize) -> Arc<BatchStore> {
    Arc::new(BatchStore::new(buffers, batch_size, &[8, 1]).unwrap())
}

/// Reserves slots, waiting for room until `deadline`.
fn reserve(
    store: &BatchStore,
    len: usize,
    deadline: Option<Instant>,
) -> Result<Writer<'_>, Unavailable> {
    loop {
        match store.try_reserve(len) {
            Err(Unavailable::Blocked(_)) => store.wait_for_room(deadline)?,
            other => return other,
        }
    }
}

/// Stores one value in both columns; `false` when there is no room.
fn push(store: &BatchStore, value: u64) -> bool {
    match store.try_reserve(1) {
        Ok(mut writer) => {
            writer.column_mut(0).copy_from_slice(&value.to_ne_bytes());
            writer.column_mut(1).copy_from_slice(&[value as u8]);
            writer.commit(|| value + 1);
            true
        }
        Err(_) => false,
    }
}

/// The values of a batch, after checking that its columns agree.
fn values(batch: &Lease) -> Vec<u64> {
    let (wide, narrow) = (batch.column(0), batch.column(1));
    let values: Vec<u64> =
        wide.chunks(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(narrow, values.iter().map(|value| *value as u8).collect::<Vec<_>>());
    assert_eq!(values.len(), batch.rows());
    values
}

#[test]
fn a_batch_is_taken_when_its_last_slot_is_committed() {
    let store = store(2, 3);
    assert!(push(&store, 0) && push(&store, 1));
    assert!(store.try_take().is_none());
    assert!(push(&store, 2));
    let batch = store.try_take().unwrap();
    assert_eq!((values(&batch), batch.sequence(), batch.stamp()), (vec![0, 1, 2], 0, 3));
}

#[test]
fn a_later_batch_waits_for_the_one_before() {
    let store = store(3, 1);
    let slow = store.try_reserve(1).unwrap();
    assert!(push(&store, 1));
    assert!(store.try_take().is_none(), "batch 1 may not overtake batch 0");
    slow.commit(|| 0);
    assert_eq!(store.try_take().unwrap().sequence(), 0);
    assert_eq!(store.try_take().unwrap().sequence(), 1);
}

#[test]
fn a_kept_batch_costs_one_buffer_and_stops_nobody() {
    let store = store(3, 2);
    assert!(push(&store, 0) && push(&store, 1));
    let kept = store.try_take().unwrap();
    for lap in 1..50 {
        assert!(push(&store, 2 * lap) && push(&store, 2 * lap + 1), "lap {lap}");
        assert_eq!(values(&store.try_take().unwrap()), [2 * lap, 2 * lap + 1]);
    }
    assert_eq!(values(&kept), [0, 1]);
}

#[test]
fn a_run_ends_where_its_batch_ends() {
    let store = store(2, 4);
    store.try_reserve(3).unwrap().commit(|| 0);
    let run = store.try_reserve(usize::MAX).unwrap();
    assert_eq!((run.first(), run.len()), (3, 1));
}

#[test]
fn a_refused_producer_learns_why() {
    let store = store(2, 1);
    assert!(push(&store, 0) && push(&store, 1));
    assert_eq!(store.try_reserve(1).unwrap_err(), Unavailable::Blocked(Blocked::Capacity));
    let held = [store.try_take().unwrap(), store.try_take().unwrap()];
    assert_eq!(store.try_reserve(1).unwrap_err(), Unavailable::Blocked(Blocked::Leased));
    drop(held);
    assert!(push(&store, 2));
}

#[test]
fn a_dropped_run_is_filled_by_whoever_comes_next() {
    let store = store(2, 3);
    assert!(push(&store, 0));
    let dropped = store.try_reserve(1).unwrap();
    assert!(push(&store, 2));
    drop(dropped);
    assert!(store.try_take().is_none());
    assert!(push(&store, 3));
    assert_eq!(values(&store.try_take().unwrap()), [0, 3, 2]);
    assert_eq!(store.counts().aborted, 1);
}

#[test]
fn a_writer_that_panics_leaves_no_hole() {
    let store = store(2, 2);
    let writing = std::panic::AssertUnwindSafe(|| {
        let _writer = store.try_reserve(1).unwrap();
        panic!("the conversion failed");
    });
    assert!(std::panic::catch_unwind(writing).is_err());
    assert!(push(&store, 0) && push(&store, 1));
    assert_eq!(values(&store.try_take().unwrap()), [0, 1]);
}

#[test]
fn a_dropped_run_wakes_a_producer_that_found_the_ring_full() {
    let store = store(1, 2);
    assert!(push(&store, 0));
    let held = store.try_reserve(1).unwrap();
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| reserve(&store, 1, None).unwrap().commit(|| 0));
        // Long enough to park. Should it not have, the test passes all the same.
        std::thread::sleep(Duration::from_millis(5));
        drop(held);
        producer.join().unwrap();
    });
    assert!(store.try_take().is_some());
}

#[test]
fn waits_end_at_their_deadline() {
    let store = store(1, 1);
    let soon = || Some(Instant::now() + Duration::from_millis(20));
    assert_eq!(store.take(soon()).unwrap_err(), Unavailable::Blocked(Blocked::Empty));
    assert!(push(&store, 0));
    assert_eq!(reserve(&store, 1, soon()).unwrap_err(), Unavailable::Blocked(Blocked::Capacity));
}

#[test]
fn closing_ends_intake_and_leaves_complete_batches_and_the_remainder() {
    let store = store(3, 2);
    (0..5).for_each(|value| assert!(push(&store, value)));
    store.close();
    store.close();
    assert_eq!(store.try_reserve(1).unwrap_err(), Unavailable::Closed);
    assert_eq!(values(&store.take(None).unwrap()), [0, 1]);
    assert_eq!(values(&store.take(None).unwrap()), [2, 3]);
    assert_eq!(store.take(None).unwrap_err(), Unavailable::Closed);
    assert_eq!((store.counts().partial, store.counts().stored), (1, 1));
    assert_eq!(values(&store.take_remainder(None).unwrap().unwrap()), [4]);
    let counts = store.counts();
    assert_eq!((counts.committed, counts.partial, counts.stored, counts.leased), (5, 0, 0, 0));
    assert!(store.take_remainder(None).unwrap().is_none());
}

#[test]
fn closing_with_holes_loses_no_row_behind_them() {
    let store = store(3, 2);
    let whole_batch = store.try_reserve(2).unwrap();
    assert!(push(&store, 10) && push(&store, 11) && push(&store, 12));
    store.close();
    drop(whole_batch);
    assert_eq!(values(&store.take(None).unwrap()), [10, 11]);
    assert_eq!(store.take(None).unwrap_err(), Unavailable::Closed);
    assert_eq!(values(&store.take_remainder(None).unwrap().unwrap()), [12]);
}

#[test]
fn a_consumer_that_waits_through_a_close_gets_what_the_last_writer_commits() {
    let store = store(2, 1);
    let last = store.try_reserve(1).unwrap();
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| store.take(None).map(|batch| batch.sequence()));
        store.close();
        std::thread::sleep(Duration::from_millis(5));
        last.commit(|| 0);
        assert_eq!(consumer.join().unwrap(), Ok(0));
    });
}

/// The last writer of a batch still has to publish it after its commit was counted.
#[test]
fn a_close_between_commit_and_publish_waits_for_the_publisher() {
    let ring = Ring::new(2, 2);
    let given_up = ring.try_reserve(1).unwrap();
    ring.try_reserve(1).unwrap().commit(|| 1);
    let whole = ring.try_reserve(2).unwrap();
    drop(given_up);
    whole.commit(|| {
        ring.close();
        assert!(!ring.settle(|_, _| panic!("no row may move yet")));
        1
    });
    assert!(ring.settle(|from, to| assert_eq!((from.buffer, to.buffer), (0, 0))));
    assert_eq!(ring.try_take().map(|claim| (claim.buffer(), claim.rows())), Some((1, 2)));
    assert!(ring.try_take().is_none());
    assert_eq!(ring.take_remainder().map(|claim| (claim.buffer(), claim.rows())), Some((0, 1)));
    assert_eq!(ring.counts().completed, 1);
}

#[test]
fn a_lease_outlives_its_store() {
    let store = store(2, 1);
    assert!(push(&store, 7));
    let batch = store.try_take().unwrap();
    store.close();
    drop(store);
    assert_eq!(values(&batch), [7]);
}

#[test]
fn every_batch_of_every_column_is_aligned() {
    let store = Arc::new(BatchStore::new(3, 5, &[1, 28_224, 0, 20]).unwrap());
    let batches: Vec<Lease> = (0..3)
        .map(|_| {
            store.try_reserve(5).unwrap().commit(|| 0);
            store.try_take().unwrap()
        })
        .collect();
    for batch in &batches {
        for column in 0..4 {
            assert_eq!(batch.column_pointer(column) as usize % 64, 0, "column {column}");
        }
    }
}

#[test]
fn sizes_past_an_address_are_refused() {
    assert!(BatchStore::new(2, usize::MAX / 2, &[1]).is_err());
    assert!(BatchStore::new(2, 4, &[usize::MAX / 4, usize::MAX / 4]).is_err());
    for (buffers, batch_size) in [(usize::MAX, 2), (2, 1 << 45), (1 << 58, 1)] {
        assert!(BatchStore::new(buffers, batch_size, &[0]).is_err(), "{buffers} {batch_size}");
    }
}

/// Threads push, abort, take and keep at random; every pushed value must come out exactly once.
#[test]
fn threads_lose_nothing_and_duplicate_nothing() {
    const PRODUCERS: u64 = 4;
    const EACH: u64 = if cfg!(miri) { 60 } else { 30_000 };
    for (buffers, batch_size) in [(2, 1), (3, 7), (4, 64)] {
        let store = store(buffers, batch_size);
        let mut received: Vec<u64> = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..PRODUCERS)
                .map(|producer| {
                    let store = &store;
                    scope.spawn(move || {
                        for value in producer * EACH..(producer + 1) * EACH {
                            if value % 13 == 0 {
                                drop(reserve(store, 2, None).unwrap());
                            }
                            let mut writer = reserve(store, 1, None).unwrap();
                            writer.column_mut(0).copy_from_slice(&value.to_ne_bytes());
                            writer.column_mut(1).copy_from_slice(&[value as u8]);
                            writer.commit(|| 1);
                        }
                    })
                })
                .collect();
            let consumers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut received, mut kept) = (Vec::new(), VecDeque::new());
                        loop {
                            match store.take(None) {
                                Ok(batch) => {
                                    received.extend(values(&batch));
                                    // Keeping one of three buffers must not stop the others.
                                    kept.push_back(batch);
                                    if kept.len() * 3 > buffers {
                                        kept.pop_front();
                                    }
                                }
                                Err(refusal) => {
                                    assert_eq!(refusal, Unavailable::Closed);
                                    return received;
                                }
                            }
                        }
                    })
                })
                .collect();
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            store.close();
            consumers.into_iter().flat_map(|consumer| consumer.join().unwrap()).collect()
        });
        received.extend(store.take_remainder(None).unwrap().iter().flat_map(values));
        received.sort_unstable();
        assert!(received.into_iter().eq(0..PRODUCERS * EACH), "{buffers} × {batch_size}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(usize),
    Commit(usize),
    Abort(usize),
    Take,
    Release(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1usize..6).prop_map(Step::Reserve),
        (0usize..8).prop_map(Step::Commit),
        (0usize..8).prop_map(Step::Abort),
        Just(Step::Take),
        (0usize..8).prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 512 }))]

    /// In one thread, whatever the order of calls, every committed value comes out exactly once.
    #[test]
    fn any_order_of_calls_keeps_every_committed_value(
        buffers in 1usize..5,
        batch_size in 1usize..6,
        steps in steps(),
    ) {
        let store = store(buffers, batch_size);
        let (mut runs, mut held) = (Vec::new(), Vec::new());
        let (mut next, mut committed, mut received) = (0u64, Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Reserve(len) => runs.extend(store.try_reserve(len).ok()),
                Step::Commit(at) if !runs.is_empty() => {
                    let mut run = runs.swap_remove(at % runs.len());
                    let new: Vec<u64> = (next..next + run.len() as u64).collect();
                    next += run.len() as u64;
                    let wide: Vec<u8> = new.iter().flat_map(|value| value.to_ne_bytes()).collect();
                    let narrow: Vec<u8> = new.iter().map(|value| *value as u8).collect();
                    run.column_mut(0).copy_from_slice(&wide);
                    run.column_mut(1).copy_from_slice(&narrow);
                    run.commit(|| 1);
                    committed.extend(new);
                }
                Step::Abort(at) if !runs.is_empty() => drop(runs.swap_remove(at % runs.len())),
                Step::Take => {
                    if let Some(batch) = store.try_take() {
                        prop_assert_eq!(batch.rows(), batch_size);
                        received.extend(values(&batch));
                        held.push(batch);
                    }
                }
                Step::Release(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                _ => {}
            }
            prop_assert_eq!(store.counts().committed, committed.len() as u64);
            prop_assert_eq!(store.counts().leased, held.len());
        }
        store.close();
        drop(runs);
        while let Ok(batch) = store.take(None) {
            prop_assert_eq!(batch.rows(), batch_size);
            received.extend(values(&batch));
        }
        if let Some(rest) = store.take_remainder(None).unwrap() {
            prop_assert!(rest.rows() < batch_size);
            received.extend(values(&rest));
        }
        received.sort_unstable();
        prop_assert_eq!(received, committed);
    }
}

#[test]
#[should_panic(expected = "a ring needs buffers and slots")]
fn a_ring_without_slots_is_refused() {
    let _ = Ring::new(1, 0);
}

/// Everything that was not taken, in order; `None` while a thread writes.
fn unread(store: &BatchStore) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    let read = store.read_unread(|rows, columns| {
        let values =
            columns[0].chunks(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()));
        let before = all.len();
        all.extend(values);
        let narrow: Vec<u8> = all[before..].iter().map(|value| *value as u8).collect();
        assert_eq!((all.len() - before, &narrow[..]), (rows, columns[1]));
    });
    read.ok().map(|()| all)
}

#[test]
fn what_nobody_took_can_be_read_and_is_taken_later() {
    let store = store(3, 2);
    assert!((0..5).all(|value| push(&store, value)));
    assert_eq!(values(&store.try_take().unwrap()), [0, 1]);
    assert_eq!(unread(&store).unwrap(), [2, 3, 4]);
    // A slot that its writer gave up is none, and a sample that is being written is not there yet.
    let given_up = store.try_reserve(1).unwrap();
    assert_eq!(unread(&store), None);
    drop(given_up);
    assert_eq!(unread(&store).unwrap(), [2, 3, 4]);
    assert!(push(&store, 5));
    assert_eq!(unread(&store).unwrap(), [2, 3, 4, 5]);
    assert_eq!(values(&store.try_take().unwrap()), [2, 3]);
    assert_eq!(values(&store.try_take().unwrap()), [4, 5]);
    assert_eq!(unread(&store).unwrap(), []);
}

#[test]
fn a_remainder_can_be_read_until_it_is_taken() {
    let store = store(2, 3);
    assert!((0..4).all(|value| push(&store, value)));
    store.close();
    assert_eq!(unread(&store).unwrap(), [0, 1, 2, 3]);
    assert_eq!(values(&store.take(None).unwrap()), [0, 1, 2]);
    assert_eq!(store.take(None).err(), Some(Unavailable::Closed));
    assert_eq!(unread(&store).unwrap(), [3]);
    assert_eq!(values(&store.take_remainder(None).unwrap().unwrap()), [3]);
    assert_eq!(unread(&store).unwrap(), []);
}

#[test]
fn reading_what_nobody_took_disturbs_neither_producers_nor_consumers() {
    const SAMPLES: u64 = 40_000;
    let store = store(4, 8);
    let mut looks = 0;
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 0..SAMPLES {
                let mut writer = reserve(&store, 1, None).unwrap();
                writer.column_mut(0).copy_from_slice(&value.to_ne_bytes());
                writer.column_mut(1).copy_from_slice(&[value as u8]);
                writer.commit(|| 0);
            }
        });
        let consumer = scope.spawn(|| {
            let mut received = Vec::new();
            while received.len() < SAMPLES as usize {
                received.extend(values(&store.take(None).unwrap()));
            }
            received
        });
        while !consumer.is_finished() {
            // From one producer they come in a row, without a gap.
            if let Some(all) = unread(&store) {
                looks += usize::from(!all.is_empty());
                assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "{all:?}");
                assert!(all.len() <= 32);
            }
        }
        consumer.join().unwrap()
    });
    assert!(received.into_iter().eq(0..SAMPLES));
    assert!(looks > 0);
}
