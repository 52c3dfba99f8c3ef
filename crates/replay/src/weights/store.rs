//! Publishing: turns, waits, and how many publications there may be.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use echoic_memory::AllocError;
use echoic_memory::shared_buffer::SharedBuffer;
use echoic_memory::signal::Signal;
use echoic_memory::sync::Mutex;

use super::ahead::Ahead;
use super::builder::{Claim, PublicationBuilder};
use super::delta::Bases;
use super::plan::{Plan, PlanError};
use super::publication::{Content, Publication};
use crate::WaitReason;
use crate::stream::Wait;

/// How a store is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightsConfig {
    /// How many publications, and those that are being written, may have memory: at least two.
    pub most: usize,
    /// Whether other processes of this machine may map it.
    pub shared: bool,
    /// Whether it repeats what another store publishes, whose concern versions are.
    pub follows: bool,
}

impl Default for WeightsConfig {
    fn default() -> Self {
        // The latest, one that is still in use, and the one that is being written.
        Self { most: 3, shared: echoic_memory::SHARES_MEMORY, follows: false }
    }
}

/// What a store can't do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Publish with a larger version.
    #[error("versions rise: expected one above {latest}, the latest, got {version}")]
    Stale {
        /// What was to be published.
        version: u64,
        /// What is.
        latest: u64,
    },
    /// Allow more.
    #[error("a store of weights needs memory for at least {least} publications, got {got}")]
    TooFew {
        /// How many there must be.
        least: usize,
        /// What was given.
        got: usize,
    },
    /// See there.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Publish less, or allow fewer publications.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// Wait longer.
    #[error("the wait ended with nothing to be had")]
    TimedOut(WaitReason),
    /// The caller's own callback ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
    /// Nothing more is published.
    #[error("the store of weights is closed")]
    Closed,
}

/// A snapshot of a store's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WeightsInfo {
    /// The latest version, if there is one.
    pub version: Option<u64>,
    /// Publications since the start, versions alone included.
    pub published: u64,
    /// Of these, versions alone.
    pub versions_only: u64,
    /// Bytes published.
    pub published_bytes: u64,
    /// Bytes of the latest.
    pub latest_bytes: u64,
    /// Publications that have memory, those that are being written included.
    pub alive: usize,
    /// How many may.
    pub most: usize,
    /// Places that are free and have all their memory already.
    pub ready: usize,
    /// Times that a publisher had to wait because all were held.
    pub blocked: u64,
    /// For how long they did, together.
    pub blocked_time: Duration,
    /// Subscribers now.
    pub subscribers: usize,
    /// How many publications the last of them is behind.
    pub lag: u64,
    /// Bytes sent to subscribers that do not share our memory.
    pub sent_bytes: u64,
    /// Bytes that need not be sent, because the receiver had them.
    pub saved_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct ShelfState {
    latest: Option<Arc<Publication>>,
    /// Publications before it, oldest first, while their memory is not wanted.
    kept: VecDeque<Arc<Publication>>,
    /// Whether they are kept: of use to stores whose bytes go over sockets.
    keeps: bool,
    /// How many publications have memory.
    pub(super) alive: usize,
    /// Memory of earlier ones, and of later ones.
    pub(super) spare: Vec<SharedBuffer>,
    /// What takes memory for later ones.
    pub(super) ahead: Ahead,
    /// Publishers that wait.
    claims: usize,
    /// How many there are of each publication.
    transfers: BTreeMap<u64, usize>,
    /// How far each subscriber is.
    seats: BTreeMap<u64, u64>,
    next_seat: u64,
    pub(super) closed: bool,
    info: WeightsInfo,
}

impl ShelfState {
    /// How many publications have memory that they would not give way with.
    fn held(&self) -> usize {
        let only_kept = self.kept.iter().filter(|kept| Arc::strong_count(kept) == 1).count();
        self.alive - only_kept.min(self.alive)
    }
}

/// What publications keep of their store.
///
/// Publications are dropped without its lock: the end of one takes it.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) config: WeightsConfig,
    pub(super) state: Mutex<ShelfState>,
    /// Something was published, a place became free or is wanted, or the store was closed.
    changed: Signal,
}

/// The latest weights.
///
/// ```
/// use std::sync::Arc;
/// use echoic_replay::stream::Wait;
/// use echoic_replay::weights::{Plan, WeightStore};
/// use echoic_replay::{Dtype, Leaf};
/// use std::ops::ControlFlow;
///
/// let store = WeightStore::default();
/// let leaf = Leaf { path: "w".into(), dtype: Dtype::UInt(1), shape: vec![3] };
/// let plan = Arc::new(Plan::new(String::new(), vec![leaf])?);
/// let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
/// let mut builder = store.builder(1, &plan, wait)?;
/// builder.leaf_mut(0).copy_from_slice(&[1, 2, 3]);
/// builder.publish()?;
/// let latest = store.latest().expect("just published");
/// assert_eq!(latest.version(), 1);
/// assert_eq!(latest.content().and_then(|content| content.bytes()), Some(&[1, 2, 3][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WeightStore {
    shelf: Arc<Shelf>,
}

impl Default for WeightStore {
    fn default() -> Self {
        Self::of(WeightsConfig::default())
    }
}

impl WeightStore {
    /// An empty store.
    pub fn new(config: WeightsConfig) -> Result<Self, WeightsError> {
        // One to look at, and one to write.
        if config.most < 2 {
            return Err(WeightsError::TooFew { least: 2, got: config.most });
        }
        Ok(Self::of(config))
    }

    fn of(config: WeightsConfig) -> Self {
        let (state, changed) = (Mutex::default(), Signal::default());
        Self { shelf: Arc::new(Shelf { config, state, changed }) }
    }

    /// The latest publication.
    pub fn latest(&self) -> Option<Arc<Publication>> {
        self.shelf.state.lock().latest.clone()
    }

    /// Says that a version is to be published, as soon as there is a place.
    pub fn claim(&self, version: u64) -> Result<Claim, WeightsError> {
        let mut state = self.shelf.state.lock();
        self.shelf.check(&state, version)?;
        state.claims += 1;
        let wanted = state.held() >= self.shelf.config.most;
        drop(state);
        if wanted {
            // Transfers are to be cut.
            self.shelf.changed.notify();
        }
        Ok(Claim { shelf: Arc::clone(&self.shelf), version })
    }

    /// A publication builder of a version, waiting for a place where all are held.
    pub fn builder(
        &self,
        version: u64,
        plan: &Arc<Plan>,
        mut wait: Wait<'_>,
    ) -> Result<PublicationBuilder, WeightsError> {
        let claim = self.claim(version)?;
        let reserved = |builder: PublicationBuilder| {
            builder.reserve_all()?;
            Ok(builder)
        };
        if let Some(builder) = claim.try_build(plan)? {
            return reserved(builder);
        }
        let since = Instant::now();
        let waited = wait.until(|until| {
            let found = self.shelf.changed.wait(until, || claim.try_build(plan).transpose());
            found.map_or(ControlFlow::Continue(WaitReason::Leased), ControlFlow::Break)
        });
        self.count_blocked(since.elapsed());
        reserved(waited.unwrap_or_else(|over| Err(over.into()))?)
    }

    /// Counts a publisher that had to wait for this long.
    pub fn count_blocked(&self, time: Duration) {
        let mut state = self.shelf.state.lock();
        state.info.blocked += 1;
        state.info.blocked_time += time;
    }

    /// Publishes a version alone.
    pub fn publish_version(&self, version: u64) -> Result<Arc<Publication>, WeightsError> {
        self.shelf.install(version, None)
    }

    /// Publishes bytes that are another's.
    pub fn publish_lent(
        &self,
        version: u64,
        content: Content,
    ) -> Result<Arc<Publication>, WeightsError> {
        self.shelf.install(version, Some(content))
    }

    /// Waits until `look` finds something, given the latest publication. It looks once more when the store is
    /// closed.
    pub fn wait<T>(
        &self,
        wait: Wait<'_>,
        mut look: impl FnMut(&Arc<Publication>) -> Option<T>,
    ) -> Result<T, WeightsError> {
        self.wait_for(wait, |latest| latest.and_then(&mut look))
    }

    /// As [`WeightStore::wait`], for what need not be a publication: `look` is given the latest one, if there
    /// is one.
    pub fn wait_for<T>(
        &self,
        mut wait: Wait<'_>,
        mut look: impl FnMut(Option<&Arc<Publication>>) -> Option<T>,
    ) -> Result<T, WeightsError> {
        let mut poll = || {
            let state = self.shelf.state.lock();
            let (latest, closed) = (state.latest.clone(), state.closed);
            drop(state);
            let found = look(latest.as_ref());
            found.map(Ok).or_else(|| closed.then_some(Err(WeightsError::Closed)))
        };
        let waited = wait.until(|until| {
            let found = self.shelf.changed.wait(until, &mut poll);
            found.map_or(ControlFlow::Continue(WaitReason::Empty), ControlFlow::Break)
        });
        waited.unwrap_or_else(|over| Err(over.into()))
    }

    /// Has all waiting calls look again.
    pub fn nudge(&self) {
        self.shelf.changed.notify();
    }

    /// Calls `waker` once when something was published, a place became free or is wanted, or the store was
    /// closed. What was changed before is either seen by calls after this one, or wakes.
    pub fn wake_later(&self, waker: &Waker) {
        self.shelf.changed.wake_later(waker);
    }

    /// Whether there is a place for a publication builder. If not, [`WeightStore::wake_later`] says when to look again.
    pub fn has_room(&self) -> bool {
        let mut state = self.shelf.state.lock();
        let has_room = state.held() < self.shelf.config.most;
        let gone = if has_room { VecDeque::new() } else { std::mem::take(&mut state.kept) };
        drop(state);
        // A caller that waits for room is woken by the last reference that ends: it must be a reader's.
        drop(gone);
        has_room
    }

    /// Whether a publisher waits for a place, and there is none.
    pub fn is_wanted(&self) -> bool {
        let state = self.shelf.state.lock();
        state.claims > 0 && state.held() >= self.shelf.config.most
    }

    /// Says that a publication is sent to a subscriber.
    pub fn transfer(&self, publication: Arc<Publication>) -> Transfer {
        *self.shelf.state.lock().transfers.entry(publication.serial()).or_default() += 1;
        Transfer { shelf: Arc::clone(&self.shelf), publication }
    }

    /// Counts a subscriber.
    pub fn subscribe(&self) -> Seat {
        let mut state = self.shelf.state.lock();
        let id = state.next_seat;
        state.next_seat += 1;
        let serial = state.latest.as_ref().map_or(0, |latest| latest.serial());
        // A new subscriber is not behind.
        state.seats.insert(id, serial);
        Seat { shelf: Arc::clone(&self.shelf), id }
    }

    /// Ends publishing, and wakes all waiting calls. What is published stays for as long as it is referenced.
    pub fn close(&self) {
        let mut state = self.shelf.state.lock();
        state.closed = true;
        let spare = std::mem::take(&mut state.spare);
        let kept = std::mem::take(&mut state.kept);
        drop(state);
        drop((spare, kept));
        self.shelf.changed.notify();
        self.shelf.end_ahead();
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.shelf.state.lock().closed
    }

    /// A snapshot of its numbers.
    pub fn info(&self) -> WeightsInfo {
        let state = self.shelf.state.lock();
        let serial = state.latest.as_ref().map_or(0, |latest| latest.serial());
        let last = state.seats.values().min().copied().unwrap_or(serial);
        WeightsInfo {
            version: state.latest.as_ref().map(|latest| latest.version()),
            latest_bytes: state
                .latest
                .as_ref()
                .and_then(|latest| latest.content())
                .map_or(0, |content| content.plan().nbytes() as u64),
            alive: state.held(),
            most: self.shelf.config.most,
            ready: state.spare.iter().filter(|buffer| buffer.is_populated()).count(),
            subscribers: state.seats.len(),
            lag: serial.saturating_sub(last),
            ..state.info
        }
    }
}

impl Drop for WeightStore {
    fn drop(&mut self) {
        self.shelf.end_ahead();
    }
}

/// A subscriber, until it is dropped.
#[derive(Debug)]
pub struct Seat {
    shelf: Arc<Shelf>,
    id: u64,
}

impl Seat {
    /// Takes note of what it was given.
    pub fn see(&self, publication: &Publication) {
        if let Some(seen) = self.shelf.state.lock().seats.get_mut(&self.id) {
            *seen = publication.serial();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shelf.state.lock().seats.remove(&self.id);
    }
}

/// Bytes of a publication on their way, in chunks, to a subscriber that does not share our memory.
///
/// A transfer keeps its publication, so that it can end although there are newer ones by then. Where a publisher
/// waits for a place, all transfers are cut but those of the latest publication and of the oldest: so the slowest
/// neither stops the learner nor is kept from ever having anything, since a subscriber that is cut begins again with the
/// latest, which is the oldest one day.
pub struct Transfer {
    shelf: Arc<Shelf>,
    publication: Arc<Publication>,
}

impl Transfer {
    /// What is sent.
    pub fn publication(&self) -> &Arc<Publication> {
        &self.publication
    }

    /// Whether it is to be dropped, because its place is wanted.
    pub fn is_cut(&self) -> bool {
        self.shelf.is_cut(self.publication.serial())
    }

    /// Counts bytes that were sent, and those that need not be.
    pub fn count(&self, sent: usize, saved: usize) {
        self.shelf.count(sent, saved);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.shelf.end_transfer(self.publication.serial());
    }
}

crate::from_wait_over!(WeightsError);

/// Whether a buffer is good for so many bytes. What is far too large is not worth keeping.
pub(super) fn fits(buffer: &SharedBuffer, nbytes: usize) -> bool {
    buffer.len() >= nbytes && buffer.len() / 4 <= nbytes.max(1 << 20)
}

impl Shelf {
    fn check(&self, state: &ShelfState, version: u64) -> Result<(), WeightsError> {
        if state.closed {
            return Err(WeightsError::Closed);
        }
        match &state.latest {
            Some(latest) if latest.version() >= version && !self.config.follows => {
                Err(WeightsError::Stale { version, latest: latest.version() })
            }
            _ => Ok(()),
        }
    }

    /// Memory for a publication builder, if there is a place for one.
    pub(super) fn place(
        &self,
        version: u64,
        nbytes: usize,
    ) -> Result<Option<SharedBuffer>, WeightsError> {
        let mut state = loop {
            let mut state = self.state.lock();
            self.check(&state, version)?;
            if state.alive < self.config.most {
                break state;
            }
            // What is kept only in case that it is of use gives way, the oldest first.
            let only_kept = state.kept.iter().position(|kept| Arc::strong_count(kept) == 1);
            let gone = match only_kept.and_then(|at| state.kept.remove(at)) {
                Some(gone) => VecDeque::from([gone]),
                // A publisher that waits is woken by the last reference that ends: it must be a reader's.
                None => std::mem::take(&mut state.kept),
            };
            drop(state);
            drop(gone);
            if only_kept.is_none() {
                return Ok(None);
            }
        };
        state.alive += 1;
        let found = state.spare.iter().position(|buffer| fits(buffer, nbytes));
        let found = found.map(|at| state.spare.swap_remove(at));
        let surplus = state.spare.len().saturating_sub(self.config.most - state.alive);
        let gone: Vec<SharedBuffer> = state.spare.drain(..surplus).collect();
        drop(state);
        drop(gone);
        if let Some(buffer) = found {
            return Ok(Some(buffer));
        }
        self.make(nbytes).map(Some).map_err(|error| {
            self.take_back(None);
            error.into()
        })
    }

    /// Memory whose pages are there when they are first used.
    pub(super) fn make(&self, nbytes: usize) -> Result<SharedBuffer, AllocError> {
        match self.config.shared {
            true => SharedBuffer::shared(nbytes),
            false => SharedBuffer::new(nbytes),
        }
    }

    /// Publications before the latest; from now on they are kept.
    pub(super) fn bases(&self) -> Bases {
        let mut state = self.state.lock();
        state.keeps = true;
        Bases(state.kept.iter().map(Arc::downgrade).collect())
    }

    /// A place is free again, with the memory that was in it if that can be written again.
    pub(super) fn take_back(&self, buffer: Option<SharedBuffer>) {
        let mut state = self.state.lock();
        state.alive -= 1;
        let keep = !state.closed && state.alive + state.spare.len() < self.config.most;
        let gone = match buffer {
            Some(buffer) if keep => {
                state.spare.push(buffer);
                None
            }
            other => other,
        };
        drop(state);
        drop(gone);
        self.changed.notify();
    }

    pub(super) fn unclaim(&self) {
        self.state.lock().claims -= 1;
    }

    /// Makes it the latest.
    pub(super) fn install(
        &self,
        version: u64,
        content: Option<Content>,
    ) -> Result<Arc<Publication>, WeightsError> {
        let mut state = self.state.lock();
        if let Err(error) = self.check(&state, version) {
            drop(state);
            return Err(error);
        }
        let before = state.latest.take();
        let serial = before.as_ref().map_or(0, |latest| latest.serial()) + 1;
        state.info.published += 1;
        match &content {
            Some(content) => state.info.published_bytes += content.plan().nbytes() as u64,
            None => state.info.versions_only += 1,
        }
        let publication = Arc::new(Publication::new(version, serial, content));
        state.latest = Some(Arc::clone(&publication));
        let mut gone = None;
        match before {
            Some(before) if state.keeps && before.content().is_some() => {
                state.kept.push_back(before);
                if state.kept.len() >= self.config.most {
                    gone = state.kept.pop_front();
                }
            }
            before => gone = before,
        }
        drop(state);
        drop(gone);
        self.changed.notify();
        Ok(publication)
    }

    pub(super) fn is_cut(&self, serial: u64) -> bool {
        let state = self.state.lock();
        let latest = state.latest.as_ref().is_some_and(|latest| latest.serial() == serial);
        let oldest = state.transfers.keys().next() == Some(&serial);
        let wanted = state.claims > 0 && state.held() >= self.config.most;
        // Of two places, one is the latest's and one the builder's.
        wanted && !latest && (!oldest || self.config.most < 3)
    }

    pub(super) fn end_transfer(&self, serial: u64) {
        let mut state = self.state.lock();
        if let Some(count) = state.transfers.get_mut(&serial) {
            *count -= 1;
            if *count == 0 {
                state.transfers.remove(&serial);
            }
        }
    }

    pub(super) fn count(&self, sent: usize, saved: usize) {
        let mut state = self.state.lock();
        state.info.sent_bytes += sent as u64;
        state.info.saved_bytes += saved as u64;
    }
}
