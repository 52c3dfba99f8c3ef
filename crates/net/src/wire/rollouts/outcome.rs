//! What came of changes.

use echoic_replay::codec::{Encode, Reader};
use echoic_replay::rollouts::ledger::{Outcome, Refusal};

use crate::wire::WireError;

/// What came of each of some changes, in their order.
pub type Outcomes = Vec<Result<Outcome, Refusal>>;

/// Appends outcomes: the length of their heads, the heads, and their bulk. A share of a batch is sent in another way; here,
/// it is as if there were nothing to say.
pub fn write_outcomes(out: &mut Vec<u8>, outcomes: &[Result<Outcome, Refusal>]) {
    let start = out.len();
    0_u32.encode(out);
    outcomes.encode(out);
    let len = out.len().saturating_sub(start).saturating_sub(4);
    if let Some(place) = out.get_mut(start..).and_then(|outcomes| outcomes.first_chunk_mut()) {
        *place = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    }
    let bulk = outcomes.iter().flatten().flat_map(Outcome::bulk);
    bulk.for_each(|piece| out.extend_from_slice(piece));
}

/// What [`write_outcomes`] wrote.
pub fn read_outcomes(reader: &mut Reader<'_>) -> Result<Outcomes, WireError> {
    let len = reader.u32("length of outcomes")?;
    let head = reader.bytes("outcomes", len as usize)?;
    let mut head = Reader::with_bulk(head, reader);
    let outcomes = head.get("outcome")?;
    head.end("outcomes")?;
    Ok(outcomes)
}
