//! Items that were created and not handed over yet, in order.
//!
//! Items that name the same chunks, one after the other, are a [`Group`]: it knows the slices of the first, and of each
//! other item how far its own begin behind those. So most items take no allocation, here and in a table.
//!
//! # Invariants
//!
//! 1. A group is in `groups` from its first item until no item of it waits; those that are over are gone as soon as
//!    all before them are.
//! 2. The groups of the first `settled` items are cut.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::column::{Column, Part};
use super::sink::{ChunkId, ItemNumber};
use crate::trajectory::{Signature, Trajectory};

/// An item may join one of this many groups, the latest ones: as many as there are kinds of items at a step.
const OPEN_GROUPS: usize = 8;

/// An item that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub item_number: ItemNumber,
    pub table: u32,
    pub priority: f64,
    /// Number of its group, and how far its slices begin behind those of the group.
    group: u64,
    pub shift: u32,
    /// When the writer gets to this step, the item's chunks are cut.
    due: u64,
}

/// What an item is made of.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// With the number of the column.
    pub parts: Vec<(u32, Part)>,
    /// Where the parts of each column end.
    pub ends: Vec<u32>,
}

impl Parts {
    /// Whether each column is one part.
    pub fn is_plain(&self) -> bool {
        self.parts.len() == self.ends.len()
    }

    /// How many values later those of `other` begin, if they are in the same segments.
    fn shift_to(&self, other: &Self) -> Option<u32> {
        let ((_, first), (_, later)) = (self.parts.first()?, other.parts.first()?);
        let shift = later.offset.checked_sub(first.offset)?;
        let moved = self.parts.iter().map(|(column, part)| {
            (*column, Part { offset: part.offset.wrapping_add(shift), ..*part })
        });
        (self.ends == other.ends && moved.eq(other.parts.iter().copied())).then_some(shift)
    }
}

/// Items of the same slices, but for where these begin.
#[derive(Debug)]
pub(super) struct Group {
    pub signature: Arc<Signature>,
    /// Of its first item.
    pub slices: Parts,
    /// How far its last item begins behind that.
    pub reach: u32,
    /// How many of its items wait.
    items: usize,
    /// How many of the parts are known to be cut.
    cut: usize,
    /// What its first item has become, once one was handed over, and the chunk of each slice.
    pub trajectory: Option<Trajectory>,
    pub chunks: SmallVec<[ChunkId; 8]>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Queue {
    items: VecDeque<Pending>,
    groups: VecDeque<Group>,
    /// Number of the first of `groups`.
    first_group: u64,
    settled: usize,
    /// Memory of groups that are over.
    spare: Vec<Parts>,
}

impl Queue {
    /// How many items wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// How many items have all their data cut, as far as known.
    pub fn settled(&self) -> usize {
        self.settled
    }

    /// When the first item that waits for its data is due.
    #[inline]
    pub fn due(&self) -> Option<u64> {
        self.items.get(self.settled).map(|item| item.due)
    }

    /// The group that an item of these parts joins, and how far it is behind the group's first.
    pub fn group_of(&self, signature: &Arc<Signature>, slices: &Parts) -> Option<(u64, u32)> {
        let latest = self.groups.iter().enumerate().rev().take(OPEN_GROUPS);
        latest
            .filter(|(_, group)| group.items > 0 && Arc::ptr_eq(&group.signature, signature))
            .find_map(|(index, group)| {
                let shift = group.slices.shift_to(slices)?;
                Some((self.first_group + index as u64, shift))
            })
    }

    /// Opens a group without items; what is left in `slices` is empty.
    pub fn open_group(&mut self, signature: &Arc<Signature>, slices: &mut Parts) -> u64 {
        let spare = self.spare.pop().unwrap_or_default();
        self.groups.push_back(Group {
            signature: Arc::clone(signature),
            slices: std::mem::replace(slices, spare),
            reach: 0,
            items: 0,
            cut: 0,
            trajectory: None,
            chunks: SmallVec::new(),
        });
        self.first_group + self.groups.len() as u64 - 1
    }

    /// Adds an item of a group.
    pub fn push(
        &mut self,
        item_number: ItemNumber,
        (table, priority): (u32, f64),
        (group, shift): (u64, u32),
        due: u64,
    ) {
        let joined = self.group(group);
        joined.items += 1;
        joined.reach = joined.reach.max(shift);
        self.items.push_back(Pending { item_number, table, priority, group, shift, due });
    }

    fn group(&mut self, number: u64) -> &mut Group {
        &mut self.groups[(number - self.first_group) as usize]
    }

    /// Counts the items whose data is cut by now, and cuts the data of items due by this step.
    pub fn settle(&mut self, columns: &mut [Column], until: u64) {
        while let Some(item) = self.items.get(self.settled) {
            let group = &mut self.groups[(item.group - self.first_group) as usize];
            while let Some((column, part)) = group.slices.parts.get(group.cut) {
                let column = &mut columns[*column as usize];
                if item.due <= until {
                    column.cut_if(part.segment);
                } else if !column.is_cut(part.segment) {
                    return;
                }
                group.cut += 1;
            }
            self.settled += 1;
        }
    }

    /// Takes the first item if its data is cut, and shows its group.
    pub fn pop(&mut self) -> Option<(Pending, &mut Group)> {
        self.settled = self.settled.checked_sub(1)?;
        let item = self.items.pop_front()?;
        let group = self.group(item.group);
        group.items -= 1;
        Some((item, group))
    }

    /// After [`Queue::pop`]: if that was the last item of its group, `forget` is called for the parts of this, and how
    /// far its last item began behind the first.
    pub fn end_group(&mut self, item: &Pending, mut forget: impl FnMut(u32, Part, u32)) {
        let group = self.group(item.group);
        if group.items > 0 {
            return;
        }
        let (mut slices, reach) = (std::mem::take(&mut group.slices), group.reach);
        group.trajectory = None;
        for (column, part) in &slices.parts {
            forget(*column, *part, reach);
        }
        slices.parts.clear();
        slices.ends.clear();
        self.spare.push(slices);
        while self.groups.front().is_some_and(|group| group.items == 0) {
            self.groups.pop_front();
            self.first_group += 1;
        }
    }
}
