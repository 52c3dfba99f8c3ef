//! Groups while they are made: items, deadlines, those that are left.

use std::sync::Arc;

use echoic_replay::codec::Encode;
use echoic_replay::rollouts::filter::Filter;
use echoic_replay::rollouts::item::{Item, Updates};
use echoic_replay::rollouts::ledger::{
    Append, Change, ChangeError, GroupStatus, Hold, Ledger, Outcome, Reservation, Update,
};
use echoic_replay::rollouts::{OnExpiry, OnStale, RolloutConfig};

use crate::table::{
    LATE, TTL, Table, config, finish, groups, part, segment, unmasked, unpaced, unrewarded, update,
    whole,
};

fn resume(table: &mut Table) -> (Reservation, Vec<Item>) {
    match table.apply(Change::Resume { source: "other".into(), ttl_ms: None }) {
        Ok(Outcome::Resumed(reservation, items)) => (reservation, items),
        other => panic!("resumed, got {other:?}"),
    }
}

fn suspend(table: &mut Table, hold: Hold) -> Outcome {
    table.apply(Change::Suspend { holds: vec![hold] }).expect("suspends")
}

#[test]
fn items_come_in_any_order() {
    let mut table = Table::new(RolloutConfig { group_size: 3, ..config() });
    let hold = table.open();
    assert_eq!(table.append(whole(hold, 2, 0, 3)), GroupStatus::Running);
    assert_eq!(table.append(whole(hold, 0, 0, 1)), GroupStatus::Running);
    assert_eq!(table.append(whole(hold, 1, 0, 2)), GroupStatus::Complete);
    let share = table.sample(groups(1)).expect("a batch");
    let lengths: Vec<_> =
        share.groups[0].items.iter().map(|one| (one.index, one.tokens())).collect();
    assert_eq!(lengths, [(0, 1), (1, 2), (2, 3)]);
}

#[test]
fn an_item_that_no_group_has_is_refused() {
    let mut table = Table::new(RolloutConfig { group_size: 2, redundancy: 1, ..config() });
    let hold = table.open();
    let refused = table.apply(Change::Append(whole(hold, 3, 0, 1)));
    assert!(
        matches!(refused, Err(ChangeError::Value { ref what, .. }) if what == "item"),
        "{refused:?}"
    );
    let unknown = Hold { group: 9, attempt: 0 };
    let refused = table.apply(Change::Append(whole(unknown, 0, 0, 1)));
    assert_eq!(refused, Err(ChangeError::Unknown(9)));
}

#[test]
fn at_its_deadline_a_group_is_complete_with_what_it_has() {
    let hurried =
        RolloutConfig { group_size: 3, min_group_size: 2, group_deadline_ms: Some(50), ..config() };
    let mut table = Table::new(hurried);
    let (enough, late) = (table.open(), table.open());
    table.append(whole(enough, 0, 0, 1));
    table.append(whole(enough, 2, 0, 1));
    table.append(part(enough, 1, 0, 0));
    table.append(whole(late, 0, 0, 1));
    table.pass(49);
    assert_eq!(table.queued(), 0);
    table.pass(1);
    let counts = table.ledger.counts();
    assert_eq!((table.queued(), counts.short, counts.late, counts.rejected), (1, 1, 1, 1));
    assert_eq!(table.append(whole(late, 1, 0, 1)), GroupStatus::Rejected);
    assert_eq!(table.take(1).expect("a batch").groups[0].items.len(), 2);
}

#[test]
fn a_deadline_stands_for_a_group_that_was_left() {
    let hurried = RolloutConfig { group_deadline_ms: Some(50), ..config() };
    let mut table = Table::new(hurried);
    let hold = table.open();
    suspend(&mut table, hold);
    table.pass(50);
    assert_eq!((table.ledger.counts().late, table.ledger.totals().suspended), (1, 0));
}

#[test]
fn a_segment_that_comes_twice_is_taken_once() {
    let mut table = Table::new(config());
    let hold = table.open();
    assert_eq!(table.append(part(hold, 0, 0, 0)), GroupStatus::Running);
    assert_eq!(table.append(part(hold, 0, 0, 0)), GroupStatus::Running);
    let mut other = part(hold, 0, 0, 0);
    Arc::make_mut(&mut other.segment).bytes[0] ^= 1;
    let refused = table.apply(Change::Append(other));
    assert!(
        matches!(refused, Err(ChangeError::Value { ref what, .. }) if what == "tokens of a segment"),
        "tokens of another producer are no repetition: {refused:?}"
    );
    let mut last = whole(hold, 0, 0, 1);
    last.sequence = 1;
    assert_eq!(table.append(last.clone()), GroupStatus::Complete);
    assert_eq!(table.append(last), GroupStatus::Complete, "the group is told of, whatever comes");
    let counts = table.ledger.counts();
    assert_eq!((counts.tokens, counts.duplicates), (2, 1));
}

#[test]
fn an_end_without_tokens_that_comes_twice_is_taken_once() {
    let mut table = Table::new(RolloutConfig { group_size: 2, ..config() });
    let hold = table.open();
    table.append(part(hold, 0, 0, 0));
    let mut end = whole(hold, 0, 0, 0);
    end.sequence = 1;
    assert_eq!(table.append(end.clone()), GroupStatus::Running);
    assert_eq!(table.append(end), GroupStatus::Running);
    assert_eq!(table.ledger.counts().duplicates, 1);
    let more = part(hold, 0, 1, 0);
    let refused = table.apply(Change::Append(more));
    assert!(
        matches!(refused, Err(ChangeError::Value { ref what, .. }) if what == "item to append to")
    );
}

#[test]
fn a_producer_that_left_a_group_is_told_so() {
    let mut table = Table::new(RolloutConfig { on_expiry: OnExpiry::Suspend, ..config() });
    let hold = table.open();
    table.pass(TTL);
    assert_eq!(table.ledger.totals().suspended, 1);
    let (reservation, _) = resume(&mut table);
    assert_eq!(reservation.hold, Hold { group: hold.group, attempt: 1 });
    assert_eq!(table.complete(hold, 0), GroupStatus::Expired);
    let nothing = Ok(Outcome::Count(0));
    assert_eq!(table.apply(Change::Fail { holds: vec![hold] }), nothing);
    assert_eq!(table.apply(Change::Renew { holds: vec![hold] }), nothing);
    assert_eq!(table.ledger.counts().fenced, 1);
    assert_eq!(table.complete(reservation.hold, 0), GroupStatus::Complete);
}

#[test]
fn nobody_has_a_group_that_was_left_though_they_guess_its_next_hold() {
    let mut table = Table::new(config());
    let hold = table.open();
    suspend(&mut table, hold);
    let guess = Hold { attempt: hold.attempt + 1, ..hold };
    assert_eq!(table.append(part(guess, 0, 0, 0)), GroupStatus::Expired);
    assert_eq!(table.apply(Change::Fail { holds: vec![guess] }), Ok(Outcome::Count(0)));
    assert_eq!(suspend(&mut table, guess), Outcome::Count(0));
    assert_eq!(table.ledger.totals().suspended, 1);
}

#[test]
fn the_group_that_was_reserved_first_is_resumed_first() {
    let mut table = Table::new(config());
    let holds = [table.open(), table.open()];
    suspend(&mut table, holds[1]);
    suspend(&mut table, holds[0]);
    assert_eq!(resume(&mut table).0.hold.group, holds[0].group);
    assert_eq!(resume(&mut table).0.hold.group, holds[1].group);
    let none = table.apply(Change::Resume { source: String::new(), ttl_ms: None });
    assert!(none.is_err());
}

#[test]
fn a_group_that_is_too_old_is_given_up_while_it_is_made() {
    let mut table = Table::new(config());
    let (old, fresh) = (table.open(), table.open());
    table.append(part(old, 0, 0, 0));
    table.publish(2);
    assert_eq!(table.append(part(old, 0, 1, 2)), GroupStatus::Stale);
    assert_eq!(table.append(part(fresh, 0, 0, 0)), GroupStatus::Stale, "it begins too old");
    let counts = table.ledger.counts();
    assert_eq!((counts.stale, counts.rejected, counts.running), (2, 2, 0));
}

#[test]
fn a_group_that_is_too_old_is_kept_where_it_should_be() {
    let mut table = Table::new(RolloutConfig { on_stale: OnStale::Keep, ..config() });
    let hold = table.open();
    table.append(part(hold, 0, 0, 0));
    table.publish(2);
    let mut rest = whole(hold, 0, 2, 1);
    rest.sequence = 1;
    assert_eq!(table.append(rest), GroupStatus::Complete);
}

/// Settings under which masks and rewards may come late.
fn late() -> RolloutConfig {
    let mut config =
        RolloutConfig { group_size: 2, filter: filter("max(reward) > 0"), ..unpaced() };
    config.schema.late = LATE;
    config
}

fn filter(text: &str) -> Option<Filter> {
    Some(Filter::parse(text).expect("a filter"))
}

/// An item with its end, and without mask and reward.
fn bare(hold: Hold, item: u32, tokens: u32) -> Append {
    let (segment, finish) = (unmasked(0, tokens, item), unrewarded());
    Append { segment, finish, ..whole(hold, item, 0, 0) }
}

fn updated(table: &mut Table, update: Update) -> GroupStatus {
    match table.apply(Change::Update(update)) {
        Ok(Outcome::Appended(status)) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_item_is_finished_when_its_late_values_have_come() {
    let mut table = Table::new(late());
    let hold = table.open();
    assert_eq!(table.append(bare(hold, 0, 2)), GroupStatus::Running);
    assert_eq!(table.append(bare(hold, 1, 3)), GroupStatus::Running);
    assert_eq!(updated(&mut table, update(hold, 0, 2, 0.0)), GroupStatus::Running);
    // A mask of the first tokens says nothing of those that come after it.
    let mut masked = update(hold, 1, 3, 1.0);
    masked.values.fields.clear();
    assert_eq!(updated(&mut table, masked), GroupStatus::Running);
    assert_eq!(updated(&mut table, update(hold, 1, 3, 0.5)), GroupStatus::Complete);
    // Until it is delivered, later values count; what the filter said stays.
    assert_eq!(updated(&mut table, update(hold, 1, 3, 0.0)), GroupStatus::Complete);
    let other = Hold { attempt: hold.attempt + 1, ..hold };
    assert_eq!(updated(&mut table, update(other, 1, 3, 9.0)), GroupStatus::Expired);
    table.open();
    let share = table.take(1).expect("a batch");
    let item = &share.groups[0].items[1];
    assert_eq!(item.field(0, 0..8), Some(&[0; 8][..]));
    let schema = late().schema;
    assert_eq!(schema.of_item(item, 1).collect::<Vec<_>>(), [&[7, 7, 7][..]]);
    assert_eq!(schema.of_item(item, 0).map(<[u8]>::len).sum::<usize>(), 12);
    assert_eq!(updated(&mut table, update(hold, 1, 3, 1.0)), GroupStatus::Delivered);
    table.apply(Change::Ack(share.lease)).expect("the consumer's");
    assert_eq!(updated(&mut table, update(hold, 1, 3, 1.0)), GroupStatus::Over);
    assert_eq!(table.ledger.counts().fenced, 1);
}

#[test]
fn values_of_tokens_count_for_these_and_an_end_that_has_them_for_fields() {
    let mut table = Table::new(late());
    let hold = table.open();
    let mut first = bare(hold, 0, 2);
    first.finish = None;
    table.append(first);
    assert_eq!(updated(&mut table, update(hold, 0, 2, 5.0)), GroupStatus::Running);
    // The mask of the tokens that come then is missing, and the reward of the end counts.
    table.append(Append { sequence: 1, finish: finish(2.0, 0), ..bare(hold, 0, 1) });
    assert_eq!(table.append(whole(hold, 1, 0, 1)), GroupStatus::Running);
    let missing = table.apply(Change::Update(update(hold, 0, 2, 3.0))).unwrap_err();
    assert!(
        missing.to_string().contains("must be 3, as many as tokens of item 0, got 2"),
        "{missing}"
    );
    let mut masked = update(hold, 0, 3, 0.0);
    masked.values.fields.clear();
    assert_eq!(updated(&mut table, masked), GroupStatus::Complete);
    let share = table.take(1).expect("a batch");
    assert_eq!(share.groups[0].items[0].field(0, 0..8), Some(&2f64.to_le_bytes()[..]));
}

#[test]
fn blobs_with_the_same_bytes_are_one_in_a_group() {
    let mut table = Table::new(RolloutConfig { group_size: 3, max_blob_bytes: 64, ..unpaced() });
    let hold = table.open();
    for (item, blob) in [(0, 9), (1, 8), (2, 9)] {
        table.append(Append { finish: finish(0.0, blob), ..whole(hold, item, 0, 1) });
    }
    let is_shared = |items: &[Item]| {
        let blobs: Vec<_> =
            items.iter().map(|item| &item.finish.as_ref().expect("an end").blobs[0].1).collect();
        assert_eq!(blobs.iter().map(|blob| blob.len()).collect::<Vec<_>>(), [9, 8, 9]);
        Arc::ptr_eq(blobs[0], blobs[2])
    };
    let moment = table.ledger.save();
    let (mut numbers, mut bulk) = (Vec::new(), Vec::new());
    moment.encode(&mut numbers);
    moment.bulk().for_each(|piece| bulk.extend_from_slice(piece));
    let config = Arc::clone(table.ledger.config());
    let share = table.take(1).expect("a batch");
    assert!(is_shared(&share.groups[0].items));
    table.ledger = Ledger::load(config, &numbers, &mut &*bulk).expect("what was saved");
    assert!(is_shared(&table.take(1).expect("a batch").groups[0].items));
}

#[test]
fn what_may_not_be_late_is_not_left_out_and_updates_fit_the_schema() {
    let mut plain = Table::new(unpaced());
    let hold = plain.open();
    for wrong in [bare(hold, 0, 2), Append { finish: unrewarded(), ..whole(hold, 0, 0, 2) }] {
        let refused = plain.apply(Change::Append(wrong)).unwrap_err();
        assert!(refused.to_string().contains("among those that may come late"), "{refused}");
    }
    let mut table = Table::new(late());
    let hold = table.open();
    let unknown = table.apply(Change::Update(update(hold, 0, 2, 1.0))).unwrap_err();
    assert!(unknown.to_string().contains("one that has tokens or its end"), "{unknown}");
    table.append(bare(hold, 0, 2));
    let good = update(hold, 0, 2, 1.0);
    let wrong = |change: fn(&mut Updates)| {
        let mut update = good.clone();
        change(&mut update.values);
        update
    };
    for wrong in [
        wrong(|values| values.columns[0].column = 2),
        wrong(|values| values.columns[0].tokens = 3),
        wrong(|values| values.columns.push(values.columns[0].clone())),
        wrong(|values| values.fields[0].0 = 1),
        wrong(|values| values.fields[0].1.truncate(7)),
        Update { hold: Hold { group: 9, ..hold }, ..good.clone() },
    ] {
        table.apply(Change::Update(wrong)).unwrap_err();
    }
    assert_eq!(updated(&mut table, good), GroupStatus::Running);
    // A suspended group has no producer.
    table.apply(Change::Suspend { holds: vec![hold] }).expect("it is held");
    assert_eq!(updated(&mut table, update(hold, 0, 2, 1.0)), GroupStatus::Expired);
}

#[test]
fn what_does_not_fit_the_schema_is_refused() {
    let mut table = Table::new(unpaced());
    let hold = table.open();
    let good = whole(hold, 0, 0, 2);
    let mut bytes = good.clone();
    let mut short = (*bytes.segment).clone();
    short.bytes.pop();
    bytes.segment = short.into();
    let mut runs = good.clone();
    let mut told = (*runs.segment).clone();
    told.runs[0].tokens = 1;
    runs.segment = told.into();
    let mut fields = good.clone();
    fields.finish = Some(Arc::default());
    let mut priority = good.clone();
    priority.priority = f64::NAN;
    let long = whole(hold, 0, 0, 101);
    for wrong in [bytes, runs, fields, priority, long] {
        let refused = table.apply(Change::Append(wrong));
        assert!(matches!(refused, Err(ChangeError::Value { .. })), "{refused:?}");
    }
    assert_eq!(table.append(good), GroupStatus::Complete);
}

#[test]
fn a_group_that_nobody_could_be_told_of_is_not_left() {
    let (group_size, max_tokens, on_expiry) = (64, 1 << 24, OnExpiry::Suspend);
    let mut table = Table::new(RolloutConfig { group_size, max_tokens, on_expiry, ..config() });
    let hold = table.open();
    // The same bytes in all items, so that they are there once.
    let segment = segment(0, 1 << 24, 0);
    for item in 0..14 {
        let segment = Arc::clone(&segment);
        table.append(Append { segment, ..part(hold, item, 0, 0) });
    }
    let refused = table.apply(Change::Suspend { holds: vec![hold] }).unwrap_err().to_string();
    assert!(refused.contains("at most 1072693248, so that another producer"), "{refused}");
    assert_eq!(table.ledger.totals().suspended, 0);
    table.pass(TTL);
    let counts = table.ledger.counts();
    assert_eq!((counts.running, counts.rejected, counts.expired), (0, 1, 1));
}
