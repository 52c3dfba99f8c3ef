//! The thread that keeps a client's connection, and carries over it what the client has.
//!
//! It sleeps until there is something to carry, and then carries what there is with one system call. When
//! the connection breaks it comes back, and goes on where the server says. What it carries is a [`Pipeline`]: samples,
//! items, requests and their answers, or weights.
//!
//! A connection that stands is in a [`Driver`], which the thread may lend to threads that wait for answers.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, error, warn};

use super::Failure;
use super::link::{ClientHandshake, LinkError, timespec};
use super::reconnector::{ConnectionState, Patience, Reconnector, WakeReceiver, on_death};
use crate::address::Address;
use crate::transport::Link;
use crate::wire::frame::{Control, HEADER_BYTES, Header, MAX_CONTROL, kind};
use crate::wire::handshake::{Open, Refused, Welcome};
use crate::write_buffer::WriteBuffer;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
/// How much of that behind a payload that is read to where it belongs: what follows it is most often another one.
const BEHIND_PAYLOAD: usize = 4 << 10;

/// How long a server that is left for another place may take to acknowledge what it was sent.
const FAREWELL: Duration = Duration::from_secs(3);

/// A server that still says something so long after a connection has come to stand serves it, though nothing may be
/// acknowledged: a table may keep its clients waiting for hours.
const FIRM: Duration = Duration::from_secs(1);

/// What goes over a connection.
pub(super) trait Pipeline: Send + 'static {
    /// Whether file descriptors may come over the connection.
    const TAKES_FILES: bool = false;

    /// How to introduce ourselves to the server.
    fn open(&mut self, address: &Address) -> Open;

    /// A connection stands: whatever was on its way over the last one is sent again from where the
    /// server says.
    fn resume(&mut self, welcome: Welcome) -> Result<(), LinkError>;

    /// Takes what the server hands over with the connection, before anything is sent.
    fn receive(&mut self, _handshake: &mut ClientHandshake) -> Result<(), LinkError> {
        Ok(())
    }

    /// Whether everything is delivered, now that nothing more is taken.
    fn is_delivered(&self) -> bool;

    /// How much the server has acknowledged or answered in the client's life.
    fn acknowledged(&self) -> u64;

    /// Whether the server has answered to all that it was sent, as far as it would be sent again elsewhere.
    fn is_settled(&self) -> bool {
        true
    }

    /// Whether there is something to be sent now.
    fn is_due(&mut self, now: Instant) -> bool;

    /// From now on, whoever brings something rings, if that makes something due; when to look again in
    /// any case.
    fn await_ring(&mut self, now: Instant) -> Option<Instant>;

    /// Nobody need ring any more.
    fn stop_ringing(&mut self) {}

    /// Writes the next frames: one load, to an empty buffer.
    fn fill(&mut self, out: &mut WriteBuffer);

    /// Whether rows are to follow what `fill` wrote, before anything else.
    fn is_inside_frame(&self) -> bool {
        false
    }

    /// These rows, where they are.
    fn rows<'a>(&'a self, _pieces: &mut Vec<IoSlice<'a>>) {}

    /// One system call took this many bytes, and this many of them were of rows.
    fn wrote(&mut self, _bytes: usize, _of_rows: usize, _now: Instant) {}

    /// The largest payload of a frame that the server may send, beside those that every pipeline has.
    fn limit(&self, _kind: u8) -> Option<u32> {
        None
    }

    /// Uses a frame of the server, unless it is one that every pipeline has.
    fn take(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError>;

    /// Takes a file descriptor, which came with a frame or before it.
    fn take_file(&mut self, _file: OwnedFd) -> Result<(), LinkError> {
        Ok(())
    }

    /// Whether the payload of this frame is to be read where [`Pipeline::place`] says.
    fn begin_large(&mut self, _header: Header) -> bool {
        false
    }

    /// Where the next bytes of a large payload belong; nothing when none is awaited.
    fn place(&mut self) -> &mut [u8] {
        &mut []
    }

    /// So many bytes were read to there.
    fn placed(&mut self, _bytes: usize) -> Result<(), LinkError> {
        Ok(())
    }
}

/// See the [module](self).
struct IoThread<C> {
    reconnector: Arc<Reconnector>,
    wakes: WakeReceiver,
    outbound: C,
}

/// A connection that stands and what goes over it, for one thread at a time.
pub(super) struct Driver<C> {
    io: IoThread<C>,
    established: Established,
    /// How it ended.
    ended: Option<Result<(), LinkError>>,
}

/// A connection that stands.
struct Established {
    link: Box<dyn Link>,
    input: Vec<u8>,
    buffer: Vec<u8>,
    /// Frames that are being sent, and those that every pipeline has, to be sent between others.
    out: WriteBuffer,
    control: Vec<u8>,
    heartbeat: Duration,
    /// Since when it stands, and how much was acknowledged before.
    since: Instant,
    acknowledged: u64,
    /// What the server refused before may be refused again.
    in_doubt: bool,
    last_heard: Instant,
    last_spoke: Instant,
    /// The socket took no more.
    jammed: bool,
    /// The server said that it is closing: nothing new goes out, and its last word is awaited.
    dismissed: bool,
    /// We said that nothing more will come.
    finished: bool,
    /// Where this is, and how often the server had moved when it was reached here.
    address: Address,
    moves: u64,
    /// It is somewhere else now: until when what was sent here may be acknowledged here.
    leaving: Option<Instant>,
}

/// How it ends for a client that did not deliver all: worth a word if it was not asked to end.
fn given_up(reconnector: &Reconnector, failure: Failure) -> ConnectionState {
    let Failure { address, error, .. } = &failure;
    if reconnector.quits().is_some() {
        debug!(%address, %error, "left a server");
    } else {
        error!(%address, %error, "gave up on a server");
    }
    ConnectionState::Failed(failure)
}

impl<C: Pipeline> IoThread<C> {
    /// Carries until the client is closed or gives up; returns what was not delivered. `lend` is called whenever the
    /// thread may let others drive.
    fn run(
        mut self,
        mut lend: impl FnMut(Box<Driver<C>>) -> Box<Driver<C>>,
        end: impl FnOnce(&mut C),
    ) -> C {
        let mut patience = Patience::default();
        let state = loop {
            let reconnector = Arc::clone(&self.reconnector);
            let (outbound, wakes) = (&mut self.outbound, &self.wakes);
            let connected = reconnector.connect(wakes, &mut patience, |deadline| {
                if reconnector.is_closing() && outbound.is_delivered() {
                    return Ok(None);
                }
                attempt(&reconnector, outbound, deadline).map(Some)
            });
            let established = match connected {
                Ok(Some(established)) => established,
                Ok(None) => break ConnectionState::Closed,
                Err(failure) => {
                    break given_up(&reconnector, failure);
                }
            };
            debug!(address = %established.address, "connected");
            let mut driver = Box::new(Driver { io: self, established, ended: None });
            driver.start();
            let ended = loop {
                if let Some(ended) = driver.ended.take() {
                    break ended;
                }
                driver = lend(driver);
                driver.drive(None);
            };
            let established;
            Driver { io: self, established, .. } = *driver;
            match ended {
                Ok(()) => break ConnectionState::Closed,
                Err(error) if reconnector.quits().is_none() && reconnector.bears(&error) => {
                    if established.leaving.is_some() {
                        debug!(address = %established.address, to = %reconnector.address(), "moved");
                    } else {
                        warn!(address = %established.address, %error, "lost the connection");
                    }
                    reconnector.note_trouble(&error);
                    reconnector.set_state(ConnectionState::Away);
                    let served =
                        established.leaving.is_some() || established.has_served(&self.outbound);
                    if served {
                        patience = Patience::default();
                    }
                    // What is sent again may end the same way: not as fast as connections can be made.
                    let in_vain = reconnector.returns() > 0 && !served;
                    if (in_vain || !error.is_temporary())
                        && let Err(failure) = reconnector.rest(&self.wakes, &mut patience, error)
                    {
                        break given_up(&reconnector, failure);
                    }
                }
                Err(error) => {
                    let address = established.address;
                    break given_up(&reconnector, Failure { address, error, attempts: 0 });
                }
            }
        };
        end(&mut self.outbound);
        self.reconnector.set_state(state);
        self.outbound
    }

    /// Uses what came with the handshake.
    fn start(&mut self, established: &mut Established) -> Result<bool, LinkError> {
        established.use_input(&mut self.outbound)?;
        // Some may lie in the link already, where no poll sees it.
        established.read(&mut self.outbound)?;
        self.advance(established)
    }

    /// Does what there is to do now. Whether everything is delivered and the client is closed, which ends the connection.
    fn advance(&mut self, established: &mut Established) -> Result<bool, LinkError> {
        let now = Instant::now();
        established.look_after(&self.outbound, now)?;
        if established.in_doubt && self.outbound.acknowledged() > established.acknowledged {
            established.in_doubt = false;
            self.reconnector.note_served();
        }
        let done = self.reconnector.is_closing() && self.outbound.is_delivered();
        if !done && let Some(error) = self.reconnector.quits() {
            return Err(error);
        }
        self.leave_if_moved(established, now)?;
        while !established.jammed && established.has_to_write(&mut self.outbound, now) {
            established.write(&mut self.outbound)?;
        }
        let done = self.reconnector.is_closing() && self.outbound.is_delivered();
        let ends = done && !established.is_loaded(&self.outbound) && !established.dismissed;
        if ends {
            self.say_goodbye(established);
        }
        Ok(ends)
    }

    /// Leaves a server that is somewhere else now, when it has acknowledged what it was sent: else it could have what
    /// is sent again there.
    fn leave_if_moved(&self, established: &mut Established, now: Instant) -> Result<(), LinkError> {
        if self.reconnector.moves() == established.moves {
            return Ok(());
        }
        let until = *established.leaving.get_or_insert(now + FAREWELL);
        let settled = !established.is_loaded(&self.outbound) && self.outbound.is_settled();
        if settled || now >= until {
            return Err(LinkError::Lost("the server has moved".into()));
        }
        Ok(())
    }

    /// Ends a connection over which everything was delivered.
    fn say_goodbye(&mut self, established: &mut Established) {
        Control::Goodbye { text: String::new() }.write(&mut established.control);
        established.finished = true;
        // Everything is stored, so it does not matter whether the server receives it.
        let _ = established.write(&mut self.outbound);
        let _ = established.link.finish();
    }

    /// Sleeps until there is something to do, and reads what came.
    fn sleep(
        &mut self,
        established: &mut Established,
        until: Option<Instant>,
    ) -> Result<(), LinkError> {
        let now = Instant::now();
        let silent = established.last_heard + established.heartbeat * 3;
        let mut until = until.map_or(silent, |until| until.min(silent));
        if !established.jammed {
            until = until.min(established.last_spoke + established.heartbeat);
        }
        if let Some(leaving) = established.leaving {
            until = until.min(leaving);
        }
        if established.takes_more() && !established.jammed {
            // Who brings something rings from here on; what was brought before is found by the look
            // behind it.
            let look = self.outbound.await_ring(now);
            if established.has_to_write(&mut self.outbound, now) {
                self.outbound.stop_ringing();
                return Ok(());
            }
            until = look.map_or(until, |look| look.min(until));
        }
        let timeout = until.saturating_duration_since(now);
        let mut flags = PollFlags::IN;
        if established.jammed || established.link.has_unflushed() {
            flags |= PollFlags::OUT;
        }
        let link = established.link.as_fd();
        let mut fds =
            [PollFd::from_borrowed_fd(link, flags), PollFd::new(&self.wakes, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&timespec(timeout)));
        let (at_link, at_bell) = (fds[0].revents(), fds[1].revents());
        self.outbound.stop_ringing();
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if !at_bell.is_empty() {
            self.wakes.drain();
        }
        if at_link.contains(PollFlags::OUT) {
            established.jammed = false;
            match established.link.flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                _ => {}
            }
        }
        if at_link.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            established.read(&mut self.outbound)?;
        }
        Ok(())
    }
}

impl<C: Pipeline> Driver<C> {
    pub(super) fn outbound(&self) -> &C {
        &self.io.outbound
    }

    /// Whether there is more to do with the connection than to wait for answers.
    pub(super) fn is_busy(&self) -> bool {
        let Self { io: IoThread { reconnector, outbound, .. }, established, .. } = self;
        established.is_loaded(outbound)
            || !established.control.is_empty()
            || established.link.has_unflushed()
            || !established.takes_more()
            || reconnector.is_closing()
            || reconnector.moves() != established.moves
    }

    fn start(&mut self) {
        let started = self.io.start(&mut self.established);
        self.note(started);
    }

    /// Sleeps until `until` or until there is something to do, unless there is already, and does it. Whether the
    /// connection goes on; if not, the I/O thread has to see to it.
    pub(super) fn drive(&mut self, until: Option<Instant>) -> bool {
        if self.ended.is_none() {
            let slept = self.io.sleep(&mut self.established, until);
            let advanced = slept.and_then(|()| self.io.advance(&mut self.established));
            self.note(advanced);
        }
        self.ended.is_none()
    }

    fn note(&mut self, advanced: Result<bool, LinkError>) {
        self.ended = match advanced {
            Ok(false) => None,
            ended => Some(ended.map(drop)),
        };
    }

    /// Ends the connection: what is on its way goes over the next one.
    pub(super) fn fail(&mut self, why: &str) {
        self.ended = Some(Err(LinkError::Lost(why.into())));
    }
}

/// Begins the thread. `lend` is called whenever it may let others drive, and returns when it is to drive again. `end` is
/// called when nothing more will be carried, before any thread is notified.
pub(super) fn spawn<C: Pipeline>(
    reconnector: &Arc<Reconnector>,
    wakes: WakeReceiver,
    outbound: C,
    lend: impl FnMut(Box<Driver<C>>) -> Box<Driver<C>> + Send + 'static,
    end: impl FnOnce(&mut C) + Send + 'static,
) -> io::Result<JoinHandle<C>> {
    let io_thread = IoThread { reconnector: Arc::clone(reconnector), wakes, outbound };
    let mourner = Arc::clone(reconnector);
    std::thread::Builder::new().name("echoic-io".into()).spawn(move || {
        let _mourned = on_death(&mourner);
        io_thread.run(lend, end)
    })
}

/// Connects once.
fn attempt<C: Pipeline>(
    reconnector: &Reconnector,
    outbound: &mut C,
    deadline: Instant,
) -> Result<Established, LinkError> {
    let token = reconnector.options.token.as_ref();
    let (moves, dial) = (reconnector.moves(), reconnector.dial());
    let address = dial.address();
    let open = outbound.open(&address);
    let (mut handshake, welcome) = ClientHandshake::new(&*dial, token, open, deadline)?;
    let heartbeat = Duration::from_millis(welcome.heartbeat_ms.clamp(10, 600_000).into());
    let acknowledged = outbound.acknowledged();
    outbound.resume(welcome)?;
    outbound.receive(&mut handshake)?;
    reconnector.note_reached(moves);
    let now = Instant::now();
    Ok(Established {
        link: handshake.link,
        input: handshake.input,
        buffer: vec![0; READ_BYTES],
        out: WriteBuffer::default(),
        control: Vec::new(),
        heartbeat,
        since: now,
        acknowledged,
        in_doubt: reconnector.trouble().is_some(),
        last_heard: now,
        last_spoke: now,
        jammed: false,
        dismissed: false,
        finished: false,
        address,
        moves,
        leaving: None,
    })
}

impl Established {
    /// Says that we are there, and notices that the server is not.
    fn look_after(&mut self, outbound: &impl Pipeline, now: Instant) -> Result<(), LinkError> {
        if now.duration_since(self.last_heard) > self.heartbeat * 3 {
            return Err(LinkError::Lost("the server has been silent for too long".into()));
        }
        // A socket that takes nothing needs no ping to find out.
        if now.duration_since(self.last_spoke) >= self.heartbeat && !self.jammed {
            Control::Ping(0).write(&mut self.control);
            self.last_spoke = now;
        }
        if self.dismissed && !self.is_loaded(outbound) && !self.finished {
            self.finished = true;
            Control::Goodbye { text: String::new() }.write(&mut self.control);
        }
        Ok(())
    }

    /// Whether frames are begun.
    fn is_loaded(&self, outbound: &impl Pipeline) -> bool {
        !self.out.is_empty() || outbound.is_inside_frame()
    }

    /// Whether there was any use in it.
    fn has_served(&self, outbound: &impl Pipeline) -> bool {
        outbound.acknowledged() > self.acknowledged || self.last_heard >= self.since + FIRM
    }

    /// Whether the server is to be sent more than what is begun.
    fn takes_more(&self) -> bool {
        !self.dismissed && !self.finished && self.leaving.is_none()
    }

    fn has_to_write(&self, outbound: &mut impl Pipeline, now: Instant) -> bool {
        let unfinished = self.is_loaded(outbound) || !self.control.is_empty();
        unfinished || (self.takes_more() && outbound.is_due(now))
    }

    /// Writes what is due, with one system call.
    fn write(&mut self, outbound: &mut impl Pipeline) -> Result<(), LinkError> {
        // Between frames only: whatever is in the middle of one would be read as a part of it.
        if !self.is_loaded(outbound) {
            if !self.control.is_empty() {
                self.out.write(|out| out.append(&mut self.control));
            }
            if self.takes_more() {
                outbound.fill(&mut self.out);
            }
        }
        let mut pieces: Vec<_> = self.out.slices(usize::MAX).collect();
        let written: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.out.len() == written {
            outbound.rows(&mut pieces);
        }
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Ok(());
        }
        let sent = match self.link.write_vectored(&pieces) {
            Ok(0) => return Err(LinkError::Lost("the connection takes no bytes".into())),
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.jammed = true;
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let now = Instant::now();
        self.last_spoke = now;
        self.out.wrote(sent.min(written));
        outbound.wrote(sent, sent.saturating_sub(written), now);
        Ok(())
    }

    /// Reads all that there is.
    fn read<C: Pipeline>(&mut self, outbound: &mut C) -> Result<(), LinkError> {
        loop {
            let place = outbound.place();
            let awaited = place.len();
            let mut room = self.buffer.len();
            let read = if awaited > 0 {
                let behind = &mut self.buffer[..BEHIND_PAYLOAD];
                room = awaited + behind.len();
                let mut places = [IoSliceMut::new(place), IoSliceMut::new(behind)];
                self.link.read_vectored(&mut places).map(|read| (read, None))
            } else if C::TAKES_FILES {
                self.link.read_with_memory(&mut self.buffer)
            } else {
                self.link.read(&mut self.buffer).map(|read| (read, None))
            };
            match read {
                Ok((0, _)) => {
                    let why = if self.dismissed {
                        "the server is closing"
                    } else {
                        "the server closed the connection"
                    };
                    return Err(LinkError::Lost(why.into()));
                }
                Ok((read, file)) => {
                    self.last_heard = Instant::now();
                    if let Some(file) = file {
                        outbound.take_file(file)?;
                    }
                    if awaited > 0 {
                        outbound.placed(read.min(awaited))?;
                    }
                    let fresh = read.saturating_sub(awaited);
                    self.input.extend_from_slice(&self.buffer[..fresh]);
                    self.use_input(outbound)?;
                    if read < room && self.link.drains_on_short_read() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Uses whole frames of what came.
    fn use_input(&mut self, outbound: &mut impl Pipeline) -> Result<(), LinkError> {
        let mut used = 0;
        while used < self.input.len() {
            let place = outbound.place();
            if !place.is_empty() {
                let rest = &self.input[used..];
                let there = rest.len().min(place.len());
                place[..there].copy_from_slice(&rest[..there]);
                outbound.placed(there)?;
                used += there;
                continue;
            }
            let Some(header) = Header::read(&self.input[used..])? else { break };
            header.check_most(outbound.limit(header.kind).unwrap_or(MAX_CONTROL))?;
            let start = used + HEADER_BYTES;
            if outbound.begin_large(header) {
                used = start;
                continue;
            }
            let Some(payload) = self.input.get(start..start + header.len as usize) else { break };
            used = start + payload.len();
            match header.kind {
                kind::REFUSED => return Err(LinkError::Refused(Refused::read(payload)?)),
                kind::PING | kind::PONG | kind::GOODBYE => match Control::read(header, payload)? {
                    // One answer says that we are there; a flood of questions gets no more memory.
                    Control::Ping(number) if self.control.len() < MAX_CONTROL as usize => {
                        Control::Pong(number).write(&mut self.control);
                    }
                    Control::Goodbye { .. } => self.dismissed = true,
                    _ => {}
                },
                _ => outbound.take(header, payload)?,
            }
        }
        self.input.drain(..used);
        Ok(())
    }
}
