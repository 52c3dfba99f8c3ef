//! Items with priorities: many in, many out, in an order that selectors choose, at a rate that a limiter
//! allows.
//!
//! A [`Table`] is a lock over numbers (`core`: which item is where, which is next) beside memory that is written
//! and read without it. To insert, room is [reserved](Table::try_reserve), filled, and committed; to
//! sample, items are [drawn](Table::try_sample) and pinned, and then gathered from the [`Sampled`].
//!
//! - `config`, `error`: its settings, and its errors.
//! - `key`, `items`: names of items, and what is known of them.
//! - `gate`: when calls may continue, and which are woken then.
//! - `insertion`, `sampled`: bytes on their way in and out.
//! - `waits`: calls that had to wait. `sessions`: how far remote producers have come.
//! - `pinned`: trajectories that a checkpoint wants, while the table goes on.
//! - `registry`: the tables of a server. [`saved`]: tables in checkpoints. `durable`: tables that survive a crash.
//!
//! # Invariants
//!
//! 1. Every insert, sample, update and delete happens at one moment, under the lock.
//! 2. No payload byte is copied, and nothing is freed, while the lock is held.
//! 3. Bad input changes nothing: it is refused before the lock is taken, or before the first change.

mod config;
mod core;
mod durable;
mod error;
mod gate;
mod insertion;
mod items;
mod key;
mod pinned;
mod registry;
mod sampled;
pub mod saved;
mod sessions;
pub mod spread;

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Instant;

use echoic_memory::signal::Signal;
use echoic_memory::sync::Mutex;

pub use self::config::{Form, MAX_METADATA, MAX_NAME, TableConfig};
pub use self::core::Infos;
use self::core::{Core, DeferredDrops, Payload};
use self::durable::EffectLog;
pub use self::durable::{Durability, Recovered, recover};
pub use self::error::check_priorities;
pub use self::error::{Obstacle, TableError};
use self::gate::Locked;
pub use self::insertion::Insertion;
pub use self::key::Key;
pub use self::registry::Tables;
pub use self::sampled::{Sampled, Stack};
pub use self::sessions::{Origin, Producer};
use self::spread::Spreads;
use crate::durable::{Log, Receipt};
use crate::journal;
use crate::limiter::{Counts, Limiter};
use crate::stream::Wait;
use crate::trajectory::Trajectory;
use crate::waits::Tally;
pub use crate::waits::{Call, Waiting, Waits};
use crate::{Error, WaitReason};

/// See the [module](self).
///
/// ```
/// use std::sync::Arc;
///
/// use echoic_replay::table::{Form, Table, TableConfig};
/// use echoic_replay::{Dtype, Leaf, Spec};
///
/// let reward = Leaf { path: "reward".into(), dtype: Dtype::Float(4), shape: vec![] };
/// let form = Form::Rows(Spec::new(vec![reward])?);
/// let table = Arc::new(Table::new(TableConfig::new("replay", form, 1000))?);
/// let mut insertion = table.try_reserve(1).unwrap();
/// insertion.row_mut(0).copy_from_slice(&2.5f32.to_ne_bytes());
/// let keys = insertion.commit(&[1.0], None)?;
/// let sampled = table.try_sample(2).unwrap();
/// assert_eq!(sampled.infos().keys, [keys[0].number(); 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    /// Of the layers above; opaque here.
    metadata: Vec<u8>,
    /// Without one, no journal is written.
    durability: Option<Durability>,
    core: Mutex<Core>,
    /// Where changes are written, once the table was brought back. Then the core has a trace.
    effects: OnceLock<EffectLog>,
    /// More may be sampled.
    items: Arc<Signal>,
    /// More may be inserted. The rows know it, too.
    room: Arc<Signal>,
    inserts: Arc<Tally>,
    samples: Arc<Tally>,
}

/// The numbers of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableInfo {
    /// How many items there are.
    pub size: u32,
    /// What they weigh together; see [`Infos::total_weight`].
    pub total_weight: f64,
    /// How often an item was inserted, sampled and removed since the table was new or reset.
    pub counts: Counts,
    /// How many of the items that were inserted since then were ever sampled.
    pub unique_samples: u64,
    /// How many episodes items have steps of, as far as their chunks know; of rows none is known.
    pub episodes: u64,
    /// How many of the others items had steps of, since the table was new or reset.
    pub deleted_episodes: u64,
    /// Inserts that had to wait. Those of one call that waits once are one.
    pub insert_waits: Waits,
    /// Samples that had to wait, each a whole batch.
    pub sample_waits: Waits,
    /// The limiter as it is now.
    pub limiter: Limiter,
    /// Whether nothing may be inserted and sampled for the time being.
    pub paused: bool,
    /// The learner's policy version.
    pub version: u64,
    /// Bytes of rows that were ever used; zero for trajectories, whose chunks several tables may share.
    pub row_bytes: usize,
}

/// What would keep callers waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Obstacles {
    /// Calls that insert.
    pub insert: Option<WaitReason>,
    /// Calls that sample.
    pub sample: Option<WaitReason>,
}

impl Table {
    /// An empty table.
    ///
    /// # Errors
    ///
    /// [`TableError`] when the settings can't work, alone or together.
    pub fn new(config: TableConfig) -> Result<Self, TableError> {
        config.check()?;
        let (items, room) = Default::default();
        let core = Mutex::new(Core::new(&config, &room)?);
        let (metadata, durability, effects) = (Vec::new(), None, OnceLock::new());
        let (inserts, samples) = Default::default();
        Ok(Self { config, metadata, durability, core, effects, items, room, inserts, samples })
    }

    /// Keeps some bytes with the table, for the layers above. They are a setting: no checkpoint and no
    /// journal has them.
    ///
    /// # Errors
    ///
    /// [`TableError::Metadata`] when there are more than [`MAX_METADATA`].
    pub fn with_metadata(mut self, metadata: Vec<u8>) -> Result<Self, TableError> {
        if metadata.len() > MAX_METADATA {
            return Err(TableError::Metadata(metadata.len()));
        }
        self.metadata = metadata;
        Ok(self)
    }

    /// What the layers above keep with it; empty, if nothing.
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// Has a table that is [brought back](recover) write a journal from then on. `None`: it writes none, and what the
    /// last checkpoint has is there again.
    #[must_use]
    pub fn durable(mut self, durability: Option<Durability>) -> Self {
        self.durability = durability;
        self
    }

    /// What is promised about what was [kept](Table::keep); nothing, without a journal.
    pub fn durability(&self) -> Option<Durability> {
        self.durability
    }

    /// What writes its journal, if there is one.
    fn effects(&self) -> Option<&EffectLog> {
        self.effects.get()
    }

    fn log(&self) -> Option<&Log> {
        self.effects().map(|effects| &effects.log)
    }

    /// Numbers about its journal, if it has one.
    pub fn journal(&self) -> Option<journal::Info> {
        self.log().map(|log| log.journal().info())
    }

    /// The settings with which it was created.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.core.lock())
    }

    /// Runs `change` under the lock, and drops outside of it what was removed. It gets the table's journal,
    /// to write what it did, and what was made before for that.
    fn change<P, T>(
        &self,
        mut prepare: impl FnMut() -> P,
        change: impl FnOnce(&mut Core, &mut DeferredDrops, Option<(&EffectLog, P)>) -> T,
    ) -> T {
        let mut deferred = DeferredDrops::new();
        loop {
            let log = self.effects();
            let prepared = log.map(|log| (log, prepare()));
            let result = {
                let core = &mut *self.lock();
                if core.trace.is_some() && log.is_none() {
                    // The table got its journal in between.
                    continue;
                }
                change(core, &mut deferred, prepared)
            };
            if let Some(log) = log {
                // Not under the lock: it is a system call.
                log.log.journal().nudge();
            }
            return result;
        }
    }

    /// Lends rows for up to `count` items, fewer when the limiter or the memory does not allow more.
    ///
    /// # Errors
    ///
    /// [`Obstacle`] when it is not even one.
    pub fn try_reserve(self: &Arc<Self>, count: usize) -> Result<Insertion, Obstacle> {
        let (room, count) = match (self.effects(), &self.config.form) {
            (Some(log), Form::Rows(spec)) => {
                self.lock().gate.insertable(1)?;
                let (room, count) = log.rows_room(count, spec.nbytes())?;
                (Some(room), count)
            }
            _ => (None, count),
        };
        let (writer, generation) = {
            let mut core = self.lock();
            (core.reserve(count as u64)?, core.gate.generation)
        };
        Ok(Insertion::new(Arc::clone(self), writer, generation, room))
    }

    /// Waits until [`Table::try_reserve`] succeeds.
    pub fn reserve(
        self: &Arc<Self>,
        count: usize,
        wait: Wait<'_>,
    ) -> Result<Insertion, TableError> {
        self.until(Call::Insert, wait, || self.try_reserve(count))
    }

    /// Inserts an item that names slices of chunks.
    ///
    /// # Errors
    ///
    /// [`Obstacle`], and then nothing is inserted.
    pub fn try_insert(
        self: &Arc<Self>,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
    ) -> Result<Key, Obstacle> {
        let key = self.try_insert_from(trajectory, priority, version, None)?;
        // It came from nowhere, so it was not there before; but what was there may be gone.
        let gone = || TableError::Restore("a checkpoint was loaded meanwhile".into());
        key.ok_or_else(|| gone().into())
    }

    /// As [`Table::try_insert`], of an operation that comes again until it is acknowledged; `None` when it is in the
    /// table already.
    ///
    /// # Errors
    ///
    /// As [`Table::try_insert`], and [`TableError::Stale`].
    pub fn try_insert_from(
        self: &Arc<Self>,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
        origin: Option<&Origin>,
    ) -> Result<Option<Key>, Obstacle> {
        check_priorities(&[priority])?;
        let Form::Trajectories(spec) = &self.config.form else {
            let mut insertion = self.try_reserve(1)?;
            insertion.fill(trajectory)?;
            let keys = insertion.commit_from(&[priority], version, origin)?;
            return Ok(keys.and_then(|keys| keys.first().copied()));
        };
        if let Some(spec) = spec {
            trajectory.check(spec).map_err(TableError::Spec)?;
        }
        loop {
            if let Some(log) = self.effects() {
                return log.try_insert(self, trajectory, priority, version, origin);
            }
            let mut deferred = DeferredDrops::new();
            let core = &mut *self.lock();
            // With a trace, the table got its journal in between.
            if core.trace.is_none() {
                if core.has(origin)? {
                    return Ok(None);
                }
                let trajectory = trajectory.clone();
                let key = core.insert_trajectory(trajectory, priority, version, &mut deferred)?;
                core.take_note(origin.map(|origin| (origin, 1)));
                return Ok(Some(key));
            }
        }
    }

    /// Waits until [`Table::try_insert`] succeeds.
    ///
    /// # Errors
    ///
    /// [`TableError`], and then nothing is inserted.
    pub fn insert(
        self: &Arc<Self>,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
        wait: Wait<'_>,
    ) -> Result<Key, TableError> {
        self.until(Call::Insert, wait, || self.try_insert(trajectory, priority, version))
    }

    /// The first operation of a producer's life that is not in the table, of those that are for it: all before
    /// are, however often the server was restarted since, as far as the table comes back.
    ///
    /// # Errors
    ///
    /// [`TableError::Stale`] when a later life of the producer has inserted.
    pub fn reached(&self, producer: &Producer, epoch: u64) -> Result<u64, TableError> {
        self.lock().sessions.next(producer, epoch)
    }

    /// Draws `count` items. From some tables, the batch is to be handed on only when that is kept: see
    /// [`Sampled::receipt`].
    ///
    /// # Errors
    ///
    /// [`Obstacle`], and then nothing was drawn; but [`TableError::Journal`] of a table of which that would
    /// have to be kept, and can't be.
    pub fn try_sample(self: &Arc<Self>, count: usize) -> Result<Sampled, Obstacle> {
        let max_times = self.config.max_times_sampled;
        let is_durable = max_times > 0 && self.durability == Some(Durability::Sync);
        if max_times > 0 {
            self.check_room()?;
        }
        let (infos, drawn, receipt) = self.change(
            || (),
            |core, deferred, log| {
                if let Some((log, ())) = log.as_ref().filter(|_| is_durable) {
                    log.log.journal().check().map_err(TableError::from)?;
                }
                core.gate.check_sample(count as u64)?;
                let (infos, drawn) = core.draw(count, deferred);
                let mut receipt = None;
                if let Some((log, ())) = log {
                    let taken = log.sampled(&infos, max_times);
                    if is_durable && !taken {
                        return Err(TableError::from(log.log.refusal()).into());
                    }
                    receipt = is_durable.then(|| log.log.receipt());
                }
                Ok::<_, Obstacle>((infos, drawn, receipt))
            },
        )?;
        Ok(Sampled::new(Arc::clone(self), infos, drawn, receipt))
    }

    /// Waits until [`Table::try_sample`] succeeds, and then, without a deadline, until the batch may be handed
    /// on.
    ///
    /// # Errors
    ///
    /// [`TableError`]; a batch that the limiter or the size of the table can never allow is refused at
    /// once.
    pub fn sample(self: &Arc<Self>, count: usize, wait: Wait<'_>) -> Result<Sampled, TableError> {
        let Wait { deadline, tick, on_tick } = wait;
        let sampled = match self.try_sample(count) {
            Ok(sampled) => sampled,
            Err(Obstacle::Failed(error)) => return Err(error),
            Err(Obstacle::Blocked(_)) => {
                self.check_batch(count)?;
                let wait = Wait { deadline, tick, on_tick: &mut *on_tick };
                self.until(Call::Sample, wait, || self.try_sample(count))?
            }
        };
        sampled.keep(Wait { deadline: None, tick, on_tick })?;
        Ok(sampled)
    }

    /// Refuses batches that can never be sampled.
    ///
    /// # Errors
    ///
    /// [`TableError::Limiter`] or [`TableError::Batch`], with the arithmetic.
    pub fn check_batch(&self, count: usize) -> Result<(), TableError> {
        let (limiter, counts, needed) = {
            let core = self.lock();
            (core.gate.limiter, core.gate.counts, core.gate.needed(count as u64))
        };
        limiter.check_batch(&counts, count as u64, self.config.bounds())?;
        let capacity = self.config.capacity.into();
        if needed > capacity {
            return Err(TableError::Batch { count: count as u64, needed, capacity });
        }
        Ok(())
    }

    /// Whether `count` items may be sampled now.
    pub fn can_sample(&self, count: usize) -> bool {
        self.lock().gate.check_sample(count as u64).is_ok()
    }

    /// Whether `count` items may be inserted now.
    pub fn can_insert(&self, count: usize) -> bool {
        self.lock().gate.insertable(count as u64).is_ok_and(|most| most == count as u64)
    }

    /// Why a call for one item would wait now, if it would.
    pub fn blocked(&self) -> Obstacles {
        let reason = |obstacle| match obstacle {
            Obstacle::Blocked(reason) => Some(reason),
            Obstacle::Failed(_) => None,
        };
        let core = self.lock();
        let leased = match &core.payload {
            Payload::Rows(slab) => (!slab.has_room()).then_some(WaitReason::Leased),
            Payload::Trajectories { .. } => None,
        };
        let insert = core.gate.insertable(1).err().and_then(reason).or(leased);
        let sample = core.gate.check_sample(1).err().and_then(reason);
        drop(core);
        let full = self.log().is_some_and(|log| !log.journal().has_room());
        let full = full.then_some(WaitReason::Capacity);
        let told = full.filter(|_| self.config.max_times_sampled > 0);
        Obstacles { insert: insert.or(full), sample: sample.or(told) }
    }

    /// Whether there is room in the journal for changes of priorities, deletes, a reset or a version. They are
    /// made all the same when there is none, so a caller that makes many looks before each: otherwise they fill the
    /// memory while the disk is stalled. After [`Table::wake_on_room`], look again.
    pub fn check_room(&self) -> Result<(), Obstacle> {
        let has_room = self.log().is_none_or(Log::has_room);
        if has_room { Ok(()) } else { Err(WaitReason::Capacity.into()) }
    }

    /// Waits until [`Table::check_room`] succeeds.
    pub fn wait_for_room(self: &Arc<Self>, mut wait: Wait<'_>) -> Result<(), TableError> {
        let poll = || self.check_room().ok();
        Ok(wait.until(|deadline| match self.room.wait(deadline, poll) {
            Some(()) => ControlFlow::Break(()),
            None => ControlFlow::Continue(WaitReason::Capacity),
        })?)
    }

    /// Changes priorities, all or none; how many of the items are still there. Keys of items that have
    /// gone are passed over; of a key that is there twice the last value counts.
    ///
    /// # Errors
    ///
    /// [`TableError`] when a value is no priority, or the lengths differ.
    pub fn update_priorities(&self, keys: &[u64], priorities: &[f64]) -> Result<usize, TableError> {
        let (keys_len, values) = (keys.len(), priorities.len());
        if keys_len != values {
            return Err(TableError::Lengths { keys: keys_len, values });
        }
        check_priorities(priorities)?;
        self.check_journal()?;
        self.change(
            || EffectLog::updated(keys, priorities),
            |core, _, log| {
                let updated = core.update(keys, priorities);
                match log {
                    Some((log, records)) if updated > 0 => log.push_all(records),
                    _ => Ok(()),
                }
                .map(|()| updated)
            },
        )
    }

    /// What is known about all items; nothing of it counts as a sample. Probabilities are NaN.
    pub fn items(&self) -> Infos {
        self.items_from(0, usize::MAX).0
    }

    /// As [`Table::items`], of at most this many items: from a place on, 0 for the first ones. Also the
    /// place of the next one.
    pub fn items_from(&self, place: u32, most: usize) -> (Infos, Option<u32>) {
        self.lock().list(place, most)
    }

    /// The items of these names that are there, in this order; they do not count as sampled.
    pub fn get(self: &Arc<Self>, keys: &[u64]) -> Sampled {
        let (infos, drawn) = self.lock().get(keys);
        Sampled::new(Arc::clone(self), infos, drawn, None)
    }

    /// Removes items; how many of them were there.
    pub fn delete(&self, keys: &[u64]) -> usize {
        self.change(
            || EffectLog::removed(keys),
            |core, deferred, log| {
                let mut deleted = 0;
                for key in keys {
                    if let Some(slot) = core.items.find(Key::from_number(*key)) {
                        core.remove(slot, deferred);
                        deleted += 1;
                    }
                }
                if let Some((log, records)) = log.filter(|_| deleted > 0) {
                    // Whoever needs to know that it survives asks for it: see `keep`.
                    let _ = log.push_all(records);
                }
                deleted
            },
        )
    }

    /// Removes all items and counts from zero.
    pub fn reset(&self) {
        self.change(
            || (),
            |core, deferred, log| {
                core.reset(deferred);
                self.inserts.reset();
                self.samples.reset();
                if let Some((log, ())) = log {
                    log.reset();
                }
            },
        );
    }

    /// Whether changes can still be written, in a table with a journal.
    pub fn check_journal(&self) -> Result<(), TableError> {
        self.log().map_or(Ok(()), |log| Ok(log.journal().check()?))
    }

    /// Waits until all that was changed so far survives what the table's durability says; at once, when it
    /// promises nothing.
    ///
    /// # Errors
    ///
    /// [`TableError::Journal`] when it does not: it is in the table, but not on disk.
    /// [`TableError::TimedOut`] or [`TableError::Interrupted`].
    pub fn keep(&self, wait: Wait<'_>) -> Result<(), TableError> {
        self.receipt().map_or(Ok(()), |receipt| self.keep_until(receipt, wait))
    }

    /// As [`Table::keep`], of what was changed when the receipt was given.
    fn keep_until(&self, receipt: Receipt, mut wait: Wait<'_>) -> Result<(), TableError> {
        let Some(log) = self.log() else { return Ok(()) };
        let ended = wait.until(|deadline| match log.wait(receipt, deadline) {
            Ok(false) => ControlFlow::Continue(WaitReason::Capacity),
            ended => ControlFlow::Break(ended),
        });
        // What is lost without having been taken is reported, too.
        Ok(ended?.and_then(|_| match log.journal().check() {
            Err(Error::Closed(_)) => Ok(()),
            checked => checked,
        })?)
    }

    /// What to ask [`Table::is_durable`] about what was changed so far; none in a table without a journal.
    pub fn receipt(&self) -> Option<Receipt> {
        self.log().map(Log::receipt)
    }

    /// Whether what had been changed when the receipt was given survives what the table's durability says.
    ///
    /// # Errors
    ///
    /// [`TableError::Journal`] when it never will.
    pub fn is_durable(&self, receipt: Receipt) -> Result<bool, TableError> {
        self.log().map_or(Ok(true), |log| Ok(log.is_durable(receipt)?))
    }

    /// Calls `waker` once when more is kept, or nothing will be any more. Look again after this call.
    pub fn wake_on_durable(&self, waker: &Waker) {
        if let Some(log) = self.log() {
            log.journal().wake_on_progress(waker);
        }
    }

    /// Lets nothing be inserted or sampled until [`Table::resume`].
    pub fn pause(&self) {
        self.lock().gate.paused = true;
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.lock().gate.paused = false;
    }

    /// Replaces the limiter; the counts stay.
    ///
    /// # Errors
    ///
    /// [`TableError::Limiter`] when the table could not work with it.
    pub fn set_limiter(&self, limiter: Limiter) -> Result<(), TableError> {
        limiter.check_table(self.config.bounds())?;
        self.lock().gate.limiter = limiter;
        Ok(())
    }

    /// Tells the policy version of the learner. It never falls.
    pub fn advance(&self, version: u64) {
        self.change(
            || (),
            |core, _, log| {
                if let (true, Some((log, ()))) = (core.advance(version), log) {
                    log.advanced(version);
                }
            },
        );
    }

    /// Ends everything, and wakes all waiting calls. A journal is ended, too: what it has is on disk then.
    pub fn close(&self) {
        self.lock().gate.closed = true;
        if let Some(log) = self.log() {
            // What was not kept is reported to the calls that wait for it.
            let _ = log.journal().close();
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().gate.closed
    }

    /// A snapshot of its numbers.
    pub fn info(&self) -> TableInfo {
        let core = self.lock();
        let row_bytes = match &core.payload {
            Payload::Rows(slab) => slab.used_bytes(),
            Payload::Trajectories { .. } => 0,
        };
        TableInfo {
            size: core.items.len(),
            total_weight: core.sampler.total_weight(),
            counts: core.gate.counts,
            unique_samples: core.unique_samples,
            episodes: core.episodes.len(),
            deleted_episodes: core.episodes.deleted,
            insert_waits: self.inserts.read(),
            sample_waits: self.samples.read(),
            limiter: core.gate.limiter,
            paused: core.gate.paused,
            version: core.version,
            row_bytes,
        }
    }

    /// How its items are spread.
    pub fn spreads(&self) -> Spreads {
        let core = self.lock();
        Spreads {
            times_sampled: *core.items.times(),
            priorities: *core.items.priorities(),
            lags: core.lags,
        }
    }

    /// Becomes what was loaded; its limiter, which may have changed since, stays.
    fn replace(&self, core: Core) {
        let old = self.lock().replace(core);
        drop(old);
    }

    /// Becomes what was brought back, and writes to this journal from now on.
    fn install(&self, mut core: Core, log: Option<EffectLog>) {
        core.trace = log.as_ref().map(|_| Vec::new());
        let old = {
            let mut now = self.lock();
            let old = now.replace(core);
            if let Some(log) = log {
                // There was none: a table with items is not brought back, and one with a journal has it
                // from its beginning.
                let _ = self.effects.set(log);
            }
            old
        };
        drop(old);
    }

    /// Calls `waker` once when more may be sampled, or the table was closed.
    pub fn wake_on_items(&self, waker: &Waker) {
        self.items.wake_later(waker);
    }

    /// Calls `waker` once when more may be inserted, or the table was closed.
    pub fn wake_on_room(&self, waker: &Waker) {
        self.room.wake_later(waker);
    }

    /// Counts a call that has to wait until what this returns is dropped. [`Table::insert`] and those like it
    /// see to it themselves; it is for callers that wait in another way.
    pub fn begin_wait(&self, call: Call) -> Waiting {
        match call {
            Call::Insert => self.inserts.begin(),
            Call::Sample => self.samples.begin(),
        }
    }

    /// Attempts, waiting for more in between.
    fn until<T>(
        &self,
        call: Call,
        mut wait: Wait<'_>,
        mut attempt: impl FnMut() -> Result<T, Obstacle>,
    ) -> Result<T, TableError> {
        let signal = match call {
            Call::Insert => &self.room,
            Call::Sample => &self.items,
        };
        // A call without time does not wait.
        let end = wait.deadline;
        let may_wait = || end.is_none_or(|end| end > Instant::now());
        let mut waiting = None;
        wait.until(|deadline| {
            let mut reason = WaitReason::MinSize;
            let found = signal.wait(deadline, || match attempt() {
                Ok(found) => Some(Ok(found)),
                Err(Obstacle::Failed(error)) => Some(Err(error)),
                Err(Obstacle::Blocked(blocked)) => {
                    reason = blocked;
                    if waiting.is_none() && may_wait() {
                        waiting = Some(self.begin_wait(call));
                    }
                    if let Some(waiting) = &waiting {
                        waiting.because(reason);
                    }
                    None
                }
            });
            found.map_or(ControlFlow::Continue(reason), ControlFlow::Break)
        })?
    }
}
