//! What every Unix has: threads of one process, and memory of their own.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::block::AllocError;
use crate::sync::{AtomicU32, Condvar, Mutex, Ordering};

/// Whether other processes can map memory of this one.
pub const SHARES_MEMORY: bool = false;

/// Parking on a condition variable, for threads of one process.
#[derive(Debug)]
pub(crate) struct Parking {
    /// Held by a waiter from its look at the word until it sleeps, and by a notifier between
    /// changing the word and waking, so that no wake-up falls in between.
    lock: Mutex<()>,
    changed: Condvar,
}

impl Parking {
    pub(crate) fn new() -> Self {
        Self { lock: Mutex::new(()), changed: Condvar::new() }
    }

    /// Sleeps while `word` is `seen`, at most for `pause`.
    pub(crate) fn park(&self, word: &AtomicU32, seen: u32, pause: Option<Duration>) {
        let end = pause.and_then(|pause| Instant::now().checked_add(pause));
        let mut lock = self.lock.lock();
        while word.load(Ordering::Acquire) == seen {
            lock = match end {
                None => self.changed.wait(lock),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return;
                    }
                    self.changed.wait_timeout(lock, left)
                }
            };
        }
    }

    /// Wakes all sleeping threads. Call it after `word` was changed.
    pub(crate) fn wake(&self, _word: &AtomicU32) {
        drop(self.lock.lock());
        self.changed.notify_all();
    }
}

/// Memory that other processes map, which this system lacks.
#[derive(Debug)]
pub(crate) enum Mapping {}

impl Mapping {
    pub(crate) fn new(_len: usize) -> Result<Self, AllocError> {
        Err(AllocError::Shared { reason: NEEDS_LINUX.into() })
    }

    pub(crate) fn sparse(len: usize) -> Result<Self, AllocError> {
        Self::new(len)
    }

    pub(crate) fn guarded(len: usize) -> Result<Self, AllocError> {
        Self::new(len)
    }

    pub(crate) fn open(_file: OwnedFd, _len: usize) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, NEEDS_LINUX))
    }

    pub(crate) fn open_sparse(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::open(file, len)
    }

    pub(crate) fn open_to_read(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::open(file, len)
    }

    pub(crate) fn populate(&self, _range: Range<usize>) -> Result<(), AllocError> {
        match *self {}
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        match *self {}
    }

    pub(crate) fn len(&self) -> usize {
        match *self {}
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

const NEEDS_LINUX: &str = "it needs Linux";

/// Does nothing: the pages come when they are first used.
///
/// # Safety
///
/// None here; Linux asks for something.
pub(crate) unsafe fn populate(_start: NonNull<u8>, _range: Range<usize>) -> io::Result<()> {
    Ok(())
}

/// Does nothing: the system chooses the size of pages.
///
/// # Safety
///
/// None here; Linux asks for something.
pub(crate) unsafe fn advise_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

/// How many bytes of memory the system could give now without taking them from others: it does not say.
pub fn available_memory() -> Option<usize> {
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_shares_memory_is_refused_with_what_it_needs() {
        let refused = Mapping::guarded(4096).unwrap_err().to_string();
        assert_eq!(refused, "could not make shared memory: it needs Linux");
        let (file, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = Mapping::open_to_read(file.into(), 4096).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert!(refused.to_string().contains("Linux"));
    }
}
