//! What a server answers, but for batches.

use std::sync::Arc;

use echoic_replay::WaitReason;
use echoic_replay::codec::{Decode, Encode, Reader, write_count};
use echoic_replay::limiter::{Counts, Parameters};
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::table::{CallError, RolloutInfo};
use echoic_replay::table::{Infos, Table, Waits};
use echoic_replay::{fields, variants};

use super::{MAX_BATCH, MAX_LISTED, MAX_REQUEST};
use crate::wire::WireError;
use crate::wire::frame::{Header, frame, kind};
use crate::wire::observed::{MAX_OBSERVED, Observation};
use crate::wire::rollouts::{self, Outcomes};

/// Why a request was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureCode {
    /// It waited for as long as it may; the stall says what for.
    TimedOut,
    /// The client gave it up.
    Cancelled,
    /// The table is closed.
    Closed,
    /// There is no such table.
    Table,
    /// A value that the table refuses.
    Value,
    /// It could never be done: the limiter forbids it.
    Limiter,
    /// A batch of more bytes than an answer may have.
    TooLarge,
    /// Trajectories of different forms, which make no batch.
    Mixed,
    /// There is no checkpoint.
    Checkpoint,
    /// The change does not survive a crash: the table's journal has failed.
    Journal,
}

variants! {
    FailureCode {
        1 => TimedOut,
        2 => Cancelled,
        3 => Closed,
        4 => Table,
        5 => Value,
        6 => Limiter,
        7 => TooLarge,
        8 => Mixed,
        9 => Checkpoint,
        10 => Journal,
    }
}

impl FailureCode {
    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "TIMED_OUT",
            Self::Cancelled => "CANCELLED",
            Self::Closed => "CLOSED",
            Self::Table => "TABLE",
            Self::Value => "VALUE",
            Self::Limiter => "LIMITER",
            Self::TooLarge => "TOO_LARGE",
            Self::Mixed => "MIXED",
            Self::Checkpoint => "CHECKPOINT",
            Self::Journal => "JOURNAL",
        }
    }
}

/// The numbers of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Numbers {
    /// Place in the list of tables.
    pub table: u32,
    /// How many items there are.
    pub size: u32,
    /// What they weigh together, for its sampler.
    pub total_weight: f64,
    /// After how many samples an item goes; never, when 0.
    pub max_times_sampled: u32,
    /// How often an item was inserted, sampled and removed.
    pub counts: Counts,
    /// How many of the inserted items were ever sampled.
    pub unique_samples: u64,
    /// How many episodes items have steps of.
    pub episodes: u64,
    /// How many others they had.
    pub deleted_episodes: u64,
    /// Inserts that had to wait.
    pub insert_waits: Waits,
    /// Samples that had to wait.
    pub sample_waits: Waits,
    /// The limiter as it is now.
    pub limiter: Parameters,
    /// Whether nothing may be inserted and sampled for the time being.
    pub paused: bool,
    /// The learner's policy version.
    pub version: u64,
    /// Bytes of rows that were ever used.
    pub row_bytes: u64,
}

impl Numbers {
    /// Those of a table at a place in the list.
    pub fn of(table: &Table, place: u32) -> Self {
        let info = table.info();
        Self {
            table: place,
            size: info.size,
            total_weight: info.total_weight,
            max_times_sampled: table.config().max_times_sampled,
            counts: info.counts,
            unique_samples: info.unique_samples,
            episodes: info.episodes,
            deleted_episodes: info.deleted_episodes,
            insert_waits: info.insert_waits,
            sample_waits: info.sample_waits,
            limiter: *info.limiter.parameters(),
            paused: info.paused,
            version: info.version,
            row_bytes: info.row_bytes as u64,
        }
    }
}

/// An answer to a request, which has the number `id`.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It was done.
    Done {
        /// To which request.
        id: u64,
        /// What there was to count.
        count: u64,
    },
    /// It was not.
    Failed {
        /// To which request.
        id: u64,
        /// Why, for programs.
        code: FailureCode,
        /// What it waited for, if it did.
        stall: Option<WaitReason>,
        /// Why, for people.
        text: String,
    },
    /// What was asked for.
    Numbers {
        /// To which request.
        id: u64,
        /// Of each table.
        numbers: Vec<Numbers>,
    },
    /// A checkpoint was written.
    Saved {
        /// To which request.
        id: u64,
        /// Where, on the server's machine.
        path: String,
    },
    /// What is known about items.
    Listed {
        /// To which request.
        id: u64,
        /// Where the next ones begin, if there are more.
        next: Option<u32>,
        /// About the items; nothing was drawn, so there are no probabilities.
        infos: Infos,
    },
    /// What there is to see of the server.
    Observed {
        /// To which request.
        id: u64,
        /// All of it.
        observation: Observation,
    },
    /// Which rollout tables there are.
    RolloutTables {
        /// To which request.
        id: u64,
        /// The settings of each.
        configs: Vec<Arc<RolloutConfig>>,
    },
    /// What came of changes of a rollout table; no share of a batch is among it.
    RolloutOutcomes {
        /// To which request.
        id: u64,
        /// Of each.
        outcomes: Outcomes,
    },
    /// The numbers of a rollout table.
    RolloutNumbers {
        /// To which request.
        id: u64,
        /// All of them.
        info: Box<RolloutInfo>,
    },
    /// A rollout table did not do it.
    RolloutRefused {
        /// To which request.
        id: u64,
        /// Why.
        error: CallError,
    },
}

/// Instead of a place: there are no more items.
const NO_MORE: u32 = u32::MAX;

fields! {
    Numbers {
        table: u32,
        size: u32,
        total_weight: f64,
        max_times_sampled: u32,
        counts: Counts,
        unique_samples: u64,
        episodes: u64,
        deleted_episodes: u64,
        insert_waits: Waits,
        sample_waits: Waits,
        limiter: Parameters,
        paused: bool,
        version: u64,
        row_bytes: u64,
    }
}

/// A sum of weights is finite and not negative.
pub(super) fn check_weight(weight: f64) -> Result<f64, WireError> {
    match weight.is_finite() && weight >= 0.0 {
        true => Ok(weight),
        false => Err(WireError::meaningless("weight of a table", weight.to_bits())),
    }
}

impl Answer {
    /// The largest payload of an answer of a kind that is no batch; `None` for other kinds.
    pub fn limit(kind: u8) -> Option<u32> {
        match kind {
            kind::DONE | kind::FAILED => Some(crate::wire::frame::MAX_CONTROL),
            kind::NUMBERS
            | kind::SAVED
            | kind::LISTED
            | kind::ROLLOUT_TABLES
            | kind::ROLLOUT_NUMBERS
            | kind::ROLLOUT_REFUSED => Some(MAX_REQUEST),
            // A group that is gone on with comes with what is there of it.
            kind::ROLLOUT_OUTCOMES => Some(MAX_BATCH),
            kind::OBSERVED => Some(MAX_OBSERVED),
            _ => None,
        }
    }

    /// The number of the request that it answers.
    pub fn id(&self) -> u64 {
        match self {
            Self::Done { id, .. }
            | Self::Failed { id, .. }
            | Self::Numbers { id, .. }
            | Self::Saved { id, .. }
            | Self::Listed { id, .. }
            | Self::Observed { id, .. }
            | Self::RolloutTables { id, .. }
            | Self::RolloutOutcomes { id, .. }
            | Self::RolloutNumbers { id, .. }
            | Self::RolloutRefused { id, .. } => *id,
        }
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done { id, count } => frame(out, kind::DONE, |out| {
                id.encode(out);
                count.encode(out);
            }),
            Self::Failed { id, code, stall, text } => frame(out, kind::FAILED, |out| {
                id.encode(out);
                code.encode(out);
                stall.encode(out);
                text.encode(out);
            }),
            Self::Numbers { id, numbers } => frame(out, kind::NUMBERS, |out| {
                id.encode(out);
                numbers.encode(out);
            }),
            Self::Saved { id, path } => frame(out, kind::SAVED, |out| {
                id.encode(out);
                path.encode(out);
            }),
            Self::Listed { id, next, infos } => frame(out, kind::LISTED, |out| {
                id.encode(out);
                next.unwrap_or(NO_MORE).encode(out);
                write_count(out, infos.keys.len());
                infos.table_size.encode(out);
                infos.total_weight.encode(out);
                u64::encode_all(&infos.keys, out);
                f64::encode_all(&infos.priorities, out);
                u64::encode_all(&infos.versions, out);
                u32::encode_all(&infos.times_sampled, out);
            }),
            Self::Observed { id, observation } => frame(out, kind::OBSERVED, |out| {
                id.encode(out);
                observation.encode(out);
            }),
            Self::RolloutTables { id, configs } => frame(out, kind::ROLLOUT_TABLES, |out| {
                id.encode(out);
                rollouts::write_list(out, configs);
            }),
            Self::RolloutOutcomes { id, outcomes } => frame(out, kind::ROLLOUT_OUTCOMES, |out| {
                id.encode(out);
                rollouts::write_outcomes(out, outcomes);
            }),
            Self::RolloutNumbers { id, info } => frame(out, kind::ROLLOUT_NUMBERS, |out| {
                id.encode(out);
                info.encode(out);
            }),
            Self::RolloutRefused { id, error } => frame(out, kind::ROLLOUT_REFUSED, |out| {
                id.encode(out);
                error.encode(out);
            }),
        }
    }

    /// Reads the payload of a frame of this kind.
    pub fn read(header: Header, payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let id = reader.u64("number of a request")?;
        let (name, answer) = match header.kind {
            kind::DONE => ("DONE", Self::Done { id, count: reader.u64("count")? }),
            kind::FAILED => {
                let (code, stall) = reader.get("code of a failure")?;
                let text = reader.get("reason of a failure")?;
                ("FAILED", Self::Failed { id, code, stall, text })
            }
            kind::NUMBERS => {
                let numbers: Vec<Numbers> = reader.get("tables")?;
                for table in &numbers {
                    check_weight(table.total_weight)?;
                }
                ("NUMBERS", Self::Numbers { id, numbers })
            }
            kind::SAVED => {
                let path = reader.get("path of a checkpoint")?;
                ("SAVED", Self::Saved { id, path })
            }
            kind::LISTED => {
                let next = reader.u32("place of an item")?;
                let count = reader.u32_at_most("number of items", MAX_LISTED)?;
                let infos = Infos {
                    table_size: reader.u64("size of the table")?,
                    total_weight: reader.f64("weight of the table")?,
                    keys: u64::decode_all(&mut reader, "keys", count as usize)?,
                    probabilities: vec![f64::NAN; count as usize],
                    priorities: f64::decode_all(&mut reader, "priorities", count as usize)?,
                    versions: u64::decode_all(&mut reader, "versions", count as usize)?,
                    times_sampled: u32::decode_all(&mut reader, "times sampled", count as usize)?,
                };
                let next = (next != NO_MORE).then_some(next);
                ("LISTED", Self::Listed { id, next, infos })
            }
            kind::OBSERVED => {
                let observation = Observation::read(&mut reader)?;
                ("OBSERVED", Self::Observed { id, observation })
            }
            kind::ROLLOUT_TABLES => {
                let configs = rollouts::read_list(&mut reader)?;
                ("ROLLOUT_TABLES", Self::RolloutTables { id, configs })
            }
            kind::ROLLOUT_OUTCOMES => {
                let outcomes = rollouts::read_outcomes(&mut reader)?;
                ("ROLLOUT_OUTCOMES", Self::RolloutOutcomes { id, outcomes })
            }
            kind::ROLLOUT_NUMBERS => {
                let info = Box::new(reader.get("numbers of a table")?);
                ("ROLLOUT_NUMBERS", Self::RolloutNumbers { id, info })
            }
            kind::ROLLOUT_REFUSED => {
                let error = reader.get("error of a call")?;
                ("ROLLOUT_REFUSED", Self::RolloutRefused { id, error })
            }
            got => return Err(WireError::Unexpected { expected: "an answer", got }),
        };
        reader.end(name)?;
        Ok(answer)
    }
}
