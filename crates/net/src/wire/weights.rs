//! Frames between a store of weights and its remote subscribers and publishers.
//!
//! A subscriber asks with a [`Want`] and gets one [`Announcement`], when there is something newer than it has:
//! a version alone, or bytes as CHUNK frames up to an END, or where they are in memory that came with a REGION.
//! A publisher sends a [`Publish`], learns from a NEED which chunks the server lacks, sends these, and gets a
//! [`Receipt`].

use std::ops::Range;

use echoic_replay::codec::{Encode, Reader, write_text};
use echoic_replay::weights::{CHUNK_BYTES, Content, Plan};

use super::frame::{HEADER_BYTES, Header, MAX_TEXT, frame, kind};
use super::{WireError, spec};

/// The longest text that says what tree leaves belong to.
pub const MAX_STRUCTURE: u32 = 1 << 20;
/// The largest payload of a WANT or a NEED.
pub const MAX_WANT: u32 = 1 << 20;
/// The largest payload of a PUBLICATION or a PUBLISH.
pub const MAX_PUBLICATION: u32 = 4 << 20;
/// The largest payload of a CHUNK.
pub const MAX_CHUNK: u32 = CHUNK_BYTES as u32 + CHUNK_HEAD;
/// How many regions a client keeps mapped: when it gets one more, both sides forget the one that came first.
pub const MAX_REGIONS: usize = 8;
/// Bytes of a CHUNK before its own: its number (4) and sum (8).
pub const CHUNK_HEAD: u32 = 12;

/// The largest payload of a frame of this kind; `None` when it is not about weights.
pub fn most(of: u8) -> Option<u32> {
    match of {
        kind::WANT | kind::NEED => Some(MAX_WANT),
        kind::PUBLICATION | kind::PUBLISH => Some(MAX_PUBLICATION),
        kind::CHUNK_OF_WEIGHTS => Some(MAX_CHUNK),
        kind::END | kind::CUT | kind::REGION | kind::RELEASE_WEIGHTS | kind::RECEIPT => {
            Some(super::frame::MAX_CONTROL)
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
    /// Its bytes.
    pub bytes: &'a [u8],
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

fn write_plan(out: &mut Vec<u8>, plan: &Plan) {
    plan.structure().encode(out);
    plan.spec().encode(out);
}

fn read_plan(reader: &mut Reader<'_>) -> Result<Plan, WireError> {
    let (structure, leaves) = reader.get("structure of a tree")?;
    Plan::new(structure, leaves).map_err(|error| WireError::Spec(error.to_string()))
}

/// What keeps a plan from going over the wire, although it is good in one process.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit.
pub fn check(plan: &Plan) -> Result<(), WireError> {
    WireError::check_most("structure of a tree", MAX_STRUCTURE, plan.structure().len())?;
    spec::check(plan.spec())
}

impl Want {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::WANT, |out| {
            self.after.encode(out);
            self.sums.encode(out);
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let after = reader.u64("publication that the client has")?;
        let sums: Vec<u64> = reader.get("sums")?;
        reader.end("WANT")?;
        Ok(Self { after, sums })
    }
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
        let Some(plan) = plan else { return out.push(0) };
        match region {
            None => out.push(1),
            Some(region) => {
                out.push(2);
                region.encode(out);
            }
        }
        write_plan(out, plan);
    });
}

impl Announcement {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (plan, region) = match &self.form {
            Form::Alone => (None, None),
            Form::Chunks(plan) => (Some(plan), None),
            Form::Memory { plan, region } => (Some(plan), Some(*region)),
        };
        announce(out, self.serial, self.version, plan, region);
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let serial = reader.u64("number of a publication")?;
        let version = reader.u64("version")?;
        let form = match reader.u8("form of a publication")? {
            0 => Form::Alone,
            1 => Form::Chunks(read_plan(&mut reader)?),
            2 => {
                let region = reader.u64("number of a region")?;
                Form::Memory { plan: read_plan(&mut reader)?, region }
            }
            got => {
                let field = "form of a publication";
                return Err(WireError::meaningless(field, got.into()));
            }
        };
        reader.end("PUBLICATION")?;
        Ok(Self { serial, version, form })
    }
}

impl<'a> ChunkOf<'a> {
    /// A chunk of what was published, if there is such a one here, and where its bytes are in that.
    pub fn of(content: &'a Content, index: u32) -> Option<(Self, Range<usize>)> {
        let at = usize::try_from(index).ok()?;
        let (bytes, sum) = (content.chunk(at)?, content.sum(at)?);
        Some((Self { index, sum, bytes }, content.plan().chunk(at)?))
    }

    /// The frame up to its bytes.
    pub fn head(&self) -> [u8; HEADER_BYTES + CHUNK_HEAD as usize] {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX).saturating_add(CHUNK_HEAD);
        let [a, b, c, d, e, f, g, h] = Header { len, kind: kind::CHUNK_OF_WEIGHTS }.bytes();
        let [i, j, k, l] = self.index.to_le_bytes();
        let [m, n, o, p, q, r, s, t] = self.sum.to_le_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t]
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
        Ok(Self { index, sum, bytes: reader.rest() })
    }
}

/// Appends a frame that has the serial number of a publication and nothing else: an END, a CUT or a RELEASE.
pub fn write_serial(out: &mut Vec<u8>, kind: u8, serial: u64) {
    frame(out, kind, |out| serial.encode(out));
}

/// Reads the payload of an END, a CUT or a RELEASE.
pub fn read_serial(payload: &[u8]) -> Result<u64, WireError> {
    let mut reader = Reader::new(payload);
    let serial = reader.u64("number of a publication")?;
    reader.end("a frame about a publication")?;
    Ok(serial)
}

impl Region {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::REGION, |out| {
            self.id.encode(out);
            self.len.encode(out);
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let region =
            Self { id: reader.u64("number of a region")?, len: reader.u64("bytes of a region")? };
        reader.end("REGION")?;
        Ok(region)
    }
}

impl Publish {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::PUBLISH, |out| {
            self.version.encode(out);
            self.timeout_ms.unwrap_or(u64::MAX).encode(out);
            out.push(self.content.is_some().into());
            if let Some((plan, sums)) = &self.content {
                write_plan(out, plan);
                sums.encode(out);
            }
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let version = reader.u64("version")?;
        let timeout_ms = Some(reader.u64("timeout")?).filter(|timeout| *timeout < u64::MAX);
        let content = match reader.flag("whether there are bytes")? {
            false => None,
            true => {
                let plan = read_plan(&mut reader)?;
                let sums: Vec<u64> = reader.get("sums")?;
                if sums.len() != plan.chunks() {
                    return Err(WireError::Sequence {
                        field: "number of sums",
                        expected: plan.chunks() as u64,
                        got: sums.len() as u64,
                    });
                }
                Some((plan, sums))
            }
        };
        reader.end("PUBLISH")?;
        Ok(Self { version, timeout_ms, content })
    }
}

/// Appends a NEED of these chunks.
pub fn write_need(out: &mut Vec<u8>, chunks: &[u32]) {
    frame(out, kind::NEED, |out| {
        chunks.encode(out);
    });
}

/// Reads the payload of a NEED.
pub fn read_need(payload: &[u8]) -> Result<Vec<u32>, WireError> {
    let mut reader = Reader::new(payload);
    let chunks = reader.get("chunks")?;
    reader.end("NEED")?;
    Ok(chunks)
}

impl Receipt {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (code, latest, text) = match self {
            Self::Published => (0u8, 0u64, ""),
            Self::Stale { latest } => (1, *latest, ""),
            Self::Leased => (2, 0, ""),
            Self::Closed => (3, 0, ""),
            Self::Failed(text) => (4, 0, text.as_str()),
            Self::Same => (5, 0, ""),
        };
        frame(out, kind::RECEIPT, |out| {
            out.push(code);
            latest.encode(out);
            write_text(out, text, MAX_TEXT);
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let code = reader.u8("what became of it")?;
        let latest = reader.u64("latest version")?;
        let text = reader.text("why it failed", MAX_TEXT)?.to_owned();
        reader.end("RECEIPT")?;
        match code {
            0 => Ok(Self::Published),
            1 => Ok(Self::Stale { latest }),
            2 => Ok(Self::Leased),
            3 => Ok(Self::Closed),
            4 => Ok(Self::Failed(text)),
            5 => Ok(Self::Same),
            got => Err(WireError::meaningless("what became of it", got.into())),
        }
    }
}
