//! Changes and wishes, on their way to a rollout table, and what came of them.

use std::borrow::Cow;
use std::sync::Arc;

use echoic_replay::codec::{CodecError, Encode, Reader};
use echoic_replay::rollouts::batch::Form;
use echoic_replay::rollouts::ledger::{Change, ChangeError, Outcome, Want};

use crate::wire::WireError;
use crate::wire::tables::{Area, MAX_REQUEST, Operation, Request};

/// The most changes of a request.
pub const MAX_CHANGES: u32 = 1 << 12;

/// Where the tokens and blobs of changes are.
#[derive(Debug, Clone, PartialEq)]
pub enum Bulk<'a> {
    /// Behind their heads.
    Inline(Cow<'a, [u8]>),
    /// In the client's arena.
    Area(Area),
}

/// Some changes of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes<'a> {
    /// For how many milliseconds the one that may wait may; for ever, when `None`.
    pub timeout_ms: Option<u64>,
    /// How many.
    pub count: u32,
    /// Their heads, one after the other.
    pub head: Cow<'a, [u8]>,
    /// The rest of them.
    pub bulk: Bulk<'a>,
}

/// The most bytes of changes, heads and bulk, that fit into one request.
pub const INLINE_BYTES: usize = MAX_REQUEST as usize - 64;
/// How many bytes of a bulk are sent in a part.
const PART_BYTES: usize = 8 << 20;

/// Appends a request of changes of which none may wait. Of a bulk that is more than a request may have, parts are sent
/// before it.
pub fn write_changes(
    out: &mut Vec<u8>,
    (id, table): (u64, u32),
    (count, head): (u32, &[u8]),
    mut bulk: &[u8],
) {
    while head.len().saturating_add(bulk.len()) > INLINE_BYTES
        && let Some((part, rest)) = bulk.split_at_checked(PART_BYTES.min(bulk.len()))
        && !part.is_empty()
    {
        Request { id, table, operation: Operation::RolloutPart(part.into()) }.write(out);
        bulk = rest;
    }
    let (timeout_ms, head, bulk) = (Some(0), head.into(), Bulk::Inline(bulk.into()));
    let operation = Operation::RolloutChanges(Changes { timeout_ms, count, head, bulk });
    Request { id, table, operation }.write(out);
}

/// A share of a batch that a consumer wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// Of what.
    pub want: Want,
    /// How it is to be laid out.
    pub form: Form,
    /// How many milliseconds it may wait; for ever, when `None`.
    pub timeout_ms: Option<u64>,
    /// Where in the client's arena it may go.
    pub area: Option<Area>,
}

/// The bulk of a request, in which a blob may be there again.
struct Kept<'a> {
    left: Reader<'a>,
    pieces: Vec<Arc<Vec<u8>>>,
}

impl echoic_replay::codec::Bulk for Kept<'_> {
    fn piece(&mut self, field: &'static str, len: u32) -> Result<Vec<u8>, CodecError> {
        echoic_replay::codec::Bulk::piece(&mut self.left, field, len)
    }

    fn keep(&mut self, piece: &Arc<Vec<u8>>) {
        self.pieces.push(Arc::clone(piece));
    }

    fn again(&mut self, number: u32) -> Option<Arc<Vec<u8>>> {
        self.pieces.get(number as usize).map(Arc::clone)
    }
}

impl Changes<'_> {
    /// The changes, whose bulk is this. One that may be kept waiting must be alone, and a sample is not among them.
    pub fn decode(&self, bulk: &[u8]) -> Result<Vec<Change>, WireError> {
        let mut bulk = Kept { left: Reader::new(bulk), pieces: Vec::new() };
        let mut head = Reader::with_bulk(&self.head, &mut bulk);
        // Each has a byte at least, so this is memory for what is there.
        let mut changes = Vec::with_capacity((self.count as usize).min(self.head.len()));
        for _ in 0..self.count {
            let change: Change = head.get("change")?;
            let waits = change.side().is_some();
            if matches!(change, Change::Sample(_)) || (waits && self.count != 1) {
                let (field, got) = ("change that waits among others", self.count.into());
                return Err(WireError::meaningless(field, got));
            }
            changes.push(change);
        }
        head.end("changes")?;
        bulk.left.end("bulk of changes")?;
        Ok(changes)
    }
}

impl Wish {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.want.encode(out);
        self.form.encode(out);
    }

    /// What [`Wish::write`] wrote; timeout and area are sent beside it.
    pub(crate) fn read(
        reader: &mut Reader<'_>,
        timeout_ms: Option<u64>,
        area: Option<Area>,
    ) -> Result<Self, WireError> {
        let (want, form) = (reader.get("want")?, reader.get("form of a batch")?);
        Ok(Self { want, form, timeout_ms, area })
    }
}

/// What came of each of some changes, in their order.
pub type Outcomes = Vec<Result<Outcome, ChangeError>>;

/// Appends outcomes: the length of their heads, the heads, and their bulk. A share of a batch is sent in another way; here,
/// it is as if there were nothing to say.
pub fn write_outcomes(out: &mut Vec<u8>, outcomes: &[Result<Outcome, ChangeError>]) {
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
