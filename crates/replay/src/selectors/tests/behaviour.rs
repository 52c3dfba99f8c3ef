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
fn equal_priorities_go_by_the_oldest_update() {
    for kind in [SelectorKind::MinHeap, SelectorKind::MaxHeap] {
        let mut selector = build(kind);
        (0..3).for_each(|slot| insert(selector.as_mut(), slot, 1.0));
        assert_eq!(picked(selector.as_mut(), 1), [0], "{kind}");
        selector.update(0, 1.0);
        assert_eq!(picked(selector.as_mut(), 1), [1], "{kind}");
        selector.update_many(&[(2, 1.0), (1, 1.0)]);
        assert_eq!(picked(selector.as_mut(), 1), [0], "{kind}");
    }
}

#[test]
fn a_negative_zero_is_a_zero() {
    for kind in [SelectorKind::MinHeap, SelectorKind::MaxHeap] {
        let mut selector = build(kind);
        insert(selector.as_mut(), 0, 0.0);
        insert(selector.as_mut(), 1, -0.0);
        insert(selector.as_mut(), 2, 0.0);
        assert_eq!(picked(selector.as_mut(), 1), [0], "{kind}");
        selector.remove(0);
        assert_eq!(picked(selector.as_mut(), 1), [1], "{kind}");
    }
}

#[test]
fn updates_do_not_change_an_order_of_arrival() {
    for (kind, expected) in [(SelectorKind::Fifo, 0), (SelectorKind::Lifo, 2)] {
        let mut selector = build(kind);
        (0..3).for_each(|slot| insert(selector.as_mut(), slot, 1.0));
        selector.update_many(&[(0, 9.0), (2, 0.0), (1, 5.0)]);
        assert_eq!(picked(selector.as_mut(), 2), [expected; 2], "{kind}");
    }
}

#[test]
fn an_epoch_has_every_item_once_and_takes_in_newcomers() {
    let mut selector = build(SelectorKind::Epoch);
    (0..10).for_each(|slot| insert(selector.as_mut(), slot, 1.0));
    let mut first = picked(selector.as_mut(), 6);
    insert(selector.as_mut(), 10, 1.0);
    let gone = first[0];
    selector.remove(gone);
    first.extend(picked(selector.as_mut(), 5));
    first.sort_unstable();
    assert_eq!(first, Vec::from_iter(0..=10));
    let mut second = picked(selector.as_mut(), 10);
    second.sort_unstable();
    assert_eq!(second, Vec::from_iter((0..=10).filter(|slot| *slot != gone)));
}

#[test]
fn an_item_of_priority_zero_is_never_picked_by_priority() {
    for exponent in [0.0, 0.6, 1.0] {
        let mut selector = build(SelectorKind::Prioritized { exponent });
        insert(selector.as_mut(), 0, 0.0);
        insert(selector.as_mut(), 1, 1e-300);
        insert(selector.as_mut(), 2, 0.0);
        assert_eq!(picked(selector.as_mut(), 300), [1; 300]);
        selector.remove(1);
        assert!(picked(selector.as_mut(), 300).contains(&0), "all are zero, so all are picked");
    }
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

fn hot_cold(hot_fraction: f64) -> Box<dyn Selector> {
    let kind = SelectorKind::HotCold { age_threshold: 10, hot_fraction, exponent: 1.0 };
    let mut selector = build(kind);
    selector.advance(100);
    for slot in 0..10 {
        selector.insert(slot, Entry { priority: 1.0, version: if slot < 5 { 90 } else { 89 } });
    }
    selector
}

fn hot_among(slots: &[Slot]) -> usize {
    slots.iter().filter(|slot| **slot < 5).count()
}

#[test]
fn single_draws_keep_the_share_of_hot_items() {
    let mut selector = hot_cold(0.3);
    let singles: Vec<Slot> = (0..1000).flat_map(|_| picked(selector.as_mut(), 1)).collect();
    assert_eq!(hot_among(&singles), 300);
}

#[test]
fn a_first_batch_has_the_share_rounded_down() {
    for (count, fraction, hot) in [(32, 0.7, 22), (10, 0.0, 0), (10, 1.0, 10), (1, 0.99, 0)] {
        assert_eq!(hot_among(&picked(hot_cold(fraction).as_mut(), count)), hot);
    }
}

#[test]
fn an_empty_stratum_leaves_everything_to_the_other() {
    let mut selector = hot_cold(0.5);
    selector.advance(101);
    assert_eq!(picked(selector.as_mut(), 10).len(), 10, "all are cold");
    (0..5).for_each(|slot| selector.remove(slot));
    selector.insert(0, Entry { priority: 1.0, version: 200 });
    assert_eq!(
        hot_among(&picked(selector.as_mut(), 10)),
        5,
        "one is hot, though it is from the future"
    );
    (5..10).for_each(|slot| selector.remove(slot));
    assert_eq!(picked(selector.as_mut(), 10), [0; 10]);
}

#[test]
fn nothing_is_picked_from_nothing() {
    for kind in KINDS {
        let mut selector = build(kind);
        assert!(picked(selector.as_mut(), 3).is_empty(), "{kind}");
        insert(selector.as_mut(), 7, 1.0);
        assert_eq!(picked(selector.as_mut(), 3), [7; 3], "{kind}");
        selector.clear();
        assert!(picked(selector.as_mut(), 3).is_empty(), "{kind}");
    }
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
