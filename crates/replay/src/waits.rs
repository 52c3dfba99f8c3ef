//! Calls that had to wait: how many do now, how many did, and for how long.
//!
//! Nothing is counted, and no clock is read, for a call that need not wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::sync::Mutex;

use crate::limiter::Reason;

/// What a call wants that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// To insert.
    Insert,
    /// To sample.
    Sample,
}

/// Calls of one kind that had to wait, whatever for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// How many wait now.
    pub waiting: u64,
    /// How many had to, whatever became of them, since there is something to wait for, or it was reset.
    pub limited: u64,
    /// For how many nanoseconds these and those that wait now did together, up to now: two that wait at once
    /// count twice.
    pub nanos: u64,
    /// What the one of those that wait now waits for that was last looked at.
    pub reason: Option<Reason>,
}

impl Waits {
    /// For how long those that had to wait did, together.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

/// Counts the calls of one kind. Only who waits anyway comes here, so a lock costs nothing.
#[derive(Debug)]
pub(crate) struct Tally {
    counts: Mutex<Counts>,
    /// What moments are counted from.
    epoch: Instant,
}

#[derive(Debug, Default)]
struct Counts {
    waiting: u64,
    limited: u64,
    /// Of waits that have ended.
    nanos: u64,
    /// When those that go on began, together.
    began: u128,
    /// Why one waited that was last looked at.
    reason: Option<Reason>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { counts: Mutex::default(), epoch: Instant::now() }
    }
}

impl Tally {
    /// A call waits from now on.
    pub(crate) fn begin(self: &Arc<Self>) -> Waiting {
        let mut counts = self.counts.lock();
        let since = self.epoch.elapsed().as_nanos();
        counts.waiting += 1;
        counts.began += since;
        drop(counts);
        Waiting { tally: Arc::clone(self), since }
    }

    /// A call waited for so long elsewhere, and is counted now.
    pub(crate) fn add(&self, time: Duration) {
        let mut counts = self.counts.lock();
        counts.limited += 1;
        counts.nanos = counts.nanos.saturating_add(narrow(time.as_nanos()));
    }

    pub(crate) fn read(&self) -> Waits {
        let counts = self.counts.lock();
        // Under the lock, so that no wait began after this moment.
        let now = self.epoch.elapsed().as_nanos();
        let Counts { waiting, limited, nanos, began, reason } = *counts;
        let nanos = nanos.saturating_add(narrow(u128::from(waiting) * now - began));
        Waits { waiting, limited, nanos, reason: reason.filter(|_| waiting > 0) }
    }

    /// Counts from zero; those that wait go on.
    pub(crate) fn reset(&self) {
        let mut counts = self.counts.lock();
        (counts.limited, counts.nanos) = (0, 0);
    }
}

fn narrow(nanos: u128) -> u64 {
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// A call that waits; dropped when it does no more, however that ended.
#[derive(Debug)]
#[must_use = "a wait ends when this is dropped"]
pub struct Waiting {
    tally: Arc<Tally>,
    since: u128,
}

impl Waiting {
    /// Says what it waits for now.
    pub fn because(&self, reason: Reason) {
        self.tally.counts.lock().reason = Some(reason);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut counts = self.tally.counts.lock();
        let now = self.tally.epoch.elapsed().as_nanos();
        counts.waiting -= 1;
        counts.limited += 1;
        counts.began -= self.since;
        counts.nanos = counts.nanos.saturating_add(narrow(now - self.since));
    }
}
