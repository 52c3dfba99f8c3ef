//! Ownership of slots: a lock-free ring of batches.
//!
//! A [`Ring`] shares out `buffers` buffers of `batch_size` slots each and holds no bytes itself.
//! Producers [`reserve`](Ring::try_reserve) a run of slots with one atomic operation, write their
//! bytes elsewhere, and [`commit`](Run::commit) with another. When all slots of a buffer are
//! committed it is *published*: one consumer [takes](Ring::try_take) it as a whole and later
//! [releases](Ring::release) it.
//!
//! Producers may be other processes; how they reserve and commit, and what is left of one that was
//! killed, is told in the header of `producer.rs`. This file is about what only the ring's own
//! process does: consuming, closing, settling, adding peers and reclaiming what they leave.
//!
//! # How a buffer lives
//!
//! ```text
//!   free ──the batch before is full──▶ open ──all slots reserved──▶ full ──all committed──▶ published
//!    ▲                                                                                        │ try_take
//!    └───────────────────────────────────── release ◀───────────────────────────────────── leased
//! ```
//!
//! Batches are numbered in the order of opening (`sequence`) and taken in that order, but a batch
//! may use any free buffer. A consumer that keeps one batch therefore costs one buffer and does not
//! stop the others from going round, as it would in a ring of fixed positions.
//!
//! A producer that finds the open batch exhausted opens the next one in a free buffer. When none is
//! free it is refused, and the thread that releases one notifies the waiting ones.
//!
//! A run that is dropped instead of committed turns its slots into *holes*. The next reservation
//! takes a hole before it takes a fresh slot, so the batch fills up all the same; and
//! [`settle`](Ring::settle) closes holes for which no reservation came.
//!
//! # Invariants
//!
//! 1. A slot belongs to at most one [`Run`] at a time, and only while its buffer is open or full.
//! 2. A buffer is published once all its slots are committed, so no run on it is alive.
//! 3. A published buffer is taken by exactly one [`Claim`], and until `release` of that claim it is
//!    neither free nor open.
//! 4. What a producer wrote before `commit` is visible to the consumer after `try_take`; what a
//!    consumer read before `release` is over before a later producer's `try_reserve` returns.
//! 5. While a [`Hold`] lives, no batch is taken and no row moved: committed slots that were not taken
//!    before are not written, and may be read.
//! 6. Once `current` is sealed it stays as it is, and no run on a fresh slot is handed out any more.
//!
//! # Limitations
//!
//! A thread that is suspended for ever between reserving and committing keeps its batch, and by
//! their order all later ones, from being taken. A peer is trusted not to write where it may not: it
//! can spoil the batches that are being filled, or stop the ring, though not make this process
//! access memory outside of it.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::bitmap;
use crate::control::{Buffer, Control, Cursor, Entry, HELD, RunState, Shape, Tally, Turn};
pub use crate::producer::{Evicted, Run};
use crate::producer::{Producer, SERVER};
use crate::region::Region;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// How often a consumer looks whether the last writers of a closed ring are done.
const SETTLE_POLL: Duration = Duration::from_millis(1);

/// Why a reservation or a batch is not to be had right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// It may come later.
    Blocked(Blocked),
    /// It will never come: the ring is closed and, for a consumer, drained.
    Closed,
}

/// What a blocked thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// Every buffer is in use, and complete batches wait for a consumer.
    Capacity,
    /// Every buffer is in use, and consumers keep the batches that they have taken.
    Leased,
    /// No batch is complete.
    Empty,
}

/// The right to a whole published batch, to be given back with [`Ring::release`].
#[derive(Debug)]
#[must_use = "a claim that is not released keeps its buffer for ever"]
pub struct Claim {
    buffer: usize,
    sequence: u64,
    stamp: u64,
    rows: usize,
}

/// A place in a ring: slot `slot` of buffer `buffer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotIndex {
    /// Index of the buffer.
    pub buffer: usize,
    /// Index of the slot in it.
    pub slot: usize,
}

/// How much of the ring is in which state. Exact when nothing moves, close to it otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Slots committed since the start.
    pub committed: u64,
    /// Committed slots of batches that are not complete.
    pub partial: u64,
    /// Committed slots that were not taken yet.
    pub stored: u64,
    /// Batches completed since the start.
    pub completed: u64,
    /// Complete batches taken since the start.
    pub taken: u64,
    /// Buffers that consumers hold.
    pub leased: usize,
    /// Buffers that no thread uses.
    pub free: usize,
    /// Times a producer that was about to open a batch found that another was faster.
    pub contention: u64,
    /// Slots whose writer gave up.
    pub aborted: u64,
}

/// What is left when a closed ring has settled.
#[derive(Debug)]
enum Settled {
    /// Writers may still be at work.
    NotYet,
    /// Rows of the last, incomplete batch, if it has any.
    Remainder(Option<Claim>),
}

/// What a consumer finds.
enum Next {
    Claim(Claim),
    /// No batch is complete.
    Incomplete,
    /// A thread [holds](Ring::hold) what there is.
    Held,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Ring {
    producer: Producer,
    /// Rows that did not fill a batch when the ring settled, and how many of them were taken.
    remainder_rows: AtomicU64,
    remainder_taken: AtomicU64,
    /// How many batches there are once the ring has settled; `u64::MAX` before.
    settled_batches: AtomicU64,
    /// Locked after the close only: it serialises consumers that settle.
    settled: Mutex<Settled>,
    /// The owner ids of peers, one bit each.
    owners: Mutex<Vec<u64>>,
}

impl Ring {
    /// A ring of `buffers` buffers with `batch_size` slots each, for threads of this process.
    ///
    /// # Panics
    ///
    /// When either is zero, or they are more than the ring can count or has memory for.
    pub fn new(buffers: usize, batch_size: usize) -> Self {
        assert!(buffers > 0 && batch_size > 0, "a ring needs buffers and slots");
        let shape = Shape::new(buffers, batch_size).expect("the ring can count its slots");
        let region = Region::own(shape.bytes()).expect("there is memory for the ring");
        // SAFETY: nothing else has this region, it has the size, and 0 is aligned.
        Self::start(unsafe { Control::create(&Arc::new(region), 0, shape) }, false)
    }

    /// Starts the ring whose state was just laid out.
    pub(crate) fn start(control: Control, with_peers: bool) -> Self {
        let ring = Self {
            producer: Producer::new(control, SERVER, with_peers),
            remainder_rows: AtomicU64::new(0),
            remainder_taken: AtomicU64::new(0),
            settled_batches: AtomicU64::new(u64::MAX),
            settled: Mutex::new(Settled::NotYet),
            owners: Mutex::new(Vec::new()),
        };
        let first = Turn::new(1, 0);
        (0..ring.buffers()).for_each(|index| bitmap::insert(ring.control().free(), index));
        ring.control().order(1).store(first.0, Ordering::Relaxed);
        ring.producer.open(first, 1);
        ring.control().header().current.store(first.0, Ordering::Release);
        ring
    }

    fn control(&self) -> &Control {
        self.producer.control()
    }

    /// Slots per batch.
    pub fn batch_size(&self) -> usize {
        self.producer.batch_size()
    }

    /// How many batches fit.
    pub fn buffers(&self) -> usize {
        self.control().shape().buffers
    }

    /// Reserves up to `len` slots of one batch, without waiting.
    ///
    /// The run is shorter than `len` where the batch ends or a hole is filled: ask again for the
    /// rest.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Blocked`] when every buffer is in use, [`Unavailable::Closed`] after [`Ring::close`].
    ///
    /// # Panics
    ///
    /// When `len` is zero.
    #[inline]
    pub fn try_reserve(&self, len: usize) -> Result<Run<'_>, Unavailable> {
        self.producer.try_reserve(len)
    }

    /// Waits until a reservation may succeed, without making one: the thread that waits holds nothing that
    /// others could want. Another producer may be faster, so try in a loop.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Blocked`] with the reason at the deadline, [`Unavailable::Closed`] after a close.
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Unavailable> {
        self.producer.wait_for_room(deadline)
    }

    /// Has `waker` called, once, when a reservation may succeed from then on or the ring is closed;
    /// perhaps for nothing. Register first, then try once more: what happened in between is seen by
    /// one of the two.
    ///
    /// Slots that a peer gives up by itself are announced to threads only, not to wakers: a peer
    /// can't call them.
    pub fn wake_on_room(&self, waker: &Waker) {
        self.producer.wake_on_room(waker);
    }

    /// Takes the next batch in order if it is complete, and nobody [holds](Ring::hold) it.
    pub fn try_take(&self) -> Option<Claim> {
        match self.next() {
            Next::Claim(claim) => Some(claim),
            Next::Incomplete | Next::Held => None,
        }
    }

    fn next(&self) -> Next {
        let taken = &self.control().header().taken;
        let mut turn = taken.load(Ordering::Acquire);
        loop {
            if turn & HELD != 0 {
                return Next::Held;
            }
            let next = turn + 1;
            // `order` may be that of an older batch. Acquire pairs with the release in `publish`.
            let complete = self
                .producer
                .batch(next)
                .filter(|(_, buffer)| buffer.done.published.load(Ordering::Acquire) == next);
            let Some((index, _)) = complete else {
                let now = taken.load(Ordering::Acquire);
                if now == turn {
                    return Next::Incomplete;
                }
                turn = now;
                continue;
            };
            // `taken` only grows: if it still is `turn`, batch `turn` is ours and was not before.
            match taken.compare_exchange(turn, next, Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => turn = now,
                Ok(_) => return Next::Claim(self.claim(index, turn, self.batch_size())),
            }
        }
    }

    fn claim(&self, buffer: usize, sequence: u64, rows: usize) -> Claim {
        self.control().header().leased.fetch_add(1, Ordering::Relaxed);
        let stamp = self.control().buffers()[buffer].done.stamp.load(Ordering::Relaxed);
        Claim { buffer, sequence, stamp, rows }
    }

    /// Takes the next batch in order, waiting for it until `deadline`.
    ///
    /// After a close, `move_row` is called to bring rows together (see [`Ring::settle`]), so that
    /// every complete batch can be taken.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Blocked`] at the deadline; [`Unavailable::Closed`] when no complete batch is left.
    pub fn take(
        &self,
        deadline: Option<Instant>,
        mut move_row: impl FnMut(SlotIndex, SlotIndex),
    ) -> Result<Claim, Unavailable> {
        loop {
            // The last writers of a closed ring announce nothing, so look again now and then.
            let closing = self.is_closed();
            let until = if closing { settle_poll(deadline) } else { deadline };
            let outcome = self.control().header().ready.wait(until, self.producer.nap(), || {
                let closed = self.is_closed();
                let settled = closed && self.settle(&mut move_row);
                match self.next() {
                    Next::Claim(claim) => Some(Some(Ok(claim))),
                    Next::Incomplete if settled => Some(Some(Err(Unavailable::Closed))),
                    // Closed while we were parked: go round and wait in short steps from here.
                    Next::Incomplete | Next::Held if closed && !closing => Some(None),
                    Next::Incomplete | Next::Held => None,
                }
            });
            match outcome {
                Some(Some(taken)) => return taken,
                Some(None) => {}
                None if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    return Err(Unavailable::Blocked(Blocked::Empty));
                }
                None => {}
            }
        }
    }

    /// Gives a batch back to the producers.
    pub fn release(&self, claim: Claim) {
        let header = self.control().header();
        let Buffer { reserving, tally, .. } = &self.control().buffers()[claim.buffer];
        header.leased.fetch_sub(1, Ordering::Relaxed);
        tally.store(0, Ordering::Relaxed);
        let left_by = reserving.generation.load(Ordering::Relaxed);
        // Release: the thread that opens the buffer finds it reset, and us done with its bytes.
        reserving.cursor.store(Cursor::free(left_by).0, Ordering::Release);
        bitmap::insert(self.control().free(), claim.buffer);
        // Release: the thread that counts on a free buffer finds one.
        header.released.fetch_add(1, Ordering::Release);
        self.producer.announce_room();
    }

    /// Ends intake: from now on reservations are refused. Runs that are alive may still commit.
    ///
    /// Closing again does nothing.
    pub fn close(&self) {
        let header = self.control().header();
        // Held until the ring is sealed, then given up like any other run.
        let mut rests = Vec::new();
        loop {
            let current = self.producer.current();
            if current.is_sealed() {
                return;
            }
            // An exhausted batch gives out no fresh slots, and none can be opened after it once
            // `current` is sealed.
            rests.extend(self.producer.exhaust(current));
            let sealed = current.sealed().0;
            let swapped = header.current.compare_exchange(
                current.0,
                sealed,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if swapped.is_ok() {
                break;
            }
        }
        drop(rests);
        self.producer.announce_room();
        header.ready.notify();
    }

    /// Whether [`Ring::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.producer.is_closed()
    }

    /// How many batches were opened.
    fn opened(&self) -> u64 {
        let settled = self.settled_batches.load(Ordering::Acquire);
        if settled != u64::MAX {
            return settled;
        }
        loop {
            let current = self.producer.current();
            if let Some(generation) = self.producer.generation(current) {
                return generation;
            }
            // A peer that wrote nonsense there must not keep us here.
            if self.producer.current() == current {
                return self.control().header().taken();
            }
        }
    }

    /// Brings the rows of a closed ring together once its last writers are done, and tells whether
    /// they are.
    ///
    /// Rows move from the end of the order into the holes, by `move_row(from, to)`, so that all
    /// batches but the last become complete. The rest is what [`Ring::take_remainder`] returns.
    ///
    /// # Panics
    ///
    /// When the ring is not closed.
    pub fn settle(&self, mut move_row: impl FnMut(SlotIndex, SlotIndex)) -> bool {
        assert!(self.is_closed(), "only a closed ring settles");
        let mut settled = self.settled.lock();
        if matches!(*settled, Settled::Remainder(_)) {
            return true;
        }
        let unpublished: Vec<(u64, usize)> = self
            .producer
            .incomplete(self.opened())
            .map(|(generation, index, _)| (generation, index))
            .collect();
        // Read once: a batch may become full between two looks.
        let counts: Vec<u32> =
            unpublished.iter().map(|(_, index)| self.committed(*index)).collect();
        // A batch whose slots are all committed belongs to its last writer until it is published.
        if counts.iter().any(|count| *count as usize == self.batch_size()) {
            return false;
        }
        let rows: u64 = counts.into_iter().map(u64::from).sum();
        let holes: Vec<SlotIndex> = unpublished
            .iter()
            .flat_map(|(generation, index)| self.take_holes(*generation, *index))
            .collect();
        if rows as usize + holes.len() != unpublished.len() * self.batch_size() {
            for (generation, index) in unpublished {
                self.give_back_holes(generation, index, &holes);
            }
            return false;
        }
        // By invariant 6 no run is left and none will come: every slot is committed or a hole of
        // ours, and no thread is about to publish, so moving rows races with no thread.
        let left = Self::bring_together(&unpublished, &holes, self.batch_size(), &mut move_row);
        *settled = Settled::Remainder(self.renumber(&unpublished, left));
        true
    }

    fn committed(&self, buffer: usize) -> u32 {
        Tally(self.control().buffers()[buffer].tally.load(Ordering::Acquire)).count()
    }

    /// Takes all holes of a batch.
    fn take_holes(&self, generation: u64, index: usize) -> impl Iterator<Item = SlotIndex> {
        let (hole, ours) = (Entry::hole(generation), Self::held_hole(generation));
        let log = self.control().log(index).iter().enumerate();
        log.filter(move |(_, place)| {
            place.load(Ordering::Relaxed) == hole.0
                && place
                    .compare_exchange(hole.0, ours.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })
        .map(move |(slot, _)| SlotIndex { buffer: index, slot })
    }

    /// What the log says of a hole that `settle` has.
    fn held_hole(generation: u64) -> Entry {
        Entry::new(generation, RunState::Claimed, SERVER, true)
    }

    fn give_back_holes(&self, generation: u64, index: usize, holes: &[SlotIndex]) {
        let log = self.control().log(index);
        let ours = holes.iter().filter(|place| place.buffer == index);
        for place in ours {
            log[place.slot].store(Entry::hole(generation).0, Ordering::Release);
        }
        self.producer.announce_holes(&self.control().buffers()[index], 0);
    }

    /// Moves rows so that those of `unpublished` fill its batches from the front; how many they are.
    fn bring_together(
        unpublished: &[(u64, usize)],
        holes: &[SlotIndex],
        batch_size: usize,
        move_row: &mut impl FnMut(SlotIndex, SlotIndex),
    ) -> usize {
        let places = unpublished.iter().flat_map(|(_, buffer)| {
            (0..batch_size).map(|slot| SlotIndex { buffer: *buffer, slot })
        });
        let holes: HashSet<SlotIndex> = holes.iter().copied().collect();
        let rows = unpublished.len() * batch_size - holes.len();
        // The first `rows` places are to be filled: each hole there takes a row from behind them.
        let gaps = places.clone().take(rows).filter(|place| holes.contains(place));
        let surplus = places.skip(rows).filter(|place| !holes.contains(place));
        for (to, from) in gaps.zip(surplus) {
            move_row(from, to);
        }
        rows
    }

    /// Publishes the batches that `rows` fill, and closes the gaps in the numbering that empty ones
    /// leave, so that complete batches behind them can be taken. Returns what does not fill a batch.
    fn renumber(&self, unpublished: &[(u64, usize)], rows: usize) -> Option<Claim> {
        let buffers = self.control().buffers();
        let opened = self.opened();
        let (filled, rest) = unpublished.split_at(rows / self.batch_size());
        for (generation, index) in filled {
            self.producer.publish(&buffers[*index], *generation, 0);
        }
        let Some((first, partial)) = rest.first().copied() else {
            self.settled_batches.store(opened, Ordering::Release);
            return None;
        };
        // Consumers can't pass batch `first`, so the numbers from there on are ours to change. What
        // follows it and is not in `rest` was published before and moves up.
        let mut next = first;
        for old in first..=opened {
            let Some((index, buffer)) = self.producer.batch(old) else {
                continue;
            };
            if rest.iter().all(|(_, empty)| *empty != index) {
                self.control().order(next).store(Turn::new(next, index).0, Ordering::Release);
                buffer.done.published.store(next, Ordering::Release);
                next += 1;
            }
        }
        self.settled_batches.store(next - 1, Ordering::Release);
        self.control().header().ready.notify();
        let left = rows % self.batch_size();
        self.remainder_rows.store(left as u64, Ordering::Relaxed);
        let sequence = next - 1;
        (left > 0).then_some(Claim { buffer: partial, sequence, stamp: 0, rows: left })
    }

    /// The rows of a settled ring that do not fill a batch; `None` when there are none, when the
    /// ring has not settled, and from the second call on.
    pub fn take_remainder(&self) -> Option<Claim> {
        match &mut *self.settled.lock() {
            Settled::NotYet => None,
            Settled::Remainder(claim) => {
                let claim = claim.take()?;
                self.remainder_taken.store(claim.rows as u64, Ordering::Relaxed);
                self.control().header().leased.fetch_add(1, Ordering::Relaxed);
                Some(claim)
            }
        }
    }

    /// Adds a peer and returns its owner id, a free owner id from 1 on; `None` when all are in use.
    pub fn add_peer(&self) -> Option<u16> {
        let mut owners = self.owners.lock();
        let id = (1..=u16::MAX).find(|id| {
            let word = owners.get(usize::from(id / 64)).copied().unwrap_or_default();
            word >> (id % 64) & 1 == 0
        })?;
        let word = usize::from(id / 64);
        if owners.len() <= word {
            owners.resize(word + 1, 0);
        }
        owners[word] |= 1 << (id % 64);
        Some(id)
    }

    /// Cleans up after a peer whose process is gone, and frees its owner id: what it had reserved
    /// and not committed becomes holes, and what it had begun to commit is stored. Returns how many
    /// slots were given back.
    ///
    /// # Panics
    ///
    /// For owner 0, which is this process.
    pub fn reclaim(&self, owner: u16) -> u64 {
        assert!(owner != SERVER, "this process is alive");
        let publishing = self.producer.publishing.lock();
        let mut given_back = 0;
        for (generation, index, buffer) in self.producer.incomplete(self.opened()) {
            given_back += self.reclaim_batch(owner, generation, index, buffer);
        }
        drop(publishing);
        // It may have been about to announce something.
        let header = self.control().header();
        header.holes_made.fetch_add(1, Ordering::Release);
        header.space.rouse();
        header.ready.rouse();
        self.producer.announce_room();
        let mut owners = self.owners.lock();
        if let Some(word) = owners.get_mut(usize::from(owner / 64)) {
            *word &= !(1 << (owner % 64));
        }
        given_back
    }

    /// Ends all runs of a dead peer in one batch.
    fn reclaim_batch(&self, owner: u16, generation: u64, index: usize, buffer: &Buffer) -> u64 {
        let cursor = Cursor(buffer.reserving.cursor.load(Ordering::Acquire));
        if !cursor.is(generation) {
            return 0;
        }
        // If another run replaces this one meanwhile, then the thread that reserved it recorded this.
        self.producer.record(index, buffer, generation, cursor);
        let log = self.control().log(index);
        let (mut after_last, mut given_back) = (0, 0);
        for (slot, place) in log.iter().enumerate() {
            let entry = Entry(place.load(Ordering::Acquire));
            if !entry.is(generation) {
                continue;
            }
            let first = if entry.fills_hole() { slot } else { after_last };
            after_last = slot + 1;
            if entry.owner() != owner {
                continue;
            }
            match entry.state() {
                RunState::Hole | RunState::Counted => {}
                RunState::Claimed => {
                    let hole = Entry::hole(generation).0;
                    for place in &log[first..=slot] {
                        place.store(hole, Ordering::Release);
                    }
                    given_back += (slot + 1 - first) as u64;
                }
                RunState::Written => {
                    let end = slot as u32 + 1;
                    let counted = Tally(buffer.tally.load(Ordering::Acquire)).last() == end;
                    if !counted {
                        let len = (slot + 1 - first) as u32;
                        self.producer.count(index, &buffer.tally, end, len);
                    }
                    self.producer.record_counted(index, end);
                }
            }
        }
        self.publish_for(owner, generation, index, buffer);
        // Also for holes that it made and did not announce.
        self.producer.announce_holes(buffer, 0);
        given_back
    }

    /// Publishes a batch that a dead peer completed, unless another thread did. The caller has the lock
    /// under which this process's own threads complete such batches.
    fn publish_for(&self, owner: u16, generation: u64, index: usize, buffer: &Buffer) {
        let tally = Tally(buffer.tally.load(Ordering::Acquire));
        let last = (tally.last() as usize).checked_sub(1);
        let by = last.and_then(|last| self.control().log(index).get(last));
        let by = by.map(|place| Entry(place.load(Ordering::Acquire)));
        // Had another peer completed it, the tally would show that one.
        let theirs = by.is_some_and(|entry| entry.is(generation) && entry.owner() == owner);
        let complete = tally.count() as usize == self.batch_size();
        if complete && theirs && buffer.done.published.load(Ordering::Acquire) < generation {
            self.producer.publish(buffer, generation, 0);
        }
    }

    /// Keeps everything that was not taken yet from being taken, for as long as the [`Hold`] lives.
    /// Producers go on.
    pub fn hold(&self) -> Hold<'_> {
        // This lock keeps rows from being moved, and others from holding.
        let settled = self.settled.lock();
        self.control().header().taken.fetch_or(HELD, Ordering::AcqRel);
        Hold { ring: self, settled }
    }

    /// The same ring as another process sees it.
    #[cfg(any(test, loom))]
    pub fn peer(&self, owner: u16) -> Peer {
        Peer(Producer::new(self.control().again(), owner, false))
    }

    /// A look at the states of all slots.
    pub fn counts(&self) -> Counts {
        let header = self.control().header();
        let size = self.batch_size() as u64;
        let taken = header.taken();
        let opened = self.opened();
        let (mut incomplete, mut filling) = (0, 0);
        for (_, index, _) in self.producer.incomplete(opened) {
            incomplete += 1;
            filling += u64::from(self.committed(index));
        }
        let completed = opened.saturating_sub(incomplete).max(taken);
        let remainder = self.remainder_rows.load(Ordering::Relaxed);
        let committed = completed * size + filling + remainder;
        // Settling and taking may both have happened since `remainder` was read.
        let left = remainder.saturating_sub(self.remainder_taken.load(Ordering::Relaxed));
        let partial = filling + left;
        let is_free =
            |buffer: &&Buffer| Cursor(buffer.reserving.cursor.load(Ordering::Relaxed)).is_free();
        Counts {
            committed,
            partial,
            stored: completed.saturating_sub(taken) * size + partial,
            completed,
            taken,
            leased: header.leased.load(Ordering::Relaxed) as usize,
            free: self.control().buffers().iter().filter(is_free).count(),
            contention: header.contention.load(Ordering::Relaxed),
            aborted: header.aborted.load(Ordering::Relaxed),
        }
    }
}

/// Keeps what was not taken as it is, to be read; see [`Ring::hold`].
#[derive(Debug)]
pub struct Hold<'a> {
    ring: &'a Ring,
    settled: MutexGuard<'a, Settled>,
}

/// Committed slots of one buffer that were not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Index of the buffer.
    pub buffer: usize,
    /// The slots.
    pub slots: Vec<Range<usize>>,
}

/// A thread is writing into a batch, and which of its slots are committed is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

impl Hold<'_> {
    /// What was not taken, in the order of the batches. They can be read until the hold ends.
    ///
    /// # Errors
    ///
    /// [`Busy`] while a run is alive in a batch that is not complete.
    pub fn unread(&self) -> Result<Vec<Unread>, Busy> {
        let (ring, size) = (self.ring, self.ring.batch_size());
        let (opened, taken) = (ring.opened(), ring.control().header().taken());
        // Never more than the buffers, whatever a peer wrote into `taken`.
        let oldest = opened.saturating_sub(ring.buffers() as u64).max(taken);
        let mut all = Vec::new();
        for generation in oldest + 1..=opened {
            let Some((buffer, state)) = ring.producer.batch(generation) else { continue };
            let complete = state.done.published.load(Ordering::Acquire) == generation;
            let slots = if complete {
                vec![Range { start: 0, end: size }]
            } else {
                self.committed(generation, buffer)?
            };
            all.push(Unread { buffer, slots });
        }
        if let Settled::Remainder(Some(claim)) = &*self.settled {
            all.push(Unread {
                buffer: claim.buffer,
                slots: vec![Range { start: 0, end: claim.rows }],
            });
        }
        Ok(all)
    }

    /// The committed slots of an incomplete batch, if no run on it is alive.
    ///
    /// The order of the reads tells: a slot that was committed when the tally was read is no hole and
    /// lies before the cursor. So if there are just as many slots of which both is true afterwards, they
    /// are the same ones.
    fn committed(&self, generation: u64, index: usize) -> Result<Vec<Range<usize>>, Busy> {
        let committed = self.ring.committed(index) as usize;
        let hole = Entry::hole(generation);
        let log = self.ring.control().log(index).iter().enumerate();
        let holes: Vec<usize> = log
            .filter(|(_, place)| place.load(Ordering::Acquire) == hole.0)
            .map(|(slot, _)| slot)
            .collect();
        let reserving = &self.ring.control().buffers()[index].reserving;
        let cursor = Cursor(reserving.cursor.load(Ordering::Acquire));
        let end = if cursor.is(generation) { cursor.end() as usize } else { 0 };
        let (mut slots, mut start, mut count) = (Vec::new(), 0, 0);
        for next in holes.into_iter().filter(|hole| *hole < end).chain([end]) {
            if start < next {
                slots.push(start..next);
                count += next - start;
            }
            start = next + 1;
        }
        if count == committed { Ok(slots) } else { Err(Busy) }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let header = self.ring.control().header();
        // Release: who takes a batch from now on finds us done with its bytes.
        header.taken.fetch_and(!HELD, Ordering::AcqRel);
        header.ready.notify();
    }
}

/// What another process has of a ring: the right to reserve under its own owner id. For tests, which
/// play processes as threads.
#[cfg(any(test, loom))]
#[derive(Debug)]
pub struct Peer(Producer);

#[cfg(any(test, loom))]
impl Peer {
    /// As [`Ring::try_reserve`].
    pub fn try_reserve(&self, len: usize) -> Result<Run<'_>, Unavailable> {
        self.0.try_reserve(len)
    }

    /// As [`Ring::wait_for_room`].
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Unavailable> {
        self.0.wait_for_room(deadline)
    }
}

impl Claim {
    /// Which buffer.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// Position of this batch in the order of opening, from 0.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What the completing producer's `stamp` returned; 0 if `settle` brought rows together here.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Slots that hold data: the batch size, or fewer in the remainder of a closed ring.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

fn settle_poll(deadline: Option<Instant>) -> Option<Instant> {
    let next = Instant::now() + SETTLE_POLL;
    Some(deadline.map_or(next, |deadline| deadline.min(next)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_comes_generations_late_to_open_a_buffer_changes_nothing() {
        let ring = Ring::new(1, 1);
        for _ in 0..3 {
            ring.try_reserve(1).unwrap().commit(|| 1);
            let claim = ring.try_take().unwrap();
            ring.release(claim);
        }
        // The buffer is free, and no thread has asked for the next batch.
        for late in 1..=3 {
            ring.producer.open(Turn::new(late, 0), late);
        }
        ring.try_reserve(1).unwrap().commit(|| 1);
        assert!(ring.try_take().is_some_and(|claim| claim.sequence() == 3));
    }
}
