//! What was sent and is not yet known to have arrived.
//!
//! A [`Window`] is a bounded ring of equal rows, numbered from 0. Any number of threads claim the
//! next rows and write them; one [`Reader`] sees them in order, as often as it needs, until it
//! releases them. Unlike the batch ring, whose readers take each batch once, a window keeps rows so
//! that they can be sent again.
//!
//! # Invariants
//!
//! 1. Rows `released..claimed` exist, and `claimed - released` is at most the capacity.
//! 2. A row belongs to the [`Rows`] that claimed it until `ready` says `number + 1` for it; from then on
//!    it is read only, until the reader releases it.
//! 3. There is one reader, and what it lends ends before it releases (the borrow checker sees to it).

use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use crate::block::{AllocError, Block, check_available};
use crate::event::Event;
use crate::sync::{AtomicU64, Ordering};

/// See the [module](self).
#[derive(Debug)]
pub struct Window {
    block: Block,
    row_bytes: usize,
    capacity: u64,
    claimed: CachePadded<AtomicU64>,
    released: CachePadded<AtomicU64>,
    /// `number + 1` of the row that was last finished in this place.
    ready: Box<[AtomicU64]>,
    room: Event,
}

/// Rows to be written. Dropping it without a commit leaves them unfinished for ever.
#[derive(Debug)]
#[must_use = "rows are not read before the commit"]
pub struct Rows<'a> {
    window: &'a Window,
    first: u64,
    len: usize,
}

/// The reading end, of which there is one.
#[derive(Debug)]
pub struct Reader {
    window: Arc<Window>,
    /// Rows before this are known to be finished.
    finished: u64,
}

impl Window {
    /// A window of `capacity` rows of `row_bytes`, and its reader.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the memory can't be had.
    ///
    /// # Panics
    ///
    /// When `capacity` is zero.
    pub fn new(capacity: usize, row_bytes: usize) -> Result<(Arc<Self>, Reader), AllocError> {
        assert!(capacity > 0, "a window has rows");
        let overflow = || AllocError::Overflow {
            what: format!("a window of {capacity} rows of {row_bytes} bytes"),
        };
        let bytes = capacity.checked_mul(row_bytes).ok_or_else(overflow)?;
        check_available(bytes.saturating_add(capacity.saturating_mul(8)))?;
        let window = Arc::new(Self {
            block: Block::new(bytes)?,
            row_bytes,
            capacity: capacity as u64,
            claimed: CachePadded::new(AtomicU64::new(0)),
            released: CachePadded::new(AtomicU64::new(0)),
            ready: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            room: Event::default(),
        });
        let reader = Reader { window: Arc::clone(&window), finished: 0 };
        Ok((window, reader))
    }

    /// Claims up to `rows` rows without waiting; fewer where the window is nearly full or its memory
    /// ends. `None` when it is full.
    ///
    /// # Panics
    ///
    /// When `rows` is zero.
    pub fn try_claim(&self, rows: usize) -> Option<Rows<'_>> {
        assert!(rows > 0, "a claim has at least one row");
        // Acquire pairs with the release of who claimed before: what that one saw as released is seen as
        // released here, so that no more than the capacity seems to be claimed.
        let mut first = self.claimed.load(Ordering::Acquire);
        loop {
            // Acquire pairs with the release in `Reader::release`: the reader is done with the rows.
            let released = self.released.load(Ordering::Acquire);
            let Some(used) = first.checked_sub(released) else {
                // `first` is older than `released`.
                first = self.claimed.load(Ordering::Acquire);
                continue;
            };
            let to_the_end = self.capacity - first % self.capacity;
            let len = (rows as u64).min(self.capacity - used).min(to_the_end);
            if len == 0 {
                return None;
            }
            let claimed = self.claimed.compare_exchange(
                first,
                first + len,
                Ordering::Release,
                Ordering::Acquire,
            );
            match claimed {
                Ok(_) => return Some(Rows { window: self, first, len: len as usize }),
                Err(now) => first = now,
            }
        }
    }

    /// Calls `poll` until it returns something, parking until rows are released or [`Window::notify`]
    /// is called; `None` after the deadline.
    pub fn wait<T>(&self, deadline: Option<Instant>, poll: impl FnMut() -> Option<T>) -> Option<T> {
        self.room.wait(deadline, None, poll)
    }

    /// Wakes all waiting threads, because something that they look at has changed.
    pub fn notify(&self) {
        self.room.notify();
    }

    /// Rows claimed since the start.
    pub fn claimed(&self) -> u64 {
        self.claimed.load(Ordering::Acquire)
    }

    /// Rows released since the start.
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// How many rows fit.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Whether a claim would find no row.
    pub fn is_full(&self) -> bool {
        // The older number last, so that the difference is never too small by much.
        let claimed = self.claimed();
        claimed.saturating_sub(self.released()) >= self.capacity
    }

    fn turn(&self, number: u64) -> usize {
        (number % self.capacity) as usize
    }

    fn pointer(&self, number: u64) -> *mut u8 {
        let offset = self.turn(number) * self.row_bytes;
        // SAFETY: `turn` is below the capacity, and the block has room for that many rows.
        unsafe { self.block.pointer().as_ptr().add(offset) }
    }
}

impl Rows<'_> {
    /// How many rows: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a claim is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of the first row.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The bytes of the rows, one after the other, to be overwritten as a whole.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.len * self.window.row_bytes;
        // SAFETY: the rows are contiguous, since a claim ends where the memory does; they are ours
        // alone (invariant 2), initialised by the block, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.window.pointer(self.first), bytes) }
    }

    /// Declares the rows written.
    pub fn commit(self) {
        for number in self.first..self.first + self.len as u64 {
            self.window.ready[self.window.turn(number)].store(number + 1, Ordering::Release);
        }
    }
}

impl Reader {
    /// The number behind the last row that can be read: all before it are finished.
    pub fn finished(&mut self) -> u64 {
        let window = &self.window;
        // Acquire pairs with the release in `commit`. A place shows an older number until its row is
        // finished, and a newer one can't be there before this one is released.
        while window.ready[window.turn(self.finished)].load(Ordering::Acquire) == self.finished + 1
        {
            self.finished += 1;
        }
        self.finished
    }

    /// What [`Reader::finished`] found last, without a new look.
    pub fn known_finished(&self) -> u64 {
        self.finished
    }

    /// How many finished rows there are from `first` on, and their bytes; at most `rows` of them,
    /// and fewer where the memory ends.
    ///
    /// # Panics
    ///
    /// When `first` was released.
    pub fn rows(&self, first: u64, rows: usize) -> (usize, &[u8]) {
        assert!(first >= self.window.released(), "row {first} was released");
        let finished = self.finished.saturating_sub(first);
        let to_the_end = self.window.capacity - first % self.window.capacity;
        let len = (rows as u64).min(finished).min(to_the_end) as usize;
        let (pointer, bytes) = (self.window.pointer(first), len * self.window.row_bytes);
        // SAFETY: these rows are finished and not released, so no thread writes to them while the reader
        // is borrowed (invariants 2 and 3), and they end where the memory does at the latest.
        (len, unsafe { std::slice::from_raw_parts(pointer, bytes) })
    }

    /// Gives back all rows before `number`, which must be finished; a smaller number does nothing.
    ///
    /// # Panics
    ///
    /// When `number` is past the finished rows.
    pub fn release(&mut self, number: u64) {
        assert!(number <= self.finished, "only finished rows are released");
        if number > self.window.released() {
            self.window.released.store(number, Ordering::Release);
            self.window.room.notify();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rows_can_be_read_again_until_they_are_released() {
        let (window, mut reader) = Window::new(3, 2).unwrap();
        let mut rows = window.try_claim(5).unwrap();
        assert_eq!((rows.first(), rows.len()), (0, 3));
        rows.bytes_mut().copy_from_slice(&[1, 1, 2, 2, 3, 3]);
        assert_eq!(reader.finished(), 0);
        rows.commit();
        assert!(window.try_claim(1).is_none() && window.is_full());
        assert_eq!(reader.finished(), 3);
        for _ in 0..2 {
            assert_eq!(reader.rows(1, 9), (2, &[2, 2, 3, 3][..]));
        }
        reader.release(2);
        assert_eq!(window.try_claim(5).map(|rows| (rows.first(), rows.len())), Some((3, 2)));
    }

    #[test]
    fn an_unfinished_row_holds_back_those_behind_it() {
        let (window, mut reader) = Window::new(4, 1).unwrap();
        let (first, second) = (window.try_claim(1).unwrap(), window.try_claim(1).unwrap());
        second.commit();
        assert_eq!(reader.finished(), 0);
        first.commit();
        assert_eq!(reader.finished(), 2);
    }

    #[test]
    fn threads_push_through_a_small_window_in_order() {
        const PER_THREAD: u64 = 20_000;
        let (window, mut reader) = Window::new(7, 16).unwrap();
        let mut last = [None; 3];
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let window = &window;
                scope.spawn(move || {
                    let mut sent = 0;
                    while sent < PER_THREAD {
                        let claim = || window.try_claim((PER_THREAD - sent).min(2) as usize);
                        let mut rows = window.wait(None, claim).unwrap();
                        for row in rows.bytes_mut().chunks_exact_mut(16) {
                            row[..8].copy_from_slice(&thread.to_le_bytes());
                            row[8..].copy_from_slice(&sent.to_le_bytes());
                            sent += 1;
                        }
                        rows.commit();
                    }
                });
            }
            let mut next = 0;
            while next < 3 * PER_THREAD {
                let finished = reader.finished();
                for row in reader.rows(next, 64).1.chunks_exact(16) {
                    let thread = u64::from_le_bytes(row[..8].try_into().unwrap()) as usize;
                    let value = u64::from_le_bytes(row[8..].try_into().unwrap());
                    assert_eq!(value, last[thread].map_or(0, |last: u64| last + 1));
                    last[thread] = Some(value);
                    next += 1;
                }
                assert!(next <= finished);
                reader.release(next);
            }
        });
        assert_eq!(last, [Some(PER_THREAD - 1); 3]);
    }
}
