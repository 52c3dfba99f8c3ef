//! All of a ledger as bytes, and back.
//!
//! A [`Moment`] is taken while nothing happens to the ledger, and is cheap: payload is shared with it. It is
//! written afterwards, in two parts as changes are: *numbers*, and a *bulk* of tokens and blobs, in the same order.
//! What follows from the rest is not written: who is due when, which ages there are, who is in the queue, in
//! which order.
//!
//! # Invariants
//!
//! 1. A ledger that is loaded does what the one that was saved would have done, draws included.
//! 2. One state has one form: what is read would be written again byte for byte.
//! 3. Nothing that is read is trusted. It is compared with the table's settings and with itself before anything is
//!    made of it, and memory is taken for bytes that are there.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::sync::Arc;

use smallvec::SmallVec;

use super::change::{Append, Fate, Hold, MAX_RANKS, MAX_VERSION, Want};
use super::check::{check_name, check_priority};
use super::counts::{Counts, MAX_SOURCES, Source, Sources};
use super::generation::Generation;
use super::leases::{Batch, Part, State};
use super::open::Open;
use super::{Due, FATES, Ledger, Ready};
use crate::rng::Rng;
use crate::rollouts::codec::{CodecError, Put, Take};
use crate::rollouts::config::{ConfigError, MAX_GROUP, MAX_GROUPS, Order, RolloutConfig};
use crate::rollouts::item::{Finish, Group, Item, Run, Segment};
use crate::rollouts::schema::MAX_BLOBS;

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

/// Where everything is in the buckets of the weighted order.
type Arrangement = Vec<(i64, Vec<Option<u64>>, Vec<u32>)>;

/// A ledger as it was at one moment: its numbers, and the payload that they speak of.
#[derive(Debug)]
pub struct Moment {
    numbers: Numbers,
    counts: Counts,
    sources: Vec<Source>,
    open: Vec<(u64, Open)>,
    ready: Vec<Ready>,
    arrangement: Arrangement,
    batches: Vec<(u64, Batch)>,
    fates: Vec<(u64, Fate)>,
}

/// What a ledger has one of; see there.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    version: i64,
    target: i64,
    taken: u64,
    depth: Option<u32>,
    offset: i64,
    next_group: u64,
    next_place: u64,
    next_batch: u64,
    generation: Generation,
    rng: [u64; 4],
}

fn put_item(out: &mut impl Put, item: &Item) {
    out.put_u32(item.index);
    out.put_u32(item.segments.len() as u32);
    for segment in &item.segments {
        out.put_u32(segment.tokens);
        out.put_u32(segment.runs.len() as u32);
        for run in &segment.runs {
            out.put_i64(run.version);
            out.put_u32(run.tokens);
        }
    }
    out.put_u8(item.finish.is_some().into());
    let Some(finish) = &item.finish else { return };
    out.put(&finish.fields);
    out.put_u32(finish.blobs.len() as u32);
    for (name, bytes) in &finish.blobs {
        out.put_text(name);
        out.put_u32(bytes.len() as u32);
    }
}

fn put_items(out: &mut impl Put, items: &[Item]) {
    out.put_u32(items.len() as u32);
    items.iter().for_each(|item| put_item(out, item));
}

impl Open {
    fn put(&self, out: &mut impl Put) {
        let Self { key, source, admitted, dispatched, items, attempt, ttl_ms, expires, .. } = self;
        out.put_text(key);
        out.put_text(source);
        out.put_i64(*admitted);
        out.put_i64(*dispatched);
        out.put_u32(*attempt);
        out.put_u64(*ttl_ms);
        out.put_maybe(*expires);
        out.put_u64(self.looked_at);
        out.put_maybe(self.deadline);
        out.put_f64(self.priority);
        put_items(out, items);
    }
}

impl Ready {
    fn put(&self, out: &mut impl Put) {
        let group = &*self.group;
        out.put_u64(group.id);
        out.put_text(&group.key);
        out.put_text(&group.source);
        for version in [group.admitted, group.dispatched, group.completed] {
            out.put_i64(version);
        }
        out.put_f64(self.priority);
        out.put_u64(self.place);
        out.put_u32(self.uses);
        put_items(out, &group.items);
    }
}

impl Batch {
    fn put(&self, out: &mut impl Put) {
        out.put_i64(self.target);
        out.put_u8(self.is_used.into());
        out.put_u64(self.lost);
        self.want.put(out);
        out.put_u32(self.shares.len() as u32);
        for part in &self.shares {
            out.put_u32(part.attempt);
            let (state, until) = match part.state {
                State::Waiting => (0, 0),
                State::Out(until) => (1, until),
                State::Over => (2, 0),
            };
            out.put_u8(state);
            out.put_u64(until);
            out.put_u64(part.lease_ms);
            out.put_u32(part.groups.len() as u32);
            part.groups.iter().for_each(|id| out.put_u64(*id));
        }
    }
}

impl Moment {
    /// Appends the numbers.
    pub fn put(&self, out: &mut impl Put) {
        let numbers = &self.numbers;
        for number in [numbers.version, numbers.target, numbers.offset] {
            out.put_i64(number);
        }
        out.put_u64(numbers.taken);
        out.put_maybe(numbers.depth.map(u64::from));
        for number in [numbers.next_group, numbers.next_place, numbers.next_batch] {
            out.put_u64(number);
        }
        let generation = numbers.generation;
        for number in [generation.groups, generation.batches, generation.first] {
            out.put_u64(number);
        }
        out.put_u32(generation.attempts);
        numbers.rng.iter().for_each(|word| out.put_u64(*word));
        self.counts.words().iter().for_each(|count| out.put_u64(*count));
        out.put_u32(self.sources.len() as u32);
        for source in &self.sources {
            out.put_text(&source.name);
            source.words().iter().for_each(|count| out.put_u64(*count));
            out.put_maybe(source.last_admitted);
        }
        out.put_u32(self.open.len() as u32);
        for (id, open) in &self.open {
            out.put_u64(*id);
            open.put(out);
        }
        out.put_u32(self.ready.len() as u32);
        self.ready.iter().for_each(|ready| ready.put(out));
        out.put_u32(self.arrangement.len() as u32);
        for (age, ids, free) in &self.arrangement {
            out.put_i64(*age);
            out.put_u32(ids.len() as u32);
            ids.iter().for_each(|id| out.put_maybe(*id));
            out.put_u32(free.len() as u32);
            free.iter().for_each(|place| out.put_u32(*place));
        }
        out.put_u32(self.batches.len() as u32);
        for (number, batch) in &self.batches {
            out.put_u64(*number);
            batch.put(out);
        }
        out.put_u32(self.fates.len() as u32);
        for (id, fate) in &self.fates {
            out.put_u64(*id);
            out.put_u8(fate.number());
        }
    }

    /// Gives the bulk piece by piece.
    pub fn bulk(&self) -> impl Iterator<Item = &[u8]> {
        let open = self.open.iter().flat_map(|(_, open)| &open.items);
        let ready = self.ready.iter().flat_map(|ready| &ready.group.items);
        open.chain(ready).flat_map(|item| {
            let blobs = item.finish.iter().flat_map(|finish| &finish.blobs);
            let tokens = item.segments.iter().map(|segment| &*segment.bytes);
            tokens.chain(blobs.map(|(_, bytes)| &**bytes))
        })
    }

    /// The number of the last batch that was made; 0 before the first.
    pub fn last_batch(&self) -> u64 {
        self.numbers.generation.last_batch(self.numbers.next_batch)
    }
}

/// What is read, and what it is compared with.
struct Reading<'a, 'b> {
    take: Take<'a>,
    bulk: &'b mut dyn Read,
    config: &'a RolloutConfig,
}

impl Reading<'_, '_> {
    /// A number that is counted, a version or a time.
    fn number(&mut self, field: &'static str) -> Result<u64, StateError> {
        let got = self.take.u64(field)?;
        if got > MOST {
            return Err(CodecError::Value { field, got }.into());
        }
        Ok(got)
    }

    fn maybe(&mut self, field: &'static str) -> Result<Option<u64>, StateError> {
        match self.take.maybe(field)? {
            Some(got) if got > MOST => Err(CodecError::Value { field, got }.into()),
            got => Ok(got),
        }
    }

    fn version(&mut self, field: &'static str) -> Result<i64, StateError> {
        let got = self.take.u64(field)?;
        match i64::try_from(got) {
            // t may be ahead of V by the batches that are out.
            Ok(version) if version <= 2 * MAX_VERSION => Ok(version),
            _ => Err(CodecError::Value { field, got }.into()),
        }
    }

    fn name(&mut self, field: &'static str) -> Result<String, StateError> {
        let name = self.take.text(field)?;
        check_name(field, &name).map_err(|refusal| wrong(refusal.to_string()))?;
        Ok(name)
    }

    fn priority(&mut self) -> Result<f64, StateError> {
        let priority = self.take.f64("priority")?;
        check_priority(priority).map_err(|refusal| wrong(refusal.to_string()))?;
        Ok(priority)
    }

    /// The next bytes of the bulk.
    fn piece(&mut self, len: usize) -> Result<Vec<u8>, StateError> {
        let mut bytes = Vec::with_capacity(len.min(AHEAD));
        (&mut self.bulk).take(len as u64).read_to_end(&mut bytes)?;
        if bytes.len() < len {
            return Err(CodecError::Truncated("tokens").into());
        }
        Ok(bytes)
    }

    fn segment(&mut self) -> Result<Segment, StateError> {
        let tokens = self.take.u32("tokens of a segment")?;
        let count = self.take.count("number of versions", u32::MAX, 12)?;
        let mut runs = SmallVec::with_capacity(count);
        for _ in 0..count {
            let version = self.version("version of a token")?;
            runs.push(Run { version, tokens: self.take.u32("tokens of a version")? });
        }
        if tokens > self.config.max_tokens {
            let field = "tokens of a segment";
            return Err(CodecError::Value { field, got: tokens.into() }.into());
        }
        let len = tokens as usize * self.config.schema.token_bytes();
        Ok(Segment { runs, tokens, bytes: self.piece(len)? })
    }

    fn item(&mut self, ledger: &Ledger) -> Result<Item, StateError> {
        let index = self.take.u32("place of an item")?;
        let count = self.take.count("number of segments", u32::MAX, 8)?;
        let mut item = Item { index, ..Item::default() };
        let mut tokens = 0u64;
        for _ in 0..count {
            let segment = self.segment()?;
            ensure(segment.tokens > 0, || "a segment has no tokens".into())?;
            tokens += u64::from(segment.tokens);
            item.segments.push(Arc::new(segment));
        }
        let most = self.config.max_tokens;
        ensure(tokens <= most.into(), || {
            format!("an item has {tokens} tokens, max_tokens is {most}")
        })?;
        if self.take.flag("end of an item")? {
            let len = self.config.schema.field_bytes();
            let fields = self.take.bytes("fields", len)?.to_vec();
            let count = self.take.count("number of blobs", MAX_BLOBS as u32, 8)?;
            let mut names = Vec::with_capacity(count);
            let mut sum = 0u64;
            for _ in 0..count {
                let name = self.take.text("name of a blob")?;
                let len = self.take.u32("bytes of a blob")?;
                sum += u64::from(len);
                names.push((name, len));
            }
            let most = self.config.max_blob_bytes;
            ensure(sum <= most.into(), || {
                format!("an item has {sum} bytes of blobs, max_blob_bytes is {most}")
            })?;
            // They come behind the tokens.
            let mut blobs = Vec::with_capacity(count);
            for (name, len) in names {
                blobs.push((name, self.piece(len as usize)?));
            }
            item.finish = Some(Arc::new(Finish { fields, blobs }));
        }
        // Whatever a producer must keep to, in each segment.
        let hold = Hold { group: 0, attempt: 0 };
        let (none, finish) = (Arc::new(Segment::default()), item.finish.clone());
        let all = item.segments.iter().chain([&none]);
        for (sequence, segment) in (0..).zip(all) {
            let (segment, finish) = (Arc::clone(segment), finish.clone());
            let append = Append { hold, item: index, sequence, segment, finish, priority: 1.0 };
            append.check(&ledger.config).map_err(|refusal| wrong(refusal.to_string()))?;
        }
        Ok(item)
    }

    fn items(&mut self, ledger: &Ledger) -> Result<Vec<Item>, StateError> {
        let count = self.take.count("number of items", MAX_GROUP, 9)?;
        (0..count).map(|_| self.item(ledger)).collect()
    }

    fn numbers(&mut self) -> Result<Numbers, StateError> {
        let (version, target) = (self.version("version")?, self.version("target")?);
        let offset = self.take.i64("offset")?;
        if offset.unsigned_abs() > MOST {
            let (field, got) = ("offset", offset.unsigned_abs());
            return Err(CodecError::Value { field, got }.into());
        }
        let taken = self.number("groups of a version")?;
        let narrow = |got| {
            let field = "pipeline_depth";
            u32::try_from(got).map_err(|_| CodecError::Value { field, got })
        };
        let depth = self.take.maybe("pipeline_depth")?.map(narrow).transpose()?;
        let next_group = self.number("number of the next group")?;
        let next_place = self.number("place of the next group")?;
        let next_batch = self.number("number of the next batch")?;
        let mut generation = [0; 3];
        for number in &mut generation {
            *number = self.number("beginning of a generation")?;
        }
        let [groups, batches, first] = generation;
        let generation =
            Generation::of(groups, batches, first, self.take.u32("first attempt of a generation")?);
        let mut rng = [0; 4];
        for word in &mut rng {
            *word = self.take.u64("state of the generator")?;
        }
        // The generator would make another state of this one.
        ensure(rng != [0; 4], || "the generator is in a state that it never has".into())?;
        let config = self.config;
        ensure(target >= version, || format!("version {version} is above the target {target}"))?;
        ensure(next_batch > 0, || "batches are counted from 1".into())?;
        let per_version = config.per_version();
        ensure(taken < per_version, || {
            format!("{taken} groups are taken for a version that has {per_version}")
        })?;
        ensure(depth.is_some() == config.max_lag.is_some() && depth <= config.max_lag, || {
            format!("pipeline_depth is {depth:?}, max_lag {:?}", config.max_lag)
        })?;
        let is_first = generation == Generation::default();
        let is_right = groups <= first && (1..=first).contains(&batches) && generation.attempts > 0;
        ensure(is_first || (is_right && first <= next_group.min(next_batch)), || {
            format!(
                "numbers from {groups} and {batches} up to {first} are nobody's, and were given"
            )
        })?;
        Ok(Numbers {
            version,
            target,
            taken,
            depth,
            offset,
            next_group,
            next_place,
            next_batch,
            generation,
            rng,
        })
    }

    fn counts(&mut self) -> Result<Counts, StateError> {
        let mut counts = Counts::default();
        for count in counts.words_mut() {
            *count = self.number("count")?;
        }
        Ok(counts)
    }

    fn sources(&mut self) -> Result<Sources, StateError> {
        let count = self.take.count("number of sources", MAX_SOURCES as u32 + 1, 68)?;
        let mut names = HashSet::new();
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let name = self.name("name of a source")?;
            ensure(names.insert(name.clone()), || format!("source {name:?} is there twice"))?;
            let mut source = Source { name, ..Source::default() };
            for count in source.words_mut() {
                *count = self.number("count of a source")?;
            }
            source.last_admitted = self.maybe("time of a source")?;
            all.push(source);
        }
        let mut sources = Sources::default();
        sources.restore(all);
        Ok(sources)
    }

    fn open(&mut self, ledger: &Ledger, id: u64) -> Result<Open, StateError> {
        let (key, source) = (self.name("key of a group")?, self.name("name of a source")?);
        let (admitted, dispatched) =
            (self.version("version of a group")?, self.version("version of a group")?);
        let attempt = self.take.u32("attempt")?;
        let (ttl_ms, expires) = (self.number("ttl")?, self.maybe("end of a permit")?);
        let (looked_at, deadline) = (self.number("time")?, self.maybe("deadline")?);
        let priority = self.priority()?;
        let items = self.items(ledger)?;
        let finished = items.iter().filter(|item| item.finish.is_some()).count() as u32;
        ensure((0..).zip(&items).all(|(at, item)| item.index == at), || {
            format!("the items of group {id} are not in their places")
        })?;
        ensure(finished < self.config.group_size, || format!("group {id} runs and is complete"))?;
        ensure(attempt < u32::MAX && ttl_ms > 0, || format!("group {id} has a permit of no time"))?;
        let oldest = items.iter().filter_map(Item::oldest).min();
        Ok(Open {
            key,
            source,
            admitted,
            dispatched,
            oldest,
            items,
            finished,
            attempt,
            ttl_ms,
            expires,
            looked_at,
            deadline,
            priority,
        })
    }

    fn ready(&mut self, ledger: &Ledger) -> Result<Ready, StateError> {
        let id = self.number("group")?;
        let (key, source) = (self.name("key of a group")?, self.name("name of a source")?);
        let mut versions = [0; 3];
        for version in &mut versions {
            *version = self.version("version of a group")?;
        }
        let [admitted, dispatched, completed] = versions;
        let priority = self.priority()?;
        let (place, uses) = (self.number("place of a group")?, self.take.u32("uses of a group")?);
        let items = self.items(ledger)?;
        let is_whole = !items.is_empty()
            && items.iter().all(|item| item.finish.is_some())
            && items.windows(2).all(|two| matches!(two, [a, b] if a.index < b.index));
        ensure(is_whole, || format!("the items of group {id} are no complete group"))?;
        let (group_size, max_uses) = (self.config.group_size as usize, self.config.max_uses);
        ensure(items.len() <= group_size, || {
            format!("group {id} has {} items, group_size is {group_size}", items.len())
        })?;
        ensure(max_uses == 0 || uses < max_uses, || {
            format!("group {id} was used {uses} times, max_uses is {max_uses}")
        })?;
        let group = Group {
            id,
            key,
            source,
            admitted,
            dispatched,
            oldest: items.iter().filter_map(Item::oldest).min().unwrap_or(dispatched),
            newest: items.iter().filter_map(Item::newest).max().unwrap_or(dispatched),
            completed,
            tokens: items.iter().map(|item| u64::from(item.tokens())).sum(),
            items,
        };
        Ok(Ready { group: Arc::new(group), priority, place, uses, is_out: false })
    }

    fn arrangement(&mut self) -> Result<Arrangement, StateError> {
        let count = self.take.count("number of ages", MAX_GROUPS, 16)?;
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let age = self.version("age of groups")?;
            let count = self.take.count("number of places", u32::MAX, 8)?;
            let ids = (0..count).map(|_| self.take.maybe("group in a place"));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            let count = self.take.count("number of free places", u32::MAX, 4)?;
            let free = (0..count).map(|_| self.take.u32("free place"));
            all.push((age, ids, free.collect::<Result<_, _>>()?));
        }
        Ok(all)
    }

    fn batch(&mut self, ledger: &Ledger, number: u64) -> Result<Batch, StateError> {
        let target = self.version("target of a batch")?;
        let is_used = self.take.flag("use of a batch")?;
        let lost = self.number("groups of a batch that are lost")?;
        let want = Want::take(&mut self.take)?;
        want.check(&ledger.config)
            .map_err(|refusal| wrong(format!("batch {number}: {refusal}")))?;
        let count = self.take.count("number of ranks", MAX_RANKS, 25)?;
        ensure(count == want.ranks as usize, || {
            format!("batch {number} has {count} shares, of {} ranks", want.ranks)
        })?;
        let mut shares = Vec::with_capacity(count);
        for _ in 0..count {
            let attempt = self.take.u32("attempt")?;
            let (state, until) = (self.take.u8("state of a share")?, self.number("lease")?);
            let lease_ms = self.number("lease")?;
            let count = self.take.count("groups of a share", MAX_GROUPS, 8)?;
            let groups = (0..count).map(|_| self.take.u64("group"));
            let groups = groups.collect::<Result<Vec<_>, _>>()?;
            let state = match state {
                0 => State::Waiting,
                1 => State::Out(until),
                2 => State::Over,
                got => {
                    let field = "state of a share";
                    return Err(CodecError::Value { field, got: got.into() }.into());
                }
            };
            ensure(until == 0 || matches!(state, State::Out(_)), || {
                format!("a share of batch {number} is not out, and has a lease")
            })?;
            ensure(attempt < u32::MAX, || format!("a share of batch {number} was out too often"))?;
            ensure(state != State::Over || groups.is_empty(), || {
                format!("a share of batch {number} is over and has groups")
            })?;
            ensure(!matches!(state, State::Out(_)) || lease_ms > 0, || {
                format!("a share of batch {number} is out for no time")
            })?;
            shares.push(Part { groups, attempt, state, lease_ms });
        }
        ensure(shares.iter().any(|part| part.state != State::Over), || {
            format!("batch {number} is over")
        })?;
        Ok(Batch { target, want, shares, is_used, lost })
    }
}

impl Ledger {
    /// All of it as it is now. Payload is shared with it, not copied.
    pub fn save(&self) -> Moment {
        let numbers = Numbers {
            version: self.version,
            target: self.target,
            taken: self.taken,
            depth: self.depth,
            offset: self.offset,
            next_group: self.next_group,
            next_place: self.next_place,
            next_batch: self.next_batch,
            // What was given last is nothing to go on from.
            generation: Generation::of(
                self.generation.groups,
                self.generation.batches,
                self.generation.first,
                self.generation.attempts,
            ),
            rng: self.rng.state(),
        };
        let mut ready: Vec<Ready> = self.ready.values().cloned().collect();
        ready.sort_unstable_by_key(|ready| ready.group.id);
        Moment {
            numbers,
            counts: self.counts(),
            sources: self.sources.all().to_vec(),
            open: self.open.iter().map(|(id, open)| (*id, open.clone())).collect(),
            ready,
            arrangement: self.queue.layout(),
            batches: self.batches.iter().map(|(number, batch)| (*number, batch.clone())).collect(),
            fates: self.fates.iter().map(|(id, fate)| (*id, *fate)).collect(),
        }
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
        let mut reading = Reading { take: Take::new(numbers), bulk, config: &config };
        ledger.set_numbers(reading.numbers()?);
        ledger.counts = reading.counts()?;
        ledger.sources = reading.sources()?;
        for _ in 0..reading.take.count("number of open groups", MAX_GROUPS, 80)? {
            let id = reading.number("group")?;
            ensure(ledger.open.last_key_value().is_none_or(|(last, _)| *last < id), || {
                format!("group {id} is there twice, or not in its place")
            })?;
            let open = reading.open(&ledger, id)?;
            ledger.enter_open(id, open)?;
        }
        let mut last = None;
        for _ in 0..reading.take.count("number of complete groups", MAX_GROUPS, 60)? {
            let ready = reading.ready(&ledger)?;
            let id = ready.group.id;
            let is_next = last.replace(id).is_none_or(|last| last < id);
            ensure(ledger.was_admitted(id) && ready.place < ledger.next_place, || {
                format!("group {id} was never admitted")
            })?;
            let is_fresh = !ledger.open.contains_key(&id);
            ledger.ready.insert(id, ready);
            ensure(is_fresh && is_next, || {
                format!("group {id} is there twice, or not in its place")
            })?;
        }
        let arrangement = reading.arrangement()?;
        for _ in 0..reading.take.count("number of batches", u32::MAX, 42)? {
            let number = reading.number("number of a batch")?;
            let batch = reading.batch(&ledger, number)?;
            ledger.enter_batch(number, batch)?;
        }
        let queued: Vec<Ready> =
            ledger.ready.values().filter(|ready| !ready.is_out).cloned().collect();
        queued.iter().for_each(|ready| ledger.queue.insert(&ready.place()));
        check_arrangement(&arrangement, &queued, config.order)?;
        ledger.queue.arrange(arrangement);
        for _ in 0..reading.take.count("number of fates", FATES as u32, 9)? {
            let (id, number) = (reading.number("group")?, reading.take.u8("fate")?);
            let wrong = || CodecError::Value { field: "fate", got: number.into() };
            let fate = Fate::of(number).ok_or_else(wrong)?;
            let is_over = !ledger.open.contains_key(&id) && !ledger.ready.contains_key(&id);
            let is_next = ledger.fates.last_key_value().is_none_or(|(last, _)| *last < id);
            ensure(is_over && is_next && ledger.was_admitted(id), || {
                format!("group {id} is not over")
            })?;
            ledger.fates.insert(id, fate);
        }
        reading.take.end()?;
        ledger.check_counts()?;
        // A loaded ledger counts those that run as every other one does.
        ledger.counts.running = 0;
        Ok(ledger)
    }

    fn set_numbers(&mut self, numbers: Numbers) {
        self.version = numbers.version;
        self.target = numbers.target;
        self.taken = numbers.taken;
        self.depth = numbers.depth;
        self.offset = numbers.offset;
        self.next_group = numbers.next_group;
        self.next_place = numbers.next_place;
        self.next_batch = numbers.next_batch;
        self.generation = numbers.generation;
        self.rng = Rng::from_state(numbers.rng);
    }

    fn was_admitted(&self, id: u64) -> bool {
        id < self.next_group && !self.generation.has_lost_group(id)
    }

    fn enter_open(&mut self, id: u64, open: Open) -> Result<(), StateError> {
        ensure(self.was_admitted(id), || format!("group {id} was never admitted"))?;
        if open.expires.is_some() {
            self.due.insert((open.looked_at, Due::Permit(id)));
            *self.ages.entry(open.age()).or_default() += 1;
        } else {
            self.suspended.insert(id);
        }
        if let Some(deadline) = open.deadline {
            self.due.insert((deadline, Due::Deadline(id)));
        }
        if let Some(oldest) = open.oldest {
            self.begun.insert((oldest, id));
        }
        self.open.insert(id, open);
        Ok(())
    }

    fn enter_batch(&mut self, number: u64, batch: Batch) -> Result<(), StateError> {
        let is_lost = self.generation.has_lost_batch(number);
        ensure(number > 0 && number < self.next_batch && !is_lost, || {
            format!("batch {number} was never made")
        })?;
        for (rank, part) in (0..).zip(&batch.shares) {
            for id in &part.groups {
                let ready = self.ready.get_mut(id).filter(|ready| !ready.is_out);
                let ready = ready.ok_or_else(|| {
                    wrong(format!("group {id} of batch {number} is not there, or in another"))
                })?;
                ready.is_out = true;
            }
            if let State::Out(until) = part.state {
                self.due.insert((until, Due::Lease(number, rank)));
            }
        }
        let is_next = self.batches.last_key_value().is_none_or(|(last, _)| *last < number);
        self.batches.insert(number, batch);
        ensure(is_next, || format!("batch {number} is there twice, or not in its place"))
    }

    /// That what is counted is what there is, so that nothing is ever counted below zero.
    fn check_counts(&mut self) -> Result<(), StateError> {
        let counts = self.counts;
        let (running, ready) = (self.open.len() as u64, self.ready.len() as u64);
        let sum = [running, counts.accepted, counts.rejected, counts.filtered];
        let sum = sum.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        ensure(counts.running == running && counts.submitted == sum, || {
            format!("{} groups were admitted, and {sum} are told of", counts.submitted)
        })?;
        let most = self.generation.most_groups(self.next_group);
        let is_first = self.generation == Generation::default();
        ensure(counts.submitted == most || (!is_first && counts.submitted < most), || {
            format!("{} groups were admitted, the next is {}", counts.submitted, self.next_group)
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

    /// Goes on at `now`, as if no time had passed since `then`: permits and leases get their full time again,
    /// since nobody could use it meanwhile, and groups keep what they had until their deadlines.
    pub fn wake(&mut self, then: u64, now: u64) {
        self.due.clear();
        for source in self.sources.all_mut() {
            let ago = source.last_admitted.map(|last| then.saturating_sub(last));
            source.last_admitted = ago.map(|ago| now.saturating_sub(ago));
        }
        for (id, open) in &mut self.open {
            if let Some(expires) = &mut open.expires {
                *expires = now.saturating_add(open.ttl_ms);
                open.looked_at = *expires;
                self.due.insert((*expires, Due::Permit(*id)));
            }
            if let Some(deadline) = &mut open.deadline {
                *deadline = now.saturating_add(deadline.saturating_sub(then));
                self.due.insert((*deadline, Due::Deadline(*id)));
            }
        }
        for (number, batch) in &mut self.batches {
            for (rank, part) in (0..).zip(&mut batch.shares) {
                if let State::Out(until) = &mut part.state {
                    *until = now.saturating_add(part.lease_ms);
                    self.due.insert((*until, Due::Lease(*number, rank)));
                }
            }
        }
    }

    /// Is told other settings, which are such that [may change](RolloutConfig::goes_on).
    ///
    /// # Errors
    ///
    /// [`ConfigError`]; then it has those of before.
    pub fn reconfigure(&mut self, config: Arc<RolloutConfig>) -> Result<(), ConfigError> {
        config.check()?;
        let before = &self.config;
        let depths = |config: &RolloutConfig| (config.pipeline_depth, config.auto_tune);
        if depths(before) != depths(&config) {
            self.depth = config.first_depth();
        }
        self.filter = config.bound_filter()?;
        self.limiter = config.bound_limiter()?;
        self.config = config;
        Ok(())
    }
}

/// That the buckets of the weighted order have exactly the groups that are queued.
fn check_arrangement(
    arrangement: &Arrangement,
    queued: &[Ready],
    order: Order,
) -> Result<(), StateError> {
    if order != Order::Weighted {
        let is_none = arrangement.is_empty();
        return ensure(is_none, || "groups are in places, and the order has none".into());
    }
    let ages: HashMap<u64, i64> =
        queued.iter().map(|ready| (ready.group.id, ready.group.oldest)).collect();
    let (mut seen, mut last) = (HashSet::new(), None);
    for (age, ids, free) in arrangement {
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
    ensure(seen.len() == queued.len(), || "a queued group has no place".into())
}
