//! What a table knows of itself beside its items: who had to wait for it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_replay::limiter::{Limiter, Reason};
use echoic_replay::selectors::SelectorKind;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Call, Form, Table, TableConfig, TableError, Waits};
use echoic_replay::{Dtype, Leaf, Spec};

/// A wait that should have ended fails its test after this.
const PATIENCE: Duration = Duration::from_secs(30);

/// A queue with room for one item.
fn queue() -> Arc<Table> {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![] };
    let config = TableConfig {
        name: "queue".into(),
        form: Form::Rows(Spec::new(vec![leaf]).unwrap()),
        structure: String::new(),
        sampler: SelectorKind::Fifo,
        remover: SelectorKind::Fifo,
        limiter: Limiter::queue(1).unwrap(),
        max_size: 1,
        max_times_sampled: 1,
        seed: 1,
    };
    Arc::new(Table::new(config).unwrap())
}

fn within<T>(patience: Duration, call: impl FnOnce(Wait<'_, Reason>) -> T) -> T {
    let deadline = Some(Instant::now() + patience);
    call(Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) })
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

/// Until so many calls wait; a test that waits for them for ever fails.
fn until_waiting(table: &Table, expected: [u64; 2]) {
    let end = Instant::now() + PATIENCE;
    while waits(table).map(|waits| waits.waiting) != expected {
        assert!(Instant::now() < end, "{:?}, expected {expected:?}", waits(table));
        std::thread::sleep(Duration::from_millis(1));
    }
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
    assert_eq!(sample(&table, Duration::ZERO), Err(TableError::TimedOut(Reason::MinSize)));
    assert_eq!(waits(&table), [Waits::default(); 2]);
}

#[test]
fn a_wait_is_counted_while_it_lasts_and_when_it_is_over() {
    let table = queue();
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let samplers: Vec<_> =
            (0..2).map(|_| scope.spawn(|| sample(&table, PATIENCE).unwrap())).collect();
        until_waiting(&table, [0, 2]);
        assert_eq!(waits(&table)[1], Waits { waiting: 2, ..Waits::default() });
        insert(&table, PATIENCE).unwrap();
        until_waiting(&table, [0, 1]);
        assert_eq!(waits(&table)[1].limited, 1);
        insert(&table, PATIENCE).unwrap();
        samplers.into_iter().for_each(|sampler| sampler.join().unwrap());
        let [inserts, samples] = waits(&table);
        assert_eq!((samples.waiting, samples.limited), (0, 2));
        assert!(samples.nanos > 0 && samples.time() <= 2 * begun.elapsed(), "{samples:?}");
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
    assert_eq!(sample(&table, patience), Err(TableError::TimedOut(Reason::MinSize)));
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
    assert_eq!(waits(&table), [Waits { waiting: 1, ..Waits::default() }; 2]);
    drop(waiting);
    assert_eq!(waits(&table).map(|waits| (waits.waiting, waits.limited)), [(0, 1); 2]);
}
