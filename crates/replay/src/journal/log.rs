//! The journal that others append to.

use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use echoic_memory::sync::Mutex;

use super::Options;
use super::appender::{Appender, Segments};
use super::queue::{Effort, Queue};
use super::record::{Record, Room};
use super::recovery::{Recovered, recover};
use super::replay::Replay;
use super::segment::{self, HEAD_BYTES, MAX_RECORD, Unnumbered};
use crate::Error;
use crate::files::{Dir, Lock};

/// An open journal. See the [module](super).
///
/// Closing or dropping it writes what it has taken, and makes that durable.
#[derive(Debug)]
pub struct Journal {
    queue: Arc<Queue>,
    dir: Arc<Dir>,
    segments: Segments,
    max_record: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whoever has it may change files; none once it is closed.
    lock: Mutex<Option<Lock>>,
    /// A child that was forked has no thread of ours.
    process: u32,
}

/// Numbers about a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The number of the next record.
    pub next: u64,
    /// All records before are kept, as the durability promises.
    pub kept: u64,
    /// All records before survive a failure of the machine.
    pub durable: u64,
    /// Bytes that wait to be written.
    pub held_bytes: usize,
    /// The first record that is in a file.
    pub first: u64,
    /// Files.
    pub segments: usize,
    /// What writing took.
    pub effort: Effort,
    /// Whether it takes no more, because something could not be written.
    pub failed: bool,
}

impl Journal {
    /// Opens the journal in a directory, which is made if it is not there, and gives the records that
    /// it has. Starts the journal's thread.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], [`Error::Foreign`], [`Error::Format`], [`Error::Damaged`], [`Error::Thread`],
    /// [`Error::File`], or [`Error::Unfit`] when a segment is missing.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<(Self, Replay), Error> {
        let Recovered { dir, lock, segments, last, next, replay } =
            recover(dir.as_ref(), &options)?;
        let segments: Segments = Arc::new(Mutex::new(segments));
        let queue = Arc::new(Queue::new(next, options.durability, options.queue_bytes));
        let appender =
            Appender::new(Arc::clone(&dir), Arc::clone(&segments), last, options.segment_bytes);
        let own = Arc::clone(&queue);
        let thread = thread::Builder::new()
            .name("echoic-journal".into())
            .spawn(move || run(&own, appender))
            .map_err(|source| Error::Thread { what: "of the journal", source })?;
        let max_record = MAX_RECORD.min(options.queue_bytes.saturating_sub(HEAD_BYTES));
        let thread = Mutex::new(Some(thread));
        let lock = Mutex::new(Some(lock));
        let process = std::process::id();
        Ok((Self { queue, dir, segments, max_record, thread, lock, process }, replay))
    }

    /// Appends a record, and returns its number. It is kept later: see [`Journal::wait`]. While the
    /// queue is full, this waits.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`], [`Error::Closed`], or [`Error::Unfit`] when it is too large.
    pub fn append(&self, record: &[u8]) -> Result<u64, Error> {
        self.append_parts(&[record], None)
    }

    /// Appends the record that some parts make together, waiting for room in the queue until the
    /// deadline.
    ///
    /// # Errors
    ///
    /// As [`Journal::append`], and [`Error::TimedOut`].
    pub fn append_parts(&self, parts: &[&[u8]], deadline: Option<Instant>) -> Result<u64, Error> {
        let got = parts.iter().fold(0_usize, |len, part| len.saturating_add(part.len()));
        self.check_record(got)?;
        let mut frame = Vec::with_capacity(HEAD_BYTES + got);
        frame.resize(HEAD_BYTES, 0);
        parts.iter().for_each(|part| frame.extend_from_slice(part));
        let head = Unnumbered::of(frame.get(HEAD_BYTES..).unwrap_or_default());
        self.queue.append(frame, head, deadline)
    }

    /// Sets room in the queue aside for records that come later, if there is as much: what bounds the
    /// memory of callers that must not wait when they [push](Journal::push).
    pub fn try_room(&self, bytes: usize) -> Result<Option<Room>, Error> {
        let fits = self.queue.take_room(bytes)?;
        Ok(fits.then(|| Room { queue: Arc::clone(&self.queue), bytes }))
    }

    /// Whether less waits to be written than the options allow, or nothing more is taken: for callers that
    /// [push](Journal::push) little without setting room aside for it, and wait before they do when there is
    /// none. See [`Journal::wake_on_progress`].
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Appends a record at once, without waiting and without a system call, whatever waits to be written:
    /// for callers that hold a lock. Whether it was taken: not by a journal that has failed or is closed.
    ///
    /// The journal's thread learns of it from [`Journal::nudge`], when the lock is no longer held.
    pub fn push(&self, record: Record, room: Option<&mut Room>) -> bool {
        let bytes = room.map_or(0, |room| room.take(record.frame.len()));
        let (frame, head) = record.seal();
        self.queue.push(frame, head, bytes)
    }

    /// Has the journal's thread write what was [pushed](Journal::push).
    pub fn nudge(&self) {
        self.queue.nudge();
    }

    /// The most bytes of a record.
    pub fn max_record(&self) -> usize {
        self.max_record
    }

    /// Refuses a record of this many bytes if that is too large.
    pub(crate) fn check_record(&self, got: usize) -> Result<(), Error> {
        if got <= self.max_record {
            return Ok(());
        }
        Err(Error::too_large("bytes of a record", self.max_record as u64, got as u64))
    }

    /// The number of the next record: how many there are, when none was ever truncated.
    pub fn next(&self) -> u64 {
        self.queue.position().next
    }

    /// Whether more is taken.
    pub fn check(&self) -> Result<(), Error> {
        self.queue.check()
    }

    /// Waits until a record is kept, as the durability promises.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Failed`], or [`Error::Unfit`] for a record that no caller has
    /// appended.
    pub fn wait(&self, sequence: u64, deadline: Option<Instant>) -> Result<(), Error> {
        self.queue.wait(sequence, false, deadline)
    }

    /// Waits until all records so far survive a failure of the machine, whatever the durability.
    pub fn sync(&self, deadline: Option<Instant>) -> Result<(), Error> {
        let position = self.queue.position();
        match position.next.checked_sub(1) {
            Some(last) if position.synced <= last => self.queue.wait(last, true, deadline),
            _ => Ok(()),
        }
    }

    /// All records before this number are kept, as the durability promises.
    pub fn kept(&self) -> u64 {
        self.queue.position().kept
    }

    /// Has `waker` called once when more is kept, when there is more room, or when the journal has
    /// failed: for an event loop. Look again after this call, before sleeping.
    pub fn wake_on_progress(&self, waker: &Waker) {
        self.queue.wake_on_progress(waker);
    }

    /// Why the journal takes no more records, if so.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.queue.failure()
    }

    /// Removes segments of which all records are before `sequence`. A checkpoint covers them. Returns
    /// how many.
    pub fn truncate_before(&self, sequence: u64) -> Result<usize, Error> {
        let mut removed = 0;
        let lock = self.lock.lock();
        if lock.is_none() {
            return Err(Error::Closed("journal"));
        }
        // Not held while files are removed: a caller that only wants numbers must not wait for the disk. No other
        // takes one out.
        let segments = || self.segments.lock();
        let oldest = || {
            let segments = segments();
            let (first, second) = (*segments.front()?, *segments.get(1)?);
            (second <= sequence).then_some(first)
        };
        // The oldest first, so that a crash leaves no gap.
        while let Some(first) = oldest() {
            self.dir.remove_file(&segment::name(first))?;
            self.dir.sync()?;
            segments().pop_front();
            removed += 1;
        }
        drop(lock);
        Ok(removed)
    }

    /// Numbers of now.
    pub fn info(&self) -> Info {
        let position = self.queue.position();
        let segments = self.segments.lock();
        Info {
            next: position.next,
            kept: position.kept,
            durable: position.synced,
            held_bytes: position.held,
            first: segments.front().copied().unwrap_or(position.next),
            segments: segments.len(),
            effort: position.effort,
            failed: self.queue.failure().is_some(),
        }
    }

    /// Takes no more records, writes those that it has, and makes them durable.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] when some are not.
    pub fn close(&self) -> Result<(), Error> {
        if self.process != std::process::id() {
            // The journal is the parent's, and goes on there.
            return Err(Error::Closed("journal"));
        }
        self.queue.close();
        let thread = self.thread.lock().take();
        // It reports a panic itself.
        thread.map_or(Ok(()), JoinHandle::join).unwrap_or_default();
        // Others may have it now.
        drop(self.lock.lock().take());
        match self.queue.failure() {
            Some(cause) => Err(Error::Failed { cause }),
            None => Ok(()),
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Callers that want to know call `close`.
        let _ = self.close();
    }
}

/// What the journal's thread does.
fn run(queue: &Queue, mut appender: Appender) {
    /// Nobody must wait for a thread that is gone.
    struct Farewell<'a>(&'a Queue);
    impl Drop for Farewell<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                self.0.fail(Error::Closed("journal"));
            }
        }
    }
    let _farewell = Farewell(queue);
    loop {
        let work = queue.work();
        appender.mark(queue.position().synced);
        let bytes = work.frames.iter().map(Vec::len).sum();
        let since = Instant::now();
        if let Err(error) = appender.write(&work.frames, work.first, work.sync) {
            tracing::error!(%error, "a journal has failed");
            queue.fail(error);
            return;
        }
        queue.done(work.frames.len() as u64, bytes, work.sync, since.elapsed());
        if work.last {
            return;
        }
    }
}
