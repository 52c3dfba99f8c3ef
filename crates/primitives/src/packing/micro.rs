//! The sequences of each rank in micro-batches, of which all ranks have the same number.
//!
//! Ranks that exchange gradients or parts of weights wait for each other in every micro-batch, so that
//! one micro-batch more on one rank is a hang, and a dear one is idle time for all others. How many
//! are needed is found first, by the rank that needs most; the others split more.
//!
//! The fewest for one rank is bin packing, which nobody solves fast. First fit decreasing says how many
//! suffice; while the largest differencing method, which is another guess, does with one less, it is
//! one less. Then each rank's costs are made equal: by the largest differencing method where its
//! micro-batches are not too long, or else by giving each sequence to the cheapest micro-batch with
//! room, or else by first fit decreasing, which has room for sure; and then by moving and swapping
//! sequences while that makes the dearest micro-batch cheaper.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::{Method, TooLong, balance, pack};

/// How often sequences of a rank are moved or swapped at most, for each of its micro-batches.
const MOVES: usize = 8;

/// With how many of the cheapest micro-batches the dearest one looks for an exchange, and in how many
/// a sequence looks for room.
const TRIES: usize = 16;

/// The differencing method takes the product of sequences and micro-batches in time. From here on, a
/// fraction of a second, there are so many of both that others do as well.
const LARGE: usize = 1 << 24;

/// What is made equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Sums of lengths.
    Tokens,
    /// Sums of squared lengths, as attention costs.
    Squared,
}

impl Cost {
    /// What a sequence of this length costs; the largest number if it is more.
    pub fn of(self, length: usize) -> u64 {
        let length = length as u64;
        match self {
            Self::Tokens => length,
            Self::Squared => length.saturating_mul(length),
        }
    }
}

/// Where each sequence is in its rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatches {
    /// The micro-batch of each sequence, from 0 on in each rank, the dearest first.
    pub batches: Vec<usize>,
    /// How many micro-batches each rank has.
    pub count: usize,
}

/// Why there are no such micro-batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MicroBatchError {
    /// No micro-batch can have it.
    #[error("sequence {} has {} tokens, which is more than a micro-batch's {}", .0.index, .0.length, .0.max_len)]
    TooLong(TooLong),
    /// It would have empty ones; ranks with equal counts of sequences are less likely to.
    #[error("rank {rank} has fewer sequences ({sequences}) than there are micro-batches ({count})")]
    TooFew {
        /// Which rank; the first that has fewest.
        rank: usize,
        /// How many it has.
        sequences: usize,
        /// How many micro-batches some rank needs.
        count: usize,
    },
}

/// What is split.
#[derive(Debug, Clone, Copy)]
pub struct Shares<'a> {
    /// Tokens of each sequence.
    pub lengths: &'a [usize],
    /// The rank of each.
    pub ranks: &'a [usize],
    /// How many ranks there are.
    pub rank_count: usize,
    /// What is made equal.
    pub cost: Cost,
}

impl Shares<'_> {
    /// Splits each rank's sequences into micro-batches of at most `max_tokens` tokens, the same number
    /// on every rank, with about equal costs. None is empty; but with `allow_empty`, the last ones of a
    /// rank with fewer sequences than that number are. The same shares are always split the same way.
    ///
    /// ```
    /// use echoic_primitives::packing::{Cost, Shares};
    ///
    /// let (lengths, ranks) = ([6, 5, 4, 3, 2], [0, 1, 1, 0, 0]);
    /// let shares = Shares { lengths: &lengths, ranks: &ranks, rank_count: 2, cost: Cost::Tokens };
    /// let split = shares.micro_batches(8, false)?;
    /// assert_eq!((split.count, split.batches), (2, vec![0, 0, 1, 1, 1]));
    /// # Ok::<(), echoic_primitives::packing::MicroBatchError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When a sequence is longer than a micro-batch, or a rank has too few sequences.
    ///
    /// # Panics
    ///
    /// When there are not as many ranks as lengths, or a rank is not below the number of ranks.
    pub fn micro_batches(
        &self,
        max_tokens: usize,
        allow_empty: bool,
    ) -> Result<MicroBatches, MicroBatchError> {
        let Self { lengths, ranks, rank_count, cost } = *self;
        assert!(lengths.len() == ranks.len(), "a rank for each sequence");
        assert!(ranks.iter().all(|rank| *rank < rank_count), "a rank that is not there");
        if let Some(index) = lengths.iter().position(|length| *length > max_tokens) {
            let (length, max_len) = (lengths[index], max_tokens);
            return Err(MicroBatchError::TooLong(TooLong { index, length, max_len }));
        }
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|index| ranks[*index]);
        let shares: Vec<Share> = order
            .chunk_by(|a, b| ranks[*a] == ranks[*b])
            .map(|members| Share {
                lengths: members.iter().map(|index| lengths[*index]).collect(),
                costs: members.iter().map(|index| cost.of(lengths[*index])).collect(),
                max_tokens,
                members,
            })
            .collect();
        let count = shares.iter().fold(0, |count, share| share.fewest(count));
        if !allow_empty
            && let Some((rank, sequences)) = fewest_sequences(&shares, self)
            && sequences < count
        {
            return Err(MicroBatchError::TooFew { rank, sequences, count });
        }
        let mut batches = vec![0; lengths.len()];
        for share in shares {
            for (index, batch) in share.members.iter().zip(share.split(count)) {
                batches[*index] = batch;
            }
        }
        Ok(MicroBatches { batches, count })
    }
}

/// The rank with the fewest sequences, and how many; the first among equals, `None` without ranks.
fn fewest_sequences(shares: &[Share], of: &Shares) -> Option<(usize, usize)> {
    let rank = |share: &Share| of.ranks[share.members[0]];
    let absent = shares.iter().enumerate().find(|(at, share)| *at != rank(share));
    let absent = absent.map_or(shares.len(), |(at, _)| at);
    if absent < of.rank_count {
        return Some((absent, 0));
    }
    let fewest = shares.iter().min_by_key(|share| share.members.len());
    fewest.map(|share| (rank(share), share.members.len()))
}

/// The sequences of one rank.
struct Share<'a> {
    members: &'a [usize],
    lengths: Vec<usize>,
    costs: Vec<u64>,
    max_tokens: usize,
}

impl Share<'_> {
    /// With how many micro-batches this rank does, but not fewer than others need anyway.
    fn fewest(&self, needed: usize) -> usize {
        let tokens: u128 = self.lengths.iter().map(|length| *length as u128).sum();
        let bound = tokens.div_ceil(self.max_tokens.max(1) as u128).max(1) as usize;
        let mut count = self.first_fit().1;
        while count > needed.max(bound)
            && !self.is_large(count)
            && self.fits(&self.by_length(count - 1), count - 1)
        {
            count -= 1;
        }
        count.max(needed)
    }

    /// The micro-batch of each sequence, with this many as [`Share::fewest`] found, or more.
    fn split(&self, count: usize) -> Vec<usize> {
        let len = self.lengths.len();
        let assigned = if len <= count {
            (0..len).collect()
        } else {
            let equal = (!self.is_large(count)).then(|| balance(&self.costs, count, false));
            equal.filter(|assigned| self.fits(assigned, count)).unwrap_or_else(|| {
                let assigned = self.cheapest_first(count).or_else(|| {
                    let (rows, used) = self.first_fit();
                    (used <= count).then_some(rows)
                });
                // Where even first fit needs more, `fewest` has seen that this does not.
                let assigned = assigned.unwrap_or_else(|| self.by_length(count));
                Batches::new(self, &assigned, count).improved()
            })
        };
        self.dearest_first(&assigned, count)
    }

    fn is_large(&self, count: usize) -> bool {
        self.lengths.len().saturating_mul(count) > LARGE
    }

    fn by_length(&self, count: usize) -> Vec<usize> {
        let lengths: Vec<u64> = self.lengths.iter().map(|length| *length as u64).collect();
        balance(&lengths, count, false)
    }

    /// Rows of `max_tokens`, and how many.
    fn first_fit(&self) -> (Vec<usize>, usize) {
        let packing = pack(&self.lengths, self.max_tokens, Method::FirstFitDecreasing);
        let packing = packing.expect("no sequence is too long");
        (packing.rows, packing.row_count)
    }

    /// Each sequence, the dearest first, in the cheapest micro-batch that has room.
    fn cheapest_first(&self, count: usize) -> Option<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.lengths.len()).collect();
        order.sort_by_key(|at| Reverse(self.lengths[*at]));
        let mut assigned = vec![0; order.len()];
        // The cheapest is on top, and the first among equals.
        let mut heap: BinaryHeap<_> =
            (0..count).map(|batch| Reverse((0u128, batch, self.max_tokens))).collect();
        let mut full = Vec::new();
        for at in order {
            let length = self.lengths[at];
            let (cost, batch, room) = loop {
                match heap.pop() {
                    Some(Reverse(load)) if load.2 >= length => break load,
                    Some(load) if full.len() < TRIES => full.push(load),
                    _ => return None,
                }
            };
            heap.push(Reverse((cost + u128::from(self.costs[at]), batch, room - length)));
            // They may have room for shorter ones.
            heap.extend(full.drain(..));
            assigned[at] = batch;
        }
        Some(assigned)
    }

    fn fits(&self, assigned: &[usize], count: usize) -> bool {
        let mut room = vec![self.max_tokens; count];
        assigned.iter().zip(&self.lengths).all(|(batch, length)| {
            match room[*batch].checked_sub(*length) {
                Some(left) => {
                    room[*batch] = left;
                    true
                }
                None => false,
            }
        })
    }

    /// With new numbers for the micro-batches, so that the dearest of all ranks meet each other.
    fn dearest_first(&self, assigned: &[usize], count: usize) -> Vec<usize> {
        let mut loads = vec![(0u128, 0usize); count];
        for (at, batch) in assigned.iter().enumerate() {
            loads[*batch].0 += u128::from(self.costs[at]);
            loads[*batch].1 += 1;
        }
        let mut order: Vec<usize> = (0..count).collect();
        // Where costs are zero, those that are empty still come last.
        order.sort_by_key(|batch| Reverse((loads[*batch].0, loads[*batch].1 > 0)));
        let mut places = vec![0; count];
        for (place, batch) in order.into_iter().enumerate() {
            places[batch] = place;
        }
        assigned.iter().map(|batch| places[*batch]).collect()
    }
}

/// Micro-batches of one rank that are made more equal.
struct Batches<'a> {
    share: &'a Share<'a>,
    /// The sequences of each, the shortest first, which is the cheapest.
    members: Vec<Vec<usize>>,
    costs: Vec<u128>,
    tokens: Vec<usize>,
}

/// One sequence goes over, and perhaps one comes back: their places in the two micro-batches.
#[derive(Clone, Copy)]
struct Exchange {
    over: usize,
    back: Option<usize>,
}

impl<'a> Batches<'a> {
    /// These, where those that are empty get one sequence each.
    fn new(share: &'a Share<'a>, assigned: &[usize], count: usize) -> Self {
        let mut order: Vec<usize> = (0..assigned.len()).collect();
        order.sort_by_key(|at| share.lengths[*at]);
        let mut batches = Self {
            share,
            members: vec![Vec::new(); count],
            costs: vec![0; count],
            tokens: vec![0; count],
        };
        for at in order {
            batches.put(assigned[at], at);
        }
        for empty in 0..count {
            if batches.members[empty].is_empty() {
                let several = (0..count).filter(|batch| batches.members[*batch].len() > 1);
                // There are more sequences than micro-batches.
                if let Some(dearest) = several.max_by_key(|batch| batches.costs[*batch]) {
                    let last = batches.members[dearest].len() - 1;
                    batches.exchange(dearest, empty, Exchange { over: last, back: None });
                }
            }
        }
        batches
    }

    /// The assignment after the moves that help the dearest micro-batch.
    fn improved(mut self) -> Vec<usize> {
        let count = self.members.len();
        let mut by_cost: BTreeSet<(u128, usize)> =
            self.costs.iter().copied().zip(0..count).collect();
        for _ in 0..MOVES * count {
            let Some(&(_, dearest)) = by_cost.last() else { break };
            let others = by_cost.iter().map(|(_, other)| *other).take(TRIES);
            let found = others
                .filter(|other| *other != dearest)
                .find_map(|other| self.best(dearest, other).map(|exchange| (other, exchange)));
            let Some((other, exchange)) = found else { break };
            for batch in [dearest, other] {
                by_cost.remove(&(self.costs[batch], batch));
            }
            self.exchange(dearest, other, exchange);
            by_cost.extend([dearest, other].map(|batch| (self.costs[batch], batch)));
        }
        let mut assigned = vec![0; self.share.lengths.len()];
        for (batch, members) in self.members.iter().enumerate() {
            for at in members {
                assigned[*at] = batch;
            }
        }
        assigned
    }

    /// What makes the larger cost of the two smallest, if anything makes it smaller.
    fn best(&self, from: usize, to: usize) -> Option<Exchange> {
        let gap = self.costs[from].checked_sub(self.costs[to])?;
        let room = self.share.max_tokens - self.tokens[to];
        let (cost, length) = (&self.share.costs, &self.share.lengths);
        let mut best: Option<(u128, Exchange)> = None;
        let mut consider = |difference: u64, exchange: Exchange| {
            let difference = u128::from(difference);
            // The one loses what the other gets.
            let larger = difference.max(gap.saturating_sub(difference));
            if difference > 0 && larger < best.map_or(gap, |(larger, _)| larger) {
                best = Some((larger, exchange));
            }
        };
        for (over, at) in self.members[from].iter().enumerate() {
            if length[*at] <= room && self.members[from].len() > 1 {
                consider(cost[*at], Exchange { over, back: None });
            }
            // Of those long enough to make room, the nearest to half of the gap on either side.
            let backs = &self.members[to];
            let enough = length[*at].saturating_sub(room);
            let least = backs.partition_point(|back| length[*back] < enough);
            let wanted = u128::from(cost[*at]).saturating_sub(gap / 2);
            let above = backs.partition_point(|back| u128::from(cost[*back]) < wanted).max(least);
            for place in above.saturating_sub(1).max(least)..backs.len().min(above + 1) {
                let difference = cost[*at].saturating_sub(cost[backs[place]]);
                consider(difference, Exchange { over, back: Some(place) });
            }
        }
        best.map(|(_, exchange)| exchange)
    }

    fn exchange(&mut self, from: usize, to: usize, exchange: Exchange) {
        let over = self.take(from, exchange.over);
        if let Some(back) = exchange.back {
            let back = self.take(to, back);
            self.put(from, back);
        }
        self.put(to, over);
    }

    fn take(&mut self, batch: usize, place: usize) -> usize {
        let at = self.members[batch].remove(place);
        self.costs[batch] -= u128::from(self.share.costs[at]);
        self.tokens[batch] -= self.share.lengths[at];
        at
    }

    fn put(&mut self, batch: usize, at: usize) {
        let Share { lengths, costs, .. } = self.share;
        let place = self.members[batch].partition_point(|other| lengths[*other] <= lengths[at]);
        self.members[batch].insert(place, at);
        self.costs[batch] += u128::from(costs[at]);
        self.tokens[batch] += lengths[at];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(
        lengths: &[usize],
        ranks: &[usize],
        rank_count: usize,
        max_tokens: usize,
    ) -> Result<MicroBatches, MicroBatchError> {
        Shares { lengths, ranks, rank_count, cost: Cost::Tokens }.micro_batches(max_tokens, false)
    }

    /// The tokens and the number of sequences of each micro-batch of a rank.
    fn loads(shares: &Shares, split: &MicroBatches, rank: usize) -> Vec<(usize, usize)> {
        let mut loads = vec![(0, 0); split.count];
        for (at, batch) in split.batches.iter().enumerate() {
            if shares.ranks[at] == rank {
                loads[*batch].0 += shares.lengths[at];
                loads[*batch].1 += 1;
            }
        }
        loads
    }

    #[test]
    fn the_rank_that_needs_most_says_how_many() {
        let got = split(&[4, 4, 4, 1, 1, 1], &[0, 0, 0, 1, 1, 1], 2, 4).unwrap();
        assert_eq!(got, MicroBatches { batches: vec![0, 1, 2, 0, 1, 2], count: 3 });
    }

    #[test]
    fn nothing_needs_no_micro_batch() {
        assert_eq!(split(&[], &[], 2, 4).unwrap().count, 0);
        assert_eq!(split(&[], &[], 0, 4).unwrap().count, 0);
        assert_eq!(split(&[0, 0], &[0, 0], 1, 0).unwrap().count, 1);
    }

    #[test]
    fn what_can_not_be_is_named() {
        assert_eq!(
            split(&[1, 9, 10], &[0, 0, 0], 1, 8).unwrap_err().to_string(),
            "sequence 1 has 9 tokens, which is more than a micro-batch's 8"
        );
        for (ranks, rank_count, text) in [
            ([0, 0, 0, 1], 2, "rank 1 has fewer sequences (1) than there are micro-batches (2)"),
            ([0, 0, 2, 2], 3, "rank 1 has fewer sequences (0) than there are micro-batches (1)"),
            ([0, 0, 1, 1], 3, "rank 2 has fewer sequences (0) than there are micro-batches (1)"),
            (
                [1, 1, 2, 2],
                usize::MAX,
                "rank 0 has fewer sequences (0) than there are micro-batches (1)",
            ),
        ] {
            let error = split(&[3, 3, 2, 2], &ranks, rank_count, 7).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn empty_micro_batches_are_the_last_ones_where_they_are_allowed() {
        let shares = Shares {
            lengths: &[3, 0, 3, 3, 2],
            ranks: &[0, 1, 0, 0, 1],
            rank_count: usize::MAX,
            cost: Cost::Squared,
        };
        let got = shares.micro_batches(4, true).unwrap();
        assert_eq!(got, MicroBatches { batches: vec![0, 1, 1, 2, 0], count: 3 });
    }

    #[test]
    fn one_less_than_first_fit_is_found_where_it_is_enough() {
        // First fit decreasing puts 5 and 4 together, and so misses 6+5, 5+3+3 and 4+3+3.
        let lengths = [6, 5, 5, 4, 3, 3, 3, 3];
        let first_fit = pack(&lengths, 11, Method::FirstFitDecreasing).unwrap().row_count;
        let got = split(&lengths, &[0; 8], 1, 11).unwrap();
        assert_eq!((first_fit, got.count), (4, 3));
    }

    #[test]
    fn costs_are_about_equal_where_micro_batches_are_nearly_full() {
        // Numbers that look random, from 1 to 4000.
        let lengths: Vec<usize> = (1..257).map(|at| at * at * 7919 % 4001).collect();
        let fewest = lengths.iter().sum::<usize>().div_ceil(16384);
        for cost in [Cost::Tokens, Cost::Squared] {
            let shares = Shares { lengths: &lengths, ranks: &[0; 256], rank_count: 1, cost };
            let split = shares.micro_batches(16384, false).unwrap();
            assert_eq!(split.count, fewest);
            let mut costs = vec![0; split.count];
            for (batch, length) in split.batches.iter().zip(&lengths) {
                costs[*batch] += cost.of(*length);
            }
            let spread = costs.iter().max().unwrap() - costs.iter().min().unwrap();
            assert!(100 * spread < 5 * costs[0], "{cost:?}: {costs:?}");
        }
    }

    proptest! {
        #[test]
        fn micro_batches_are_full_enough_and_not_too_long(
            sequences in prop::collection::vec((0usize..40, 0usize..5), 0..120),
            rank_count in 5usize..7,
            slack in 0usize..60,
            cost in prop::sample::select(&[Cost::Tokens, Cost::Squared][..]),
        ) {
            let (lengths, ranks): (Vec<_>, Vec<_>) = sequences.into_iter().unzip();
            let max_tokens = 40 + slack;
            let shares = Shares { lengths: &lengths, ranks: &ranks, rank_count, cost };
            let split = shares.micro_batches(max_tokens, true).unwrap();
            prop_assert_eq!(&shares.micro_batches(max_tokens, true).unwrap(), &split);
            let mut fewest_sequences = usize::MAX;
            let (mut bound, mut first_fit) = (0, 0);
            for rank in 0..rank_count {
                let own: Vec<usize> =
                    (0..ranks.len()).filter(|at| ranks[*at] == rank).map(|at| lengths[at]).collect();
                fewest_sequences = fewest_sequences.min(own.len());
                bound = bound.max(own.iter().sum::<usize>().div_ceil(max_tokens));
                let packing = pack(&own, max_tokens, Method::FirstFitDecreasing).unwrap();
                first_fit = first_fit.max(packing.row_count);
                let loads = loads(&shares, &split, rank);
                prop_assert!(loads.iter().all(|(tokens, _)| *tokens <= max_tokens));
                let filled = loads.iter().filter(|(_, sequences)| *sequences > 0).count();
                prop_assert_eq!(filled, own.len().min(split.count));
                prop_assert!(loads[..filled].iter().all(|(_, sequences)| *sequences > 0));
                if cost == Cost::Tokens {
                    prop_assert!(loads.is_sorted_by(|a, b| a.0 >= b.0), "the dearest first");
                }
            }
            prop_assert!(bound <= split.count && split.count <= first_fit);
            match shares.micro_batches(max_tokens, false) {
                Ok(same) => prop_assert!(same == split && fewest_sequences >= split.count),
                Err(error) => {
                    let MicroBatchError::TooFew { rank, sequences, count } = error else {
                        panic!("{error}")
                    };
                    prop_assert_eq!((sequences, count), (fewest_sequences, split.count));
                    prop_assert!(sequences < count);
                    prop_assert_eq!(ranks.iter().filter(|of| **of == rank).count(), sequences);
                }
            }
        }
    }
}
