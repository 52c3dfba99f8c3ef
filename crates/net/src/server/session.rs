//! What a connection does once its client is let in: one implementation of [`Session`] for each service.
//!
//! The connection reads and cuts frames, the session uses them. What keeps it from using the next one is a [`Stop`]; a
//! frame that was not used comes again.
//!
//! # Invariants
//!
//! - S1: a session touches no other connection.
//! - S2: a waiting request is in the [`WaitQueue`], and the waker of what it waits for is registered.
//! - S3: nothing is read for a session that waits.
//! - S4: a connection keeps one frame that is not used, or what its client may have on its way.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ServerContext;
use super::meter::ConnectionMeter;
use super::pool::Task;
use super::wait_queue::{BlockedBy, Key, Verdict, WaitQueue, Waiter};
use crate::transport::Link;
use crate::wire::WireError;
use crate::wire::frame::Header;
use crate::wire::handshake::{ProducerId, RefusalCode};
use crate::write_buffer::WriteBuffer;
use echoic_replay::WaitReason;

/// How much is sent before others have their turn: a client that reads as fast as we write would never end it.
pub(crate) const MOST_SENT: usize = 2 << 20;

/// How a session takes frames of a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Accepts {
    /// All of one at once, with a payload of up to this many bytes.
    Whole(u32),
    /// So many bytes of the payload with [`Session::frame`], and the rest as it comes with [`Session::part`].
    Start(u32),
}

/// Why nothing more is used or read now.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It goes on when this has happened.
    Wait(Key, Option<WaitReason>),
    /// It goes on when less than this is unsent.
    Unsent(usize),
    /// There is more to do, after others have had their turn.
    Again,
    /// To use the frame takes long: see [`Session::work`].
    Heavy,
    /// The client says what it wants.
    Opened,
    /// What came is invalid.
    Malformed(WireError),
    /// It makes sense, and is not to be had.
    Refused(RefusalCode, String),
    /// The connection is over.
    Ended(Ending),
}

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The client said goodbye.
    Goodbye,
    /// The other end is gone.
    Gone,
    /// Nothing came for too long.
    Silent,
    /// What came made no sense.
    Malformed,
    /// It was refused, with a reason.
    Refused(RefusalCode),
    /// Serving it panicked, which says this.
    Panicked { text: String },
}

impl From<WireError> for Stop {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

/// How far a producer is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) producer: ProducerId,
    /// Number of the first sample or operation that is not stored.
    pub(crate) next: u64,
    /// Whether it inserts into tables; else it fills the stream.
    pub(crate) of_tables: bool,
}

/// When to acknowledge what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckDue {
    /// If it is much.
    Much,
    /// If there is anything new.
    Any,
    /// In any case, to say that we are there.
    Always,
}

/// What it means that nothing comes from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// After a while, that it is gone.
    Counts,
    /// Nothing.
    IsFine,
    /// That it is in the way of others, whatever it says beside.
    IsInTheWay,
}

/// See the [module](self).
pub(crate) trait Session: Send {
    /// How it takes frames of this kind; what else may come, if it takes none.
    fn accepts(&self, kind: u8) -> Result<Accepts, &'static str>;

    /// Uses a frame, or the start of one.
    fn frame(&mut self, header: Header, payload: &[u8], turn: &mut Turn<'_>) -> Result<(), Stop>;

    /// Whether the rest of a frame is to come, of which it had the start.
    fn is_inside_frame(&self) -> bool {
        false
    }

    /// Uses bytes of the rest: how many, and what keeps it from using more of them.
    fn part(&mut self, _bytes: &[u8], _turn: &mut Turn<'_>) -> (usize, Result<(), Stop>) {
        (0, Ok(()))
    }

    /// Reads to where the bytes belong, and into `rest` what follows them: how many bytes in all, and in `rest`.
    /// `None` when nothing is to be gained, and nothing was read.
    fn read_direct(
        &mut self,
        _rest: &mut [u8],
        _turn: &mut Turn<'_>,
    ) -> Result<Option<io::Result<(usize, usize)>>, Stop> {
        Ok(None)
    }

    /// Does what can be done without anything more that comes. Also called while the session waits.
    fn resume(&mut self, _turn: &mut Turn<'_>) -> Result<(), Stop> {
        Ok(())
    }

    /// Has the pool use the frame that was too heavy, which is the first of `input` and ends at `end`. The session has the
    /// turn's `input` back when that is done.
    fn work(&mut self, _input: Vec<u8>, _end: usize, _turn: &mut Turn<'_>) {}

    /// Tries again a request that waits; `ahead` is what one before it waits for that wants the same.
    fn attempt(
        &mut self,
        _waiter: &mut Waiter,
        _ahead: Option<BlockedBy>,
        _turn: &mut Turn<'_>,
    ) -> Verdict {
        Verdict::Done
    }

    /// Says what is stored, if that is due.
    fn acknowledge(&mut self, _due: AckDue, _stall: Option<WaitReason>, _turn: &mut Turn<'_>) {}

    /// Says that we are there to a client that we do not hear now, and why that is.
    fn reassure(&mut self, stall: Option<WaitReason>, turn: &mut Turn<'_>) {
        self.acknowledge(AckDue::Always, stall, turn);
    }

    /// The producer that it serves, and how far that is.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// What it means that nothing came for a while; `patience` is how long a client may say nothing.
    fn silence(&self, _now: Instant, _patience: Duration) -> Silence {
        Silence::Counts
    }

    /// Whether the time is over for which it may wait.
    fn is_late(&self, _now: Instant) -> bool {
        false
    }

    /// Starts the client's patience again, after a time in which no thread read.
    fn excuse(&mut self, _now: Instant) {}

    /// Gives up memory that is only of use while something comes.
    fn rest(&mut self) {}

    /// Whether the client may be writing into memory of ours, so that only the end of the link ends the connection.
    fn has_memory(&self) -> bool {
        false
    }

    /// Why the client goes at once when the server closes; `None`, if it is asked to finish.
    fn leaves_because(&self, _shared: &ServerContext) -> Option<(RefusalCode, &'static str)> {
        None
    }
}

/// What the sessions of an event loop work with.
pub(crate) struct Services<'a> {
    pub(crate) waits: &'a mut WaitQueue,
    pub(crate) shared: &'a ServerContext,
}

/// What a session works with while it is its connection's turn.
pub(crate) struct Turn<'a> {
    /// The connection's place among those of its event loop.
    pub(crate) index: usize,
    pub(crate) link: &'a mut dyn Link,
    pub(crate) out: &'a mut WriteBuffer,
    pub(crate) meter: &'a ConnectionMeter,
    /// What came and is not used yet.
    pub(crate) input: &'a mut Vec<u8>,
    pub(crate) waits: &'a mut WaitQueue,
    pub(crate) shared: &'a ServerContext,
}

impl Turn<'_> {
    /// Whether so much is unsent that nothing more is to be answered.
    pub(crate) fn is_full(&self) -> bool {
        self.out.is_full(self.shared.credit_bytes())
    }

    /// Has another turn when this has happened; see [`WaitQueue::park`].
    pub(crate) fn park(&mut self, key: Key) -> bool {
        self.waits.park(key, self.index, self.shared)
    }

    /// Has work done by the pool, and another turn when it is.
    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Task<T> {
        self.park(Key::Pool);
        self.shared.pool.run(self.waits.waker(Key::Pool), work)
    }

    /// Counts samples or items that were stored, and those that had been before.
    pub(crate) fn count(&self, stored: u64, duplicates: u64) {
        self.meter.samples.fetch_add(stored, Ordering::Relaxed);
        self.meter.duplicates.fetch_add(duplicates, Ordering::Relaxed);
    }

    /// Sends a frame with the memory that it is about.
    pub(crate) fn hand_over(&mut self, frame: &[u8], memory: BorrowedFd<'_>) -> Result<(), Stop> {
        // What was said before goes first: the descriptor comes with the bytes it belongs to.
        if self.out.send(self.link, MOST_SENT).is_err() {
            return Err(Stop::Ended(Ending::Gone));
        }
        if !self.out.is_empty() {
            return Err(Stop::Unsent(1));
        }
        // The client waits for it, so the socket takes so few bytes at once or not at all.
        match self.link.send_with_memory(frame, memory) {
            Ok(sent) if sent == frame.len() => Ok(()),
            _ => Err(Stop::Ended(Ending::Gone)),
        }
    }
}
