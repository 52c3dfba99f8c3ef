//! Chunks of all tables that are brought back, so that those that share one share it again.
//!
//! A chunk that no item has any more is not kept: only its name is here, until names are swept out.
//! That is done when there are twice as many as the last sweep has left, so that all sweeps together look at
//! no more than a few times as many names as there ever were, however often a journal forgets.

use std::sync::{Arc, Weak};

use crate::chunk::Chunk;
use crate::names::ByName;
use crate::table::saved::Living;

/// So few names are not worth a sweep.
const FEW: usize = 1 << 12;

/// See the [module](self).
#[derive(Default)]
pub(super) struct ChunkDirectory<'a> {
    /// Those of the checkpoint.
    saved: Option<Living<'a>>,
    /// Those that journals recorded.
    told: ByName<Weak<Chunk>>,
    /// How many of these there may be until the next sweep.
    most: usize,
}

impl<'a> ChunkDirectory<'a> {
    pub(super) fn new(saved: Option<Living<'a>>) -> Self {
        Self { saved, told: ByName::default(), most: FEW }
    }

    /// The chunk of this name, if an item has it, or a journal that is read has just recorded it.
    pub(super) fn get(&mut self, key: u128) -> Option<Arc<Chunk>> {
        let told = self.told.get(&key).and_then(Weak::upgrade);
        told.or_else(|| self.saved.as_mut()?.get(key))
    }

    pub(super) fn insert(&mut self, key: u128, chunk: &Arc<Chunk>) {
        self.told.insert(key, Arc::downgrade(chunk));
    }

    /// Lets go of the names of chunks that no item has, if there may be many; how many names it looked at.
    pub(super) fn sweep(&mut self) -> usize {
        let looked = self.told.len();
        if looked < self.most {
            return 0;
        }
        self.told.retain(|_, chunk| chunk.strong_count() > 0);
        self.most = FEW.max(2 * self.told.len());
        looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::ColumnKind;
    use crate::spec::Dtype;

    /// A journal with this many chunks, of which one in `kept` stays, and forgets after every 50.
    fn looks(chunks: usize, kept: usize) -> (usize, usize) {
        let kind = Arc::new(ColumnKind { dtype: Dtype::Bool, shape: vec![] });
        let (mut shared, mut items) = (ChunkDirectory::new(None), Vec::new());
        let (mut looked, mut most) = (0, 0);
        for number in 0..chunks {
            let chunk = Chunk::raw(Arc::clone(&kind), 1, vec![0].into()).unwrap();
            let chunk = Arc::new(chunk);
            shared.insert(number as u128, &chunk);
            items.extend((number % kept == 0).then_some(chunk));
            if number % 50 == 0 {
                looked += shared.sweep();
            }
            most = most.max(shared.told.len());
        }
        assert!(items.iter().step_by(100).enumerate().all(|(at, one)| {
            let key = (at * 100 * kept) as u128;
            shared.get(key).is_some_and(|found| Arc::ptr_eq(&found, one))
        }));
        (looked, most)
    }

    #[test]
    fn sweeps_look_at_no_more_than_a_few_times_as_many_names_as_there_were() {
        for kept in [1, 2, 1000] {
            let (looked, _) = looks(100_000, kept);
            assert!(
                looked <= 300_000,
                "{looked} looks at 100000 names, of which one in {kept} stays"
            );
        }
    }

    #[test]
    fn names_of_chunks_that_nobody_has_do_not_pile_up() {
        let (_, most) = looks(100_000, 1000);
        assert!(most <= 2 * FEW, "{most} names, of which 100 stay");
    }
}
