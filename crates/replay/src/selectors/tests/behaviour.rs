//! What single kinds promise, each in one example.

use super::*;
use crate::rng::Rng;

fn insert(selector: &mut dyn Selector, slot: Slot, priority: f64) {
    selector.insert(slot, Entry { priority, version: 0 });
}

fn picked(selector: &mut dyn Selector, count: usize) -> Vec<Slot> {
    let mut draws = Vec::new();
    selector.pick(count, &mut Rng::new(1), &mut draws);
    draws.iter().map(|pick| pick.slot).collect()
}

#[test]
fn priorities_beyond_a_double_s_powers_break_nothing() {
    let mut selector = build(SelectorKind::Prioritized { exponent: 100.0 });
    (0..100).for_each(|slot| insert(selector.as_mut(), slot, f64::MAX));
    insert(selector.as_mut(), 100, 5e-324);
    let mut draws = Vec::new();
    selector.pick(1000, &mut Rng::new(1), &mut draws);
    assert_eq!(draws.len(), 1000);
    assert!(draws.iter().all(|pick| pick.slot < 100 && (pick.probability - 0.01).abs() < 1e-15));
    (0..100).for_each(|slot| selector.remove(slot));
    assert_eq!(picked(selector.as_mut(), 1), [100]);
}

#[test]
fn parameters_out_of_range_are_refused_with_their_name() {
    for bad in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let exponent = SelectorKind::Prioritized { exponent: bad };
        let both = SelectorKind::HotCold { age_threshold: 1, hot_fraction: 0.5, exponent: bad };
        let share = SelectorKind::HotCold { age_threshold: 1, hot_fraction: bad, exponent: 0.5 };
        for (kind, name) in [(exponent, "exponent"), (both, "exponent"), (share, "hot_fraction")] {
            let message = kind.build().expect_err("it is out of range").to_string();
            assert!(message.starts_with(name), "{message}");
            assert!(SelectorKind::from_words(kind.to_words()).is_err());
        }
    }
    let share = SelectorKind::HotCold { age_threshold: 1, hot_fraction: 1.1, exponent: 0.5 };
    let message = share.build().expect_err("it is above 1").to_string();
    assert_eq!(message, "hot_fraction of a hot_cold selector must be from 0 to 1, got 1.1");
}

#[test]
fn only_kinds_without_chance_take_no_random_numbers() {
    for kind in KINDS {
        let mut selector = build(kind);
        (0..3).for_each(|slot| insert(selector.as_mut(), slot, 1.0));
        let mut rng = Rng::new(1);
        selector.pick(5, &mut rng, &mut Vec::new());
        assert_eq!(rng == Rng::new(1), kind.is_deterministic(), "{kind}");
    }
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "a slot was inserted twice")]
fn a_second_insert_of_a_slot_panics_in_debug_builds() {
    let mut selector = build(SelectorKind::Uniform);
    (0..2).for_each(|_| insert(selector.as_mut(), 1, 1.0));
}

/// Debug builds panic there instead.
#[cfg(not(debug_assertions))]
#[test]
fn calls_that_make_no_sense_change_nothing() {
    for kind in KINDS {
        let mut selector = build(kind);
        selector.remove(3);
        selector.update_many(&[(3, 2.0)]);
        insert(selector.as_mut(), 1, 1.0);
        insert(selector.as_mut(), 1, 5.0);
        selector.update(2, 5.0);
        selector.remove(2);
        assert_eq!((selector.len(), picked(selector.as_mut(), 2)), (1, vec![1, 1]), "{kind}");
        selector.remove(1);
        assert!(selector.is_empty(), "{kind}");
    }
}

#[test]
fn the_total_weight_is_the_sum_of_powers_or_the_number_of_items() {
    for kind in KINDS {
        let mut selector = build(kind);
        assert_eq!(selector.total_weight(), 0.0, "{kind}");
        [4.0, 0.0, 9.0]
            .into_iter()
            .zip(0..)
            .for_each(|(p, slot)| insert(selector.as_mut(), slot, p));
        selector.update(0, 16.0);
        let power = |exponent: f64| 16f64.powf(exponent) + 9f64.powf(exponent);
        let expected = match kind {
            SelectorKind::Prioritized { exponent } => power(exponent),
            _ => 3.0,
        };
        assert!((selector.total_weight() - expected).abs() < 1e-12, "{kind}");
        selector.update_many(&[(0, 0.0), (2, 0.0)]);
        let none = matches!(kind, SelectorKind::Prioritized { .. });
        assert_eq!(selector.total_weight(), if none { 0.0 } else { 3.0 }, "{kind}");
        (0..3).for_each(|slot| selector.remove(slot));
        assert_eq!(selector.total_weight(), 0.0, "{kind}");
    }
}
