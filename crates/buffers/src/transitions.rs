//! Rows of transitions, written in order and drawn at random.
//!
//! # Invariants
//!
//! 1. Where there is an index, rows are published, and readers that use it are made, under its lock: what it
//!    knows is what is in the window.
//! 2. Only numbers are changed or looked up under that lock; no row is copied.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use echoic_memory::row_ring::{Reader, RowReservation, RowRing};
use echoic_memory::slab::{Field, Pinned, Slab};
use echoic_memory::sync::Mutex;
use echoic_replay::rng::Rng;

use crate::episodes::{Episodes, Steps};
use crate::error::Error;
use crate::frames::{Frames, Pins};
use crate::layout::RowLayout;
use crate::observations::Observations;
use crate::priorities::{Draw, Drawn, Priorities};

/// How many transitions go at once when there is no room for a frame.
const DROPPED: u64 = 16;

/// What a buffer knows of its rows besides their bytes.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The exponent of priorities, if it has them.
    pub alpha: Option<f64>,
    /// Whether it knows which rows follow each other: then these leaves of a row, one byte each, say whether
    /// an episode ends with it.
    pub ends: Option<Vec<usize>>,
    /// Whether observations are stored once: of how many frames each is, and where its leaves lie in a frame.
    pub frames: Option<(usize, RowLayout)>,
    /// Which part of a transition each leaf is; [`Part::Step`] if nothing is said.
    pub parts: Vec<Part>,
    /// The seed of its own draws.
    pub seed: u64,
}

/// Which part of a transition a leaf is. A batch of several steps together has the outcome of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What the step began with, or did.
    Step,
    /// What it led to.
    Outcome,
    /// Of the observation before the step.
    Obs,
    /// Of the one after it, which is an outcome, too.
    NextObs,
}

/// What there was no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// A frame.
    Frames,
    /// A row: readers keep the places of the next ones.
    Rows,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Transitions {
    ring: RowRing,
    layout: RowLayout,
    parts: Vec<Part>,
    frames: Option<FrameStore>,
    index: Option<Mutex<Index>>,
    /// Which bytes of a row say that an episode ends.
    ends: Vec<Field>,
    rng: Mutex<Rng>,
}

/// Where the frames of observations are that are stored once.
#[derive(Debug)]
struct FrameStore {
    slab: Arc<Slab>,
    stack: usize,
    layout: RowLayout,
}

#[derive(Debug)]
struct Index {
    priorities: Option<Priorities>,
    episodes: Option<Episodes>,
    frames: Option<Frames>,
    /// Where the window began when the index was last brought up to date.
    begin: u64,
    /// What is to be known of rows that an earlier reservation keeps from being published.
    waiting: Vec<(Range<u64>, Notes)>,
}

/// What is to be known of rows that are published together.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// A priority for each, or none for the largest that ever was.
    pub priorities: Vec<f64>,
    /// Whose step each is: one number for all, or one for each.
    pub envs: Vec<u32>,
    /// The frames of each row's two observations, in a buffer that stores those once.
    frames: Vec<u32>,
    /// What `latest_frames` gave for the one row.
    taken: Option<Vec<u32>>,
    /// Whether an episode ends with each.
    ended: Vec<bool>,
}

/// What is known of the rows in the window besides their bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// Their priorities.
    pub priorities: Option<&'a Priorities>,
    /// Which of them follow each other.
    pub episodes: Option<&'a Episodes>,
    /// Where their observations are.
    pub frames: Option<&'a Frames>,
}

/// What is known of rows that are taken out, in their order.
#[derive(Debug, Clone, Default)]
pub struct SavedNotes {
    /// The powers of their priorities.
    pub weights: Vec<f64>,
    /// The largest priority that ever was.
    pub largest: f64,
    /// Whose step each is.
    pub envs: Vec<u32>,
    /// Whether a row is the last of an episode that ended.
    pub ends: Vec<bool>,
}

impl Notes {
    /// Those of some of the rows.
    pub fn part(&self, rows: Range<usize>) -> Self {
        Self {
            priorities: self.priorities.get(rows.clone()).unwrap_or_default().to_vec(),
            envs: self.envs.get(rows).unwrap_or(&self.envs).to_vec(),
            ..Self::default()
        }
    }
}

/// Rows that were drawn. Its vectors are used again by the next draw.
#[derive(Debug, Clone, Default)]
pub struct DrawnRows {
    /// The position of each row.
    pub positions: Vec<u64>,
    /// How likely each was, in a buffer with priorities.
    pub probabilities: Vec<f64>,
    /// What each counts in an update, in a buffer with priorities.
    pub weights: Vec<f64>,
    drawn: Vec<Drawn>,
}

/// How rows are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// How many.
    pub count: usize,
    /// The seed of this draw, or the next of the buffer's own.
    pub seed: Option<u64>,
    /// The exponent of the weights.
    pub beta: f64,
    /// How priorities are drawn.
    pub draw: Draw,
}

impl Transitions {
    /// Room for this many rows.
    ///
    /// # Errors
    ///
    /// [`Error`] for a capacity of zero, or one that the machine could never hold, and for settings
    /// that mean nothing.
    pub fn new(capacity: u64, layout: RowLayout, settings: &Settings) -> Result<Self, Error> {
        if capacity == 0 {
            return Err(Error::no_capacity());
        }
        let ring = RowRing::new(capacity, layout.row_bytes())?;
        let priorities =
            settings.alpha.map(|alpha| Priorities::new(ring.slots(), alpha)).transpose()?;
        let episodes = settings.ends.as_ref().map(|_| Episodes::new(ring.slots()));
        let frames = settings
            .frames
            .as_ref()
            .map(|(stack, layout)| Frames::new(capacity, ring.slots(), *stack, layout.row_bytes()));
        let frames = frames.transpose()?;
        let store = frames.as_ref().zip(settings.frames.as_ref());
        let store = store.map(|(frames, (stack, layout))| FrameStore {
            slab: Arc::clone(frames.slab()),
            stack: *stack,
            layout: layout.clone(),
        });
        let needed = priorities.is_some() || episodes.is_some() || frames.is_some();
        let index = needed.then(|| {
            Mutex::new(Index { priorities, episodes, frames, begin: 0, waiting: Vec::new() })
        });
        let leaves = settings.ends.iter().flatten();
        let ends = leaves.map(|leaf| layout.fields()[*leaf]).collect();
        let mut parts = settings.parts.clone();
        parts.resize(layout.fields().len(), Part::Step);
        let rng = Mutex::new(Rng::new(settings.seed));
        Ok(Self { ring, layout, parts, frames: store, index, ends, rng })
    }

    /// The rows themselves.
    pub fn ring(&self) -> &RowRing {
        &self.ring
    }

    /// Bytes of the rows and frames that were ever used.
    pub fn used_bytes(&self) -> usize {
        let frames = self.frames.as_ref().map_or(0, |frames| frames.slab.used_bytes());
        self.ring.used_bytes() + frames
    }

    /// How many rows can be drawn.
    pub fn len(&self) -> u64 {
        let window = self.ring.window();
        window.end - window.start
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of the buffer's own draws.
    pub fn rng_state(&self) -> [u64; 4] {
        self.rng.lock().state()
    }

    /// Makes the buffer's own draws go on from a state.
    pub fn set_rng_state(&self, state: [u64; 4]) {
        *self.rng.lock() = Rng::from_state(state);
    }

    /// Lets all threads read the rows of a reservation, which have been written.
    ///
    /// # Panics
    ///
    /// When there are neither one priority for each row nor none, or neither one environment for each nor
    /// one for all nor none.
    #[inline]
    pub fn publish(&self, mut reservation: RowReservation<'_>, mut notes: Notes) {
        let Some(index) = &self.index else {
            reservation.publish();
            return;
        };
        let own = reservation.positions();
        let rows = (own.end - own.start) as usize;
        assert!(notes.priorities.is_empty() || notes.priorities.len() == rows);
        assert!(notes.envs.len() <= 1 || notes.envs.len() == rows);
        if !self.ends.is_empty() {
            let ends = |row: &[u8]| self.ends.iter().any(|field| row[field.offset] != 0);
            notes.ended = (0..rows).map(|row| ends(reservation.row_mut(row as u64))).collect();
        }
        let mut index = index.lock();
        let now = reservation.publish();
        let begin = self.ring.window().start;
        if now == own {
            index.note(&self.ring, own, &notes);
        } else {
            index.waiting.push((own, notes));
            if !now.is_empty() {
                let mut waiting = std::mem::take(&mut index.waiting);
                waiting.sort_by_key(|(range, _)| range.start);
                for (range, notes) in waiting {
                    if range.end <= now.end {
                        index.note(&self.ring, range, &notes);
                    } else {
                        index.waiting.push((range, notes));
                    }
                }
            }
        }
        index.evict(&self.ring, begin);
    }

    /// Forgets all rows. Those that are being written now will be there.
    pub fn clear(&self) {
        match &self.index {
            None => self.ring.clear(),
            Some(index) => index.lock().clear(&self.ring),
        }
    }

    /// Forgets all rows, and gives the next one this position if no thread reads or writes.
    pub fn restart(&self, position: u64) {
        // One lock for both steps: a row that is published between them would be known at a position that
        // is then no longer its own.
        let mut index = self.index.as_ref().map(Mutex::lock);
        match &mut index {
            None => self.ring.clear(),
            Some(index) => index.clear(&self.ring),
        }
        if self.ring.restart(position)
            && let Some(index) = &mut index
        {
            index.begin = position;
        }
    }

    /// Ends the episode of an environment, of which no row says so.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] when the buffer does not know of episodes.
    pub fn end_episode(&self, env: u32) -> Result<(), Error> {
        let mut index = self.index.as_ref().map(Mutex::lock);
        let episodes = index.as_mut().and_then(|index| index.episodes.as_mut());
        episodes.ok_or(Error::no_episodes("end_episode"))?.end(env);
        Ok(())
    }

    /// How many episodes have rows here, if the buffer knows.
    pub fn episode_count(&self) -> Option<usize> {
        let index = self.index.as_ref().map(Mutex::lock)?;
        index.episodes.as_ref().map(Episodes::len)
    }

    /// Draws rows, and whatever `also` wants to know of them at the same moment.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] and [`Error::Argument`] when there is nothing to draw, or nothing asked
    /// for.
    pub fn draw<T>(
        &self,
        request: Request,
        draws: &mut DrawnRows,
        also: impl FnOnce(&[u64], Known<'_>, &mut Rng) -> T,
    ) -> Result<(Reader<'_>, T), Error> {
        if request.count == 0 {
            return Err(Error::no_batch());
        }
        draws.positions.clear();
        draws.probabilities.clear();
        draws.weights.clear();
        draws.drawn.clear();
        let (mut seeded, mut own);
        let rng = match request.seed {
            Some(seed) => {
                seeded = Rng::new(seed);
                &mut seeded
            }
            None => {
                own = self.rng.lock();
                &mut *own
            }
        };
        let index = self.index.as_ref().map(Mutex::lock);
        let reader = self.ring.read();
        let window = reader.window();
        if window.is_empty() {
            return Err(Error::Empty);
        }
        let len = window.end - window.start;
        let priorities = index.as_ref().and_then(|index| index.priorities.as_ref());
        if let Some(priorities) = priorities {
            priorities.draw(request.count, request.draw, rng, &mut draws.drawn);
            let slots = self.ring.slots();
            let first = window.start % slots;
            let position = |slot: u32| {
                let slot = u64::from(slot);
                window.start + if slot < first { slot + slots - first } else { slot - first }
            };
            draws.positions.extend(draws.drawn.iter().map(|row| position(row.slot)));
            draws.probabilities.extend(draws.drawn.iter().map(|row| row.probability));
            priorities.weights(&draws.drawn, request.beta, |weight| draws.weights.push(weight));
        }
        if draws.positions.is_empty() {
            draws.positions.extend((0..request.count).map(|_| window.start + rng.below(len)));
            if priorities.is_some() {
                // All priorities are zero: then all rows are alike.
                draws.probabilities.resize(request.count, 1.0 / len as f64);
                draws.weights.resize(request.count, 1.0);
            }
        }
        let known = index.as_ref().map(|index| index.known()).unwrap_or_default();
        let known = also(&draws.positions, known, rng);
        drop(index);
        Ok((reader, known))
    }

    /// Gives rows new priorities, in the order given. Rows that are not there any more are left out; says
    /// how many were there.
    ///
    /// # Errors
    ///
    /// [`Error`] when the buffer has no priorities, there is not one for each row, one is no priority,
    /// or a position was never given. Then none was changed.
    pub fn update_priorities(
        &self,
        positions: &[i128],
        priorities: &[f64],
    ) -> Result<usize, Error> {
        Priorities::check_updates(positions.len(), priorities)?;
        let mut index = self.index.as_ref().map(Mutex::lock).ok_or(Error::no_priorities())?;
        let window = self.ring.window();
        let mut updates = Vec::with_capacity(positions.len());
        for (at, (got, priority)) in positions.iter().zip(priorities).enumerate() {
            let position = u64::try_from(*got).ok().filter(|position| *position < window.end);
            let position = position.ok_or_else(|| Error::index(*got, at, window.end))?;
            if position >= window.start {
                updates.push(((position % self.ring.slots()) as u32, *priority));
            }
        }
        let known = index.priorities.as_mut().ok_or(Error::no_priorities())?;
        known.set_many(&updates);
        Ok(updates.len())
    }

    /// Copies all leaves of some rows into their columns: of `late` rows the outcome of a step, of `early` ones the
    /// rest, and observations that are stored once from `pins`.
    ///
    /// # Panics
    ///
    /// As [`Reader::gather`].
    pub fn gather(
        &self,
        reader: &Reader<'_>,
        early: &[u64],
        late: &[u64],
        pins: Option<&Pins>,
        columns: &mut [&mut [u8]],
    ) {
        let fields = self.layout.fields();
        if pins.is_none() && std::ptr::eq(early, late) {
            return reader.gather(early, fields, columns);
        }
        assert_eq!(fields.len(), columns.len(), "a column for each leaf");
        let mut parts: [(Vec<Field>, Vec<&mut [u8]>); 4] = Default::default();
        for ((part, field), column) in self.parts.iter().zip(fields).zip(columns) {
            let (own, targets) = &mut parts[match part {
                Part::Obs if pins.is_some() => 2,
                Part::NextObs if pins.is_some() => 3,
                Part::Step | Part::Obs => 0,
                Part::Outcome | Part::NextObs => 1,
            }];
            own.push(*field);
            targets.push(column);
        }
        let [before, after, obs, next_obs] = &mut parts;
        reader.gather(early, &before.0, &mut before.1);
        reader.gather(late, &after.0, &mut after.1);
        if let (Some(pins), Some(frames)) = (pins, &self.frames) {
            // Leaves of frames come in their order, so the places in a frame are those of its layout.
            pins.obs.gather(frames.layout.fields(), &mut obs.1);
            pins.next_obs.gather(frames.layout.fields(), &mut next_obs.1);
        }
    }

    /// Up to `most` of the rows that can be drawn now, the oldest first: to read them, their positions, their
    /// observations, and what is known of them.
    pub fn save(&self, most: usize) -> (Reader<'_>, Vec<u64>, Option<Pins>, SavedNotes) {
        let index = self.index.as_ref().map(Mutex::lock);
        let reader = self.ring.read();
        let known = index.as_ref().map(|index| index.known()).unwrap_or_default();
        let positions: Vec<u64> = reader.window().take(most).collect();
        let mut saved = SavedNotes::default();
        if let Some(priorities) = known.priorities {
            let weight = |at: &u64| priorities.weight_of((at % self.ring.slots()) as u32);
            saved.weights = positions.iter().map(weight).collect();
            saved.largest = priorities.largest();
        }
        for steps in known.episodes.iter().flat_map(|all| positions.iter().map(|at| all.of(*at))) {
            let last = |steps: &Steps<'_>| steps.ended() && steps.at() + 1 == steps.len();
            saved.envs.push(steps.map_or(0, |steps| steps.env()));
            saved.ends.push(steps.as_ref().is_some_and(last));
        }
        let pins = known.frames.map(|frames| frames.pin(&positions, &positions));
        (reader, positions, pins, saved)
    }

    /// Puts on one transition of many, in a buffer that stores observations once, if there is room for it and for
    /// those of its frames that are new. The observations before and after the steps are given as the bytes of each
    /// leaf, of all transitions one after the other. `fill` writes all that is not in frames. Where observations are
    /// not stored once, nothing is put on.
    ///
    /// # Errors
    ///
    /// What there is no room for: see [`Transitions::make_room`].
    pub fn put_observed(
        &self,
        sides: [&[&[u8]]; 2],
        number: usize,
        mut notes: Notes,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), NoRoom> {
        let Some(FrameStore { slab, stack, layout }) = &self.frames else { return Ok(()) };
        let observations = Observations { layout, stack: *stack, sides, number };
        let env = notes.envs.first().copied().unwrap_or(0);
        let latest = self.latest_frames(env);
        let (numbers, fresh) = observations.find(latest.as_ref());
        notes.taken = latest.map(|(numbers, _)| numbers);
        let mut writer = slab.try_reserve(fresh.len());
        // The position comes last: frames that were reserved can be given back, a position can't.
        let reservation = if writer.len() == fresh.len() {
            self.ring.try_reserve(1).ok_or(NoRoom::Rows)
        } else {
            Err(NoRoom::Frames)
        };
        let mut reservation = match reservation {
            Ok(reservation) => reservation,
            Err(short) => {
                if let Some(numbers) = &notes.taken {
                    self.release_frames(numbers);
                }
                return Err(short);
            }
        };
        for (at, frame) in fresh.iter().enumerate() {
            observations.write(*frame, writer.row_mut(at));
        }
        let published = writer.publish();
        notes.frames = numbers.iter().map(|number| number.settled(&published)).collect();
        fill(reservation.row_mut(0));
        self.publish(reservation, notes);
        Ok(())
    }

    /// Waits until there may be room for a transition, or lets the oldest ones go.
    pub fn make_room(&self, short: NoRoom) {
        let Some(frames) = self.frames.as_ref().filter(|_| short == NoRoom::Frames) else {
            return self.ring.wait_for_room(1);
        };
        if frames.slab.waits_for_readers()
            || (self.drop_oldest(DROPPED) == 0 && !self.forget_latest_frames())
        {
            // A reader stays no longer than a copy takes.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The frames of an environment's latest observation, which must come back with the notes of its next
    /// row, or to `release_frames`.
    fn latest_frames(&self, env: u32) -> Option<(Vec<u32>, Pinned)> {
        let mut index = self.index.as_ref().map(Mutex::lock)?;
        index.frames.as_mut()?.take(env)
    }

    /// Lets go of frames that were taken.
    fn release_frames(&self, numbers: &[u32]) {
        let mut index = self.index.as_ref().map(Mutex::lock);
        if let Some(frames) = index.as_mut().and_then(|index| index.frames.as_mut()) {
            frames.release(numbers);
        }
    }

    /// Forgets the latest observations of all environments, to make room for others; whether there were any.
    fn forget_latest_frames(&self) -> bool {
        let mut index = self.index.as_ref().map(Mutex::lock);
        let frames = index.as_mut().and_then(|index| index.frames.as_mut());
        frames.is_some_and(Frames::forget_latest)
    }

    /// Drops the oldest rows, to make room for frames; how many that were.
    fn drop_oldest(&self, rows: u64) -> u64 {
        let Some(index) = &self.index else { return self.ring.drop_oldest(rows) };
        let mut index = index.lock();
        let dropped = self.ring.drop_oldest(rows);
        let begin = self.ring.window().start;
        index.evict(&self.ring, begin);
        dropped
    }

    /// Looks at the priorities, and at the window that they are of.
    pub fn with_priorities<T>(&self, look: impl FnOnce(&Priorities, Range<u64>) -> T) -> Option<T> {
        let index = self.index.as_ref().map(Mutex::lock)?;
        let priorities = index.priorities.as_ref()?;
        Some(look(priorities, self.ring.window()))
    }

    /// Gives rows the powers of priorities that were saved. Positions must be in the window.
    pub fn restore_priorities(&self, weights: &[(u64, f64)], largest: f64) {
        let Some(mut index) = self.index.as_ref().map(Mutex::lock) else { return };
        let window = self.ring.window();
        let slots = self.ring.slots();
        if let Some(priorities) = &mut index.priorities {
            let inside = weights.iter().filter(|(position, _)| window.contains(position));
            let weights: Vec<(u32, f64)> =
                inside.map(|(position, weight)| ((position % slots) as u32, *weight)).collect();
            priorities.restore(&weights, largest);
        }
    }
}

impl Index {
    fn known(&self) -> Known<'_> {
        Known {
            priorities: self.priorities.as_ref(),
            episodes: self.episodes.as_ref(),
            frames: self.frames.as_ref(),
        }
    }

    /// Empties the window and forgets all that is known of it.
    fn clear(&mut self, ring: &RowRing) {
        ring.clear();
        if let Some(episodes) = &mut self.episodes {
            episodes.end_all();
        }
        if let Some(frames) = &mut self.frames {
            frames.forget_latest();
        }
        self.evict(ring, ring.window().start);
    }

    /// Takes note of rows that were published.
    fn note(&mut self, ring: &RowRing, positions: Range<u64>, notes: &Notes) {
        let own = positions.clone();
        if let Some(priorities) = &mut self.priorities {
            let largest = priorities.largest();
            if positions.end - positions.start == 1 {
                let priority = notes.priorities.first().copied().unwrap_or(largest);
                priorities.set_many(&[((positions.start % ring.slots()) as u32, priority)]);
            } else {
                let given = notes.priorities.iter().copied().chain(std::iter::repeat(largest));
                let slots = positions.clone().map(|position| (position % ring.slots()) as u32);
                let all: Vec<(u32, f64)> = slots.zip(given).collect();
                priorities.set_many(&all);
            }
        }
        if let Some(episodes) = &mut self.episodes {
            for (at, position) in positions.enumerate() {
                let env = notes.envs.get(at).or(notes.envs.first()).copied().unwrap_or(0);
                episodes.push(position, env, notes.ended.get(at).copied().unwrap_or(false));
            }
        }
        if let Some(frames) = &mut self.frames {
            let width = 2 * frames.stack();
            for (position, numbers) in own.zip(notes.frames.chunks_exact(width)) {
                let env = notes.envs.first().copied().unwrap_or(0);
                frames.put(position, env, numbers, notes.taken.clone());
            }
        }
    }

    /// Forgets what lies before the window.
    fn evict(&mut self, ring: &RowRing, begin: u64) {
        let gone = self.begin..begin;
        if gone.is_empty() {
            return;
        }
        if let Some(priorities) = &mut self.priorities {
            // None of these slots has been used again: at most `slack` positions are published at once,
            // and that many slots are not in the window.
            priorities.remove(gone.clone().map(|position| (position % ring.slots()) as u32));
        }
        if let Some(episodes) = &mut self.episodes {
            gone.clone().for_each(|position| episodes.evict(position));
        }
        if let Some(frames) = &mut self.frames {
            gone.clone().for_each(|position| frames.evict(position));
        }
        self.begin = begin;
    }
}

#[cfg(test)]
mod tests {
    use echoic_replay::{Dtype, Leaf};

    use super::*;

    fn layout() -> RowLayout {
        let leaf = |dtype| Leaf { path: String::new(), dtype, shape: vec![] };
        RowLayout::new([leaf(Dtype::UInt(8)), leaf(Dtype::Bool)].iter().map(Some)).unwrap()
    }

    fn put(rows: &Transitions, value: u64, ended: bool, notes: Notes) {
        let mut reservation = rows.ring().reserve(1);
        let row = reservation.row_mut(0);
        row[..8].copy_from_slice(&value.to_le_bytes());
        row[8] = u8::from(ended);
        rows.publish(reservation, notes);
    }

    fn ask(count: usize, seed: u64) -> Request {
        Request { count, seed: Some(seed), beta: 1.0, draw: Draw::Stratified }
    }

    #[test]
    fn draws_are_those_of_the_published_generator() {
        let rows = Transitions::new(100, layout(), &Settings::default()).unwrap();
        (0..150).for_each(|value| put(&rows, value, false, Notes::default()));
        let mut draws = DrawnRows::default();
        let (reader, ()) = rows.draw(ask(50, 9), &mut draws, |_, _, _| ()).unwrap();
        let mut rng = Rng::new(9);
        let expected: Vec<u64> = (0..50).map(|_| 50 + rng.below(100)).collect();
        assert_eq!(draws.positions, expected);
        assert!(expected.iter().all(|at| reader.row(*at)[..8] == at.to_le_bytes()));
    }

    #[test]
    fn what_fell_out_of_the_window_has_no_priority() {
        let settings = Settings { alpha: Some(1.0), ..Settings::default() };
        let rows = Transitions::new(4, layout(), &settings).unwrap();
        for value in 0..50u64 {
            put(
                &rows,
                value,
                false,
                Notes { priorities: vec![(value + 1) as f64], ..Notes::default() },
            );
            let low = (value + 1).saturating_sub(4);
            let total: u64 = (low..=value).map(|value| value + 1).sum();
            assert_eq!(rows.with_priorities(|known, _| known.total()), Some(total as f64));
        }
        assert_eq!(rows.update_priorities(&[3, 46, 49], &[9.0, 0.0, 1.0]).unwrap(), 2);
        assert_eq!(rows.with_priorities(|known, _| known.total()), Some(48.0 + 49.0 + 1.0));
        let mut draws = DrawnRows::default();
        let drawn = rows.draw(ask(200, 1), &mut draws, |_, _, _| ()).map(drop);
        drawn.unwrap();
        assert!(
            draws.positions.iter().all(|at| [47, 48, 49].contains(at)),
            "{:?}",
            draws.positions
        );
        rows.clear();
        assert_eq!(rows.with_priorities(|known, _| known.total()), Some(0.0));
    }

    #[test]
    fn a_buffer_that_starts_anew_while_others_write_draws_what_is_there() {
        let settings = Settings { alpha: Some(1.0), ends: Some(vec![1]), ..Settings::default() };
        let rows = Transitions::new(50, layout(), &settings).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                (0..20_000).for_each(|value| put(&rows, value, false, Notes::default()));
            });
            let mut draws = DrawnRows::default();
            let mut position = 7;
            while !writer.is_finished() {
                position += 1_000_003;
                rows.restart(position);
                if let Ok((reader, ())) = rows.draw(ask(20, position), &mut draws, |_, _, _| ()) {
                    draws.positions.iter().for_each(|at| assert_eq!(reader.row(*at).len(), 16));
                }
            }
        });
    }

    #[test]
    fn an_update_with_one_mistake_changes_nothing() {
        let settings = Settings { alpha: Some(1.0), ..Settings::default() };
        let rows = Transitions::new(4, layout(), &settings).unwrap();
        (0..4).for_each(|value| put(&rows, value, false, Notes::default()));
        for (positions, priorities) in [
            (vec![0, 1], vec![2.0, f64::NAN]),
            (vec![0, 1], vec![2.0, -1.0]),
            (vec![0, 4], vec![2.0, 2.0]),
            (vec![0, -1], vec![2.0, 2.0]),
            (vec![0], vec![2.0, 2.0]),
        ] {
            assert!(rows.update_priorities(&positions, &priorities).is_err());
            assert_eq!(rows.with_priorities(|known, _| known.total()), Some(4.0));
        }
    }

    #[test]
    fn rows_are_known_also_when_an_earlier_reservation_is_late() {
        let settings = Settings { alpha: Some(1.0), ends: Some(vec![1]), ..Settings::default() };
        let rows = Transitions::new(8, layout(), &settings).unwrap();
        let mut reservations: Vec<_> = (0..3).map(|_| rows.ring().reserve(1)).collect();
        reservations.iter_mut().for_each(|reservation| reservation.row_mut(0).fill(0));
        for reservation in reservations.into_iter().rev() {
            let priority = (reservation.positions().start + 1) as f64;
            rows.publish(reservation, Notes { priorities: vec![priority], ..Notes::default() });
        }
        assert_eq!(rows.with_priorities(|known, _| known.total()), Some(6.0));
        let mut draws = DrawnRows::default();
        let also = |at: &[u64], known: Known<'_>, _: &mut Rng| {
            known
                .episodes
                .and_then(|known| known.of(at[0]))
                .map(|steps| steps.iter().collect::<Vec<_>>())
        };
        let (_, steps) = rows.draw(ask(1, 0), &mut draws, also).unwrap();
        assert_eq!(steps, Some(vec![0, 1, 2]));
    }

    #[test]
    fn all_priorities_of_zero_are_all_alike() {
        let settings = Settings { alpha: Some(1.0), ..Settings::default() };
        let rows = Transitions::new(4, layout(), &settings).unwrap();
        let zero = Notes { priorities: vec![0.0], ..Notes::default() };
        (0..4).for_each(|value| put(&rows, value, false, zero.clone()));
        let mut draws = DrawnRows::default();
        rows.draw(ask(400, 3), &mut draws, |_, _, _| ()).unwrap();
        let counts = (0..4).map(|at| draws.positions.iter().filter(|other| **other == at).count());
        // Six standard deviations of each count are 52.
        assert!(counts.into_iter().all(|count| count.abs_diff(100) < 52));
        assert!(draws.weights.iter().all(|weight| *weight == 1.0));
    }

    #[test]
    fn nothing_cannot_be_drawn() {
        let rows = Transitions::new(4, layout(), &Settings::default()).unwrap();
        let mut draws = DrawnRows::default();
        let mut draw = |count| rows.draw(ask(count, 0), &mut draws, |_, _, _| ()).map(drop);
        assert!(matches!((draw(3), draw(0)), (Err(Error::Empty), Err(Error::Argument(_)))));
        let none = Transitions::new(0, layout(), &Settings::default());
        assert!(matches!(none, Err(Error::Argument(_))));
        assert!(matches!(rows.update_priorities(&[], &[]), Err(Error::Priority(_))));
        assert!(matches!(rows.end_episode(0), Err(Error::Argument(_))));
    }
}
