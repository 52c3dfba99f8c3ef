//! What a client asks of tables.

use std::borrow::Cow;

use echoic_replay::codec::{Decode, Encode, Reader, write_count};
use echoic_replay::fields;
use echoic_replay::limiter::Parameters;

use super::{MAX_ITEMS, MAX_KEYS, MAX_LISTED};
use crate::wire::WireError;
use crate::wire::frame::{frame, kind};
use crate::wire::rollouts::{Bulk, Changes, MAX_CHANGES, Wish};

/// Instead of one table's number: all of them.
pub const ALL_TABLES: u32 = u32::MAX;

/// A request without a limit to its patience.
const FOR_EVER: u64 = u64::MAX;

/// Something to be done with a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation<'a> {
    /// Draw items; answered by a BATCH.
    Sample {
        /// How many.
        count: u32,
        /// How many milliseconds it may wait; for ever, when `None`.
        timeout_ms: Option<u64>,
        /// Where in the connection's arena its columns may go; answered by PLACED, if they fit.
        area: Option<Area>,
    },
    /// Change priorities, all or none; the answer counts the items that were there.
    Update {
        /// Of which items.
        keys: Cow<'a, [u64]>,
        /// One for each.
        priorities: Cow<'a, [f64]>,
    },
    /// Remove items; the answer counts those that were there.
    Delete {
        /// Which.
        keys: Cow<'a, [u64]>,
    },
    /// Remove all, and count from zero.
    Reset,
    /// Let nothing be inserted or sampled.
    Pause,
    /// End a pause.
    Resume,
    /// Replace the limiter.
    SetLimiter(Parameters),
    /// Tell the policy version of the learner.
    Advance {
        /// It never falls.
        version: u64,
    },
    /// Tell the numbers of a table, or of [`ALL_TABLES`]; answered by NUMBERS.
    Info,
    /// Whether this many items may be sampled now: 1 or 0.
    CanSample {
        /// How many.
        count: u32,
    },
    /// Whether this many items may be inserted now: 1 or 0.
    CanInsert {
        /// How many.
        count: u32,
    },
    /// Give up the request with this number. Not answered itself: the other request is, if it was not.
    Cancel,
    /// Write a checkpoint of everything that the server has; answered by SAVED. The table does not matter.
    Checkpoint,
    /// Tell what is known about items, in no order that matters; answered by LISTED.
    List {
        /// Where to begin: 0, or what the LISTED before said.
        place: u32,
        /// How many at most.
        most: u32,
    },
    /// Read items, which does not count as sampling; answered by a BATCH of those that are there.
    Get {
        /// Which.
        keys: Cow<'a, [u64]>,
    },
    /// Tell all there is to see of the server; answered by OBSERVED. The table does not matter.
    Observe,
    /// Tell which rollout tables there are; answered by ROLLOUT_TABLES. The table does not matter.
    RolloutList,
    /// Have changes of a rollout table happen; answered by ROLLOUT_OUTCOMES.
    RolloutChanges(Changes<'a>),
    /// The next bytes of the bulk of the next changes, which have more than a request may have; answered by nothing.
    RolloutPart(Cow<'a, [u8]>),
    /// Take a share of a batch of rollouts; answered by ROLLOUT_BATCH or ROLLOUT_PLACED.
    RolloutSample(Wish),
    /// Tell the numbers of a rollout table; answered by ROLLOUT_NUMBERS.
    RolloutInfo,
}

/// Some bytes of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Where they begin.
    pub start: u64,
    /// How many.
    pub len: u64,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<'a> {
    /// Chosen by the client; comes back with the answer.
    pub id: u64,
    /// Place in the list of tables.
    pub table: u32,
    /// What is to be done.
    pub operation: Operation<'a>,
}

impl Operation<'_> {
    /// Whether it is about rollout tables.
    pub fn is_of_rollouts(&self) -> bool {
        matches!(
            self,
            Self::RolloutList
                | Self::RolloutChanges(_)
                | Self::RolloutPart(_)
                | Self::RolloutSample(_)
                | Self::RolloutInfo
        )
    }

    fn number(&self) -> u8 {
        match self {
            Self::Sample { area: None, .. } => 1,
            Self::Sample { area: Some(_), .. } => 16,
            Self::Update { .. } => 2,
            Self::Delete { .. } => 3,
            Self::Reset => 4,
            Self::Pause => 5,
            Self::Resume => 6,
            Self::SetLimiter(_) => 7,
            Self::Advance { .. } => 8,
            Self::Info => 9,
            Self::CanSample { .. } => 10,
            Self::CanInsert { .. } => 11,
            Self::Cancel => 12,
            Self::Checkpoint => 13,
            Self::List { .. } => 14,
            Self::Get { .. } => 15,
            Self::Observe => 17,
            Self::RolloutList => 18,
            Self::RolloutChanges(Changes { bulk: Bulk::Inline(_), .. }) => 19,
            Self::RolloutChanges(Changes { bulk: Bulk::Area(_), .. }) => 20,
            Self::RolloutSample(Wish { area: None, .. }) => 21,
            Self::RolloutSample(Wish { area: Some(_), .. }) => 22,
            Self::RolloutInfo => 23,
            Self::RolloutPart(_) => 24,
        }
    }
}

impl Request<'_> {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_with(out, |_| {});
    }

    /// Appends the frame, with what `write` appends at the end of the payload: the bulk of changes, for callers that
    /// have it in pieces.
    pub fn write_with(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        frame(out, kind::REQUEST, |out| {
            self.id.encode(out);
            out.push(self.operation.number());
            self.table.encode(out);
            match &self.operation {
                Operation::Sample { count, timeout_ms, area } => {
                    count.encode(out);
                    timeout_ms.unwrap_or(FOR_EVER).encode(out);
                    area.iter().for_each(|area| area.encode(out));
                }
                Operation::Update { keys, priorities } => {
                    write_count(out, keys.len());
                    u64::encode_all(keys, out);
                    f64::encode_all(priorities, out);
                }
                Operation::Delete { keys } | Operation::Get { keys } => {
                    write_count(out, keys.len());
                    u64::encode_all(keys, out);
                }
                Operation::SetLimiter(parameters) => {
                    parameters.encode(out);
                }
                Operation::Advance { version } => version.encode(out),
                Operation::CanSample { count } | Operation::CanInsert { count } => {
                    count.encode(out);
                }
                Operation::List { place, most } => {
                    place.encode(out);
                    most.encode(out);
                }
                Operation::Reset
                | Operation::Pause
                | Operation::Resume
                | Operation::Info
                | Operation::Cancel
                | Operation::Checkpoint
                | Operation::Observe
                | Operation::RolloutList
                | Operation::RolloutInfo => {}
                Operation::RolloutPart(bytes) => out.extend_from_slice(bytes),
                Operation::RolloutChanges(Changes { timeout_ms, count, head, bulk }) => {
                    timeout_ms.unwrap_or(FOR_EVER).encode(out);
                    count.encode(out);
                    if let Bulk::Area(area) = bulk {
                        area.encode(out);
                    }
                    write_count(out, head.len());
                    out.extend_from_slice(head);
                    if let Bulk::Inline(bytes) = bulk {
                        out.extend_from_slice(bytes);
                    }
                }
                Operation::RolloutSample(wish) => {
                    wish.timeout_ms.unwrap_or(FOR_EVER).encode(out);
                    wish.area.iter().for_each(|area| area.encode(out));
                    wish.write(out);
                }
            }
            write(out);
        });
    }
}

fields! { Area { start: u64, len: u64 } }

fn read_timeout(reader: &mut Reader<'_>) -> Result<Option<u64>, WireError> {
    let timeout = reader.u64("timeout")?;
    Ok((timeout != FOR_EVER).then_some(timeout))
}

impl<'a> Request<'a> {
    /// Reads the payload.
    pub fn read(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let id = reader.u64("number of a request")?;
        let number = reader.u8("operation")?;
        let table = reader.u32("number of a table")?;
        let items = |reader: &mut Reader<'_>| reader.u32_at_most("number of items", MAX_ITEMS);
        let keys = |reader: &mut Reader<'_>| {
            let count = reader.u32_at_most("number of keys", MAX_KEYS)?;
            u64::decode_all(reader, "keys", count as usize)
        };
        let operation = match number {
            1 | 16 => {
                let count = items(&mut reader)?;
                let timeout_ms = read_timeout(&mut reader)?;
                let area = (number == 16).then(|| reader.get("area")).transpose()?;
                Operation::Sample { count, timeout_ms, area }
            }
            2 => {
                let keys = keys(&mut reader)?;
                let priorities = f64::decode_all(&mut reader, "priorities", keys.len())?;
                Operation::Update { keys: keys.into(), priorities: priorities.into() }
            }
            3 => Operation::Delete { keys: keys(&mut reader)?.into() },
            4 => Operation::Reset,
            5 => Operation::Pause,
            6 => Operation::Resume,
            7 => Operation::SetLimiter(reader.get("limiter")?),
            8 => Operation::Advance { version: reader.u64("version")? },
            9 => Operation::Info,
            10 => Operation::CanSample { count: items(&mut reader)? },
            11 => Operation::CanInsert { count: items(&mut reader)? },
            12 => Operation::Cancel,
            13 => Operation::Checkpoint,
            14 => {
                let place = reader.u32("place of an item")?;
                let most = reader.u32_at_most("number of items", MAX_LISTED)?;
                Operation::List { place, most }
            }
            15 => Operation::Get { keys: keys(&mut reader)?.into() },
            17 => Operation::Observe,
            18 => Operation::RolloutList,
            19 | 20 => {
                let timeout_ms = read_timeout(&mut reader)?;
                let count = reader.u32_at_most("number of changes", MAX_CHANGES)?;
                let area = (number == 20).then(|| reader.get("area")).transpose()?;
                let len = reader.u32("length of changes")?;
                let head = reader.bytes("changes", len as usize)?.into();
                let bulk = match area {
                    None => Bulk::Inline(reader.rest().into()),
                    Some(area) => Bulk::Area(area),
                };
                Operation::RolloutChanges(Changes { timeout_ms, count, head, bulk })
            }
            21 | 22 => {
                let timeout_ms = read_timeout(&mut reader)?;
                let area = (number == 22).then(|| reader.get("area")).transpose()?;
                Operation::RolloutSample(Wish::read(&mut reader, timeout_ms, area)?)
            }
            23 => Operation::RolloutInfo,
            24 => Operation::RolloutPart(reader.rest().into()),
            got => return Err(WireError::meaningless("operation", got.into())),
        };
        reader.end("REQUEST")?;
        Ok(Self { id, table, operation })
    }
}
