//! A rollout table, wherever it is: in this process or at a server.

use std::sync::Arc;

use echoic_net::client::rollouts::{Calls, Rollouts};
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::Form;
use echoic_replay::rollouts::item::{Finish, Segment};
use echoic_replay::rollouts::ledger::{
    Append, Change, ChangeError, GroupStatus, Hold, Lease, Outcome, Want,
};
use echoic_replay::rollouts::table::{CallError, RolloutInfo, RolloutTable as Core};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::batch::{RolloutBatch, lay_out, received};
use super::call::{Added, RolloutCall};
use super::items::{Flat, Still, copying};
use crate::error::OrRaise;
use crate::memory::Arena;
use crate::wait;

/// How many items are sent as they lie in their arrays, and how many bytes of them. More are several requests.
const MOST_AT_ONCE: u32 = 1 << 12;
const BYTES_AT_ONCE: usize = 8 << 20;

/// See the [module](self).
pub enum Reach {
    /// In this process.
    Here {
        table: Arc<Core>,
        /// Where its batches are.
        arena: Arena,
    },
    /// At a server, by its place there.
    There { link: Arc<Rollouts>, number: u32, config: Arc<RolloutConfig> },
}

fn nothing() -> PyErr {
    PyRuntimeError::new_err("the server answered nothing")
}

impl Reach {
    pub fn config(&self) -> &Arc<RolloutConfig> {
        match self {
            Self::Here { table, .. } => table.config(),
            Self::There { config, .. } => config,
        }
    }

    /// Has something happen, waiting for as long as it may.
    pub fn call(&self, py: Python<'_>, change: Change, timeout: Option<f64>) -> PyResult<Outcome> {
        match self {
            Self::Here { table, .. } => here(py, table, &change, timeout),
            Self::There { .. } => {
                let done = self.all_there(py, &[change], timeout)?.pop();
                done.ok_or_else(nothing)
            }
        }
    }

    /// Has several things happen, none of which may have to wait.
    pub fn all(&self, py: Python<'_>, changes: Vec<Change>) -> PyResult<Vec<Outcome>> {
        match self {
            Self::Here { table, .. } => {
                let applied = || changes.iter().map(|change| table.apply(change)).collect();
                let outcomes: Result<Vec<_>, _> = py.detach(applied);
                let outcomes = outcomes.or_raise(py)?;
                // One wait for the disk is for all of them.
                keep(py, table)?;
                Ok(outcomes)
            }
            Self::There { .. } => self.all_there(py, &changes, None),
        }
    }

    /// Has a group get tokens or values of so many bytes: waits for the answer, or, if there is something to wait for,
    /// does not.
    pub fn add(
        &self,
        py: Python<'_>,
        group: u64,
        bytes: usize,
        change: Change,
        wait: bool,
    ) -> PyResult<Added> {
        let Self::There { link, number, .. } = self else {
            return added(self.call(py, change, None)?);
        };
        if !wait {
            make_room(py, link, bytes)?;
        }
        let start = || link.start_call(*number, &[change], None);
        let calls = copying(py, bytes, start).or_raise(py)?;
        follow(py, link, group, bytes, calls, wait)
    }

    /// As [`Reach::add`], of whole items from a place in the group on.
    pub fn append_flat(
        &self,
        py: Python<'_>,
        hold: Hold,
        first: u32,
        items: &Flat<'_>,
        priority: f64,
        wait: bool,
    ) -> PyResult<Added> {
        let bytes = items.bytes();
        let changes = |items: &Still<'_>| -> Vec<Change> {
            let append = |(item, (segment, finish)): (u32, (Segment, Finish))| {
                let (segment, finish) = (Arc::new(segment), Some(Arc::new(finish)));
                Change::Append(Append { hold, item, sequence: 0, segment, finish, priority })
            };
            (first..).zip(items.owned()).map(append).collect()
        };
        let Self::There { link, number, .. } = self else {
            let still = items.still();
            let changes = copying(py, bytes, || changes(&still));
            return match self.all(py, changes)?.pop() {
                Some(outcome) => added(outcome),
                None => Ok(Added::Known(GroupStatus::Running.name())),
            };
        };
        if !wait {
            make_room(py, link, bytes)?;
        }
        let (still, count, is_plain) = (items.still(), items.count(), items.has_short_names());
        let start = || match u32::try_from(count) {
            Ok(count @ 1..=MOST_AT_ONCE) if bytes <= BYTES_AT_ONCE && is_plain => {
                let heads = still.heads(hold, first, priority);
                link.start_filled(*number, count, &heads, bytes, !wait, |to| still.fill(to))
            }
            _ => link.start_call(*number, &changes(&still), None),
        };
        let calls = copying(py, bytes, start).or_raise(py)?;
        follow(py, link, hold.group, bytes, calls, wait)
    }

    /// Waits until everything that was sent over the connection has its answer.
    pub fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = wait::deadline(timeout)?;
        match self {
            Self::Here { .. } => Ok(()),
            Self::There { link, .. } => {
                wait::until(py, deadline, |wait| link.appends().flush(wait))
            }
        }
    }

    fn all_there(
        &self,
        py: Python<'_>,
        changes: &[Change],
        timeout: Option<f64>,
    ) -> PyResult<Vec<Outcome>> {
        let Self::There { link, number, .. } = self else { return Err(nothing()) };
        let deadline = wait::deadline(timeout)?;
        let outcomes = wait::until(py, deadline, |wait| link.call(*number, changes, wait))?;
        let done =
            |outcome: Result<_, ChangeError>| outcome.map_err(CallError::Refused).or_raise(py);
        outcomes.into_iter().map(done).collect()
    }

    pub fn sample(
        &self,
        py: Python<'_>,
        want: Want,
        form: Form,
        timeout: Option<f64>,
    ) -> PyResult<RolloutBatch> {
        match self {
            Self::Here { table, arena } => {
                let want = Want { width: form.width(), ..want };
                match here(py, table, &Change::Sample(want), timeout)? {
                    Outcome::Delivered(share) => {
                        let laid = lay_out(py, arena, &share, table.config(), form);
                        if laid.is_err() && share.lease_ms.is_some() {
                            give_back(table, share.lease);
                        }
                        laid
                    }
                    other => Err(super::unexpected(&other)),
                }
            }
            Self::There { link, number, config, .. } => {
                let deadline = wait::deadline(timeout)?;
                let delivered =
                    wait::until(py, deadline, |wait| link.sample(*number, want, form, wait))?;
                received(py, delivered, config)
            }
        }
    }

    pub fn info(&self, py: Python<'_>) -> PyResult<RolloutInfo> {
        match self {
            Self::Here { table, .. } => Ok(table.info()),
            Self::There { link, number, .. } => {
                wait::until(py, None, |wait| link.info(*number, wait))
            }
        }
    }
}

/// What came of tokens that were added.
fn added(outcome: Outcome) -> PyResult<Added> {
    match outcome {
        Outcome::Appended(status) => Ok(Added::Known(status.name())),
        other => Err(super::unexpected(&other)),
    }
}

/// Waits until there is room for tokens that nobody waits for.
fn make_room(py: Python<'_>, link: &Rollouts, bytes: usize) -> PyResult<()> {
    match link.appends().has_room(bytes).or_raise(py)? {
        true => Ok(()),
        false => wait::until(py, None, |wait| link.appends().make_room(bytes, wait)),
    }
}

/// Waits for the answer of what was asked for, or leaves it to those that are on their way.
fn follow(
    py: Python<'_>,
    link: &Rollouts,
    group: u64,
    bytes: usize,
    mut calls: Calls,
    wait: bool,
) -> PyResult<Added> {
    if !wait {
        return Ok(Added::OnItsWay(RolloutCall(link.appends().push(group, bytes, calls))));
    }
    let status = wait::until(py, None, |wait| calls.wait_status(wait))?;
    Ok(Added::Known(status.name()))
}

fn here(
    py: Python<'_>,
    table: &Arc<Core>,
    change: &Change,
    timeout: Option<f64>,
) -> PyResult<Outcome> {
    // Most calls need not wait, and are over before another thread could use the GIL; with a directory,
    // tokens are copied into the journal's record.
    let applied = match table.has_directory() {
        true => py.detach(|| table.apply(change)),
        false => table.apply(change),
    };
    match applied {
        Err(CallError::Refused(ChangeError::Blocked(_))) => {}
        Ok(done) => {
            keep(py, table).inspect_err(|_| table.take_back(&done))?;
            return Ok(done);
        }
        done => return done.or_raise(py),
    }
    wait::until(py, wait::deadline(timeout)?, |wait| table.call(change, wait))
}

/// Waits until all that was changed survives what the table's durability says.
fn keep(py: Python<'_>, table: &Core) -> PyResult<()> {
    if !table.has_directory() {
        return Ok(());
    }
    wait::until(py, None, |wait| table.keep(wait))
}

/// Gives a share back that could not be laid out as wanted, so that nothing is lost by a row that is too narrow.
fn give_back(table: &Core, lease: Lease) {
    // If the lease is over by now, it waits already.
    let _ = table.apply(&Change::Nack(lease));
}
