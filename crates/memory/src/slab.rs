//! Rows of equal size that come and go one by one, and readers that keep them from being used again.
//!
//! A [`Slab`] lends free rows to a [`RowWriter`], which fills and publishes them. A published row can be
//! pinned, and read through the [`Pinned`] for as long as that lives, even when the row is freed
//! meanwhile: its memory is lent again only when all readers that pinned before it was freed are done.
//! Bytes are written and read without a lock; the lock covers lists of row numbers only.
//!
//! # Invariants
//!
//! 1. A row is in just one of these: never used (`fresh` and above), `free`, with one [`RowWriter`],
//!    published (its bit in `published` is set), or freed and not yet free again (`freed`, or the rows
//!    of an `older` generation).
//! 2. Bytes of a row are written only by the `RowWriter` that has it.
//! 3. The rows of a [`Pinned`] were published when it was made, and a row that is freed after that
//!    stays out of `free` until the `Pinned`'s generation is gone.
//! 4. A row of a [`Snapshot`] that has its bit in `kept` stays out of `free` when it is freed, until the
//!    snapshot is done with it.
//! 5. A thread that frees a row that may be used again then notifies `room`: a [`RowWriter`], a [`Pinned`]
//!    and a [`Snapshot`] do it themselves, after the lock was given back. Only [`Slab::free_many`] does
//!    not: its caller may hold a lock, and notifies once it is given back.

use std::collections::VecDeque;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::block::{AllocError, Untouched};
use crate::gather::{gather, prefetch_row};
use crate::signal::Signal;
use crate::sync::{Mutex, RefCounted};

/// Numbers of rows, of which a few need no allocation.
pub type RowNumbers = SmallVec<[u32; 8]>;

/// See the [module](self).
#[derive(Debug)]
pub struct Slab {
    memory: Untouched,
    row_bytes: usize,
    rows: u32,
    /// Each section leaves it whole before anything can panic: see [`crate::sync`].
    state: Mutex<RowLists>,
    room: Arc<Signal>,
}

/// The thread that has one may be reading rows that were published while it was the current one.
#[derive(Debug, Default)]
struct Generation;

#[derive(Debug)]
struct RowLists {
    /// Rows from here on were never used: their memory is not even there yet.
    fresh: u32,
    free: Vec<u32>,
    /// A bit for each row.
    published: Vec<u64>,
    current: RefCounted<Generation>,
    /// What was freed while `current` was the current generation.
    freed: Vec<u32>,
    older: VecDeque<(RefCounted<Generation>, Vec<u32>)>,
    snapshot: Option<SnapshotPins>,
}

/// What a snapshot still wants.
#[derive(Debug)]
struct SnapshotPins {
    /// A bit for each row that was published when the snapshot was made and has not been read.
    kept: Vec<u64>,
    /// Those of them that were freed since. They come first: others wait for their memory.
    freed: Vec<u32>,
    /// Words of `kept` before this one are empty.
    cursor: usize,
}

/// In which order rows are lent next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// Rows from here on were never used. They come when no row is free.
    pub used: u32,
    /// The last comes first.
    pub free: Vec<u32>,
    /// Rows that are free once the others are in use.
    pub freed: Vec<u32>,
}

/// Rows that are one writer's alone until they are published. Dropped, they are free again.
#[derive(Debug)]
pub struct RowWriter {
    slab: Arc<Slab>,
    rows: RowNumbers,
}

/// Published rows that may be read.
#[derive(Debug)]
pub struct Pinned {
    rows: Vec<u32>,
    // Dropped in this order: first the pin ends, then the threads that wait for its rows are woken.
    _generation: RefCounted<Generation>,
    slab: Rouses,
}

/// A slab whose waiters are woken when this is dropped.
#[derive(Debug)]
struct Rouses(Arc<Slab>);

impl Deref for Rouses {
    type Target = Slab;

    fn deref(&self) -> &Slab {
        &self.0
    }
}

impl Drop for Rouses {
    fn drop(&mut self) {
        self.0.room.notify();
    }
}

/// A range of bytes of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Where it starts in the row.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

impl Slab {
    /// Room for this many rows, whose memory is taken from the system when they are first used.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the machine could never hold them all.
    pub fn new(rows: u32, row_bytes: usize) -> Result<Self, AllocError> {
        Self::with_room(rows, row_bytes, Arc::default())
    }

    /// As [`Slab::new`], with the signal on which callers wait until [`Slab::try_reserve`] may lend more.
    /// Several slabs may share it.
    pub fn with_room(rows: u32, row_bytes: usize, room: Arc<Signal>) -> Result<Self, AllocError> {
        let bytes = (rows as usize).checked_mul(row_bytes).ok_or_else(|| AllocError::Overflow {
            what: format!("a table of {rows} rows of {row_bytes} bytes"),
        })?;
        let state = RowLists {
            fresh: 0,
            free: Vec::new(),
            published: vec![0; (rows as usize).div_ceil(64)],
            current: RefCounted::default(),
            freed: Vec::new(),
            older: VecDeque::new(),
            snapshot: None,
        };
        let state = Mutex::new(state);
        Ok(Self { memory: Untouched::new(bytes)?, row_bytes, rows, state, room })
    }

    /// How many rows there are.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes that all rows together have.
    pub fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    /// How many rows were ever used.
    pub fn used(&self) -> u32 {
        self.state.lock().fresh
    }

    /// Bytes of the rows that were ever used.
    pub fn used_bytes(&self) -> usize {
        self.state.lock().fresh as usize * self.row_bytes
    }

    /// Lends up to `count` rows: fewer, perhaps none, when the others are published or still pinned.
    pub fn try_reserve(self: &Arc<Self>, count: usize) -> RowWriter {
        let mut rows = RowNumbers::new();
        let state = &mut *self.state.lock();
        while rows.len() < count {
            if let Some(row) = state.free.pop() {
                rows.push(row);
            } else if state.fresh < self.rows {
                rows.push(state.fresh);
                state.fresh += 1;
            } else if !state.recover() {
                break;
            }
        }
        RowWriter { slab: Arc::clone(self), rows }
    }

    /// Whether [`Slab::try_reserve`] would lend a row.
    pub fn has_room(&self) -> bool {
        let state = &mut *self.state.lock();
        !state.free.is_empty() || state.fresh < self.rows || state.recover()
    }

    /// Whether rows that were freed will be free once their readers are gone.
    pub fn waits_for_readers(&self) -> bool {
        let state = &mut *self.state.lock();
        let recovered = state.recover();
        let pending = !state.freed.is_empty() || !state.older.is_empty();
        pending && !recovered
    }

    /// Publishes just these rows of a slab that was never used and that nothing else has, as they were in
    /// another one of which `order` was told; [`Slab::place`] fills them. Whether they can be like that: if
    /// not, nothing has changed.
    pub fn adopt(&mut self, rows: impl Iterator<Item = u32>, order: &Order) -> bool {
        let state = self.state.get_mut();
        if state.fresh != 0 || order.used > self.rows {
            return false;
        }
        // All that came so far, each once.
        let mut known = vec![0; state.published.len()];
        let note = |known: &mut Vec<u64>, row: u32| {
            let (word, bit) = bit(row);
            if row >= order.used || known[word] & bit != 0 {
                return false;
            }
            known[word] |= bit;
            true
        };
        for row in rows {
            if !note(&mut known, row) {
                return false;
            }
        }
        let published = known.clone();
        if !order.free.iter().chain(&order.freed).all(|row| note(&mut known, *row)) {
            return false;
        }
        state.published = published;
        state.free = order.free.clone();
        state.freed = order.freed.clone();
        // Those that a thread was about to fill.
        let is_known = |row: &u32| known[*row as usize / 64] & bit(*row).1 != 0;
        state.freed.extend((0..order.used).filter(|row| !is_known(row)));
        state.fresh = order.used;
        true
    }

    /// The bytes of `count` rows from the `first` on, at least one, of a slab that nothing else has: to put
    /// rows where they were in another one. See [`Slab::adopt`] and [`Slab::settle`]. `None` when there are
    /// no such rows.
    pub fn place(&mut self, first: u32, count: u32) -> Option<&mut [u8]> {
        if count == 0 || first.checked_add(count)? > self.rows {
            return None;
        }
        let (start, bytes) = (self.start(first), count as usize * self.row_bytes);
        // SAFETY: inside the memory and initialised. Writers, pins and snapshots have an `Arc` of the
        // slab; while this is borrowed mutably there is none.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) })
    }

    /// Publishes just these rows of a slab that nothing else has; all others are free, and those from `used`
    /// on were never used. Whether there are such rows: if not, nothing has changed.
    pub fn settle(&mut self, published: impl Iterator<Item = u32>, used: u32) -> bool {
        if used > self.rows {
            return false;
        }
        let state = self.state.get_mut();
        let mut bits = vec![0; state.published.len()];
        for row in published {
            if row >= used {
                return false;
            }
            let (word, bit) = bit(row);
            bits[word] |= bit;
        }
        state.published = bits;
        let is_free = |row: &u32| {
            let (word, bit) = bit(*row);
            state.published[word] & bit == 0
        };
        // The last comes first: the rows in front, whose memory is there.
        state.free = (0..used).rev().filter(is_free).collect();
        state.freed.clear();
        // No thread is left that pinned anything.
        state.older.clear();
        state.fresh = used;
        true
    }

    /// Frees a published row.
    ///
    /// # Panics
    ///
    /// When the row is not published.
    pub fn free(&self, row: u32) {
        self.free_many([row]);
    }

    /// Frees published rows, in this order. Wakes no thread: notify the slab's room afterwards.
    ///
    /// # Panics
    ///
    /// When a row is not published.
    pub fn free_many(&self, rows: impl IntoIterator<Item = u32>) {
        let state = &mut *self.state.lock();
        for row in rows {
            let (word, bit) = bit(row);
            assert!(state.published[word] & bit != 0, "row {row} is not published");
            state.published[word] &= !bit;
            match &mut state.snapshot {
                Some(keeping) if keeping.kept[word] & bit != 0 => keeping.freed.push(row),
                _ => state.freed.push(row),
            }
        }
    }

    /// Keeps all rows that are published now as they are, until they have been read: none when there is
    /// a snapshot already.
    pub fn snapshot(self: &Arc<Self>) -> Option<Snapshot> {
        let state = &mut *self.state.lock();
        if state.snapshot.is_some() {
            return None;
        }
        let older = state.older.iter().flat_map(|(_, rows)| rows).copied();
        let order = Order {
            used: state.fresh,
            free: state.free.clone(),
            freed: older.chain(state.freed.iter().copied()).collect(),
        };
        let kept = state.published.clone();
        state.snapshot = Some(SnapshotPins { kept, freed: Vec::new(), cursor: 0 });
        Some(Snapshot { slab: Arc::clone(self), order, reading: Vec::new(), freed: 0 })
    }

    /// Keeps published rows readable, in this order; a row may be there more than once.
    ///
    /// # Panics
    ///
    /// When a row is not published.
    pub fn pin(self: &Arc<Self>, rows: Vec<u32>) -> Pinned {
        let state = self.state.lock();
        for row in &rows {
            let (word, bit) = bit(*row);
            assert!(state.published[word] & bit != 0, "row {row} is not published");
        }
        let generation = RefCounted::clone(&state.current);
        drop(state);
        Pinned { rows, _generation: generation, slab: Rouses(Arc::clone(self)) }
    }

    /// Where a row begins, if there is one of this number.
    #[inline]
    fn address(&self, row: u32) -> *const u8 {
        self.memory.pointer().as_ptr().wrapping_add(row as usize * self.row_bytes)
    }

    /// Where a row starts.
    fn start(&self, row: u32) -> NonNull<u8> {
        debug_assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: row numbers come from `try_reserve`, so they are below `rows`, and the memory has
        // `rows * row_bytes` bytes.
        unsafe { self.memory.pointer().add(row as usize * self.row_bytes) }
    }
}

fn bit(row: u32) -> (usize, u64) {
    (row as usize / 64, 1 << (row % 64))
}

impl RowLists {
    /// Makes rows free that no thread reads any more; whether there were any.
    fn recover(&mut self) -> bool {
        if !self.freed.is_empty() {
            let generation = std::mem::take(&mut self.current);
            self.older.push_back((generation, std::mem::take(&mut self.freed)));
        }
        // A row is safe from its own generation's readers and from those of all before it.
        let before = self.free.len();
        while let Some((generation, _)) = self.older.front_mut() {
            // `get_mut` sees that ours is the last reference, and what the others read before they
            // dropped theirs happened before that.
            if RefCounted::get_mut(generation).is_none() {
                break;
            }
            let Some((_, mut rows)) = self.older.pop_front() else { break };
            self.free.append(&mut rows);
        }
        self.free.len() > before
    }
}

/// The rows that were published at one moment, each to be read once, in any order. A row that is freed
/// meanwhile is read soon, so that it is not kept from being used again for long.
#[derive(Debug)]
pub struct Snapshot {
    slab: Arc<Slab>,
    order: Order,
    /// The rows that may be read: first those that were freed before they were turned to.
    reading: Vec<u32>,
    freed: usize,
}

impl Snapshot {
    /// Turns to up to `count` rows that have not been read; whether there were any.
    pub fn advance(&mut self, count: usize) -> bool {
        let slab = Arc::clone(&self.slab);
        let more = self.turn(&mut slab.state.lock(), count);
        // The rows that were turned to before may be lent again.
        slab.room.notify();
        more
    }

    fn turn(&mut self, state: &mut RowLists, count: usize) -> bool {
        self.release(state);
        let Some(keeping) = &mut state.snapshot else { return false };
        let mut waiting = std::mem::take(&mut keeping.freed);
        waiting.retain(|row| {
            let (word, bit) = bit(*row);
            if keeping.kept[word] & bit == 0 {
                // It was freed while it was being read.
                state.freed.push(*row);
                return false;
            }
            let turned = self.reading.len() < count;
            if turned {
                self.reading.push(*row);
            }
            !turned
        });
        keeping.freed = waiting;
        self.freed = self.reading.len();
        while keeping.kept.get(keeping.cursor) == Some(&0) {
            keeping.cursor += 1;
        }
        for word in keeping.cursor..keeping.kept.len() {
            // What is kept and not published was freed.
            let mut rows = keeping.kept[word] & state.published[word];
            while rows != 0 && self.reading.len() < count {
                self.reading.push(word as u32 * 64 + rows.trailing_zeros());
                rows &= rows - 1;
            }
            if self.reading.len() >= count {
                break;
            }
        }
        !self.reading.is_empty()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.slab.row_bytes
    }

    /// In which order rows would have been lent at that moment.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The rows turned to, those together that lie behind each other: their numbers, and the bytes of all.
    pub fn runs(&self) -> impl Iterator<Item = (&[u32], &[u8])> {
        self.reading.chunk_by(|row, next| row.checked_add(1) == Some(*next)).map(|rows| {
            let (start, bytes) = (self.slab.start(rows[0]), rows.len() * self.slab.row_bytes);
            // SAFETY: inside the memory and initialised. The rows were published when the snapshot was
            // made, under the lock, and their bits in `kept` are set until `release`, for which this is
            // borrowed mutably; until then, by invariant 4, no writer gets them.
            (rows, unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) })
        })
    }

    /// Lets go of the rows that were turned to.
    fn release(&mut self, state: &mut RowLists) {
        let Some(keeping) = &mut state.snapshot else { return };
        for (index, row) in self.reading.drain(..).enumerate() {
            let (word, bit) = bit(row);
            keeping.kept[word] &= !bit;
            // A row that was freed after it was turned to is in the other list.
            if index < self.freed {
                state.freed.push(row);
            }
        }
        self.freed = 0;
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let slab = Arc::clone(&self.slab);
        let mut state = slab.state.lock();
        self.release(&mut state);
        if let Some(keeping) = state.snapshot.take() {
            state.freed.extend(keeping.freed);
        }
        drop(state);
        slab.room.notify();
    }
}

impl RowWriter {
    /// The numbers of the rows.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there was no room.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The bytes of the row at this place: whatever was there before, until they are written.
    ///
    /// # Panics
    ///
    /// When there are fewer rows.
    pub fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let start = self.slab.start(self.rows[index]);
        // SAFETY: the bytes are inside the memory and initialised; by invariants 1 to 3 nothing else
        // reads or writes this row while this writer has it, and it is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.slab.row_bytes) }
    }

    /// Has the processor fetch the start of the row at this place, which is written soon; nothing when there are not
    /// this many.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        if let Some(row) = self.rows.get(index) {
            prefetch_row(self.slab.address(*row), self.slab.row_bytes);
        }
    }

    /// Lets all threads read the rows.
    pub fn publish(mut self) -> RowNumbers {
        let rows = std::mem::take(&mut self.rows);
        let mut state = self.slab.state.lock();
        for row in &rows {
            let (word, bit) = bit(*row);
            state.published[word] |= bit;
        }
        rows
    }
}

impl Drop for RowWriter {
    fn drop(&mut self) {
        if !self.rows.is_empty() {
            self.slab.state.lock().free.extend_from_slice(&self.rows);
            self.slab.room.notify();
        }
    }
}

impl Pinned {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The bytes of the row at this place.
    ///
    /// # Panics
    ///
    /// When there are fewer rows.
    pub fn row(&self, index: usize) -> &[u8] {
        let start = self.slab.start(self.rows[index]);
        // SAFETY: inside the memory and initialised; by invariants 2 and 3 no thread writes the row
        // while this pin lives. The writer's bytes are seen: it published them under the lock under
        // which the pin was made.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.slab.row_bytes) }
    }

    /// Copies each field of all rows, one after the other, into its column.
    ///
    /// # Panics
    ///
    /// When a field is not inside a row, or its column is not as long as all its values.
    pub fn gather(&self, fields: &[Field], columns: &mut [&mut [u8]]) {
        let start = |at: usize| self.slab.address(self.rows[at]);
        gather(self.len(), self.slab.row_bytes, start, |at| self.row(at), fields, columns);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slab(rows: u32) -> Arc<Slab> {
        Arc::new(Slab::new(rows, 8).unwrap())
    }

    fn put(slab: &Arc<Slab>, value: u64) -> u32 {
        let mut writer = slab.try_reserve(1);
        writer.row_mut(0).copy_from_slice(&value.to_le_bytes());
        writer.publish()[0]
    }

    fn value(pinned: &Pinned, index: usize) -> u64 {
        u64::from_le_bytes(pinned.row(index).try_into().unwrap())
    }

    #[test]
    fn a_pinned_row_keeps_its_bytes_after_it_was_freed() {
        let slab = slab(2);
        let (one, _two) = (put(&slab, 1), put(&slab, 2));
        let pinned = slab.pin(vec![one, one]);
        slab.free(one);
        assert!(slab.try_reserve(1).is_empty(), "the only free row is pinned");
        assert_eq!((value(&pinned, 0), value(&pinned, 1)), (1, 1));
        drop(pinned);
        assert_eq!(put(&slab, 3), one);
    }

    #[test]
    fn a_freed_row_that_is_being_read_is_waited_for() {
        let slab = slab(1);
        let row = put(&slab, 1);
        let pinned = slab.pin(vec![row]);
        assert!(!slab.waits_for_readers());
        slab.free(row);
        assert!(slab.waits_for_readers());
        drop(pinned);
        assert!(!slab.waits_for_readers() && slab.try_reserve(1).len() == 1);
    }

    #[test]
    fn a_later_pin_does_not_keep_an_earlier_free() {
        let slab = slab(2);
        let (one, two) = (put(&slab, 1), put(&slab, 2));
        slab.free(one);
        assert_eq!(slab.try_reserve(1).len(), 1, "a new generation begins here");
        let pinned = slab.pin(vec![two]);
        assert_eq!(put(&slab, 3), one);
        assert_eq!(value(&pinned, 0), 2);
    }

    #[test]
    fn a_dropped_writer_gives_its_rows_back() {
        let slab = slab(3);
        assert_eq!(slab.try_reserve(5).len(), 3);
        assert_eq!(slab.try_reserve(2).len(), 2);
        assert_eq!(slab.used_bytes(), 24);
    }

    #[test]
    fn rows_are_adopted_into_a_fresh_slab_only() {
        let adopt = |slab: &mut Arc<Slab>, rows: &[u32], used, free: &[u32], freed: &[u32]| {
            let order = Order { used, free: free.into(), freed: freed.into() };
            Arc::get_mut(slab).unwrap().adopt(rows.iter().copied(), &order)
        };
        assert!(!adopt(&mut slab(6), &[1, 1], 3, &[], &[]), "twice");
        assert!(!adopt(&mut slab(6), &[1], 3, &[0, 1], &[]), "published and free");
        assert!(!adopt(&mut slab(6), &[3], 3, &[], &[]), "not below the end");
        assert!(!adopt(&mut slab(6), &[], 3, &[3], &[]), "not below the end");
        assert!(!adopt(&mut slab(6), &[0], 7, &[], &[]), "more rows than there are");
        let mut slab = slab(6);
        assert!(adopt(&mut slab, &[2, 0], 5, &[1], &[3]));
        Arc::get_mut(&mut slab).unwrap().place(2, 1).unwrap().fill(7);
        assert_eq!(value(&slab.pin(vec![2, 0]), 0), u64::from_ne_bytes([7; 8]));
        assert_eq!(slab.try_reserve(9).rows(), [1, 5, 4, 3]);
        assert!(!adopt(&mut slab, &[], 0, &[], &[]), "it is in use");
    }

    #[test]
    #[should_panic(expected = "row 1 is not published")]
    fn a_refused_adoption_publishes_nothing() {
        let mut slab = slab(6);
        let order = Order { used: 3, free: [].into(), freed: [].into() };
        assert!(!Arc::get_mut(&mut slab).unwrap().adopt([1, 1].into_iter(), &order));
        slab.free(1);
    }

    #[test]
    #[should_panic(expected = "row 1 is not published")]
    fn a_refused_settling_publishes_nothing() {
        let mut slab = slab(6);
        assert!(!Arc::get_mut(&mut slab).unwrap().settle([1, 9].into_iter(), 6));
        slab.free(1);
    }

    #[test]
    #[should_panic(expected = "not published")]
    fn a_row_that_is_being_written_cannot_be_pinned() {
        let slab = slab(1);
        let writer = slab.try_reserve(1);
        let _ = slab.pin(vec![writer.rows()[0]]);
    }

    /// Rows hold their own number; a snapshot reads each that there was just once, whatever happens
    /// meanwhile, and nothing is lost of the memory.
    #[test]
    fn a_snapshot_reads_what_was_there_while_rows_are_replaced() {
        for (step, replaced) in [(1, 0), (3, 2), (7, 7), (64, 30), (1000, 5)] {
            let slab = slab(130);
            let mut rows: VecDeque<u32> = (0..100).map(|value| put(&slab, value)).collect();
            let mut snapshot = slab.snapshot().unwrap();
            assert!(slab.snapshot().is_none(), "there is one already");
            let (mut seen, mut next) = (Vec::new(), 1000);
            while snapshot.advance(step) {
                // Some of the rows that are being read are freed now, and some before their turn.
                for _ in 0..replaced {
                    slab.free(rows.pop_front().unwrap());
                    if !slab.try_reserve(1).is_empty() {
                        rows.push_back(put(&slab, next));
                        next += 1;
                    }
                    if rows.len() < 10 {
                        break;
                    }
                }
                for (rows, bytes) in snapshot.runs() {
                    assert!(rows.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                    let values = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
                    let before = seen.len();
                    seen.extend(values);
                    assert_eq!(seen.len() - before, rows.len());
                }
                if rows.len() < 10 {
                    break;
                }
            }
            if rows.len() >= 10 {
                seen.sort_unstable();
                assert_eq!(seen, (0..100).collect::<Vec<_>>(), "{step} rows at a time");
            }
            drop(snapshot);
            let free = slab.try_reserve(130).len();
            assert_eq!(free + rows.len(), 130, "{step} rows at a time");
            assert!(slab.snapshot().is_some());
        }
    }

    #[test]
    fn rows_are_put_where_they_were_and_the_others_are_free() {
        let mut slab = slab(70);
        {
            let alone = Arc::get_mut(&mut slab).unwrap();
            for row in [3, 66] {
                alone.place(row, 1).unwrap().fill(row as u8);
            }
            assert!(alone.place(69, 1).is_some() && alone.place(69, 2).is_none());
            assert!(alone.place(u32::MAX, 1).is_none() && alone.place(0, 0).is_none());
            let none =
                |alone: &mut Slab, rows: [u32; 2], used| !alone.settle(rows.into_iter(), used);
            assert!(none(alone, [3, 68], 68) && none(alone, [3, 4], 71));
            assert!(alone.settle([3, 66].into_iter(), 68));
        }
        let pinned = slab.pin(vec![66, 3]);
        assert!(pinned.row(0).iter().all(|byte| *byte == 66));
        assert!(pinned.row(1).iter().all(|byte| *byte == 3));
        drop(pinned);
        let writer = slab.try_reserve(70);
        let expected = (0..70).filter(|row| ![3, 66].contains(row));
        assert!(writer.rows().iter().copied().eq(expected), "{:?}", writer.rows());
    }

    #[test]
    fn readers_see_whole_rows_while_writers_replace_them() {
        let slab = Arc::new(Slab::new(64, 256).unwrap());
        let published = Mutex::new(Vec::new());
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for writer in 0..2u8 {
                let (slab, published) = (&slab, &published);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let mut row = slab.try_reserve(1);
                        if row.is_empty() {
                            continue;
                        }
                        row.row_mut(0).fill((round % 100) as u8 * 2 + writer);
                        let mut published = published.lock();
                        published.extend(row.publish());
                        if published.len() > 20 {
                            let oldest = published.remove(0);
                            slab.free(oldest);
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let known = published.lock();
                        let pinned = slab.pin(known.clone());
                        drop(known);
                        for index in 0..pinned.len() {
                            let row = pinned.row(index);
                            assert!(row.iter().all(|byte| *byte == row[0]));
                        }
                    }
                });
            }
        });
    }
}
