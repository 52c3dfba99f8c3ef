//! Reservations: when producers may make groups.

use echoic_replay::WaitReason;
use echoic_replay::limiter::Parameters;
use echoic_replay::rollouts::ledger::{Blocked, Change, ChangeError, MAX_VERSION, Reserve};
use echoic_replay::rollouts::table::Side;
use echoic_replay::rollouts::{ConfigError, OnExpiry, Order, RolloutConfig, RolloutTable};

use crate::table::{TTL, Table, blocked, config, part, reserve, unpaced, whole};

#[test]
fn as_many_are_reserved_as_may_run() {
    let mut table = Table::new(RolloutConfig { max_running: 3, ..unpaced() });
    assert_eq!(table.reserve(5).expect("some").len(), 3);
    assert_eq!(blocked(table.reserve(1)), Blocked::Running(3));
    assert_eq!(table.room(), 0);
}

#[test]
fn accepted_groups_count_though_they_were_used_up() {
    let mut table = Table::new(config());
    for _ in 0..4 {
        table.group(0);
    }
    let share = table.take(2).expect("a batch");
    table.ack(share.lease);
    assert_eq!(table.room(), 0);
    table.publish(1);
    assert_eq!(table.room(), 2);
}

#[test]
fn as_many_are_reserved_as_there_is_room_for() {
    let mut table = Table::new(RolloutConfig { capacity: 5, ..unpaced() });
    table.group(0);
    assert_eq!(table.reserve(100).expect("some").len(), 4);
    assert_eq!(blocked(table.reserve(1)), Blocked::Full(5));
}

#[test]
fn groups_that_are_used_again_make_room_for_others() {
    let weighted = RolloutConfig { order: Order::Weighted, max_uses: 0, ..unpaced() };
    let mut table = Table::new(RolloutConfig { capacity: 3, ..weighted });
    let groups = [table.group(0), table.group(1), table.group(2), table.group(3)];
    assert_eq!(table.ledger.counts().retired, 1);
    let mut drawn = table.taken(3);
    drawn.sort_unstable();
    assert_eq!(drawn, groups[1..], "the oldest went");
    assert_eq!(blocked(table.reserve(1)), Blocked::Full(3), "all are with consumers");
}

#[test]
fn a_batch_is_not_replaced_before_it_was_of_use() {
    let weighted = RolloutConfig { order: Order::Weighted, max_uses: 0, ..unpaced() };
    let mut table = Table::new(RolloutConfig { capacity: 2, ..weighted });
    table.group(0);
    table.group(0);
    assert_eq!(blocked(table.reserve(1)), Blocked::Full(2));
    let share = table.take(2).expect("a batch");
    table.ack(share.lease);
    assert_eq!(table.room(), 2);
}

#[test]
fn a_pipeline_depth_paces_below_the_bound() {
    let shallow = RolloutConfig { max_lag: Some(3), pipeline_depth: Some(1), ..config() };
    let mut table = Table::new(shallow);
    assert_eq!(table.room(), 4);
    table.apply(Change::Deepen { depth: 2 }).expect("below the bound");
    assert_eq!(table.room(), 6);
    let refused = table.apply(Change::Deepen { depth: 4 });
    assert!(
        matches!(refused, Err(ChangeError::Value { ref what, .. }) if what == "pipeline_depth")
    );
}

#[test]
fn nothing_is_reserved_that_would_be_too_old_for_the_next_batch() {
    let mut table = Table::new(config());
    // Of what a version uses up half is taken, so as much is made ahead.
    for version in 0..4 {
        for _ in 0..table.room() {
            table.group(version);
        }
        table.taken(1);
        table.publish(version + 1);
    }
    for _ in 0..4 {
        table.group(4);
    }
    // As many as two versions use up: what is made at version 4 now would be dropped.
    table.taken(4);
    assert_eq!(blocked(table.reserve(1)), Blocked::Early { version: 4, target: 6 });
    table.publish(5);
    assert!(table.room() > 0);
}

#[test]
fn restored_groups_count_as_made_for_later_versions() {
    let mut table = Table::new(config());
    for version in 0..3 {
        for _ in 0..if version == 0 { 4 } else { 2 } {
            table.group(version);
        }
        let share = table.take(2).expect("a batch");
        table.ack(share.lease);
        table.publish(version + 1);
    }
    // At 3 there are 2 unconsumed, 6 used up.
    assert_eq!((table.queued(), table.room()), (2, 2));
    table.apply(Change::Restore { version: 3 }).expect("restores");
    assert_eq!(table.room(), 2, "(1 + 3 + 1)·2 − (3·2 + 2)");
    table.apply(Change::Restore { version: 1 }).expect("restores");
    assert_eq!(table.room(), 2, "(1 + 1 + 1)·2 − (1·2 + 2)");
    table.apply(Change::Restore { version: 3 }).expect("restores");
    assert_eq!(table.room(), 2);
}

#[test]
fn restored_groups_that_were_of_use_are_among_those_used_up() {
    let weighted = RolloutConfig { order: Order::Weighted, max_uses: 0, ..config() };
    let mut table = Table::new(weighted);
    table.group(0);
    table.group(0);
    let share = table.take(2).expect("a batch");
    table.ack(share.lease);
    table.publish(1);
    assert_eq!(table.room(), 4);
    table.apply(Change::Restore { version: 1 }).expect("restores");
    assert_eq!(table.room(), 4);
}

#[test]
fn a_reservation_stands_while_its_producer_lives() {
    let mut table = Table::new(config());
    let hold = table.open();
    for _ in 0..5 {
        table.pass(TTL - 1);
        table.apply(Change::Renew { holds: vec![hold] }).expect("renews");
    }
    table.pass(TTL - 1);
    assert_eq!(table.ledger.counts().running, 1);
    table.pass(1);
    assert_eq!(table.ledger.counts().running, 0);
}

#[test]
fn tokens_are_a_sign_of_life() {
    let mut table = Table::new(config());
    let hold = table.open();
    table.pass(TTL - 1);
    table.append(part(hold, 0, 0, 0));
    table.pass(TTL - 1);
    assert_eq!(table.ledger.counts().running, 1);
}

#[test]
fn a_producer_is_counted_under_its_name() {
    let mut table = Table::new(RolloutConfig { on_expiry: OnExpiry::Suspend, ..config() });
    let reserve = Reserve { count: 2, source: "a".into(), ..Reserve::default() };
    let reservations = table.reserve_as(reserve).expect("room");
    table.append(whole(reservations[0].hold, 0, 0, 5));
    table.pass(TTL);
    let resume = Change::Resume { source: "b".into(), ttl_ms: None };
    table.apply(resume).expect("one was left");
    table.taken(1);
    let sources = table.ledger.sources();
    let told: Vec<_> = sources
        .iter()
        .map(|one| (one.name.as_str(), one.submitted, one.accepted, one.running, one.tokens))
        .collect();
    assert_eq!(told, [("a", 1, 1, 0, 5), ("b", 1, 0, 1, 0)]);
    let told = |source: usize| (sources[source].delivered, sources[source].last_reserved);
    assert_eq!((told(0), told(1)), ((1, Some(0)), (0, Some(TTL))));
}

#[test]
fn a_source_that_waits_is_told_of_with_what_others_got_meanwhile() {
    let table = RolloutTable::new(config()).expect("a table");
    assert_eq!(table.info().hunger, []);
    let waiting = table.begin_wait(Side::Producers, Some("hungry"), WaitReason::Capacity);
    table.apply(&reserve(1)).expect("room");
    let hunger = table.info().hunger;
    let told: Vec<_> = hunger.iter().map(|one| (&*one.source, one.waiting, one.passed)).collect();
    assert_eq!(told, [("hungry", 1, 1)]);
    assert!(!hunger[0].is_starving, "it has not waited for long");
    drop(waiting);
    let hunger = table.info().hunger;
    assert_eq!((hunger[0].waiting, hunger[0].passed, hunger[0].oldest_ms), (0, 0, 0));
}

#[test]
fn a_ratio_holds_producers_back() {
    let limiter = Parameters { min_size: 1, samples_per_insert: 1.0, min_diff: 0.0, max_diff: 3.0 };
    let mut table = Table::new(RolloutConfig { limiter: Some(limiter), ..unpaced() });
    assert_eq!(table.reserve(10).expect("some").len(), 3);
    assert_eq!(blocked(table.reserve(1)), Blocked::Limiter(WaitReason::Ratio));
}

#[test]
fn a_limiter_that_lets_no_batch_go_is_refused() {
    let with = |min_size, max_diff| {
        let limiter = Parameters { min_size, samples_per_insert: 1.0, min_diff: 0.0, max_diff };
        RolloutConfig { limiter: Some(limiter), ..config() }.check()
    };
    assert!(matches!(with(1, 1.0), Err(ConfigError::Limiter(_))), "batches of 2 from 1");
    assert!(matches!(with(5, 100.0), Err(ConfigError::Together(_))), "4 are ever reserved");
    assert!(with(4, 100.0).is_ok());
}

#[test]
fn versions_that_can_not_be_counted_with_are_refused() {
    let mut table = Table::new(config());
    for version in [-1, MAX_VERSION + 1, i64::MAX] {
        let refused = |result| matches!(result, Err(ChangeError::Value { .. }));
        assert!(refused(table.apply(Change::Publish { version })));
        assert!(refused(table.apply(Change::Restore { version })));
        let reserve = Reserve { count: 1, version: Some(version), ..Reserve::default() };
        assert!(refused(table.apply(Change::Reserve(reserve))));
        let hold = table.open();
        assert!(refused(table.apply(Change::Append(whole(hold, 0, version, 1)))));
        table.apply(Change::Fail { holds: vec![hold] }).expect("fails");
    }
    table.apply(Change::Restore { version: MAX_VERSION }).expect("the last one");
    assert_eq!(table.room(), 4);
}
