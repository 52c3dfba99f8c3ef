//! Rollout tables in a server's checkpoints.

use std::path::Path;
use std::sync::Arc;

use echoic_replay::codec::Encode;
use echoic_replay::rollouts::batch::{Form, Layout};
use echoic_replay::rollouts::durable::{DurableOptions, History};
use echoic_replay::rollouts::ledger::{Change, GroupStatus, Outcome, Share};
use echoic_replay::rollouts::{Order, RolloutConfig, RolloutTable};
use echoic_replay::table::Tables;
use echoic_replay::table::saved::{Checkpointer, Contents, load, save};

use crate::table::{marked, pairs, reserve, want};
use crate::waiting::soon;

fn table(config: RolloutConfig) -> Arc<RolloutTable> {
    Arc::new(RolloutTable::new(config).unwrap())
}

fn contents<'a>(tables: &'a Tables, rollouts: &'a [Arc<RolloutTable>]) -> Contents<'a> {
    Contents { tables, stream: None, rollouts }
}

fn call(table: &RolloutTable, change: &Change) -> Outcome {
    soon(|wait| table.call(change, wait)).unwrap()
}

fn groups(table: &RolloutTable, count: u32) {
    let Outcome::Reserved(reservations) = call(table, &reserve(count)) else { panic!() };
    for reservation in reservations {
        for item in 0..2 {
            call(
                table,
                &marked(reservation.hold, item, reservation.version, reservation.hold.group as u32),
            );
        }
    }
}

fn share(table: &RolloutTable) -> Share {
    match call(table, &Change::Sample(want(2, Some(60_000)))) {
        Outcome::Delivered(share) => share,
        other => panic!("{other:?}"),
    }
}

fn laid_out(share: &Share, config: &RolloutConfig) -> Vec<u8> {
    let layout = Layout::new(share, config, Form::Flat).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    layout.write(&mut bytes);
    let mut head = layout.head();
    // A table that goes on from a checkpoint gives other numbers.
    (head.lease.batch, head.lease.attempt) = (0, 0);
    head.encode(&mut bytes);
    bytes
}

#[test]
fn a_loaded_table_draws_what_the_saved_one_draws() {
    let (root, tables) = (tempfile::tempdir().unwrap(), Tables::default());
    let config = RolloutConfig { order: Order::Weighted, max_uses: 0, max_lag: None, ..pairs() };
    let first = [table(RolloutConfig { name: "other".into(), ..config.clone() }), table(config)];
    groups(&first[1], 6);
    let out = share(&first[1]);
    call(&first[1], &reserve(1));
    save(contents(&tables, &first), root.path(), &[]).unwrap();
    let counts = first[1].info().counts;
    let second = [table((**first[1].config()).clone()), table((**first[0].config()).clone())];
    groups(&second[0], 1);
    let loaded = load(contents(&tables, &second), root.path()).unwrap();
    assert_eq!(loaded.groups, [("other".into(), 0), ("rollouts".into(), 7)]);
    let found = second[0].info();
    assert_eq!((found.counts, found.totals.out, found.totals.queued), (counts, 2, 4));
    // The consumer that had a share goes on with it.
    for table in [&first[1], &second[0]] {
        assert_eq!(call(table, &Change::Ack(out.lease)), Outcome::Count(2));
    }
    for _ in 0..20 {
        let (one, two) = (share(&first[1]), share(&second[0]));
        assert_eq!(laid_out(&one, first[1].config()), laid_out(&two, first[1].config()));
        call(&first[1], &Change::Ack(one.lease));
        call(&second[0], &Change::Ack(two.lease));
    }
}

#[test]
fn a_table_that_does_not_fit_is_refused_and_all_are_as_they_were() {
    let (root, tables) = (tempfile::tempdir().unwrap(), Tables::default());
    let first = [table(pairs())];
    groups(&first[0], 3);
    save(contents(&tables, &first), root.path(), &[]).unwrap();
    let refused = |rollouts: &[Arc<RolloutTable>]| {
        load(contents(&tables, rollouts), root.path()).unwrap_err().to_string()
    };
    assert_eq!(refused(&[]), "table \"rollouts\": there is no rollout table of this name");
    let other = [table(RolloutConfig { batch_groups: 4, ..pairs() })];
    groups(&other[0], 1);
    assert_eq!(
        refused(&other),
        "table \"rollouts\": the checkpoint's was made with other settings: batch_groups is 4, and was 2"
    );
    assert_eq!(other[0].info().counts.submitted, 1);
    let dir = tempfile::tempdir().unwrap();
    let durable = DurableOptions::default();
    let kept = RolloutTable::open(pairs(), dir.path(), durable).unwrap();
    let text = refused(&[Arc::new(kept)]);
    assert!(text.ends_with("it has a directory, so it goes on from there alone"), "{text}");
    // One that may be made otherwise is.
    let narrow = [table(RolloutConfig { max_running: 3, ..pairs() })];
    load(contents(&tables, &narrow), root.path()).unwrap();
    assert_eq!(narrow[0].info().counts, first[0].info().counts);
    let Outcome::Reserved(reservations) = call(&narrow[0], &reserve(8)) else { panic!() };
    assert_eq!(reservations.len(), 3);
}

#[test]
fn reservations_have_their_full_time_in_a_table_that_is_loaded_into_but_for_those_given_later() {
    let (root, tables) = (tempfile::tempdir().unwrap(), Tables::default());
    let config = RolloutConfig { reservation_ttl_ms: 300, ..pairs() };
    let first = [table(config.clone())];
    std::thread::sleep(std::time::Duration::from_millis(40));
    call(&first[0], &reserve(1));
    save(contents(&tables, &first), root.path(), &[]).unwrap();
    let Outcome::Reserved(later) = call(&first[0], &reserve(1)) else { panic!() };
    let second = [table(config)];
    load(contents(&tables, &second), root.path()).unwrap();
    let due = second[0].next_due().unwrap();
    let left = due.saturating_duration_since(std::time::Instant::now()).as_millis();
    assert!((200..=300).contains(&left), "{left}");
    let append = call(&second[0], &marked(later[0].hold, 0, 0, 1));
    assert_eq!(append, Outcome::Appended(GroupStatus::Expired));
}

#[test]
fn a_keeper_saves_tables_here_and_those_with_a_directory_there() {
    let (root, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let here = table(RolloutConfig { name: "here".into(), ..pairs() });
    let durable = DurableOptions { history: true, ..DurableOptions::default() };
    let there = RolloutTable::open(pairs(), dir.path(), durable).unwrap();
    let rollouts = Arc::new(vec![Arc::clone(&here), Arc::new(there)]);
    let checkpointer = |rollouts| {
        let (tables, root) = (Arc::default(), root.path().to_owned());
        Checkpointer::new(tables, None, root, 2, "test").with_rollouts(rollouts)
    };
    rollouts.iter().for_each(|table| groups(table, 2));
    let path = checkpointer(Arc::clone(&rollouts)).save().unwrap();
    let fresh = table((**here.config()).clone());
    let loaded = checkpointer(Arc::new(vec![Arc::clone(&fresh)])).load(&path).unwrap();
    assert_eq!(loaded.groups, [("here".to_owned(), 2)]);
    assert_eq!(fresh.info().counts, here.info().counts);
    rollouts[1].close();
    let own: Vec<_> = echoic_replay::checkpoint::list(dir.path().join("checkpoints")).unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!(end(dir.path()), rollouts[1].info().counts.submitted);
}

fn end(dir: &Path) -> u64 {
    let mut past = History::open(dir, None).unwrap();
    while past.next_share(u64::MAX).unwrap().flatten().is_some() {}
    past.ledger().unwrap().counts().submitted
}
