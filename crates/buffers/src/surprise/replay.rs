//! Experiences in two tiers, with their bytes: see the [module above](super).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::slab::Field;
use echoic_memory::sync::{Mutex, MutexGuard};
use echoic_primitives::plans::AveragePlan;
use echoic_replay::rng::Rng;

use super::archive::{Archive, BLOCK};
use super::index::{COLD, Counts, Entry, HOT, Index, Picked, RowLocation, Sizes};
use super::rows::{Held, Rows, UnpublishedRows};
use super::scale::{Mode, ScoreRule};
use crate::cold::Reading;
use crate::error::Error;
use crate::layout::RowLayout;
use crate::priorities::Priorities;

/// Rows that are filled at once, at most; as many more than may stay have room.
pub const MOST_AT_ONCE: usize = 4096;
/// Of long rows this many bytes are filled at once: what was written is read again for its score while it is in the cache.
const BYTES_AT_ONCE: usize = 512 << 10;
/// But this many rows.
const LEAST_AT_ONCE: usize = 64;

/// How long a wait for a row is before something else is looked at.
const AWHILE: Duration = Duration::from_millis(20);
/// A wait that is shorter than this needs no sleep.
const BRIEFLY: Duration = Duration::from_micros(200);

/// What a buffer is made for.
#[derive(Debug, Clone)]
pub struct SurpriseSettings {
    /// How many experiences there may be.
    pub sizes: Sizes,
    /// Up to which age, in updates of the learner, an experience is hot.
    pub age_threshold: u64,
    /// Up to which age it stays.
    pub max_age: u64,
    /// What of a score counts in a draw.
    pub mode: Mode,
    /// How scores are made; `None` where all are given.
    pub rule: Option<ScoreRule>,
    /// The field of a row that is the plan, and the one that is the reward: floats of 32 bits.
    pub plan: usize,
    /// See above.
    pub reward: usize,
    /// How many scores are computed again for each update of the learner.
    pub refresh: usize,
    /// Whether experiences move the mean of plans. Where another part does so, they are only compared.
    pub moves_mean: bool,
    /// The seed of the buffer's own draws.
    pub seed: u64,
    /// Where the bytes of cold experiences go, if not into memory; and whether a file that is there may be
    /// replaced.
    pub archive: Option<(PathBuf, bool)>,
    /// What the bytes of a row mean, for the file.
    pub text: String,
}

/// How experiences are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// How many.
    pub count: usize,
    /// The temperature of the softmax. Another one than before has all weights computed again.
    pub temperature: f64,
    /// The share of hot ones.
    pub hot_share: f64,
    /// The exponent of importance weights.
    pub beta: f64,
    /// The seed of this draw, or the next of the buffer's own.
    pub seed: Option<u64>,
}

/// Experiences that were drawn and can be read.
#[derive(Debug)]
pub struct Drawn<'a> {
    /// Which they are.
    pub found: Found,
    stored: Stored<'a>,
}

/// The rows of experiences, in memory and in the file.
#[derive(Debug)]
struct Stored<'a> {
    rows: Held,
    /// To which place of a batch each row goes.
    to: Vec<u32>,
    archive: Option<(&'a Archive, Reading<'a>)>,
    records: Vec<(u32, u64)>,
}

/// What was drawn: hot experiences first.
#[derive(Debug)]
pub struct Found {
    /// How many are hot.
    pub hot: usize,
    /// Who they are.
    pub keys: Vec<u64>,
    /// How likely each was, in this draw.
    pub probabilities: Vec<f64>,
    /// What each counts in an update: `(N · P)^-beta`, divided by the largest of the batch.
    pub weights: Vec<f64>,
    /// The score that each was drawn by.
    pub priorities: Vec<f64>,
    /// Updates of the learner since each was added.
    pub ages: Vec<u64>,
    /// How many experiences were added before each.
    pub moments: Vec<u64>,
}

/// What an update of the learner has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticked {
    /// Experiences that became cold.
    pub migrated: usize,
    /// Those that went because of their age.
    pub expired: usize,
    /// Scores that were computed again.
    pub refreshed: usize,
}

/// All that is known of a buffer besides its rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Saved {
    /// The score of each slot.
    pub scores: Vec<f64>,
    /// In which update each was added.
    pub births: Vec<u64>,
    /// How many were added before each.
    pub moments: Vec<u64>,
    /// How often each slot was used before.
    pub generations: Vec<u32>,
    /// 0 for free slots, 1 for hot and 2 for cold ones, and 4 more where a score was given.
    pub kinds: Vec<u8>,
    /// Free slots in the order in which they are used, the last first.
    pub free: Vec<u32>,
    /// Numbers of the index.
    pub numbers: [u64; 8],
    /// Others.
    pub reals: [f64; 9],
    /// The state of the buffer's own draws.
    pub rng: [u64; 4],
    /// The mean of plans.
    pub mean: Vec<f64>,
    /// Of how many plans.
    pub mean_count: u64,
}

/// Copies the fields of rows to their columns.
pub type Copying<'a> = dyn Fn(&mut [&mut [u8]]) -> Result<(), Error> + Sync + 'a;

/// See the [module above](super).
#[derive(Debug)]
pub struct SurpriseReplay {
    settings: SurpriseSettings,
    layout: RowLayout,
    rows: Rows,
    archive: Option<Archive>,
    mean: Arc<Mutex<AveragePlan>>,
    index: Mutex<Index>,
    rng: Mutex<Rng>,
    /// Who has this may move experiences.
    moving: Mutex<()>,
}

impl SurpriseReplay {
    /// A buffer of rows of this layout, that compares plans with this mean.
    ///
    /// # Errors
    ///
    /// When a setting means nothing, or the file can't be made.
    pub fn new(
        layout: RowLayout,
        mean: Arc<Mutex<AveragePlan>>,
        settings: SurpriseSettings,
    ) -> Result<Self, Error> {
        let sizes = settings.sizes;
        if sizes.hot == 0 || sizes.total == 0 {
            return Err(Error::no_capacity());
        }
        let in_memory = match settings.archive {
            None => sizes.hot.saturating_add(sizes.cold).min(sizes.total.saturating_add(1)),
            Some(_) => sizes.hot,
        };
        // Rows that are being filled, and as many that are being read or moved.
        let most = in_memory.saturating_add(2 * MOST_AT_ONCE);
        let fitting = u32::try_from(most).ok().filter(|most| *most <= 1 << 31);
        let most = fitting.ok_or_else(|| Error::too_large(1 << 31, most as u64))?;
        let archive = settings.archive.as_ref().map(|(path, overwrite)| {
            Archive::new(path, *overwrite, sizes.cold, layout.row_bytes(), &settings.text)
        });
        let index = Index::new(sizes, settings.age_threshold, settings.max_age, settings.mode);
        Ok(Self {
            rows: Rows::new(most, layout.row_bytes()),
            archive: archive.transpose()?,
            mean,
            index: Mutex::new(index),
            rng: Mutex::new(Rng::new(settings.seed)),
            moving: Mutex::new(()),
            layout,
            settings,
        })
    }

    /// Hot and cold experiences.
    pub fn lens(&self) -> [usize; 2] {
        let index = self.index.lock();
        [index.len(HOT), index.len(COLD)]
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.index.lock().counts
    }

    /// Updates of the learner so far.
    pub fn updates(&self) -> u64 {
        self.index.lock().now()
    }

    /// Mean and standard deviation of all scores.
    pub fn score_moments(&self) -> (f64, f64) {
        let moments = self.index.lock().moments();
        (moments.mean, moments.spread())
    }

    /// Bytes of a row, of what is known of it besides, of all rows in memory, and of the file.
    pub fn bytes(&self) -> (usize, f64, usize, u64) {
        let known = self.index.lock().bytes_per_slot();
        let archived = self.archive.as_ref().map_or(0, Archive::bytes);
        (self.layout.row_bytes(), known, self.rows.used_bytes(), archived)
    }

    /// Room for up to this many experiences, at least one of them, and at most [`MOST_AT_ONCE`].
    ///
    /// # Errors
    ///
    /// When the system has no memory for them.
    pub fn reserve(&self, count: usize) -> Result<UnpublishedRows, Error> {
        loop {
            let reserved = self.reserve_within(count, AWHILE)?;
            if !reserved.is_empty() {
                return Ok(reserved);
            }
        }
    }

    /// As [`SurpriseReplay::reserve`], but none if there is no room for so long: who waits may look around.
    ///
    /// # Errors
    ///
    /// When the system has no memory for them.
    pub fn reserve_within(&self, count: usize, time: Duration) -> Result<UnpublishedRows, Error> {
        let start = Instant::now();
        let fit = BYTES_AT_ONCE / self.layout.row_bytes().max(1);
        let most = fit.clamp(LEAST_AT_ONCE, MOST_AT_ONCE);
        loop {
            let reserved = self.rows.try_reserve(count.clamp(1, most))?;
            let waited = start.elapsed();
            if !reserved.is_empty() || waited >= time {
                return Ok(reserved);
            }
            // All others are being read or filled, by threads that will be done after a copy.
            if waited < BRIEFLY {
                std::thread::yield_now();
            } else {
                std::thread::sleep(BRIEFLY);
            }
        }
    }

    /// Adds the experiences of rows that were filled, with these scores, or with their own where none is
    /// given. Says their keys. The mean of plans moves after each was scored.
    ///
    /// # Panics
    ///
    /// When there are scores, but not one for each.
    pub fn add(&self, mut reserved: UnpublishedRows, given: Option<&[f64]>, keys: &mut Vec<u64>) {
        let mut scores = Vec::with_capacity(reserved.len());
        match (given, self.settings.rule) {
            (Some(given), _) => scores.extend_from_slice(given),
            (None, None) => scores.resize(reserved.len(), 0.0),
            (None, Some(rule)) => {
                let mut mean = self.mean.lock();
                let (dims, mut plan) = (mean.dim(), Vec::new());
                reserved.fill(|_, row| {
                    read(part(row, self.field(self.settings.plan)), &mut plan);
                    let distance = if self.settings.moves_mean {
                        mean.step(&plan)
                    } else {
                        mean.distance(&plan)
                    };
                    scores.push(rule.score(distance, dims, self.reward(row)));
                });
            }
        }
        assert_eq!(scores.len(), reserved.len(), "a score for each");
        let rows = reserved.publish();
        let mut index = self.index.lock();
        for (row, score) in rows.into_iter().zip(scores) {
            keys.push(index.insert(row, score, given.is_some()));
        }
        self.free(index);
    }

    fn field(&self, leaf: usize) -> Field {
        self.layout.fields()[leaf]
    }

    fn reward(&self, row: &[u8]) -> f64 {
        float(part(row, self.field(self.settings.reward)))
    }

    /// Frees the rows of experiences that went, without the lock.
    fn free(&self, mut index: MutexGuard<'_, Index>) {
        let freed = index.take_freed();
        drop(index);
        self.rows.free(&freed);
    }

    /// Draws experiences.
    ///
    /// # Errors
    ///
    /// [`Error`] when there are none, none are asked for, or a setting means nothing.
    pub fn draw(&self, ask: Ask) -> Result<Drawn<'_>, Error> {
        check(ask.temperature, ask.hot_share)?;
        if !(0.0..=1.0).contains(&ask.beta) {
            return Err(Error::setting("beta", "from 0 to 1", ask.beta));
        }
        if ask.count == 0 {
            return Err(Error::no_batch());
        }
        let (mut seeded, mut own);
        let rng = match ask.seed {
            Some(seed) => {
                seeded = Rng::new(seed);
                &mut seeded
            }
            None => {
                own = self.rng.lock();
                &mut *own
            }
        };
        let mut picked: Vec<Picked> = Vec::with_capacity(ask.count);
        let mut index = self.index.lock();
        let hot = index.draw(ask.count, ask.temperature, ask.hot_share, rng, &mut picked)?;
        let len = index.total_len() as f64;
        // Under the lock: from here on nothing that was drawn is overwritten.
        let stored = self.stored(picked.iter().map(|one| one.place));
        drop(index);
        let mut weights: Vec<f64> =
            picked.iter().map(|one| (len * one.probability).powf(-ask.beta)).collect();
        let largest = weights.iter().copied().fold(0.0, f64::max);
        weights.iter_mut().for_each(|weight| *weight /= largest);
        let found = Found {
            hot,
            keys: picked.iter().map(|one| one.key).collect(),
            probabilities: picked.iter().map(|one| one.probability).collect(),
            weights,
            priorities: picked.iter().map(|one| one.score).collect(),
            ages: picked.iter().map(|one| one.age).collect(),
            moments: picked.iter().map(|one| one.moment).collect(),
        };
        Ok(Drawn { found, stored })
    }

    /// Keeps the rows of experiences readable, given where they are. The index must be locked.
    fn stored(&self, places: impl Iterator<Item = RowLocation>) -> Stored<'_> {
        let (mut rows, mut to, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for (at, place) in (0u32..).zip(places) {
            match place {
                RowLocation::Row(row) => {
                    rows.push(row);
                    to.push(at);
                }
                RowLocation::Archived(position) => records.push((at, position)),
            }
        }
        let archive = self.archive.as_ref().filter(|_| !records.is_empty());
        let archive = archive.map(|archive| (archive, archive.reading()));
        Stored { rows: self.rows.hold(&rows), to, archive, records }
    }

    /// The scores of plans and rewards by the mean of plans as it is now.
    fn scores<'a>(
        &self,
        rule: ScoreRule,
        experiences: impl Iterator<Item = (&'a [u8], f64)>,
    ) -> Vec<f64> {
        let mean = self.mean.lock();
        let (dims, mut plan) = (mean.dim(), Vec::new());
        let score = |(bytes, reward): (&[u8], f64)| {
            read(bytes, &mut plan);
            rule.score(mean.distance(&plan), dims, reward)
        };
        experiences.map(score).collect()
    }

    /// The scores that experiences have by the mean of plans as it is now, given their plans and rewards one
    /// after the other. Their keys get them, unless theirs were given; `None` where all are.
    pub fn rescore(&self, keys: &[u64], plans: &[u8], rewards: &[u8]) -> Option<Vec<f64>> {
        let rule = self.settings.rule?;
        let width = self.field(self.settings.plan).bytes.max(1);
        let both = plans.chunks_exact(width).zip(rewards.chunks_exact(4));
        let scores = self.scores(rule, both.map(|(plan, reward)| (plan, float(reward))));
        let mut index = self.index.lock();
        set_computed(&mut index, keys.iter().zip(&scores));
        Some(scores)
    }

    /// Gives experiences scores that are theirs until others are given. Those that are not there any more are
    /// left out; says how many were.
    ///
    /// # Errors
    ///
    /// When there is not one for each, one is no priority, or a key was never given. Then none was changed.
    pub fn update_priorities(&self, keys: &[i128], priorities: &[f64]) -> Result<usize, Error> {
        Priorities::check_updates(keys.len(), priorities)?;
        let mut index = self.index.lock();
        for (at, got) in keys.iter().enumerate() {
            if !u64::try_from(*got).is_ok_and(|key| index.was_given(key)) {
                return Err(Error::index(*got, at, index.slots() as u64));
            }
        }
        let mut known = 0;
        for (key, priority) in keys.iter().zip(priorities) {
            if let Some(slot) = index.slot_of(*key as u64) {
                index.rescore(slot, *priority, true);
                known += 1;
            }
        }
        Ok(known)
    }

    /// So many updates of the learner have happened: the young get older, and go where they belong.
    ///
    /// # Errors
    ///
    /// When the file can't be written: then those that could not be moved stay hot until the next time.
    pub fn tick(&self, updates: u64) -> Result<Ticked, Error> {
        let moving = self.moving.lock();
        let mut index = self.index.lock();
        index.advance(updates);
        let expired = index.expire();
        self.free(index);
        let migrated = self.migrate(&moving)?;
        let refreshed = self.refresh(self.settings.refresh.saturating_mul(updates as usize));
        Ok(Ticked { migrated, expired, refreshed })
    }

    fn migrate(&self, moving: &MutexGuard<'_, ()>) -> Result<usize, Error> {
        let Some(archive) = &self.archive else {
            let mut index = self.index.lock();
            let due = index.due(usize::MAX);
            for slot in &due {
                // One of them may have gone to make room for another.
                let entry = *index.entry(*slot);
                if entry.tier == Some(HOT as u8) {
                    index.migrate(*slot, entry.place);
                }
            }
            self.free(index);
            return Ok(due.len());
        };
        let mut migrated = 0;
        loop {
            self.make_room(archive, moving)?;
            let index = self.index.lock();
            let due = index.due(BLOCK as usize);
            let entries: Vec<_> = due.iter().map(|slot| *index.entry(*slot)).collect();
            let rows: Vec<u32> = entries
                .iter()
                .filter_map(|entry| match entry.place {
                    RowLocation::Row(row) => Some(row),
                    RowLocation::Archived(_) => None,
                })
                .collect();
            let held = self.rows.hold(&rows);
            drop(index);
            if due.is_empty() {
                return Ok(migrated);
            }
            let first = archive.append(&due, (0..held.len()).map(|at| held.row(at)))?;
            drop(held);
            let mut index = self.index.lock();
            for ((slot, entry), position) in due.iter().zip(&entries).zip(first..) {
                let now = index.entry(*slot);
                if now.tier == Some(HOT as u8) && now.generation == entry.generation {
                    index.migrate(*slot, RowLocation::Archived(position));
                    migrated += 1;
                }
            }
            self.free(index);
        }
    }

    /// Writes again what would be overwritten next.
    fn make_room(&self, archive: &Archive, _moving: &MutexGuard<'_, ()>) -> Result<(), Error> {
        loop {
            let index = self.index.lock();
            let is_there = |slot: u32, position: u64| {
                index.place(slot) == Some(RowLocation::Archived(position))
            };
            let in_the_way = archive.in_the_way(is_there);
            drop(index);
            let Some((_, oldest)) = in_the_way.first() else { return Ok(()) };
            let positions: Vec<u64> = in_the_way.iter().map(|(_, position)| *position).collect();
            let slots: Vec<u32> = in_the_way.iter().map(|(slot, _)| *slot).collect();
            let reading = archive.reading();
            let bytes = archive.read(&reading, &positions);
            drop(reading);
            let moved = bytes.and_then(|bytes| {
                archive.append(&slots, bytes.chunks_exact(self.layout.row_bytes()))
            });
            let first = moved.inspect_err(|_| archive.take_back(*oldest))?;
            let mut index = self.index.lock();
            for ((slot, position), new) in in_the_way.iter().zip(first..) {
                // By their position: a slot may have another experience by now.
                if index.place(*slot) == Some(RowLocation::Archived(*position)) {
                    index.set_place(*slot, RowLocation::Archived(new));
                }
            }
        }
    }

    /// Computes some scores again, of those in memory, in turns.
    fn refresh(&self, count: usize) -> usize {
        let Some(rule) = self.settings.rule.filter(|_| count > 0) else { return 0 };
        let mut index = self.index.lock();
        let chosen = index.next_to_refresh(count);
        let rows: Vec<u32> = chosen.iter().map(|(_, row)| *row).collect();
        let held = self.rows.hold(&rows);
        drop(index);
        let rows = (0..held.len()).map(|at| held.row(at));
        let plan = self.field(self.settings.plan);
        let scores = self.scores(rule, rows.map(|row| (part(row, plan), self.reward(row))));
        drop(held);
        let mut index = self.index.lock();
        set_computed(&mut index, chosen.iter().map(|(key, _)| key).zip(&scores));
        scores.len()
    }

    /// As how many equally likely experiences a draw is, over all and within each tier.
    ///
    /// # Errors
    ///
    /// When a setting means nothing.
    pub fn effective_sizes(
        &self,
        temperature: f64,
        hot_share: f64,
    ) -> Result<(f64, [f64; 2]), Error> {
        check(temperature, hot_share)?;
        Ok(self.index.lock().effective_sizes(temperature, hot_share))
    }

    /// Forgets all experiences. The mean of plans, updates and draws go on.
    pub fn clear(&self) {
        let _moving = self.moving.lock();
        let mut index = self.index.lock();
        index.clear();
        self.free(index);
    }

    /// All that is known besides rows, and the rows of all slots that are used, in their order: `gather` gets
    /// how many there are before and something to copy them with.
    ///
    /// # Errors
    ///
    /// When the file can't be read, or what `gather` says.
    pub fn save<T>(&self, gather: impl FnOnce(usize, &Copying<'_>) -> T) -> (Saved, T) {
        // Nothing moves meanwhile, and nothing is added: the mean belongs to what is there.
        let _moving = self.moving.lock();
        let rng = self.rng.lock().state();
        let mean = self.mean.lock();
        let index = self.index.lock();
        let (entries, free, numbers, reals) = index.save();
        let stored = self.stored(index.live().map(|(_, entry)| entry.place));
        let count = index.total_len();
        let saved = Saved {
            scores: entries.iter().map(|entry| entry.score).collect(),
            births: entries.iter().map(|entry| entry.born).collect(),
            moments: entries.iter().map(|entry| entry.moment).collect(),
            generations: entries.iter().map(|entry| entry.generation).collect(),
            kinds: entries
                .iter()
                .map(|entry| match entry.tier {
                    None => 0,
                    Some(tier) => tier + 1 + 4 * u8::from(entry.given),
                })
                .collect(),
            free,
            numbers,
            reals,
            rng,
            mean: mean.raw().to_vec(),
            mean_count: mean.count(),
        };
        drop((index, mean));
        let copy = |columns: &mut [&mut [u8]]| stored.gather(self.layout.fields(), columns);
        let done = gather(count, &copy);
        (saved, done)
    }

    /// Becomes what another buffer was: `fill` writes the rows in the order in which they were copied. Says
    /// whether that could be; if not, nothing was changed. What others add meanwhile goes, and a mean of plans that
    /// another part moves stays as it is.
    ///
    /// # Errors
    ///
    /// When there is no memory for the rows, or the file can't be written: then the buffer is empty.
    pub fn restore(
        &self,
        saved: &Saved,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool, Error> {
        let slots = saved.scores.len();
        let lens =
            [saved.births.len(), saved.moments.len(), saved.generations.len(), saved.kinds.len()];
        let tier = |kind: u8| match kind & 3 {
            1 => Some(HOT as u8),
            2 => Some(COLD as u8),
            _ => None,
        };
        let known = |kind: &u8| matches!(kind, 0 | 1 | 2 | 5 | 6);
        if lens.iter().any(|len| *len != slots)
            || !saved.kinds.iter().all(known)
            || saved.mean.len() != self.mean.lock().dim()
        {
            return Ok(false);
        }
        let decay = self.mean.lock().decay();
        let mean = AveragePlan::from_parts(decay, saved.mean_count, saved.mean.clone());
        let Some(mean) = mean else { return Ok(false) };
        let entries: Vec<Entry> = (0..slots)
            .map(|at| Entry {
                score: saved.scores[at],
                born: saved.births[at],
                moment: saved.moments[at],
                place: RowLocation::Row(0),
                generation: saved.generations[at],
                tier: tier(saved.kinds[at]),
                given: saved.kinds[at] & 4 != 0,
            })
            .collect();
        let moving = self.moving.lock();
        if !self.index.lock().could_be(&entries, &saved.free, saved.numbers) {
            return Ok(false);
        }
        let mut index = self.index.lock();
        index.clear();
        self.free(index);
        let mut places: Vec<RowLocation> = Vec::new();
        if let Err(error) = self.put_all(&entries, &mut fill, &mut places, &moving) {
            // The index never knew of them.
            places.into_iter().for_each(|place| self.forget(place));
            return Err(error);
        }
        *self.rng.lock() = Rng::from_state(saved.rng);
        if self.settings.moves_mean {
            *self.mean.lock() = mean;
        }
        let mut index = self.index.lock();
        // What was added meanwhile.
        index.clear();
        index.restore(&entries, &saved.free, saved.numbers, saved.reals, &places);
        self.free(index);
        Ok(true)
    }

    fn forget(&self, place: RowLocation) {
        if let RowLocation::Row(row) = place {
            self.rows.free(&[row]);
        }
    }

    /// Puts the rows of all entries that are there where they belong, and says where. Those that were put are told of
    /// where others could not be, too.
    fn put_all(
        &self,
        entries: &[Entry],
        fill: &mut impl FnMut(usize, &mut [u8]),
        places: &mut Vec<RowLocation>,
        moving: &MutexGuard<'_, ()>,
    ) -> Result<(), Error> {
        let live = || (0u32..).zip(entries).filter(|(_, entry)| entry.tier.is_some());
        let Some(archive) = &self.archive else {
            return self.put(live().count(), fill, places);
        };
        let mut block = Vec::new();
        for (at, (slot, entry)) in live().enumerate() {
            if entry.tier == Some(HOT as u8) {
                self.put(1, |_, row| fill(at, row), places)?;
                continue;
            }
            // Nothing is in the way: nobody is in the index.
            self.make_room(archive, moving)?;
            block.resize(self.layout.row_bytes(), 0);
            fill(at, &mut block);
            let rows = [block.as_slice()].into_iter();
            let position = archive.append(&[slot], rows)?;
            places.push(RowLocation::Archived(position));
        }
        Ok(())
    }

    /// Puts rows into memory and says where.
    fn put(
        &self,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
        places: &mut Vec<RowLocation>,
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < count {
            let mut reserved = self.reserve_within(count - done, AWHILE)?;
            if reserved.is_empty() {
                // What others add meanwhile goes in the end anyway.
                let mut index = self.index.lock();
                index.clear();
                self.free(index);
                continue;
            }
            reserved.fill(|at, row| fill(done + at, row));
            done += reserved.len();
            places.extend(reserved.publish().into_iter().map(RowLocation::Row));
        }
        Ok(())
    }

    /// Ends the use of the file, if there is one, and removes it. What was in it can't be read any more.
    ///
    /// # Errors
    ///
    /// When it can't be removed.
    pub fn close(&self) -> Result<(), Error> {
        self.archive.as_ref().map_or(Ok(()), |archive| archive.close())
    }
}

impl Drawn<'_> {
    /// Copies each field of these rows into its column.
    ///
    /// # Errors
    ///
    /// When the file can't be read.
    ///
    /// # Panics
    ///
    /// When a column is not as long as all its values.
    pub fn gather(&self, fields: &[Field], columns: &mut [&mut [u8]]) -> Result<(), Error> {
        self.stored.gather(fields, columns)
    }
}

impl Stored<'_> {
    fn gather(&self, fields: &[Field], columns: &mut [&mut [u8]]) -> Result<(), Error> {
        self.rows.gather(&self.to, fields, columns);
        match &self.archive {
            None => Ok(()),
            Some((archive, reading)) => archive.gather(reading, &self.records, fields, columns),
        }
    }
}

/// Scores that were computed for experiences that are there, and have no given one.
fn set_computed<'a>(index: &mut Index, scores: impl Iterator<Item = (&'a u64, &'a f64)>) {
    for (key, score) in scores {
        if let Some(slot) = index.slot_of(*key)
            && !index.entry(slot).given
        {
            index.rescore(slot, *score, false);
            index.counts.refreshed += 1;
        }
    }
}

fn check(temperature: f64, hot_share: f64) -> Result<(), Error> {
    if !(temperature > 0.0 && temperature.is_finite()) {
        let range = "a finite number > 0";
        return Err(Error::setting("temperature", range, temperature));
    }
    if !(0.0..=1.0).contains(&hot_share) {
        let range = "from 0 to 1";
        return Err(Error::setting("hot_ratio", range, hot_share));
    }
    Ok(())
}

fn part(row: &[u8], field: Field) -> &[u8] {
    &row[field.offset..field.offset + field.bytes]
}

/// The 32-bit floats of some bytes.
fn read(bytes: &[u8], floats: &mut Vec<f32>) {
    let (words, _) = bytes.as_chunks::<4>();
    floats.clear();
    floats.extend(words.iter().map(|word| f32::from_ne_bytes(*word)));
}

fn float(bytes: &[u8]) -> f64 {
    bytes.first_chunk().map_or(0.0, |bytes| f64::from(f32::from_ne_bytes(*bytes)))
}
