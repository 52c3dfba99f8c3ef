//! Connections that are about tables.
//!
//! - `desk`: a connection for requests.
//! - `scribe`: a connection for inserts.

mod desk;
mod scribe;

use std::sync::Arc;
use std::task::Waker;

use echoic_replay::chunk::ChunkMeter;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::table::saved::Keeper;
use echoic_replay::table::{Table, Tables};

pub(crate) use self::desk::{Desk, check_area};
pub(crate) use self::scribe::{Hold, Scribe};
use super::Observer;
use super::bells::TableBells;
use crate::spare::Spare;
use crate::wire::rollouts::Entry;

/// What connections of one event loop work with.
pub(crate) struct Context<'a> {
    pub(crate) tables: &'a Tables,
    /// Rollout tables, and how they are introduced.
    pub(crate) rollouts: &'a [Arc<RolloutTable>],
    pub(crate) rollout_entries: &'a [Entry],
    /// Of each table.
    pub(crate) bells: &'a [TableBells],
    /// Who writes checkpoints, and what to ring when one is written.
    pub(crate) keeper: Option<&'a Arc<Keeper>>,
    pub(crate) saved: &'a Waker,
    /// Looks at the whole server.
    pub(crate) observer: Option<&'a Observer>,
    /// Counts the chunks that came through this door.
    pub(crate) chunks: &'a Arc<ChunkMeter>,
    /// For batches on their way out.
    pub(crate) spare: &'a Arc<Spare>,
    /// From how many unsent bytes on no further request is looked at.
    pub(crate) most_unsent: usize,
}

impl Context<'_> {
    /// Whether all that was changed so far is kept.
    pub(crate) fn is_all_kept(&self) -> bool {
        let is_kept = |table: &Arc<Table>| {
            table.receipt().is_none_or(|receipt| table.is_kept(receipt) == Ok(true))
        };
        self.tables.all().iter().all(is_kept)
    }
}
