//! Rows of equal size that come and go one by one, and readers that keep them from being used again.
//!
//! A [`Slab`] lends free rows to a [`RowWriter`], which fills and publishes them. A published row can be
//! pinned, and read through the [`Pinned`] for as long as that lives, even when the row is freed
//! meanwhile: its memory is lent again only when everybody who pinned before it was freed is done.
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

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::block::{AllocError, Untouched};
use crate::prefetch::prefetch_at;

/// Numbers of rows, of which a few need no allocation.
pub type RowNumbers = SmallVec<[u32; 8]>;

/// How many rows ahead of the copy the memory is asked for.
const AHEAD: usize = 16;

/// See the [module](self).
#[derive(Debug)]
pub struct Slab {
    memory: Untouched,
    row_bytes: usize,
    rows: u32,
    state: Mutex<State>,
}

/// Whoever has one may be reading rows that were published while it was the current one.
#[derive(Debug, Default)]
struct Generation;

#[derive(Debug)]
struct State {
    /// Rows from here on were never used: their memory is not even there yet.
    fresh: u32,
    free: Vec<u32>,
    /// A bit for each row.
    published: Vec<u64>,
    current: Arc<Generation>,
    /// What was freed while `current` was the current generation.
    freed: Vec<u32>,
    older: VecDeque<(Arc<Generation>, Vec<u32>)>,
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
    slab: Arc<Slab>,
    rows: Vec<u32>,
    _generation: Arc<Generation>,
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
    /// Room for so many rows, whose memory is taken from the system when they are first used.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the machine could never hold them all.
    pub fn new(rows: u32, row_bytes: usize) -> Result<Self, AllocError> {
        let bytes = (rows as usize).checked_mul(row_bytes).ok_or_else(|| AllocError::Overflow {
            what: format!("a table of {rows} rows of {row_bytes} bytes"),
        })?;
        let state = State {
            fresh: 0,
            free: Vec::new(),
            published: vec![0; (rows as usize).div_ceil(64)],
            current: Arc::default(),
            freed: Vec::new(),
            older: VecDeque::new(),
        };
        Ok(Self { memory: Untouched::new(bytes)?, row_bytes, rows, state: Mutex::new(state) })
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

    /// Bytes of the rows that were ever used.
    pub fn used_bytes(&self) -> usize {
        self.lock().fresh as usize * self.row_bytes
    }

    /// Lends up to `count` rows: fewer, perhaps none, when the others are published or still pinned.
    pub fn try_reserve(self: &Arc<Self>, count: usize) -> RowWriter {
        let mut rows = RowNumbers::new();
        let state = &mut *self.lock();
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

    /// Frees a published row.
    ///
    /// # Panics
    ///
    /// When the row is not published.
    pub fn free(&self, row: u32) {
        let state = &mut *self.lock();
        let (word, bit) = bit(row);
        assert!(state.published[word] & bit != 0, "row {row} is not published");
        state.published[word] &= !bit;
        state.freed.push(row);
    }

    /// Keeps published rows readable, in this order; a row may be there more than once.
    ///
    /// # Panics
    ///
    /// When a row is not published.
    pub fn pin(self: &Arc<Self>, rows: Vec<u32>) -> Pinned {
        let state = self.lock();
        for row in &rows {
            let (word, bit) = bit(*row);
            assert!(state.published[word] & bit != 0, "row {row} is not published");
        }
        let generation = Arc::clone(&state.current);
        drop(state);
        Pinned { slab: Arc::clone(self), rows, _generation: generation }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every section leaves the state whole before anything in it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

impl State {
    /// Makes rows free that nobody reads any more; whether there were any.
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
            if Arc::get_mut(generation).is_none() {
                break;
            }
            let Some((_, mut rows)) = self.older.pop_front() else { break };
            self.free.append(&mut rows);
        }
        self.free.len() > before
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
    /// When there are not so many rows.
    pub fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let start = self.slab.start(self.rows[index]);
        // SAFETY: the bytes are inside the memory and initialised; by invariants 1 to 3 nobody else
        // reads or writes this row while this writer has it, and it is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.slab.row_bytes) }
    }

    /// Lets everybody read the rows.
    pub fn publish(mut self) -> RowNumbers {
        let rows = std::mem::take(&mut self.rows);
        let mut state = self.slab.lock();
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
            self.slab.lock().free.extend_from_slice(&self.rows);
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
    /// When there are not so many rows.
    pub fn row(&self, index: usize) -> &[u8] {
        let start = self.slab.start(self.rows[index]);
        // SAFETY: inside the memory and initialised; by invariants 2 and 3 nobody writes the row
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
        assert_eq!(fields.len(), columns.len(), "a column for each field");
        for (field, column) in fields.iter().zip(columns.iter()) {
            let inside = field.offset.checked_add(field.bytes);
            assert!(inside.is_some_and(|end| end <= self.slab.row_bytes), "{field:?}");
            assert_eq!(field.bytes.checked_mul(self.len()), Some(column.len()), "{field:?}");
        }
        for row in self.rows.iter().take(AHEAD) {
            self.ask_for(*row);
        }
        for index in 0..self.rows.len() {
            if let Some(row) = self.rows.get(index + AHEAD) {
                self.ask_for(*row);
            }
            let row = self.row(index);
            for (field, column) in fields.iter().zip(columns.iter_mut()) {
                let from = &row[field.offset..field.offset + field.bytes];
                let to = &mut column[index * field.bytes..(index + 1) * field.bytes];
                copy(from, to);
            }
        }
    }

    /// Has the processor fetch the start and the end of a row; long rows it follows by itself.
    #[inline]
    fn ask_for(&self, row: u32) {
        let start = self.slab.start(row);
        prefetch_at(start.as_ptr());
        let last = self.slab.row_bytes.clamp(1, 256) - 1;
        for line in (64..=last).step_by(64) {
            prefetch_at(start.as_ptr().wrapping_add(line));
        }
        prefetch_at(start.as_ptr().wrapping_add(last));
    }
}

/// A copy whose common sizes are single instructions, not a call.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    match from.len() {
        4 => to[..4].copy_from_slice(&from[..4]),
        8 => to[..8].copy_from_slice(&from[..8]),
        16 => to[..16].copy_from_slice(&from[..16]),
        _ => to.copy_from_slice(from),
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
    #[should_panic(expected = "not published")]
    fn a_row_that_is_being_written_cannot_be_pinned() {
        let slab = slab(1);
        let writer = slab.try_reserve(1);
        let _ = slab.pin(vec![writer.rows()[0]]);
    }

    #[test]
    fn gathers_fields_of_every_size() {
        let sizes = [0, 1, 4, 8, 16, 23];
        let slab = Arc::new(Slab::new(100, sizes.iter().sum()).unwrap());
        let mut rows = Vec::new();
        for number in 0..100u8 {
            let mut writer = slab.try_reserve(1);
            writer.row_mut(0).fill(number);
            rows.extend(writer.publish());
        }
        let order: Vec<u32> = (0..300).map(|draw| rows[draw * 7 % 100]).collect();
        let pinned = slab.pin(order);
        let mut offset = 0;
        let fields = sizes.map(|bytes| {
            offset += bytes;
            Field { offset: offset - bytes, bytes }
        });
        let mut columns = sizes.map(|bytes| vec![255; bytes * 300]);
        let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
        pinned.gather(&fields, &mut targets);
        for (bytes, column) in sizes.into_iter().zip(&columns) {
            let expected = (0..300).flat_map(|draw| vec![(draw * 7 % 100) as u8; bytes]);
            assert!(column.iter().copied().eq(expected), "{bytes} bytes");
        }
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
                        let mut published = published.lock().unwrap();
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
                        let known = published.lock().unwrap();
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
