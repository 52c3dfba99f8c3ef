//! A learner's end: publishing in the store of a server elsewhere.
//!
//! Between two publications nothing is said, and when the connection is found to be gone, another is made, once. While
//! it waits for a place, it says in time that it is still there. It has a thread only while it connects: what the
//! system does then can't be interrupted, and the caller can.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use echoic_replay::WaitReason;
use echoic_replay::stream::{Wait, WaitOver};
use echoic_replay::weights::{ChunkForm, Content, DeltaWriter, Publication};
use rustix::event::{PollFd, PollFlags, poll};

use crate::address::Address;
use crate::auth::{Token, random};
use crate::client::link::{self, ClientHandshake, LinkError, first_frame, timespec, use_control};
use crate::client::own_name;
use crate::transport::Dial;
use crate::wire::WireError;
use crate::wire::frame::{Control, HEADER_BYTES, MAX_CONTROL, kind};
use crate::wire::handshake::{Open, Purpose};
use crate::wire::weights::{self, ChunkOf, LinkSpeed, Need, Publish, Receipt, check};
use crate::write_buffer::{Piece, WriteBuffer};

/// How much is written ahead of the link.
const AHEAD: usize = 1 << 20;
/// How long chunks are looked at before what was found is sent: what changed in one takes up to a millisecond.
const LONGEST: Duration = Duration::from_millis(3);
/// How much longer than the server we wait for what it says.
const GRACE: Duration = Duration::from_secs(1);
/// How long an attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Why something was not published.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Publish with a larger version.
    #[error("versions rise: expected one above {latest}, the latest, got {version}")]
    Stale {
        /// What was to be published.
        version: u64,
        /// What is.
        latest: u64,
    },
    /// Wait longer: all places were held.
    #[error("all places for publications are held")]
    TimedOut,
    /// The caller's own callback ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
    /// Nothing more is published there.
    #[error("the server's store of weights is closed")]
    Closed,
    /// The server can't take it.
    #[error("the server could not take it: {0}")]
    Failed(String),
    /// The weights have more than the wire carries.
    #[error("the weights can't be used over a network: {0}")]
    Wire(WireError),
    /// The server can't be reached, or does not want us.
    #[error("{0}")]
    Link(LinkError),
}

impl From<WaitOver> for PublishError {
    fn from(over: WaitOver) -> Self {
        match over {
            WaitOver::TimedOut(_) => Self::TimedOut,
            WaitOver::Interrupted => Self::Interrupted,
        }
    }
}

/// A connection over which something is published.
struct Session {
    handshake: ClientHandshake,
    /// How many chunks there are.
    chunks: usize,
    /// Those that the server lacks, and the sums of what it has in their places.
    need: VecDeque<(u32, u64)>,
    deltas: DeltaWriter,
    speed: LinkSpeed,
    /// When they began to be sent, and bytes sent as they are; `None` once others were, too.
    since: Instant,
    whole: Option<usize>,
    out: WriteBuffer,
    /// How long the server is not left without a word.
    heartbeat: Duration,
    /// When all that there was to say was last said.
    said: Instant,
}

/// A learner elsewhere: publishes to the store of a server.
pub struct WeightPublisher {
    dial: Arc<dyn Dial>,
    token: Option<Token>,
    name: Option<String>,
    session: Option<Session>,
    /// An attempt whose end no thread has waited for.
    connecting: Option<Receiver<Result<Session, LinkError>>>,
}

impl WeightPublisher {
    /// A learner that publishes at the server that `dial` reaches, once there is something.
    pub fn new(dial: Box<dyn Dial>, token: Option<Token>) -> Self {
        Self { dial: dial.into(), token, name: None, session: None, connecting: None }
    }

    /// What people know it by; host and process when `None`.
    #[must_use]
    pub fn with_name(mut self, name: Option<String>) -> Self {
        self.name = name;
        self
    }

    /// Where the server is.
    pub fn address(&self) -> Address {
        self.dial.address()
    }

    /// Connects, if that was not done yet.
    pub fn connect(&mut self, deadline: Instant) -> Result<(), LinkError> {
        if self.session.is_none() {
            self.session =
                Some(Session::new(&*self.dial, self.token.as_ref(), self.name.clone(), deadline)?);
        }
        Ok(())
    }

    /// Connects, if that was not done yet, in another thread, which is left to itself when the wait is over: at
    /// `deadline` it ends.
    fn connect_aside(
        &mut self,
        deadline: Instant,
        wait: &mut Wait<'_>,
    ) -> Result<(), PublishError> {
        if self.session.is_some() {
            return Ok(());
        }
        let connecting = match self.connecting.take() {
            Some(connecting) => connecting,
            None => self.begin_to_connect(deadline).map_err(PublishError::Link)?,
        };
        let mut patient =
            Wait { deadline: Some(deadline), tick: wait.tick, on_tick: &mut *wait.on_tick };
        let waited = patient.until(|until| {
            let until = until.unwrap_or(deadline);
            match connecting.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(connected) => ControlFlow::Break(connected),
                Err(RecvTimeoutError::Timeout) => ControlFlow::Continue(WaitReason::Leased),
                Err(RecvTimeoutError::Disconnected) => {
                    ControlFlow::Break(Err(LinkError::Lost("the attempt to connect died".into())))
                }
            }
        });
        match waited {
            Ok(connected) => {
                self.session = Some(connected.map_err(PublishError::Link)?);
                Ok(())
            }
            Err(over) => {
                // The next publication may find it done.
                self.connecting = Some(connecting);
                Err(match over {
                    WaitOver::Interrupted => PublishError::Interrupted,
                    WaitOver::TimedOut(_) => PublishError::Link(LinkError::Lost(
                        "the server did not answer in time".into(),
                    )),
                })
            }
        }
    }

    fn begin_to_connect(
        &self,
        deadline: Instant,
    ) -> Result<Receiver<Result<Session, LinkError>>, LinkError> {
        let (done, connecting) = channel();
        let (dial, token) = (Arc::clone(&self.dial), self.token.clone());
        let name = self.name.clone();
        let connect = move || {
            // Nobody may want to know any more.
            let _ = done.send(Session::new(&*dial, token.as_ref(), name, deadline));
        };
        let thread = std::thread::Builder::new().name("echoic-publisher".into());
        thread.spawn(connect).map_err(LinkError::from)?;
        Ok(connecting)
    }

    /// Publishes it there.
    pub fn publish(
        &mut self,
        publication: &Arc<Publication>,
        mut wait: Wait<'_>,
    ) -> Result<(), PublishError> {
        if let Some(content) = publication.content() {
            check(content.plan()).map_err(PublishError::Wire)?;
        }
        // An attempt of an earlier call may have failed long ago, too.
        let again = self.session.is_some() || self.connecting.is_some();
        let version = publication.version();
        let receipt = match self.try_publish(publication, &mut wait) {
            Err(PublishError::Link(error)) if again && error.is_temporary() => {
                // Nothing was said for long, perhaps, or the server was restarted.
                match self.try_publish(publication, &mut wait)? {
                    // It was published, but the answer was lost. Another learner's of the same version is
                    // not ours: the server has compared them.
                    Receipt::Same => Receipt::Published,
                    receipt => receipt,
                }
            }
            result => result?,
        };
        match receipt {
            Receipt::Published => Ok(()),
            Receipt::Stale { latest } => Err(PublishError::Stale { version, latest }),
            Receipt::Same => Err(PublishError::Stale { version, latest: version }),
            Receipt::Leased => Err(PublishError::TimedOut),
            Receipt::Closed => Err(PublishError::Closed),
            Receipt::Failed(text) => Err(PublishError::Failed(text)),
        }
    }

    fn try_publish(
        &mut self,
        publication: &Arc<Publication>,
        wait: &mut Wait<'_>,
    ) -> Result<Receipt, PublishError> {
        let now = Instant::now();
        let attempt = wait.deadline.map_or(now + ATTEMPT, |deadline| deadline.min(now + ATTEMPT));
        // To connect takes a moment even when there is none.
        self.connect_aside(attempt.max(now + GRACE), wait)?;
        // Taken out: a connection that is left in the middle is of no use any more.
        let Some(mut session) = self.session.take() else { return Err(PublishError::Closed) };
        let left = wait.deadline.map(|deadline| deadline.saturating_duration_since(now));
        session.begin(publication, left);
        let deadline = wait.deadline.and_then(|deadline| deadline.checked_add(GRACE));
        let mut patient = Wait { deadline, tick: wait.tick, on_tick: &mut *wait.on_tick };
        let talked = patient.until(|until| match session.talk(publication, until) {
            Ok(Some(receipt)) => ControlFlow::Break(Ok(receipt)),
            Ok(None) => ControlFlow::Continue(WaitReason::Leased),
            Err(error) => ControlFlow::Break(Err(error)),
        });
        let receipt = talked?.map_err(PublishError::Link)?;
        self.session = Some(session);
        Ok(receipt)
    }
}

impl Session {
    fn new(
        dial: &dyn Dial,
        token: Option<&Token>,
        name: Option<String>,
        deadline: Instant,
    ) -> Result<Self, LinkError> {
        let open = Open {
            proof: [0; 32],
            purpose: Purpose::Weights,
            producer: random()?,
            epoch: 0,
            first: 0,
            stream: String::new(),
            spec: None,
            name: name.unwrap_or_else(own_name),
        };
        let (handshake, welcome) = ClientHandshake::new(dial, token, open, deadline)?;
        let heartbeat = Duration::from_millis(welcome.heartbeat_ms.clamp(10, 600_000).into());
        Ok(Self {
            handshake,
            chunks: 0,
            need: VecDeque::new(),
            deltas: DeltaWriter::default(),
            speed: LinkSpeed::default(),
            since: Instant::now(),
            whole: Some(0),
            out: WriteBuffer::default(),
            heartbeat,
            said: Instant::now(),
        })
    }

    /// Says what is to be published.
    fn begin(&mut self, publication: &Publication, left: Option<Duration>) {
        self.need.clear();
        self.chunks = publication.content().map_or(0, |content| content.plan().chunks());
        self.whole = Some(0);
        let bases = publication.content().map(Content::bases).unwrap_or_default();
        self.deltas = DeltaWriter::new(bases);
        let content = publication.content().map(|content| {
            let chunks = 0..content.plan().chunks();
            let sums = chunks.map_while(|index| content.sum(index)).collect();
            ((**content.plan()).clone(), sums)
        });
        let timeout_ms = left.map(|left| left.as_micros().div_ceil(1000) as u64);
        let version = publication.version();
        self.out.write(|out| Publish { version, timeout_ms, content }.write(out));
    }

    /// Talks until there is a receipt, or it is too late.
    fn talk(
        &mut self,
        publication: &Arc<Publication>,
        until: Option<Instant>,
    ) -> Result<Option<Receipt>, LinkError> {
        loop {
            self.load(publication);
            if link::send(&mut *self.handshake.link, &mut self.out)? && self.out.is_empty() {
                self.said = Instant::now();
            }
            if let Some(receipt) = self.read()? {
                return Ok(Some(receipt));
            }
            if self.out.is_empty() && !self.need.is_empty() {
                continue;
            }
            let now = Instant::now();
            let left = until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            // What is on its way shows well enough that we are there.
            let silent = self.out.is_empty().then(|| now.duration_since(self.said));
            if silent.is_some_and(|silent| silent >= self.heartbeat) {
                self.out.write(|out| Control::Ping(0).write(out));
                continue;
            }
            let ping = silent.map(|silent| self.heartbeat.saturating_sub(silent));
            let left = left.into_iter().chain(ping).min();
            let link = &self.handshake.link;
            let unsent = !self.out.is_empty() || link.has_unflushed();
            let flags = if unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut fds = [PollFd::from_borrowed_fd(link.as_fd(), flags)];
            match poll(&mut fds, left.map(timespec).as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Writes chunks that are needed, as many as are worth a few system calls.
    fn load(&mut self, publication: &Arc<Publication>) {
        let (started, is_slow) = (Instant::now(), self.speed.is_slow());
        while !self.out.is_full(AHEAD)
            && started.elapsed() < LONGEST
            && let Some((index, base)) = self.need.pop_front()
        {
            let content = publication.content();
            let chunk = content.and_then(|content| Some((content, ChunkOf::of(content, index)?)));
            // What the server needs that there is not is its mistake, which it finds out itself.
            let Some((content, (chunk, range))) = chunk else { continue };
            let mut delta = Vec::new();
            let form = match base {
                0 => ChunkForm::Whole,
                base => self.deltas.write(content, index as usize, base, is_slow, &mut delta),
            };
            if form != ChunkForm::Whole {
                self.whole = None;
                self.out.write(|out| ChunkOf { form, bytes: &delta, ..chunk }.write(out));
                continue;
            }
            self.out.write(|out| out.extend_from_slice(&chunk.head()));
            self.out.push(Piece::Shared(Arc::clone(publication) as _, range));
            self.whole = self.whole.map(|whole| whole + chunk.bytes.len());
        }
    }

    /// Hears what the server has to say; the receipt, if it came.
    fn read(&mut self) -> Result<Option<Receipt>, LinkError> {
        let mut bytes = [0; 16 << 10];
        loop {
            if let Some(receipt) = self.use_frames()? {
                return Ok(Some(receipt));
            }
            match self.handshake.link.read(&mut bytes) {
                Ok(0) => return Err(LinkError::Lost("the server closed the connection".into())),
                Ok(read) => self.handshake.input.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn use_frames(&mut self) -> Result<Option<Receipt>, LinkError> {
        let (input, out) = (&mut self.handshake.input, &mut self.out);
        let limit = |kind| weights::most(kind).unwrap_or(MAX_CONTROL);
        while let Some((header, payload)) = first_frame(input, limit)? {
            let mut receipt = None;
            match header.kind {
                kind::NEED => {
                    let Need { chunks, bases } = Need::read(payload)?;
                    let most = self.chunks.saturating_sub(self.need.len());
                    if chunks.len() > most || chunks.len() != bases.len() {
                        let (field, got) = ("number of chunks that are needed", chunks.len());
                        return Err(WireError::meaningless(field, got as u64).into());
                    }
                    self.since = Instant::now();
                    self.need.extend(chunks.into_iter().zip(bases));
                }
                kind::RECEIPT => {
                    self.speed.note(self.whole.unwrap_or(0), self.since.elapsed());
                    receipt = Some(Receipt::read(payload)?);
                }
                _ => use_control(header, payload, |number| out.pong(number))?,
            }
            input.drain(..HEADER_BYTES + header.len as usize);
            if receipt.is_some() {
                return Ok(receipt);
            }
        }
        Ok(None)
    }
}
