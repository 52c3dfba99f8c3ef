//! Tables in checkpoints, and the unread samples of the stream beside them.
//!
//! [`save`] writes every table of a server, each as it was at one moment, while inserts and samples go
//! on; [`load`] brings them back, all or none; [`open`] makes tables of them to look at. A [`Checkpointer`]
//! does so for a server. What is in which section:
//!
//! - `stream.head`, `stream.samples`: see `unread`. `rollouts-N.*`: see `rollouts`.
//! - `table-N.head`: JSON: name, form, settings, counts, the state of the generator ([`Head`]).
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

use serde::{Deserialize, Serialize};

use super::{Form, TableConfig, Tables};
use crate::rollouts::RolloutTable;
use crate::spec::Spec;
use crate::stream::Stream;
use crate::trajectory::Signature;

pub use checkpointer::{Checkpointer, Past};
pub(super) use load::{Living, SavedTable, describe_form, read, read_signature};
pub use load::{Loaded, load, open};
pub(super) use rollouts::read as read_rollouts;
pub use store::save;
pub(super) use unread::read as read_unread;

/// The version of the sections described above.
const VERSION: u32 = 3;

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

/// One leaf, as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeafText {
    /// Where it stands in the tree.
    pub path: String,
    /// Name of the dtype.
    pub dtype: String,
    /// Shape; in trajectories that of one step.
    pub shape: Vec<usize>,
    /// Whether it has no axis of time; of no meaning in rows.
    pub squeezed: bool,
}

impl LeafText {
    /// Leaves for people.
    fn list(leaves: &[Self]) -> String {
        let leaves =
            leaves.iter().map(|leaf| format!("{}: {}{:?}", leaf.path, leaf.dtype, leaf.shape));
        leaves.collect::<Vec<_>>().join(", ")
    }
}

/// The form of some trajectories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignatureText {
    /// The tree of the leaves.
    pub structure: String,
    /// The leaves.
    pub leaves: Vec<LeafText>,
}

/// All about a table but its items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Of the sections' format.
    pub version: u32,
    /// Of the table.
    pub name: String,
    /// Whether items lie in rows.
    pub rows: bool,
    /// The leaves that every item has, if the table says so.
    pub spec: Option<Vec<LeafText>>,
    /// The tree of the spec.
    pub structure: String,
    /// Words of the selectors.
    pub sampler: [u64; 4],
    /// As `sampler`.
    pub remover: [u64; 4],
    /// Names of the selectors, for people.
    pub selectors: [String; 2],
    /// The limiter: minimal size, and the bits of the three other numbers, which may be infinite.
    pub limiter: [u64; 4],
    /// How many items there may be.
    pub capacity: u32,
    /// After how many samples an item goes.
    pub max_times_sampled: u32,
    /// Inserts, samples, deletions.
    pub counts: [u64; 3],
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
    /// In which order slots are used next: how many were ever used, the free ones of which the last comes
    /// first, and those that come after them.
    pub order: (u32, Vec<u32>, Vec<u32>),
    /// The forms of its trajectories.
    pub signatures: Vec<SignatureText>,
    /// Of a table with a journal: which, and the number of its first record that is not in here.
    pub journal: Option<(String, u64)>,
}

fn section(table: usize, part: &str) -> String {
    format!("table-{table}.{part}")
}

fn spec_text(spec: &Spec) -> Vec<LeafText> {
    let leaves = spec.leaves().iter().map(|leaf| LeafText {
        path: leaf.path.clone(),
        dtype: leaf.dtype.to_string(),
        shape: leaf.shape.clone(),
        squeezed: false,
    });
    leaves.collect()
}

pub(super) fn signature_text(signature: &Signature) -> SignatureText {
    let leaves = signature.columns.iter().map(|column| LeafText {
        path: column.path.clone(),
        dtype: column.kind.dtype.to_string(),
        shape: column.kind.shape.clone(),
        squeezed: column.squeezed,
    });
    SignatureText { structure: signature.structure.clone(), leaves: leaves.collect() }
}

/// Whether items lie in rows, and the spec as text.
pub(super) fn form_text(config: &TableConfig) -> (bool, Option<Vec<LeafText>>) {
    match &config.form {
        Form::Rows(spec) => (true, Some(spec_text(spec))),
        Form::Trajectories(spec) => (false, spec.as_ref().map(spec_text)),
    }
}
