//! What wakes an event loop for the sake of connections that wait for a stream or for tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// A mark that is set when an event loop is woken.
#[derive(Debug)]
struct Mark {
    event_loop: Arc<mio::Waker>,
    is_set: AtomicBool,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::Release);
        // An event loop that is gone needs no waking.
        let _ = self.event_loop.wake();
    }
}

/// Wakes an event loop, which then finds which of its wakers were called.
#[derive(Debug)]
pub(crate) struct LoopWaker {
    mark: Arc<Mark>,
    pub(crate) waker: Waker,
}

impl LoopWaker {
    pub(crate) fn new(event_loop: &Arc<mio::Waker>) -> Self {
        let (event_loop, is_set) = (Arc::clone(event_loop), AtomicBool::new(false));
        let mark = Arc::new(Mark { event_loop, is_set });
        Self { waker: Waker::from(Arc::clone(&mark)), mark }
    }

    /// Takes the mark off; whether it was there.
    pub(crate) fn take(&self) -> bool {
        let is_set = &self.mark.is_set;
        is_set.load(Ordering::Relaxed) && is_set.swap(false, Ordering::AcqRel)
    }
}
