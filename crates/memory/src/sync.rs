//! The one place where the standard library's atomics are swapped for loom's.
//!
//! Everything in this crate that two threads or processes touch imports its primitives from here, so
//! that `--cfg loom` runs the very same ring under the model checker. In tests every write of an
//! atomic is a step at which [`crate::death`] may end the thread, as a kill ends a process.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc as RefCounted, Mutex, MutexGuard,
    atomic::{Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc as RefCounted, Mutex, MutexGuard,
    atomic::{Ordering, fence},
};

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
