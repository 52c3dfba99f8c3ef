//! What holds for a ledger whatever producers, consumers and time do.
//!
//! Each case is a table of some setting and a list of steps of a [`Crowd`], drawn at random. What a step does, to which
//! group, with whose lease, and when, is chosen by numbers of the case, so that a smaller case is a case.

use std::collections::{BTreeSet, HashMap, HashSet};

use echoic_replay::rollouts::ledger::{
    Blocked, Change, ChangeError, Counts, GroupStatus, Hold, Lease, Outcome, Reserve, Share, Size,
    Want,
};
use echoic_replay::rollouts::{Delivery, OnStale, Order, RolloutConfig};
use proptest::prelude::*;

use crate::crowd::{Crowd, Step, any_table, steps};
use crate::table::{LEASE, Table, config, groups, ids, oldest, part};

#[derive(Debug, Clone)]
struct Case {
    config: RolloutConfig,
    /// What consumers ask for, all alike but for the number of groups.
    want: Want,
    steps: Vec<Step>,
}

fn case() -> impl Strategy<Value = Case> {
    (any_table(), steps(250)).prop_map(|((config, want), steps)| Case { config, want, steps })
}

/// A table, and what was seen of it from outside.
struct World {
    table: Table,
    crowd: Crowd,
    want: Want,
    /// Everybody who ever had a group.
    given: HashSet<Hold>,
    /// The version of the oldest token of each group, and the latest version that a batch was to update.
    sent: HashMap<u64, i64>,
    latest: i64,
    /// Groups that were said to be complete.
    completed: HashMap<u64, Hold>,
    /// Groups by how they were delivered: with consumers, given back, done.
    state: HashMap<u64, Delivered>,
    shares: HashMap<(u64, u32), Vec<u64>>,
    batches: HashMap<u64, Made>,
    /// Shares that wait for a consumer of their rank: never delivered, or given back.
    waiting: BTreeSet<(u64, u32)>,
    /// These, and others that may be queued again for all that is known here.
    untaken: BTreeSet<(u64, u32)>,
    /// The rewards that came last, of those that came apart.
    rewards: HashMap<(u64, u32), Vec<u8>>,
    /// How many changes there were.
    changes: usize,
    /// Whether it is looked whether refusals change something.
    is_compared: bool,
}

/// What a batch was made for, and what of it was seen.
struct Made {
    want: Want,
    target: i64,
    groups: usize,
    /// The sum of the lags of these groups.
    lags: i64,
}

impl Made {
    fn is_for(&self, want: &Want) -> bool {
        (self.want.size, self.want.ranks) == (want.size, want.ranks)
    }
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
            crowd: Crowd::new(&case.config, case.want),
            want: case.want,
            given: HashSet::new(),
            sent: HashMap::new(),
            latest: 0,
            completed: HashMap::new(),
            state: HashMap::new(),
            shares: HashMap::new(),
            batches: HashMap::new(),
            waiting: BTreeSet::new(),
            untaken: BTreeSet::new(),
            rewards: HashMap::new(),
            changes: 0,
            is_compared: true,
        }
    }

    fn run(case: &Case) -> Self {
        let mut world = Self::new(case);
        for step in &case.steps {
            let (now, change) = world.crowd.change(*step);
            world.table.now = now;
            let _ = world.apply(change);
        }
        world
    }

    /// Applies a change; if it says that it has changed nothing, that must be so.
    fn apply(&mut self, change: Change) -> Result<Outcome, ChangeError> {
        // What time does comes first, and is no refusal's.
        self.table.apply(Change::Tick).expect("time passes");
        self.table.ledger.take_changed();
        self.look_for_what_came_back();
        let before = (self.is_compared && self.changes.is_multiple_of(4))
            .then(|| format!("{:?}", self.table.ledger));
        let (room, counts) = (self.table.room(), self.table.ledger.counts());
        let outcome = self.table.apply(change.clone());
        let has_changed = self.table.ledger.take_changed();
        if !has_changed {
            assert_eq!(self.table.ledger.counts(), counts, "{change:?} changed nothing");
            assert_eq!(self.table.room(), room, "{change:?} changed nothing");
            if let Some(before) = before {
                assert_eq!(format!("{:?}", self.table.ledger), before, "{change:?}: {outcome:?}");
            }
        } else if let Err(refused) = &outcome {
            let may_change = matches!(
                (&change, refused),
                (_, ChangeError::Fenced { .. }) | (Change::Sample(_), ChangeError::Blocked(_))
            );
            assert!(may_change, "{change:?} was refused, and changed something: {refused}");
        }
        self.changes += 1;
        self.latest = self.latest.max(self.table.ledger.totals().target);
        self.reservation_is_as_defined();
        self.observe(&change, &outcome, room, counts);
        self.crowd.hear(&change, &outcome);
        outcome
    }

    /// Shares whose leases are over by now are no consumer's, and wait for another one until the learner has gone on.
    fn look_for_what_came_back(&mut self) {
        let (leases, version) = (&self.crowd.leases, self.table.ledger.totals().version);
        let is_again = self.table.ledger.config().delivery == Delivery::AtLeastOnce;
        for state in self.state.values_mut() {
            if let Delivered::Out(lease, uses) = *state
                && leases.iter().all(|(other, _)| *other != lease)
            {
                *state = Delivered::Back(uses);
                if is_again && self.batches[&lease.batch].target >= version {
                    self.waiting.insert((lease.batch, lease.rank));
                }
            }
        }
    }

    /// The room is the least of the three terms, but for those that only some settings have.
    fn reservation_is_as_defined(&self) {
        let (config, totals) = (self.table.ledger.config(), self.table.ledger.totals());
        let counts = self.table.ledger.counts();
        let live = counts.running + totals.queued + totals.out;
        assert!(totals.room <= u64::from(config.max_running) - counts.running);
        if config.order != Order::Weighted {
            assert!(totals.room <= u64::from(config.capacity) - live);
        }
    }

    /// What came of a change must be what it may be, where this many could be reserved and this was counted before.
    fn observe(
        &mut self,
        change: &Change,
        outcome: &Result<Outcome, ChangeError>,
        room: u64,
        before: Counts,
    ) {
        let is_held = |hold: &Hold| self.crowd.holds.contains(hold);
        match (change, outcome) {
            (Change::Reserve(reserve), Ok(Outcome::Reserved(reservations))) => {
                assert!((1..=reserve.count as usize).contains(&reservations.len()));
                // Where groups are used again, one that goes may make room for several.
                let is_replaced = self.table.ledger.config().order == Order::Weighted;
                let most = if is_replaced && room > 0 { u64::MAX } else { room };
                assert!(reservations.len() as u64 <= most, "reserved without room");
                for (reservation, key) in reservations.iter().zip(&reserve.keys) {
                    assert_eq!(reservation.key, *key);
                }
                let mut reservations = reservations.iter();
                assert!(
                    reservations.all(|one| self.given.insert(one.hold)),
                    "a reservation is new"
                );
            }
            (Change::Resume { .. }, Ok(Outcome::Resumed(reservation, items))) => {
                assert!(self.given.insert(reservation.hold), "a reservation is new");
                for item in items {
                    let sent =
                        self.crowd.sequences.get(&(reservation.hold.group, item.index)).copied();
                    assert_eq!(item.segments.len() as u32, sent.unwrap_or(0));
                }
            }
            (Change::Append(append), Ok(Outcome::Appended(status))) => {
                let group = append.hold.group;
                if append.finish.as_ref().is_some_and(|finish| finish.absent == 0) {
                    // It may count from now on instead of what was given before.
                    self.rewards.remove(&(group, append.item));
                }
                if let Some(version) = append.segment.oldest().filter(|_| is_held(&append.hold)) {
                    let oldest = self.sent.entry(group).or_insert(version);
                    *oldest = version.min(*oldest);
                    // One that was complete may have gone for other reasons.
                    let config = self.table.ledger.config();
                    let is_open = append.finish.is_none() && config.group_deadline_ms.is_none();
                    if *status == GroupStatus::Stale && is_open {
                        let lag = config.max_lag.expect("a bound");
                        assert!(*oldest < self.latest - i64::from(lag), "{oldest} is not too old");
                    }
                }
                if *status == GroupStatus::Running {
                    assert!(is_held(&append.hold), "{append:?} is nobody's");
                    let sent = self.crowd.sequences.get(&(group, append.item)).copied();
                    assert!(append.sequence <= sent.unwrap_or(0), "{append:?} is not the next");
                }
                if *status == GroupStatus::Complete {
                    // Whoever had it before and comes back hears the same.
                    self.completed.entry(group).or_insert(append.hold);
                }
            }
            (Change::Update(update), Ok(Outcome::Appended(status))) => {
                let (group, item) = (update.hold.group, update.item);
                match status {
                    GroupStatus::Running => {
                        assert!(is_held(&update.hold), "{update:?} is of no reservation");
                    }
                    GroupStatus::Complete => {
                        self.completed.entry(group).or_insert(update.hold);
                    }
                    GroupStatus::Delivered => {
                        // It may also wait in a batch for its rank.
                        let is_in_batch =
                            self.state.contains_key(&group) || !self.untaken.is_empty();
                        assert!(is_in_batch, "{update:?} was not delivered");
                    }
                    _ => {}
                }
                if matches!(status, GroupStatus::Running | GroupStatus::Complete)
                    && let Some((_, reward)) = update.values.fields.first()
                {
                    self.rewards.insert((group, item), reward.clone());
                }
            }
            // Nothing comes of holds and leases that are over, or never were.
            (Change::Fail { holds } | Change::Suspend { holds } | Change::Renew { holds }, _)
                if !holds.iter().any(is_held) =>
            {
                assert_eq!(outcome, &Ok(Outcome::Count(0)), "{change:?}");
                assert_eq!(self.table.ledger.counts().running, before.running, "{change:?}");
            }
            (
                Change::Ack(lease) | Change::Nack(lease) | Change::Extend { lease, .. },
                Err(refused),
            ) => {
                let is_theirs = self.crowd.leases.iter().any(|(other, _)| other == lease);
                assert!(!is_theirs, "{lease:?} is not over: {refused}");
                assert!(matches!(refused, ChangeError::Fenced { .. }), "{refused}");
            }
            (Change::Ack(lease) | Change::Nack(lease) | Change::Extend { lease, .. }, Ok(_)) => {
                let is_theirs = self.crowd.leases.iter().any(|(other, _)| other == lease);
                assert!(is_theirs, "{lease:?} is over, or never was");
                if let Change::Ack(_) = change {
                    self.done(*lease);
                }
            }
            (Change::Sample(want), _) => {
                let is_theirs = |(batch, rank): &&(u64, u32)| {
                    *rank == want.rank && self.batches[batch].is_for(want)
                };
                let first = self.waiting.iter().find(is_theirs).map(|(batch, _)| *batch);
                // What waits for consumers of another kind may be there for anybody now.
                if self.table.ledger.counts().returned > before.returned {
                    self.waiting.retain(|(batch, _)| self.batches[batch].is_for(want));
                }
                if let Ok(Outcome::Delivered(share)) = outcome {
                    assert!(
                        first.is_none_or(|batch| share.lease.batch <= batch),
                        "{first:?} waits"
                    );
                    self.delivered(share, want);
                } else {
                    assert_eq!(first, None, "it waits, and yet {outcome:?}");
                }
            }
            (Change::Publish { version }, Ok(_)) => {
                self.waiting.retain(|(batch, _)| self.batches[batch].target >= *version);
                self.untaken.retain(|(batch, _)| self.batches[batch].target >= *version);
            }
            (Change::Restore { version }, Ok(_)) => {
                for (lease, _) in self.crowd.leases.clone() {
                    if self.batches[&lease.batch].target < *version {
                        self.done(lease);
                    }
                }
                self.crowd.hear(change, outcome);
                self.look_for_what_came_back();
                self.waiting.clear();
                self.untaken.clear();
                self.restored(*version);
            }
            _ => {}
        }
    }

    fn done(&mut self, lease: Lease) {
        for state in self.state.values_mut() {
            if let Delivered::Out(of, uses) = *state
                && of == lease
            {
                *state = Delivered::Done(uses + 1);
            }
        }
    }

    /// Everything that a share must be.
    fn delivered(&mut self, share: &Share, want: &Want) {
        let config = self.table.ledger.config().clone();
        let groups = ids(share);
        let distinct: HashSet<u64> = groups.iter().copied().collect();
        assert_eq!(distinct.len(), groups.len(), "a group is in a share once");
        for group in &share.groups {
            let finished = group.items.iter().filter(|item| item.is_whole()).count();
            for item in &group.items {
                let mask: usize = config.schema.of_item(item, 1).map(<[u8]>::len).sum();
                assert_eq!(mask as u32, item.tokens(), "a value of each token");
                if let Some(reward) = self.rewards.get(&(group.id, item.index)) {
                    assert_eq!(item.field(0, 0..8), Some(&**reward), "the last one counts");
                }
            }
            assert_eq!(finished, group.items.len(), "only whole items");
            let least = match config.group_deadline_ms {
                Some(_) => config.min_group_size,
                None => config.group_size,
            };
            assert!(finished <= config.group_size as usize && finished >= least as usize);
            assert_eq!(group.oldest, oldest(group));
            if config.filter.is_some() {
                let mut rewards = group.items.iter().filter_map(|item| item.field(0, 0..8));
                assert!(rewards.any(|reward| reward != [0; 8]), "no reward is above zero");
            }
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
            let now = match want.lease_ms {
                Some(_) => Delivered::Out(share.lease, uses),
                None => Delivered::Done(uses + 1),
            };
            self.state.insert(group.id, now);
        }
        let Lease { batch, rank, attempt } = share.lease;
        assert_eq!(rank, want.rank);
        let made = self.batches.entry(batch).or_insert_with(|| {
            self.waiting.extend((0..want.ranks).map(|rank| (batch, rank)));
            self.untaken.extend((0..want.ranks).map(|rank| (batch, rank)));
            Made { want: *want, target: share.target, groups: 0, lags: 0 }
        });
        assert!(made.is_for(want), "it is another one's batch: {:?}", made.want);
        assert_eq!(made.target, share.target);
        self.waiting.remove(&(batch, rank));
        self.untaken.remove(&(batch, rank));
        match self.shares.get(&(batch, rank)) {
            Some(same) => {
                assert_eq!(same, &groups, "a retry gets the same");
                assert!(attempt > 1, "it is a retry");
            }
            None => {
                assert_eq!(attempt, 1);
                let others = self.shares.iter().filter(|((other, _), _)| *other == batch);
                for ((_, other), taken) in others {
                    assert!(
                        taken.iter().all(|id| !distinct.contains(id)),
                        "rank {other} has it too"
                    );
                }
                self.shares.insert((batch, rank), groups.clone());
                let lags = share.groups.iter().map(|group| (share.target - group.oldest).max(0));
                made.lags += lags.sum::<i64>();
                made.groups += groups.len();
                let is_all = (0..want.ranks).all(|rank| self.shares.contains_key(&(batch, rank)));
                if let Some(mean) = config.max_mean_lag.filter(|_| is_all) {
                    let Made { lags, groups, .. } = made;
                    let is_young = *lags as f64 <= mean * *groups as f64;
                    assert!(is_young, "a mean of {lags} / {groups} is above {mean}");
                }
            }
        }
        match want.size {
            Size::Groups(all) => assert_eq!(groups.len() as u32, all / want.ranks),
            Size::Tokens(most) => {
                assert!(share.groups.iter().map(|group| group.tokens).sum::<u64>() <= most);
                assert!(!groups.is_empty(), "every rank has something");
            }
        }
    }

    /// `accepted = v·B + restored unconsumed groups`.
    fn restored(&self, version: i64) {
        let (config, totals) = (self.table.ledger.config(), self.table.ledger.totals());
        let Some(depth) = totals.depth.filter(|_| config.max_uses == 1 && config.limiter.is_none())
        else {
            return;
        };
        let counts = self.table.ledger.counts();
        let most = (u64::from(depth) + version as u64 + 1) * config.per_version();
        let there = version as u64 * config.per_version() + totals.queued + counts.running;
        let free = u64::from(config.capacity) - counts.running - totals.queued;
        let running = u64::from(config.max_running) - counts.running;
        let expected = most.saturating_sub(there).min(running);
        if config.order != Order::Weighted {
            assert_eq!(totals.room, expected.min(free), "(d + {version} + 1)·B − ...");
        }
    }

    /// What was complete was delivered, or waits, or it is told why it was dropped.
    fn no_group_is_lost(&mut self) {
        let (mut dropped, mut waiting) = (0, 0);
        let is_replaced = self.table.ledger.config().order == Order::Weighted;
        for hold in self.completed.clone().into_values() {
            let is_done = matches!(self.state.get(&hold.group), Some(Delivered::Done(_)));
            match self.apply(Change::Append(part(hold, 0, 0, 0))) {
                Ok(Outcome::Appended(status)) if is_done && !is_replaced => {
                    assert_eq!(status, GroupStatus::Over);
                }
                _ if self.state.contains_key(&hold.group) => {}
                Ok(Outcome::Appended(GroupStatus::Stale | GroupStatus::Filtered)) => dropped += 1,
                // What may be used again and again makes room for what is younger.
                Ok(Outcome::Appended(GroupStatus::Over)) if is_replaced => dropped += 1,
                Ok(Outcome::Appended(GroupStatus::Complete)) => waiting += 1,
                other => panic!("{hold:?} was complete, and never delivered: {other:?}"),
            }
        }
        let counts = self.table.ledger.counts();
        let told = counts.stale + counts.removed + counts.retired;
        assert!(dropped <= told, "{dropped} dropped, {counts:?}");
        assert!(waiting <= counts.accepted, "{waiting} wait, {counts:?}");
    }

    fn every_reservation_ends_once(&mut self) {
        // Nobody gives a sign of life any more.
        self.table.now += 100_000;
        self.table.apply(Change::Tick).expect("never refused");
        let (counts, totals) = (self.table.ledger.counts(), self.table.ledger.totals());
        assert_eq!(counts.running, totals.suspended);
        let ended = counts.accepted + counts.rejected + counts.filtered;
        assert_eq!(counts.submitted, totals.suspended + ended);
    }

    /// Ends a group: each item that is not finished gets a token and its end, or only that, where it has as many
    /// tokens as it may.
    fn finish(&mut self, hold: Hold) {
        for item in 0..self.table.ledger.config().group_size {
            for tokens in [1, 0] {
                if self.crowd.holds.contains(&hold) {
                    let append = self.crowd.append(hold, item, tokens, 0, true);
                    let _ = self.apply(append);
                }
                if self.crowd.holds.contains(&hold) {
                    // Values that are there count, whatever comes on top.
                    let update = self.crowd.update(hold, item, 3);
                    let _ = self.apply(update);
                }
            }
        }
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
            while self.apply(Change::Resume { source: "s".into(), ttl_ms: None }).is_ok() {}
            for hold in self.crowd.holds.clone() {
                self.finish(hold);
            }
            let _ = self.apply(Change::Reserve(Reserve { count: 4, ..Reserve::default() }));
            // Every rank takes its share and is done with it; then the learner has its next version.
            let (mut has_any, mut told) = (false, 0);
            for rank in 0..self.want.ranks {
                let want = Want { rank, lease_ms: Some(LEASE), ..self.want };
                match self.apply(Change::Sample(want)) {
                    Ok(_) => has_any = true,
                    Err(ChangeError::Blocked(Blocked::Unpublished { needed, .. })) => told = needed,
                    Err(_) => {}
                }
            }
            let had = !self.crowd.leases.is_empty();
            for (lease, _) in self.crowd.leases.clone() {
                self.apply(Change::Ack(lease)).expect("the consumer's");
            }
            batches += u32::from(has_any);
            let totals = self.table.ledger.totals();
            if had || totals.target.max(told) > totals.version {
                let version = totals.target.max(totals.version).max(told);
                self.apply(Change::Publish { version }).expect("a later version");
            }
        }
        let totals = self.table.ledger.totals();
        panic!(
            "{batches} batches, then none: {totals:?}, {:?}",
            self.apply(Change::Sample(self.want))
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ledger_keeps_its_promises(case in case()) {
        let mut world = World::run(&case);
        world.no_group_is_lost();
        world.every_reservation_ends_once();
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
            while let Ok(reservations) = table.reserve(4) {
                // Whoever was reserved last is the first to be done.
                for reservation in reservations.iter().rev() {
                    match fails.next() {
                        Some(true) => {
                            let holds = vec![reservation.hold];
                            table.apply(Change::Fail { holds }).expect("never refused");
                        }
                        _ => prop_assert_eq!(table.complete(reservation.hold, version), GroupStatus::Complete),
                    }
                }
            }
            // No more than what may be made for its version.
            let there = u64::from(depth + 1) * u64::from(most) + version as u64 * u64::from(most);
            let count = part.min(&most).min(&((there - taken) as u32)).to_owned();
            if count > 0 {
                let want = Want { lease_ms: None, ..groups(count) };
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
        // A filter that nothing passes, priorities of zero, or more samples of a group than it may have, let nothing
        // come; so here are none.
        let config =
            RolloutConfig { filter: None, group_deadline_ms: None, limiter: None, ..case.config };
        let is_zero = |(kind, _, b): &Step| kind % 32 > 28 && b % 8 > 5;
        let steps = case.steps.into_iter().filter(|step| !is_zero(step)).collect();
        World::run(&Case { config, steps, ..case }).goes_on();
    }
}
