//! A rollout table, wherever it is: in this process or at a server.

use std::sync::Arc;

use echoic_net::client::rollouts::{Delivered, Rollouts};
use echoic_net::client::tables::{TablesError, Waiting};
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::Form;
use echoic_replay::rollouts::ledger::{Blocked, Change, Lease, Outcome, Refusal, Want};
use echoic_replay::rollouts::table::{CallError, RolloutInfo, RolloutTable as Core};
use echoic_replay::stream::Wait;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::ahead::{Ahead, RolloutCall};
use super::batch::{RolloutBatch, lay_out, received};
use super::call_error;
use crate::arena::Arena;
use crate::remote::tables_error;
use crate::sources::DETACH_BYTES;
use crate::wait::{self, Stopped};

/// See the [module](self).
pub enum Reach {
    /// In this process.
    Here {
        table: Arc<Core>,
        /// Where its batches are.
        arena: Arena,
    },
    /// At a server, by its place there.
    There {
        link: Arc<Rollouts>,
        number: u32,
        config: Arc<RolloutConfig>,
        /// What is on its way over the connection.
        ahead: Arc<Ahead>,
    },
}

/// The exception for what a server's table did not do.
pub fn remote_error(py: Python<'_>, error: &TablesError) -> PyErr {
    match error {
        TablesError::Rollout(error) => call_error(py, error),
        error => tables_error(py, error),
    }
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

    pub fn metadata(&self) -> &[u8] {
        match self {
            Self::Here { table, .. } => table.metadata(),
            Self::There { link, number, .. } => {
                link.tables().get(*number as usize).map_or(&[], |entry| &entry.metadata)
            }
        }
    }

    /// Has something happen, waiting for as long as it may.
    pub fn call(&self, py: Python<'_>, change: Change, timeout: Option<f64>) -> PyResult<Outcome> {
        match self {
            Self::Here { table, .. } => here(py, table, &change, None, timeout),
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
                let outcomes = outcomes.map_err(|error| call_error(py, &error))?;
                // One wait for the disk is for all of them.
                keep(py, table)?;
                Ok(outcomes)
            }
            Self::There { .. } => self.all_there(py, &changes, None),
        }
    }

    /// Has a group get tokens, of so many bytes, without waiting for the answer; `None`, if there is nothing to wait
    /// for, since the table is in this process.
    pub fn start(
        &self,
        py: Python<'_>,
        group: u64,
        bytes: usize,
        changes: &[Change],
    ) -> PyResult<Option<RolloutCall>> {
        let Self::There { link, number, ahead, .. } = self else { return Ok(None) };
        ahead.make_room(py, bytes)?;
        let start = || link.start_call(*number, changes, None);
        let calls = if bytes >= DETACH_BYTES { py.detach(start) } else { start() };
        let calls = calls.map_err(|error| remote_error(py, &error))?;
        Ok(Some(ahead.push(group, bytes, calls)))
    }

    /// Waits until everything that was begun over the connection has its answer.
    pub fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = wait::deadline(timeout)?;
        match self {
            Self::Here { .. } => Ok(()),
            Self::There { ahead, .. } => ahead.finish(py, deadline),
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
        let call = |wait: Wait<'_, Waiting>| link.call(*number, changes, wait);
        let outcomes = wait::detached(py, deadline, None, call)
            .map_err(|stopped| stopped.raise(py, remote_error))?;
        let done = |outcome: Result<Outcome, Refusal>| {
            outcome.map_err(|refusal| call_error(py, &CallError::Refused(refusal)))
        };
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
                match here(py, table, &Change::Sample(want), form.width(), timeout)? {
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
                let call = |wait: Wait<'_, Waiting>| link.sample(*number, want, form, wait);
                let delivered: Delivered = wait::detached(py, deadline, None, call)
                    .map_err(|stopped| stopped.raise(py, remote_error))?;
                received(py, delivered, config)
            }
        }
    }

    pub fn info(&self, py: Python<'_>) -> PyResult<RolloutInfo> {
        match self {
            Self::Here { table, .. } => Ok(table.info()),
            Self::There { link, number, .. } => {
                wait::detached(py, None, None, |wait: Wait<'_, Waiting>| link.info(*number, wait))
                    .map_err(|stopped| stopped.raise(py, remote_error))
            }
        }
    }

    pub fn pause(&self, py: Python<'_>, paused: bool) -> PyResult<()> {
        match self {
            Self::Here { table, .. } => {
                table.pause(paused);
                Ok(())
            }
            Self::There { link, number, .. } => {
                let call = |wait: Wait<'_, Waiting>| link.pause(*number, paused, wait);
                wait::detached(py, None, None, call)
                    .map_err(|stopped| stopped.raise(py, remote_error))
            }
        }
    }

    pub fn wait_version(&self, py: Python<'_>, above: i64, timeout: Option<f64>) -> PyResult<i64> {
        let deadline = wait::deadline(timeout)?;
        match self {
            Self::Here { table, .. } => {
                let call = |wait: Wait<'_, Blocked>| table.wait_version(above, wait);
                wait::detached(py, deadline, None, call)
                    .map_err(|stopped| stopped.raise(py, call_error))
            }
            Self::There { link, number, .. } => {
                let call = |wait: Wait<'_, Waiting>| link.wait_version(*number, above, wait);
                wait::detached(py, deadline, None, call)
                    .map_err(|stopped| stopped.raise(py, remote_error))
            }
        }
    }
}

fn here(
    py: Python<'_>,
    table: &Arc<Core>,
    change: &Change,
    width: Option<u32>,
    timeout: Option<f64>,
) -> PyResult<Outcome> {
    // Most calls need not wait, and are over before another thread could use the GIL; with a directory,
    // tokens are copied into the journal's record.
    let applied = match table.has_directory() {
        true => py.detach(|| table.apply_within(change, width)),
        false => table.apply_within(change, width),
    };
    match applied {
        Err(CallError::Refused(Refusal::Blocked(_))) => {}
        Ok(done) => {
            keep(py, table).inspect_err(|_| table.take_back(&done))?;
            return Ok(done);
        }
        done => return done.map_err(|error| call_error(py, &error)),
    }
    let deadline = wait::deadline(timeout)?;
    let call = |wait: Wait<'_, Blocked>| table.call_within(change, width, wait);
    wait::detached(py, deadline, None, call)
        .map_err(|stopped: Stopped<CallError>| stopped.raise(py, call_error))
}

/// Waits until all that was changed survives what the table's durability says.
fn keep(py: Python<'_>, table: &Core) -> PyResult<()> {
    if !table.has_directory() {
        return Ok(());
    }
    let keep = |wait: Wait<'_, Blocked>| table.keep(wait);
    wait::detached(py, None, None, keep).map_err(|stopped| stopped.raise(py, call_error))
}

/// Gives a share back that could not be laid out as wanted, so that nothing is lost by a row that is too narrow.
fn give_back(table: &Core, lease: Lease) {
    // If the lease is over by now, it waits already.
    let _ = table.apply(&Change::Nack(lease));
}
