//! What a table writes to its journal, as bytes: one entry is one record.
//!
//! | kind | then |
//! |---|---|
//! | 1 rows | count: u32, bytes of a row: u32, a priority each: f64, the rows, an effect each |
//! | 2 item | form: u32, priority: f64, columns: u32, for each column the number of its slices: u32, and for each slice chunk: u128, offset: u32, length: u32; an effect |
//! | 3 chunk | key: u128, the chunk |
//! | 4 form | number: u32, a [`Signature`] |
//! | 5 removed | keys: u64 each |
//! | 6 updated | count: u32, keys: u64 each, priorities: f64 each |
//! | 7 sampled | count: u64, keys: u64 each, if they matter |
//! | 8 reset | |
//! | 9 version | the learner's: u64 |
//! | 10 forget | |
//! | 11 session | number: u32, producer: 16 bytes, epoch: u64 |
//! | 12 rows of a session | as 1, then an origin |
//! | 13 item of a session | as 2, then an origin |
//!
//! Every entry begins with its format, 2, and its kind, a byte each. Numbers are little-endian. An effect
//! is the item's key, its version, and the key of the item that had to go for it, or 2^64 - 1: u64 each.
//! The highest bit of a sampled key says that its item has gone. After *forget* no entry names a chunk or
//! a form that was recorded before. An origin is the number of a session, u32, as it was recorded last, and which
//! operation of that the first item is: u64.
//!
//! Bytes from a file are parsed here without trust; whether they fit the table is for `replay`.
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

use smallvec::SmallVec;

use super::super::Form;
use super::super::key::Key;
use crate::codec::{CodecError, Reader};
use crate::journal::Record;
use crate::table::sessions::{Called, Origin, Producer};
use crate::trajectory::{Signature, Trajectory};

const FORMAT: u8 = 2;
const NOBODY: u64 = u64::MAX;
/// Marks a sampled key whose item has gone.
const GONE: u64 = 1 << 63;

/// Bytes of an [`Effect`].
pub(in crate::table) const EFFECT_BYTES: usize = 24;
/// Bytes of a slice in an entry.
pub(super) const SLICE_BYTES: usize = 24;

/// Bytes of a [`Sent`].
const SENT_BYTES: usize = 12;

pub(super) mod kind {
    pub(in crate::table) const ROWS: u8 = 1;
    pub(in crate::table) const ITEM: u8 = 2;
    pub(in crate::table) const CHUNK: u8 = 3;
    pub(in crate::table) const FORM: u8 = 4;
    pub(in crate::table) const REMOVED: u8 = 5;
    pub(in crate::table) const UPDATED: u8 = 6;
    pub(in crate::table) const SAMPLED: u8 = 7;
    pub(in crate::table) const RESET: u8 = 8;
    pub(in crate::table) const VERSION: u8 = 9;
    pub(in crate::table) const FORGET: u8 = 10;
    pub(in crate::table) const SESSION: u8 = 11;
    pub(in crate::table) const SESSION_ROWS: u8 = 12;
    pub(in crate::table) const SESSION_ITEM: u8 = 13;
}

/// Which operation of which session the first item of an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) session: u32,
    pub(super) number: u64,
}

impl Sent {
    pub(super) fn write(called: Called, origin: &Origin, record: &mut Record) {
        record.put(&called.number.to_le_bytes());
        record.put(&origin.number.to_le_bytes());
    }

    fn read(fields: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok(Self { session: fields.u32("session")?, number: fields.u64("operation")? })
    }
}

/// What an insert led to, which is known only when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::table) struct Effect {
    pub(in crate::table) key: Key,
    pub(in crate::table) version: u64,
    /// The item that was removed.
    pub(in crate::table) gone: Option<Key>,
}

impl Effect {
    pub(in crate::table) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.number().to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.gone.map_or(NOBODY, Key::number).to_le_bytes());
    }

    fn read(fields: &mut Reader<'_>) -> Result<Self, CodecError> {
        let key = Key::from_number(fields.u64("key")?);
        let version = fields.u64("version")?;
        let gone = fields.u64("key of the removed item")?;
        Ok(Self { key, version, gone: (gone != NOBODY).then(|| Key::from_number(gone)) })
    }
}

/// A slice as an entry names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SliceOf {
    pub(super) chunk: u128,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// Most inserts are of one row, and allocate nothing to be read.
pub(super) type Few<T> = SmallVec<[T; 2]>;

/// An entry that was read.
#[derive(Debug, PartialEq)]
pub(super) enum Entry<'a> {
    Rows {
        row_bytes: usize,
        priorities: Few<f64>,
        rows: &'a [u8],
        effects: Few<Effect>,
        sent: Option<Sent>,
    },
    Item {
        form: u32,
        priority: f64,
        /// Of all columns, one column after the other.
        slices: Few<SliceOf>,
        /// Where the slices of each column end.
        ends: Few<u32>,
        effect: Effect,
        sent: Option<Sent>,
    },
    Chunk {
        key: u128,
        bytes: &'a [u8],
    },
    Form {
        number: u32,
        signature: Signature,
    },
    Removed {
        keys: Vec<u64>,
    },
    Updated {
        keys: Vec<u64>,
        priorities: Vec<f64>,
    },
    /// With each key, whether its item has gone.
    Sampled {
        count: u64,
        keys: Vec<(u64, bool)>,
    },
    Reset,
    Version(u64),
    Forget,
    Session {
        number: u32,
        producer: Producer,
        epoch: u64,
    },
}

/// Begins an entry that will have this many bytes.
pub(super) fn begin(kind: u8, bytes: usize) -> Record {
    let mut record = Record::with_capacity(bytes + 2);
    record.put(&[FORMAT, kind]);
    record
}

/// Bytes of an entry of this many rows.
pub(super) fn rows_bytes(count: usize, row_bytes: usize) -> usize {
    10 + count * (8 + row_bytes + EFFECT_BYTES) + SENT_BYTES
}

/// The fewest bytes that an item of a table takes in an entry.
pub(super) fn least_item_bytes(form: &Form) -> usize {
    match form {
        Form::Rows(spec) => 8 + spec.nbytes() + EFFECT_BYTES,
        Form::Trajectories(_) => 18 + EFFECT_BYTES,
    }
}

/// An entry of rows, but for what they lead to and, if they are of a session, where they are from.
pub(super) fn rows(
    of_session: bool,
    row_bytes: usize,
    priorities: &[f64],
    mut put_row: impl FnMut(usize, &mut Record),
) -> Record {
    let kind = if of_session { kind::SESSION_ROWS } else { kind::ROWS };
    let mut record = begin(kind, rows_bytes(priorities.len(), row_bytes));
    record.put(&(priorities.len() as u32).to_le_bytes());
    record.put(&(row_bytes as u32).to_le_bytes());
    put_numbers(&mut record, priorities.iter().map(|priority| priority.to_bits()));
    for index in 0..priorities.len() {
        put_row(index, &mut record);
    }
    record.digest();
    record
}

/// Bytes of an entry of a trajectory.
pub(super) fn item_bytes(trajectory: &Trajectory) -> usize {
    let columns = trajectory.signature().columns.len();
    18 + 4 * columns + SLICE_BYTES * trajectory.slices().len() + EFFECT_BYTES + SENT_BYTES
}

/// An entry of a trajectory, but for what it leads to and, if it is of a session, where it is from.
pub(super) fn item(of_session: bool, form: u32, priority: f64, trajectory: &Trajectory) -> Record {
    let kind = if of_session { kind::SESSION_ITEM } else { kind::ITEM };
    let mut record = begin(kind, item_bytes(trajectory));
    let columns = trajectory.signature().columns.len();
    record.put(&form.to_le_bytes());
    record.put(&priority.to_le_bytes());
    record.put(&(columns as u32).to_le_bytes());
    for column in 0..columns {
        let slices = trajectory.column(column);
        record.put(&(slices.len() as u32).to_le_bytes());
        for slice in slices {
            record.put(&slice.chunk.key().0.to_le_bytes());
            record.put(&slice.offset.to_le_bytes());
            record.put(&slice.len.to_le_bytes());
        }
    }
    record.digest();
    record
}

/// An entry of a session that later ones name.
pub(super) fn session(number: u32, origin: &Origin) -> Record {
    let mut record = begin(kind::SESSION, 28);
    record.put(&number.to_le_bytes());
    record.put(&origin.producer);
    record.put(&origin.epoch.to_le_bytes());
    record
}

/// An entry of removed items.
pub(super) fn removed(keys: &[u64]) -> Record {
    let mut record = begin(kind::REMOVED, 8 * keys.len());
    put_numbers(&mut record, keys.iter().copied());
    record.digest();
    record
}

/// An entry of changed priorities.
pub(super) fn updated(keys: &[u64], priorities: &[f64]) -> Record {
    let mut record = begin(kind::UPDATED, 4 + 16 * keys.len());
    record.put(&(keys.len() as u32).to_le_bytes());
    put_numbers(&mut record, keys.iter().copied());
    put_numbers(&mut record, priorities.iter().map(|priority| priority.to_bits()));
    record.digest();
    record
}

/// An entry of samples; with the keys, and whether each item went, if that matters.
pub(super) fn sampled(count: u64, keys: impl ExactSizeIterator<Item = (u64, bool)>) -> Record {
    let mut record = begin(kind::SAMPLED, 8 + 8 * keys.len());
    record.put(&count.to_le_bytes());
    put_numbers(&mut record, keys.map(|(key, gone)| if gone { key | GONE } else { key }));
    record
}

fn put_numbers(record: &mut Record, numbers: impl Iterator<Item = u64>) {
    record.put_with(|bytes| {
        numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    });
}

impl<'a> Entry<'a> {
    /// Reads a record.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let fields = &mut reader;
        let [format, kind] = fields.array("head")?;
        if format != FORMAT {
            return Err(CodecError::Meaningless { field: "format", got: format.into() });
        }
        let entry = match kind {
            kind::ROWS | kind::SESSION_ROWS => {
                let count = fields.u32("count")?;
                let row_bytes = fields.u32("bytes of a row")? as usize;
                let priorities = fields.many("priorities", count, 8, priority)?;
                let rows = fields.bytes("rows", (count as usize).saturating_mul(row_bytes))?;
                let effects = fields.many("effects", count, EFFECT_BYTES, Effect::read)?;
                let of_session = kind == kind::SESSION_ROWS;
                let sent = of_session.then(|| Sent::read(fields)).transpose()?;
                Self::Rows { row_bytes, priorities, rows, effects, sent }
            }
            kind::ITEM | kind::SESSION_ITEM => {
                let form = fields.u32("form")?;
                let priority = priority(fields)?;
                let columns = fields.u32("columns")?;
                let mut slices = Few::new();
                let ends = fields.many("columns", columns, 4, |fields| {
                    let count = fields.u32("slices")?;
                    fields.many::<(), ()>("slices", count, SLICE_BYTES, |fields| {
                        let chunk = fields.array("chunk").map(u128::from_le_bytes)?;
                        let (offset, len) = (fields.u32("offset")?, fields.u32("length")?);
                        slices.push(SliceOf { chunk, offset, len });
                        Ok(())
                    })?;
                    // No entry is so long that these would be too many.
                    Ok(slices.len() as u32)
                })?;
                let effect = Effect::read(fields)?;
                let of_session = kind == kind::SESSION_ITEM;
                let sent = of_session.then(|| Sent::read(fields)).transpose()?;
                Self::Item { form, priority, slices, ends, effect, sent }
            }
            kind::CHUNK => {
                let key = fields.array("chunk").map(u128::from_le_bytes)?;
                Self::Chunk { key, bytes: fields.rest() }
            }
            kind::FORM => {
                let (number, signature) = fields.get("form")?;
                Self::Form { number, signature }
            }
            kind::REMOVED => Self::Removed { keys: keys(fields)? },
            kind::UPDATED => {
                let count = fields.u32("count")?;
                let keys = fields.many("keys", count, 8, |fields| fields.u64("key"))?;
                Self::Updated { keys, priorities: fields.many("priorities", count, 8, priority)? }
            }
            kind::SAMPLED => {
                let count = fields.u64("count")?;
                let keys = keys(fields)?.into_iter().map(|key| (key & !GONE, key & GONE != 0));
                let keys: Vec<_> = keys.collect();
                if !keys.is_empty() && keys.len() as u64 != count {
                    return Err(CodecError::Meaningless { field: "count", got: count });
                }
                Self::Sampled { count, keys }
            }
            kind::RESET => Self::Reset,
            kind::VERSION => Self::Version(fields.u64("version")?),
            kind::FORGET => Self::Forget,
            kind::SESSION => {
                let (number, producer) = (fields.u32("session")?, fields.array("producer")?);
                Self::Session { number, producer, epoch: fields.u64("epoch")? }
            }
            got => return Err(CodecError::Meaningless { field: "kind", got: got.into() }),
        };
        reader.end("entry")?;
        Ok(entry)
    }
}

fn priority(reader: &mut Reader<'_>) -> Result<f64, CodecError> {
    let bits = reader.u64("priority")?;
    let priority = f64::from_bits(bits);
    if !priority.is_finite() || priority < 0.0 {
        return Err(CodecError::Meaningless { field: "priority", got: bits });
    }
    Ok(priority)
}

/// Keys until the end.
fn keys(reader: &mut Reader<'_>) -> Result<Vec<u64>, CodecError> {
    let (keys, rest) = reader.rest().as_chunks();
    match rest.len() {
        0 => Ok(keys.iter().map(|key| u64::from_le_bytes(*key)).collect()),
        extra => Err(CodecError::Trailing { what: "keys", extra }),
    }
}
