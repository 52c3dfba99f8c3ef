//! How long decisions of a rollout table take with many groups there.
//!
//! `cargo run --release -p echoic-replay --example rollouts_speed [GROUPS]`
//!
//! For each order and policy, a ledger gets `GROUPS` groups, nine of ten complete, of ages that the bound just allows.
//! Then, round after round, a batch of 32 is sampled and acked, and 32 groups are admitted and completed. So many batches
//! make a version that each group can just be in time; where batches wait for old groups, their places are counted.
//! Each figure is the median and the 99th percentile of the rounds, for one group. What is delivered is checked:
//! whole batches, within the bound. `mean` is with a bound on the mean lag.
//!
//! Left out: locks, copies, and what is made of a share.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_replay::Dtype;
use echoic_replay::rollouts::item::{Finish, Run, Segment};
use echoic_replay::rollouts::ledger::{
    Admit, Append, Balance, Change, Hold, Ledger, Outcome, Size, Want,
};
use echoic_replay::rollouts::{Column, OnStale, Order, RolloutConfig, Schema};

const BATCH: u32 = 32;
const ROUNDS: usize = 2_000;
const LAG: u32 = 16;
/// How many versions the groups of the beginning are of.
const AGES: u32 = 9;

fn main() {
    let groups: u32 =
        std::env::args().nth(1).map_or(100_000, |word| word.parse().expect("a number"));
    println!("{groups} groups, batches of {BATCH}, max_lag {LAG}; µs for a group: median (99 %)");
    println!("{:<34} {:>16} {:>16} {:>16} {:>16}", "", "admit", "complete", "sample", "ack");
    let orders = [
        Order::Ready,
        Order::Submission,
        Order::Window(1000),
        Order::Freshest,
        Order::Oldest,
        Order::Weighted,
    ];
    for order in orders {
        for on_stale in [OnStale::Drop, OnStale::Wait, OnStale::Keep, OnStale::Mask] {
            for mean in [None, Some(f64::from(LAG))] {
                if (order, on_stale) != (Order::Weighted, OnStale::Wait) {
                    measure(order, on_stale, mean, groups);
                }
            }
        }
    }
}

fn config(
    order: Order,
    on_stale: OnStale,
    max_mean_lag: Option<f64>,
    groups: u32,
) -> RolloutConfig {
    let column = |name: &str, dtype| Column { name: name.into(), dtype };
    let columns = vec![column("ids", Dtype::Int(4)), column("mask", Dtype::Bool)];
    RolloutConfig {
        group_deadline_ms: Some(1_000_000_000),
        batches_per_version: (groups / BATCH).div_ceil(AGES),
        max_lag: Some(LAG),
        max_running: 2 * groups,
        max_groups: 2 * groups,
        max_tokens: 16,
        order,
        on_stale,
        max_mean_lag,
        permit_ttl_ms: 1_000_000_000,
        ..RolloutConfig::new("t", Schema { columns, fields: vec![], mask: Some(1) }, 1, BATCH)
    }
}

struct Bench {
    ledger: Ledger,
    now: u64,
    /// Groups that run.
    open: VecDeque<Hold>,
    finish: Arc<Finish>,
}

impl Bench {
    fn apply(&mut self, change: &Change) -> Outcome {
        self.ledger.apply(self.now, change).expect("it may happen")
    }

    fn admit(&mut self, count: u32) {
        let admit = Admit { count, source: "worker".into(), ..Admit::default() };
        let Outcome::Admitted(permits) = self.apply(&Change::Admit(admit)) else { return };
        assert_eq!(permits.len() as u32, count, "room for all");
        self.open.extend(permits.iter().map(|permit| permit.hold));
    }

    fn append(&mut self, version: i64) -> Change {
        let hold = self.open.pop_front().expect("a group that runs");
        let runs = vec![Run { version, tokens: 4 }].into();
        let segment = Arc::new(Segment { runs, tokens: 4, bytes: vec![0; 20] });
        let finish = Some(Arc::clone(&self.finish));
        Change::Append(Append { hold, item: 0, sequence: 0, segment, finish, priority: 1.0 })
    }
}

/// Times of one thing, for a group.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn add<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0.push(start.elapsed() / BATCH);
        result
    }

    fn text(&mut self) -> String {
        self.0.sort_unstable();
        let micros = |at: usize| self.0[at].as_nanos() as f64 / 1000.0;
        format!("{:.2} ({:.2})", micros(self.0.len() / 2), micros(self.0.len() * 99 / 100))
    }
}

fn measure(order: Order, on_stale: OnStale, mean: Option<f64>, groups: u32) {
    let ledger = Ledger::new(Arc::new(config(order, on_stale, mean, groups))).expect("a ledger");
    let mut bench = Bench { ledger, now: 0, open: VecDeque::new(), finish: Arc::default() };
    let version = i64::from(LAG);
    bench.apply(&Change::Publish { version });
    // A tenth runs, and was admitted last.
    let complete = groups - groups / 10;
    for at in 0..groups {
        bench.now += u64::from(at % 8 == 0);
        bench.admit(1);
        if at < complete {
            let append = bench.append(i64::from(at) * i64::from(AGES) / i64::from(complete));
            bench.apply(&append);
        }
    }
    let want = Want {
        size: Size::Groups(BATCH),
        rank: 0,
        ranks: 1,
        balance: Balance::Tokens,
        lease_ms: Some(1_000_000),
    };
    let [mut admits, mut appends, mut samples, mut acks]: [Times; 4] = Default::default();
    for _ in 0..ROUNDS {
        bench.now += 1;
        let outcome = samples.add(|| bench.apply(&Change::Sample(want)));
        let Outcome::Delivered(share) = outcome else { panic!("a share, got {outcome:?}") };
        assert_eq!(share.groups.len() as u32, BATCH);
        let lag = |group: &echoic_replay::rollouts::item::Group| share.target - group.oldest;
        assert!(share.groups.iter().all(|group| {
            matches!(on_stale, OnStale::Keep | OnStale::Mask) || lag(group) <= i64::from(LAG)
        }));
        acks.add(|| bench.apply(&Change::Ack(share.lease)));
        drop(share);
        bench.ledger.take_dead();
        admits.add(|| (0..BATCH).for_each(|_| bench.admit(1)));
        let changes: Vec<Change> = (0..BATCH).map(|_| bench.append(version)).collect();
        appends.add(|| changes.iter().for_each(|change| drop(bench.apply(change))));
    }
    let name = format!("{order:?} {on_stale:?}{}", if mean.is_some() { " mean" } else { "" });
    let texts = [admits.text(), appends.text(), samples.text(), acks.text()];
    println!("{name:<34} {:>16} {:>16} {:>16} {:>16}", texts[0], texts[1], texts[2], texts[3]);
}
