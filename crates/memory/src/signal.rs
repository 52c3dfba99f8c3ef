//! Something that both threads and tasks without a thread wait for.

use std::task::Waker;
use std::time::Instant;

use crate::event::Event;
use crate::wakers::Wakers;

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
