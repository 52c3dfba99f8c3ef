//! What a server answers, but for batches.

use std::sync::Arc;

use echoic_replay::codec::{Encode, Reader, write_text, write_values};
use echoic_replay::limiter::{Counts, Parameters};
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::table::{CallError, RolloutInfo};
use echoic_replay::table::{Infos, Table, Waits};

use super::entry::MAX_TABLES;
use super::{MAX_BATCH, MAX_LISTED, MAX_REQUEST};
use crate::wire::WireError;
use crate::wire::frame::{Header, MAX_TEXT, Stall, frame, kind};
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

/// Every code with its number on the wire and its name.
const CODES: [(FailureCode, u8, &str); 10] = [
    (FailureCode::TimedOut, 1, "TIMED_OUT"),
    (FailureCode::Cancelled, 2, "CANCELLED"),
    (FailureCode::Closed, 3, "CLOSED"),
    (FailureCode::Table, 4, "TABLE"),
    (FailureCode::Value, 5, "VALUE"),
    (FailureCode::Limiter, 6, "LIMITER"),
    (FailureCode::TooLarge, 7, "TOO_LARGE"),
    (FailureCode::Mixed, 8, "MIXED"),
    (FailureCode::Checkpoint, 9, "CHECKPOINT"),
    (FailureCode::Journal, 10, "JOURNAL"),
];

impl FailureCode {
    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        CODES.iter().find(|(code, ..)| *code == self).map_or("?", |(.., name)| name)
    }

    fn number(self) -> u8 {
        CODES.iter().find(|(code, ..)| *code == self).map_or(0, |(_, number, _)| *number)
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
        stall: Stall,
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

/// A sum of weights: finite and not negative.
pub(super) fn weight(reader: &mut Reader<'_>) -> Result<f64, WireError> {
    let field = "weight of a table";
    match reader.f64(field)? {
        weight if weight.is_finite() && weight >= 0.0 => Ok(weight),
        weight => Err(WireError::meaningless(field, weight.to_bits())),
    }
}

impl Numbers {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.table.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.total_weight.to_le_bytes());
        out.extend_from_slice(&self.max_times_sampled.to_le_bytes());
        let Counts { inserts, samples, deletions } = self.counts;
        let episodes = [self.episodes, self.deleted_episodes];
        for number in [inserts, samples, deletions, self.unique_samples].into_iter().chain(episodes)
        {
            out.extend_from_slice(&number.to_le_bytes());
        }
        [self.insert_waits, self.sample_waits].encode(out);
        self.limiter.encode(out);
        out.push(self.paused.into());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.row_bytes.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            table: reader.u32("number of a table")?,
            size: reader.u32("size of a table")?,
            total_weight: weight(reader)?,
            max_times_sampled: reader.u32("most samples of an item")?,
            counts: Counts {
                inserts: reader.u64("inserts")?,
                samples: reader.u64("samples")?,
                deletions: reader.u64("deletions")?,
            },
            unique_samples: reader.u64("unique samples")?,
            episodes: reader.u64("episodes")?,
            deleted_episodes: reader.u64("deleted episodes")?,
            insert_waits: reader.get("waits")?,
            sample_waits: reader.get("waits")?,
            limiter: reader.get("limiter")?,
            paused: reader.flag("whether it is paused")?,
            version: reader.u64("version")?,
            row_bytes: reader.u64("bytes of rows")?,
        })
    }
}

impl Answer {
    /// The largest payload of an answer of a kind that is no batch; `None` for other kinds.
    pub fn limit(kind: u8) -> Option<u32> {
        match kind {
            kind::DONE | kind::FAILED | kind::SAVED => Some(crate::wire::frame::MAX_CONTROL),
            kind::NUMBERS | kind::LISTED | kind::ROLLOUT_TABLES | kind::ROLLOUT_NUMBERS => {
                Some(MAX_REQUEST)
            }
            // A group that is gone on with comes with what is there of it.
            kind::ROLLOUT_OUTCOMES => Some(MAX_BATCH),
            kind::ROLLOUT_REFUSED => Some(crate::wire::frame::MAX_CONTROL),
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
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }),
            Self::Failed { id, code, stall, text } => frame(out, kind::FAILED, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&[code.number(), stall.number()]);
                write_text(out, text, MAX_TEXT);
            }),
            Self::Numbers { id, numbers } => frame(out, kind::NUMBERS, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                out.extend_from_slice(&count.to_le_bytes());
                numbers.iter().for_each(|numbers| numbers.write(out));
            }),
            Self::Saved { id, path } => frame(out, kind::SAVED, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                write_text(out, path, MAX_TEXT);
            }),
            Self::Listed { id, next, infos } => frame(out, kind::LISTED, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&next.unwrap_or(NO_MORE).to_le_bytes());
                let count = u32::try_from(infos.keys.len()).unwrap_or(u32::MAX);
                out.extend_from_slice(&count.to_le_bytes());
                out.extend_from_slice(&infos.table_size.to_le_bytes());
                out.extend_from_slice(&infos.total_weight.to_le_bytes());
                write_values(out, &infos.keys, u64::to_le_bytes);
                write_values(out, &infos.priorities, f64::to_le_bytes);
                write_values(out, &infos.versions, u64::to_le_bytes);
                write_values(out, &infos.times_sampled, u32::to_le_bytes);
            }),
            Self::Observed { id, observation } => frame(out, kind::OBSERVED, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                observation.write(out);
            }),
            Self::RolloutTables { id, configs } => frame(out, kind::ROLLOUT_TABLES, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                rollouts::write_list(out, configs);
            }),
            Self::RolloutOutcomes { id, outcomes } => frame(out, kind::ROLLOUT_OUTCOMES, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                rollouts::write_outcomes(out, outcomes);
            }),
            Self::RolloutNumbers { id, info } => frame(out, kind::ROLLOUT_NUMBERS, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                info.encode(out);
            }),
            Self::RolloutRefused { id, error } => frame(out, kind::ROLLOUT_REFUSED, |out| {
                out.extend_from_slice(&id.to_le_bytes());
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
                let number = reader.u8("code of a failure")?;
                let code = CODES.iter().find(|(_, known, _)| *known == number);
                let field = "code of a failure";
                let meaningless = WireError::meaningless(field, number.into());
                let code = code.map(|(code, ..)| *code).ok_or(meaningless)?;
                let stall = Stall::read(&mut reader)?;
                let text = reader.text("reason of a failure", MAX_TEXT)?.to_owned();
                ("FAILED", Self::Failed { id, code, stall, text })
            }
            kind::NUMBERS => {
                let count = reader.u32_at_most("number of tables", MAX_TABLES)?;
                let numbers = (0..count).map(|_| Numbers::read(&mut reader));
                ("NUMBERS", Self::Numbers { id, numbers: numbers.collect::<Result<_, _>>()? })
            }
            kind::SAVED => {
                let path = reader.text("path of a checkpoint", MAX_TEXT)?.to_owned();
                ("SAVED", Self::Saved { id, path })
            }
            kind::LISTED => {
                let next = reader.u32("place of an item")?;
                let count = reader.u32_at_most("number of items", MAX_LISTED)?;
                let infos = Infos {
                    table_size: reader.u64("size of the table")?,
                    total_weight: reader.f64("weight of the table")?,
                    keys: reader.values("keys", count, u64::from_le_bytes)?,
                    probabilities: vec![f64::NAN; count as usize],
                    priorities: reader.values("priorities", count, f64::from_le_bytes)?,
                    versions: reader.values("versions", count, u64::from_le_bytes)?,
                    times_sampled: reader.values("times sampled", count, u32::from_le_bytes)?,
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
