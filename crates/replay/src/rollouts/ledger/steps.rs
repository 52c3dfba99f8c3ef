//! Which version the next batch updates: t, and how much of what it takes is taken.
//!
//! # Invariants
//!
//! 1. Fewer than B groups are taken for t.

use super::Ledger;

impl Ledger {
    /// The places of t that are not taken.
    pub(super) fn places_left(&self) -> i64 {
        self.config.per_version() as i64 - self.state.taken as i64
    }

    /// A batch of this many groups was made: the next one may update a later version.
    pub(super) fn step(&mut self, groups: u64) {
        let (per_version, before) = (self.config.per_version(), self.state.target);
        let taken = self.state.taken + groups;
        self.state.target += (taken / per_version) as i64;
        self.state.taken = taken % per_version;
        if self.state.target > before {
            self.sweep();
        }
    }

    /// The learner will not make the step of a batch that was lost as a whole: the next one takes its place, and
    /// other groups are made for it. Else the learner would wait for a batch that waits for its version.
    pub(super) fn miss_step(&mut self, lost: u64) {
        self.step_back(lost);
        self.state.offset -= lost as i64;
    }

    /// So many groups that were taken are not.
    pub(super) fn step_back(&mut self, groups: u64) {
        let per_version = self.config.per_version();
        let ahead = (self.state.target - self.state.version).max(0) as u64;
        let taken = ahead.saturating_mul(per_version).saturating_add(self.state.taken);
        let taken = taken.saturating_sub(groups);
        self.state.target = self.state.version + (taken / per_version) as i64;
        self.state.taken = taken % per_version;
    }
}
