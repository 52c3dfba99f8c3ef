//! Weights by index, their sum, and the index at a given place of that sum.
//!
//! Eight siblings share a line of the processor's cache, so that a way down a million leaves touches
//! seven lines. Draws and updates come in batches: what several of them do at
//! one level does not depend on each other, so the processor waits for their lines at the same time.
//!
//! # Invariants
//!
//! 1. A node is the sum of its eight children, added in one order. It is computed again whenever a child
//!    changes, never corrected by a difference: errors don't pile up, and two trees with the same
//!    weights are the same bit by bit, whatever happened to them before.
//! 2. Weights are not negative and not NaN, and their sum is finite.
//! 3. What is found has a weight above zero. Sums are rounded, so a place close to an edge may lead to
//!    a neighbour, but never to a missing one.

use echoic_memory::roomy;

/// Children of a node.
pub const WIDTH: usize = 8;

/// Searches that go down together: enough that waiting for memory is a small part of their time.
pub const LANES: usize = 64;

/// Eight siblings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(align(64))]
struct Line([f64; WIDTH]);

impl Line {
    /// Where each child begins in the sum, and where the last one ends. `a` is the first child, which
    /// a search has loaded before.
    ///
    /// As rounding never makes a sum of these smaller than one of its parts, no child begins before
    /// the one to its left, and a child of zero begins where the next one does.
    #[inline]
    fn edges(&self, a: f64) -> ([f64; WIDTH], f64) {
        let [_, b, c, d, e, f, g, h] = self.0;
        let (ab, cd, ef) = (a + b, c + d, e + f);
        let abcd = ab + cd;
        let begins = [0.0, a, ab, ab + c, abcd, abcd + e, abcd + ef, abcd + (ef + g)];
        (begins, abcd + (ef + (g + h)))
    }

    /// The sum of the children.
    #[inline]
    fn sum(&self) -> f64 {
        self.edges(self.0[0]).1
    }

    /// Which child is at `rest` of the sum, and what is left of `rest` there.
    ///
    /// It counts the edges that are passed, without a branch: one wrongly predicted would cost more than
    /// all of this. When rounding has brought `rest` past the end, it goes to the last child, whatever
    /// that is; [`SumTree::find_carefully`] is for that.
    #[inline]
    fn step(&self, first: f64, rest: f64) -> (usize, f64) {
        let (begins, _) = self.edges(first);
        let child: usize = begins[1..].iter().map(|begin| usize::from(rest >= *begin)).sum();
        (child, rest - begins[child % WIDTH])
    }
}

/// A search on its way down.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    /// Where it is in the level.
    line: usize,
    /// What is left to go in that line.
    rest: f64,
    /// The first child of that line.
    first: f64,
}

impl Lane {
    /// Loads the first child of its line. When all lanes do so before any goes on, all their lines are
    /// on the way at once: the steps are too long for the processor to look ahead over many of them.
    #[inline]
    fn look(&mut self, level: &[Line]) {
        // Rounding may have led past the end of the level.
        self.line = self.line.min(level.len() - 1);
        self.first = level[self.line].0[0];
    }
}

/// What lies at a place of the sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Whose it is.
    pub index: u32,
    /// Its weight: above zero.
    pub weight: f64,
    /// How far the place is past where the weight begins.
    pub rest: f64,
}

/// See the [module](self).
///
/// ```
/// use echoic_replay::selectors::sum_tree::SumTree;
///
/// let mut tree = SumTree::default();
/// tree.set_many(&[(0, 1.0), (7, 2.5), (1000, 0.5)]);
/// assert_eq!(tree.total(), 4.0);
/// let found = tree.find(3.25).expect("the sum is above zero");
/// assert_eq!((found.index, found.weight, found.rest), (7, 2.5, 2.25));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SumTree {
    /// The leaves first; each further level has a place for each line of the one before. The last one
    /// is a single line, or there is no level at all.
    levels: Vec<Vec<Line>>,
    /// For how many weights the levels get room when they are made.
    room: u32,
    /// Whether sums are left alone until [`SumTree::settle`].
    unsettled: bool,
}

impl SumTree {
    /// An empty tree that will have this many weights: a large one is quicker when this is known.
    pub fn with_room(weights: u32) -> Self {
        Self { room: weights, ..Self::default() }
    }

    /// The sum of all weights.
    #[inline]
    pub fn total(&self) -> f64 {
        self.levels.last().and_then(|level| level.first()).map_or(0.0, Line::sum)
    }

    /// The weight of `index`; zero if it was never set.
    #[inline]
    pub fn get(&self, index: u32) -> f64 {
        let (line, child) = place(index);
        self.levels.first().and_then(|leaves| leaves.get(line)).map_or(0.0, |line| line.0[child])
    }

    /// The weights of the indices that share a line with this one, those of each multiple of [`WIDTH`] and
    /// the next ones; nothing if none was ever set.
    #[inline]
    pub fn siblings(&self, index: u32) -> &[f64] {
        let (line, _) = place(index);
        self.levels.first().and_then(|leaves| leaves.get(line)).map_or(&[], |line| &line.0)
    }

    /// Sets a weight. The tree grows up to `index`.
    pub fn set(&mut self, index: u32, weight: f64) {
        self.reserve(index);
        let mut line = self.set_leaf(index, weight);
        if self.unsettled {
            return;
        }
        for level in 1..self.levels.len() {
            self.sum_up(level, line);
            line /= WIDTH;
        }
    }

    /// Sets many weights; the last one counts when an index comes again.
    pub fn set_many(&mut self, weights: &[(u32, f64)]) {
        let Some(&(last, _)) = weights.iter().max_by_key(|(index, _)| index) else { return };
        self.reserve(last);
        for &(index, weight) in weights {
            self.set_leaf(index, weight);
        }
        if self.unsettled {
            return;
        }
        let mut shift = WIDTH.ilog2();
        for level in 1..self.levels.len() {
            let below = self.levels[level - 1].len();
            if below <= weights.len() {
                // Most lines of a level this small have changed, so it is quicker to take them all.
                (0..below).for_each(|line| self.sum_up(level, line));
            } else {
                weights.iter().for_each(|(index, _)| self.sum_up(level, *index as usize >> shift));
            }
            shift += WIDTH.ilog2();
        }
    }

    /// Leaves all sums as they are until [`SumTree::settle`]: until then only single weights are right.
    pub fn unsettle(&mut self) {
        self.unsettled = true;
    }

    /// Makes all sums right again: far quicker than after each of many changes.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.unsettled) {
            for level in 1..self.levels.len() {
                (0..self.levels[level - 1].len()).for_each(|line| self.sum_up(level, line));
            }
        }
    }

    /// Sets all weights to zero and gives the memory back.
    pub fn clear(&mut self) {
        self.levels.clear();
    }

    /// What lies at `place`, which counts from zero to the total; `None` when the total is zero.
    pub fn find(&self, place: f64) -> Option<Found> {
        let mut found = None;
        self.find_many(&[place], |one| found = Some(one));
        found
    }

    /// Calls `each` with what lies at each place, in their order, unless the total is zero.
    pub fn find_many(&self, places: &[f64], mut each: impl FnMut(Found)) {
        let Some(leaves) = self.levels.first().filter(|leaves| !leaves.is_empty()) else { return };
        for group in places.chunks(LANES) {
            let mut lanes = [Lane::default(); LANES];
            let lanes = &mut lanes[..group.len()];
            for (lane, place) in lanes.iter_mut().zip(group) {
                lane.rest = *place;
            }
            for level in self.levels[1..].iter().rev() {
                lanes.iter_mut().for_each(|lane| lane.look(level));
                for lane in lanes.iter_mut() {
                    let (child, rest) = level[lane.line].step(lane.first, lane.rest);
                    lane.line = lane.line * WIDTH + child;
                    lane.rest = rest;
                }
            }
            lanes.iter_mut().for_each(|lane| lane.look(leaves));
            for (lane, place) in lanes.iter().zip(group) {
                let (child, rest) = leaves[lane.line].step(lane.first, lane.rest);
                let weight = leaves[lane.line].0[child];
                if weight > 0.0 {
                    each(Found { index: (lane.line * WIDTH + child) as u32, weight, rest });
                } else if let Some(found) = self.find_carefully(*place) {
                    each(found);
                }
            }
        }
    }

    /// Goes down by children above zero only; when `rest` is past them all, by the last of them.
    #[cold]
    fn find_carefully(&self, mut rest: f64) -> Option<Found> {
        let (mut line, mut weight) = (0, 0.0);
        for level in self.levels.iter().rev() {
            let (mut chosen, mut left) = (None, rest);
            for (child, &sum) in
                level.get(line)?.0.iter().enumerate().filter(|(_, sum)| **sum > 0.0)
            {
                chosen = Some(child);
                (weight, rest) = (sum, left);
                if left < sum {
                    break;
                }
                left -= sum;
            }
            line = line * WIDTH + chosen?;
        }
        (weight > 0.0).then_some(Found { index: line as u32, weight, rest })
    }

    /// Sets a leaf without its sums, and says in which line it is.
    #[inline]
    fn set_leaf(&mut self, index: u32, weight: f64) -> usize {
        debug_assert!((0.0..f64::INFINITY).contains(&weight), "a weight of {weight}");
        let (line, child) = place(index);
        self.levels[0][line].0[child] = weight;
        line
    }

    /// Computes the node of `level` that stands for a line of the level below.
    #[inline]
    fn sum_up(&mut self, level: usize, line: usize) {
        let sum = self.levels[level - 1][line].sum();
        self.levels[level][line / WIDTH].0[line % WIDTH] = sum;
    }

    /// Makes room for `index`.
    fn reserve(&mut self, index: u32) {
        let mut lines = place(index).0 + 1;
        if self.levels.first().is_some_and(|leaves| leaves.len() >= lines) {
            return;
        }
        let mut room = self.room as usize;
        for level in 0.. {
            room = room.div_ceil(WIDTH);
            if level == self.levels.len() {
                self.levels.push(roomy(room));
            }
            let fresh = self.levels[level].is_empty();
            self.levels[level].resize(lines, Line::default());
            if fresh && level > 0 {
                // The level below was the top until now: all its weight is in its first line.
                self.sum_up(level, 0);
            }
            if lines == 1 {
                break;
            }
            lines = lines.div_ceil(WIDTH);
        }
    }
}

/// The line of a leaf, and which of its children it is.
#[inline]
fn place(index: u32) -> (usize, usize) {
    (index as usize / WIDTH, index as usize % WIDTH)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    /// What the tree says must be what a list of the same weights says.
    fn check(tree: &SumTree, weights: &[f64]) {
        for (index, weight) in weights.iter().enumerate() {
            assert_eq!(tree.get(index as u32), *weight);
        }
        for (level, nodes) in tree.levels.iter().enumerate().skip(1) {
            let below = &tree.levels[level - 1];
            for (node, sum) in nodes.iter().flat_map(|line| line.0).enumerate() {
                assert_eq!(
                    sum,
                    below.get(node).map_or(0.0, Line::sum),
                    "level {level}, node {node}"
                );
            }
        }
        // A sum of n doubles in a tree of depth d is off by less than d·ε, ε = 2^-53 here; a list
        // that is summed one by one may be off by n·ε.
        let total: f64 = weights.iter().sum();
        assert!((tree.total() - total).abs() <= total * 1e-16 * (weights.len() + 64) as f64);
    }

    #[test]
    fn sums_are_exact_after_ten_million_updates() {
        let mut rng = Rng::new(3);
        let (mut tree, mut weights) = (SumTree::default(), vec![0.0; 20_000]);
        let mut changes = Vec::new();
        for round in 0..10_000 {
            changes.clear();
            changes.extend((0..1000).map(|_| {
                let index = rng.below(weights.len() as u64) as u32;
                // Ninety decades apart, so that sums kept by differences would be worthless.
                (index, rng.unit() * 10f64.powi(rng.below(90) as i32 - 45))
            }));
            if round % 50 == 0 {
                changes.iter().for_each(|(index, weight)| tree.set(*index, *weight));
            } else {
                tree.set_many(&changes);
            }
            changes.iter().for_each(|(index, weight)| weights[*index as usize] = *weight);
        }
        check(&tree, &weights);
        let mut fresh = SumTree::default();
        fresh.set_many(&(0..).zip(weights).collect::<Vec<(u32, f64)>>());
        assert_eq!(tree, fresh);
    }

    fn a_weight() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(0.0),
            (1u32..5).prop_map(f64::from),
            0.0..1.0f64,
            Just(f64::MIN_POSITIVE),
            Just(5e-324),
            Just(1e300),
        ]
    }

    proptest! {
        #[test]
        fn is_like_a_list(
            batches in prop::collection::vec(
                prop::collection::vec((0u32..700, a_weight()), 0..40), 0..20)
        ) {
            let [mut single, mut batched, mut late] = <[SumTree; 3]>::default();
            late.unsettle();
            let mut weights = vec![0.0; 700];
            for batch in batches {
                batched.set_many(&batch);
                for (index, weight) in batch {
                    single.set(index, weight);
                    late.set(index, weight);
                    weights[index as usize] = weight;
                }
                prop_assert_eq!(&single, &batched);
            }
            check(&single, &weights);
            late.settle();
            prop_assert_eq!(&single, &late);
        }

        /// Weights are small integers, so that sums are exact.
        #[test]
        fn finds_what_walking_a_list_finds(weights in prop::collection::vec(0u32..4, 1..600)) {
            let mut tree = SumTree::default();
            let set: Vec<(u32, f64)> = (0..).zip(weights.iter().map(|w| f64::from(*w))).collect();
            tree.set_many(&set);
            let mut expected = Vec::new();
            for (index, weight) in set {
                for quarter in 0..4 * weight as u32 {
                    expected.push(Found { index, weight, rest: f64::from(quarter) / 4.0 });
                }
            }
            let places: Vec<f64> = (0..expected.len()).map(|at| at as f64 / 4.0).collect();
            let mut found = Vec::new();
            tree.find_many(&places, |one| found.push(one));
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn never_finds_what_has_no_weight(
            weights in prop::collection::vec((0u32..600, a_weight()), 1..100),
            places in prop::collection::vec(0.0..=1.0f64, 1..50),
        ) {
            let mut tree = SumTree::default();
            tree.set_many(&weights);
            let total = tree.total();
            let beyond = [total, total.next_up(), total * 2.0, f64::MAX, f64::INFINITY];
            let places: Vec<f64> = places.iter().map(|share| share * total).chain(beyond).collect();
            let mut count = 0;
            tree.find_many(&places, |found| {
                count += 1;
                assert!(found.weight > 0.0);
                assert_eq!(found.weight, tree.get(found.index));
            });
            prop_assert_eq!(count, if total > 0.0 { places.len() } else { 0 });
        }
    }

    #[test]
    fn a_place_at_the_very_end_is_the_last_weight_above_zero() {
        let mut tree = SumTree::default();
        tree.set_many(&[(3, 0.1), (70, 0.2), (700, 0.0)]);
        let found = tree.find(tree.total()).expect("the sum is above zero");
        assert_eq!((found.index, found.weight), (70, 0.2));
    }

    #[test]
    fn an_empty_tree_and_one_of_zeros_find_nothing() {
        let mut tree = SumTree::default();
        assert_eq!((tree.total(), tree.find(0.0)), (0.0, None));
        tree.set(100, 0.0);
        assert_eq!((tree.total(), tree.find(0.0)), (0.0, None));
        tree.set(100, 1.0);
        tree.clear();
        assert_eq!((tree.total(), tree.get(100), tree.find(0.0)), (0.0, 0.0, None));
    }
}
