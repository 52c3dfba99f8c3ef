//! A ring of batches and the column memory that its slots stand for.
//!
//! A [`BatchStore`] lays out one column per leaf: `buffers × batch_size` slots of that leaf's size,
//! so every batch is contiguous in every column. A [`Writer`] is a reserved run of slots with access
//! to their bytes; a [`Lease`] is a whole batch with access to its bytes. Neither can be copied, and
//! a lease keeps the store alive, so a batch outlives whoever made the store.
//!
//! # Invariants
//!
//! 1. Column `c` of buffer `b` occupies `columns[c].batch_stride` bytes from
//!    `columns[c].offset + b * batch_stride`, inside the block, and overlaps no other.
//! 2. Bytes of a slot are touched only through the [`Run`] or [`Claim`] that owns the slot
//!    (invariants 1 to 4 of [`crate::ring`]), or by `settle`, which owns all that is left.
//!
//! # Limitations
//!
//! Slots have one size per column. Values of varying length belong in chunks, not in a ring.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;

use crate::block::{self, ALIGNMENT, AllocError, Block};
use crate::ring::{Claim, Counts, Place, Refusal, Ring, Run};

/// Where a column lies in the block.
#[derive(Debug, Clone, Copy)]
struct Column {
    offset: usize,
    slot_bytes: usize,
    /// Bytes from one batch to the next: the batch, rounded up so that each starts aligned.
    batch_stride: usize,
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
    block: Block,
    columns: Box<[Column]>,
}

/// Reserved slots of one batch and their bytes. Dropping it without a commit frees the slots.
#[derive(Debug)]
#[must_use = "a writer that is dropped stores nothing"]
pub struct Writer<'a> {
    store: &'a BatchStore,
    run: Run<'a>,
}

/// A batch that is the holder's alone until dropped.
#[derive(Debug)]
pub struct Lease {
    store: Arc<BatchStore>,
    claim: ManuallyDrop<Claim>,
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
        let slots = buffers.checked_mul(batch_size).filter(|slots| *slots < usize::MAX / 2);
        // The ring's own memory counts too: with leaves of no bytes it is all there is.
        let bookkeeping =
            (slots.ok_or_else(overflow)? / 8).saturating_add(buffers.saturating_mul(1024));
        block::check_available(total.saturating_add(bookkeeping))?;
        let block = Block::new(total)?;
        Ok(Self { ring: Ring::new(buffers, batch_size), block, columns: columns.into() })
    }

    /// Reserves up to `len` slots without waiting. See [`Ring::try_reserve`].
    ///
    /// # Errors
    ///
    /// As [`Ring::try_reserve`].
    #[inline]
    pub fn try_reserve(&self, len: usize) -> Result<Writer<'_>, Refusal> {
        Ok(Writer { store: self, run: self.ring.try_reserve(len)? })
    }

    /// Takes the next batch if it is complete.
    pub fn try_take(self: &Arc<Self>) -> Option<Lease> {
        Some(self.lease(self.ring.try_take()?))
    }

    /// Takes the next batch, waiting for it until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`Ring::take`].
    pub fn take(self: &Arc<Self>, deadline: Option<Instant>) -> Result<Lease, Refusal> {
        self.ring.take(deadline, |from, to| self.move_row(from, to)).map(|claim| self.lease(claim))
    }

    /// After a close: the samples that do not fill a batch, once; waits for the last writers.
    ///
    /// # Errors
    ///
    /// [`Refusal::Blocked`] when writers are still at work at `deadline`.
    ///
    /// # Panics
    ///
    /// When the store is not closed.
    pub fn take_remainder(
        self: &Arc<Self>,
        deadline: Option<Instant>,
    ) -> Result<Option<Lease>, Refusal> {
        while !self.ring.settle(|from, to| self.move_row(from, to)) {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Refusal::Blocked(crate::Blocked::Empty));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(self.ring.take_remainder().map(|claim| self.lease(claim)))
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
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Refusal> {
        self.ring.wait_for_room(deadline)
    }

    /// Has `waker` called once when a reservation may succeed, or the store was closed. See
    /// [`Ring::wake_on_room`].
    pub fn wake_on_room(&self, waker: &std::task::Waker) {
        self.ring.wake_on_room(waker);
    }

    /// A look at the states of all slots.
    pub fn counts(&self) -> Counts {
        self.ring.counts()
    }

    /// How many bytes were allocated.
    pub fn memory_bytes(&self) -> usize {
        self.block.len()
    }

    /// Where a slot of a column starts.
    ///
    /// # Panics
    ///
    /// When the column, the buffer or the slot does not exist.
    fn slot_pointer(&self, column: usize, place: Place) -> *mut u8 {
        let column = self.columns[column];
        assert!(place.buffer < self.ring.buffers() && place.slot < self.ring.batch_size());
        let offset =
            column.offset + place.buffer * column.batch_stride + place.slot * column.slot_bytes;
        // SAFETY: invariant 1; buffer and slot are in range by the assertion.
        unsafe { self.block.pointer().as_ptr().add(offset) }
    }

    /// Copies one slot of every column. Called by `settle` only, which owns both places.
    fn move_row(&self, from: Place, to: Place) {
        for column in 0..self.columns.len() {
            let bytes = self.columns[column].slot_bytes;
            let (from, to) = (self.slot_pointer(column, from), self.slot_pointer(column, to));
            // SAFETY: both are slots of `bytes` bytes (invariant 1), distinct because `settle` moves
            // rows into holes, and nobody else may touch them (invariant 2).
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
        let bytes = self.store.columns[column].slot_bytes * self.run.len();
        let place = Place { buffer: self.run.buffer(), slot: self.run.first() };
        let pointer = self.store.slot_pointer(column, place);
        // SAFETY: the run's slots are contiguous and inside the column (invariant 1), ours alone
        // while the run lives (invariant 2), initialised by the block, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(pointer, bytes) }
    }

    /// The bytes of the reserved slots in every column at once, in the order of the columns: for
    /// one system call that reads into all of them.
    pub fn columns_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let place = Place { buffer: self.run.buffer(), slot: self.run.first() };
        let (store, slots) = (self.store, self.run.len());
        store.columns.iter().enumerate().map(move |(index, column)| {
            let pointer = store.slot_pointer(index, place);
            // SAFETY: as in `column_mut`; columns do not overlap (invariant 1), and each is handed
            // out once, borrowed with `self`.
            unsafe { std::slice::from_raw_parts_mut(pointer, column.slot_bytes * slots) }
        })
    }

    /// Declares the slots written. See [`Run::commit`].
    #[inline]
    pub fn commit(self, stamp: impl FnOnce() -> u64) {
        self.run.commit(stamp);
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
        self.store.slot_pointer(column, Place { buffer: self.claim.buffer(), slot: 0 })
    }

    /// The bytes of one column.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column(&self, column: usize) -> &[u8] {
        let bytes = self.store.columns[column].slot_bytes * self.claim.rows();
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
