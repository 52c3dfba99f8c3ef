//! The newest item, by when it was inserted; priorities and their updates don't matter.

use super::order::{Order, pick_certain};
use super::{Damaged, DrawnItem, Entries, Entry, Selector, Slot};
use crate::rng::Rng;

/// Picks the newest item. See the [module](self).
#[derive(Debug, Default)]
pub struct Lifo {
    order: Order,
}

impl Selector for Lifo {
    fn insert(&mut self, slot: Slot, _: Entry) {
        self.order.push(slot);
    }

    fn update(&mut self, _: Slot, _: f64) {}

    fn remove(&mut self, slot: Slot) {
        self.order.remove(slot);
    }

    fn clear(&mut self) {
        self.order.clear();
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn pick(&mut self, count: usize, _: &mut Rng, draws: &mut Vec<DrawnItem>) {
        pick_certain(self.order.newest(), count, draws);
    }

    fn save(&self, state: &mut Vec<u64>) {
        self.order.save(state);
    }

    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged> {
        self.order.restore(state, entries, Damaged("lifo"))
    }
}
