//! A connection over which no samples come: of a client that writes into the ring's memory itself, or of a probe, which
//! has heard all it wanted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use echoic_replay::Stream;

use super::ServerContext;
use super::session::{Accepts, Session, Silence, Stop, Turn};
use crate::wire::frame::{Control, Header, MAX_CONTROL, kind};
use crate::wire::handshake::RefusalCode;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct RingSession {
    member: Option<RingMember>,
    /// How long the client said that it has waited.
    waited: Duration,
}

/// A client's right to write into the ring's memory, taken back when dropped.
pub(crate) struct RingMember {
    stream: Arc<Stream>,
    pub(crate) owner: u16,
}

impl RingMember {
    /// A place in the ring, if there is one left.
    pub(crate) fn new(stream: &Arc<Stream>) -> Option<Self> {
        let owner = stream.add_producer()?;
        Some(Self { stream: Arc::clone(stream), owner })
    }
}

impl Drop for RingMember {
    fn drop(&mut self) {
        self.stream.reclaim(self.owner);
    }
}

impl RingSession {
    pub(crate) fn new(member: Option<RingMember>) -> Self {
        Self { member, waited: Duration::ZERO }
    }
}

impl Session for RingSession {
    fn accepts(&self, kind: u8) -> Result<Accepts, &'static str> {
        match kind {
            kind::REPORT if self.member.is_some() => Ok(Accepts::Whole(MAX_CONTROL)),
            kind::REPORT => Err("REPORT from a client that has the ring's memory only"),
            _ => Err("PING, PONG or GOODBYE"),
        }
    }

    fn frame(&mut self, header: Header, payload: &[u8], turn: &mut Turn<'_>) -> Result<(), Stop> {
        if let Control::Report { samples, waited } = Control::read(header, payload)?
            && let Some(member) = &self.member
        {
            let waited = Duration::from_nanos(waited);
            turn.meter.samples.store(samples, Ordering::Relaxed);
            turn.meter.set_blocked_time(waited);
            let before = std::mem::replace(&mut self.waited, waited);
            member.stream.note_wait(waited.saturating_sub(before));
        }
        Ok(())
    }

    fn silence(&self, _now: Instant, _patience: Duration) -> Silence {
        Silence::IsFine
    }

    fn has_memory(&self) -> bool {
        self.member.is_some()
    }

    fn leaves_because(&self, _shared: &ServerContext) -> Option<(RefusalCode, &'static str)> {
        let closing = (RefusalCode::Closing, "the server is closing");
        self.member.is_none().then_some(closing)
    }
}
