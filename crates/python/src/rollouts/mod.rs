//! Rollout tables: groups of token sequences in, batches that are fresh out.
//!
//! - `settings`: what a table is told. `items`: arrays of an item as bytes.
//! - `batch`: a share of a batch as arrays.

mod batch;
mod items;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use echoic_replay::rollouts::ledger::{
    Admit, Append, Balance, Blocked, Change, Fate, Hold, Lease, Outcome, Permit, Refusal, Size,
    Want,
};
use echoic_replay::rollouts::table::{CallError, RolloutInfo, RolloutTable as Core};
use echoic_replay::stream::Wait;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

pub use self::batch::RolloutBatch;
use self::items::Columns;
use crate::arena::Arena;
use crate::error::{
    closed_error, group_not_found_error, lease_error, rollout_error, set, timeout_error,
};
use crate::fork::Process;
use crate::wait::{self, Stopped};

/// A rollout table in this process.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct RolloutTable {
    table: Arc<Core>,
    columns: Columns,
    arena: Arena,
    process: Process,
}

/// A group and its attempt, as Python names a permit.
type PyHold = (u64, u32);
/// A batch, a rank and an attempt, as Python names a lease.
type PyLease = (u64, u32, u32);
/// Group, attempt, key, version, and seconds that it stands.
type PyPermit = (u64, u32, String, i64, f64);
/// Of an item that was begun: its place, segments, tokens, and whether it is finished.
type PyBegun = (u32, u32, u32, bool, Py<PyAny>);

fn holds(holds: Vec<PyHold>) -> Vec<Hold> {
    holds.into_iter().map(|(group, attempt)| Hold { group, attempt }).collect()
}

fn lease((batch, rank, attempt): PyLease) -> Lease {
    Lease { batch, rank, attempt }
}

fn permit(permit: Permit) -> PyPermit {
    let Permit { hold, key, version, ttl_ms } = permit;
    (hold.group, hold.attempt, key, version, ttl_ms as f64 / 1e3)
}

/// Milliseconds of a number of seconds, at least one.
pub fn millis(name: &str, value: f64) -> PyResult<u64> {
    let length = wait::seconds(name, value)?.unwrap_or(Duration::MAX);
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    Ok(millis.clamp(1, u64::MAX >> 16))
}

fn maybe_millis(name: &str, value: Option<f64>) -> PyResult<Option<u64>> {
    value.map(|value| millis(name, value)).transpose()
}

/// The exception for a call that came to nothing.
pub fn call_error(py: Python<'_>, error: &CallError) -> PyErr {
    let text = error.to_string();
    match error {
        CallError::TimedOut(blocked) | CallError::Refused(Refusal::Blocked(blocked)) => {
            blocked_error(py, *blocked)
        }
        CallError::Closed => closed_error(py, text),
        CallError::Interrupted => PyRuntimeError::new_err(text),
        CallError::Refused(Refusal::Fenced { .. }) => lease_error(py, text),
        CallError::Refused(Refusal::Unknown(_)) => group_not_found_error(py, text),
        CallError::Refused(_) => rollout_error(py, text),
        _ => PyRuntimeError::new_err(text),
    }
}

fn blocked_error(py: Python<'_>, blocked: Blocked) -> PyErr {
    let error = timeout_error(py, format!("timed out: {blocked}"));
    set(py, error, "reason", blocked.reason().to_string())
}

/// An outcome that the table never gives to such a change.
fn unexpected(outcome: &Outcome) -> PyErr {
    PyRuntimeError::new_err(format!("the table answered something else: {outcome:?}"))
}

fn balance(name: &str) -> PyResult<Balance> {
    match name {
        "count" => Ok(Balance::Count),
        "tokens" => Ok(Balance::Tokens),
        "squares" => Ok(Balance::Squares),
        other => {
            let text = format!("balance must be 'count', 'tokens' or 'squares', got {other:?}");
            Err(PyValueError::new_err(text))
        }
    }
}

impl RolloutTable {
    /// The table itself, for a server.
    pub fn core(&self) -> &Arc<Core> {
        &self.table
    }

    fn call(&self, py: Python<'_>, change: Change, timeout: Option<f64>) -> PyResult<Outcome> {
        self.process.check(py)?;
        // Most calls need not wait.
        match self.table.apply(&change) {
            Err(CallError::Refused(Refusal::Blocked(blocked))) if timeout == Some(0.0) => {
                return Err(blocked_error(py, blocked));
            }
            Err(CallError::Refused(Refusal::Blocked(_))) => {}
            done => return done.map_err(|error| call_error(py, &error)),
        }
        let deadline = wait::deadline(timeout)?;
        let call = |wait: Wait<'_, Blocked>| self.table.call(&change, wait);
        wait::detached(py, deadline, None, call).map_err(|stopped| match stopped {
            Stopped::Raised(error) => error,
            Stopped::Failed(error) => call_error(py, &error),
        })
    }

    fn count(&self, py: Python<'_>, change: Change) -> PyResult<u64> {
        match self.call(py, change, None)? {
            Outcome::Count(count) => Ok(count),
            Outcome::Done => Ok(0),
            other => Err(unexpected(&other)),
        }
    }
}

#[pymethods]
impl RolloutTable {
    #[new]
    #[pyo3(signature = (settings, metadata=None))]
    fn new(
        py: Python<'_>,
        settings: &Bound<'_, PyDict>,
        metadata: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let config = settings::config(py, settings)?;
        let columns = Columns::new(py, &config)?;
        let table = Core::new(config).map_err(|error| rollout_error(py, error.to_string()))?;
        let table = table.with_metadata(metadata.unwrap_or_default());
        let (arena, process) = (Arena::default(), Process::current());
        Ok(Self { table: Arc::new(table), columns, arena, process })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.table.config().name
    }

    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        settings::dict(py, self.table.config())
    }

    #[getter]
    fn metadata(&self) -> &[u8] {
        self.table.metadata()
    }

    #[pyo3(signature = (count, source, key, version, ttl, timeout))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn admit(
        &self,
        py: Python<'_>,
        count: u32,
        source: String,
        key: String,
        version: Option<i64>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<PyPermit>> {
        let ttl_ms = maybe_millis("ttl", ttl)?;
        let change = Change::Admit(Admit { count, source, key, version, ttl_ms });
        match self.call(py, change, timeout)? {
            Outcome::Admitted(permits) => Ok(permits.into_iter().map(permit).collect()),
            other => Err(unexpected(&other)),
        }
    }

    #[pyo3(signature = (source, ttl, timeout))]
    fn resume(
        &self,
        py: Python<'_>,
        source: String,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<(PyPermit, Vec<PyBegun>)> {
        let ttl_ms = maybe_millis("ttl", ttl)?;
        match self.call(py, Change::Resume { source, ttl_ms }, timeout)? {
            Outcome::Resumed(hold, items) => {
                let begun = items.iter().map(|item| {
                    let (segments, tokens) = (item.segments.len() as u32, item.tokens());
                    let columns = self.columns.of_item(py, item)?;
                    let finished = item.finish.is_some();
                    Ok((item.index, segments, tokens, finished, columns.into_any().unbind()))
                });
                Ok((permit(hold), begun.collect::<PyResult<_>>()?))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Adds tokens to an item, and its end if `fields` are given.
    #[pyo3(signature = (hold, item, sequence, columns, versions, fields, blobs, priority))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn append(
        &self,
        py: Python<'_>,
        hold: PyHold,
        item: u32,
        sequence: u32,
        columns: Option<&Bound<'_, PyDict>>,
        versions: &Bound<'_, PyAny>,
        fields: Option<&Bound<'_, PyDict>>,
        blobs: Option<&Bound<'_, PyDict>>,
        priority: f64,
    ) -> PyResult<&'static str> {
        let segment = self.columns.segment(py, columns, versions)?;
        let finish = fields.map(|fields| self.columns.finish(py, fields, blobs)).transpose()?;
        let hold = Hold { group: hold.0, attempt: hold.1 };
        let segment = Arc::new(segment);
        let finish = finish.map(Arc::new);
        let change = Change::Append(Append { hold, item, sequence, segment, finish, priority });
        match self.call(py, change, None)? {
            Outcome::Appended(fate) => Ok(fate.name()),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds whole items, from arrays of all of them.
    #[pyo3(signature = (hold, first, lengths, columns, versions, fields, priority))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn append_flat(
        &self,
        py: Python<'_>,
        hold: PyHold,
        first: u32,
        lengths: &Bound<'_, PyAny>,
        columns: &Bound<'_, PyDict>,
        versions: &Bound<'_, PyAny>,
        fields: &Bound<'_, PyDict>,
        priority: f64,
    ) -> PyResult<&'static str> {
        let items = self.columns.items(py, lengths, columns, versions, fields)?;
        let hold = Hold { group: hold.0, attempt: hold.1 };
        let mut fate = Fate::Running;
        for (item, (segment, finish)) in (first..).zip(items) {
            let (segment, finish) = (Arc::new(segment), Some(Arc::new(finish)));
            let append = Append { hold, item, sequence: 0, segment, finish, priority };
            match self.call(py, Change::Append(append), None)? {
                Outcome::Appended(appended) => fate = appended,
                other => return Err(unexpected(&other)),
            }
        }
        Ok(fate.name())
    }

    fn fail(&self, py: Python<'_>, permits: Vec<PyHold>) -> PyResult<u64> {
        self.count(py, Change::Fail { holds: holds(permits) })
    }

    fn suspend(&self, py: Python<'_>, permits: Vec<PyHold>) -> PyResult<u64> {
        self.count(py, Change::Suspend { holds: holds(permits) })
    }

    fn renew(&self, py: Python<'_>, permits: Vec<PyHold>) -> PyResult<u64> {
        self.count(py, Change::Renew { holds: holds(permits) })
    }

    fn publish_version(&self, py: Python<'_>, version: i64) -> PyResult<()> {
        self.count(py, Change::Publish { version }).map(drop)
    }

    fn restore(&self, py: Python<'_>, version: i64) -> PyResult<()> {
        self.count(py, Change::Restore { version }).map(drop)
    }

    fn set_pipeline_depth(&self, py: Python<'_>, depth: u32) -> PyResult<()> {
        self.count(py, Change::Deepen { depth }).map(drop)
    }

    fn discard(&self, py: Python<'_>, groups: Vec<u64>) -> PyResult<u64> {
        self.count(py, Change::Discard { groups })
    }

    fn update_priorities(
        &self,
        py: Python<'_>,
        groups: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let groups = crate::numbers::key_numbers(groups)?;
        let priorities = crate::numbers::float_numbers(priorities)?;
        if groups.len() != priorities.len() {
            let (wanted, got) = (groups.len(), priorities.len());
            let text = format!("expected a priority for each of {wanted} groups, got {got}");
            return Err(PyValueError::new_err(text));
        }
        let priorities = groups.into_iter().zip(priorities).collect();
        self.count(py, Change::Reprioritize { priorities })
    }

    #[pyo3(signature = (groups, tokens, rank, ranks, balance, lease, form, timeout))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn sample(
        &self,
        py: Python<'_>,
        groups: Option<u32>,
        tokens: Option<u64>,
        rank: u32,
        ranks: u32,
        balance: &str,
        lease: Option<f64>,
        form: (String, u32, bool),
        timeout: Option<f64>,
    ) -> PyResult<RolloutBatch> {
        let form = batch::form(&form)?;
        let size = match (groups, tokens) {
            (Some(groups), None) => Size::Groups(groups),
            (None, Some(tokens)) => Size::Tokens(tokens),
            (None, None) => Size::Groups(self.table.config().batch_groups),
            _ => return Err(PyValueError::new_err("give groups or tokens, not both")),
        };
        let balance = self::balance(balance)?;
        let lease_ms = maybe_millis("lease", lease)?;
        let want = Want { size, rank, ranks, balance, lease_ms };
        match self.call(py, Change::Sample(want), timeout)? {
            Outcome::Delivered(share) => {
                let laid = batch::lay_out(py, &self.arena, &share, self.table.config(), form);
                if laid.is_err() && share.lease_ms.is_some() {
                    // It is given back, so that nothing is lost by a row that is too narrow.
                    let _ = self.table.apply(&Change::Nack(share.lease));
                }
                laid
            }
            other => Err(unexpected(&other)),
        }
    }

    fn ack(&self, py: Python<'_>, batch: PyLease) -> PyResult<u64> {
        self.count(py, Change::Ack(lease(batch)))
    }

    fn nack(&self, py: Python<'_>, batch: PyLease) -> PyResult<()> {
        self.count(py, Change::Nack(lease(batch))).map(drop)
    }

    fn extend(&self, py: Python<'_>, batch: PyLease, seconds: f64) -> PyResult<()> {
        let lease_ms = millis("lease", seconds)?;
        self.count(py, Change::Extend { lease: lease(batch), lease_ms }).map(drop)
    }

    fn version(&self) -> i64 {
        self.table.version()
    }

    #[pyo3(signature = (newer_than, timeout))]
    fn wait_version(&self, py: Python<'_>, newer_than: i64, timeout: Option<f64>) -> PyResult<i64> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let call = |wait: Wait<'_, Blocked>| self.table.wait_version(newer_than, wait);
        wait::detached(py, deadline, None, call).map_err(|stopped| match stopped {
            Stopped::Raised(error) => error,
            Stopped::Failed(error) => call_error(py, &error),
        })
    }

    fn pause(&self) {
        self.table.pause(true);
    }

    #[pyo3(name = "unpause")]
    fn end_pause(&self) {
        self.table.pause(false);
    }

    fn close(&self) {
        if self.process.is_current() {
            self.table.close();
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.table.is_closed()
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        info_dict(py, &self.table.info())
    }
}

/// The numbers of a table, by name.
pub fn info_dict<'py>(py: Python<'py>, info: &RolloutInfo) -> PyResult<Bound<'py, PyDict>> {
    use echoic_replay::rollouts::idle::REASONS;
    let dict = PyDict::new(py);
    let RolloutInfo { counts, standing, sources, producers, consumers } = info;
    for (name, value) in counts.named() {
        dict.set_item(name, value)?;
    }
    dict.set_item("version", standing.version)?;
    dict.set_item("target", standing.target)?;
    dict.set_item("pipeline_depth", standing.depth)?;
    dict.set_item("capacity", standing.capacity)?;
    dict.set_item("queued", standing.queued)?;
    dict.set_item("leased", standing.out)?;
    dict.set_item("suspended", standing.suspended)?;
    dict.set_item("oldest", standing.oldest)?;
    dict.set_item("paused", standing.paused)?;
    for (name, sides) in [("producer_waits", producers), ("consumer_waits", consumers)] {
        let waits = PyDict::new(py);
        for (reason, one) in REASONS.iter().zip(&sides.0) {
            if one.limited > 0 || one.waiting > 0 {
                let numbers = (one.waiting, one.limited, one.time().as_secs_f64());
                waits.set_item(reason.to_string(), numbers)?;
            }
        }
        dict.set_item(name, waits)?;
    }
    let all = PyList::empty(py);
    for source in sources {
        let one = PyDict::new(py);
        one.set_item("name", &source.name)?;
        one.set_item("submitted", source.submitted)?;
        one.set_item("running", source.running)?;
        one.set_item("accepted", source.accepted)?;
        one.set_item("rejected", source.rejected)?;
        one.set_item("filtered", source.filtered)?;
        one.set_item("tokens", source.tokens)?;
        all.append(one)?;
    }
    dict.set_item("sources", all)?;
    Ok(dict)
}
