//! Which experience is removed first when there are too many: the one with the lowest score; of equal ones, the oldest.
//!
//! To keep all in order would cost a walk through memory for each that comes, goes or gets another score. So only the
//! *front* is in order: those that are not behind a *fence*, found and sorted at once. Whoever comes in behind the
//! fence is not looked at, and whoever comes before it joins the *late* ones, a heap. When the front is used up
//! another one is made. If it has a fixed part of all, each that goes costs a constant, and now and then one
//! waits until all were looked at.
//!
//! Nobody is taken out of the middle: whoever asks says who is still there, as it was put in.
//!
//! # Invariants
//!
//! 1. Whoever is there and not behind the fence is in `front` or in `late`, with its score of now.
//! 2. `front` is sorted, the first at its end.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A slot and what decides about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// The score.
    pub score: f64,
    /// When it was added: no two have the same.
    pub moment: u64,
    /// Where it is.
    pub slot: u32,
}

impl Ranked {
    fn order(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(self.moment.cmp(&other.moment))
    }

    /// Whether it goes before another one.
    pub fn is_before(&self, other: &Self) -> bool {
        self.order(other).is_lt()
    }
}

/// One of a heap that has the first on top.
#[derive(Debug)]
struct Late(Ranked);

impl Ord for Late {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.order(&self.0)
    }
}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Late {}

/// See the [module](self).
#[derive(Debug)]
pub struct Lowest {
    front: Vec<Ranked>,
    late: BinaryHeap<Late>,
    /// The last of the front when it was made. Who was not in it is behind.
    fence: Option<Ranked>,
}

impl Lowest {
    /// Of all these, with this many in its front: one at least.
    pub fn of(mut all: Vec<Ranked>, front: usize) -> Self {
        let front = front.max(1);
        if all.len() > front {
            all.select_nth_unstable_by(front - 1, Ranked::order);
            all.truncate(front);
            // It stays for long, and all were many more.
            all.shrink_to_fit();
        }
        all.sort_unstable_by(|a, b| b.order(a));
        Self { fence: all.first().copied(), front: all, late: BinaryHeap::new() }
    }

    /// One comes, or has another score.
    pub fn put(&mut self, node: Ranked) {
        if self.fence.is_some_and(|fence| !fence.is_before(&node)) {
            self.late.push(Late(node));
        }
    }

    /// Who goes first. None when the front is used up: then there may be others behind the fence.
    pub fn first(&mut self, is_there: impl Fn(&Ranked) -> bool) -> Option<Ranked> {
        while self.front.pop_if(|node| !is_there(node)).is_some() {}
        while self.late.peek().is_some_and(|late| !is_there(&late.0)) {
            self.late.pop();
        }
        let late = self.late.peek().map(|late| late.0);
        match self.front.last().copied() {
            Some(first) if late.is_none_or(|late| first.is_before(&late)) => Some(first),
            _ => late,
        }
    }

    /// Who may go after this many others; a guess, for who wants to have its memory at hand.
    pub fn ahead(&self, others: usize) -> Option<u32> {
        let at = self.front.len().checked_sub(others + 1)?;
        self.front.get(at).map(|node| node.slot)
    }

    /// How many late ones are waited for, those that are not there any more included.
    pub fn late(&self) -> usize {
        self.late.len()
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        (self.front.capacity() + self.late.capacity()) * size_of::<Ranked>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_like_a_sorted_list(
            front in 1usize..9,
            steps in prop::collection::vec((0u32..40, 0u8..6), 0..300),
        ) {
            let mut lowest: Option<Lowest> = None;
            let mut model: Vec<Ranked> = Vec::new();
            for (moment, (slot, score)) in (0u64..).zip(steps) {
                let score = f64::from(score);
                let at = model.iter().position(|node| node.slot == slot);
                let node = match at {
                    // Whoever goes is not told of.
                    Some(at) if score < 2.0 => {
                        model.remove(at);
                        None
                    }
                    Some(at) => {
                        model[at].score = score;
                        Some(model[at])
                    }
                    None => {
                        model.push(Ranked { score, moment, slot });
                        model.last().copied()
                    }
                };
                if let (Some(lowest), Some(node)) = (&mut lowest, node) {
                    lowest.put(node);
                }
                model.sort_by(Ranked::order);
                let mut first = lowest.as_mut().and_then(|lowest| lowest.first(|node| model.contains(node)));
                if first.is_none() {
                    let made = lowest.insert(Lowest::of(model.iter().rev().copied().collect(), front));
                    first = made.first(|node| model.contains(node));
                }
                prop_assert_eq!(first, model.first().copied());
            }
        }
    }
}
