//! The one place where the standard library's atomics are swapped for loom's.
//!
//! Everything in this crate that two threads touch imports its primitives from here, so that
//! `--cfg loom` runs the very same ring under the model checker.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering, fence},
};

/// Looks at a step of another thread that is a few instructions long before yielding to it.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Waits a moment for a step of another thread that is a few instructions long. `spins` counts the
/// calls of one wait.
pub(crate) fn pause(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    #[cfg(not(loom))]
    if *spins % SPINS == 0 {
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
