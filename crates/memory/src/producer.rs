//! Writing slots: reserving, committing and giving up, from any process.
//!
//! A producer is a process. The server is *owner* 0 and lives as long as the ring; the others, the
//! *peers*, have the owner ids that [`Ring::add_peer`](crate::Ring::add_peer) gave them, and may be killed
//! between any two instructions. So whatever a producer does is one of three things:
//!
//! - **One compare-and-swap that says who made it.** A reservation puts its owner into the cursor of
//!   the buffer; the commit of a peer puts its run into the tally. Before any thread replaces such a
//!   word, it writes what the word says into the log. Hence at any moment the word and the log
//!   together know every run and whether it was counted, and none of this is lost with a process.
//! - **A step that any thread can do for another**, and more than once without harm: opening a batch,
//!   which is a compare-and-swap on its turn, one on its cursor and one on `current`.
//! - **A hint** (the set of free buffers, where holes may be), which may be wrong in one direction.
//!
//! Nobody ever holds a right that others wait for, except the right to write its own slots. What
//! those of a dead process need is done by [`Ring::reclaim`](crate::Ring::reclaim).
//!
//! Runs of the server are not recovered, so they need no log: between two of them a reservation is
//! one compare-and-swap, and a commit one addition.
//!
//! # Invariants
//!
//! 1. The log has the end of every run of a peer, of every run before one, and of every hole, in the
//!    buffer's generation, except for the run that the cursor shows.
//! 2. A generation lasts while a run in it is neither committed nor given up and taken by another.
//! 3. `order` has the turn of a generation before its buffer is opened, and the buffer is open before
//!    `current` is that turn. A turn is noted only while `current` is the one before.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::bitmap;
use crate::control::{Buffer, Control, Cursor, Entry, RunState, Tally, Turn};
use crate::ring::{Blocked, Unavailable};
use crate::signal::Wakers;
use crate::sync::{AtomicU64, Mutex, Ordering, pause};

/// The owner of what the server's own threads reserve.
pub(crate) const SERVER: u16 = 0;

/// How long a thread sleeps at most when other processes take part: one of them may have been
/// stopped between changing something and saying so.
const NAP: Duration = Duration::from_millis(50);

/// A run that was given to others, because its process was taken for dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these slots were taken back before they were committed")]
pub struct Evicted;

/// One process's right to reserve.
#[derive(Debug)]
pub(crate) struct Producer {
    control: Control,
    owner: u16,
    nap: Option<Duration>,
    /// Held by who publishes a batch in which peers took part, and by `reclaim`: each must know
    /// whether the other did.
    pub(crate) publishing: Mutex<()>,
    /// Tasks of this process that wait for room.
    wakers: Wakers,
}

/// The right to write `len` slots from `first` of one buffer. Dropping it leaves holes.
#[derive(Debug)]
#[must_use = "a run that is dropped leaves its slots to others"]
pub struct Run<'a> {
    producer: &'a Producer,
    generation: u64,
    buffer: usize,
    first: u32,
    len: u32,
    /// The run is one slot that another gave up.
    fills_hole: bool,
}

/// What a look at the open batch gave.
enum Look<'a> {
    Reserved(Run<'a>),
    /// All its slots are reserved.
    Exhausted(u64),
    /// It is not the open batch any more.
    Moved,
}

impl Producer {
    pub(crate) fn new(control: Control, owner: u16, with_peers: bool) -> Self {
        Self {
            control,
            owner,
            nap: with_peers.then_some(NAP),
            publishing: Mutex::new(()),
            wakers: Wakers::default(),
        }
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn nap(&self) -> Option<Duration> {
        self.nap
    }

    pub(crate) fn batch_size(&self) -> usize {
        self.control.shape().batch_size
    }

    fn size(&self) -> u32 {
        self.batch_size() as u32
    }

    pub(crate) fn current(&self) -> Turn {
        Turn(self.control.header().current.load(Ordering::Acquire))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.current().is_sealed()
    }

    /// Reserves up to `len` slots. See [`crate::Ring::try_reserve`].
    pub(crate) fn try_reserve(&self, len: usize) -> Result<Run<'_>, Unavailable> {
        assert!(len > 0, "a run has at least one slot");
        let wanted = len.min(self.batch_size()) as u32;
        let header = self.control.header();
        let mut spins = 0;
        loop {
            let current = self.current();
            if current.is_sealed() {
                return Err(Unavailable::Closed);
            }
            let made = header.holes_made.load(Ordering::Relaxed);
            if made != header.holes_gone.load(Ordering::Relaxed)
                && let Some(run) = self.take_hole()
            {
                return Ok(run);
            }
            match self.reserve_in(current, wanted) {
                Look::Reserved(run) => return Ok(run),
                Look::Exhausted(generation) => self.open_next(current, generation)?,
                Look::Moved => pause(&mut spins),
            }
        }
    }

    /// Reserves from the batch at `current` if it is still the open one.
    #[inline]
    fn reserve_in(&self, current: Turn, wanted: u32) -> Look<'_> {
        let Some(buffer) = self.control.buffers().get(current.buffer()) else {
            return Look::Moved;
        };
        let Buffer { reserving, .. } = buffer;
        loop {
            // Acquire, so that the cursor is one of this generation or of a later one.
            let generation = reserving.generation.load(Ordering::Acquire);
            let cursor = Cursor(reserving.cursor.load(Ordering::Acquire));
            // It may even have been taken and released, if no thread asked for the next one.
            if current.is(generation) && cursor.is_left_by(generation) {
                return Look::Exhausted(generation);
            }
            // Or the next one is about to be opened in the same buffer, by a process that may have
            // died over it.
            if current.is(generation.wrapping_sub(1)) {
                return Look::Exhausted(generation.wrapping_sub(1));
            }
            if !current.is(generation) || !cursor.is(generation) {
                return Look::Moved;
            }
            let first = cursor.end();
            if first >= self.size() {
                return Look::Exhausted(generation);
            }
            if (cursor.owner() | self.owner) != SERVER {
                self.record(current.buffer(), buffer, generation, cursor);
            }
            let end = first.saturating_add(wanted).min(self.size());
            let next = Cursor::new(generation, self.owner, end);
            // Acquire pairs with the release by the thread that opened the buffer, and with that of the last
            // consumer through it; release, so that the next one may rely on what we recorded.
            let swapped = reserving.cursor.compare_exchange(
                cursor.0,
                next.0,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if swapped.is_ok() {
                // By invariant 2 this can't change before the run is over.
                let generation = reserving.generation.load(Ordering::Relaxed);
                let (buffer, len) = (current.buffer(), end - first);
                return Look::Reserved(Run {
                    producer: self,
                    generation,
                    buffer,
                    first,
                    len,
                    fills_hole: false,
                });
            }
        }
    }

    /// Writes the run that `cursor` shows into the log, if it is not there.
    pub(crate) fn record(&self, index: usize, buffer: &Buffer, generation: u64, cursor: Cursor) {
        let last = (cursor.end() as usize).checked_sub(1);
        let Some(place) = last.and_then(|last| self.control.log(index).get(last)) else {
            return;
        };
        let claimed = Entry::new(generation, RunState::Claimed, cursor.owner(), false);
        let mut seen = Entry(place.load(Ordering::Acquire));
        // An entry of this generation is this run's own. If `seen` is an earlier one and still there
        // when it is replaced, a peer's run was neither committed nor given up in between, so its
        // generation lasts; and of the server's runs no thread reads such an entry later.
        while seen.is_before(generation)
            && buffer.reserving.generation.load(Ordering::Acquire) == generation
        {
            match place.compare_exchange(seen.0, claimed.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = Entry(now),
            }
        }
    }

    /// Opens the batch after `generation`, which is exhausted and at `current`, or helps the thread that is
    /// at it. Afterwards `current` has changed, or it is worth another look.
    fn open_next(&self, current: Turn, generation: u64) -> Result<(), Unavailable> {
        let (header, next) = (self.control.header(), generation.wrapping_add(1));
        let noted = self.control.order(next);
        let mut turn = Turn(noted.load(Ordering::Acquire));
        if turn.is_before(next) {
            let released = header.released.load(Ordering::Acquire);
            if generation.wrapping_sub(released) >= self.control.buffers().len() as u64 {
                if self.current() != current {
                    return Ok(());
                }
                return Err(Unavailable::Blocked(self.why_blocked()));
            }
            // Nothing can have been opened between the look at `noted` and its replacement, so what
            // was free in between is free still.
            let Some(free) = self.find_free() else {
                return Ok(());
            };
            let ours = Turn::new(next, free);
            match noted.compare_exchange(turn.0, ours.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => turn = ours,
                Err(other) => {
                    header.contention.fetch_add(1, Ordering::Relaxed);
                    turn = Turn(other);
                }
            }
        }
        if turn.is(next) {
            self.open(turn, next);
            let _ = header.current.compare_exchange(
                current.0,
                turn.0,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
        Ok(())
    }

    /// Opens the buffer at `turn` for `generation`, unless that was done.
    pub(crate) fn open(&self, turn: Turn, generation: u64) {
        let Some(Buffer { reserving, .. }) = self.control.buffers().get(turn.buffer()) else {
            return;
        };
        // The greatest wins, so the thread that comes late changes nothing.
        if reserving.generation.load(Ordering::Acquire) < generation {
            reserving.generation.fetch_max(generation, Ordering::AcqRel);
        }
        let cursor = Cursor(reserving.cursor.load(Ordering::Acquire));
        // If this generation left it free, or a later one did, we come late.
        if cursor.is_left_before(generation) {
            let opened = Cursor::new(generation, SERVER, 0);
            let swapped = reserving.cursor.compare_exchange(
                cursor.0,
                opened.0,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if swapped.is_ok() {
                bitmap::remove(self.control.free(), turn.buffer());
            }
        }
    }

    /// A free buffer, the lowest if the hint is right: its bytes are still in the cache when the
    /// consumer keeps up.
    fn find_free(&self) -> Option<usize> {
        let is_free = |index: &usize| {
            self.control.buffers().get(*index).is_some_and(|buffer| {
                Cursor(buffer.reserving.cursor.load(Ordering::Acquire)).is_free()
            })
        };
        bitmap::members(self.control.free())
            .find(is_free)
            .or_else(|| (0..self.control.buffers().len()).find(is_free))
    }

    /// The number of the open batch; `None` if `current` is not its turn any more.
    pub(crate) fn generation(&self, current: Turn) -> Option<u64> {
        let buffer = self.control.buffers().get(current.buffer())?;
        let generation = buffer.reserving.generation.load(Ordering::Acquire);
        // The next batch may be about to be opened in the same buffer.
        [generation, generation.wrapping_sub(1)].into_iter().find(|open| current.is(*open))
    }

    /// The buffer of a batch that was opened; `None` if it is another's by now.
    pub(crate) fn batch(&self, generation: u64) -> Option<(usize, &Buffer)> {
        let turn = Turn(self.control.order(generation).load(Ordering::Acquire));
        let buffer = self.control.buffers().get(turn.buffer())?;
        turn.is(generation).then_some((turn.buffer(), buffer))
    }

    /// The batches up to `latest` that may not be complete, oldest first.
    pub(crate) fn incomplete(&self, latest: u64) -> impl Iterator<Item = (u64, usize, &Buffer)> {
        let taken = self.control.header().taken();
        // Never more than the buffers, whatever a peer wrote into `taken`.
        let oldest = latest.saturating_sub(self.control.buffers().len() as u64).max(taken);
        (oldest..latest).filter_map(|sequence| {
            let (index, buffer) = self.batch(sequence + 1)?;
            let published = buffer.done.published.load(Ordering::Acquire);
            (published <= sequence).then_some((sequence + 1, index, buffer))
        })
    }

    /// Takes one slot that was given up, of the oldest batch that has one.
    fn take_hole(&self) -> Option<Run<'_>> {
        let header = self.control.header();
        // First of all, and acquire: the holes that were made up to this number are seen below, and
        // so are the batches that they are in.
        let made = header.holes_made.load(Ordering::Acquire);
        for (generation, index, buffer) in self.incomplete(self.generation(self.current())?) {
            let mut search = buffer.done.search.load(Ordering::Acquire);
            let log = self.control.log(index);
            let hole = Entry::hole(generation);
            let ours = Entry::new(generation, RunState::Claimed, self.owner, true);
            for (slot, place) in log.iter().enumerate().skip(search as u32 as usize) {
                if place.load(Ordering::Relaxed) == hole.0
                    && place
                        .compare_exchange(hole.0, ours.0, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                {
                    // Not if holes were made meanwhile: one of them may be before this.
                    let _ = buffer.done.search.compare_exchange(
                        search,
                        search & !u64::from(u32::MAX) | (slot as u64 + 1),
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    let first = slot as u32;
                    return Some(Run {
                        producer: self,
                        generation,
                        buffer: index,
                        first,
                        len: 1,
                        fills_hole: true,
                    });
                }
            }
            let none = search & !u64::from(u32::MAX) | u64::from(self.size());
            while (search as u32) < self.size() {
                match buffer.done.search.compare_exchange(
                    search,
                    none,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                ) {
                    Err(now) if now >> 32 == search >> 32 => search = now,
                    _ => break,
                }
            }
        }
        header.holes_gone.fetch_max(made, Ordering::AcqRel);
        None
    }

    /// Lets all threads know that `buffer` has holes from `slot` on.
    pub(crate) fn announce_holes(&self, buffer: &Buffer, slot: u32) {
        let mut search = buffer.done.search.load(Ordering::Relaxed);
        loop {
            let set_back = (search >> 32).wrapping_add(1) << 32;
            let next = set_back | u64::from((search as u32).min(slot));
            match buffer.done.search.compare_exchange(
                search,
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => search = now,
            }
        }
        self.control.header().holes_made.fetch_add(1, Ordering::Release);
        self.announce_room();
    }

    /// Wakes the thread that waits for room.
    pub(crate) fn announce_room(&self) {
        self.control.header().space.notify();
        self.wakers.wake();
    }

    /// Calls `waker` once, when a reservation may succeed from then on.
    pub(crate) fn wake_on_room(&self, waker: &Waker) {
        self.wakers.add(waker);
    }

    /// Why there is nothing to reserve.
    fn why_blocked(&self) -> Blocked {
        let header = self.control.header();
        let latest = self.generation(self.current()).unwrap_or_default();
        let taken = header.taken();
        let untaken = latest.saturating_sub(taken);
        let ready = untaken > self.incomplete(latest).count() as u64;
        if header.leased.load(Ordering::Relaxed) > 0 && !ready {
            Blocked::Leased
        } else {
            Blocked::Capacity
        }
    }

    /// Waits until a reservation may succeed. See [`crate::Ring::wait_for_room`].
    pub(crate) fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Unavailable> {
        let header = self.control.header();
        let room = header.space.wait(deadline, self.nap, || {
            let current = self.current();
            if current.is_sealed() {
                return Some(Err(Unavailable::Closed));
            }
            self.has_room(current).then_some(Ok(()))
        });
        room.unwrap_or_else(|| Err(Unavailable::Blocked(self.why_blocked())))
    }

    fn has_room(&self, current: Turn) -> bool {
        let header = self.control.header();
        let made = header.holes_made.load(Ordering::Acquire);
        if made != header.holes_gone.load(Ordering::Acquire) {
            return true;
        }
        let Some(generation) = self.generation(current) else {
            return true;
        };
        let released = header.released.load(Ordering::Acquire);
        if generation.wrapping_sub(released) < self.control.buffers().len() as u64 {
            return true;
        }
        // The last buffer that was free may be the open one, or about to be.
        let next = generation.wrapping_add(1);
        let noted = Turn(self.control.order(next).load(Ordering::Acquire));
        let open = self.control.buffers().get(current.buffer()).is_some_and(|buffer| {
            let cursor = Cursor(buffer.reserving.cursor.load(Ordering::Acquire));
            cursor.end() < self.size()
        });
        open || noted.is(next) || self.current() != current
    }

    /// Reserves what the open batch has left, so that nothing more is to be had there.
    pub(crate) fn exhaust(&self, current: Turn) -> Option<Run<'_>> {
        match self.reserve_in(current, self.size()) {
            Look::Reserved(run) => Some(run),
            Look::Exhausted(_) | Look::Moved => None,
        }
    }

    /// Counts `len` slots whose run, a peer's, ends at `end`; whether they complete the batch. What
    /// the tally said of another run goes into the log first.
    pub(crate) fn count(&self, index: usize, tally: &AtomicU64, end: u32, len: u32) -> bool {
        let mut seen = Tally(tally.load(Ordering::Acquire));
        loop {
            self.record_counted(index, seen.last());
            let next = Tally::new(end, seen.count().saturating_add(len));
            match tally.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return next.count() == self.size(),
                Err(now) => seen = Tally(now),
            }
        }
    }

    /// Notes in the log that the run which ends at `end` is in the tally.
    pub(crate) fn record_counted(&self, index: usize, end: u32) {
        let last = (end as usize).checked_sub(1);
        if let Some(place) = last.and_then(|last| self.control.log(index).get(last)) {
            let entry = Entry(place.load(Ordering::Acquire));
            if entry.state() == RunState::Written {
                let counted = entry.with(RunState::Counted).0;
                let _ =
                    place.compare_exchange(entry.0, counted, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Hands a complete batch to the consumers.
    pub(crate) fn publish(&self, buffer: &Buffer, generation: u64, stamp: u64) {
        buffer.done.stamp.store(stamp, Ordering::Relaxed);
        buffer.done.published.store(generation, Ordering::Release);
        self.control.header().ready.notify();
    }
}

impl Run<'_> {
    /// Which buffer.
    #[inline]
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// The first slot.
    #[inline]
    pub fn first(&self) -> usize {
        self.first as usize
    }

    /// How many slots: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a run is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    fn end(&self) -> u32 {
        self.first + self.len
    }

    /// Declares the slots written. If they complete the batch, `stamp` is called and its result
    /// travels with the batch.
    ///
    /// # Errors
    ///
    /// [`Evicted`] if the run was taken back meanwhile, so that nothing was stored. That happens to
    /// other processes only.
    #[inline]
    pub fn try_commit(self, stamp: impl FnOnce() -> u64) -> Result<(), Evicted> {
        let run = std::mem::ManuallyDrop::new(self);
        let Some(buffer) = run.producer.control.buffers().get(run.buffer) else {
            return Err(Evicted);
        };
        if run.producer.owner == SERVER {
            run.commit_of_server(buffer, stamp);
            Ok(())
        } else {
            run.commit_of_peer(buffer, stamp)
        }
    }

    /// [`Run::try_commit`] for runs of this process's own ring, which are never taken back.
    #[inline]
    pub fn commit(self, stamp: impl FnOnce() -> u64) {
        let committed = self.try_commit(stamp);
        debug_assert!(committed.is_ok(), "the commits of a peer can fail");
    }

    #[inline]
    fn commit_of_server(&self, buffer: &Buffer, stamp: impl FnOnce() -> u64) {
        let before = Tally(buffer.tally.fetch_add(self.len.into(), Ordering::AcqRel));
        if before.count().wrapping_add(self.len) != self.producer.size() {
            return;
        }
        if before.last() == 0 {
            // All slots are committed and nothing is published: the buffer is ours alone here.
            self.producer.publish(buffer, self.generation, stamp());
            return;
        }
        // If the peer that was counted last died, `reclaim` can't tell whether it or we completed
        // the batch.
        let _publishing = self.producer.publishing.lock();
        if buffer.done.published.load(Ordering::Relaxed) < self.generation {
            self.producer.publish(buffer, self.generation, stamp());
        }
    }

    fn commit_of_peer(&self, buffer: &Buffer, stamp: impl FnOnce() -> u64) -> Result<(), Evicted> {
        let producer = self.producer;
        self.change(self.end() - 1, RunState::Written)?;
        let complete = producer.count(self.buffer, &buffer.tally, self.end(), self.len);
        producer.record_counted(self.buffer, self.end());
        if complete {
            producer.publish(buffer, self.generation, stamp());
        }
        Ok(())
    }

    /// Changes the entry of a slot of this run.
    fn change(&self, slot: u32, state: RunState) -> Result<(), Evicted> {
        let Self { generation, fills_hole, .. } = *self;
        let owner = self.producer.owner;
        let log = self.producer.control.log(self.buffer);
        let place = log.get(slot as usize).ok_or(Evicted)?;
        let claimed = Entry::new(generation, RunState::Claimed, owner, fills_hole);
        let changed =
            if state == RunState::Hole { Entry::hole(generation) } else { claimed.with(state) };
        let mut seen = Entry(place.load(Ordering::Relaxed));
        // An earlier generation's: no thread has recorded the run yet.
        while seen == claimed || (seen.is_before(generation) && !fills_hole) {
            match place.compare_exchange(seen.0, changed.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = Entry(now),
            }
        }
        Err(Evicted)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        #[cfg(any(test, loom))]
        if crate::death::is_dead() {
            return;
        }
        let producer = self.producer;
        if !producer.is_closed() {
            let aborted = &producer.control.header().aborted;
            aborted.fetch_add(self.len.into(), Ordering::Relaxed);
        }
        // From the first slot on: should this process die between two of them, the rest is still the
        // run that ends where it ended.
        for slot in self.first..self.end() {
            if self.change(slot, RunState::Hole).is_err() {
                return;
            }
        }
        if let Some(buffer) = producer.control.buffers().get(self.buffer) {
            producer.announce_holes(buffer, self.first);
        }
    }
}
