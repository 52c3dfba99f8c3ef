//! Frames between a store of weights and its remote subscribers and publishers.
//!
//! A subscriber asks with a [`Want`] and gets one [`Announcement`], when there is something newer than it has:
//! a version alone, or bytes as CHUNK frames up to an END, or where they are in memory that came with a REGION.
//! A publisher sends a [`Publish`], learns from a NEED which chunks the server lacks, sends these, and gets a
//! [`Receipt`].

use std::ops::Range;
use std::time::Duration;

use echoic_replay::codec::{Encode, Reader};
use echoic_replay::weights::{ChunkForm, Content, MAX_CHUNK_BYTES, Plan};
use echoic_replay::{fields, variants};

use super::frame::{HEADER_BYTES, Header, MAX_CONTROL, frame, kind};
use super::{WireError, read_whole};

/// The longest text that says what tree leaves belong to.
pub const MAX_STRUCTURE: u32 = 16 << 20;
/// The most bytes of a list of leaves: 64 for each of the most that there may be.
const MAX_LEAVES_BYTES: u32 = 16 << 20;
/// The largest payload of a WANT or a NEED: a number and a sum for each chunk of the largest publication.
pub const MAX_WANT: u32 = (12 << 20) + MAX_CONTROL;
/// The largest payload of a PUBLICATION or a PUBLISH.
pub const MAX_PUBLICATION: u32 = MAX_STRUCTURE + MAX_LEAVES_BYTES + MAX_WANT;
/// The largest payload of a CHUNK.
pub const MAX_CHUNK: u32 = MAX_CHUNK_BYTES as u32 + CHUNK_HEAD;
/// How many regions a client keeps mapped: when it gets one more, both sides forget the one that came first.
pub const MAX_REGIONS: usize = 8;
/// Bytes of a CHUNK before its own: its number (4), sum (8) and form (1).
pub const CHUNK_HEAD: u32 = 13;

/// The largest payload of a frame of this kind; `None` when it is not about weights.
pub fn most(of: u8) -> Option<u32> {
    match of {
        kind::WANT | kind::NEED => Some(MAX_WANT),
        kind::PUBLICATION | kind::PUBLISH => Some(MAX_PUBLICATION),
        kind::CHUNK_OF_WEIGHTS => Some(MAX_CHUNK),
        kind::END | kind::CUT | kind::REGION | kind::RELEASE_WEIGHTS | kind::RECEIPT => {
            Some(MAX_CONTROL)
        }
        _ => None,
    }
}

/// A client's question: the next publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// One with a larger serial number than this.
    pub after: u64,
    /// The sums of the chunks that it has.
    pub sums: Vec<u64>,
}

/// How the bytes of a publication come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// Not at all.
    Alone,
    /// In CHUNK frames.
    Chunks(Plan),
    /// They are in a region that came before.
    Memory {
        /// Where they lie in it.
        plan: Plan,
        /// Which region.
        region: u64,
    },
}

/// The answer to a [`Want`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Where it stands in the order of what the server has published.
    pub serial: u64,
    /// Which version it is.
    pub version: u64,
    /// How its bytes come.
    pub form: Form,
}

/// A part of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkOf<'a> {
    /// Which.
    pub index: u32,
    /// The sum of its bytes.
    pub sum: u64,
    /// How they are sent.
    pub form: ChunkForm,
    /// Its bytes, or what changed in them.
    pub bytes: &'a [u8],
}

/// Chunks that the server lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Which.
    pub chunks: Vec<u32>,
    /// The sums of what it has in their places, in the same order; 0 where that is nothing.
    pub bases: Vec<u64>,
}

/// Memory that comes with the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// What it is called on this connection.
    pub id: u64,
    /// How many bytes it has.
    pub len: u64,
}

/// What a learner elsewhere wants to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// Which version.
    pub version: u64,
    /// For how many milliseconds it may wait for a place; for ever, when `None`.
    pub timeout_ms: Option<u64>,
    /// Where its leaves lie, and the sums of its chunks; nothing, if it is a version alone.
    pub content: Option<(Plan, Vec<u64>)>,
}

/// What became of a [`Publish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// It is published.
    Published,
    /// Its version is not above the latest.
    Stale {
        /// Which is the latest.
        latest: u64,
    },
    /// It is the latest, with the same bytes: a publisher that lost the receipt of its first attempt asks this way.
    Same,
    /// All places were held for too long.
    Leased,
    /// The store is closed.
    Closed,
    /// It can't be.
    Failed(String),
}

/// How fast a link carries chunks as they are, as far as that is known: to a slow one it pays to compress what changed.
///
/// The first publication also waits for the system to give memory, so it takes two to know.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkSpeed {
    measured: u32,
    /// The most bytes per second.
    fastest: f64,
}

impl LinkSpeed {
    /// Below this compressing is faster than the link.
    const SLOW: f64 = 150e6;
    /// Fewer bytes say nothing: the system's buffers take them.
    const LEAST: usize = 16 << 20;

    /// Whether it is known to be slow.
    pub fn is_slow(self) -> bool {
        self.measured > 1 && self.fastest < Self::SLOW
    }

    /// Takes note of a publication that went whole.
    pub fn note(&mut self, bytes: usize, time: Duration) {
        if bytes >= Self::LEAST {
            self.measured = self.measured.saturating_add(1);
            self.fastest = self.fastest.max(bytes as f64 / time.as_secs_f64().max(1e-9));
        }
    }
}

/// What keeps a plan from going over the wire, although it is good in one process.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit.
pub fn check(plan: &Plan) -> Result<(), WireError> {
    WireError::check_most("structure of a tree", MAX_STRUCTURE, plan.structure().len())?;
    WireError::check_bytes("length of the leaves", MAX_LEAVES_BYTES, plan.spec())
}

variants! {
    Form { 0 => Alone, 1 => Chunks(plan: Plan), 2 => Memory { plan: Plan, region: u64 } }
    Receipt {
        0 => Published,
        1 => Stale { latest: u64 },
        2 => Leased,
        3 => Closed,
        4 => Failed(text: String),
        5 => Same,
    }
}

fields! {
    Want { after: u64, sums: Vec<u64> }
    Need { chunks: Vec<u32>, bases: Vec<u64> }
    Announcement { serial: u64, version: u64, form: Form }
    Region { id: u64, len: u64 }
    Publish { version: u64, timeout_ms: Option<u64>, content: Option<(Plan, Vec<u64>)> }
}

frames! {
    WANT => Want
    NEED => Need
    PUBLICATION => Announcement
    REGION => Region
    RECEIPT => Receipt
}

/// Appends a PUBLICATION: with a plan, of the form that `region` says.
pub fn announce(
    out: &mut Vec<u8>,
    serial: u64,
    version: u64,
    plan: Option<&Plan>,
    region: Option<u64>,
) {
    frame(out, kind::PUBLICATION, |out| {
        serial.encode(out);
        version.encode(out);
        // The bytes of a `Form`, whose plan need not be copied for that.
        match (plan, region) {
            (None, _) => 0_u8.encode(out),
            (Some(plan), None) => (1_u8, plan).encode(out),
            (Some(plan), Some(region)) => ((2_u8, plan), region).encode(out),
        }
    });
}

impl<'a> ChunkOf<'a> {
    /// A chunk of what was published, if there is such a one here, and where its bytes are in that.
    pub fn of(content: &'a Content, index: u32) -> Option<(Self, Range<usize>)> {
        let at = usize::try_from(index).ok()?;
        let (bytes, sum) = (content.chunk(at)?, content.sum(at)?);
        let form = ChunkForm::Whole;
        Some((Self { index, sum, form, bytes }, content.plan().chunk(at)?))
    }

    /// The frame up to its bytes.
    pub fn head(&self) -> [u8; HEADER_BYTES + CHUNK_HEAD as usize] {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX).saturating_add(CHUNK_HEAD);
        let [a, b, c, d, e, f, g, h] = Header { len, kind: kind::CHUNK_OF_WEIGHTS }.bytes();
        let [i, j, k, l] = self.index.to_le_bytes();
        let [m, n, o, p, q, r, s, t] = self.sum.to_le_bytes();
        let u = match self.form {
            ChunkForm::Whole => 0,
            ChunkForm::Sparse => 1,
            ChunkForm::Xor => 2,
        };
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u]
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head());
        out.extend_from_slice(self.bytes);
    }

    /// Checks that the sum that came, the one that is expected and the one that the bytes have are equal.
    pub fn check(&self, expected: u64, found: u64) -> Result<(), WireError> {
        match self.sum == expected && found == expected {
            true => Ok(()),
            false => Err(WireError::Sum { chunk: self.index, expected, got: found }),
        }
    }

    /// Reads the payload. Whether the sum is right is for others to look at.
    pub fn read(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let index = reader.u32("number of a chunk")?;
        let sum = reader.u64("sum of a chunk")?;
        let form = match reader.u8("form of a chunk")? {
            0 => ChunkForm::Whole,
            1 => ChunkForm::Sparse,
            2 => ChunkForm::Xor,
            got => return Err(WireError::meaningless("form of a chunk", got.into())),
        };
        Ok(Self { index, sum, form, bytes: reader.rest() })
    }
}

/// Appends a frame that has the serial number of a publication and nothing else: an END, a CUT or a RELEASE.
pub fn write_serial(out: &mut Vec<u8>, kind: u8, serial: u64) {
    frame(out, kind, |out| serial.encode(out));
}

/// Reads the payload of an END, a CUT or a RELEASE.
pub fn read_serial(payload: &[u8]) -> Result<u64, WireError> {
    read_whole(payload, "a frame about a publication")
}

impl Publish {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::PUBLISH, |out| self.encode(out));
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let publish: Self = read_whole(payload, "PUBLISH")?;
        match &publish.content {
            Some((plan, sums)) if sums.len() != plan.chunks() => Err(WireError::Sequence {
                field: "number of sums",
                expected: plan.chunks() as u64,
                got: sums.len() as u64,
            }),
            _ => Ok(publish),
        }
    }
}
