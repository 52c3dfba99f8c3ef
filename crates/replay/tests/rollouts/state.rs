//! A ledger as bytes: it goes on as if nothing had happened, and bytes that lie are refused.

use std::sync::Arc;

use echoic_replay::codec::Encode;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::ledger::{Change, Ledger, StateError, Want};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::crowd::{Crowd, Step, any_table, steps};
use crate::table::{Table, unpaced};

fn bytes(ledger: &Ledger) -> (Vec<u8>, Vec<u8>) {
    let moment = ledger.save();
    let mut numbers = Vec::new();
    moment.encode(&mut numbers);
    (numbers, moment.bulk().flatten().copied().collect())
}

fn load(config: &Arc<RolloutConfig>, numbers: &[u8], bulk: &[u8]) -> Result<Ledger, StateError> {
    Ledger::load(Arc::clone(config), numbers, &mut &*bulk)
}

fn started(config: &Arc<RolloutConfig>, want: Want, steps: &[Step]) -> (Ledger, Crowd) {
    let (mut ledger, mut crowd) =
        (Ledger::new(Arc::clone(config)).unwrap(), Crowd::new(config, want));
    for step in steps {
        let (now, change) = crowd.change(*step);
        let applied = ledger.apply(now, &change);
        crowd.hear(&change, &applied);
    }
    (ledger, crowd)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_loaded_ledger_goes_on_as_the_one_that_was_saved(
        (config, want) in any_table(),
        before in steps(120),
        after in steps(120),
    ) {
        let config = Arc::new(config);
        let (mut ledger, mut crowd) = started(&config, want, &before);
        let (numbers, bulk) = bytes(&ledger);
        let mut loaded = load(&config, &numbers, &bulk).unwrap();
        prop_assert_eq!(bytes(&loaded), (numbers, bulk));
        for step in after {
            let (now, change) = crowd.change(step);
            prop_assert_eq!(loaded.next_due(), ledger.next_due());
            let applied = ledger.apply(now, &change);
            prop_assert_eq!(&loaded.apply(now, &change), &applied, "{:?}", change);
            prop_assert_eq!(loaded.counts(), ledger.counts());
            prop_assert_eq!(loaded.totals(), ledger.totals());
            prop_assert_eq!(loaded.recount(), Ok(()), "{:?}", change);
            crowd.hear(&change, &applied);
        }
        prop_assert_eq!(bytes(&loaded), bytes(&ledger));
    }

    #[test]
    fn bytes_that_lie_make_an_error_or_a_ledger_that_works(
        (config, want) in any_table(),
        before in steps(100),
        lies in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        after in steps(40),
    ) {
        let config = Arc::new(config);
        let (ledger, mut crowd) = started(&config, want, &before);
        let (mut numbers, bulk) = bytes(&ledger);
        for (at, byte) in lies {
            let at = at.index(numbers.len());
            numbers[at] = byte;
        }
        if let Ok(mut loaded) = load(&config, &numbers, &bulk) {
            prop_assert_eq!(&bytes(&loaded), &(numbers, bulk), "one state has one form");
            for step in after {
                let (now, change) = crowd.change(step);
                let applied = loaded.apply(now, &change);
                crowd.hear(&change, &applied);
            }
        }
    }

    #[test]
    fn bytes_that_are_cut_off_make_an_error(
        (config, want) in any_table(),
        before in steps(60),
        cut: prop::sample::Index,
    ) {
        let config = Arc::new(config);
        let (ledger, _) = started(&config, want, &before);
        let (numbers, bulk) = bytes(&ledger);
        prop_assert!(load(&config, &numbers[..cut.index(numbers.len())], &bulk).is_err());
        if !bulk.is_empty() {
            prop_assert!(load(&config, &numbers, &bulk[..cut.index(bulk.len())]).is_err());
        }
        let more = [&numbers[..], &[0]].concat();
        prop_assert!(load(&config, &more, &bulk).is_err());
    }
}

#[test]
fn a_ledger_is_loaded_though_a_batch_that_is_out_updates_a_later_version_than_the_next_one() {
    let mut table = Table::new(unpaced());
    (0..6).for_each(|_| _ = table.group(0));
    let (two_steps, next) = (table.take(4).unwrap(), table.take(2).unwrap());
    table.apply(Change::Nack(two_steps.lease)).unwrap();
    assert!(table.take(8).is_err(), "those that were given back are too few");
    assert!(next.target > table.ledger.totals().target, "the learner makes no step of the first");
    let (numbers, bulk) = bytes(&table.ledger);
    let loaded = load(&Arc::new(unpaced()), &numbers, &bulk).unwrap();
    assert_eq!(bytes(&loaded), (numbers, bulk));
}

#[test]
fn what_these_tests_do_gets_everywhere() {
    let (mut runner, case) = (TestRunner::deterministic(), (any_table(), steps(250)));
    let mut sums = std::collections::BTreeMap::<&str, u64>::new();
    for _ in 0..600 {
        let ((config, want), steps) = case.new_tree(&mut runner).unwrap().current();
        let (ledger, _) = started(&Arc::new(config), want, &steps);
        let (counts, totals) = (ledger.counts(), ledger.totals());
        for (name, count) in [
            ("accepted", counts.accepted),
            ("rejected", counts.rejected),
            ("filtered", counts.filtered),
            ("expired", counts.expired),
            ("short", counts.short),
            ("stale", counts.stale),
            ("delivered", counts.delivered),
            ("redelivered", counts.redelivered),
            ("acked", counts.acked),
            ("retired", counts.retired),
            ("lost", counts.lost),
            ("fenced", counts.fenced),
            ("duplicates", counts.duplicates),
            ("resumed", counts.resumed),
            ("queued", totals.queued),
            ("out", totals.out),
            ("suspended", totals.suspended),
        ] {
            *sums.entry(name).or_default() += count;
        }
        assert_eq!(
            counts.submitted,
            counts.running + counts.accepted + counts.rejected + counts.filtered
        );
    }
    assert!(sums.values().all(|sum| *sum > 3), "{sums:?}");
}
