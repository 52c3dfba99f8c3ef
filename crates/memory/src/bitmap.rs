//! A set of small numbers in atomic words, of which threads and processes add and remove members.
//!
//! The ring keeps the free buffers in one, as a *hint*: who opens a buffer may die before it removes
//! the member, so a member is looked at before it is believed.

use crate::sync::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// How many words a set of numbers below `capacity` needs.
pub(crate) const fn words(capacity: usize) -> usize {
    capacity.div_ceil(BITS)
}

/// Adds `index`, if the words reach so far.
pub(crate) fn insert(words: &[AtomicU64], index: usize) {
    if let Some(word) = words.get(index / BITS) {
        word.fetch_or(1 << (index % BITS), Ordering::Release);
    }
}

/// Removes `index`.
pub(crate) fn remove(words: &[AtomicU64], index: usize) {
    if let Some(word) = words.get(index / BITS) {
        word.fetch_and(!(1 << (index % BITS)), Ordering::Release);
    }
}

/// The members, lowest first, each word as it is when the iteration comes to it.
pub(crate) fn members(words: &[AtomicU64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(at, word)| {
        let mut seen = word.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let bit = (seen != 0).then(|| seen.trailing_zeros() as usize)?;
            seen &= seen - 1;
            Some(at * BITS + bit)
        })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lists_the_lowest_first_across_words() {
        let set: Vec<AtomicU64> = (0..words(200)).map(|_| AtomicU64::new(0)).collect();
        for index in [199, 64, 3, 63, 100] {
            insert(&set, index);
        }
        remove(&set, 100);
        assert_eq!(members(&set).collect::<Vec<_>>(), [3, 63, 64, 199]);
    }
}
