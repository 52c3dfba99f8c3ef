//! The ring under every interleaving that loom can find. Run with `make loom`.
#![cfg(loom)]

use echoic_memory::ring::{Claim, Place, Refusal, Ring};
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
                Err(Refusal::Closed) => return false,
                Err(Refusal::Blocked(_)) if self.ring.wait_for_room(None).is_err() => return false,
                Err(Refusal::Blocked(_)) => {}
            }
        };
        // SAFETY: the run is the only right to this slot.
        self.cell(run.buffer(), run.first()).with_mut(|cell| unsafe { *cell = value });
        run.commit(|| 1);
        true
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
    model(3, || {
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
        let mut move_row = |from: Place, to: Place| {
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
