//! Updates of priorities in the background: a learner goes on before they are answered.
//!
//! # Invariants
//!
//! 1. An update without an answer is in the queue, or in the hands of one thread that waits for its answer. So there
//!    are at most as many as may be under way, and one for each thread that asks for more.
//! 2. `awaited` counts the latter, whatever ends the wait, a panic of the caller's callback included.
//! 3. No lock is held while a thread waits.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use echoic_memory::event::Event;
use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;

use super::{PendingReply, Requests, TablesError};

/// How many may be under way. With this many a connection is never idle.
const MOST: usize = 64;

/// Changes of priorities that were asked for over one connection and have no answer, in the order in which they were
/// asked for.
///
/// The error of one comes from a later call, and from one alone: from whichever notes its answer.
///
/// ```no_run
/// use echoic_net::client::tables::{PendingUpdates, Requests, TablesError};
/// use echoic_replay::stream::Wait;
///
/// fn learn(requests: &Requests, keys: &[u64], wait: Wait<'_>) -> Result<(), TablesError> {
///     let updates = PendingUpdates::default();
///     while !updates.try_start(requests, 0, keys, &vec![1.0; keys.len()])? {
///         // The server is behind: do something else, or wait with `start`.
///     }
///     updates.flush(wait)
/// }
/// ```
#[derive(Default)]
pub struct PendingUpdates {
    unanswered: Mutex<Unanswered>,
    /// A thread is done with one that it waited for.
    settled: Event,
}

#[derive(Default)]
struct Unanswered {
    updates: VecDeque<PendingReply<u64>>,
    /// How many more are in the hands of threads that wait for their answers.
    awaited: usize,
}

impl Unanswered {
    fn count(&self) -> usize {
        self.updates.len() + self.awaited
    }
}

/// The oldest update, in the hands of a thread. Dropped before it has its answer, it is the oldest again.
struct Awaited<'a> {
    of: &'a PendingUpdates,
    update: Option<PendingReply<u64>>,
}

impl Awaited<'_> {
    fn wait(mut self, wait: Wait<'_>) -> Result<(), TablesError> {
        let Some(update) = &mut self.update else { return Ok(()) };
        let answer = update.wait(wait).map(drop);
        let is_over = matches!(answer, Err(TablesError::TimedOut(_) | TablesError::Interrupted));
        if update.is_answered() || !is_over {
            self.update = None;
        }
        answer
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut unanswered = self.of.unanswered.lock();
        unanswered.awaited -= 1;
        if let Some(update) = self.update.take() {
            unanswered.updates.push_front(update);
        }
        drop(unanswered);
        self.of.settled.notify();
    }
}

impl PendingUpdates {
    /// Asks for a change of priorities: see [`Requests::update_priorities`]. When too many are under way it is not
    /// asked for, which is `false`.
    ///
    /// # Errors
    ///
    /// [`TablesError`], of this one or of an earlier one; then this one is not asked for.
    pub fn try_start(
        &self,
        requests: &Requests,
        table: u32,
        keys: &[u64],
        priorities: &[f64],
    ) -> Result<bool, TablesError> {
        let has_room = self.note_answers(MOST - 1)?;
        if has_room {
            let update = requests.start_update(table, keys, priorities)?;
            self.unanswered.lock().updates.push_back(update);
        }
        Ok(has_room)
    }

    /// As [`PendingUpdates::try_start`]; waits until there are few enough.
    pub fn start(
        &self,
        requests: &Requests,
        table: u32,
        keys: &[u64],
        priorities: &[f64],
        mut wait: Wait<'_>,
    ) -> Result<(), TablesError> {
        while !self.try_start(requests, table, keys, priorities)? {
            self.settle(MOST - 1, wait.reborrow())?;
        }
        Ok(())
    }

    /// Waits until all have their answers, those included that other threads wait for.
    ///
    /// # Errors
    ///
    /// [`TablesError`] of one of them; there may be others that have no answer yet.
    pub fn flush(&self, wait: Wait<'_>) -> Result<(), TablesError> {
        self.settle(0, wait)
    }

    /// Notes the answers that came to the oldest ones; whether at most this many updates have none.
    fn note_answers(&self, most: usize) -> Result<bool, TablesError> {
        loop {
            let mut unanswered = self.unanswered.lock();
            if !unanswered.updates.front().is_some_and(PendingReply::is_ready) {
                return Ok(unanswered.count() <= most);
            }
            let Some(mut update) = unanswered.updates.pop_front() else { continue };
            drop(unanswered);
            // What is ready needs no time.
            let on_tick = &mut |_| ControlFlow::Continue(());
            update.wait(Wait { deadline: Some(Instant::now()), tick: None, on_tick })?;
        }
    }

    /// Waits until at most this many have no answer.
    fn settle(&self, most: usize, mut wait: Wait<'_>) -> Result<(), TablesError> {
        while !self.note_answers(most)? {
            match self.take() {
                Some(awaited) => awaited.wait(wait.reborrow())?,
                None => self.wait_for_others(most, wait.reborrow())?,
            }
        }
        Ok(())
    }

    fn take(&self) -> Option<Awaited<'_>> {
        let mut unanswered = self.unanswered.lock();
        let update = unanswered.updates.pop_front()?;
        unanswered.awaited += 1;
        Some(Awaited { of: self, update: Some(update) })
    }

    /// Waits until there is one to wait for again, or no more than this many are left.
    fn wait_for_others(&self, most: usize, mut wait: Wait<'_>) -> Result<(), TablesError> {
        let poll = || {
            let unanswered = self.unanswered.lock();
            (!unanswered.updates.is_empty() || unanswered.count() <= most).then_some(())
        };
        let ended = wait.until(|until| match self.settled.wait(until, None, poll) {
            Some(()) => ControlFlow::Break(()),
            None => ControlFlow::Continue(WaitReason::Network),
        });
        ended.map_err(TablesError::from)
    }
}
