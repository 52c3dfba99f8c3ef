//! Locks that go on after a panic, and the one place where the standard library's atomics and locks are
//! swapped for loom's.
//!
//! Everything in this crate that two threads or processes touch imports its primitives from here, so
//! that `--cfg loom` runs the very same ring under the model checker. In tests every write of an
//! atomic is a step at which `death` may end the thread, as a kill ends a process.
//!
//! # Poisoning
//!
//! [`Mutex`], [`RwLock`] and [`Condvar`] ignore it: what a thread held when it panicked can be locked again. A
//! panic is a bug of ours. It ends what ran into it: one connection of a server, whose event loop goes on; a call from
//! Python, as an exception; or a thread, which reports it. Others that share the state would panic at the lock as
//! well, one after the other, and hide the first message.
//!
//! What they find behind the lock:
//!
//! - State that `unsafe` code relies on, in `arena`, `row_ring` and `slab`, is whole. Their sections check before they
//!   change anything, and nothing can panic between two changes that belong together. New sections must keep to that.
//!   The local buffers and the collector keep to it as well.
//! - Other state may be half changed, and wrong from then on: a table could count an item that it can't draw. Memory
//!   stays safe, because such state does not decide which bytes are lent.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

#[cfg(loom)]
use loom::sync as primitives;
#[cfg(not(loom))]
use std::sync as primitives;

pub use primitives::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use primitives::{
    Arc as RefCounted,
    atomic::{Ordering, fence},
};

/// A [`std::sync::Mutex`] that ignores poisoning. See the [module](self).
///
/// ```
/// use echoic_memory::sync::Mutex;
///
/// static COUNT: Mutex<u32> = Mutex::new(0);
/// *COUNT.lock() += 1;
/// assert_eq!(*COUNT.lock(), 1);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T>(primitives::Mutex<T>);

impl<T> Mutex<T> {
    /// Puts `value` behind a lock.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self(primitives::Mutex::new(value))
    }

    /// Puts `value` behind a lock.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self(primitives::Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if it is free now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, which `&mut self` shows nothing else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`std::sync::RwLock`] that ignores poisoning. See the [module](self).
#[derive(Debug, Default)]
pub struct RwLock<T>(primitives::RwLock<T>);

impl<T> RwLock<T> {
    /// Puts `value` behind a lock.
    pub fn new(value: T) -> Self {
        Self(primitives::RwLock::new(value))
    }

    /// Waits until no thread writes, and takes the lock to read.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no thread reads or writes, and takes the lock to write.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`std::sync::Condvar`] that ignores poisoning. See the [module](self).
#[derive(Debug, Default)]
pub struct Condvar(primitives::Condvar);

impl Condvar {
    /// A condition that no thread waits for.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(primitives::Condvar::new())
    }

    /// A condition that no thread waits for.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(primitives::Condvar::new())
    }

    /// Releases the lock until a notification, or for no reason, and takes it again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Condvar::wait`], for at most this long. Look at the condition and the clock to learn why it returned.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes one thread that waits, if there is one.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes every thread that waits.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(not(any(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(any(test, loom))]
pub(crate) use mortal::{AtomicU32, AtomicU64};

/// Atomics whose writes are steps.
#[cfg(any(test, loom))]
mod mortal {
    use super::Ordering;
    use crate::death::step;

    #[cfg(loom)]
    use loom::sync::atomic;
    #[cfg(not(loom))]
    use std::sync::atomic;

    macro_rules! mortal {
        ($name:ident, $int:ty, { $($write:ident),* }) => {
            #[derive(Debug)]
            #[repr(transparent)]
            pub(crate) struct $name(atomic::$name);

            #[allow(dead_code, reason = "one list of methods for both sizes")]
            impl $name {
                pub(crate) fn new(value: $int) -> Self {
                    Self(atomic::$name::new(value))
                }

                #[cfg(not(loom))]
                pub(crate) fn as_ptr(&self) -> *mut $int {
                    self.0.as_ptr()
                }

                pub(crate) fn load(&self, order: Ordering) -> $int {
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $int, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                $(pub(crate) fn $write(&self, value: $int, order: Ordering) -> $int {
                    step();
                    self.0.$write(value, order)
                })*

                pub(crate) fn compare_exchange(
                    &self,
                    old: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    step();
                    self.0.compare_exchange(old, new, success, failure)
                }
            }
        };
    }

    mortal!(AtomicU32, u32, { fetch_add, fetch_or });
    mortal!(AtomicU64, u64, { fetch_add, fetch_sub, fetch_or, fetch_and, fetch_max });
}

/// Looks at a step of another thread that is a few instructions long before yielding to it.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Waits a moment for a step of another thread that is a few instructions long. `spins` counts the
/// calls of one wait.
pub(crate) fn pause(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    #[cfg(not(loom))]
    if spins.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
    #[cfg(loom)]
    {
        // Loom would also explore the schedules in which the other thread never runs.
        if *spins > 2 {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn panics(change: impl FnOnce()) {
        assert!(catch_unwind(AssertUnwindSafe(change)).is_err());
    }

    #[test]
    fn a_panic_under_a_lock_leaves_it_usable() {
        let mut mutex = Mutex::new(1);
        panics(|| {
            *mutex.lock() += 1;
            let _held = mutex.lock();
            panic!("with the lock");
        });
        assert_eq!(*mutex.lock(), 2);
        assert_eq!(mutex.try_lock().map(|value| *value), Some(2));
        let (condvar, short) = (Condvar::new(), Duration::from_millis(1));
        assert_eq!(*condvar.wait_timeout(mutex.lock(), short), 2);
        assert_eq!(*mutex.get_mut(), 2);
        assert_eq!(mutex.into_inner(), 2);

        let rows = RwLock::new(1);
        panics(|| {
            let mut rows = rows.write();
            *rows += 1;
            panic!("with the lock");
        });
        assert_eq!(*rows.read(), 2);
        *rows.write() += 1;
        assert_eq!(*rows.read(), 3);
    }

    #[test]
    fn a_lock_that_is_held_is_not_had_by_trying() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
    }
}
