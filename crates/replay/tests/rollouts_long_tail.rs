//! A simulation of producers of which some groups take 50 times as long as others: what a bound on the lag costs.
//!
//! Time is that of the simulation, in milliseconds; nothing sleeps. Producers make a group each, one after the
//! other; a group's duration is exponential around [`SHORT`], or 50 times that for one in a hundred. A group is of
//! the learner's version at its dispatch, as when workers take up new weights between groups. The learner takes a
//! batch, works for [`STEP`], publishes the next version, and takes another one. The step is a little shorter than
//! the producers need for a batch, so that they are what the throughput depends on.

mod rollouts;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use echoic_replay::rng::Rng;
use echoic_replay::rollouts::ledger::{Admit, Change, Hold, Ledger, Outcome};
use echoic_replay::rollouts::{OnStale, Order, RolloutConfig};
use rollouts::{config, groups, lags, whole};

const PRODUCERS: u32 = 64;
const BATCH: u32 = 32;
const SHORT: f64 = 1000.0;
const STEP: u64 = 500;
const END: u64 = 400_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A group, of a version.
    Finished(u64, i64),
    Stepped,
}

#[derive(Debug)]
struct Figures {
    /// Groups delivered in a second of the simulation.
    rate: f64,
    /// Of the time that producers worked, the part that went into groups that were thrown away.
    wasted: f64,
    mean_lag: f64,
    worst_lag: i64,
}

fn setting(max_lag: Option<u32>, order: Order, on_stale: OnStale) -> RolloutConfig {
    RolloutConfig {
        batch_groups: BATCH,
        max_lag,
        order,
        on_stale,
        max_running: PRODUCERS,
        max_groups: 100_000,
        permit_ttl_ms: END,
        ..config()
    }
}

fn simulate(config: RolloutConfig) -> Figures {
    let mut ledger = Ledger::new(config.into()).expect("a setting");
    let mut rng = Rng::new(3);
    let mut events: BinaryHeap<Reverse<(u64, Event)>> = BinaryHeap::new();
    let (mut now, mut idle) = (0, PRODUCERS);
    let (mut worked, mut useful) = (0u64, 0u64);
    let mut durations = std::collections::HashMap::new();
    let (mut delivered, mut lag_sum, mut worst_lag) = (0u64, 0i64, 0i64);
    let (mut is_stepping, mut version) = (false, 0);
    loop {
        // Whoever is idle begins, whenever something may have changed that.
        while idle > 0 {
            let admit = Admit { count: idle, ..Admit::default() };
            let Ok(Outcome::Admitted(permits)) = ledger.apply(now, &Change::Admit(admit)) else {
                break;
            };
            for permit in permits {
                let mean = if rng.unit() < 0.01 { 50.0 * SHORT } else { SHORT };
                let duration = 1 + (-mean * (1.0 - rng.unit()).ln()) as u64;
                durations.insert(permit.hold.group, duration);
                events.push(Reverse((now + duration, Event::Finished(permit.hold.group, version))));
                idle -= 1;
            }
        }
        if !is_stepping
            && let Ok(Outcome::Delivered(share)) = ledger.apply(now, &Change::Sample(groups(BATCH)))
        {
            ledger.apply(now, &Change::Ack(share.lease)).expect("its own");
            delivered += share.groups.len() as u64;
            useful += share.groups.iter().map(|group| durations[&group.id]).sum::<u64>();
            lag_sum += lags(&share).iter().sum::<i64>();
            worst_lag = lags(&share).into_iter().fold(worst_lag, i64::max);
            is_stepping = true;
            events.push(Reverse((now + STEP, Event::Stepped)));
        }
        let Some(Reverse((when, event))) = events.pop() else { panic!("everybody waits at {now}") };
        if when > END {
            break;
        }
        now = when;
        match event {
            Event::Finished(group, version) => {
                worked += durations[&group];
                idle += 1;
                let hold = Hold { group, attempt: 0 };
                ledger.apply(now, &Change::Append(whole(hold, 0, version, 1))).expect("a token");
            }
            Event::Stepped => {
                (is_stepping, version) = (false, version + 1);
                ledger.apply(now, &Change::Publish { version }).expect("a later version");
            }
        }
        drop(ledger.take_dead());
    }
    ledger.recount().expect("all lists agree");
    let there = ledger.totals().queued * SHORT as u64;
    Figures {
        rate: delivered as f64 * 1000.0 / now as f64,
        wasted: (worked.saturating_sub(useful + there)) as f64 / worked as f64,
        mean_lag: lag_sum as f64 / delivered as f64,
        worst_lag,
    }
}

/// The part of the throughput without a bound that is left with one.
fn share_of_unbounded(max_lag: u32, order: Order, on_stale: OnStale, unbounded: &Figures) -> f64 {
    let figures = simulate(setting(Some(max_lag), order, on_stale));
    let (share, wasted) = (100.0 * figures.rate / unbounded.rate, 100.0 * figures.wasted);
    let line = format!(
        "| {max_lag} | {order:?} | {on_stale:?} | {share:.1} % | {wasted:.1} % | {:.2} | {} |\n",
        figures.mean_lag, figures.worst_lag
    );
    // Seen with --nocapture.
    std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).expect("written");
    if matches!(on_stale, OnStale::Drop | OnStale::Wait) {
        assert!(figures.worst_lag <= i64::from(max_lag), "{line}");
    }
    share / 100.0
}

#[test]
fn a_bounded_lag_costs_less_than_a_tenth_of_the_throughput() {
    let unbounded = simulate(setting(None, Order::Ready, OnStale::Drop));
    let share = share_of_unbounded(4, Order::Ready, OnStale::Drop, &unbounded);
    assert!(share >= 0.9, "{share} of {unbounded:?}");
}

#[test]
#[ignore = "a table to look at, which takes a while: --release --ignored --nocapture"]
fn all_policies_keep_their_bound() {
    let unbounded = simulate(setting(None, Order::Ready, OnStale::Drop));
    std::io::Write::write_all(&mut std::io::stdout(), format!("{unbounded:.3?}\n").as_bytes())
        .expect("written");
    for max_lag in [1, 2, 4, 8] {
        let orders =
            [Order::Ready, Order::Freshest, Order::Oldest, Order::Submission, Order::Window(64)];
        for order in orders {
            for on_stale in [OnStale::Drop, OnStale::Wait, OnStale::Keep] {
                share_of_unbounded(max_lag, order, on_stale, &unbounded);
            }
        }
    }
}
