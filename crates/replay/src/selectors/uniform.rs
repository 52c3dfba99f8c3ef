//! Every item with the same probability.

use super::members::Members;
use super::{Damaged, Entry, Pick, Selector, Slot, misuse, saved};
use crate::rng::Rng;

/// Picks any item, all alike. See the [module](self).
#[derive(Debug, Default)]
pub struct Uniform {
    members: Members,
}

impl Selector for Uniform {
    fn insert(&mut self, slot: Slot, _: Entry) {
        if !self.members.push(slot) {
            misuse();
        }
    }

    fn update(&mut self, _: Slot, _: f64) {}

    fn remove(&mut self, slot: Slot) {
        match self.members.position(slot) {
            Some(position) => self.members.swap_remove(position),
            None => misuse(),
        }
    }

    fn clear(&mut self) {
        self.members.clear();
    }

    fn len(&self) -> usize {
        self.members.slots().len()
    }

    fn pick(&mut self, count: usize, rng: &mut Rng, picks: &mut Vec<Pick>) {
        let slots = self.members.slots();
        if slots.is_empty() {
            return;
        }
        let probability = 1.0 / slots.len() as f64;
        picks.extend((0..count).map(|_| {
            let slot = slots[rng.below(slots.len() as u64) as usize];
            Pick { slot, probability }
        }));
    }

    fn save(&self, state: &mut Vec<u64>) {
        saved::write_slots(self.members.slots().iter().copied(), state);
    }

    fn restore(&mut self, state: &[u64], entries: &[(Slot, Entry)]) -> Result<(), Damaged> {
        let slots = saved::read_slots(state, entries, Damaged("uniform"))?;
        self.members = slots.into();
        Ok(())
    }
}
