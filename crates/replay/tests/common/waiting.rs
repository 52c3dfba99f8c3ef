//! Waits of tests: longer than anything takes that works, and not for ever.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use echoic_replay::stream::Wait;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Calls something that waits for at most so long.
pub fn within<T>(time: Duration, call: impl FnOnce(Wait<'_>) -> T) -> T {
    let deadline = Some(Instant::now() + time);
    call(Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) })
}

/// Calls something that waits, and will not have to for long.
pub fn soon<T>(call: impl FnOnce(Wait<'_>) -> T) -> T {
    within(PATIENCE, call)
}

/// Waits until something is so, which `what` says.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let due = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < due, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
