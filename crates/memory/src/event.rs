//! Parking until something may have changed, also in another process.
//!
//! An [`Event`] protects nothing: the condition lives in atomics elsewhere. A waiter announces
//! itself, looks at the condition once more, and only then parks; a notifier changes the condition,
//! then looks for waiters. The two sequentially consistent fences make at least one of them see the
//! other, so no wake-up is lost, and notifying costs a fence and a load while no thread waits.
//!
//! An event is one word: a bit that says that a thread may wait, and a count of notifications. It
//! may lie in memory that other processes map, on Linux, where threads park on the word itself. A waiter that
//! is killed leaves the bit behind, which the next notifier clears: it costs one system call. A
//! notifier that is killed between clearing the bit and waking leaves waiters asleep, so whoever
//! cleans up after it calls [`Event::rouse`].
//!
//! Elsewhere, and under loom, threads of one process park on a condition variable beside the word (`os`).

use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::os::Parking;
use crate::sync::{AtomicU32, Ordering, fence};

/// How long a waiter looks again before it parks.
///
/// Parking and being woken costs two context switches (about 10 µs); waits shorter than this are
/// cheaper spun out. Longer spinning would burn the core that the other side needs.
const SPIN: Duration = Duration::from_micros(4);

/// A thread may be parked, or about to.
const WAITING: u32 = 1;
/// One notification: what is above the bit counts them, so that a waiter that is about to park
/// sees that one came.
const NOTIFIED: u32 = 2;

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
///     let seen = event.wait(None, None, || done.load(Ordering::Acquire).then_some("done"));
///     assert_eq!(seen, Some("done"));
/// });
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Event {
    word: CachePadded<AtomicU32>,
    parking: Parking,
}

impl Default for Event {
    fn default() -> Self {
        Self { word: CachePadded::new(AtomicU32::new(0)), parking: Parking::new() }
    }
}

impl Event {
    /// Wakes every thread that waits. Call it after the condition was changed.
    pub fn notify(&self) {
        // Pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        let word = self.word.load(Ordering::Relaxed);
        if word & WAITING == 0 {
            return;
        }
        let next = word.wrapping_add(NOTIFIED) & !WAITING;
        // If the word has changed, another notifier cleared the bit and wakes who was parked; who
        // came after that sees our change, by the fences.
        let cleared = self.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed);
        if cleared.is_ok() {
            self.parking.wake(&self.word);
        }
    }

    /// Wakes the thread that is parked, announced or not: a notifier may have died half way.
    pub fn rouse(&self) {
        self.word.fetch_add(NOTIFIED, Ordering::AcqRel);
        self.parking.wake(&self.word);
    }

    /// Calls `poll` until it returns something, parking in between; `None` after the deadline.
    ///
    /// `poll` runs at least once, and again after every notification, without a lock held. With a
    /// `nap` it also runs whenever that much time has passed: what a notifier in another process
    /// was about to say when it was stopped is then seen all the same.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        nap: Option<Duration>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = spin(deadline, &mut poll) {
            return Some(found);
        }
        loop {
            let seen = self.word.fetch_or(WAITING, Ordering::Relaxed) | WAITING;
            // Pairs with the fence in `notify`.
            fence(Ordering::SeqCst);
            let found = poll();
            if found.is_some() {
                return found;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let pause = left.map_or(nap, |left| Some(nap.map_or(left, |nap| nap.min(left))));
            self.parking.park(&self.word, seen, pause);
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
        assert_eq!(Event::default().wait(Some(deadline), None, || None::<()>), None);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn a_passed_deadline_polls_once() {
        let mut polls = 0;
        let past = Instant::now();
        let waited = Event::default().wait(Some(past), None, || {
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
                scope.spawn(|| {
                    event.wait(None, None, || flag.load(Ordering::Acquire).then_some(()))
                });
            }
            // Long enough for some to park. Should none have, the test passes all the same.
            std::thread::sleep(Duration::from_millis(5));
            flag.store(true, Ordering::Release);
            event.notify();
        });
    }

    #[test]
    fn a_waiter_that_died_costs_one_wake_up() {
        let event = Event::default();
        // What a waiter leaves that is killed while it sleeps.
        event.word.fetch_or(WAITING, Ordering::Relaxed);
        event.notify();
        assert_eq!(event.word.load(Ordering::Relaxed) & WAITING, 0);
    }

    #[test]
    fn a_nap_ends_without_a_notification() {
        let (start, nap) = (Instant::now(), Some(Duration::from_millis(1)));
        let later = || (start.elapsed() > Duration::from_millis(5)).then_some(());
        assert_eq!(Event::default().wait(None, nap, later), Some(()));
    }
}
