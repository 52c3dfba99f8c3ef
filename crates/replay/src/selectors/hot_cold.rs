//! Hot and cold: young items and old ones, each with a share of what is picked.
//!
//! An item is hot while it is at most `age_threshold` versions older than the learner. Of the first N
//! draws since the selector was made, `⌊N · hot_fraction⌋` are hot, whatever the batches were: a first
//! batch of n has `⌊n · hot_fraction⌋`, a later one may have one more, and single draws keep the share
//! too. When a tier is empty, the whole batch comes from the other; such batches don't count in N.
//! Within a tier, items are picked by priority, as [`Prioritized`] does.
//!
//! The probability of a pick is its share of the whole batch: when h of n draws are hot, it is `h / n`
//! times the probability within the hot tier. Hot draws come before cold ones.
//!
//! # Invariants
//!
//! 1. A slot is in one tier, the one that its version and the learner's say.
//! 2. The hot slots are also in lists, one for each version, so that growing old is one step for each
//!    item, once. Nothing else is looked at when the learner advances.

use std::collections::BTreeMap;

use super::links::{Links, List};
use super::{Damaged, DrawnItem, Entries, Entry, Prioritized, Selector, Slot, misuse, saved};
use crate::rng::Rng;

/// Draws are counted up to here, and then from zero again: far enough for a double to count exactly.
const DRAWS: u64 = 1 << 52;

/// Picks from young and old items by share. See the [module](self).
#[derive(Debug)]
pub struct HotCold {
    age_threshold: u64,
    hot_fraction: f64,
    hot: Prioritized,
    cold: Prioritized,
    /// The hot slots of each version.
    by_version: BTreeMap<u64, List>,
    links: Links,
    /// The version of each hot slot.
    versions: Vec<u64>,
    /// The learner's version.
    now: u64,
    /// Draws so far, below [`DRAWS`].
    draws: u64,
}

impl HotCold {
    /// For values that [`SelectorKind`](super::SelectorKind) has checked.
    pub(super) fn new(age_threshold: u64, hot_fraction: f64, exponent: f64) -> Self {
        debug_assert!((0.0..=1.0).contains(&hot_fraction), "a share of {hot_fraction}");
        Self {
            age_threshold,
            hot_fraction,
            hot: Prioritized::new(exponent),
            cold: Prioritized::new(exponent),
            by_version: BTreeMap::new(),
            links: Links::default(),
            versions: Vec::new(),
            now: 0,
            draws: 0,
        }
    }

    /// An item from the future is as young as can be.
    fn is_hot(&self, version: u64) -> bool {
        self.now.saturating_sub(version) <= self.age_threshold
    }

    /// How many of the next `count` draws are hot, when there is a choice.
    fn share(&mut self, count: usize) -> usize {
        let hot_of = |draws: u64| (draws as f64 * self.hot_fraction) as u64;
        let end = self.draws.saturating_add(count as u64);
        let hot = hot_of(end).saturating_sub(hot_of(self.draws));
        self.draws = end % DRAWS;
        (hot as usize).min(count)
    }

    fn tier(&mut self, slot: Slot) -> &mut Prioritized {
        if self.hot.contains(slot) { &mut self.hot } else { &mut self.cold }
    }

    fn unlist(&mut self, slot: Slot) {
        let version = self.versions[slot as usize];
        if let Some(list) = self.by_version.get_mut(&version) {
            self.links.unlink(list, slot);
            if list.first().is_none() {
                self.by_version.remove(&version);
            }
        }
    }
}

impl Selector for HotCold {
    fn reserve(&mut self, slots: u32) {
        self.hot.reserve(slots);
        self.cold.reserve(slots);
    }

    fn insert(&mut self, slot: Slot, entry: Entry) {
        if self.hot.contains(slot) || self.cold.contains(slot) {
            return misuse();
        }
        if !self.is_hot(entry.version) {
            return self.cold.insert(slot, entry);
        }
        self.hot.insert(slot, entry);
        self.links.push(self.by_version.entry(entry.version).or_default(), slot);
        let index = slot as usize;
        if self.versions.len() <= index {
            self.versions.resize(index + 1, 0);
        }
        self.versions[index] = entry.version;
    }

    fn update(&mut self, slot: Slot, priority: f64) {
        self.tier(slot).update(slot, priority);
    }

    fn update_many(&mut self, updates: &[(Slot, f64)]) {
        let (hot, cold): (Vec<_>, Vec<_>) =
            updates.iter().partition(|(slot, _)| self.hot.contains(*slot));
        self.hot.update_many(&hot);
        self.cold.update_many(&cold);
    }

    fn remove(&mut self, slot: Slot) {
        if self.hot.contains(slot) {
            self.unlist(slot);
        }
        self.tier(slot).remove(slot);
    }

    fn clear(&mut self) {
        self.hot.clear();
        self.cold.clear();
        self.by_version.clear();
        self.links.clear();
        self.versions.clear();
    }

    fn len(&self) -> usize {
        self.hot.len() + self.cold.len()
    }

    fn unsettle(&mut self) {
        self.hot.unsettle();
        self.cold.unsettle();
    }

    fn settle(&mut self) {
        self.hot.settle();
        self.cold.settle();
    }

    /// How many draws are hot is not left to chance: see the [module](self).
    fn pick(&mut self, count: usize, rng: &mut Rng, draws: &mut Vec<DrawnItem>) {
        let hot = match (self.hot.is_empty(), self.cold.is_empty()) {
            (false, false) => self.share(count),
            (false, true) => count,
            (true, _) => 0,
        };
        for (tier, share) in [(&mut self.hot, hot), (&mut self.cold, count - hot)] {
            let begin = draws.len();
            tier.pick(share, rng, draws);
            for pick in &mut draws[begin..] {
                pick.probability *= share as f64 / count as f64;
            }
        }
    }

    fn advance(&mut self, version: u64) {
        self.now = self.now.max(version);
        while let Some(oldest) = self.by_version.first_entry() {
            if self.now.saturating_sub(*oldest.key()) <= self.age_threshold {
                break;
            }
            let mut list = oldest.remove();
            while let Some(slot) = list.first() {
                self.links.unlink(&mut list, slot);
                self.cold.move_from(&mut self.hot, slot);
            }
        }
    }

    /// The learner's version and the draws: all else follows from the entries.
    fn save(&self, state: &mut Vec<u64>) {
        state.extend([self.now, self.draws]);
    }

    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged> {
        let damaged = Damaged("hot_cold");
        let &[now, draws] = state else { return Err(damaged) };
        if draws >= DRAWS {
            return Err(damaged);
        }
        saved::check_entries(entries, damaged)?;
        self.clear();
        (self.now, self.draws) = (now, draws);
        self.unsettle();
        entries.each(&mut |slot, entry| self.insert(slot, entry));
        self.settle();
        Ok(())
    }
}
