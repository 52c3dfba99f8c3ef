//! Changes of priorities that nobody waits for: a learner goes on while they are on their way.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use echoic_memory::event::Event;
use echoic_memory::sync::Mutex;
use echoic_net::client::tables::{TablesError, Ticket, Waiting};
use echoic_replay::stream::{Wait, WaitOver};
use pyo3::prelude::*;

use crate::wait::{Stopped, detached};

/// How many may have no answer. With so many under way a connection is never idle.
const MOST: usize = 64;

/// Those of one connection that have no answer, in the order in which they were asked for.
#[derive(Default)]
pub struct Updates {
    state: Mutex<State>,
    /// A thread is done with one that it waited for.
    settled: Event,
}

#[derive(Default)]
struct State {
    updates: VecDeque<Ticket<u64>>,
    /// How many more are in the hands of threads that wait for their answers.
    awaited: usize,
}

impl State {
    fn unsettled(&self) -> usize {
        self.updates.len() + self.awaited
    }
}

impl Updates {
    /// Waits until there is room for one more, and takes note of the answers that came meanwhile: the
    /// error of one that failed.
    pub fn make_room(&self, py: Python<'_>) -> Result<(), Stopped<TablesError>> {
        self.settle(py, None, MOST - 1)
    }

    /// Takes note of one that was asked for.
    pub fn push(&self, update: Ticket<u64>) {
        self.state.lock().updates.push_back(update);
    }

    /// Waits until all have their answers, also those that other threads wait for; the error of one that
    /// failed.
    pub fn finish(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Stopped<TablesError>> {
        self.settle(py, deadline, 0)
    }

    fn settle(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        most: usize,
    ) -> Result<(), Stopped<TablesError>> {
        loop {
            let mut state = self.state.lock();
            let over = state.unsettled() > most;
            if !over && !state.updates.front().is_some_and(Ticket::is_ready) {
                return Ok(());
            }
            let Some(mut update) = state.updates.pop_front() else {
                drop(state);
                self.wait_for_others(py, deadline, most)?;
                continue;
            };
            state.awaited += 1;
            drop(state);
            let answer = detached(py, deadline, None, |wait: Wait<'_, Waiting>| update.wait(wait));
            let is_on_its_way = !update.is_ready()
                && matches!(
                    answer,
                    Err(Stopped::Failed(TablesError::TimedOut(_) | TablesError::Interrupted)
                        | Stopped::Raised(_))
                );
            let mut state = self.state.lock();
            state.awaited -= 1;
            if is_on_its_way {
                state.updates.push_front(update);
            }
            drop(state);
            self.settled.notify();
            answer?;
        }
    }

    /// Waits until there is one to wait for again, or no more than so many are left.
    fn wait_for_others(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        most: usize,
    ) -> Result<(), Stopped<TablesError>> {
        let poll = || {
            let state = self.state.lock();
            (!state.updates.is_empty() || state.unsettled() <= most).then_some(())
        };
        detached(py, deadline, None, |mut wait: Wait<'_, Waiting>| {
            let ended = wait.until(|until| match self.settled.wait(until, None, poll) {
                Some(()) => ControlFlow::Break(()),
                None => ControlFlow::Continue(Waiting::Network),
            });
            ended.map_err(|over| match over {
                WaitOver::TimedOut(waiting) => TablesError::TimedOut(waiting),
                WaitOver::Interrupted => TablesError::Interrupted,
            })
        })
    }
}
