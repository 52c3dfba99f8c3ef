//! Rollout tables of all kinds, and what may happen to them.

use std::collections::HashMap;

use echoic_replay::limiter::Parameters;
use echoic_replay::rollouts::filter::Filter;
use echoic_replay::rollouts::ledger::{
    Append, Balance, Change, ChangeError, GroupStatus, Hold, Lease, Outcome, Reserve, Size, Want,
};
use echoic_replay::rollouts::{Delivery, OnExpiry, OnStale, Order, RolloutConfig};
use proptest::prelude::*;

use crate::table::{LATE, finish, pairs, segment, unmasked, unrewarded, update};

fn orders() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![
        Order::Ready,
        Order::Submission,
        Order::Window(3),
        Order::Freshest,
        Order::Oldest,
        Order::Weighted,
        Order::Weighted,
    ])
}

fn stales() -> impl Strategy<Value = OnStale> {
    prop::sample::select(vec![OnStale::Drop, OnStale::Wait, OnStale::Keep, OnStale::Mask])
}

/// Settings that can work, of all kinds, and what their consumers ask for.
pub fn any_table() -> impl Strategy<Value = (RolloutConfig, Want)> {
    let group = (1u32..4, 0u32..2, prop::option::of(50u64..400), any::<bool>(), any::<bool>());
    let batch = (1u32..3, 1u32..3, prop::option::weighted(0.9, 0u32..3), 0u32..3, 0u32..6);
    let policy = (
        orders(),
        stales(),
        0u32..3,
        prop::option::of(0u32..2),
        prop::option::weighted(0.3, 0u8..4),
    );
    let want = (1u32..5, 0usize..3, any::<bool>(), any::<bool>(), any::<bool>());
    let pace = (prop::sample::select(vec![60_000, 100]), prop::option::weighted(0.2, 1u8..3));
    (group, batch, policy, want, pace).prop_map(|(group, batch, policy, want, pace)| {
        let (group_size, redundancy, group_deadline_ms, filters, suspends) = group;
        let (half, batches_per_version, max_lag, depth, spare) = batch;
        let (order, on_stale, uses, target_lag, mean) = policy;
        let (ranks, balance, tokens, once, is_late) = want;
        let (reservation_ttl_ms, ratio) = pace;
        let batch_groups = half * ranks;
        let on_stale = match (max_lag, order, on_stale) {
            (None, ..) | (_, Order::Weighted, OnStale::Wait) => OnStale::Drop,
            _ => on_stale,
        };
        let needed = batch_groups * batches_per_version * (max_lag.unwrap_or(0) + 1);
        let limiter = ratio.map(|ratio| Parameters {
            min_size: 1,
            samples_per_insert: f64::from(ratio),
            min_diff: -16.0,
            max_diff: 16.0,
        });
        let mut schema = pairs().schema;
        if is_late {
            schema.late = LATE;
        }
        let config = RolloutConfig {
            schema,
            group_size,
            redundancy,
            group_deadline_ms,
            min_group_size: 1 + u32::from(filters).min(group_size - 1),
            batch_groups,
            batches_per_version,
            max_lag,
            pipeline_depth: max_lag.map(|most| depth.min(most)),
            max_running: 3 + spare,
            capacity: needed + spare,
            max_tokens: 20,
            order,
            on_stale,
            target_lag,
            max_mean_lag: mean.map(|half| f64::from(half) / 2.0),
            max_uses: if order == Order::Weighted { uses } else { 1 },
            delivery: if once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce },
            on_expiry: if suspends { OnExpiry::Suspend } else { OnExpiry::Reject },
            filter: filters.then(|| Filter::parse("max(reward) > 0").expect("a filter")),
            limiter,
            reservation_ttl_ms,
            ..pairs()
        };
        config.check().expect("settings that can work");
        let size = match tokens {
            // As large as the largest group, so that all batches can be full.
            true => Size::Tokens(20 * u64::from(group_size)),
            false => Size::Groups(batch_groups),
        };
        let balance = [Balance::Count, Balance::Tokens, Balance::Squares][balance];
        (config, Want { size, rank: 0, ranks, balance, lease_ms: None, width: 0 })
    })
}

/// One thing to do, whatever it will be.
pub type Step = (u8, u32, u32);

pub fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 1..most)
}

/// Producers, consumers and a learner, who know what they were told.
#[derive(Debug, Clone)]
pub struct Crowd {
    pub now: u64,
    version: i64,
    group_size: u32,
    /// What most consumers ask for.
    want: Want,
    /// Groups that were reserved and of which no end was told, and those that somebody has no longer.
    pub holds: Vec<Hold>,
    pub old_holds: Vec<Hold>,
    /// With when each ends.
    pub leases: Vec<(Lease, u64)>,
    old_leases: Vec<Lease>,
    /// How often the tokens of each item were sent.
    pub sequences: HashMap<(u64, u32), u32>,
    /// How many tokens each item has.
    pub tokens: HashMap<(u64, u32), u32>,
    /// Items of a group that are about to be finished, and those whose values come after that.
    finishing: Vec<(Hold, u32)>,
    updating: Vec<(Hold, u32)>,
    /// Whether values may come late.
    is_late: bool,
}

/// One of the last ones.
fn late<T: Copy>(all: &[T], which: u32) -> Option<T> {
    let back = 1 + which as usize % all.len().clamp(1, 5);
    all.len().checked_sub(back).map(|at| all[at])
}

impl Crowd {
    pub fn new(config: &RolloutConfig, want: Want) -> Self {
        Self {
            now: 0,
            version: 0,
            group_size: config.group_size,
            want,
            holds: Vec::new(),
            old_holds: Vec::new(),
            leases: Vec::new(),
            old_leases: Vec::new(),
            sequences: HashMap::new(),
            tokens: HashMap::new(),
            finishing: Vec::new(),
            updating: Vec::new(),
            is_late: config.schema.late == LATE,
        }
    }

    /// What somebody does, and when. Some are out of date, or make things up.
    pub fn change(&mut self, (kind, a, b): Step) -> (u64, Change) {
        self.now += [0, 0, 0, 1, 0, 1, 0, 2, 7, 45][b as usize / 7 % 10];
        let is_over = |(_, end): &&(Lease, u64)| *end <= self.now;
        self.old_leases.extend(self.leases.iter().filter(is_over).map(|(lease, _)| *lease));
        self.leases.retain(|lease| !is_over(&lease));
        (self.now, self.next((kind, a, b)))
    }

    fn next(&mut self, (kind, a, b): Step) -> Change {
        if let Some((hold, item)) = self.finishing.pop() {
            return self.append(hold, item, a % 5, a / 5 % 3, true);
        }
        if let Some((hold, item)) = self.updating.pop() {
            return self.update(hold, item, b);
        }
        let (hold, lease, groups) =
            (self.hold(a, b), self.lease(a, b), self.want.ranks * (1 + a % 3));
        match kind % 32 {
            0..=2 => Change::Reserve(Reserve {
                count: 1 + a % 5,
                source: format!("s{}", a % 3),
                keys: match b.is_multiple_of(3) {
                    true => (0..=a % 5).map(|key| format!("k{key}")).collect(),
                    false => Vec::new(),
                },
                version: b.is_multiple_of(5).then(|| (self.version - 1).max(0)),
                ttl_ms: b.is_multiple_of(8).then_some(30),
            }),
            3 if b.is_multiple_of(2) => {
                // Of one that runs, or is complete by now, with a consumer, or over.
                let of = if b.is_multiple_of(4) { &self.old_holds } else { &self.holds };
                let other = late(of, a).unwrap_or(hold);
                self.update(other, b / 4 % 4, b)
            }
            3..=5 => {
                let next = self.append(hold, b / 2 % 4, b % 6, a / 4 % 3, !a.is_multiple_of(4));
                match next {
                    // What was sent before, and what is not the next.
                    Change::Append(next) if b.is_multiple_of(7) => {
                        let sequence = if b.is_multiple_of(2) { 0 } else { next.sequence + 1 };
                        Change::Append(Append { sequence, ..next })
                    }
                    next => next,
                }
            }
            6..=13 => {
                self.finishing = (1..self.group_size).map(|item| (hold, item)).collect();
                if self.is_late && !a.is_multiple_of(3) {
                    self.updating = (0..self.group_size).map(|item| (hold, item)).collect();
                }
                self.append(hold, 0, a % 5, a / 5 % 3, true)
            }
            14 => Change::Fail { holds: vec![hold] },
            15 => Change::Suspend { holds: vec![hold] },
            16 => Change::Resume { source: format!("s{}", b % 4), ttl_ms: None },
            17 if b.is_multiple_of(2) => Change::Renew { holds: self.holds.clone() },
            17 => Change::Renew { holds: vec![hold] },
            18 | 19 => Change::Publish { version: self.version + i64::from(b % 4) / 2 },
            20..=23 => {
                let lease_ms = [None, Some(40), Some(1000)][b as usize % 3];
                let rank = b / 3 % self.want.ranks;
                let size = if a.is_multiple_of(4) { Size::Groups(groups) } else { self.want.size };
                Change::Sample(Want { size, rank, lease_ms, ..self.want })
            }
            24 | 25 => Change::Ack(lease),
            26 | 27 => Change::Nack(lease),
            28 => Change::Extend { lease, lease_ms: 100 },
            _ => match b % 8 {
                0 => Change::Remove { groups: vec![(a % 16).into(), (a % 16 + 7).into()] },
                1 | 2 => Change::Sample(Want { size: Size::Groups(groups), ..self.want }),
                3 => Change::Restore { version: (self.version + 1 - i64::from(a % 5)).max(0) },
                4 => Change::Deepen { depth: a % 3 },
                5 => Change::Tick,
                _ => Change::Reprioritize { priorities: vec![((a % 16).into(), f64::from(b % 5))] },
            },
        }
    }

    /// One that was given to somebody, and now and then one that is over, or never was.
    fn hold(&self, a: u32, b: u32) -> Hold {
        let of = if b.is_multiple_of(9) { &self.old_holds } else { &self.holds };
        let hold = late(of, a).unwrap_or(Hold { group: (a % 16).into(), attempt: 0 });
        Hold { attempt: hold.attempt + u32::from(b.is_multiple_of(18)), ..hold }
    }

    fn lease(&self, a: u32, b: u32) -> Lease {
        let lease = match b.is_multiple_of(9) {
            true => late(&self.old_leases, a),
            false => late(&self.leases, a).map(|(lease, _)| lease),
        };
        let lease = lease.unwrap_or(Lease { batch: (a % 16).into(), rank: 0, attempt: 1 });
        Lease { attempt: lease.attempt + u32::from(b.is_multiple_of(18)), ..lease }
    }

    /// Values of an item, and now and then of another number of tokens than it has.
    pub fn update(&self, hold: Hold, item: u32, b: u32) -> Change {
        let tokens = self.tokens.get(&(hold.group, item)).copied().unwrap_or(0);
        let mut update =
            update(hold, item, tokens + u32::from(b.is_multiple_of(11)), 1.0 + f64::from(b % 3));
        match b % 5 {
            0 => update.values.columns.clear(),
            1 => update.values.fields.clear(),
            _ => {}
        }
        Change::Update(update)
    }

    /// The next tokens of an item, of a version so much behind, and perhaps its end.
    pub fn append(&self, hold: Hold, item: u32, tokens: u32, behind: u32, ends: bool) -> Change {
        let mark = item + tokens;
        let version = (self.version - i64::from(behind)).max(0);
        let end = finish(f64::from(mark % 3), mark % 2);
        Change::Append(Append {
            hold,
            item,
            sequence: self.sequences.get(&(hold.group, item)).copied().unwrap_or(0),
            segment: match self.is_late && (mark + hold.group as u32).is_multiple_of(2) {
                true => unmasked(version, tokens, mark),
                false => segment(version, tokens, mark),
            },
            finish: if self.is_late && mark % 4 < 2 { unrewarded() } else { end }.filter(|_| ends),
            priority: f64::from(1 + mark % 3),
        })
    }

    /// Remembers what came of it.
    pub fn hear(&mut self, change: &Change, applied: &Result<Outcome, ChangeError>) {
        match (change, applied) {
            (_, Ok(Outcome::Reserved(reservations))) => {
                self.holds.extend(reservations.iter().map(|reservation| reservation.hold));
            }
            (_, Ok(Outcome::Resumed(reservation, items))) => {
                self.holds.push(reservation.hold);
                for item in items {
                    let key = (reservation.hold.group, item.index);
                    self.sequences.insert(key, item.segments.len() as u32);
                    self.tokens.insert(key, item.tokens());
                }
            }
            (Change::Sample(Want { lease_ms: Some(ms), .. }), Ok(Outcome::Delivered(share))) => {
                self.leases.push((share.lease, self.now + ms));
            }
            (Change::Append(append), Ok(Outcome::Appended(GroupStatus::Running))) => {
                let key = (append.hold.group, append.item);
                let next = append.sequence + u32::from(append.segment.tokens > 0);
                let sent = self.sequences.entry(key).or_default();
                if append.sequence == *sent {
                    *self.tokens.entry(key).or_default() += append.segment.tokens;
                }
                *sent = next.max(*sent);
            }
            (Change::Append(append), Ok(Outcome::Appended(status))) => {
                let key = (append.hold.group, append.item);
                if *status == GroupStatus::Complete && self.holds.contains(&append.hold) {
                    *self.tokens.entry(key).or_default() += append.segment.tokens;
                }
                self.let_go(append.hold);
            }
            (Change::Update(update), Ok(Outcome::Appended(status)))
                if *status != GroupStatus::Running && self.holds.contains(&update.hold) =>
            {
                self.let_go(update.hold);
            }
            (Change::Fail { holds } | Change::Suspend { holds }, Ok(_)) => {
                holds.iter().for_each(|hold| self.let_go(*hold));
            }
            (Change::Ack(lease) | Change::Nack(lease), Ok(_)) => {
                self.leases.retain(|(other, _)| other != lease);
                self.old_leases.push(*lease);
            }
            (Change::Extend { lease, lease_ms }, Ok(_)) => {
                let ends = self.leases.iter_mut().filter(|(other, _)| other == lease);
                ends.for_each(|(_, end)| *end = self.now + lease_ms);
            }
            (Change::Publish { version }, Ok(_)) => self.version = *version,
            (Change::Restore { version }, Ok(_)) => {
                self.version = *version;
                self.old_leases.extend(self.leases.drain(..).map(|(lease, _)| lease));
            }
            _ => {}
        }
    }

    fn let_go(&mut self, hold: Hold) {
        self.holds.retain(|other| *other != hold);
        self.old_holds.push(hold);
    }
}
