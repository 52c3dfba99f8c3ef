//! What a ledger keeps twice, counted anew from what it is derived from: for tests.
//!
//! It takes time in proportion to everything that is there.

use std::collections::{BTreeMap, BTreeSet};

use super::leases::State;
use super::{Due, GroupTotals, Ledger};
use crate::rollouts::config::OnExpiry;

impl Ledger {
    /// Whether all lists tell the same; if not, where they don't.
    ///
    /// # Errors
    ///
    /// What differs.
    #[doc(hidden)]
    pub fn recount(&self) -> Result<(), String> {
        self.recount_open()?;
        self.recount_ready()?;
        self.recount_due()?;
        let counts = self.counts();
        let sum = counts.running + counts.accepted + counts.rejected + counts.filtered;
        same("submitted and its parts", &counts.submitted, &sum)?;
        let (mut submitted, mut running) = (0, 0);
        for source in self.sources() {
            submitted += source.submitted;
            running += source.running;
            let sum = source.running + source.accepted + source.rejected + source.filtered;
            same("what is counted of a source", &source.submitted, &sum)?;
        }
        same("submitted by all sources", &submitted, &counts.submitted)?;
        same("running of all sources", &running, &counts.running)?;
        // One that is left and not given up when its permit is over may be expired several times.
        let expired = if self.config.on_expiry == OnExpiry::Reject { counts.expired } else { 0 };
        most("expired and late", expired + counts.late, counts.rejected)?;
        most("discarded", counts.discarded, counts.filtered)?;
        most("groups that are there", self.live(), self.config.max_groups.into())?;
        most("groups that run", counts.running, self.config.max_running.into())?;
        most("the learner's version", self.version as u64, self.target as u64)?;
        most("taken for the target, and one", self.taken + 1, self.config.per_version())?;
        let GroupTotals { queued, out, .. } = self.totals();
        same("queued and out", &(queued + out), &(self.ready.len() as u64))
    }

    fn recount_open(&self) -> Result<(), String> {
        let (mut begun, mut suspended) = (BTreeSet::new(), BTreeSet::new());
        let mut ages: BTreeMap<i64, u64> = BTreeMap::new();
        for (id, open) in &self.open {
            let tokens = open.items.iter().filter_map(super::Item::oldest).min();
            same("oldest of an open group", &open.oldest, &tokens)?;
            let finished = open.items.iter().filter(|item| item.finish.is_some()).count();
            same("finished items", &(open.finished as usize), &finished)?;
            most("finished items", finished as u64 + 1, self.config.group_size.into())?;
            most("items", open.items.len() as u64, self.config.most_items().into())?;
            begun.extend(open.oldest.map(|oldest| (oldest, *id)));
            if open.expires.is_none() {
                suspended.insert(*id);
            } else {
                *ages.entry(open.age()).or_default() += 1;
            }
        }
        same("ages of open groups", &self.ages, &ages)?;
        same("begun", &self.begun, &begun)?;
        same("suspended", &self.suspended, &suspended)
    }

    fn recount_ready(&self) -> Result<(), String> {
        let (mut queued, mut out) = (BTreeSet::new(), BTreeSet::new());
        for (id, ready) in &self.ready {
            if self.open.contains_key(id) {
                return Err(format!("group {id} is open and complete"));
            }
            if ready.is_out {
                out.insert(*id);
            } else {
                queued.insert(*id);
            }
        }
        same("queue", &self.queue.up_to(i64::MAX).collect(), &queued)?;
        let of_use = |id: &&u64| self.ready.get(id).is_some_and(|ready| ready.uses > 0);
        same(
            "queued groups that were of use",
            &self.queue.used(),
            &queued.iter().filter(of_use).count(),
        )?;
        same("length of the queue", &self.queue.len(), &queued.len())?;
        let listed: BTreeSet<u64> = self.queue.listed().collect();
        same("queue in order", &listed, &queued)?;
        let mut shared = BTreeSet::new();
        for id in
            self.batches.values().flat_map(|batch| &batch.shares).flat_map(|part| &part.groups)
        {
            if !shared.insert(*id) {
                return Err(format!("group {id} is in two shares"));
            }
        }
        same("groups with consumers", &out, &shared)?;
        if let Some(bound) = self.bound().filter(|_| self.drops()) {
            let stale: Vec<u64> = self.queue.up_to(bound - 1).collect();
            same("queued groups that are too old", &stale, &Vec::new())?;
            if let Some(first) = self.begun.first().filter(|(oldest, _)| *oldest < bound) {
                return Err(format!("open group too old: {first:?}, bound {bound}"));
            }
        }
        Ok(())
    }

    fn recount_due(&self) -> Result<(), String> {
        let mut due = BTreeSet::new();
        for (id, open) in &self.open {
            due.extend(open.expires.map(|_| (open.looked_at, Due::Permit(*id))));
            due.extend(open.deadline.map(|deadline| (deadline, Due::Deadline(*id))));
        }
        for (number, batch) in &self.batches {
            if batch.shares.iter().all(|part| part.state == State::Over) {
                return Err(format!("batch {number} is over"));
            }
            for (rank, part) in (0..).zip(&batch.shares) {
                match part.state {
                    State::Out(until) => {
                        due.insert((until, Due::Lease(*number, rank)));
                    }
                    State::Waiting if batch.target < self.version => {
                        return Err(format!("batch {number} is history, and rank {rank} waits"));
                    }
                    State::Over if !part.groups.is_empty() => {
                        return Err(format!("rank {rank} of batch {number} is over, with groups"));
                    }
                    _ => {}
                }
            }
        }
        same("what is due", &self.due, &due)
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, kept: &T, counted: &T) -> Result<(), String> {
    if kept == counted {
        Ok(())
    } else {
        Err(format!("{what}: kept {kept:?}, counted {counted:?}"))
    }
}

fn most(what: &str, got: u64, most: u64) -> Result<(), String> {
    if got <= most { Ok(()) } else { Err(format!("{what}: {got}, more than {most}")) }
}
