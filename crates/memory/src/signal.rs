//! Something that both threads and tasks without a thread wait for.

use std::task::Waker;
use std::time::Instant;

use crate::event::Event;
use crate::sync::{AtomicU32, Mutex, Ordering, fence};

/// An [`Event`] that also calls wakers.
#[derive(Debug, Default)]
pub struct Signal {
    event: Event,
    wakers: Wakers,
}

impl Signal {
    /// Wakes everyone. Call it after the condition was changed.
    pub fn notify(&self) {
        self.event.notify();
        self.wakers.wake();
    }

    /// Calls `poll` until it returns something, parking in between; `None` after the deadline.
    pub fn wait<T>(&self, deadline: Option<Instant>, poll: impl FnMut() -> Option<T>) -> Option<T> {
        self.event.wait(deadline, None, poll)
    }

    /// Calls `waker` once at the next notification. What was changed before is either seen by who looks
    /// after this call, or wakes.
    pub fn wake_later(&self, waker: &Waker) {
        self.wakers.add(waker);
    }
}

/// Wakers of tasks that have no thread of their own; each is called once.
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
