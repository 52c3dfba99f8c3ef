//! A ring of batches and the column memory that its slots stand for.
//!
//! A [`BatchStore`] lays out one column per leaf: `buffers × batch_size` slots of that leaf's size,
//! so every batch is contiguous in every column. A [`Writer`] is a reserved run of slots with access
//! to their bytes; a [`Lease`] is a whole batch with access to its bytes. Neither can be copied, and
//! a lease keeps the store alive, so a batch outlives the creator of the store.
//!
//! A store made with [`BatchStore::new_shared`] lies in memory that other processes of this host can
//! map. There a [`RemoteStore`] writes samples straight into it; all consumers are in this process.
//!
//! # Invariants
//!
//! 1. Column `c` of buffer `b` occupies `columns[c].batch_stride` bytes from
//!    `columns[c].offset + b * batch_stride`, inside the region, and overlaps no other.
//! 2. Bytes of a slot are touched only through the [`Run`] or [`Claim`] that owns the slot
//!    (invariants 1 to 4 of [`crate::ring`]), or by `settle`, which owns all that is left; or read while
//!    a hold keeps them as they are (invariant 5 there).
//!
//! # Limitations
//!
//! Other processes are trusted as far as [`crate::ring`] says.
//!
//! Slots have one size per column. Values of varying length belong in chunks, not in a ring.

use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::block::{self, ALIGNMENT, AllocError, BLOCK_ALIGNMENT};
use crate::control::{Control, Shape};
use crate::os::Mapping;
use crate::producer::Producer;
use crate::region::Region;
use crate::ring::{Busy, Claim, Counts, Evicted, Ring, Run, SlotIndex, Unavailable, Unread};

/// Where a column lies in the region.
#[derive(Debug, Clone, Copy)]
struct Column {
    offset: usize,
    slot_bytes: usize,
    /// Bytes from one batch to the next: the batch, rounded up so that each starts aligned.
    batch_stride: usize,
}

/// The bytes of all slots: the columns one after the other, and behind them the ring's own words.
#[derive(Debug)]
struct Columns {
    region: Arc<Region>,
    shape: Shape,
    columns: Box<[Column]>,
}

/// Where everything lies, before there is memory for it.
struct Plan {
    shape: Shape,
    columns: Box<[Column]>,
    /// Where the ring's own words start.
    control: usize,
    bytes: usize,
}

/// What a process needs to know of a shared store before it maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Which form of the ring's words. Another one is another release of this crate.
    pub version: u64,
    /// Size of the file.
    pub region_bytes: u64,
    /// How many batches fit.
    pub buffers: u64,
    /// Samples per batch.
    pub batch_size: u64,
}

/// Why a shared store can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Use the same release on both sides.
    #[error("the store has layout version {theirs}, this is version {ours}")]
    Version {
        /// Of this process.
        ours: u64,
        /// Of the store.
        theirs: u64,
    },
    /// The sides disagree about the sizes of samples, or this is not a store.
    #[error("{what} of the store should be {expected}, got {got}")]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// What follows from the rest.
        expected: u64,
        /// What was given or found.
        got: u64,
    },
    /// Owner ids of peers start at 1.
    #[error("owner 0 is the server")]
    Owner,
    /// The sizes are past what an address can hold.
    #[error(transparent)]
    Sizes(#[from] AllocError),
    /// The system would not map the file.
    #[error("could not map the store: {0}")]
    System(#[from] std::io::Error),
}

/// Pre-allocated memory for batches, shared by producers and consumers.
///
/// ```
/// use std::sync::Arc;
/// use echoic_memory::BatchStore;
///
/// // Two buffers of two slots, with columns of four bytes and of one byte.
/// let store = Arc::new(BatchStore::new(2, 2, &[4, 1])?);
/// for value in 0..2u8 {
///     let mut writer = store.try_reserve(1).expect("there is room");
///     writer.column_mut(0).copy_from_slice(&[value; 4]);
///     writer.column_mut(1).copy_from_slice(&[value]);
///     writer.commit(|| 0);
/// }
/// let batch = store.try_take().expect("two slots make a batch");
/// assert_eq!(batch.column(0), [0, 0, 0, 0, 1, 1, 1, 1]);
/// assert_eq!(batch.column(1), [0, 1]);
/// # Ok::<(), echoic_memory::AllocError>(())
/// ```
#[derive(Debug)]
pub struct BatchStore {
    ring: Ring,
    columns: Columns,
}

/// A producer in another process, writing into a store that was shared with it.
///
/// Samples that are not committed when the process ends are given back by the server's
/// [`BatchStore::reclaim`].
#[derive(Debug)]
pub struct RemoteStore {
    producer: Producer,
    columns: Columns,
}

/// Reserved slots of one batch and their bytes. Dropping it without a commit frees the slots.
#[derive(Debug)]
#[must_use = "a writer that is dropped stores nothing"]
pub struct Writer<'a> {
    columns: &'a Columns,
    run: Run<'a>,
}

/// A batch that is the holder's alone until dropped.
#[derive(Debug)]
pub struct Lease {
    store: Arc<BatchStore>,
    claim: ManuallyDrop<Claim>,
}

impl Layout {
    /// Changes whenever the words of the ring change their meaning or place.
    pub const VERSION: u64 = 1;

    /// As plain numbers, to be sent to another process.
    pub fn to_words(self) -> [u64; 4] {
        [self.version, self.region_bytes, self.buffers, self.batch_size]
    }

    /// From what [`Layout::to_words`] gave.
    pub fn from_words(words: [u64; 4]) -> Self {
        let [version, region_bytes, buffers, batch_size] = words;
        Self { version, region_bytes, buffers, batch_size }
    }
}

impl Plan {
    fn new(buffers: usize, batch_size: usize, slot_bytes: &[usize]) -> Result<Self, AllocError> {
        let overflow = || AllocError::Overflow {
            what: format!(
                "a ring of {buffers} batches of {batch_size} samples of {} bytes",
                slot_bytes.iter().map(|bytes| *bytes as u128).sum::<u128>()
            ),
        };
        let mut total = 0usize;
        let mut columns = Vec::with_capacity(slot_bytes.len());
        for &slot_bytes in slot_bytes {
            let batch_stride = slot_bytes
                .checked_mul(batch_size)
                .and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT))
                .ok_or_else(overflow)?;
            columns.push(Column { offset: total, slot_bytes, batch_stride });
            total = batch_stride
                .checked_mul(buffers)
                .and_then(|bytes| total.checked_add(bytes))
                .ok_or_else(overflow)?;
        }
        let shape = Shape::new(buffers, batch_size)?;
        let control = total.checked_next_multiple_of(BLOCK_ALIGNMENT).ok_or_else(overflow)?;
        let bytes = control.checked_add(shape.bytes()).ok_or_else(overflow)?;
        // Pointers are offset by less than this only.
        isize::try_from(bytes).map_err(|_| overflow())?;
        Ok(Self { shape, columns: columns.into(), control, bytes })
    }
}

impl BatchStore {
    /// Allocates `buffers` batches of `batch_size` slots with a column of `slot_bytes[c]` each.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the sizes multiply past an address or the system refuses the memory.
    ///
    /// # Panics
    ///
    /// When `buffers` or `batch_size` is zero.
    pub fn new(
        buffers: usize,
        batch_size: usize,
        slot_bytes: &[usize],
    ) -> Result<Self, AllocError> {
        let plan = Plan::new(buffers, batch_size, slot_bytes)?;
        block::check_available(plan.bytes)?;
        let region = Region::own(plan.bytes)?;
        Ok(Self::start(plan, region, false))
    }

    /// Like [`BatchStore::new`], in memory that other processes can map: see [`BatchStore::share`].
    ///
    /// # Errors
    ///
    /// As [`BatchStore::new`]; always where the system is not Linux.
    ///
    /// # Panics
    ///
    /// As [`BatchStore::new`].
    pub fn new_shared(
        buffers: usize,
        batch_size: usize,
        slot_bytes: &[usize],
    ) -> Result<Self, AllocError> {
        let plan = Plan::new(buffers, batch_size, slot_bytes)?;
        let region = Region::Shared(Mapping::new(plan.bytes)?);
        Ok(Self::start(plan, region, true))
    }

    fn start(plan: Plan, region: Region, with_peers: bool) -> Self {
        let Plan { shape, columns, control, .. } = plan;
        assert!(shape.buffers > 0 && shape.batch_size > 0, "a ring needs buffers and slots");
        let region = Arc::new(region);
        // SAFETY: the region is fresh, and the plan has put the columns before `control`, which is
        // aligned, and the ring's bytes behind it.
        let control = unsafe { Control::create(&region, control, shape) };
        let ring = Ring::start(control, with_peers);
        Self { ring, columns: Columns { region, shape, columns } }
    }

    /// What another process needs for [`RemoteStore::attach`], beside the sizes of the slots and an
    /// owner id; `None` if this store is not shared.
    ///
    /// Who has the descriptor can write all of the memory, so hand it to processes of the same user
    /// only.
    pub fn share(&self) -> Option<(BorrowedFd<'_>, Layout)> {
        let Region::Shared(mapping) = &*self.columns.region else {
            return None;
        };
        let layout = Layout {
            version: Layout::VERSION,
            region_bytes: self.columns.region.len() as u64,
            buffers: self.buffers() as u64,
            batch_size: self.batch_size() as u64,
        };
        Some((mapping.file(), layout))
    }

    /// An owner id for another process. See [`Ring::add_peer`].
    pub fn add_peer(&self) -> Option<u16> {
        self.ring.add_peer()
    }

    /// Cleans up after another process, once it is gone. See [`Ring::reclaim`].
    ///
    /// # Panics
    ///
    /// As [`Ring::reclaim`].
    pub fn reclaim(&self, owner: u16) -> u64 {
        self.ring.reclaim(owner)
    }

    /// Has `waker` called when a reservation may succeed. See [`Ring::wake_on_room`].
    pub fn wake_on_room(&self, waker: &Waker) {
        self.ring.wake_on_room(waker);
    }

    /// Reserves up to `len` slots without waiting. See [`Ring::try_reserve`].
    ///
    /// # Errors
    ///
    /// As [`Ring::try_reserve`].
    #[inline]
    pub fn try_reserve(&self, len: usize) -> Result<Writer<'_>, Unavailable> {
        Ok(Writer { columns: &self.columns, run: self.ring.try_reserve(len)? })
    }

    /// Takes the next batch if it is complete.
    pub fn try_take(self: &Arc<Self>) -> Option<Lease> {
        Some(self.lease(self.ring.try_take()?))
    }

    /// Takes the next batch, waiting for it until `deadline`.
    pub fn take(self: &Arc<Self>, deadline: Option<Instant>) -> Result<Lease, Unavailable> {
        self.ring
            .take(deadline, |from, to| self.columns.move_row(from, to))
            .map(|claim| self.lease(claim))
    }

    /// After a close: the samples that do not fill a batch, once; waits for the last writers.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Blocked`] when writers are still at work at `deadline`.
    ///
    /// # Panics
    ///
    /// When the store is not closed.
    pub fn take_remainder(
        self: &Arc<Self>,
        deadline: Option<Instant>,
    ) -> Result<Option<Lease>, Unavailable> {
        while !self.ring.settle(|from, to| self.columns.move_row(from, to)) {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Unavailable::Blocked(crate::Blocked::Empty));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(self.ring.take_remainder().map(|claim| self.lease(claim)))
    }

    /// Calls `read` with every run of samples that were not taken, the oldest first: with how many they are
    /// and the bytes of each column. Nobody can take a batch meanwhile; producers go on.
    ///
    /// # Errors
    ///
    /// [`Busy`] while a thread is writing into a batch that is not complete; then nothing was read.
    pub fn read_unread(&self, mut read: impl FnMut(usize, &[&[u8]])) -> Result<(), Busy> {
        let hold = self.ring.hold();
        let unread = hold.unread()?;
        let mut columns = Vec::with_capacity(self.columns.columns.len());
        for Unread { buffer, slots } in unread {
            for run in slots {
                let place = SlotIndex { buffer, slot: run.start };
                columns.clear();
                columns.extend(self.columns.columns.iter().enumerate().map(|(index, column)| {
                    let start = self.columns.slot_pointer(index, place);
                    // SAFETY: inside the column by invariant 1; these slots are committed and were not
                    // taken, so no thread writes them as long as the hold lives.
                    unsafe { std::slice::from_raw_parts(start, column.slot_bytes * run.len()) }
                }));
                read(run.len(), &columns);
            }
        }
        drop(hold);
        Ok(())
    }

    fn lease(self: &Arc<Self>, claim: Claim) -> Lease {
        Lease { store: Arc::clone(self), claim: ManuallyDrop::new(claim) }
    }

    /// Ends intake. See [`Ring::close`].
    pub fn close(&self) {
        self.ring.close();
    }

    /// Samples per batch.
    pub fn batch_size(&self) -> usize {
        self.ring.batch_size()
    }

    /// How many batches fit.
    pub fn buffers(&self) -> usize {
        self.ring.buffers()
    }

    /// Whether intake has ended.
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Waits until a reservation may succeed. See [`Ring::wait_for_room`].
    ///
    /// # Errors
    ///
    /// As [`Ring::wait_for_room`].
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Unavailable> {
        self.ring.wait_for_room(deadline)
    }

    /// A look at the states of all slots.
    pub fn counts(&self) -> Counts {
        self.ring.counts()
    }

    /// How many bytes were allocated.
    pub fn memory_bytes(&self) -> usize {
        self.columns.region.len()
    }
}

impl RemoteStore {
    /// Maps a store that the server shared, to produce under the `owner` id that it gave.
    ///
    /// # Errors
    ///
    /// [`AttachError`] when `file` is not the memory that `layout` and `slot_bytes` describe.
    pub fn attach(
        file: OwnedFd,
        layout: &Layout,
        slot_bytes: &[usize],
        owner: u16,
    ) -> Result<Self, AttachError> {
        let (ours, theirs) = (Layout::VERSION, layout.version);
        if ours != theirs {
            return Err(AttachError::Version { ours, theirs });
        }
        if owner == 0 {
            return Err(AttachError::Owner);
        }
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let plan = Plan::new(count(layout.buffers), count(layout.batch_size), slot_bytes)?;
        let Plan { shape, columns, control, bytes } = plan;
        check("the size", bytes as u64, layout.region_bytes)?;
        check("the least number of slots", 1, layout.buffers.min(layout.batch_size).min(1))?;
        let region = Arc::new(Region::Shared(Mapping::open(file, bytes)?));
        // SAFETY: the mapping has the size that the plan asks for, `control` is aligned, and what
        // lies there is used as atomics only, which any bytes are.
        let control = unsafe { Control::open(&region, control, shape) };
        let (buffers, batch_size) = control.header().shape();
        check("the number of buffers", layout.buffers, buffers)?;
        check("the size of batches", layout.batch_size, batch_size)?;
        let producer = Producer::new(control, owner, true);
        Ok(Self { producer, columns: Columns { region, shape, columns } })
    }

    /// Reserves up to `len` slots without waiting. See [`Ring::try_reserve`]. A writer that is
    /// dropped gives its slots to others; tasks that wait by [`BatchStore::wake_on_room`] are not
    /// told.
    ///
    /// # Errors
    ///
    /// As [`Ring::try_reserve`].
    #[inline]
    pub fn try_reserve(&self, len: usize) -> Result<Writer<'_>, Unavailable> {
        Ok(Writer { columns: &self.columns, run: self.producer.try_reserve(len)? })
    }

    /// Waits until a reservation may succeed. See [`Ring::wait_for_room`].
    ///
    /// # Errors
    ///
    /// As [`Ring::wait_for_room`].
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Unavailable> {
        self.producer.wait_for_room(deadline)
    }

    /// Whether intake has ended.
    pub fn is_closed(&self) -> bool {
        self.producer.is_closed()
    }
}

fn check(what: &'static str, expected: u64, got: u64) -> Result<(), AttachError> {
    if expected == got { Ok(()) } else { Err(AttachError::Mismatch { what, expected, got }) }
}

impl Columns {
    /// Where a slot of a column starts.
    ///
    /// # Panics
    ///
    /// When the column, the buffer or the slot does not exist.
    fn slot_pointer(&self, column: usize, place: SlotIndex) -> *mut u8 {
        let column = self.columns[column];
        assert!(place.buffer < self.shape.buffers && place.slot < self.shape.batch_size);
        let offset =
            column.offset + place.buffer * column.batch_stride + place.slot * column.slot_bytes;
        // SAFETY: invariant 1; buffer and slot are in range by the assertion.
        unsafe { self.region.pointer().as_ptr().add(offset) }
    }

    /// Copies one slot of every column. Called by `settle` only, which owns both places.
    fn move_row(&self, from: SlotIndex, to: SlotIndex) {
        for column in 0..self.columns.len() {
            let bytes = self.columns[column].slot_bytes;
            let (from, to) = (self.slot_pointer(column, from), self.slot_pointer(column, to));
            // SAFETY: both are slots of `bytes` bytes (invariant 1), distinct because `settle` moves
            // rows into holes, and nothing else may touch them (invariant 2).
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }
}

impl Writer<'_> {
    /// How many slots were reserved: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a run is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.run.len()
    }

    /// The buffer that the slots are in.
    pub fn buffer(&self) -> usize {
        self.run.buffer()
    }

    /// The first slot.
    pub fn first(&self) -> usize {
        self.run.first()
    }

    /// The bytes of the reserved slots in one column, to be overwritten as a whole.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    #[inline]
    pub fn column_mut(&mut self, column: usize) -> &mut [u8] {
        let (pointer, bytes) = self.column(column);
        // SAFETY: the run's slots are contiguous and inside the column (invariant 1), ours alone
        // while the run lives (invariant 2), initialised, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(pointer, bytes) }
    }

    /// The bytes of the reserved slots in every column, in order.
    pub fn columns_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let this = &*self;
        (0..this.columns.columns.len()).map(|column| {
            let (pointer, bytes) = this.column(column);
            // SAFETY: as in `column_mut`; and each column is lent once, and overlaps no other.
            unsafe { std::slice::from_raw_parts_mut(pointer, bytes) }
        })
    }

    /// Where the reserved slots of a column are, and how many bytes.
    #[inline]
    fn column(&self, column: usize) -> (*mut u8, usize) {
        let bytes = self.columns.columns[column].slot_bytes * self.run.len();
        let place = SlotIndex { buffer: self.run.buffer(), slot: self.run.first() };
        (self.columns.slot_pointer(column, place), bytes)
    }

    /// Declares the slots written. See [`Run::commit`]. For writers of a [`BatchStore`].
    #[inline]
    pub fn commit(self, stamp: impl FnOnce() -> u64) {
        self.run.commit(stamp);
    }

    /// Declares the slots written. See [`Run::try_commit`]. For writers of a [`RemoteStore`].
    ///
    /// # Errors
    ///
    /// [`Evicted`] when the server has given the slots to others.
    #[inline]
    pub fn try_commit(self, stamp: impl FnOnce() -> u64) -> Result<(), Evicted> {
        self.run.try_commit(stamp)
    }
}

impl Lease {
    /// Position of this batch in the order of opening, from 0.
    pub fn sequence(&self) -> u64 {
        self.claim.sequence()
    }

    /// What the `stamp` of the completing commit returned.
    pub fn stamp(&self) -> u64 {
        self.claim.stamp()
    }

    /// Slots that hold data: the batch size, or fewer in a remainder.
    pub fn rows(&self) -> usize {
        self.claim.rows()
    }

    /// The buffer that the batch is in.
    pub fn buffer(&self) -> usize {
        self.claim.buffer()
    }

    /// Where a column of this batch starts. Reads and writes of its `rows` slots are the holder's
    /// right until the lease is dropped, except writes while a slice of [`Lease::column`] is alive.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column_pointer(&self, column: usize) -> *mut u8 {
        self.store.columns.slot_pointer(column, SlotIndex { buffer: self.claim.buffer(), slot: 0 })
    }

    /// The bytes of one column.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column(&self, column: usize) -> &[u8] {
        let bytes = self.store.columns.columns[column].slot_bytes * self.claim.rows();
        // SAFETY: inside the column by invariant 1, ours alone by invariant 2, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.column_pointer(column), bytes) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: `claim` is not used again after this.
        let claim = unsafe { ManuallyDrop::take(&mut self.claim) };
        self.store.ring.release(claim);
    }
}
