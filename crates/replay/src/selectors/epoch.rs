//! Without replacement: every item once in each epoch, in random order.
//!
//! What is inserted while an epoch runs joins it. The next one begins with the first draw after the
//! last item of this one. So two draws of an item are never closer than the rest of one epoch, and its
//! probability is one in those that are left, not one in all.

use super::members::Members;
use super::{Damaged, DrawnItem, Entries, Entry, Selector, Slot, misuse, saved};
use crate::rng::Rng;

/// Picks every item once before any comes again. See the [module](self).
#[derive(Debug, Default)]
pub struct Epoch {
    /// Those left in this epoch, then those drawn.
    members: Members,
    left: usize,
}

impl Selector for Epoch {
    fn insert(&mut self, slot: Slot, _: Entry) {
        if !self.members.push(slot) {
            return misuse();
        }
        self.members.swap(self.left, self.members.slots().len() - 1);
        self.left += 1;
    }

    fn update(&mut self, _: Slot, _: f64) {}

    fn remove(&mut self, slot: Slot) {
        let Some(mut position) = self.members.position(slot) else { return misuse() };
        if position < self.left {
            // The gap moves to the edge first, so that a drawn slot fills it and not the other way.
            self.left -= 1;
            self.members.swap(position, self.left);
            position = self.left;
        }
        self.members.swap_remove(position);
    }

    fn clear(&mut self) {
        self.members.clear();
        self.left = 0;
    }

    fn len(&self) -> usize {
        self.members.slots().len()
    }

    /// Draws depend on each other: see the [module](self).
    fn pick(&mut self, count: usize, rng: &mut Rng, draws: &mut Vec<DrawnItem>) {
        if self.is_empty() {
            return;
        }
        draws.extend((0..count).map(|_| {
            if self.left == 0 {
                self.left = self.members.slots().len();
            }
            let probability = 1.0 / self.left as f64;
            let position = rng.below(self.left as u64) as usize;
            self.left -= 1;
            self.members.swap(position, self.left);
            DrawnItem { slot: self.members.slots()[self.left], probability }
        }));
    }

    fn save(&self, state: &mut Vec<u64>) {
        state.push(self.left as u64);
        saved::write_slots(self.members.slots().iter().copied(), state);
    }

    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged> {
        let damaged = Damaged("epoch");
        let (left, order) = state.split_first().ok_or(damaged)?;
        let left = usize::try_from(*left).map_err(|_| damaged)?;
        let slots = saved::read_slots(order, entries, damaged)?;
        if left > entries.count() {
            return Err(damaged);
        }
        self.members = slots.collect::<Vec<_>>().into();
        self.left = left;
        Ok(())
    }
}
