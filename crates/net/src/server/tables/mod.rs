//! Connections that are about tables.
//!
//! - `request_session`: a connection for requests.
//! - `insert_session`: a connection for inserts.

mod insert_session;
mod request_session;

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use echoic_replay::chunk::ChunkMeter;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::table::saved::Keeper;
use echoic_replay::table::{Table, Tables};

pub(crate) use self::insert_session::{Hold, InsertSession};
pub(crate) use self::request_session::{RequestSession, check_area};
use super::Observer;
use super::loop_wakers::TableWakers;
use super::pool::Pool;
use crate::spare::Spare;
use crate::wire::rollouts::Entry;

/// From how many bytes on, copied or as good as that, something is not done by the event loop: about a millisecond. Less
/// takes not much longer than to hand it over.
pub(crate) const HEAVY: usize = 4 << 20;

/// What connections of one event loop work with.
pub(crate) struct Context<'a> {
    pub(crate) tables: &'a Tables,
    /// Rollout tables, and how they are introduced.
    pub(crate) rollouts: &'a [Arc<RolloutTable>],
    pub(crate) rollout_entries: &'a [Entry],
    /// Of each table.
    pub(crate) wakers: &'a [TableWakers],
    /// Who writes checkpoints, and what to ring when one is written.
    pub(crate) keeper: Option<&'a Arc<Keeper>>,
    pub(crate) saved: &'a Waker,
    /// Does what takes long, and what to ring when it is done.
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) worked: &'a Waker,
    /// The connection that is being served, to be closed if that panics.
    pub(crate) serving: &'a Cell<Option<usize>>,
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
