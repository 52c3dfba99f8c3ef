//! Appends in the background: a producer goes on before they are answered.
//!
//! A call is looked at by two: its producer, through a [`PendingAppend`], and the queue of its connection,
//! [`PendingAppends`], which bounds how many there are.
//!
//! # Invariants
//!
//! 1. A call is in the queue until its answer is known: so there is room for many, and not for any number.
//! 2. An error is returned to the producer, whenever that asks, and by the queue, unless the producer had it before. So
//!    it is returned at least once, if there is another call.
//! 3. No lock is held while a thread waits.
//! 4. A call is awaited while a thread waits for its answer, and no longer, whatever ends the wait.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use echoic_memory::event::Event;
use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::rollouts::ledger::GroupStatus;
use echoic_replay::stream::Wait;

use super::Calls;
use crate::client::tables::TablesError;

/// How many calls of a connection may have no answer. With this many under way it is never idle.
const MOST: usize = 32;
/// How many bytes they may have together, if they are several.
const MOST_BYTES: usize = 64 << 20;

/// Why an append in the background failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct AppendError {
    /// The group whose tokens it is about; `None` if the wait itself has failed, and the answer may still come.
    pub group: Option<u64>,
    /// What went wrong.
    pub error: TablesError,
}

impl From<TablesError> for AppendError {
    fn from(error: TablesError) -> Self {
        Self { group: None, error }
    }
}

type Answer = Result<GroupStatus, TablesError>;

/// Where a call is.
enum Progress {
    Asked(Calls),
    /// A thread waits for the answer.
    Awaited,
    Known(Answer),
}

/// Changes that were asked for.
struct Call {
    group: u64,
    /// How many bytes of tokens.
    bytes: usize,
    progress: Mutex<Progress>,
    /// It was awaited, and is so no more.
    changed: Event,
    /// Its producer knows of its error, or has given the group up.
    is_reported: AtomicBool,
}

/// A call in the hands of the one thread that waits for its answer. Dropped without it, the call is as before.
struct Awaited<'a> {
    call: &'a Call,
    calls: Option<Calls>,
}

impl Awaited<'_> {
    fn wait(mut self, wait: Wait<'_>) -> Result<Answer, TablesError> {
        let Some(calls) = &mut self.calls else { return Err(TablesError::Closed) };
        let answer = calls.wait_status(wait);
        match answer {
            Err(error @ (TablesError::TimedOut(_) | TablesError::Interrupted))
                if !calls.has_failed() =>
            {
                Err(error)
            }
            answer => {
                self.calls = None;
                *self.call.progress.lock() = Progress::Known(answer.clone());
                Ok(answer)
            }
        }
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.calls.take() {
            *self.call.progress.lock() = Progress::Asked(calls);
        }
        self.call.changed.notify();
    }
}

impl Call {
    /// The answer, if it is there.
    fn look(&self) -> Option<Answer> {
        let mut progress = self.progress.lock();
        if let Progress::Asked(calls) = &mut *progress
            && calls.is_ready()
        {
            // What is ready needs no time.
            let on_tick = &mut |_| ControlFlow::Continue(());
            let wait = Wait { deadline: Some(Instant::now()), tick: None, on_tick };
            *progress = Progress::Known(calls.wait_status(wait));
        }
        match &*progress {
            Progress::Known(answer) => Some(answer.clone()),
            _ => None,
        }
    }

    /// Waits for the answer: one thread with the connection, others with it.
    fn wait(&self, mut wait: Wait<'_>) -> Result<Answer, TablesError> {
        loop {
            if let Some(answer) = self.look() {
                return Ok(answer);
            }
            if let Some(calls) = self.take() {
                return Awaited { call: self, calls: Some(calls) }.wait(wait);
            }
            let poll = || !matches!(*self.progress.lock(), Progress::Awaited);
            wait.until(|until| match self.changed.wait(until, None, || poll().then_some(())) {
                Some(()) => ControlFlow::Break(()),
                None => ControlFlow::Continue(WaitReason::Network),
            })?;
        }
    }

    /// Takes it to wait for its answer.
    fn take(&self) -> Option<Calls> {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut *progress, Progress::Awaited) {
            Progress::Asked(calls) => Some(calls),
            other => {
                *progress = other;
                None
            }
        }
    }

    fn error(&self, error: TablesError) -> AppendError {
        AppendError { group: Some(self.group), error }
    }
}

/// Tokens that are on their way, for their producer. Dropped, they go on all the same.
pub struct PendingAppend(Arc<Call>);

impl PendingAppend {
    /// Whether the answer is there.
    pub fn is_ready(&self) -> bool {
        self.0.look().is_some()
    }

    /// Waits for the answer: where the group has come to. May be called again.
    ///
    /// # Errors
    ///
    /// [`AppendError`], of the answer or of the wait.
    pub fn wait(&self, wait: Wait<'_>) -> Result<GroupStatus, AppendError> {
        let answer = self.0.wait(wait)?;
        self.forget();
        answer.map_err(|error| self.0.error(error))
    }

    /// Drops its error: the producer has given the group up.
    pub fn forget(&self) {
        self.0.is_reported.store(true, Ordering::Relaxed);
    }
}

/// The calls of one connection that have no answer, in the order in which they were made.
#[derive(Default)]
pub struct PendingAppends(Mutex<VecDeque<Arc<Call>>>);

impl PendingAppends {
    /// Whether there is room for one more of this many bytes.
    ///
    /// # Errors
    ///
    /// [`AppendError`] of one whose producer does not know it.
    pub fn has_room(&self, bytes: usize) -> Result<bool, AppendError> {
        Ok(self.note_answers(|calls| is_few(calls, bytes))?.is_none())
    }

    /// Waits until there is room for one more of this many bytes.
    ///
    /// # Errors
    ///
    /// [`AppendError`] of one whose producer does not know it, or of the wait.
    pub fn make_room(&self, bytes: usize, wait: Wait<'_>) -> Result<(), AppendError> {
        self.settle(|calls| is_few(calls, bytes), wait)
    }

    /// Takes note of one of a group, with this many bytes of tokens, that was asked for.
    pub fn push(&self, group: u64, bytes: usize, calls: Calls) -> PendingAppend {
        let progress = Mutex::new(Progress::Asked(calls));
        let (changed, is_reported) = (Event::default(), AtomicBool::new(false));
        let call = Arc::new(Call { group, bytes, progress, changed, is_reported });
        self.0.lock().push_back(Arc::clone(&call));
        PendingAppend(call)
    }

    /// Waits until all have their answers.
    ///
    /// # Errors
    ///
    /// [`AppendError`] of one whose producer does not know it, or of the wait; there may be others that have no answer
    /// yet.
    pub fn flush(&self, wait: Wait<'_>) -> Result<(), AppendError> {
        self.settle(|_| false, wait)
    }

    /// As [`PendingAppends::flush`], but waits for those behind an error too: for a caller that can't call again.
    ///
    /// # Errors
    ///
    /// [`AppendError`] of one whose producer does not know it, or of the wait.
    pub fn flush_all(&self, mut wait: Wait<'_>) -> Result<(), AppendError> {
        let calls: Vec<Arc<Call>> = self.0.lock().iter().map(Arc::clone).collect();
        for call in calls {
            // `flush` returns the errors.
            let _ = call.wait(wait.reborrow())?;
        }
        self.flush(wait)
    }

    /// Takes away those at the front that have their answers; the first that has none, unless that is few enough.
    fn note_answers(
        &self,
        is_enough: impl Fn(&VecDeque<Arc<Call>>) -> bool,
    ) -> Result<Option<Arc<Call>>, AppendError> {
        loop {
            let (call, may_stay) = {
                let calls = self.0.lock();
                let Some(first) = calls.front() else { return Ok(None) };
                (Arc::clone(first), is_enough(&calls))
            };
            let Some(answer) = call.look() else { return Ok((!may_stay).then_some(call)) };
            {
                let mut calls = self.0.lock();
                // Another thread may have taken it away.
                if calls.front().is_some_and(|first| Arc::ptr_eq(first, &call)) {
                    calls.pop_front();
                }
            }
            if let Err(error) = answer
                && !call.is_reported.swap(true, Ordering::Relaxed)
            {
                return Err(call.error(error));
            }
        }
    }

    /// Waits until those that have no answers are few enough.
    fn settle(
        &self,
        is_enough: impl Fn(&VecDeque<Arc<Call>>) -> bool,
        mut wait: Wait<'_>,
    ) -> Result<(), AppendError> {
        while let Some(call) = self.note_answers(&is_enough)? {
            // `note_answers` returns an error of it.
            let _ = call.wait(wait.reborrow())?;
        }
        Ok(())
    }
}

/// Whether there is room behind these for one more of this many bytes.
fn is_few(calls: &VecDeque<Arc<Call>>, bytes: usize) -> bool {
    let all: usize = calls.iter().map(|call| call.bytes).sum();
    calls.len() < MOST && all + bytes <= MOST_BYTES
}
