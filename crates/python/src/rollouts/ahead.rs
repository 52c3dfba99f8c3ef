//! Tokens whose answers nobody waits for: a producer goes on while they are on their way.
//!
//! A [`Call`] is looked at by two: the permit that it was made with, through a [`RolloutCall`], and the queue of its
//! connection, [`Ahead`], which bounds how many there are.
//!
//! # Invariants
//!
//! 1. A call is in the queue until its answer is known: so there is room for many, and not for any number.
//! 2. An error is raised by the permit, whenever that asks, and by the queue, unless the permit was told before. So it
//!    is raised at least once, if somebody calls at all.
//! 3. No lock is held while somebody waits, or takes the GIL.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use echoic_memory::event::Event;
use echoic_memory::sync::Mutex;
use echoic_net::client::rollouts::{Calls, Outcomes};
use echoic_net::client::tables::{TablesError, Waiting};
use echoic_net::wire::WireError;
use echoic_replay::rollouts::ledger::{Fate, Outcome};
use echoic_replay::rollouts::table::CallError;
use echoic_replay::stream::{Wait, WaitOver};
use pyo3::prelude::*;

use super::reach::remote_error;
use crate::wait;

/// How many calls of a connection may have no answer. With so many under way it is never idle.
const MOST: usize = 32;
/// How many bytes they may have together, if they are several.
const MOST_BYTES: usize = 64 << 20;

type Answer = Result<Fate, TablesError>;

/// Where a call is.
enum State {
    Asked(Calls),
    /// Somebody waits for the answer.
    Awaited,
    Known(Answer),
}

/// Changes that were asked for.
struct Call {
    group: u64,
    /// How many bytes of tokens.
    bytes: usize,
    state: Mutex<State>,
    /// It was awaited, and is so no more.
    changed: Event,
    /// Its producer knows of its error, or has given the group up.
    is_told: AtomicBool,
}

/// Where the group has come to, by the last of the outcomes, if none is a refusal.
pub fn answer(outcomes: Outcomes) -> Answer {
    let mut fate = Fate::Running;
    for outcome in outcomes {
        match outcome.map_err(|refusal| TablesError::Rollout(CallError::Refused(refusal)))? {
            Outcome::Appended(reached) => fate = reached,
            other => {
                let text = format!("an answer of another kind: {other:?}");
                return Err(TablesError::Wire(WireError::Spec(text)));
            }
        }
    }
    Ok(fate)
}

impl Call {
    /// The answer, if it is there.
    fn look(&self) -> Option<Answer> {
        let mut state = self.state.lock();
        if let State::Asked(calls) = &mut *state
            && calls.is_ready()
        {
            // What is ready needs no time.
            let on_tick = &mut |_| ControlFlow::Continue(());
            let wait = Wait { deadline: Some(Instant::now()), tick: None, on_tick };
            *state = State::Known(calls.wait(wait).and_then(answer));
        }
        match &*state {
            State::Known(answer) => Some(answer.clone()),
            _ => None,
        }
    }

    /// Waits for the answer: one thread with the connection, others with it.
    fn wait(&self, wait: Wait<'_, Waiting>) -> Result<Answer, TablesError> {
        let Wait { deadline, tick, on_tick } = wait;
        loop {
            let mine = {
                let mut state = self.state.lock();
                match std::mem::replace(&mut *state, State::Awaited) {
                    State::Asked(calls) => Some(calls),
                    State::Awaited => None,
                    State::Known(answer) => {
                        *state = State::Known(answer.clone());
                        return Ok(answer);
                    }
                }
            };
            let mut wait = Wait { deadline, tick, on_tick: &mut *on_tick };
            if let Some(mut calls) = mine {
                let waited = calls.wait(wait);
                // One that is not there is looked for again.
                let is_over = waited.is_ok() || calls.is_ready();
                let result = match waited {
                    Err(error) if !is_over => {
                        *self.state.lock() = State::Asked(calls);
                        Err(error)
                    }
                    waited => {
                        let answer = waited.and_then(answer);
                        *self.state.lock() = State::Known(answer.clone());
                        Ok(answer)
                    }
                };
                self.changed.notify();
                return result;
            }
            let is_free = || !matches!(*self.state.lock(), State::Awaited);
            let free = wait.until(|until| {
                match self.changed.wait(until, None, || is_free().then_some(())) {
                    Some(()) => ControlFlow::Break(()),
                    None => ControlFlow::Continue(Waiting::Network),
                }
            });
            free.map_err(|over| match over {
                WaitOver::TimedOut(waiting) => TablesError::TimedOut(waiting),
                WaitOver::Interrupted => TablesError::Interrupted,
            })?;
        }
    }

    fn answered(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<Answer> {
        match self.look() {
            Some(answer) => Ok(answer),
            None => wait::detached(py, deadline, None, |wait| self.wait(wait))
                .map_err(|stopped| stopped.raise(py, remote_error)),
        }
    }

    /// The exception for its error, which names the group: it may be raised far from there.
    fn raise(&self, py: Python<'_>, error: &TablesError) -> PyErr {
        let error = remote_error(py, error);
        let note = format!("an answer of group {} that was not waited for", self.group);
        // Python 3.10 knows no notes.
        let _ = error.value(py).call_method1("add_note", (note,));
        error
    }
}

/// What is known of tokens that were added.
#[derive(IntoPyObject)]
pub enum Added {
    /// Where the group has come to.
    Known(&'static str),
    OnItsWay(RolloutCall),
}

/// Tokens that are on their way; see [`Call`].
#[pyclass(frozen, module = "echoic._native")]
pub struct RolloutCall(Arc<Call>);

#[pymethods]
impl RolloutCall {
    /// Whether the answer is there.
    #[getter]
    fn is_ready(&self) -> bool {
        self.0.look().is_some()
    }

    /// Waits for the answer: where the group has come to. May be called again.
    fn wait(&self, py: Python<'_>) -> PyResult<&'static str> {
        let answer = self.0.answered(py, None)?;
        self.0.is_told.store(true, Ordering::Relaxed);
        answer.map(|fate| fate.name()).map_err(|error| self.0.raise(py, &error))
    }

    /// Nobody needs to be told of its error any more.
    fn forget(&self) {
        self.0.is_told.store(true, Ordering::Relaxed);
    }
}

/// Those of one connection that have no answer, in the order in which they were made.
#[derive(Default)]
pub struct Ahead(Mutex<VecDeque<Arc<Call>>>);

impl Ahead {
    /// Waits until there is room for one more of so many bytes; the error of one whose producer was not told.
    pub fn make_room(&self, py: Python<'_>, bytes: usize) -> PyResult<()> {
        self.settle(py, None, |calls| {
            calls.len() < MOST
                && calls.iter().map(|call| call.bytes).sum::<usize>() + bytes <= MOST_BYTES
        })
    }

    /// Takes note of one of a group that was asked for.
    pub fn push(&self, group: u64, bytes: usize, calls: Calls) -> RolloutCall {
        let state = Mutex::new(State::Asked(calls));
        let (changed, is_told) = (Event::default(), AtomicBool::new(false));
        let call = Arc::new(Call { group, bytes, state, changed, is_told });
        self.0.lock().push_back(Arc::clone(&call));
        RolloutCall(call)
    }

    /// Waits until all have their answers; the error of one whose producer was not told.
    pub fn finish(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<()> {
        self.settle(py, deadline, |_| false)
    }

    /// As [`Ahead::finish`], but waits for those behind an error too: for who can't call again.
    pub fn arrive(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<()> {
        let calls: Vec<Arc<Call>> = self.0.lock().iter().map(Arc::clone).collect();
        for call in calls {
            // Which errors there are is told below.
            let _ = call.answered(py, deadline)?;
        }
        self.finish(py, deadline)
    }

    /// Takes away those at the front that have their answers, and waits until the others are few enough.
    fn settle(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        is_enough: impl Fn(&VecDeque<Arc<Call>>) -> bool,
    ) -> PyResult<()> {
        loop {
            let (call, may_stay) = {
                let calls = self.0.lock();
                let Some(first) = calls.front() else { return Ok(()) };
                (Arc::clone(first), is_enough(&calls))
            };
            let answer = match call.look() {
                Some(answer) => answer,
                None if may_stay => return Ok(()),
                None => call.answered(py, deadline)?,
            };
            {
                let mut calls = self.0.lock();
                // Another thread may have taken it away.
                if calls.front().is_some_and(|first| Arc::ptr_eq(first, &call)) {
                    calls.pop_front();
                }
            }
            if let Err(error) = answer
                && !call.is_told.swap(true, Ordering::Relaxed)
            {
                return Err(call.raise(py, &error));
            }
        }
    }
}
