//! Tables under many threads: nothing torn, nothing lost, no call left waiting.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use echoic_replay::WaitReason;
use echoic_replay::limiter::{Counts, Limiter};
use echoic_replay::rng::Rng;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Form, Obstacle, Sampled, Table, TableConfig, TableError};
use echoic_replay::{Dtype, Leaf, Spec};

#[path = "common/waiting.rs"]
mod waiting;

use waiting::{soon, until};

/// Words of a row: its item's number again and again. Several cache lines, so that a row which is
/// written while it is read shows it.
const WORDS: usize = 40;

fn config(capacity: u32) -> TableConfig {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![WORDS] };
    TableConfig::new("table", Form::Rows(Spec::new(vec![leaf]).unwrap()), capacity)
}

fn queue(size: u32) -> Arc<Table> {
    let limiter = Limiter::queue(size.into()).unwrap();
    let config = TableConfig { sampler: SelectorKind::Fifo, limiter, ..config(size) };
    Arc::new(Table::new(TableConfig { max_times_sampled: 1, ..config }).unwrap())
}

fn write(row: &mut [u8], id: u64) {
    for word in row.chunks_mut(8) {
        word.copy_from_slice(&id.to_le_bytes());
    }
}

/// The numbers of drawn items, none of whose rows may be torn.
fn ids(sampled: &Sampled) -> Vec<u64> {
    let mut bytes = vec![0; 8 * WORDS * sampled.len()];
    sampled.gather(&mut [&mut bytes]);
    let words: Vec<u64> =
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let rows = words.chunks(WORDS);
    rows.map(|row| {
        assert!(row.iter().all(|word| *word == row[0]), "a torn row: {row:?}");
        row[0]
    })
    .collect()
}

fn insert(table: &Arc<Table>, id: u64) -> Result<u64, TableError> {
    let mut insertion = soon(|wait| table.reserve(1, wait))?;
    write(insertion.row_mut(0), id);
    Ok(insertion.commit(&[1.0], None)?[0].number())
}

fn spawn<'a, T: Send + 'a>(
    scope: &'a Scope<'a, '_>,
    count: u64,
    run: impl Fn(u64) -> T + Clone + Send + 'a,
) -> Vec<ScopedJoinHandle<'a, T>> {
    let start = |thread| {
        let run = run.clone();
        scope.spawn(move || run(thread))
    };
    (0..count).map(start).collect()
}

fn join<T>(threads: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Says that it is over when it is dropped: also when a test fails, so that its threads end.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One draw, as a sampler saw it.
#[derive(Debug)]
struct Seen {
    key: u64,
    id: u64,
    times_sampled: u32,
}

/// What the threads of one run did.
#[derive(Default)]
struct Done {
    /// Which key each item got.
    inserted: HashMap<u64, u64>,
    seen: Vec<Seen>,
    deleted: u64,
}

fn insert_some(table: &Arc<Table>, thread: u64, recent: &Mutex<Vec<u64>>) -> Done {
    let (mut rng, mut done) = (Rng::new(thread), Done::default());
    let mut next = thread << 32;
    while done.inserted.len() < 3000 {
        let count = 1 + rng.below(3) as usize;
        let mut insertion = soon(|wait| table.reserve(count, wait)).unwrap();
        let len = insertion.len();
        for row in 0..len {
            write(insertion.row_mut(row), next + row as u64);
        }
        match rng.below(8) {
            // Half written and given up: nobody may ever see it.
            0 => insertion.row_mut(0)[..8 * WORDS / 2].fill(0xee),
            1 => assert!(insertion.commit(&vec![f64::NAN; len], None).is_err()),
            _ => {
                let keys = insertion.commit(&vec![1.0; len], None).unwrap();
                for (row, key) in keys.iter().enumerate() {
                    done.inserted.insert(next + row as u64, key.number());
                }
                *recent.lock().unwrap() = keys.iter().map(|key| key.number()).collect();
                next += len as u64;
            }
        }
    }
    done
}

fn sample_some(table: &Arc<Table>, thread: u64, over: &AtomicBool) -> Done {
    let (mut rng, mut done) = (Rng::new(thread), Done::default());
    let mut held: Option<(Sampled, Vec<u64>)> = None;
    while !over.load(Ordering::Relaxed) {
        let sampled = match table.try_sample(1 + rng.below(4) as usize) {
            Ok(sampled) => sampled,
            Err(Obstacle::Blocked(WaitReason::MinSize)) => {
                // There may be no item because there is no row but those of this batch.
                held = None;
                thread::yield_now();
                continue;
            }
            Err(other) => panic!("{other:?}"),
        };
        let (ids, infos) = (ids(&sampled), sampled.infos());
        assert!((1..=4).contains(&infos.table_size), "{} items", infos.table_size);
        for (draw, id) in ids.iter().enumerate() {
            assert_eq!(infos.probabilities[draw], 1.0 / infos.table_size as f64);
            let (key, times_sampled) = (infos.keys[draw], infos.times_sampled[draw]);
            done.seen.push(Seen { key, id: *id, times_sampled });
        }
        if let Some((sampled, before)) = held.take() {
            assert_eq!(self::ids(&sampled), before, "a batch that is kept has changed");
        }
        if rng.below(2) == 0 {
            held = Some((sampled, ids));
        }
    }
    done
}

fn update_some(table: &Table, recent: &Mutex<Vec<u64>>, over: &AtomicBool) -> Done {
    while !over.load(Ordering::Relaxed) {
        let keys = recent.lock().unwrap().clone();
        let there = table.update_priorities(&keys, &vec![2.0; keys.len()]).unwrap();
        assert!(there <= keys.len());
        thread::yield_now();
    }
    Done::default()
}

fn delete_some(table: &Table, recent: &Mutex<Vec<u64>>, over: &AtomicBool) -> Done {
    let mut done = Done::default();
    while !over.load(Ordering::Relaxed) {
        let keys = std::mem::take(&mut *recent.lock().unwrap());
        done.deleted += table.delete(&keys) as u64;
        thread::sleep(Duration::from_micros(50));
    }
    done
}

/// Seven rows for four items, and up to nine items on their way in: every row is used again at once,
/// while samplers still read what was in it.
#[test]
fn operations_of_many_threads_take_effect_one_after_the_other() {
    let table = Arc::new(Table::new(config(4)).unwrap());
    let (recent, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let done = thread::scope(|scope| {
        let end = Over(&over);
        let inserters = spawn(scope, 3, |thread| insert_some(&table, thread, &recent));
        let mut others = spawn(scope, 3, |thread| sample_some(&table, 10 + thread, &over));
        others.extend(spawn(scope, 2, |_| update_some(&table, &recent, &over)));
        others.extend(spawn(scope, 1, |_| delete_some(&table, &recent, &over)));
        let mut done = join(inserters);
        drop(end);
        done.extend(join(others));
        done
    });
    let mut keys = HashMap::new();
    for (id, key) in done.iter().flat_map(|done| &done.inserted) {
        assert_eq!(keys.insert(*key, *id), None, "the key {key} belongs to two items");
    }
    let mut draws: HashMap<u64, Vec<u32>> = HashMap::new();
    for Seen { key, id, times_sampled } in done.iter().flat_map(|done| &done.seen) {
        assert_eq!(keys.get(key), Some(id), "the key {key} came with other bytes");
        draws.entry(*key).or_default().push(*times_sampled);
    }
    for (key, mut times) in draws {
        times.sort_unstable();
        let counted: Vec<u32> = (1..=times.len() as u32).collect();
        assert_eq!(times, counted, "draws of the item {key}");
    }
    let info = table.info();
    let seen: usize = done.iter().map(|done| done.seen.len()).sum();
    assert!(seen > 1000, "only {seen} draws");
    assert_eq!(info.counts.inserts, keys.len() as u64);
    assert_eq!(info.counts.samples, seen as u64);
    assert_eq!(info.counts.size(), u64::from(info.size));
    let deleted: u64 = done.iter().map(|done| done.deleted).sum();
    assert!(deleted > 0 && info.counts.deletions > deleted, "{deleted} of {info:?}");
}

#[test]
fn a_queue_delivers_every_item_exactly_once_and_each_producers_in_order() {
    const EACH: u64 = 2000;
    let table = queue(8);
    let taken = thread::scope(|scope| {
        let producers = spawn(scope, 4, |thread| {
            for id in 0..EACH {
                insert(&table, thread << 32 | id).unwrap();
            }
        });
        let consumers = spawn(scope, 4, |thread| {
            let (mut rng, mut taken) = (Rng::new(thread), Vec::new());
            loop {
                // Several at once only as long as they are there: the last items fill no batch.
                let several = table.try_sample(1 + rng.below(3) as usize);
                let sampled = match several {
                    Err(Obstacle::Blocked(_)) => soon(|wait| table.sample(1, wait)),
                    other => other.map_err(|error| panic_free(&error)),
                };
                match sampled {
                    Ok(sampled) => taken.extend(ids(&sampled)),
                    Err(TableError::Closed) => return taken,
                    Err(other) => panic!("{other}"),
                }
            }
        });
        join(producers);
        until("all are taken", || table.info().counts.samples == 4 * EACH);
        // Consumers that wait for more, or are about to, end now.
        table.close();
        join(consumers)
    });
    for taken in &taken {
        for producer in 0..4 {
            let own = taken.iter().filter(|id| **id >> 32 == producer);
            assert!(own.is_sorted(), "items of producer {producer} overtook each other");
        }
    }
    let mut all = taken.concat();
    all.sort_unstable();
    let expected: Vec<u64> =
        (0..4).flat_map(|thread| (0..EACH).map(move |id| thread << 32 | id)).collect();
    assert_eq!(all, expected);
    let counts = Counts { inserts: 4 * EACH, samples: 4 * EACH, deletions: 4 * EACH };
    assert_eq!(table.info().counts, counts);
}

/// What an attempt that is not blocked failed with.
fn panic_free(obstacle: &Obstacle) -> TableError {
    match obstacle {
        Obstacle::Failed(error) => error.clone(),
        Obstacle::Blocked(reason) => TableError::TimedOut(*reason),
    }
}

#[test]
fn a_ratio_lets_everybody_finish_and_is_never_exceeded() {
    let limiter = Limiter::sample_to_insert_ratio(2.0, 4, (5.0, 11.0)).unwrap();
    let table = Arc::new(Table::new(TableConfig { limiter, ..config(100) }).unwrap());
    let (inserts, samples) = (500, 1000);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = Over(&over);
        let mut threads = spawn(scope, 4, |thread| {
            (0..inserts).for_each(|id| _ = insert(&table, thread << 32 | id).unwrap());
        });
        threads.extend(spawn(scope, 4, |_| {
            for _ in 0..samples - 2 {
                soon(|wait| table.sample(1, wait)).unwrap();
            }
        }));
        let watcher = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let counts = table.info().counts;
                let diff = 2.0 * counts.inserts as f64 - counts.samples as f64;
                let free = counts.inserts <= 4 || counts.samples == 0;
                assert!(free || (5.0..=11.0).contains(&diff), "{counts:?}");
                thread::yield_now();
            }
        });
        join(threads);
        drop(end);
        watcher.join().unwrap();
    });
    let counts = table.info().counts;
    assert_eq!((counts.inserts, counts.samples), (2000, 3992));
}

/// Runs a call in a thread, and gives it time to really wait: the tests are right either way.
fn waiting<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(call()));
    thread::sleep(Duration::from_millis(30));
    receiver
}

fn waiting_insert(table: &Arc<Table>) -> mpsc::Receiver<Option<TableError>> {
    let table = Arc::clone(table);
    waiting(move || insert(&table, 9).err())
}

fn waiting_sample(table: &Arc<Table>) -> mpsc::Receiver<Option<TableError>> {
    let table = Arc::clone(table);
    waiting(move || soon(|wait| table.sample(1, wait)).err())
}

const SOON: Duration = Duration::from_secs(5);

#[test]
fn an_insert_wakes_a_sample_and_a_sample_an_insert() {
    let table = queue(1);
    let sample = waiting_sample(&table);
    insert(&table, 1).unwrap();
    assert_eq!(sample.recv_timeout(SOON), Ok(None));
    insert(&table, 2).unwrap();
    let insertion = waiting_insert(&table);
    assert_eq!(ids(&table.try_sample(1).unwrap()), [2]);
    assert_eq!(insertion.recv_timeout(SOON), Ok(None));
}

#[test]
fn a_close_wakes_everyone() {
    let (empty, full) = (queue(1), queue(1));
    insert(&full, 0).unwrap();
    let paused = Arc::new(Table::new(config(4)).unwrap());
    paused.pause();
    let waiting: Vec<_> = (0..4)
        .flat_map(|_| [waiting_sample(&empty), waiting_insert(&full), waiting_insert(&paused)])
        .collect();
    [empty, full, paused].iter().for_each(|table| table.close());
    for call in waiting {
        assert_eq!(call.recv_timeout(SOON), Ok(Some(TableError::Closed)));
    }
}

#[test]
fn a_wait_says_why_and_ends_in_time() {
    let table = queue(1);
    let timed_out = |call: &dyn Fn(Wait<'_>) -> Option<TableError>| {
        let start = Instant::now();
        let deadline = Some(start + Duration::from_millis(20));
        let error = call(Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Break(()) });
        assert!((20..5000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        error
    };
    let sample = |wait: Wait<'_>| table.sample(1, wait).err();
    let reserve = |wait: Wait<'_>| table.reserve(1, wait).err();
    assert_eq!(timed_out(&sample), Some(TableError::TimedOut(WaitReason::MinSize)));
    insert(&table, 1).unwrap();
    assert_eq!(timed_out(&reserve), Some(TableError::TimedOut(WaitReason::Ratio)));
    table.pause();
    assert_eq!(timed_out(&sample), Some(TableError::TimedOut(WaitReason::Paused)));
    assert_eq!(timed_out(&reserve), Some(TableError::TimedOut(WaitReason::Paused)));
}

/// Counts how often it was called.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_is_called_once_at_the_next_change() {
    let table = queue(1);
    let (items, room) = (Arc::<Calls>::default(), Arc::<Calls>::default());
    let calls = || (items.0.load(Ordering::SeqCst), room.0.load(Ordering::SeqCst));
    table.wake_on_items(&Waker::from(Arc::clone(&items)));
    table.wake_on_room(&Waker::from(Arc::clone(&room)));
    assert_eq!(calls(), (0, 0));
    insert(&table, 1).unwrap();
    assert_eq!(calls().0, 1);
    drop(table.try_sample(1).unwrap());
    assert_eq!(calls(), (1, 1));
    insert(&table, 2).unwrap();
    table.pause();
    assert_eq!(calls(), (1, 1));
    table.wake_on_items(&Waker::from(Arc::clone(&items)));
    table.close();
    assert_eq!(calls(), (2, 1));
}
