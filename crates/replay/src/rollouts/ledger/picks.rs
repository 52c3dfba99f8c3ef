//! Which of the complete groups make a batch.
//!
//! Where batches wait for groups that would become too old ([`OnStale::Wait`]), groups have deadlines: one whose
//! oldest token is of version v must be in a batch that updates at most v + η. Up to a version T the learner has
//! room for (T − t + 1)·B groups, less what is taken of t already. As long as, for every T, the groups with a
//! deadline up to T are no more than that, all of them can still be in time, those that are not complete
//! included. A group may be taken if this stays so: that is, unless every place up to some T before its own
//! deadline is needed.

use std::collections::HashSet;

use echoic_primitives::packing::balance;

use super::{Balance, Blocked, Ledger, Size, Want};
use crate::rollouts::config::{OnStale, Order};

/// Places that are left for groups with a deadline up to some versions; see the [module](self).
struct Slack {
    /// The version of the oldest token of groups with that deadline, and the places.
    places: Vec<(i64, i64)>,
}

impl Slack {
    /// For a batch of so many groups, which may be more than a version's.
    fn new(ledger: &Ledger, count: usize) -> Option<Self> {
        let lag = i64::from(ledger.config.max_lag?);
        if ledger.config.on_stale != OnStale::Wait {
            return None;
        }
        let per_version = ledger.config.per_version() as i64;
        let now = (per_version - ledger.taken as i64).max(count as i64);
        let mut needed = 0;
        let mut places = Vec::with_capacity(ledger.ages.len());
        // What can't be in time any more is not waited for.
        for (age, count) in ledger.ages.range(ledger.target - lag..) {
            needed += *count as i64;
            places.push((*age, now + (age + lag - ledger.target) * per_version - needed));
        }
        Some(Self { places })
    }

    /// The age up to which a group must be, as all places for these are needed; `None`, if it may be any.
    fn limit(&self) -> Option<i64> {
        self.places.iter().find(|(_, places)| *places <= 0).map(|(age, _)| *age)
    }

    fn take(&mut self, age: i64) {
        for (_, places) in self.places.iter_mut().take_while(|(other, _)| *other < age) {
            *places -= 1;
        }
    }
}

impl Ledger {
    /// The groups of a batch, for each rank.
    pub(super) fn pick(&mut self, want: &Want) -> Result<Vec<Vec<u64>>, Blocked> {
        let picks = match (want.size, self.config.order) {
            (Size::Groups(count), Order::Weighted) => self.draw(count as usize)?,
            (Size::Groups(count), _) => self.pick_groups(count as usize)?,
            (Size::Tokens(tokens), _) => self.pick_tokens(tokens, want)?,
        };
        if let Some(limiter) = &self.limiter {
            let limited = limiter.can_sample(&self.limited(), picks.len() as u64);
            limited.map_err(Blocked::Limiter)?;
        }
        Ok(self.share(&picks, want))
    }

    fn too_few(&self, wanted: usize) -> Blocked {
        let (complete, out) = (self.queue.len(), self.ready.len() - self.queue.len());
        let is_enough = complete + out >= wanted && self.open.is_empty() && out > 0;
        if is_enough && self.room().is_err() {
            return Blocked::Leased(out as u64);
        }
        Blocked::TooFew { complete: complete as u64, wanted: wanted as u64 }
    }

    fn draw(&mut self, count: usize) -> Result<Vec<u64>, Blocked> {
        if self.queue.len() < count {
            return Err(self.too_few(count));
        }
        if let Some(limiter) = &self.limiter {
            let limited = limiter.can_sample(&self.limited(), count as u64);
            limited.map_err(Blocked::Limiter)?;
        }
        let before = self.rng.clone();
        let mut drawn = self.queue.draw(count, self.target, &mut self.rng);
        if drawn.len() < count {
            // Those without a priority are never drawn; a refusal draws nothing.
            self.rng = before;
            return Err(Blocked::TooFew { complete: drawn.len() as u64, wanted: count as u64 });
        }
        let mean = self.config.max_mean_lag.unwrap_or(f64::INFINITY);
        let sum: i64 = drawn.iter().map(|id| self.lag(*id)).sum();
        if sum as f64 > mean * count as f64 {
            // The youngest that are there instead: what is drawn at random has no bound.
            drawn = self.youngest(count);
            let sum: i64 = drawn.iter().map(|id| self.lag(*id)).sum();
            if sum as f64 > mean * count as f64 {
                self.rng = before;
                return Err(Blocked::MeanLag);
            }
        }
        Ok(drawn)
    }

    fn youngest(&self, count: usize) -> Vec<u64> {
        let mut ids: Vec<u64> = self.queue.up_to(i64::MAX).collect();
        ids.reverse();
        ids.truncate(count);
        ids
    }

    /// How old a complete group would be in the next batch.
    fn lag(&self, id: u64) -> i64 {
        self.ready.get(&id).map_or(0, |ready| self.target - ready.group.oldest)
    }

    fn age(&self, id: u64) -> i64 {
        self.ready.get(&id).map_or(i64::MAX, |ready| ready.group.oldest)
    }

    /// How many incomplete groups may have been admitted before one that is taken.
    fn patience(&self) -> Option<usize> {
        match self.config.order {
            Order::Submission => Some(0),
            Order::Window(width) => Some(width.saturating_sub(1) as usize),
            _ => None,
        }
    }

    fn pick_groups(&self, count: usize) -> Result<Vec<u64>, Blocked> {
        if self.queue.len() < count {
            return Err(self.too_few(count));
        }
        let mut picks = Vec::with_capacity(count);
        self.each_in_turn(count, |id| {
            picks.push(id);
            picks.len() < count
        })?;
        match picks.len() == count {
            true => Ok(picks),
            false => Err(self.too_few(count)),
        }
    }

    /// Calls `take` with the groups as they are to go, until it says that it is enough. Of `most` groups the
    /// mean lag is bounded.
    fn each_in_turn(&self, most: usize, mut take: impl FnMut(u64) -> bool) -> Result<(), Blocked> {
        let mut slack = Slack::new(self, most);
        let mut lags_left = self.config.max_mean_lag.map(|mean| mean * most as f64);
        let patience = self.patience();
        let mut passed_over = false;
        // Taken before their turn, because they must be in time.
        let mut early = HashSet::new();
        let mut in_order = self.queue.in_order();
        loop {
            let limit = slack.as_ref().and_then(Slack::limit);
            let found = match limit {
                Some(limit) => {
                    let urgent = self.queue.up_to(limit).find(|id| !early.contains(id));
                    let Some(id) = urgent else {
                        return Err(self.incomplete(limit));
                    };
                    early.insert(id);
                    Some(id)
                }
                None => in_order.by_ref().find(|id| early.is_empty() || !early.contains(id)),
            };
            let Some(id) = found else { break };
            if let Some(patience) = patience
                && self.open.range(..id).nth(patience).is_some()
            {
                let first = self.open.first_key_value().map_or(id, |(first, _)| *first);
                return Err(Blocked::Incomplete(first));
            }
            if let Some(left) = &mut lags_left {
                let lag = self.lag(id).max(0) as f64;
                if lag > *left {
                    passed_over = true;
                    continue;
                }
                *left -= lag;
            }
            if let Some(slack) = &mut slack {
                slack.take(self.age(id));
                if limit.is_none() {
                    early.insert(id);
                }
            }
            if !take(id) {
                return Ok(());
            }
        }
        if passed_over { Err(Blocked::MeanLag) } else { Ok(()) }
    }

    /// The group that is waited for, as it must be in the next batch.
    fn incomplete(&self, limit: i64) -> Blocked {
        let oldest = self.open.iter().filter(|(_, open)| open.age() <= limit);
        Blocked::Incomplete(oldest.map(|(id, _)| *id).next().unwrap_or(self.next_group))
    }

    fn pick_tokens(&self, tokens: u64, want: &Want) -> Result<Vec<u64>, Blocked> {
        let (most, ranks) = (self.config.batch_groups as usize, want.ranks as usize);
        let total = tokens.saturating_mul(u64::from(want.ranks));
        let mut picks = Vec::new();
        let (mut sum, mut is_full) = (0u64, false);
        self.each_in_turn(most, |id| {
            let tokens = self.ready.get(&id).map_or(0, |ready| ready.group.tokens);
            is_full = sum.saturating_add(tokens) > total;
            if !is_full {
                sum += tokens;
                picks.push(id);
                is_full = picks.len() == most;
            }
            !is_full
        })?;
        // A rank's part may be over the budget though the sum is not.
        while picks.len() > ranks && !self.fits(&picks, tokens, want) {
            picks.pop();
            is_full = true;
        }
        match is_full && picks.len() >= ranks {
            true => Ok(picks),
            false => Err(self.too_few(most)),
        }
    }

    fn fits(&self, picks: &[u64], tokens: u64, want: &Want) -> bool {
        let sum = |ids: &Vec<u64>| -> u64 {
            ids.iter().filter_map(|id| self.ready.get(id)).map(|ready| ready.group.tokens).sum()
        };
        self.share(picks, want).iter().all(|ids| sum(ids) <= tokens)
    }

    /// What each rank gets, in the order in which the groups were picked.
    fn share(&self, picks: &[u64], want: &Want) -> Vec<Vec<u64>> {
        let ranks = want.ranks as usize;
        let cost = |id: &u64| {
            let Some(ready) = self.ready.get(id) else { return 0 };
            match want.balance {
                Balance::Squares => {
                    let lengths = ready.group.items.iter().map(|item| u64::from(item.tokens()));
                    lengths.map(|length| length.saturating_mul(length)).fold(0, u64::saturating_add)
                }
                _ => ready.group.tokens,
            }
        };
        let of: Vec<usize> = match (want.balance, want.size) {
            _ if ranks == 1 => vec![0; picks.len()],
            (Balance::Count, Size::Groups(_)) => (0..picks.len()).map(|at| at % ranks).collect(),
            (_, size) => {
                let costs: Vec<u64> = picks.iter().map(cost).collect();
                balance(&costs, ranks, matches!(size, Size::Groups(_)))
            }
        };
        let mut shares = vec![Vec::new(); ranks];
        for (id, rank) in picks.iter().zip(of) {
            if let Some(share) = shares.get_mut(rank) {
                share.push(*id);
            }
        }
        shares
    }
}
