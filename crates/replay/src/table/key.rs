//! What an item is called: where it is, and how many items were there before.

use crate::selectors::Slot;

/// How many bits count the items that a slot had. The eight above them are left to clients of several
/// servers, which write there whose item it is.
const GENERATION_BITS: u32 = 24;

/// The largest generation; the next is 0 again. A slot that is filled a hundred times a second gets
/// there in two days, and by then its first items are forgotten.
pub(super) const MAX_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// Names an item of a table, and no later item in the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    pub(super) fn new(slot: Slot, generation: u32) -> Self {
        debug_assert!(generation <= MAX_GENERATION);
        Self(u64::from(slot) | u64::from(generation) << 32)
    }

    /// The key that [`Key::number`] came from. Any number is a key, though most belong to no item.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// As a number, for arrays and wires.
    pub fn number(self) -> u64 {
        self.0
    }

    pub(super) fn slot(self) -> Slot {
        self.0 as u32
    }

    /// Larger than any generation when the eight bits above are not zero.
    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
