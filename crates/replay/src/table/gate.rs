//! When inserts and samples may continue, and which waiters are woken then.
//!
//! A call that inserts or samples, and waits, looks at nothing but the [`Gate`], the rows of the table's slab, and the
//! room in its journal. Each of the three wakes the calls that wait for it, whichever thread changed it:
//!
//! - the gate is compared with what it was when the table's lock is given back: see [`Locked`]. A new
//!   condition is a new field, so its changes can't be forgotten;
//! - the slab notifies the table's `room` when rows are let go of, be it by a reader, a writer or a
//!   checkpoint;
//! - the journal calls a waker that notifies both, when it has failed or been closed, too: see `Log::room`.

use std::ops::{Deref, DerefMut};

use echoic_memory::sync::MutexGuard;

use super::core::Core;
use super::error::{Obstacle, TableError};
use super::{Table, TableConfig};
use crate::WaitReason;
use crate::limiter::{Counts, Limiter};

/// The most items of a batch: what is known about them is taken note of under the lock.
const MAX_BATCH: u64 = 1 << 24;

/// All numbers that decide whether a call may go on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gate {
    pub(super) limiter: Limiter,
    /// What they say of the size is how many items there are.
    pub(super) counts: Counts,
    /// Inserts that have a row and are not done yet.
    pub(super) reserved: u64,
    pub(super) paused: bool,
    pub(super) closed: bool,
    /// How often the table was loaded: rows that were reserved before are of a slab that is gone.
    pub(super) generation: u64,
    /// Whether each draw may be the last of its item.
    pub(super) draws_use_up: bool,
}

impl Gate {
    pub(super) fn new(config: &TableConfig) -> Self {
        Self {
            limiter: config.limiter,
            counts: Counts::default(),
            reserved: 0,
            paused: false,
            closed: false,
            generation: 0,
            draws_use_up: config.max_times_sampled > 0,
        }
    }

    fn check_open(&self) -> Result<(), Obstacle> {
        if self.closed {
            return Err(TableError::Closed.into());
        }
        if self.paused { Err(WaitReason::Paused.into()) } else { Ok(()) }
    }

    /// How many of `wanted` items may be inserted now: at least one.
    pub(super) fn insertable(&self, wanted: u64) -> Result<u64, Obstacle> {
        self.check_open()?;
        let counts = Counts { inserts: self.taken(), ..self.counts };
        let allows = |count| self.limiter.can_insert(&counts, count);
        if allows(wanted).is_ok() {
            return Ok(wanted);
        }
        allows(1)?;
        // The more are inserted, the less may be: between the two there is one border.
        let (mut most, mut least_refused) = (1, wanted);
        while least_refused - most > 1 {
            let middle = most + (least_refused - most) / 2;
            if allows(middle).is_ok() {
                most = middle;
            } else {
                least_refused = middle;
            }
        }
        Ok(most)
    }

    /// Whether `count` items may be sampled now.
    pub(super) fn check_sample(&self, count: u64) -> Result<(), Obstacle> {
        self.check_open()?;
        if count > MAX_BATCH {
            return Err(TableError::BatchSize { count, most: MAX_BATCH }.into());
        }
        self.limiter.can_sample(&self.counts, count)?;
        if self.counts.size() < self.needed(count) {
            return Err(WaitReason::MinSize.into());
        }
        Ok(())
    }

    /// How many items there must be for a batch.
    pub(super) fn needed(&self, count: u64) -> u64 {
        let gone = if self.draws_use_up { count } else { 1 };
        self.limiter.parameters().min_size.max(gone)
    }

    /// Inserts that are done, and those that will be.
    fn taken(&self) -> u64 {
        self.counts.inserts + self.reserved
    }

    /// Whether more may be sampled, and whether more may be inserted, than when it was like `before`. It may
    /// say so without need, but never the other way round.
    fn opened(&self, before: &Self) -> Opened {
        if self == before {
            return Opened::default();
        }
        // Exhaustive, so that a new field has to be thought of.
        let Self { limiter, counts, reserved: _, paused, closed, generation, draws_use_up } = *self;
        let both = (limiter, paused, closed, generation, draws_use_up)
            != (
                before.limiter,
                before.paused,
                before.closed,
                before.generation,
                before.draws_use_up,
            );
        let items = counts.inserts != before.counts.inserts;
        let room = counts.samples != before.counts.samples
            || counts.deletions != before.counts.deletions
            || self.taken() < before.taken();
        Opened { items: both || items, room: both || room }
    }
}

/// Whose calls may go on.
#[derive(Debug, Clone, Copy, Default)]
struct Opened {
    /// Those that sample.
    items: bool,
    /// Those that insert.
    room: bool,
}

/// The state of a table, locked. Given back, it wakes the calls that may continue.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    before: Gate,
    // Dropped in this order: no thread is woken to wait for the lock.
    core: MutexGuard<'a, Core>,
    wakes: Wakes<'a>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(table: &'a Table, core: MutexGuard<'a, Core>) -> Self {
        Self { before: core.gate, core, wakes: Wakes { table, opened: Opened::default() } }
    }
}

impl Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.wakes.opened = self.core.gate.opened(&self.before);
    }
}

#[derive(Debug)]
struct Wakes<'a> {
    table: &'a Table,
    opened: Opened,
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        if self.opened.items {
            self.table.items.notify();
        }
        if self.opened.room {
            self.table.room.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};

    use echoic_memory::slab::Snapshot;
    use proptest::prelude::*;

    use super::super::core::Payload;
    use super::super::{Form, Insertion, Sampled};
    use super::*;
    use crate::{Dtype, Leaf, Spec};

    const SIZE: u32 = 8;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn table(limiter: Limiter, max_times_sampled: u32) -> Arc<Table> {
        let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![] };
        let form = Form::Rows(Spec::new(vec![leaf]).unwrap());
        let config = TableConfig::new("t", form, SIZE);
        Arc::new(Table::new(TableConfig { limiter, max_times_sampled, ..config }).unwrap())
    }

    /// What calls and checkpoints hold of a table.
    #[derive(Default)]
    struct Held {
        insertions: Vec<Insertion>,
        sampled: Vec<Sampled>,
        snapshot: Option<Snapshot>,
    }

    fn limiter(number: u8) -> Limiter {
        match number {
            0 => Limiter::min_size(3),
            1 => Limiter::queue(SIZE.into()),
            _ => Limiter::sample_to_insert_ratio(2.0, 2, 4.0),
        }
        .unwrap()
    }

    fn act(table: &Arc<Table>, held: &mut Held, action: u8, number: usize) {
        let keys = || table.items().keys;
        match action {
            0..=2 => held.insertions.extend(table.try_reserve(1 + number % 3)),
            3..=6 => {
                if let Some(insertion) = held.insertions.pop() {
                    let priorities = vec![1.0; insertion.len()];
                    insertion.commit(&priorities, None).unwrap();
                }
            }
            7 => drop(held.insertions.pop()),
            8..=9 => held.sampled.extend(table.try_sample(1 + number % 3)),
            10 => drop(table.try_sample(1)),
            11 => held.sampled.push(table.get(&keys())),
            12..=14 if !held.sampled.is_empty() => {
                drop(held.sampled.remove(number % held.sampled.len()));
            }
            15 => drop(table.delete(&keys()[..(number % 3).min(keys().len())])),
            16 if number.is_multiple_of(4) => table.reset(),
            17 => table.pause(),
            18..=19 => table.resume(),
            20 => table.set_limiter(limiter(number as u8 % 3)).unwrap(),
            21..=22 => {
                let Payload::Rows(slab) = &table.lock().payload else { unreachable!() };
                held.snapshot = held.snapshot.take().or_else(|| slab.snapshot());
            }
            23..=24 => {
                if let Some(snapshot) = &mut held.snapshot {
                    snapshot.advance(1 + number % 4);
                }
            }
            25 if number.is_multiple_of(2) => held.snapshot = None,
            26 if number.is_multiple_of(8) => table.close(),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn whoever_ends_the_reason_of_a_wait_wakes_those_who_wait(
            kind in 0u8..3,
            times in 0u32..3,
            actions in prop::collection::vec((0u8..27, any::<usize>()), 1..300),
        ) {
            let table = table(limiter(kind), times);
            let mut held = Held::default();
            for (step, (action, number)) in actions.into_iter().enumerate() {
                let (items, room) = (Arc::<Woken>::default(), Arc::<Woken>::default());
                table.wake_on_items(&Waker::from(Arc::clone(&items)));
                table.wake_on_room(&Waker::from(Arc::clone(&room)));
                let before = table.blocked();
                act(&table, &mut held, action, number);
                let after = table.blocked();
                let ended = |was: Option<WaitReason>, is: Option<WaitReason>| was.is_some() && is.is_none();
                let said = format!("step {step}, action {action}: {before:?} became {after:?}");
                let is_woken = |woken: &Woken| woken.0.load(Ordering::Relaxed);
                prop_assert!(!ended(before.sample, after.sample) || is_woken(&items), "{}", said);
                prop_assert!(!ended(before.insert, after.insert) || is_woken(&room), "{}", said);
            }
        }
    }
}
