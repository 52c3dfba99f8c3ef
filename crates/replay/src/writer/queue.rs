//! Items that were created and not handed over yet, in order.
//!
//! Their parts lie flat in queues of their own, so that an item takes no allocation.
//!
//! # Invariants
//!
//! 1. `parts` has the parts of all items, in order; `ends` those of items where a column is not just one
//!    part.
//! 2. All parts of the first `settled` items are cut, and so are the next `cut_parts` parts.

use std::collections::VecDeque;
use std::sync::Arc;

use super::column::{Column, Part};
use super::sink::ItemTicket;
use crate::trajectory::Signature;

/// An item that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub ticket: ItemTicket,
    pub table: u32,
    pub priority: f64,
    pub signature: Arc<Signature>,
    /// How many parts it has.
    pub parts: u32,
    /// Whether each of its columns is one part.
    pub plain: bool,
    /// When the writer gets to this step, the item's chunks are cut.
    pub due: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub items: VecDeque<Pending>,
    /// With the number of the column.
    pub parts: VecDeque<(u32, Part)>,
    pub ends: VecDeque<u32>,
    settled: usize,
    settled_parts: usize,
    cut_parts: usize,
}

impl Queue {
    /// How many items have all their data cut, as far as known.
    pub fn settled(&self) -> usize {
        self.settled
    }

    /// When the first item that waits for its data is due.
    #[inline]
    pub fn due(&self) -> Option<u64> {
        self.items.get(self.settled).map(|item| item.due)
    }

    /// Counts the items whose data is cut by now, and cuts the data of items due by this step.
    pub fn settle(&mut self, columns: &mut [Column], until: u64) {
        while let Some(item) = self.items.get(self.settled) {
            let force = item.due <= until;
            while self.cut_parts < item.parts as usize {
                let (column, part) = self.parts[self.settled_parts + self.cut_parts];
                let column = &mut columns[column as usize];
                if force {
                    column.cut_if(part.segment);
                } else if !column.is_cut(part.segment) {
                    return;
                }
                self.cut_parts += 1;
            }
            self.settled += 1;
            self.settled_parts += item.parts as usize;
            self.cut_parts = 0;
        }
    }

    /// Takes the first item if its data is cut; the caller takes its parts and ends.
    pub fn pop(&mut self) -> Option<Pending> {
        self.settled = self.settled.checked_sub(1)?;
        let item = self.items.pop_front()?;
        self.settled_parts -= item.parts as usize;
        Some(item)
    }
}
