//! Samples in one by one, fixed-size batches out in order, each once.
//!
//! A [`Stream`] is a [`Spec`], the memory of its batches, and the numbers about both. Producers
//! [`reserve`](Stream::try_reserve) room, write every column of the [`Incoming`] and commit; consumers
//! [`take`](Stream::take) a [`Batch`], whose memory is theirs until they drop it.
//!
//! # Invariants
//!
//! 1. A sample is in exactly one batch, or in the remainder after a close.
//! 2. Batches are taken in the order in which they were begun; samples of one producer keep their
//!    order, except that a slot given up by another writer is filled by the next writer.
//! 3. Whoever waits can say why, and until when.

mod unread;

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use echoic_memory::{AllocError, BatchStore, Layout, Lease, Unavailable, Writer};

use crate::metrics::{Meter, StreamInfo};
use crate::spec::Spec;
use crate::waits::{WaitReason, Waiting};

pub use self::unread::{Unread, UnreadError};

/// Size of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamConfig {
    /// Samples per batch.
    pub batch_size: usize,
    /// Batches that fit: at least two, one to fill and one to read.
    pub num_buffers: usize,
}

/// What a stream can't do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Give another size.
    #[error("{what} must be at least {least}, got {got}")]
    TooSmall {
        /// Which size.
        what: &'static str,
        /// The least allowed.
        least: usize,
        /// What was given.
        got: usize,
    },
    /// Use fewer or smaller batches.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// Wait longer, consume faster, or drop batches that are held.
    #[error("the wait ended with nothing to be had")]
    TimedOut(WaitReason),
    /// The caller's own callback ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
    /// Stop producing; or, for a consumer: there is nothing more.
    #[error("the stream is closed")]
    Closed,
}

/// How a caller waits: until when, and what it does in between.
pub struct Wait<'a> {
    /// Give up at this time; never, when `None`.
    pub deadline: Option<Instant>,
    /// How often to call `on_tick`; never, when `None`. A sleep without any time to end is cheaper
    /// for the kernel to begin and to end.
    pub tick: Option<Duration>,
    /// Told the reason of the wait; breaking ends it.
    pub on_tick: &'a mut dyn FnMut(WaitReason) -> ControlFlow<()>,
}

/// Why a wait ended without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOver {
    /// The deadline passed.
    TimedOut(WaitReason),
    /// The caller's own callback ended it.
    Interrupted,
}

/// Implements `From<WaitOver>` for an error with the variants `TimedOut(WaitReason)` and `Interrupted`.
#[macro_export]
macro_rules! from_wait_over {
    ($error:ty) => {
        impl From<$crate::stream::WaitOver> for $error {
            fn from(over: $crate::stream::WaitOver) -> Self {
                match over {
                    $crate::stream::WaitOver::TimedOut(reason) => Self::TimedOut(reason),
                    $crate::stream::WaitOver::Interrupted => Self::Interrupted,
                }
            }
        }
    };
}

impl Wait<'_> {
    /// The same wait, for one of several steps.
    pub fn reborrow(&mut self) -> Wait<'_> {
        Wait { deadline: self.deadline, tick: self.tick, on_tick: &mut *self.on_tick }
    }

    /// Calls `attempt` with deadlines a tick apart until it breaks with a result or the wait is over.
    pub fn until<T>(
        &mut self,
        mut attempt: impl FnMut(Option<Instant>) -> ControlFlow<T, WaitReason>,
    ) -> Result<T, WaitOver> {
        loop {
            let next = self.tick.and_then(|tick| Instant::now().checked_add(tick));
            let until = match (self.deadline, next) {
                (Some(deadline), Some(next)) => Some(deadline.min(next)),
                (deadline, next) => deadline.or(next),
            };
            let reason = match attempt(until) {
                ControlFlow::Break(found) => return Ok(found),
                ControlFlow::Continue(reason) => reason,
            };
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(WaitOver::TimedOut(reason));
            }
            if (self.on_tick)(reason).is_break() {
                return Err(WaitOver::Interrupted);
            }
        }
    }

    /// [`Wait::until`] an attempt on the store is not blocked.
    fn run<T>(
        &mut self,
        mut attempt: impl FnMut(Option<Instant>) -> Result<T, Unavailable>,
    ) -> Result<T, StreamError> {
        self.until(|until| match attempt(until) {
            Ok(found) => ControlFlow::Break(Ok(found)),
            Err(Unavailable::Closed) => ControlFlow::Break(Err(StreamError::Closed)),
            Err(Unavailable::Blocked(blocked)) => ControlFlow::Continue(blocked.into()),
        })?
    }
}

crate::from_wait_over!(StreamError);

/// See the [module](self).
///
/// ```
/// use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};
///
/// let leaf = Leaf { path: "reward".into(), dtype: Dtype::Float(4), shape: vec![] };
/// let config = StreamConfig { batch_size: 2, num_buffers: 2 };
/// let stream = Stream::new(Spec::new(vec![leaf])?, config)?;
/// for reward in [1.0f32, 2.0] {
///     let mut sample = stream.try_reserve(1)?;
///     sample.column_mut(0).copy_from_slice(&reward.to_ne_bytes());
///     sample.commit();
/// }
/// let batch = stream.try_take().expect("two samples make a batch");
/// assert_eq!(batch.column(0), [1.0f32.to_ne_bytes(), 2.0f32.to_ne_bytes()].concat());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stream {
    spec: Spec,
    store: Arc<BatchStore>,
    meter: Arc<Meter>,
}

/// A time on the clock of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(u64);

/// Room for some samples of one batch. Dropping it without a commit stores nothing.
#[must_use = "nothing is stored before the commit"]
#[derive(Debug)]
pub struct Incoming<'a> {
    writer: Writer<'a>,
    meter: &'a Meter,
    /// When copying began, if this run is timed.
    start: Option<u64>,
}

/// A batch that is the holder's alone until dropped.
#[derive(Debug)]
pub struct Batch {
    lease: Lease,
    meter: Arc<Meter>,
}

impl Stream {
    /// Allocates the batches of a stream.
    pub fn new(spec: Spec, config: StreamConfig) -> Result<Self, StreamError> {
        Self::with(spec, config, BatchStore::new)
    }

    /// Like [`Stream::new`], in memory that other processes can map: see [`Stream::share`].
    pub fn new_shared(spec: Spec, config: StreamConfig) -> Result<Self, StreamError> {
        Self::with(spec, config, BatchStore::new_shared)
    }

    fn with(
        spec: Spec,
        config: StreamConfig,
        allocate: impl FnOnce(usize, usize, &[usize]) -> Result<BatchStore, AllocError>,
    ) -> Result<Self, StreamError> {
        let StreamConfig { batch_size, num_buffers } = config;
        for (what, least, got) in [("batch_size", 1, batch_size), ("num_buffers", 2, num_buffers)] {
            if got < least {
                return Err(StreamError::TooSmall { what, least, got });
            }
        }
        let store = Arc::new(allocate(num_buffers, batch_size, spec.leaf_bytes())?);
        Ok(Self { spec, store, meter: Arc::new(Meter::new(num_buffers, batch_size)) })
    }

    /// What samples look like.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Samples per batch.
    pub fn batch_size(&self) -> usize {
        self.store.batch_size()
    }

    /// Reserves room for up to `samples` samples without waiting.
    ///
    /// # Errors
    ///
    /// [`StreamError::TimedOut`] when there is no room, [`StreamError::Closed`] after a close.
    #[inline]
    pub fn try_reserve(&self, samples: usize) -> Result<Incoming<'_>, StreamError> {
        self.try_reserve_since(None, samples)
    }

    /// Like [`Stream::try_reserve`], for samples that have waited for room since `submitted`.
    ///
    /// # Errors
    ///
    /// As [`Stream::try_reserve`].
    #[inline]
    pub fn try_reserve_since(
        &self,
        submitted: Option<Moment>,
        samples: usize,
    ) -> Result<Incoming<'_>, StreamError> {
        let writer = match self.store.try_reserve(samples) {
            Ok(writer) => writer,
            Err(Unavailable::Blocked(blocked)) => {
                return Err(StreamError::TimedOut(blocked.into()));
            }
            Err(Unavailable::Closed) => return Err(StreamError::Closed),
        };
        let (buffer, first, len) = (writer.buffer(), writer.first(), writer.len());
        let start = self.meter.is_timed(first, len).then(|| {
            let now = self.meter.now();
            self.meter.mark(buffer, first, len, submitted.map_or(now, |moment| moment.0));
            now
        });
        Ok(Incoming { writer, meter: &self.meter, start })
    }

    /// The time on this stream's clock.
    pub fn now(&self) -> Moment {
        Moment(self.meter.now())
    }

    /// Waits until a reservation may succeed. Another producer may be faster, so try in a loop.
    ///
    /// # Errors
    ///
    /// [`StreamError::TimedOut`], [`StreamError::Interrupted`] or [`StreamError::Closed`].
    pub fn wait_for_room(&self, mut wait: Wait<'_>) -> Result<(), StreamError> {
        let _waiting = self.meter.producer_waits.begin();
        wait.run(|until| self.store.wait_for_room(until))
    }

    /// Counts a producer that waits for room without [`Stream::wait_for_room`], until what this returns is dropped.
    pub fn begin_wait(&self) -> Waiting {
        self.meter.producer_waits.begin()
    }

    /// Counts a wait for room of a producer of another process, unless it took no time.
    pub fn note_wait(&self, time: Duration) {
        if !time.is_zero() {
            self.meter.producer_waits.add(time);
        }
    }

    /// Has `waker` called once when a reservation may succeed, or the stream was closed: for an event
    /// loop. Try again after this call, before sleeping; it may also be called for nothing.
    pub fn wake_on_room(&self, waker: &Waker) {
        self.store.wake_on_room(waker);
    }

    /// What another process needs to write into this stream's memory, beside [an owner id](
    /// Stream::add_producer); `None` if it was not made for that.
    pub fn share(&self) -> Option<(BorrowedFd<'_>, Layout)> {
        self.store.share()
    }

    /// Adds a producer of another process and returns its owner id in the ring. `None` when there are too many.
    pub fn add_producer(&self) -> Option<u16> {
        self.store.add_peer()
    }

    /// Cleans up after a producer of another process, once it can't write any more: what it did not
    /// finish is given to others.
    pub fn reclaim(&self, owner: u16) {
        self.store.reclaim(owner);
    }

    /// Takes the next batch if it is complete.
    pub fn try_take(&self) -> Option<Batch> {
        Some(self.batch(self.store.try_take()?))
    }

    /// Takes the next batch, waiting for it.
    ///
    /// # Errors
    ///
    /// [`StreamError::TimedOut`], [`StreamError::Interrupted`], or [`StreamError::Closed`] once all
    /// complete batches of a closed stream are taken.
    pub fn take(&self, mut wait: Wait<'_>) -> Result<Batch, StreamError> {
        if let Some(batch) = self.try_take() {
            return Ok(batch);
        }
        let waiting = self.meter.consumer_waits.begin();
        let taken = wait.run(|until| self.store.take(until));
        drop(waiting);
        Ok(self.batch(taken?))
    }

    /// The samples of a closed stream that do not fill a batch, once; waits for the last writers.
    ///
    /// # Errors
    ///
    /// [`StreamError::TimedOut`] or [`StreamError::Interrupted`] while writers are at work.
    ///
    /// # Panics
    ///
    /// When the stream is not closed.
    pub fn take_remainder(&self, mut wait: Wait<'_>) -> Result<Option<Batch>, StreamError> {
        let taken = wait.run(|until| self.store.take_remainder(until));
        Ok(taken?.map(|lease| self.batch(lease)))
    }

    fn batch(&self, lease: Lease) -> Batch {
        self.meter.take(lease.buffer(), lease.stamp());
        Batch { lease, meter: Arc::clone(&self.meter) }
    }

    /// Ends intake. Complete batches can still be taken, then the remainder.
    pub fn close(&self) {
        self.store.close();
    }

    /// Whether intake has ended.
    pub fn is_closed(&self) -> bool {
        self.store.is_closed()
    }

    /// Counts a sample that was refused at the listener.
    pub fn note_refused(&self) {
        self.meter.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins the histograms of [`Stream::info`] anew; counters and gauges go on.
    pub fn reset_histograms(&self) {
        self.meter.reset_histograms();
    }

    /// For how long the batch that was taken first has been held.
    pub fn oldest_hold(&self) -> Duration {
        self.meter.oldest_hold()
    }

    /// A snapshot of all numbers.
    pub fn info(&self) -> StreamInfo {
        StreamInfo::new(&self.meter, &self.store, self.spec.nbytes())
    }
}

impl Incoming<'_> {
    /// For how many samples there is room: at least one.
    #[expect(clippy::len_without_is_empty, reason = "room is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    /// The bytes of these samples in one column, to be overwritten as a whole.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    #[inline]
    pub fn column_mut(&mut self, column: usize) -> &mut [u8] {
        self.writer.column_mut(column)
    }

    /// The bytes of these samples in every column at once, in the order of the leaves.
    pub fn columns_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.writer.columns_mut()
    }

    /// Stores the samples.
    #[inline]
    pub fn commit(self) {
        let meter = self.meter;
        if let Some(start) = self.start {
            meter.copy_time.record(meter.now().saturating_sub(start));
        }
        self.writer.commit(|| meter.now());
    }
}

impl Batch {
    /// Position of this batch in the order of the stream, from 0.
    pub fn sequence(&self) -> u64 {
        self.lease.sequence()
    }

    /// Samples in it: the batch size, or fewer in a remainder.
    pub fn rows(&self) -> usize {
        self.lease.rows()
    }

    /// Where a column starts. Its `rows` samples are the holder's to read and write until the batch
    /// is dropped.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column_pointer(&self, column: usize) -> *mut u8 {
        self.lease.column_pointer(column)
    }

    /// The bytes of one column.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column(&self, column: usize) -> &[u8] {
        self.lease.column(column)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.meter.give_back(self.lease.buffer());
    }
}
