//! A ledger that threads share, and wait for.
//!
//! # Invariants
//!
//! 1. Whatever happens, happens under the lock, at one moment; what was over in time by then comes before it.
//! 2. Payload is made before the lock is taken, and dropped after it is let go.
//! 3. Whoever is kept waiting is woken when something may have changed that, or when time will.
//! 4. In a table with a directory, what changes is [written](super::durable) in the order in which it does.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use echoic_memory::signal::Signal;
use echoic_memory::sync::Mutex;

use super::config::{ConfigError, RolloutConfig};
use super::durable::sections::{Loaded, Saved};
use super::durable::{self, ChangeLog};
use super::idle::{Idle, Idling, Sides};
use super::ledger::{
    Blocked, Change, ChangeError, Counts, GroupStatus, GroupTotals, Ledger, OTHERS, Outcome, Share,
    Source,
};
use super::starvation::{Hunger, Hungry, Starvation};
use super::tuner::Tuner;
use crate::durable::{Log, Receipt};
use crate::journal::{self, Record, Torn};
use crate::stream::{Wait, WaitOver};
use crate::{Error, WaitReason};

/// Which of the waiting calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Producers, for a reservation or a group to go on with.
    Producers,
    /// Consumers, for a batch.
    Consumers,
    /// Calls that wait for the learner's next version. They are not counted: nothing is held up by that.
    Versions,
}

impl Change {
    /// The kind of call that waits for this, if one can.
    pub fn side(&self) -> Option<Side> {
        match self {
            Self::Reserve(_) | Self::Resume { .. } => Some(Side::Producers),
            Self::Sample(_) => Some(Side::Consumers),
            Self::AwaitVersion { .. } => Some(Side::Versions),
            _ => None,
        }
    }

    /// The producer that wants a reservation, if there is one.
    pub fn applicant(&self) -> Option<&str> {
        match self {
            Self::Reserve(reserve) => Some(&reserve.source),
            _ => None,
        }
    }
}

/// Why a call that may wait came to nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It waited for as long as it may, for this.
    #[error("{0}")]
    TimedOut(Blocked),
    /// The caller has something else to do.
    #[error("interrupted")]
    Interrupted,
    /// The table is closed.
    #[error("the table is closed")]
    Closed,
    /// It was refused.
    #[error(transparent)]
    Refused(ChangeError),
    /// It could not be written, and nothing more is: see what the system said, and open the table again. If it
    /// was done, that is not known after that.
    #[error("the journal: {0}")]
    Journal(String),
}

/// The numbers of a rollout table.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutInfo {
    /// What was counted.
    pub counts: Counts,
    /// Where it stands.
    pub totals: GroupTotals,
    /// What was counted for each producer.
    pub sources: Vec<Source>,
    /// Which producers wait or had to, by name.
    pub hunger: Vec<Hunger>,
    /// The table's time, in milliseconds.
    pub time: u64,
    /// What producers waited for.
    pub producers: Sides,
    /// What consumers waited for.
    pub consumers: Sides,
}

/// How old a share of a batch is, in versions.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lags {
    /// Of the oldest token.
    pub oldest: i64,
    /// Of the groups' oldest tokens, on average.
    pub mean: f64,
    /// Of the youngest token.
    pub newest: i64,
}

impl Lags {
    /// Those of a share; `None` of one without groups.
    pub fn of(share: &Share) -> Option<Self> {
        let lag = |version: i64| share.target.saturating_sub(version);
        let oldest = share.groups.iter().map(|group| lag(group.oldest));
        let newest = share.groups.iter().map(|group| lag(group.newest)).min()?;
        let sum: f64 = oldest.clone().map(|lag| lag as f64).sum();
        let mean = sum / share.groups.len() as f64;
        Some(Self { oldest: oldest.max()?, mean, newest })
    }
}

/// A call that waits; dropped when it does no more.
#[derive(Debug)]
#[must_use = "a wait ends when this is dropped"]
pub struct Waiting {
    idling: Option<Idling>,
    _hungry: Option<Hungry>,
}

impl Waiting {
    /// Says what it waits for now.
    pub fn because(&mut self, reason: WaitReason) {
        if let Some(idling) = &mut self.idling {
            idling.because(reason);
        }
    }
}

/// What came of a change.
struct Made {
    applied: Result<Outcome, ChangeError>,
    has_changed: bool,
    /// Whether the journal took it, if it had to.
    is_written: bool,
}

struct Core {
    ledger: Ledger,
    tuner: Option<Tuner>,
    /// How many shared the batch that was asked for last.
    ranks: u32,
    /// Of the share that was delivered last.
    last_lags: Option<Lags>,
    is_closed: bool,
}

/// See the [module](self).
pub struct RolloutTable {
    config: Arc<RolloutConfig>,
    core: Mutex<Core>,
    /// What moments are counted from; the first one is `began` milliseconds.
    epoch: Instant,
    began: u64,
    producers: Arc<Signal>,
    consumers: Signal,
    versions: Signal,
    producers_idle: Idle,
    consumers_idle: Idle,
    starvation: Starvation,
    changes: Option<ChangeLog>,
}

impl std::fmt::Debug for RolloutTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RolloutTable").field("name", &self.config.name).finish_non_exhaustive()
    }
}

impl RolloutTable {
    /// An empty table.
    pub fn new(config: RolloutConfig) -> Result<Self, ConfigError> {
        let mut ledger = Ledger::new(Arc::new(config))?;
        ledger.begin_alone(durable::unix_ms());
        Ok(Self::of(ledger, 0))
    }

    /// A table of a ledger, at a time.
    pub fn of(ledger: Ledger, began: u64) -> Self {
        let config = Arc::clone(ledger.config());
        let tuner = config.auto_tune.then(Tuner::default);
        Self {
            core: Mutex::new(Core { ledger, tuner, ranks: 1, last_lags: None, is_closed: false }),
            config,
            epoch: Instant::now(),
            began,
            producers: Arc::default(),
            consumers: Signal::default(),
            versions: Signal::default(),
            producers_idle: Idle::default(),
            consumers_idle: Idle::default(),
            starvation: Starvation::default(),
            changes: None,
        }
    }

    /// The settings with which it was created.
    pub fn config(&self) -> &Arc<RolloutConfig> {
        &self.config
    }

    /// The time by the table's clock, in milliseconds.
    pub fn now(&self) -> u64 {
        let passed = self.epoch.elapsed().as_millis();
        self.began.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Has something happen, if it can without waiting. In a table with a directory, its caller gets the answer when
    /// what was changed [is kept](Self::is_durable).
    ///
    /// # Errors
    ///
    /// [`CallError::Refused`], [`CallError::Closed`] or [`CallError::Journal`].
    pub fn apply(&self, change: &Change) -> Result<Outcome, CallError> {
        let prepared = self.changes.as_ref().map(|log| log.prepare(change)).transpose();
        if prepared.is_err() {
            // Nothing more is written: waiting calls have to learn of it too.
            self.wake_all();
            self.versions.notify();
        }
        let record = prepared?;
        if change.side() == Some(Side::Producers) && self.log().is_some_and(|log| !log.has_room()) {
            return Err(CallError::Refused(Blocked::Limiter(WaitReason::Capacity).into()));
        }
        let mut core = self.core.lock();
        if core.is_closed {
            return Err(CallError::Closed);
        }
        let now = self.now();
        let (was_due, first_due) = (core.ledger.is_due(now), core.ledger.next_due());
        let Made { applied, has_changed, mut is_written } =
            self.make(&mut core, now, change, record);
        if let (Change::Publish { .. }, Ok(_)) = (change, &applied) {
            is_written &= self.tune(&mut core, now);
        }
        if let Change::Sample(want) = change {
            core.ranks = want.ranks;
        }
        if let Ok(Outcome::Delivered(share)) = &applied {
            core.last_lags = Lags::of(share);
        }
        // Waiting calls look at the clock when the next thing is due, which they know.
        let is_sooner = match (first_due, core.ledger.next_due()) {
            (Some(before), Some(after)) => after < before,
            (None, after) => after.is_some(),
            (Some(_), None) => false,
        };
        let dead = core.ledger.take_dead();
        drop(core);
        drop(dead);
        // What a refused sample has moved may be what others wait for.
        if was_due || is_sooner || !is_written || (has_changed && applied.is_err()) {
            self.wake_all();
        }
        if has_changed && let Ok(outcome) = &applied {
            self.wake_for(change, outcome);
        }
        if let Some(log) = self.log() {
            log.journal().nudge();
            if !is_written {
                return Err(log.refusal().into());
            }
        }
        applied.map_err(CallError::Refused)
    }

    /// Has the ledger make a change, and writes it if that changed anything.
    fn make(&self, core: &mut Core, now: u64, change: &Change, record: Option<Record>) -> Made {
        let applied = core.ledger.apply(now, change);
        let has_changed = core.ledger.take_changed();
        let log = self.changes.as_ref().filter(|_| has_changed);
        let is_written = log.is_none_or(|log| log.push(change, record, &applied, now));
        Made { applied, has_changed, is_written }
    }

    /// Changes how far ahead producers may be, if it is time to; `false` when that could not be written.
    fn tune(&self, core: &mut Core, now: u64) -> bool {
        let (starved, held) = (
            // All ranks wait for one batch, so each of them counts as a part of the learner.
            self.consumers_idle.read().nanos(WaitReason::Group) / u64::from(core.ranks.max(1)),
            self.producers_idle.read().nanos(WaitReason::Staleness),
        );
        let (depth, most) = (core.ledger.totals().depth, self.config.max_lag);
        if let (Some(tuner), Some(depth), Some(most)) = (&mut core.tuner, depth, most)
            && let Some(depth) = tuner.published(now, starved, held, depth, most)
        {
            // It is between 0 and the bound, so it is not refused.
            return self.make(core, now, &Change::Deepen { depth }, None).is_written;
        }
        true
    }

    fn wake_for(&self, change: &Change, outcome: &Outcome) {
        match (change, outcome) {
            (
                Change::Append(_) | Change::Update(_),
                Outcome::Appended(GroupStatus::Running | GroupStatus::Delivered),
            )
            | (Change::Renew { .. } | Change::Extend { .. } | Change::Reserve(_), _) => {}
            (Change::Append(_) | Change::Update(_), Outcome::Appended(GroupStatus::Complete)) => {
                // One that is complete no longer runs.
                self.consumers.notify();
                self.producers.notify();
            }
            (Change::Publish { .. } | Change::Restore { .. }, _) => {
                self.wake_all();
                self.versions.notify();
            }
            _ => self.wake_all(),
        }
    }

    fn wake_all(&self) {
        self.producers.notify();
        self.consumers.notify();
    }

    fn signal(&self, side: Side) -> &Signal {
        match side {
            Side::Producers => &self.producers,
            Side::Consumers => &self.consumers,
            Side::Versions => &self.versions,
        }
    }

    /// Calls `waker` once when those of a side may have a better chance.
    pub fn wake_later(&self, side: Side, waker: &Waker) {
        self.signal(side).wake_later(waker);
    }

    /// When time may next change something.
    pub fn next_due(&self) -> Option<Instant> {
        // Time passes no more in a table that can't write that it did.
        if self.log().is_some_and(|log| log.journal().check().is_err()) {
            return None;
        }
        let due = self.core.lock().ledger.next_due()?;
        self.epoch.checked_add(Duration::from_millis(due.saturating_sub(self.began)))
    }

    /// Counts a call of a side among those that wait, until it is dropped; one that wants a reservation also by the
    /// [name](Change::applicant) of the producer.
    pub fn begin_wait(&self, side: Side, applicant: Option<&str>, reason: WaitReason) -> Waiting {
        let hungry = applicant.map(|source| {
            let core = self.core.lock();
            let others = [source, OTHERS].map(|name| core.ledger.reserved_others(name));
            drop(core);
            self.starvation.begin(source, others)
        });
        let idle = match side {
            Side::Producers => Some(&self.producers_idle),
            Side::Consumers => Some(&self.consumers_idle),
            Side::Versions => None,
        };
        Waiting { idling: idle.map(|idle| idle.begin(reason)), _hungry: hungry }
    }

    /// Waits until something can happen, has it happen, and waits until that is kept. For the latter it has no
    /// deadline: that the change was made can't be taken back.
    pub fn call(&self, change: &Change, wait: Wait<'_>) -> Result<Outcome, CallError> {
        let Wait { deadline, tick, on_tick } = wait;
        let outcome = self.attempt(change, Wait { deadline, tick, on_tick: &mut *on_tick })?;
        let kept = self.keep(Wait { deadline: None, tick, on_tick });
        kept.inspect_err(|_| self.take_back(&outcome))?;
        Ok(outcome)
    }

    /// Gives back what a caller has got that will never learn of it, so that no call waits for it: a leased share, a
    /// group to go on with, reservations. What is not leased is used up.
    pub fn take_back(&self, outcome: &Outcome) {
        let change = match outcome {
            Outcome::Delivered(share) if share.lease_ms.is_some() => Change::Nack(share.lease),
            Outcome::Resumed(reservation, _) => Change::Suspend { holds: vec![reservation.hold] },
            Outcome::Reserved(reservations) => Change::Fail {
                holds: reservations.iter().map(|reservation| reservation.hold).collect(),
            },
            _ => return,
        };
        // If it is over by now, or nothing is written any more, it is free all the same.
        let _ = self.apply(&change);
    }

    fn attempt(&self, change: &Change, mut wait: Wait<'_>) -> Result<Outcome, CallError> {
        let Some(side) = change.side() else { return self.apply(change) };
        let signal = self.signal(side);
        let mut idling: Option<Waiting> = None;
        // A call without time does not wait.
        let end = wait.deadline;
        let may_wait = || end.is_none_or(|end| end > Instant::now());
        let mut last = Blocked::Paused;
        let waited = wait.until(|deadline| {
            // Looked at before each attempt: what becomes due afterwards is a later one's.
            let due = self.next_due();
            let until = match (deadline, due) {
                (Some(deadline), Some(due)) => Some(deadline.min(due)),
                (deadline, due) => deadline.or(due),
            };
            // Some(None): something is due before that.
            let found = signal.wait(until, || match self.apply(change) {
                Err(CallError::Refused(ChangeError::Blocked(blocked))) => {
                    last = blocked;
                    if may_wait() {
                        let reason = blocked.reason();
                        match &mut idling {
                            Some(idling) => idling.because(reason),
                            None => {
                                let applicant = change.applicant();
                                idling = Some(self.begin_wait(side, applicant, reason));
                            }
                        }
                    }
                    let due = self.next_due();
                    let is_sooner = due.is_some_and(|due| until.is_none_or(|until| due < until));
                    is_sooner.then_some(None)
                }
                done => Some(Some(done)),
            });
            found.flatten().map_or(ControlFlow::Continue(last.reason()), ControlFlow::Break)
        });
        match waited {
            Ok(done) => done,
            Err(WaitOver::TimedOut(_)) => Err(CallError::TimedOut(last)),
            Err(WaitOver::Interrupted) => Err(CallError::Interrupted),
        }
    }

    /// What to ask [`RolloutTable::is_durable`] about what was changed so far; `None` in a table without a directory.
    pub fn receipt(&self) -> Option<Receipt> {
        self.log().map(Log::receipt)
    }

    /// Whether what had been changed when the receipt was given survives what the durability says.
    ///
    /// # Errors
    ///
    /// [`CallError::Journal`] when it never will.
    pub fn is_durable(&self, receipt: Receipt) -> Result<bool, CallError> {
        self.log().map_or(Ok(true), |log| Ok(log.is_durable(receipt)?))
    }

    /// Calls `waker` once when more is kept, or nothing will be any more. Look again after this call.
    pub fn wake_on_durable(&self, waker: &Waker) {
        if let Some(log) = self.log() {
            log.journal().wake_on_progress(waker);
        }
    }

    /// Waits until all that was changed so far is kept; not at all, where the durability asks for nothing.
    ///
    /// # Errors
    ///
    /// [`CallError::TimedOut`], [`CallError::Interrupted`] or [`CallError::Journal`].
    pub fn keep(&self, mut wait: Wait<'_>) -> Result<(), CallError> {
        let Some(ChangeLog { log, .. }) = self.changes.as_ref().filter(|log| !log.is_hasty())
        else {
            return Ok(());
        };
        let receipt = log.receipt();
        let waited = wait.until(|deadline| match log.wait(receipt, deadline) {
            Ok(false) => ControlFlow::Continue(WaitReason::Capacity),
            done => ControlFlow::Break(done),
        });
        match waited {
            Ok(kept) => Ok(kept.map(drop)?),
            Err(WaitOver::TimedOut(reason)) => Err(CallError::TimedOut(Blocked::Limiter(reason))),
            Err(WaitOver::Interrupted) => Err(CallError::Interrupted),
        }
    }

    /// Writes the table as it is now to its directory, so that it is brought back in little time and, unless the
    /// history is kept, the journal becomes short; where the checkpoint is.
    pub fn checkpoint(&self) -> Result<PathBuf, Error> {
        let log = self.changes.as_ref().ok_or_else(|| {
            Error::Unfit(
                "the table has no directory, so it writes no checkpoints of its own".into(),
            )
        })?;
        let _writing = log.begin_checkpoint();
        if self.is_closed() {
            return Err(Error::Closed("table"));
        }
        log.checkpoint(&self.save())
    }

    /// The table as it is now.
    pub(crate) fn save(&self) -> Saved {
        let core = self.core.lock();
        let (moment, time) = (core.ledger.save(), self.now());
        let next = self.log().map_or(u64::MAX, |log| log.journal().next());
        drop(core);
        Saved { config: Arc::clone(&self.config), moment, time, next }
    }

    /// Goes on from a checkpoint that fits; what it had is gone.
    pub(crate) fn install(&self, loaded: Loaded) {
        let Loaded { head, mut ledger } = loaded;
        // It was looked at whether they may be others.
        let _ = ledger.reconfigure(Arc::clone(&self.config));
        let mut core = self.core.lock();
        let now = self.now();
        ledger.wake(head.time, now);
        let _ = ledger.apply(now, &Change::Pause { paused: core.ledger.totals().paused });
        // Others may have gone on after the checkpoint, here or in a process that is no more.
        ledger.begin_generation(durable::unix_ms(), Some(&core.ledger));
        let before = std::mem::replace(&mut core.ledger, ledger);
        drop(core);
        drop(before);
        self.wake_all();
        self.versions.notify();
    }

    /// Has a new table write to a log, which gets to know whom to wake when there is room.
    pub(super) fn keep_with(&mut self, log: impl FnOnce(&Arc<Signal>) -> ChangeLog) {
        self.changes = Some(log(&self.producers));
    }

    /// Whether it is kept in a directory.
    pub fn has_directory(&self) -> bool {
        self.changes.is_some()
    }

    pub(super) fn log(&self) -> Option<&Log> {
        self.changes.as_ref().map(|changes| &changes.log)
    }

    /// What was dropped at the end of the journal when it was opened, as it was no whole record.
    pub fn dropped(&self) -> Option<&Torn> {
        self.changes.as_ref().and_then(ChangeLog::dropped)
    }

    /// Numbers of its journal, if it has a directory.
    pub fn journal_info(&self) -> Option<journal::Info> {
        self.log().map(|log| log.journal().info())
    }

    /// The learner's version.
    pub fn version(&self) -> i64 {
        self.core.lock().ledger.totals().version
    }

    /// Ends it: waiting and later calls get an error. What was changed is kept, and others may open the
    /// directory.
    pub fn close(&self) {
        self.core.lock().is_closed = true;
        self.wake_all();
        self.versions.notify();
        if let Some(log) = &self.changes {
            // A checkpoint that is being written needs the directory.
            let _writing = log.begin_checkpoint();
            // Calls that wait for something to be kept get an error if it is not.
            let _ = log.close();
        }
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.core.lock().is_closed
    }

    /// How old what was delivered last was; `None` before there was anything.
    pub fn last_lags(&self) -> Option<Lags> {
        self.core.lock().last_lags
    }

    /// A snapshot of its numbers, by the time at which it is taken.
    pub fn info(&self) -> RolloutInfo {
        let is_due = self.core.lock().ledger.is_due(self.now());
        if is_due {
            // A table that is closed, or can't write that time has passed, stays as it was.
            let _ = self.apply(&Change::Tick);
        }
        let (producers, consumers) = (self.producers_idle.read(), self.consumers_idle.read());
        let core = self.core.lock();
        let (counts, totals) = (core.ledger.counts(), core.ledger.totals());
        let sources = core.ledger.sources().to_vec();
        let time = self.now();
        let hunger = self.starvation.read(|name| core.ledger.reserved_others(name));
        drop(core);
        RolloutInfo { counts, totals, sources, hunger, time, producers, consumers }
    }
}
