//! All decisions of a rollout table: reservations, complete groups, deliveries and waits.
//!
//! A [`Ledger`] knows neither clocks nor threads nor files. Something [happens](Change) at a time that the
//! caller gives, in milliseconds, and the ledger says what [came of it](Outcome) or [why not](ChangeError). So the
//! same changes at the same times lead to the same ledger and the same batches, bit by bit.
//!
//! # Words
//!
//! V is the learner's version; t the version that the next batch will update; B = `batch_groups` ×
//! `batches_per_version` the groups of a version; η = `max_lag`; d = `pipeline_depth` ≤ η. The learner
//! makes a version of every B groups that it takes, in batches of whatever size: t = V while fewer than B were taken
//! for V, and one more for every B since. What was taken beyond V when it is published counts for the versions to come;
//! what was not taken by then counts for none.
//!
//! - *Reservation*: this many more groups may be made: min(`max_running` − running, (d + V + 1)·B − (accepted +
//!   running), `capacity` − those that are there).
//! - *Selection*: a complete group may be delivered if t − v ≤ η, where v is the version of its oldest token.
//! - *Shipping*: the batch leaves when V ≥ t − `target_lag`.
//!
//! # Invariants
//!
//! 1. `submitted = running + accepted + rejected + filtered`.
//! 2. A group is in one place: open, queued, or with consumers; or it is over.
//! 3. A refusal changes nothing but what time itself has changed, which [`Ledger::is_due`] reports before; a count, if a
//!    consumer's lease was over; and what a sample that is refused has moved out of its way. Whatever changed something
//!    says so: [`Ledger::take_changed`].
//!
//! - `change`: what happens, what comes of it, why not. `check`: what is invalid, whatever there is.
//!   `counts`: what is counted.
//! - `open`: groups that are made. `queue`: complete ones, in order. `draws`: which of them make a batch.
//!   `leases`: batches that are out. `steps`: which version the next batch updates. `generation`: numbers that
//!   nothing else had. `state`: what is saved, as bytes and back. `derived`: what follows from that. `recount`: whether
//!   it does.

mod change;
mod check;
mod counts;
mod derived;
mod draws;
mod generation;
mod leases;
mod open;
mod queue;
mod recount;
mod state;
mod steps;

use std::sync::Arc;

pub use self::change::{
    Append, Balance, Blocked, Change, ChangeError, GroupStatus, Hold, Lease, MAX_KEY,
    MAX_KEYS_BYTES, MAX_RANKS, MAX_RESERVED, MAX_VERSION, Outcome, Progress, Reservation, Reserve,
    Share, Size, Update, Want,
};
pub use self::counts::{Counts, MAX_SOURCES, OTHERS, Source};
pub use self::open::MAX_SUSPENDED;
pub use self::state::{Moment, StateError};

use self::check::value;
use self::derived::Derived;
use self::queue::QueuedGroup;
use self::state::State;
use super::config::{ConfigError, OnStale, Order, RolloutConfig};
use super::filter::BoundFilter;
use super::item::{Group, Item};
use crate::limiter::{self, Limiter};

/// Of how many groups that are over it is known how.
const MAX_STATUSES: usize = 1 << 16;

/// What is to be done at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A reservation may be over.
    Reservation(u64),
    /// A group is complete with what it has, or rejected.
    Deadline(u64),
    /// A consumer has had its share for too long.
    Lease(u64, u32),
}

/// A group that is complete, and not over.
#[derive(Debug, Clone, PartialEq)]
struct Ready {
    group: Arc<Group>,
    priority: f64,
    /// Which it was to be complete.
    place: u64,
    /// How often consumers were done with it.
    uses: u32,
    /// It is with consumers.
    is_out: bool,
    /// Of the reservation with which it was complete.
    attempt: u32,
}

impl Ready {
    fn place(&self) -> QueuedGroup {
        let (id, oldest) = (self.group.id, self.group.oldest);
        let is_used = self.uses > 0;
        QueuedGroup { id, ready: self.place, oldest, priority: self.priority, is_used }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Ledger {
    config: Arc<RolloutConfig>,
    filter: Option<BoundFilter>,
    limiter: Option<Limiter>,
    /// What is saved.
    state: State,
    /// What follows from that.
    derived: Derived,
    /// The attempt that new groups begin with. It is not saved: a table that goes on has numbers of its own.
    first_attempt: u32,
    /// What has large memory and is over; see [`Ledger::take_dead`].
    dead: Dead,
    /// Whether anything that is saved has changed; see [`Ledger::take_changed`].
    changed: bool,
}

/// What is left of groups that are over, to be dropped without a lock.
#[derive(Debug, Default)]
pub struct Dead {
    groups: Vec<Arc<Group>>,
    items: Vec<Item>,
    values: Vec<Arc<Vec<u8>>>,
}

/// Where a ledger stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTotals {
    /// V.
    pub version: i64,
    /// t.
    pub target: i64,
    /// d.
    pub depth: Option<u32>,
    /// Groups that could be reserved now.
    pub room: u64,
    /// Complete groups that are not leased.
    pub queued: u64,
    /// Groups that are with consumers.
    pub out: u64,
    /// Groups that were left by their producers.
    pub suspended: u64,
    /// The version of the oldest token of a group that is queued.
    pub oldest: Option<i64>,
    /// Whether nothing is reserved and sampled for the time being.
    pub paused: bool,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(config: Arc<RolloutConfig>) -> Result<Self, ConfigError> {
        config.check()?;
        let filter = config.bound_filter()?;
        let limiter = config.bound_limiter()?;
        Ok(Self {
            filter,
            limiter,
            state: State::new(&config),
            derived: Derived::new(config.order),
            first_attempt: 0,
            dead: Dead::default(),
            changed: false,
            config,
        })
    }

    /// The settings with which it was created.
    pub fn config(&self) -> &Arc<RolloutConfig> {
        &self.config
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.state.counts
    }

    /// What it has counted for each producer.
    pub fn sources(&self) -> &[Source] {
        self.state.sources.all()
    }

    /// How many groups others than this producer reserved.
    pub(in crate::rollouts) fn reserved_others(&self, name: &str) -> u64 {
        let own = self.state.sources.get(name).map_or(0, |source| source.submitted);
        self.state.counts.submitted.saturating_sub(own)
    }

    /// How many groups it has that are not over.
    pub fn groups(&self) -> u64 {
        self.live()
    }

    /// Where it stands.
    pub fn totals(&self) -> GroupTotals {
        let oldest = self.derived.queue.oldest().and_then(|id| self.state.ready.get(&id));
        GroupTotals {
            version: self.state.version,
            target: self.state.target,
            depth: self.state.depth,
            room: self.room().unwrap_or(0),
            queued: self.derived.queue.len() as u64,
            out: (self.state.ready.len() - self.derived.queue.len()) as u64,
            suspended: self.derived.suspended.len() as u64,
            oldest: oldest.map(|ready| ready.group.oldest),
            paused: self.state.paused,
        }
    }

    /// Whether time may have changed something by now: then [`Change::Tick`] has something to do.
    pub fn is_due(&self, now: u64) -> bool {
        self.next_due().is_some_and(|due| due <= now)
    }

    /// When time will next change something.
    pub fn next_due(&self) -> Option<u64> {
        self.derived.due.first().map(|(when, _)| *when)
    }

    /// What was let go of since the last call.
    pub fn take_dead(&mut self) -> Dead {
        std::mem::take(&mut self.dead)
    }

    /// Whether anything was changed since the last call, time included: only then a journal needs a record of it.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Takes a complete group out of all lists but the queue.
    fn remove_ready(&mut self, id: u64) -> Option<Ready> {
        let ready = self.state.ready.remove(&id)?;
        self.changed = true;
        self.dead.groups.push(Arc::clone(&ready.group));
        Some(ready)
    }

    /// Has something happen at a time, which never goes back.
    pub fn apply(&mut self, now: u64, change: &Change) -> Result<Outcome, ChangeError> {
        self.pass(now);
        change.check(&self.config)?;
        match change {
            Change::Reserve(reserve) => self.reserve(now, reserve),
            Change::Append(append) => self.append(now, append),
            Change::Update(update) => self.update(now, update),
            Change::Fail { holds } => Ok(self.fail(holds)),
            Change::Suspend { holds } => self.suspend(holds),
            Change::Resume { source, ttl_ms } => self.resume(now, source, *ttl_ms),
            Change::Renew { holds } => Ok(self.renew(now, holds)),
            Change::Status { hold } => self.progress(*hold),
            Change::Publish { version } => self.publish(*version),
            Change::Sample(want) => self.sample(now, want),
            Change::Ack(lease) => self.ack(*lease),
            Change::Nack(lease) => self.nack(*lease),
            Change::Extend { lease, lease_ms } => self.extend(now, *lease, *lease_ms),
            Change::Remove { groups } => Ok(self.remove(groups)),
            Change::Reprioritize { priorities } => Ok(self.reprioritize(priorities)),
            Change::Tick => Ok(Outcome::Done),
            Change::Deepen { depth } => {
                (self.state.depth, self.changed) = (Some(*depth), true);
                Ok(Outcome::Done)
            }
            Change::Restore { version } => Ok(self.restore(*version)),
            Change::Pause { paused } => {
                self.changed |= self.state.paused != *paused;
                self.state.paused = *paused;
                Ok(Outcome::Done)
            }
            Change::AwaitVersion { above } if self.state.version > *above => {
                Ok(Outcome::Count(self.state.version as u64))
            }
            Change::AwaitVersion { above } => {
                let needed = above.saturating_add(1);
                Err(Blocked::Shipping { version: self.state.version, needed }.into())
            }
        }
    }

    /// Does what is due.
    fn pass(&mut self, now: u64) {
        while let Some((when, due)) = self.derived.due.first().copied()
            && when <= now
        {
            self.derived.due.pop_first();
            self.changed = true;
            match due {
                Due::Reservation(id) => self.check_reservation(when, id),
                Due::Deadline(id) => self.meet_deadline(id),
                Due::Lease(batch, rank) => self.expire_lease(batch, rank),
            }
        }
    }

    /// Groups that are there, in whatever state.
    fn live(&self) -> u64 {
        (self.state.open.len() + self.state.ready.len()) as u64
    }

    /// Groups that are accepted or run, and how many may be.
    fn versions_allow(&self) -> Option<(u64, u64)> {
        let depth = self.state.depth?;
        let versions = (i64::from(depth) + self.state.version + 1).max(0) as u64;
        let most = versions.saturating_mul(self.config.per_version());
        let accepted = self.state.counts.accepted as i64 + self.state.offset;
        Some((accepted.max(0) as u64 + self.state.open.len() as u64, most))
    }

    /// How many more groups may be made: at least one, or why not.
    fn room(&self) -> Result<u64, Blocked> {
        if self.state.paused {
            return Err(Blocked::Paused);
        }
        let config = &self.config;
        let running = u64::from(config.max_running).saturating_sub(self.state.open.len() as u64);
        if running == 0 {
            return Err(Blocked::Running(config.max_running));
        }
        let mut room = running;
        if let Some((groups, most)) = self.versions_allow() {
            if groups >= most {
                return Err(Blocked::Ahead { groups, most, version: self.state.version });
            }
            room = room.min(most - groups);
            // A learner that takes many groups of before may be so far ahead that what begins now is too old.
            if self.drops() && self.bound().is_some_and(|bound| self.state.version < bound) {
                return Err(Blocked::Early {
                    version: self.state.version,
                    target: self.state.target,
                });
            }
        }
        let free = (u64::from(config.capacity) + self.replaceable()).saturating_sub(self.live());
        if free == 0 {
            return Err(Blocked::Full(config.capacity));
        }
        room = room.min(free);
        if let Some(limiter) = &self.limiter {
            limiter
                .can_insert(&self.limited(self.state.open.len()), 1)
                .map_err(Blocked::Limiter)?;
        }
        Ok(room)
    }

    /// How many complete groups may make room for others, as they are used again and again. What was of no use yet
    /// stays if there is no more than a batch of it: else producers would replace it before it is ever sampled.
    fn replaceable(&self) -> u64 {
        if self.config.order != Order::Weighted {
            return 0;
        }
        let beyond = self.derived.queue.len().saturating_sub(self.config.batch_groups as usize);
        beyond.max(self.derived.queue.used()) as u64
    }

    /// Inserts and samples as the limiter sees them. For producers the open groups count, as each will be an
    /// insert; consumers see those that are complete.
    fn limited(&self, open: usize) -> limiter::Counts {
        let inserts = self.state.counts.accepted + open as u64;
        let deletions = inserts.saturating_sub((open + self.state.ready.len()) as u64);
        let samples = self.state.counts.delivered.saturating_sub(self.state.counts.returned);
        limiter::Counts { inserts, samples, deletions }
    }

    fn publish(&mut self, version: i64) -> Result<Outcome, ChangeError> {
        if version < self.state.version {
            let expected = format!("at least the learner's version {}", self.state.version);
            return Err(value("version", expected, version));
        }
        (self.state.version, self.changed) = (version, true);
        if version > self.state.target {
            (self.state.target, self.state.taken) = (version, 0);
            self.sweep();
        }
        self.end_history();
        Ok(Outcome::Done)
    }

    /// Goes back, or on, to the learner's version: what consumers have of batches that made it is used up, what else was
    /// delivered is there again, and reservation counts as if exactly that many versions had been made.
    fn restore(&mut self, version: i64) -> Outcome {
        (self.state.version, self.changed) = (version, true);
        (self.state.target, self.state.taken) = (version, 0);
        self.end_all(version);
        self.sweep();
        let used = version as u64 * self.config.per_version();
        // One that was of use is among those used up, though it may be used again.
        let unused = self.state.ready.values().filter(|ready| ready.uses == 0).count() as u64;
        self.state.offset = (used + unused) as i64 - self.state.counts.accepted as i64;
        Outcome::Done
    }

    /// The oldest version that may be delivered.
    fn bound(&self) -> Option<i64> {
        self.config.max_lag.map(|lag| self.state.target - i64::from(lag))
    }

    /// Whether groups that are too old go.
    fn drops(&self) -> bool {
        matches!(self.config.on_stale, OnStale::Drop | OnStale::Wait)
    }

    /// Lets go of what can't be delivered any more.
    fn sweep(&mut self) {
        let Some(bound) = self.bound().filter(|_| self.drops()) else { return };
        let stale: Vec<u64> = self.derived.queue.up_to(bound - 1).collect();
        for id in stale {
            self.let_go(id);
        }
        while let Some((oldest, id)) = self.derived.by_oldest.first().copied()
            && oldest < bound
        {
            self.state.counts.stale += 1;
            self.reject(id, GroupStatus::Stale);
        }
    }

    /// Removes a complete group that is too old. Another one may be made for it, unless it was of use.
    fn let_go(&mut self, id: u64) {
        if self.state.ready.get(&id).is_some_and(|ready| ready.uses > 0) {
            return self.retire(id);
        }
        self.state.counts.stale += 1;
        self.filter_out(id, GroupStatus::Stale);
    }

    /// Removes a complete group that was of use.
    fn retire(&mut self, id: u64) {
        if let Some(ready) = self.remove_ready(id) {
            self.derived.queue.remove(&ready.place());
            self.state.counts.retired += 1;
            self.note(id, GroupStatus::Over);
        }
    }

    /// Removes a complete group that is not wanted.
    fn filter_out(&mut self, id: u64, status: GroupStatus) {
        let Some(ready) = self.remove_ready(id) else { return };
        self.derived.queue.remove(&ready.place());
        self.state.counts.accepted -= 1;
        self.state.counts.filtered += 1;
        let tokens = ready.group.tokens;
        self.state.sources.count(&ready.group.source, |source| {
            source.accepted -= 1;
            source.filtered += 1;
            source.tokens -= tokens;
        });
        self.note(id, status);
    }

    fn forget_age(&mut self, age: i64) {
        if let Some(count) = self.derived.ages.get_mut(&age) {
            *count -= 1;
            if *count == 0 {
                self.derived.ages.remove(&age);
            }
        }
    }

    fn note(&mut self, id: u64, status: GroupStatus) {
        self.state.statuses.insert(id, status);
        if self.state.statuses.len() > MAX_STATUSES {
            self.state.statuses.pop_first();
        }
    }

    /// How a group ended, or that it did not.
    fn status(&self, id: u64) -> GroupStatus {
        if self.state.open.contains_key(&id) {
            return GroupStatus::Running;
        }
        if self.state.ready.contains_key(&id) {
            return GroupStatus::Complete;
        }
        if self.state.generation.has_lost_group(id) {
            // Its producer has the reservation of a table that is no more.
            return GroupStatus::Expired;
        }
        self.state.statuses.get(&id).copied().unwrap_or(GroupStatus::Over)
    }

    fn remove(&mut self, groups: &[u64]) -> Outcome {
        let mut count = 0;
        for id in groups {
            match self.state.ready.get(id) {
                Some(ready) if ready.is_out => continue,
                Some(ready) if ready.uses > 0 => self.retire(*id),
                Some(_) => {
                    self.state.counts.removed += 1;
                    self.filter_out(*id, GroupStatus::Filtered);
                }
                None => continue,
            }
            count += 1;
        }
        Outcome::Count(count)
    }

    fn reprioritize(&mut self, priorities: &[(u64, f64)]) -> Outcome {
        let mut count = 0;
        for (id, priority) in priorities {
            if let Some(ready) = self.state.ready.get_mut(id) {
                (ready.priority, self.changed) = (*priority, true);
                if !ready.is_out {
                    self.derived.queue.reprioritize(&ready.place());
                }
                count += 1;
            }
        }
        Outcome::Count(count)
    }

    /// Lets go of the group of the oldest tokens, because batches wait for younger ones: if none can be made
    /// otherwise, none is made, and one that is made then is younger. Whether there was one.
    fn shed(&mut self) -> bool {
        let is_made = self.state.open.len() > self.derived.suspended.len();
        let oldest = self.derived.queue.oldest().and_then(|id| self.state.ready.get(&id));
        match oldest {
            Some(ready)
                if ready.group.oldest < self.state.version && !is_made && self.room().is_err() =>
            {
                self.let_go(ready.group.id);
                true
            }
            _ => false,
        }
    }
}
