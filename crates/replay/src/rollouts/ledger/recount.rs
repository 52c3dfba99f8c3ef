//! What a ledger has to be, looked at from the beginning: for tests.
//!
//! It takes time in proportion to everything that is there.

use super::Ledger;
use super::leases::PartState;
use crate::rollouts::config::OnExpiry;

impl Ledger {
    /// Whether it is what it would be if it were loaded, and counts what there is; if not, where not.
    ///
    /// # Errors
    ///
    /// What differs.
    #[doc(hidden)]
    pub fn recount(&self) -> Result<(), String> {
        let mut state = self.state.clone();
        state.ready.values_mut().for_each(|ready| ready.is_out = false);
        let derived = state.derive(&self.config, self.derived.queue.layout());
        let derived = derived.map_err(|error| error.to_string())?;
        same("what is saved", &self.state, &state)?;
        same("what follows from it", &self.derived, &derived)?;
        let counts = self.counts();
        let (mut submitted, mut running) = (0, 0);
        for source in self.sources() {
            submitted += source.submitted;
            running += source.running;
            let sum = source.running + source.accepted + source.rejected + source.filtered;
            same("what is counted of a source", &source.submitted, &sum)?;
        }
        same("submitted by all sources", &submitted, &counts.submitted)?;
        same("running of all sources", &running, &counts.running)?;
        // One that is left and not given up when its reservation is over may be expired several times.
        let expired = if self.config.on_expiry == OnExpiry::Reject { counts.expired } else { 0 };
        most("expired and late", expired + counts.late, counts.rejected)?;
        most("removed", counts.removed, counts.filtered)?;
        most("groups that are there", self.live(), self.config.capacity.into())?;
        most("groups that run", counts.running, self.config.max_running.into())?;
        if let Some(bound) = self.bound().filter(|_| self.drops()) {
            let stale: Vec<u64> = self.derived.queue.up_to(bound - 1).collect();
            same("queued groups that are too old", &stale, &Vec::new())?;
            if let Some(first) =
                self.derived.by_oldest.first().filter(|(oldest, _)| *oldest < bound)
            {
                return Err(format!("open group too old: {first:?}, bound {bound}"));
            }
        }
        let mut history =
            self.state.batches.iter().filter(|(_, batch)| batch.target < self.state.version);
        let waits = |batch: &super::leases::Batch| {
            batch.shares.iter().any(|part| part.state == PartState::Waiting)
        };
        match history.find(|(_, batch)| waits(batch)) {
            Some((number, _)) => Err(format!("batch {number} is history, and a rank waits")),
            None => Ok(()),
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, kept: &T, counted: &T) -> Result<(), String> {
    if kept == counted {
        Ok(())
    } else {
        Err(format!("{what}: kept {kept:?}, counted {counted:?}"))
    }
}

fn most(what: &str, got: u64, most: u64) -> Result<(), String> {
    if got <= most { Ok(()) } else { Err(format!("{what}: {got}, more than {most}")) }
}
