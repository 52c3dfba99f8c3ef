//! Selectors: one small file for each, behind one trait.
//!
//! A table has two selectors, one that says what is sampled and one that says what goes when the table
//! is full; any kind can be either. A selector knows the items of its table by [`Slot`], a small number
//! that is used again after an item has gone, so that everything about an item is an index away.
//!
//! # Invariants
//!
//! 1. A selector has exactly the slots that were inserted and not removed since.
//! 2. The probability that comes with a pick is the one with which that slot was picked in that draw.
//! 3. What it does depends on its calls and on the numbers that it takes from the generator, nothing
//!    else.
//!
//! Values are checked before they come here: priorities are finite and not negative, slots are below
//! [`Slot::MAX`]. A call that asks for the impossible, like removing a slot that is not there, is a bug
//! of the table: it panics in debug builds and changes nothing in others.
//!
//! Bytes per item, when the slots are dense: uniform an eighth, epoch, fifo and lifo 8, prioritized 10,
//! heaps 28, hot and cold 35.

pub mod epoch;
pub mod heap;
pub mod hot_cold;
pub mod kind;
pub mod links;
pub mod prioritized;
pub mod sum_tree;
pub mod uniform;

mod members;
pub mod order;
mod saved;
mod slot_set;

#[cfg(test)]
mod tests;

use std::fmt;

pub use epoch::Epoch;
pub use heap::Heap;
pub use hot_cold::HotCold;
pub use kind::{SelectorError, SelectorKind};
pub use order::Order;
pub use prioritized::Prioritized;
pub use uniform::Uniform;

use crate::rng::Rng;

/// Where an item is in its table.
pub type Slot = u32;

/// One draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawnItem {
    /// What was drawn.
    pub slot: Slot,
    /// How likely that was.
    pub probability: f64,
}

/// What a selector may look at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Finite and not negative.
    pub priority: f64,
    /// The policy version with which the item was made.
    pub version: u64,
}

/// Picks items; see the [module](self).
pub trait Selector: fmt::Debug + Send {
    /// Tells a fresh selector how many slots there will be at most, so that a large one can be laid out
    /// for random reads. Nothing else depends on it.
    fn reserve(&mut self, slots: u32) {
        let _ = slots;
    }

    /// Adds a slot that it does not have.
    fn insert(&mut self, slot: Slot, entry: Entry);

    /// Changes the priority of a slot that it has.
    fn update(&mut self, slot: Slot, priority: f64);

    /// Changes many priorities, one after the other; for some kinds it is quicker than one by one.
    fn update_many(&mut self, updates: &[(Slot, f64)]) {
        for &(slot, priority) in updates {
            self.update(slot, priority);
        }
    }

    /// Removes a slot that it has.
    fn remove(&mut self, slot: Slot);

    /// Removes everything.
    fn clear(&mut self);

    /// Begins many changes between which nothing is drawn and no weight is asked for: sums need not be right
    /// until [`Selector::settle`].
    fn unsettle(&mut self) {}

    /// Ends what [`Selector::unsettle`] began.
    fn settle(&mut self) {}

    /// How many slots it has.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What all slots weigh together: a client of several tables draws from each in proportion to it.
    /// The number of slots, unless some are likelier than others whatever else is drawn.
    fn total_weight(&self) -> f64 {
        self.len() as f64
    }

    /// Appends `count` draws to `draws`; nothing when it is empty.
    ///
    /// Draws are independent of each other unless the selector's kind says otherwise. A selector that
    /// is deterministic draws the same slot `count` times: nothing has changed in between.
    fn pick(&mut self, count: usize, rng: &mut Rng, draws: &mut Vec<DrawnItem>);

    /// Tells the policy version of the learner, which only grows.
    fn advance(&mut self, version: u64) {
        let _ = version;
    }

    /// Appends all that [`Selector::restore`] needs, beside the entries, to go on just like this one.
    fn save(&self, state: &mut Vec<u64>);

    /// Becomes what was saved. `entries` are the slots it had, each with its latest priority, in any
    /// order; the selector is empty and fresh, and was built from the same kind.
    ///
    /// # Errors
    ///
    /// When the state was damaged or belongs to other entries; the selector is then unusable.
    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged>;
}

/// Slots, and what selectors may look at of each: shown one by one, so that a table with ten million of them
/// need not make a list.
pub trait Entries {
    /// How many there are.
    fn count(&self) -> usize;

    /// All slots are below this one, which is not much more than the last.
    fn end(&self) -> usize;

    /// Calls `see` with each, always in the same order.
    fn each(&self, see: &mut dyn FnMut(Slot, Entry));
}

impl Entries for Vec<(Slot, Entry)> {
    fn count(&self) -> usize {
        self.len()
    }

    fn end(&self) -> usize {
        self.iter().map(|(slot, _)| *slot as usize + 1).max().unwrap_or(0)
    }

    fn each(&self, see: &mut dyn FnMut(Slot, Entry)) {
        self.iter().for_each(|(slot, entry)| see(*slot, *entry));
    }
}

/// Notes a call that the table must not make: see the [module](self).
#[cold]
fn misuse() {
    if cfg!(debug_assertions) {
        panic!("a slot was inserted twice, or changed or removed while it was not there");
    }
}

/// A saved state that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the saved state of a {0} selector does not fit its items")]
pub struct Damaged(pub &'static str);
