//! What is picked how often, by chi-square tests with fixed seeds.
//!
//! Each test compares with the quantile that a right selector passes in one of a million seeds, so with
//! the seeds fixed here a failure means that the distribution is wrong or that the draws changed.

use super::*;
use crate::rng::Rng;

/// The value that chi-square with `degrees` of freedom exceeds once in a million times (Wilson and
/// Hilferty, 1931).
fn quantile(degrees: f64) -> f64 {
    let part = 2.0 / (9.0 * degrees);
    degrees * (1.0 - part + 4.753 * part.sqrt()).powi(3)
}

/// That counts are as the probabilities say; whatever has none must not come at all.
fn check(counts: &[u32], probabilities: &[f64]) {
    let draws = f64::from(counts.iter().sum::<u32>());
    let (mut sum, mut cells) = (0.0, 0.0);
    for (slot, (count, probability)) in counts.iter().zip(probabilities).enumerate() {
        if *probability == 0.0 {
            assert_eq!(*count, 0, "slot {slot} must never come");
            continue;
        }
        let expected = draws * probability;
        assert!(expected >= 5.0, "too few draws to say anything about slot {slot}");
        sum += (f64::from(*count) - expected).powi(2) / expected;
        cells += 1.0;
    }
    let limit = quantile(cells - 1.0);
    assert!(sum < limit, "chi-square is {sum}, the limit {limit}; counts {counts:?}");
}

fn filled(kind: SelectorKind, priorities: &[f64]) -> Box<dyn Selector> {
    let mut selector = build(kind);
    for (slot, priority) in (0..).zip(priorities) {
        selector.insert(slot, Entry { priority: *priority, version: 0 });
    }
    selector
}

fn count(
    selector: &mut dyn Selector,
    batches: usize,
    batch: usize,
    cells: usize,
    seed: u64,
) -> Vec<u32> {
    let (mut rng, mut draws, mut counts) = (Rng::new(seed), Vec::new(), vec![0; cells]);
    for _ in 0..batches {
        draws.clear();
        selector.pick(batch, &mut rng, &mut draws);
        draws.iter().for_each(|pick| counts[pick.slot as usize] += 1);
    }
    counts
}

fn shares(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

#[test]
fn uniform_is_uniform() {
    let mut selector = filled(SelectorKind::Uniform, &[1.0; 100]);
    (90..100).for_each(|slot| selector.remove(slot));
    let mut expected = [1.0; 100];
    expected[90..].fill(0.0);
    check(&count(selector.as_mut(), 1000, 100, 100, 1), &shares(&expected));
}

/// Most slots are empty here, so that members are counted off.
#[test]
fn uniform_is_uniform_over_a_few_far_apart() {
    let mut selector = filled(SelectorKind::Uniform, &[1.0; 2000]);
    let is_left = |slot: &Slot| slot % 40 == 7;
    (0..2000).filter(|slot| !is_left(slot)).for_each(|slot| selector.remove(slot));
    let expected: Vec<f64> = (0..2000).map(|slot| f64::from(u8::from(is_left(&slot)))).collect();
    check(&count(selector.as_mut(), 500, 100, 2000, 12), &shares(&expected));
}

#[test]
fn prioritized_follows_the_powers_of_the_priorities() {
    for (seed, exponent) in [0.0, 0.5, 0.6, 1.0, 2.0].into_iter().enumerate() {
        let mut priorities: Vec<f64> = (0..90).map(|slot| f64::from(slot % 10) / 3.0).collect();
        let mut selector = filled(SelectorKind::Prioritized { exponent }, &priorities);
        selector.update_many(&[(3, 0.0), (10, 7.0)]);
        selector.remove(55);
        (priorities[3], priorities[10], priorities[55]) = (0.0, 7.0, 0.0);
        let power = |priority: &f64| if *priority > 0.0 { priority.powf(exponent) } else { 0.0 };
        let weights: Vec<f64> = priorities.iter().map(power).collect();
        let counts = count(selector.as_mut(), 1000, 100, 90, 10 + seed as u64);
        check(&counts, &shares(&weights));
    }
}

#[test]
fn prioritized_is_uniform_when_all_priorities_are_zero() {
    let mut selector = filled(SelectorKind::Prioritized { exponent: 0.6 }, &[0.0; 150]);
    (0..150).step_by(3).for_each(|slot| selector.remove(slot));
    let expected: Vec<f64> = (0..150).map(|slot| f64::from(slot % 3 != 0)).collect();
    check(&count(selector.as_mut(), 1000, 100, 150, 2), &shares(&expected));
}

/// The first draws of many epochs, and the order of the first two of four.
#[test]
fn an_epoch_is_in_random_order() {
    let mut selector = filled(SelectorKind::Epoch, &[1.0; 4]);
    let (mut rng, mut orders) = (Rng::new(3), [0; 16]);
    for _ in 0..12_000 {
        let mut draws = Vec::new();
        selector.pick(4, &mut rng, &mut draws);
        orders[(draws[0].slot * 4 + draws[1].slot) as usize] += 1;
    }
    let expected: Vec<f64> = (0..16).map(|order| f64::from(order / 4 != order % 4)).collect();
    check(&orders, &shares(&expected));
}

/// The shares are not left to chance, so there is a degree of freedom less than is counted: a wrong
/// distribution passes a little more easily, a right one is not accused more often.
#[test]
fn hot_and_cold_have_their_shares_and_follow_the_priorities_within() {
    let kind = SelectorKind::HotCold { age_threshold: 2, hot_fraction: 0.7, exponent: 0.6 };
    let (mut selector, mut weights) = (build(kind), Vec::new());
    for slot in 0..60 {
        let priority = f64::from(slot % 7);
        selector.insert(slot, Entry { priority, version: if slot < 20 { 5 } else { 0 } });
        weights.push(if priority > 0.0 { priority.powf(0.6) } else { 0.0 });
    }
    selector.advance(7);
    let hot = shares(&weights[..20]).into_iter().map(|share| share * 0.7);
    let cold = shares(&weights[20..]).into_iter().map(|share| share * 0.3);
    let expected: Vec<f64> = hot.chain(cold).collect();
    for (batches, batch) in [(1000, 100), (100_000, 1), (3000, 33)] {
        check(&count(selector.as_mut(), batches, batch, 60, 4), &expected);
    }
}

/// Four levels of sums, of a weight that a double can't hold exactly.
#[test]
fn a_large_tree_leaves_nobody_out() {
    let len = 4096;
    let mut selector = filled(SelectorKind::Prioritized { exponent: 0.6 }, &vec![0.1; len]);
    let counts = count(selector.as_mut(), 400, 256, len, 5);
    check(&counts, &shares(&vec![1.0; len]));
}
