//! Rollout tables: groups of token sequences in, batches that are fresh out.
//!
//! - `settings`: what a table is told. `items`: arrays of an item as bytes.
//! - `history`: what was done with a table, once more. `batch`: a share of a batch as arrays. `reach`: a table in this process, or at a server.
//! - `call`: tokens on their way to a server, for whose answers nobody waits.

mod batch;
mod call;
mod history;
mod items;
mod reach;
mod settings;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use echoic_net::client::rollouts::Rollouts;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::durable::DurableOptions;
use echoic_replay::rollouts::ledger::{
    Append, Balance, Change, ChangeError, Counts, GroupStatus, GroupTotals, Hold, Lease, Outcome,
    Progress, Reservation, Reserve, Size, Update, Want,
};
use echoic_replay::rollouts::table::{CallError, RolloutInfo, RolloutTable as Core};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

pub use self::batch::RolloutBatch;
use self::call::Added;
pub use self::call::RolloutCall;
use self::history::DirectoryError;
pub use self::history::RolloutHistory;
use self::items::Columns;
use self::reach::Reach;
use crate::connect;
use crate::error::{
    OrRaise, Raise, closed_error, group_not_found_error, lease_error, rollout_error, set,
    timeout_error,
};
use crate::fork::Process;
use crate::memory::Arena;
use crate::wait;

/// A table of rollouts; :class:`echoic.rollouts.RolloutTable` is what users see.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct RolloutTable {
    reach: Reach,
    columns: Columns,
    process: Process,
}

/// A group and its attempt, as Python names a reservation.
type PyHold = (u64, u32);
/// A batch, a rank and an attempt, as Python names a lease.
type PyLease = (u64, u32, u32);
/// Group, attempt, key, version, and seconds that it stands.
type PyReservation = (u64, u32, String, i64, f64);
/// Of an item that has tokens: its place, segments, tokens, and whether it is finished.
type PyProgress = (u32, u32, u32, bool, Py<PyAny>);

fn holds(holds: Vec<PyHold>) -> Vec<Hold> {
    holds.into_iter().map(|(group, attempt)| Hold { group, attempt }).collect()
}

fn lease((batch, rank, attempt): PyLease) -> Lease {
    Lease { batch, rank, attempt }
}

fn reservation(reservation: Reservation) -> PyReservation {
    let Reservation { hold, key, version, ttl_ms } = reservation;
    (hold.group, hold.attempt, key, version, ttl_ms as f64 / 1e3)
}

/// Milliseconds of a number of seconds, at least one.
pub fn millis(name: &str, value: f64) -> PyResult<u64> {
    let millis = wait::seconds(name, value)?.as_millis() as u64;
    Ok(millis.max(1))
}

fn maybe_millis(name: &str, value: Option<f64>) -> PyResult<Option<u64>> {
    value.map(|value| millis(name, value)).transpose()
}

impl Raise for CallError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::TimedOut(blocked) | Self::Refused(ChangeError::Blocked(blocked)) => {
                let error = timeout_error(py, format!("timed out: {blocked}"));
                set(py, error, "reason", blocked.reason().to_string())
            }
            Self::Closed => closed_error(py, text),
            Self::Interrupted => PyRuntimeError::new_err(text),
            Self::Journal(_) => PyOSError::new_err(text),
            Self::Refused(ChangeError::Fenced { .. }) => lease_error(py, text),
            Self::Refused(ChangeError::Unknown(_)) => group_not_found_error(py, text),
            Self::Refused(_) => rollout_error(py, text),
            _ => PyRuntimeError::new_err(text),
        }
    }
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
    fn of(py: Python<'_>, reach: Reach) -> PyResult<Self> {
        let columns = Columns::new(py, reach.config())?;
        Ok(Self { reach, columns, process: Process::current() })
    }

    /// The table itself, for a server; none, if it is at one already.
    pub fn core(&self) -> Option<&Arc<Core>> {
        match &self.reach {
            Reach::Here { table, .. } => Some(table),
            Reach::There { .. } => None,
        }
    }

    fn call(&self, py: Python<'_>, change: Change, timeout: Option<f64>) -> PyResult<Outcome> {
        self.process.check(py)?;
        self.reach.call(py, change, timeout)
    }

    fn here(&self, what: &str) -> PyResult<&Arc<Core>> {
        self.core().ok_or_else(|| {
            PyRuntimeError::new_err(format!("{what} is for the process that has the table"))
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

/// A connection to the rollout tables of a server.
#[pyclass(frozen, module = "echoic._native")]
pub struct RolloutLink {
    link: Arc<Rollouts>,
    process: Process,
}

#[pymethods]
impl RolloutLink {
    /// Where the server is.
    #[getter]
    fn address(&self) -> String {
        self.link.address().to_string()
    }

    /// Whether the server is there now.
    #[getter]
    fn connected(&self) -> bool {
        self.link.is_connected()
    }

    /// How often the connection came back.
    #[getter]
    fn reconnects(&self) -> u64 {
        self.link.reconnects()
    }

    /// Return the tables.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<RolloutTable>> {
        let configs = self.link.tables().iter().zip(0..);
        let table = |(config, number): (&Arc<RolloutConfig>, u32)| {
            let (link, config) = (Arc::clone(&self.link), Arc::clone(config));
            RolloutTable::of(py, Reach::There { link, number, config })
        };
        configs.map(table).collect()
    }

    /// End the connection.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        // The connection of a parent process is not a forked child's to close.
        if !self.process.is_current() {
            return Ok(());
        }
        wait::until(py, wait::deadline(timeout)?, |wait| self.link.close(wait))
    }
}

/// Connect to a server that has rollout tables.
#[pyfunction]
pub fn connect_rollouts(
    py: Python<'_>,
    address: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<RolloutLink> {
    let given = connect::ConnectOptions(options);
    let (dial, options) = (given.peer(address)?.dial(py)?, given.options()?);
    let link = wait::until(py, None, |wait| Rollouts::connect(dial, options, wait))?;
    Ok(RolloutLink { link: Arc::new(link), process: Process::current() })
}

#[pymethods]
impl RolloutTable {
    #[new]
    #[pyo3(signature = (settings, directory=None, durability="async", history=false))]
    fn new(
        py: Python<'_>,
        settings: &Bound<'_, PyDict>,
        directory: Option<PathBuf>,
        durability: &str,
        history: bool,
    ) -> PyResult<Self> {
        let config = settings::config(py, settings)?;
        let table = match directory {
            Some(directory) => {
                let durable =
                    DurableOptions { durability: settings::durability(durability)?, history };
                let open = || Core::open(config, directory, durable);
                py.detach(open).map_err(DirectoryError).or_raise(py)?
            }
            None => Core::new(config).map_err(|error| rollout_error(py, error.to_string()))?,
        };
        Self::of(py, Reach::Here { table: Arc::new(table), arena: Arena::default() })
    }

    /// What it is called.
    #[getter]
    fn name(&self) -> &str {
        &self.reach.config().name
    }

    /// The table's settings.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        settings::dict(py, self.reach.config())
    }

    /// Wait for reservations: group, attempt, key, version and seconds to live of each.
    #[pyo3(signature = (count, source, keys, version, ttl, timeout))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn reserve(
        &self,
        py: Python<'_>,
        count: u32,
        source: String,
        keys: Vec<String>,
        version: Option<i64>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<PyReservation>> {
        let ttl_ms = maybe_millis("ttl", ttl)?;
        let change = Change::Reserve(Reserve { count, source, keys, version, ttl_ms });
        match self.call(py, change, timeout)? {
            Outcome::Reserved(reservations) => {
                Ok(reservations.into_iter().map(reservation).collect())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Wait for a suspended group; place, segments, tokens, end and columns of items.
    #[pyo3(signature = (source, ttl, timeout))]
    fn resume_reservation(
        &self,
        py: Python<'_>,
        source: String,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<(PyReservation, Vec<PyProgress>)> {
        let ttl_ms = maybe_millis("ttl", ttl)?;
        match self.call(py, Change::Resume { source, ttl_ms }, timeout)? {
            Outcome::Resumed(hold, items) => {
                let progress = items.iter().map(|item| {
                    let (segments, tokens) = (item.segments.len() as u32, item.tokens());
                    let columns = self.columns.of_item(py, item)?;
                    let finished = item.finish.is_some();
                    Ok((item.index, segments, tokens, finished, columns.into_any().unbind()))
                });
                Ok((reservation(hold), progress.collect::<PyResult<_>>()?))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Add tokens to an item, and its end if there are fields; where the group has come to.
    #[pyo3(signature = (hold, item, sequence, columns, versions, fields, blobs, priority, wait=true))]
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
        wait: bool,
    ) -> PyResult<Added> {
        let segment = self.columns.segment(py, columns, versions)?;
        let finish = fields.map(|fields| self.columns.finish(py, fields, blobs)).transpose()?;
        let hold = Hold { group: hold.0, attempt: hold.1 };
        let segment = Arc::new(segment);
        let finish = finish.map(Arc::new);
        let append = Append { hold, item, sequence, segment, finish, priority };
        self.process.check(py)?;
        self.reach.add(py, append.hold.group, append.bytes(), Change::Append(append), wait)
    }

    /// Give values of whole columns and fields of an item; where the group has come to.
    #[pyo3(signature = (hold, item, columns, fields, wait=true))]
    fn update(
        &self,
        py: Python<'_>,
        hold: PyHold,
        item: u32,
        columns: Option<&Bound<'_, PyDict>>,
        fields: Option<&Bound<'_, PyDict>>,
        wait: bool,
    ) -> PyResult<Added> {
        let values = self.columns.updates(py, columns, fields)?;
        let hold = Hold { group: hold.0, attempt: hold.1 };
        self.process.check(py)?;
        let update = Update { hold, item, values };
        self.reach.add(py, hold.group, update.bytes(), Change::Update(update), wait)
    }

    /// Add whole items; where the group has come to.
    #[pyo3(signature = (hold, first, lengths, columns, versions, fields, blobs, priority, wait=true))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn append_flat(
        &self,
        py: Python<'_>,
        hold: PyHold,
        first: u32,
        lengths: Option<&Bound<'_, PyAny>>,
        columns: &Bound<'_, PyDict>,
        versions: &Bound<'_, PyAny>,
        fields: &Bound<'_, PyDict>,
        blobs: Option<Vec<Option<Bound<'_, PyDict>>>>,
        priority: f64,
        wait: bool,
    ) -> PyResult<Added> {
        let items = self.columns.flat(py, lengths, columns, versions, fields, blobs)?;
        let hold = Hold { group: hold.0, attempt: hold.1 };
        self.process.check(py)?;
        self.reach.append_flat(py, hold, first, &items, priority, wait)
    }

    /// Wait for the answers of all calls of the connection.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        self.reach.flush(py, timeout)
    }

    /// Return the status of a group, and how many segments each item with tokens has.
    fn status(
        &self,
        py: Python<'_>,
        reservation: PyHold,
    ) -> PyResult<(&'static str, BTreeMap<usize, u32>)> {
        let hold = Hold { group: reservation.0, attempt: reservation.1 };
        match self.call(py, Change::Status { hold }, None)? {
            Outcome::Appended(status) => Ok((status.name(), BTreeMap::new())),
            Outcome::Progress(items) => {
                // Places before one that has tokens are there, and free.
                let is_used = |item: &Progress| item.segments > 0 || item.is_finished;
                let used = items.iter().enumerate().filter(|(_, item)| is_used(item));
                let segments = used.map(|(place, item)| (place, item.segments)).collect();
                Ok((GroupStatus::Running.name(), segments))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Give groups up; how many there were.
    fn fail(&self, py: Python<'_>, reservations: Vec<PyHold>) -> PyResult<u64> {
        self.count(py, Change::Fail { holds: holds(reservations) })
    }

    /// Suspend groups; how many there were.
    fn suspend(&self, py: Python<'_>, reservations: Vec<PyHold>) -> PyResult<u64> {
        self.count(py, Change::Suspend { holds: holds(reservations) })
    }

    /// Give a sign of life; how many reservations stand.
    fn renew(&self, py: Python<'_>, reservations: Vec<PyHold>) -> PyResult<u64> {
        self.count(py, Change::Renew { holds: holds(reservations) })
    }

    /// Set the learner's version.
    fn publish_version(&self, py: Python<'_>, version: i64) -> PyResult<()> {
        self.count(py, Change::Publish { version }).map(drop)
    }

    /// Go on from a version.
    fn restore(&self, py: Python<'_>, version: i64) -> PyResult<()> {
        self.count(py, Change::Restore { version }).map(drop)
    }

    /// Set how many versions ahead groups may be reserved.
    fn set_pipeline_depth(&self, py: Python<'_>, depth: u32) -> PyResult<()> {
        self.count(py, Change::Deepen { depth }).map(drop)
    }

    /// Remove complete groups; how many there were.
    fn remove(&self, py: Python<'_>, groups: Vec<u64>) -> PyResult<u64> {
        self.count(py, Change::Remove { groups })
    }

    /// Change priorities; of how many groups.
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

    /// Wait for a share of a batch.
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
            (None, None) => Size::Groups(self.reach.config().batch_groups),
            _ => return Err(PyValueError::new_err("give groups or tokens, not both")),
        };
        let balance = self::balance(balance)?;
        let lease_ms = maybe_millis("lease", lease)?;
        let want = Want { size, rank, ranks, balance, lease_ms, width: 0 };
        self.process.check(py)?;
        self.reach.sample(py, want, form, timeout)
    }

    /// Say that a share was used; how many groups it had.
    fn ack(&self, py: Python<'_>, batch: PyLease) -> PyResult<u64> {
        self.count(py, Change::Ack(lease(batch)))
    }

    /// Give a share back.
    fn nack(&self, py: Python<'_>, batch: PyLease) -> PyResult<()> {
        self.count(py, Change::Nack(lease(batch))).map(drop)
    }

    /// Keep a share for longer.
    fn extend(&self, py: Python<'_>, batch: PyLease, seconds: f64) -> PyResult<()> {
        let lease_ms = millis("lease", seconds)?;
        self.count(py, Change::Extend { lease: lease(batch), lease_ms }).map(drop)
    }

    /// Return the learner's version.
    fn version(&self, py: Python<'_>) -> PyResult<i64> {
        match self.core() {
            Some(table) => Ok(table.version()),
            // Whatever it is, it is above this.
            None => self.wait_version(py, -1, None),
        }
    }

    /// Wait for a later version.
    #[pyo3(signature = (newer_than, timeout))]
    fn wait_version(&self, py: Python<'_>, newer_than: i64, timeout: Option<f64>) -> PyResult<i64> {
        match self.call(py, Change::AwaitVersion { above: newer_than }, timeout)? {
            // It is far below the largest one.
            Outcome::Count(version) => Ok(version as i64),
            other => Err(unexpected(&other)),
        }
    }

    /// Bytes dropped at the journal's end, why, and how many changes they may have held.
    #[getter]
    fn dropped(&self) -> PyResult<Option<(u64, String, u64)>> {
        let torn = self.here("a journal")?.dropped();
        Ok(torn.map(|torn| (torn.bytes, torn.what.clone(), torn.most_records())))
    }

    /// Write a checkpoint to its directory.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<PathBuf> {
        let table = self.here("a checkpoint")?;
        py.detach(|| table.checkpoint()).map_err(DirectoryError).or_raise(py)
    }

    /// Reserve and deliver nothing.
    fn pause(&self, py: Python<'_>) -> PyResult<()> {
        self.count(py, Change::Pause { paused: true }).map(drop)
    }

    /// End a pause.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.count(py, Change::Pause { paused: false }).map(drop)
    }

    /// End it.
    fn close(&self, py: Python<'_>) {
        // A table of a server is that server's to close.
        if let Some(table) = self.core().filter(|_| self.process.is_current()) {
            // A journal is written to its end.
            py.detach(|| table.close());
        }
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.core().is_some_and(|table| table.is_closed())
    }

    /// Return its numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.process.check(py)?;
        stats_dict(py, &self.reach.info(py)?)
    }
}

/// Puts counts, and where the table stands, into a dict.
fn set_counts(dict: &Bound<'_, PyDict>, counts: &Counts, totals: &GroupTotals) -> PyResult<()> {
    for (name, value) in counts.named() {
        dict.set_item(name, value)?;
    }
    dict.set_item("version", totals.version)?;
    dict.set_item("target", totals.target)?;
    dict.set_item("pipeline_depth", totals.depth)?;
    dict.set_item("room", totals.room)?;
    dict.set_item("queued", totals.queued)?;
    dict.set_item("leased", totals.out)?;
    dict.set_item("suspended", totals.suspended)?;
    dict.set_item("oldest", totals.oldest)?;
    dict.set_item("paused", totals.paused)
}

/// The numbers of a table, by name.
pub fn stats_dict<'py>(py: Python<'py>, info: &RolloutInfo) -> PyResult<Bound<'py, PyDict>> {
    use echoic_replay::rollouts::idle::REASONS;
    let dict = PyDict::new(py);
    let RolloutInfo { counts, totals, sources, hunger, time, producers, consumers } = info;
    set_counts(&dict, counts, totals)?;
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
        one.set_item("delivered", source.delivered)?;
        let idle = source.last_reserved.map(|then| time.saturating_sub(then) as f64 / 1e3);
        one.set_item("idle", idle)?;
        all.append(one)?;
    }
    dict.set_item("sources", all)?;
    let waits = PyDict::new(py);
    for hunger in hunger {
        let one = PyDict::new(py);
        one.set_item("waiting", hunger.waiting)?;
        one.set_item("oldest", hunger.oldest_ms as f64 / 1e3)?;
        one.set_item("passed", hunger.passed)?;
        one.set_item("longest", hunger.longest_ms as f64 / 1e3)?;
        one.set_item("starving", hunger.is_starving)?;
        waits.set_item(&hunger.source, one)?;
    }
    dict.set_item("source_waits", waits)?;
    Ok(dict)
}
