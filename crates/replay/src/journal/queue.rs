//! What was appended and is not written yet, and how far the journal is: the state that appending
//! threads and the journal's own share.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use echoic_memory::sync::{Condvar, Mutex, MutexGuard};

use super::Durability;
use super::segment::{HEAD_BYTES, Unnumbered};
use crate::Error;

/// A record as the file has it: its head, which is filled in with its number, and its bytes.
pub(super) type Frame = Vec<u8>;

/// See the module.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    /// The journal's thread waits for work.
    work: Condvar,
    /// Others wait for room, or for their records.
    progress: Condvar,
    durability: Durability,
    limit: usize,
}

#[derive(Debug)]
struct QueueState {
    frames: Vec<Frame>,
    /// Bytes of frames here and in the hands of the thread.
    held: usize,
    /// The number of the next record.
    next: u64,
    /// All records before are written.
    written: u64,
    /// All records before are durable.
    synced: u64,
    /// All records before are to be made durable, whatever the durability.
    wanted: u64,
    failure: Option<Arc<Error>>,
    closing: bool,
    /// Whether the thread sleeps, so that it is not woken for nothing.
    idle: bool,
    /// How many sleep for progress.
    waiting: usize,
    wakers: Vec<Waker>,
    effort: Effort,
}

/// What writing took, since the journal was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Bytes written.
    pub bytes: u64,
    /// Times that something was written.
    pub writes: u64,
    /// Times that it was made durable too.
    pub syncs: u64,
    /// How long all of that took.
    pub time: Duration,
}

/// How far the journal is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub(super) next: u64,
    pub(super) kept: u64,
    pub(super) synced: u64,
    pub(super) held: usize,
    pub(super) effort: Effort,
}

/// What the journal's thread does next.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) frames: Vec<Frame>,
    /// The number of the first.
    pub(super) first: u64,
    pub(super) sync: bool,
    /// Nothing comes after this.
    pub(super) last: bool,
}

impl QueueState {
    fn kept(&self, durability: Durability) -> u64 {
        match durability {
            // What is not written is not kept any more when it never will be.
            Durability::None if self.failure.is_none() => self.next,
            Durability::None | Durability::Async => self.written,
            Durability::Sync => self.synced,
        }
    }

    fn check(&self) -> Result<(), Error> {
        match &self.failure {
            Some(cause) => Err(Error::Failed { cause: Arc::clone(cause) }),
            None if self.closing => Err(Error::Closed("journal")),
            None => Ok(()),
        }
    }
}

impl Queue {
    pub(super) fn new(next: u64, durability: Durability, limit: usize) -> Self {
        let state = QueueState {
            frames: Vec::new(),
            held: 0,
            next,
            written: next,
            synced: next,
            wanted: next,
            failure: None,
            closing: false,
            idle: false,
            waiting: 0,
            wakers: Vec::new(),
            effort: Effort::default(),
        };
        let (work, progress) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), work, progress, durability, limit }
    }

    /// Sleeps until there was progress; `None` when the deadline has passed.
    fn sleep<'a>(
        &self,
        mut state: MutexGuard<'a, QueueState>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, QueueState>, bool) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return (state, false);
        }
        state.waiting += 1;
        let mut state = match left {
            Some(left) => self.progress.wait_timeout(state, left),
            None => self.progress.wait(state),
        };
        state.waiting -= 1;
        (state, true)
    }

    /// Takes the record of which `frame` is made, waiting for room. Returns its number.
    pub(super) fn append(
        &self,
        mut frame: Frame,
        head: Unnumbered,
        deadline: Option<Instant>,
    ) -> Result<u64, Error> {
        let len = frame.len();
        let mut state = self.state.lock();
        loop {
            state.check()?;
            // A record that is as large as the queue alone is taken by an empty one.
            if state.held == 0 || state.held.saturating_add(len) <= self.limit {
                break;
            }
            let (locked, slept) = self.sleep(state, deadline);
            if !slept {
                let (held, limit) = (locked.held, self.limit);
                let what = format!("with {held} of {limit} bytes waiting to be written");
                return Err(Error::TimedOut(what));
            }
            state = locked;
        }
        let sequence = state.next;
        if let Some(place) = frame.first_chunk_mut::<HEAD_BYTES>() {
            *place = head.number(sequence);
        }
        state.frames.push(frame);
        state.next += 1;
        state.held += len;
        self.wake_thread(&mut state);
        Ok(sequence)
    }

    /// Sets room aside for a record that comes later; whether there was enough.
    pub(super) fn take_room(&self, bytes: usize) -> Result<bool, Error> {
        let mut state = self.state.lock();
        state.check()?;
        let fits = state.held == 0 || state.held.saturating_add(bytes) <= self.limit;
        if fits {
            state.held = state.held.saturating_add(bytes);
        }
        Ok(fits)
    }

    /// Whether less waits to be written than may. One that takes no more has room: the writer gets an error.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.held < self.limit || state.check().is_err()
    }

    /// Gives back what [`Queue::take_room`] took.
    pub(super) fn give_room(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.held = state.held.saturating_sub(bytes);
        self.announce(state);
    }

    /// Takes the record of which `frame` is made at once, though there be no room but the `room` that was
    /// set aside; whether it did. The thread is not woken: see [`Queue::nudge`].
    pub(super) fn push(&self, mut frame: Frame, head: Unnumbered, room: usize) -> bool {
        let mut state = self.state.lock();
        state.held = state.held.saturating_sub(room);
        if state.check().is_err() {
            return false;
        }
        if let Some(place) = frame.first_chunk_mut::<HEAD_BYTES>() {
            *place = head.number(state.next);
        }
        state.held = state.held.saturating_add(frame.len());
        state.frames.push(frame);
        state.next += 1;
        true
    }

    /// Wakes the thread if it has something to do.
    pub(super) fn nudge(&self) {
        let mut state = self.state.lock();
        if !state.frames.is_empty() {
            self.wake_thread(&mut state);
        }
    }

    /// Why nothing more is taken, if so.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.state.lock().check()
    }

    fn wake_thread(&self, state: &mut QueueState) {
        if std::mem::take(&mut state.idle) {
            self.work.notify_one();
        }
    }

    /// Waits until a record is kept, or made durable.
    pub(super) fn wait(
        &self,
        sequence: u64,
        durable: bool,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let durability = if durable { Durability::Sync } else { self.durability };
        let mut state = self.state.lock();
        if sequence >= state.next {
            let next = state.next;
            let what = format!("there is no record {sequence} to wait for; the next one is {next}");
            return Err(Error::Unfit(what));
        }
        if durable && state.wanted <= sequence {
            state.wanted = sequence.saturating_add(1);
            self.wake_thread(&mut state);
        }
        loop {
            let kept = state.kept(durability);
            if sequence < kept {
                return Ok(());
            }
            // A journal that closes keeps what it has taken.
            if let Some(cause) = &state.failure {
                return Err(Error::Failed { cause: Arc::clone(cause) });
            }
            let (locked, slept) = self.sleep(state, deadline);
            if !slept {
                let kept = locked.kept(durability);
                let what = format!("before record {sequence} was kept; all before {kept} are");
                return Err(Error::TimedOut(what));
            }
            state = locked;
        }
    }

    /// Has `waker` called once when more is kept, there is more room, or the journal has failed.
    pub(super) fn wake_on_progress(&self, waker: &Waker) {
        let mut state = self.state.lock();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }

    pub(super) fn position(&self) -> Position {
        let state = self.state.lock();
        let kept = state.kept(self.durability);
        let QueueState { next, synced, held, effort, .. } = *state;
        Position { next, kept, synced, held, effort }
    }

    /// Why no more is taken, if so.
    pub(super) fn failure(&self) -> Option<Arc<Error>> {
        self.state.lock().failure.clone()
    }

    /// Takes no more. What was taken is still written.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        self.wake_thread(&mut state);
        self.announce(state);
    }

    /// For the journal's thread: waits for something to do.
    pub(super) fn work(&self) -> Work {
        let mut state = self.state.lock();
        loop {
            let wanted = state.wanted > state.synced;
            if !state.frames.is_empty() || wanted || state.closing {
                let frames = std::mem::take(&mut state.frames);
                let last = state.closing;
                let sync = self.durability == Durability::Sync || wanted || last;
                return Work { frames, first: state.written, sync, last };
            }
            state.idle = true;
            state = self.work.wait(state);
            state.idle = false;
        }
    }

    /// For the journal's thread: `records` of `bytes` are written, and durable, if so; it took this long.
    pub(super) fn done(&self, records: u64, bytes: usize, synced: bool, took: Duration) {
        let mut state = self.state.lock();
        state.effort.bytes += bytes as u64;
        state.effort.writes += 1;
        state.effort.syncs += u64::from(synced);
        state.effort.time += took;
        state.written += records;
        state.held = state.held.saturating_sub(bytes);
        if synced {
            state.synced = state.written;
        }
        self.announce(state);
    }

    /// For the journal's thread: what it took, and what comes, will never be written.
    pub(super) fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        state.failure = Some(Arc::new(error));
        state.held = 0;
        state.frames = Vec::new();
        self.announce(state);
    }

    fn announce(&self, mut state: MutexGuard<'_, QueueState>) {
        let wakers = std::mem::take(&mut state.wakers);
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.progress.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}
