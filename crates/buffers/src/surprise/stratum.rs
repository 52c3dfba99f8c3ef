//! One side of the buffer: what is young, or what is not.

use echoic_replay::rng::Rng;
use echoic_replay::selectors::links::{Links, List};
use echoic_replay::selectors::sum_tree::{LANES, SumTree};

use super::lowest::{Lowest, Ranked};

/// Changes of weights that wait for each other: a tree takes many at once for less.
const WAITING: usize = 4096;

/// What was drawn of a stratum: a slot, and how likely it was within it.
pub(super) type Found = (u32, f64);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Stratum {
    sums: SumTree,
    /// Weights that the sums do not have yet. The last one of a slot counts.
    waiting: Vec<(u32, f64)>,
    /// By age: the oldest first.
    list: List,
    /// By score, once that was asked for.
    lowest: Option<Lowest>,
    len: usize,
}

impl Stratum {
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
        if let Some(lowest) = &mut self.lowest {
            lowest.insert(node);
        }
    }

    pub(super) fn remove(&mut self, links: &mut Links, slot: u32) {
        links.unlink(&mut self.list, slot);
        self.len -= 1;
        if let Some(lowest) = &mut self.lowest {
            lowest.remove(slot);
        }
    }

    pub(super) fn rescore(&mut self, slot: u32, score: f64) {
        if let Some(lowest) = &mut self.lowest {
            lowest.update(slot, score);
        }
    }

    /// Who goes first. The first call orders all, others keep the order.
    pub(super) fn lowest(
        &mut self,
        links: &Links,
        ranked: impl Fn(u32) -> Ranked,
    ) -> Option<Ranked> {
        let list = &self.list;
        let lowest = self.lowest.get_or_insert_with(|| Lowest::of(links.iter(list).map(ranked)));
        lowest.first()
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
