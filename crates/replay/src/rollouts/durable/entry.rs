//! What a rollout table writes to its journal, as bytes: one entry is one record.
//!
//! | kind | then |
//! |---|---|
//! | 1 made | the settings; milliseconds since 1970: u64; the time: u64 |
//! | 2 change | length of the head: u32, the head, the bulk; what came of it; the time: u64 |
//! | 3 opened again | as 1 |
//!
//! Every entry begins with its format, 6, and its kind, a byte each, and ends with the table's time in milliseconds.
//! Numbers are little-endian. What came of a change is a byte: 0 something that is not recorded, 1 a share, with the
//! number of the batch: u64, the rank, the attempt and the [digest](digest) of the groups: u32 each; 2 it was
//! refused, and changed something all the same. *Made* or *opened again* is the first entry of every opening. Where a
//! table was opened again, a generation of its numbers [begins](super::super::ledger) at the milliseconds of the entry.
//!
//! Bytes from a file are parsed here without trust; whether they fit the table is for `replayed`.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crc32c::crc32c_append;

use super::super::config::RolloutConfig;
use super::super::ledger::{Change, ChangeError, Lease, Outcome, Share};
use super::super::schema::{MAX_BLOBS, MAX_COLUMN_NAME};
use crate::codec::{CodecError, Encode, Reader};
use crate::journal::Record;
use crate::variants;

const FORMAT: u8 = 6;
const MADE: u8 = 1;
const CHANGE: u8 = 2;
const OPENED_AGAIN: u8 = 3;

/// Bytes that are added when it is known what came of a change, at most.
pub(super) const TAIL_BYTES: usize = 29;

/// Bytes of the end of an item that are neither fields nor blobs, at most.
pub(super) const MOST_OF_END: u64 = (1 << 7) + (MAX_BLOBS * (8 + MAX_COLUMN_NAME)) as u64;

/// An entry that was read.
#[derive(Debug, PartialEq)]
pub(super) enum Entry {
    /// The table was opened, with these settings.
    Opened {
        config: Box<RolloutConfig>,
        /// By the clock of the machine.
        unix_ms: u64,
        /// Whether a generation begins with it.
        again: bool,
    },
    /// Something happened.
    Change(Change, Came),
}

/// What came of a change, as far as it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rollouts) enum Came {
    /// It was done.
    Done,
    /// A share was delivered.
    Share {
        /// Whose.
        lease: Lease,
        /// Of its groups.
        digest: u32,
    },
    /// It was refused, and changed something all the same.
    Refused,
}

/// What stands for the groups of a share, and how they look.
fn digest(share: &Share) -> u32 {
    share.groups.iter().fold(crc32c_append(0, &share.target.to_le_bytes()), |digest, group| {
        let words = [group.id, group.tokens, group.items.len() as u64];
        words.iter().fold(digest, |digest, word| crc32c_append(digest, &word.to_le_bytes()))
    })
}

impl Came {
    /// Of what the ledger has said.
    pub(in crate::rollouts) fn of(applied: &Result<Outcome, ChangeError>) -> Self {
        match applied {
            Ok(Outcome::Delivered(share)) => {
                Self::Share { lease: share.lease, digest: digest(share) }
            }
            Ok(_) => Self::Done,
            Err(_) => Self::Refused,
        }
    }
}

variants! { Came { 0 => Done, 1 => Share { lease: Lease, digest: u32 }, 2 => Refused } }

fn begin(kind: u8, bytes: usize) -> Record {
    let mut record = Record::with_capacity(2 + bytes);
    record.put(&[FORMAT, kind]);
    record
}

/// Of an opening; `again` if the directory was there.
pub(super) fn opened(config: &RolloutConfig, unix_ms: u64, again: bool, time: u64) -> Record {
    let mut record = begin(if again { OPENED_AGAIN } else { MADE }, 0);
    record.put_with(|out| {
        config.encode(out);
        unix_ms.encode(out);
        time.encode(out);
    });
    record
}

/// Of a change, all but what comes of it.
pub(super) fn change(change: &Change) -> Record {
    let mut head = Vec::new();
    change.encode(&mut head);
    let bytes: usize = change.bulk().map(<[u8]>::len).sum();
    let mut record = begin(CHANGE, 4 + head.len() + bytes + TAIL_BYTES);
    record.put(&(head.len() as u32).to_le_bytes());
    record.put(&head);
    change.bulk().for_each(|piece| record.put(piece));
    record.digest();
    record
}

/// Adds what came of a change, and when.
pub(super) fn finish(record: &mut Record, came: Came, time: u64) {
    record.put_with(|out| {
        came.encode(out);
        time.encode(out);
    });
}

impl Entry {
    /// When it was written. Nothing else is looked at.
    pub(super) fn time(record: &[u8]) -> Result<u64, CodecError> {
        let behind = record.len().saturating_sub(8);
        Reader::new(record.get(behind..).unwrap_or_default()).u64("time")
    }

    /// Reads an entry.
    pub(super) fn read(record: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(record);
        let (format, kind) = (reader.u8("format")?, reader.u8("kind of an entry")?);
        if format != FORMAT {
            return Err(CodecError::Format { expected: FORMAT.into(), got: format.into() });
        }
        let entry = match kind {
            MADE | OPENED_AGAIN => {
                let config = Box::new(reader.get("settings")?);
                let unix_ms = reader.u64("time of the machine")?;
                Self::Opened { config, unix_ms, again: kind == OPENED_AGAIN }
            }
            CHANGE => {
                let len = reader.u32("bytes of a change")?;
                let head = reader.bytes("change", len as usize)?;
                let mut head = Reader::with_bulk(head, &mut reader);
                let change = head.get("change")?;
                head.end("change")?;
                Self::Change(change, reader.get("what came of a change")?)
            }
            got => {
                return Err(CodecError::Meaningless { field: "kind of an entry", got: got.into() });
            }
        };
        reader.u64("time")?;
        reader.end("entry")?;
        Ok(entry)
    }
}
