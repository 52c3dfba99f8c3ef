//! How a connection comes to stand.
//!
//! ```text
//!   client                                   server
//!   preface, HELLO(nonce)            ──▶
//!                                    ◀──     preface, CHALLENGE(nonce, wants a proof?)
//!   OPEN(proof, identity, spec)      ──▶
//!                                    ◀──     WELCOME(proof, next, limit)  or  REFUSED(code, text)
//! ```
//!
//! A proof is an HMAC over both nonces and all other bytes of the frame that carries it, so neither
//! side can be made to prove something that it did not say. The token itself is never sent.

use echoic_replay::Spec;
use echoic_replay::codec::{Encode, Reader, write_text};

use super::WireError;
use super::frame::{MAX_TEXT, frame, kind};
use super::tables::{TableEntry, read_list};

/// The largest payload of a frame of the handshake.
pub const MAX_PAYLOAD: u32 = 1 << 20;
/// The largest payload of a WELCOME, which may list many tables.
pub const MAX_WELCOME: u32 = 16 << 20;
/// The longest name of a stream or of a release.
pub const MAX_NAME: u16 = 256;
/// The longest name of a client.
pub const MAX_CLIENT_NAME: u16 = 128;

/// A number that is used once.
pub type Nonce = [u8; 32];
/// An HMAC-SHA256; zeros where no token is in use.
pub type Proof = [u8; 32];
/// The producer: random unless the user chose it.
pub type ProducerId = [u8; 16];

/// Why a server refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The bytes made no sense.
    Protocol,
    /// Another version of the protocol.
    Version,
    /// No token, or the wrong one.
    Auth,
    /// Samples of another kind.
    Spec,
    /// No stream has this name, or the server has none at all, or no tables, or no weights.
    Stream,
    /// Too many connections.
    Limit,
    /// A later incarnation of the same producer was here.
    Stale,
    /// The server is closing.
    Closing,
    /// This listener does not lead to the ring's memory.
    Memory,
    /// An item that a table refuses.
    Table,
    /// What is inserted would not survive a crash: the table's journal has failed.
    Journal,
    /// What the client works with is closed, and does not come back.
    Closed,
}

/// Every code with its number on the wire and its name.
const CODES: [(RefusalCode, u16, &str); 12] = [
    (RefusalCode::Protocol, 1, "PROTOCOL"),
    (RefusalCode::Version, 2, "VERSION"),
    (RefusalCode::Auth, 3, "AUTH"),
    (RefusalCode::Spec, 4, "SPEC"),
    (RefusalCode::Stream, 5, "STREAM"),
    (RefusalCode::Limit, 6, "LIMIT"),
    (RefusalCode::Stale, 7, "STALE"),
    (RefusalCode::Closing, 8, "CLOSING"),
    (RefusalCode::Memory, 9, "MEMORY"),
    (RefusalCode::Table, 10, "TABLE"),
    (RefusalCode::Journal, 11, "JOURNAL"),
    (RefusalCode::Closed, 12, "CLOSED"),
];

impl RefusalCode {
    /// All codes.
    pub fn all() -> impl Iterator<Item = Self> {
        CODES.iter().map(|(code, ..)| *code)
    }

    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        CODES.iter().find(|(code, ..)| *code == self).map_or("?", |(.., name)| name)
    }

    fn number(self) -> u16 {
        CODES.iter().find(|(code, ..)| *code == self).map_or(0, |(_, number, _)| *number)
    }

    /// Whether trying again later may help.
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Limit | Self::Closing)
    }
}

/// The client's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The client's nonce.
    pub nonce: Nonce,
}

/// The server's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// The server's nonce.
    pub nonce: Nonce,
    /// Whether the client must prove that it has the token.
    pub wants_proof: bool,
}

/// What a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To send samples.
    Produce,
    /// To write samples into the ring's memory.
    Memory,
    /// To learn the spec.
    Probe,
    /// To ask things of tables.
    Request,
    /// To send items to tables.
    Insert,
    /// As `Request`, with memory that batches may be written into: `first` says how many bytes.
    Gather,
    /// To watch: as `Request`, of servers without tables too.
    Watch,
    /// To receive weights, or to publish them.
    Weights,
}

impl Purpose {
    fn number(self) -> u8 {
        match self {
            Self::Produce => 1,
            Self::Memory => 2,
            Self::Probe => 3,
            Self::Request => 4,
            Self::Insert => 5,
            Self::Gather => 6,
            Self::Watch => 7,
            Self::Weights => 8,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        match reader.u8("purpose")? {
            1 => Ok(Self::Produce),
            2 => Ok(Self::Memory),
            3 => Ok(Self::Probe),
            4 => Ok(Self::Request),
            5 => Ok(Self::Insert),
            6 => Ok(Self::Gather),
            7 => Ok(Self::Watch),
            8 => Ok(Self::Weights),
            got => Err(WireError::meaningless("purpose", got.into())),
        }
    }

    /// What it is, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Produce | Self::Memory => "push",
            Self::Insert => "insert",
            Self::Request | Self::Gather => "ask",
            Self::Probe => "probe",
            Self::Watch => "watch",
            Self::Weights => "weights",
        }
    }

    /// Whether it is about tables.
    pub fn is_of_tables(self) -> bool {
        matches!(self, Self::Request | Self::Insert | Self::Gather)
    }
}

/// The client's second frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// That it has the token.
    pub proof: Proof,
    /// What it wants.
    pub purpose: Purpose,
    /// Its identity.
    pub producer: ProducerId,
    /// Which incarnation: later ones have larger numbers.
    pub epoch: u64,
    /// The first sample that it still has: all before are stored, or were never this server's.
    pub first: u64,
    /// Which stream; nothing, if it is about tables.
    pub stream: String,
    /// What its samples look like, if it is about samples.
    pub spec: Option<Spec>,
    /// What people know the client by.
    pub name: String,
}

/// Checks the name of a client: people read it in terminals and logs.
///
/// # Errors
///
/// [`WireError::Codec`], for a name that is empty or has a control character.
pub fn check_name(name: &str) -> Result<(), WireError> {
    WireError::check_most("bytes of a client's name", MAX_CLIENT_NAME, name.len())?;
    if name.is_empty() {
        return Err(WireError::meaningless("bytes of a client's name", 0));
    }
    match name.chars().find(|character| character.is_control()) {
        Some(bad) => {
            let got = u32::from(bad).into();
            Err(WireError::meaningless("character of a client's name", got))
        }
        None => Ok(()),
    }
}

/// The server's answer to a client that may stay.
#[derive(Debug, Clone, PartialEq)]
pub struct Welcome {
    /// That the server has the token too.
    pub proof: Proof,
    /// Which server: another number after a restart.
    pub instance: [u8; 16],
    /// The first sample that is not stored.
    pub next: u64,
    /// The first sample that may not be sent yet.
    pub limit: u64,
    /// After how many milliseconds of silence either side says that it is there.
    pub heartbeat_ms: u32,
    /// Which release the server is.
    pub release: String,
    /// What the server has, for clients that can't know it.
    pub offer: Offer,
}

/// What a server has.
#[derive(Debug, Clone, PartialEq)]
pub enum Offer {
    /// The client knows: it has sent its spec.
    Known,
    /// What samples of the stream look like: in the answer to a probe.
    Spec(Spec),
    /// The tables.
    Tables(Vec<TableEntry>),
}

impl Offer {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Known => out.push(0),
            Self::Spec(spec) => {
                out.push(1);
                spec.encode(out);
            }
            Self::Tables(tables) => {
                out.push(2);
                tables.encode(out);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        match reader.u8("what is offered")? {
            0 => Ok(Self::Known),
            1 => Ok(Self::Spec(reader.get("spec")?)),
            2 => Ok(Self::Tables(read_list(reader)?)),
            got => Err(WireError::meaningless("what is offered", got.into())),
        }
    }
}

/// The server's answer to a client that may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people.
    pub text: String,
}

impl Hello {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::HELLO, |out| out.extend_from_slice(&self.nonce));
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let hello = Self { nonce: reader.array("nonce")? };
        reader.end("HELLO")?;
        Ok(hello)
    }
}

impl Challenge {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::CHALLENGE, |out| {
            out.extend_from_slice(&self.nonce);
            out.push(self.wants_proof.into());
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let nonce = reader.array("nonce")?;
        let wants_proof = reader.flag("whether a proof is wanted")?;
        reader.end("CHALLENGE")?;
        Ok(Self { nonce, wants_proof })
    }
}

impl Open {
    /// What the proof is over: the payload behind it.
    pub fn signed(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.push(self.purpose.number());
        out.extend_from_slice(&self.producer);
        self.epoch.encode(&mut out);
        self.first.encode(&mut out);
        write_text(&mut out, &self.stream, MAX_NAME);
        if let Some(spec) = &self.spec {
            spec.encode(&mut out);
        }
        write_text(&mut out, &self.name, MAX_CLIENT_NAME);
        out
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::OPEN, |out| {
            out.extend_from_slice(&self.proof);
            out.extend_from_slice(&self.signed());
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let proof = reader.array("proof")?;
        let purpose = Purpose::read(&mut reader)?;
        let producer = reader.array("producer")?;
        let epoch = reader.u64("epoch")?;
        let first = reader.u64("first sample")?;
        let stream = reader.text("name of a stream", MAX_NAME)?.to_owned();
        let spec = match purpose {
            Purpose::Produce | Purpose::Memory => Some(reader.get("spec")?),
            _ => None,
        };
        let name = reader.text("bytes of a client's name", MAX_CLIENT_NAME)?.to_owned();
        check_name(&name)?;
        reader.end("OPEN")?;
        Ok(Self { proof, purpose, producer, epoch, first, stream, spec, name })
    }
}

impl Welcome {
    /// What the proof is over: the payload behind it.
    pub fn signed(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.instance);
        self.next.encode(&mut out);
        self.limit.encode(&mut out);
        self.heartbeat_ms.encode(&mut out);
        write_text(&mut out, &self.release, MAX_NAME);
        self.offer.write(&mut out);
        out
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::WELCOME, |out| {
            out.extend_from_slice(&self.proof);
            out.extend_from_slice(&self.signed());
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let proof = reader.array("proof")?;
        let instance = reader.array("instance")?;
        let next = reader.u64("next sample")?;
        let limit = reader.u64("limit")?;
        let heartbeat_ms = reader.u32("heartbeat")?;
        let release = reader.text("release", MAX_NAME)?.to_owned();
        let offer = Offer::read(&mut reader)?;
        reader.end("WELCOME")?;
        Ok(Self { proof, instance, next, limit, heartbeat_ms, release, offer })
    }
}

impl Refused {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::REFUSED, |out| {
            self.code.number().encode(out);
            write_text(out, &self.text, MAX_TEXT);
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let number = reader.u16("code of a refusal")?;
        let code = CODES.iter().find(|(_, known, _)| *known == number).map(|(code, ..)| *code);
        let code = code.ok_or(WireError::meaningless("code of a refusal", number.into()))?;
        let text = reader.text("reason of a refusal", MAX_TEXT)?.to_owned();
        reader.end("REFUSED")?;
        Ok(Self { code, text })
    }
}
