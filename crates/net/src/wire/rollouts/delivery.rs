//! A share of a batch on its way to a consumer: its description, then its arrays as one piece of memory.
//!
//! That piece begins at a multiple of [`ALIGNMENT`] from the start of the payload, so that a payload that is read to
//! such an address can be looked at where it is; or it is in the client's arena.

use std::collections::HashSet;

use echoic_replay::codec::{Encode, Reader};
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::{BlobPlace, Head};

use crate::wire::WireError;
use crate::wire::tables::{ALIGNMENT, MAX_BATCH};

/// All of a share but its arrays.
#[derive(Debug, Clone, PartialEq)]
pub struct DeliveryHead {
    /// To which request.
    pub id: u64,
    /// Its description.
    pub head: Head,
}

impl DeliveryHead {
    /// Appends the payload up to where arrays may follow.
    pub fn write(out: &mut Vec<u8>, id: u64, head: &Head) {
        id.encode(out);
        head.encode(out);
    }

    /// Reads the start of a payload, of arrays that have at most this many bytes; how many bytes it has.
    pub fn read(payload: &[u8], most: usize) -> Result<(Self, usize), WireError> {
        let mut reader = Reader::new(payload);
        let id = reader.u64("number of a request")?;
        let head = Head::read(&mut reader, most)?;
        Ok((Self { id, head }, payload.len().saturating_sub(reader.left())))
    }

    /// Where the arrays begin in a payload that begins with this many bytes, and where it ends.
    ///
    /// # Errors
    ///
    /// [`WireError::Codec`] when they do not fit.
    pub fn place(used: usize, bytes: usize) -> Result<(usize, usize), WireError> {
        let start = used.checked_next_multiple_of(ALIGNMENT);
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= MAX_BATCH as usize => Ok((start, end)),
            _ => {
                let (limit, got) = (MAX_BATCH.into(), used.saturating_add(bytes) as u64);
                Err(WireError::too_large("length of a batch", limit, got))
            }
        }
    }

    /// How many bytes the arrays have, in a table with these settings; checks that the sizes are consistent.
    pub fn bytes(&self, config: &RolloutConfig) -> Result<usize, WireError> {
        let Head { shape, blobs, .. } = &self.head;
        // Each is behind those before it, or where one of them is.
        let (mut known, mut end) = (HashSet::new(), 0_u64);
        for BlobPlace { start, bytes, .. } in blobs.iter().flatten() {
            if known.insert((*start, *bytes)) {
                if *start != end {
                    let (expected, got) = (end, *start);
                    return Err(WireError::Sequence { field: "place of a blob", expected, got });
                }
                end = end.saturating_add((*bytes).into());
            }
        }
        if end != shape.blob_bytes as u64 {
            let (expected, got) = (shape.blob_bytes as u64, end);
            return Err(WireError::Sequence { field: "bytes of blobs", expected, got });
        }
        let arrays = shape.arrays(config);
        let (field, limit) = ("length of a batch", MAX_BATCH.into());
        let arrays = arrays.map_err(|_| WireError::too_large(field, limit, u64::MAX))?;
        Ok(arrays.bytes)
    }
}
