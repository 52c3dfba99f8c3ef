//! Why calls wait, and those that had to: how many do now, how many did, and for how long.
//!
//! Nothing is counted, and no clock is read, for a call that need not wait.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::Blocked;
use echoic_memory::sync::Mutex;

use crate::codec::{CodecError, Decode, Encode, Reader};

/// What a call waits for, whatever it wants and wherever that is. The numbers are those in files and on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum WaitReason {
    /// There is no room.
    Capacity = 1,
    /// What would make room is still looked at, or what is wanted is with others.
    Leased,
    /// The table has too few items to sample from.
    MinSize,
    /// Samples are ahead of inserts, or inserts of samples.
    Ratio,
    /// The table is paused.
    Paused,
    /// What is there, or would be made, is or would be too old.
    Staleness,
    /// Too few groups are complete.
    Group,
    /// Nothing is there.
    Empty,
    /// There is no connection.
    Away,
    /// The other side has not answered.
    Network,
}

/// From number 1 on, each with its name.
const REASONS: [(WaitReason, &str); 10] = [
    (WaitReason::Capacity, "CAPACITY"),
    (WaitReason::Leased, "LEASED"),
    (WaitReason::MinSize, "MIN_SIZE"),
    (WaitReason::Ratio, "RATIO"),
    (WaitReason::Paused, "PAUSED"),
    (WaitReason::Staleness, "STALENESS"),
    (WaitReason::Group, "GROUP"),
    (WaitReason::Empty, "EMPTY"),
    (WaitReason::Away, "AWAY"),
    (WaitReason::Network, "NETWORK"),
];

impl WaitReason {
    /// The reason of a number.
    pub fn of(number: u8) -> Option<Self> {
        REASONS.get(usize::from(number).checked_sub(1)?).map(|(reason, _)| *reason)
    }

    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        REASONS[self as usize - 1].1
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Blocked> for WaitReason {
    fn from(blocked: Blocked) -> Self {
        match blocked {
            Blocked::Capacity => Self::Capacity,
            Blocked::Leased => Self::Leased,
            Blocked::Empty => Self::Empty,
        }
    }
}

impl Encode for WaitReason {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl Decode for WaitReason {
    const LEAST: usize = 1;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let number = from.u8(field)?;
        Self::of(number).ok_or(CodecError::Meaningless { field, got: number.into() })
    }
}

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
    pub reason: Option<WaitReason>,
}

impl Waits {
    /// For how long those that had to wait did, together.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

/// Counts the calls of one kind. Only waiting calls come here, so a lock costs nothing.
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
    reason: Option<WaitReason>,
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

    /// A call waited for this long elsewhere, and is counted now.
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
    pub fn because(&self, reason: WaitReason) {
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
