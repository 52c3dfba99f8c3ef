//! One connection, from its first byte on.
//!
//! A connection is driven by its event loop, which calls [`Connection::read`] when there may be bytes
//! and [`Connection::write`] when there may be room for some. It keeps no thread and, while nothing is
//! under way, no buffer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use echoic_replay::{Blocked, Stream};

use super::intake::{Intake, Obstacle};
use super::meter::ConnectionMeter;
use crate::auth::{Side, Token};
use crate::transport::Link;
use crate::wire::frame::{self, Control, DATA_BYTES, DataHead, HEADER_BYTES, Header, Stall, kind};
use crate::wire::handshake::{
    self, Challenge, Hello, Nonce, Open, ProducerId, RefusalCode, Refused,
};
use crate::wire::{PREFACE_BYTES, VERSION, WireError, preface, read_preface};

/// How much is read at once: much for one system call, and little enough to stay in the cache until it
/// is copied on.
pub(crate) const CHUNK: usize = 256 << 10;
/// How much memory a connection may keep for what it could not use at once.
const KEPT: usize = 4096;
/// What a buffer for [`Connection::read`] must hold: a frame that is not complete, and a chunk.
pub(crate) const BUFFER: usize = HEADER_BYTES + handshake::MAX_PAYLOAD as usize + CHUNK;

/// How long a client may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a refused client may take to read why.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a pass over a connection ended with.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There is nothing more to read now.
    Drained,
    /// There may be more to read.
    More,
    /// The ring has no room; there are bytes that wait for it.
    Blocked(Blocked),
    /// The client says who it is: see [`Connection::take_open`].
    Opened,
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
    /// It was told that it can't stay, and why.
    Refused(RefusalCode),
}

enum Phase {
    Preface,
    Hello,
    /// Waits for the client's proof and spec.
    Challenged {
        client: Nonce,
        server: Nonce,
    },
    /// The event loop decides about this.
    Deciding(Box<Decision>),
    Producing {
        producer: ProducerId,
        intake: Intake,
    },
    /// A probe, or a client that writes into the ring's memory.
    Listening,
    /// Was told why not; its bytes are thrown away until it goes.
    Leaving,
}

/// What a client asked for, and what its answer must be proven with.
pub(crate) struct Decision {
    pub(crate) open: Open,
    pub(crate) client: Nonce,
    pub(crate) server: Nonce,
}

/// See the [module](self).
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) link: Box<dyn Link>,
    pub(crate) meter: Arc<ConnectionMeter>,
    phase: Phase,
    /// Bytes that came and could not be used yet.
    input: Vec<u8>,
    /// Bytes to be sent, and how many of them are.
    output: Vec<u8>,
    sent: usize,
    deadline: Option<Instant>,
    last_heard: Instant,
    /// `next` of the last acknowledgement.
    acknowledged: u64,
    blocked_since: Option<Instant>,
    /// We said that nothing more will come.
    finished: bool,
    /// The client's place in the ring's memory. While it has one, only the end of the link ends the
    /// connection: until then the client may be writing.
    place: Option<Place>,
}

/// A client's right to write into the ring's memory, taken back when dropped.
pub(crate) struct Place {
    stream: Arc<Stream>,
    owner: u16,
}

impl Place {
    /// A place in the ring, if there is one left.
    pub(crate) fn new(stream: &Arc<Stream>) -> Option<Self> {
        let owner = stream.admit()?;
        Some(Self { stream: Arc::clone(stream), owner })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stream.reclaim(self.owner);
    }
}

impl Connection {
    pub(crate) fn new(id: u64, link: Box<dyn Link>) -> Self {
        let meter = Arc::new(ConnectionMeter::new(link.peer()));
        let now = Instant::now();
        Self {
            id,
            link,
            meter,
            phase: Phase::Preface,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            deadline: Some(now + HANDSHAKE),
            last_heard: now,
            acknowledged: 0,
            blocked_since: None,
            finished: false,
            place: None,
        }
    }

    /// The producer that it serves.
    pub(crate) fn producer(&self) -> Option<(&ProducerId, u64)> {
        match &self.phase {
            Phase::Producing { producer, intake } => Some((producer, intake.next)),
            _ => None,
        }
    }

    /// Reads and uses what there is, up to a `chunk`. `token` is what clients must have.
    pub(crate) fn read(
        &mut self,
        stream: &Stream,
        buffer: &mut [u8],
        chunk: usize,
        token: Option<&Token>,
    ) -> Outcome {
        let outcome =
            self.try_read(stream, buffer, chunk, token).unwrap_or_else(|error| self.fail(&error));
        self.note_stall(&outcome);
        outcome
    }

    fn try_read(
        &mut self,
        stream: &Stream,
        buffer: &mut [u8],
        chunk: usize,
        token: Option<&Token>,
    ) -> Result<Outcome, WireError> {
        // What was left over last time goes first.
        let mut filled = self.input.len();
        buffer[..filled].copy_from_slice(&self.input);
        self.input.clear();
        // While nothing is under way, a connection keeps no memory.
        self.input.shrink_to(KEPT);
        if filled > 0 || self.has_waiting_sample(stream) {
            let (used, stop) = self.consume(stream, &buffer[..filled], token)?;
            buffer.copy_within(used..filled, 0);
            filled -= used;
            if let Some(stop) = stop {
                self.keep(&buffer[..filled]);
                return Ok(stop);
            }
        }
        let direct = match &mut self.phase {
            Phase::Producing { intake, .. } if filled == 0 => {
                let before = intake.next;
                let direct = intake.read_direct(stream, &mut *self.link, &mut buffer[..chunk]);
                self.meter.samples.fetch_add(intake.next - before, Ordering::Relaxed);
                direct
            }
            _ => None,
        };
        let read = match direct {
            Some(Ok(read)) => read,
            Some(Err(obstacle)) => return Ok(obstructed(obstacle)),
            None => {
                let end = buffer.len().min(filled + chunk);
                self.link.read(&mut buffer[filled..end]).map(|read| (read, read))
            }
        };
        let (read, fresh) = match read {
            Ok((0, _)) => return Ok(Outcome::Ended(Ending::Gone)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.keep(&buffer[..filled]);
                return Ok(Outcome::More);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.keep(&buffer[..filled]);
                return Ok(Outcome::Drained);
            }
            Err(_) => return Ok(Outcome::Ended(Ending::Gone)),
        };
        self.meter.read(read);
        self.last_heard = Instant::now();
        filled += fresh;
        let (used, stop) = self.consume(stream, &buffer[..filled], token)?;
        self.keep(&buffer[used..filled]);
        Ok(stop.unwrap_or(Outcome::More))
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Whether a complete sample waits for room.
    fn has_waiting_sample(&self, stream: &Stream) -> bool {
        match &self.phase {
            Phase::Producing { intake, .. } => intake.is_complete(stream),
            _ => false,
        }
    }

    /// Uses bytes: how many, and what keeps it from using more that are there.
    fn consume(
        &mut self,
        stream: &Stream,
        bytes: &[u8],
        token: Option<&Token>,
    ) -> Result<(usize, Option<Outcome>), WireError> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if let Phase::Producing { intake, .. } = &mut self.phase
                && intake.in_frame()
            {
                let before = (intake.next, intake.duplicates);
                let fed = intake.feed(stream, rest);
                let (stored, dropped) = (intake.next - before.0, intake.duplicates - before.1);
                self.meter.samples.fetch_add(stored, Ordering::Relaxed);
                self.meter.duplicates.fetch_add(dropped, Ordering::Relaxed);
                used += fed.used;
                if let Some(obstacle) = fed.obstacle {
                    return Ok((used, Some(obstructed(obstacle))));
                }
                if intake.in_frame() {
                    return Ok((used, None));
                }
                continue;
            }
            let (step, stop) = match &self.phase {
                Phase::Preface => (self.read_preface(rest)?, None),
                Phase::Leaving => (rest.len(), None),
                _ => self.read_frame(stream, rest, token)?,
            };
            used += step;
            if step == 0 || stop.is_some() {
                return Ok((used, stop));
            }
        }
    }

    fn read_preface(&mut self, bytes: &[u8]) -> Result<usize, WireError> {
        match read_preface(bytes)? {
            None => Ok(0),
            Some(VERSION) => {
                self.output.extend_from_slice(&preface(VERSION));
                self.phase = Phase::Hello;
                Ok(PREFACE_BYTES)
            }
            Some(got) => Err(WireError::Version { got }),
        }
    }

    /// Reads one frame that is no samples, or the head of one that is.
    fn read_frame(
        &mut self,
        stream: &Stream,
        bytes: &[u8],
        token: Option<&Token>,
    ) -> Result<(usize, Option<Outcome>), WireError> {
        let Some(header) = Header::read(bytes)? else { return Ok((0, None)) };
        let body = &bytes[HEADER_BYTES..];
        if let (Phase::Producing { intake, .. }, kind::DATA) = (&mut self.phase, header.kind) {
            let Some(head) = body.get(..DATA_BYTES) else { return Ok((0, None)) };
            intake.begin(DataHead::read(header, head, stream.spec().nbytes())?)?;
            return Ok((HEADER_BYTES + DATA_BYTES, None));
        }
        let limit = match self.phase {
            // A spec may be long; a stranger's first word is not.
            Phase::Challenged { .. } => handshake::MAX_PAYLOAD,
            _ => frame::MAX_CONTROL,
        };
        if header.len > limit {
            let (limit, got) = (limit.into(), header.len.into());
            return Err(WireError::TooLarge { field: "length of a frame", limit, got });
        }
        let Some(payload) = body.get(..header.len as usize) else { return Ok((0, None)) };
        let used = HEADER_BYTES + payload.len();
        let stop = self.take_frame(header, payload, token)?;
        Ok((used, stop))
    }

    fn take_frame(
        &mut self,
        header: Header,
        payload: &[u8],
        token: Option<&Token>,
    ) -> Result<Option<Outcome>, WireError> {
        match (&mut self.phase, header.kind) {
            (Phase::Hello, kind::HELLO) => {
                let hello = Hello::read(payload)?;
                let Ok(server) = crate::auth::random() else {
                    return Ok(Some(Outcome::Ended(Ending::Gone)));
                };
                let wants_proof = token.is_some();
                Challenge { nonce: server, wants_proof }.write(&mut self.output);
                self.phase = Phase::Challenged { client: hello.nonce, server };
            }
            (Phase::Challenged { client, server }, kind::OPEN) => {
                let (client, server) = (*client, *server);
                // The proof first: strangers do not get to see what is wrong with their spec.
                let proof = payload.first_chunk().copied().unwrap_or([0; 32]);
                let signed = payload.get(proof.len()..).unwrap_or_default();
                let known =
                    token.is_none_or(|t| t.verify(Side::Client, &client, &server, signed, &proof));
                if !known {
                    self.refuse(RefusalCode::Auth, "the token is missing or wrong");
                    return Ok(Some(Outcome::Ended(Ending::Refused(RefusalCode::Auth))));
                }
                let open = Open::read(payload)?;
                self.phase = Phase::Deciding(Box::new(Decision { open, client, server }));
                return Ok(Some(Outcome::Opened));
            }
            (Phase::Hello | Phase::Challenged { .. }, got) => {
                return Err(WireError::Unexpected {
                    expected: "the next step of the handshake",
                    got,
                });
            }
            (_, kind::PING | kind::PONG | kind::GOODBYE | kind::REPORT) => {
                match Control::read(header, payload)? {
                    Control::Report { samples, waited } if self.place.is_some() => {
                        self.meter.samples.store(samples, Ordering::Relaxed);
                        self.meter.blocked_nanos.store(waited, Ordering::Relaxed);
                    }
                    Control::Report { .. } => {
                        let expected = "REPORT from a client that has the ring's memory only";
                        return Err(WireError::Unexpected { expected, got: header.kind });
                    }
                    Control::Ping(number) => Control::Pong(number).write(&mut self.output),
                    Control::Goodbye { .. } => {
                        return Ok(Some(Outcome::Ended(Ending::Goodbye)));
                    }
                    _ => {}
                }
            }
            (_, got) => {
                return Err(WireError::Unexpected { expected: "DATA, PING, PONG or GOODBYE", got });
            }
        }
        Ok(None)
    }

    /// What the client wants, once [`Outcome::Opened`] said that it wants something.
    pub(crate) fn take_open(&mut self) -> Option<Box<Decision>> {
        match std::mem::replace(&mut self.phase, Phase::Leaving) {
            Phase::Deciding(decision) => Some(decision),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Puts back what [`Connection::take_open`] took, for another event loop to decide.
    pub(crate) fn put_back(&mut self, decision: Box<Decision>) {
        self.phase = Phase::Deciding(decision);
    }

    /// Lets a producer stay.
    pub(crate) fn produce(&mut self, producer: ProducerId, next: u64, limit: u64) {
        let mut intake = Intake::new(next);
        intake.limit = limit;
        self.acknowledged = next;
        self.phase = Phase::Producing { producer, intake };
        self.deadline = None;
    }

    /// Lets a client stay that writes into the ring's memory. `false` when it could not be handed over.
    pub(crate) fn share(&mut self, place: Place) -> bool {
        self.listen();
        let Some((memory, layout)) = place.stream.share() else { return false };
        // What was said before goes first: the descriptor comes with the bytes it belongs to.
        if !self.write() || self.backlog() > 0 {
            return false;
        }
        let mut frame = Vec::new();
        Control::Memory { owner: place.owner, layout: layout.to_words() }.write(&mut frame);
        // The socket is fresh, so it takes so few bytes at once or not at all.
        let sent = self.link.send_with_memory(&frame, memory);
        self.place = Some(place);
        sent.is_ok_and(|sent| sent == frame.len())
    }

    /// Whether the client may be writing into the ring's memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.place.is_some()
    }

    /// Lets a client stay that sends no samples.
    pub(crate) fn listen(&mut self) {
        self.phase = Phase::Listening;
        self.deadline = None;
    }

    /// Queues bytes for the client.
    pub(crate) fn say(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.output);
    }

    /// Tells the client why it can't stay.
    pub(crate) fn refuse(&mut self, code: RefusalCode, text: &str) {
        if matches!(self.phase, Phase::Preface) {
            self.output.extend_from_slice(&preface(VERSION));
        }
        Refused { code, text: text.to_owned() }.write(&mut self.output);
        self.leave();
    }

    /// From now on everything that comes is thrown away; what is to be said is still said.
    pub(crate) fn leave(&mut self) {
        self.phase = Phase::Leaving;
        self.deadline = Some(Instant::now() + FAREWELL);
        self.input = Vec::new();
    }

    /// Whether it waits for the client to read why it can't stay.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    fn fail(&mut self, error: &WireError) -> Outcome {
        match error {
            // Whoever speaks another protocol would not understand the answer.
            WireError::Magic { .. } => return Outcome::Ended(Ending::Malformed),
            WireError::Version { .. } => {
                let text = format!("the server: {error}");
                self.refuse(RefusalCode::Version, &text);
                return Outcome::Ended(Ending::Refused(RefusalCode::Version));
            }
            _ => self.refuse(RefusalCode::Protocol, &error.to_string()),
        }
        Outcome::Ended(Ending::Malformed)
    }

    fn note_stall(&mut self, outcome: &Outcome) {
        let stall = match outcome {
            Outcome::Blocked(Blocked::Leased) => Stall::Leased,
            Outcome::Blocked(_) => Stall::Capacity,
            _ => Stall::None,
        };
        self.meter.set_stall(stall);
        if stall != Stall::None {
            if self.blocked_since.is_none() {
                self.blocked_since = Some(Instant::now());
                self.acknowledge_as(stall, None);
            }
        } else if let Some(since) = self.blocked_since.take() {
            let nanos = since.elapsed().as_nanos() as u64;
            self.meter.blocked_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Queues an acknowledgement if much was stored since the last, or `drained`; `credit` is how many
    /// samples may be on their way.
    pub(crate) fn acknowledge(&mut self, credit: u64, drained: bool) {
        let Phase::Producing { intake, .. } = &self.phase else { return };
        let news = intake.next - self.acknowledged;
        if news > 0 && (drained || news >= credit / 4) {
            self.acknowledge_as(Stall::None, Some(credit));
        }
    }

    /// Queues an acknowledgement that also says why nothing is stored.
    pub(crate) fn acknowledge_as(&mut self, stall: Stall, credit: Option<u64>) {
        let Phase::Producing { intake, .. } = &mut self.phase else { return };
        // What is on its way stays within what was granted: a limit never falls.
        let limit = credit.map_or(0, |credit| intake.next.saturating_add(credit));
        intake.limit = intake.limit.max(limit);
        self.acknowledged = intake.next;
        Control::Ack { next: intake.next, limit: intake.limit, stall }.write(&mut self.output);
    }

    /// Sends what is queued. `false` when the connection is broken.
    pub(crate) fn write(&mut self) -> bool {
        while self.sent < self.output.len() {
            match self.link.write(&self.output[self.sent..]) {
                Ok(0) => return false,
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        self.output.clear();
        self.sent = 0;
        match self.link.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return false,
            _ => {}
        }
        // The end of what we say, so that the client sees it after the reason, not a reset.
        if self.is_leaving() && !self.finished && !self.link.has_unflushed() {
            return match self.link.finish() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                finished => {
                    self.finished = true;
                    finished.is_ok()
                }
            };
        }
        true
    }

    /// How many bytes wait to be sent. A client that reads nothing is not worth memory.
    pub(crate) fn backlog(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Why the connection should be closed now, if so.
    pub(crate) fn overdue(&self, now: Instant, patience: Duration) -> Option<Ending> {
        if self.has_memory() {
            return None;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(if self.is_leaving() { Ending::Gone } else { Ending::Silent });
        }
        let quiet = matches!(self.phase, Phase::Listening) || self.blocked_since.is_some();
        (!quiet && now.duration_since(self.last_heard) > patience).then_some(Ending::Silent)
    }

    /// Whether the time for what it does now is over.
    pub(crate) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Starts the client's patience anew, after a time in which we did not listen.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.last_heard = now;
    }
}

fn obstructed(obstacle: Obstacle) -> Outcome {
    match obstacle {
        Obstacle::Blocked(reason) => Outcome::Blocked(reason),
        // The server is closing: what was not stored stays with the client.
        Obstacle::Closed => Outcome::Ended(Ending::Gone),
    }
}
