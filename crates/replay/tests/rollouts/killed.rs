//! Processes that have a rollout table with a directory, and are killed at any moment.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use echoic_replay::rng::Rng;
use echoic_replay::rollouts::durable::{Durability, DurableOptions, History};
use echoic_replay::rollouts::ledger::{Change, Outcome, Want};
use echoic_replay::rollouts::table::CallError;
use echoic_replay::rollouts::{Order, RolloutConfig, RolloutTable};

use crate::processes::{kill_once, orders, say, tempdir};
use crate::table::{marked, pairs, reserve, want};
use crate::waiting::soon;

fn open(dir: &Path) -> RolloutTable {
    let durable = DurableOptions { durability: Durability::Async, history: true };
    let config = RolloutConfig {
        order: Order::Submission,
        max_lag: None,
        max_running: 64,
        capacity: 256,
        reservation_ttl_ms: 20,
        ..pairs()
    };
    RolloutTable::open(config, dir, durable).unwrap()
}

fn call(table: &RolloutTable, change: &Change) -> Result<Outcome, CallError> {
    soon(|wait| table.call(change, wait))
}

#[test]
fn the_process_that_is_killed() {
    // Run by itself, it does nothing.
    let Some(dir) = orders() else { return };
    let table = &open(Path::new(&dir));
    std::thread::scope(|scope| {
        for producer in 0..2_u32 {
            scope.spawn(move || {
                for mark in producer << 16.. {
                    let Ok(Outcome::Reserved(reservations)) = call(table, &reserve(1)) else {
                        panic!()
                    };
                    let hold = reservations[0].hold;
                    say(&format!("reserved {}", hold.group));
                    // One that is left over expires.
                    if mark % 9 == 8 {
                        continue;
                    }
                    call(table, &marked(hold, 0, 0, mark)).unwrap();
                    if call(table, &marked(hold, 1, 0, mark)).unwrap()
                        == Outcome::Appended(echoic_replay::rollouts::ledger::GroupStatus::Complete)
                    {
                        say(&format!("complete {}", hold.group));
                    }
                }
            });
        }
        for rank in 0..2_u32 {
            scope.spawn(move || {
                let want = Want { rank, ranks: 2, ..want(4, Some(60_000)) };
                for round in 0.. {
                    let Ok(Outcome::Delivered(share)) = call(table, &Change::Sample(want)) else {
                        panic!()
                    };
                    let ids: Vec<String> =
                        share.groups.iter().map(|group| group.id.to_string()).collect();
                    say(&format!("delivered {}", ids.join(" ")));
                    if round % 7 == 6 {
                        call(table, &Change::Nack(share.lease)).unwrap();
                        continue;
                    }
                    call(table, &Change::Ack(share.lease)).unwrap();
                    say(&format!("acked {}", ids.join(" ")));
                }
            });
        }
        scope.spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(3));
                table.checkpoint().unwrap();
                say("checkpoint");
            }
        });
    });
}

#[test]
fn nothing_that_was_acknowledged_is_missing_and_nothing_acked_comes_again() {
    let (dir, mut rng) = (tempdir(), Rng::new(1));
    let [mut reserved, mut complete, mut delivered, mut acked] =
        [(); 4].map(|()| BTreeSet::<u64>::new());
    let mut checkpoints = 0;
    for round in 0..6_u64 {
        let mut left = 50 + rng.below(600);
        let is_enough = |_: &str| {
            left -= 1;
            left == 0
        };
        let child = "killed::the_process_that_is_killed";
        for line in kill_once(child, dir.path().to_str().unwrap(), is_enough) {
            let mut words = line.split(' ');
            let what = words.next().unwrap();
            let mut ids = words.filter_map(|word| word.parse::<u64>().ok());
            match what {
                "reserved" => assert!(ids.all(|id| reserved.insert(id)), "{line} twice"),
                "complete" => complete.extend(ids),
                "delivered" => {
                    for id in ids {
                        assert!(!acked.contains(&id), "{id} was acked, and comes again");
                        delivered.insert(id);
                    }
                }
                "acked" => assert!(ids.all(|id| acked.insert(id)), "{line} twice"),
                "checkpoint" => checkpoints += 1,
                _ => {}
            }
        }
        let table = open(dir.path());
        let counts = table.info().counts;
        let sum = counts.running + counts.accepted + counts.rejected + counts.filtered;
        assert_eq!(counts.submitted, sum);
        assert!(counts.submitted >= reserved.len() as u64, "{counts:?}");
        assert!(counts.accepted >= complete.len() as u64, "{counts:?}");
        assert!(counts.delivered >= delivered.len() as u64, "{counts:?}");
        assert!(counts.acked >= acked.len() as u64, "{counts:?}");
        // Of two shares nobody was told before each end.
        assert!(counts.acked <= acked.len() as u64 + 4 * (round + 1), "{counts:?}");
        table.close();
    }
    assert!(acked.len() > 50 && checkpoints > 3, "{} acked, {checkpoints}", acked.len());
    let mut past = History::open(dir.path(), None).unwrap();
    let mut seen = BTreeSet::new();
    while let Some(one) = past.next_share(u64::MAX).unwrap().flatten() {
        seen.extend(one.share.groups.iter().map(|group| group.id));
    }
    assert!(delivered.is_subset(&seen));
}
