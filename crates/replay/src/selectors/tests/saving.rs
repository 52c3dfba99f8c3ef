//! Saved and restored, a selector goes on as if nothing had happened; a damaged state is refused.

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

proptest! {
    #[test]
    fn a_restored_selector_goes_on_bit_by_bit(
        kind in a_kind(), before in steps(), after in steps(), seed: u64
    ) {
        let (mut selector, mut model, mut rng) = (build(kind), Model::new(kind), Rng::new(seed));
        for step in &before {
            take(step, selector.as_mut(), &mut model, &mut rng);
        }
        let mut state = Vec::new();
        selector.save(&mut state);
        // In an order of their own: a table keeps its items as it likes.
        let mut entries = model.entries();
        entries.sort_unstable_by_key(|(slot, _)| slot.wrapping_mul(0x9e37_79b9));
        let mut restored = build(kind);
        restored.restore(&state, &entries).expect("nothing was damaged");
        prop_assert_eq!(restored.len(), entries.len());

        let mut copy = rng.clone();
        let mut other = Model::new(kind);
        entries.iter().for_each(|(slot, entry)| other.insert(*slot, *entry));
        for step in &after {
            let expected = take(step, selector.as_mut(), &mut model, &mut rng);
            prop_assert_eq!(take(step, restored.as_mut(), &mut other, &mut copy), expected);
        }
        let (mut last, mut expected) = (Vec::new(), Vec::new());
        restored.save(&mut last);
        selector.save(&mut expected);
        prop_assert_eq!(last, expected);
    }

    #[test]
    fn a_damaged_state_is_refused_or_makes_a_working_selector(
        kind in a_kind(),
        before in steps(),
        at: prop::sample::Index,
        bits: u64,
        cut: bool,
        seed: u64,
    ) {
        let (mut selector, mut model, mut rng) = (build(kind), Model::new(kind), Rng::new(seed));
        for step in &before {
            take(step, selector.as_mut(), &mut model, &mut rng);
        }
        let mut state = Vec::new();
        selector.save(&mut state);
        if cut {
            state.truncate(at.index(state.len() + 1));
            state.extend((bits % 3 == 0).then_some(bits));
        } else if !state.is_empty() {
            let word = at.index(state.len());
            state[word] ^= bits;
        }
        let entries = model.entries();
        let mut restored = build(kind);
        if restored.restore(&state, &entries).is_ok() {
            prop_assert_eq!(restored.len(), entries.len());
            let mut draws = Vec::new();
            restored.pick(50, &mut rng, &mut draws);
            prop_assert!(draws.iter().all(|pick| model.has(pick.slot)));
            restored.advance(u64::MAX);
            entries.iter().for_each(|(slot, _)| restored.remove(*slot));
            prop_assert!(restored.is_empty());
        }
    }

    #[test]
    fn words_from_anywhere_are_refused_or_make_a_kind(
        tag in 0u64..10, words: [u64; 3], zeros: [bool; 3]
    ) {
        let part = |at: usize| if zeros[at] { 0 } else { words[at] };
        let words = [tag, part(0), part(1), part(2)];
        if let Ok(kind) = SelectorKind::from_words(words) {
            prop_assert_eq!(kind.to_words(), words);
            prop_assert!(kind.build().is_ok());
        }
    }
}

fn entry(priority: f64) -> Entry {
    Entry { priority, version: 0 }
}

/// A state with the given items, and the words that it makes.
fn saved(kind: SelectorKind, slots: &[Slot]) -> Vec<u64> {
    let mut selector = build(kind);
    slots.iter().for_each(|slot| selector.insert(*slot, entry(1.0)));
    let mut state = Vec::new();
    selector.save(&mut state);
    state
}

#[test]
fn an_order_of_other_items_is_refused() {
    let entries: Vec<(Slot, Entry)> = [1, 2, 3].map(|slot| (slot, entry(1.0))).to_vec();
    for kind in KINDS {
        let mut selector = build(kind);
        assert!(selector.restore(&saved(kind, &[3, 1, 2]), &entries).is_ok(), "{kind}");
        if saved(kind, &[1, 2]) == saved(kind, &[1, 3]) {
            continue; // Nothing of the items is in the state.
        }
        for other in [&[1, 2][..], &[1, 2, 4], &[1, 2, 3, 4], &[]] {
            let error = build(kind).restore(&saved(kind, other), &entries);
            assert_eq!(error, Err(Damaged(kind.name())), "{other:?}");
        }
    }
}

#[test]
fn an_order_that_nobody_wrote_is_refused() {
    let entries: Vec<(Slot, Entry)> = [1, 2, 3].map(|slot| (slot, entry(1.0))).to_vec();
    let restored = build(SelectorKind::Uniform).restore(&[3 | 1 << 32, 2], &entries);
    assert_eq!(restored, Err(Damaged("uniform")), "a uniform selector needs none");
}

#[test]
fn a_slot_that_comes_twice_is_refused() {
    let twice = vec![(1, entry(1.0)), (1, entry(2.0))];
    for kind in KINDS {
        // 1 and 1 in the order of slots, with what the kind writes before it.
        let mut state = saved(kind, &[1, 2]);
        if let Some(last) =
            state.last_mut().filter(|_| !matches!(kind, SelectorKind::HotCold { .. }))
        {
            *last = 1 | 1 << 32;
        }
        assert_eq!(build(kind).restore(&state, &twice), Err(Damaged(kind.name())));
    }
}

#[test]
fn an_item_with_an_impossible_priority_is_refused() {
    for kind in KINDS {
        for priority in [-1.0, f64::NAN, f64::INFINITY] {
            let entries = vec![(1, entry(priority))];
            let error = build(kind).restore(&saved(kind, &[1]), &entries);
            assert_eq!(error, Err(Damaged(kind.name())), "{priority}");
        }
    }
}

#[test]
fn more_left_in_an_epoch_than_there_are_is_refused() {
    let mut state = saved(SelectorKind::Epoch, &[1, 2]);
    state[0] = 3;
    let entries = vec![(1, entry(1.0)), (2, entry(1.0))];
    let error = build(SelectorKind::Epoch).restore(&state, &entries);
    assert_eq!(error, Err(Damaged("epoch")));
}
