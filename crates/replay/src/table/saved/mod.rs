//! Tables in checkpoints, and the unread samples of the stream beside them.
//!
//! [`save`] writes every table of a server, each as it was at one moment, while inserts and samples go
//! on; [`load`] brings them back, all or none; [`open`] makes tables of them to look at. A [`Checkpointer`]
//! does so for a server. What is in which section:
//!
//! - `stream.head`, `stream.samples`: see `unread`. `rollouts-N.*`: see `rollouts`.
//! - `table-N.head`: the settings, counts, the state of the generator ([`Head`]).
//! - `table-N.items`: what is known about each slot: see `items::write`.
//! - `table-N.sampler` and `.remover`: their states. `table-N.sessions`: how far those producers have come that insert
//!   from elsewhere. Each of these is not there when it is empty.
//! - `table-N.rows`: the bytes of the items, and `table-N.runs`: in which slots they were: the first of a run
//!   and how many it has, u32 each; or
//! - `table-N.trajectories`: slot and slices of each, whose chunks are blobs, so that a chunk is written
//!   once, however many items, tables and checkpoints have it.
//!
//! # Invariants
//!
//! 1. The lock of a table is held to copy numbers, not payload. A row or trajectory that is removed while
//!    it waits to be written is kept until then, and comes first.
//! 2. What is read is checked before anything is made of it: a file that lies makes an error.

mod checkpointer;
mod load;
mod rollouts;
mod store;
mod unread;

use std::sync::Arc;

use echoic_memory::slab::Order;

use super::{TableConfig, Tables};
use crate::fields;
use crate::limiter::Counts;
use crate::rollouts::RolloutTable;
use crate::stream::Stream;
use crate::trajectory::Signature;

pub use checkpointer::{Checkpointer, Past};
pub(super) use load::{Living, SavedTable, read};
pub use load::{Loaded, load, open};
pub(super) use rollouts::read as read_rollouts;
pub use store::save;
pub(super) use unread::read as read_unread;

/// The format of the sections described above.
const FORMAT: u32 = 4;

/// What of a server is saved and loaded.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// All of its tables.
    pub tables: &'a Tables,
    /// Its stream, of which unread samples are saved.
    pub stream: Option<&'a Stream>,
    /// Its rollout tables.
    pub rollouts: &'a [Arc<RolloutTable>],
}

impl<'a> From<&'a Tables> for Contents<'a> {
    fn from(tables: &'a Tables) -> Self {
        Self { tables, stream: None, rollouts: &[] }
    }
}

/// All about a table but its items.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// As the table was made.
    pub config: TableConfig,
    /// How many items came, were sampled and went.
    pub counts: Counts,
    /// How many items were ever sampled.
    pub unique_samples: u64,
    /// How many episodes had items that are all gone.
    pub deleted_episodes: u64,
    /// State of the generator.
    pub rng: [u64; 4],
    /// The learner's policy version.
    pub policy_version: u64,
    /// How many slots there are.
    pub slots: u32,
    /// How many of them have an item.
    pub items: u32,
    /// In which order slots are used next.
    pub order: Order,
    /// The forms of its trajectories.
    pub signatures: Vec<Arc<Signature>>,
    /// Of a table with a journal: which, and the number of its first record that is not in here.
    pub journal: Option<(String, u64)>,
}

fields! {
    Order { used: u32, free: Vec<u32>, freed: Vec<u32> }
    Head {
        config: TableConfig,
        counts: Counts,
        unique_samples: u64,
        deleted_episodes: u64,
        rng: [u64; 4],
        policy_version: u64,
        slots: u32,
        items: u32,
        order: Order,
        signatures: Vec<Arc<Signature>>,
        journal: Option<(String, u64)>,
    }
}

fn section(table: usize, part: &str) -> String {
    format!("table-{table}.{part}")
}
