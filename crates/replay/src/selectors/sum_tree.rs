//! Weights by index, their sum, and who lies at a given place of that sum.
//!
//! Eight siblings share a [`Line`], which is a line of the processor's cache, so that a way down a
//! million leaves touches seven lines. Draws and updates come in batches: what several of them do at
//! one level does not depend on each other, so the processor waits for their lines at the same time.
//!
//! # Invariants
//!
//! 1. A node is the sum of its eight children, added in one order. It is computed anew whenever a child
//!    changes, never corrected by a difference: errors don't pile up, and two trees with the same
//!    weights are the same bit by bit, whatever happened to them before.
//! 2. Weights are not negative and not NaN, and their sum is finite.
//! 3. What is found has a weight above zero. Sums are rounded, so a place close to an edge may lead to
//!    a neighbour, but never to nobody.

/// Children of a node.
const WIDTH: usize = 8;

/// Searches that go down together. More don't help: the processor can't look further ahead.
pub const LANES: usize = 16;

/// Eight siblings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(align(64))]
struct Line([f64; WIDTH]);

impl Line {
    /// Where each child begins in the sum, and where the last one ends.
    ///
    /// As rounding never makes a sum of these smaller than one of its parts, no child begins before
    /// the one to its left, and a child of zero begins where the next one does.
    #[inline]
    fn edges(&self) -> ([f64; WIDTH], f64) {
        let [a, b, c, d, e, f, g, h] = self.0;
        let (ab, cd, ef) = (a + b, c + d, e + f);
        let abcd = ab + cd;
        let begins = [0.0, a, ab, ab + c, abcd, abcd + e, abcd + ef, abcd + (ef + g)];
        (begins, abcd + (ef + (g + h)))
    }

    #[inline]
    fn sum(&self) -> f64 {
        self.edges().1
    }

    /// Which child is at `rest` of the sum, and what is left of `rest` there.
    ///
    /// It counts the edges that are passed, without a branch: one wrongly predicted would cost more than
    /// all of this. When rounding has brought `rest` past the end, it goes to the last child, whatever
    /// that is; [`SumTree::find_carefully`] is for that.
    #[inline]
    fn step(&self, rest: f64) -> (usize, f64) {
        let (begins, _) = self.edges();
        let child: usize = begins[1..].iter().map(|begin| usize::from(rest >= *begin)).sum();
        (child, rest - begins[child % WIDTH])
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
}

impl SumTree {
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

    /// Sets a weight. The tree grows up to `index`.
    pub fn set(&mut self, index: u32, weight: f64) {
        self.reserve(index);
        let mut line = self.set_leaf(index, weight);
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
            let mut lines = [0usize; LANES];
            let mut rests = [0f64; LANES];
            rests[..group.len()].copy_from_slice(group);
            for level in self.levels[1..].iter().rev() {
                let last = level.len() - 1;
                for (line, rest) in lines.iter_mut().zip(&mut rests).take(group.len()) {
                    // Rounding may have led past the end of the level.
                    let (child, left) = level[(*line).min(last)].step(*rest);
                    *line = *line * WIDTH + child;
                    *rest = left;
                }
            }
            let last = leaves.len() - 1;
            for ((line, rest), place) in lines.iter().zip(&rests).zip(group) {
                let line = (*line).min(last);
                let (child, rest) = leaves[line].step(*rest);
                let weight = leaves[line].0[child];
                if weight > 0.0 {
                    each(Found { index: (line * WIDTH + child) as u32, weight, rest });
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
        for level in 0.. {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
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
