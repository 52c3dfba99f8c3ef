//! What holds for a ledger whatever producers, consumers and time do.
//!
//! Each case is a table of some setting and a list of steps, drawn at random. A step does something to what is
//! there: which group, whose lease, and when, is chosen by numbers of the case, so that a smaller case is a case.

mod rollouts;

use std::collections::{HashMap, HashSet};

use echoic_replay::rollouts::filter::Filter;
use echoic_replay::rollouts::ledger::{
    Admit, Balance, Blocked, Change, Fate, Hold, Lease, Outcome, Refusal, Share, Size, Want,
};
use echoic_replay::rollouts::{Delivery, OnExpiry, OnStale, Order, RolloutConfig};
use proptest::prelude::*;
use rollouts::{LEASE, TTL, Table, config, oldest, part, reward, segment};

#[derive(Debug, Clone)]
enum Step {
    Admit {
        count: u32,
        key: u8,
        behind: u8,
    },
    /// To an open group: tokens of a version so much behind, and perhaps the end of the item.
    Append {
        which: usize,
        item: u32,
        tokens: u32,
        behind: u8,
        ends: bool,
        good: bool,
    },
    Finish {
        which: usize,
        behind: u8,
    },
    Fail(usize),
    Suspend(usize),
    Resume,
    Renew(usize),
    Publish(u8),
    Sample {
        rank: u32,
        leased: bool,
        /// Groups for each rank, instead of what all ask for.
        part: Option<u32>,
    },
    Ack(usize),
    Nack(usize),
    Extend(usize),
    /// Somebody who is out of date, or makes things up.
    Forge(usize),
    Discard(u8),
    Reprioritize(u8, u8),
    Restore(u8),
    Deepen(u8),
    Shed,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    prop_oneof![
        6 => (1u32..6, 0u8..8, 0u8..3).prop_map(|(count, key, behind)| Step::Admit { count, key, behind }),
        6 => (which(), 0u32..4, 0u32..6, 0u8..3, any::<bool>(), any::<bool>()).prop_map(
            |(which, item, tokens, behind, ends, good)| Step::Append { which, item, tokens, behind, ends, good }
        ),
        14 => (which(), 0u8..3).prop_map(|(which, behind)| Step::Finish { which, behind }),
        1 => which().prop_map(Step::Fail),
        1 => which().prop_map(Step::Suspend),
        1 => Just(Step::Resume),
        1 => which().prop_map(Step::Renew),
        4 => (0u8..3).prop_map(Step::Publish),
        8 => (0u32..4, any::<bool>(), prop::option::weighted(0.3, 1u32..4)).prop_map(
            |(rank, leased, part)| Step::Sample { rank, leased, part }
        ),
        4 => which().prop_map(Step::Ack),
        1 => which().prop_map(Step::Nack),
        1 => which().prop_map(Step::Extend),
        1 => which().prop_map(Step::Forge),
        1 => (0u8..20).prop_map(Step::Discard),
        1 => (0u8..20, 0u8..3).prop_map(|(group, priority)| Step::Reprioritize(group, priority)),
        1 => (0u8..5).prop_map(Step::Restore),
        1 => (0u8..3).prop_map(Step::Deepen),
        1 => Just(Step::Shed),
        3 => (0u16..600).prop_map(Step::Pass),
    ]
}

#[derive(Debug, Clone)]
struct Case {
    config: RolloutConfig,
    /// What consumers ask for, all alike.
    want: Want,
    steps: Vec<Step>,
}

fn orders() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![
        Order::Ready,
        Order::Submission,
        Order::Window(3),
        Order::Freshest,
        Order::Oldest,
        Order::Weighted,
    ])
}

fn stales() -> impl Strategy<Value = OnStale> {
    prop::sample::select(vec![OnStale::Drop, OnStale::Wait, OnStale::Keep, OnStale::Mask])
}

fn table() -> impl Strategy<Value = (RolloutConfig, Want)> {
    let group = (1u32..4, 0u32..2, prop::option::of(50u64..400), any::<bool>(), any::<bool>());
    let batch = (1u32..3, 1u32..3, prop::option::weighted(0.9, 0u32..3), 0u32..3, 0u32..6);
    let policy = (
        orders(),
        stales(),
        0u32..3,
        prop::option::of(0u32..2),
        prop::option::weighted(0.3, 0u8..4),
    );
    let want = (1u32..5, 0u8..3, any::<bool>(), any::<bool>());
    (group, batch, policy, want).prop_map(|(group, batch, policy, want)| {
        let (group_size, redundancy, group_deadline_ms, filters, suspends) = group;
        let (half, batches_per_version, max_lag, depth, spare) = batch;
        let (order, on_stale, uses, target_lag, mean) = policy;
        let (ranks, balance, tokens, once) = want;
        let batch_groups = half * ranks;
        let on_stale = match (max_lag, order, on_stale) {
            (None, ..) | (_, Order::Weighted, OnStale::Wait) => OnStale::Drop,
            _ => on_stale,
        };
        let needed = batch_groups * batches_per_version * (max_lag.unwrap_or(0) + 1);
        let config = RolloutConfig {
            group_size,
            redundancy,
            group_deadline_ms,
            min_group_size: 1 + u32::from(filters).min(group_size - 1),
            batch_groups,
            batches_per_version,
            max_lag,
            pipeline_depth: max_lag.map(|most| depth.min(most)),
            max_running: 3 + spare,
            max_groups: needed + spare,
            max_tokens: 20,
            order,
            on_stale,
            target_lag,
            max_mean_lag: mean.map(|half| f64::from(half) / 2.0),
            max_uses: if order == Order::Weighted { uses } else { 1 },
            delivery: if once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce },
            on_expiry: if suspends { OnExpiry::Suspend } else { OnExpiry::Reject },
            filter: filters.then(|| Filter::parse("max(reward) > 0").expect("a filter")),
            ..config()
        };
        let balance = [Balance::Count, Balance::Tokens, Balance::Squares][usize::from(balance)];
        let size = match tokens {
            // As large as the largest group, so that all batches can be full.
            true => Size::Tokens(20 * u64::from(group_size)),
            false => Size::Groups(batch_groups),
        };
        let want = Want { size, rank: 0, ranks, balance, lease_ms: Some(LEASE), width: 0 };
        (config, want)
    })
}

fn case() -> impl Strategy<Value = Case> {
    (table(), prop::collection::vec(step(), 1..120)).prop_map(|((config, want), steps)| Case {
        config,
        want,
        steps,
    })
}

/// A table, and what was seen of it from outside.
struct World {
    table: Table,
    want: Want,
    /// Groups that were admitted and of which no end was told, and who has them.
    holds: Vec<Hold>,
    old_holds: Vec<Hold>,
    leases: Vec<Lease>,
    /// When each lease ends.
    ends: HashMap<Lease, u64>,
    old_leases: Vec<Lease>,
    /// How often the tokens of each item were sent.
    sequences: HashMap<(u64, u32), u32>,
    /// Groups that were said to be complete.
    completed: HashMap<u64, Hold>,
    /// Groups by how they were delivered: with consumers, given back, done.
    state: HashMap<u64, Delivered>,
    shares: HashMap<(u64, u32), Vec<u64>>,
    /// The number of groups in each batch, and the sum of their lags.
    sums: HashMap<u64, (i64, f64)>,
    /// How many changes there were.
    changes: usize,
    /// Whether it is looked whether refusals change something.
    is_compared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Delivered {
    Out(Lease, u32),
    Back(u32),
    Done(u32),
}

impl World {
    fn new(case: &Case) -> Self {
        Self {
            table: Table::new(case.config.clone()),
            want: case.want,
            holds: vec![],
            old_holds: vec![],
            leases: vec![],
            ends: HashMap::new(),
            old_leases: vec![],
            sequences: HashMap::new(),
            completed: HashMap::new(),
            state: HashMap::new(),
            shares: HashMap::new(),
            sums: HashMap::new(),
            changes: 0,
            is_compared: true,
        }
    }

    /// Applies a change; if it is refused, it must have changed nothing.
    fn apply(&mut self, change: Change) -> Result<Outcome, Refusal> {
        // What time does comes first, and is no refusal's.
        self.table.apply(Change::Tick).expect("time passes");
        let before = (self.is_compared && self.changes.is_multiple_of(4))
            .then(|| format!("{:?}", self.table.ledger));
        let (capacity, counts) = (self.table.capacity(), self.table.ledger.counts());
        let outcome = self.table.apply(change.clone());
        if outcome.is_err() {
            assert_eq!(self.table.ledger.counts(), counts, "{change:?} was refused");
            assert_eq!(self.table.capacity(), capacity, "{change:?} was refused");
            if let Some(before) = before {
                assert_eq!(format!("{:?}", self.table.ledger), before, "{change:?} was refused");
            }
        }
        self.changes += 1;
        self.admission_is_as_defined();
        outcome
    }

    /// The capacity is the least of the three terms, but for those that only some settings have.
    fn admission_is_as_defined(&self) {
        let (config, totals) = (self.table.ledger.config(), self.table.ledger.totals());
        let counts = self.table.ledger.counts();
        let live = counts.running + totals.queued + totals.out;
        assert!(totals.capacity <= u64::from(config.max_running) - counts.running);
        if config.order != Order::Weighted {
            assert!(totals.capacity <= u64::from(config.max_groups) - live);
        }
    }

    fn pick<T: Copy>(all: &[T], which: usize) -> Option<T> {
        if all.is_empty() { None } else { all.get(which % all.len()).copied() }
    }

    fn version(&self, behind: u8) -> i64 {
        (self.table.ledger.totals().version - i64::from(behind)).max(0)
    }

    fn append(
        &mut self,
        hold: Hold,
        item: u32,
        tokens: u32,
        version: i64,
        end: Option<bool>,
    ) -> Option<Fate> {
        let sequence = *self.sequences.get(&(hold.group, item)).unwrap_or(&0);
        let mut append = part(hold, item, sequence, version);
        append.segment = segment(version, tokens);
        append.finish = end.and_then(|good| reward(f32::from(u8::from(good))));
        let outcome = self.apply(Change::Append(append)).ok()?;
        let Outcome::Appended(fate) = outcome else { panic!("appended, got {outcome:?}") };
        if fate == Fate::Running && tokens > 0 {
            self.sequences.insert((hold.group, item), sequence + 1);
        }
        if fate == Fate::Complete {
            // Whoever had it before and comes back hears the same.
            self.completed.entry(hold.group).or_insert(hold);
        }
        if fate != Fate::Running {
            self.let_go(hold);
        }
        Some(fate)
    }

    fn let_go(&mut self, hold: Hold) {
        self.holds.retain(|other| *other != hold);
        self.old_holds.push(hold);
    }

    /// Ends a group: each item that is not finished gets a token and its end.
    fn finish(&mut self, hold: Hold, version: i64) {
        for item in 0..self.table.ledger.config().group_size {
            match self.append(hold, item, 1, version, Some(true)) {
                // It may be finished already, or have as many tokens as it may.
                Some(Fate::Running) | None => {}
                Some(_) => return,
            }
            if self.holds.contains(&hold) {
                self.append(hold, item, 0, version, Some(true));
            }
        }
    }

    fn sample(&mut self, rank: u32, leased: bool, part: Option<u32>) -> Result<Share, Blocked> {
        let lease_ms = leased.then_some(LEASE);
        let ranks = self.want.ranks;
        let size = match part {
            Some(part) if part * ranks <= self.most_of_batch() => Size::Groups(part * ranks),
            _ => self.want.size,
        };
        let want = Want { size, rank: rank % ranks, lease_ms, ..self.want };
        let mut outcome = self.apply(Change::Sample(want));
        // As a table does it.
        if let Err(Refusal::Blocked(_)) = outcome
            && let Ok(Outcome::Count(1..)) = self.apply(Change::Recall(want))
        {
            outcome = self.apply(Change::Sample(want));
        }
        while outcome == Err(Refusal::Blocked(Blocked::MeanLag))
            && self.apply(Change::Shed) == Ok(Outcome::Count(1))
        {
            outcome = self.apply(Change::Sample(want));
        }
        match outcome {
            Ok(Outcome::Delivered(share)) => {
                self.delivered(&share, size, leased);
                Ok(share)
            }
            Err(Refusal::Blocked(blocked)) => Err(blocked),
            other => panic!("delivered or blocked, got {other:?}"),
        }
    }

    /// Everything that a share must be.
    fn delivered(&mut self, share: &Share, size: Size, leased: bool) {
        let config = self.table.ledger.config().clone();
        let groups = rollouts::ids(share);
        let distinct: HashSet<u64> = groups.iter().copied().collect();
        assert_eq!(distinct.len(), groups.len(), "a group is in a share once");
        for group in &share.groups {
            let finished = group.items.iter().filter(|item| item.finish.is_some()).count();
            assert_eq!(finished, group.items.len(), "only whole items");
            let least = match config.group_deadline_ms {
                Some(_) => config.min_group_size,
                None => config.group_size,
            };
            assert!(finished <= config.group_size as usize && finished >= least as usize);
            assert_eq!(group.oldest, oldest(group));
            if let Some(lag) = config.max_lag
                && matches!(config.on_stale, OnStale::Drop | OnStale::Wait)
            {
                let age = share.target - group.oldest;
                assert!(age <= i64::from(lag), "a lag of {age} is above {lag}");
            }
            let before = self.state.get(&group.id).copied();
            let uses = match (before, config.delivery) {
                (None, _) => 0,
                (Some(Delivered::Back(uses)), Delivery::AtLeastOnce) => uses,
                (Some(Delivered::Done(uses)), _) => uses,
                before => panic!("group {} again: {before:?}", group.id),
            };
            assert!(config.max_uses == 0 || uses < config.max_uses, "used {uses} times");
            let now =
                if leased { Delivered::Out(share.lease, uses) } else { Delivered::Done(uses + 1) };
            self.state.insert(group.id, now);
        }
        let Lease { batch, rank, attempt } = share.lease;
        match self.shares.get(&(batch, rank)) {
            Some(same) => assert_eq!(same, &groups, "a retry gets the same"),
            None => {
                assert_eq!(attempt, 1);
                let others = self.shares.iter().filter(|((other, _), _)| *other == batch);
                for ((_, other), taken) in others {
                    assert!(
                        taken.iter().all(|id| !distinct.contains(id)),
                        "rank {other} has it too"
                    );
                    if matches!(size, Size::Groups(_)) {
                        assert_eq!(taken.len(), groups.len(), "equal counts");
                    }
                }
                self.shares.insert((batch, rank), groups.clone());
                let (sum, count) = self.sums.entry(batch).or_default();
                *sum += share
                    .groups
                    .iter()
                    .map(|group| (share.target - group.oldest).max(0))
                    .sum::<i64>();
                *count += groups.len() as f64;
                let is_all =
                    (0..self.want.ranks).all(|rank| self.shares.contains_key(&(batch, rank)));
                if let Some(mean) = config.max_mean_lag.filter(|_| is_all) {
                    assert!(
                        *sum as f64 <= mean * *count,
                        "a mean of {sum} / {count} is above {mean}"
                    );
                }
            }
        }
        match size {
            Size::Groups(all) => assert_eq!(groups.len() as u32, all / self.want.ranks),
            Size::Tokens(most) => {
                assert!(share.groups.iter().map(|group| group.tokens).sum::<u64>() <= most);
                assert!(!groups.is_empty(), "every rank has something");
            }
        }
        if leased {
            self.leases.push(share.lease);
            self.ends.insert(share.lease, self.table.now + LEASE);
        }
    }

    /// Forgets the leases that are over by now.
    fn after_time(&mut self) {
        let (now, ends) = (self.table.now, &self.ends);
        let is_over = |lease: &Lease| ends.get(lease).is_some_and(|end| *end <= now);
        let over: Vec<Lease> = self.leases.iter().copied().filter(is_over).collect();
        for lease in over {
            self.given_back(lease);
        }
    }

    fn ended(&mut self, lease: Lease, how: impl Fn(u32) -> Delivered) {
        self.leases.retain(|other| *other != lease);
        self.old_leases.push(lease);
        for state in self.state.values_mut() {
            if let Delivered::Out(of, uses) = *state
                && of == lease
            {
                *state = how(uses);
            }
        }
    }

    fn given_back(&mut self, lease: Lease) {
        self.ended(lease, Delivered::Back);
    }

    fn ack(&mut self, lease: Lease) {
        let acked = self.apply(Change::Ack(lease));
        assert!(matches!(acked, Ok(Outcome::Count(_))), "{acked:?}");
        self.ended(lease, |uses| Delivered::Done(uses + 1));
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Admit { count, key, behind } => {
                let (key, count) = match key {
                    0 | 1 => (format!("k{key}"), 1),
                    _ => (String::new(), count),
                };
                let version = (behind > 0).then(|| self.version(behind));
                let source = format!("s{}", behind % 2);
                let admit = Admit { count, source, key, version, ttl_ms: None };
                let capacity = self.table.capacity();
                if let Ok(Outcome::Admitted(permits)) = self.apply(Change::Admit(admit)) {
                    assert!(permits.len() as u32 <= count);
                    for permit in permits {
                        if !self.holds.contains(&permit.hold) {
                            assert!(capacity > 0, "admitted without room");
                            assert!(!self.old_holds.contains(&permit.hold), "a permit is new");
                            self.holds.push(permit.hold);
                        }
                    }
                }
            }
            Step::Append { which, item, tokens, behind, ends, good } => {
                if let Some(hold) = Self::pick(&self.holds, which) {
                    self.append(hold, item, tokens, self.version(behind), ends.then_some(good));
                }
            }
            Step::Finish { which, behind } => {
                if let Some(hold) = Self::pick(&self.holds, which) {
                    self.finish(hold, self.version(behind));
                }
            }
            Step::Fail(which) => {
                if let Some(hold) = Self::pick(&self.holds, which) {
                    self.apply(Change::Fail { holds: vec![hold] }).expect("never refused");
                    self.let_go(hold);
                }
            }
            Step::Suspend(which) => {
                if let Some(hold) = Self::pick(&self.holds, which) {
                    self.apply(Change::Suspend { holds: vec![hold] }).expect("never refused");
                    self.let_go(hold);
                }
            }
            Step::Resume => {
                let resume = Change::Resume { source: "s1".into(), ttl_ms: None };
                if let Ok(Outcome::Resumed(permit, items)) = self.apply(resume) {
                    for (item, there) in (0..).zip(&items) {
                        let sent = self.sequences.get(&(permit.hold.group, item)).copied();
                        assert_eq!(there.segments.len() as u32, sent.unwrap_or(0));
                    }
                    self.holds.push(permit.hold);
                }
            }
            Step::Renew(which) => {
                if let Some(hold) = Self::pick(&self.holds, which) {
                    self.apply(Change::Renew { holds: vec![hold] }).expect("never refused");
                }
            }
            Step::Publish(more) => {
                let version = self.table.ledger.totals().version + i64::from(more);
                self.apply(Change::Publish { version }).expect("a later version");
            }
            Step::Sample { rank, leased, part } => {
                let _ = self.sample(rank, leased, part);
            }
            Step::Ack(which) => {
                if let Some(lease) = Self::pick(&self.leases, which) {
                    self.ack(lease);
                }
            }
            Step::Nack(which) => {
                if let Some(lease) = Self::pick(&self.leases, which) {
                    self.apply(Change::Nack(lease)).expect("the consumer's");
                    self.given_back(lease);
                }
            }
            Step::Extend(which) => {
                if let Some(lease) = Self::pick(&self.leases, which) {
                    self.apply(Change::Extend { lease, lease_ms: LEASE }).expect("the consumer's");
                    self.ends.insert(lease, self.table.now + LEASE);
                }
            }
            Step::Forge(which) => self.forge(which),
            Step::Discard(group) => {
                let groups = vec![u64::from(group), u64::from(group) + 7];
                self.apply(Change::Discard { groups }).expect("never refused");
            }
            Step::Reprioritize(group, priority) => {
                let priorities = vec![(u64::from(group), f64::from(priority))];
                self.apply(Change::Reprioritize { priorities }).expect("a priority");
            }
            Step::Restore(back) => {
                let version = self.version(back);
                self.apply(Change::Restore { version }).expect("a version");
                for lease in self.leases.clone() {
                    self.given_back(lease);
                }
                self.restored(version);
            }
            Step::Deepen(depth) => {
                let _ = self.apply(Change::Deepen { depth: depth.into() });
            }
            Step::Shed => {
                self.apply(Change::Shed).expect("never refused");
            }
            Step::Pass(millis) => {
                self.table.now += u64::from(millis);
                self.apply(Change::Tick).expect("never refused");
                self.after_time();
            }
        }
    }

    /// `accepted = v·B + restored unconsumed groups`.
    fn restored(&self, version: i64) {
        let (config, totals) = (self.table.ledger.config(), self.table.ledger.totals());
        let Some(depth) = totals.depth.filter(|_| config.max_uses == 1) else { return };
        let counts = self.table.ledger.counts();
        let most = (u64::from(depth) + version as u64 + 1) * config.per_version();
        let there = version as u64 * config.per_version() + totals.queued + counts.running;
        let free = u64::from(config.max_groups) - counts.running - totals.queued;
        let running = u64::from(config.max_running) - counts.running;
        let expected = most.saturating_sub(there).min(running);
        if config.order != Order::Weighted {
            assert_eq!(totals.capacity, expected.min(free), "(d + {version} + 1)·B − ...");
        }
    }

    /// Nothing comes of holds and leases that are over, or never were.
    fn forge(&mut self, which: usize) {
        if let Some(hold) = Self::pick(&self.old_holds, which) {
            let running = self.table.ledger.counts().running;
            let next = Hold { attempt: hold.attempt + 1, ..hold };
            let others = [hold, next].into_iter().filter(|hold| !self.holds.contains(hold));
            for hold in others.collect::<Vec<_>>() {
                let holds = vec![hold];
                let nothing = Ok(Outcome::Count(0));
                assert_eq!(self.apply(Change::Fail { holds: holds.clone() }), nothing);
                assert_eq!(self.apply(Change::Suspend { holds: holds.clone() }), nothing);
                assert_eq!(self.apply(Change::Renew { holds }), nothing);
                let fate = self.apply(Change::Append(part(hold, 0, 0, 0)));
                assert!(
                    !matches!(fate, Ok(Outcome::Appended(Fate::Running))),
                    "{hold:?} is nobody's: {fate:?}"
                );
            }
            assert_eq!(self.table.ledger.counts().running, running);
        }
        if let Some(lease) = Self::pick(&self.old_leases, which) {
            let next = Lease { attempt: lease.attempt + 1, ..lease };
            let others = [lease, next].into_iter().filter(|lease| !self.leases.contains(lease));
            for lease in others.collect::<Vec<_>>() {
                for change in [Change::Ack(lease), Change::Nack(lease)] {
                    let refused = self.apply(change);
                    assert!(matches!(refused, Err(Refusal::Fenced { .. })), "{refused:?}");
                }
            }
        }
    }

    /// The most groups that a batch may have.
    fn most_of_batch(&self) -> u32 {
        let config = self.table.ledger.config();
        let versions = config.max_lag.map_or(u64::MAX, |lag| u64::from(lag) + 1);
        let most = versions.saturating_mul(config.per_version()).min(config.max_groups.into());
        most as u32
    }

    /// What was complete was delivered, or waits, or it is told why it was dropped.
    fn no_group_is_lost(&mut self) {
        let (mut dropped, mut waiting) = (0, 0);
        let is_replaced = self.table.ledger.config().order == Order::Weighted;
        for hold in self.completed.clone().into_values() {
            match self.apply(Change::Append(part(hold, 0, 0, 0))) {
                _ if self.state.contains_key(&hold.group) => {}
                Ok(Outcome::Appended(Fate::Stale | Fate::Filtered)) => dropped += 1,
                // What may be used again and again makes room for what is younger.
                Ok(Outcome::Appended(Fate::Over)) if is_replaced => dropped += 1,
                Ok(Outcome::Appended(Fate::Complete)) => waiting += 1,
                other => panic!("{hold:?} was complete, and never delivered: {other:?}"),
            }
        }
        let counts = self.table.ledger.counts();
        let told = counts.stale + counts.discarded + counts.retired;
        assert!(dropped <= told, "{dropped} dropped, {counts:?}");
        assert!(waiting <= counts.accepted, "{waiting} wait, {counts:?}");
    }

    /// From here on everybody does what they should; then batches keep coming.
    fn goes_on(&mut self) {
        let mut batches = 0;
        // From here on it is looked at progress only.
        self.is_compared = false;
        for _ in 0..100 {
            if batches == 5 {
                return;
            }
            // Those that were left are gone on with, those that run finish.
            while let Ok(Outcome::Resumed(permit, _)) =
                self.apply(Change::Resume { source: "s".into(), ttl_ms: None })
            {
                self.holds.push(permit.hold);
            }
            for hold in self.holds.clone() {
                self.finish(hold, self.version(0));
            }
            let admit = Admit { count: 4, ..Admit::default() };
            if let Ok(Outcome::Admitted(permits)) = self.apply(Change::Admit(admit)) {
                self.holds.extend(permits.iter().map(|permit| permit.hold));
            }
            // Every rank takes its share and is done with it; then the learner has its next version.
            let (mut has_any, mut told) = (false, 0);
            for rank in 0..self.want.ranks {
                match self.sample(rank, true, None) {
                    Ok(_) => has_any = true,
                    Err(Blocked::Unpublished { needed, .. }) => told = needed,
                    Err(_) => {}
                }
            }
            let had = !self.leases.is_empty();
            for lease in self.leases.clone() {
                self.ack(lease);
            }
            batches += u32::from(has_any);
            let totals = self.table.ledger.totals();
            if had || totals.target.max(told) > totals.version {
                let version = totals.target.max(totals.version).max(told);
                self.apply(Change::Publish { version }).expect("a later version");
            }
        }
        let totals = self.table.ledger.totals();
        panic!("{batches} batches, then none: {totals:?}, {:?}", self.sample(0, true, None));
    }
}

fn run(case: &Case) -> World {
    let mut world = World::new(case);
    for step in &case.steps {
        world.step(step);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ledger_keeps_its_promises(case in case()) {
        run(&case).no_group_is_lost();
    }

    #[test]
    fn a_learner_that_takes_parts_of_batches_loses_nothing(
        (batch_groups, batches_per_version, max_lag, depth) in (1u32..9, 1u32..3, 0u32..4, 0u32..4),
        order in prop::sample::select(vec![Order::Ready, Order::Submission, Order::Oldest]),
        on_stale in prop::sample::select(vec![OnStale::Drop, OnStale::Wait]),
        // What it takes at a time, how many versions' groups it takes ahead, and which groups fail.
        (parts, ahead) in (prop::collection::vec(1u32..20, 1..8), 0u64..4),
        fails in prop::collection::vec(any::<bool>(), 1..12),
    ) {
        let most = batch_groups * batches_per_version;
        let depth = depth.min(max_lag);
        let paced = RolloutConfig {
            batch_groups,
            batches_per_version,
            max_lag: Some(max_lag),
            pipeline_depth: Some(depth),
            order,
            on_stale,
            ..config()
        };
        let mut table = Table::new(paced);
        let (mut taken, mut version) = (0, 0);
        let mut fails = fails.iter().copied().chain([false]).cycle();
        for part in parts.iter().cycle().take(60) {
            while let Ok(permits) = table.admit(4) {
                // Whoever was admitted last is the first to be done.
                for permit in permits.iter().rev() {
                    match fails.next() {
                        Some(true) => {
                            let holds = vec![permit.hold];
                            table.apply(Change::Fail { holds }).expect("never refused");
                        }
                        _ => prop_assert_eq!(table.complete(permit.hold, version), Fate::Complete),
                    }
                }
            }
            // No more than what may be made for its version.
            let there = u64::from(depth + 1) * u64::from(most) + version as u64 * u64::from(most);
            let count = part.min(&most).min(&((there - taken) as u32)).to_owned();
            if count > 0 {
                let want = Want { lease_ms: None, ..rollouts::groups(count) };
                let share = table.sample(want).expect("as many groups as are there");
                prop_assert_eq!(share.target as u64, taken / u64::from(most));
                taken += u64::from(count);
                prop_assert_eq!(table.ledger.counts().stale, 0);
            }
            let learned = (taken / u64::from(most)) as i64;
            if learned > version && (count == 0 || learned as u64 > version as u64 + ahead) {
                version += 1;
                table.publish(version);
                prop_assert_eq!(table.ledger.counts().stale, 0);
            }
        }
        let counts = table.ledger.counts();
        prop_assert_eq!((counts.delivered, counts.accepted), (taken, taken + table.queued()));
    }

    #[test]
    fn batches_keep_coming_once_everybody_works(case in case()) {
        // A filter that nothing passes, or priorities of zero, let nothing come; so here are none.
        let config = RolloutConfig { filter: None, group_deadline_ms: None, ..case.config };
        let is_zero = |step: &Step| matches!(step, Step::Reprioritize(..));
        let steps = case.steps.into_iter().filter(|step| !is_zero(step)).collect();
        run(&Case { config, steps, ..case }).goes_on();
    }

    #[test]
    fn every_permit_ends_once(case in case()) {
        let mut world = run(&case);
        // Nobody gives a sign of life any more.
        world.table.now += TTL + 1000;
        world.apply(Change::Tick).expect("never refused");
        let counts = world.table.ledger.counts();
        let suspended = world.table.ledger.totals().suspended;
        prop_assert_eq!(counts.running, suspended);
        prop_assert_eq!(counts.submitted, suspended + counts.accepted + counts.rejected + counts.filtered);
    }
}
