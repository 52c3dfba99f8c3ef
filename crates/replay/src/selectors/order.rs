//! Slots in the order in which they came.

use super::links::{Links, List};
use super::{Damaged, DrawnItem, Entries, Slot, misuse, saved};

/// What [`Fifo`](super::Fifo) and [`Lifo`](super::Lifo) are made of: they differ in the end they pick.
#[derive(Debug, Default)]
pub(super) struct Order {
    links: Links,
    list: List,
    len: usize,
}

impl Order {
    pub(super) fn push(&mut self, slot: Slot) {
        if self.links.contains(slot) {
            return misuse();
        }
        self.links.push(&mut self.list, slot);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        if !self.links.contains(slot) {
            return misuse();
        }
        self.links.unlink(&mut self.list, slot);
        self.len -= 1;
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<Slot> {
        self.list.first()
    }

    pub(super) fn newest(&self) -> Option<Slot> {
        self.list.last()
    }

    pub(super) fn save(&self, state: &mut Vec<u64>) {
        saved::write_slots(self.links.iter(&self.list), state);
    }

    pub(super) fn restore(
        &mut self,
        state: &[u64],
        entries: &dyn Entries,
        damaged: Damaged,
    ) -> Result<(), Damaged> {
        let slots = saved::read_slots(state, entries, damaged)?;
        self.clear();
        self.links.widen(saved::end(entries));
        slots.for_each(|slot| self.push(slot));
        Ok(())
    }
}

/// Appends `count` draws of a slot that was certain to be picked.
pub(super) fn pick_certain(slot: Option<Slot>, count: usize, draws: &mut Vec<DrawnItem>) {
    let Some(slot) = slot else { return };
    draws.extend(std::iter::repeat_n(DrawnItem { slot, probability: 1.0 }, count));
}
