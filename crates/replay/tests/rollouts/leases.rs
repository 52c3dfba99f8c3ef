//! Batches that are out: leases, ranks, what comes back.

use std::collections::HashSet;

use echoic_replay::rollouts::ledger::{
    Balance, Blocked, Change, ChangeError, Lease, Outcome, Reserve, Share, Want,
};
use echoic_replay::rollouts::table::CallError;
use echoic_replay::rollouts::{Delivery, Order, RolloutConfig, RolloutTable};

use crate::table::{LEASE, Table, blocked, config, groups, ids, unpaced, whole};

fn rank(count: u32, rank: u32, ranks: u32) -> Want {
    Want { rank, ranks, ..groups(count) }
}

fn two() -> Table {
    let mut table = Table::new(config());
    table.group(0);
    table.group(0);
    table
}

fn fenced(result: Result<Outcome, ChangeError>) -> bool {
    matches!(result, Err(ChangeError::Fenced { .. }))
}

#[test]
fn a_share_that_does_not_fit_in_rows_changes_nothing() {
    for (delivery, order) in [
        (Delivery::AtLeastOnce, Order::Ready),
        (Delivery::AtMostOnce, Order::Ready),
        (Delivery::AtMostOnce, Order::Weighted),
    ] {
        let mut table = Table::new(RolloutConfig { delivery, order, ..config() });
        table.group(0);
        let hold = table.open();
        table.append(whole(hold, 0, 0, 9));
        let once = Want { lease_ms: None, ..groups(2) };
        for want in [once, groups(2)] {
            let before = (table.ledger.counts(), table.ledger.totals());
            let narrow = Change::Sample(Want { width: 8, ..want });
            let refused = table.ledger.apply(0, &narrow).unwrap_err().to_string();
            assert!(refused.ends_with("has 9 tokens, more than a row's 8"), "{refused}");
            assert_eq!((table.ledger.counts(), table.ledger.totals()), before);
        }
        let share = table.take(2).expect("a batch");
        if delivery == Delivery::AtLeastOnce {
            // It fits no better when it is delivered again.
            table.apply(Change::Nack(share.lease)).expect("the consumer's");
            let within = |width| Change::Sample(Want { width, ..once });
            assert!(table.ledger.apply(0, &within(8)).is_err());
            let again = table.ledger.apply(0, &within(9));
            assert!(matches!(again, Ok(Outcome::Delivered(_))), "{again:?}");
        }
    }
}

#[test]
fn without_a_lease_a_share_is_used_up_at_once() {
    let mut table = two();
    let share = table.sample(Want { lease_ms: None, ..groups(2) }).expect("a batch");
    assert_eq!(table.ledger.counts().acked, 2);
    assert!(fenced(table.apply(Change::Ack(share.lease))));
}

#[test]
fn a_lease_is_extended_from_now_on() {
    let mut table = two();
    let share = table.take(2).expect("a batch");
    table.pass(LEASE - 1);
    table.apply(Change::Extend { lease: share.lease, lease_ms: LEASE }).expect("extended");
    table.pass(LEASE - 1);
    assert_eq!(table.ledger.counts().expired_leases, 0);
    table.pass(1);
    assert_eq!(table.ledger.counts().expired_leases, 1);
}

#[test]
fn a_lease_of_a_batch_that_the_table_never_made_is_fenced() {
    let mut table = two();
    for batch in [0, 1, 99] {
        let lease = Lease { batch, rank: 0, attempt: 1 };
        let refused = table.apply(Change::Ack(lease));
        assert!(matches!(refused, Err(ChangeError::Fenced { lease: of, .. }) if of == lease));
    }
}

#[test]
fn at_most_once_delivers_nothing_again() {
    let once = RolloutConfig { delivery: Delivery::AtMostOnce, ..config() };
    let mut table = Table::new(once);
    for _ in 0..4 {
        table.group(0);
    }
    let given_back = table.take(2).expect("a batch");
    table.apply(Change::Nack(given_back.lease)).expect("given back");
    table.apply(Change::Restore { version: 0 }).expect("restores");
    let forgotten = table.take(2).expect("a batch");
    table.apply(Change::Restore { version: 0 }).expect("restores");
    assert_eq!(table.ledger.counts().lost, 4);
    assert!(table.take(1).is_err());
    assert!(HashSet::from([0, 1]) == HashSet::from_iter(ids(&given_back)));
    assert_eq!(ids(&forgotten), [2, 3]);
}

#[test]
fn what_made_the_version_of_a_restored_learner_is_used_up() {
    let mut table = Table::new(unpaced());
    for _ in 0..6 {
        table.group(0);
    }
    let learned = table.take(2).expect("a batch");
    table.publish(1);
    let (lost, back) = (table.take(2).expect("a batch"), table.take(1).expect("a batch"));
    assert_eq!((learned.target, lost.target), (0, 1));
    table.apply(Change::Nack(back.lease)).expect("given back");
    table.apply(Change::Restore { version: 1 }).expect("restores");
    let counts = table.ledger.counts();
    assert_eq!((counts.acked, counts.returned), (2, 3));
    for lease in [learned.lease, lost.lease] {
        let refused = table.apply(Change::Ack(lease));
        assert!(matches!(refused, Err(ChangeError::Fenced { .. })), "{refused:?}");
    }
    // What was delivered for version 2 is there again, before what never was.
    assert_eq!(table.ledger.totals().queued, 4);
    assert_eq!(ids(&table.take(2).expect("a batch")), ids(&lost));
    table.apply(Change::Restore { version: 0 }).expect("restores");
    assert_eq!((table.ledger.totals().queued, table.ledger.counts().acked), (4, 2));
}

#[test]
fn a_learner_that_lost_a_batch_gets_another_one_for_the_same_step() {
    let once = RolloutConfig { delivery: Delivery::AtMostOnce, max_lag: Some(0), ..config() };
    let mut table = Table::new(once);
    for _ in 0..3 {
        table.group(0);
        table.group(0);
        let share = table.take(2).expect("a batch");
        assert_eq!(share.target, 0);
        table.pass(LEASE);
        assert_eq!(table.room(), 2);
    }
}

#[test]
fn a_batch_of_which_a_rank_had_its_share_is_a_step() {
    let once = RolloutConfig { delivery: Delivery::AtMostOnce, ..config() };
    let mut table = Table::new(once);
    table.group(0);
    table.group(0);
    let share = table.sample(rank(2, 0, 2)).expect("a share");
    table.sample(rank(2, 1, 2)).expect("a share");
    table.ack(share.lease);
    table.pass(LEASE);
    assert_eq!((table.ledger.totals().target, table.room()), (1, 2));
}

#[test]
fn groups_are_queued_again_when_the_learner_has_gone_on() {
    let mut table = two();
    let share = table.take(2).expect("a batch");
    table.publish(1);
    assert_eq!(blocked(table.take(2)), Blocked::TooFew { complete: 0, wanted: 2 });
    table.pass(LEASE);
    let again = table.take(2).expect("another batch");
    assert_eq!((ids(&again), again.target), (ids(&share), 1));
    assert_eq!((again.lease.batch, again.lease.attempt), (2, 1));
    assert_eq!(table.ledger.counts().returned, 2);
}

#[test]
fn groups_that_come_back_too_old_are_dropped() {
    let mut table = two();
    let share = table.take(2).expect("a batch");
    table.publish(2);
    table.apply(Change::Nack(share.lease)).expect("given back");
    let counts = table.ledger.counts();
    assert_eq!((counts.stale, counts.filtered, counts.accepted), (2, 2, 0));
}

#[test]
fn a_share_that_waits_for_its_rank_ends_when_the_learner_has_gone_on() {
    let mut table = two();
    let share = table.sample(rank(2, 0, 2)).expect("a share");
    table.publish(1);
    assert_eq!(table.queued(), 1, "the other rank's");
    table.ack(share.lease);
}

#[test]
fn what_was_given_back_is_there_for_whoever_asks_for_another_size() {
    let table = RolloutTable::new(unpaced()).expect("a table");
    let reserve = Change::Reserve(Reserve { count: 2, ..Reserve::default() });
    let Ok(Outcome::Reserved(reservations)) = table.apply(&reserve) else { panic!("no room") };
    for reservation in reservations {
        table.apply(&Change::Append(whole(reservation.hold, 0, 0, 1))).expect("taken");
    }
    let want = |count| Want { lease_ms: Some(LEASE), ..groups(count) };
    let taken = |count| match table.apply(&Change::Sample(want(count))) {
        Ok(Outcome::Delivered(share)) => share,
        other => panic!("a share, got {other:?}"),
    };
    let first = taken(1);
    table.apply(&Change::Nack(first.lease)).expect("the consumer's");
    let both = taken(2);
    assert_eq!((both.groups.len(), both.groups[0].id, both.target), (2, first.groups[0].id, 0));
    table.apply(&Change::Nack(both.lease)).expect("the consumer's");
    let again = taken(2);
    assert_eq!((again.lease.batch, again.lease.attempt), (both.lease.batch, 2));
    // A part of it is with a consumer.
    let blocked = table.apply(&Change::Sample(want(1)));
    assert!(matches!(blocked, Err(CallError::Refused(ChangeError::Blocked(_)))), "{blocked:?}");
    table.apply(&Change::Ack(again.lease)).expect("still the consumer's");
}

fn shares(table: &mut Table, count: u32, ranks: u32, balance: Balance) -> Vec<Share> {
    let want = |at| Want { balance, ..rank(count, at, ranks) };
    (0..ranks).map(|at| table.sample(want(at)).expect("a share")).collect()
}

#[test]
fn balance_makes_the_sums_of_ranks_alike() {
    let of = |balance| {
        let mut table = Table::new(unpaced());
        for length in [90, 10, 80, 20, 70, 30, 60, 40] {
            let hold = table.open();
            table.append(whole(hold, 0, 0, length));
        }
        let shares = shares(&mut table, 8, 2, balance);
        let sum = |share: &Share| share.groups.iter().map(|group| group.tokens).sum::<u64>();
        let squares =
            |share: &Share| share.groups.iter().map(|group| group.tokens.pow(2)).sum::<u64>();
        (
            sum(&shares[0]).abs_diff(sum(&shares[1])),
            squares(&shares[0]).abs_diff(squares(&shares[1])),
        )
    };
    assert_eq!(of(Balance::Count).0, 200);
    assert_eq!(of(Balance::Tokens).0, 0);
    assert!(of(Balance::Squares).1 <= 2_000);
}

#[test]
fn a_rank_that_is_ahead_makes_batches_that_the_others_find() {
    let mut table = Table::new(unpaced());
    for _ in 0..8 {
        table.group(0);
    }
    let ahead: Vec<Share> = (0..2).map(|_| table.sample(rank(4, 0, 2)).expect("one")).collect();
    let behind: Vec<Share> = (0..2).map(|_| table.sample(rank(4, 1, 2)).expect("one")).collect();
    let batches = |shares: &[Share]| shares.iter().map(|one| one.lease.batch).collect::<Vec<_>>();
    assert_eq!((batches(&ahead), batches(&behind)), (vec![1, 2], vec![1, 2]));
}

#[test]
fn wants_that_make_no_sense_are_refused() {
    let mut table = two();
    let lease = |lease_ms| Want { lease_ms, ..groups(2) };
    let wrong = [
        groups(0),
        groups(5),
        rank(2, 0, 0),
        rank(2, 2, 2),
        rank(3, 0, 2),
        lease(Some(0)),
        lease(Some(u64::MAX)),
    ];
    for want in wrong {
        let refused = table.sample(want);
        assert!(matches!(refused, Err(ChangeError::Value { .. })), "{want:?}: {refused:?}");
    }
}
