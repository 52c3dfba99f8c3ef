//! Memory that one process writes answers into, at places that another chooses.
//!
//! The process that answers makes an [`Arena`] and hands over its descriptor; the one that asks maps it
//! as an [`ArenaView`], gives out [`AnswerBuffer`]s of it, and tells with each question where the answer goes.
//! So what is asked for is copied once, from where it is to where it is looked at.
//!
//! # Invariants
//!
//! 1. The bytes of an [`Arena`] are reached through the one [`Claim`] that has them; those of a view through the one
//!    [`AnswerBuffer`]. Neither overlap.
//! 2. Pages are there when they are first written: an arena may be much larger than what is used of it.
//!
//! # Limitations
//!
//! The other process is trusted to write only into a place that was named in a question without an answer,
//! as [`crate::ring`] trusts producers. What must make sense is therefore copied before it is looked at: what is written
//! here are values that mean something to the caller alone.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::block::AllocError;
use crate::os::Mapping;
use crate::region::Region;
use crate::sync::Mutex;

/// Places begin at multiples of this, and have whole ones.
const PAGE: usize = 4096;

/// The side that answers.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    /// What there are claims to: a few, since a connection has one answer written at a time.
    claimed: Mutex<Vec<Range<usize>>>,
}

/// Some bytes of an [`Arena`], which nothing else in this process has while this is there.
#[derive(Debug)]
pub struct Claim {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Arena {
    /// An arena of `len` bytes, rounded up to whole pages.
    pub fn new(len: usize) -> Result<Self, AllocError> {
        let len = len.max(1).checked_next_multiple_of(PAGE);
        let len = len.ok_or(AllocError::Refused { bytes: usize::MAX })?;
        Ok(Self { region: Region::Shared(Mapping::sparse(len)?), claimed: Mutex::default() })
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.region.len()
    }

    /// What to hand to the other process.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.region.file()
    }

    /// Some of its bytes; `None` when they are not inside, or a thread has some of them.
    pub fn claim(self: &Arc<Self>, range: Range<usize>) -> Option<Claim> {
        if range.start > range.end || range.end > self.bytes() {
            return None;
        }
        let mut claimed = self.claimed.lock();
        if claimed.iter().any(|other| other.start < range.end && range.start < other.end) {
            return None;
        }
        claimed.push(range.clone());
        drop(claimed);
        Some(Claim { arena: Arc::clone(self), range })
    }
}

impl Claim {
    /// The bytes, to be written. They are whatever the other process makes of them, so nothing is to be concluded from
    /// what is read here.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the mapping, as `claim` checked.
        let start = unsafe { self.arena.region.pointer().add(self.range.start) };
        // SAFETY: inside, as above, and initialised, since a file's pages are; ours alone in this process by
        // invariant 1 and `&mut`. The other process looks when it was told that we are done.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.range.len()) }
    }

    /// Copies the bytes, as many as `to` has at most: what they were at one moment each. What is read from the copy
    /// does not change between two looks.
    pub fn copy_to(&self, to: &mut [u8]) {
        let len = to.len().min(self.range.len());
        // SAFETY: inside the mapping, as `claim` checked.
        let start = unsafe { self.arena.region.pointer().add(self.range.start) };
        // SAFETY: this many bytes are there on both sides, and no slice is made of what the other process may write.
        unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), to.as_mut_ptr(), len) };
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.arena.claimed.lock();
        if let Some(ours) = claimed.iter().position(|range| *range == self.range) {
            claimed.swap_remove(ours);
        }
    }
}

/// The side that asks.
#[derive(Debug)]
pub struct ArenaView {
    region: Region,
    /// Free room: from where, and how many bytes.
    free: Mutex<BTreeMap<usize, usize>>,
}

/// Some bytes of an arena, given back when dropped.
#[derive(Debug)]
pub struct AnswerBuffer {
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
        let region = Region::Shared(Mapping::open_sparse(file, bytes)?);
        let free = Mutex::new(BTreeMap::from([(0, bytes / PAGE * PAGE)]));
        Ok(Arc::new(Self { region, free }))
    }

    /// A place for `len` bytes, the first that is large enough, so that few pages are used; `None` when
    /// there is none.
    pub fn take(self: &Arc<Self>, len: usize) -> Option<AnswerBuffer> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let mut free = self.free.lock();
        let (start, room) =
            free.iter().map(|(start, room)| (*start, *room)).find(|(_, room)| *room >= len)?;
        free.remove(&start);
        if room > len {
            free.insert(start + len, room - len);
        }
        drop(free);
        Some(AnswerBuffer { arena: Arc::clone(self), start, len })
    }
}

impl AnswerBuffer {
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

impl Deref for AnswerBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the mapping, initialised as a file's pages are, and this place's alone.
        unsafe { std::slice::from_raw_parts(self.pointer().as_ptr(), self.len) }
    }
}

impl DerefMut for AnswerBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer().as_ptr(), self.len) }
    }
}

impl Drop for AnswerBuffer {
    fn drop(&mut self) {
        let mut free = self.arena.free.lock();
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

#[cfg(all(test, target_os = "linux", not(any(loom, miri, echoic_portable))))]
mod tests {
    use super::*;

    fn pair(bytes: usize) -> (Arc<Arena>, Arc<ArenaView>) {
        let arena = Arc::new(Arena::new(bytes).unwrap());
        let file = arena.file().unwrap().try_clone_to_owned().unwrap();
        let view = ArenaView::attach(file, arena.bytes()).unwrap();
        (arena, view)
    }

    #[test]
    fn what_is_written_at_a_place_is_read_there() {
        let (arena, view) = pair(1 << 20);
        let places: Vec<AnswerBuffer> = (0..3).map(|_| view.take(5000).unwrap()).collect();
        for (number, place) in (1u8..).zip(&places) {
            let start = place.start();
            arena.claim(start..start + 5000).unwrap().bytes_mut().fill(number);
        }
        for (number, place) in (1u8..).zip(&places) {
            assert!(place[..5000].iter().all(|byte| *byte == number));
        }
    }

    #[test]
    fn nothing_outside_is_written() {
        let (arena, _) = pair(8192);
        assert!(arena.claim(0..8193).is_none());
        assert!(arena.claim(8193..8193).is_none());
        let (start, end) = (5, 4);
        assert!(arena.claim(start..end).is_none());
        assert_eq!(arena.claim(8192..8192).unwrap().bytes_mut().len(), 0);
    }

    #[test]
    fn what_somebody_has_nobody_else_gets() {
        let (arena, _) = pair(8192);
        let mut claim = arena.claim(100..200).unwrap();
        for range in [0..101, 199..300, 120..130, 0..8192] {
            assert!(arena.claim(range).is_none());
        }
        let beside = [arena.claim(0..100).unwrap(), arena.claim(200..8192).unwrap()];
        claim.bytes_mut().fill(7);
        let mut copy = [0; 200];
        claim.copy_to(&mut copy);
        assert_eq!((copy[99], copy[100]), (7, 0), "no more is copied than it has");
        drop((claim, beside));
        assert!(arena.claim(0..8192).is_some());
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
