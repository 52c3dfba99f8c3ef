//! A set of slots that can be counted off in their order.
//!
//! One bit for each slot, and a tree of how many bits are set in each word. What it holds says
//! everything about it: unlike a list, it does not remember in which order it was filled, so there is
//! nothing to save.

use super::Slot;
use super::sum_tree::SumTree;

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SlotSet {
    words: Vec<u64>,
    /// How many bits each word has. Counts are small integers, on which a double never errs.
    counts: SumTree,
    len: usize,
}

impl SlotSet {
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
        self.len += 1;
        self.count(word);
        true
    }

    /// Whether the slot was there.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        if !self.contains(slot) {
            return false;
        }
        let (word, bit) = place(slot);
        self.words[word] &= !bit;
        self.len -= 1;
        self.count(word);
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
        let found = self.counts.find(rank as f64)?;
        let mut word = *self.words.get(found.index as usize)?;
        for _ in 0..found.rest as u32 {
            word &= word - 1;
        }
        Some(found.index * u64::BITS + word.trailing_zeros())
    }

    fn count(&mut self, word: usize) {
        self.counts.set(word as u32, f64::from(self.words[word].count_ones()));
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
            let counted: Vec<Slot> = (0..set.len()).filter_map(|rank| set.nth(rank)).collect();
            prop_assert_eq!(counted, Vec::from_iter(model));
            prop_assert_eq!(set.nth(set.len()), None);
        }
    }
}
