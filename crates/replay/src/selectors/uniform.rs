//! Every item with the same probability.

use super::slot_set::SlotSet;
use super::{Damaged, DrawnItem, Entries, Entry, Selector, Slot, misuse, saved};
use crate::rng::Rng;

/// Picks any item, all alike. See the [module](self).
#[derive(Debug, Default)]
pub struct Uniform {
    slots: SlotSet,
}

impl Selector for Uniform {
    fn insert(&mut self, slot: Slot, _: Entry) {
        if !self.slots.insert(slot) {
            misuse();
        }
    }

    fn update(&mut self, _: Slot, _: f64) {}

    fn remove(&mut self, slot: Slot) {
        if !self.slots.remove(slot) {
            misuse();
        }
    }

    fn clear(&mut self) {
        self.slots.clear();
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    fn pick(&mut self, count: usize, rng: &mut Rng, draws: &mut Vec<DrawnItem>) {
        self.slots.draw(count, rng, draws);
    }

    /// Nothing: which slots there are is all.
    fn save(&self, _: &mut Vec<u64>) {}

    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged> {
        let damaged = Damaged("uniform");
        if !state.is_empty() {
            return Err(damaged);
        }
        self.slots = SlotSet::of(saved::marks(entries, damaged)?);
        Ok(())
    }
}
