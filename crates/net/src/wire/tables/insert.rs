//! Items on their way into tables.
//!
//! Rows and items are operations: they have consecutive numbers, which acknowledgements count. Signatures
//! and chunks have numbers that the client chooses and that mean something on one connection only.

use echoic_replay::codec::{Decode, Encode, Reader};
use echoic_replay::fields;
use echoic_replay::trajectory::Signature;

use super::{MAX_INSERT, MAX_ITEM, MAX_ROWS, MAX_SLICES};
use crate::wire::frame::{HEADER_BYTES, Header, frame, kind};
use crate::wire::{WireError, read_whole};

/// Bytes of a ROWS frame's payload before its priorities.
const ROWS_BYTES: usize = 25;

/// What a ROWS frame starts with; priorities and rows follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsHead {
    /// Number of the first row.
    pub first: u64,
    /// Place in the list of tables.
    pub table: u32,
    /// How many rows: at least one.
    pub count: u32,
    /// The policy version with which they were made; the table's, when `None`.
    pub version: Option<u64>,
}

/// Steps of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceHead {
    /// Number of the chunk.
    pub chunk: u64,
    /// The first step.
    pub offset: u32,
    /// How many.
    pub len: u32,
}

/// An item that names slices of chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemHead {
    /// Number of the operation.
    pub sequence: u64,
    /// Place in the list of tables.
    pub table: u32,
    /// Finite and not negative.
    pub priority: f64,
    /// The policy version with which it was made; the table's, when `None`.
    pub version: Option<u64>,
    /// Number of the signature.
    pub signature: u32,
    /// For each column of the signature, its slices.
    pub columns: Vec<Vec<SliceHead>>,
}

/// What trajectories look like, under a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureHead {
    /// Its number.
    pub id: u32,
    /// What they look like.
    pub signature: Signature,
}

/// Chunks that no later item names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Their numbers.
    pub chunks: Vec<u64>,
}

/// A flag, and the version or zero.
fn write_version(out: &mut Vec<u8>, version: Option<u64>) {
    out.push(version.is_some().into());
    version.unwrap_or(0).encode(out);
}

fn read_version(reader: &mut Reader<'_>) -> Result<Option<u64>, WireError> {
    let given = reader.flag("whether a version is given")?;
    match (given, reader.u64("version")?) {
        (true, version) => Ok(Some(version)),
        (false, 0) => Ok(None),
        (false, got) => Err(WireError::meaningless("version", got)),
    }
}

impl RowsHead {
    /// Appends the start of a frame whose rows have `row_bytes` each: header, head and priorities.
    /// `None` when they are too many for one frame, and then nothing is appended.
    pub fn write(&self, out: &mut Vec<u8>, priorities: &[f64], row_bytes: usize) -> Option<()> {
        let len = rows_len(self.count, row_bytes)?;
        out.extend_from_slice(&Header { len, kind: kind::ROWS }.bytes());
        self.first.encode(out);
        self.table.encode(out);
        self.count.encode(out);
        write_version(out, self.version);
        f64::encode_all(priorities, out);
        Some(())
    }

    /// Reads the payload: the head, the priorities, and the bytes of the rows. `row_bytes` says how long
    /// the rows of a table are.
    pub fn read(
        payload: &[u8],
        row_bytes: impl FnOnce(u32) -> Result<usize, WireError>,
    ) -> Result<(Self, Vec<f64>, &[u8]), WireError> {
        let mut reader = Reader::new(payload);
        let first = reader.u64("first row")?;
        let table = reader.u32("number of a table")?;
        let count = reader.u32_at_most("number of rows", MAX_ROWS)?;
        if count == 0 {
            return Err(WireError::meaningless("number of rows", 0));
        }
        if first.checked_add(count.into()).is_none() {
            return Err(WireError::meaningless("first row", first));
        }
        let version = read_version(&mut reader)?;
        let priorities = f64::decode_all(&mut reader, "priorities", count as usize)?;
        let bytes = (count as usize).saturating_mul(row_bytes(table)?);
        let rows = reader.bytes("rows", bytes)?;
        reader.end("ROWS")?;
        Ok((Self { first, table, count, version }, priorities, rows))
    }
}

/// Length of the payload of a ROWS frame.
fn rows_len(count: u32, row_bytes: usize) -> Option<u32> {
    let each = row_bytes.checked_add(size_of::<f64>())?;
    let len = (count as usize).checked_mul(each)?.checked_add(ROWS_BYTES)?;
    u32::try_from(len).ok().filter(|len| *len <= MAX_INSERT)
}

/// The most rows of this size that one frame should have, given what it should weigh. `None` when not
/// even one fits.
pub fn rows_per_frame(row_bytes: usize, target_bytes: usize) -> Option<u32> {
    rows_len(1, row_bytes)?;
    let each = row_bytes.saturating_add(size_of::<f64>());
    let fitting = target_bytes.checked_div(each).unwrap_or(1).max(1);
    Some(u32::try_from(fitting).unwrap_or(u32::MAX).min(MAX_ROWS))
}

impl ItemHead {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        frame(out, kind::ITEM, |out| self.encode(out));
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        let item: Self = read_whole(payload, "ITEM")?;
        if item.sequence == u64::MAX {
            return Err(WireError::meaningless("number of an item", item.sequence));
        }
        let slices: usize = item.columns.iter().map(Vec::len).sum();
        WireError::check_most("number of slices", MAX_SLICES, slices)?;
        Ok(item)
    }
}

fields! {
    SliceHead { chunk: u64, offset: u32, len: u32 }
    ItemHead {
        sequence: u64,
        table: u32,
        priority: f64,
        version: Option<u64>,
        signature: u32,
        columns: Vec<Vec<SliceHead>>,
    }
    SignatureHead { id: u32, signature: Signature }
    Release { chunks: Vec<u64> }
}

impl SignatureHead {
    /// Appends the frame.
    pub fn write(out: &mut Vec<u8>, id: u32, signature: &Signature) {
        frame(out, kind::SIGNATURE, |out| {
            id.encode(out);
            signature.encode(out);
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        read_whole(payload, "SIGNATURE")
    }

    /// What keeps a signature from going over the wire.
    ///
    /// # Errors
    ///
    /// [`WireError::Codec`] names the limit.
    pub fn check(signature: &Signature) -> Result<(), WireError> {
        WireError::check_bytes("length of a signature", MAX_ITEM - 64, signature)
    }
}

impl Release {
    /// Appends the frame.
    pub fn write(out: &mut Vec<u8>, chunks: &[u64]) {
        frame(out, kind::RELEASE, |out| {
            chunks.encode(out);
        });
    }

    /// Reads the payload.
    pub fn read(payload: &[u8]) -> Result<Self, WireError> {
        read_whole(payload, "RELEASE")
    }
}

/// Appends the frame of a chunk whose serial form `write` appends. `false` when that is too long, and then
/// nothing is appended.
pub fn write_chunk(out: &mut Vec<u8>, id: u64, write: impl FnOnce(&mut Vec<u8>)) -> bool {
    let start = out.len();
    frame(out, kind::CHUNK, |out| {
        id.encode(out);
        write(out);
    });
    let len = out.len().saturating_sub(start).saturating_sub(HEADER_BYTES);
    if len > MAX_INSERT as usize {
        out.truncate(start);
        return false;
    }
    true
}
