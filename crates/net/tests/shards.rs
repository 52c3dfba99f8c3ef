//! One table on several servers: what a client of them all may rely on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_net::client::Options as ClientOptions;
use echoic_net::client::tables::shards::{Changed, Gathered, Shard, Shards, ShardsError};
use echoic_net::client::tables::{FailureCode, Requests, TablesError};
use echoic_net::server::Server;
use echoic_replay::WaitReason;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::{Form, Table, TableConfig, Tables};
use echoic_replay::{Dtype, Leaf, Spec};

#[path = "common/serving.rs"]
mod serving;
#[path = "../../replay/tests/common/waiting.rs"]
mod waiting;

use serving::{TCP, dial, open};
use waiting::{PATIENCE, soon, within};

/// A server with one table, and a connection to it.
struct Place {
    table: Arc<Table>,
    server: Option<Server>,
    requests: Requests,
}

impl Place {
    fn new(sampler: SelectorKind) -> Self {
        let number = Leaf { path: "number".into(), dtype: Dtype::UInt(8), shape: vec![] };
        let config = TableConfig::new("replay", Form::Rows(Spec::new(vec![number]).unwrap()), 1000);
        let table = Arc::new(Table::new(TableConfig { sampler, ..config }).unwrap());
        let tables = Arc::new(Tables::new(vec![Arc::clone(&table)]).unwrap());
        let server = open(TCP, tables);
        let requests =
            soon(|wait| Requests::connect(dial(&server), ClientOptions::default(), wait).unwrap());
        Self { table, server: Some(server), requests }
    }

    /// Items whose numbers are their priorities.
    fn insert(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let mut insertion = self.table.try_reserve(1).unwrap();
            insertion.row_mut(0).copy_from_slice(&number.to_le_bytes());
            insertion.commit(&[number as f64], None).unwrap();
        }
    }

    fn shard(&self, first_incarnation: u64) -> Option<Shard<'_>> {
        Some(Shard { requests: &self.requests, table: 0, first_incarnation })
    }
}

fn numbers(gathered: &Gathered) -> Vec<u64> {
    let columns = gathered.parts.iter().map(|part| part.column(0));
    let numbers = columns.flat_map(|column| column.chunks_exact(8));
    numbers.map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
}

#[test]
fn a_batch_has_items_of_all_shards_with_the_probabilities_of_the_whole() {
    let places = [0; 3].map(|_| Place::new(SelectorKind::Prioritized { exponent: 1.0 }));
    places[0].insert(1..11);
    places[2].insert(11..41);
    let shards = places.each_ref().map(|place| place.shard(0));
    let whole = Shards::new(3, 5);
    let total = (1..41).sum::<u64>() as f64;
    let mut seen = [0; 41];
    for _ in 0..50 {
        let batch = soon(|wait| whole.sample(&shards, 200, wait)).unwrap();
        let infos = &batch.infos;
        assert_eq!((infos.table_size, infos.total_weight, infos.keys.len()), (40, total, 200));
        for ((number, probability), priority) in
            numbers(&batch).into_iter().zip(&infos.probabilities).zip(&infos.priorities)
        {
            seen[number as usize] += 1;
            assert_eq!(*priority, number as f64);
            assert!((probability - number as f64 / total).abs() < 1e-12);
        }
    }
    // Beyond 5 standard deviations for one of 40 numbers: once in 40,000 seeds, and this one was not
    // chosen.
    for (number, times) in seen.into_iter().enumerate().skip(1) {
        let expected = 10_000.0 * number as f64 / total;
        let off = (f64::from(times) - expected) / expected.sqrt();
        assert!(off.abs() < 5.0, "{number} came {times} times, {expected} were expected");
    }
}

#[test]
fn a_shard_that_ends_while_it_is_asked_is_left_out() {
    let mut places = [0; 2].map(|_| Place::new(SelectorKind::Uniform));
    places.iter().for_each(|place| place.insert(0..10));
    let whole = Shards::new(2, 5);
    let sample = |places: &[Place; 2]| {
        let shards = places.each_ref().map(|place| place.shard(0));
        soon(|wait| whole.sample(&shards, 100, wait))
    };
    let both = sample(&places).unwrap();
    assert_eq!((both.parts.len(), both.infos.table_size), (2, 20));
    // It is known, so it is asked; but it does not answer, and then it is gone.
    places[1].table.pause();
    let server = places[1].server.take();
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(server);
    });
    let one = sample(&places).unwrap();
    ending.join().unwrap();
    assert_eq!((numbers(&one).len(), one.infos.table_size), (100, 10));
    assert_eq!(one.infos.probabilities, [0.1; 100]);
    assert!(one.infos.keys.iter().all(|key| key >> 63 == 0));
}

#[test]
fn nobody_to_sample_from_is_said_at_once_and_nothing_to_sample_in_time() {
    let place = Place::new(SelectorKind::Uniform);
    let whole = Shards::new(2, 5);
    let begin = Instant::now();
    let away = soon(|wait| whole.sample(&[None, None], 1, wait)).unwrap_err();
    assert!(matches!(away.error, TablesError::TimedOut(WaitReason::Away)), "{away:?}");
    assert!(begin.elapsed() < PATIENCE);
    let shards = [None, place.shard(0)];
    let early = Duration::from_millis(30);
    let empty = within(early, |wait| whole.sample(&shards, 1, wait)).unwrap_err();
    let waiting = WaitReason::MinSize;
    assert!(matches!(empty.error, TablesError::TimedOut(got) if got == waiting), "{empty:?}");
}

#[test]
fn a_key_is_good_at_its_shard_and_in_its_life_only() {
    let places = [0; 2].map(|_| Place::new(SelectorKind::Uniform));
    places.iter().for_each(|place| place.insert(0..10));
    let whole = Shards::new(2, 5);
    let shards = places.each_ref().map(|place| place.shard(0));
    let batch = soon(|wait| whole.sample(&shards, 400, wait)).unwrap();
    let mut keys = batch.infos.keys.clone();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 20);
    let values = vec![3.0; 20];
    let update = |shards: &[Option<Shard<'_>>]| {
        soon(|wait| whole.update_priorities(shards, &keys, &values, wait)).unwrap()
    };
    assert_eq!(update(&shards), Changed { done: 20, lost: 0 });
    assert_eq!(update(&[places[0].shard(0), None]), Changed { done: 10, lost: 10 });
    let later = [places[0].shard(0), places[1].shard(1)];
    assert_eq!(update(&later), Changed { done: 10, lost: 10 });
    let deleted = soon(|wait| whole.delete(&later, &keys, wait)).unwrap();
    assert_eq!(deleted, Changed { done: 10, lost: 10 });
    assert_eq!(places.each_ref().map(|place| place.table.info().size), [0, 10]);
    let bad = soon(|wait| whole.update_priorities(&shards, &keys, &[-1.0; 20], wait));
    assert!(matches!(bad.unwrap_err().error, TablesError::Table(_)));
}

#[test]
fn closed_tables_are_left_out_until_there_is_no_other() {
    let places = [0; 2].map(|_| Place::new(SelectorKind::Uniform));
    let shards = places.each_ref().map(|place| place.shard(0));
    let whole = Shards::new(2, 5);
    let sample = || soon(|wait| whole.sample(&shards, 50, wait));
    places.iter().for_each(|place| place.insert(0..10));
    assert_eq!(sample().unwrap().infos.table_size, 20);
    places[1].table.close();
    assert_eq!(sample().unwrap().infos.table_size, 10);
    let closed = |result: Result<Gathered, ShardsError>| {
        let error = result.unwrap_err().error;
        let is_it = matches!(error, TablesError::Refused { code: FailureCode::Closed, .. });
        assert!(is_it, "{error:?}");
    };
    places[0].table.close();
    closed(sample());
    // Who waits for the first items hears of it too.
    let places = [0; 2].map(|_| Place::new(SelectorKind::Uniform));
    let shards = places.each_ref().map(|place| place.shard(0));
    let whole = Shards::new(2, 5);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| soon(|wait| whole.sample(&shards, 5, wait)));
        places.iter().for_each(|place| place.table.close());
        closed(waiting.join().unwrap());
    });
}
