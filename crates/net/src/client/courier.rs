//! The thread that carries samples from a client's window to the server.
//!
//! It sleeps until there is something to carry, and then carries what there is with one system call. A
//! sample that comes after a pause goes out at once; samples that come close together wait for each
//! other for at most the `linger` time, so that many of them share a system call, and so that whoever
//! sends them need not wake anybody.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use echoic_memory::window::Reader;
use rustix::event::{PollFd, PollFlags, poll};

use super::link::{LinkError, Opening, timespec};
use super::{Alarm, Failure, Shared, State};
use crate::transport::Link;
use crate::wire::WireError;
use crate::wire::frame::{
    Control, DATA_BYTES, DataHead, HEADER_BYTES, Header, MAX_CONTROL, kind, samples_per_frame,
};
use crate::wire::handshake::{Open, Purpose, Refused, Welcome};

/// What one data frame should weigh at most: enough that its head costs nothing.
const FRAME_BYTES: usize = 1 << 20;
/// From this much on it is not worth waiting for more.
pub(super) const ENOUGH_BYTES: usize = 64 << 10;
/// The first pause after a failed attempt to connect, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long to wait for the server's last words.
const FAREWELL: Duration = Duration::from_secs(2);

/// See the [module](self).
pub(super) struct Courier {
    shared: Arc<Shared>,
    reader: Reader,
    bell: UnixStream,
    /// Whether a connection has stood before.
    returning: bool,
}

/// A connection that stands.
struct Standing {
    link: Box<dyn Link>,
    input: Vec<u8>,
    /// Bytes of frames without samples, to be sent before the next frame with some.
    control: Vec<u8>,
    frame: Option<Frame>,
    /// Samples before this have been sent on this connection.
    sent: u64,
    /// Samples before this may be sent.
    limit: u64,
    heartbeat: Duration,
    last_heard: Instant,
    last_spoke: Instant,
    /// When samples were last sent.
    last_carried: Option<Instant>,
    /// The socket took no more.
    jammed: bool,
    /// When the server said that it is closing: from then on nothing new goes out.
    dismissed: Option<Instant>,
    /// We said that nothing more will come.
    finished: bool,
}

/// A data frame that is being sent.
struct Frame {
    head: [u8; HEADER_BYTES + DATA_BYTES],
    first: u64,
    count: u32,
    /// How many bytes of it are out.
    out: usize,
}

impl Frame {
    /// The number behind its last sample.
    fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

impl Courier {
    pub(super) fn new(shared: Arc<Shared>, reader: Reader, bell: UnixStream) -> Self {
        Self { shared, reader, bell, returning: false }
    }

    /// Carries until the client is closed or gives up; returns the window with what was not
    /// delivered.
    pub(super) fn run(mut self) -> Reader {
        let state = loop {
            let mut standing = match self.connect() {
                Ok(Some(standing)) => standing,
                Ok(None) => break State::Closed,
                Err(failure) => break State::Failed(failure),
            };
            self.shared.set_state(State::Standing);
            match self.carry(&mut standing) {
                Ok(()) => break State::Closed,
                Err(error) if error.is_temporary() => {
                    self.shared.set_state(State::Away { why: error.to_string() });
                }
                Err(error) => break State::Failed(Failure { error, attempts: 0 }),
            }
        };
        self.reader.finished();
        self.shared.set_state(state);
        self.reader
    }

    /// Whether the client is closed and everything is delivered.
    fn is_done(&self) -> bool {
        self.shared.is_closing() && self.shared.window.claimed() == self.shared.window.released()
    }

    /// Connects, again and again; `None` when there is nothing left to connect for.
    fn connect(&mut self) -> Result<Option<Standing>, Failure> {
        let since = Instant::now();
        let mut attempts = 0;
        let mut pause = FIRST_BACKOFF;
        let options = &self.shared.options;
        let patience =
            if self.returning { options.deadline } else { Some(options.connect_timeout) };
        loop {
            if self.is_done() {
                return Ok(None);
            }
            let left = patience.map(|patience| patience.saturating_sub(since.elapsed()));
            let deadline = Instant::now() + left.map_or(ATTEMPT, |left| left.min(ATTEMPT));
            let error = match self.attempt(deadline) {
                Ok(standing) => return Ok(Some(standing)),
                Err(error) => error,
            };
            attempts += 1;
            let options = &self.shared.options;
            let tired = patience.is_some_and(|patience| since.elapsed() + pause >= patience)
                || options.max_retry.is_some_and(|most| attempts > most);
            if tired || !error.is_temporary() {
                return Err(Failure { error, attempts });
            }
            self.shared.set_state(State::Away { why: error.to_string() });
            // Not all at the same moment, when a thousand clients lose one server.
            self.listen_for_bell(jittered(pause));
            pause = (pause * 2).min(LAST_BACKOFF);
        }
    }

    fn attempt(&mut self, deadline: Instant) -> Result<Standing, LinkError> {
        let shared = &self.shared;
        let open = Open {
            proof: [0; 32],
            purpose: Purpose::Produce,
            producer: shared.producer,
            epoch: shared.epoch,
            first: shared.window.released(),
            stream: crate::server::STREAM.into(),
            spec: Some(shared.spec.clone()),
        };
        let token = shared.options.token.as_ref();
        let (opening, welcome) = Opening::new(&*shared.dial, token, open, deadline)?;
        let Welcome { next, limit, heartbeat_ms, .. } = welcome;
        let finished = self.reader.finished();
        if next < self.shared.window.released() || next > finished {
            let (field, expected) = ("next sample of the welcome", finished);
            return Err(WireError::Sequence { field, expected, got: next }.into());
        }
        self.reader.release(next);
        if self.returning {
            self.shared.stats.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        self.returning = true;
        let now = Instant::now();
        Ok(Standing {
            link: opening.link,
            input: opening.input,
            control: Vec::new(),
            frame: None,
            sent: next,
            limit,
            heartbeat: Duration::from_millis(heartbeat_ms.clamp(10, 600_000).into()),
            last_heard: now,
            last_spoke: now,
            last_carried: None,
            jammed: false,
            dismissed: None,
            finished: false,
        })
    }

    /// Carries samples over a connection until all are delivered and the client is closed.
    fn carry(&mut self, standing: &mut Standing) -> Result<(), LinkError> {
        standing.use_input(self)?;
        loop {
            self.shared.sent.store(standing.sent, Ordering::Relaxed);
            let now = Instant::now();
            standing.look_after(now)?;
            while !standing.jammed && standing.has_to_write(self, now) {
                standing.write(self)?;
            }
            if self.is_done() && standing.frame.is_none() && standing.dismissed.is_none() {
                return self.say_goodbye(standing);
            }
            self.sleep(standing)?;
        }
    }

    /// Ends a connection over which everything was delivered.
    fn say_goodbye(&self, standing: &mut Standing) -> Result<(), LinkError> {
        Control::Goodbye { text: String::new() }.write(&mut standing.control);
        standing.finished = true;
        // Everything is stored, so it does not matter whether the server hears it.
        let _ = standing.write(self);
        let _ = standing.link.finish();
        Ok(())
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self, standing: &mut Standing) -> Result<(), LinkError> {
        let now = Instant::now();
        let linger = self.shared.options.linger;
        let lingering =
            standing.last_carried.map(|carried| carried + linger).filter(|end| *end > now);
        let silence = standing.last_heard + standing.heartbeat * 3;
        let mut until = silence.min(standing.last_spoke + standing.heartbeat);
        if let Some(dismissed) = standing.dismissed {
            until = until.min(dismissed + FAREWELL);
        } else if !standing.jammed && standing.sent < standing.limit {
            // Whoever sends rings the bell by what this says; and what was finished before it was
            // said is found by the look behind it.
            let alarm = if lingering.is_some() { Alarm::AtEnough } else { Alarm::AtOnce };
            self.shared.set_alarm(alarm);
            if standing.has_to_write(self, now) {
                self.shared.set_alarm(Alarm::Off);
                return Ok(());
            }
            until = until.min(lingering.unwrap_or(until));
        }
        let timeout = until.saturating_duration_since(now);
        let mut flags = PollFlags::IN;
        if standing.jammed || standing.link.has_unflushed() {
            flags |= PollFlags::OUT;
        }
        let link = standing.link.as_fd();
        let mut fds =
            [PollFd::from_borrowed_fd(link, flags), PollFd::new(&self.bell, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&timespec(timeout)));
        let (at_link, at_bell) = (fds[0].revents(), fds[1].revents());
        self.shared.set_alarm(Alarm::Off);
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if !at_bell.is_empty() {
            self.hush();
        }
        if at_link.contains(PollFlags::OUT) {
            standing.jammed = false;
            match standing.link.flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                _ => {}
            }
        }
        if at_link.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            standing.read(self)?;
        }
        Ok(())
    }

    /// Sleeps for a while, or until the bell rings.
    fn listen_for_bell(&self, pause: Duration) {
        let mut fds = [PollFd::new(&self.bell, PollFlags::IN)];
        // An interrupted pause is a shorter one.
        let _ = poll(&mut fds, Some(&timespec(pause)));
        self.hush();
    }

    /// Takes the rings that were heard out of the bell.
    fn hush(&self) {
        let mut rings = [0; 64];
        while matches!((&self.bell).read(&mut rings), Ok(read) if read == rings.len()) {}
    }
}

impl Standing {
    /// Says that we are there, and notices that the server is not.
    fn look_after(&mut self, now: Instant) -> Result<(), LinkError> {
        if now.duration_since(self.last_heard) > self.heartbeat * 3 {
            return Err(LinkError::Lost("the server has been silent for too long".into()));
        }
        if self.dismissed.is_some_and(|at| now.duration_since(at) > FAREWELL) {
            return Err(LinkError::Lost("the server is closing".into()));
        }
        if now.duration_since(self.last_spoke) >= self.heartbeat && self.control.is_empty() {
            Control::Ping(0).write(&mut self.control);
            self.last_spoke = now;
        }
        if self.dismissed.is_some() && self.frame.is_none() && !self.finished {
            self.finished = true;
            Control::Goodbye { text: String::new() }.write(&mut self.control);
        }
        Ok(())
    }

    /// Samples that may be sent now.
    fn sendable(&self, courier: &mut Courier) -> u64 {
        courier.reader.finished().min(self.limit).saturating_sub(self.sent)
    }

    fn has_to_write(&self, courier: &mut Courier, now: Instant) -> bool {
        if self.frame.is_some() || !self.control.is_empty() {
            return true;
        }
        if self.dismissed.is_some() {
            return false;
        }
        let samples = self.sendable(courier);
        let shared = &courier.shared;
        let enough = || samples.saturating_mul(shared.spec.nbytes() as u64) >= ENOUGH_BYTES as u64;
        let waited = || {
            self.last_carried
                .is_none_or(|carried| now.duration_since(carried) >= shared.options.linger)
        };
        samples > 0
            && (shared.urgent.load(Ordering::Acquire) > self.sent
                || shared.is_closing()
                || enough()
                || waited())
    }

    /// Writes what is due, with one system call.
    fn write(&mut self, courier: &Courier) -> Result<(), LinkError> {
        if self.frame.is_none() && self.dismissed.is_none() && !self.finished {
            self.frame = self.next_frame(courier);
        }
        let shared = &courier.shared;
        let sample = shared.spec.nbytes();
        let mut pieces: [IoSlice<'_>; 4] = std::array::from_fn(|_| IoSlice::new(&[]));
        pieces[0] = IoSlice::new(&self.control);
        if let Some(frame) = &self.frame {
            let head = &frame.head[frame.out.min(frame.head.len())..];
            pieces[1] = IoSlice::new(head);
            let out = frame.out.saturating_sub(frame.head.len());
            // Rows that are out may be acknowledged, and then they are not ours to look at any more.
            let begun = out.checked_div(sample).unwrap_or(0);
            let first = frame.first + begun as u64;
            let left = frame.count as usize - begun;
            let (count, rows) = courier.reader.rows(first, left);
            pieces[2] = IoSlice::new(&rows[out - begun * sample..]);
            if count < left {
                pieces[3] = IoSlice::new(courier.reader.rows(first + count as u64, left - count).1);
            }
        }
        let written = match self.link.write_vectored(&pieces) {
            Ok(0) => return Err(LinkError::Lost("the connection takes no bytes".into())),
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.jammed = true;
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let now = Instant::now();
        shared.stats.writes.fetch_add(1, Ordering::Relaxed);
        shared.stats.bytes.fetch_add(written as u64, Ordering::Relaxed);
        self.last_spoke = now;
        let control = written.min(self.control.len());
        self.control.drain(..control);
        if let Some(frame) = &mut self.frame {
            frame.out += written - control;
            if frame.out >= frame.head.len() + frame.count as usize * sample {
                self.sent = frame.end();
                self.frame = None;
                self.last_carried = Some(now);
            }
        }
        Ok(())
    }

    fn next_frame(&self, courier: &Courier) -> Option<Frame> {
        let sample = courier.shared.spec.nbytes();
        let ready = courier.reader.known_finished().min(self.limit).saturating_sub(self.sent);
        let most = samples_per_frame(sample, FRAME_BYTES)?;
        let count = u32::try_from(ready).unwrap_or(u32::MAX).min(most);
        let head = DataHead { first: self.sent, count };
        let head = (count > 0).then(|| head.bytes(sample)).flatten()?;
        Some(Frame { head, first: self.sent, count, out: 0 })
    }

    /// Reads all that there is.
    fn read(&mut self, courier: &mut Courier) -> Result<(), LinkError> {
        let mut bytes = [0; 4096];
        loop {
            match self.link.read(&mut bytes) {
                Ok(0) => {
                    let why = if self.dismissed.is_some() {
                        "the server is closing"
                    } else {
                        "the server closed the connection"
                    };
                    return Err(LinkError::Lost(why.into()));
                }
                Ok(read) => {
                    self.last_heard = Instant::now();
                    self.input.extend_from_slice(&bytes[..read]);
                    self.use_input(courier)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Uses whole frames of what came.
    fn use_input(&mut self, courier: &mut Courier) -> Result<(), LinkError> {
        let mut used = 0;
        while let Some(header) = Header::read(&self.input[used..])? {
            if header.len > MAX_CONTROL {
                let (limit, got) = (MAX_CONTROL.into(), header.len.into());
                return Err(WireError::TooLarge { field: "length of a frame", limit, got }.into());
            }
            let start = used + HEADER_BYTES;
            let Some(payload) = self.input.get(start..start + header.len as usize) else { break };
            used = start + payload.len();
            if header.kind == kind::REFUSED {
                return Err(LinkError::Refused(Refused::read(payload)?));
            }
            match Control::read(header, payload)? {
                Control::Ack { next, limit, stall } => {
                    // Of a frame that is not all out, samples may be stored already.
                    let out = self.frame.as_ref().map_or(self.sent, Frame::end);
                    if next > out || limit < next {
                        let (field, expected) = ("acknowledged sample", out);
                        return Err(WireError::Sequence { field, expected, got: next }.into());
                    }
                    self.limit = self.limit.max(limit);
                    courier.shared.set_stall(stall);
                    courier.reader.release(next);
                }
                Control::Ping(number) => Control::Pong(number).write(&mut self.control),
                Control::Pong(_) => {}
                Control::Goodbye { .. } => self.dismissed = Some(Instant::now()),
            }
        }
        self.input.drain(..used);
        Ok(())
    }
}

/// Half to all of a duration.
fn jittered(pause: Duration) -> Duration {
    let random = crate::auth::random::<1>().map_or(u8::MAX, |[byte]| byte);
    pause.mul_f64(0.5 + f64::from(random) / 510.0)
}
