//! Rollout tables of all kinds, and what may happen to them.
#![allow(dead_code, reason = "each test uses some of it")]

#[path = "../settings/mod.rs"]
mod settings;

use std::collections::HashMap;
use std::sync::Arc;

use echoic_replay::limiter::Parameters;
use echoic_replay::rollouts::filter::Filter;
use echoic_replay::rollouts::item::{Finish, Run, Segment};
use echoic_replay::rollouts::ledger::{
    Admit, Append, Balance, Change, Hold, Lease, Outcome, Refusal, Size, Want,
};
use echoic_replay::rollouts::{Delivery, OnExpiry, OnStale, Order, RolloutConfig};

use self::settings::plain;

/// Groups of two items of up to 64 tokens: ids, a mask, and a reward.
pub fn config() -> RolloutConfig {
    RolloutConfig {
        redundancy: 1,
        max_lag: Some(2),
        max_running: 8,
        max_groups: 16,
        max_tokens: 64,
        max_blob_bytes: 64,
        ..plain()
    }
}

/// Settings that can work, of all kinds.
pub fn any_config(choice: u64) -> RolloutConfig {
    let mut left = choice;
    let mut next = |many: u64| {
        let chosen = left % many;
        left /= many;
        chosen
    };
    let mut config = config();
    config.order = [
        Order::Ready,
        Order::Submission,
        Order::Window(2),
        Order::Freshest,
        Order::Oldest,
        Order::Weighted,
        Order::Weighted,
    ][next(7) as usize];
    config.on_stale =
        [OnStale::Drop, OnStale::Wait, OnStale::Keep, OnStale::Mask][next(4) as usize];
    config.delivery = [Delivery::AtLeastOnce, Delivery::AtMostOnce][next(2) as usize];
    config.on_expiry = [OnExpiry::Reject, OnExpiry::Suspend][next(2) as usize];
    config.group_deadline_ms = [None, Some(120)][next(2) as usize];
    config.filter = [None, Some("spread(reward) > 0")][next(2) as usize]
        .map(|text| Filter::parse(text).unwrap());
    config.limiter = [
        None,
        Some(Parameters { min_size: 1, samples_per_insert: 1.0, min_diff: -8.0, max_diff: 8.0 }),
    ][next(2) as usize];
    config.max_mean_lag = [None, Some(0.5)][next(2) as usize];
    config.target_lag = [None, Some(1)][next(2) as usize];
    config.permit_ttl_ms = [60_000, 50][next(2) as usize];
    config.batches_per_version = 1 + next(2) as u32;
    if next(5) == 0 {
        (config.max_lag, config.on_stale) = (None, OnStale::Drop);
    }
    if config.order == Order::Weighted {
        config.max_uses = next(3) as u32;
        if config.on_stale == OnStale::Wait {
            config.on_stale = OnStale::Drop;
        }
    }
    config.check().unwrap();
    config
}

pub fn segment(tokens: u32, version: i64, mark: u32) -> Arc<Segment> {
    let ids = (0..tokens).flat_map(|at| (mark.wrapping_mul(31) + at).to_le_bytes());
    let bytes = ids.chain((0..tokens).map(|_| 1)).collect();
    let runs = if tokens == 0 { vec![] } else { vec![Run { version, tokens }] };
    Arc::new(Segment { runs: runs.into(), tokens, bytes })
}

pub fn finish(reward: f64, blob: u32) -> Arc<Finish> {
    let blobs = match blob {
        0 => Vec::new(),
        len => vec![("text".to_owned(), vec![len as u8; len as usize])],
    };
    Arc::new(Finish { fields: reward.to_le_bytes().to_vec(), blobs })
}

pub fn whole_item(hold: Hold, item: u32, version: i64, mark: u32) -> Change {
    Change::Append(Append {
        hold,
        item,
        sequence: 0,
        segment: segment(3 + mark % 5, version, mark),
        finish: Some(finish(f64::from(mark % 7), mark % 3)),
        priority: 1.0 + f64::from(mark % 4),
    })
}

pub fn admit(count: u32) -> Change {
    Change::Admit(Admit { count, source: "s".into(), ..Admit::default() })
}

pub fn want(groups: u32, lease_ms: Option<u64>) -> Want {
    let (size, balance) = (Size::Groups(groups), Balance::Count);
    Want { size, rank: 0, ranks: 1, balance, lease_ms, width: 0 }
}

/// One thing to do, whatever it will be.
pub type Step = (u8, u32, u32);

/// Producers, consumers and a learner, who know what they were told.
#[derive(Debug, Clone, Default)]
pub struct Crowd {
    pub now: u64,
    version: i64,
    holds: Vec<Hold>,
    leases: Vec<Lease>,
    /// Segments of an item.
    sequences: HashMap<(u64, u32), u32>,
}

impl Crowd {
    /// What somebody does, and when.
    pub fn change(&mut self, (kind, a, b): Step) -> (u64, Change) {
        self.now += [0, 0, 0, 1, 0, 1, 0, 2, 7, 45][b as usize / 7 % 10];
        let hold = |holds: &[Hold]| match holds {
            [] => Hold { group: a.into(), attempt: 0 },
            holds => holds[holds.len() - 1 - a as usize % holds.len().min(5)],
        };
        let lease = || match &self.leases[..] {
            [] => Lease { batch: a.into(), rank: 0, attempt: 1 },
            leases => leases[leases.len() - 1 - a as usize % leases.len().min(3)],
        };
        let change = match kind % 24 {
            0..=2 => Change::Admit(Admit {
                count: if b.is_multiple_of(3) { 1 } else { 1 + a % 3 },
                source: format!("s{}", a % 3),
                key: if b.is_multiple_of(3) { format!("k{}", a % 4) } else { String::new() },
                version: b.is_multiple_of(5).then(|| (self.version - 1).max(0)),
                ttl_ms: b.is_multiple_of(8).then_some(30),
            }),
            3..=11 => {
                let (hold, item) = (hold(&self.holds), b / 2 % 3);
                let sequence = self.sequences.get(&(hold.group, item)).copied().unwrap_or(0);
                let sequence = if b.is_multiple_of(17) { 0 } else { sequence };
                Change::Append(Append {
                    hold,
                    item,
                    sequence,
                    segment: segment(b % 4, (self.version - i64::from(a % 3)).max(0), a ^ b),
                    finish: (a % 8 != 0).then(|| finish(f64::from(a % 3), b % 2)),
                    priority: f64::from(a % 3),
                })
            }
            12 => Change::Fail { holds: vec![hold(&self.holds)] },
            13 => Change::Suspend { holds: vec![hold(&self.holds)] },
            14 => Change::Resume { source: format!("s{}", b % 4), ttl_ms: None },
            15 => Change::Renew { holds: self.holds.clone() },
            16 => Change::Publish { version: self.version + i64::from(b % 3 == 0) },
            17 | 18 => {
                let ranks = 1 + u32::from(a % 3 == 0);
                let size = match b % 5 {
                    0 => Size::Tokens(128),
                    _ => Size::Groups(2),
                };
                let balance = [Balance::Count, Balance::Tokens, Balance::Squares][a as usize % 3];
                let lease_ms = [None, Some(40), Some(1000)][b as usize % 3];
                let rank = b / 3 % ranks;
                Change::Sample(Want { size, rank, ranks, balance, lease_ms, width: 0 })
            }
            19 => Change::Ack(lease()),
            20 => Change::Nack(lease()),
            21 => Change::Extend { lease: lease(), lease_ms: 100 },
            22 => match b % 4 {
                0 => Change::Discard { groups: vec![(a % 16).into()] },
                1 if b.is_multiple_of(3) => Change::Recall(want(1 + a % 2, None)),
                1 => Change::Shed,
                2 if b.is_multiple_of(3) => Change::Restore { version: (self.version - 1).max(0) },
                _ => Change::Reprioritize { priorities: vec![((a % 16).into(), f64::from(b % 5))] },
            },
            _ => Change::Tick,
        };
        (self.now, change)
    }

    /// Remembers what came of it.
    pub fn hear(&mut self, change: &Change, applied: &Result<Outcome, Refusal>) {
        match (change, applied) {
            (_, Ok(Outcome::Admitted(permits))) => {
                self.holds.extend(permits.iter().map(|permit| permit.hold));
            }
            (_, Ok(Outcome::Resumed(permit, items))) => {
                self.holds.push(permit.hold);
                for item in items {
                    let key = (permit.hold.group, item.index);
                    self.sequences.insert(key, item.segments.len() as u32);
                }
            }
            (_, Ok(Outcome::Delivered(share))) => self.leases.push(share.lease),
            (Change::Append(append), Ok(_)) if append.segment.tokens > 0 => {
                let key = (append.hold.group, append.item);
                self.sequences.insert(key, append.sequence + 1);
            }
            (Change::Publish { version } | Change::Restore { version }, Ok(_)) => {
                self.version = *version;
            }
            _ => {}
        }
    }
}
