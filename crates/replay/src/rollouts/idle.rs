//! Why calls wait, and for how long, reason by reason.

use std::sync::Arc;
use std::time::Duration;

use crate::WaitReason;
use crate::waits::{Tally, Waiting, Waits};

/// All reasons, in the order in which they are counted.
pub const REASONS: [WaitReason; 7] = [
    WaitReason::Paused,
    WaitReason::MinSize,
    WaitReason::Ratio,
    WaitReason::Capacity,
    WaitReason::Leased,
    WaitReason::Staleness,
    WaitReason::Group,
];

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Idle(Arc<[Arc<Tally>; REASONS.len()]>);

/// What was counted: for each of [`REASONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sides(pub [Waits; REASONS.len()]);

impl Sides {
    /// For how many nanoseconds callers waited for a reason, together.
    pub fn nanos(&self, reason: WaitReason) -> u64 {
        let found = REASONS.iter().zip(&self.0).find(|(other, _)| **other == reason);
        found.map_or(0, |(_, waits)| waits.nanos)
    }

    /// For how long they waited in all.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.0.iter().map(|waits| waits.nanos).fold(0, u64::saturating_add))
    }
}

impl Idle {
    /// A call waits from now on.
    pub(super) fn begin(&self, reason: WaitReason) -> Idling {
        Idling { idle: self.clone(), now: Some((reason, self.tally(reason).begin())) }
    }

    fn tally(&self, reason: WaitReason) -> &Arc<Tally> {
        let found = REASONS.iter().zip(&*self.0).find(|(other, _)| **other == reason);
        found.map_or(&self.0[0], |(_, tally)| tally)
    }

    pub(super) fn read(&self) -> Sides {
        Sides(std::array::from_fn(|at| self.0[at].read()))
    }
}

/// A call that waits; dropped when it does no more. It borrows nothing, so that a request without a thread can
/// keep it.
#[derive(Debug)]
#[must_use = "a wait ends when this is dropped"]
pub struct Idling {
    idle: Idle,
    now: Option<(WaitReason, Waiting)>,
}

impl Idling {
    /// Says what it waits for now.
    pub fn because(&mut self, reason: WaitReason) {
        if self.now.as_ref().is_none_or(|(before, _)| *before != reason) {
            // The old one ends before the new one begins.
            self.now = None;
            self.now = Some((reason, self.idle.tally(reason).begin()));
        }
    }
}
