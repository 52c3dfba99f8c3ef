//! A few threads for what would keep an event loop from its other connections: large batches, and chunks that are
//! decoded to see whether they can be.
//!
//! Threads are started when there is first something to do, and end with the server. A connection has one task at most
//! and is not read from meanwhile, so no more tasks wait than there are connections.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, JoinHandle};

use echoic_memory::sync::{Condvar, Mutex};

/// From how many bytes on, copied or as good as that, something is not done by the event loop: about a millisecond. Less
/// takes not much longer than to hand it over.
pub(crate) const HEAVY: usize = 4 << 20;

/// See the [module](self).
pub(crate) struct Pool {
    /// The most threads.
    most: usize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    waiting: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: Vec<JoinHandle<()>>,
    /// How many of them have nothing to do.
    idle: usize,
    is_closed: bool,
}

/// Where the result of a task will be.
pub(crate) struct Task<T>(Arc<Mutex<Option<thread::Result<T>>>>);

impl<T> Task<T> {
    /// The result, once it is there; what a task panicked with is an error.
    pub(crate) fn take(&self) -> Option<thread::Result<T>> {
        self.0.lock().take()
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

impl Pool {
    /// A pool of up to `most` threads.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Has `work` done by one of the threads, and calls `waker` when it is.
    pub(crate) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        waker: &Waker,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Task<T> {
        let result = Arc::new(Mutex::new(None));
        let (place, waker) = (Arc::clone(&result), waker.clone());
        let task = Box::new(move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            *place.lock() = Some(done);
            waker.wake();
        });
        let mut state = self.state.lock();
        state.waiting.push_back(task);
        if state.idle < state.waiting.len() && state.threads.len() < self.most {
            let pool = Arc::clone(self);
            let spawned =
                thread::Builder::new().name("echoic-pool".into()).spawn(move || pool.work());
            match spawned {
                Ok(thread) => state.threads.push(thread),
                // Late is better than never.
                Err(_) if state.threads.is_empty() => {
                    let task = state.waiting.pop_back();
                    drop(state);
                    task.into_iter().for_each(|task| task());
                    return Task(result);
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.changed.notify_one();
        Task(result)
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.waiting.pop_front() {
                drop(state);
                task();
                state = self.state.lock();
            } else if state.is_closed {
                return;
            } else {
                state.idle += 1;
                state = self.changed.wait(state);
                state.idle -= 1;
            }
        }
    }

    /// Begins nothing more; the threads, to be waited for.
    pub(crate) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.state.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.changed.notify_all();
        drop(waiting);
        threads
    }
}
