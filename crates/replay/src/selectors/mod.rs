//! Who is picked: one small file for each way, behind one trait.
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
//! Values are checked before they come here: priorities are finite and not negative.

use std::fmt;

use crate::rng::Rng;

/// Where an item is in its table.
pub type Slot = u32;

/// One draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
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
    /// Adds a slot that it does not have.
    fn insert(&mut self, slot: Slot, entry: Entry);

    /// Changes the priority of a slot that it has.
    fn update(&mut self, slot: Slot, priority: f64);

    /// Removes a slot that it has.
    fn remove(&mut self, slot: Slot);

    /// Removes everything.
    fn clear(&mut self);

    /// How many slots it has.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `count` draws to `picks`; nothing when it is empty.
    ///
    /// Draws are independent of each other unless the selector's kind says otherwise. A selector that
    /// is deterministic picks the same slot `count` times: nothing has changed in between.
    fn pick(&mut self, count: usize, rng: &mut Rng, picks: &mut Vec<Pick>);

    /// Tells the policy version of the learner, which only grows.
    fn advance(&mut self, version: u64) {
        let _ = version;
    }

    /// Appends all that [`Selector::restore`] needs, beside the entries, to go on just like this one.
    fn save(&self, state: &mut Vec<u64>);

    /// Becomes what was saved. `entries` are the slots it had with their entries, in any order; the
    /// selector is empty and fresh.
    ///
    /// # Errors
    ///
    /// When the state was damaged or belongs to other entries; the selector is then unusable.
    fn restore(&mut self, state: &[u64], entries: &[(Slot, Entry)]) -> Result<(), Damaged>;
}

/// A saved state that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the saved state of a {0} selector does not fit its items")]
pub struct Damaged(pub &'static str);
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum SelectorKind { Uniform }
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("limiter")]
pub struct SelectorError;
impl SelectorKind { #[allow(missing_docs)] pub fn build(&self) -> Result<Box<dyn Selector>, SelectorError> { todo!() } }
