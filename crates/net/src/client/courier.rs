//! The thread that carries samples from a client's window to the server.
//!
//! It sleeps until there is something to carry, and then carries what there is with one system call. A
//! sample that comes after a pause goes out at once; samples that come close together wait for each
//! other for at most the `linger` time, so that many of them share a system call, and so that whoever
//! sends them need not wake anybody.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use echoic_memory::window::Reader;
use rustix::event::{PollFd, PollFlags, poll};

use super::line::{Ear, State};
use super::link::{LinkError, Opening, timespec};
use super::{Alarm, Shared};
use crate::transport::Link;
use crate::wire::WireError;
use crate::wire::frame::{
    Control, DATA_BYTES, DataHead, HEADER_BYTES, Header, MAX_CONTROL, kind, samples_per_frame,
};
use crate::wire::handshake::{Purpose, Refused, Welcome};

/// What one data frame should weigh at most: enough that its head costs nothing.
const FRAME_BYTES: usize = 1 << 20;
/// From this much on it is not worth waiting for more.
pub(super) const ENOUGH_BYTES: usize = 64 << 10;

/// See the [module](self).
pub(super) struct Courier {
    shared: Arc<Shared>,
    reader: Reader,
    ear: Ear,
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
    /// The server said that it is closing: nothing new goes out, and its last word is awaited.
    dismissed: bool,
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

    /// The number behind the last sample that is out as a whole.
    fn sent(&self, sample: usize) -> u64 {
        let out = self.out.saturating_sub(self.head.len());
        self.first + out.checked_div(sample).unwrap_or(0) as u64
    }
}

impl Courier {
    pub(super) fn new(shared: Arc<Shared>, reader: Reader, ear: Ear) -> Self {
        Self { shared, reader, ear }
    }

    /// Carries until the client is closed or gives up; returns the window with what was not
    /// delivered.
    pub(super) fn run(mut self) -> Reader {
        let shared = Arc::clone(&self.shared);
        let state = loop {
            let done = || shared.line.is_closing() && shared.is_delivered();
            let (reader, ear) = (&mut self.reader, &self.ear);
            let attempt = |deadline| attempt(&shared, reader, deadline);
            let mut standing = match shared.line.connect(ear, done, attempt) {
                Ok(Some(standing)) => standing,
                Ok(None) => break State::Closed,
                Err(failure) => break State::Failed(failure),
            };
            match self.carry(&mut standing) {
                Ok(()) => break State::Closed,
                Err(error) if error.is_temporary() => shared.line.set_state(State::Away),
                Err(error) => break State::Failed(shared.line.failure(error, 0)),
            }
        };
        self.reader.finished();
        shared.line.set_state(state);
        self.reader
    }

    /// Carries samples over a connection until all are delivered and the client is closed.
    fn carry(&mut self, standing: &mut Standing) -> Result<(), LinkError> {
        standing.use_input(self)?;
        // What came with the handshake may lie in the link already, where no poll sees it.
        standing.read(self)?;
        loop {
            self.shared.sent.store(standing.sent, Ordering::Relaxed);
            let now = Instant::now();
            standing.look_after(now)?;
            while !standing.jammed && standing.has_to_write(self, now) {
                standing.write(self)?;
            }
            let done = self.shared.line.is_closing() && self.shared.is_delivered();
            if done && standing.frame.is_none() && !standing.dismissed {
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
        let linger = self.shared.line.options.linger;
        let lingering =
            standing.last_carried.map(|carried| carried + linger).filter(|end| *end > now);
        let silence = standing.last_heard + standing.heartbeat * 3;
        let mut until = silence;
        if !standing.jammed {
            until = until.min(standing.last_spoke + standing.heartbeat);
        }
        if !standing.dismissed && !standing.jammed && standing.sent < standing.limit {
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
            [PollFd::from_borrowed_fd(link, flags), PollFd::new(&self.ear, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&timespec(timeout)));
        let (at_link, at_bell) = (fds[0].revents(), fds[1].revents());
        self.shared.set_alarm(Alarm::Off);
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if !at_bell.is_empty() {
            self.ear.hush();
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
}

/// Connects once.
fn attempt(shared: &Shared, reader: &mut Reader, deadline: Instant) -> Result<Standing, LinkError> {
    let first = shared.window.released();
    let open = shared.line.open(Purpose::Produce, first, &shared.spec);
    let token = shared.line.options.token.as_ref();
    let (opening, welcome) = Opening::new(&*shared.line.dial, token, open, deadline)?;
    let Welcome { next, limit, heartbeat_ms, .. } = welcome;
    let finished = reader.finished();
    if next < first || next > finished {
        let (field, expected) = ("next sample of the welcome", finished);
        return Err(WireError::Sequence { field, expected, got: next }.into());
    }
    reader.release(next);
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
        dismissed: false,
        finished: false,
    })
}

impl Standing {
    /// Says that we are there, and notices that the server is not.
    fn look_after(&mut self, now: Instant) -> Result<(), LinkError> {
        if now.duration_since(self.last_heard) > self.heartbeat * 3 {
            return Err(LinkError::Lost("the server has been silent for too long".into()));
        }
        // A socket that takes nothing needs no ping to find out.
        if now.duration_since(self.last_spoke) >= self.heartbeat && !self.jammed {
            Control::Ping(0).write(&mut self.control);
            self.last_spoke = now;
        }
        if self.dismissed && self.frame.is_none() && !self.finished {
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
        if self.dismissed {
            return false;
        }
        let samples = self.sendable(courier);
        let shared = &courier.shared;
        let enough = || samples.saturating_mul(shared.spec.nbytes() as u64) >= ENOUGH_BYTES as u64;
        let waited = || {
            self.last_carried
                .is_none_or(|carried| now.duration_since(carried) >= shared.line.options.linger)
        };
        samples > 0
            && (shared.urgent.load(Ordering::Acquire) > self.sent
                || shared.line.is_closing()
                || enough()
                || waited())
    }

    /// Writes what is due, with one system call.
    fn write(&mut self, courier: &Courier) -> Result<(), LinkError> {
        if self.frame.is_none() && !self.dismissed && !self.finished {
            self.frame = self.next_frame(courier);
        }
        let shared = &courier.shared;
        let sample = shared.spec.nbytes();
        let mut pieces: [IoSlice<'_>; 4] = std::array::from_fn(|_| IoSlice::new(&[]));
        // Between frames only: whatever is in the middle of one would be read as samples.
        let between = self.frame.as_ref().is_none_or(|frame| frame.out == 0);
        if between {
            pieces[0] = IoSlice::new(&self.control);
        }
        if let Some(frame) = &self.frame {
            let head = &frame.head[frame.out.min(frame.head.len())..];
            pieces[1] = IoSlice::new(head);
            let out = frame.out.saturating_sub(frame.head.len());
            // Rows that are out may be acknowledged, and then they are not ours to look at any more.
            let first = frame.sent(sample);
            let begun = (first - frame.first) as usize;
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
        let control = if between { written.min(self.control.len()) } else { 0 };
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
                    let why = if self.dismissed {
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
                    let sample = courier.shared.spec.nbytes();
                    let out = self.frame.as_ref().map_or(self.sent, |frame| frame.sent(sample));
                    if next > out || limit < next {
                        let (field, expected) = ("acknowledged sample", out);
                        return Err(WireError::Sequence { field, expected, got: next }.into());
                    }
                    self.limit = self.limit.max(limit);
                    courier.shared.set_stall(stall);
                    courier.reader.release(next);
                }
                // One answer says that we are there; a flood of questions gets no more memory.
                Control::Ping(number) if self.control.len() < MAX_CONTROL as usize => {
                    Control::Pong(number).write(&mut self.control);
                }
                Control::Ping(_) => {}
                Control::Pong(_) => {}
                Control::Goodbye { .. } => self.dismissed = true,
                Control::Memory { .. } | Control::Report { .. } => {
                    let (expected, got) = ("ACK, PING, PONG or GOODBYE", header.kind);
                    return Err(WireError::Unexpected { expected, got }.into());
                }
            }
        }
        self.input.drain(..used);
        Ok(())
    }
}
