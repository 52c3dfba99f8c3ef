//! All of a ledger as bytes, and back.
//!
//! A [`Moment`] is taken while nothing happens to the ledger, and is cheap: payload is shared with it. It is
//! written afterwards, in two parts as changes are: *numbers*, and a *bulk* of tokens and blobs, in the same order.
//! Reading makes a moment of them again, of which nothing is believed before it was checked.
//! What [follows](super::derived) from the rest is not written.
//!
//! # Invariants
//!
//! 1. A ledger that is loaded does what the one that was saved would have done, draws included.
//! 2. One state has one form: what is read would be written again byte for byte.
//! 3. Nothing that is read is trusted. It is compared with the table's settings and with itself before anything is
//!    made of it, and memory is taken for bytes that are there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read};
use std::sync::Arc;

use super::change::{Append, GroupStatus, Hold, MAX_VERSION, Want};
use super::check::{check_name, check_priority};
use super::counts::{Counts, MAX_SOURCES, Source, Sources};
use super::derived::Derived;
use super::generation::Generation;
use super::leases::{Batch, Part, PartState};
use super::open::Open;
use super::queue::Arrangement;
use super::{Ledger, MAX_STATUSES, Ready};
use crate::codec::{Bulk, CodecError, Decode, Encode, Reader};
use crate::rng::Rng;
use crate::rollouts::config::{ConfigError, Order, RolloutConfig};
use crate::rollouts::item::{Group, Item, Segment};
use crate::{fields, variants};

/// More than anything that is counted, versions and times included, so that sums of a few are numbers too.
const MOST: u64 = 1 << 60;
/// Bytes of the bulk for which memory is taken before they are there.
const AHEAD: usize = 1 << 20;

/// Bytes that are no state of such a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// They are cut off, or something is out of its range.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The tokens and blobs can't be read, or are cut off.
    #[error("the tokens: {0}")]
    Bulk(#[from] io::Error),
    /// They contradict the table's settings, or themselves.
    #[error("{0}")]
    Wrong(String),
    /// The table's settings can't work.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

fn wrong(what: impl Into<String>) -> StateError {
    StateError::Wrong(what.into())
}

fn ensure(is_so: bool, what: impl FnOnce() -> String) -> Result<(), StateError> {
    if is_so { Ok(()) } else { Err(StateError::Wrong(what())) }
}

/// A ledger as it was at one moment: its numbers, which are its bytes, and the payload that they speak of.
#[derive(Debug)]
pub struct Moment {
    state: State,
    arrangement: Arrangement,
}

/// What is saved of a ledger.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct State {
    /// V.
    pub(super) version: i64,
    /// t.
    pub(super) target: i64,
    /// What to add to the accepted groups when room is counted, since the learner went back.
    pub(super) offset: i64,
    /// Groups that will update t.
    pub(super) taken: u64,
    /// d.
    pub(super) depth: Option<u32>,
    pub(super) paused: bool,
    pub(super) next_group: u64,
    pub(super) next_place: u64,
    pub(super) next_batch: u64,
    pub(super) generation: Generation,
    pub(super) rng: Rng,
    pub(super) counts: Counts,
    pub(super) sources: Sources,
    pub(super) open: BTreeMap<u64, Open>,
    pub(super) ready: BTreeMap<u64, Ready>,
    pub(super) batches: BTreeMap<u64, Batch>,
    pub(super) statuses: BTreeMap<u64, GroupStatus>,
}

fields! {
    Moment { state: State, arrangement: Arrangement }
    State {
        version: i64,
        target: i64,
        offset: i64,
        taken: u64,
        depth: Option<u32>,
        paused: bool,
        next_group: u64,
        next_place: u64,
        next_batch: u64,
        generation: Generation,
        rng: Rng,
        counts: Counts,
        sources: Sources,
        open: BTreeMap<u64, Open>,
        ready: BTreeMap<u64, Ready>,
        batches: BTreeMap<u64, Batch>,
        statuses: BTreeMap<u64, GroupStatus>,
    }
    Open {
        key: String,
        source: String,
        reserved: i64,
        dispatched: i64,
        attempt: u32,
        ttl_ms: u64,
        expires: Option<u64>,
        looked_at: u64,
        deadline: Option<u64>,
        priority: f64,
        items: Vec<Item>;
        oldest: None,
        finished: 0,
    }
    Ready {
        group: Arc<Group>,
        priority: f64,
        place: u64,
        uses: u32,
        attempt: u32;
        is_out: false,
    }
    Group {
        key: String,
        source: String,
        reserved: i64,
        dispatched: i64,
        completed: i64,
        items: Vec<Item>;
        id: 0,
        oldest: 0,
        newest: 0,
        tokens: 0,
    }
    Batch { target: i64, is_used: bool, lost: u64, want: Want, shares: Vec<Part> }
    Part { attempt: u32, state: PartState, lease_ms: u64, groups: Vec<u64> }
}

variants! { PartState { 0 => Waiting, 1 => Out(until: u64), 2 => Over } }

impl Encode for Rng {
    fn encode(&self, out: &mut Vec<u8>) {
        self.state().encode(out);
    }
}

impl Decode for Rng {
    const LEAST: usize = <[u64; 4]>::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        match from.get::<[u64; 4]>(field)? {
            // It is never in this state, and would make another one of it.
            [0, 0, 0, 0] => Err(CodecError::Meaningless { field, got: 0 }),
            state => Ok(Self::from_state(state)),
        }
    }
}

impl Moment {
    /// Gives the bulk piece by piece.
    pub fn bulk(&self) -> impl Iterator<Item = &[u8]> {
        let open = self.state.open.values().flat_map(|open| &open.items);
        let ready = self.state.ready.values().flat_map(|ready| &ready.group.items);
        open.chain(ready).flat_map(Item::bulk)
    }

    fn read(numbers: &[u8], bulk: &mut dyn Read) -> Result<Self, StateError> {
        let mut bulk = Stored { bytes: bulk, failed: None };
        let mut reader = Reader::with_bulk(numbers, &mut bulk);
        let read = reader.get("state").and_then(|moment| reader.end("state").map(|()| moment));
        match bulk.failed {
            Some(error) => Err(error.into()),
            None => Ok(read?),
        }
    }

    /// The number of the last batch that was made; 0 before the first.
    pub fn last_batch(&self) -> u64 {
        self.state.generation.last_batch(self.state.next_batch)
    }
}

/// The bulk of a state that is read.
struct Stored<'a> {
    bytes: &'a mut dyn Read,
    /// What the system said, if it could not be read.
    failed: Option<io::Error>,
}

impl Bulk for Stored<'_> {
    fn piece(&mut self, field: &'static str, len: u32) -> Result<Vec<u8>, CodecError> {
        let mut piece = Vec::with_capacity((len as usize).min(AHEAD));
        self.failed = (&mut self.bytes).take(len.into()).read_to_end(&mut piece).err();
        match piece.len() {
            got if got < len as usize || self.failed.is_some() => {
                Err(CodecError::Truncated { field, wanted: len.into(), got })
            }
            _ => Ok(piece),
        }
    }
}

/// Something that is counted, or a time.
fn check_number(field: &'static str, got: u64) -> Result<(), CodecError> {
    if got > MOST {
        return Err(CodecError::TooLarge { field, limit: MOST, got });
    }
    Ok(())
}

fn check_version(field: &'static str, version: i64) -> Result<(), CodecError> {
    // t may be ahead of V by the batches that are out.
    if !(0..=2 * MAX_VERSION).contains(&version) {
        return Err(CodecError::Meaningless { field, got: version as u64 });
    }
    Ok(())
}

fn check_names(key: &str, source: &str) -> Result<(), StateError> {
    let named = check_name("key of a group", key);
    let named = named.and_then(|()| check_name("name of a source", source));
    named.map_err(|refusal| wrong(refusal.to_string()))
}

impl State {
    /// Before anything happened.
    pub(super) fn new(config: &RolloutConfig) -> Self {
        let (counts, sources, open, ready, batches, statuses) = Default::default();
        Self {
            version: 0,
            target: 0,
            offset: 0,
            taken: 0,
            depth: config.first_depth(),
            paused: false,
            next_group: 0,
            next_place: 0,
            next_batch: 1,
            generation: Generation::default(),
            rng: Rng::new(config.seed),
            counts,
            sources,
            open,
            ready,
            batches,
            statuses,
        }
    }

    /// Complete groups that are in no batch.
    pub(super) fn queued(&self) -> impl Iterator<Item = &Ready> {
        self.ready.values().filter(|ready| !ready.is_out)
    }

    /// Checks what was read, and adds what follows from it: in its parts, and beside it.
    pub(super) fn derive(
        &mut self,
        config: &RolloutConfig,
        arrangement: Arrangement,
    ) -> Result<Derived, StateError> {
        self.complete(config)?;
        check_arrangement(&arrangement, self, config.order)?;
        Ok(Derived::of(config.order, self, arrangement))
    }

    fn complete(&mut self, config: &RolloutConfig) -> Result<(), StateError> {
        self.check_numbers(config)?;
        self.counts.words().into_iter().try_for_each(|count| check_number("count", count))?;
        check_sources(self.sources.all())?;
        ensure(self.sources.index(), || "a source is there twice".into())?;
        let Self { next_group, next_place, next_batch, generation, open, ready, .. } = self;
        let check_id = |id: u64| {
            let was_reserved = id < *next_group && !generation.has_lost_group(id);
            ensure(was_reserved, || format!("group {id} was never reserved"))
        };
        for (id, open) in open.iter_mut() {
            check_id(*id)?;
            open.complete(config, *id)?;
        }
        for (id, ready) in ready.iter_mut() {
            check_id(*id)?;
            ensure(ready.place < *next_place && !open.contains_key(id), || {
                format!("group {id} is open, or was never complete")
            })?;
            ready.complete(config, *id)?;
        }
        for (number, batch) in &self.batches {
            let was_made = *number > 0 && number < next_batch;
            ensure(was_made && !generation.has_lost_batch(*number), || {
                format!("batch {number} was never made")
            })?;
            batch.check(config, *number)?;
            for id in batch.shares.iter().flat_map(|part| &part.groups) {
                let ready = ready.get_mut(id).filter(|ready| !ready.is_out);
                let ready = ready.ok_or_else(|| {
                    wrong(format!("group {id} of batch {number} is not there, or in another"))
                })?;
                ready.is_out = true;
            }
        }
        let told = self.statuses.len();
        ensure(told <= MAX_STATUSES, || format!("the statuses of {told} groups are kept"))?;
        for id in self.statuses.keys() {
            check_id(*id)?;
            let is_over = !open.contains_key(id) && !ready.contains_key(id);
            ensure(is_over, || format!("group {id} is not over"))?;
        }
        self.check_counts()
    }

    fn check_numbers(&self, config: &RolloutConfig) -> Result<(), StateError> {
        let Self { version, target, offset, taken, depth, generation, .. } = *self;
        check_version("version", version)?;
        check_version("target", target)?;
        for (field, number) in [
            ("offset", offset.unsigned_abs()),
            ("groups of a version", taken),
            ("number of the next group", self.next_group),
            ("place of the next group", self.next_place),
            ("number of the next batch", self.next_batch),
            ("beginning of a generation", generation.groups),
            ("beginning of a generation", generation.batches),
            ("beginning of a generation", generation.first),
        ] {
            check_number(field, number)?;
        }
        ensure(target >= version, || format!("version {version} is above the target {target}"))?;
        ensure(self.next_batch > 0, || "batches are counted from 1".into())?;
        let per_version = config.per_version();
        ensure(taken < per_version, || {
            format!("{taken} groups are taken for a version that has {per_version}")
        })?;
        ensure(depth.is_some() == config.max_lag.is_some() && depth <= config.max_lag, || {
            format!("pipeline_depth is {depth:?}, max_lag {:?}", config.max_lag)
        })?;
        let Generation { groups, batches, first, attempts, .. } = generation;
        let is_first = generation.is_first();
        let is_right = groups <= first && (1..=first).contains(&batches) && attempts > 0;
        ensure(is_first || (is_right && first <= self.next_group.min(self.next_batch)), || {
            format!(
                "numbers from {groups} and {batches} up to {first} are not in use, and were given"
            )
        })
    }

    /// That what is counted is what there is, so that nothing is ever counted below zero.
    fn check_counts(&mut self) -> Result<(), StateError> {
        let counts = self.counts;
        let (running, ready) = (self.open.len() as u64, self.ready.len() as u64);
        let sum = [running, counts.accepted, counts.rejected, counts.filtered];
        let sum = sum.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        ensure(counts.running == running && counts.submitted == sum, || {
            format!("{} groups were reserved, and {sum} are told of", counts.submitted)
        })?;
        let most = self.generation.most_groups(self.next_group);
        let is_first = self.generation.is_first();
        ensure(counts.submitted == most || (!is_first && counts.submitted < most), || {
            format!("{} groups were reserved, the next is {}", counts.submitted, self.next_group)
        })?;
        ensure(counts.accepted >= ready, || {
            format!("{ready} groups are complete, {} were accepted", counts.accepted)
        })?;
        // By place, running groups, complete ones, and their tokens.
        let mut of: HashMap<usize, (u64, u64, u64)> = HashMap::new();
        for open in self.open.values() {
            of.entry(self.sources.place(&open.source)).or_default().0 += 1;
        }
        for ready in self.ready.values() {
            let (_, groups, tokens) =
                of.entry(self.sources.place(&ready.group.source)).or_default();
            *groups += 1;
            *tokens += ready.group.tokens;
        }
        for (place, source) in self.sources.all().iter().enumerate() {
            let (running, accepted, tokens) = of.get(&place).copied().unwrap_or_default();
            let is_right = source.running == running
                && source.submitted >= running
                && source.accepted >= accepted
                && source.tokens >= tokens;
            ensure(is_right, || {
                format!("what is counted for source {:?} is not what there is", source.name)
            })?;
        }
        Ok(())
    }
}

fn check_sources(sources: &[Source]) -> Result<(), StateError> {
    let most = MAX_SOURCES + 1;
    ensure(sources.len() <= most, || format!("there are {} sources", sources.len()))?;
    for source in sources {
        let Source { name, submitted, accepted, rejected, filtered, running, tokens, .. } = source;
        check_names("", name)?;
        let counts = [submitted, accepted, rejected, filtered, running, tokens, &source.delivered];
        counts.into_iter().try_for_each(|count| check_number("count of a source", *count))?;
        check_number("time of a source", source.last_reserved.unwrap_or(0))?;
    }
    Ok(())
}

/// That producers may have brought an item.
fn check_item(config: &RolloutConfig, item: &Item) -> Result<(), StateError> {
    let segments = || item.segments.iter();
    ensure(segments().all(|segment| segment.tokens > 0), || "a segment has no tokens".into())?;
    let tokens: u64 = segments().map(|segment| u64::from(segment.tokens)).sum();
    let most = config.max_tokens;
    ensure(tokens <= most.into(), || format!("an item has {tokens} tokens, max_tokens is {most}"))?;
    if let Some(updates) = &item.updates {
        updates.check(config).map_err(|refusal| wrong(refusal.to_string()))?;
        let mut ends = HashSet::from([0]);
        let mut end = 0;
        ends.extend(segments().map(|segment| {
            end += segment.tokens;
            end
        }));
        ensure(updates.columns.iter().all(|update| ends.contains(&update.tokens)), || {
            "a column has values of part of a segment".into()
        })?;
    }
    // Whatever a producer must keep to, in each segment.
    let hold = Hold { group: 0, attempt: 0 };
    let (none, finish) = (Arc::new(Segment::default()), &item.finish);
    for (sequence, segment) in (0..).zip(segments().chain([&none])) {
        let (item, segment, finish) = (item.index, Arc::clone(segment), finish.clone());
        let append = Append { hold, item, sequence, segment, finish, priority: 1.0 };
        append.check(config).map_err(|refusal| wrong(refusal.to_string()))?;
    }
    Ok(())
}

/// Has items of a group share blobs that are alike, as they did.
fn share_blobs(items: &mut [Item]) {
    for at in 1..items.len() {
        let Some((before, [item, ..])) = items.split_at_mut_checked(at) else { return };
        if let Some(shared) = item.finish.as_ref().and_then(|finish| finish.sharing(before)) {
            item.finish = Some(Arc::new(shared));
        }
    }
}

impl Open {
    /// Checks what was read, and adds what follows from it.
    fn complete(&mut self, config: &RolloutConfig, id: u64) -> Result<(), StateError> {
        check_names(&self.key, &self.source)?;
        check_version("version of a group", self.reserved)?;
        check_version("version of a group", self.dispatched)?;
        for (field, number) in [
            ("ttl", self.ttl_ms),
            ("end of a reservation", self.expires.unwrap_or(0)),
            ("time", self.looked_at),
            ("deadline", self.deadline.unwrap_or(0)),
        ] {
            check_number(field, number)?;
        }
        check_priority(self.priority).map_err(|refusal| wrong(refusal.to_string()))?;
        self.items.iter().try_for_each(|item| check_item(config, item))?;
        share_blobs(&mut self.items);
        self.finished = self.items.iter().filter(|item| item.is_whole()).count() as u32;
        self.oldest = self.items.iter().filter_map(Item::oldest).min();
        ensure((0..).zip(&self.items).all(|(at, item)| item.index == at), || {
            format!("the items of group {id} are not in their places")
        })?;
        ensure(self.finished < config.group_size, || format!("group {id} runs and is complete"))?;
        ensure(self.attempt < u32::MAX && self.ttl_ms > 0, || {
            format!("group {id} has a reservation of no time")
        })
    }
}

impl Ready {
    /// Checks what was read, and adds what follows from it.
    fn complete(&mut self, config: &RolloutConfig, id: u64) -> Result<(), StateError> {
        let group = Arc::make_mut(&mut self.group);
        group.id = id;
        let items = &group.items;
        check_names(&group.key, &group.source)?;
        for version in [group.reserved, group.dispatched, group.completed] {
            check_version("version of a group", version)?;
        }
        check_priority(self.priority).map_err(|refusal| wrong(refusal.to_string()))?;
        items.iter().try_for_each(|item| check_item(config, item))?;
        let is_whole = !items.is_empty()
            && items.iter().all(Item::is_whole)
            && items.windows(2).all(|two| matches!(two, [a, b] if a.index < b.index));
        ensure(is_whole, || format!("the items of group {id} are no complete group"))?;
        let (group_size, max_uses) = (config.group_size as usize, config.max_uses);
        ensure(items.len() <= group_size, || {
            format!("group {id} has {} items, group_size is {group_size}", items.len())
        })?;
        ensure(self.attempt < u32::MAX, || format!("group {id} has a reservation too many"))?;
        ensure(max_uses == 0 || self.uses < max_uses, || {
            format!("group {id} was used {} times, max_uses is {max_uses}", self.uses)
        })?;
        group.oldest = items.iter().filter_map(Item::oldest).min().unwrap_or(group.dispatched);
        group.newest = items.iter().filter_map(Item::newest).max().unwrap_or(group.dispatched);
        group.tokens = items.iter().map(|item| u64::from(item.tokens())).sum();
        share_blobs(&mut group.items);
        Ok(())
    }
}

impl Batch {
    fn check(&self, config: &RolloutConfig, number: u64) -> Result<(), StateError> {
        let Self { target, want, ref shares, lost, .. } = *self;
        check_version("target of a batch", target)?;
        check_number("groups of a batch that are lost", lost)?;
        want.check(config).map_err(|refusal| wrong(format!("batch {number}: {refusal}")))?;
        ensure(shares.len() == want.ranks as usize, || {
            format!("batch {number} has {} shares, of {} ranks", shares.len(), want.ranks)
        })?;
        for Part { groups, attempt, state, lease_ms } in shares {
            check_number("lease", *lease_ms)?;
            if let PartState::Out(until) = state {
                check_number("lease", *until)?;
                ensure(*lease_ms > 0, || format!("a share of batch {number} is out for no time"))?;
            }
            ensure(*attempt < u32::MAX, || format!("a share of batch {number} was out too often"))?;
            ensure(*state != PartState::Over || groups.is_empty(), || {
                format!("a share of batch {number} is over and has groups")
            })?;
        }
        ensure(shares.iter().any(|part| part.state != PartState::Over), || {
            format!("batch {number} is over")
        })
    }
}

impl Ledger {
    /// All of it as it is now. Payload is shared with it, not copied.
    pub fn save(&self) -> Moment {
        Moment { state: self.state.clone(), arrangement: self.derived.queue.layout() }
    }

    /// The ledger that a [`Moment`] is of. `bulk` may have more behind it.
    ///
    /// # Errors
    ///
    /// [`StateError`], for whatever bytes.
    pub fn load(
        config: Arc<RolloutConfig>,
        numbers: &[u8],
        bulk: &mut dyn Read,
    ) -> Result<Self, StateError> {
        let mut ledger = Self::new(Arc::clone(&config))?;
        let Moment { mut state, arrangement } = Moment::read(numbers, bulk)?;
        ledger.derived = state.derive(&config, arrangement)?;
        ledger.state = state;
        Ok(ledger)
    }

    /// Goes on at `now`, as if no time had passed since `then`: reservations and leases get their full time again,
    /// since no producer could use it meanwhile, and groups keep what they had until their deadlines. The client that
    /// paused it may be gone, so that is over.
    pub fn wake(&mut self, then: u64, now: u64) {
        self.state.paused = false;
        for source in self.state.sources.all_mut() {
            let ago = source.last_reserved.map(|last| then.saturating_sub(last));
            source.last_reserved = ago.map(|ago| now.saturating_sub(ago));
        }
        for open in self.state.open.values_mut() {
            if let Some(expires) = &mut open.expires {
                *expires = now.saturating_add(open.ttl_ms);
                open.looked_at = *expires;
            }
            if let Some(deadline) = &mut open.deadline {
                *deadline = now.saturating_add(deadline.saturating_sub(then));
            }
        }
        for part in self.state.batches.values_mut().flat_map(|batch| &mut batch.shares) {
            if let PartState::Out(until) = &mut part.state {
                *until = now.saturating_add(part.lease_ms);
            }
        }
        let arrangement = self.derived.queue.layout();
        self.derived = Derived::of(self.config.order, &self.state, arrangement);
    }

    /// Takes other settings, which are such that [may change](RolloutConfig::goes_on).
    ///
    /// # Errors
    ///
    /// [`ConfigError`]; then it has those of before.
    pub fn reconfigure(&mut self, config: Arc<RolloutConfig>) -> Result<(), ConfigError> {
        config.check()?;
        let before = &self.config;
        let depths = |config: &RolloutConfig| (config.pipeline_depth, config.auto_tune);
        if depths(before) != depths(&config) {
            self.state.depth = config.first_depth();
        }
        self.filter = config.bound_filter()?;
        self.limiter = config.bound_limiter()?;
        let seed = self.config.seed;
        self.config = match config.seed == seed {
            true => config,
            false => Arc::new(RolloutConfig { seed, ..RolloutConfig::clone(&config) }),
        };
        Ok(())
    }
}

/// That the buckets of the weighted order have exactly the groups that are queued.
fn check_arrangement(
    arrangement: &Arrangement,
    state: &State,
    order: Order,
) -> Result<(), StateError> {
    if order != Order::Weighted {
        let is_none = arrangement.is_empty();
        return ensure(is_none, || "groups are in places, and the order has none".into());
    }
    let ages: HashMap<u64, i64> =
        state.queued().map(|ready| (ready.group.id, ready.group.oldest)).collect();
    let (mut seen, mut last) = (HashSet::new(), None);
    for (age, (ids, free)) in arrangement {
        check_version("age of groups", *age)?;
        ensure(last.is_none_or(|last| last < *age), || "ages are not in their order".into())?;
        last = Some(*age);
        ensure(ids.iter().any(Option::is_some), || format!("no group is of age {age}"))?;
        for id in ids.iter().flatten() {
            ensure(ages.get(id) == Some(age) && seen.insert(*id), || {
                format!("group {id} is in a place that is not its own")
            })?;
        }
        let empty = (0..).zip(ids).filter(|(_, id)| id.is_none()).map(|(place, _)| place);
        let mut sorted = free.clone();
        sorted.sort_unstable();
        ensure(sorted.into_iter().eq(empty), || {
            "the free places are not those without one".into()
        })?;
    }
    ensure(seen.len() == ages.len(), || "a queued group has no place".into())
}
