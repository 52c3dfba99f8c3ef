//! How long draws and updates take on a million items.
//!
//! `cargo run --release -p echoic-replay --example selectors`
//!
//! Every figure is the median and the 90th percentile of many calls, and what was drawn is checked
//! before it is printed. What this leaves out: the table around the selectors, which copies the items.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::time::{Duration, Instant};

use echoic_replay::rng::Rng;
use echoic_replay::selectors::{DrawnItem, Entry, Selector, SelectorKind, Slot};

const ITEMS: u32 = 1 << 20;
const BATCH: usize = 256;
const ROUNDS: usize = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kinds = [
        SelectorKind::Uniform,
        SelectorKind::Prioritized { exponent: 1.0 },
        SelectorKind::Prioritized { exponent: 0.6 },
        SelectorKind::Fifo,
        SelectorKind::MinHeap,
        SelectorKind::Epoch,
        SelectorKind::HotCold { age_threshold: 500, hot_fraction: 0.7, exponent: 0.6 },
    ];
    for kind in kinds {
        let mut rng = Rng::new(1);
        let mut selector = kind.build()?;
        selector.advance(1000);
        let begin = Instant::now();
        for slot in 0..ITEMS {
            selector.insert(slot, entry(&mut rng));
        }
        println!("{kind}");
        println!("  insert: {:.0} ns each", begin.elapsed().as_nanos() as f64 / f64::from(ITEMS));
        measure(selector.as_mut(), &mut rng);
    }
    Ok(())
}

fn entry(rng: &mut Rng) -> Entry {
    Entry { priority: rng.unit(), version: rng.below(1000) }
}

fn measure(selector: &mut dyn Selector, rng: &mut Rng) {
    let (mut picking, mut updating, mut replacing) = (Vec::new(), Vec::new(), Vec::new());
    let mut draws: Vec<DrawnItem> = Vec::with_capacity(BATCH);
    for _ in 0..ROUNDS {
        draws.clear();
        picking.push(timed(|| selector.pick(BATCH, rng, &mut draws)));
        assert_eq!(draws.len(), BATCH, "as many as were asked for");
        assert!(draws.iter().all(|pick| pick.slot < ITEMS && pick.probability > 0.0));
        let updates: Vec<(Slot, f64)> =
            draws.iter().map(|pick| (pick.slot, 0.1 + rng.unit())).collect();
        updating.push(timed(|| selector.update_many(&updates)));
        let slot = rng.below(u64::from(ITEMS)) as Slot;
        let new = entry(rng);
        replacing.push(timed(|| {
            selector.remove(slot);
            selector.insert(slot, new);
        }));
        assert_eq!(selector.len(), ITEMS as usize, "none came and none went");
    }
    report(&format!("pick({BATCH})"), picking);
    report(&format!("update_many({BATCH})"), updating);
    report("remove and insert", replacing);
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100].as_nanos() as f64 / 1000.0;
    println!("  {what}: {:.2} µs, 90 % below {:.2} µs", at(50), at(90));
}
