//! Every item in proportion to a power of its priority.
//!
//! The probability is `p^e / Σ p^e`. An item of priority zero is never picked, whatever the exponent is
//! (`0^0` counts as 0), unless all are zero: then all are picked alike.
//!
//! A power that a double can't hold is brought to the nearest one that does no harm: from
//! [`LEAST`], so that what is above zero stays so, to [`MOST`], of which four billion have a finite sum.
//! Priorities that are this far apart can't be distinguished from zero next to each other anyway.

use super::slot_set::SlotSet;
use super::sum_tree::{LANES, SumTree};
use super::{Damaged, DrawnItem, Entries, Entry, Selector, Slot, misuse, saved};
use crate::rng::Rng;

/// The weight of a priority that is above zero, at least.
pub const LEAST: f64 = f64::MIN_POSITIVE;

/// The weight of a priority, at most: 2^990.
pub const MOST: f64 = f64::from_bits((1023 + 990) << 52);

/// Picks by priority. See the [module](self).
#[derive(Debug)]
pub struct Prioritized {
    exponent: f64,
    /// Which slots there are: the tree can't distinguish one of weight zero from a missing one.
    slots: SlotSet,
    weights: SumTree,
}

impl Prioritized {
    /// For an exponent that is finite and not negative; [`SelectorKind`](super::SelectorKind) checks.
    pub(super) fn new(exponent: f64) -> Self {
        debug_assert!((0.0..f64::INFINITY).contains(&exponent), "an exponent of {exponent}");
        Self { exponent, slots: SlotSet::default(), weights: SumTree::default() }
    }

    fn weight(&self, priority: f64) -> f64 {
        if priority > 0.0 {
            // The most usual exponent is worth not to call `powf`.
            let power = if self.exponent == 1.0 { priority } else { priority.powf(self.exponent) };
            power.clamp(LEAST, MOST)
        } else {
            0.0
        }
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.slots.contains(slot)
    }

    /// Takes a slot out of another one and into this, as it is. Both have the same exponent.
    pub(super) fn move_from(&mut self, other: &mut Self, slot: Slot) {
        let weight = other.weights.get(slot);
        other.remove(slot);
        self.slots.insert(slot);
        self.weights.set(slot, weight);
    }
}

impl Selector for Prioritized {
    fn reserve(&mut self, slots: u32) {
        self.weights = SumTree::with_room(slots);
    }

    fn insert(&mut self, slot: Slot, entry: Entry) {
        if !self.slots.insert(slot) {
            return misuse();
        }
        self.weights.set(slot, self.weight(entry.priority));
    }

    fn update(&mut self, slot: Slot, priority: f64) {
        if !self.slots.contains(slot) {
            return misuse();
        }
        self.weights.set(slot, self.weight(priority));
    }

    fn update_many(&mut self, updates: &[(Slot, f64)]) {
        let weights: Vec<(Slot, f64)> = updates
            .iter()
            .filter(|(slot, _)| {
                let held = self.slots.contains(*slot);
                if !held {
                    misuse();
                }
                held
            })
            .map(|(slot, priority)| (*slot, self.weight(*priority)))
            .collect();
        self.weights.set_many(&weights);
    }

    fn remove(&mut self, slot: Slot) {
        if !self.slots.remove(slot) {
            return misuse();
        }
        self.weights.set(slot, 0.0);
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.weights.clear();
    }

    fn unsettle(&mut self) {
        self.weights.unsettle();
    }

    fn settle(&mut self) {
        self.weights.settle();
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    /// Zero when all priorities are, though all are then picked alike: beside slots that weigh
    /// something, none of these would be picked.
    fn total_weight(&self) -> f64 {
        self.weights.total()
    }

    fn pick(&mut self, count: usize, rng: &mut Rng, draws: &mut Vec<DrawnItem>) {
        if self.is_empty() {
            return;
        }
        let total = self.weights.total();
        if total <= 0.0 {
            return self.slots.draw(count, rng, draws);
        }
        draws.reserve(count);
        let mut places = [0.0; LANES];
        let mut left = count;
        while left > 0 {
            let group = &mut places[..left.min(LANES)];
            group.fill_with(|| rng.unit() * total);
            self.weights.find_many(group, |found| {
                draws.push(DrawnItem { slot: found.index, probability: found.weight / total });
            });
            left -= group.len();
        }
    }

    /// Nothing: the same entries make the same tree.
    fn save(&self, _: &mut Vec<u64>) {}

    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged> {
        let damaged = Damaged("prioritized");
        if !state.is_empty() {
            return Err(damaged);
        }
        self.slots = SlotSet::of(saved::marks(entries, damaged)?);
        self.weights.clear();
        self.unsettle();
        entries.each(&mut |slot, entry| {
            let weight = self.weight(entry.priority);
            self.weights.set(slot, weight);
        });
        self.settle();
        Ok(())
    }
}
