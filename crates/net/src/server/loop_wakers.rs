//! What wakes an event loop for the sake of connections that wait for a stream or for tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Wakes an event loop, which then finds which of its wakers were called.
#[derive(Debug)]
pub(crate) struct LoopWaker {
    waker: Arc<mio::Waker>,
    is_set: AtomicBool,
}

impl LoopWaker {
    pub(crate) fn new(waker: &Arc<mio::Waker>) -> Arc<Self> {
        Arc::new(Self { waker: Arc::clone(waker), is_set: AtomicBool::new(false) })
    }

    /// Marks it, for the next round of the loop.
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
    }

    /// Takes the mark off; whether it was there.
    pub(crate) fn take(&self) -> bool {
        self.is_set.load(Ordering::Relaxed) && self.is_set.swap(false, Ordering::AcqRel)
    }
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        self.set();
        // An event loop that is gone needs no waking.
        let _ = self.waker.wake();
    }
}

/// What an event loop looks at, and the `Waker` that sets it.
#[derive(Debug)]
pub(crate) struct WakerPair {
    pub(crate) source: Arc<LoopWaker>,
    pub(crate) waker: Waker,
}

impl WakerPair {
    pub(crate) fn new(waker: &Arc<mio::Waker>) -> Self {
        let source = LoopWaker::new(waker);
        Self { waker: Waker::from(Arc::clone(&source)), source }
    }
}

/// The wakers of one table of items: more may be sampled, more may be inserted.
#[derive(Debug)]
pub(crate) struct TableWakers {
    pub(crate) items: WakerPair,
    pub(crate) room: WakerPair,
}

impl TableWakers {
    pub(crate) fn new(waker: &Arc<mio::Waker>) -> Self {
        Self { items: WakerPair::new(waker), room: WakerPair::new(waker) }
    }
}
