//! The oldest item or the newest, by when it was inserted; priorities and their updates don't matter.

use super::links::{Links, List};
use super::{Damaged, DrawnItem, Entries, Entry, Selector, Slot, misuse, saved};
use crate::rng::Rng;

/// Picks the item at one end of the order in which they came. See the [module](self).
#[derive(Debug)]
pub struct Order {
    newest: bool,
    links: Links,
    list: List,
    len: usize,
}

impl Order {
    /// First in, first out: picks the oldest.
    pub fn fifo() -> Self {
        Self { newest: false, links: Links::default(), list: List::default(), len: 0 }
    }

    /// Last in, first out: picks the newest.
    pub fn lifo() -> Self {
        Self { newest: true, ..Self::fifo() }
    }
}

impl Selector for Order {
    fn insert(&mut self, slot: Slot, _: Entry) {
        if self.links.contains(slot) {
            return misuse();
        }
        self.links.push(&mut self.list, slot);
        self.len += 1;
    }

    fn update(&mut self, _: Slot, _: f64) {}

    fn remove(&mut self, slot: Slot) {
        if !self.links.contains(slot) {
            return misuse();
        }
        self.links.unlink(&mut self.list, slot);
        self.len -= 1;
    }

    fn clear(&mut self) {
        *self = Self { newest: self.newest, ..Self::fifo() };
    }

    fn len(&self) -> usize {
        self.len
    }

    fn pick(&mut self, count: usize, _: &mut Rng, draws: &mut Vec<DrawnItem>) {
        pick_certain(if self.newest { self.list.last() } else { self.list.first() }, count, draws);
    }

    fn save(&self, state: &mut Vec<u64>) {
        saved::write_slots(self.links.iter(&self.list), state);
    }

    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged> {
        let name = if self.newest { "lifo" } else { "fifo" };
        let slots = saved::read_slots(state, entries, Damaged(name))?;
        self.clear();
        self.links.widen(saved::end(entries));
        for slot in slots {
            self.links.push(&mut self.list, slot);
            self.len += 1;
        }
        Ok(())
    }
}

/// Appends `count` draws of a slot that was certain to be picked.
pub(super) fn pick_certain(slot: Option<Slot>, count: usize, draws: &mut Vec<DrawnItem>) {
    let Some(slot) = slot else { return };
    draws.extend(std::iter::repeat_n(DrawnItem { slot, probability: 1.0 }, count));
}
