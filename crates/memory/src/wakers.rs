//! Tasks of this process that wait for room without a thread of their own.

use std::task::Waker;

use crate::sync::{AtomicU32, Mutex, Ordering, fence};

/// Wakers that are called once.
#[derive(Debug)]
pub(crate) struct Wakers {
    /// 1 while the list may have some, so that a notification looks at one word only.
    any: AtomicU32,
    list: Mutex<Vec<Waker>>,
}

impl Default for Wakers {
    fn default() -> Self {
        Self { any: AtomicU32::new(0), list: Mutex::new(Vec::new()) }
    }
}

impl Wakers {
    /// Registers `waker` for the next [`Wakers::wake`]. What was changed before that call is either
    /// seen by who looks after this one, or wakes.
    pub(crate) fn add(&self, waker: &Waker) {
        let mut list = self.list.lock();
        if !list.iter().any(|known| known.will_wake(waker)) {
            list.push(waker.clone());
        }
        self.any.store(1, Ordering::Relaxed);
        drop(list);
        // Pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
    }

    /// Calls and forgets all wakers. Call it after the condition was changed.
    pub(crate) fn wake(&self) {
        // Pairs with the fence in `add`.
        fence(Ordering::SeqCst);
        if self.any.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut list = self.list.lock();
        self.any.store(0, Ordering::Relaxed);
        let woken = std::mem::take(&mut *list);
        drop(list);
        woken.into_iter().for_each(Waker::wake);
    }
}
