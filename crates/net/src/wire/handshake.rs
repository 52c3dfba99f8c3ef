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

use echoic_replay::codec::Encode;
use echoic_replay::{Spec, fields, variants};

use super::frame::{frame, kind};
use super::tables::{TableEntry, check_each};
use super::{WireError, read_whole};

/// The largest payload of a frame of the handshake.
pub const MAX_PAYLOAD: u32 = 1 << 20;
/// The largest payload of a WELCOME, which may list many tables.
pub const MAX_WELCOME: u32 = 16 << 20;
/// The longest name of a stream.
const MAX_NAME: u16 = 256;
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
    /// The server has no such service: no stream of this name or at all, no tables, or no weights.
    Service,
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

variants! {
    RefusalCode {
        1 => Protocol,
        2 => Version,
        3 => Auth,
        4 => Spec,
        5 => Service,
        6 => Limit,
        7 => Stale,
        8 => Closing,
        9 => Memory,
        10 => Table,
        11 => Journal,
        12 => Closed,
    }
    Purpose {
        1 => Produce,
        2 => Memory,
        3 => Probe,
        4 => Request,
        5 => Insert,
        6 => Gather,
        7 => Watch,
        8 => Weights,
    }
    Offer { 0 => Known, 1 => Spec(spec: Spec), 2 => Tables(tables: Vec<TableEntry>) }
}

fields! {
    Hello { nonce: Nonce }
    Challenge { nonce: Nonce, wants_proof: bool }
    Open {
        proof: Proof,
        purpose: Purpose,
        producer: ProducerId,
        epoch: u64,
        first: u64,
        stream: String,
        spec: Option<Spec>,
        name: String,
    }
    Welcome {
        proof: Proof,
        instance: [u8; 16],
        next: u64,
        limit: u64,
        heartbeat_ms: u32,
        release: String,
        offer: Offer,
    }
    Refused { code: RefusalCode, text: String }
}

frames! {
    HELLO => Hello
    CHALLENGE => Challenge
    REFUSED => Refused
}

/// Every code and its name.
const CODES: [(RefusalCode, &str); 12] = [
    (RefusalCode::Protocol, "PROTOCOL"),
    (RefusalCode::Version, "VERSION"),
    (RefusalCode::Auth, "AUTH"),
    (RefusalCode::Spec, "SPEC"),
    (RefusalCode::Service, "SERVICE"),
    (RefusalCode::Limit, "LIMIT"),
    (RefusalCode::Stale, "STALE"),
    (RefusalCode::Closing, "CLOSING"),
    (RefusalCode::Memory, "MEMORY"),
    (RefusalCode::Table, "TABLE"),
    (RefusalCode::Journal, "JOURNAL"),
    (RefusalCode::Closed, "CLOSED"),
];

impl RefusalCode {
    /// All codes.
    pub fn all() -> impl Iterator<Item = Self> {
        CODES.iter().map(|(code, _)| *code)
    }

    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        CODES.iter().find(|(code, _)| *code == self).map_or("?", |(_, name)| name)
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

/// The server's answer to a client that may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people.
    pub text: String,
}

/// Bytes of a proof, which comes first in its payload and is over the rest.
const PROOF_BYTES: usize = 32;

/// What a proof is over: the payload behind it.
fn signed(value: &impl Encode) -> Vec<u8> {
    let mut payload = Vec::new();
    value.encode(&mut payload);
    payload.split_off(PROOF_BYTES.min(payload.len()))
}

impl Open {
    /// What the proof is over: the payload behind it.
    pub fn signed(&self) -> Vec<u8> {
        signed(self)
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::OPEN, |out| self.encode(out));
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let open: Self = read_whole(payload, "OPEN")?;
        let has_spec = open.spec.is_some();
        if has_spec != matches!(open.purpose, Purpose::Produce | Purpose::Memory) {
            return Err(WireError::meaningless("whether there is a spec", has_spec.into()));
        }
        WireError::check_most("name of a stream", MAX_NAME, open.stream.len())?;
        check_name(&open.name)?;
        Ok(open)
    }
}

impl Welcome {
    /// What the proof is over: the payload behind it.
    pub fn signed(&self) -> Vec<u8> {
        signed(self)
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::WELCOME, |out| self.encode(out));
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let welcome: Self = read_whole(payload, "WELCOME")?;
        if let Offer::Tables(tables) = &welcome.offer {
            check_each(tables)?;
        }
        Ok(welcome)
    }
}
