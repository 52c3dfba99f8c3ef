//! Which version the next batch updates: t, and how much of what it takes is taken; and by which rules that is counted.
//!
//! # Invariants
//!
//! 1. By the second rules, fewer than B groups are taken for t, but where a state of the first ones was loaded.

use super::Ledger;

/// By which rules a ledger decides, where they have changed. What was recorded under old ones is done again under
/// them, since it leads to other groups and batches under new ones; from its next opening on, a table follows the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Rules {
    /// Each batch counts as one of `batches_per_version` that make a version, however few groups it has. Whoever asks to
    /// make a group of a key under which one runs gets that one.
    First,
    /// Every `batch_groups` × `batches_per_version` groups that are taken make a version. Each admission is a group of its
    /// own, whatever its key.
    #[default]
    Second,
}

impl Ledger {
    /// Decides by these rules from now on.
    pub(in crate::rollouts) fn follow(&mut self, rules: Rules) {
        if self.rules < rules {
            // Batches no longer count, t has no more places than a version, and no key leads to a group.
            (self.formed, self.taken) = (0, self.taken.min(self.config.per_version() - 1));
            self.keys.clear();
        }
        self.rules = rules;
    }

    /// The places of t that are not taken.
    pub(super) fn places_left(&self) -> i64 {
        self.config.per_version() as i64 - self.taken as i64
    }

    /// A batch of so many groups was made: the next one may update a later version.
    pub(super) fn step(&mut self, groups: u64) {
        let (per_version, before) = (self.config.per_version(), self.target);
        match self.rules {
            Rules::First => {
                self.formed += 1;
                self.taken += groups;
                if self.formed >= self.config.batches_per_version {
                    (self.target, self.formed, self.taken) = (before + 1, 0, 0);
                }
            }
            Rules::Second => {
                let taken = self.taken.min(per_version - 1) + groups;
                self.target += (taken / per_version) as i64;
                self.taken = taken % per_version;
            }
        }
        if self.target > before {
            self.sweep();
        }
    }

    /// The learner will not make the step of a batch that was lost as a whole: the next one takes its place, and
    /// other groups are made for it. Else the learner would wait for a batch that waits for its version.
    pub(super) fn miss_step(&mut self, lost: u64) {
        let per_version = self.config.per_version();
        match self.rules {
            Rules::First => {
                let taken = self.taken.saturating_sub(lost);
                (self.target, self.formed, self.taken) = match self.formed.checked_sub(1) {
                    Some(formed) => (self.target, formed, taken),
                    None if self.target > self.version => {
                        let taken = per_version.saturating_sub(lost);
                        (self.target - 1, self.config.batches_per_version - 1, taken)
                    }
                    None => return,
                };
            }
            Rules::Second => self.step_back(lost),
        }
        self.offset -= lost as i64;
    }

    /// So many groups that were taken are not: by the second rules.
    pub(super) fn step_back(&mut self, groups: u64) {
        let per_version = self.config.per_version();
        let ahead = (self.target - self.version).max(0) as u64;
        let taken = ahead.saturating_mul(per_version).saturating_add(self.taken);
        let taken = taken.saturating_sub(groups);
        self.target = self.version + (taken / per_version) as i64;
        self.taken = taken % per_version;
    }
}
