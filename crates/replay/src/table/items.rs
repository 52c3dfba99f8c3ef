//! What a table knows about its items, by slot.

use echoic_memory::{prefetch, roomy};

use super::key::{Key, MAX_GENERATION};
use super::spread::{self, Spread};
use crate::selectors::{Entries, Entry, Slot};

/// One item, or none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Item {
    pub(super) priority: f64,
    pub(super) version: u64,
    pub(super) times_sampled: u32,
    /// How many items the slot had before, in the lower bits; and whether it has one now.
    state: u32,
}

const LIVE: u32 = 1 << 31;

/// Items by slot. It never shrinks: a slot that is empty remembers its generation.
#[derive(Debug, Default)]
pub(super) struct Items {
    slots: Vec<Item>,
    live: u32,
    /// How often items were sampled, and their priorities; of those that are there.
    times: Spread,
    priorities: Spread,
}

impl Items {
    /// None yet, with room for as many slots as there will be.
    pub(super) fn with_room(slots: u32) -> Self {
        Self { slots: roomy(slots as usize), ..Self::default() }
    }

    pub(super) fn len(&self) -> u32 {
        self.live
    }

    /// How many slots there are, empty ones included.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// All slots, for [`write`].
    pub(super) fn all(&self) -> &[Item] {
        &self.slots
    }

    /// Adds a slot as it was saved; whether it made sense.
    pub(super) fn load(&mut self, [priority, version, rest]: [u64; WORDS]) -> bool {
        let (priority, times_sampled, state) =
            (f64::from_bits(priority), rest as u32, (rest >> 32) as u32);
        if !priority.is_finite() || priority < 0.0 || state & !LIVE > MAX_GENERATION {
            return false;
        }
        if state & LIVE != 0 {
            self.live += 1;
            self.times.add(spread::of_count(times_sampled.into()));
            self.priorities.add(spread::of_priority(priority));
        }
        self.slots.push(Item { priority, version, times_sampled, state });
        true
    }

    /// Fills an empty slot.
    pub(super) fn insert(&mut self, slot: Slot, priority: f64, version: u64) -> Key {
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Item::default());
        }
        let generation = self.slots[index].state;
        debug_assert!(generation & LIVE == 0, "slot {slot} is taken");
        self.slots[index] = Item { priority, version, times_sampled: 0, state: generation | LIVE };
        self.live += 1;
        self.times.add(spread::of_count(0));
        self.priorities.add(spread::of_priority(priority));
        Key::new(slot, generation)
    }

    /// Fills the slot that a key names, as if all its items before had been there; whether it was empty.
    /// The caller sees to it that there may be such a slot.
    pub(super) fn place(&mut self, key: Key, priority: f64, version: u64) -> bool {
        let index = key.slot() as usize;
        if key.generation() > MAX_GENERATION {
            return false;
        }
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Item::default());
        }
        if self.slots[index].state & LIVE != 0 {
            return false;
        }
        self.slots[index].state = key.generation();
        self.insert(key.slot(), priority, version);
        true
    }

    /// Whether a slot has an item.
    pub(super) fn is_taken(&self, slot: Slot) -> bool {
        self.slots.get(slot as usize).is_some_and(|item| item.state & LIVE != 0)
    }

    /// Empties a slot that has an item.
    pub(super) fn remove(&mut self, slot: Slot) {
        let item = &mut self.slots[slot as usize];
        debug_assert!(item.state & LIVE != 0, "slot {slot} is empty");
        let next = (item.state & !LIVE) + 1;
        item.state = if next > MAX_GENERATION { 0 } else { next };
        self.live -= 1;
        self.times.remove(spread::of_count(item.times_sampled.into()));
        self.priorities.remove(spread::of_priority(item.priority));
    }

    /// Counts a sample of the item in a slot that has one; how many it had, this one included.
    pub(super) fn note_sample(&mut self, slot: Slot) -> u32 {
        let item = &mut self.slots[slot as usize];
        debug_assert!(item.state & LIVE != 0, "slot {slot} is empty");
        let before = item.times_sampled;
        item.times_sampled = before.saturating_add(1);
        let now = item.times_sampled;
        // Only what was 0 or a power of two leaves its bucket.
        if before & before.wrapping_sub(1) == 0 {
            self.times.remove(spread::of_count(before.into()));
            self.times.add(spread::of_count(now.into()));
        }
        now
    }

    /// Changes the priority of the item in a slot that has one.
    pub(super) fn set_priority(&mut self, slot: Slot, priority: f64) {
        let item = &mut self.slots[slot as usize];
        debug_assert!(item.state & LIVE != 0, "slot {slot} is empty");
        let before = std::mem::replace(&mut item.priority, priority);
        let (from, to) = (spread::of_priority(before), spread::of_priority(priority));
        if from != to {
            self.priorities.remove(from);
            self.priorities.add(to);
        }
    }

    /// How often items were sampled.
    pub(super) fn times(&self) -> &Spread {
        &self.times
    }

    /// Their priorities.
    pub(super) fn priorities(&self) -> &Spread {
        &self.priorities
    }

    /// The item in a slot that has one.
    pub(super) fn at(&self, slot: Slot) -> &Item {
        let item = &self.slots[slot as usize];
        debug_assert!(item.state & LIVE != 0, "slot {slot} is empty");
        item
    }

    /// Has the processor fetch an item that will be looked at soon.
    pub(super) fn prefetch(&self, slot: Slot) {
        if let Some(item) = self.slots.get(slot as usize) {
            prefetch(item);
        }
    }

    /// The name of the item in a slot that has one.
    pub(super) fn key(&self, slot: Slot) -> Key {
        Key::new(slot, self.at(slot).state & !LIVE)
    }

    /// Where the item of this name is; none, when it has gone.
    pub(super) fn find(&self, key: Key) -> Option<Slot> {
        let item = self.slots.get(key.slot() as usize)?;
        (item.state == key.generation() | LIVE && key.generation() <= MAX_GENERATION)
            .then(|| key.slot())
    }

    /// The slots that have an item, in their order.
    pub(super) fn live(&self) -> impl Iterator<Item = Slot> + '_ {
        self.live_from(0)
    }

    /// As [`Items::live`], without the slots before this one.
    pub(super) fn live_from(&self, first: Slot) -> impl Iterator<Item = Slot> + '_ {
        let slots = self.slots.iter().enumerate().skip(first as usize);
        slots.filter(|(_, item)| item.state & LIVE != 0).map(|(slot, _)| slot as Slot)
    }
}

/// How many slots are saved together, and in how many words each.
pub(super) const GROUP: usize = 1024;
pub(super) const WORDS: usize = 3;

/// Appends a group of slots as it is saved: all their first words, all second ones, all third ones; behind a
/// byte that says whether these are alike, and there once.
pub(super) fn write(group: &[Item], bytes: &mut Vec<u8>) {
    for word in 0..WORDS {
        let value = |item: &Item| {
            let rest = u64::from(item.times_sampled) | u64::from(item.state) << 32;
            [item.priority.to_bits(), item.version, rest][word].to_le_bytes()
        };
        let alike = group.iter().all(|item| value(item) == value(&group[0]));
        bytes.push(alike.into());
        let group = if alike { &group[..1] } else { group };
        group.iter().for_each(|item| bytes.extend_from_slice(&value(item)));
    }
}

impl Entries for Items {
    fn count(&self) -> usize {
        self.live as usize
    }

    fn end(&self) -> usize {
        self.slots.len()
    }

    fn each(&self, see: &mut dyn FnMut(Slot, Entry)) {
        for slot in self.live() {
            let Item { priority, version, .. } = *self.at(slot);
            see(slot, Entry { priority, version });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_item_and_no_later_one_in_its_slot() {
        let mut items = Items::default();
        let first = items.insert(3, 1.0, 0);
        assert_eq!(items.find(first), Some(3));
        items.remove(3);
        assert_eq!(items.find(first), None);
        let second = items.insert(3, 2.0, 0);
        assert_ne!(first, second);
        assert_eq!((items.find(first), items.find(second)), (None, Some(3)));
        assert_eq!(items.live().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn numbers_that_are_no_keys_find_nothing() {
        let mut items = Items::default();
        let key = items.insert(0, 1.0, 0);
        for bit in 0..64 {
            let other = Key::from_number(key.number() ^ 1 << bit);
            assert_eq!(items.find(other), None, "bit {bit}");
        }
    }
}
