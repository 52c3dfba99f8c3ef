//! One side of the buffer: what is young, or what is not.

use echoic_replay::rng::Rng;
use echoic_replay::selectors::links::{Links, List};
use echoic_replay::selectors::sum_tree::{LANES, SumTree};

use super::lowest::{Lowest, Ranked};

/// Of how many experiences one is in the front of those who go. More of them cost more memory, fewer more time.
const FRONT: usize = 8;
/// A front has this many, if they are there.
const LEAST_FRONT: usize = 64;

/// Changes of weights that wait for each other: a tree takes many at once for less.
const WAITING: usize = 4096;

/// What was drawn of a tier: a slot, and how likely it was within it.
pub(super) type Found = (u32, f64);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Tier {
    sums: SumTree,
    /// Weights that the sums do not have yet. The last one of a slot counts.
    waiting: Vec<(u32, f64)>,
    /// By age: the oldest first.
    list: List,
    /// By score, once that was asked for.
    lowest: Option<Lowest>,
    len: usize,
}

impl Tier {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot that was added before all others.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.list.first()
    }

    pub(super) fn insert(&mut self, links: &mut Links, node: Ranked) {
        links.push(&mut self.list, node.slot);
        self.len += 1;
        self.put(node);
    }

    pub(super) fn remove(&mut self, links: &mut Links, slot: u32) {
        links.unlink(&mut self.list, slot);
        self.len -= 1;
    }

    /// One that is there has another score.
    pub(super) fn rescore(&mut self, node: Ranked) {
        self.put(node);
    }

    fn put(&mut self, node: Ranked) {
        let Some(lowest) = &mut self.lowest else { return };
        lowest.put(node);
        // Those whose scores change again and again are there many times. The next call makes another front.
        if lowest.late() > 2 * self.len.max(LEAST_FRONT) {
            self.lowest = None;
        }
    }

    /// Who goes first, by those of the front that are still there. When it is used up, `all` tells of all.
    pub(super) fn lowest(
        &mut self,
        is_there: impl Fn(&Ranked) -> bool,
        all: impl FnOnce(List) -> Vec<Ranked>,
    ) -> Option<Ranked> {
        let first = self.lowest.as_mut().and_then(|lowest| lowest.first(&is_there));
        if first.is_some() || self.len == 0 {
            return first;
        }
        let front = (self.len / FRONT).max(LEAST_FRONT);
        self.lowest.insert(Lowest::of(all(self.list), front)).first(is_there)
    }

    /// Who may go after this many others.
    pub(super) fn ahead(&self, others: usize) -> Option<u32> {
        self.lowest.as_ref()?.ahead(others)
    }

    /// The slots by age.
    pub(super) fn slots<'a>(&'a self, links: &'a Links) -> impl Iterator<Item = u32> + 'a {
        links.iter(&self.list)
    }

    pub(super) fn set_weight(&mut self, slot: u32, weight: f64) {
        self.waiting.push((slot, weight));
        if self.waiting.len() >= WAITING {
            self.flush();
        }
    }

    /// The sum of all weights.
    pub(super) fn total(&mut self) -> f64 {
        self.flush();
        self.sums.total()
    }

    fn flush(&mut self) {
        self.sums.set_many(&self.waiting);
        self.waiting.clear();
    }

    /// Replaces all weights.
    pub(super) fn set_all(&mut self, weights: &[(u32, f64)]) {
        self.waiting.clear();
        self.sums.clear();
        self.sums.set_many(weights);
    }

    /// Draws slots, each anywhere in the sum, with replacement.
    pub(super) fn draw(&mut self, count: usize, rng: &mut Rng, found: &mut Vec<Found>) {
        let total = self.total();
        let mut places = [0.0; LANES];
        let mut done = 0;
        while done < count {
            let group = &mut places[..(count - done).min(LANES)];
            group.iter_mut().for_each(|place| *place = total * rng.unit());
            self.sums.find_many(group, |one| found.push((one.index, one.weight / total)));
            done += group.len();
        }
    }

    /// Bytes of the order by score.
    pub(super) fn order_bytes(&self) -> usize {
        self.lowest.as_ref().map_or(0, Lowest::bytes)
    }
}
