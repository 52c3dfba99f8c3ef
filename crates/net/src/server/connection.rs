//! One connection, from its first byte on.
//!
//! A connection is driven by its event loop, which gives it [turns](Connection::take_turn) and calls
//! [`Connection::write`] when there may be room for something. It agrees with its client on what the client wants, cuts
//! what comes into frames, and has its [`Session`] use them. It keeps no thread and, while nothing is under way, no buffer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::meter::ConnectionMeter;
use super::session::{
    Accepts, AckDue, Ending, MOST_SENT, Progress, Services, Session, Silence, Stop, Turn,
};
use super::wait_queue::{BlockedBy, Key, Verdict, Waiter};
use crate::auth::Side;
use crate::transport::Link;
use crate::wire::frame::{Control, HEADER_BYTES, Header, MAX_CONTROL, kind, short};
use crate::wire::handshake::{self, Challenge, Hello, Nonce, Open, RefusalCode, Refused};
use crate::wire::{PREFACE_BYTES, VERSION, WireError, preface, read_preface};
use crate::write_buffer::WriteBuffer;
use echoic_replay::WaitReason;

/// How much is read at once: much for one system call, and little enough to stay in the cache until it
/// is copied on.
pub(crate) const CHUNK: usize = 256 << 10;
/// How much memory a connection may keep for what it could not use at once.
const KEPT: usize = 4096;
/// From how many bytes on the rest of a frame is read to where its start is, not to the shared buffer.
const LARGE: usize = 16 << 10;
/// What a buffer for [`Connection::take_turn`] must hold: a frame that is not complete, and a chunk.
pub(crate) const BUFFER: usize = LARGE + CHUNK;

/// How long a client may take to identify itself.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After how much silence a connection keeps no memory that it does not need.
const REST: Duration = Duration::from_secs(1);
/// How long a refused client may take to read why.
const FAREWELL: Duration = Duration::from_secs(2);

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
    Established,
    /// Was refused with a reason; its bytes are discarded until it disconnects.
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
    /// Its place among those of its event loop.
    pub(crate) index: usize,
    pub(crate) link: Box<dyn Link>,
    pub(crate) meter: Arc<ConnectionMeter>,
    phase: Phase,
    /// There once the client is let in, and then until it leaves.
    session: Option<Box<dyn Session>>,
    /// Bytes that came and could not be used yet.
    input: Vec<u8>,
    /// How many bytes the frame has that they begin, once that is known.
    wanted: usize,
    pub(crate) out: WriteBuffer,
    /// What it waits for, and why. Nothing is read meanwhile.
    pub(crate) held: Option<(Key, Option<WaitReason>)>,
    /// It goes on when less than this is unsent.
    choked: Option<usize>,
    /// It is to be written to again though nothing says that it can be: a turn was used up.
    pub(crate) sends_on: bool,
    /// There may be something to read.
    pub(crate) is_readable: bool,
    deadline: Option<Instant>,
    last_heard: Instant,
    /// Gave up memory, and heard nothing since.
    rests: bool,
    /// Its samples or items wait for room.
    is_blocked: bool,
    /// We said that nothing more will come.
    finished: bool,
}

impl Connection {
    pub(crate) fn new(id: u64, link: Box<dyn Link>) -> Self {
        let meter = Arc::new(ConnectionMeter::new(link.peer()));
        let now = Instant::now();
        Self {
            id,
            index: 0,
            link,
            meter,
            phase: Phase::Preface,
            session: None,
            input: Vec::new(),
            wanted: 0,
            out: WriteBuffer::default(),
            held: None,
            choked: None,
            sends_on: false,
            is_readable: true,
            deadline: Some(now + HANDSHAKE),
            last_heard: now,
            rests: false,
            is_blocked: false,
            finished: false,
        }
    }

    /// What it does for its client, once that is let in and before it leaves.
    pub(crate) fn session(&self) -> Option<&dyn Session> {
        self.session.as_deref().map(|session| session as &dyn Session)
    }

    /// Has its session do something.
    pub(crate) fn with_session<T>(
        &mut self,
        services: &mut Services<'_>,
        act: impl FnOnce(&mut dyn Session, &mut Turn<'_>) -> T,
    ) -> Option<T> {
        let Self { index, link, out, meter, input, session, .. } = self;
        let session = session.as_deref_mut()?;
        let (index, link) = (*index, &mut **link);
        let Services { waits, shared } = services;
        Some(act(session, &mut Turn { index, link, out, meter, input, waits, shared }))
    }

    /// The producer that it serves, and how far that is.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.session()?.progress()
    }

    /// Has its session do what it can without anything more being read.
    pub(crate) fn resume(&mut self, services: &mut Services<'_>) -> Result<(), Stop> {
        self.with_session(services, |session, turn| session.resume(turn)).unwrap_or(Ok(()))
    }

    /// Does what can be done, then reads and uses what there is, up to a chunk. What keeps it from more, if something does;
    /// for that it waits from here on.
    pub(crate) fn take_turn(
        &mut self,
        services: &mut Services<'_>,
        buffer: &mut [u8],
    ) -> Result<(), Stop> {
        let mut turn = self.go_on(services, buffer);
        if let Err(Stop::Wait(key, _)) = turn
            && services.waits.park(key, self.index, services.shared)
        {
            turn = self.go_on(services, buffer);
        }
        if let Err(Stop::Heavy) = turn {
            let (input, end) = (std::mem::take(&mut self.input), std::mem::take(&mut self.wanted));
            self.with_session(services, |session, turn| session.work(input, end, turn));
            turn = Err(Stop::Wait(Key::Pool, None));
        }
        match turn {
            Ok(()) | Err(Stop::Again) => {}
            Err(Stop::Opened) => return turn,
            Err(Stop::Wait(key, stall)) => {
                self.held = Some((key, stall));
                services.waits.park(key, self.index, services.shared);
                services.waits.hold(key, stall);
            }
            Err(Stop::Unsent(most)) => self.choked = Some(most),
            Err(stop) => turn = Err(Stop::Ended(self.fail(stop, services))),
        }
        self.note_stall(services);
        if matches!(turn, Ok(()) | Err(Stop::Again | Stop::Wait(..))) {
            // What is stored is stored: a client that flushes need not wait for the rest.
            let is_over = !self.is_readable || self.held.is_some();
            self.acknowledge(if is_over { AckDue::Any } else { AckDue::Much }, services);
        }
        turn
    }

    fn go_on(&mut self, services: &mut Services<'_>, buffer: &mut [u8]) -> Result<(), Stop> {
        self.use_input(services, buffer)?;
        // There is no other turn until something happens, and what was used last may have left something to wait for.
        if self.is_readable { Ok(()) } else { self.resume(services) }
    }

    fn use_input(&mut self, services: &mut Services<'_>, buffer: &mut [u8]) -> Result<(), Stop> {
        self.resume(services)?;
        if let Some((key, stall)) = self.held {
            return Err(Stop::Wait(key, stall));
        }
        if self.input.len() >= self.wanted.max(1) {
            let mut input = std::mem::take(&mut self.input);
            let (used, stop) = self.consume(&input, services);
            input.drain(..used);
            self.input = input;
            stop?;
        }
        if !self.is_readable {
            return Ok(());
        }
        let (chunk, filled) = (services.shared.chunk(), self.input.len());
        if filled >= LARGE {
            let more = self.wanted.saturating_sub(filled).clamp(1, chunk);
            self.input.resize(filled + more, 0);
            let read = self.link.read(&mut self.input[filled..]);
            let read = self.note_read(read.map(|read| (read, read)));
            self.input.truncate(filled + read.as_ref().map_or(0, |fresh| *fresh));
            return read.map(|_| ());
        }
        let mut direct = None;
        if filled == 0 {
            let read = |session: &mut dyn Session, turn: &mut Turn<'_>| {
                session.read_direct(&mut buffer[..chunk], turn)
            };
            direct = self.with_session(services, read).unwrap_or(Ok(None))?;
        }
        let read = direct.unwrap_or_else(|| {
            buffer[..filled].copy_from_slice(&self.input);
            self.link.read(&mut buffer[filled..filled + chunk]).map(|read| (read, read))
        });
        let fresh = self.note_read(read)?;
        if !self.is_readable {
            // While nothing is under way, a connection keeps no memory.
            self.input.shrink_to(KEPT);
            return Ok(());
        }
        self.input.clear();
        let bytes = &buffer[..filled + fresh];
        let (used, stop) = self.consume(bytes, services);
        if used < bytes.len() {
            self.input.reserve(self.wanted.min(chunk));
            self.input.extend_from_slice(&bytes[used..]);
        }
        stop
    }

    /// Looks at what a read came to, in all and of that in the buffer: how much there is to be used.
    fn note_read(&mut self, read: io::Result<(usize, usize)>) -> Result<usize, Stop> {
        match read {
            Ok((0, _)) => Err(Stop::Ended(Ending::Gone)),
            Ok((read, fresh)) => {
                self.meter.read(read);
                self.last_heard = Instant::now();
                self.rests = false;
                Ok(fresh)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                Ok(0)
            }
            Err(_) => Err(Stop::Ended(Ending::Gone)),
        }
    }

    /// Uses bytes: how many, and what keeps it from using more that are there.
    fn consume(&mut self, bytes: &[u8], services: &mut Services<'_>) -> (usize, Result<(), Stop>) {
        let (mut used, most_unsent) = (0, services.shared.credit_bytes());
        self.wanted = 0;
        loop {
            if matches!(self.phase, Phase::Leaving) {
                return (bytes.len(), Ok(()));
            }
            if self.out.is_full(most_unsent) {
                return (used, Err(Stop::Unsent(most_unsent)));
            }
            let (step, stop) = self.use_next(&bytes[used..], services);
            used += step;
            if step == 0 || stop.is_err() {
                return (used, stop);
            }
        }
    }

    /// Uses the next frame, or what there is of one that comes in parts: how many bytes, and none if more have to come.
    fn use_next(&mut self, bytes: &[u8], services: &mut Services<'_>) -> (usize, Result<(), Stop>) {
        let part = |session: &mut dyn Session, turn: &mut Turn<'_>| {
            session.is_inside_frame().then(|| session.part(bytes, turn))
        };
        if let Some(used) = self.with_session(services, part).flatten() {
            return used;
        }
        let (end, used) = match self.use_frame(bytes, services) {
            Ok(frame) => frame,
            Err(stop) => return (0, Err(stop)),
        };
        match used {
            Ok(()) | Err(Stop::Opened | Stop::Ended(_)) => (end, used),
            Err(_) => {
                self.wanted = end;
                (0, used)
            }
        }
    }

    /// Uses a frame, or the start of one that comes in parts: where that ends, and what came of it.
    fn use_frame(
        &mut self,
        bytes: &[u8],
        services: &mut Services<'_>,
    ) -> Result<(usize, Result<(), Stop>), Stop> {
        let missing = Ok((0, Ok(())));
        if matches!(self.phase, Phase::Preface) {
            let Some(version) = read_preface(bytes)? else { return missing };
            if version != VERSION {
                return Err(WireError::Version { got: version }.into());
            }
            self.out.write(|out| out.extend_from_slice(&preface(VERSION)));
            self.phase = Phase::Hello;
            return Ok((PREFACE_BYTES, Ok(())));
        }
        let Some(header) = Header::read(bytes)? else { return missing };
        let is_common = matches!(header.kind, kind::PING | kind::PONG | kind::GOODBYE);
        let session = self.session().filter(|_| !is_common);
        let accepts = match (session, &self.phase) {
            (Some(session), _) => session
                .accepts(header.kind)
                .map_err(|expected| WireError::Unexpected { expected, got: header.kind })?,
            // A spec may be long; a stranger's first word is not.
            (None, Phase::Challenged { .. }) => Accepts::Whole(handshake::MAX_PAYLOAD),
            (None, _) => Accepts::Whole(MAX_CONTROL),
        };
        let len = match accepts {
            Accepts::Start(len) => len,
            Accepts::Whole(limit) => {
                header.check_most(limit)?;
                header.len
            }
        };
        let end = HEADER_BYTES + len as usize;
        let Some(payload) = bytes.get(HEADER_BYTES..end) else {
            self.wanted = end;
            return missing;
        };
        let used = match session {
            Some(_) => self
                .with_session(services, |session, turn| session.frame(header, payload, turn))
                .unwrap_or(Ok(())),
            None => self.use_common(header, payload, services),
        };
        Ok((end, used))
    }

    /// Uses a frame of the handshake, or one that any client may send.
    fn use_common(
        &mut self,
        header: Header,
        payload: &[u8],
        services: &Services<'_>,
    ) -> Result<(), Stop> {
        let token = services.shared.options.token.as_ref();
        match (&self.phase, header.kind) {
            (Phase::Hello, kind::HELLO) => {
                let hello = Hello::read(payload)?;
                let Ok(server) = crate::auth::random() else {
                    return Err(Stop::Ended(Ending::Gone));
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
                if token.is_some_and(|t| !t.verify(Side::Client, &client, &server, signed, &proof))
                {
                    let text = "the token is missing or wrong".to_owned();
                    return Err(Stop::Refused(RefusalCode::Auth, text));
                }
                let open = Open::read(payload)?;
                self.phase = Phase::Deciding(Box::new(Decision { open, client, server }));
                return Err(Stop::Opened);
            }
            (Phase::Hello | Phase::Challenged { .. }, got) => {
                let expected = "the next step of the handshake";
                return Err(WireError::Unexpected { expected, got }.into());
            }
            _ => match Control::read(header, payload)? {
                Control::Ping(number) => self.out.pong(number),
                Control::Goodbye { .. } => return Err(Stop::Ended(Ending::Goodbye)),
                _ => {}
            },
        }
        Ok(())
    }

    /// What the client wants, once [`Stop::Opened`] said that it wants something.
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

    /// Lets a client stay.
    pub(crate) fn begin(&mut self, session: Box<dyn Session>) {
        (self.phase, self.session, self.deadline) = (Phase::Established, Some(session), None);
    }

    /// Tries a request of its client again.
    pub(crate) fn attempt(
        &mut self,
        waiter: &mut Waiter,
        ahead: Option<BlockedBy>,
        services: &mut Services<'_>,
    ) -> Verdict {
        let attempt =
            |session: &mut dyn Session, turn: &mut Turn<'_>| session.attempt(waiter, ahead, turn);
        let verdict = self.with_session(services, attempt).unwrap_or(Verdict::Done);
        if let Verdict::PassedOver = verdict {
            // Its session says so when it has another turn.
            self.choked.get_or_insert(services.shared.credit_bytes());
        }
        verdict
    }

    /// Whether the client may be writing into memory of ours.
    pub(crate) fn has_memory(&self) -> bool {
        self.session().is_some_and(|session| session.has_memory())
    }

    /// Tells the client why it can't stay.
    pub(crate) fn refuse(&mut self, code: RefusalCode, text: &str) {
        if matches!(self.phase, Phase::Preface) {
            self.out.write(|out| out.extend_from_slice(&preface(VERSION)));
        }
        self.out.write(|out| Refused { code, text: short(text) }.write(out));
        self.leave();
    }

    /// From now on everything that comes is thrown away; what is to be said is still said.
    pub(crate) fn leave(&mut self) {
        self.phase = Phase::Leaving;
        self.deadline = Some(Instant::now() + FAREWELL);
        self.input = Vec::new();
        (self.held, self.choked) = (None, None);
        self.session.take_if(|session| !session.has_memory());
    }

    /// Whether it waits for the client to read why it can't stay.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    fn fail(&mut self, stop: Stop, services: &mut Services<'_>) -> Ending {
        match stop {
            Stop::Ended(ending) => ending,
            // Whoever speaks another protocol would not understand the answer.
            Stop::Malformed(WireError::Magic { .. }) => Ending::Malformed,
            Stop::Malformed(error @ WireError::Version { .. }) => {
                self.refuse(RefusalCode::Version, &format!("the server: {error}"));
                Ending::Refused(RefusalCode::Version)
            }
            Stop::Malformed(error) => {
                self.refuse(RefusalCode::Protocol, &error.to_string());
                Ending::Malformed
            }
            Stop::Refused(code, text) => {
                self.meter.set_stall(None);
                self.acknowledge(AckDue::Always, services);
                self.refuse(code, &text);
                Ending::Refused(code)
            }
            _ => Ending::Gone,
        }
    }

    /// Takes note of whether it waits for room, and says so when that begins.
    fn note_stall(&mut self, services: &mut Services<'_>) {
        let stall = self.held.and_then(|(_, stall)| stall);
        self.meter.set_stall(stall);
        let is_blocked = stall.is_some();
        if is_blocked != self.is_blocked {
            self.is_blocked = is_blocked;
            self.meter.set_blocked(is_blocked);
            if is_blocked {
                self.acknowledge(AckDue::Always, services);
            }
        }
    }

    /// Says what is stored, if that is due, and what it waits for.
    pub(crate) fn acknowledge(&mut self, due: AckDue, services: &mut Services<'_>) {
        let stall = self.meter.stall();
        self.with_session(services, |session, turn| session.acknowledge(due, stall, turn));
    }

    /// Says that we are there, and what it waits for, to a client that we do not hear now.
    pub(crate) fn reassure(&mut self, services: &mut Services<'_>) {
        let stall = self.held.and_then(|(_, stall)| stall);
        self.with_session(services, |session, turn| session.reassure(stall, turn));
    }

    /// Says goodbye, after what was stored.
    pub(crate) fn take_leave(&mut self, services: &mut Services<'_>) {
        self.meter.set_stall(None);
        self.acknowledge(AckDue::Always, services);
        let text = String::new();
        self.out.write(|out| Control::Goodbye { text }.write(out));
        self.leave();
    }

    /// Sends what is queued. `false` when the connection is broken.
    pub(crate) fn write(&mut self) -> bool {
        match self.out.send(&mut *self.link, MOST_SENT) {
            Ok(sent) => {
                self.sends_on = sent >= MOST_SENT && !self.out.is_empty();
                // A client that reads large answers, however slowly, is alive.
                if sent > 0 && self.choked.is_some() {
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

    /// Whether it may go on because more of its answers are sent; asked once.
    pub(crate) fn is_relieved(&mut self) -> bool {
        let out = &self.out;
        self.choked.take_if(|most| !out.is_full(*most)).is_some()
    }

    /// Why the connection should be closed now, if so.
    pub(crate) fn overdue(&self, now: Instant, patience: Duration) -> Option<Ending> {
        if self.has_memory() {
            return None;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(if self.is_leaving() { Ending::Gone } else { Ending::Silent });
        }
        let silence = self.session().map(|session| session.silence(now, patience));
        let is_gone = match silence {
            Some(Silence::IsInTheWay) => true,
            Some(Silence::IsFine) => false,
            _ => !self.is_blocked && now.duration_since(self.last_heard) > patience,
        };
        is_gone.then_some(Ending::Silent)
    }

    /// Gives up memory if nothing came for a while. A client that sends now and then would not gain by it: memory that
    /// is given up has to be had again.
    pub(crate) fn rest(&mut self, now: Instant) {
        if self.rests || now.duration_since(self.last_heard) < REST {
            return;
        }
        self.rests = true;
        self.out.rest();
        if let Some(session) = &mut self.session {
            session.rest();
        }
    }

    /// Whether the time for what it does now is over.
    pub(crate) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Starts the client's patience again, after a time in which we did not listen.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.last_heard = now;
        if let Some(session) = &mut self.session {
            session.excuse(now);
        }
    }
}
