//! What all shards are together, and how a batch is drawn from it.
//!
//! A slot of a batch first chooses a shard in proportion to what its items weigh, then the shard draws.
//! So an item's probability is its shard's [share](Whole::shares) times the one within the shard,
//! whatever the shard weighs by the time it draws.
//!
//! A shard of which fewer items are there than its limiter asks for, or that is paused, is no part of
//! the whole: a batch would wait for it while others have plenty.
//!
//! # Invariants
//!
//! 1. Shares are those of the weights with which the batch was split, over the shards that are still
//!    part of the whole. When one is lost, all that was chosen for it is chosen again among the others
//!    with these weights: the probability that a slot ends at a shard is then its share among those that
//!    are left, whether the slot was chosen once or twice.

use echoic_replay::rng::Rng;
use echoic_replay::table::Infos;

use crate::wire::tables::Numbers;

/// What is known of the table on one shard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Part {
    pub(super) size: u64,
    pub(super) weight: f64,
    /// Fewer items are not sampled from.
    min_size: u64,
    /// Each draw may be the last of its item.
    uses_up: bool,
    paused: bool,
}

impl From<&Numbers> for Part {
    fn from(numbers: &Numbers) -> Self {
        Self {
            size: numbers.size.into(),
            weight: numbers.total_weight,
            min_size: numbers.limiter.min_size,
            uses_up: numbers.max_times_sampled > 0,
            paused: numbers.paused,
        }
    }
}

impl Part {
    /// Takes over what came with a sample.
    pub(super) fn note(&mut self, infos: &Infos) {
        (self.size, self.weight) = (infos.table_size, infos.total_weight);
    }

    pub(super) fn uses_up(&self) -> bool {
        self.uses_up
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether it can be sampled from.
    pub(super) fn is_ready(&self) -> bool {
        !self.paused && self.size > 0 && self.size >= self.min_size
    }
}

/// The shards that a batch is drawn from; `None` for those that are no part of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Whole(Vec<Option<Part>>);

impl Whole {
    /// Of those that are known, the ones that can be sampled from.
    pub(super) fn new(parts: impl IntoIterator<Item = Option<Part>>) -> Self {
        Self(parts.into_iter().map(|part| part.filter(Part::is_ready)).collect())
    }

    /// Whether a batch can be drawn from it.
    pub(super) fn allows(&self, count: usize) -> bool {
        let parts = || self.0.iter().flatten();
        let needed = if parts().any(|part| part.uses_up) { count as u64 } else { 1 };
        parts().map(|part| part.size).fold(0, u64::saturating_add) >= needed
    }

    pub(super) fn has(&self, shard: usize) -> bool {
        self.part(shard).is_some()
    }

    pub(super) fn part(&self, shard: usize) -> Option<&Part> {
        self.0.get(shard).and_then(Option::as_ref)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Adds the shards that it does not have.
    pub(super) fn add(&mut self, other: &Self) {
        self.0.resize(other.0.len().max(self.0.len()), None);
        for (part, found) in self.0.iter_mut().zip(&other.0) {
            *part = part.or(*found);
        }
    }

    /// Takes a shard out.
    pub(super) fn lose(&mut self, shard: usize) {
        if let Some(part) = self.0.get_mut(shard) {
            *part = None;
        }
    }

    /// How likely a slot of a batch is to come from each shard.
    ///
    /// If nothing weighs anything, all items count alike, as they do in a single table.
    pub(super) fn shares(&self) -> Vec<f64> {
        let largest = self.0.iter().flatten().map(|part| part.weight).fold(0.0, f64::max);
        let weight = |part: &Part| match largest {
            0.0 => part.size as f64,
            // Divided first: the sum of several may be more than a double can hold.
            largest => part.weight / largest,
        };
        let mut shares: Vec<f64> =
            self.0.iter().map(|part| part.as_ref().map_or(0.0, weight)).collect();
        let total: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= total);
        shares
    }

    /// Chooses a shard for each of `count` slots; how many each got. Where draws use items up, no shard
    /// gets more than it has items.
    pub(super) fn split(&self, count: usize, rng: &mut Rng) -> Vec<usize> {
        let mut counts = vec![0; self.0.len()];
        let mut left = self.shares();
        for _ in 0..count {
            let shard = choose(&left, rng).or_else(|| {
                // All that weighs something is used up: what is left counts alike.
                let rest = self.0.iter().zip(&counts);
                let rest = rest.map(|(part, count)| {
                    part.map_or(0, |part| part.size.saturating_sub(*count as u64))
                });
                left = rest.map(|items| items as f64).collect();
                choose(&left, rng)
            });
            let Some(shard) = shard else { break };
            counts[shard] += 1;
            let Some(part) = self.part(shard).filter(|part| part.uses_up) else { continue };
            // What is drawn weighs what an item of this shard does on average.
            let items = part.size.saturating_sub(counts[shard] as u64);
            left[shard] *= items as f64 / (items + 1) as f64;
        }
        counts
    }
}

/// Chooses in proportion to weights that are not negative; nothing when all are zero.
fn choose(weights: &[f64], rng: &mut Rng) -> Option<usize> {
    let mut place = rng.unit() * weights.iter().sum::<f64>();
    let mut chosen = None;
    for (index, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        chosen = Some(index);
        if place < *weight {
            break;
        }
        // Rounding may lead past the end: then it is the last that weighs something.
        place -= weight;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Part, Rng, Whole};

    fn part(size: u64, weight: f64) -> Part {
        Part { size, weight, min_size: 1, uses_up: false, paused: false }
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        let whole = Whole::new([Some(part(5, 1.0)), None, Some(part(1, 3.0)), Some(part(9, 0.0))]);
        assert_eq!(whole.shares(), [0.25, 0.0, 0.75, 0.0]);
    }

    #[test]
    fn without_any_weight_all_items_count_alike() {
        let whole = Whole::new([Some(part(5, 0.0)), Some(part(15, 0.0))]);
        assert_eq!(whole.shares(), [0.25, 0.75]);
    }

    #[test]
    fn weights_that_have_no_finite_sum_have_shares() {
        let whole = Whole::new([Some(part(1, f64::MAX)), Some(part(1, f64::MAX))]);
        assert_eq!(whole.shares(), [0.5, 0.5]);
    }

    #[test]
    fn what_can_not_be_sampled_is_no_part() {
        let few = Part { min_size: 6, ..part(5, 5.0) };
        let paused = Part { paused: true, ..part(5, 5.0) };
        let whole = Whole::new([Some(few), Some(paused), Some(part(0, 0.0))]);
        assert!(whole.is_empty() && !whole.allows(1));
        let whole = Whole::new([Some(few), Some(part(1, 1.0))]);
        assert!(!whole.has(0) && whole.has(1) && whole.allows(9));
    }

    #[test]
    fn draws_that_use_items_up_need_them_all() {
        let queue = |size| Some(Part { uses_up: true, ..part(size, size as f64) });
        let whole = Whole::new([queue(4), queue(0), queue(6)]);
        assert!(whole.allows(10) && !whole.allows(11));
        assert_eq!(whole.split(10, &mut Rng::new(1)), [4, 0, 6]);
    }

    /// Chi-square with 3 degrees of freedom: beyond 21.1 once in ten thousand seeds, of which this is
    /// one that was not chosen.
    #[test]
    fn a_split_follows_the_shares() {
        let whole = Whole::new([1.0, 2.0, 0.0, 3.0, 4.0].map(|weight| Some(part(7, weight))));
        let (mut rng, mut counts) = (Rng::new(11), [0usize; 5]);
        for _ in 0..1000 {
            for (total, count) in counts.iter_mut().zip(whole.split(100, &mut rng)) {
                *total += count;
            }
        }
        let expected = [10_000.0, 20_000.0, 0.0, 30_000.0, 40_000.0];
        assert_eq!(counts[2], 0);
        let squares = counts.iter().zip(expected).filter(|(_, expected)| *expected > 0.0);
        let squares =
            squares.map(|(count, expected)| (*count as f64 - expected).powi(2) / expected);
        let statistic: f64 = squares.sum();
        assert!(statistic < 21.1, "{statistic} for {counts:?}");
    }

    fn a_part() -> impl Strategy<Value = Option<Part>> {
        let weight = prop_oneof![Just(0.0), 0.0..9.0f64, Just(5e-324), Just(1e308)];
        let part = (0..20u64, weight, 0..9u64, prop::bool::weighted(0.1));
        let part = part.prop_map(|(size, weight, min_size, paused)| Part {
            size,
            weight: if size > 0 { weight } else { 0.0 },
            min_size,
            uses_up: false,
            paused,
        });
        proptest::option::weighted(0.9, part)
    }

    proptest! {
        #[test]
        fn a_split_gives_every_slot_to_a_shard_that_can_serve_it(
            parts in prop::collection::vec(a_part(), 1..6),
            (count, uses_up, seed) in (1..60usize, any::<bool>(), any::<u64>()),
        ) {
            let parts = parts.into_iter().map(|part| Some(Part { uses_up, ..part? }));
            let whole = Whole::new(parts);
            prop_assume!(whole.allows(count));
            let shares = whole.shares();
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let counts = whole.split(count, &mut Rng::new(seed));
            prop_assert_eq!(counts.iter().sum::<usize>(), count);
            for (shard, got) in counts.into_iter().enumerate() {
                prop_assert!(got == 0 || whole.has(shard) && (shares[shard] > 0.0 || uses_up));
                if let Some(part) = whole.part(shard).filter(|part| part.uses_up) {
                    prop_assert!(got as u64 <= part.size);
                }
            }
        }
    }
}
