//! One publisher that many threads use, one after the other.
//!
//! # Invariants
//!
//! 1. No lock is held while something is published: a thread that waits for its turn does so until its own deadline.
//! 2. After a close no thread gets a turn, and one that has it ends within a [`TICK`], or when its attempt to
//!    connect is over.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use echoic_memory::signal::Signal;
use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;
use echoic_replay::weights::Publication;

use super::{PublishError, WeightPublisher};

/// How often a publishing thread checks whether that is still wanted.
const TICK: Duration = Duration::from_millis(50);

enum Turns {
    Free(Box<WeightPublisher>),
    /// Somebody has it.
    Taken,
    Closed,
}

/// A [`WeightPublisher`] that many threads may share: each publishes when it has its turn.
pub struct SharedPublisher {
    turns: Mutex<Turns>,
    /// The publisher came back, or it was closed.
    changed: Signal,
}

impl SharedPublisher {
    /// Makes it one for many.
    pub fn new(publisher: WeightPublisher) -> Self {
        let turns = Mutex::new(Turns::Free(Box::new(publisher)));
        Self { turns, changed: Signal::default() }
    }

    /// Publishes something, once earlier callers are done.
    pub fn publish(
        &self,
        publication: &Arc<Publication>,
        mut wait: Wait<'_>,
    ) -> Result<(), PublishError> {
        let taken = wait.until(|until| {
            let found = self.changed.wait(until, || self.try_take().transpose());
            found.map_or(ControlFlow::Continue(WaitReason::Leased), ControlFlow::Break)
        });
        let publisher = taken??;
        // Given back whatever happens, also when it unwinds.
        let mut turn = Turn { shared: self, publisher: Some(publisher) };
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
        let before = std::mem::replace(&mut *self.turns.lock(), Turns::Closed);
        drop(before);
        self.changed.notify();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        matches!(*self.turns.lock(), Turns::Closed)
    }

    /// The publisher, if no thread has it.
    fn try_take(&self) -> Result<Option<Box<WeightPublisher>>, PublishError> {
        let mut turns = self.turns.lock();
        match std::mem::replace(&mut *turns, Turns::Taken) {
            Turns::Free(publisher) => Ok(Some(publisher)),
            Turns::Taken => Ok(None),
            Turns::Closed => {
                *turns = Turns::Closed;
                Err(PublishError::Closed)
            }
        }
    }
}

/// Somebody's time with the publisher.
struct Turn<'a> {
    shared: &'a SharedPublisher,
    publisher: Option<Box<WeightPublisher>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(publisher) = self.publisher.take() else { return };
        let mut turns = self.shared.turns.lock();
        if let Turns::Taken = &*turns {
            *turns = Turns::Free(publisher);
        }
        drop(turns);
        self.shared.changed.notify();
    }
}
