//! The item with the lowest priority, or with the highest.
//!
//! Among equal priorities it is the one that was inserted or updated first: an update counts even when
//! it brings the same priority again.

use super::order::pick_certain;
use super::{Damaged, DrawnItem, Entries, Entry, Selector, Slot, misuse, saved};
use crate::rng::Rng;

/// Children of a node. Four of them lie together, and the way up is half as long as with two.
const WIDTH: usize = 4;

/// Stands for a slot that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// Which end of the priorities is picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Lowest,
    Highest,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The priority, or its negative: the lowest key is picked.
    key: f64,
    /// When it was inserted or updated, counted in such events.
    moment: u64,
    slot: Slot,
}

impl Node {
    fn is_before(&self, other: &Self) -> bool {
        self.key.total_cmp(&other.key).then(self.moment.cmp(&other.moment)).is_lt()
    }
}

/// Picks an extreme of the priorities. See the [module](self).
///
/// `positions[nodes[i].slot] == i` for every `i`, other positions are absent, and no node is before
/// its parent, the one at `(i - 1) / WIDTH`.
#[derive(Debug)]
pub struct Heap {
    end: End,
    nodes: Vec<Node>,
    positions: Vec<u32>,
    /// The next moment.
    now: u64,
}

impl Heap {
    /// Picks the lowest priority.
    pub fn min() -> Self {
        Self::new(End::Lowest)
    }

    /// Picks the highest priority.
    pub fn max() -> Self {
        Self::new(End::Highest)
    }

    fn new(end: End) -> Self {
        Self { end, nodes: Vec::new(), positions: Vec::new(), now: 0 }
    }

    fn key(&self, priority: f64) -> f64 {
        // Adding zero makes a negative zero positive: both are the same priority, but not the same key.
        match self.end {
            End::Lowest => priority + 0.0,
            End::Highest => -(priority + 0.0),
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn position(&self, slot: Slot) -> Option<usize> {
        let position = *self.positions.get(slot as usize)?;
        (position != ABSENT).then_some(position as usize)
    }

    fn put(&mut self, position: usize, node: Node) {
        self.nodes[position] = node;
        self.positions[node.slot as usize] = position as u32;
    }

    /// Moves the node at a position to where it belongs.
    fn settle(&mut self, position: usize) {
        let node = self.nodes[position];
        let mut at = position;
        while at > 0 && node.is_before(&self.nodes[(at - 1) / WIDTH]) {
            self.put(at, self.nodes[(at - 1) / WIDTH]);
            at = (at - 1) / WIDTH;
        }
        // Whoever rose is before all that was below its old place.
        while at >= position {
            let children = at * WIDTH + 1..(at * WIDTH + 1 + WIDTH).min(self.nodes.len());
            let first = children.reduce(|best, child| {
                if self.nodes[child].is_before(&self.nodes[best]) { child } else { best }
            });
            let Some(child) = first.filter(|child| self.nodes[*child].is_before(&node)) else {
                break;
            };
            self.put(at, self.nodes[child]);
            at = child;
        }
        self.put(at, node);
    }
}

impl Selector for Heap {
    fn insert(&mut self, slot: Slot, entry: Entry) {
        if self.position(slot).is_some() {
            return misuse();
        }
        let index = slot as usize;
        if self.positions.len() <= index {
            self.positions.resize(index + 1, ABSENT);
        }
        let node = Node { key: self.key(entry.priority), moment: self.tick(), slot };
        self.nodes.push(node);
        self.settle(self.nodes.len() - 1);
    }

    fn update(&mut self, slot: Slot, priority: f64) {
        let Some(position) = self.position(slot) else { return misuse() };
        self.nodes[position].key = self.key(priority);
        self.nodes[position].moment = self.tick();
        self.settle(position);
    }

    fn remove(&mut self, slot: Slot) {
        let Some(position) = self.position(slot) else { return misuse() };
        self.nodes.swap_remove(position);
        self.positions[slot as usize] = ABSENT;
        if position < self.nodes.len() {
            self.settle(position);
        }
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.positions.clear();
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn pick(&mut self, count: usize, _: &mut Rng, draws: &mut Vec<DrawnItem>) {
        pick_certain(self.nodes.first().map(|node| node.slot), count, draws);
    }

    /// Only the order of the moments matters, so the slots are written in that order.
    fn save(&self, state: &mut Vec<u64>) {
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_unstable_by_key(|node| node.moment);
        saved::write_slots(nodes.into_iter().map(|node| node.slot), state);
    }

    fn restore(&mut self, state: &[u64], entries: &dyn Entries) -> Result<(), Damaged> {
        let damaged = Damaged(match self.end {
            End::Lowest => "min_heap",
            End::Highest => "max_heap",
        });
        let slots = saved::read_slots(state, entries, damaged)?;
        let end = entries.end();
        let mut priorities = vec![0.0; end];
        entries.each(&mut |slot, entry| priorities[slot as usize] = entry.priority);
        *self = Self::new(self.end);
        self.nodes.reserve_exact(entries.count());
        self.positions.resize(end, ABSENT);
        for slot in slots {
            self.insert(slot, Entry { priority: priorities[slot as usize], version: 0 });
        }
        Ok(())
    }
}
