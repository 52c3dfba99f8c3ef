//! Leased batches, and which consumer has which part of them.
//!
//! A batch is made once. Each rank's share goes to one consumer at a time; when that one is gone, the next one
//! of the rank gets the same groups. That ends when the learner has gone on to a later version: then the batch
//! is history, and its groups that were not acknowledged are queued again.

use std::sync::Arc;

use super::{Blocked, ChangeError, Due, GroupStatus, Lease, Ledger, Outcome, Share, Want};
use crate::rollouts::config::{Delivery, OnStale};
use crate::rollouts::item::{Group, Item};

/// A batch, of which something is out or waits for its rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Batch {
    pub(super) target: i64,
    pub(super) want: Want,
    pub(super) shares: Vec<Part>,
    /// Whether a consumer was done with a part.
    pub(super) is_used: bool,
    /// Groups that were given up.
    pub(super) lost: u64,
}

/// A rank's part of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Part {
    pub(super) groups: Vec<u64>,
    /// How often it was delivered.
    pub(super) attempt: u32,
    pub(super) state: PartState,
    /// For how long it was given to the consumer that has it.
    pub(super) lease_ms: u64,
}

/// Where a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PartState {
    /// It waits for a consumer.
    #[default]
    Waiting,
    /// A consumer has it until then.
    Out(u64),
    /// It is used up, or queued again.
    Over,
}

impl Want {
    /// Whether a batch that was made for one consumer is one for the other, too.
    fn is_like(&self, other: &Self) -> bool {
        (self.ranks, self.size) == (other.ranks, other.size)
    }
}

impl Ledger {
    pub(super) fn sample(&mut self, now: u64, want: &Want) -> Result<Outcome, ChangeError> {
        if self.state.paused {
            return Err(Blocked::Paused.into());
        }
        let mut sampled = self.find(now, want);
        // What was given back may be what this consumer waits for.
        if matches!(sampled, Err(ChangeError::Blocked(_))) && self.recall(want) {
            sampled = self.find(now, want);
        }
        // Room for younger groups is made by those that keep batches waiting.
        while matches!(sampled, Err(ChangeError::Blocked(Blocked::MeanLag))) && self.shed() {
            sampled = self.find(now, want);
        }
        sampled
    }

    /// Delivers a share that waits for the consumer, or one of a new batch.
    fn find(&mut self, now: u64, want: &Want) -> Result<Outcome, ChangeError> {
        let waits = |batch: &Batch| {
            let part = batch.shares.get(want.rank as usize);
            part.is_some_and(|part| part.state == PartState::Waiting) && batch.want.is_like(want)
        };
        let waiting =
            self.state.batches.iter().find(|(_, batch)| waits(batch)).map(|(number, _)| *number);
        let number = match waiting {
            Some(number) => {
                let batch = self.state.batches.get(&number);
                let part = batch.and_then(|batch| batch.shares.get(want.rank as usize));
                self.check_width(part.map_or(&[], |part| &part.groups), want.width)?;
                number
            }
            None => self.form(want)?,
        };
        Ok(Outcome::Delivered(self.deliver(now, number, want)))
    }

    /// Makes a batch, and returns its number.
    fn form(&mut self, want: &Want) -> Result<u64, ChangeError> {
        if let Some(allowed) = self.config.target_lag {
            let needed = self.state.target - i64::from(allowed);
            if self.state.version < needed {
                return Err(Blocked::Shipping { version: self.state.version, needed }.into());
            }
        }
        let before = self.state.rng.clone();
        let shares = self.pick(want)?;
        let own = shares.get(want.rank as usize).map_or(&[][..], |groups| groups);
        if let Err(refusal) = self.check_width(own, want.width) {
            // A refusal draws nothing.
            self.state.rng = before;
            return Err(refusal);
        }
        let (number, target) = (self.state.next_batch, self.state.target);
        self.state.next_batch += 1;
        self.state.counts.batches += 1;
        for id in shares.iter().flatten() {
            let Some(ready) = self.state.ready.get(id).cloned() else { continue };
            self.derived.queue.remove(&ready.place());
            if let Some(ready) = self.state.ready.get_mut(id) {
                ready.is_out = true;
            }
            self.state.counts.delivered += 1;
            self.state.counts.delivered_tokens += ready.group.tokens;
            self.state.sources.count(&ready.group.source, |source| source.delivered += 1);
            self.count_overdue(&ready.group);
        }
        let groups = shares.iter().map(Vec::len).sum::<usize>() as u64;
        let part = |groups| Part { groups, ..Part::default() };
        let shares = shares.into_iter().map(part).collect();
        self.state
            .batches
            .insert(number, Batch { target, want: *want, shares, is_used: false, lost: 0 });
        self.step(groups);
        Ok(number)
    }

    /// Whether the items of groups fit in rows.
    fn check_width(&self, groups: &[u64], width: u32) -> Result<(), ChangeError> {
        if width == 0 || width >= self.config.max_tokens {
            return Ok(());
        }
        let groups = groups.iter().filter_map(|id| self.state.ready.get(id));
        let lengths = groups.flat_map(|ready| &ready.group.items).map(Item::tokens);
        match (0..).zip(lengths).find(|(_, length)| *length > width) {
            Some((item, length)) => Err(ChangeError::TooLong { item, length, width }),
            None => Ok(()),
        }
    }

    fn count_overdue(&mut self, group: &Group) {
        let Some(bound) = self.bound().filter(|bound| group.oldest < *bound) else { return };
        self.state.counts.overdue += 1;
        if self.config.on_stale == OnStale::Mask {
            let runs = group.items.iter().flat_map(|item| item.runs());
            let old = runs.filter(|run| run.version < bound).map(|run| u64::from(run.tokens));
            self.state.counts.masked_tokens += old.sum::<u64>();
        }
    }

    /// Hands a part that waits to a consumer.
    fn deliver(&mut self, now: u64, number: u64, want: &Want) -> Share {
        let Want { rank, lease_ms, .. } = *want;
        let mut share = Share {
            lease: Lease { batch: number, rank, attempt: 0 },
            lease_ms,
            target: self.state.target,
            groups: Vec::new(),
        };
        let Some(batch) = self.state.batches.get_mut(&number) else { return share };
        share.target = batch.target;
        let Some(part) = batch.shares.get_mut(rank as usize) else { return share };
        self.changed = true;
        let is_again = part.attempt > 0;
        part.attempt = self.state.generation.attempt_after(number, part.attempt);
        share.lease.attempt = part.attempt;
        self.state.counts.redelivered += u64::from(is_again);
        let known = part.groups.iter().filter_map(|id| self.state.ready.get(id));
        share.groups = known.map(|ready| Arc::clone(&ready.group)).collect();
        match lease_ms {
            Some(lease) => {
                let until = now.saturating_add(lease);
                (part.state, part.lease_ms) = (PartState::Out(until), lease);
                self.derived.due.insert((until, Due::Lease(number, rank)));
            }
            None => {
                part.state = PartState::Over;
                let groups = std::mem::take(&mut part.groups);
                batch.is_used = true;
                self.use_up(&groups);
                self.tidy(number);
            }
        }
        share
    }

    /// The part that a lease is for, if it is the consumer's that is about to change it.
    fn held(&mut self, lease: Lease) -> Result<&mut Part, ChangeError> {
        let Lease { batch, rank, attempt } = lease;
        if batch >= self.state.next_batch || batch == 0 {
            // The consumer has it from a table that has lost what it knew.
            let why = "the table never made it, and was started anew since".into();
            return Err(ChangeError::Fenced { lease, why });
        }
        let is_lost = self.state.generation.has_lost_batch(batch);
        let part = self.state.batches.get_mut(&batch).and_then(|b| b.shares.get_mut(rank as usize));
        let why = match &part {
            None if is_lost => "the table went on from a moment that is older than the batch",
            None => "the batch is over",
            Some(part) if part.state == PartState::Over => "it is over",
            Some(part) if part.attempt != attempt => "it was delivered again",
            Some(part) if part.state == PartState::Waiting => "the lease is over",
            _ => "",
        };
        self.changed = true;
        match part {
            Some(part) if why.is_empty() => Ok(part),
            _ => {
                self.state.counts.fenced += 1;
                Err(ChangeError::Fenced { lease, why: why.into() })
            }
        }
    }

    pub(super) fn ack(&mut self, lease: Lease) -> Result<Outcome, ChangeError> {
        let part = self.held(lease)?;
        let groups = std::mem::take(&mut part.groups);
        if let PartState::Out(until) = std::mem::replace(&mut part.state, PartState::Over) {
            self.derived.due.remove(&(until, Due::Lease(lease.batch, lease.rank)));
        }
        if let Some(batch) = self.state.batches.get_mut(&lease.batch) {
            batch.is_used = true;
        }
        self.use_up(&groups);
        self.tidy(lease.batch);
        Ok(Outcome::Count(groups.len() as u64))
    }

    pub(super) fn nack(&mut self, lease: Lease) -> Result<Outcome, ChangeError> {
        let part = self.held(lease)?;
        if let PartState::Out(until) = part.state {
            self.derived.due.remove(&(until, Due::Lease(lease.batch, lease.rank)));
        }
        self.take_back(lease.batch, lease.rank);
        Ok(Outcome::Done)
    }

    pub(super) fn extend(
        &mut self,
        now: u64,
        lease: Lease,
        lease_ms: u64,
    ) -> Result<Outcome, ChangeError> {
        let part = self.held(lease)?;
        let until = now.saturating_add(lease_ms);
        part.lease_ms = lease_ms;
        if let PartState::Out(before) = std::mem::replace(&mut part.state, PartState::Out(until)) {
            self.derived.due.remove(&(before, Due::Lease(lease.batch, lease.rank)));
        }
        self.derived.due.insert((until, Due::Lease(lease.batch, lease.rank)));
        Ok(Outcome::Done)
    }

    pub(super) fn expire_lease(&mut self, batch: u64, rank: u32) {
        self.state.counts.expired_leases += 1;
        self.take_back(batch, rank);
    }

    /// Has a part wait for another consumer, queues its groups again, or gives them up.
    fn take_back(&mut self, number: u64, rank: u32) {
        let version = self.state.version;
        let Some(batch) = self.state.batches.get_mut(&number) else { return };
        let is_history = version > batch.target;
        let Some(part) = batch.shares.get_mut(rank as usize) else { return };
        if self.config.delivery == Delivery::AtLeastOnce && !is_history {
            part.state = PartState::Waiting;
            return;
        }
        part.state = PartState::Over;
        let groups = std::mem::take(&mut part.groups);
        match self.config.delivery {
            Delivery::AtLeastOnce => self.return_groups(&groups),
            Delivery::AtMostOnce => {
                batch.lost += groups.len() as u64;
                self.lose(groups);
            }
        }
        self.tidy(number);
    }

    /// Queues groups that wait for a consumer that asks for another size than this one, and may never come: those of
    /// its own rank, of ranks that there are no more, and of batches that no consumer has a part of. Whether there were
    /// some.
    fn recall(&mut self, want: &Want) -> bool {
        let others = self.state.batches.iter().filter(|(_, batch)| !batch.want.is_like(want));
        let others: Vec<u64> = others.map(|(number, _)| *number).collect();
        let mut is_found = false;
        for number in others {
            let Some(batch) = self.state.batches.get_mut(&number) else { continue };
            let is_waiting = |part: &Part| part.state == PartState::Waiting;
            let is_whole = !batch.is_used && batch.shares.iter().all(is_waiting);
            let mut groups = Vec::new();
            for (rank, part) in (0..).zip(&mut batch.shares) {
                let is_of_others = rank != want.rank && rank < want.ranks;
                if is_waiting(part) && (is_whole || !is_of_others) {
                    part.state = PartState::Over;
                    (is_found, self.changed) = (true, true);
                    groups.append(&mut part.groups);
                }
            }
            // The learner makes no step of them, and takes them again.
            self.step_back(groups.len() as u64);
            self.return_groups(&groups);
            self.tidy(number);
        }
        is_found
    }

    /// Queues the groups of batches that wait for a rank, though the learner has gone on.
    pub(super) fn end_history(&mut self) {
        let version = self.state.version;
        let old: Vec<u64> = self
            .state
            .batches
            .iter()
            .filter(|(_, batch)| batch.target < version)
            .map(|(number, _)| *number)
            .collect();
        for number in old {
            let Some(batch) = self.state.batches.get_mut(&number) else { continue };
            let mut groups = Vec::new();
            for part in &mut batch.shares {
                if part.state == PartState::Waiting {
                    part.state = PartState::Over;
                    groups.append(&mut part.groups);
                }
            }
            self.return_groups(&groups);
            self.tidy(number);
        }
    }

    /// Ends all batches. What a consumer has of batches that update an earlier version than this one is used up: this
    /// one was made of it. All other groups are queued, unless they are delivered once and were.
    pub(super) fn end_all(&mut self, version: i64) {
        for (number, batch) in std::mem::take(&mut self.state.batches) {
            for (rank, part) in (0..).zip(batch.shares) {
                if let PartState::Out(until) = part.state {
                    self.derived.due.remove(&(until, Due::Lease(number, rank)));
                }
                match (self.config.delivery, part.state) {
                    (_, PartState::Out(_)) if batch.target < version => self.use_up(&part.groups),
                    (Delivery::AtMostOnce, PartState::Out(_)) => self.lose(part.groups),
                    _ => self.return_groups(&part.groups),
                }
            }
        }
    }

    /// Gives groups up that their consumer may have used or not.
    fn lose(&mut self, groups: Vec<u64>) {
        self.state.counts.lost += groups.len() as u64;
        for id in groups {
            self.remove_ready(id);
            self.note(id, GroupStatus::Over);
        }
    }

    /// Queues groups again that were not acknowledged.
    fn return_groups(&mut self, groups: &[u64]) {
        self.state.counts.returned += groups.len() as u64;
        self.queue_again(groups);
    }

    fn queue_again(&mut self, groups: &[u64]) {
        let bound = self.bound().filter(|_| self.drops());
        for id in groups {
            let Some(ready) = self.state.ready.get_mut(id) else { continue };
            if bound.is_some_and(|bound| ready.group.oldest < bound) {
                self.let_go(*id);
                continue;
            }
            ready.is_out = false;
            let ready = ready.clone();
            self.derived.queue.insert(&ready.place());
        }
    }

    /// A consumer is done with groups.
    fn use_up(&mut self, groups: &[u64]) {
        let mut again = Vec::new();
        for id in groups {
            let Some(ready) = self.state.ready.get_mut(id) else { continue };
            self.state.counts.acked += 1;
            ready.uses += 1;
            if self.config.max_uses == 0 || ready.uses < self.config.max_uses {
                again.push(*id);
            } else {
                self.remove_ready(*id);
                self.note(*id, GroupStatus::Over);
            }
        }
        self.queue_again(&again);
    }

    /// Forgets a batch when all its parts are over.
    fn tidy(&mut self, number: u64) {
        let Some(batch) = self.state.batches.get(&number) else { return };
        if batch.shares.iter().any(|part| part.state != PartState::Over) {
            return;
        }
        let (target, is_used, lost) = (batch.target, batch.is_used, batch.lost);
        self.state.batches.remove(&number);
        if lost > 0 && !is_used && target >= self.state.version {
            self.miss_step(lost);
        }
    }
}
