//! One publisher that many threads use, one after the other.
//!
//! # Invariants
//!
//! 1. No lock is held while something is published: who waits for its turn does so until its own deadline.
//! 2. After a close nobody gets a turn, and who has one ends it within a [`TICK`], or when its attempt to
//!    connect is over.

use std::ops::ControlFlow;
use std::time::Duration;

use echoic_memory::signal::Signal;
use echoic_memory::sync::Mutex;
use echoic_net::client::weights::{PublishError, WeightPublisher};
use echoic_replay::Blocked;
use echoic_replay::stream::{Wait, WaitOver};
use echoic_replay::weights::Publication;

/// How often who publishes looks whether that is still wanted.
const TICK: Duration = Duration::from_millis(50);

enum State {
    Free(Box<WeightPublisher>),
    /// Somebody has it.
    Taken,
    Closed,
}

/// See the [module](self).
pub struct Desk {
    state: Mutex<State>,
    /// The publisher came back, or the desk was closed.
    changed: Signal,
}

impl Desk {
    pub fn new(publisher: WeightPublisher) -> Self {
        let state = Mutex::new(State::Free(Box::new(publisher)));
        Self { state, changed: Signal::default() }
    }

    /// Publishes something, once those are done who came before.
    pub fn publish(
        &self,
        publication: &Publication,
        mut wait: Wait<'_>,
    ) -> Result<(), PublishError> {
        let taken = wait.until(|until| {
            let found = self.changed.wait(until, || self.try_take().transpose());
            found.map_or(ControlFlow::Continue(Blocked::Leased), ControlFlow::Break)
        });
        let publisher = match taken {
            Ok(publisher) => publisher?,
            Err(WaitOver::TimedOut(_)) => return Err(PublishError::TimedOut),
            Err(WaitOver::Interrupted) => return Err(PublishError::Interrupted),
        };
        // Given back whatever happens, also when it unwinds.
        let mut turn = Turn { desk: self, publisher: Some(publisher) };
        let Some(publisher) = &mut turn.publisher else { return Err(PublishError::Closed) };
        let mut on_tick = |reason| {
            if self.is_closed() {
                return ControlFlow::Break(());
            }
            (wait.on_tick)(reason)
        };
        let tick = wait.tick.map_or(TICK, |tick| tick.min(TICK));
        let wait = Wait { deadline: wait.deadline, tick: Some(tick), on_tick: &mut on_tick };
        publisher.publish(publication, wait)
    }

    /// Ends all publishing.
    pub fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Closed);
        drop(before);
        self.changed.notify();
    }

    pub fn is_closed(&self) -> bool {
        matches!(*self.state.lock(), State::Closed)
    }

    /// The publisher, if nobody has it.
    fn try_take(&self) -> Result<Option<Box<WeightPublisher>>, PublishError> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Free(publisher) => Ok(Some(publisher)),
            State::Taken => Ok(None),
            State::Closed => {
                *state = State::Closed;
                Err(PublishError::Closed)
            }
        }
    }
}

/// Somebody's time with the publisher.
struct Turn<'a> {
    desk: &'a Desk,
    publisher: Option<Box<WeightPublisher>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(publisher) = self.publisher.take() else { return };
        let mut state = self.desk.state.lock();
        if let State::Taken = &*state {
            *state = State::Free(publisher);
        }
        drop(state);
        self.desk.changed.notify();
    }
}
