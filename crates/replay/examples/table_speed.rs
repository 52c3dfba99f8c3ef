//! How fast a table of rows is in one process: batches of 256 from many, beside what memory allows.
//!
//! `cargo run --release -p echoic-replay --example table_speed [ITEMS [ROW_BYTES [OTHER]]]`
//!
//! Each figure is the minimum and the median of many batches. They are taken in turns, so that whatever
//! else the machine does meets all of them alike:
//!
//! - `bare`: a loop that copies the same number of rows of the same size, at random places of as much
//!   memory, one after the other: what a sample is compared with.
//! - `misses k`: 256 ways of k steps, each step to a place that the one before named, all ways a step
//!   at a time: what k reads that wait for each other cost when nothing but memory is in the way.
//! - `sample`: items are drawn and gathered into columns; `update`: their priorities are set.
//!
//! With `OTHER`, so many MiB of other memory are written before each piece of work, as a learner does
//! between two batches: the caches are then full of other things.
//!
//! The content of every batch is checked. Left out: Python, and what a lock costs when others want it.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_replay::limiter::Limiter;
use echoic_replay::rng::Rng;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::{Form, Table, TableConfig};
use echoic_replay::{Dtype, Leaf, Spec};

const BATCH: usize = 256;
const ROUNDS: usize = 2_000;

/// The longest way of `misses`.
const STEPS: usize = 4;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse().expect("a number"));
    let items: usize = numbers.next().unwrap_or(1_000_000);
    let row_bytes: usize = numbers.next().unwrap_or(48);
    let other = numbers.next().unwrap_or(0) << 20;
    println!("{items} items of {row_bytes} bytes, batches of {BATCH}, {other} other bytes");

    let mut misses = Misses::new(items);
    let mut chains: [Times; STEPS] = Default::default();
    for _ in 0..ROUNDS {
        for (steps, times) in (1..).zip(&mut chains) {
            times.add(|| misses.go(steps));
        }
    }
    for (steps, times) in (1..).zip(&mut chains) {
        times.print(&format!("misses {steps}"));
    }
    drop(misses);

    let prioritized = |exponent| SelectorKind::Prioritized { exponent };
    for sampler in [SelectorKind::Uniform, prioritized(0.6), prioritized(1.0)] {
        println!("{sampler}");
        measure(sampler, items, row_bytes, other);
    }
}

/// Durations of one piece of work.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn add<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0.push(start.elapsed());
        result
    }

    fn print(&mut self, what: &str) {
        self.0.sort_unstable();
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let (least, median) = (micros(self.0[0]), micros(self.0[self.0.len() / 2]));
        println!("  {what}: least {least:.1} µs, median {median:.1} µs");
    }
}

/// Lines of memory, each of which names another one.
struct Misses {
    lines: Vec<[u32; 16]>,
    rng: Rng,
}

impl Misses {
    fn new(lines: usize) -> Self {
        let mut rng = Rng::new(3);
        let lines = (0..lines).map(|_| [rng.below(lines as u64) as u32; 16]).collect();
        Self { lines, rng }
    }

    fn go(&mut self, steps: u32) -> u32 {
        let lines = self.lines.len() as u64;
        let mut places: [u32; BATCH] = std::array::from_fn(|_| self.rng.below(lines) as u32);
        for _ in 0..steps {
            places.iter_mut().for_each(|place| *place = self.lines[*place as usize][3]);
        }
        black_box(places[0])
    }
}

/// Leaves of a transition with rows of so many bytes.
fn leaves(row_bytes: usize) -> Vec<Leaf> {
    let words = row_bytes / 4;
    assert!(
        words >= 12 && row_bytes.is_multiple_of(8),
        "rows are a multiple of 8 bytes, at least 48"
    );
    let observation = words / 2 - 2;
    let lengths = [
        ("action", 1),
        ("discount", 1),
        ("next_obs", observation),
        ("obs", observation),
        ("reward", 2),
    ];
    let leaf = |(path, length): (&str, usize)| Leaf {
        path: path.into(),
        dtype: Dtype::Float(4),
        shape: vec![length],
    };
    lengths.map(leaf).to_vec()
}

fn measure(sampler: SelectorKind, items: usize, row_bytes: usize, other: usize) {
    let leaves = leaves(row_bytes);
    let table = filled(sampler, &leaves, items);
    let bytes_before = memory();
    let mut rows: Vec<u8> = echoic_memory::roomy(items * row_bytes);
    rows.resize(items * row_bytes, 1);
    let mut bare = vec![0; BATCH * row_bytes];
    let mut columns: Vec<Vec<u8>> =
        leaves.iter().map(|leaf| vec![0; leaf.shape[0] * 4 * BATCH]).collect();
    let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
    let mut rng = Rng::new(7);
    let mut other = vec![0u8; other];
    let mut sweep = || other.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
    let mut times: [Times; 5] = Default::default();
    for _ in 0..ROUNDS {
        let [gathering, sampling, drawing, updating, both] = &mut times;
        let draws: Vec<usize> = (0..BATCH).map(|_| rng.below(items as u64) as usize).collect();
        sweep();
        gathering.add(|| {
            for (pick, target) in draws.iter().zip(bare.chunks_exact_mut(row_bytes)) {
                target.copy_from_slice(&rows[pick * row_bytes..(pick + 1) * row_bytes]);
            }
            black_box(&mut bare);
        });
        sweep();
        let start = Instant::now();
        let infos = sampling.add(|| {
            let sampled = drawing.add(|| table.try_sample(BATCH).expect("a sample"));
            sampled.gather(&mut targets);
            black_box(&mut targets);
            sampled.into_infos()
        });
        updating
            .add(|| table.update_priorities(&infos.keys, &infos.priorities).expect("an update"));
        both.0.push(start.elapsed());
        for target in &targets {
            for (value, version) in target.chunks(target.len() / BATCH).zip(&infos.versions) {
                assert!(value.iter().all(|byte| *byte == *version as u8), "the item's own bytes");
            }
        }
    }
    let names = ["bare", "sample", "of which draw", "update", "sample and update"];
    for (name, times) in names.iter().zip(&mut times) {
        times.print(name);
    }
    let ratio =
        |at: fn(&Times) -> Duration| at(&times[1]).as_secs_f64() / at(&times[0]).as_secs_f64();
    println!(
        "  sample is {:.2} × bare at least, {:.2} × at the median",
        ratio(|times| times.0[0]),
        ratio(|times| times.0[ROUNDS / 2])
    );
    if let Some(bytes) = bytes_before {
        println!("  the process has {:.0} bytes for each item", bytes as f64 / items as f64);
    }
}

/// A table whose rows have the low byte of their version everywhere; it is full, and rows were replaced.
fn filled(sampler: SelectorKind, leaves: &[Leaf], items: usize) -> Arc<Table> {
    let table = Table::new(TableConfig {
        name: "t".into(),
        form: Form::Rows(Spec::new(leaves.to_vec()).expect("a spec")),
        structure: String::new(),
        sampler,
        remover: SelectorKind::Fifo,
        limiter: Limiter::min_size(1).expect("a limiter"),
        max_size: items as u32,
        max_times_sampled: 0,
        seed: 1,
    });
    let table = Arc::new(table.expect("a table"));
    let mut done = 0;
    while done < items + items / 10 {
        // All items of an insertion have the same version.
        let mut insertion = table.try_reserve(64).expect("room");
        let count = insertion.len();
        let version = (done / 64) as u64;
        (0..count).for_each(|index| insertion.row_mut(index).fill(version as u8));
        let priorities: Vec<f64> = (0..count).map(|index| (index % 100) as f64 + 1.0).collect();
        insertion.commit(&priorities, Some(version)).expect("an insert");
        done += count;
    }
    table
}

/// Bytes of memory that the process has, where the system says so.
fn memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024)
}
