//! Lists of slots, linked in both directions: any slot is put last, or taken out, in constant time.
//!
//! The links of a slot lie at its own index, so a slot can be in one [`List`] at a time and nothing is
//! allocated for it. Several lists can share one [`Links`].

use super::Slot;

/// Stands for the end of a list.
const NONE: Slot = Slot::MAX;

/// The neighbours of a slot; a slot that is in no list is its own neighbour.
#[derive(Debug, Clone, Copy)]
struct Neighbours {
    before: Slot,
    after: Slot,
}

/// The neighbours of all slots. See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct Links(Vec<Neighbours>);

/// The ends of a list whose slots are linked in a [`Links`].
#[derive(Debug, Clone, Copy)]
pub struct List {
    first: Slot,
    last: Slot,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl List {
    /// The slot that was put there before all others.
    pub fn first(&self) -> Option<Slot> {
        (self.first != NONE).then_some(self.first)
    }

    /// The slot that was put there after all others.
    pub fn last(&self) -> Option<Slot> {
        (self.last != NONE).then_some(self.last)
    }
}

impl Links {
    /// Whether the slot is in a list.
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.get(slot as usize).is_some_and(|neighbours| neighbours.after != slot)
    }

    /// Has room for all slots below this one.
    pub fn widen(&mut self, end: usize) {
        let fresh = self.0.len() as Slot..end as Slot;
        self.0.extend(fresh.map(|own| Neighbours { before: own, after: own }));
    }

    /// Puts a slot that is in no list last.
    pub fn push(&mut self, list: &mut List, slot: Slot) {
        if self.0.len() <= slot as usize {
            self.widen(slot as usize + 1);
        }
        self.0[slot as usize] = Neighbours { before: list.last, after: NONE };
        match list.last {
            NONE => list.first = slot,
            last => self.0[last as usize].after = slot,
        }
        list.last = slot;
    }

    /// Takes a slot out of the list that it is in.
    pub fn unlink(&mut self, list: &mut List, slot: Slot) {
        let Neighbours { before, after } = self.0[slot as usize];
        match before {
            NONE => list.first = after,
            before => self.0[before as usize].after = after,
        }
        match after {
            NONE => list.last = before,
            after => self.0[after as usize].before = before,
        }
        self.0[slot as usize] = Neighbours { before: slot, after: slot };
    }

    /// Has the processor fetch the links of a slot that is taken out soon.
    #[inline]
    pub fn prefetch(&self, slot: Slot) {
        self.0.get(slot as usize).into_iter().for_each(echoic_memory::prefetch);
    }

    /// Has the processor fetch those of its neighbours, once its own are there.
    #[inline]
    pub fn prefetch_neighbours(&self, slot: Slot) {
        if let Some(Neighbours { before, after }) = self.0.get(slot as usize) {
            self.prefetch(*before);
            self.prefetch(*after);
        }
    }

    /// The slots of a list, from the first on.
    pub fn iter(&self, list: &List) -> impl Iterator<Item = Slot> {
        std::iter::successors(list.first(), |slot| {
            let after = self.0[*slot as usize].after;
            (after != NONE).then_some(after)
        })
    }

    /// Empties all lists; the ends that others hold mean nothing any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_keep_their_order(steps in prop::collection::vec((0usize..3, 0u32..30), 0..200)) {
            let (mut links, mut lists) = (Links::default(), [List::default(); 2]);
            let mut models = [Vec::new(), Vec::new()];
            for (action, slot) in steps {
                let held = models.iter().position(|model| model.contains(&slot));
                prop_assert_eq!(links.contains(slot), held.is_some());
                if let Some(held) = held {
                    links.unlink(&mut lists[held], slot);
                    models[held].retain(|other| *other != slot);
                } else if let Some(list) = lists.get_mut(action) {
                    links.push(list, slot);
                    models[action].push(slot);
                }
                for (list, model) in lists.iter().zip(&models) {
                    prop_assert_eq!(&links.iter(list).collect::<Vec<_>>(), model);
                    prop_assert_eq!(list.first(), model.first().copied());
                    prop_assert_eq!(list.last(), model.last().copied());
                }
            }
        }
    }
}
