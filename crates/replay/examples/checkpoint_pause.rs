//! How much slower inserts and samples are while a checkpoint is taken.
//!
//! `cargo run --release -p echoic-replay --example checkpoint_pause [ITEMS]`
//!
//! One thread inserts items one by one and another samples batches of 32, first alone, then while a
//! table of a million small items, and then one of as many trajectories, is saved again and again. Each
//! figure is over all calls; the longest one shows for how long the table was locked. The threads and
//! the save need three cores: on fewer, this measures also how the system shares them.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::saved::save;
use echoic_replay::table::{Form, Obstacle, Table, TableConfig, Tables};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Leaf, Spec};

/// How long calls are measured at least, with and without a checkpoint.
const SPAN: Duration = Duration::from_secs(2);

fn main() {
    let items = std::env::args().nth(1).map_or(1_000_000, |word| word.parse().expect("a number"));
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![6] };
    let rows = Form::Rows(Spec::new(vec![leaf]).expect("a spec"));
    for (name, form) in [("rows", rows), ("trajectories", Form::Trajectories(None))] {
        println!("{items} {name}");
        measure(form, items);
    }
}

fn measure(form: Form, items: u32) {
    let table = Table::new(TableConfig {
        sampler: SelectorKind::Prioritized { exponent: 0.6 },
        ..TableConfig::new("t", form, items)
    });
    let tables = Tables::new(vec![Arc::new(table.expect("a table"))]).expect("tables");
    let table = &tables.all()[0];
    let mut source = Source::new();
    (0..items).for_each(|_| assert!(source.insert(table), "there is room"));
    let root = tempfile::tempdir().expect("a directory");
    let alone = load(table, &mut source, || std::thread::sleep(SPAN));
    let mut saves = Vec::new();
    let saving = load(table, &mut source, || {
        let begin = Instant::now();
        while begin.elapsed() < SPAN {
            let start = Instant::now();
            save(&tables, root.path(), &[]).expect("a checkpoint");
            saves.push(start.elapsed());
        }
    });
    println!("  {} checkpoints, the first took {:.2} s", saves.len(), saves[0].as_secs_f64());
    for ((what, alone), saving) in ["insert", "sample"].iter().zip(alone).zip(saving) {
        println!("  {what}: alone {}; during checkpoints {}", figures(alone), figures(saving));
    }
}

/// Runs `meanwhile` beside a thread that inserts and one that samples; how long their calls took.
fn load(table: &Arc<Table>, source: &mut Source, meanwhile: impl FnOnce()) -> [Vec<Duration>; 2] {
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let inserting = scope.spawn(|| {
            times(done, || {
                source.insert(table);
            })
        });
        let sampling = scope.spawn(|| {
            let mut column = vec![0; 48 * 32];
            times(done, || {
                table.try_sample(32).expect("a sample").gather(&mut [&mut column]);
            })
        });
        meanwhile();
        done.store(true, Ordering::Relaxed);
        [inserting, sampling].map(|thread| thread.join().expect("no panic"))
    })
}

/// How long each call took until it was done. There is a pause between calls, as the load is not the
/// most that the table could bear.
fn times(done: &AtomicBool, mut call: impl FnMut()) -> Vec<Duration> {
    let mut times = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let start = Instant::now();
        call();
        times.push(start.elapsed());
        std::thread::sleep(Duration::from_micros(20));
    }
    times
}

fn figures(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
    let at = |share: usize| micros(times[(times.len() * share / 100).min(times.len() - 1)]);
    format!("median {:.1}, p99 {:.1}, longest {:.0} µs", at(50), at(99), at(100))
}

/// Makes items for either form.
struct Source {
    signature: Arc<Signature>,
    chunk: Arc<Chunk>,
    made: u32,
}

/// Steps of a chunk.
const STEPS: u32 = 32;

impl Source {
    fn new() -> Self {
        let kind = ColumnKind { dtype: Dtype::UInt(8), shape: vec![6] };
        let column = Column { path: "x".into(), kind, squeezed: true };
        let signature = Arc::new(Signature { structure: String::new(), columns: vec![column] });
        let chunk = Self::chunk(&signature);
        Self { signature, chunk, made: 0 }
    }

    fn chunk(signature: &Signature) -> Arc<Chunk> {
        let kind = Arc::new(signature.columns[0].kind.clone());
        let bytes = vec![7; 48 * STEPS as usize];
        Arc::new(Chunk::raw(kind, STEPS, bytes.into()).expect("a chunk"))
    }

    /// Whether there was room.
    fn insert(&mut self, table: &Arc<Table>) -> bool {
        let offset = self.made % STEPS;
        self.made += 1;
        if offset == 0 {
            self.chunk = Self::chunk(&self.signature);
        }
        let slice = Slice { chunk: Arc::clone(&self.chunk), offset, len: 1 };
        let signature = Arc::clone(&self.signature);
        let trajectory = Trajectory::new(signature, vec![vec![slice]]).expect("a trajectory");
        match table.try_insert(&trajectory, f64::from(self.made % 100), None) {
            Ok(_) => true,
            Err(Obstacle::Blocked(_)) => false,
            Err(Obstacle::Failed(error)) => panic!("{error}"),
        }
    }
}
