//! Which groups make a batch: order, age, size, weight.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Wake, Waker};

use echoic_replay::WaitReason;
use echoic_replay::limiter::Parameters;
use echoic_replay::rollouts::ledger::{Balance, Blocked, Change, Outcome, Reserve, Size, Want};
use echoic_replay::rollouts::table::Side;
use echoic_replay::rollouts::{OnStale, Order, RolloutConfig, RolloutTable};

use crate::table::{Table, blocked, config, groups, ids, lags, unpaced, whole};

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Groups of versions 2, 0, 1 that are complete in the order 1, 2, 0.
#[test]
fn each_order_takes_what_it_says() {
    for (order, expected) in [
        (Order::Ready, [1, 2, 0]),
        (Order::Submission, [0, 1, 2]),
        (Order::Freshest, [0, 2, 1]),
        (Order::Oldest, [1, 2, 0]),
    ] {
        let mut table = Table::new(RolloutConfig { order, max_lag: Some(9), ..config() });
        let holds = [table.open(), table.open(), table.open()];
        for (at, version) in [(1, 0), (2, 1), (0, 2)] {
            table.complete(holds[at], version);
        }
        assert_eq!(table.taken(3), expected, "{order:?}");
    }
}

#[test]
fn a_window_passes_over_fewer_than_its_width() {
    let mut table =
        Table::new(RolloutConfig { order: Order::Window(3), max_lag: Some(9), ..config() });
    let open = [table.open(), table.open()];
    let third = table.group(0);
    let late = table.open();
    let beyond = table.group(0);
    assert_eq!(table.taken(1), [third]);
    // Three that were reserved before are not complete.
    assert_eq!(blocked(table.take(1)), Blocked::Incomplete(open[0].group));
    table.complete(late, 0);
    assert_eq!(table.taken(2), [late.group, beyond]);
}

#[test]
fn each_batch_is_a_step_of_the_learner() {
    let mut table = Table::new(RolloutConfig { max_lag: Some(2), ..config() });
    for _ in 0..6 {
        table.group(0);
    }
    let targets: Vec<_> = (0..3).map(|_| table.take(2).expect("a batch").target).collect();
    assert_eq!(targets, [0, 1, 2]);
    table.publish(1);
    assert_eq!(table.ledger.totals().target, 3, "what 1 and 2 use up is taken");
    table.publish(7);
    assert_eq!(table.ledger.totals().target, 7);
}

#[test]
fn as_many_batches_as_told_make_a_version() {
    let two = RolloutConfig { batches_per_version: 2, batch_groups: 1, ..config() };
    let mut table = Table::new(two);
    for _ in 0..4 {
        table.group(0);
    }
    let targets: Vec<_> = (0..4).map(|_| table.take(1).expect("a batch").target).collect();
    assert_eq!(targets, [0, 0, 1, 1]);
}

#[test]
fn keep_delivers_and_counts_what_is_too_old() {
    let mut table = Table::new(RolloutConfig { on_stale: OnStale::Keep, ..config() });
    for version in [0, 0] {
        table.group(version);
    }
    table.publish(5);
    let share = table.take(2).expect("a batch");
    assert_eq!(lags(&share), [5, 5]);
    let counts = table.ledger.counts();
    assert_eq!((counts.overdue, counts.stale, counts.masked_tokens), (2, 0, 0));
}

#[test]
fn wait_holds_a_batch_for_what_would_become_too_old() {
    let patient = RolloutConfig { on_stale: OnStale::Wait, order: Order::Ready, ..config() };
    let mut table = Table::new(patient);
    let old = table.open();
    table.publish(1);
    for _ in 0..3 {
        table.group(1);
    }
    // At 1, the group of version 0 can only be in this batch: it has a place left for another one.
    assert_eq!(blocked(table.take(2)), Blocked::Incomplete(old.group));
    table.complete(old, 0);
    // Ready-first, and yet the last place is kept for it.
    assert_eq!(table.taken(2), [1, old.group]);
}

#[test]
fn wait_does_not_hold_for_what_its_producer_left() {
    let patient = RolloutConfig { on_stale: OnStale::Wait, ..config() };
    let mut table = Table::new(patient);
    let old = table.open();
    table.publish(1);
    table.group(1);
    table.group(1);
    assert!(table.take(2).is_err());
    table.apply(Change::Suspend { holds: vec![old] }).expect("suspends");
    assert_eq!(table.taken(2), [1, 2]);
}

#[test]
fn a_bound_on_the_mean_passes_over_what_is_too_old_for_it() {
    let young = RolloutConfig { max_mean_lag: Some(1.0), max_lag: Some(9), ..config() };
    let mut table = Table::new(young);
    // Lags of 4, 1, 3, 2, 0 at version 4.
    for version in [0, 3, 1, 2, 4] {
        table.group(version);
    }
    table.publish(4);
    let share = table.take(2).expect("a batch");
    assert_eq!(lags(&share), [1, 0], "4 + 0 is more than 2, and 1 + 1 is not there");
    assert_eq!(blocked(table.take(2)), Blocked::MeanLag);
}

#[test]
fn a_bound_on_the_mean_takes_old_ones_as_far_as_young_ones_make_up_for_them() {
    let young = RolloutConfig { max_mean_lag: Some(1.0), max_lag: Some(9), ..config() };
    let mut table = Table::new(young);
    for version in [2, 3, 4] {
        table.group(version);
    }
    table.publish(4);
    assert_eq!(lags(&table.take(2).expect("a batch")), [2, 0]);
}

#[test]
fn what_keeps_a_batch_from_being_young_goes_when_nothing_else_can_be_made() {
    let young = RolloutConfig { max_mean_lag: Some(0.0), capacity: 4, ..config() };
    let mut table = Table::new(young);
    for _ in 0..4 {
        table.group(0);
    }
    table.publish(1);
    let left = |table: &mut Table| {
        assert_eq!(blocked(table.take(2)), Blocked::MeanLag);
        table.queued()
    };
    assert_eq!(left(&mut table), 3, "the table was full");
    assert_eq!(left(&mut table), 3, "now another one can be made");
    let hold = table.open();
    assert_eq!(left(&mut table), 3, "it is made");
    table.complete(hold, 1);
    assert_eq!(left(&mut table), 3, "it was full again, of four");
    table.group(1);
    assert_eq!(lags(&table.take(2).expect("a batch")), [0, 0]);
}

#[test]
fn whoever_waits_for_room_hears_that_some_was_made_for_younger_groups() {
    let young = RolloutConfig { max_mean_lag: Some(0.0), capacity: 4, ..config() };
    let table = RolloutTable::new(young).expect("a table");
    let reserve = |count| Change::Reserve(Reserve { count, ..Reserve::default() });
    let Ok(Outcome::Reserved(reservations)) = table.apply(&reserve(4)) else { panic!("no room") };
    for reservation in reservations {
        table.apply(&Change::Append(whole(reservation.hold, 0, 0, 1))).expect("taken");
    }
    table.apply(&Change::Publish { version: 1 }).expect("a later version");
    assert!(table.apply(&reserve(1)).is_err(), "the table is full");
    let woken = Arc::new(Woken::default());
    table.wake_later(Side::Producers, &Waker::from(Arc::clone(&woken)));
    assert!(table.apply(&Change::Sample(groups(2))).is_err(), "all are too old");
    assert!(woken.0.load(Relaxed), "one of them went");
    table.apply(&reserve(1)).expect("its place");
}

#[test]
fn nothing_is_shed_when_what_is_made_now_would_be_no_younger() {
    let young = RolloutConfig { max_mean_lag: Some(0.0), ..config() };
    let mut table = Table::new(young);
    for _ in 0..4 {
        table.group(0);
    }
    table.taken(2);
    // The next batch updates 1, and the learner is at 0.
    assert_eq!(blocked(table.take(2)), Blocked::MeanLag);
    assert_eq!(table.queued(), 2);
}

fn tokens(budget: u64, ranks: u32, rank: u32) -> Want {
    Want { size: Size::Tokens(budget), rank, ranks, balance: Balance::Tokens, ..groups(0) }
}

fn of_lengths(order: Order, lengths: &[u32]) -> Table {
    let mut table = Table::new(RolloutConfig { order, batch_groups: 8, ..unpaced() });
    for length in lengths {
        let hold = table.open();
        table.append(whole(hold, 0, 0, *length));
    }
    table
}

#[test]
fn a_token_budget_takes_as_many_groups_as_fit() {
    let mut table = of_lengths(Order::Ready, &[40, 50, 30, 10]);
    let share = table.sample(tokens(100, 1, 0)).expect("a batch");
    assert_eq!(ids(&share), [0, 1]);
    let waits = table.sample(tokens(100, 1, 0));
    assert_eq!(blocked(waits), Blocked::TooFew { complete: 2, wanted: 8 }, "there may be more");
}

#[test]
fn a_token_budget_takes_no_more_groups_than_a_batch_has() {
    let mut table = of_lengths(Order::Ready, &[1; 9]);
    assert_eq!(table.sample(tokens(100, 1, 0)).expect("a batch").groups.len(), 8);
}

#[test]
fn a_token_budget_is_that_of_each_rank() {
    let mut table = of_lengths(Order::Ready, &[70, 60, 50, 40]);
    let of = |table: &mut Table, rank| {
        let share = table.sample(tokens(100, 2, rank)).expect("a share");
        share.groups.iter().map(|group| group.tokens).collect::<Vec<_>>()
    };
    // 70 + 60 + 50 is below 200, but not on two ranks.
    let (one, other) = (of(&mut table, 0), of(&mut table, 1));
    assert_eq!((one, other), (vec![70], vec![60]));
}

#[test]
fn a_token_budget_works_with_weights() {
    let mut table = of_lengths(Order::Weighted, &[40, 50, 30, 10]);
    let share = table.sample(tokens(100, 1, 0)).expect("a batch");
    let sum: u64 = share.groups.iter().map(|group| group.tokens).sum();
    assert!(sum <= 100 && share.groups.len() >= 2, "{sum}");
}

#[test]
fn a_token_budget_keeps_to_the_bound_on_the_mean() {
    let young =
        RolloutConfig { max_mean_lag: Some(1.0), max_lag: Some(9), batch_groups: 8, ..config() };
    let mut table = Table::new(RolloutConfig { capacity: 1000, ..young });
    for version in [0, 0, 3, 4, 4] {
        let hold = table.open();
        table.append(whole(hold, 0, version, 40));
    }
    table.publish(4);
    let share = table.sample(tokens(100, 1, 0)).expect("a batch");
    assert_eq!(lags(&share), [0, 0]);
    let share = table.sample(tokens(100, 1, 0)).expect("a batch");
    assert_eq!(lags(&share), [1]);
    assert!(table.sample(tokens(100, 1, 0)).is_err());
}

#[test]
fn weights_are_priorities_over_lag_plus_one() {
    let replay = RolloutConfig {
        order: Order::Weighted,
        max_uses: 0,
        batch_groups: 1,
        max_lag: Some(50),
        ..config()
    };
    let mut table = Table::new(replay);
    let mut expected = HashMap::new();
    for (version, priority) in [(0, 1.0), (0, 3.0), (2, 1.0), (3, 1.0), (3, 0.5), (4, 2.0)] {
        let hold = table.open();
        let mut append = whole(hold, 0, version, 1);
        append.priority = priority;
        table.append(append);
        expected.insert(hold.group, priority / (4 - version + 1) as f64);
    }
    table.publish(4);
    let total: f64 = expected.values().sum();
    let draws = 20_000;
    let mut drawn: HashMap<u64, u32> = HashMap::new();
    for _ in 0..draws {
        // Given back at once: the next draw is for the same version.
        let share = table.take(1).expect("a batch");
        *drawn.entry(share.groups[0].id).or_default() += 1;
        table.apply(Change::Restore { version: 4 }).expect("restores");
    }
    let chi: f64 = expected
        .iter()
        .map(|(id, weight)| {
            let expected = weight / total * f64::from(draws);
            (f64::from(*drawn.get(id).unwrap_or(&0)) - expected).powi(2) / expected
        })
        .sum();
    // Of five degrees of freedom, one in a thousand is above 20.5.
    assert!(chi < 20.5, "{chi}: {drawn:?}");
}

#[test]
fn a_group_that_was_of_use_is_retired_and_not_made_again() {
    let replay = RolloutConfig { order: Order::Weighted, max_uses: 0, ..config() };
    let mut table = Table::new(replay);
    table.group(0);
    table.group(0);
    let share = table.take(1).expect("a batch");
    table.ack(share.lease);
    table.publish(2);
    let counts = table.ledger.counts();
    assert_eq!((counts.retired, counts.stale), (1, 1));
    assert_eq!(table.room(), 7, "(1 + 2 + 1)·2 − 1");
}

#[test]
fn a_ratio_holds_consumers_back_until_groups_are_complete() {
    let limiter = Parameters { min_size: 3, samples_per_insert: 1.0, min_diff: 1.0, max_diff: 9.0 };
    let mut table = Table::new(RolloutConfig { limiter: Some(limiter), ..unpaced() });
    table.group(0);
    table.group(0);
    table.reserve(1).expect("room");
    assert_eq!(blocked(table.take(1)), Blocked::Limiter(WaitReason::MinSize), "two are complete");
    table.group(0);
    assert_eq!(blocked(table.take(3)), Blocked::Limiter(WaitReason::Ratio));
    assert_eq!(table.taken(2).len(), 2);
}

#[test]
fn a_group_that_comes_back_is_not_counted_twice_by_the_ratio() {
    let limiter = Parameters { min_size: 1, samples_per_insert: 1.0, min_diff: 0.0, max_diff: 2.0 };
    let narrow = RolloutConfig { limiter: Some(limiter), ..config() };
    let mut table = Table::new(narrow);
    let two = [table.group(0), table.group(0)];
    for version in 1..2 {
        let share = table.take(2).expect("a batch");
        table.publish(version);
        table.apply(Change::Nack(share.lease)).expect("given back");
    }
    assert_eq!(table.taken(2), two);
}

#[test]
fn who_wants_more_than_a_version_uses_up_is_told_which_version_brings_it() {
    let mut table = Table::new(config());
    for _ in 0..4 {
        table.group(0);
    }
    let share = table.take(4).expect("all that may be there");
    table.ack(share.lease);
    table.publish(1);
    for _ in 0..2 {
        table.group(1);
    }
    let found = blocked(table.take(4));
    let (there, wanted, per_version, version, needed) = (2, 4, 2, 1, 2);
    assert_eq!(found, Blocked::Unpublished { there, wanted, per_version, version, needed });
    assert_eq!(found.reason(), WaitReason::Staleness);
    table.publish(2);
    for _ in 0..2 {
        table.group(2);
    }
    assert_eq!(table.take(4).expect("a batch").groups.len(), 4);
}

#[test]
fn who_takes_less_than_a_version_uses_up_is_told_that_the_learner_is_behind() {
    let mut table = Table::new(RolloutConfig { max_lag: Some(0), ..config() });
    for _ in 0..2 {
        table.group(0);
    }
    // Halves of a batch, of which neither makes the other too old.
    for half in 0..2 {
        let share = table.take(1).expect("half a batch");
        assert_eq!((ids(&share), share.target), (vec![half], 0));
        table.ack(share.lease);
    }
    let found = blocked(table.take(1));
    let (there, wanted, per_version, version, needed) = (0, 1, 2, 0, 1);
    assert_eq!(found, Blocked::Unpublished { there, wanted, per_version, version, needed });
    table.publish(1);
    table.group(1);
    assert_eq!(table.taken(1).len(), 1);
}
