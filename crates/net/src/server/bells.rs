//! What wakes an event loop for the sake of connections that wait for a stream or for tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Wakes an event loop, which then finds which of its bells rang.
#[derive(Debug)]
pub(crate) struct Bell {
    waker: Arc<mio::Waker>,
    rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new(waker: &Arc<mio::Waker>) -> Arc<Self> {
        Arc::new(Self { waker: Arc::clone(waker), rung: AtomicBool::new(false) })
    }

    /// Has it heard in the next round of the loop that asks.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
    }

    /// Whether it rang since it was last asked.
    pub(crate) fn heard(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
        // An event loop that is gone needs no waking.
        let _ = self.waker.wake();
    }
}

/// A bell, and the waker that rings it.
#[derive(Debug)]
pub(crate) struct Rope {
    pub(crate) bell: Arc<Bell>,
    pub(crate) waker: Waker,
}

impl Rope {
    pub(crate) fn new(waker: &Arc<mio::Waker>) -> Self {
        let bell = Bell::new(waker);
        Self { waker: Waker::from(Arc::clone(&bell)), bell }
    }
}

/// The bells of one table: more may be sampled, more may be inserted, more is kept.
#[derive(Debug)]
pub(crate) struct TableBells {
    pub(crate) items: Arc<Bell>,
    pub(crate) room: Arc<Bell>,
    pub(crate) kept: Arc<Bell>,
    pub(crate) items_waker: Waker,
    pub(crate) room_waker: Waker,
    pub(crate) kept_waker: Waker,
}

impl TableBells {
    pub(crate) fn new(waker: &Arc<mio::Waker>) -> Self {
        let [items, room, kept] = std::array::from_fn(|_| Bell::new(waker));
        let [items_waker, room_waker, kept_waker] =
            [&items, &room, &kept].map(|bell| Waker::from(Arc::clone(bell)));
        Self { items, room, kept, items_waker, room_waker, kept_waker }
    }
}
