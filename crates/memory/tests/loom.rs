//! The ring, the rows of tables, the window, what wakes the threads that wait for them, and who drives a connection,
//! under every interleaving that loom can find. Run with `make loom`.
#![cfg(loom)]

use echoic_memory::death;
use echoic_memory::lead::{Drive, Lead, Slot};
use echoic_memory::ring::{Claim, Ring, Run, SlotIndex, Unavailable};
use echoic_memory::signal::Signal;
use echoic_memory::slab::{RowWriter, Slab};
use echoic_memory::window::Window;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A ring with one loom cell per slot: loom fails the test on any access that is not ordered.
struct Slots {
    ring: Ring,
    cells: Vec<UnsafeCell<u64>>,
}

// SAFETY: cells are accessed by the rules of the ring, which is what loom checks here.
unsafe impl Sync for Slots {}
// SAFETY: as above.
unsafe impl Send for Slots {}

impl Slots {
    fn new(buffers: usize, batch_size: usize) -> Arc<Self> {
        let cells = (0..buffers * batch_size).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { ring: Ring::new(buffers, batch_size), cells })
    }

    fn cell(&self, buffer: usize, slot: usize) -> &UnsafeCell<u64> {
        &self.cells[buffer * self.ring.batch_size() + slot]
    }

    /// Stores `value`, waiting for room; `false` once closed.
    fn push(&self, value: u64) -> bool {
        let run = loop {
            match self.ring.try_reserve(1) {
                Ok(run) => break run,
                Err(Unavailable::Closed) => return false,
                Err(Unavailable::Blocked(_)) if self.ring.wait_for_room(None).is_err() => {
                    return false;
                }
                Err(Unavailable::Blocked(_)) => {}
            }
        };
        self.write(run, value);
        true
    }

    /// Stores up to `count` values from `first` on, as long as there is room.
    fn push_if_room(&self, first: u64, count: u64) -> Vec<u64> {
        let values = first..first + count;
        values
            .map_while(|value| {
                let run = self.ring.try_reserve(1).ok()?;
                self.write(run, value);
                Some(value)
            })
            .collect()
    }

    fn write(&self, run: Run<'_>, value: u64) {
        // SAFETY: the run is the only right to this slot.
        self.cell(run.buffer(), run.first()).with_mut(|cell| unsafe { *cell = value });
        run.try_commit(|| 1).unwrap();
    }

    fn read(&self, claim: Claim) -> Vec<u64> {
        let values = (0..claim.rows())
            // SAFETY: the claim is the only right to this batch.
            .map(|slot| self.cell(claim.buffer(), slot).with(|cell| unsafe { *cell }))
            .collect();
        self.ring.release(claim);
        values
    }

    fn pop(&self) -> Vec<u64> {
        let claim = self.ring.take(None, |_, _| unreachable!("nothing to bring together"));
        self.read(claim.expect("the ring is open"))
    }

    fn drain(&self) -> Vec<u64> {
        self.ring.close();
        let mut values = Vec::new();
        assert!(self.ring.settle(|from, to| {
            // SAFETY: a settling ring owns all slots.
            let value = self.cell(from.buffer, from.slot).with(|cell| unsafe { *cell });
            // SAFETY: as above.
            self.cell(to.buffer, to.slot).with_mut(|cell| unsafe { *cell = value });
        }));
        while let Some(claim) = self.ring.try_take() {
            values.extend(self.read(claim));
        }
        values.extend(self.ring.take_remainder().into_iter().flat_map(|claim| self.read(claim)));
        values
    }
}

fn model(bound: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 20_000;
    builder.check(check);
}

fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

#[test]
fn two_producers_fill_one_batch() {
    model(3, || {
        let slots = Slots::new(2, 2);
        let other = slots.clone();
        let producer = thread::spawn(move || assert!(other.push(1)));
        assert!(slots.push(2));
        let batch = slots.pop();
        producer.join().unwrap();
        assert_eq!(sorted(batch), [1, 2]);
    });
}

#[test]
fn a_full_ring_passes_every_sample_once_and_in_order() {
    model(2, || {
        let slots = Slots::new(1, 1);
        let other = slots.clone();
        let producer = thread::spawn(move || (1..=3).for_each(|value| assert!(other.push(value))));
        let received: Vec<u64> = (0..3).flat_map(|_| slots.pop()).collect();
        producer.join().unwrap();
        assert_eq!(received, [1, 2, 3]);
    });
}

#[test]
fn two_producers_overtake_a_ring_of_single_slots() {
    // Three threads: more preemptions than one take loom over an hour.
    model(1, || {
        let slots = Slots::new(2, 1);
        let (first, second) = (slots.clone(), slots.clone());
        let producers = [
            thread::spawn(move || assert!(first.push(1) && first.push(2))),
            thread::spawn(move || assert!(second.push(3))),
        ];
        let received: Vec<u64> = (0..3).flat_map(|_| slots.pop()).collect();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert!(received.iter().position(|v| *v == 1) < received.iter().position(|v| *v == 2));
        assert_eq!(sorted(received), [1, 2, 3]);
    });
}

#[test]
fn two_consumers_get_each_batch_once() {
    model(2, || {
        let slots = Slots::new(2, 1);
        let (first, second) = (slots.clone(), slots.clone());
        let consumers = [thread::spawn(move || first.pop()), thread::spawn(move || second.pop())];
        assert!(slots.push(1));
        assert!(slots.push(2));
        let received = consumers.into_iter().flat_map(|consumer| consumer.join().unwrap());
        assert_eq!(sorted(received.collect()), [1, 2]);
    });
}

#[test]
fn an_aborted_run_blocks_nobody() {
    model(3, || {
        let slots = Slots::new(1, 2);
        let other = slots.clone();
        let aborter = thread::spawn(move || drop(other.ring.try_reserve(1)));
        assert!(slots.push(1));
        // Whichever slot the other thread held, this fills the batch.
        assert!(slots.push(2));
        let batch = slots.pop();
        aborter.join().unwrap();
        assert_eq!(sorted(batch), [1, 2]);
    });
}

/// What was not taken, and its order, while it can't be taken; `None` while a thread writes.
fn look(slots: &Slots) -> Option<Vec<u64>> {
    let hold = slots.ring.hold();
    let unread = hold.unread().ok()?;
    let places = unread
        .into_iter()
        .flat_map(|one| one.slots.into_iter().flatten().map(move |slot| (one.buffer, slot)));
    // SAFETY: committed slots that were not taken, for as long as the hold lives.
    let read = |(buffer, slot)| slots.cell(buffer, slot).with(|cell| unsafe { *cell });
    Some(places.map(read).collect())
}

#[test]
fn what_nobody_took_is_read_beside_a_producer_and_a_consumer() {
    model(2, || {
        let slots = Slots::new(2, 1);
        let (producer, consumer) = (slots.clone(), slots.clone());
        let producer = thread::spawn(move || {
            producer.push(1);
            producer.push(2);
        });
        let consumer = thread::spawn(move || {
            let claim = consumer.ring.take(None, |_, _| unreachable!("nothing to bring together"));
            let claim = claim.expect("the ring is open");
            // SAFETY: the claim is the only right to this batch, also to write.
            consumer.cell(claim.buffer(), 0).with_mut(|cell| unsafe { *cell += 10 });
            consumer.read(claim)
        });
        // A batch that was taken is not there any more, with what its holder made of it.
        let unread = look(&slots);
        assert!(
            matches!(unread.as_deref(), None | Some([] | [1] | [2] | [1, 2])),
            "unread: {unread:?}"
        );
        assert_eq!(consumer.join().unwrap(), [11]);
        producer.join().unwrap();
        assert_eq!(look(&slots).unwrap(), [2]);
        assert_eq!(slots.pop(), [2]);
    });
}

#[test]
fn what_nobody_took_is_read_beside_an_abort_and_its_refill() {
    model(2, || {
        let slots = Slots::new(1, 2);
        let other = slots.clone();
        let aborter = thread::spawn(move || {
            drop(other.ring.try_reserve(1));
            other.push(1);
        });
        let unread = look(&slots);
        assert!(matches!(unread.as_deref(), None | Some([] | [1])), "unread: {unread:?}");
        aborter.join().unwrap();
        assert_eq!(look(&slots).unwrap(), [1]);
        assert!(slots.push(2));
        assert_eq!(sorted(look(&slots).unwrap()), [1, 2]);
        assert_eq!(sorted(slots.pop()), [1, 2]);
    });
}

#[test]
fn closing_loses_no_committed_sample_and_wakes_the_blocked_producer() {
    model(3, || {
        let slots = Slots::new(1, 2);
        let other = slots.clone();
        let producer = thread::spawn(move || {
            (1..=3).take_while(|value| other.push(*value)).collect::<Vec<_>>()
        });
        slots.ring.close();
        let accepted = producer.join().unwrap();
        assert_eq!(slots.drain(), accepted);
    });
}

#[test]
fn closing_beside_an_abort_leaves_the_committed_rows() {
    model(2, || {
        let slots = Slots::new(2, 2);
        let (first, second) = (slots.clone(), slots.clone());
        let aborter = thread::spawn(move || drop(first.ring.try_reserve(2)));
        let producer =
            thread::spawn(move || (1..=2).filter(|value| second.push(*value)).collect::<Vec<_>>());
        slots.ring.close();
        aborter.join().unwrap();
        let accepted = producer.join().unwrap();
        assert_eq!(sorted(slots.drain()), accepted);
    });
}

#[test]
fn settling_beside_a_commit_gives_each_row_once() {
    model(3, || {
        let slots = Slots::new(2, 2);
        drop(slots.ring.try_reserve(1));
        assert!(slots.push(1));
        let other = slots.clone();
        let producer =
            thread::spawn(move || (2..=4).filter(|v| other.push(*v)).collect::<Vec<_>>());
        slots.ring.close();
        let mut move_row = |from: SlotIndex, to: SlotIndex| {
            // SAFETY: a settling ring owns all slots.
            let value = slots.cell(from.buffer, from.slot).with(|cell| unsafe { *cell });
            // SAFETY: as above.
            slots.cell(to.buffer, to.slot).with_mut(|cell| unsafe { *cell = value });
        };
        let early = slots.ring.settle(&mut move_row);
        let mut received: Vec<u64> = Vec::new();
        while let Some(claim) = slots.ring.try_take() {
            received.extend(slots.read(claim));
        }
        let accepted = producer.join().unwrap();
        assert!(slots.ring.settle(&mut move_row));
        while let Some(claim) = slots.ring.try_take() {
            assert!(!early, "a settled ring has nothing more to come");
            received.extend(slots.read(claim));
        }
        let rest = slots.ring.take_remainder();
        received.extend(rest.into_iter().flat_map(|claim| slots.read(claim)));
        let pushed: Vec<u64> = [1].into_iter().chain(accepted).collect();
        assert_eq!(slots.ring.counts().committed, pushed.len() as u64);
        assert_eq!(sorted(received), pushed);
    });
}

/// Checks `life` for every number of steps after which its thread may die: it is given one more
/// until it dies in no schedule. `life` says whether it died.
fn for_each_death(bound: usize, least: u32, life: impl Fn(u32) -> bool + Sync + Send + 'static) {
    let (life, died) = (std::sync::Arc::new(life), std::sync::Arc::new(AtomicBool::new(true)));
    let mut steps = 0;
    while died.swap(false, Ordering::Relaxed) {
        let (life, died) = (life.clone(), died.clone());
        model(bound, move || {
            if life(steps) {
                died.store(true, Ordering::Relaxed);
            }
        });
        steps += 1;
    }
    assert!(steps > least, "there were only {steps} steps");
}

/// A peer that dies after any of its steps, beside a producer of the server that goes on while the
/// peer is cleaned up after. What the peer had committed comes out once, and the batches fill up.
fn a_peer_dies(bound: usize, buffers: usize, batch_size: usize, laps: u64, gives_up: bool) {
    for_each_death(bound, 4, move |steps| {
        let slots = Slots::new(buffers, batch_size);
        let owner = slots.ring.add_peer().unwrap();
        // Batches that came and went, so that the next one is opened in a buffer that was used.
        for _ in 0..laps {
            slots.push_if_room(50, batch_size as u64);
            slots.pop();
        }
        let (dying, living) = (slots.clone(), slots.clone());
        let peer = thread::spawn(move || {
            let ring = dying.ring.peer(owner);
            death::after(steps, || {
                if gives_up {
                    drop(ring.try_reserve(2));
                }
                ring.try_reserve(1).map(|run| dying.write(run, 9)).is_ok()
            })
        });
        let total = (buffers * batch_size) as u64;
        let producer = thread::spawn(move || living.push_if_room(1, 1));
        let stored = peer.join().unwrap();
        slots.ring.reclaim(owner);
        let mut pushed = producer.join().unwrap();
        pushed.extend(slots.push_if_room(100, total));
        let mut received = Vec::new();
        while let Some(claim) = slots.ring.try_take() {
            received.extend(slots.read(claim));
        }
        assert_eq!(received.len() as u64, total, "every slot was filled, by the peer or by us");
        let theirs = received.iter().filter(|value| **value == 9).count();
        assert!(stored.map_or(theirs <= 1, |stored| theirs == usize::from(stored)));
        received.retain(|value| *value != 9);
        assert_eq!(sorted(received), pushed);
        assert_eq!(slots.ring.counts().completed, laps + buffers as u64);
        stored.is_none()
    });
}

#[test]
fn a_peer_that_dies_while_it_fills_a_batch_stops_nobody() {
    a_peer_dies(2, 1, 2, 0, false);
}

#[test]
fn a_peer_that_dies_while_it_opens_a_batch_stops_nobody() {
    a_peer_dies(1, 2, 1, 0, false);
}

#[test]
fn a_peer_that_dies_while_it_opens_the_same_buffer_again_stops_nobody() {
    a_peer_dies(1, 1, 1, 1, false);
}

#[test]
fn a_peer_that_dies_while_it_gives_up_stops_nobody() {
    a_peer_dies(1, 1, 3, 0, true);
}

/// The dead peer is cleaned up after while another one, alive, completes the same batch.
#[test]
fn reclaiming_beside_a_live_peer_publishes_the_batch_once() {
    for_each_death(3, 4, |steps| {
        let slots = Slots::new(1, 2);
        let [dying, living] = [1, 2].map(|_| slots.ring.add_peer().unwrap());
        let ring = slots.ring.peer(dying);
        let life =
            death::after(steps, || ring.try_reserve(1).map(|run| slots.write(run, 9)).is_ok());
        let other = slots.clone();
        let peer = thread::spawn(move || {
            let ring = other.ring.peer(living);
            (0..2).filter(|_| ring.try_reserve(1).map(|run| other.write(run, 8)).is_ok()).count()
        });
        slots.ring.reclaim(dying);
        let theirs = peer.join().unwrap();
        slots.push_if_room(1, 2);
        let claim = slots.ring.try_take().expect("the batch is full");
        assert_eq!(slots.read(claim).iter().filter(|value| **value == 8).count(), theirs);
        assert_eq!(slots.ring.counts().completed, 1);
        life.is_none()
    });
}

/// A producer that sleeps because the ring is full is woken for what a dead peer leaves.
#[test]
fn reclaiming_wakes_who_waits_for_room() {
    model(2, || {
        let slots = Slots::new(1, 1);
        let owner = slots.ring.add_peer().unwrap();
        let ring = slots.ring.peer(owner);
        // Enough for the reservation.
        assert!(death::after(1, || ring.try_reserve(1).map(drop)).is_none());
        let other = slots.clone();
        let producer = thread::spawn(move || assert!(other.push(1)));
        assert_eq!(slots.ring.reclaim(owner), 1);
        producer.join().unwrap();
        assert_eq!(slots.pop(), [1]);
    });
}

/// Rows of a table, with one loom cell for each.
struct Rows {
    slab: std::sync::Arc<Slab>,
    room: std::sync::Arc<Signal>,
    cells: Vec<UnsafeCell<u64>>,
}

// SAFETY: cells are accessed by the rules of the slab, which is what loom checks here.
unsafe impl Sync for Rows {}
// SAFETY: as above.
unsafe impl Send for Rows {}

impl Rows {
    /// All rows are published, and have their numbers in their cells.
    fn new(rows: u32) -> Arc<Self> {
        let room = std::sync::Arc::<Signal>::default();
        let slab = Slab::with_room(rows, 1, std::sync::Arc::clone(&room)).unwrap();
        let cells = (0..rows.into()).map(UnsafeCell::new).collect();
        let slab = std::sync::Arc::new(slab);
        slab.try_reserve(rows as usize).publish();
        Arc::new(Self { slab, room, cells })
    }

    /// Removes an item, as a table does.
    fn free(&self, row: u32) {
        self.slab.free(row);
        self.room.notify();
    }

    /// Takes a row as soon as there is one, and writes it.
    fn insert(&self) {
        let attempt = || Some(self.slab.try_reserve(1)).filter(|writer| !writer.is_empty());
        let writer: RowWriter = self.room.wait(None, attempt).unwrap();
        let row = writer.rows()[0] as usize;
        // SAFETY: the writer is the only right to this row.
        self.cells[row].with_mut(|cell| unsafe { *cell = 100 });
        writer.publish();
    }

    fn read(&self, row: u32) -> u64 {
        // SAFETY: the caller keeps the row by a pin or a snapshot.
        self.cells[row as usize].with(|cell| unsafe { *cell })
    }
}

#[test]
fn an_insert_is_woken_when_a_checkpoint_lets_go_of_its_row() {
    model(2, || {
        let rows = Rows::new(2);
        let mut snapshot = rows.slab.snapshot().unwrap();
        rows.free(1);
        let inserter = rows.clone();
        let inserter = thread::spawn(move || inserter.insert());
        while snapshot.advance(1) {
            for row in snapshot.rows() {
                assert_eq!(rows.read(*row), u64::from(*row), "as it was at the first moment");
            }
        }
        inserter.join().unwrap();
    });
}

#[test]
fn an_insert_is_woken_when_a_checkpoint_is_given_up() {
    model(3, || {
        let rows = Rows::new(1);
        let snapshot = rows.slab.snapshot().unwrap();
        rows.free(0);
        let inserter = rows.clone();
        let inserter = thread::spawn(move || inserter.insert());
        drop(snapshot);
        inserter.join().unwrap();
    });
}

#[test]
fn an_insert_is_woken_by_the_last_reader_of_its_row() {
    model(2, || {
        let rows = Rows::new(1);
        let (pinned, again) = (rows.slab.pin(vec![0]), rows.slab.pin(vec![0]));
        let (reader, inserter) = (rows.clone(), rows.clone());
        let reader = thread::spawn(move || {
            assert_eq!(reader.read(0), 0);
            drop(pinned);
        });
        let inserter = thread::spawn(move || inserter.insert());
        rows.free(0);
        assert_eq!(rows.read(0), 0);
        drop(again);
        reader.join().unwrap();
        inserter.join().unwrap();
    });
}

#[test]
fn an_insert_is_woken_when_another_gives_its_row_up() {
    model(3, || {
        let rows = Rows::new(1);
        rows.free(0);
        let writer = rows.slab.try_reserve(1);
        let inserter = rows.clone();
        let inserter = thread::spawn(move || inserter.insert());
        drop(writer);
        inserter.join().unwrap();
    });
}

/// A task without a thread of its own, and the sleep of the loop that polls it.
struct Task(loom::sync::Notify);

impl Wake for Task {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// A number under a lock, as of a table, whose waiters are woken when the lock is given back.
struct Gate {
    open: loom::sync::Mutex<u32>,
    signal: Signal,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { open: loom::sync::Mutex::new(0), signal: Signal::default() })
    }

    fn open(&self) {
        *self.open.lock().unwrap() += 1;
        self.signal.notify();
    }

    fn is_open(&self, times: u32) -> bool {
        *self.open.lock().unwrap() >= times
    }
}

#[test]
fn a_task_hears_of_every_change_that_it_waits_for() {
    model(2, || {
        let gate = Gate::new();
        let openers: Vec<_> = (0..2)
            .map(|_| {
                let gate = gate.clone();
                thread::spawn(move || gate.open())
            })
            .collect();
        let task = std::sync::Arc::new(Task(loom::sync::Notify::new()));
        let waker = Waker::from(std::sync::Arc::clone(&task));
        // Loom also has a sleep end without a call.
        loop {
            gate.signal.wake_later(&waker);
            if gate.is_open(2) {
                break;
            }
            task.0.wait();
        }
        openers.into_iter().for_each(|opener| opener.join().unwrap());
    });
}

#[test]
fn a_thread_and_a_task_hear_of_the_same_change() {
    model(2, || {
        let gate = Gate::new();
        let (waiter, opener) = (gate.clone(), gate.clone());
        let waiter =
            thread::spawn(move || waiter.signal.wait(None, || waiter.is_open(1).then_some(())));
        let opener = thread::spawn(move || opener.open());
        let task = std::sync::Arc::new(Task(loom::sync::Notify::new()));
        gate.signal.wake_later(&Waker::from(std::sync::Arc::clone(&task)));
        // Loom also has a sleep end without a call.
        while !gate.is_open(1) {
            task.0.wait();
        }
        waiter.join().unwrap();
        opener.join().unwrap();
    });
}

/// Writes rows, waiting for room in the window.
fn send(window: &Window, cells: &Cells, values: std::ops::RangeInclusive<u64>) {
    for value in values {
        let rows = window.wait(None, || window.try_claim(1)).unwrap();
        let turn = rows.first() as usize % window.capacity();
        // SAFETY: the claim is the only right to this row.
        cells.0[turn].with_mut(|cell| unsafe { *cell = value });
        rows.commit();
    }
}

/// One loom cell for each row of a window.
struct Cells(Vec<UnsafeCell<u64>>);

// SAFETY: cells are accessed by the rules of the window, which is what loom checks here.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

/// Two threads push through a window that is smaller than what they have.
fn through_a_window(bound: usize, capacity: usize, [first, second]: [u64; 2]) {
    model(bound, move || {
        let (window, mut reader) = Window::new(capacity, 1).unwrap();
        let cells = Arc::new(Cells((0..capacity).map(|_| UnsafeCell::new(0)).collect()));
        let (other, others) = (window.clone(), cells.clone());
        let one = thread::spawn(move || send(&other, &others, 1..=first));
        let (other, others) = (window.clone(), cells.clone());
        let two = thread::spawn(move || send(&other, &others, 11..=10 + second));
        let (mut read, mut released) = (Vec::new(), 0);
        while read.len() < (first + second) as usize {
            while reader.finished() == released {
                thread::yield_now();
            }
            // SAFETY: the row is finished, and not released.
            read.push(cells.0[released as usize % capacity].with(|cell| unsafe { *cell }));
            released += 1;
            reader.release(released);
        }
        one.join().unwrap();
        two.join().unwrap();
        let of = |range: std::ops::RangeInclusive<u64>| {
            let values = read.iter().copied().filter(move |value| range.contains(value));
            values.collect::<Vec<_>>()
        };
        assert_eq!(of(1..=first), (1..=first).collect::<Vec<_>>());
        assert_eq!(of(11..=10 + second), (11..=10 + second).collect::<Vec<_>>());
    });
}

#[test]
fn a_release_wakes_whoever_waits_for_a_full_window() {
    through_a_window(2, 1, [1, 1]);
}

#[test]
fn a_window_gives_no_row_away_that_was_not_released() {
    through_a_window(1, 1, [2, 1]);
    through_a_window(1, 2, [2, 2]);
}

/// A connection whose server answers whatever is asked, of which one answer is read at a time.
struct Wire {
    state: loom::sync::Mutex<WireState>,
    rung: loom::sync::Condvar,
    answered: loom::sync::Condvar,
}

#[derive(Default)]
struct WireState {
    /// Requests without an answer, and whether a caller waits for it.
    asked: VecDeque<(std::sync::Arc<Slot<u64>>, bool)>,
    /// The last one is answered first; or none is.
    is_reversed: bool,
    is_mute: bool,
    /// The thread that drives sleeps; it is woken from that.
    sleeps: bool,
    is_rung: bool,
    /// The connection broke; the next one is made by the background.
    is_lost: bool,
    /// A caller that drives until some time panics.
    panics: bool,
    is_closing: bool,
    is_over: bool,
}

struct WireDriver(Arc<Wire>);

impl Drive for WireDriver {
    type Reply = u64;

    fn drive(&mut self, until: Option<Instant>) -> ControlFlow<()> {
        let mut state = self.0.state.lock().unwrap();
        loop {
            if state.is_closing || state.is_lost {
                return ControlFlow::Break(());
            }
            if until.is_some() && state.panics {
                drop(state);
                std::panic::resume_unwind(Box::new("while it drives"));
            }
            let next = match (state.is_mute, state.is_reversed) {
                (true, _) => None,
                (_, true) => state.asked.pop_back(),
                (_, false) => state.asked.pop_front(),
            };
            if let Some((slot, _)) = next {
                // With the lock, so that nobody who waits for `answered` misses it.
                slot.fill(1);
                self.0.answered.notify_all();
                return ControlFlow::Continue(());
            }
            // An `until` here has always passed.
            if std::mem::take(&mut state.is_rung) || until.is_some() {
                return ControlFlow::Continue(());
            }
            state.sleeps = true;
            state = self.0.rung.wait(state).unwrap();
            state.sleeps = false;
        }
    }

    fn is_needed(&self) -> bool {
        let state = self.0.state.lock().unwrap();
        state.is_closing || state.asked.iter().any(|(_, is_awaited)| !is_awaited)
    }

    fn fail(&mut self) {
        self.0.state.lock().unwrap().is_lost = true;
    }
}

/// A client of a [`Wire`], and its thread in the background.
#[derive(Clone)]
struct Caller {
    wire: Arc<Wire>,
    lead: Arc<Lead<WireDriver>>,
}

impl Caller {
    fn new(pause: Duration, wire: WireState) -> (Self, thread::JoinHandle<()>) {
        let [rung, answered] = [(); 2].map(|()| loom::sync::Condvar::new());
        let wire = Arc::new(Wire { state: loom::sync::Mutex::new(wire), rung, answered });
        let this = Self { wire, lead: Arc::new(Lead::default()) };
        let background = this.clone();
        (this, thread::spawn(move || background.run(pause)))
    }

    /// The background, which reconnects until it is closed.
    fn run(&self, pause: Duration) {
        let mut driver = Box::new(WireDriver(self.wire.clone()));
        loop {
            driver = self.lead.lend(driver, pause);
            if driver.drive(None).is_continue() {
                continue;
            }
            let mut state = self.wire.state.lock().unwrap();
            state.is_lost = false;
            if state.is_closing {
                state.is_over = true;
                let left = std::mem::take(&mut state.asked);
                drop(state);
                return left.iter().for_each(|(slot, _)| slot.wake());
            }
        }
    }

    /// Wakes the thread that drives, if that sleeps.
    fn ring(&self) -> bool {
        let mut state = self.wire.state.lock().unwrap();
        if state.sleeps {
            state.is_rung = true;
            self.wire.rung.notify_one();
        }
        state.sleeps
    }

    fn hurry(&self) {
        self.ring();
    }

    /// Has a thread look at a change.
    fn announce(&self) {
        if !self.ring() {
            self.lead.call_background();
        }
    }

    fn ask(&self, is_awaited: bool) -> std::sync::Arc<Slot<u64>> {
        let slot = std::sync::Arc::<Slot<u64>>::default();
        self.wire.state.lock().unwrap().asked.push_back((slot.clone(), is_awaited));
        slot
    }

    /// Waits for an answer; `None` when it is late, or all is over.
    fn wait(&self, slot: &std::sync::Arc<Slot<u64>>, until: Option<Instant>) -> Option<u64> {
        let poll = || {
            // Once more after the end was seen: it may have brought the answer.
            let is_over = self.wire.state.lock().unwrap().is_over;
            let reply = slot.take();
            if reply.is_none() && is_over { Some(None) } else { reply.map(Some) }
        };
        self.lead.wait(slot, until, || self.hurry(), poll).flatten()
    }

    fn call(&self) -> Option<u64> {
        self.wait(&self.ask(true), None)
    }

    fn close(&self, background: thread::JoinHandle<()>) {
        self.wire.state.lock().unwrap().is_closing = true;
        self.announce();
        background.join().unwrap();
    }
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn two_callers_get_their_answers_in_any_order() {
    for is_reversed in [false, true] {
        model(2, move || {
            let wire = WireState { is_reversed, ..WireState::default() };
            let (caller, background) = Caller::new(LONG, wire);
            let other = caller.clone();
            let other = thread::spawn(move || other.call());
            assert_eq!(caller.call(), Some(1));
            assert_eq!(other.join().unwrap(), Some(1));
            caller.close(background);
        });
    }
}

#[test]
fn a_caller_whose_time_is_up_passes_the_lead_on() {
    model(2, || {
        let (caller, background) = Caller::new(LONG, WireState::default());
        let late = caller.clone();
        let late = thread::spawn(move || late.wait(&late.ask(true), Some(Instant::now())));
        assert_eq!(caller.call(), Some(1));
        assert_eq!(caller.call(), Some(1));
        late.join().unwrap();
        caller.close(background);
    });
}

#[test]
fn the_background_gets_answers_that_nobody_waits_for() {
    for pause in [LONG, Duration::ZERO] {
        model(2, move || {
            let (caller, background) = Caller::new(pause, WireState::default());
            let other = caller.clone();
            let other = thread::spawn(move || other.call());
            let slot = caller.ask(false);
            caller.announce();
            let mut state = caller.wire.state.lock().unwrap();
            while !slot.is_filled() {
                state = caller.wire.answered.wait(state).unwrap();
            }
            drop(state);
            assert_eq!(other.join().unwrap(), Some(1));
            caller.close(background);
        });
    }
}

#[test]
fn callers_stay_when_a_connection_is_lost() {
    model(2, || {
        let wire = WireState { is_lost: true, ..WireState::default() };
        let (caller, background) = Caller::new(LONG, wire);
        let other = caller.clone();
        let other = thread::spawn(move || other.call());
        assert_eq!(caller.call(), Some(1));
        caller.wire.state.lock().unwrap().is_lost = true;
        assert_eq!(caller.call(), Some(1));
        assert_eq!(other.join().unwrap(), Some(1));
        caller.close(background);
    });
}

#[test]
fn a_panic_of_whoever_drives_keeps_no_other_waiting() {
    model(2, || {
        let (caller, background) = Caller::new(LONG, WireState::default());
        caller.wire.state.lock().unwrap().panics = true;
        let other = caller.clone();
        let other = thread::spawn(move || {
            let slot = other.ask(true);
            let wait = AssertUnwindSafe(|| other.wait(&slot, Some(Instant::now())));
            // If it leads; the background may have answered as well.
            let _ = catch_unwind(wait);
        });
        assert_eq!(caller.call(), Some(1));
        other.join().unwrap();
        assert_eq!(caller.call(), Some(1));
        caller.close(background);
    });
}

#[test]
fn closing_ends_every_wait() {
    model(2, || {
        let wire = WireState { is_mute: true, ..WireState::default() };
        let (caller, background) = Caller::new(LONG, wire);
        let other = caller.clone();
        let other = thread::spawn(move || other.call());
        caller.close(background);
        assert_eq!(other.join().unwrap(), None);
    });
}
