//! Memory that one process writes answers into, at places that another chooses.
//!
//! The process that answers makes an [`Arena`] and hands over its descriptor; the one that asks maps it
//! as an [`ArenaView`], gives out [`Place`]s of it, and tells with each question where the answer goes.
//! So what is asked for is copied once, from where it is to where it is looked at.
//!
//! # Invariants
//!
//! 1. The bytes of an [`Arena`] are reached through `&mut` only; those of a view through the one [`Place`]
//!    that has them. Places do not overlap.
//! 2. Pages are there when they are first written: an arena may be much larger than what is used of it.
//!
//! # Limitations
//!
//! The other process is trusted to write only into a place that was named in a question without an answer,
//! as [`crate::ring`] trusts producers.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::block::AllocError;
use crate::region::Region;

/// Places begin at multiples of this, and have whole ones.
const PAGE: usize = 4096;

/// The side that answers.
#[derive(Debug)]
pub struct Arena(Region);

impl Arena {
    /// An arena of `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn new(len: usize) -> Result<Self, AllocError> {
        let len = len.max(1).checked_next_multiple_of(PAGE);
        let len = len.ok_or(AllocError::Refused { bytes: usize::MAX })?;
        Region::sparse(len).map(Self)
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// What to hand to the other process.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }

    /// Some of its bytes, to be written; `None` when they are not inside.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        if range.start > range.end || range.end > self.bytes() {
            return None;
        }
        // SAFETY: inside the mapping, as was checked.
        let start = unsafe { self.0.pointer().add(range.start) };
        // SAFETY: inside, as was checked, and initialised, since a file's pages are; ours alone in this
        // process by `&mut`. The other process looks when it was told that we are done.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) })
    }
}

/// The side that asks.
#[derive(Debug)]
pub struct ArenaView {
    region: Region,
    /// Where nobody has a place: from where, and how many bytes.
    free: Mutex<BTreeMap<usize, usize>>,
}

/// Some bytes of an arena, given back when dropped.
#[derive(Debug)]
pub struct Place {
    arena: Arc<ArenaView>,
    start: usize,
    len: usize,
}

impl ArenaView {
    /// Maps the arena that another process made.
    ///
    /// # Errors
    ///
    /// An [`io::Error`] when it can't be mapped, could change its size, or has another one.
    pub fn attach(file: OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        let region = Region::attach_sparse(file, bytes)?;
        let free = Mutex::new(BTreeMap::from([(0, bytes / PAGE * PAGE)]));
        Ok(Arc::new(Self { region, free }))
    }

    fn free(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for `len` bytes, the first that is large enough, so that few pages are used; `None` when
    /// there is none.
    pub fn take(self: &Arc<Self>, len: usize) -> Option<Place> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let mut free = self.free();
        let (start, room) =
            free.iter().map(|(start, room)| (*start, *room)).find(|(_, room)| *room >= len)?;
        free.remove(&start);
        if room > len {
            free.insert(start + len, room - len);
        }
        drop(free);
        Some(Place { arena: Arc::clone(self), start, len })
    }
}

impl Place {
    /// Whether it is a place in this arena.
    pub fn is_in(&self, arena: &Arc<ArenaView>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// Where it begins in the arena.
    pub fn start(&self) -> usize {
        self.start
    }

    fn pointer(&self) -> NonNull<u8> {
        // SAFETY: places are cut from what the mapping has.
        unsafe { self.arena.region.pointer().add(self.start) }
    }
}

impl Deref for Place {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the mapping, initialised as a file's pages are, and this place's alone.
        unsafe { std::slice::from_raw_parts(self.pointer().as_ptr(), self.len) }
    }
}

impl DerefMut for Place {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer().as_ptr(), self.len) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut free = self.arena.free();
        let (mut start, mut room) = (self.start, self.len);
        if let Some(behind) = free.remove(&(start + room)) {
            room += behind;
        }
        let before = free.range(..start).next_back().map(|(start, room)| (*start, *room));
        if let Some((first, len)) = before
            && first + len == start
        {
            (start, room) = (first, room + len);
        }
        free.insert(start, room);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn pair(bytes: usize) -> (Arena, Arc<ArenaView>) {
        let arena = Arena::new(bytes).unwrap();
        let file = arena.file().unwrap().try_clone_to_owned().unwrap();
        let view = ArenaView::attach(file, arena.bytes()).unwrap();
        (arena, view)
    }

    #[test]
    fn what_is_written_at_a_place_is_read_there() {
        let (mut arena, view) = pair(1 << 20);
        let places: Vec<Place> = (0..3).map(|_| view.take(5000).unwrap()).collect();
        for (number, place) in (1u8..).zip(&places) {
            let start = place.start();
            arena.bytes_mut(start..start + 5000).unwrap().fill(number);
        }
        for (number, place) in (1u8..).zip(&places) {
            assert!(place[..5000].iter().all(|byte| *byte == number));
        }
    }

    #[test]
    fn nothing_outside_is_written() {
        let (mut arena, _) = pair(8192);
        assert!(arena.bytes_mut(0..8193).is_none());
        assert!(arena.bytes_mut(8193..8193).is_none());
        let (start, end) = (5, 4);
        assert!(arena.bytes_mut(start..end).is_none());
        assert_eq!(arena.bytes_mut(8192..8192).unwrap().len(), 0);
    }

    #[test]
    fn places_that_are_given_back_become_one_again() {
        let (_, view) = pair(10 * PAGE);
        // Any order, from a fixed sequence of random numbers.
        let mut random = 1u64;
        for _ in 0..200 {
            let mut places = Vec::new();
            while let Some(place) = view.take(PAGE * (1 + places.len() % 3)) {
                places.push(place);
            }
            assert!(view.take(10 * PAGE).is_none());
            let mut ends: Vec<_> =
                places.iter().map(|place| (place.start(), place.start() + place.len())).collect();
            ends.sort_unstable();
            assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            while !places.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                places.swap_remove((random >> 33) as usize % places.len());
            }
            assert_eq!(view.take(10 * PAGE).unwrap().len(), 10 * PAGE);
        }
        assert!(view.take(10 * PAGE + 1).is_none());
        assert!(view.take(usize::MAX).is_none());
    }
}
