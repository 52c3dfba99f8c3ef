//! Memory for what will be published next, taken before it is asked for.
//!
//! The system gives memory at a tenth of the speed at which it is written. So when a first publication has shown how large
//! they are, a thread takes the memory of all others that there may be, and ends when that is done. Small ones are
//! not worth a thread, and where less than half of the machine's free memory would be left, publications take it one by one.
//!
//! # Invariants
//!
//! 1. What is taken ahead counts among the publications that there may be, and is used if one is published meanwhile.
//! 2. The thread ends with the store, or when that is closed: within a piece of memory, for which both wait.

use std::sync::Arc;
use std::thread::JoinHandle;

use echoic_memory::advice::available_memory;
use echoic_memory::shared_buffer::Pages;

use super::store::{Shelf, ShelfState, fits};

/// From this size on it is worth a thread.
const LEAST: usize = 4 << 20;

/// The thread of a store.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    is_at_work: bool,
    /// It is to end.
    ends: bool,
    /// The last one, and the process that it is of.
    thread: Option<(u32, JoinHandle<()>)>,
}

impl Shelf {
    /// Has memory taken for more publications of this size.
    pub(super) fn prepare(self: &Arc<Self>, nbytes: usize) {
        let mut state = self.state.lock();
        if nbytes < LEAST || state.ahead.is_at_work || self.lacks(&mut state, nbytes) == 0 {
            return;
        }
        let shelf = Arc::clone(self);
        let thread = std::thread::Builder::new().name("echoic-pages".into());
        // Without it, they are slow as they would be anyway.
        if let Ok(thread) = thread.spawn(move || shelf.take_ahead(nbytes)) {
            state.ahead.is_at_work = true;
            // One before it has nothing more to do.
            state.ahead.thread = Some((std::process::id(), thread));
        }
    }

    /// How many buffers of this size there might be more. Those of another size make room.
    fn lacks(&self, state: &mut ShelfState, nbytes: usize) -> usize {
        if state.closed || state.ahead.ends {
            return 0;
        }
        let fitting = state.spare.iter().filter(|buffer| fits(buffer, nbytes)).count();
        self.config.most.saturating_sub(state.alive + fitting)
    }

    fn take_ahead(&self, nbytes: usize) {
        while let Some(pages) = self.add_spare(nbytes) {
            while pages.is_wanted() && !self.ends_ahead() && pages.populate_next() == Ok(true) {}
        }
    }

    /// One more buffer among the spare ones; `None`, and the end of the work, when there is nothing to do.
    fn add_spare(&self, nbytes: usize) -> Option<Pages> {
        let made = match available_memory() {
            Some(available) if available / 2 < nbytes => None,
            _ => self.make(nbytes).ok(),
        };
        let mut state = self.state.lock();
        let made = made.filter(|_| self.lacks(&mut state, nbytes) > 0);
        let Some(buffer) = made else {
            state.ahead.is_at_work = false;
            return None;
        };
        let other = state.spare.iter().position(|buffer| !fits(buffer, nbytes));
        let other = other.map(|at| state.spare.swap_remove(at));
        let pages = buffer.pages();
        state.spare.push(buffer);
        drop(state);
        drop(other);
        Some(pages)
    }

    fn ends_ahead(&self) -> bool {
        let state = self.state.lock();
        state.closed || state.ahead.ends
    }

    /// Takes no more memory ahead, and waits until that is so.
    pub(super) fn end_ahead(&self) {
        let mut state = self.state.lock();
        state.ahead.ends = true;
        let thread = state.ahead.thread.take();
        drop(state);
        match thread {
            Some((process, thread)) if process == std::process::id() => {
                let _ = thread.join();
            }
            // After a fork it is not there, and what the other process has of it must not be touched.
            thread => std::mem::forget(thread),
        }
    }
}
