//! Frames: a header of eight bytes, then a payload of the length that the header says.

use echoic_replay::WaitReason;
use echoic_replay::codec::{Encode, Reader};

use super::{WireError, read_whole};

/// Bytes of a frame's header: payload length (4), type (1), zero (1), channel (2).
pub const HEADER_BYTES: usize = 8;
/// Bytes of a data frame's payload before its samples: first sequence number (8), count (4).
pub const DATA_BYTES: usize = 12;
/// The most samples in a data frame.
pub const MAX_SAMPLES: u32 = 1 << 16;
/// The largest payload of a frame that is no data frame and no part of a handshake.
pub const MAX_CONTROL: u32 = 4096;
/// The longest text in a goodbye, a refusal or a failure.
const MAX_TEXT: usize = 2048;

/// Types of frames. The handshake's are below 16.
pub mod kind {
    /// Client: its nonce.
    pub const HELLO: u8 = 1;
    /// Server: its nonce, and whether it asks for a token.
    pub const CHALLENGE: u8 = 2;
    /// Client: its proof, identity and spec.
    pub const OPEN: u8 = 3;
    /// Server: its proof, and where to go on.
    pub const WELCOME: u8 = 4;
    /// Server: why not.
    pub const REFUSED: u8 = 5;
    /// Client: samples.
    pub const DATA: u8 = 16;
    /// Server: what is stored, and how much may come.
    pub const ACK: u8 = 17;
    /// Either: are you there?
    pub const PING: u8 = 18;
    /// Either: yes.
    pub const PONG: u8 = 19;
    /// Either: nothing more will come.
    pub const GOODBYE: u8 = 20;
    /// Server: the ring's memory comes with this frame.
    pub const MEMORY: u8 = 21;
    /// Client: what it wrote into that memory.
    pub const REPORT: u8 = 22;
    /// Client: something to be done with tables, and answered.
    pub const REQUEST: u8 = 32;
    /// Server: the items of a sample.
    pub const BATCH: u8 = 33;
    /// Server: it was done.
    pub const DONE: u8 = 34;
    /// Server: it was not done.
    pub const FAILED: u8 = 35;
    /// Server: the numbers of tables.
    pub const NUMBERS: u8 = 36;
    /// Where a checkpoint is.
    pub const SAVED: u8 = 37;
    /// What is known about items.
    pub const LISTED: u8 = 38;
    /// The items of a sample, whose columns are in the client's arena.
    pub const PLACED: u8 = 39;
    /// Client: items that are rows.
    pub const ROWS: u8 = 40;
    /// Client: what trajectories look like.
    pub const SIGNATURE: u8 = 41;
    /// Client: steps that items may name.
    pub const CHUNK: u8 = 42;
    /// Client: an item that names steps of chunks.
    pub const ITEM: u8 = 43;
    /// Client: chunks that no later item names.
    pub const RELEASE: u8 = 44;
    /// Server: all that there is to see of it.
    pub const OBSERVED: u8 = 45;
    /// Server: its rollout tables.
    pub const ROLLOUT_TABLES: u8 = 46;
    /// Server: what came of changes of a rollout table.
    pub const ROLLOUT_OUTCOMES: u8 = 47;
    /// Server: a share of a batch of rollouts.
    pub const ROLLOUT_BATCH: u8 = 48;
    /// Server: a share of a batch of rollouts, whose arrays are in the client's arena.
    pub const ROLLOUT_PLACED: u8 = 49;
    /// Server: the numbers of a rollout table.
    pub const ROLLOUT_NUMBERS: u8 = 50;
    /// Server: why a rollout table did not do something.
    pub const ROLLOUT_REFUSED: u8 = 51;
    /// Client: the next publication of weights.
    pub const WANT: u8 = 60;
    /// Server: what was published.
    pub const PUBLICATION: u8 = 61;
    /// Either: some of its bytes.
    pub const CHUNK_OF_WEIGHTS: u8 = 62;
    /// Server: these were all that the client lacks.
    pub const END: u8 = 63;
    /// Server: the rest does not come, since there is something newer.
    pub const CUT: u8 = 64;
    /// Server: memory comes with this frame.
    pub const REGION: u8 = 65;
    /// Client: this publication is not in use any more.
    pub const RELEASE_WEIGHTS: u8 = 66;
    /// Client: something to be published.
    pub const PUBLISH: u8 = 67;
    /// Server: the chunks of it that are not there yet.
    pub const NEED: u8 = 68;
    /// Server: what became of it.
    pub const RECEIPT: u8 = 69;
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the payload.
    pub len: u32,
    /// One of [`kind`].
    pub kind: u8,
}

impl Header {
    /// Reads a header; `None` while it is not all there.
    ///
    /// # Errors
    ///
    /// [`WireError::Codec`] when the reserved byte or the channel is not zero.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let Some(bytes) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
        let mut reader = Reader::new(bytes);
        let (len, kind) = (reader.u32("length of a frame")?, reader.u8("type of a frame")?);
        let reserved = reader.u8("reserved")?;
        let channel = reader.u16("channel")?;
        if reserved != 0 {
            return Err(WireError::meaningless("reserved", reserved.into()));
        }
        // What goes over a connection is said once, in its handshake, so one channel is enough.
        if channel != 0 {
            return Err(WireError::meaningless("channel", channel.into()));
        }
        Ok(Some(Self { len, kind }))
    }

    /// Checks that the payload is not longer than it may be.
    pub fn check_most(self, limit: u32) -> Result<(), WireError> {
        WireError::check_most("length of a frame", limit, self.len as usize)
    }

    /// The header's bytes.
    pub fn bytes(self) -> [u8; HEADER_BYTES] {
        let [l0, l1, l2, l3] = self.len.to_le_bytes();
        [l0, l1, l2, l3, self.kind, 0, 0, 0]
    }
}

/// What a data frame's payload starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHead {
    /// Sequence number of the first sample.
    pub first: u64,
    /// How many samples follow: at least one.
    pub count: u32,
}

impl DataHead {
    /// Reads the start of a payload and checks that the length in the header is the one that
    /// `count` samples of `sample_bytes` have.
    pub fn read(header: Header, bytes: &[u8], sample_bytes: usize) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let first = reader.u64("first sample")?;
        let count = reader.u32_at_most("number of samples", MAX_SAMPLES)?;
        if count == 0 {
            return Err(WireError::meaningless("number of samples", 0));
        }
        let expected = payload_len(count, sample_bytes);
        if expected != Some(header.len) {
            return Err(WireError::Sequence {
                field: "length of a data frame",
                expected: expected.unwrap_or(u32::MAX).into(),
                got: header.len.into(),
            });
        }
        if first.checked_add(count.into()).is_none() {
            return Err(WireError::meaningless("first sample", first));
        }
        Ok(Self { first, count })
    }

    /// Header and start of the payload of a frame with these samples; `None` when they are too many
    /// for one frame.
    pub fn bytes(self, sample_bytes: usize) -> Option<[u8; HEADER_BYTES + DATA_BYTES]> {
        let header = Header { len: payload_len(self.count, sample_bytes)?, kind: kind::DATA };
        let mut bytes = [0; HEADER_BYTES + DATA_BYTES];
        let (head, rest) = bytes.split_first_chunk_mut::<HEADER_BYTES>()?;
        *head = header.bytes();
        let (first, count) = rest.split_first_chunk_mut::<8>()?;
        *first = self.first.to_le_bytes();
        count.copy_from_slice(&self.count.to_le_bytes());
        Some(bytes)
    }
}

/// Length of a data frame's payload.
fn payload_len(count: u32, sample_bytes: usize) -> Option<u32> {
    let rows = (count as usize).checked_mul(sample_bytes)?;
    u32::try_from(rows.checked_add(DATA_BYTES)?).ok()
}

/// The most samples of this size that one data frame should have, given what it should weigh.
/// `None` when not even one fits.
pub fn samples_per_frame(sample_bytes: usize, target_bytes: usize) -> Option<u32> {
    payload_len(1, sample_bytes)?;
    let fitting = target_bytes.checked_div(sample_bytes).unwrap_or(usize::MAX).max(1);
    Some(u32::try_from(fitting).unwrap_or(u32::MAX).min(MAX_SAMPLES))
}

/// The number of why something waits.
pub(crate) fn stall_number(stall: Option<WaitReason>) -> u8 {
    stall.map_or(0, |reason| reason as u8)
}

/// A frame without samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// All samples before `next` are stored; samples before `limit` may be sent.
    Ack {
        /// The sequence number of the first sample that is not stored.
        next: u64,
        /// The sequence number of the first sample that may not be sent yet.
        limit: u64,
        /// What keeps the next one from being stored, if it has come.
        stall: Option<WaitReason>,
    },
    /// To be answered with the same number.
    Ping(u64),
    /// The answer.
    Pong(u64),
    /// Nothing more will come.
    Goodbye {
        /// Why, for people.
        text: String,
    },
    /// The ring's memory comes with this frame.
    Memory {
        /// The client's owner number in the ring.
        owner: u16,
        /// What lies where.
        layout: [u64; 4],
    },
    /// What a client wrote into that memory.
    Report {
        /// Samples since the start.
        samples: u64,
        /// Nanoseconds for which it waited for room.
        waited: u64,
    },
}

impl Control {
    /// Reads the payload of a frame of this kind.
    pub fn read(header: Header, payload: &[u8]) -> Result<Self, WireError> {
        Ok(match header.kind {
            kind::ACK => {
                let (next, (limit, stall)) = read_whole(payload, "ACK")?;
                Self::Ack { next, limit, stall }
            }
            kind::PING => Self::Ping(read_whole(payload, "PING")?),
            kind::PONG => Self::Pong(read_whole(payload, "PONG")?),
            kind::GOODBYE => Self::Goodbye { text: read_whole(payload, "GOODBYE")? },
            kind::MEMORY => {
                let (owner, layout) = read_whole(payload, "MEMORY")?;
                Self::Memory { owner, layout }
            }
            kind::REPORT => {
                let (samples, waited) = read_whole(payload, "REPORT")?;
                Self::Report { samples, waited }
            }
            got => {
                let expected = "a frame without samples";
                return Err(WireError::Unexpected { expected, got });
            }
        })
    }

    /// Appends the whole frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack { next, limit, stall } => {
                frame(out, kind::ACK, |out| (next, (limit, stall)).encode(out));
            }
            Self::Ping(number) => frame(out, kind::PING, |out| number.encode(out)),
            Self::Pong(number) => frame(out, kind::PONG, |out| number.encode(out)),
            Self::Goodbye { text } => frame(out, kind::GOODBYE, |out| text.encode(out)),
            Self::Memory { owner, layout } => {
                frame(out, kind::MEMORY, |out| (owner, layout).encode(out));
            }
            Self::Report { samples, waited } => {
                frame(out, kind::REPORT, |out| (samples, waited).encode(out));
            }
        }
    }
}

/// A text for people, cut at a character if it is longer than 2,048 bytes.
pub fn short(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default().to_owned()
}

/// Appends a frame whose payload `write` appends.
pub fn frame(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&Header { len: 0, kind }.bytes());
    write(out);
    let len = out.len().saturating_sub(start).saturating_sub(HEADER_BYTES);
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    if let Some(bytes) = out.get_mut(start..).and_then(|frame| frame.first_chunk_mut::<4>()) {
        *bytes = len.to_le_bytes();
    }
}
