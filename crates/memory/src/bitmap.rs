//! A set of small numbers that many threads put into and take from without a lock.
//!
//! The ring keeps two of them: the buffers that are free, and the slots whose writer gave up.
//! Taking prefers the lowest number, which for free buffers means the one used last time the
//! consumer kept up: its bytes are still in the cache.

use crate::sync::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// The set `{0, …, capacity - 1}` or any part of it.
#[derive(Debug)]
pub(crate) struct AtomicBitmap {
    words: Box<[AtomicU64]>,
}

impl AtomicBitmap {
    /// An empty set for numbers below `capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { words: (0..capacity.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Adds `index`. What the caller wrote before is visible to the thread that takes it.
    pub(crate) fn insert(&self, index: usize) {
        let old = self.words[index / BITS].fetch_or(1 << (index % BITS), Ordering::AcqRel);
        debug_assert_eq!(old & (1 << (index % BITS)), 0, "{index} was in the set already");
    }

    /// Removes and returns the lowest number found, or `None` if a scan found nothing.
    pub(crate) fn take_lowest(&self) -> Option<usize> {
        for (at, word) in self.words.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            while seen != 0 {
                let bit = seen & seen.wrapping_neg();
                // Acquire pairs with the release in `insert`.
                seen = word.fetch_and(!bit, Ordering::AcqRel);
                if seen & bit != 0 {
                    return Some(at * BITS + bit.trailing_zeros() as usize);
                }
            }
        }
        None
    }

    /// Whether a scan finds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// How many numbers a scan finds.
    pub(crate) fn len(&self) -> usize {
        self.words.iter().map(|word| word.load(Ordering::Acquire).count_ones() as usize).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn takes_the_lowest_first_across_words() {
        let set = AtomicBitmap::new(200);
        for index in [199, 64, 3, 63] {
            set.insert(index);
        }
        assert_eq!(set.len(), 4);
        let taken: Vec<_> = std::iter::from_fn(|| set.take_lowest()).collect();
        assert_eq!(taken, [3, 63, 64, 199]);
        assert!(set.is_empty());
    }

    #[test]
    fn each_number_is_taken_by_one_thread_only() {
        let set = AtomicBitmap::new(500);
        (0..500).for_each(|index| set.insert(index));
        let mut taken: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| std::iter::from_fn(|| set.take_lowest()).collect::<Vec<_>>())
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        assert_eq!(taken, (0..500).collect::<Vec<_>>());
    }
}
