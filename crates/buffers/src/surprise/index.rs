//! All that is known of experiences besides their bytes.
//!
//! An experience has a *slot*, a small number that is used again, and a *key*, which is not: the slot, and how
//! many experiences the slot had before.

use echoic_replay::rng::Rng;
use echoic_replay::selectors::links::Links;

use super::lowest::Ranked;
use super::scale::{Mode, Moments, Scale};
use super::tier::{Found, Tier};
use crate::error::Error;

/// The tiers by number.
pub(super) const HOT: usize = 0;
pub(super) const COLD: usize = 1;

/// How many goings ahead the memory of whoever goes is asked for.
const AHEAD: usize = 16;

/// So many experiences in the order of their slots are looked at in the time of one in another order.
const SCATTERED: usize = 8;

/// How many experiences there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Hot ones.
    pub hot: usize,
    /// Cold ones.
    pub cold: usize,
    /// Both together.
    pub total: usize,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Experiences that were added.
    pub added: u64,
    /// Those that became cold.
    pub migrated: u64,
    /// Those that went because they were too old.
    pub expired: u64,
    /// Those that went because there were too many, the lowest first.
    pub evicted: u64,
    /// Scores that were computed again.
    pub refreshed: u64,
    /// How often all weights were computed again.
    pub rescaled: u64,
}

/// Where the bytes of an experience are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLocation {
    Row(u32),
    /// A position in the archive.
    Archived(u64),
}

/// What is known of an experience.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) score: f64,
    /// In which update of the learner it was added.
    pub(super) born: u64,
    /// How many were added before it.
    pub(super) moment: u64,
    pub(super) place: RowLocation,
    pub(super) generation: u32,
    /// Its tier, if it is there.
    pub(super) tier: Option<u8>,
    /// Whether its score was given, not computed: then it is not computed again.
    pub(super) given: bool,
}

impl Entry {
    fn ranked(&self, slot: u32) -> Ranked {
        Ranked { score: self.score, moment: self.moment, slot }
    }
}

/// One that was drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Picked {
    pub(super) key: u64,
    pub(super) place: RowLocation,
    pub(super) probability: f64,
    pub(super) score: f64,
    pub(super) age: u64,
    pub(super) moment: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Index {
    entries: Vec<Entry>,
    free: Vec<u32>,
    links: Links,
    tiers: [Tier; 2],
    sizes: Sizes,
    threshold: u64,
    max_age: u64,
    mode: Mode,
    /// The updates of the learner so far.
    now: u64,
    pub(super) counts: Counts,
    moments: Moments,
    /// What the weights in the sums were computed with; `None` when those are not to be used.
    scale: Option<Scale>,
    /// Up to which slot scores were computed again.
    pub(super) cursor: u32,
    found: Vec<Found>,
    /// Rows of experiences that went.
    freed: Vec<u32>,
}

impl Index {
    pub(super) fn new(sizes: Sizes, threshold: u64, max_age: u64, mode: Mode) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            tiers: Default::default(),
            sizes,
            threshold,
            max_age,
            mode,
            now: 0,
            counts: Counts::default(),
            moments: Moments::default(),
            scale: None,
            cursor: 0,
            found: Vec::new(),
            freed: Vec::new(),
        }
    }

    pub(super) fn len(&self, tier: usize) -> usize {
        self.tiers[tier].len()
    }

    pub(super) fn total_len(&self) -> usize {
        self.len(HOT) + self.len(COLD)
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn advance(&mut self, updates: u64) {
        self.now = self.now.saturating_add(updates);
    }

    pub(super) fn moments(&self) -> Moments {
        self.moments
    }

    /// How many slots there are, used or not.
    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// The rows of experiences that went since this was last asked.
    pub(super) fn take_freed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.freed)
    }

    fn key(&self, slot: u32) -> u64 {
        u64::from(self.entries[slot as usize].generation) << 32 | u64::from(slot)
    }

    /// The slot of an experience that is still there.
    pub(super) fn slot_of(&self, key: u64) -> Option<u32> {
        let (slot, generation) = (key as u32, (key >> 32) as u32);
        let entry = self.entries.get(slot as usize)?;
        (entry.tier.is_some() && entry.generation == generation).then_some(slot)
    }

    /// Whether a key was ever given.
    pub(super) fn was_given(&self, key: u64) -> bool {
        let entry = self.entries.get(key as u32 as usize);
        entry.is_some_and(|entry| (key >> 32) as u32 <= entry.generation)
    }

    pub(super) fn entry(&self, slot: u32) -> &Entry {
        &self.entries[slot as usize]
    }

    /// Where the bytes of an experience are, if it is there.
    pub(super) fn place(&self, slot: u32) -> Option<RowLocation> {
        let entry = self.entries.get(slot as usize)?;
        entry.tier.map(|_| entry.place)
    }

    fn ranked(&self, slot: u32) -> Ranked {
        self.entries[slot as usize].ranked(slot)
    }

    /// Adds an experience, and says its key. It may go at once, when it is the lowest of too many.
    pub(super) fn insert(&mut self, row: u32, score: f64, given: bool) -> u64 {
        let entry = Entry {
            score,
            born: self.now,
            moment: self.counts.added,
            place: RowLocation::Row(row),
            generation: 0,
            tier: Some(HOT as u8),
            given,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                let generation = self.entries[slot as usize].generation;
                self.entries[slot as usize] = Entry { generation, ..entry };
                slot
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.counts.added += 1;
        self.moments.add(score);
        let node = self.ranked(slot);
        self.tiers[HOT].insert(&mut self.links, node);
        self.weigh(slot);
        let key = self.key(slot);
        self.evict();
        key
    }

    /// Has the sums know of an experience's score.
    fn weigh(&mut self, slot: u32) {
        // Without a scale all weights are computed before the next draw.
        let Some(scale) = &self.scale else { return };
        let entry = &self.entries[slot as usize];
        let Some(tier) = entry.tier.map(usize::from) else { return };
        match scale.weight(entry.score, tier) {
            Some(weight) => self.tiers[tier].set_weight(slot, weight),
            None => self.scale = None,
        }
    }

    /// Has the processor fetch what will be touched when the next ones go, which are anywhere.
    fn look_ahead(&self, tier: usize) {
        if let Some(slot) = self.tiers[tier].ahead(AHEAD) {
            echoic_memory::prefetch(&self.entries[slot as usize]);
            self.links.prefetch(slot);
        }
        if let Some(slot) = self.tiers[tier].ahead(AHEAD / 2) {
            self.links.prefetch_neighbours(slot);
        }
    }

    /// Lets the lowest go while there are too many.
    fn evict(&mut self) {
        for tier in [HOT, COLD] {
            let most = if tier == HOT { self.sizes.hot } else { self.sizes.cold };
            while self.tiers[tier].len() > most {
                let Some(lowest) = self.lowest_of(tier) else { break };
                self.evict_one(tier, lowest.slot);
            }
        }
        while self.total_len() > self.sizes.total {
            let lowest = match (self.lowest_of(HOT), self.lowest_of(COLD)) {
                (Some(hot), Some(cold)) if cold.is_before(&hot) => cold,
                (Some(hot), Some(_)) => hot,
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => break,
            };
            let tier = self.entries[lowest.slot as usize].tier.map_or(HOT, usize::from);
            self.evict_one(tier, lowest.slot);
        }
    }

    fn evict_one(&mut self, tier: usize, slot: u32) {
        self.look_ahead(tier);
        self.remove(slot);
        self.counts.evicted += 1;
    }

    fn lowest_of(&mut self, tier: usize) -> Option<Ranked> {
        let (entries, links) = (&self.entries, &self.links);
        let (own, len) = (Some(tier as u8), self.tiers[tier].len());
        let is_there = |node: &Ranked| {
            let entry = &entries[node.slot as usize];
            let is_same = entry.moment == node.moment && entry.score.total_cmp(&node.score).is_eq();
            is_same && entry.tier == own
        };
        self.tiers[tier].lowest(is_there, |list| {
            if len < entries.len() / SCATTERED {
                return links.iter(&list).map(|slot| entries[slot as usize].ranked(slot)).collect();
            }
            let all = (0u32..).zip(entries).filter(|(_, entry)| entry.tier == own);
            let mut found = echoic_memory::roomy(len);
            found.extend(all.map(|(slot, entry)| entry.ranked(slot)));
            found
        })
    }

    fn remove(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let Some(tier) = entry.tier.take().map(usize::from) else { return };
        entry.generation = (entry.generation + 1) & (u32::MAX >> 1);
        self.moments.remove(entry.score);
        if let RowLocation::Row(row) = entry.place {
            self.freed.push(row);
        }
        self.tiers[tier].remove(&mut self.links, slot);
        if self.scale.is_some() {
            self.tiers[tier].set_weight(slot, 0.0);
        }
        self.free.push(slot);
    }

    /// Forgets all, but not how often its slots were used.
    pub(super) fn clear(&mut self) {
        for tier in [HOT, COLD] {
            let slots: Vec<u32> = self.tiers[tier].slots(&self.links).collect();
            slots.into_iter().for_each(|slot| self.remove(slot));
        }
        self.moments = Moments::default();
        self.scale = None;
    }

    /// Up to `most` hot experiences that are too old for it, from the oldest on.
    pub(super) fn due(&self, most: usize) -> Vec<u32> {
        let young = |slot: &u32| self.age(*slot) <= self.threshold;
        let slots = self.tiers[HOT].slots(&self.links);
        slots.take_while(|slot| !young(slot)).take(most).collect()
    }

    fn age(&self, slot: u32) -> u64 {
        self.now - self.entries[slot as usize].born
    }

    /// Makes the oldest hot experience cold. Its bytes are at `place` from now on.
    pub(super) fn migrate(&mut self, slot: u32, place: RowLocation) {
        let node = self.ranked(slot);
        self.tiers[HOT].remove(&mut self.links, slot);
        self.tiers[COLD].insert(&mut self.links, node);
        if self.scale.is_some() {
            self.tiers[HOT].set_weight(slot, 0.0);
        }
        self.entries[slot as usize].tier = Some(COLD as u8);
        self.set_place(slot, place);
        self.weigh(slot);
        self.counts.migrated += 1;
        self.evict();
    }

    /// The bytes of an experience have moved.
    pub(super) fn set_place(&mut self, slot: u32, place: RowLocation) {
        let entry = &mut self.entries[slot as usize];
        if let RowLocation::Row(row) = entry.place
            && place != entry.place
        {
            self.freed.push(row);
        }
        entry.place = place;
    }

    /// Lets all go that are older than they may be, and says how many.
    pub(super) fn expire(&mut self) -> usize {
        let mut expired = 0;
        for tier in [HOT, COLD] {
            while let Some(slot) = self.tiers[tier].oldest() {
                if self.age(slot) <= self.max_age {
                    break;
                }
                self.remove(slot);
                expired += 1;
            }
        }
        self.counts.expired += expired as u64;
        expired
    }

    /// Gives an experience another score.
    pub(super) fn rescore(&mut self, slot: u32, score: f64, given: bool) {
        let entry = &mut self.entries[slot as usize];
        entry.given = given;
        let before = std::mem::replace(&mut entry.score, score);
        if before.total_cmp(&score).is_eq() {
            return;
        }
        self.moments.remove(before);
        self.moments.add(score);
        if let Some(tier) = entry.tier {
            let node = Ranked { score, moment: entry.moment, slot };
            self.tiers[usize::from(tier)].rescore(node);
        }
        self.weigh(slot);
    }

    /// How many of a batch come from the hot side.
    pub(super) fn hot_count(&self, count: usize, share: f64) -> usize {
        match (self.len(HOT), self.len(COLD)) {
            (0, _) => 0,
            (_, 0) => count,
            // A product that should be whole may be a little less.
            _ => ((count as f64 * share + 1e-9).floor() as usize).min(count),
        }
    }

    /// Draws experiences, hot ones first, and says how many those are.
    pub(super) fn draw(
        &mut self,
        count: usize,
        temperature: f64,
        hot_share: f64,
        rng: &mut Rng,
        picked: &mut Vec<Picked>,
    ) -> Result<usize, Error> {
        if self.total_len() == 0 {
            return Err(Error::Empty);
        }
        self.keep_scale(temperature);
        let hot = self.hot_count(count, hot_share);
        let mut found = std::mem::take(&mut self.found);
        for (tier, part) in [(HOT, hot), (COLD, count - hot)] {
            found.clear();
            self.tiers[tier].draw(part, rng, &mut found);
            let share = part as f64 / count as f64;
            picked.extend(found.iter().map(|(slot, probability)| {
                let entry = &self.entries[*slot as usize];
                Picked {
                    key: self.key(*slot),
                    place: entry.place,
                    probability: share * probability,
                    score: entry.score,
                    age: self.now - entry.born,
                    moment: entry.moment,
                }
            }));
        }
        self.found = found;
        Ok(hot)
    }

    /// Sees to it that weights are of this temperature and fit the scores that there are now.
    fn keep_scale(&mut self, temperature: f64) {
        let good = self
            .scale
            .as_ref()
            .is_some_and(|scale| scale.temperature == temperature && scale.fits(&self.moments));
        // The highest may have gone, and what is left be too small for sums.
        let good = good
            && [HOT, COLD].iter().all(|tier| {
                let tier = &mut self.tiers[*tier];
                tier.len() == 0 || tier.total() > 1e-200
            });
        if !good {
            self.rescale(temperature);
        }
    }

    /// Computes all weights again.
    fn rescale(&mut self, temperature: f64) {
        let live = || self.entries.iter().filter(|entry| entry.tier.is_some());
        self.moments = Moments::of(live().map(|entry| entry.score));
        let (scale, weights) = self.weights(temperature);
        for (tier, weights) in self.tiers.iter_mut().zip(&weights) {
            tier.set_all(weights);
        }
        self.scale = Some(scale);
        self.counts.rescaled += 1;
    }

    /// The weights of all at a temperature.
    fn weights(&self, temperature: f64) -> (Scale, [Vec<(u32, f64)>; 2]) {
        let mut scale = Scale::new(self.mode, temperature, &self.moments);
        let mut bases = [f64::NEG_INFINITY; 2];
        let mut weights: [Vec<(u32, f64)>; 2] =
            [HOT, COLD].map(|s| Vec::with_capacity(self.len(s)));
        for (slot, entry) in (0u32..).zip(&self.entries) {
            let Some(tier) = entry.tier.map(usize::from) else { continue };
            let exponent = scale.exponent(entry.score);
            bases[tier] = bases[tier].max(exponent);
            weights[tier].push((slot, exponent));
        }
        scale.bases = bases.map(|base| if base.is_finite() { base } else { 0.0 });
        for (weights, base) in weights.iter_mut().zip(scale.bases) {
            weights.iter_mut().for_each(|(_, weight)| *weight = (*weight - base).exp());
        }
        (scale, weights)
    }

    /// `1 / Σ P²` of a draw, and `(Σ w)² / Σ w²` of each tier: as how many equally likely experiences
    /// they are.
    pub(super) fn effective_sizes(&self, temperature: f64, hot_share: f64) -> (f64, [f64; 2]) {
        let (_, weights) = self.weights(temperature);
        let size = |weights: &Vec<(u32, f64)>| {
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            let squares: f64 = weights.iter().map(|(_, weight)| weight * weight).sum();
            if squares > 0.0 { sum * sum / squares } else { 0.0 }
        };
        let sizes = [size(&weights[HOT]), size(&weights[COLD])];
        let shares = match (self.len(HOT), self.len(COLD)) {
            (0, _) => [0.0, 1.0],
            (_, 0) => [1.0, 0.0],
            _ => [hot_share, 1.0 - hot_share],
        };
        let squares: f64 = shares
            .iter()
            .zip(sizes)
            .filter(|(share, _)| **share > 0.0)
            .map(|(share, size)| if size > 0.0 { share * share / size } else { 0.0 })
            .sum();
        (if squares > 0.0 { 1.0 / squares } else { 0.0 }, sizes)
    }

    /// Up to `count` slots whose scores are computed, after the last ones that were asked for.
    pub(super) fn next_to_refresh(&mut self, count: usize) -> Vec<(u64, u32)> {
        let slots = self.entries.len() as u32;
        let mut chosen = Vec::new();
        for _ in 0..count.min(slots as usize) {
            if self.cursor >= slots {
                self.cursor = 0;
            }
            let slot = self.cursor;
            self.cursor += 1;
            let entry = &self.entries[slot as usize];
            if let (Some(_), false, RowLocation::Row(row)) = (entry.tier, entry.given, entry.place)
            {
                chosen.push((self.key(slot), row));
            }
        }
        chosen
    }

    /// The slots that have an experience, in their order.
    pub(super) fn live(&self) -> impl Iterator<Item = (u32, &Entry)> {
        (0u32..).zip(&self.entries).filter(|(_, entry)| entry.tier.is_some())
    }

    /// Bytes for each slot besides those of its row.
    pub(super) fn bytes_per_slot(&self) -> f64 {
        let order: usize = self.tiers.iter().map(Tier::order_bytes).sum();
        let slots = self.entries.len().max(1) as f64;
        // Neighbours in a list, and a weight in each of two trees of eight children.
        size_of::<Entry>() as f64 + 8.0 + 2.0 * 8.0 * 8.0 / 7.0 + order as f64 / slots
    }

    /// What makes another index do what this one will do.
    pub(super) fn save(&self) -> (&[Entry], Vec<u32>, [u64; 8], [f64; 9]) {
        let counts = self.counts;
        let numbers = [
            self.now,
            u64::from(self.cursor),
            counts.added,
            counts.migrated,
            counts.expired,
            counts.evicted,
            counts.refreshed,
            counts.rescaled,
        ];
        let Moments { count, mean, squares } = self.moments;
        let scale = self.scale.map_or([0.0; 6], |scale| {
            [1.0, scale.temperature, scale.mean, scale.spread, scale.bases[0], scale.bases[1]]
        });
        let [has, temperature, scale_mean, spread, hot, cold] = scale;
        let reals = [count, mean, squares, has, temperature, scale_mean, spread, hot, cold];
        (&self.entries, self.free.clone(), numbers, reals)
    }

    /// Whether this can become what another index was.
    pub(super) fn could_be(
        &self,
        saved: &[Entry],
        free: &[u32],
        [now, _, added, ..]: [u64; 8],
    ) -> bool {
        let live: Vec<&Entry> = saved.iter().filter(|entry| entry.tier.is_some()).collect();
        let mut unused = vec![false; saved.len()];
        for slot in free {
            let Some(unused) = unused.get_mut(*slot as usize) else { return false };
            if std::mem::replace(unused, true) {
                return false;
            }
        }
        let apart = saved.iter().zip(&unused).all(|(entry, free)| entry.tier.is_none() == *free);
        let mut moments: Vec<u64> = live.iter().map(|entry| entry.moment).collect();
        moments.sort_unstable();
        moments.dedup();
        let sound = live.iter().all(|entry| {
            entry.score >= 0.0
                && entry.score.is_finite()
                && entry.born <= now
                && entry.moment < added
        });
        let count = |tier| live.iter().filter(|entry| entry.tier == Some(tier)).count();
        let fits = count(HOT as u8) <= self.sizes.hot
            && count(COLD as u8) <= self.sizes.cold
            && live.len() <= self.sizes.total;
        apart && sound && fits && moments.len() == live.len()
    }

    /// Becomes what another index was, of which [`Index::could_be`] has said that it can. `places` has one
    /// for each entry that is there, in their order.
    pub(super) fn restore(
        &mut self,
        saved: &[Entry],
        free: &[u32],
        numbers: [u64; 8],
        reals: [f64; 9],
        places: &[RowLocation],
    ) {
        let [now, cursor, added, migrated, expired, evicted, refreshed, rescaled] = numbers;
        let (sizes, threshold, max_age, mode) =
            (self.sizes, self.threshold, self.max_age, self.mode);
        let mut fresh = Self::new(sizes, threshold, max_age, mode);
        fresh.entries = saved.to_vec();
        let live = fresh.entries.iter_mut().filter(|entry| entry.tier.is_some());
        live.zip(places).for_each(|(entry, place)| entry.place = *place);
        let mut order: Vec<u32> = fresh.live().map(|(slot, _)| slot).collect();
        order.sort_unstable_by_key(|slot| fresh.entries[*slot as usize].moment);
        for slot in order {
            let node = fresh.ranked(slot);
            let Some(tier) = fresh.entries[slot as usize].tier else { continue };
            fresh.tiers[usize::from(tier)].insert(&mut fresh.links, node);
        }
        fresh.free = free.to_vec();
        fresh.now = now;
        fresh.cursor = cursor as u32;
        fresh.counts = Counts { added, migrated, expired, evicted, refreshed, rescaled };
        let [count, mean, squares, has, temperature, scale_mean, spread, hot, cold] = reals;
        fresh.moments = Moments { count, mean, squares };
        if has != 0.0 {
            let mut scale = Scale::new(mode, temperature, &fresh.moments);
            (scale.mean, scale.spread, scale.bases) = (scale_mean, spread, [hot, cold]);
            fresh.scale = Some(scale);
            let slots: Vec<u32> = fresh.live().map(|(slot, _)| slot).collect();
            slots.into_iter().for_each(|slot| fresh.weigh(slot));
        }
        fresh.freed = std::mem::take(&mut self.freed);
        *self = fresh;
    }
}
