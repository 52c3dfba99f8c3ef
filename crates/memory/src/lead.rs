//! Which of several threads drives a connection, and how they hand that on.
//!
//! Threads that wait for replies over one connection share a *driver*, which writes, reads and hands out replies. One
//! of them leads: it has the driver, and uses it until its own reply is there. The others park, each on its own
//! [`Slot`], until they are woken by their reply or to lead next. A thread in the background leads while no caller does,
//! and when only it can go on, such as after the connection is lost.
//!
//! So a caller that is alone sleeps in the system call that brings its reply, and no other thread is woken for it.
//!
//! # Invariants
//!
//! 1. One thread at a time drives: it has taken the driver out of [`Lead`].
//! 2. If the driver is in [`Lead`] while a caller is parked, or while the driver is needed, a thread was woken to take it.
//!    The background also comes by itself, when no caller has waited for a while.
//! 3. No lock of this module is held while the driver drives, while a caller polls, or while a thread is woken.
//!
//! What this deliberately does not know: sockets, frames, and which reply belongs into which slot.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::sync::{Mutex, MutexGuard};

/// What one thread at a time drives.
pub trait Drive {
    /// What callers wait for.
    type Reply;

    /// Sends what there is to send, or waits until `until` for something to come, and fills the slots of those whose
    /// replies came. Breaks when only the background can go on.
    fn drive(&mut self, until: Option<Instant>) -> ControlFlow<()>;

    /// Whether a thread has to drive although no caller waits. Called with a lock held, so it must not call [`Lead`].
    fn is_needed(&self) -> bool;

    /// A thread panicked while it drove. The background has the driver next.
    fn fail(&mut self);
}

/// Where the reply to one caller is put, and where that caller parks.
#[derive(Debug)]
pub struct Slot<R> {
    content: Mutex<Content<R>>,
    changed: Event,
}

#[derive(Debug)]
struct Content<R> {
    reply: Option<R>,
    /// The caller was taken off the queue, to lead.
    has_turn: bool,
}

impl<R> Default for Slot<R> {
    fn default() -> Self {
        let content = Content { reply: None, has_turn: false };
        Self { content: Mutex::new(content), changed: Event::default() }
    }
}

impl<R> Slot<R> {
    /// Puts the reply there, and wakes the caller.
    pub fn fill(&self, reply: R) {
        self.content.lock().reply = Some(reply);
        self.changed.notify();
    }

    /// Takes the reply.
    pub fn take(&self) -> Option<R> {
        self.content.lock().reply.take()
    }

    /// Whether there is a reply that was not taken.
    pub fn is_filled(&self) -> bool {
        self.content.lock().reply.is_some()
    }

    /// Has a caller that is parked poll again.
    pub fn wake(&self) {
        self.changed.notify();
    }

    fn give_turn(&self) {
        self.content.lock().has_turn = true;
        self.changed.notify();
    }

    fn take_turn(&self) -> bool {
        std::mem::take(&mut self.content.lock().has_turn)
    }
}

/// See the [module](self).
pub struct Lead<D: Drive> {
    state: Mutex<LeadState<D>>,
    background: Event,
}

struct LeadState<D: Drive> {
    /// Here while no thread leads.
    driver: Option<Box<D>>,
    /// Only the background may take it.
    is_reserved: bool,
    /// Callers that wait while another leads, the oldest first.
    parked: VecDeque<Arc<Slot<D::Reply>>>,
    /// A caller has waited since the background last looked.
    was_used: bool,
    /// The background is to take the driver.
    is_called: bool,
    /// The background sleeps until the driver is back.
    is_missed: bool,
}

impl<D: Drive> Default for Lead<D> {
    /// One whose driver the background still has.
    fn default() -> Self {
        let state = LeadState {
            driver: None,
            is_reserved: false,
            parked: VecDeque::new(),
            was_used: false,
            is_called: false,
            is_missed: false,
        };
        Self { state: Mutex::new(state), background: Event::default() }
    }
}

impl<D: Drive> Lead<D> {
    /// Waits until `poll` finds something, leading if no other thread does; `None` after `until`. It drives at least
    /// once if it leads. `follow` is called when it is parked behind another leader, which may have to be woken.
    ///
    /// `poll` is also called whenever the slot [is woken](Slot::wake).
    pub fn wait<T>(
        &self,
        slot: &Arc<Slot<D::Reply>>,
        until: Option<Instant>,
        follow: impl Fn(),
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = poll() {
            return Some(found);
        }
        loop {
            if let Some(driver) = self.take_or_park(slot) {
                match self.lead(driver, until, &mut poll) {
                    ControlFlow::Break(found) => return found,
                    ControlFlow::Continue(()) => continue,
                }
            }
            follow();
            let woken = slot.changed.wait(until, None, || match poll() {
                Some(found) => Some(Some(found)),
                None => slot.take_turn().then_some(None),
            });
            match woken {
                Some(None) => {}
                found => {
                    self.leave(slot);
                    return found.flatten();
                }
            }
        }
    }

    fn take_or_park(&self, slot: &Arc<Slot<D::Reply>>) -> Option<Box<D>> {
        let state = &mut *self.state.lock();
        state.was_used = true;
        let driver = if state.is_reserved { None } else { state.driver.take() };
        if driver.is_none() {
            state.parked.push_back(Arc::clone(slot));
        }
        driver
    }

    /// Drives until `poll` finds something or it is late, which breaks, or only the background can go on.
    fn lead<T>(
        &self,
        mut driver: Box<D>,
        until: Option<Instant>,
        poll: &mut impl FnMut() -> Option<T>,
    ) -> ControlFlow<Option<T>> {
        let led = catch_unwind(AssertUnwindSafe(|| {
            let mut is_late = false;
            loop {
                let found = poll();
                if found.is_some() || is_late {
                    return ControlFlow::Break(found);
                }
                if driver.drive(until).is_break() {
                    return ControlFlow::Continue(());
                }
                is_late = until.is_some_and(|until| until <= Instant::now());
            }
        }));
        if led.is_err() {
            driver.fail();
        }
        let is_stuck = !matches!(led, Ok(ControlFlow::Break(_)));
        self.put_back(driver, is_stuck);
        led.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// A caller parks no more. If it was to lead, another has to.
    fn leave(&self, slot: &Arc<Slot<D::Reply>>) {
        let mut state = self.state.lock();
        let place = state.parked.iter().position(|parked| Arc::ptr_eq(parked, slot));
        match place {
            Some(place) => drop(state.parked.remove(place)),
            None => self.pass_on(state),
        }
    }

    fn put_back(&self, driver: Box<D>, is_reserved: bool) {
        let mut state = self.state.lock();
        state.driver = Some(driver);
        state.is_reserved = is_reserved;
        self.pass_on(state);
    }

    /// Wakes the thread that is to lead next, if the driver is there and one has to.
    fn pass_on(&self, mut state: MutexGuard<'_, LeadState<D>>) {
        let Some(driver) = &state.driver else { return };
        let is_needed = state.is_reserved || (state.parked.is_empty() && driver.is_needed());
        let next = if is_needed { None } else { state.parked.pop_front() };
        state.is_called |= is_needed;
        let wakes = std::mem::take(&mut state.is_missed) || state.is_called;
        drop(state);
        if let Some(next) = next {
            next.give_turn();
        }
        if wakes {
            self.background.notify();
        }
    }

    /// Has the background take the driver, unless another thread has it: that one checks whether it is needed.
    pub fn call_background(&self) {
        let mut state = self.state.lock();
        if state.driver.is_some() && !std::mem::replace(&mut state.is_called, true) {
            drop(state);
            self.background.notify();
        }
    }

    /// In the background: gives the driver to callers, if one has waited of late and it is not needed otherwise.
    /// Returns with it when it is needed, when only the background can go on, or when no caller has waited for `pause`.
    pub fn lend(&self, driver: Box<D>, pause: Duration) -> Box<D> {
        if driver.is_needed() || !self.state.lock().was_used {
            return driver;
        }
        self.put_back(driver, false);
        loop {
            let until = Instant::now().checked_add(pause);
            self.background.wait(until, None, || self.state.lock().is_called.then_some(()));
            {
                let state = &mut *self.state.lock();
                let is_idle = !std::mem::take(&mut state.was_used);
                let takes = std::mem::take(&mut state.is_called) || is_idle;
                if takes && let Some(driver) = state.driver.take() {
                    return driver;
                }
                state.is_missed = state.driver.is_none();
            }
            // A caller may lead for hours.
            self.background.wait(None, None, || (!self.state.lock().is_missed).then_some(()));
        }
    }
}
