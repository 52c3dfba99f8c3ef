//! Statistics of a table: calls that had to wait, and episodes of its items.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_replay::WaitReason;
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::limiter::Limiter;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::spec::ANY_LENGTH;
use echoic_replay::table::{Call, Form, Table, TableConfig, TableError, Waits};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Episode, Leaf, Spec};
use proptest::prelude::*;

#[path = "common/waiting.rs"]
mod waiting;

use waiting::{PATIENCE, until, within};

/// A queue with room for one item.
fn queue() -> Arc<Table> {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![] };
    let config = TableConfig {
        sampler: SelectorKind::Fifo,
        limiter: Limiter::queue(1).unwrap(),
        max_times_sampled: 1,
        ..TableConfig::new("queue", Form::Rows(Spec::new(vec![leaf]).unwrap()), 1)
    };
    Arc::new(Table::new(config).unwrap())
}

fn insert(table: &Arc<Table>, patience: Duration) -> Result<(), TableError> {
    let insertion = within(patience, |wait| table.reserve(1, wait))?;
    insertion.commit(&[1.0], None).map(drop)
}

fn sample(table: &Arc<Table>, patience: Duration) -> Result<(), TableError> {
    within(patience, |wait| table.sample(1, wait)).map(drop)
}

fn waits(table: &Table) -> [Waits; 2] {
    let info = table.info();
    [info.insert_waits, info.sample_waits]
}

/// Until this many calls wait; a test that waits for them for ever fails.
fn until_waiting(table: &Table, expected: [u64; 2]) {
    let what = format!("inserts and samples wait: {expected:?}");
    until(&what, || waits(table).map(|waits| waits.waiting) == expected);
}

#[test]
fn calls_that_need_not_wait_are_not_counted_as_waits() {
    let table = queue();
    for _ in 0..5 {
        insert(&table, PATIENCE).unwrap();
        sample(&table, PATIENCE).unwrap();
    }
    assert_eq!(waits(&table), [Waits::default(); 2]);
    // Nor are those that would have to, and have no time.
    assert_eq!(sample(&table, Duration::ZERO), Err(TableError::TimedOut(WaitReason::MinSize)));
    assert_eq!(waits(&table), [Waits::default(); 2]);
}

#[test]
fn a_wait_is_counted_while_it_lasts_and_when_it_is_over() {
    let table = queue();
    std::thread::scope(|scope| {
        let start = Instant::now();
        let samplers: Vec<_> =
            (0..2).map(|_| scope.spawn(|| sample(&table, PATIENCE).unwrap())).collect();
        until_waiting(&table, [0, 2]);
        let two = waits(&table)[1];
        assert_eq!((two.waiting, two.limited), (2, 0));
        insert(&table, PATIENCE).unwrap();
        until_waiting(&table, [0, 1]);
        assert_eq!(waits(&table)[1].limited, 1);
        insert(&table, PATIENCE).unwrap();
        samplers.into_iter().for_each(|sampler| sampler.join().unwrap());
        let [inserts, samples] = waits(&table);
        assert_eq!((samples.waiting, samples.limited), (0, 2));
        assert!(samples.nanos > 0 && samples.time() <= 2 * start.elapsed(), "{samples:?}");
        assert_eq!(inserts, Waits::default());
    });
    insert(&table, PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let inserter = scope.spawn(|| insert(&table, PATIENCE));
        until_waiting(&table, [1, 0]);
        sample(&table, PATIENCE).unwrap();
        inserter.join().unwrap().unwrap();
    });
    let [inserts, samples] = waits(&table);
    assert_eq!((inserts.waiting, inserts.limited, samples.limited), (0, 1, 2));
    table.reset();
    assert_eq!(waits(&table), [Waits::default(); 2]);
}

#[test]
fn a_wait_that_ends_in_vain_is_counted() {
    let table = queue();
    let patience = Duration::from_millis(20);
    assert_eq!(sample(&table, patience), Err(TableError::TimedOut(WaitReason::MinSize)));
    let [_, timed_out] = waits(&table);
    assert_eq!((timed_out.waiting, timed_out.limited), (0, 1));
    // The deadline was there a little before the call was.
    assert!(timed_out.time() >= patience / 2, "{timed_out:?}");
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(&table, PATIENCE));
        until_waiting(&table, [0, 1]);
        table.close();
        assert_eq!(sampler.join().unwrap(), Err(TableError::Closed));
    });
    let [_, closed] = waits(&table);
    assert_eq!((closed.waiting, closed.limited), (0, 2));
}

#[test]
fn those_who_wait_in_their_own_way_say_so() {
    let table = queue();
    let waiting = (table.begin_wait(Call::Insert), table.begin_wait(Call::Sample));
    table.reset();
    let start = waits(&table);
    assert_eq!(start.map(|waits| (waits.waiting, waits.limited)), [(1, 0); 2]);
    std::thread::sleep(Duration::from_millis(5));
    // The time of those who wait counts while they do, and once.
    let longer = waits(&table);
    let grown = |(before, after): (&Waits, &Waits)| after.time() - before.time();
    assert!(start.iter().zip(&longer).map(grown).all(|more| more >= Duration::from_millis(5)));
    drop(waiting);
    let ended = waits(&table);
    assert!(ended.iter().zip(&longer).all(|(after, before)| {
        after.nanos >= before.nanos && after.nanos < 2 * before.nanos + 1_000_000_000
    }));
    assert_eq!(waits(&table).map(|waits| (waits.waiting, waits.limited)), [(0, 1); 2]);
}

/// A step of each of these episodes; of none, where it is 0.
fn item(episodes: &[u64]) -> Trajectory {
    let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![] };
    let column = Column { path: "x".into(), kind: kind.clone(), squeezed: false };
    let signature = Arc::new(Signature { structure: String::new(), columns: vec![column] });
    let kind = Arc::new(kind);
    let slice = |episode: &u64| {
        let chunk = Chunk::raw(Arc::clone(&kind), 1, vec![0].into()).unwrap();
        let chunk = Arc::new(chunk.of_episode(Episode::from_number(*episode)));
        Slice { chunk, offset: 0, len: 1 }
    };
    let slices = vec![episodes.iter().map(slice).collect()];
    Trajectory::new(signature, slices).unwrap()
}

#[derive(Debug, Clone)]
enum Op {
    Insert(Vec<u64>),
    Delete(prop::sample::Index),
    Sample,
    Reset,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => prop::collection::vec(0..7u64, 1..6).prop_map(Op::Insert),
        2 => any::<prop::sample::Index>().prop_map(Op::Delete),
        2 => Just(Op::Sample),
        1 => prop::bool::weighted(0.1).prop_map(|reset| if reset { Op::Reset } else { Op::Sample }),
    ];
    prop::collection::vec(op, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn episodes_are_those_of_the_items_that_are_there(
        ops in ops(), capacity in 1u32..6, max_times_sampled in 0u32..3, with_spec: bool,
    ) {
        let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(1), shape: vec![ANY_LENGTH] };
        let spec = with_spec.then(|| Spec::of_trajectories(vec![leaf]).unwrap());
        let config = TableConfig {
            remover: SelectorKind::Uniform,
            max_times_sampled,
            ..TableConfig::new("table", Form::Trajectories(spec), capacity)
        };
        let table = Arc::new(Table::new(config).unwrap());
        // By key, all that ever were.
        let mut items: Vec<(u64, Vec<u64>)> = Vec::new();
        let (mut before, mut deleted) = (BTreeSet::new(), 0);
        for op in ops {
            match op {
                Op::Insert(episodes) => {
                    let key = table.try_insert(&item(&episodes), 1.0, None).unwrap();
                    before.extend(episodes.iter().copied().filter(|episode| *episode != 0));
                    items.push((key.number(), episodes));
                }
                Op::Delete(which) if !items.is_empty() => {
                    table.delete(&[which.get(&items).0]);
                }
                Op::Sample | Op::Delete(_) => drop(table.try_sample(1)),
                Op::Reset => {
                    table.reset();
                    (before, deleted) = (BTreeSet::new(), 0);
                }
            }
            let there = table.items().keys;
            items.retain(|(key, _)| there.contains(key));
            let episodes = items.iter().flat_map(|(_, episodes)| episodes).copied();
            let now: BTreeSet<u64> = episodes.filter(|episode| *episode != 0).collect();
            deleted += before.difference(&now).count() as u64;
            before = now;
            let info = table.info();
            prop_assert_eq!((info.episodes, info.deleted_episodes), (before.len() as u64, deleted));
        }
    }
}

#[test]
fn rows_have_no_episodes() {
    let table = queue();
    insert(&table, PATIENCE).unwrap();
    assert_eq!((table.info().episodes, table.info().deleted_episodes), (0, 0));
}
