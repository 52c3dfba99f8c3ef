//! Parking until something may have changed.
//!
//! An [`Event`] protects nothing: the condition lives in atomics elsewhere. A waiter announces
//! itself, looks at the condition once more, and only then parks; a notifier changes the condition,
//! then looks for waiters. The two sequentially consistent fences make at least one of them see the
//! other, so no wake-up is lost, and notifying costs a fence and a load while nobody waits.

use std::sync::PoisonError;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::padded::Padded;
use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, fence};

/// How long a waiter looks again before it parks.
///
/// Parking and being woken costs two context switches (about 10 µs); waits shorter than this are
/// cheaper spun out. Longer spinning would burn the core that the other side needs.
const SPIN: Duration = Duration::from_micros(4);

/// Something that threads wait for.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use echoic_memory::event::Event;
///
/// let (event, done) = (Event::default(), AtomicBool::new(false));
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         done.store(true, Ordering::Release);
///         event.notify();
///     });
///     let seen = event.wait(None, || done.load(Ordering::Acquire).then_some("done"));
///     assert_eq!(seen, Some("done"));
/// });
/// ```
#[derive(Debug)]
pub struct Event {
    waiters: Padded<AtomicUsize>,
    /// Counts notifications that found a waiter. A mutex, because the condition variable needs one;
    /// it is held for an increment only.
    epoch: Mutex<u64>,
    changed: Condvar,
    /// Event loops to call once. Each is counted in `waiters`.
    wakers: Mutex<Vec<Waker>>,
}

impl Default for Event {
    fn default() -> Self {
        Self {
            waiters: Padded::new(AtomicUsize::new(0)),
            epoch: Mutex::new(0),
            changed: Condvar::new(),
            wakers: Mutex::new(Vec::new()),
        }
    }
}

/// Counts a thread as waiting, until dropped: also when its `poll` panics.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn announce(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `notify`.
        fence(Ordering::SeqCst);
        Self(waiters)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Event {
    /// Wakes every thread that waits. Call it after the condition was changed.
    pub fn notify(&self) {
        // Pairs with the fence in `Waiting::announce`.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut epoch = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        *epoch = epoch.wrapping_add(1);
        drop(epoch);
        self.changed.notify_all();
        let wakers =
            std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        self.waiters.fetch_sub(wakers.len(), Ordering::Relaxed);
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// Has `waker` called at the next notification, once. Look at the condition again after this.
    pub fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
            self.waiters.fetch_add(1, Ordering::Relaxed);
        }
        drop(wakers);
        // Pairs with the fence in `notify`.
        fence(Ordering::SeqCst);
    }

    /// Calls `poll` until it returns something, parking in between; `None` after the deadline.
    ///
    /// `poll` runs at least once, and again after every notification, without a lock held.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = spin(deadline, &mut poll) {
            return Some(found);
        }
        let _waiting = Waiting::announce(&self.waiters);
        loop {
            let seen = *self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = poll() {
                return Some(found);
            }
            let mut epoch = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
            while *epoch == seen {
                epoch = match deadline {
                    None => self.changed.wait(epoch).unwrap_or_else(PoisonError::into_inner),
                    Some(deadline) => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            return None;
                        }
                        let woken = self.changed.wait_timeout(epoch, left);
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
        }
    }
}

/// Polls for the length of [`SPIN`], or once when the deadline has passed already.
fn spin<T>(deadline: Option<Instant>, poll: &mut impl FnMut() -> Option<T>) -> Option<T> {
    let found = poll();
    if found.is_some() || cfg!(loom) {
        return found;
    }
    let start = Instant::now();
    if deadline.is_some_and(|deadline| deadline <= start) {
        return None;
    }
    while start.elapsed() < SPIN {
        for _ in 0..16 {
            std::hint::spin_loop();
        }
        let found = poll();
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn gives_up_at_the_deadline() {
        let start = Instant::now();
        let deadline = start + Duration::from_millis(30);
        assert_eq!(Event::default().wait(Some(deadline), || None::<()>), None);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn a_passed_deadline_polls_once() {
        let mut polls = 0;
        let past = Instant::now();
        let waited = Event::default().wait(Some(past), || {
            polls += 1;
            None::<()>
        });
        assert_eq!((waited, polls >= 1), (None, true));
    }

    #[test]
    fn wakes_every_waiter() {
        let (event, flag) = (Event::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| event.wait(None, || flag.load(Ordering::Acquire).then_some(())));
            }
            while event.waiters.load(Ordering::Relaxed) < 8 {
                std::thread::yield_now();
            }
            flag.store(true, Ordering::Release);
            event.notify();
        });
        assert_eq!(event.waiters.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn calls_a_waker_once() {
        struct Flag(AtomicUsize);
        impl std::task::Wake for Flag {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (event, flag) = (Event::default(), std::sync::Arc::new(Flag(AtomicUsize::new(0))));
        let waker = Waker::from(flag.clone());
        event.register(&waker);
        event.register(&waker);
        event.notify();
        event.notify();
        assert_eq!(flag.0.load(Ordering::Relaxed), 1);
        assert_eq!(event.waiters.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_panicking_poll_is_not_left_counted() {
        let event = Event::default();
        let poll = || -> Option<()> { panic!("poll failed") };
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| event.wait(None, poll)));
        assert!(caught.is_err());
        assert_eq!(event.waiters.load(Ordering::Relaxed), 0);
    }
}
