//! Calls that had to wait for their table: how many do now, how many did, and for how long.
//!
//! Nothing is counted, and no clock is read, for a call that need not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    /// How many had to, whatever became of them, since the table was new or reset.
    pub limited: u64,
    /// For how many nanoseconds these waited together: two that wait at once count twice.
    pub nanos: u64,
}

impl Waits {
    /// For how long those that had to wait did, together.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

/// Counts the calls of one kind. The three numbers are read one by one; a call that is seen to wait no more is
/// seen in the other two.
#[derive(Debug, Default)]
pub(super) struct Tally {
    waiting: AtomicU64,
    limited: AtomicU64,
    nanos: AtomicU64,
}

impl Tally {
    /// A call waits from now on.
    pub(super) fn begin(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting { tally: Arc::clone(self), since: Instant::now() }
    }

    pub(super) fn read(&self) -> Waits {
        Waits {
            // Pairs with the last step of a wait.
            waiting: self.waiting.load(Ordering::Acquire),
            limited: self.limited.load(Ordering::Relaxed),
            nanos: self.nanos.load(Ordering::Relaxed),
        }
    }

    /// Counts from zero; those that wait go on.
    pub(super) fn reset(&self) {
        self.limited.store(0, Ordering::Relaxed);
        self.nanos.store(0, Ordering::Relaxed);
    }
}

/// A call that waits; dropped when it does no more, however that ended.
#[derive(Debug)]
#[must_use = "a wait ends when this is dropped"]
pub struct Waiting {
    tally: Arc<Tally>,
    since: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let nanos = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.tally.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.tally.limited.fetch_add(1, Ordering::Relaxed);
        self.tally.waiting.fetch_sub(1, Ordering::Release);
    }
}
