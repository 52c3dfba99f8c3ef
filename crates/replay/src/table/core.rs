//! The state of a table, all of it under the table's lock; no payload bytes are touched here.
//!
//! # Invariants
//!
//! 1. Items, sampler and remover have the same slots, and each of these has its payload.
//! 2. There are at most `max_size` items when no method of this file runs.

use std::sync::Arc;

use echoic_memory::slab::{Pinned, RowWriter, Slab};

use super::episodes::Episodes;
use super::error::{Obstacle, TableError};
use super::items::Items;
use super::journalled::Effect;
use super::keeping::Keeping;
use super::key::Key;
use super::sessions::{Origin, Sessions};
use super::spread::Lags;
use super::{Form, TableConfig};
use crate::limiter::{Counts, Limiter, Reason};
use crate::rng::Rng;
use crate::selectors::{Entry, Pick, Selector, Slot};
use crate::trajectory::Trajectory;

/// Where the bytes of items are, by slot.
#[derive(Debug)]
pub(super) enum Payload {
    /// In the row of the slot's number.
    Rows(Arc<Slab>),
    Trajectories {
        slots: Vec<Option<Arc<Trajectory>>>,
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
    /// (Schaul et al., 2016).
    pub fn weights(&self, beta: f64) -> Vec<f64> {
        let size = self.table_size as f64;
        let weight = |probability: &f64| (size * probability).powf(-beta);
        let mut weights: Vec<f64> = self.probabilities.iter().map(weight).collect();
        let largest = weights.iter().copied().fold(0.0, f64::max);
        weights.iter_mut().for_each(|weight| *weight /= largest);
        weights
    }
}

/// Payload of drawn items.
#[derive(Debug)]
pub(super) enum Drawn {
    Rows(Pinned),
    Trajectories(Vec<Arc<Trajectory>>),
}

/// Trajectories to be dropped when the lock is no longer held: freeing memory may take a system call.
pub(super) type Graveyard = Vec<Arc<Trajectory>>;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) items: Items,
    pub(super) sampler: Box<dyn Selector>,
    pub(super) remover: Box<dyn Selector>,
    pub(super) limiter: Limiter,
    pub(super) counts: Counts,
    /// How many items were ever sampled, of those that `counts` counts.
    pub(super) unique_samples: u64,
    /// How many versions old samples were.
    pub(super) lags: Lags,
    /// How far those have come who insert from elsewhere.
    pub(super) sessions: Sessions,
    /// Of the trajectories in the payload.
    pub(super) episodes: Episodes,
    /// How often the table was loaded: rows that were reserved before are of a slab that is gone.
    pub(super) era: u64,
    /// Inserts that have a row and are not done yet.
    reserved: u64,
    pub(super) rng: Rng,
    pub(super) payload: Payload,
    /// What a checkpoint under way still wants of the trajectories.
    pub(super) keeping: Option<Keeping>,
    pub(super) version: u64,
    pub(super) paused: bool,
    pub(super) closed: bool,
    /// What inserts did, for the journal of a table that has one: 24 bytes for each item.
    pub(super) trace: Option<Vec<u8>>,
    max_size: u32,
    max_times_sampled: u32,
    // Used again by every call, so that none allocates.
    picks: Vec<Pick>,
    updates: Vec<(Slot, f64)>,
}

impl Core {
    pub(super) fn new(config: &TableConfig) -> Result<Self, TableError> {
        let payload = match &config.form {
            Form::Rows(spec) => {
                Payload::Rows(Arc::new(Slab::new(rows(config.max_size), spec.nbytes())?))
            }
            Form::Trajectories(_) => Payload::Trajectories { slots: Vec::new(), free: Vec::new() },
        };
        let (mut sampler, mut remover) = (config.sampler.build()?, config.remover.build()?);
        sampler.reserve(rows(config.max_size));
        remover.reserve(rows(config.max_size));
        Ok(Self {
            items: Items::with_room(rows(config.max_size)),
            sampler,
            remover,
            limiter: config.limiter,
            counts: Counts::default(),
            unique_samples: 0,
            lags: Lags::default(),
            sessions: Sessions::default(),
            episodes: Episodes::default(),
            era: 0,
            reserved: 0,
            rng: Rng::new(config.seed),
            payload,
            keeping: None,
            version: 0,
            paused: false,
            closed: false,
            trace: None,
            max_size: config.max_size,
            max_times_sampled: config.max_times_sampled,
            picks: Vec::new(),
            updates: Vec::new(),
        })
    }

    /// Becomes `other`; what a running table was told since its birth stays.
    pub(super) fn replace(&mut self, other: Self) -> Self {
        let (limiter, paused, closed, era) = (self.limiter, self.paused, self.closed, self.era + 1);
        let mut keeping = self.keeping.take();
        if let (Some(keeping), Payload::Trajectories { slots, .. }) = (&mut keeping, &self.payload)
        {
            keeping.leave_all(slots);
        }
        std::mem::replace(self, Self { limiter, paused, closed, era, keeping, ..other })
    }

    fn check_open(&self) -> Result<(), Obstacle> {
        if self.closed {
            return Err(TableError::Closed.into());
        }
        if self.paused { Err(Reason::Paused.into()) } else { Ok(()) }
    }

    /// Whether what comes from there is in the table.
    pub(super) fn has(&self, origin: Option<&Origin>) -> Result<bool, TableError> {
        origin.map_or(Ok(false), |origin| self.sessions.has(origin))
    }

    /// Takes note that so many operations are in the table, which has no journal to be told.
    pub(super) fn take_note(&mut self, sent: Option<(&Origin, usize)>) {
        if let Some((origin, count)) = sent {
            self.sessions.advance(origin, count as u64);
        }
    }

    /// How many of `wanted` items may be inserted now: at least one.
    pub(super) fn insertable(&self, wanted: u64) -> Result<u64, Obstacle> {
        self.check_open()?;
        let counts = Counts { inserts: self.counts.inserts + self.reserved, ..self.counts };
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
        if u64::from(self.items.len()) < self.needed(count) {
            return Err(Reason::MinSize.into());
        }
        Ok(())
    }

    /// How many items there must be for a batch: each draw may be the last of its item.
    pub(super) fn needed(&self, count: u64) -> u64 {
        let gone = if self.max_times_sampled > 0 { count } else { 1 };
        self.limiter.parameters().min_size.max(gone)
    }

    /// Takes rows for items to come.
    pub(super) fn reserve(&mut self, wanted: u64) -> Result<RowWriter, Obstacle> {
        let count = self.insertable(wanted)?;
        let Payload::Rows(slab) = &self.payload else {
            return Err(TableError::Spec("the table has no rows".into()).into());
        };
        let writer = slab.try_reserve(usize::try_from(count).unwrap_or(usize::MAX));
        if writer.is_empty() {
            return Err(Reason::Leased.into());
        }
        self.reserved += writer.len() as u64;
        Ok(writer)
    }

    /// Gives up what [`Core::reserve`] took.
    pub(super) fn unreserve(&mut self, count: usize) {
        self.reserved -= count as u64;
    }

    /// Makes an item of a reserved row that has been published.
    pub(super) fn insert_row(
        &mut self,
        slot: Slot,
        priority: f64,
        version: Option<u64>,
        graveyard: &mut Graveyard,
    ) -> Key {
        self.reserved -= 1;
        self.enter(slot, priority, version, graveyard)
    }

    /// Makes an item of a trajectory.
    pub(super) fn insert_trajectory(
        &mut self,
        trajectory: Arc<Trajectory>,
        priority: f64,
        version: Option<u64>,
        graveyard: &mut Graveyard,
    ) -> Result<Key, Obstacle> {
        self.insertable(1)?;
        let Payload::Trajectories { slots, free } = &mut self.payload else {
            return Err(TableError::Spec("the table has rows".into()).into());
        };
        let slot = free.pop().unwrap_or_else(|| {
            slots.push(None);
            (slots.len() - 1) as Slot
        });
        self.episodes.enter(&trajectory);
        slots[slot as usize] = Some(trajectory);
        Ok(self.enter(slot, priority, version, graveyard))
    }

    /// Counts an item in, and another out when there are too many: as in Reverb the newest is there
    /// before somebody has to go, and may be who goes.
    fn enter(
        &mut self,
        slot: Slot,
        priority: f64,
        version: Option<u64>,
        graveyard: &mut Graveyard,
    ) -> Key {
        let version = version.unwrap_or(self.version);
        let key = self.items.insert(slot, priority, version);
        let entry = Entry { priority, version };
        self.sampler.insert(slot, entry);
        self.remover.insert(slot, entry);
        self.counts.inserts += 1;
        let mut gone = None;
        if self.items.len() > self.max_size {
            self.picks.clear();
            self.remover.pick(1, &mut self.rng, &mut self.picks);
            if let Some(pick) = self.picks.first() {
                gone = self.trace.is_some().then(|| self.items.key(pick.slot));
                self.remove(pick.slot, graveyard);
            }
        }
        if let Some(trace) = &mut self.trace {
            Effect { key, version, gone }.write(trace);
        }
        key
    }

    /// Removes the item in a slot that has one.
    pub(super) fn remove(&mut self, slot: Slot, graveyard: &mut Graveyard) {
        self.forget(slot);
        self.free(slot, graveyard);
    }

    /// Removes an item from everything but its payload.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.sampler.remove(slot);
        self.remover.remove(slot);
        self.items.remove(slot);
        self.counts.deletions += 1;
    }

    fn free(&mut self, slot: Slot, graveyard: &mut Graveyard) {
        match &mut self.payload {
            Payload::Rows(slab) => slab.free(slot),
            Payload::Trajectories { slots, free } => {
                let left = slots[slot as usize].take();
                if let Some(left) = &left {
                    self.episodes.leave(left);
                }
                graveyard.extend(left.and_then(|one| match &mut self.keeping {
                    Some(keeping) => keeping.leave(slot, one),
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

    /// Draws items; [`Core::check_sample`] has allowed it.
    pub(super) fn draw(&mut self, count: usize, graveyard: &mut Graveyard) -> (Infos, Drawn) {
        let mut infos = self.infos();
        infos.keys.reserve_exact(count);
        infos.probabilities.reserve_exact(count);
        infos.priorities.reserve_exact(count);
        infos.times_sampled.reserve_exact(count);
        infos.versions.reserve_exact(count);
        let mut picks = std::mem::take(&mut self.picks);
        picks.clear();
        // A payload is needed until it is pinned, even if its item goes with this draw.
        let mut exhausted = Vec::new();
        if self.max_times_sampled == 0 {
            self.sampler.pick(count, &mut self.rng, &mut picks);
            for pick in &picks {
                self.items.prefetch(pick.slot);
            }
            infos.times_sampled.extend(picks.iter().map(|pick| {
                let times = self.items.note_sample(pick.slot);
                self.unique_samples += u64::from(times == 1);
                times
            }));
            self.describe(&picks, &mut infos);
        } else {
            for _ in 0..count {
                let first = picks.len();
                self.sampler.pick(1, &mut self.rng, &mut picks);
                let Some(pick) = picks.get(first).copied() else { break };
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
        self.counts.samples += picks.len() as u64;
        self.lags.note(self.version, &infos.versions);
        let drawn = self.pin(picks.iter().map(|pick| pick.slot).collect());
        for slot in exhausted {
            self.free(slot, graveyard);
        }
        self.picks = picks;
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
    fn describe(&self, picks: &[Pick], infos: &mut Infos) {
        let items = || picks.iter().map(|pick| self.items.at(pick.slot));
        infos.keys.extend(picks.iter().map(|pick| self.items.key(pick.slot).number()));
        infos.probabilities.extend(picks.iter().map(|pick| pick.probability));
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
    pub(super) fn reset(&mut self, graveyard: &mut Graveyard) {
        let live: Vec<Slot> = self.items.live().collect();
        self.sampler.clear();
        self.remover.clear();
        for slot in live {
            self.items.remove(slot);
            self.free(slot, graveyard);
        }
        self.counts = Counts::default();
        self.unique_samples = 0;
        self.lags = Lags::default();
        self.episodes.deleted = 0;
    }
}

/// The most items of a batch: what is known about them is taken note of under the lock.
const MAX_BATCH: u64 = 1 << 24;

/// How many rows a table has: one more than items because a newcomer is there before somebody goes, and
/// some for those that are being written, or were removed while they are read.
pub(super) fn rows(max_size: u32) -> u32 {
    max_size.saturating_add(1).saturating_add((max_size / 32).clamp(2, 8192))
}
