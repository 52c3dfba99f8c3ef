//! Rows of equal size in the order in which they came: the newest are put on at one end, the oldest fall
//! off at the other.
//!
//! A row has a *position*: how many came before it, ever. A [`RowRing`] keeps the last `kept` of them readable:
//! those are its *window*. A writer reserves a [`RowReservation`] of positions, fills their rows and publishes them;
//! a [`Reader`] may read all that was in the window when it came, for as long as it lives. Bytes are written
//! and read without a lock; the lock covers a few counters only.
//!
//! There are more slots than kept rows, so that writers can go on for a while behind a reader that takes
//! its time. When they have used up that *slack* they wait for it: a reader is meant to live as long as a
//! copy takes.
//!
//! # Invariants
//!
//! 1. The row of position `p` lies in slot `p % slots`.
//! 2. `reserved <= published + slack`, where `slots = kept + slack`: no reservation has the slot of a row in the
//!    window.
//! 3. `reserved <= floor + slots` for the floor of every reader: no reservation has the slot of a row at or
//!    above the floor.
//! 4. Every position below `reserved` was reserved by one reservation, and by no other.
//! 5. All positions below `published` have been published, and their reservations are gone.

use std::ops::Range;
use std::ptr::NonNull;

use smallvec::SmallVec;

use crate::block::{AllocError, Untouched};
use crate::gather::{gather, prefetch_row};
use crate::slab::Field;
use crate::sync::{Condvar, Mutex};

/// See the [module](self).
///
/// ```
/// use echoic_memory::row_ring::RowRing;
///
/// let ring = RowRing::new(2, 4)?;
/// for value in 1..=3u32 {
///     let mut reservation = ring.reserve(1);
///     reservation.row_mut(0).copy_from_slice(&value.to_le_bytes());
///     reservation.publish();
/// }
/// let reader = ring.read();
/// assert_eq!(reader.window(), 1..3);
/// assert_eq!(reader.row(1), 2u32.to_le_bytes());
/// # Ok::<(), echoic_memory::AllocError>(())
/// ```
#[derive(Debug)]
pub struct RowRing {
    memory: Untouched,
    row_bytes: usize,
    kept: u64,
    slots: u64,
    /// Each section leaves it whole before anything can panic: see [`crate::sync`].
    state: Mutex<RingPositions>,
    /// Notified when a reservation is published or a reader is dropped.
    moved: Condvar,
}

#[derive(Debug, Default)]
struct RingPositions {
    reserved: u64,
    published: u64,
    /// Nothing below is in the window any more, however short it is.
    cleared: u64,
    /// Reservations that were published while an earlier one was not.
    early: Vec<Range<u64>>,
    /// The floor of each reader, in no order.
    floors: SmallVec<[u64; 4]>,
    /// How many threads wait, so that nothing else pays for telling them.
    waiting: u32,
}

impl RingPositions {
    fn window(&self, kept: u64) -> Range<u64> {
        self.published.saturating_sub(kept).max(self.cleared)..self.published
    }
}

/// Positions that are one writer's alone until they are published.
///
/// Dropped without that, their rows are published as zeros: there is no hole on a ring. A writer does all
/// that can fail before it reserves.
#[derive(Debug)]
pub struct RowReservation<'a> {
    ring: &'a RowRing,
    positions: Range<u64>,
}

/// The window as it was when this was made.
#[derive(Debug)]
pub struct Reader<'a> {
    ring: &'a RowRing,
    window: Range<u64>,
    /// The slot where the window begins.
    first_slot: u64,
}

impl RowRing {
    /// A row ring that keeps this many rows, whose memory is taken from the system when they are first used.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the machine could never hold them all.
    pub fn new(kept: u64, row_bytes: usize) -> Result<Self, AllocError> {
        let overflow =
            || AllocError::Overflow { what: format!("{kept} rows of {row_bytes} bytes") };
        // A sixteenth more, but for short row rings, where it would be nothing, and for long ones, where it
        // would be longer than any copy takes.
        let slack = (kept / 16).clamp(16, 4096);
        let slots = kept.checked_add(slack).ok_or_else(overflow)?;
        let bytes = usize::try_from(slots).ok().and_then(|slots| slots.checked_mul(row_bytes));
        Ok(Self {
            memory: Untouched::new(bytes.ok_or_else(overflow)?)?,
            row_bytes,
            kept,
            slots,
            state: Mutex::default(),
            moved: Condvar::new(),
        })
    }

    /// How many rows are kept.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// How many bytes a row has.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// How many rows there is room for: those that are kept and the slack.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// How many rows can be reserved at once.
    pub fn slack(&self) -> u64 {
        self.slots - self.kept
    }

    /// Bytes of the rows that were ever used: the system has given these.
    pub fn used_bytes(&self) -> usize {
        let used = self.state.lock().reserved.min(self.slots);
        used as usize * self.row_bytes
    }

    /// Which positions can be read now.
    pub fn window(&self) -> Range<u64> {
        self.state.lock().window(self.kept)
    }

    /// Positions for this many rows; none while readers or other writers are in the way.
    ///
    /// # Panics
    ///
    /// When it is more than the slack, for which there is never room.
    #[inline]
    pub fn try_reserve(&self, rows: u64) -> Option<RowReservation<'_>> {
        let mut state = self.state.lock();
        if !self.has_room(&state, rows) {
            return None;
        }
        let positions = state.reserved..state.reserved + rows;
        state.reserved = positions.end;
        Some(RowReservation { ring: self, positions })
    }

    /// As [`RowRing::try_reserve`], waiting for readers and other writers.
    ///
    /// # Panics
    ///
    /// As [`RowRing::try_reserve`].
    pub fn reserve(&self, rows: u64) -> RowReservation<'_> {
        loop {
            if let Some(reservation) = self.try_reserve(rows) {
                return reservation;
            }
            self.wait_for_room(rows);
        }
    }

    /// Waits until this many rows could be reserved. Another thread may be quicker to do so.
    ///
    /// # Panics
    ///
    /// As [`RowRing::try_reserve`].
    pub fn wait_for_room(&self, rows: u64) {
        let mut state = self.state.lock();
        while !self.has_room(&state, rows) {
            state.waiting += 1;
            state = self.moved.wait(state);
            state.waiting -= 1;
        }
    }

    /// Whether invariants 2 and 3 would hold with this many rows more.
    #[inline]
    fn has_room(&self, state: &RingPositions, rows: u64) -> bool {
        assert!(rows <= self.slack(), "{rows} rows at once, of at most {}", self.slack());
        let end = state.reserved + rows;
        let floor = state.floors.iter().copied().min().unwrap_or(u64::MAX - self.slots);
        end <= state.published + self.slack() && end <= floor + self.slots
    }

    /// Everything in the window, to be read.
    #[inline]
    pub fn read(&self) -> Reader<'_> {
        let mut state = self.state.lock();
        let window = state.window(self.kept);
        state.floors.push(window.start);
        drop(state);
        Reader { ring: self, first_slot: window.start % self.slots, window }
    }

    /// Empties the window. Rows that are being written now will be in it.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.cleared = state.published;
    }

    /// Drops the oldest rows from the window, before they would fall off; how many that were.
    pub fn drop_oldest(&self, rows: u64) -> u64 {
        let mut state = self.state.lock();
        let window = state.window(self.kept);
        state.cleared = window.start + rows.min(window.end - window.start);
        state.cleared - window.start
    }

    /// Empties the window and has the next row get this position; whether it could, which takes that nobody
    /// reads or writes.
    pub fn restart(&self, position: u64) -> bool {
        let mut state = self.state.lock();
        let quiet = state.reserved == state.published && state.floors.is_empty();
        // Far enough from the end of all numbers that none is ever reached.
        if quiet && position < 1 << 62 {
            (state.reserved, state.published, state.cleared) = (position, position, position);
            return true;
        }
        false
    }

    /// Where the row in a slot starts.
    #[inline]
    fn start(&self, slot: u64) -> NonNull<u8> {
        assert!(slot < self.slots);
        // SAFETY: the memory has `slots * row_bytes` bytes.
        unsafe { self.memory.pointer().add(slot as usize * self.row_bytes) }
    }

    /// Publishes these positions, and says which are now below `published` that were not.
    #[inline]
    fn publish(&self, positions: Range<u64>) -> Range<u64> {
        let mut state = self.state.lock();
        let before = state.published;
        if positions.start == before {
            state.published = positions.end;
            while let Some(next) =
                state.early.iter().position(|range| range.start == state.published)
            {
                state.published = state.early.swap_remove(next).end;
            }
        } else {
            state.early.push(positions);
        }
        let now = before..state.published;
        let tell = state.waiting > 0;
        drop(state);
        if tell {
            self.moved.notify_all();
        }
        now
    }
}

impl RowReservation<'_> {
    /// Which positions these are.
    pub fn positions(&self) -> Range<u64> {
        self.positions.clone()
    }

    /// The bytes of the row at this place of the reservation: whatever was there before, until they are
    /// written.
    ///
    /// # Panics
    ///
    /// When there are fewer rows.
    #[inline]
    pub fn row_mut(&mut self, index: u64) -> &mut [u8] {
        assert!(index < self.positions.end - self.positions.start);
        let start = self.ring.start((self.positions.start + index) % self.ring.slots);
        // SAFETY: inside the memory and initialised; by invariants 2 to 4 nothing else reads or writes the
        // rows of these positions, and the reservation is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.ring.row_bytes) }
    }

    /// All rows, one behind the other: the first part lies before the end of the memory, and the second,
    /// which may be empty, at its beginning.
    #[inline]
    pub fn rows_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        let ring = self.ring;
        let rows = self.positions.end - self.positions.start;
        if rows == 0 {
            return (&mut [], &mut []);
        }
        let slot = self.positions.start % ring.slots;
        let before = rows.min(ring.slots - slot);
        let part = |slot: u64, rows: u64| (ring.start(slot), rows as usize * ring.row_bytes);
        let (start, bytes) = part(slot, before);
        // SAFETY: as in `row_mut`, for consecutive rows; `before` of them fit behind `slot`.
        let first = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) };
        let (start, bytes) = part(0, rows - before);
        // SAFETY: as above. The slots of a reservation are no more than there are, so these end before `slot`.
        let second = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) };
        (first, second)
    }

    /// Lets all threads read the rows, once all earlier ones are published. Says which positions can now be
    /// read that could not before: none while an earlier reservation is being written, and that one's too when
    /// it was waited for.
    #[inline]
    pub fn publish(self) -> Range<u64> {
        let reservation = std::mem::ManuallyDrop::new(self);
        reservation.ring.publish(reservation.positions.clone())
    }
}

impl Drop for RowReservation<'_> {
    fn drop(&mut self) {
        let (first, second) = self.rows_mut();
        first.fill(0);
        second.fill(0);
        self.ring.publish(self.positions.clone());
    }
}

impl Reader<'_> {
    /// Which positions may be read.
    #[inline]
    pub fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// In which slot the row of a position lies.
    ///
    /// # Panics
    ///
    /// When it is not in the window.
    #[inline]
    fn slot(&self, position: u64) -> u64 {
        assert!(self.window.contains(&position), "{position} is not in {:?}", self.window);
        let slot = self.first_slot + (position - self.window.start);
        if slot < self.ring.slots { slot } else { slot - self.ring.slots }
    }

    /// The bytes of the row of a position.
    ///
    /// # Panics
    ///
    /// When it is not in the window.
    #[inline]
    pub fn row(&self, position: u64) -> &[u8] {
        let start = self.ring.start(self.slot(position));
        // SAFETY: inside the memory and initialised. By invariants 3 and 5 the row was published when this
        // reader was made, and no thread writes its slot while this lives; the writer's bytes are seen, since
        // it published them under the lock under which the reader was made.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.ring.row_bytes) }
    }

    /// Has the processor fetch a row that will be read soon.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        prefetch_row(self.address(position), self.ring.row_bytes);
    }

    /// Where the row of a position begins.
    #[inline]
    fn address(&self, position: u64) -> *const u8 {
        let slot = self.slot(position) as usize;
        self.ring.memory.pointer().as_ptr().wrapping_add(slot * self.ring.row_bytes)
    }

    /// Copies each field of the rows of these positions, one after the other, into its column.
    ///
    /// # Panics
    ///
    /// When a position is not in the window, a field not inside a row, or a column not as long as all its
    /// values.
    pub fn gather(&self, positions: &[u64], fields: &[Field], columns: &mut [&mut [u8]]) {
        let start = |at: usize| self.address(positions[at]);
        let row = |at: usize| self.row(positions[at]);
        gather(positions.len(), self.ring.row_bytes, start, row, fields, columns);
    }
}

impl Drop for Reader<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut state = self.ring.state.lock();
        // Readers with one floor are alike.
        if let Some(at) = state.floors.iter().position(|floor| *floor == self.window.start) {
            state.floors.swap_remove(at);
        }
        let tell = state.waiting > 0;
        drop(state);
        if tell {
            self.ring.moved.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn put(ring: &RowRing, value: u64) -> Range<u64> {
        let mut reservation = ring.reserve(1);
        reservation.row_mut(0).copy_from_slice(&value.to_le_bytes());
        reservation.publish()
    }

    fn value(reader: &Reader<'_>, position: u64) -> u64 {
        u64::from_le_bytes(reader.row(position).try_into().unwrap())
    }

    #[test]
    fn the_window_has_the_last_rows() {
        let ring = RowRing::new(3, 8).unwrap();
        assert_eq!(ring.window(), 0..0);
        for round in 0..100u64 {
            assert_eq!(put(&ring, round * 7), round..round + 1);
            let reader = ring.read();
            assert_eq!(reader.window(), (round + 1).saturating_sub(3)..round + 1);
            for position in reader.window() {
                assert_eq!(value(&reader, position), position * 7);
            }
        }
        ring.clear();
        assert!(ring.window().is_empty());
        put(&ring, 1);
        assert_eq!(ring.window(), 100..101);
        assert_eq!((ring.drop_oldest(5), ring.window()), (1, 101..101));
        assert_eq!(ring.used_bytes(), 19 * 8);
    }

    #[test]
    fn a_reader_keeps_its_rows_and_stops_writers_that_would_replace_them() {
        let ring = RowRing::new(4, 8).unwrap();
        (0..4).map(|value| put(&ring, value)).for_each(|_| ());
        let reader = ring.read();
        let mut written = 4;
        while let Some(mut reservation) = ring.try_reserve(1) {
            reservation.row_mut(0).fill(0xff);
            reservation.publish();
            written += 1;
        }
        assert_eq!(written, ring.slots());
        assert!((0..4).all(|position| value(&reader, position) == position));
        drop(reader);
        assert_eq!(ring.try_reserve(1).map(RowReservation::publish), Some(20..21));
    }

    #[test]
    fn rows_are_published_in_order() {
        let ring = RowRing::new(8, 8).unwrap();
        let (first, second, third) = (ring.reserve(2), ring.reserve(1), ring.reserve(1));
        assert_eq!(third.publish(), 0..0);
        assert_eq!(second.publish(), 0..0);
        assert!(ring.window().is_empty());
        assert_eq!(first.publish(), 0..4);
        assert_eq!(ring.window(), 0..4);
    }

    #[test]
    fn a_reservation_that_is_dropped_leaves_zeros_and_no_hole() {
        let ring = RowRing::new(8, 8).unwrap();
        put(&ring, 5);
        let mut reservation = ring.reserve(1);
        reservation.row_mut(0).fill(1);
        drop(reservation);
        put(&ring, 6);
        let reader = ring.read();
        assert_eq!((0..3).map(|at| value(&reader, at)).collect::<Vec<_>>(), [5, 0, 6]);
    }

    #[test]
    fn a_reservation_may_go_over_the_end_of_the_memory() {
        let ring = RowRing::new(4, 8).unwrap();
        for round in 0..10u64 {
            let mut reservation = ring.reserve(7);
            let positions = reservation.positions();
            let (first, second) = reservation.rows_mut();
            assert_eq!(first.len() + second.len(), 7 * 8);
            let rows = first.chunks_exact_mut(8).chain(second.chunks_exact_mut(8));
            rows.zip(positions).for_each(|(row, at)| row.copy_from_slice(&at.to_le_bytes()));
            reservation.publish();
            let reader = ring.read();
            assert_eq!(reader.window(), round * 7 + 3..round * 7 + 7);
            assert!(reader.window().all(|position| value(&reader, position) == position));
        }
    }

    #[test]
    fn a_belt_may_start_anywhere_while_nobody_is_there() {
        let ring = RowRing::new(4, 8).unwrap();
        put(&ring, 1);
        let reader = ring.read();
        assert!(!ring.restart(1000));
        drop(reader);
        assert!(ring.restart(1000) && !ring.restart(u64::MAX));
        assert_eq!((ring.window(), put(&ring, 7)), (1000..1000, 1000..1001));
        assert_eq!(value(&ring.read(), 1000), 7);
    }

    #[test]
    #[should_panic(expected = "is not in")]
    fn what_has_fallen_off_cannot_be_read() {
        let ring = RowRing::new(2, 8).unwrap();
        (0..5).map(|value| put(&ring, value)).for_each(|_| ());
        ring.read().row(2);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(RowRing::new(u64::MAX, 8), Err(AllocError::Overflow { .. })));
        assert!(matches!(RowRing::new(1 << 40, 1 << 10), Err(AllocError::Refused { .. })));
    }

    #[test]
    fn readers_see_whole_rows_while_writers_replace_them() {
        let ring = RowRing::new(64, 256).unwrap();
        let rounds = if cfg!(miri) { 50 } else { 20_000u64 };
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let mut reservation = ring.reserve(1 + round % 3);
                        let (first, second) = reservation.rows_mut();
                        for row in first.chunks_exact_mut(256).chain(second.chunks_exact_mut(256)) {
                            row.fill((round % 100) as u8 * 2 + writer as u8);
                        }
                        reservation.publish();
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let reader = ring.read();
                        for position in reader.window() {
                            let row = reader.row(position);
                            assert!(row.iter().all(|byte| *byte == row[0]));
                        }
                    }
                });
            }
        });
        assert_eq!(ring.window().end, 2 * (0..rounds).map(|round| 1 + round % 3).sum::<u64>());
    }
}
