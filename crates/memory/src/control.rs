//! The state of a ring as it lies in memory, which may be mapped by several processes.
//!
//! Everything here is an atomic, so any bytes are a valid state as far as Rust is concerned; what
//! the numbers mean is the business of [`crate::producer`] and [`crate::ring`]. There are offsets and
//! indices and no pointers, since each process maps the memory elsewhere.
//!
//! # The words
//!
//! Batches have a *generation*: their place in the order of opening, from 1. A buffer serves one
//! generation after the other.
//!
//! - [`Turn`]: which buffer a generation is in. `current` is the turn of the batch that is open;
//!   `order` has those of the last batches.
//! - [`Cursor`]: how far a buffer is reserved, and by whom up to there: the *latest* run.
//! - [`Tally`]: how many slots of a buffer are committed, and which peer's commit was the latest.
//! - [`Entry`]: the state of a run, in the log at the run's last slot. One of an earlier generation
//!   says nothing.
//!
//! # Invariants
//!
//! 1. The slices lie inside the region at the offsets that [`Shape`] computes, do not overlap, and
//!    nothing refers to their bytes except as these atomics.

use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::bitmap;
use crate::block::{AllocError, BLOCK_ALIGNMENT};
use crate::event::Event;
use crate::region::Region;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How many batches of how many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) buffers: usize,
    pub(crate) batch_size: usize,
}

/// Where the parts of the control area start, from its own start.
struct Offsets {
    buffers: usize,
    order: usize,
    free: usize,
    log: usize,
    end: usize,
}

impl Shape {
    /// Checks that the words below can count so much.
    pub(crate) fn new(buffers: usize, batch_size: usize) -> Result<Self, AllocError> {
        let shape = Self { buffers, batch_size };
        let counts = buffers < Turn::SEALED as usize && batch_size < Cursor::FREE as usize;
        let fits = counts && shape.offsets().is_some();
        fits.then_some(shape).ok_or(AllocError::TooMany { buffers, batch_size })
    }

    /// How many bytes the control area needs.
    pub(crate) fn bytes(self) -> usize {
        self.offsets().map_or(usize::MAX, |offsets| offsets.end)
    }

    fn offsets(self) -> Option<Offsets> {
        let mut end = 0usize;
        let mut part = |bytes: Option<usize>| {
            let start = end;
            end = end.checked_add(bytes?)?.checked_next_multiple_of(BLOCK_ALIGNMENT)?;
            Some(start)
        };
        let words = |count: usize| count.checked_mul(size_of::<AtomicU64>());
        part(Some(size_of::<Header>()))?;
        let buffers = part(size_of::<Buffer>().checked_mul(self.buffers))?;
        let order = part(words(self.buffers))?;
        let free = part(words(bitmap::words(self.buffers)))?;
        let log = part(words(self.buffers.checked_mul(self.batch_size)?))?;
        Some(Offsets { buffers, order, free, log, end })
    }
}

/// Set in [`Header::taken`] while no thread may take a batch.
pub(crate) const HELD: u64 = 1 << 63;

/// What a ring has once.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    /// What the area is for, so that who maps another one notices.
    buffers: AtomicU32,
    batch_size: AtomicU32,
    /// The [`Turn`] of the batch to reserve from.
    pub(crate) current: CachePadded<AtomicU64>,
    /// Grows when there are new holes: a look at this and `holes_gone` tells that there are none.
    pub(crate) holes_made: CachePadded<AtomicU64>,
    /// What `holes_made` was when a search found none.
    pub(crate) holes_gone: AtomicU64,
    /// How many batches were taken, and [`HELD`].
    pub(crate) taken: CachePadded<AtomicU64>,
    /// How many batches were given back.
    pub(crate) released: AtomicU64,
    /// Batches that consumers hold.
    pub(crate) leased: AtomicU64,
    pub(crate) contention: AtomicU64,
    pub(crate) aborted: AtomicU64,
    /// Notified when a reservation may succeed.
    pub(crate) space: Event,
    /// Notified when a batch is complete.
    pub(crate) ready: Event,
}

/// What a ring has per buffer.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) reserving: CachePadded<Reserving>,
    /// A [`Tally`].
    pub(crate) tally: CachePadded<AtomicU64>,
    pub(crate) done: CachePadded<Done>,
}

/// What a reservation reads and writes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Reserving {
    /// A [`Cursor`].
    pub(crate) cursor: AtomicU64,
    /// The generation that was last opened here. Only grows.
    pub(crate) generation: AtomicU64,
}

/// What is written at most a few times per batch.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Done {
    /// The generation that was last completed here.
    pub(crate) published: AtomicU64,
    /// What the completing producer's `stamp` returned.
    pub(crate) stamp: AtomicU64,
    /// Where a search for holes starts (low half), and how often it was set back (high half).
    pub(crate) search: AtomicU64,
}

/// Where a generation is: its low 32 bits, whether the ring is sealed, and the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn(pub(crate) u64);

impl Turn {
    const SEALED: u64 = 1 << 31;

    pub(crate) fn new(generation: u64, buffer: usize) -> Self {
        Self(generation << 32 | buffer as u64)
    }

    pub(crate) fn sealed(self) -> Self {
        Self(self.0 | Self::SEALED)
    }

    pub(crate) fn is_sealed(self) -> bool {
        self.0 & Self::SEALED != 0
    }

    pub(crate) fn buffer(self) -> usize {
        (self.0 & (Self::SEALED - 1)) as usize
    }

    /// Whether this is the turn of `generation`.
    pub(crate) fn is(self, generation: u64) -> bool {
        self.0 >> 32 == generation & 0xffff_ffff
    }

    /// Whether this is the turn of an earlier one.
    pub(crate) fn is_before(self, generation: u64) -> bool {
        ((self.0 >> 32) as u32).wrapping_sub(generation as u32) >> 31 == 1
    }
}

/// How far a buffer is reserved: the low bits of the generation, the owner of the latest run, and
/// where that run ends. Or `FREE`, with the generation that was last here.
///
/// The tag keeps a producer that slept through a whole number of batches from taking the word for
/// the one it saw; after exactly 65,536 generations it could, and would make a run like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor(pub(crate) u64);

impl Cursor {
    const FREE: u32 = u32::MAX;

    pub(crate) fn new(generation: u64, owner: u16, end: u32) -> Self {
        Self(generation << 48 | u64::from(owner) << 32 | u64::from(end))
    }

    pub(crate) fn free(generation: u64) -> Self {
        Self(generation << 32 | u64::from(Self::FREE))
    }

    pub(crate) fn is_free(self) -> bool {
        self.0 as u32 == Self::FREE
    }

    /// Whether this is the free state that `generation` left.
    pub(crate) fn is_left_by(self, generation: u64) -> bool {
        self == Self::free(generation)
    }

    /// Whether this is the free state that an earlier one than `generation` left.
    pub(crate) fn is_left_before(self, generation: u64) -> bool {
        self.is_free() && ((self.0 >> 32) as u32).wrapping_sub(generation as u32) >> 31 == 1
    }

    /// Whether the buffer is open, or full, for `generation`.
    pub(crate) fn is(self, generation: u64) -> bool {
        !self.is_free() && self.0 >> 48 == generation & 0xffff
    }

    pub(crate) fn owner(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(crate) fn end(self) -> u32 {
        self.0 as u32
    }
}

/// How many slots are committed, and the end of the run whose commit by a peer was counted last,
/// or 0. Commits of this process only add to the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally(pub(crate) u64);

impl Tally {
    pub(crate) fn new(last: u32, count: u32) -> Self {
        Self(u64::from(last) << 32 | u64::from(count))
    }

    pub(crate) fn last(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn count(self) -> u32 {
        self.0 as u32
    }
}

/// Where a run stands. A run is known by the slot it ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RunState {
    /// Nobody's: the run was given up. Each slot of it has its own entry.
    Hole = 0,
    /// Its owner writes it.
    Claimed = 1,
    /// Its owner is through, and may have been counted or not.
    Written = 2,
    /// It is in the tally.
    Counted = 3,
}

/// What the log says of a slot: the generation, whether the run was one hole, its state, its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    const SHIFT: u32 = 19;
    const FILLS_HOLE: u64 = 1 << 18;

    pub(crate) fn new(generation: u64, state: RunState, owner: u16, fills_hole: bool) -> Self {
        let hole = if fills_hole { Self::FILLS_HOLE } else { 0 };
        Self(generation << Self::SHIFT | hole | (state as u64) << 16 | u64::from(owner))
    }

    pub(crate) fn hole(generation: u64) -> Self {
        Self::new(generation, RunState::Hole, 0, false)
    }

    /// The same run in another state.
    pub(crate) fn with(self, state: RunState) -> Self {
        Self(self.0 & !(3 << 16) | (state as u64) << 16)
    }

    pub(crate) fn is(self, generation: u64) -> bool {
        self.0 >> Self::SHIFT == generation << Self::SHIFT >> Self::SHIFT
    }

    /// Whether this is of an earlier generation than `generation`.
    pub(crate) fn is_before(self, generation: u64) -> bool {
        let distance = (self.0 >> Self::SHIFT).wrapping_sub(generation) << Self::SHIFT;
        distance >> 63 == 1
    }

    pub(crate) fn state(self) -> RunState {
        match self.0 >> 16 & 3 {
            0 => RunState::Hole,
            1 => RunState::Claimed,
            2 => RunState::Written,
            _ => RunState::Counted,
        }
    }

    pub(crate) fn owner(self) -> u16 {
        self.0 as u16
    }

    pub(crate) fn fills_hole(self) -> bool {
        self.0 & Self::FILLS_HOLE != 0
    }
}

/// The words of one ring.
#[derive(Debug)]
pub(crate) struct Control {
    /// Keeps what the pointers point to.
    _region: Arc<Region>,
    shape: Shape,
    header: NonNull<Header>,
    buffers: NonNull<[Buffer]>,
    order: NonNull<[AtomicU64]>,
    free: NonNull<[AtomicU64]>,
    log: NonNull<[AtomicU64]>,
}

// SAFETY: by invariant 1 the pointers are to atomics in memory that `_region` keeps, which any thread
// may use.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    /// Lays out the state of an empty ring from `offset` of `region`.
    ///
    /// # Safety
    ///
    /// From `offset` on, the region has `shape.bytes()` bytes that nothing else refers to, and
    /// `offset` is a multiple of [`BLOCK_ALIGNMENT`].
    pub(crate) unsafe fn create(region: &Arc<Region>, offset: usize, shape: Shape) -> Self {
        // SAFETY: as promised by the caller.
        let control = unsafe { Self::open(region, offset, shape) };
        let zero = |_| AtomicU64::new(0);
        let words = shape.buffers * shape.batch_size;
        // SAFETY: the parts are ours alone (the caller's promise), in bounds and aligned
        // (invariant 1); this holds for all writes below.
        unsafe { control.header.write(Header::new(shape)) };
        // SAFETY: as above.
        unsafe { fill(control.buffers.cast(), shape.buffers, |_| Buffer::new()) };
        // SAFETY: as above.
        unsafe { fill(control.order.cast(), shape.buffers, zero) };
        // SAFETY: as above.
        unsafe { fill(control.free.cast(), bitmap::words(shape.buffers), zero) };
        // The log is the one part that may be large, and zeros are what a fresh region has. Loom's
        // atomics are more than their value.
        if cfg!(loom) {
            // SAFETY: as above.
            unsafe { fill(control.log.cast(), words, zero) };
        }
        control
    }

    /// The state that [`Control::create`] laid out there, maybe in another process.
    ///
    /// # Safety
    ///
    /// From `offset` on, the region has `shape.bytes()` bytes that are referred to as such a state
    /// only, and `offset` is a multiple of [`BLOCK_ALIGNMENT`].
    pub(crate) unsafe fn open(region: &Arc<Region>, offset: usize, shape: Shape) -> Self {
        let offsets = shape.offsets().expect("a shape is checked when it is made");
        assert!(offset.is_multiple_of(BLOCK_ALIGNMENT) && offset + offsets.end <= region.len());
        // SAFETY: inside the region by the assertion.
        let at = |part: usize| unsafe { region.pointer().add(offset + part) };
        Self {
            _region: Arc::clone(region),
            shape,
            header: at(0).cast(),
            buffers: NonNull::slice_from_raw_parts(at(offsets.buffers).cast(), shape.buffers),
            order: NonNull::slice_from_raw_parts(at(offsets.order).cast(), shape.buffers),
            free: NonNull::slice_from_raw_parts(
                at(offsets.free).cast(),
                bitmap::words(shape.buffers),
            ),
            log: NonNull::slice_from_raw_parts(
                at(offsets.log).cast(),
                shape.buffers * shape.batch_size,
            ),
        }
    }

    /// The same words once more.
    #[cfg(any(test, loom))]
    pub(crate) fn again(&self) -> Self {
        Self { _region: Arc::clone(&self._region), ..*self }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: by invariant 1, and `_region` lives as long as `self`; so for the others below.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    pub(crate) fn buffers(&self) -> &[Buffer] {
        // SAFETY: as in `header`.
        unsafe { self.buffers.as_ref() }
    }

    /// Which buffers are free, as a hint.
    pub(crate) fn free(&self) -> &[AtomicU64] {
        // SAFETY: as in `header`.
        unsafe { self.free.as_ref() }
    }

    /// Where the [`Turn`] of `generation` is noted.
    pub(crate) fn order(&self, generation: u64) -> &AtomicU64 {
        // SAFETY: as in `header`.
        let order = unsafe { self.order.as_ref() };
        &order[(generation % order.len() as u64) as usize]
    }

    /// The log of one buffer; empty if there is no such buffer.
    pub(crate) fn log(&self, buffer: usize) -> &[AtomicU64] {
        // SAFETY: as in `header`.
        let log = unsafe { self.log.as_ref() };
        let first = buffer.saturating_mul(self.shape.batch_size);
        log.get(first..first.saturating_add(self.shape.batch_size)).unwrap_or_default()
    }
}

/// Writes `count` values from `first` on.
///
/// # Safety
///
/// There is room for them, aligned, and nothing else refers to it.
unsafe fn fill<T>(first: NonNull<T>, count: usize, value: impl Fn(usize) -> T) {
    for index in 0..count {
        // SAFETY: as promised by the caller.
        let place = unsafe { first.add(index) };
        // SAFETY: as above.
        unsafe { place.write(value(index)) };
    }
}

impl Header {
    fn new(shape: Shape) -> Self {
        let word = || AtomicU64::new(0);
        Self {
            buffers: AtomicU32::new(shape.buffers as u32),
            batch_size: AtomicU32::new(shape.batch_size as u32),
            current: CachePadded::new(word()),
            holes_made: CachePadded::new(word()),
            holes_gone: word(),
            taken: CachePadded::new(word()),
            released: word(),
            leased: word(),
            contention: word(),
            aborted: word(),
            space: Event::default(),
            ready: Event::default(),
        }
    }
}

impl Header {
    /// How many buffers of how many slots the area was laid out for.
    pub(crate) fn shape(&self) -> (u64, u64) {
        let read = |word: &AtomicU32| u64::from(word.load(Ordering::Relaxed));
        (read(&self.buffers), read(&self.batch_size))
    }

    /// How many batches were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire) & !HELD
    }
}

impl Buffer {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self {
            reserving: CachePadded::new(Reserving {
                cursor: AtomicU64::new(Cursor::free(0).0),
                generation: word(),
            }),
            tally: CachePadded::new(word()),
            done: CachePadded::new(Done { published: word(), stamp: word(), search: word() }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Another process may be built of another commit, and of other versions of what this crate depends on.
    #[test]
    #[cfg(all(target_os = "linux", not(any(miri, echoic_portable))))]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_words_lie_where_version_1_has_them() {
        use std::mem::offset_of;

        assert_eq!(crate::store::Layout::VERSION, 1, "these are the offsets of version 1");
        let header = [
            offset_of!(Header, buffers),
            offset_of!(Header, batch_size),
            offset_of!(Header, current),
            offset_of!(Header, holes_made),
            offset_of!(Header, holes_gone),
            offset_of!(Header, taken),
            offset_of!(Header, released),
            offset_of!(Header, leased),
            offset_of!(Header, contention),
            offset_of!(Header, aborted),
            offset_of!(Header, space),
            offset_of!(Header, ready),
        ];
        let places = [0, 4, 128, 256, 384, 512, 640, 648, 656, 664, 768, 896];
        assert_eq!((header, size_of::<Header>()), (places, 1024));
        let buffer =
            [offset_of!(Buffer, reserving), offset_of!(Buffer, tally), offset_of!(Buffer, done)];
        assert_eq!((buffer, size_of::<Buffer>()), ([0, 128, 256], 384));
    }

    #[test]
    fn words_give_back_what_they_were_made_of() {
        let turn = Turn::new(1 << 40 | 7, 12);
        assert!(turn.is(7) && turn.is_before(8) && !turn.is_before(7) && !turn.is_before(6));
        assert_eq!((turn.buffer(), turn.sealed().buffer()), (12, 12));
        assert!(turn.sealed().is_sealed() && !turn.is_sealed());
        let cursor = Cursor::new(65_537, 9, 3);
        assert!(cursor.is(1) && !cursor.is(2) && !cursor.is_free());
        assert_eq!((cursor.owner(), cursor.end()), (9, 3));
        assert!(Cursor::free(5).is_left_by(5) && !Cursor::free(5).is_left_by(6));
        let tally = Tally::new(4, 9);
        assert_eq!((tally.last(), tally.count()), (4, 9));
        let entry = Entry::new(6, RunState::Claimed, 65_535, true).with(RunState::Counted);
        assert_eq!((entry.state(), entry.owner()), (RunState::Counted, 65_535));
        assert!(entry.fills_hole() && entry.is(6) && entry.is_before(7) && !entry.is_before(6));
    }
}
