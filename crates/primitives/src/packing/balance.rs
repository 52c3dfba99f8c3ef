//! Things with costs on ranks that should all have about the same to do.
//!
//! The largest differencing method (Karmarkar and Karp, 1982): there are partial assignments to
//! begin with, one for each thing; the two with the largest spreads between their ranks are joined,
//! the dearest rank of one with the cheapest of the other, until one is left. It comes far closer
//! than giving each thing to whoever has least.

use std::collections::BinaryHeap;

/// What one rank of a partial assignment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    cost: u64,
    /// The first and the last thing, which are linked by `next`.
    first: usize,
    last: usize,
}

/// Shares from the dearest to the cheapest; ranks that have nothing are left out.
#[derive(Debug, PartialEq, Eq)]
struct Partial {
    spread: u64,
    /// The lower comes first among equal spreads, so that the result is always the same.
    age: std::cmp::Reverse<usize>,
    shares: Vec<Share>,
}

impl Ord for Partial {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.spread, self.age).cmp(&(other.spread, other.age))
    }
}

impl PartialOrd for Partial {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The rank of each thing, such that the sums of costs are as equal as this method makes them. With
/// `equal_counts`, the numbers of things of two ranks differ by one at most.
///
/// Sums that are too large for a number count as the largest number.
///
/// ```
/// use echoic_primitives::packing::balance;
///
/// let ranks = balance(&[8, 7, 6, 5, 4], 2, false);
/// let first: u64 = (0..5).filter(|at| ranks[*at] == 0).map(|at| [8, 7, 6, 5, 4][at]).sum();
/// assert!(first == 16 || first == 14);
/// ```
///
/// # Panics
///
/// When there is no rank.
pub fn balance(costs: &[u64], ranks: usize, equal_counts: bool) -> Vec<usize> {
    assert!(ranks > 0, "there is no rank");
    let mut next: Vec<Option<usize>> = vec![None; costs.len()];
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(costs[*index]));
    // Joining pairs each share with one share, so ranks keep having as many things as each other
    // when they begin with one each.
    let together = if equal_counts { ranks } else { 1 };
    let mut heap: BinaryHeap<Partial> = order
        .chunks(together)
        .enumerate()
        .map(|(age, things)| {
            let share = |thing: &usize| Share { cost: costs[*thing], first: *thing, last: *thing };
            partial(things.iter().map(share).collect(), ranks, age)
        })
        .collect();
    let mut age = heap.len();
    while let Some(mut a) = heap.pop() {
        let Some(b) = heap.pop() else {
            return ranks_of(&a.shares, &next, costs.len());
        };
        // The dearest of one with the cheapest of the other; what is missing costs nothing.
        let alone = ranks - b.shares.len();
        for (at, share) in b.shares.iter().rev().enumerate() {
            match a.shares.get_mut(alone + at) {
                Some(with) => {
                    with.cost = with.cost.saturating_add(share.cost);
                    next[with.last] = Some(share.first);
                    with.last = share.last;
                }
                None => a.shares.push(*share),
            }
        }
        a.shares.sort_by_key(|share| std::cmp::Reverse(share.cost));
        heap.push(partial(a.shares, ranks, age));
        age += 1;
    }
    Vec::new()
}

/// The assignment with these shares, which are sorted.
fn partial(shares: Vec<Share>, ranks: usize, age: usize) -> Partial {
    let dearest = shares.first().map_or(0, |share| share.cost);
    let cheapest = if shares.len() < ranks { 0 } else { shares[ranks - 1].cost };
    Partial { spread: dearest - cheapest, age: std::cmp::Reverse(age), shares }
}

fn ranks_of(shares: &[Share], next: &[Option<usize>], count: usize) -> Vec<usize> {
    let mut ranks = vec![0; count];
    for (rank, share) in shares.iter().enumerate() {
        let mut thing = Some(share.first);
        while let Some(index) = thing {
            ranks[index] = rank;
            thing = next[index];
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loads(costs: &[u64], assigned: &[usize], ranks: usize) -> (Vec<u64>, Vec<usize>) {
        let (mut loads, mut counts) = (vec![0; ranks], vec![0; ranks]);
        for (cost, rank) in costs.iter().zip(assigned) {
            loads[*rank] += cost;
            counts[*rank] += 1;
        }
        (loads, counts)
    }

    #[test]
    fn more_ranks_than_things_get_one_each() {
        let (loads, _) = loads(&[5, 3], &balance(&[5, 3], 4, false), 4);
        assert_eq!(loads, [5, 3, 0, 0]);
        assert_eq!(balance(&[], 3, true), [0usize; 0]);
    }

    proptest! {
        #[test]
        fn loads_differ_by_no_more_than_the_dearest_thing(
            costs in prop::collection::vec(0u64..1000, 1..150),
            ranks in 1usize..9,
        ) {
            let assigned = balance(&costs, ranks, false);
            let (loads, _) = loads(&costs, &assigned, ranks);
            prop_assert_eq!(loads.iter().sum::<u64>(), costs.iter().sum::<u64>());
            let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            prop_assert!(spread <= *costs.iter().max().unwrap());
        }

        #[test]
        fn counts_are_equal_when_asked_for(
            costs in prop::collection::vec(0u64..1000, 0..150),
            ranks in 1usize..9,
        ) {
            let assigned = balance(&costs, ranks, true);
            let (_, counts) = loads(&costs, &assigned, ranks);
            prop_assert_eq!(counts.iter().sum::<usize>(), costs.len());
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
