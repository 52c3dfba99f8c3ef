//! Readers of records that could be overwritten.

use echoic_memory::sync::{Condvar, Mutex};

/// The readers of a file, and the oldest record that is whole.
#[derive(Debug, Default)]
pub(super) struct Readers {
    state: Mutex<ReaderFloors>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct ReaderFloors {
    /// Records before this one were overwritten, or may be right now.
    floor: u64,
    /// The floor as each reader found it.
    readers: Vec<u64>,
}

impl Readers {
    /// A reader, from whose `oldest` on nothing is overwritten while it is there.
    pub(super) fn enter(&self) -> Reading<'_> {
        let mut state = self.state.lock();
        let oldest = state.floor;
        state.readers.push(oldest);
        Reading { readers: self, oldest }
    }

    /// The oldest record that is whole.
    pub(super) fn floor(&self) -> u64 {
        self.state.lock().floor
    }

    /// Raises the floor, and waits for the threads that may read what is below it.
    pub(super) fn raise(&self, floor: u64) {
        let mut state = self.state.lock();
        state.floor = state.floor.max(floor);
        // Who enters from now on does not read below the floor, and a read ends by itself.
        while state.readers.iter().any(|oldest| *oldest < floor) {
            state = self.left.wait(state);
        }
    }
}

/// The right to read records: none of those from [`Reading::oldest`] on is overwritten while this is there.
///
/// To be dropped soon, and before the thread that has it appends: appending waits for it.
#[derive(Debug)]
pub struct Reading<'a> {
    readers: &'a Readers,
    oldest: u64,
}

impl Reading<'_> {
    /// The oldest record that can be read.
    pub fn oldest(&self) -> u64 {
        self.oldest
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.readers.state.lock();
        if let Some(at) = state.readers.iter().position(|oldest| *oldest == self.oldest) {
            state.readers.swap_remove(at);
        }
        drop(state);
        self.readers.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_floor_waits_for_older_readers_and_not_for_later_ones() {
        let (readers, left) = (Readers::default(), AtomicBool::new(false));
        readers.raise(3);
        let old = readers.enter();
        assert_eq!(old.oldest(), 3);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                readers.raise(5);
                assert!(left.load(Ordering::SeqCst), "the older reader is still there");
            });
            while readers.floor() != 5 {
                std::thread::yield_now();
            }
            let late = readers.enter();
            assert_eq!(late.oldest(), 5);
            left.store(true, Ordering::SeqCst);
            drop(old);
            writer.join().unwrap();
            drop(late);
        });
        readers.raise(9);
    }
}
