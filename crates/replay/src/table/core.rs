//! The state of a table, all of it under the table's lock; no payload bytes are touched here.
//!
//! # Invariants
//!
//! 1. Items, sampler and remover have the same slots, and each of these has its payload.
//! 2. There are at most `capacity` items when no method of this file runs.

use std::sync::Arc;

use echoic_memory::signal::Signal;
use echoic_memory::slab::{Pinned, RowWriter, Slab};
use smallvec::SmallVec;

use super::durable::Effect;
use super::error::{Obstacle, TableError};
use super::gate::Gate;
use super::items::Items;
use super::key::Key;
use super::pinned::PinnedTrajectories;
use super::sessions::{Origin, Sessions};
use super::spread::Lags;
use super::{Form, TableConfig};
use crate::WaitReason;
use crate::episode::EpisodeCounts;
use crate::limiter::Counts;
use crate::rng::Rng;
use crate::selectors::{DrawnItem, Entry, Selector, Slot};
use crate::trajectory::Trajectory;

/// Where the bytes of items are, by slot.
#[derive(Debug)]
pub(super) enum Payload {
    /// In the row of the slot's number.
    Rows(Arc<Slab>),
    Trajectories {
        slots: Vec<Option<Trajectory>>,
        free: Vec<Slot>,
    },
}

/// What is known about drawn items, in the order of the draws.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Infos {
    /// Names of the items.
    pub keys: Vec<u64>,
    /// How likely each draw was.
    pub probabilities: Vec<f64>,
    /// Their priorities.
    pub priorities: Vec<f64>,
    /// How often each was sampled, this draw included.
    pub times_sampled: Vec<u32>,
    /// The policy versions with which they were made.
    pub versions: Vec<u64>,
    /// How many items the table had.
    pub table_size: u64,
    /// What its sampler said that they weigh together: for a prioritized one `Σ p^e`, for others their
    /// number.
    pub total_weight: f64,
}

impl Infos {
    /// Appends what is known of other items of the table.
    pub fn append(&mut self, mut other: Self) {
        self.keys.append(&mut other.keys);
        self.probabilities.append(&mut other.probabilities);
        self.priorities.append(&mut other.priorities);
        self.times_sampled.append(&mut other.times_sampled);
        self.versions.append(&mut other.versions);
        (self.table_size, self.total_weight) = (other.table_size, other.total_weight);
    }

    /// Importance weights: `(table size × probability)^-beta`, divided by the largest of the batch
    /// (Schaul et al., 2016). `beta` is finite and not negative.
    pub fn weights(&self, beta: f64) -> Vec<f64> {
        // The largest is that of the smallest probability. Divided before the power and not after it, no beta makes
        // both infinite.
        let least = self.probabilities.iter().copied().fold(f64::INFINITY, f64::min);
        self.probabilities.iter().map(|probability| (probability / least).powf(-beta)).collect()
    }
}

/// Payload of drawn items.
#[derive(Debug)]
pub(super) enum Drawn {
    Rows(Pinned),
    Trajectories(Vec<Trajectory>),
}

/// Trajectories to be dropped when the lock is no longer held: freeing memory may take a system call.
pub(super) type DeferredDrops = SmallVec<[Trajectory; 2]>;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) items: Items,
    pub(super) sampler: Box<dyn Selector>,
    pub(super) remover: Box<dyn Selector>,
    /// What decides whether a call may go on.
    pub(super) gate: Gate,
    /// How many items were ever sampled, of those that were counted.
    pub(super) unique_samples: u64,
    /// How many versions old samples were.
    pub(super) lags: Lags,
    /// How far remote producers have come.
    pub(super) sessions: Sessions,
    /// Of the trajectories in the payload.
    pub(super) episodes: EpisodeCounts,
    pub(super) rng: Rng,
    pub(super) payload: Payload,
    /// What a checkpoint under way still wants of the trajectories.
    pub(super) pinned: Option<PinnedTrajectories>,
    pub(super) version: u64,
    /// What inserts did, for the journal of a table that has one: 24 bytes for each item.
    pub(super) trace: Option<Vec<u8>>,
    capacity: u32,
    max_times_sampled: u32,
    // Used again by every call, so that none allocates.
    draws: Vec<DrawnItem>,
    updates: Vec<(Slot, f64)>,
}

impl Core {
    /// An empty one; its rows notify `room`.
    pub(super) fn new(config: &TableConfig, room: &Arc<Signal>) -> Result<Self, TableError> {
        let payload = match &config.form {
            Form::Rows(spec) => {
                let (rows, bytes) = (rows(config.capacity), spec.nbytes());
                Payload::Rows(Arc::new(Slab::with_room(rows, bytes, Arc::clone(room))?))
            }
            Form::Trajectories(_) => Payload::Trajectories { slots: Vec::new(), free: Vec::new() },
        };
        let (mut sampler, mut remover) = (config.sampler.build()?, config.remover.build()?);
        sampler.reserve(rows(config.capacity));
        remover.reserve(rows(config.capacity));
        Ok(Self {
            items: Items::with_room(rows(config.capacity)),
            sampler,
            remover,
            gate: Gate::new(config),
            unique_samples: 0,
            lags: Lags::default(),
            sessions: Sessions::default(),
            episodes: EpisodeCounts::default(),
            rng: Rng::new(config.seed),
            payload,
            pinned: None,
            version: 0,
            trace: None,
            capacity: config.capacity,
            max_times_sampled: config.max_times_sampled,
            draws: Vec::new(),
            updates: Vec::new(),
        })
    }

    /// Becomes `other`; settings of a running table that were changed stay.
    pub(super) fn replace(&mut self, other: Self) -> Self {
        let Gate { limiter, paused, closed, generation, .. } = self.gate;
        let gate = Gate { limiter, paused, closed, generation: generation + 1, ..other.gate };
        let mut pinned = self.pinned.take();
        if let (Some(pinned), Payload::Trajectories { slots, .. }) = (&mut pinned, &self.payload) {
            pinned.leave_all(slots);
        }
        std::mem::replace(self, Self { gate, pinned, ..other })
    }

    /// Whether what comes from there is in the table.
    pub(super) fn has(&self, origin: Option<&Origin>) -> Result<bool, TableError> {
        origin.map_or(Ok(false), |origin| self.sessions.has(origin))
    }

    /// Takes note that this many operations are in the table, which has no journal to record them.
    pub(super) fn take_note(&mut self, sent: Option<(&Origin, usize)>) {
        if let Some((origin, count)) = sent {
            self.sessions.advance(origin, count as u64);
        }
    }

    /// Takes rows for items to come.
    pub(super) fn reserve(&mut self, wanted: u64) -> Result<RowWriter, Obstacle> {
        let count = self.gate.insertable(wanted)?;
        let Payload::Rows(slab) = &self.payload else {
            return Err(TableError::Spec("the table has no rows".into()).into());
        };
        let writer = slab.try_reserve(usize::try_from(count).unwrap_or(usize::MAX));
        if writer.is_empty() {
            return Err(WaitReason::Leased.into());
        }
        self.gate.reserved += writer.len() as u64;
        Ok(writer)
    }

    /// Gives up what [`Core::reserve`] took.
    pub(super) fn unreserve(&mut self, count: usize) {
        self.gate.reserved -= count as u64;
    }

    /// Makes an item of a reserved row that has been published.
    pub(super) fn insert_row(
        &mut self,
        slot: Slot,
        priority: f64,
        version: Option<u64>,
        deferred: &mut DeferredDrops,
    ) -> Key {
        self.gate.reserved -= 1;
        self.enter(slot, priority, version, deferred)
    }

    /// Makes an item of a trajectory.
    pub(super) fn insert_trajectory(
        &mut self,
        trajectory: Trajectory,
        priority: f64,
        version: Option<u64>,
        deferred: &mut DeferredDrops,
    ) -> Result<Key, Obstacle> {
        self.gate.insertable(1)?;
        let Payload::Trajectories { slots, free } = &mut self.payload else {
            return Err(TableError::Spec("the table has rows".into()).into());
        };
        let slot = free.pop().unwrap_or_else(|| {
            slots.push(None);
            (slots.len() - 1) as Slot
        });
        self.episodes.enter(&trajectory);
        slots[slot as usize] = Some(trajectory);
        Ok(self.enter(slot, priority, version, deferred))
    }

    /// Counts an item in, and another out when there are too many: as in Reverb the newest is there
    /// before one is removed, and may be removed itself.
    fn enter(
        &mut self,
        slot: Slot,
        priority: f64,
        version: Option<u64>,
        deferred: &mut DeferredDrops,
    ) -> Key {
        let version = version.unwrap_or(self.version);
        let key = self.items.insert(slot, priority, version);
        let entry = Entry { priority, version };
        self.sampler.insert(slot, entry);
        self.remover.insert(slot, entry);
        self.gate.counts.inserts += 1;
        let mut gone = None;
        if self.items.len() > self.capacity {
            self.draws.clear();
            self.remover.pick(1, &mut self.rng, &mut self.draws);
            if let Some(pick) = self.draws.first() {
                gone = self.trace.is_some().then(|| self.items.key(pick.slot));
                self.remove(pick.slot, deferred);
            }
        }
        if let Some(trace) = &mut self.trace {
            Effect { key, version, gone }.write(trace);
        }
        key
    }

    /// Removes the item in a slot that has one.
    pub(super) fn remove(&mut self, slot: Slot, deferred: &mut DeferredDrops) {
        self.forget(slot);
        self.free(slot, deferred);
    }

    /// Removes an item from everything but its payload.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.sampler.remove(slot);
        self.remover.remove(slot);
        self.items.remove(slot);
        self.gate.counts.deletions += 1;
    }

    fn free(&mut self, slot: Slot, deferred: &mut DeferredDrops) {
        match &mut self.payload {
            Payload::Rows(slab) => slab.free(slot),
            Payload::Trajectories { slots, free } => {
                let left = slots[slot as usize].take();
                if let Some(left) = &left {
                    self.episodes.leave(left);
                }
                deferred.extend(left.and_then(|one| match &mut self.pinned {
                    Some(pinned) => pinned.leave(slot, one),
                    None => Some(one),
                }));
                free.push(slot);
            }
        }
    }

    /// What is known of the table, before anything is of items.
    fn infos(&self) -> Infos {
        let (table_size, total_weight) = (self.items.len().into(), self.sampler.total_weight());
        Infos { table_size, total_weight, ..Infos::default() }
    }

    /// Draws items; [`Gate::check_sample`] has allowed it.
    pub(super) fn draw(&mut self, count: usize, deferred: &mut DeferredDrops) -> (Infos, Drawn) {
        let mut infos = self.infos();
        infos.keys.reserve_exact(count);
        infos.probabilities.reserve_exact(count);
        infos.priorities.reserve_exact(count);
        infos.times_sampled.reserve_exact(count);
        infos.versions.reserve_exact(count);
        let mut draws = std::mem::take(&mut self.draws);
        draws.clear();
        // A payload is needed until it is pinned, even if its item goes with this draw.
        let mut exhausted = Vec::new();
        if self.max_times_sampled == 0 {
            self.sampler.pick(count, &mut self.rng, &mut draws);
            for pick in &draws {
                self.items.prefetch(pick.slot);
            }
            infos.times_sampled.extend(draws.iter().map(|pick| {
                let times = self.items.note_sample(pick.slot);
                self.unique_samples += u64::from(times == 1);
                times
            }));
            self.describe(&draws, &mut infos);
        } else {
            for _ in 0..count {
                let first = draws.len();
                self.sampler.pick(1, &mut self.rng, &mut draws);
                let Some(pick) = draws.get(first).copied() else { break };
                let times = self.items.note_sample(pick.slot);
                self.unique_samples += u64::from(times == 1);
                infos.times_sampled.push(times);
                let is_last = times >= self.max_times_sampled;
                self.describe(&[pick], &mut infos);
                if is_last {
                    self.forget(pick.slot);
                    exhausted.push(pick.slot);
                }
            }
        }
        self.gate.counts.samples += draws.len() as u64;
        self.lags.note(self.version, &infos.versions);
        let drawn = self.pin(draws.iter().map(|pick| pick.slot).collect());
        for slot in exhausted {
            self.free(slot, deferred);
        }
        self.draws = draws;
        (infos, drawn)
    }

    /// Items in the order of their slots, from a slot on, and the slot of the next one.
    pub(super) fn list(&self, first: Slot, most: usize) -> (Infos, Option<Slot>) {
        let mut infos = self.infos();
        for slot in self.items.live_from(first) {
            if infos.keys.len() == most {
                return (infos, Some(slot));
            }
            let item = self.items.at(slot);
            infos.keys.push(self.items.key(slot).number());
            infos.probabilities.push(f64::NAN);
            infos.priorities.push(item.priority);
            infos.times_sampled.push(item.times_sampled);
            infos.versions.push(item.version);
        }
        (infos, None)
    }

    /// The items of these names that are there, without counting them as drawn.
    pub(super) fn get(&self, keys: &[u64]) -> (Infos, Drawn) {
        let mut infos = self.infos();
        let mut slots = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(slot) = self.items.find(Key::from_number(*key)) else { continue };
            let item = self.items.at(slot);
            infos.keys.push(*key);
            infos.probabilities.push(f64::NAN);
            infos.priorities.push(item.priority);
            infos.times_sampled.push(item.times_sampled);
            infos.versions.push(item.version);
            slots.push(slot);
        }
        (infos, self.pin(slots))
    }

    /// Keeps the payload of items.
    fn pin(&self, slots: Vec<Slot>) -> Drawn {
        match &self.payload {
            Payload::Rows(slab) => Drawn::Rows(slab.pin(slots)),
            Payload::Trajectories { slots: trajectories, .. } => {
                let found = slots.iter().map(|slot| trajectories[*slot as usize].clone());
                Drawn::Trajectories(found.flatten().collect())
            }
        }
    }

    /// Appends what is known of drawn items but how often they were drawn, column by column.
    fn describe(&self, draws: &[DrawnItem], infos: &mut Infos) {
        let items = || draws.iter().map(|pick| self.items.at(pick.slot));
        infos.keys.extend(draws.iter().map(|pick| self.items.key(pick.slot).number()));
        infos.probabilities.extend(draws.iter().map(|pick| pick.probability));
        infos.priorities.extend(items().map(|item| item.priority));
        infos.versions.extend(items().map(|item| item.version));
    }

    /// Changes the priorities of those items that are there; how many they are.
    pub(super) fn update(&mut self, keys: &[u64], priorities: &[f64]) -> usize {
        let mut updates = std::mem::take(&mut self.updates);
        updates.clear();
        for (key, priority) in keys.iter().zip(priorities) {
            if let Some(slot) = self.items.find(Key::from_number(*key)) {
                self.items.set_priority(slot, *priority);
                updates.push((slot, *priority));
            }
        }
        self.sampler.update_many(&updates);
        self.remover.update_many(&updates);
        let updated = updates.len();
        self.updates = updates;
        updated
    }

    /// Takes note of the learner's policy version; whether it has grown.
    pub(super) fn advance(&mut self, version: u64) -> bool {
        let grown = version > self.version;
        if grown {
            self.version = version;
            self.sampler.advance(version);
            self.remover.advance(version);
        }
        grown
    }

    /// Removes everything, and counts from zero. What was inserted once is not to come again.
    pub(super) fn reset(&mut self, deferred: &mut DeferredDrops) {
        let live: Vec<Slot> = self.items.live().collect();
        self.sampler.clear();
        self.remover.clear();
        for slot in live {
            self.items.remove(slot);
            self.free(slot, deferred);
        }
        self.gate.counts = Counts::default();
        self.unique_samples = 0;
        self.lags = Lags::default();
        self.episodes.deleted = 0;
    }
}

/// How many rows a table has: one more than items because a new item is there before one is removed, and
/// some for those that are being written, or were removed while they are read.
pub(super) fn rows(capacity: u32) -> u32 {
    capacity.saturating_add(1).saturating_add((capacity / 32).clamp(2, 8192))
}
