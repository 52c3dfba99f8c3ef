//! Slots in a dense list, each of which knows its place there: any can be drawn or taken out at once.

use super::Slot;

/// Stands for a slot that is not in the list.
const ABSENT: u32 = u32::MAX;

/// See the [module](self).
///
/// `positions[slots[i]] == i` for every `i`; all other positions are [`ABSENT`].
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Members {
    slots: Vec<Slot>,
    positions: Vec<u32>,
}

impl Members {
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) fn position(&self, slot: Slot) -> Option<usize> {
        let position = *self.positions.get(slot as usize)?;
        (position != ABSENT).then_some(position as usize)
    }

    /// Appends a slot, unless it is there. Says whether it was not.
    pub(super) fn push(&mut self, slot: Slot) -> bool {
        if self.position(slot).is_some() {
            return false;
        }
        let index = slot as usize;
        if self.positions.len() <= index {
            self.positions.resize(index + 1, ABSENT);
        }
        self.positions[index] = self.slots.len() as u32;
        self.slots.push(slot);
        true
    }

    /// Removes whatever is at a position; the last slot comes there.
    pub(super) fn swap_remove(&mut self, position: usize) {
        let slot = self.slots.swap_remove(position);
        if let Some(&moved) = self.slots.get(position) {
            self.positions[moved as usize] = position as u32;
        }
        self.positions[slot as usize] = ABSENT;
    }

    pub(super) fn swap(&mut self, left: usize, right: usize) {
        self.slots.swap(left, right);
        for position in [left, right] {
            self.positions[self.slots[position] as usize] = position as u32;
        }
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.positions.clear();
    }
}

impl From<Vec<Slot>> for Members {
    /// A list of slots that are all different.
    fn from(slots: Vec<Slot>) -> Self {
        let end = slots.iter().max().map_or(0, |last| *last as usize + 1);
        let mut positions = vec![ABSENT; end];
        for (position, slot) in slots.iter().enumerate() {
            positions[*slot as usize] = position as u32;
        }
        Self { slots, positions }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_member_knows_its_position(
            steps in prop::collection::vec((0u8..3, 0u32..40, 0u32..40), 0..200)
        ) {
            let (mut members, mut model) = (Members::default(), Vec::new());
            for (action, slot, other) in steps {
                let (at, to) = (members.position(slot), members.position(other));
                prop_assert_eq!(at, model.iter().position(|held| *held == slot));
                match (action, at, to) {
                    (0, None, _) => {
                        prop_assert!(members.push(slot));
                        model.push(slot);
                    }
                    (0, Some(_), _) => prop_assert!(!members.push(slot)),
                    (1, Some(at), _) => {
                        members.swap_remove(at);
                        model.swap_remove(at);
                    }
                    (2, Some(at), Some(to)) => {
                        members.swap(at, to);
                        model.swap(at, to);
                    }
                    _ => {}
                }
                prop_assert_eq!(members.slots(), &model[..]);
            }
        }
    }
}
