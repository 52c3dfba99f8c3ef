//! The trajectories that a checkpoint will want, kept for it while the table goes on.
//!
//! To take a million of them at once would lock the table for as long as a million counts of references
//! take to change. So a [`PinnedTrajectories`] notes only whose slots there are; they are taken some at a time, and
//! one that is removed before its turn comes here instead of being dropped.
//!
//! # Invariants
//!
//! 1. The bit of a slot is set exactly while the trajectory that it had at the first moment is still in
//!    it and was not taken. Those that left their slots before are in `gone` until they are taken.

use crate::selectors::Slot;
use crate::trajectory::Trajectory;

/// A trajectory and the slot it has, or had.
pub(super) type Kept = (Slot, Trajectory);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct PinnedTrajectories {
    wanted: Vec<u64>,
    /// Words of `wanted` before this one are empty.
    cursor: usize,
    gone: Vec<Kept>,
}

impl PinnedTrajectories {
    /// Wants every trajectory that is there.
    pub(super) fn of(slots: &[Option<Trajectory>]) -> Self {
        let wanted = slots.chunks(64).map(|chunk| {
            let bits = chunk.iter().enumerate();
            bits.fold(0, |word, (bit, one)| word | u64::from(one.is_some()) << bit)
        });
        Self { wanted: wanted.collect(), cursor: 0, gone: Vec::new() }
    }

    /// Takes a trajectory that leaves its slot; gives it back when it is not wanted.
    pub(super) fn leave(&mut self, slot: Slot, one: Trajectory) -> Option<Trajectory> {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        match self.wanted.get_mut(word) {
            Some(wanted) if *wanted & bit != 0 => {
                *wanted &= !bit;
                self.gone.push((slot, one));
                None
            }
            _ => Some(one),
        }
    }

    /// Appends about `count` of those that are left, at least; nothing when there are none.
    pub(super) fn take(
        &mut self,
        slots: &[Option<Trajectory>],
        count: usize,
        taken: &mut Vec<Kept>,
    ) {
        let begin = taken.len();
        taken.append(&mut self.gone);
        while taken.len() - begin < count
            && let Some(wanted) = self.wanted.get_mut(self.cursor)
        {
            let first = self.cursor * 64;
            while *wanted != 0 {
                let slot = first + wanted.trailing_zeros() as usize;
                *wanted &= *wanted - 1;
                if let Some(Some(one)) = slots.get(slot) {
                    taken.push((slot as Slot, one.clone()));
                }
            }
            self.cursor += 1;
        }
    }

    /// Takes all that are left, as their slots are about to go.
    pub(super) fn leave_all(&mut self, slots: &[Option<Trajectory>]) {
        let mut rest = Vec::new();
        self.take(slots, usize::MAX, &mut rest);
        self.gone = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::chunk::{Chunk, ColumnKind, Slice};
    use crate::spec::Dtype;
    use crate::trajectory::{Column, Signature};

    fn trajectory() -> Trajectory {
        let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![] };
        let column = Column { path: String::new(), kind: kind.clone(), squeezed: true };
        let signature = Signature { structure: String::new(), columns: vec![column] };
        let chunk = Chunk::raw(Arc::new(kind), 1, vec![1].into()).unwrap();
        let slice = Slice { chunk: Arc::new(chunk), offset: 0, len: 1 };
        Trajectory::new(Arc::new(signature), vec![vec![slice]]).unwrap()
    }

    /// Tells one made here from the others.
    fn chunk(one: &Trajectory) -> *const Chunk {
        Arc::as_ptr(one.slices().next().unwrap().chunk)
    }

    proptest! {
        #[test]
        fn each_that_was_there_is_taken_once_whatever_happens_meanwhile(
            there in prop::collection::vec(any::<bool>(), 0..300),
            steps in prop::collection::vec((0usize..300, 0usize..4), 0..200),
            go: bool,
        ) {
            let mut slots: Vec<_> = there.iter().map(|there| there.then(trajectory)).collect();
            let all = (0..).zip(slots.clone());
            let expected: Vec<Kept> =
                all.filter_map(|(slot, one)| one.map(|one| (slot, one))).collect();
            let (mut pinned, mut taken) = (PinnedTrajectories::of(&slots), Vec::new());
            for (slot, action) in steps {
                match (action, slots.get_mut(slot)) {
                    (0, _) => pinned.take(&slots, 5, &mut taken),
                    (1, Some(one)) => {
                        // Another one comes into the slot, or none.
                        let new = (slot % 2 == 0).then(trajectory);
                        if let Some(old) = std::mem::replace(one, new) {
                            pinned.leave(slot as Slot, old);
                        }
                    }
                    _ => {}
                }
            }
            if go {
                pinned.leave_all(&slots);
                slots.clear();
            }
            pinned.take(&slots, usize::MAX, &mut taken);
            taken.sort_by_key(|(slot, _)| *slot);
            prop_assert_eq!(taken.len(), expected.len());
            for (one, other) in taken.iter().zip(&expected) {
                prop_assert!(one.0 == other.0 && chunk(&one.1) == chunk(&other.1));
            }
        }
    }
}
