//! Changes of priorities that nobody waits for: a learner goes on while they are on their way.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use echoic_net::client::tables::{TablesError, Ticket, Waiting};
use echoic_replay::stream::Wait;
use pyo3::prelude::*;

use crate::wait::{Stopped, detached};

/// How many may have no answer. With so many under way a connection is never idle.
const MOST: usize = 64;

/// Those of one connection that have no answer, in the order in which they were asked for.
#[derive(Default)]
pub struct Updates(Mutex<VecDeque<Ticket<u64>>>);

impl Updates {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Ticket<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for one more, and takes note of the answers that came meanwhile: the
    /// error of one that failed.
    pub fn make_room(&self, py: Python<'_>) -> Result<(), Stopped<TablesError>> {
        self.settle(py, None, MOST - 1)
    }

    /// Takes note of one that was asked for.
    pub fn push(&self, update: Ticket<u64>) {
        self.lock().push_back(update);
    }

    /// Waits until all have their answers; the error of one that failed.
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
            let mut updates = self.lock();
            let over = updates.len() > most;
            if !over && !updates.front().is_some_and(Ticket::is_ready) {
                return Ok(());
            }
            let Some(mut update) = updates.pop_front() else { return Ok(()) };
            drop(updates);
            let answer = detached(py, deadline, None, |wait: Wait<'_, Waiting>| update.wait(wait));
            match answer {
                Ok(_) => {}
                // It is still on its way.
                Err(Stopped::Failed(TablesError::TimedOut(_) | TablesError::Interrupted))
                | Err(Stopped::Raised(_))
                    if !update.is_ready() =>
                {
                    self.lock().push_front(update);
                    return answer.map(drop);
                }
                Err(stopped) => return Err(stopped),
            }
        }
    }
}
