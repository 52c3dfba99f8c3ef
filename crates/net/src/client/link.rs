//! The handshake, from the client's end.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::auth::{Side, Token, random};
use crate::transport::{Dial, Link};
use crate::wire::frame::{Control, HEADER_BYTES, Header, kind};
use crate::wire::handshake::{self, Challenge, Hello, Open, RefusalCode, Refused, Welcome};
use crate::wire::observed::MAX_OBSERVED;
use crate::wire::tables::MAX_REQUEST;
use crate::wire::{PREFACE_BYTES, VERSION, WireError, preface, read_preface};
use crate::write_buffer::WriteBuffer;

/// Why no connection came to stand.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Nobody answered, or the connection broke.
    #[error("{0}")]
    Lost(String),
    /// The server said no.
    #[error("the server refused: {} ({})", .0.text, .0.code.name())]
    Refused(Refused),
    /// What the server said is invalid.
    #[error("the server sent nonsense: {0}")]
    Wire(#[from] WireError),
    /// Encryption could not be agreed on, or the certificate is not the right one.
    #[error("{0}")]
    Unsafe(String),
    /// The server's memory can't be used.
    #[error("the server's memory can't be used: {0}")]
    Memory(String),
    /// The server could not show that it has the token.
    #[error(
        "a token was given, but the server {0}; if that is really your server, give it the same token"
    )]
    Impostor(&'static str),
}

impl LinkError {
    /// Whether trying again may help.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Refused(refused) => refused.code.is_temporary(),
            Self::Wire(_) | Self::Impostor(_) | Self::Memory(_) | Self::Unsafe(_) => false,
        }
    }

    /// Whether the server is there, and what the client works with is closed for good.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Refused(refused) if refused.code == RefusalCode::Closed)
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // A certificate that does not fit will not fit next time.
            io::ErrorKind::InvalidData => Self::Unsafe(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// Waits until the link can be read, or written if `write`, or the deadline passes.
pub(crate) fn wait(link: &dyn Link, write: bool, deadline: Instant) -> Result<(), LinkError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(LinkError::Lost("the server did not answer in time".into()));
    }
    let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds = [PollFd::new(&link, flags)];
    match poll(&mut fds, Some(&timespec(left))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Sends what the link takes; whether that was anything.
pub(super) fn send(link: &mut dyn Link, out: &mut WriteBuffer) -> Result<bool, LinkError> {
    let any = match out.send(link, usize::MAX) {
        Ok(sent) => sent > 0,
        // The server may have said why it is gone.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            out.clear();
            false
        }
        Err(error) => return Err(error.into()),
    };
    if !out.is_empty() {
        return Ok(any);
    }
    match link.flush() {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error.into()),
        _ => Ok(any),
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// A link on which the handshake is under way.
pub(crate) struct ClientHandshake {
    pub(crate) link: Box<dyn Link>,
    /// What came and is not used yet.
    pub(crate) input: Vec<u8>,
    /// A file descriptor that came with it.
    pub(crate) memory: Option<OwnedFd>,
    deadline: Instant,
}

impl ClientHandshake {
    /// Connects and shakes hands. `open` is sent with the proof that `token` gives.
    pub(crate) fn new(
        dial: &dyn Dial,
        token: Option<&Token>,
        mut open: Open,
        deadline: Instant,
    ) -> Result<(Self, Welcome), LinkError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let link = dial.dial(left.max(Duration::from_millis(1)))?;
        let mut this = Self { link, input: Vec::new(), memory: None, deadline };
        let client = random()?;
        let mut output = preface(VERSION).to_vec();
        Hello { nonce: client }.write(&mut output);
        this.send(&output)?;
        this.read_preface()?;
        let (header, payload) = this.frame()?;
        let challenge = match header.kind {
            kind::CHALLENGE => Challenge::read(&payload)?,
            _ => return Err(not_that(header, &payload, "CHALLENGE or REFUSED")),
        };
        if let Some(token) = token {
            if !challenge.wants_proof {
                return Err(LinkError::Impostor("asks for none"));
            }
            open.proof = token.prove(Side::Client, &client, &challenge.nonce, &open.signed());
        }
        let mut output = Vec::new();
        open.write(&mut output);
        this.send(&output)?;
        let (header, payload) = this.frame()?;
        let welcome = match header.kind {
            kind::WELCOME => Welcome::read(&payload)?,
            _ => return Err(not_that(header, &payload, "WELCOME or REFUSED")),
        };
        let signed = welcome.signed();
        let proven = token.is_none_or(|token| {
            token.verify(Side::Server, &client, &challenge.nonce, &signed, &welcome.proof)
        });
        if !proven {
            return Err(LinkError::Impostor("has another"));
        }
        Ok((this, welcome))
    }

    /// From now on, nothing waits for longer than this.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Sends all of `bytes`.
    pub(crate) fn send(&mut self, mut bytes: &[u8]) -> Result<(), LinkError> {
        while !bytes.is_empty() || self.link.has_unflushed() {
            let result = match bytes {
                [] => self.link.flush().map(|()| 0),
                _ => self.link.write(bytes),
            };
            match result {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&*self.link, true, self.deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The other end may have said why it is gone.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read_preface(&mut self) -> Result<(), LinkError> {
        loop {
            match read_preface(&self.input)? {
                Some(VERSION) => {
                    self.input.drain(..PREFACE_BYTES);
                    return Ok(());
                }
                Some(got) => return Err(WireError::Version { got }.into()),
                None => self.more()?,
            }
        }
    }

    /// The next frame.
    pub(crate) fn frame(&mut self) -> Result<(Header, Vec<u8>), LinkError> {
        let limit = |kind| match kind {
            kind::WELCOME => handshake::MAX_WELCOME,
            kind::OBSERVED => MAX_OBSERVED,
            kind::ROLLOUT_TABLES => MAX_REQUEST,
            _ => handshake::MAX_PAYLOAD,
        };
        loop {
            if let Some((header, payload)) = first_frame(&self.input, limit)? {
                let payload = payload.to_vec();
                self.input.drain(..HEADER_BYTES + payload.len());
                return Ok((header, payload));
            }
            self.more()?;
        }
    }

    /// Reads something, waiting for it.
    fn more(&mut self) -> Result<(), LinkError> {
        let mut bytes = [0; 16 << 10];
        // Also of a peer that always sends something.
        if self.deadline <= Instant::now() {
            return Err(LinkError::Lost("the server did not answer in time".into()));
        }
        loop {
            match self.link.read_with_memory(&mut bytes) {
                Ok((0, _)) => {
                    return Err(LinkError::Lost("the server closed the connection".into()));
                }
                Ok((read, memory)) => {
                    self.input.extend_from_slice(&bytes[..read]);
                    self.memory = memory.or(self.memory.take());
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let write = self.link.has_unflushed();
                    wait(&*self.link, write, self.deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The first frame of what came, once all of it is there. `limit` is how long the payload of a kind of frame may be.
pub(super) fn first_frame(
    input: &[u8],
    limit: impl Fn(u8) -> u32,
) -> Result<Option<(Header, &[u8])>, WireError> {
    let Some(header) = Header::read(input)? else { return Ok(None) };
    header.check_most(limit(header.kind))?;
    let payload = input.get(HEADER_BYTES..HEADER_BYTES + header.len as usize);
    Ok(payload.map(|payload| (header, payload)))
}

/// Uses a frame that any server may send. A PING is to be answered with `pong`; a server that leaves is an error.
pub(super) fn use_control(
    header: Header,
    payload: &[u8],
    pong: impl FnOnce(u64),
) -> Result<(), LinkError> {
    if header.kind == kind::REFUSED {
        return Err(LinkError::Refused(Refused::read(payload)?));
    }
    match Control::read(header, payload)? {
        Control::Ping(number) => pong(number),
        Control::Goodbye { .. } => return Err(LinkError::Lost("the server is closing".into())),
        _ => {}
    }
    Ok(())
}

/// What to make of a frame that is not the one expected: a refusal, or nonsense.
pub(super) fn not_that(header: Header, payload: &[u8], expected: &'static str) -> LinkError {
    if header.kind != kind::REFUSED {
        return WireError::Unexpected { expected, got: header.kind }.into();
    }
    match Refused::read(payload) {
        Ok(refused) => LinkError::Refused(refused),
        Err(error) => error.into(),
    }
}
