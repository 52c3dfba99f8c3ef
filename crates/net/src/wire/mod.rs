//! The bytes between a client and a server, as values: nothing here opens a socket or keeps a
//! connection. `docs/protocol.md` says the same in words.
//!
//! - [`frame`]: what is sent once a connection stands, and the header that every frame has.
//! - [`handshake`]: how a connection comes to stand.
//! - [`spec`]: what two contracts of a sample differ in.
//! - [`observed`]: what is sent to processes that watch a server.
//! - [`tables`]: requests, their answers, and items on their way into tables.
//! - [`weights`]: publications on their way to the workers, and from a learner elsewhere.
//! - [`rollouts`]: what requests and answers say about rollout tables.
//!
//! # Invariants
//!
//! 1. Nothing here panics, whatever the bytes: no indexing, no unwrap, no unchecked arithmetic.
//! 2. No length from outside decides how much memory is taken before it was compared with a limit, or with the bytes that
//!    are there.
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![deny(clippy::arithmetic_side_effects)]

/// Has structs written and read as frames: the payload is their fields, as with [`fields!`](echoic_replay::fields).
macro_rules! frames {
    ($($kind:ident => $type:ident)*) => {$(
        impl $type {
            /// Appends the frame.
            pub fn write(&self, out: &mut Vec<u8>) {
                $crate::wire::frame::frame(out, $crate::wire::frame::kind::$kind, |out| {
                    echoic_replay::codec::Encode::encode(self, out);
                });
            }

            /// Reads the payload.
            pub fn read(payload: &[u8]) -> Result<Self, $crate::wire::WireError> {
                $crate::wire::read_whole(payload, stringify!($kind))
            }
        }
    )*};
}

pub mod frame;
pub mod handshake;
pub mod observed;
pub mod rollouts;
pub mod spec;
pub mod tables;
pub mod weights;

use echoic_replay::codec::{CodecError, Decode, Encode, Reader};

/// What both sides send first, so that a stranger is recognised by its first bytes. The first is
/// no ASCII and the last a line feed, so text protocols and text-mode transfers do not look alike.
pub const MAGIC: [u8; 8] = *b"\x89ECHOIC\n";

/// The version of the protocol that this release speaks.
pub const VERSION: u16 = 2;

/// Bytes of the preface: magic, version, two zeros.
pub const PREFACE_BYTES: usize = 12;

/// What is wrong with bytes that came from outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The peer speaks something else.
    #[error("expected the preface of Echoic's protocol, got {}", describe(got))]
    Magic {
        /// The first bytes that came.
        got: Vec<u8>,
    },
    /// The peer speaks another version.
    #[error("expected protocol version {VERSION}, got {got}")]
    Version {
        /// The peer's version.
        got: u16,
    },
    /// They are cut off, too many, or have a value that they can't have.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A frame that the peer may not send now.
    #[error("expected {expected}, got a frame of type {got}")]
    Unexpected {
        /// What may come now.
        expected: &'static str,
        /// The type that came.
        got: u8,
    },
    /// Samples that skip numbers, or that the credit does not cover.
    #[error("{field}: expected {expected}, got {got}")]
    Sequence {
        /// Which number.
        field: &'static str,
        /// What it must be, or be at most.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// A chunk of weights was changed on its way.
    #[error("chunk {chunk} of the weights: expected the sum {expected:016x}, got {got:016x}")]
    Sum {
        /// Which.
        chunk: u32,
        /// The sum that its bytes should have.
        expected: u64,
        /// The one that they have.
        got: u64,
    },
    /// What came is well formed, and does not fit what is known: the text says what and why.
    #[error("{0}")]
    Content(String),
}

impl WireError {
    pub(crate) fn too_large(field: &'static str, limit: u64, got: u64) -> Self {
        CodecError::TooLarge { field, limit, got }.into()
    }

    /// That something is not larger than it may be.
    pub(crate) fn check_most(
        field: &'static str,
        limit: impl Into<u64>,
        got: usize,
    ) -> Result<(), Self> {
        match (limit.into(), got as u64) {
            (limit, got) if got > limit => Err(Self::too_large(field, limit, got)),
            _ => Ok(()),
        }
    }

    /// That a value does not have more bytes than it may have.
    pub(crate) fn check_bytes(
        field: &'static str,
        limit: u32,
        value: &(impl Encode + ?Sized),
    ) -> Result<(), Self> {
        let mut written = Vec::new();
        value.encode(&mut written);
        Self::check_most(field, limit, written.len())
    }

    pub(crate) fn meaningless(field: &'static str, got: u64) -> Self {
        CodecError::Meaningless { field, got }.into()
    }

    pub(crate) fn trailing(what: &'static str, extra: usize) -> Self {
        CodecError::Trailing { what, extra }.into()
    }
}

/// Reads a payload that is one value.
fn read_whole<T: Decode>(payload: &[u8], what: &'static str) -> Result<T, WireError> {
    let mut reader = Reader::new(payload);
    let value = reader.get(what)?;
    reader.end(what)?;
    Ok(value)
}

/// What bytes of another protocol look like, for people.
fn describe(bytes: &[u8]) -> String {
    match bytes {
        // The types of an alert and of a handshake, and the start of every version.
        [0x15 | 0x16, 3, ..] => "TLS; the address of a server with certificates is tls://".into(),
        _ if bytes.iter().all(|byte| byte.is_ascii_graphic() || b" \r\n".contains(byte)) => {
            format!("the text {:?}", String::from_utf8_lossy(bytes))
        }
        _ => format!("the bytes {bytes:02x?}"),
    }
}

/// The preface.
pub fn preface(version: u16) -> [u8; PREFACE_BYTES] {
    let [m0, m1, m2, m3, m4, m5, m6, m7] = MAGIC;
    let [low, high] = version.to_le_bytes();
    [m0, m1, m2, m3, m4, m5, m6, m7, low, high, 0, 0]
}

/// Checks a preface as far as it came; the peer's version once all of it is there.
///
/// # Errors
///
/// [`WireError::Magic`] as soon as a byte differs, [`WireError::Codec`] for the zeros.
pub fn read_preface(bytes: &[u8]) -> Result<Option<u16>, WireError> {
    let seen = bytes.len().min(MAGIC.len());
    if bytes.get(..seen) != MAGIC.get(..seen) {
        let got = bytes.iter().take(16).copied().collect();
        return Err(WireError::Magic { got });
    }
    let Some(rest) = bytes.get(MAGIC.len()..PREFACE_BYTES) else { return Ok(None) };
    let mut reader = Reader::new(rest);
    let version = reader.u16("version")?;
    match reader.u16("reserved")? {
        0 => Ok(Some(version)),
        got => Err(WireError::meaningless("reserved", got.into())),
    }
}
