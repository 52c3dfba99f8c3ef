//! The values of rollout tables as bytes. Each is listed here once, and journals, checkpoints and connections have the
//! same.
//!
//! What is large, the tokens and blobs, is apart from the rest: a *head* that is read, and a
//! [*bulk*](crate::codec::Bulk) that is only copied, and may lie in other memory. The bulk of several values is that of
//! each, one after the other.
//!
//! Whether a value makes sense is for [`Change::check`] and [`RolloutConfig::check`] to say, not for the reader.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::batch::{BlobPlace, Form, Shape};
use super::config::{Delivery, OnExpiry, OnStale, Order, RolloutConfig};
use super::filter::{self, Filter};
use super::idle::{REASONS, Sides};
use super::item::{ColumnUpdate, Finish, Item, Run, Segment, Updates};
use super::ledger::{
    Append, Balance, Blocked, Change, ChangeError, Counts, GroupStatus, GroupTotals, Hold, Lease,
    Outcome, Progress, Reservation, Reserve, Size, Source, Update, Want,
};
use super::schema::{Column, Late, Schema};
use super::starvation::Hunger;
use super::table::{CallError, RolloutInfo};
use crate::WaitReason;
use crate::codec::{AGAIN, CodecError, Decode, Encode, Reader, write_count};
use crate::limiter::Parameters;
use crate::spec::Dtype;
use crate::waits::Waits;
use crate::{fields, variants};

// What may happen.
variants! {
    Change {
        1 => Reserve(reserve: Reserve),
        2 => Append(append: Append),
        3 => Fail { holds: Vec<Hold> },
        4 => Suspend { holds: Vec<Hold> },
        5 => Resume { source: String, ttl_ms: Option<u64> },
        6 => Renew { holds: Vec<Hold> },
        7 => Publish { version: i64 },
        8 => Sample(want: Want),
        9 => Ack(lease: Lease),
        10 => Nack(lease: Lease),
        11 => Extend { lease: Lease, lease_ms: u64 },
        12 => Remove { groups: Vec<u64> },
        13 => Reprioritize { priorities: Vec<(u64, f64)> },
        14 => Tick,
        15 => Deepen { depth: u32 },
        16 => Restore { version: i64 },
        17 => Status { hold: Hold },
        18 => Pause { paused: bool },
        19 => AwaitVersion { above: i64 },
        20 => Update(update: Update),
    }
    Size { 0 => Groups(groups: u32), 1 => Tokens(tokens: u64) }
    Balance { 0 => Count, 1 => Tokens, 2 => Squares }
    Form { 0 => Flat, 1 => Padded { width: u32, left: bool }, 2 => Packed { width: u32 } }
}

fields! {
    Reserve {
        count: u32,
        source: String,
        keys: Vec<String>,
        version: Option<i64>,
        ttl_ms: Option<u64>,
    }
    Append {
        hold: Hold,
        item: u32,
        sequence: u32,
        priority: f64,
        segment: Arc<Segment>,
        finish: Option<Arc<Finish>>,
    }
    Update { hold: Hold, item: u32, values: Updates }
    Updates { columns: Vec<ColumnUpdate>, fields: Vec<(u32, Vec<u8>)> }
    Hold { group: u64, attempt: u32 }
    Lease { batch: u64, rank: u32, attempt: u32 }
    Want { size: Size, rank: u32, ranks: u32, balance: Balance, lease_ms: Option<u64>, width: u32 }
}

// What comes of it. `Outcome` is below.
fields! {
    Reservation { hold: Hold, key: String, version: i64, ttl_ms: u64 }
    Progress { segments: u32, is_finished: bool }
    Item {
        index: u32,
        segments: SmallVec<[Arc<Segment>; 1]>,
        finish: Option<Arc<Finish>>,
        updates: Option<Arc<Updates>>,
    }
    Run { version: i64, tokens: u32 }
    BlobPlace { name: String, start: u64, bytes: u32 }
    Shape { groups: usize, items: usize, runs: usize, rows: usize, width: usize, blob_bytes: usize }
}

variants! {
    GroupStatus {
        0 => Running,
        1 => Complete,
        2 => Filtered,
        3 => Rejected,
        4 => Expired,
        5 => Stale,
        6 => Over,
        7 => Delivered,
    }
    CallError {
        0 => TimedOut(blocked: Blocked),
        1 => Interrupted,
        2 => Closed,
        3 => Journal(cause: String),
        4 => Refused(refusal: ChangeError),
    }
    ChangeError {
        0 => Blocked(blocked: Blocked),
        1 => Value { what: Cow<'static, str>, expected: String, got: String },
        2 => Fenced { lease: Lease, why: Cow<'static, str> },
        3 => Unknown(group: u64),
        4 => TooLong { item: u32, length: u32, width: u32 },
    }
    Blocked {
        0 => Running(max_running: u32),
        1 => Full(capacity: u32),
        2 => Ahead { groups: u64, most: u64, version: i64 },
        3 => NoneSuspended,
        4 => TooFew { complete: u64, wanted: u64 },
        5 => Incomplete(group: u64),
        6 => Shipping { version: i64, needed: i64 },
        7 => MeanLag,
        8 => Leased(leased: u64),
        9 => Limiter(reason: WaitReason),
        10 => Paused,
        11 => Early { version: i64, target: i64 },
        12 => Unpublished { there: u64, wanted: u64, per_version: u64, version: i64, needed: i64 },
    }
}

// The numbers of a table. `Counts` list themselves.
fields! {
    RolloutInfo {
        counts: Counts,
        totals: GroupTotals,
        sources: Vec<Source>,
        hunger: Vec<Hunger>,
        time: u64,
        producers: Sides,
        consumers: Sides,
    }
    GroupTotals {
        version: i64,
        target: i64,
        depth: Option<u32>,
        room: u64,
        queued: u64,
        out: u64,
        suspended: u64,
        oldest: Option<i64>,
        paused: bool,
    }
    Source {
        name: String,
        submitted: u64,
        accepted: u64,
        rejected: u64,
        filtered: u64,
        running: u64,
        tokens: u64,
        delivered: u64,
        last_reserved: Option<u64>,
    }
    Hunger {
        source: String,
        waiting: u64,
        oldest_ms: u64,
        passed: u64,
        longest_ms: u64,
        is_starving: bool,
    }
    Waits { waiting: u64, limited: u64, nanos: u64; reason: None }
}

// Settings.
fields! {
    RolloutConfig {
        name: String,
        schema: Schema,
        group_size: u32,
        redundancy: u32,
        min_group_size: u32,
        batch_groups: u32,
        batches_per_version: u32,
        max_running: u32,
        capacity: u32,
        max_tokens: u32,
        max_blob_bytes: u32,
        max_uses: u32,
        group_deadline_ms: Option<u64>,
        max_lag: Option<u32>,
        pipeline_depth: Option<u32>,
        target_lag: Option<u32>,
        auto_tune: bool,
        order: Order,
        on_stale: OnStale,
        delivery: Delivery,
        on_expiry: OnExpiry,
        max_mean_lag: Option<f64>,
        reservation_ttl_ms: u64,
        seed: u64,
        filter: Option<Filter>,
        limiter: Option<Parameters>,
    }
    Schema { columns: Vec<Column>, fields: Vec<Column>, mask: Option<usize>, late: Late }
    Late { columns: u64, fields: u64 }
    Column { name: String, dtype: Dtype }
    Parameters { min_size: u64, samples_per_insert: f64, min_diff: f64, max_diff: f64 }
}

variants! {
    Order {
        0 => Ready,
        1 => Submission,
        2 => Window(window: u32),
        3 => Freshest,
        4 => Oldest,
        5 => Weighted,
    }
    OnStale { 0 => Drop, 1 => Wait, 2 => Keep, 3 => Mask }
    Delivery { 0 => AtLeastOnce, 1 => AtMostOnce }
    OnExpiry { 0 => Reject, 1 => Suspend }
}

impl Encode for Sides {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for Sides {
    const LEAST: usize = <[Waits; REASONS.len()]>::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        from.get(field).map(Self)
    }
}

/// A share of a batch is sent in another way; here, it is as if there were nothing to say.
impl Encode for Outcome {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done | Self::Delivered(_) => out.push(0),
            Self::Reserved(reservations) => (1_u8, reservations).encode(out),
            Self::Resumed(reservation, items) => {
                (2_u8, reservation).encode(out);
                items.encode(out);
            }
            Self::Appended(status) => (3_u8, status).encode(out),
            Self::Count(count) => (4_u8, count).encode(out),
            Self::Progress(items) => (5_u8, items).encode(out),
        }
    }
}

impl Decode for Outcome {
    const LEAST: usize = 1;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        Ok(match from.u8(field)? {
            0 => Self::Done,
            1 => Self::Reserved(from.get("reservations")?),
            2 => Self::Resumed(from.get("reservation")?, from.get("items")?),
            3 => Self::Appended(from.get("status of a group")?),
            4 => Self::Count(from.get("count")?),
            5 => Self::Progress(from.get("items")?),
            got => return Err(CodecError::Meaningless { field, got: got.into() }),
        })
    }
}

/// As text, and as it was understood: so a filter has one form.
impl Encode for Filter {
    fn encode(&self, out: &mut Vec<u8>) {
        self.to_string().as_bytes().encode(out);
    }
}

impl Decode for Filter {
    const LEAST: usize = 4;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let len = from.u32_at_most(field, filter::MAX_LENGTH as u32)?;
        let text = std::str::from_utf8(from.bytes(field, len as usize)?);
        let text = text.map_err(|_| CodecError::NotText { field })?;
        let filter = Self::parse(text).ok().filter(|filter| filter.to_string() == text);
        filter.ok_or(CodecError::Meaningless { field, got: len.into() })
    }
}

/// The tokens are in the bulk.
impl Encode for Segment {
    fn encode(&self, out: &mut Vec<u8>) {
        self.tokens.encode(out);
        write_count(out, self.bytes.len());
        self.absent.encode(out);
        self.runs.encode(out);
    }
}

impl Decode for Segment {
    const LEAST: usize = 20;

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<Self, CodecError> {
        let (tokens, bytes) = (from.get("tokens")?, from.piece("bytes of tokens")?);
        Ok(Self { tokens, bytes, absent: from.get("columns left out")?, runs: from.get("runs")? })
    }
}

/// The values are in the bulk.
impl Encode for ColumnUpdate {
    fn encode(&self, out: &mut Vec<u8>) {
        self.column.encode(out);
        self.tokens.encode(out);
        write_count(out, self.bytes.len());
    }
}

impl Decode for ColumnUpdate {
    const LEAST: usize = 12;

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<Self, CodecError> {
        let (column, tokens) = (from.get("place of a column")?, from.get("tokens")?);
        Ok(Self { column, tokens, bytes: Arc::new(from.piece("bytes of a column")?) })
    }
}

impl Updates {
    fn bulk(&self) -> impl Iterator<Item = &[u8]> {
        self.columns.iter().map(|update| update.bytes.as_slice())
    }
}

/// The blobs are in the bulk.
impl Encode for Finish {
    fn encode(&self, out: &mut Vec<u8>) {
        self.fields.encode(out);
        self.absent.encode(out);
        write_count(out, self.blobs.len());
        for (name, bytes) in &self.blobs {
            name.encode(out);
            write_count(out, bytes.len());
        }
    }
}

impl Decode for Finish {
    const LEAST: usize = 16;

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<Self, CodecError> {
        let (fields, absent) = (from.get("fields")?, from.get("fields left out")?);
        let count = from.count::<(String, u32)>("blobs")?;
        let mut blobs = Vec::with_capacity(count);
        for _ in 0..count {
            blobs.push((from.get("name of a blob")?, from.shared_piece("bytes of a blob")?));
        }
        Ok(Self { fields, absent, blobs })
    }
}

impl Finish {
    fn bulk(&self) -> impl Iterator<Item = &[u8]> {
        self.blobs.iter().map(|(_, bytes)| bytes.as_slice())
    }
}

impl Change {
    /// The bulk, piece by piece.
    pub fn bulk(&self) -> impl Iterator<Item = &[u8]> {
        let (append, update) = match self {
            Self::Append(append) => (Some(append), None),
            Self::Update(update) => (None, Some(update)),
            _ => (None, None),
        };
        let append = append.into_iter().flat_map(|Append { segment, finish, .. }| {
            let blobs = finish.iter().flat_map(|finish| finish.bulk());
            std::iter::once(&*segment.bytes).chain(blobs)
        });
        append.chain(update.into_iter().flat_map(|update| update.values.bulk()))
    }
}

impl Outcome {
    /// The bulk, piece by piece.
    pub fn bulk(&self) -> impl Iterator<Item = &[u8]> {
        let items = if let Self::Resumed(_, items) = self { &**items } else { &[] };
        items.iter().flat_map(Item::bulk)
    }
}

impl Item {
    /// The bulk, piece by piece.
    pub fn bulk(&self) -> impl Iterator<Item = &[u8]> {
        let tokens = self.segments.iter().map(|segment| &*segment.bytes);
        let blobs = self.finish.iter().flat_map(|finish| finish.bulk());
        tokens.chain(blobs).chain(self.updates.iter().flat_map(|updates| updates.bulk()))
    }
}

/// The bytes of a blob, for the head of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobHead {
    /// So many, in the bulk.
    Bytes(u32),
    /// Those of the blob with this number of those in the bulk of the request.
    Again(u32),
}

impl Encode for BlobHead {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => bytes.encode(out),
            Self::Again(number) => (AGAIN, *number).encode(out),
        }
    }
}

/// The fields of an item and those that are left out, and its blobs.
pub type FinishHead<'a> = ((&'a [u8], u64), &'a [(&'a str, BlobHead)]);

/// The description of tokens whose bytes are in the bulk. It has the bytes of a [`Change::Append`], for callers without
/// tokens of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AppendHead<'a> {
    /// To which group.
    pub hold: Hold,
    /// To which of its items.
    pub item: u32,
    /// How many segments the item has before.
    pub sequence: u32,
    /// See [`Append::priority`].
    pub priority: f64,
    /// How many tokens.
    pub tokens: u32,
    /// How many bytes they have.
    pub bytes: u32,
    /// See [`Segment::absent`].
    pub absent: u64,
    /// The versions that made them.
    pub runs: &'a [Run],
    /// The rest, if the item ends here.
    pub finish: Option<FinishHead<'a>>,
}

impl Encode for AppendHead<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        let Self { hold, item, sequence, priority, tokens, bytes, absent, runs, finish } = self;
        out.push(2);
        hold.encode(out);
        item.encode(out);
        sequence.encode(out);
        priority.encode(out);
        tokens.encode(out);
        bytes.encode(out);
        absent.encode(out);
        runs.encode(out);
        finish.encode(out);
    }
}

impl GroupStatus {
    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Filtered => "filtered",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Stale => "stale",
            Self::Over => "over",
            Self::Delivered => "delivered",
        }
    }
}
