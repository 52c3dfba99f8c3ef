//! A thread that makes rollouts ahead of their consumer.
//!
//! Some rollouts wait to be taken; when there are enough, the thread waits too. New weights count from
//! the next rollout that it begins. Memory of rollouts that were taken comes back when its holder drops
//! it, and is filled again.
//!
//! # Invariants
//!
//! 1. The thread looks at `stopping` before each step and whenever it waits, so that stopping takes as
//!    long as one step of all environments, or the end of a rollout.
//! 2. However the thread ends, it sets `ended` and wakes all waiting threads, which check it first.
//! 3. The lock is held for no longer than it takes to move a rollout or copy the weights.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use echoic_memory::sync::{Condvar, Mutex};
use echoic_replay::WaitReason;
use echoic_replay::stream::{Wait, WaitOver};

use crate::error::Error;
use crate::policy::{ActorCritic, Layout, Policy};
use crate::rollout::{Plan, Rollout, Worker};

/// Makes rollouts in a thread of its own.
///
/// ```
/// use echoic_collect::collector::Collector;
/// use echoic_collect::rollout::{Plan, Worker};
///
/// let plan = Plan {
///     env: "CartPole-v1".into(), envs: 4, steps: 8, gamma: 0.99, lambda: 0.95, seed: 42,
/// };
/// let collector = Collector::start(plan, Worker::layout("CartPole-v1", 4, 2, 16)?, 2)?;
/// let wait = echoic_replay::stream::Wait {
///     deadline: None,
///     tick: None,
///     on_tick: &mut |_| std::ops::ControlFlow::Continue(()),
/// };
/// assert_eq!(collector.receive(0, wait)?.observations.len(), 8 * 4 * 4);
/// collector.stop();
/// # Ok::<(), echoic_collect::Error>(())
/// ```
pub struct Collector {
    shared: Arc<CollectorControl>,
    layout: Layout,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct CollectorControl {
    state: Mutex<CollectorState>,
    /// Something was taken, came or ended.
    changed: Condvar,
    stopping: AtomicBool,
}

struct CollectorState {
    ready: VecDeque<Rollout>,
    /// Memory that may be filled again.
    free: Vec<Rollout>,
    /// How many rollouts may wait.
    capacity: usize,
    /// How many callers wait for one.
    waiting: usize,
    weights: Arc<[f32]>,
    /// How often weights came.
    version: u64,
    /// Why the thread is no more.
    ended: Option<Error>,
}

/// A rollout that was taken; dropping it gives its memory back.
pub struct Taken {
    rollout: Option<Rollout>,
    shared: Arc<CollectorControl>,
}

impl Deref for Taken {
    type Target = Rollout;

    fn deref(&self) -> &Rollout {
        self.rollout.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut Rollout {
        self.rollout.as_mut().expect("it is there until the drop")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // After a stop no thread fills it any more.
        if let Some(rollout) = self.rollout.take()
            && !self.shared.stopping.load(Ordering::Relaxed)
        {
            let mut state = self.shared.state.lock();
            // One is filled while others wait to be taken.
            if state.free.len() <= state.capacity {
                state.free.push(rollout);
            }
        }
    }
}

impl Collector {
    /// Starts the thread. Up to `capacity` rollouts are made ahead; with 0 each is begun when a thread
    /// waits for it.
    ///
    /// # Errors
    ///
    /// When a number is out of its range, or there is no memory or thread to be had.
    pub fn start(plan: Plan, layout: Layout, capacity: usize) -> Result<Self, Error> {
        let weights = crate::policy::initial(&layout, plan.seed)?;
        let policy = ActorCritic::with_weights(layout, weights.clone())?;
        let worker = Worker::new(plan, Box::new(policy))?;
        let state = CollectorState {
            ready: VecDeque::new(),
            // The first is made here, where its failure is the caller's.
            free: vec![worker.room()?],
            capacity,
            waiting: 0,
            weights: weights.into(),
            version: 0,
            ended: None,
        };
        let shared = Arc::new(CollectorControl {
            state: Mutex::new(state),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let work = Work { shared: shared.clone(), worker };
        let thread = thread::Builder::new()
            .name("echoic-collector".into())
            .spawn(move || work.run())
            .map_err(|error| Error::Thread(error.to_string()))?;
        Ok(Self { shared, layout, thread: Mutex::new(Some(thread)) })
    }

    /// The next rollout, the oldest first. Those begun before version `least` of the weights are
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Interrupted`], [`Error::Stopped`], or why the thread ended; and
    /// when there never was such a version.
    pub fn receive(&self, least: u64, mut wait: Wait<'_>) -> Result<Taken, Error> {
        let mut state = self.shared.state.lock();
        if least > state.version {
            let (expected, got) = (format!("at most {}", state.version), least.to_string());
            return Err(Error::Shape { what: "the version of weights", expected, got });
        }
        state.waiting += 1;
        drop(state);
        let ended = wait.until(|until| self.attempt(least, until));
        let over = match ended {
            Ok(result) => {
                let (rollout, shared) = (Some(result?), self.shared.clone());
                return Ok(Taken { rollout, shared });
            }
            Err(WaitOver::TimedOut(_)) => Error::TimedOut,
            Err(WaitOver::Interrupted) => Error::Interrupted,
        };
        self.shared.state.lock().waiting -= 1;
        Err(over)
    }

    /// Waits for a rollout until a time. Who breaks with anything waits no more when the lock is left,
    /// or the thread would begin a rollout for no consumer.
    fn attempt(
        &self,
        least: u64,
        until: Option<Instant>,
    ) -> ControlFlow<Result<Rollout, Error>, WaitReason> {
        let mut state = self.shared.state.lock();
        loop {
            let stopping = self.shared.stopping.load(Ordering::Relaxed);
            let over = stopping.then_some(&Error::Stopped);
            if let Some(error) = state.ended.as_ref().or(over).cloned() {
                state.waiting -= 1;
                return ControlFlow::Break(Err(error));
            }
            // Whether there is room has changed either way, or will not until a rollout is there.
            self.shared.changed.notify_all();
            if let Some(rollout) = state.ready.pop_front() {
                if rollout.version >= least {
                    state.waiting -= 1;
                    return ControlFlow::Break(Ok(rollout));
                }
                state.free.push(rollout);
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.shared.changed.wait(state),
                Some(left) if left.is_zero() => return ControlFlow::Continue(WaitReason::Empty),
                Some(left) => self.shared.changed.wait_timeout(state, left),
            };
        }
    }

    /// Has the next rollout that begins use these weights; the number of their version.
    ///
    /// # Errors
    ///
    /// When there are too few or too many, or one is not finite, or the collector is stopped.
    pub fn sync(&self, weights: Vec<f32>) -> Result<u64, Error> {
        self.layout.check(&weights)?;
        let weights = weights.into();
        let mut state = self.shared.state.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        if self.shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        state.weights = weights;
        state.version += 1;
        Ok(state.version)
    }

    /// The weights that came last.
    pub fn weights(&self) -> Arc<[f32]> {
        self.shared.state.lock().weights.clone()
    }

    /// Where each parameter is among the weights.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// A policy of its own with the weights that came last.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn policy(&self) -> Result<impl Policy + use<>, Error> {
        ActorCritic::with_weights(self.layout, self.weights().to_vec())
    }

    /// Whether it was stopped, or its thread has ended by itself.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed) || self.shared.state.lock().ended.is_some()
    }

    /// Ends the thread and waits for that. Rollouts that were not taken are dropped; those that were
    /// stay.
    pub fn stop(&self) {
        {
            // Under the lock, so that no thread goes to sleep between a look at it and this.
            let _state = self.shared.state.lock();
            self.shared.stopping.store(true, Ordering::Relaxed);
            self.shared.changed.notify_all();
        }
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            // A panic is in `ended` already.
            let _ended = thread.join();
            let mut state = self.shared.state.lock();
            state.ready.clear();
            state.free.clear();
        }
    }

    /// Leaves a thread alone that this process does not have, as after a fork.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread has.
struct Work {
    shared: Arc<CollectorControl>,
    worker: Worker,
}

impl Work {
    fn run(mut self) {
        // Says that the thread has ended also where it panics.
        struct End<'a>(&'a CollectorControl, Error);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                let error = std::mem::replace(&mut self.1, Error::Stopped);
                self.0.state.lock().ended = Some(error);
                self.0.changed.notify_all();
            }
        }
        let shared = self.shared.clone();
        let mut end = End(&shared, Error::Thread("it panicked, which is a bug of ours".into()));
        end.1 = match self.rollouts() {
            Ok(()) => Error::Stopped,
            Err(error) => Error::Thread(error.to_string()),
        };
    }

    /// Makes rollouts until the collector is stopped.
    fn rollouts(&mut self) -> Result<(), Error> {
        let Self { shared, worker } = self;
        let mut loaded = 0;
        loop {
            let mut state = shared.state.lock();
            while state.ready.len() >= state.capacity.max(state.waiting) {
                if shared.stopping.load(Ordering::Relaxed) {
                    return Ok(());
                }
                state = shared.changed.wait(state);
            }
            let (version, free) = (state.version, state.free.pop());
            let weights = (version != loaded).then(|| state.weights.clone());
            drop(state);
            if let Some(weights) = weights {
                worker.load(&weights)?;
                loaded = version;
            }
            let mut rollout = free.map_or_else(|| worker.room(), Ok)?;
            rollout.version = version;
            if !worker.collect(&mut rollout, &shared.stopping)? {
                return Ok(());
            }
            let mut state = shared.state.lock();
            state.ready.push_back(rollout);
            shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn start(steps: usize, capacity: usize) -> Collector {
        let env = "CartPole-v1".into();
        let plan = Plan { env, envs: 2, steps, gamma: 0.99, lambda: 0.95, seed: 4 };
        let layout = Worker::layout("CartPole-v1", 4, 2, 8).unwrap();
        Collector::start(plan, layout, capacity).unwrap()
    }

    fn receive(collector: &Collector, least: u64, seconds: u64) -> Result<Taken, Error> {
        let deadline = Some(Instant::now() + Duration::from_secs(seconds));
        let on_tick = &mut |_| ControlFlow::Continue(());
        collector.receive(least, Wait { deadline, tick: None, on_tick })
    }

    #[test]
    fn rollouts_come_in_order_and_the_same_however_many_wait() {
        let observations = |capacity| {
            let collector = start(16, capacity);
            let rollouts = (0..5).map(|_| receive(&collector, 0, 20).unwrap().observations.clone());
            rollouts.collect::<Vec<_>>()
        };
        let (ahead, asked) = (observations(3), observations(0));
        assert_eq!(ahead, asked);
        assert_ne!(ahead[0], ahead[1]);
    }

    #[test]
    fn a_collector_that_nobody_takes_from_waits_and_stops() {
        let collector = start(1, 2);
        let filled = || collector.shared.state.lock().ready.len() == 2;
        while !filled() {
            thread::yield_now();
        }
        // The thread has nothing left to do: what is there stays as it is.
        thread::sleep(Duration::from_millis(20));
        assert!(filled());
        collector.stop();
        collector.stop();
        assert_eq!(receive(&collector, 0, 20).err(), Some(Error::Stopped));
        assert_eq!(collector.sync(collector.weights().to_vec()), Err(Error::Stopped));
    }

    #[test]
    fn a_stop_wakes_who_waits() {
        // More steps than anyone would wait for.
        let collector = start(1 << 18, 1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| receive(&collector, 0, 60).err());
            while collector.shared.state.lock().waiting == 0 {
                thread::yield_now();
            }
            collector.stop();
            assert_eq!(waiting.join().unwrap(), Some(Error::Stopped));
        });
    }

    #[test]
    fn new_weights_count_from_the_next_rollout() {
        let collector = start(8, 1);
        assert_eq!(receive(&collector, 0, 20).unwrap().version, 0);
        let zeros = vec![0.0; collector.weights().len()];
        assert_eq!(collector.sync(zeros.clone()), Ok(1));
        assert_eq!(*collector.weights(), zeros);
        let rollout = receive(&collector, 1, 20).unwrap();
        assert_eq!(rollout.version, 1);
        assert!(rollout.values.iter().all(|value| *value == 0.0));
        assert!(matches!(receive(&collector, 2, 20).err(), Some(Error::Shape { .. })));
    }

    #[test]
    fn with_no_room_to_wait_nothing_is_begun_for_nobody() {
        let collector = start(8, 0);
        for version in 1..50 {
            collector.sync(collector.weights().to_vec()).unwrap();
            assert_eq!(receive(&collector, 0, 20).unwrap().version, version);
        }
    }

    #[test]
    fn memory_of_rollouts_is_used_again() {
        let collector = start(8, 0);
        let first = receive(&collector, 0, 20).unwrap();
        let at = first.observations.as_ptr();
        drop(first);
        assert_eq!(receive(&collector, 0, 20).unwrap().observations.as_ptr(), at);
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let collector = start(1 << 18, 1);
        assert_eq!(receive(&collector, 0, 0).err(), Some(Error::TimedOut));
    }

    #[test]
    fn a_thread_that_fails_says_so_to_who_waits() {
        let collector = start(8, 0);
        // A rollout of another shape makes the worker panic.
        let mut state = collector.shared.state.lock();
        state.free.iter_mut().for_each(|rollout| rollout.rewards.clear());
        drop(state);
        let error = receive(&collector, 0, 20).err();
        assert!(matches!(error, Some(Error::Thread(_))), "{error:?}");
        assert!(collector.is_stopped());
        collector.stop();
    }
}
