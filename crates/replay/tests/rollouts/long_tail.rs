//! A simulation of producers of which some groups take 50 times as long as others: what a bound on the lag costs.
//!
//! Time is that of the simulation, in milliseconds; nothing sleeps. Producers make a group each, one after the
//! other; a group's duration is exponential around [`SHORT`], or 50 times that for one in a hundred. A group is of
//! the learner's version at its dispatch, as when workers take up new weights between groups. The learner takes a
//! batch, works for [`STEP`], publishes the next version, and takes another one. The step is a little shorter than
//! the producers need for a batch, so that they are what the throughput depends on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use echoic_replay::rng::Rng;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::ledger::{Change, Hold, Ledger, Outcome, Reserve};

use crate::table::{config, groups, lags, whole};

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
    worst_lag: i64,
}

fn setting(max_lag: Option<u32>) -> RolloutConfig {
    RolloutConfig {
        batch_groups: BATCH,
        max_lag,
        max_running: PRODUCERS,
        capacity: 100_000,
        reservation_ttl_ms: END,
        ..config()
    }
}

fn simulate(config: RolloutConfig) -> Figures {
    let mut ledger = Ledger::new(config.into()).expect("a setting");
    let mut rng = Rng::new(3);
    let mut events: BinaryHeap<Reverse<(u64, Event)>> = BinaryHeap::new();
    let (mut now, mut idle) = (0, PRODUCERS);
    let (mut delivered, mut worst_lag) = (0u64, 0);
    let (mut is_stepping, mut version) = (false, 0);
    loop {
        // Whoever is idle begins, whenever something may have changed that.
        while idle > 0 {
            let reserve = Reserve { count: idle, ..Reserve::default() };
            let Ok(Outcome::Reserved(reservations)) = ledger.apply(now, &Change::Reserve(reserve))
            else {
                break;
            };
            for reservation in reservations {
                let mean = if rng.unit() < 0.01 { 50.0 * SHORT } else { SHORT };
                let duration = 1 + (-mean * (1.0 - rng.unit()).ln()) as u64;
                events.push(Reverse((
                    now + duration,
                    Event::Finished(reservation.hold.group, version),
                )));
                idle -= 1;
            }
        }
        if !is_stepping
            && let Ok(Outcome::Delivered(share)) = ledger.apply(now, &Change::Sample(groups(BATCH)))
        {
            ledger.apply(now, &Change::Ack(share.lease)).expect("its own");
            delivered += share.groups.len() as u64;
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
    Figures { rate: delivered as f64 * 1000.0 / now as f64, worst_lag }
}

#[test]
fn a_bounded_lag_costs_less_than_a_tenth_of_the_throughput() {
    let (unbounded, bounded) = (simulate(setting(None)), simulate(setting(Some(4))));
    assert!(bounded.rate >= 0.9 * unbounded.rate, "{bounded:?} of {unbounded:?}");
    assert!(bounded.worst_lag <= 4, "{bounded:?}");
}
