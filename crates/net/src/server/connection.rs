//! One connection, from its first byte on.
//!
//! A connection is driven by its event loop, which calls [`Connection::read`] when there may be bytes
//! and [`Connection::write`] when there may be room for some. It keeps no thread and, while nothing is
//! under way, no buffer.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use echoic_memory::arena::Arena;
use echoic_replay::table::Waiting;
use echoic_replay::{Blocked, Stream};

use super::insert_session::{Hold, InsertSession};
use super::meter::ConnectionMeter;
use super::request_session::RequestSession;
use super::services::Services;
use super::stream_session::{Obstacle, StreamSession};
use super::weights_session::{Attention, WeightsSession};
use crate::auth::Side;
use crate::transport::Link;
use crate::wire::frame::{self, Control, DATA_BYTES, DataHead, HEADER_BYTES, Header, Stall, kind};
use crate::wire::handshake::{
    self, Challenge, Hello, Nonce, Open, ProducerId, RefusalCode, Refused,
};
use crate::wire::tables::{MAX_REQUEST, Request};
use crate::wire::weights;
use crate::wire::{PREFACE_BYTES, VERSION, WireError, preface, read_preface};
use crate::write_buffer::WriteBuffer;

/// How much is read at once: much for one system call, and little enough to stay in the cache until it
/// is copied on.
pub(crate) const CHUNK: usize = 256 << 10;
/// How much memory a connection may keep for what it could not use at once.
const KEPT: usize = 4096;
/// What a buffer for [`Connection::read`] must hold: a frame that is not complete, and a chunk.
pub(crate) const BUFFER: usize = HEADER_BYTES + handshake::MAX_PAYLOAD as usize + CHUNK;

/// From how many bytes on the rest of a frame is read to where its start is, not to the shared buffer.
const LARGE: usize = 16 << 10;

/// How much is sent before others have their turn: a client that reads as fast as we write would never end it.
const TURN: usize = 2 << 20;

/// How long a client may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After how much silence a connection keeps no memory that it does not need.
const REST: Duration = Duration::from_secs(1);
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
    /// A table takes nothing more now; there is a frame that waits for it.
    Held { table: usize, stall: Stall },
    /// The client is to read answers before it is given more.
    Choked,
    /// Nothing more is done for now: see [`Connection::finish_work`].
    Busy,
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
    /// Serving it panicked, which says this.
    Panicked { text: String },
}

pub(crate) enum Phase {
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
        stream: Arc<Stream>,
        session: StreamSession,
    },
    Requesting(RequestSession),
    Inserting {
        producer: ProducerId,
        session: Box<InsertSession>,
    },
    Weights(Box<WeightsSession>),
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

/// How far a producer is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) producer: ProducerId,
    /// Number of the first sample or operation that is not stored.
    pub(crate) next: u64,
    /// Whether it inserts into tables; else it fills the stream.
    pub(crate) of_tables: bool,
}

/// Why what came is not used.
enum Fault {
    Malformed(WireError),
    Refused(RefusalCode, String),
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

/// See the [module](self).
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) link: Box<dyn Link>,
    pub(crate) meter: Arc<ConnectionMeter>,
    phase: Phase,
    /// Bytes that came and could not be used yet.
    input: Vec<u8>,
    /// How many bytes the frame has that they begin, once that is known.
    wanted: usize,
    pub(crate) out: WriteBuffer,
    /// Nothing is read until more is sent.
    choked: bool,
    /// Until all of it is.
    wants_empty: bool,
    /// It is to be written to again though nothing says that it can be: a turn was used up.
    pub(crate) sends_on: bool,
    deadline: Option<Instant>,
    last_heard: Instant,
    /// Gave up memory, and heard nothing since.
    rests: bool,
    /// `next` of the last acknowledgement.
    acknowledged: u64,
    blocked: bool,
    /// Counts it among those that wait for the stream, while its samples do.
    waiting: Option<Waiting>,
    /// How long the client said that it has waited, if it counts itself.
    waited: Duration,
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
            wanted: 0,
            out: WriteBuffer::default(),
            choked: false,
            wants_empty: false,
            sends_on: false,
            deadline: Some(now + HANDSHAKE),
            last_heard: now,
            rests: false,
            acknowledged: 0,
            blocked: false,
            waiting: None,
            waited: Duration::ZERO,
            finished: false,
            place: None,
        }
    }

    /// The producer that it serves, and how far that is.
    pub(crate) fn progress(&self) -> Option<Progress> {
        match &self.phase {
            Phase::Producing { producer, session, .. } => {
                Some(Progress { producer: *producer, next: session.next, of_tables: false })
            }
            Phase::Inserting { producer, session } => {
                Some(Progress { producer: *producer, next: session.next, of_tables: true })
            }
            _ => None,
        }
    }

    /// Whether it brings samples for the stream.
    pub(crate) fn fills_stream(&self) -> bool {
        matches!(self.phase, Phase::Producing { .. })
    }

    /// What it asks of tables.
    pub(crate) fn request_session(&mut self) -> Option<(&mut RequestSession, &mut WriteBuffer)> {
        match &mut self.phase {
            Phase::Requesting(session) => Some((session, &mut self.out)),
            _ => None,
        }
    }

    /// Tells what is durable of what it has changed. Of what is not, the place of its table's waker; or what became of
    /// the connection because nothing more is durable.
    pub(crate) fn settle(&mut self, services: &Services) -> Result<Option<usize>, Outcome> {
        match &mut self.phase {
            Phase::Requesting(session) => {
                let place = session.settle(services, &mut self.out);
                // What is durable and has no room goes on when more is sent.
                self.choked |= self.out.is_full(services.most_unsent());
                Ok(place)
            }
            Phase::Inserting { session, .. } => session.settle(services).map_err(|error| {
                self.fail(Fault::Refused(RefusalCode::Journal, error.to_string()))
            }),
            _ => Ok(None),
        }
    }

    /// Whether it is to be asked to finish when the server closes.
    pub(crate) fn is_at_work(&self) -> bool {
        matches!(
            self.phase,
            Phase::Producing { .. } | Phase::Inserting { .. } | Phase::Requesting(_)
        ) || self.has_memory()
    }

    /// Reads and uses what there is, up to a chunk.
    pub(crate) fn read(&mut self, services: &Services, buffer: &mut [u8]) -> Outcome {
        let in_frames = matches!(
            self.phase,
            Phase::Requesting(_) | Phase::Inserting { .. } | Phase::Weights(_)
        );
        let read = if in_frames {
            self.read_tables(services, buffer)
        } else {
            self.try_read(services, buffer)
        };
        let outcome = read.unwrap_or_else(|fault| self.fail(fault));
        if let (Outcome::Busy, Phase::Inserting { session, .. }) = (&outcome, &mut self.phase)
            && !session.is_busy()
        {
            let (input, end) = (std::mem::take(&mut self.input), std::mem::take(&mut self.wanted));
            session.work(input, end, services);
        }
        self.note_stall(&outcome);
        outcome
    }

    /// Goes on with what was done elsewhere or waited for: whether it may be read from again.
    pub(crate) fn finish_work(&mut self, services: &Services) -> Result<bool, Outcome> {
        match &mut self.phase {
            Phase::Requesting(session) => {
                session.finish(services, &mut self.out);
                Ok(!session.is_busy(services))
            }
            Phase::Inserting { session, .. } => {
                let before = session.next;
                let finished = session.finish(services);
                self.meter.samples.fetch_add(session.next - before, Ordering::Relaxed);
                match finished {
                    Ok(None) => Ok(!session.is_busy()),
                    Ok(Some(input)) => {
                        self.input = input;
                        Ok(true)
                    }
                    Err(hold) => Err(stop(hold).unwrap_or_else(|fault| self.fail(fault))),
                }
            }
            _ => Ok(true),
        }
    }

    /// Whether nothing more is done for now: see [`Outcome::Busy`].
    pub(crate) fn is_busy(&self, services: &Services) -> bool {
        match &self.phase {
            Phase::Requesting(session) => session.is_busy(services),
            Phase::Inserting { session, .. } => session.is_busy(),
            _ => false,
        }
    }

    fn try_read(&mut self, services: &Services, buffer: &mut [u8]) -> Result<Outcome, Fault> {
        let chunk = services.shared.chunk();
        // What was left over last time goes first.
        let mut filled = self.input.len();
        buffer[..filled].copy_from_slice(&self.input);
        self.input.clear();
        // While nothing is under way, a connection keeps no memory.
        self.input.shrink_to(KEPT);
        if filled > 0 || self.has_waiting_sample() {
            let (used, stop) = self.consume(&buffer[..filled], services)?;
            buffer.copy_within(used..filled, 0);
            filled -= used;
            if let Some(stop) = stop {
                self.keep(&buffer[..filled]);
                return Ok(stop);
            }
        }
        let direct = match &mut self.phase {
            Phase::Producing { session, stream, .. } if filled == 0 => {
                let before = session.next;
                let direct = session.read_direct(stream, &mut *self.link, &mut buffer[..chunk]);
                self.meter.samples.fetch_add(session.next - before, Ordering::Relaxed);
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
        let fresh = match self.note_read(read) {
            Ok(fresh) => fresh,
            Err(outcome) => {
                self.keep(&buffer[..filled]);
                return Ok(outcome);
            }
        };
        filled += fresh;
        let (used, stop) = self.consume(&buffer[..filled], services)?;
        self.keep(&buffer[used..filled]);
        Ok(stop.unwrap_or(Outcome::More))
    }

    /// Looks at what a read came to, in all and of that in the buffer: how much there is to be used, or
    /// what else happened.
    fn note_read(&mut self, read: io::Result<(usize, usize)>) -> Result<usize, Outcome> {
        match read {
            Ok((0, _)) => Err(Outcome::Ended(Ending::Gone)),
            Ok((read, fresh)) => {
                self.meter.read(read);
                self.last_heard = Instant::now();
                self.rests = false;
                Ok(fresh)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(Outcome::More),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Outcome::Drained),
            Err(_) => Err(Outcome::Ended(Ending::Gone)),
        }
    }

    /// As [`Connection::try_read`], when it is about tables or weights: whole frames are used where they lie.
    fn read_tables(&mut self, services: &Services, buffer: &mut [u8]) -> Result<Outcome, Fault> {
        let chunk = services.shared.chunk();
        if let Phase::Requesting(session) = &mut self.phase
            && !session.is_busy(services)
        {
            session.retry(services, &mut self.out);
        }
        if self.is_busy(services) {
            return Ok(Outcome::Busy);
        }
        if let Phase::Requesting(session) = &self.phase
            && (session.is_recalled() || self.out.is_full(services.most_unsent()))
        {
            self.choked = true;
            return Ok(Outcome::Choked);
        }
        if let Some(outcome) = self.attend(services)? {
            return Ok(outcome);
        }
        if self.input.len() >= self.wanted && (self.wanted > 0 || !self.input.is_empty()) {
            let mut input = std::mem::take(&mut self.input);
            let (used, stop) = self.consume_tables(&input, services)?;
            input.drain(..used);
            if !matches!(self.phase, Phase::Leaving) {
                self.input = input;
            }
            if let Some(stop) = stop {
                return Ok(stop);
            }
        }
        let filled = self.input.len();
        if filled >= LARGE {
            let more = self.wanted.saturating_sub(filled).clamp(1, chunk);
            self.input.resize(filled + more, 0);
            let read = self.link.read(&mut self.input[filled..]).map(|read| (read, read));
            let noted = self.note_read(read);
            self.input.truncate(filled + noted.as_ref().map_or(0, |fresh| *fresh));
            return Ok(noted.map_or_else(|outcome| outcome, |_| Outcome::More));
        }
        buffer[..filled].copy_from_slice(&self.input);
        let read = self.link.read(&mut buffer[filled..filled + chunk]).map(|read| (read, read));
        let fresh = match self.note_read(read) {
            Ok(fresh) => fresh,
            Err(outcome) => {
                // While nothing is under way, a connection keeps no memory.
                self.input.shrink_to(KEPT);
                return Ok(outcome);
            }
        };
        self.input.clear();
        let bytes = &buffer[..filled + fresh];
        let (used, stop) = self.consume_tables(bytes, services)?;
        if !matches!(self.phase, Phase::Leaving) {
            self.input.reserve(self.wanted.min(chunk));
            self.input.extend_from_slice(&bytes[used..]);
        }
        Ok(stop.unwrap_or(Outcome::More))
    }

    /// Goes on with weights; what keeps it from reading more, if something does.
    fn attend(&mut self, services: &Services) -> Result<Option<Outcome>, Fault> {
        loop {
            let Phase::Weights(session) = &mut self.phase else { return Ok(None) };
            let (buffer_pool, most) = (&services.shared.buffer_pool, services.most_unsent());
            let attention = session.attend(&mut self.out, buffer_pool, most)?;
            let publication = match attention {
                Attention::Idle => return Ok(None),
                Attention::Busy => return Ok(Some(Outcome::More)),
                Attention::Full => {
                    self.choked = true;
                    return Ok(Some(Outcome::Choked));
                }
                Attention::Hand(publication) => publication,
            };
            // What was said before goes first: the descriptor comes with the bytes it belongs to.
            if !self.write() {
                return Ok(Some(Outcome::Ended(Ending::Gone)));
            }
            if !self.out.is_empty() {
                (self.choked, self.wants_empty) = (true, true);
                return Ok(Some(Outcome::Choked));
            }
            let content = publication.content();
            let handed = content.and_then(|content| {
                let (region, (.., file)) = (WeightsSession::region(content)?, content.file()?);
                self.hand_region(region, file).then_some(region.id)
            });
            match (&mut self.phase, handed) {
                (Phase::Weights(session), Some(region)) => session.handed(region),
                _ => return Ok(Some(Outcome::Ended(Ending::Gone))),
            }
        }
    }

    fn hand_region(&mut self, region: weights::Region, file: BorrowedFd<'_>) -> bool {
        let mut frame = Vec::new();
        region.write(&mut frame);
        // A client asks for one publication at a time, so the socket has room for so few bytes.
        let sent = self.link.send_with_memory(&frame, file);
        sent.is_ok_and(|sent| sent == frame.len())
    }

    /// Uses whole frames: how many bytes, and what keeps it from using more that are there.
    fn consume_tables(
        &mut self,
        bytes: &[u8],
        services: &Services,
    ) -> Result<(usize, Option<Outcome>), Fault> {
        let (mut used, most_unsent) = (0, services.most_unsent());
        self.wanted = 0;
        loop {
            if self.out.is_full(most_unsent) {
                self.choked = true;
                return Ok((used, Some(Outcome::Choked)));
            }
            let rest = &bytes[used..];
            let Some(header) = Header::read(rest)? else { return Ok((used, None)) };
            let limit = match &self.phase {
                Phase::Requesting(_) if header.kind == kind::REQUEST => MAX_REQUEST,
                Phase::Inserting { .. } => {
                    InsertSession::most(header.kind).unwrap_or(frame::MAX_CONTROL)
                }
                Phase::Weights(_) => weights::most(header.kind).unwrap_or(frame::MAX_CONTROL),
                _ => frame::MAX_CONTROL,
            };
            check_len(header, limit)?;
            let end = HEADER_BYTES + header.len as usize;
            let Some(payload) = rest.get(HEADER_BYTES..end) else {
                self.wanted = end;
                return Ok((used, None));
            };
            match &mut self.phase {
                Phase::Requesting(session) if header.kind == kind::REQUEST => {
                    let request = Request::read(payload)?;
                    if let Some(table) = session.lacks_room(&request, services) {
                        self.wanted = end;
                        return Ok((used, Some(Outcome::Held { table, stall: Stall::Capacity })));
                    }
                    session.take(request, services, &mut self.out)?;
                    if session.is_busy(services) {
                        return Ok((used + end, Some(Outcome::Busy)));
                    }
                }
                Phase::Weights(session) if weights::most(header.kind).is_some() => {
                    session.take(header.kind, payload, &mut self.out)?;
                }
                Phase::Inserting { .. } if InsertSession::is_heavy(header.kind, payload) => {
                    self.wanted = end;
                    return Ok((used, Some(Outcome::Busy)));
                }
                Phase::Inserting { session, .. } if InsertSession::most(header.kind).is_some() => {
                    let before = (session.next - session.passed, session.duplicates);
                    let taken = session.take(header, payload, services);
                    let stored = session.next - session.passed - before.0;
                    let dropped = session.duplicates - before.1;
                    self.meter.samples.fetch_add(stored, Ordering::Relaxed);
                    self.meter.duplicates.fetch_add(dropped, Ordering::Relaxed);
                    if let Err(hold) = taken {
                        self.wanted = end;
                        return stop(hold).map(|stop| (used, Some(stop)));
                    }
                }
                _ => {
                    let stop = self.take_frame(header, payload, services)?;
                    if stop.is_some() {
                        return Ok((used + end, stop));
                    }
                }
            }
            used += end;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Whether a complete sample waits for room.
    fn has_waiting_sample(&self) -> bool {
        match &self.phase {
            Phase::Producing { session, stream, .. } => session.is_complete(stream),
            _ => false,
        }
    }

    /// Uses bytes: how many, and what keeps it from using more that are there.
    fn consume(
        &mut self,
        bytes: &[u8],
        services: &Services,
    ) -> Result<(usize, Option<Outcome>), Fault> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if let Phase::Producing { session, stream, .. } = &mut self.phase
                && session.in_frame()
            {
                let before = (session.next, session.duplicates);
                let fed = session.feed(stream, rest);
                let (stored, dropped) = (session.next - before.0, session.duplicates - before.1);
                self.meter.samples.fetch_add(stored, Ordering::Relaxed);
                self.meter.duplicates.fetch_add(dropped, Ordering::Relaxed);
                used += fed.used;
                if let Some(obstacle) = fed.obstacle {
                    return Ok((used, Some(obstructed(obstacle))));
                }
                if session.in_frame() {
                    return Ok((used, None));
                }
                continue;
            }
            let (step, stop) = match &self.phase {
                Phase::Preface => (self.read_preface(rest)?, None),
                Phase::Leaving => (rest.len(), None),
                _ => self.read_frame(rest, services)?,
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
                self.out.write(|out| out.extend_from_slice(&preface(VERSION)));
                self.phase = Phase::Hello;
                Ok(PREFACE_BYTES)
            }
            Some(got) => Err(WireError::Version { got }),
        }
    }

    /// Reads one frame that is no samples, or the head of one that is.
    fn read_frame(
        &mut self,
        bytes: &[u8],
        services: &Services,
    ) -> Result<(usize, Option<Outcome>), Fault> {
        let Some(header) = Header::read(bytes)? else { return Ok((0, None)) };
        let body = &bytes[HEADER_BYTES..];
        if let (Phase::Producing { session, stream, .. }, kind::DATA) =
            (&mut self.phase, header.kind)
        {
            let Some(head) = body.get(..DATA_BYTES) else { return Ok((0, None)) };
            session.begin(DataHead::read(header, head, stream.spec().nbytes())?)?;
            return Ok((HEADER_BYTES + DATA_BYTES, None));
        }
        let limit = match self.phase {
            // A spec may be long; a stranger's first word is not.
            Phase::Challenged { .. } => handshake::MAX_PAYLOAD,
            _ => frame::MAX_CONTROL,
        };
        check_len(header, limit)?;
        let Some(payload) = body.get(..header.len as usize) else { return Ok((0, None)) };
        let used = HEADER_BYTES + payload.len();
        let stop = self.take_frame(header, payload, services)?;
        Ok((used, stop))
    }

    fn take_frame(
        &mut self,
        header: Header,
        payload: &[u8],
        services: &Services,
    ) -> Result<Option<Outcome>, WireError> {
        let token = services.shared.options.token.as_ref();
        match (&mut self.phase, header.kind) {
            (Phase::Hello, kind::HELLO) => {
                let hello = Hello::read(payload)?;
                let Ok(server) = crate::auth::random() else {
                    return Ok(Some(Outcome::Ended(Ending::Gone)));
                };
                let wants_proof = token.is_some();
                self.out.write(|out| Challenge { nonce: server, wants_proof }.write(out));
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
                    Control::Report { samples, waited } => {
                        let Some(place) = &self.place else {
                            let expected = "REPORT from a client that has the ring's memory only";
                            return Err(WireError::Unexpected { expected, got: header.kind });
                        };
                        let waited = Duration::from_nanos(waited);
                        self.meter.samples.store(samples, Ordering::Relaxed);
                        self.meter.set_blocked_time(waited);
                        let before = std::mem::replace(&mut self.waited, waited);
                        place.stream.note_wait(waited.saturating_sub(before));
                    }
                    Control::Ping(number) => {
                        self.out.write(|out| Control::Pong(number).write(out));
                    }
                    Control::Goodbye { .. } => {
                        return Ok(Some(Outcome::Ended(Ending::Goodbye)));
                    }
                    _ => {}
                }
            }
            (phase, got) => {
                let expected = match phase {
                    Phase::Requesting(_) => "REQUEST, PING, PONG or GOODBYE",
                    Phase::Inserting { .. } => "a frame of an insert, PING, PONG or GOODBYE",
                    Phase::Weights(_) => "a frame about weights, PING, PONG or GOODBYE",
                    _ => "DATA, PING, PONG or GOODBYE",
                };
                return Err(WireError::Unexpected { expected, got });
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

    /// Lets a client stay. Those of its samples or operations before `next` are acknowledged.
    pub(crate) fn begin(&mut self, phase: Phase, next: u64) {
        (self.phase, self.acknowledged, self.deadline) = (phase, next, None);
    }

    /// Whether it is about weights.
    pub(crate) fn is_of_weights(&self) -> bool {
        matches!(self.phase, Phase::Weights(_))
    }

    /// Whether it waits for a place for what it publishes.
    pub(crate) fn waits_to_publish(&self) -> bool {
        matches!(&self.phase, Phase::Weights(session) if session.is_waiting())
    }

    /// Gives a client that asks things of tables this arena. `false` when it could not be handed over.
    pub(crate) fn share_arena(&mut self, arena: Arena) -> bool {
        let layout = [arena.bytes() as u64, 0, 0, 0];
        let handed = arena.file().is_some_and(|file| self.hand_over(0, layout, file));
        if let Phase::Requesting(session) = &mut self.phase {
            session.arena = Some(Arc::new(arena));
        }
        handed
    }

    /// Lets a client write into the ring's memory. `false` when it could not be handed over.
    pub(crate) fn share_ring(&mut self, place: Place) -> bool {
        let Some((memory, layout)) = place.stream.share() else { return false };
        let handed = self.hand_over(place.owner, layout.to_words(), memory);
        self.place = Some(place);
        handed
    }

    fn hand_over(&mut self, owner: u16, layout: [u64; 4], memory: BorrowedFd<'_>) -> bool {
        // What was said before goes first: the descriptor comes with the bytes it belongs to.
        if !self.write() || !self.out.is_empty() {
            return false;
        }
        let mut frame = Vec::new();
        Control::Memory { owner, layout }.write(&mut frame);
        // The socket is fresh, so it takes so few bytes at once or not at all.
        let sent = self.link.send_with_memory(&frame, memory);
        sent.is_ok_and(|sent| sent == frame.len())
    }

    /// Whether the client may be writing into the ring's memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.place.is_some()
    }

    /// Tells the client why it can't stay.
    pub(crate) fn refuse(&mut self, code: RefusalCode, text: &str) {
        if matches!(self.phase, Phase::Preface) {
            self.out.write(|out| out.extend_from_slice(&preface(VERSION)));
        }
        self.out.write(|out| Refused { code, text: text.to_owned() }.write(out));
        self.leave();
    }

    /// From now on everything that comes is thrown away; what is to be said is still said.
    pub(crate) fn leave(&mut self) {
        self.phase = Phase::Leaving;
        self.deadline = Some(Instant::now() + FAREWELL);
        self.input = Vec::new();
        self.choked = false;
    }

    /// Whether it waits for the client to read why it can't stay.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    fn fail(&mut self, fault: Fault) -> Outcome {
        match fault {
            // Whoever speaks another protocol would not understand the answer.
            Fault::Malformed(WireError::Magic { .. }) => {
                return Outcome::Ended(Ending::Malformed);
            }
            Fault::Malformed(error @ WireError::Version { .. }) => {
                let text = format!("the server: {error}");
                self.refuse(RefusalCode::Version, &text);
                return Outcome::Ended(Ending::Refused(RefusalCode::Version));
            }
            Fault::Malformed(error) => self.refuse(RefusalCode::Protocol, &error.to_string()),
            Fault::Refused(code, text) => {
                self.acknowledge_as(Stall::None, None);
                self.refuse(code, &text);
                return Outcome::Ended(Ending::Refused(code));
            }
        }
        Outcome::Ended(Ending::Malformed)
    }

    fn note_stall(&mut self, outcome: &Outcome) {
        let stall = match outcome {
            Outcome::Blocked(Blocked::Leased) => Stall::Leased,
            Outcome::Blocked(_) => Stall::Capacity,
            Outcome::Held { stall, .. } => *stall,
            _ => Stall::None,
        };
        self.meter.set_stall(stall);
        let blocked = stall != Stall::None;
        if blocked != self.blocked {
            self.blocked = blocked;
            self.meter.set_blocked(blocked);
            self.waiting = match &self.phase {
                Phase::Producing { stream, .. } if blocked => Some(stream.begin_wait()),
                _ => None,
            };
            if blocked {
                self.acknowledge_as(stall, None);
            }
        }
    }

    /// Queues an acknowledgement if much was stored since the last, or `drained`; `credit` is how many
    /// samples may be on their way.
    pub(crate) fn acknowledge(&mut self, credit: u64, drained: bool) {
        let (next, due) = match &self.phase {
            Phase::Producing { session, .. } => {
                (session.next, session.next - self.acknowledged >= credit / 4)
            }
            Phase::Inserting { session, .. } => (session.kept, session.is_due(self.acknowledged)),
            _ => return,
        };
        // More may be kept of what was inserted before the connection had to wait.
        let stall = if self.fills_stream() { Stall::None } else { self.meter.stall() };
        if next > self.acknowledged && (drained || due) {
            self.acknowledge_as(stall, Some(credit));
        }
    }

    /// Queues an acknowledgement that also says why nothing is stored.
    pub(crate) fn acknowledge_as(&mut self, stall: Stall, credit: Option<u64>) {
        let (next, limit) = match &mut self.phase {
            Phase::Producing { session, .. } => {
                // What is on its way stays within what was granted: a limit never falls.
                let limit = credit.map_or(0, |credit| session.next.saturating_add(credit));
                session.limit = session.limit.max(limit);
                (session.next, session.limit)
            }
            Phase::Inserting { session, .. } => {
                session.grant();
                (session.kept, session.limit)
            }
            _ => return,
        };
        self.acknowledged = next;
        self.out.write(|out| Control::Ack { next, limit, stall }.write(out));
    }

    /// Says that we are there to a client that we do not hear now, and why that is.
    pub(crate) fn reassure(&mut self, stall: Stall) {
        match self.phase {
            Phase::Requesting(_) => self.out.write(|out| Control::Ping(0).write(out)),
            _ => self.acknowledge_as(stall, None),
        }
    }

    /// Sends what is queued. `false` when the connection is broken.
    pub(crate) fn write(&mut self) -> bool {
        match self.out.send(&mut *self.link, TURN) {
            Ok(sent) => {
                self.sends_on = sent >= TURN && !self.out.is_empty();
                // Who takes large answers, however slowly, is there.
                if sent > 0 && self.choked {
                    self.last_heard = Instant::now();
                }
            }
            Err(_) => return false,
        }
        if !self.out.is_empty() {
            return true;
        }
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

    /// Whether it may be read from again because more of its answers are sent; asked once.
    pub(crate) fn is_relieved(&mut self, most_unsent: usize) -> bool {
        let enough = if self.wants_empty { 1 } else { most_unsent };
        let relieved = self.choked && !self.out.is_full(enough);
        self.choked &= !relieved;
        self.wants_empty &= !relieved;
        relieved
    }

    /// Whether it reads nothing of what it is sent, and that is too much to keep.
    pub(crate) fn is_flooded(&self, most: usize) -> bool {
        // Of who asks things of tables or is sent weights, no more is read meanwhile.
        !matches!(self.phase, Phase::Requesting(_) | Phase::Weights(_)) && self.out.unsent() > most
    }

    /// Why the connection should be closed now, if so.
    pub(crate) fn overdue(&self, now: Instant, patience: Duration) -> Option<Ending> {
        if self.has_memory() {
            return None;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(if self.is_leaving() { Ending::Gone } else { Ending::Silent });
        }
        if matches!(&self.phase, Phase::Weights(session) if session.is_stuck(now, patience)) {
            return Some(Ending::Silent);
        }
        let quiet = match &self.phase {
            Phase::Listening => true,
            Phase::Weights(session) => session.is_quiet(),
            _ => self.blocked,
        };
        (!quiet && now.duration_since(self.last_heard) > patience).then_some(Ending::Silent)
    }

    /// Gives up memory if nothing came for a while. Who sends now and then would not gain by it: memory that
    /// is given up has to be had again.
    pub(crate) fn rest(&mut self, now: Instant) {
        if self.rests || now.duration_since(self.last_heard) < REST {
            return;
        }
        self.rests = true;
        self.out.rest();
        match &mut self.phase {
            Phase::Producing { session, .. } => session.rest(),
            Phase::Inserting { session, .. } => session.rest(),
            _ => {}
        }
    }

    /// Whether the time for what it does now is over.
    pub(crate) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Starts the client's patience anew, after a time in which we did not listen.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.last_heard = now;
        if let Phase::Weights(session) = &mut self.phase {
            session.excuse(now);
        }
    }
}

/// What one of these connections asks of tables.
pub(crate) fn requesting(
    connections: &mut [Option<Connection>],
    index: usize,
) -> Option<(&mut RequestSession, &mut WriteBuffer)> {
    connections.get_mut(index)?.as_mut()?.request_session()
}

fn check_len(header: Header, limit: u32) -> Result<(), WireError> {
    if header.len > limit {
        let (limit, got) = (limit.into(), header.len.into());
        return Err(WireError::too_large("length of a frame", limit, got));
    }
    Ok(())
}

/// What a frame that is not used now keeps a connection from.
fn stop(hold: Hold) -> Result<Outcome, Fault> {
    match hold {
        Hold::Heavy => Ok(Outcome::Busy),
        Hold::Blocked { table, stall } => Ok(Outcome::Held { table, stall }),
        Hold::Malformed(error) => Err(error.into()),
        Hold::Refused(code, text) => Err(Fault::Refused(code, text)),
    }
}

fn obstructed(obstacle: Obstacle) -> Outcome {
    match obstacle {
        Obstacle::Blocked(reason) => Outcome::Blocked(reason),
        // The server is closing: what was not stored stays with the client.
        Obstacle::Closed => Outcome::Ended(Ending::Gone),
    }
}
