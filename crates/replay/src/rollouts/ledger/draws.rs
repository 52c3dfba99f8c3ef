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
    /// For a batch of this many groups, which may be more than a version's.
    fn new(ledger: &Ledger, count: usize) -> Option<Self> {
        let lag = i64::from(ledger.config.max_lag?);
        if ledger.config.on_stale != OnStale::Wait {
            return None;
        }
        let (per_version, left) = (ledger.config.per_version() as i64, ledger.places_left());
        let batch = count as i64;
        // Places up to the version that comes this many after t. A large batch takes those of later versions, too.
        let up_to = |after: i64| (left + after * per_version).max(batch);
        let mut needed = 0;
        let queued = ledger.derived.queue.ages().map(|(age, count)| (age, count as i64));
        let open = ledger.derived.ages.iter().map(|(age, count)| (*age, *count as i64));
        // What can't be in time any more is not waited for.
        let mut places: Vec<(i64, i64)> = queued.chain(open).collect();
        places.retain(|(age, _)| *age >= ledger.state.target - lag);
        places.sort_unstable();
        for (age, places) in &mut places {
            needed += *places;
            *places = up_to(*age + lag - ledger.state.target) - needed;
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

/// What is left of the lags that the groups of a batch may have together, so that their mean is no larger than it
/// may be. A group is taken only if the youngest of the others can fill the batch: then a batch is found
/// whenever there is one.
struct Youth {
    /// The sum of all lags may be as large as this.
    most: f64,
    sum: i64,
    /// Groups that are still to be taken.
    left: usize,
    /// Lags, the smallest first, and how many groups that were not taken have them.
    lags: Vec<(i64, usize)>,
}

impl Youth {
    fn new(ledger: &Ledger, count: usize) -> Option<Self> {
        let mean = ledger.config.max_mean_lag?;
        let mut lags: Vec<(i64, usize)> = Vec::new();
        for (age, groups) in ledger.derived.queue.ages().rev() {
            let lag = lag_of(ledger.state.target, age);
            match lags.last_mut() {
                Some((last, count)) if *last == lag => *count += groups,
                _ => lags.push((lag, groups)),
            }
        }
        Some(Self { most: mean * count as f64, sum: 0, left: count, lags })
    }

    /// The least that the lags of this many groups that were not taken can be together.
    fn least(&self, mut groups: usize) -> i64 {
        let mut sum = 0;
        for (lag, count) in &self.lags {
            let taken = groups.min(*count);
            sum += lag * taken as i64;
            groups -= taken;
            if groups == 0 {
                break;
            }
        }
        sum
    }

    /// Whether a batch can be made at all.
    fn is_enough(&self) -> bool {
        self.least(self.left) as f64 <= self.most
    }

    /// Takes a group, if it may be in the batch.
    fn take(&mut self, lag: i64) -> bool {
        let Ok(at) = self.lags.binary_search_by_key(&lag, |(lag, _)| *lag) else { return false };
        let Some((_, count)) = self.lags.get_mut(at) else { return false };
        *count -= 1;
        let left = self.left.saturating_sub(1);
        let sum = self.sum + lag;
        if (sum + self.least(left)) as f64 <= self.most {
            (self.sum, self.left) = (sum, left);
            return true;
        }
        if let Some((_, count)) = self.lags.get_mut(at) {
            *count += 1;
        }
        false
    }
}

/// How old a group is in a batch that updates `target`. One that is younger than that batch is not old.
fn lag_of(target: i64, age: i64) -> i64 {
    (target - age).max(0)
}

/// A batch of as many groups as have this many tokens, while it is made.
struct Budget {
    draws: Vec<u64>,
    most: usize,
    tokens: u64,
    /// Whether another group would be too much.
    is_full: bool,
}

impl Budget {
    fn new(tokens: u64, want: &Want, most: usize) -> Self {
        let tokens = tokens.saturating_mul(u64::from(want.ranks));
        Self { draws: Vec::new(), most, tokens, is_full: false }
    }

    /// Takes a group, if there is room for it. Whether there may be room for more.
    fn take(&mut self, id: u64, tokens: u64) -> bool {
        match self.tokens.checked_sub(tokens) {
            Some(left) => {
                self.tokens = left;
                self.draws.push(id);
                self.is_full = self.draws.len() >= self.most;
            }
            None => self.is_full = true,
        }
        !self.is_full
    }
}

impl Ledger {
    /// The groups of a batch, for each rank.
    pub(super) fn pick(&mut self, want: &Want) -> Result<Vec<Vec<u64>>, Blocked> {
        let before = self.state.rng.clone();
        let draws = match (want.size, self.config.order) {
            (Size::Groups(count), Order::Weighted) => self.draw(count as usize),
            (Size::Groups(count), _) => self.pick_groups(count as usize),
            (Size::Tokens(tokens), _) => self.pick_tokens(tokens, want),
        };
        let draws = draws.and_then(|draws| {
            if let Some(limiter) = &self.limiter {
                let limited = limiter.can_sample(&self.limited(0), draws.len() as u64);
                limited.map_err(Blocked::Limiter)?;
            }
            Ok(draws)
        });
        if draws.is_err() {
            // A refusal draws nothing.
            self.state.rng = before;
        }
        Ok(self.share(&draws?, want))
    }

    fn too_few(&self, wanted: usize) -> Blocked {
        let (complete, out) =
            (self.derived.queue.len(), self.state.ready.len() - self.derived.queue.len());
        let is_enough = complete + out >= wanted && self.state.open.is_empty() && out > 0;
        if is_enough && self.room().is_err() {
            return Blocked::Leased(out as u64);
        }
        self.unpublished(wanted as u64)
            .unwrap_or(Blocked::TooFew { complete: complete as u64, wanted: wanted as u64 })
    }

    /// Whether only another version of the learner can bring this many groups.
    fn unpublished(&self, wanted: u64) -> Option<Blocked> {
        // What is out comes back, or others may be made for it.
        let there = self.live();
        let missing = wanted.checked_sub(there).filter(|missing| *missing > 0)?;
        let lag = i64::from(self.config.max_lag?);
        let (per_version, version) = (self.config.per_version(), self.state.version);
        let needed = match self.room() {
            Err(Blocked::Ahead { groups, .. }) => {
                let versions = groups.saturating_add(missing).div_ceil(per_version) as i64;
                versions - 1 - i64::from(self.state.depth?)
            }
            Err(Blocked::Early { target, .. }) => target - lag,
            _ => return None,
        };
        Some(Blocked::Unpublished { there, wanted, per_version, version, needed })
    }

    fn draw(&mut self, count: usize) -> Result<Vec<u64>, Blocked> {
        if self.derived.queue.len() < count {
            return Err(self.too_few(count));
        }
        let drawn = self.derived.queue.draw(count, self.state.target, &mut self.state.rng);
        if drawn.len() < count {
            // Those without a priority are never drawn.
            return Err(Blocked::TooFew { complete: drawn.len() as u64, wanted: count as u64 });
        }
        if self.is_young(&drawn) {
            return Ok(drawn);
        }
        // What is drawn at random has no bound, so it is the youngest that are there instead.
        let youngest: Vec<u64> = self.derived.queue.youngest().take(count).collect();
        if self.is_young(&youngest) { Ok(youngest) } else { Err(Blocked::MeanLag) }
    }

    /// Whether groups are as young on average as those of a batch must be.
    fn is_young(&self, ids: &[u64]) -> bool {
        let Some(mean) = self.config.max_mean_lag else { return true };
        let sum: i64 = ids.iter().map(|id| self.lag(*id)).sum();
        sum as f64 <= mean * ids.len() as f64
    }

    /// How old a complete group would be in the next batch.
    fn lag(&self, id: u64) -> i64 {
        lag_of(self.state.target, self.age(id))
    }

    fn age(&self, id: u64) -> i64 {
        self.state.ready.get(&id).map_or(i64::MAX, |ready| ready.group.oldest)
    }

    /// The first group that may not be taken, as too many that were reserved before it are not complete.
    fn gate(&self) -> Option<u64> {
        let patience = match self.config.order {
            Order::Submission => 0,
            Order::Window(width) => width.saturating_sub(1) as usize,
            _ => return None,
        };
        // Most windows are wider than what is open.
        if patience >= self.state.open.len() {
            return None;
        }
        self.state.open.keys().nth(patience).copied()
    }

    fn pick_groups(&self, count: usize) -> Result<Vec<u64>, Blocked> {
        if self.derived.queue.len() < count {
            return Err(self.too_few(count));
        }
        let mut draws = Vec::with_capacity(count);
        let youth = Youth::new(self, count);
        self.each_in_turn(count, youth, |id| {
            draws.push(id);
            draws.len() < count
        })?;
        match draws.len() == count {
            true => Ok(draws),
            false => Err(self.too_few(count)),
        }
    }

    /// Calls `take` with the groups as they are to go, `most` of them, until it says that it is enough.
    fn each_in_turn(
        &self,
        most: usize,
        mut youth: Option<Youth>,
        mut take: impl FnMut(u64) -> bool,
    ) -> Result<(), Blocked> {
        if youth.as_ref().is_some_and(|youth| !youth.is_enough()) {
            return Err(Blocked::MeanLag);
        }
        let mut slack = Slack::new(self, most);
        let gate = self.gate();
        let mut passed_over = false;
        // Those looked at, where some are taken before their turn because they must be in time.
        let mut seen = HashSet::new();
        let mut in_order = self.derived.queue.in_order();
        loop {
            let limit = slack.as_ref().and_then(Slack::limit);
            let found = match limit {
                Some(limit) => {
                    match self.derived.queue.first_up_to(limit, |id| seen.contains(id)) {
                        // Those that would have to be in the batch are too old for its mean.
                        None if passed_over => return Err(Blocked::MeanLag),
                        None => return Err(self.incomplete(limit)),
                        urgent => urgent,
                    }
                }
                None => in_order.by_ref().find(|id| !seen.contains(id)),
            };
            let Some(id) = found else { break };
            if let Some(gate) = gate.filter(|gate| *gate < id) {
                let first = self.state.open.first_key_value().map_or(gate, |(first, _)| *first);
                return Err(Blocked::Incomplete(first));
            }
            if slack.is_some() {
                seen.insert(id);
            }
            if let Some(youth) = &mut youth
                && !youth.take(self.lag(id))
            {
                passed_over = true;
                continue;
            }
            if let Some(slack) = &mut slack {
                slack.take(self.age(id));
            }
            if !take(id) {
                return Ok(());
            }
        }
        if passed_over { Err(Blocked::MeanLag) } else { Ok(()) }
    }

    /// The group that is waited for, as it must be in the next batch.
    fn incomplete(&self, limit: i64) -> Blocked {
        let oldest = self.state.open.iter().filter(|(_, open)| open.age() <= limit);
        Blocked::Incomplete(oldest.map(|(id, _)| *id).next().unwrap_or(self.state.next_group))
    }

    /// As many groups as have at most this many tokens for each rank: no more than a batch has by number, and at
    /// least one for each rank.
    fn pick_tokens(&mut self, tokens: u64, want: &Want) -> Result<Vec<u64>, Blocked> {
        let most = self.config.batch_groups as usize;
        let mut budget = Budget::new(tokens, want, most);
        if self.config.order == Order::Weighted {
            let drawn = self.derived.queue.draw(most, self.state.target, &mut self.state.rng);
            // All there are to draw from, and no more are awaited than that.
            drawn.iter().all(|id| budget.take(*id, self.tokens(*id)));
        } else {
            self.each_in_turn(most, None, |id| budget.take(id, self.tokens(id)))?;
        }
        if !self.is_young(&budget.draws) {
            // The youngest first instead: their mean is the least that there is, however many they are.
            budget = Budget::new(tokens, want, most);
            for id in self.derived.queue.youngest() {
                budget.draws.push(id);
                let is_young = self.is_young(&budget.draws);
                budget.draws.pop();
                if !is_young && budget.draws.len() < want.ranks as usize {
                    return Err(Blocked::MeanLag);
                }
                budget.is_full |= !is_young;
                if budget.is_full || !budget.take(id, self.tokens(id)) {
                    break;
                }
            }
        }
        let Budget { mut draws, mut is_full, .. } = budget;
        // A rank's part may be over the budget though the sum is not.
        while draws.len() > want.ranks as usize && !self.fits(&draws, tokens, want) {
            draws.pop();
            is_full = true;
        }
        match is_full && draws.len() >= want.ranks as usize {
            true => Ok(draws),
            false => Err(self.too_few(most)),
        }
    }

    fn tokens(&self, id: u64) -> u64 {
        self.state.ready.get(&id).map_or(0, |ready| ready.group.tokens)
    }

    fn fits(&self, draws: &[u64], tokens: u64, want: &Want) -> bool {
        let sum = |ids: &Vec<u64>| ids.iter().map(|id| self.tokens(*id)).sum::<u64>();
        self.share(draws, want).iter().all(|ids| sum(ids) <= tokens)
    }

    /// What each rank gets, in the order in which the groups were picked.
    fn share(&self, draws: &[u64], want: &Want) -> Vec<Vec<u64>> {
        let ranks = want.ranks as usize;
        let cost = |id: &u64| {
            let Some(ready) = self.state.ready.get(id) else { return 0 };
            match want.balance {
                Balance::Squares => {
                    let lengths = ready.group.items.iter().map(|item| u64::from(item.tokens()));
                    lengths.map(|length| length.saturating_mul(length)).fold(0, u64::saturating_add)
                }
                _ => ready.group.tokens,
            }
        };
        let of: Vec<usize> = match (want.balance, want.size) {
            _ if ranks == 1 => vec![0; draws.len()],
            (Balance::Count, Size::Groups(_)) => (0..draws.len()).map(|at| at % ranks).collect(),
            (_, size) => {
                let costs: Vec<u64> = draws.iter().map(cost).collect();
                balance(&costs, ranks, matches!(size, Size::Groups(_)))
            }
        };
        let mut shares = vec![Vec::new(); ranks];
        for (id, rank) in draws.iter().zip(of) {
            if let Some(share) = shares.get_mut(rank) {
                share.push(*id);
            }
        }
        shares
    }
}
