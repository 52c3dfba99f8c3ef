//! Who may touch which slot: a lock-free ring of batches.
//!
//! A [`Ring`] shares out `buffers` buffers of `batch_size` slots each and holds no bytes itself.
//! Producers [`reserve`](Ring::try_reserve) a run of slots with one atomic add, write their bytes
//! elsewhere, and [`commit`](Run::commit) with another. When all slots of a buffer are committed it
//! is *published*: one consumer [takes](Ring::try_take) it as a whole and later
//! [releases](Ring::release) it.
//!
//! # How a buffer lives
//!
//! ```text
//!   free ──open_next──▶ open ──all slots reserved──▶ full ──all committed──▶ published
//!    ▲                                                                          │ try_take
//!    └──────────────────────────────── release ◀──────────────────────────── leased
//! ```
//!
//! Batches are numbered in the order of opening (`sequence`) and taken in that order, but a batch
//! may use any free buffer. A consumer that keeps one batch therefore costs one buffer and does not
//! stop the others from going round, as it would in a ring of fixed positions.
//!
//! The thread whose reservation covers a buffer's last slot opens the next one. When none is free,
//! `open` becomes `NONE` and the thread that releases a buffer opens it.
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
//! 5. Once `open` is `SEALED` it stays so, and no run on a fresh slot is handed out any more.
//!
//! # Limitations
//!
//! Threads of one process only. A thread that is suspended for ever between reserving and
//! committing keeps its batch, and by their order all later ones, from being taken.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::bitmap::AtomicBitmap;
use crate::event::Event;
use crate::padded::Padded;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, pause};

/// `open` when every buffer is in use.
const NONE: usize = usize::MAX;
/// `open` while a thread that found it `NONE` opens a buffer.
const OPENING: usize = usize::MAX - 1;
/// `open` after `close`.
const SEALED: usize = usize::MAX - 2;

/// How often a consumer looks whether the last writers of a closed ring are done.
const SETTLE_POLL: Duration = Duration::from_millis(1);

/// Why a reservation or a batch is not to be had right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
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

/// Cursors of one buffer, in words that this file uses.
#[derive(Debug)]
struct Buffer {
    /// Slots reserved so far. Overshoots `batch_size` when producers race for the last ones; a value
    /// of at least `batch_size` means that nothing is to be had here.
    reserved: Padded<AtomicU64>,
    /// Slots committed so far.
    committed: Padded<AtomicU64>,
    /// `sequence + 1` of the batch that was last completed here.
    published: AtomicU64,
    /// Number of the batch that was last opened here.
    sequence: AtomicU64,
    /// What the completing producer's `stamp` returned.
    stamp: AtomicU64,
}

/// The right to write `len` slots from `first` of one buffer. Dropping it leaves holes.
#[derive(Debug)]
#[must_use = "a run that is dropped leaves its slots to others"]
pub struct Run<'a> {
    ring: &'a Ring,
    buffer: usize,
    first: usize,
    len: usize,
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
pub struct Place {
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
    /// Committed slots that nobody took yet.
    pub stored: u64,
    /// Batches completed since the start.
    pub completed: u64,
    /// Complete batches taken since the start.
    pub taken: u64,
    /// Buffers that consumers hold.
    pub leased: usize,
    /// Buffers that nobody uses.
    pub free: usize,
    /// Times a producer had to look again because another was opening a buffer.
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

/// See the [module](self).
#[derive(Debug)]
pub struct Ring {
    batch_size: usize,
    buffers: Box<[Buffer]>,
    /// The buffer to reserve from, or `NONE`, `OPENING`, `SEALED`.
    open: Padded<AtomicUsize>,
    /// How many batches were opened; written only by the thread that has the right to open.
    opened: AtomicU64,
    /// `order[sequence % buffers]` is the buffer of that batch.
    order: Box<[AtomicUsize]>,
    /// How many batches were taken.
    taken: Padded<AtomicU64>,
    completed: AtomicU64,
    leased: AtomicUsize,
    free: AtomicBitmap,
    /// Slots whose writer gave up, as `buffer * batch_size + slot`.
    holes: AtomicBitmap,
    /// At least the number of holes, so that the common case reads one shared word.
    hole_count: Padded<AtomicUsize>,
    contention: AtomicU64,
    aborted: AtomicU64,
    /// Rows that did not fill a batch when the ring settled, and how many of them were taken.
    remainder_rows: AtomicU64,
    remainder_taken: AtomicU64,
    /// Locked after the close only: it serialises consumers that settle.
    settled: Mutex<Settled>,
    space: Event,
    ready: Event,
}

impl Ring {
    /// A ring of `buffers` buffers with `batch_size` slots each.
    ///
    /// # Panics
    ///
    /// When either is zero, or their product is past what a bitmap can index.
    pub fn new(buffers: usize, batch_size: usize) -> Self {
        assert!(buffers > 0 && batch_size > 0, "a ring needs buffers and slots");
        let slots = buffers.checked_mul(batch_size).filter(|slots| *slots < SEALED);
        let slots = slots.expect("the slots of a ring fit into usize");
        let ring = Self {
            batch_size,
            buffers: (0..buffers)
                .map(|_| Buffer {
                    reserved: Padded::new(AtomicU64::new(batch_size as u64)),
                    committed: Padded::new(AtomicU64::new(0)),
                    published: AtomicU64::new(0),
                    sequence: AtomicU64::new(0),
                    stamp: AtomicU64::new(0),
                })
                .collect(),
            open: Padded::new(AtomicUsize::new(OPENING)),
            opened: AtomicU64::new(0),
            order: (0..buffers).map(|_| AtomicUsize::new(0)).collect(),
            taken: Padded::new(AtomicU64::new(0)),
            completed: AtomicU64::new(0),
            leased: AtomicUsize::new(0),
            free: AtomicBitmap::new(buffers),
            holes: AtomicBitmap::new(slots),
            hole_count: Padded::new(AtomicUsize::new(0)),
            contention: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
            remainder_rows: AtomicU64::new(0),
            remainder_taken: AtomicU64::new(0),
            settled: Mutex::new(Settled::NotYet),
            space: Event::default(),
            ready: Event::default(),
        };
        (0..buffers).for_each(|buffer| ring.free.insert(buffer));
        ring.open_next();
        ring
    }

    /// Slots per batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// How many batches fit.
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// Reserves up to `len` slots of one batch, without waiting.
    ///
    /// The run is shorter than `len` where the batch ends or a hole is filled: ask again for the
    /// rest.
    ///
    /// # Errors
    ///
    /// [`Refusal::Blocked`] when every buffer is in use, [`Refusal::Closed`] after [`Ring::close`].
    ///
    /// # Panics
    ///
    /// When `len` is zero.
    pub fn try_reserve(&self, len: usize) -> Result<Run<'_>, Refusal> {
        assert!(len > 0, "a run has at least one slot");
        // More than a batch is never given, and an unbounded add could wrap the cursor round.
        let wanted = len.min(self.batch_size);
        let mut spins = 0;
        loop {
            let open = self.open.load(Ordering::Acquire);
            if open == SEALED {
                return Err(Refusal::Closed);
            }
            if self.hole_count.load(Ordering::Relaxed) > 0
                && let Some(run) = self.take_hole()
            {
                return Ok(run);
            }
            if open == NONE {
                return Err(Refusal::Blocked(self.producer_block()));
            }
            if let Some(buffer) = self.buffers.get(open)
                && let Some(run) = self.reserve_in(buffer, open, wanted)
            {
                return Ok(run);
            }
            // Another thread is about to open the next buffer.
            self.contention.fetch_add(1, Ordering::Relaxed);
            pause(&mut spins);
        }
    }

    fn reserve_in(&self, buffer: &Buffer, index: usize, len: usize) -> Option<Run<'_>> {
        let size = self.batch_size as u64;
        // A look first: adding to an exhausted buffer would only steal its cache line.
        if buffer.reserved.load(Ordering::Relaxed) >= size {
            return None;
        }
        // Acquire pairs with the release in `open_next`, so this buffer's cursors are reset and the
        // last consumer is done with its bytes, even if `open` was read long ago and the buffer has
        // gone round since.
        let first = buffer.reserved.fetch_add(len as u64, Ordering::AcqRel);
        if first >= size {
            return None;
        }
        let end = size.min(first + len as u64);
        if end == size {
            // Only the run that covers the last slot comes here, so the right to open is ours.
            self.open_next();
        }
        Some(Run { ring: self, buffer: index, first: first as usize, len: (end - first) as usize })
    }

    /// Opens a free buffer, or leaves that to the next `release`. The caller has the right to open:
    /// it exhausted the open buffer, or changed `open` from `NONE` to `OPENING`.
    fn open_next(&self) {
        loop {
            if let Some(index) = self.free.take_lowest() {
                let buffer = &self.buffers[index];
                let sequence = self.opened.load(Ordering::Relaxed);
                self.opened.store(sequence + 1, Ordering::Relaxed);
                buffer.committed.store(0, Ordering::Relaxed);
                buffer.sequence.store(sequence, Ordering::Relaxed);
                let turn = self.turn(sequence);
                self.order[turn].store(index, Ordering::Relaxed);
                // `open` first: from the reset of `reserved` on, another thread may exhaust this
                // buffer and then write `open` itself, which must not be overwritten here.
                self.open.store(index, Ordering::Release);
                // A store would do, but loom does not order it after the failed adds of late
                // producers, and once per batch the difference can't be measured.
                buffer.reserved.swap(0, Ordering::AcqRel);
                self.space.notify();
                return;
            }
            self.open.store(NONE, Ordering::Release);
            // Pairs with the fence in `release`: either that thread sees `NONE`, or we see its buffer.
            fence(Ordering::SeqCst);
            if self.free.is_empty() || !self.claim_opening() {
                return;
            }
        }
    }

    fn claim_opening(&self) -> bool {
        self.open.compare_exchange(NONE, OPENING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn take_hole(&self) -> Option<Run<'_>> {
        let place = self.pop_hole()?;
        Some(Run { ring: self, buffer: place.buffer, first: place.slot, len: 1 })
    }

    fn pop_hole(&self) -> Option<Place> {
        let hole = self.holes.take_lowest()?;
        self.hole_count.fetch_sub(1, Ordering::Relaxed);
        Some(Place { buffer: hole / self.batch_size, slot: hole % self.batch_size })
    }

    /// Why `open` is `NONE`.
    fn producer_block(&self) -> Blocked {
        let ready = self.completed.load(Ordering::Relaxed) > self.taken.load(Ordering::Relaxed);
        if self.leased.load(Ordering::Relaxed) > 0 && !ready {
            Blocked::Leased
        } else {
            Blocked::Capacity
        }
    }

    /// Waits until a reservation may succeed, without making one: whoever waits holds nothing that
    /// others could want. Another producer may be faster, so try in a loop.
    ///
    /// # Errors
    ///
    /// [`Refusal::Blocked`] with the reason at the deadline, [`Refusal::Closed`] after a close.
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Refusal> {
        let room = self.space.wait(deadline, || match self.open.load(Ordering::Acquire) {
            SEALED => Some(Err(Refusal::Closed)),
            NONE if self.holes.is_empty() => None,
            _ => Some(Ok(())),
        });
        room.unwrap_or_else(|| Err(Refusal::Blocked(self.producer_block())))
    }

    /// Has `waker` called once when a reservation may succeed, or the ring was closed: for an event
    /// loop, which can't park here. Try again after this call, before sleeping; it may also be called
    /// for nothing.
    pub fn wake_on_room(&self, waker: &std::task::Waker) {
        self.space.register(waker);
    }

    /// Takes the next batch in order if it is complete.
    pub fn try_take(&self) -> Option<Claim> {
        let mut turn = self.taken.load(Ordering::Acquire);
        loop {
            let index = self.order[self.turn(turn)].load(Ordering::Acquire);
            let buffer = &self.buffers[index];
            // `order` may be that of an older batch: then `published` is another number. Acquire
            // pairs with the release in `publish`.
            if buffer.published.load(Ordering::Acquire) != turn + 1 {
                let now = self.taken.load(Ordering::Acquire);
                if now == turn {
                    return None;
                }
                turn = now;
                continue;
            }
            // `taken` only grows: if it still is `turn`, batch `turn` is ours and was not before.
            let next = turn + 1;
            match self.taken.compare_exchange(turn, next, Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => turn = now,
                Ok(_) => return Some(self.claim(index, turn, self.batch_size)),
            }
        }
    }

    fn claim(&self, buffer: usize, sequence: u64, rows: usize) -> Claim {
        self.leased.fetch_add(1, Ordering::Relaxed);
        let stamp = self.buffers[buffer].stamp.load(Ordering::Relaxed);
        Claim { buffer, sequence, stamp, rows }
    }

    /// Takes the next batch in order, waiting for it until `deadline`.
    ///
    /// After a close, `move_row` is called to bring rows together (see [`Ring::settle`]), so that
    /// every complete batch can be taken.
    ///
    /// # Errors
    ///
    /// [`Refusal::Blocked`] at the deadline; [`Refusal::Closed`] when no complete batch is left.
    pub fn take(
        &self,
        deadline: Option<Instant>,
        mut move_row: impl FnMut(Place, Place),
    ) -> Result<Claim, Refusal> {
        loop {
            // The last writers of a closed ring announce nothing, so look again now and then.
            let closing = self.is_closed();
            let until = if closing { settle_poll(deadline) } else { deadline };
            let outcome = self.ready.wait(until, || {
                let closed = self.is_closed();
                let settled = closed && self.settle(&mut move_row);
                match self.try_take() {
                    Some(claim) => Some(Some(Ok(claim))),
                    None if settled => Some(Some(Err(Refusal::Closed))),
                    // Closed while we were parked: go round and wait in short steps from here.
                    None if closed && !closing => Some(None),
                    None => None,
                }
            });
            match outcome {
                Some(Some(taken)) => return taken,
                Some(None) => {}
                None if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    return Err(Refusal::Blocked(Blocked::Empty));
                }
                None => {}
            }
        }
    }

    /// Gives a batch back to the producers.
    pub fn release(&self, claim: Claim) {
        self.leased.fetch_sub(1, Ordering::Relaxed);
        self.free.insert(claim.buffer);
        // Pairs with the fence in `open_next`.
        fence(Ordering::SeqCst);
        if self.open.load(Ordering::Acquire) == NONE && self.claim_opening() {
            self.open_next();
        }
    }

    /// Ends intake: from now on reservations are refused. Runs that are alive may still commit.
    ///
    /// Closing again does nothing.
    pub fn close(&self) {
        let mut spins = 0;
        loop {
            let open = self.open.load(Ordering::Acquire);
            if open == SEALED {
                return;
            }
            if open == NONE {
                let sealed =
                    self.open.compare_exchange(NONE, SEALED, Ordering::AcqRel, Ordering::Relaxed);
                if sealed.is_ok() {
                    break;
                }
            } else if let Some(rest) =
                self.buffers.get(open).and_then(|buffer| self.exhaust(buffer, open))
            {
                // Exhausting the open buffer gave us the right to open the next one; not using it
                // ends intake. The rest becomes holes like any run that was given up.
                self.open.store(SEALED, Ordering::Release);
                drop(rest);
                break;
            }
            pause(&mut spins);
        }
        self.space.notify();
        self.ready.notify();
    }

    /// Reserves whatever `buffer` has left, without opening another.
    fn exhaust(&self, buffer: &Buffer, index: usize) -> Option<Run<'_>> {
        let size = self.batch_size as u64;
        if buffer.reserved.load(Ordering::Relaxed) >= size {
            return None;
        }
        let first = buffer.reserved.fetch_add(size, Ordering::AcqRel);
        let len = size.checked_sub(first).filter(|len| *len > 0)? as usize;
        Some(Run { ring: self, buffer: index, first: first as usize, len })
    }

    /// Whether [`Ring::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.open.load(Ordering::Acquire) == SEALED
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
    pub fn settle(&self, mut move_row: impl FnMut(Place, Place)) -> bool {
        assert!(self.is_closed(), "only a closed ring settles");
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*settled, Settled::Remainder(_)) {
            return true;
        }
        let unpublished = self.unpublished();
        let holes: Vec<Place> = std::iter::from_fn(|| self.pop_hole()).collect();
        let committed = |index: usize| self.buffers[index].committed.load(Ordering::Acquire);
        let rows: u64 = unpublished.iter().map(|(_, index)| committed(*index)).sum();
        let slots = unpublished.len() * self.batch_size;
        // A batch whose slots are all committed belongs to its last writer until it is published.
        let full = |index: usize| committed(index) == self.batch_size as u64;
        if unpublished.iter().any(|(_, index)| full(*index)) || rows as usize + holes.len() != slots
        {
            self.give_back_holes(holes.into_iter());
            return false;
        }
        // By invariant 5 no run is left and none will come: every slot is committed or a hole of
        // ours, and nobody is about to publish, so moving rows races with nobody.
        let left = Self::bring_together(&unpublished, &holes, self.batch_size, &mut move_row);
        *settled = Settled::Remainder(self.renumber(&unpublished, left));
        true
    }

    /// The buffers of batches that are opened but not published, in order.
    fn unpublished(&self) -> Vec<(u64, usize)> {
        let opened = self.opened.load(Ordering::Acquire);
        (self.taken.load(Ordering::Acquire)..opened)
            .map(|sequence| (sequence, self.order[self.turn(sequence)].load(Ordering::Acquire)))
            .filter(|(sequence, index)| {
                self.buffers[*index].published.load(Ordering::Acquire) != sequence + 1
            })
            .collect()
    }

    /// Moves rows so that those of `unpublished` fill its batches from the front; how many they are.
    fn bring_together(
        unpublished: &[(u64, usize)],
        holes: &[Place],
        batch_size: usize,
        move_row: &mut impl FnMut(Place, Place),
    ) -> usize {
        let places = unpublished
            .iter()
            .flat_map(|(_, buffer)| (0..batch_size).map(|slot| Place { buffer: *buffer, slot }));
        let holes: HashSet<Place> = holes.iter().copied().collect();
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
        let (filled, rest) = unpublished.split_at(rows / self.batch_size);
        for (_, index) in filled {
            let buffer = &self.buffers[*index];
            buffer.committed.store(self.batch_size as u64, Ordering::Relaxed);
            buffer.stamp.store(0, Ordering::Relaxed);
            self.completed.fetch_add(1, Ordering::Relaxed);
            self.publish(buffer);
        }
        let (first, partial) = *rest.first()?;
        // Consumers can't pass batch `first`, so the numbers from there on are ours to change. What
        // follows it and is not in `rest` was published before and moves up.
        let mut sequence = first;
        for old in first..self.opened.load(Ordering::Relaxed) {
            let index = self.order[self.turn(old)].load(Ordering::Relaxed);
            if rest.iter().all(|(_, empty)| *empty != index) {
                self.order[self.turn(sequence)].store(index, Ordering::Relaxed);
                self.buffers[index].sequence.store(sequence, Ordering::Relaxed);
                self.publish(&self.buffers[index]);
                sequence += 1;
            }
        }
        self.opened.store(sequence, Ordering::Release);
        let left = rows % self.batch_size;
        self.remainder_rows.store(left as u64, Ordering::Relaxed);
        self.buffers[partial].stamp.store(0, Ordering::Relaxed);
        (left > 0).then_some(Claim { buffer: partial, sequence, stamp: 0, rows: left })
    }

    fn turn(&self, sequence: u64) -> usize {
        (sequence % self.buffers.len() as u64) as usize
    }

    /// The rows of a settled ring that do not fill a batch; `None` when there are none, when the
    /// ring has not settled, and from the second call on.
    pub fn take_remainder(&self) -> Option<Claim> {
        match &mut *self.settled.lock().unwrap_or_else(PoisonError::into_inner) {
            Settled::NotYet => None,
            Settled::Remainder(claim) => {
                let claim = claim.take()?;
                self.remainder_taken.store(claim.rows as u64, Ordering::Relaxed);
                self.leased.fetch_add(1, Ordering::Relaxed);
                Some(claim)
            }
        }
    }

    fn publish(&self, buffer: &Buffer) {
        let sequence = buffer.sequence.load(Ordering::Relaxed);
        buffer.published.store(sequence + 1, Ordering::Release);
        self.ready.notify();
    }

    fn give_back_holes(&self, holes: impl ExactSizeIterator<Item = Place>) {
        // The count first: it may be too high for a moment, but never too low.
        self.hole_count.fetch_add(holes.len(), Ordering::Relaxed);
        for place in holes {
            self.holes.insert(place.buffer * self.batch_size + place.slot);
        }
        // Producers that are parked because nothing is free may fill these.
        self.space.notify();
    }

    /// A look at the states of all slots.
    pub fn counts(&self) -> Counts {
        let size = self.batch_size as u64;
        let taken = self.taken.load(Ordering::Acquire);
        let completed = self.completed.load(Ordering::Acquire);
        let unpublished = self.unpublished();
        let filling: u64 = unpublished
            .iter()
            .map(|(_, buffer)| self.buffers[*buffer].committed.load(Ordering::Acquire))
            .sum();
        let remainder = self.remainder_rows.load(Ordering::Relaxed);
        let committed = completed * size + filling + remainder;
        // Settling and taking may both have happened since `remainder` was read.
        let left = remainder.saturating_sub(self.remainder_taken.load(Ordering::Relaxed));
        let partial = filling + left;
        Counts {
            committed,
            partial,
            stored: completed.saturating_sub(taken) * size + partial,
            completed,
            taken,
            leased: self.leased.load(Ordering::Relaxed),
            free: self.free.len(),
            contention: self.contention.load(Ordering::Relaxed),
            aborted: self.aborted.load(Ordering::Relaxed),
        }
    }
}

impl Run<'_> {
    /// Which buffer.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// The first slot.
    pub fn first(&self) -> usize {
        self.first
    }

    /// How many slots: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a run is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Declares the slots written. If they complete the batch, `stamp` is called and its result
    /// travels with the batch.
    pub fn commit(self, stamp: impl FnOnce() -> u64) {
        let run = std::mem::ManuallyDrop::new(self);
        let (ring, buffer) = (run.ring, &run.ring.buffers[run.buffer]);
        let before = buffer.committed.fetch_add(run.len as u64, Ordering::AcqRel);
        if before + run.len as u64 == ring.batch_size as u64 {
            // All slots are committed and nothing is published: the buffer is ours alone here.
            buffer.stamp.store(stamp(), Ordering::Relaxed);
            ring.completed.fetch_add(1, Ordering::Relaxed);
            ring.publish(buffer);
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.ring.is_closed() {
            self.ring.aborted.fetch_add(self.len as u64, Ordering::Relaxed);
        }
        let slots = self.first..self.first + self.len;
        self.ring.give_back_holes(slots.map(|slot| Place { buffer: self.buffer, slot }));
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
