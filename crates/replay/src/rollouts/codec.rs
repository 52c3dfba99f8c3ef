//! Changes and their outcomes as bytes, for journals, checkpoints and connections.
//!
//! What is large, the tokens and blobs, is apart from the rest: a *head* that is read, and a *bulk* that is only
//! copied, and may lie in other memory. The bulk of several changes is that of each, one after the other.

use std::sync::Arc;

use smallvec::SmallVec;

use super::item::{Finish, Run, Segment};
use super::ledger::{Admit, Append, Balance, Change, Fate, Hold, Lease, Size, Want};
use super::schema::MAX_BLOBS;
use crate::codec::{CodecError, Reader};

/// The most groups that a change names.
pub const MAX_NAMED: u32 = 1 << 16;
/// Bytes that are written.
pub trait Put {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends a number of one byte.
    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Appends a number of four bytes.
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a number of eight bytes.
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a signed number of eight bytes.
    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a double.
    fn put_f64(&mut self, value: f64) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a number that may be none, which is the largest number.
    fn put_maybe(&mut self, value: Option<u64>) {
        self.put_u64(value.unwrap_or(u64::MAX));
    }

    /// Appends a length and text.
    fn put_text(&mut self, text: &str) {
        self.put_u32(text.len() as u32);
        self.put(text.as_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends a version that may be none.
fn put_version(out: &mut impl Put, version: Option<i64>) {
    out.put_i64(version.unwrap_or(i64::MIN));
}

fn take_version(take: &mut Reader<'_>, field: &'static str) -> Result<Option<i64>, CodecError> {
    take.i64(field).map(|version| (version != i64::MIN).then_some(version))
}

fn put_holds(out: &mut impl Put, holds: &[Hold]) {
    out.put_u32(holds.len() as u32);
    holds.iter().for_each(|hold| put_hold(out, *hold));
}

fn put_hold(out: &mut impl Put, hold: Hold) {
    out.put_u64(hold.group);
    out.put_u32(hold.attempt);
}

fn take_hold(take: &mut Reader<'_>) -> Result<Hold, CodecError> {
    Ok(Hold { group: take.u64("group")?, attempt: take.u32("attempt")? })
}

fn take_holds(take: &mut Reader<'_>) -> Result<Vec<Hold>, CodecError> {
    let count = take.count("number of groups", MAX_NAMED, 12)?;
    (0..count).map(|_| take_hold(take)).collect()
}

/// Appends a lease.
pub fn put_lease(out: &mut impl Put, lease: &Lease) {
    out.put_u64(lease.batch);
    out.put_u32(lease.rank);
    out.put_u32(lease.attempt);
}

/// What [`put_lease`] wrote.
pub fn take_lease(take: &mut Reader<'_>) -> Result<Lease, CodecError> {
    let (batch, rank) = (take.u64("number of a batch")?, take.u32("rank")?);
    Ok(Lease { batch, rank, attempt: take.u32("attempt")? })
}

/// The fields of an item, and the names and lengths of its blobs.
pub type FinishHead<'a> = (&'a [u8], &'a [(&'a str, u32)]);

/// What is told of tokens whose bytes are in the bulk.
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
    /// The versions that made them.
    pub runs: &'a [Run],
    /// The rest, if the item ends here.
    pub finish: Option<FinishHead<'a>>,
}

impl AppendHead<'_> {
    /// Appends the head of a change. Its bulk is the tokens, then the blobs.
    pub fn put(&self, out: &mut impl Put) {
        let Self { hold, item, sequence, priority, tokens, bytes, runs, finish } = self;
        out.put_u8(2);
        out.put_u64(hold.group);
        out.put_u32(hold.attempt);
        out.put_u32(*item);
        out.put_u32(*sequence);
        out.put_f64(*priority);
        out.put_u32(*tokens);
        out.put_u32(*bytes);
        out.put_u32(runs.len() as u32);
        for run in *runs {
            out.put_i64(run.version);
            out.put_u32(run.tokens);
        }
        out.put_u8(finish.is_some().into());
        let Some((fields, blobs)) = finish else { return };
        out.put_u32(fields.len() as u32);
        out.put(fields);
        out.put_u32(blobs.len() as u32);
        for (name, len) in *blobs {
            out.put_text(name);
            out.put_u32(*len);
        }
    }
}

fn take_append(take: &mut Reader<'_>, bulk: &mut Reader<'_>) -> Result<Append, CodecError> {
    let (hold, item) = (take_hold(take)?, take.u32("item")?);
    let (sequence, priority) = (take.u32("number of a segment")?, take.f64("priority")?);
    let (tokens, len) = (take.u32("tokens")?, take.u32("bytes of a segment")?);
    let count = take.count("number of versions", u32::MAX, 12)?;
    let mut runs = SmallVec::with_capacity(count);
    for _ in 0..count {
        runs.push(Run { version: take.i64("version")?, tokens: take.u32("tokens of a version")? });
    }
    let finish = if take.flag("end of an item")? {
        let len = take.count("bytes of fields", u32::MAX, 1)?;
        let fields = take.bytes("fields", len)?.to_vec();
        let count = take.count("number of blobs", MAX_BLOBS as u32, 8)?;
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            names.push((take.string("name of a blob")?, take.u32("bytes of a blob")?));
        }
        Some((fields, names))
    } else {
        None
    };
    let bytes = bulk.bytes("tokens", len as usize)?.to_vec();
    let segment = Arc::new(Segment { runs, tokens, bytes });
    let finish = match finish {
        Some((fields, names)) => {
            let mut blobs = Vec::with_capacity(names.len());
            for (name, len) in names {
                blobs.push((name, bulk.bytes("blob", len as usize)?.to_vec()));
            }
            Some(Arc::new(Finish { fields, blobs }))
        }
        None => None,
    };
    Ok(Append { hold, item, sequence, segment, finish, priority })
}

impl Change {
    /// Appends its head, and gives its bulk piece by piece.
    pub fn put<'a>(&'a self, out: &mut impl Put, mut bulk: impl FnMut(&'a [u8])) {
        match self {
            Self::Admit(Admit { count, source, key, version, ttl_ms }) => {
                out.put_u8(1);
                out.put_u32(*count);
                out.put_text(source);
                out.put_text(key);
                put_version(out, *version);
                out.put_maybe(*ttl_ms);
            }
            Self::Append(Append { hold, item, sequence, segment, finish, priority }) => {
                let blobs: Vec<(&str, u32)> = finish
                    .iter()
                    .flat_map(|finish| &finish.blobs)
                    .map(|(name, bytes)| (name.as_str(), bytes.len() as u32))
                    .collect();
                let (hold, item, sequence, priority) = (*hold, *item, *sequence, *priority);
                let (tokens, bytes) = (segment.tokens, segment.bytes.len() as u32);
                let runs = &segment.runs;
                let finish_head = finish.as_ref().map(|finish| (&*finish.fields, &*blobs));
                AppendHead {
                    hold,
                    item,
                    sequence,
                    priority,
                    tokens,
                    bytes,
                    runs,
                    finish: finish_head,
                }
                .put(out);
                bulk(&segment.bytes);
                if let Some(finish) = finish {
                    finish.blobs.iter().for_each(|(_, bytes)| bulk(bytes));
                }
            }
            Self::Fail { holds } => {
                out.put_u8(3);
                put_holds(out, holds);
            }
            Self::Suspend { holds } => {
                out.put_u8(4);
                put_holds(out, holds);
            }
            Self::Resume { source, ttl_ms } => {
                out.put_u8(5);
                out.put_text(source);
                out.put_maybe(*ttl_ms);
            }
            Self::Renew { holds } => {
                out.put_u8(6);
                put_holds(out, holds);
            }
            Self::Look { hold } => {
                out.put_u8(18);
                put_hold(out, *hold);
            }
            Self::Publish { version } => {
                out.put_u8(7);
                out.put_i64(*version);
            }
            Self::Sample(want) => {
                out.put_u8(8);
                want.put(out);
            }
            Self::Ack(lease) => {
                out.put_u8(9);
                put_lease(out, lease);
            }
            Self::Nack(lease) => {
                out.put_u8(10);
                put_lease(out, lease);
            }
            Self::Extend { lease, lease_ms } => {
                out.put_u8(11);
                put_lease(out, lease);
                out.put_u64(*lease_ms);
            }
            Self::Discard { groups } => {
                out.put_u8(12);
                out.put_u32(groups.len() as u32);
                groups.iter().for_each(|group| out.put_u64(*group));
            }
            Self::Reprioritize { priorities } => {
                out.put_u8(13);
                out.put_u32(priorities.len() as u32);
                for (group, priority) in priorities {
                    out.put_u64(*group);
                    out.put_f64(*priority);
                }
            }
            Self::Tick => out.put_u8(14),
            Self::Shed => out.put_u8(15),
            Self::Recall(want) => {
                out.put_u8(19);
                want.put(out);
            }
            Self::Deepen { depth } => {
                out.put_u8(16);
                out.put_u32(*depth);
            }
            Self::Restore { version } => {
                out.put_u8(17);
                out.put_i64(*version);
            }
        }
    }

    /// Reads a change whose bulk is the next in `bulk`.
    pub fn take(take: &mut Reader<'_>, bulk: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok(match take.u8("change")? {
            1 => Self::Admit(Admit {
                count: take.u32("groups to admit")?,
                source: take.string("name of a source")?,
                key: take.string("key of a group")?,
                version: take_version(take, "version")?,
                ttl_ms: take.maybe("ttl")?,
            }),
            2 => Self::Append(take_append(take, bulk)?),
            3 => Self::Fail { holds: take_holds(take)? },
            4 => Self::Suspend { holds: take_holds(take)? },
            5 => Self::Resume {
                source: take.string("name of a source")?,
                ttl_ms: take.maybe("ttl")?,
            },
            6 => Self::Renew { holds: take_holds(take)? },
            7 => Self::Publish { version: take.i64("version")? },
            8 => Self::Sample(Want::take(take)?),
            9 => Self::Ack(take_lease(take)?),
            10 => Self::Nack(take_lease(take)?),
            11 => Self::Extend { lease: take_lease(take)?, lease_ms: take.u64("lease")? },
            12 => {
                let count = take.count("number of groups", MAX_NAMED, 8)?;
                let groups = (0..count).map(|_| take.u64("group")).collect::<Result<_, _>>()?;
                Self::Discard { groups }
            }
            13 => {
                let count = take.count("number of groups", MAX_NAMED, 16)?;
                let mut priorities = Vec::with_capacity(count);
                for _ in 0..count {
                    priorities.push((take.u64("group")?, take.f64("priority")?));
                }
                Self::Reprioritize { priorities }
            }
            14 => Self::Tick,
            15 => Self::Shed,
            16 => Self::Deepen { depth: take.u32("pipeline_depth")? },
            17 => Self::Restore { version: take.i64("version")? },
            18 => Self::Look { hold: take_hold(take)? },
            19 => Self::Recall(Want::take(take)?),
            got => return Err(CodecError::Meaningless { field: "change", got: got.into() }),
        })
    }
}

impl Want {
    /// Appends it.
    pub fn put(&self, out: &mut impl Put) {
        let Self { size, rank, ranks, balance, lease_ms, width: _ } = *self;
        let (kind, amount) = match size {
            Size::Groups(groups) => (0, groups.into()),
            Size::Tokens(tokens) => (1, tokens),
        };
        out.put_u8(kind);
        out.put_u64(amount);
        out.put_u32(rank);
        out.put_u32(ranks);
        out.put_u8(balance as u8);
        out.put_maybe(lease_ms);
    }

    /// Reads it.
    pub fn take(take: &mut Reader<'_>) -> Result<Self, CodecError> {
        let (kind, amount) = (take.u8("kind of a batch")?, take.u64("size of a batch")?);
        let size = match kind {
            0 => Size::Groups(u32::try_from(amount).map_err(|_| {
                let field = "groups of a batch";
                CodecError::Meaningless { field, got: amount }
            })?),
            1 => Size::Tokens(amount),
            got => {
                return Err(CodecError::Meaningless { field: "kind of a batch", got: got.into() });
            }
        };
        let (rank, ranks) = (take.u32("rank")?, take.u32("ranks")?);
        let balance = match take.u8("balance")? {
            0 => Balance::Count,
            1 => Balance::Tokens,
            2 => Balance::Squares,
            got => return Err(CodecError::Meaningless { field: "balance", got: got.into() }),
        };
        Ok(Self { size, rank, ranks, balance, lease_ms: take.maybe("lease")?, width: 0 })
    }
}

impl Fate {
    /// Its number in bytes.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The fate of a number.
    pub fn of(number: u8) -> Option<Self> {
        let all = [
            Self::Running,
            Self::Complete,
            Self::Filtered,
            Self::Rejected,
            Self::Expired,
            Self::Stale,
            Self::Over,
        ];
        all.get(usize::from(number)).copied()
    }

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
        }
    }
}
