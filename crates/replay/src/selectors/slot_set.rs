//! A set of slots that can be counted off in their order, and of which any can be drawn.
//!
//! One bit for each slot, so that the set of a million fits a processor's cache, and counts of how many
//! bits are set in longer and longer runs of them. What it holds says everything about it: unlike a
//! list, it does not remember in which order it was filled, so there is nothing to save.
//!
//! # Invariants
//!
//! 1. `counts[k][i]` is how many members have `slot >> RUNS[k] == i`; what is past the end counts as 0.
//! 2. `end` is one more than the last member, or zero.

use super::{DrawnItem, Slot};
use crate::rng::Rng;

/// How long the runs of each level are, as powers of two: 8 words, and then 64 runs of the level before.
const RUNS: [u32; 3] = [9, 15, 21];

/// A set is sparse when fewer than one in this many slots below its end are members.
const SPARSE: usize = 4;

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SlotSet {
    words: Vec<u64>,
    counts: [Vec<u32>; RUNS.len()],
    len: usize,
    end: usize,
}

impl SlotSet {
    /// The set of the slots whose bits are set, of which the last is in the last word: quicker than to put
    /// them in one by one.
    pub(super) fn of(words: Vec<u64>) -> Self {
        let bits = words.last().map_or(0, |last| u64::BITS - last.leading_zeros());
        let end = words.len().saturating_sub(1) * u64::BITS as usize + bits as usize;
        let mut set = Self { words, end, ..Self::default() };
        for (counts, run) in set.counts.iter_mut().zip(RUNS) {
            let words = set.words.chunks(1 << (run - u64::BITS.ilog2()));
            counts.extend(words.map(|run| run.iter().map(|word| word.count_ones()).sum::<u32>()));
        }
        set.len = set.words.iter().map(|word| word.count_ones() as usize).sum();
        set
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn contains(&self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Whether the slot was not there.
    pub(super) fn insert(&mut self, slot: Slot) -> bool {
        if self.contains(slot) {
            return false;
        }
        let (word, bit) = place(slot);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
        for (counts, run) in self.counts.iter_mut().zip(RUNS) {
            let at = (slot >> run) as usize;
            if counts.len() <= at {
                counts.resize(at + 1, 0);
            }
            counts[at] += 1;
        }
        self.len += 1;
        self.end = self.end.max(slot as usize + 1);
        true
    }

    /// Whether the slot was there.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        if !self.contains(slot) {
            return false;
        }
        let (word, bit) = place(slot);
        self.words[word] &= !bit;
        for (counts, run) in self.counts.iter_mut().zip(RUNS) {
            counts[(slot >> run) as usize] -= 1;
        }
        self.len -= 1;
        if self.end == slot as usize + 1 {
            let last = self.len.checked_sub(1).and_then(|rank| self.nth(rank));
            self.end = last.map_or(0, |last| last as usize + 1);
        }
        true
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The slot that has `rank` smaller ones; `None` when there are not that many.
    pub(super) fn nth(&self, rank: usize) -> Option<Slot> {
        if rank >= self.len {
            return None;
        }
        let (mut at, mut rest) = (0, rank);
        for counts in self.counts.iter().rev() {
            at *= 64;
            // There are more than `rest` members from here on, so this ends before the counts do.
            while let Some(count) = counts.get(at).map(|count| *count as usize)
                && rest >= count
            {
                rest -= count;
                at += 1;
            }
        }
        at *= 8;
        loop {
            let mut word = *self.words.get(at)?;
            let count = word.count_ones() as usize;
            if rest < count {
                (0..rest).for_each(|_| word &= word - 1);
                return Some(at as Slot * u64::BITS + word.trailing_zeros());
            }
            rest -= count;
            at += 1;
        }
    }

    /// Appends `count` members, each of them equally likely each time; nothing when there are none.
    ///
    /// It tries places below the end until one is a member, which for most sets is the first, and looks
    /// at nothing but bits; only a sparse set is counted off.
    pub(super) fn draw(&self, count: usize, rng: &mut Rng, draws: &mut Vec<DrawnItem>) {
        if self.len == 0 {
            return;
        }
        let probability = 1.0 / self.len as f64;
        let pick = |slot| DrawnItem { slot, probability };
        if self.len * SPARSE < self.end {
            let ranks = (0..count).map(|_| rng.below(self.len as u64) as usize);
            return draws.extend(ranks.filter_map(|rank| self.nth(rank)).map(pick));
        }
        // A copy stays in registers.
        let mut own = rng.clone();
        draws.extend((0..count).map(|_| {
            loop {
                let slot = own.below(self.end as u64) as Slot;
                if self.contains(slot) {
                    break pick(slot);
                }
            }
        }));
        *rng = own;
    }
}

/// The word of a slot, and its bit there.
#[inline]
fn place(slot: Slot) -> (usize, u64) {
    ((slot / u64::BITS) as usize, 1 << (slot % u64::BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    fn words(slots: &[Slot]) -> Vec<u64> {
        let end = slots.iter().max().map_or(0, |last| place(*last).0 + 1);
        let mut words = vec![0; end];
        for (word, bit) in slots.iter().map(|slot| place(*slot)) {
            words[word] |= bit;
        }
        words
    }

    proptest! {
        #[test]
        fn counts_off_like_a_sorted_set(steps in prop::collection::vec((any::<bool>(), 0u32..400), 0..300)) {
            let (mut set, mut model) = (SlotSet::default(), BTreeSet::new());
            for (add, slot) in steps {
                if add {
                    prop_assert_eq!(set.insert(slot), model.insert(slot));
                } else {
                    prop_assert_eq!(set.remove(slot), model.remove(&slot));
                }
                prop_assert_eq!(set.len(), model.len());
            }
            for slot in 0..450 {
                prop_assert_eq!(set.contains(slot), model.contains(&slot));
            }
            let end = model.last().map_or(0, |last| *last as usize + 1);
            prop_assert_eq!(set.end, end);
            let mut draws = Vec::new();
            set.draw(30, &mut Rng::new(9), &mut draws);
            prop_assert_eq!(draws.len(), if model.is_empty() { 0 } else { 30 });
            prop_assert!(draws.iter().all(|pick| model.contains(&pick.slot)));
            let counted: Vec<Slot> = (0..set.len()).filter_map(|rank| set.nth(rank)).collect();
            prop_assert_eq!(&counted, &Vec::from_iter(model));
            prop_assert_eq!(set.nth(set.len()), None);
            let many = SlotSet::of(words(&counted));
            let mut single = SlotSet::default();
            counted.iter().for_each(|slot| { single.insert(*slot); });
            prop_assert_eq!(many, single);
        }
    }

    #[test]
    fn counts_off_over_long_runs() {
        let slots = [0, 511, 512, 40_000, 2_097_151, 2_097_152, 9_000_000];
        let mut set = SlotSet::default();
        slots.iter().rev().for_each(|slot| assert!(set.insert(*slot)));
        for (rank, slot) in slots.iter().enumerate() {
            assert_eq!(set.nth(rank), Some(*slot));
        }
        assert_eq!(SlotSet::of(words(&slots)), set);
        for slot in slots.iter().rev() {
            assert_eq!(set.end, *slot as usize + 1);
            assert!(set.remove(*slot));
        }
        assert_eq!((set.end, set.len()), (0, 0));
    }
}
