//! What every selector must do, whichever it is.

mod behaviour;
mod distribution;
mod model;
mod saving;

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;
use model::Model;

/// One call of a table.
#[derive(Debug, Clone)]
enum Step {
    Insert(Slot, Entry),
    Update(Vec<(Slot, f64)>),
    Remove(Slot),
    DrawnItem(usize),
    Advance(u64),
    Clear,
}

const KINDS: [SelectorKind; 13] = [
    SelectorKind::Uniform,
    SelectorKind::Prioritized { exponent: 0.0 },
    SelectorKind::Prioritized { exponent: 0.6 },
    SelectorKind::Prioritized { exponent: 1.0 },
    SelectorKind::Prioritized { exponent: 3.0 },
    SelectorKind::Fifo,
    SelectorKind::Lifo,
    SelectorKind::MinHeap,
    SelectorKind::MaxHeap,
    SelectorKind::Epoch,
    SelectorKind::HotCold { age_threshold: 3, hot_fraction: 0.0, exponent: 0.6 },
    SelectorKind::HotCold { age_threshold: 3, hot_fraction: 0.7, exponent: 0.6 },
    SelectorKind::HotCold { age_threshold: 3, hot_fraction: 1.0, exponent: 0.6 },
];

fn a_kind() -> impl Strategy<Value = SelectorKind> {
    prop::sample::select(&KINDS[..])
}

/// Few slots, so that they meet often; some far from the others.
fn a_slot() -> impl Strategy<Value = Slot> {
    prop_oneof![4 => 0u32..24, 1 => (0u32..6).prop_map(|slot| slot * 1000 + 999)]
}

/// Many ties, and what is hard to add up.
fn a_priority() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (0u32..4).prop_map(f64::from),
        4 => 0.0..10.0f64,
        1 => prop::sample::select(vec![-0.0, 5e-324, 1e-200, 1e200, f64::MAX]),
    ]
}

fn an_entry() -> impl Strategy<Value = Entry> {
    (a_priority(), 0u64..20).prop_map(|(priority, version)| Entry { priority, version })
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (a_slot(), an_entry()).prop_map(|(slot, entry)| Step::Insert(slot, entry)),
        4 => prop::collection::vec((a_slot(), a_priority()), 0..6).prop_map(Step::Update),
        4 => a_slot().prop_map(Step::Remove),
        8 => (0usize..40).prop_map(Step::DrawnItem),
        2 => (0u64..20).prop_map(Step::Advance),
        1 => Just(Step::Clear),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(a_step(), 0..120)
}

fn build(kind: SelectorKind) -> Box<dyn Selector> {
    kind.build().expect("the kind is valid")
}

/// Takes a step on both, as a table would: whatever is invalid is left out. Returns the draws.
fn take(
    step: &Step,
    selector: &mut dyn Selector,
    model: &mut Model,
    rng: &mut Rng,
) -> Vec<DrawnItem> {
    let mut draws = Vec::new();
    match step {
        Step::Insert(slot, entry) if model.has(*slot) => {
            selector.update(*slot, entry.priority);
            model.update(*slot, entry.priority);
        }
        Step::Insert(slot, entry) => {
            selector.insert(*slot, *entry);
            model.insert(*slot, *entry);
        }
        Step::Update(updates) => {
            let mut updates = updates.clone();
            updates.retain(|(slot, _)| model.has(*slot));
            selector.update_many(&updates);
            updates.iter().for_each(|(slot, priority)| model.update(*slot, *priority));
        }
        Step::Remove(slot) if model.has(*slot) => {
            selector.remove(*slot);
            model.remove(*slot);
        }
        Step::Remove(_) => {}
        Step::DrawnItem(count) => selector.pick(*count, rng, &mut draws),
        Step::Advance(version) => {
            selector.advance(*version);
            model.advance(*version);
        }
        Step::Clear => {
            selector.clear();
            model.clear();
        }
    }
    draws
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn picks_what_a_plain_list_allows_with_the_probability_it_says(
        kind in a_kind(), steps in steps(), seed: u64
    ) {
        let (mut selector, mut model, mut rng) = (build(kind), Model::new(kind), Rng::new(seed));
        for step in &steps {
            let draws = take(step, selector.as_mut(), &mut model, &mut rng);
            prop_assert_eq!(selector.len(), model.len());
            if let Step::DrawnItem(count) = step {
                model.check(*count, &draws);
            }
        }
    }

    /// Hot and cold is left out: there, a batch has shares.
    #[test]
    fn a_batch_is_like_single_draws(kind in a_kind(), steps in steps(), seed: u64) {
        prop_assume!(!matches!(kind, SelectorKind::HotCold { .. }));
        let (mut whole, mut model, mut rng) = (build(kind), Model::new(kind), Rng::new(seed));
        let (mut single, mut other, mut copy) = (build(kind), Model::new(kind), Rng::new(seed));
        for step in &steps {
            let draws = take(step, whole.as_mut(), &mut model, &mut rng);
            let each = if let Step::DrawnItem(count) = step { vec![Step::DrawnItem(1); *count] }
                else { vec![step.clone()] };
            let singles: Vec<DrawnItem> = each
                .iter()
                .flat_map(|step| take(step, single.as_mut(), &mut other, &mut copy))
                .collect();
            prop_assert_eq!(draws, singles);
        }
        prop_assert_eq!(rng, copy);
    }
}
