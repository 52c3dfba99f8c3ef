//! How fast experiences are added to two tiers, while there is room and when each lets another go.
//!
//! `cargo run --release -p echoic-buffers --example surprise_speed -- [EXPERIENCES [PLAN [STATE]]]`
//!
//! Rows are those of `echoic.agents`: a plan, a state and the next one, of 32-bit floats, and some numbers. Besides
//! adds it shows what copying the same rows into memory costs that is there already: the bound of whatever stores
//! them. Time is that of this thread on a processor, since others may have the machine.

#![expect(clippy::print_stdout, reason = "it is what an example is for")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use echoic_buffers::RowLayout;
use echoic_buffers::surprise::{Ask, Mode, ScoreRule, Sizes, SurpriseReplay, SurpriseSettings};
use echoic_memory::sync::Mutex;
use echoic_primitives::plans::AveragePlan;
use echoic_replay::rng::Rng;
use echoic_replay::{Dtype, Leaf};

/// Rows that are added at once.
const BATCH: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (experiences, plan, state) = (number(1_000_000)?, number(16)?, number(8)?);
    let leaf = |dtype, shape: &[usize]| Leaf { path: String::new(), dtype, shape: shape.to_vec() };
    let float = Dtype::Float(4);
    let leaves = [
        leaf(float, &[plan]),
        leaf(float, &[]),
        leaf(float, &[state]),
        leaf(float, &[state]),
        leaf(Dtype::Int(8), &[]),
        leaf(float, &[4]),
    ];
    let layout = RowLayout::new(leaves.iter().map(Some))?;
    let row_bytes = layout.row_bytes();
    // What is copied is not in the processor's cache, as a batch of another process is not.
    let mut rng = Rng::new(1);
    let floats = (0..BATCH * row_bytes / 4).map(|_| (rng.unit() as f32 * 2.0 - 1.0).to_ne_bytes());
    let source: Vec<u8> = floats.flatten().collect();
    let settings = SurpriseSettings {
        sizes: Sizes { hot: experiences, cold: experiences, total: experiences },
        age_threshold: 100,
        max_age: 10_000,
        mode: Mode::Standard { clip: 3.0 },
        rule: Some(ScoreRule { surprise_weight: 1.0, reward_weight: 1.0, mean_over_dims: true }),
        plan: 0,
        reward: 1,
        refresh: 0,
        moves_mean: true,
        seed: 1,
        archive: None,
        text: String::new(),
    };
    let mean = Arc::new(Mutex::new(AveragePlan::new(plan, 0.99)));
    let replay = SurpriseReplay::new(layout, mean, settings)?;
    let mut longest = 0.0_f64;
    let mut add = |rows: usize| -> Result<(), Box<dyn Error>> {
        let (mut left, mut keys) = (rows, Vec::new());
        while left > 0 {
            let start = Instant::now();
            let mut reserved = replay.reserve(left.min(BATCH))?;
            reserved.fill(|at, row| row.copy_from_slice(&source[at * row_bytes..][..row_bytes]));
            left -= reserved.len();
            keys.clear();
            replay.add(reserved, None, &mut keys);
            longest = longest.max(start.elapsed().as_secs_f64());
        }
        Ok(())
    };
    println!("{experiences} experiences of {row_bytes} bytes");
    let show = |what: &str, seconds: f64, rows: usize| {
        let (each, bytes) = (seconds / rows as f64, (rows * row_bytes) as f64 / seconds / 1e9);
        println!("{what}: {:.0}/s, {:.0} ns each, {bytes:.2} GB/s", 1.0 / each, each * 1e9);
    };
    show("adds while it fills", busy(|| add(experiences))?, experiences);
    replay.draw(Ask { count: 256, temperature: 1.0, hot_share: 0.5, beta: 0.4, seed: None })?;
    for _ in 0..3 {
        show("adds when full", busy(|| add(experiences))?, experiences);
    }
    let mut copies = vec![1_u8; row_bytes * experiences];
    let copy = busy(|| {
        for (block, rows) in copies.chunks_mut(BATCH * row_bytes).enumerate() {
            let from = &source[..rows.len()];
            rows.copy_from_slice(std::hint::black_box(from));
            std::hint::black_box((block, rows));
        }
        Ok(())
    })?;
    show("copies of the same rows", copy, experiences);
    println!("the longest add of a batch took {:.1} ms by the clock", longest * 1e3);
    println!("{:?}", replay.counts());
    Ok(())
}

/// Seconds that this thread had a processor; those of the clock where the system does not report them.
fn busy(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let on_processor = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    let (start, before) = (Instant::now(), on_processor());
    work()?;
    let nanoseconds = on_processor().zip(before).map(|(now, before)| now - before);
    Ok(nanoseconds.map_or(start.elapsed().as_secs_f64(), |spent| spent / 1e9))
}
