//! One table on several servers: batches drawn from all of them as if they were one.
//!
//! - `whole`: what the shards are together, and how a batch is split.
//! - `labels`: keys that say whose item they name.
//!
//! What a shard weighs is asked for when it is not known from the last [`FRESH`]; every sample tells it
//! too. What is reported stays true when it has changed since: see `whole`.
//!
//! # Invariants
//!
//! 1. A shard is used while its connection stands. What was chosen for one that goes is chosen again
//!    among the others.
//! 2. What shards have given for a batch that others keep waiting is kept for the next batch of this
//!    size: items that a shard counts as sampled are not thrown away because another is slow.
//! 3. A key is used in the life of the shard in which it was given, and at no other shard.

mod labels;
mod read;
mod whole;

use std::any::Any;
use std::time::{Duration, Instant};

use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::rng::Rng;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Infos, TableError};

use self::labels::Labels;
pub use self::labels::MAX_SHARDS;
use self::whole::{Part, Whole};
use super::pending_requests::When;
use super::{Batch, FailureCode, PendingReply, Requests, TablesError, check_priorities};

/// For how long what is known of a shard is used without asking. A question takes about as long as a
/// small sample, so it may cost one in some hundreds of them.
pub const FRESH: Duration = Duration::from_millis(50);
/// How often shards are looked at while none of them has what is asked for.
const LOOK: Duration = Duration::from_millis(10);
/// How often they are asked meanwhile whether their tables are closed.
const CLOSED: Duration = Duration::from_millis(250);
/// How long a server that must say why a sample timed out is waited for, beyond the timeout itself.
const GRACE: Duration = Duration::from_secs(1);
/// How long a shard may take whose items are used up by draws: others may have used up what was there,
/// and then what was chosen for it is chosen again.
const TURN: Duration = Duration::from_millis(50);
/// The most batches that are kept unfinished.
const MAX_UNFINISHED: usize = 16;

/// Where one shard of a table is.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    /// The connection to its server.
    pub requests: &'a Requests,
    /// The table's number there.
    pub table: u32,
    /// The number of the first life that this connection sees. One that takes another's place begins
    /// behind the lives that were seen before.
    pub first_incarnation: u64,
}

/// What went wrong, and on which shard if it was one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct ShardsError {
    /// Its number.
    pub shard: Option<usize>,
    /// What went wrong.
    pub error: TablesError,
}

/// A batch of items of several shards.
#[derive(Debug)]
pub struct Gathered {
    /// What each shard gave, in the order of the shards.
    pub parts: Vec<Batch>,
    /// What is known about all items, in the order of the parts: keys have labels, probabilities are
    /// those of the whole, and so are the size and the weight of the table.
    pub infos: Infos,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changed {
    /// How many of the items were there.
    pub done: u64,
    /// How many keys are of shards that are away, or were restarted since they gave the keys: for
    /// these nothing is known to have been done.
    pub lost: u64,
}

/// What was heard of a shard last.
#[derive(Debug, Clone, Copy)]
struct Heard {
    part: Part,
    at: Instant,
    incarnation: u64,
}

/// A batch that is being put together.
struct UnfinishedBatch {
    count: usize,
    /// What the shares are those of.
    whole: Whole,
    /// What slots without a shard are chosen from: the same but for shards that were lost, unless draws
    /// use items up and it was looked again.
    choice: Whole,
    /// The choice is no longer what is there.
    outdated: bool,
    /// Of each shard, the life in which it was made part of the choice.
    incarnations: Vec<u64>,
    parts: Vec<Given>,
    /// How many items each shard still has to give.
    owed: Vec<usize>,
}

/// What a shard gave.
struct Given {
    shard: usize,
    incarnation: u64,
    batch: Batch,
}

struct DrawState {
    labels: Labels,
    heard: Vec<Option<Heard>>,
    rng: Rng,
    unfinished: Vec<UnfinishedBatch>,
}

/// A table that lies on several servers. See the [module](self).
pub struct Shards {
    state: Mutex<DrawState>,
}

impl Shard<'_> {
    /// One more for each time that its server was restarted.
    fn incarnation(&self) -> u64 {
        self.first_incarnation.wrapping_add(self.requests.incarnations())
    }
}

/// The life of a shard that is there.
fn incarnation(shards: &[Option<Shard<'_>>], shard: usize) -> Option<u64> {
    let shard = shards.get(shard)?.as_ref()?;
    shard.requests.is_connected().then(|| shard.incarnation())
}

/// What only says that a shard is not there.
fn is_absence(error: &TablesError) -> bool {
    matches!(
        error,
        TablesError::TimedOut(WaitReason::Away) | TablesError::Failed(_) | TablesError::Closed
    )
}

fn at(shard: usize) -> impl Fn(TablesError) -> ShardsError {
    move |error| ShardsError { shard: Some(shard), error }
}

/// An error of no shard in particular.
fn of_all(error: TablesError) -> ShardsError {
    ShardsError { shard: None, error }
}

/// Waits for an answer while there is a connection, for a moment longer than the caller wants: a server
/// that can't do what is asked says so at the very end.
fn answer<T: Any>(reply: &mut PendingReply<T>, wait: &mut Wait<'_>) -> Result<T, TablesError> {
    let deadline = wait.deadline.map(|deadline| deadline.max(Instant::now()) + GRACE);
    reply.wait_while_connected(Wait { deadline, tick: wait.tick, on_tick: &mut *wait.on_tick })
}

impl UnfinishedBatch {
    fn new(count: usize) -> Self {
        let (whole, choice) = (Whole::default(), Whole::default());
        let (incarnations, parts, owed) = (Vec::new(), Vec::new(), Vec::new());
        Self { count, whole, choice, outdated: false, incarnations, parts, owed }
    }

    /// Chooses from what is there now.
    fn adopt(&mut self, found: Whole, incarnations: Vec<u64>) {
        self.owed.resize(incarnations.len(), 0);
        self.incarnations = incarnations;
        self.whole.add(&found);
        self.choice = found;
        self.outdated = false;
    }

    /// Takes a shard out, and all that was chosen for it.
    fn lose(&mut self, shard: usize) {
        self.disown(shard);
        self.choice.lose(shard);
        // Items that are used up would be lost for good.
        let keeps = self.uses_up(shard) && self.parts.iter().any(|part| part.shard == shard);
        if !keeps {
            self.whole.lose(shard);
            self.parts.retain(|part| part.shard != shard);
        }
    }

    /// Lets a shard owe nothing.
    fn disown(&mut self, shard: usize) {
        if let Some(owed) = self.owed.get_mut(shard) {
            *owed = 0;
        }
    }

    /// Whether each draw from a shard may be the last of its item.
    fn uses_up(&self, shard: usize) -> bool {
        self.whole.part(shard).is_some_and(Part::uses_up)
    }

    /// How many slots have no shard.
    fn unchosen(&self) -> usize {
        let given: usize = self.parts.iter().map(|part| part.batch.len()).sum();
        self.count.saturating_sub(given + self.owed.iter().sum::<usize>())
    }
}

impl Shards {
    /// For this many shards at first, whose choices follow from the seed.
    ///
    /// # Panics
    ///
    /// When there are none, or more than [`MAX_SHARDS`].
    pub fn new(shards: usize, seed: u64) -> Self {
        assert!((1..=MAX_SHARDS).contains(&shards), "{shards} shards");
        let (labels, rng) = (Labels::new(shards), Rng::new(seed));
        let state = DrawState { labels, heard: vec![None; shards], rng, unfinished: Vec::new() };
        Self { state: Mutex::new(state) }
    }

    /// Has room for this many shards from now on, if there was less. Those that were there keep their places, and keys
    /// their meaning, but for those of lives that there is no room for any more: see the module `labels`.
    ///
    /// # Panics
    ///
    /// When there are more than [`MAX_SHARDS`].
    pub fn grow(&self, shards: usize) {
        assert!(shards <= MAX_SHARDS, "{shards} shards");
        let state = &mut *self.state.lock();
        if shards > state.heard.len() {
            state.heard.resize(shards, None);
            state.labels = Labels::new(shards);
        }
    }

    fn labels(&self) -> Labels {
        self.state.lock().labels
    }

    /// Draws a batch from all shards that are there; `None` stands for one that is not.
    ///
    /// # Errors
    ///
    /// [`ShardsError`], which is [`WaitReason::Away`] at once when no shard is there. After a wait that has
    /// timed out, what some shards gave is part of the next batch of this size.
    pub fn sample(
        &self,
        shards: &[Option<Shard<'_>>],
        count: usize,
        mut wait: Wait<'_>,
    ) -> Result<Gathered, ShardsError> {
        let mut partial = {
            let unfinished = &mut self.state.lock().unfinished;
            let found = unfinished.iter().position(|partial| partial.count == count);
            found.map_or_else(|| UnfinishedBatch::new(count), |found| unfinished.remove(found))
        };
        let filled = self
            .resume(&mut partial, shards, &mut wait)
            .and_then(|()| self.fill(&mut partial, shards, &mut wait));
        match filled {
            Ok(()) => Ok(self.gather(partial)),
            Err(error) => {
                // Also when nothing was given: to choose again would favour shards that do not wait.
                if !partial.whole.is_empty() {
                    let unfinished = &mut self.state.lock().unfinished;
                    unfinished.truncate(MAX_UNFINISHED - 1);
                    unfinished.insert(0, partial);
                }
                Err(error)
            }
        }
    }

    /// Goes on with a batch that was not finished. What was chosen for a shard that has nothing to sample
    /// from any more, because it was removed, is chosen again among the others.
    fn resume(
        &self,
        partial: &mut UnfinishedBatch,
        shards: &[Option<Shard<'_>>],
        wait: &mut Wait<'_>,
    ) -> Result<(), ShardsError> {
        if partial.whole.is_empty() {
            return Ok(());
        }
        self.ask_around(shards, wait)?;
        let heard: Vec<Option<Heard>> = self.state.lock().heard.clone();
        for (shard, heard) in heard.iter().enumerate() {
            let owes = partial.owed.get(shard).is_some_and(|owed| *owed > 0);
            if owes && partial.uses_up(shard) {
                partial.disown(shard);
                partial.outdated = true;
            } else if owes && heard.is_some_and(|heard| !heard.part.is_ready()) {
                partial.lose(shard);
            }
        }
        Ok(())
    }

    /// Has all slots of a batch filled.
    fn fill(
        &self,
        partial: &mut UnfinishedBatch,
        shards: &[Option<Shard<'_>>],
        wait: &mut Wait<'_>,
    ) -> Result<(), ShardsError> {
        loop {
            // An unfinished batch may be of more shards: its maker knew of one that has joined since.
            for shard in 0..shards.len().max(partial.incarnations.len()) {
                let same = incarnation(shards, shard) == partial.incarnations.get(shard).copied();
                if !same && partial.choice.has(shard) {
                    partial.lose(shard);
                }
            }
            let unchosen = partial.unchosen();
            if unchosen > 0 {
                if partial.choice.is_empty() || partial.outdated {
                    let (found, incarnations) = self.poll(shards, unchosen, wait)?;
                    partial.adopt(found, incarnations);
                }
                let counts = partial.choice.split(unchosen, &mut self.state.lock().rng);
                partial.owed.iter_mut().zip(counts).for_each(|(owed, count)| *owed += count);
            }
            if partial.owed.iter().all(|owed| *owed == 0) {
                return Ok(());
            }
            self.collect(partial, shards, wait)?;
        }
    }

    /// Asks all shards at once for what they owe, and takes what they give.
    fn collect(
        &self,
        partial: &mut UnfinishedBatch,
        shards: &[Option<Shard<'_>>],
        wait: &mut Wait<'_>,
    ) -> Result<(), ShardsError> {
        let mut asked = Vec::with_capacity(shards.len());
        for (number, shard) in shards.iter().enumerate() {
            let owed = partial.owed.get(number).copied().unwrap_or(0);
            let Some(shard) = shard.as_ref().filter(|_| owed > 0) else { continue };
            let turn = partial.uses_up(number).then(|| Instant::now() + TURN);
            let deadline = match (wait.deadline, turn) {
                (Some(deadline), Some(turn)) => Some(deadline.min(turn)),
                (deadline, turn) => deadline.or(turn),
            };
            match shard.requests.start_sample(shard.table, owed, deadline) {
                Ok(reply) => asked.push((number, reply)),
                Err(error) if is_absence(&error) => partial.lose(number),
                Err(error) => return Err(at(number)(error)),
            }
        }
        let (mut failed, mut closed) = (None, None);
        for (number, mut reply) in asked {
            match answer(&mut reply, wait) {
                Ok(batch) => {
                    let incarnation = partial.incarnations[number];
                    self.hear(number, incarnation, batch.infos());
                    partial.disown(number);
                    partial.parts.push(Given { shard: number, incarnation, batch });
                }
                Err(error) if is_absence(&error) => partial.lose(number),
                // A server that is about to end says this first.
                Err(error @ TablesError::Refused { code: FailureCode::Closed, .. }) => {
                    partial.lose(number);
                    closed = Some(at(number)(error));
                }
                Err(TablesError::TimedOut(reason))
                    if reason != WaitReason::Network
                        && partial.uses_up(number)
                        && wait.deadline.is_none_or(|deadline| deadline > Instant::now()) =>
                {
                    partial.disown(number);
                    partial.outdated = true;
                }
                Err(TablesError::Interrupted) => return Err(of_all(TablesError::Interrupted)),
                // The others may still answer, and what they give must not be lost.
                Err(error) => failed = Some(at(number)(error)),
            }
        }
        match failed.or(closed.filter(|_| partial.choice.is_empty())) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Takes note of what a sample said of its shard.
    fn hear(&self, shard: usize, incarnation: u64, infos: &Infos) {
        if let Some(Some(heard)) = self.state.lock().heard.get_mut(shard)
            && heard.incarnation == incarnation
        {
            heard.part.note(infos);
            heard.at = Instant::now();
        }
    }

    /// What the shards are together now; waits until `count` items can be drawn from it.
    fn poll(
        &self,
        shards: &[Option<Shard<'_>>],
        count: usize,
        wait: &mut Wait<'_>,
    ) -> Result<(Whole, Vec<u64>), ShardsError> {
        let mut checked: Option<Instant> = None;
        loop {
            self.ask_around(shards, wait)?;
            let heard: Vec<Option<Heard>> = {
                let state = self.state.lock();
                let incarnations = (0..shards.len()).map(|shard| incarnation(shards, shard));
                let heard = state.heard.iter().zip(incarnations);
                heard
                    .map(|(heard, incarnation)| {
                        heard.filter(|heard| Some(heard.incarnation) == incarnation)
                    })
                    .collect()
            };
            if heard.iter().all(Option::is_none)
                && !(0..shards.len()).any(|n| incarnation(shards, n).is_some())
            {
                return Err(of_all(TablesError::TimedOut(WaitReason::Away)));
            }
            let whole = Whole::new(heard.iter().map(|heard| heard.map(|heard| heard.part)));
            if whole.allows(count) {
                let incarnations =
                    heard.iter().map(|heard| heard.map_or(0, |heard| heard.incarnation));
                return Ok((whole, incarnations.collect()));
            }
            if checked.is_none_or(|checked| checked.elapsed() >= CLOSED) {
                Self::check_open(shards, wait)?;
                checked = Some(Instant::now());
            }
            let heard = || heard.iter().flatten();
            let paused = heard().any(|heard| heard.part.is_paused());
            let reason = if paused { WaitReason::Paused } else { WaitReason::MinSize };
            let waiting = reason;
            let now = Instant::now();
            if wait.deadline.is_some_and(|deadline| deadline <= now) {
                return Err(of_all(TablesError::TimedOut(waiting)));
            }
            if wait.tick.is_some() && (wait.on_tick)(waiting).is_break() {
                return Err(of_all(TablesError::Interrupted));
            }
            let left = wait.deadline.map(|deadline| deadline.saturating_duration_since(now));
            std::thread::sleep(left.map_or(LOOK, |left| left.min(LOOK)));
            self.forget();
        }
    }

    /// Refuses to wait for shards whose tables are all closed: they will never have more.
    fn check_open(shards: &[Option<Shard<'_>>], wait: &mut Wait<'_>) -> Result<(), ShardsError> {
        let there = |(number, shard): (usize, &Option<Shard<'_>>)| {
            let shard = shard.as_ref().filter(|_| incarnation(shards, number).is_some())?;
            Some((number, shard.requests.start_can_sample(shard.table, 1)))
        };
        let asked: Vec<_> = shards.iter().enumerate().filter_map(there).collect();
        let mut closed = Ok(());
        for (number, reply) in asked {
            match reply.and_then(|mut reply| answer(&mut reply, wait)) {
                Err(error @ TablesError::Refused { code: FailureCode::Closed, .. }) => {
                    closed = Err(at(number)(error));
                }
                // There may be more, or what is wrong is said where it matters.
                _ => return Ok(()),
            }
        }
        closed
    }

    /// Has all shards asked again before the next batch.
    fn forget(&self) {
        self.state.lock().heard.fill(None);
    }

    /// Asks those shards of which nothing recent is known.
    fn ask_around(
        &self,
        shards: &[Option<Shard<'_>>],
        wait: &mut Wait<'_>,
    ) -> Result<(), ShardsError> {
        let now = Instant::now();
        let known: Vec<Option<u64>> = {
            let state = self.state.lock();
            // Of a shard whose items are used up too little would be left to go by.
            let fresh = |heard: &Heard| {
                !heard.part.uses_up() && now.saturating_duration_since(heard.at) < FRESH
            };
            let heard = state.heard.iter();
            heard.map(|heard| heard.filter(fresh).map(|heard| heard.incarnation)).collect()
        };
        let mut asked = Vec::new();
        for (number, shard) in shards.iter().enumerate() {
            let (Some(shard), Some(incarnation)) = (shard, incarnation(shards, number)) else {
                continue;
            };
            if known.get(number) == Some(&Some(incarnation)) {
                continue;
            }
            match shard.requests.ask_info(When::Now, Some(shard.table)) {
                Ok(reply) => asked.push((number, shard.table, incarnation, reply)),
                Err(error) if is_absence(&error) => {}
                Err(error) => return Err(at(number)(error)),
            }
        }
        for (number, table, incarnation, mut reply) in asked {
            let all = match answer(&mut reply, wait) {
                Ok(all) => all,
                Err(error) if is_absence(&error) => continue,
                Err(error) => return Err(at(number)(error)),
            };
            let own = all.iter().find(|numbers| numbers.table == table);
            let heard = own.map(|own| Heard { part: own.into(), at: Instant::now(), incarnation });
            if let Some(place) = self.state.lock().heard.get_mut(number) {
                *place = heard;
            }
        }
        Ok(())
    }

    /// Makes one batch of what the shards gave.
    fn gather(&self, partial: UnfinishedBatch) -> Gathered {
        let labels = self.labels();
        let UnfinishedBatch { count, whole, mut parts, .. } = partial;
        parts.sort_by_key(|part| part.shard);
        let mut infos = Infos::default();
        infos.keys.reserve_exact(count);
        infos.probabilities.reserve_exact(count);
        infos.priorities.reserve_exact(count);
        infos.times_sampled.reserve_exact(count);
        infos.versions.reserve_exact(count);
        for (shard, share) in whole.shares().into_iter().enumerate() {
            let Some(part) = whole.part(shard) else { continue };
            let (mut size, mut weight) = (part.size, part.weight);
            for Given { incarnation, batch, .. } in parts.iter().filter(|part| part.shard == shard)
            {
                let (own, prefix) = (batch.infos(), labels.prefix(shard, *incarnation));
                infos.keys.extend(own.keys.iter().map(|key| prefix | key));
                infos.probabilities.extend(own.probabilities.iter().map(|within| share * within));
                infos.priorities.extend_from_slice(&own.priorities);
                infos.times_sampled.extend_from_slice(&own.times_sampled);
                infos.versions.extend_from_slice(&own.versions);
                (size, weight) = (own.table_size, own.total_weight);
            }
            infos.table_size = infos.table_size.saturating_add(size);
            infos.total_weight = (infos.total_weight + weight).min(f64::MAX);
        }
        Gathered { parts: parts.into_iter().map(|part| part.batch).collect(), infos }
    }

    /// Changes priorities, each on the shard that has the item. All values are checked before the first
    /// shard is asked; each shard then changes all of its own at one moment.
    pub fn update_priorities(
        &self,
        shards: &[Option<Shard<'_>>],
        keys: &[u64],
        priorities: &[f64],
        wait: Wait<'_>,
    ) -> Result<Changed, ShardsError> {
        let (keys_len, values) = (keys.len(), priorities.len());
        if keys_len != values {
            return Err(of_all(TableError::Lengths { keys: keys_len, values }.into()));
        }
        check_priorities(priorities).map_err(of_all)?;
        let mut own: Vec<(Vec<u64>, Vec<f64>)> = vec![Default::default(); shards.len()];
        let mut lost = 0;
        let labels = self.labels();
        for (key, priority) in keys.iter().zip(priorities) {
            match owner(labels, shards, *key) {
                Owner::Shard(shard, key) => {
                    own[shard].0.push(key);
                    own[shard].1.push(*priority);
                }
                Owner::Away => lost += 1,
                Owner::Nobody => {}
            }
        }
        let start = |shard: usize, to: &Shard<'_>| {
            let (keys, priorities) = &own[shard];
            (!keys.is_empty()).then(|| to.requests.start_update(to.table, keys, priorities))
        };
        self.change(shards, |shard| own[shard].0.len(), start, lost, wait)
    }

    /// Removes items.
    pub fn delete(
        &self,
        shards: &[Option<Shard<'_>>],
        keys: &[u64],
        wait: Wait<'_>,
    ) -> Result<Changed, ShardsError> {
        let mut own: Vec<Vec<u64>> = vec![Vec::new(); shards.len()];
        let mut lost = 0;
        let labels = self.labels();
        for key in keys {
            match owner(labels, shards, *key) {
                Owner::Shard(shard, key) => own[shard].push(key),
                Owner::Away => lost += 1,
                Owner::Nobody => {}
            }
        }
        let start = |shard: usize, to: &Shard<'_>| {
            (!own[shard].is_empty())
                .then(|| to.requests.ask_delete(When::Now, to.table, &own[shard]))
        };
        self.change(shards, |shard| own[shard].len(), start, lost, wait)
    }

    /// Asks all shards for a change at once, and adds up what they say.
    fn change(
        &self,
        shards: &[Option<Shard<'_>>],
        count: impl Fn(usize) -> usize,
        start: impl Fn(usize, &Shard<'_>) -> Option<Result<PendingReply<u64>, TablesError>>,
        lost: u64,
        mut wait: Wait<'_>,
    ) -> Result<Changed, ShardsError> {
        let mut changed = Changed { done: 0, lost };
        let (mut asked, mut failed) = (Vec::new(), None);
        for (number, shard) in shards.iter().enumerate() {
            let Some(started) = shard.as_ref().and_then(|shard| start(number, shard)) else {
                continue;
            };
            match started {
                Ok(reply) => asked.push((number, reply)),
                Err(error) if is_absence(&error) => changed.lost += count(number) as u64,
                Err(error) => failed = Some(at(number)(error)),
            }
        }
        for (number, mut reply) in asked {
            match answer(&mut reply, &mut wait) {
                Ok(done) => changed.done += done,
                Err(error) if is_absence(&error) => changed.lost += count(number) as u64,
                Err(error) => failed = Some(at(number)(error)),
            }
        }
        failed.map_or(Ok(changed), Err)
    }
}

/// Whose item a key names.
fn owner(labels: Labels, shards: &[Option<Shard<'_>>], key: u64) -> Owner {
    let label = labels.read(key);
    if label.shard >= shards.len() {
        return Owner::Nobody;
    }
    match incarnation(shards, label.shard) {
        Some(incarnation) if labels.incarnation(incarnation) == label.incarnation => {
            Owner::Shard(label.shard, label.key)
        }
        _ => Owner::Away,
    }
}

/// See [`owner`].
enum Owner {
    /// This shard's, by this key.
    Shard(usize, u64),
    /// One's that is away, or has been since.
    Away,
    /// There is no such shard.
    Nobody,
}
