//! What the sessions of one event loop work with.

use std::cell::Cell;
use std::sync::Arc;

use echoic_replay::rollouts::RolloutTable;
use echoic_replay::table::Table;

use super::Shared;
use super::loop_wakers::{TableWakers, WakerPair};
use super::pool::Task;

/// From how many bytes on, copied or as good as that, something is not done by the event loop: about a millisecond. Less
/// takes not much longer than to hand it over.
pub(crate) const HEAVY: usize = 4 << 20;

/// See the [module](self).
pub(crate) struct Services {
    /// What all event loops share.
    pub(crate) shared: Arc<Shared>,
    /// Of each table of items.
    pub(crate) wakers: Vec<TableWakers>,
    /// Of each table of items, and behind them of each rollout table: more of what was changed is durable, or nothing
    /// more will be.
    pub(crate) durable: Vec<WakerPair>,
    /// A checkpoint is written.
    pub(crate) saved: WakerPair,
    /// The pool has done something.
    pub(crate) worked: WakerPair,
    /// The connection that is being served: the one to close if that panics.
    pub(crate) serving: Cell<Option<usize>>,
}

impl Services {
    pub(crate) fn new(shared: Arc<Shared>, waker: &Arc<mio::Waker>) -> Self {
        let tables = shared.tables.all().len();
        let pairs = |count| (0..count).map(|_| WakerPair::new(waker)).collect();
        Self {
            wakers: (0..tables).map(|_| TableWakers::new(waker)).collect(),
            durable: pairs(tables + shared.rollouts.len()),
            saved: WakerPair::new(waker),
            worked: WakerPair::new(waker),
            serving: Cell::new(None),
            shared,
        }
    }

    /// The table of items of this number.
    pub(crate) fn table(&self, number: usize) -> Option<&Arc<Table>> {
        self.shared.tables.all().get(number)
    }

    /// The rollout table of this number.
    pub(crate) fn rollout_table(&self, number: usize) -> Option<&Arc<RolloutTable>> {
        self.shared.rollouts.get(number)
    }

    /// From how many unsent bytes on no further request is looked at.
    pub(crate) fn most_unsent(&self) -> usize {
        self.shared.credit_bytes()
    }

    /// Has work done by the pool, and wakes the event loop when it is.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Task<T> {
        self.shared.pool.run(&self.worked.waker, work)
    }

    /// Wakes the event loop when more is durable in the table whose waker has this place in [`Services::durable`].
    pub(crate) fn wake_on_durable(&self, place: usize) {
        let waker = &self.durable[place].waker;
        match self.table(place) {
            Some(table) => table.wake_on_kept(waker),
            None => self.shared.rollouts[place - self.wakers.len()].wake_on_kept(waker),
        }
    }

    /// Whether all that was changed so far in tables of items is durable.
    pub(crate) fn is_all_durable(&self) -> bool {
        let is_durable = |table: &Arc<Table>| {
            table.receipt().is_none_or(|receipt| table.is_kept(receipt) == Ok(true))
        };
        self.shared.tables.all().iter().all(is_durable)
    }
}
