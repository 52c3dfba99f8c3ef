//! Where ids were found, so that those that follow are found near there.
//!
//! Ids of chunks count up in the process that made them, whose number is their upper half, and items name
//! them about in that order. So the search for one begins where the last one of its process was: a step or
//! two in memory that is near, where a binary search of ten million entries waits for memory again and
//! again. Ids in any other order are found, too, in twice the steps.

use super::index::Location;

/// Processes that are distinguished, most of the time.
const PROCESSES: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Trail([usize; PROCESSES]);

impl Default for Trail {
    fn default() -> Self {
        Self([0; PROCESSES])
    }
}

impl Trail {
    /// The place of an id among entries that are in the order of their ids; `None` when it is not there.
    pub(super) fn find(&mut self, id: u128, entries: &[(u128, Location)]) -> Option<usize> {
        let process = (id >> 64) as usize % PROCESSES;
        let last = self.0.get_mut(process)?;
        let is_before = |at: usize| entries.get(at).is_some_and(|(other, _)| *other < id);
        // It is at one of the places from `low` on and before `high`, or nowhere.
        let (mut low, mut high, mut step) = (0, (*last + 1).min(entries.len()), 1);
        if is_before(*last) {
            low = *last + 1;
            while is_before(low + step - 1) {
                low += step;
                step *= 2;
            }
            high = (low + step).min(entries.len());
        } else {
            while let Some(at) = high.checked_sub(1 + step) {
                if is_before(at) {
                    low = at + 1;
                    break;
                }
                high = at + 1;
                step *= 2;
            }
        }
        let within = entries.get(low..high)?;
        let place = low + within.partition_point(|(other, _)| *other < id);
        entries.get(place).filter(|(other, _)| *other == id)?;
        *last = place;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOWHERE: Location = Location { pack: 0, crc: 0, offset: 0, len: 0 };

    proptest! {
        #[test]
        fn finds_what_a_binary_search_finds(
            ids in prop::collection::btree_set((0u128..70, 0u128..300), 0..200),
            wanted in prop::collection::vec((0u128..70, 0u128..300), 0..200),
        ) {
            let id = |(process, number): &(u128, u128)| process << 64 | number;
            let entries: Vec<_> = ids.iter().map(|one| (id(one), NOWHERE)).collect();
            let mut trail = Trail::default();
            for one in &wanted {
                let expected = entries.binary_search_by_key(&id(one), |(id, _)| *id).ok();
                prop_assert_eq!(trail.find(id(one), &entries), expected);
            }
        }
    }
}
