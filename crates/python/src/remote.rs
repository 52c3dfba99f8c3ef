//! Tables of a server in another process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use echoic_memory::sync::Mutex;
use echoic_net::client::tables::{
    Batch as RemoteBatch, FailureCode, Requests, TableConnection, TableEntry, TablesError, Ticket,
};
use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;
use echoic_replay::table::check_priorities;
use pyo3::exceptions::{PyIndexError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::connect::{self, ConnectOptions, Peer, link_error};
use crate::error::{
    OrRaise, Raise, checkpoint_error, closed_error, limiter_error, set, spec_error,
    table_not_found_error, timeout_error,
};
use crate::fork::Process;
use crate::numbers::{float_numbers, key_numbers};
use crate::sources::DETACH_BYTES;
use crate::spec::Spec;
use crate::table::{
    Batch, BatchInfo, Items, Settings, Shape, check_beta, check_draw, check_size, info_dict,
};
use crate::wait;

/// So many bytes of rows are taken at once from a large batch.
const BLOCK_BYTES: usize = 1 << 20;

/// Connects to a server that has tables.
#[pyfunction]
pub fn connect_tables(
    py: Python<'_>,
    address: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<Tables> {
    let given = ConnectOptions(options);
    let (peer, options) = (given.peer(address)?, given.options()?);
    let dials = [peer.dial(py)?, peer.dial(py)?];
    let connection = wait::until(py, None, |wait| TableConnection::connect(dials, options, wait))?;
    Ok(Tables { connection: Arc::new(connection), peer, process: Process::current() })
}

/// A connection to the tables of a server.
#[pyclass(frozen, module = "echoic._native")]
pub struct Tables {
    connection: Arc<TableConnection>,
    peer: Peer,
    process: Process,
}

#[pymethods]
impl Tables {
    /// How many tables the server has.
    fn __len__(&self) -> usize {
        self.connection.requests().tables().len()
    }

    /// Waits until everything that was inserted and updated before is in its table.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        wait::until(py, wait::deadline(timeout)?, |wait| self.connection.flush(wait))
    }

    /// Has the server write a checkpoint; where it is, on its machine.
    #[pyo3(signature = (timeout=None))]
    fn checkpoint(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PathBuf> {
        self.process.check(py)?;
        let requests = self.connection.requests();
        let path = wait::until(py, wait::deadline(timeout)?, |wait| requests.checkpoint(wait));
        path.map(PathBuf::from)
    }

    /// Delivers what was inserted, and ends.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        // The connection of a parent process is not a forked child's to close.
        if !self.process.is_current() {
            return Ok(());
        }
        wait::until(py, wait::deadline(timeout)?, |wait| self.connection.close(wait))
    }

    #[getter]
    fn address(&self) -> String {
        self.connection.requests().address().to_string()
    }

    /// From now on the server is to be found there: what it has not acknowledged goes to there.
    fn redirect(&self, py: Python<'_>, address: &str) -> PyResult<()> {
        self.process.check(py)?;
        let address = connect::address(address)?;
        let dial = || self.peer.dial_to(py, &address);
        self.connection.redirect([dial()?, dial()?]);
        Ok(())
    }

    /// Whether the server is there where it was said to be last.
    #[getter]
    fn arrived(&self) -> bool {
        self.connection.has_arrived()
    }

    /// Why there is no connection, if that will not pass by itself.
    #[getter]
    fn trouble(&self) -> Option<String> {
        Some(self.connection.trouble()?.to_string())
    }

    /// Whether it is there, and a table that items wait for is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.connection.writer().trouble().is_some_and(|trouble| trouble.is_closed())
    }

    /// Whether the server is there now.
    #[getter]
    fn connected(&self) -> bool {
        self.connection.is_connected()
    }

    /// From now on, no request waits for a connection that is lost.
    fn wait_only_while_connected(&self) {
        self.connection.requests().wait_only_while_connected();
    }

    /// Whether it has ended for good.
    #[getter]
    fn over(&self) -> bool {
        self.connection.is_over()
    }

    /// How often the server was another than before.
    #[getter]
    fn lives(&self) -> u64 {
        self.connection.requests().incarnations()
    }

    /// How many items are not known to be in their tables.
    #[getter]
    fn pending(&self) -> u64 {
        self.connection.writer().unacknowledged()
    }

    /// The connection's numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (info, dict) = (self.connection.writer().info(), PyDict::new(py));
        dict.set_item("items_sent", info.taken)?;
        dict.set_item("items_acked", info.acknowledged)?;
        dict.set_item("pending", info.taken - info.acknowledged)?;
        dict.set_item("held_bytes", info.held_bytes)?;
        dict.set_item("bytes_sent", info.bytes_sent)?;
        dict.set_item("writes", info.writes)?;
        dict.set_item("reconnects", self.connection.reconnects())?;
        dict.set_item("blocked_sends", info.blocked)?;
        dict.set_item("blocked_time", info.blocked_time)?;
        dict.set_item("connected", u8::from(info.connected))?;
        Ok(dict)
    }
}

/// A table of a server.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct RemoteTable {
    connection: Arc<TableConnection>,
    number: u32,
    entry: TableEntry,
    shape: Shape,
    process: Process,
}

#[pymethods]
impl RemoteTable {
    #[new]
    fn new(py: Python<'_>, connection: &Tables, number: u32) -> PyResult<Self> {
        let connection = Arc::clone(&connection.connection);
        let tables = connection.requests().tables();
        let entry = tables.get(number as usize).cloned().ok_or_else(|| {
            let count = tables.len();
            PyIndexError::new_err(format!("the server has {count} tables, got number {number}"))
        })?;
        let shape = Shape::of(py, &entry.form, &entry.structure)?;
        Ok(Self { connection, number, entry, shape, process: Process::current() })
    }

    /// Inserts one item.
    #[pyo3(signature = (tree, priority=1.0, version=None, timeout=None))]
    fn insert(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        priority: f64,
        version: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        check_priorities(&[priority]).or_raise(py)?;
        self.shape.with_one(
            tree,
            |items| self.insert_rows(py, items, 0, &[priority], version, deadline),
            |trajectory| {
                wait::until(py, deadline, |wait| {
                    self.connection.insert(self.number, priority, version, trajectory, wait)
                })
            },
        )
    }

    /// Inserts many items.
    #[pyo3(signature = (tree, priorities=None, version=None, timeout=None))]
    fn insert_batch(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        priorities: Option<&Bound<'_, PyAny>>,
        version: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        self.shape.with_many(tree, priorities, |items, priorities| {
            self.insert_rows(py, items, 0, priorities, version, deadline)
        })
    }

    /// Inserts one of `parts` contiguous parts of many items, but for the first `skip` of it; into how
    /// many parts it is worth to cut them, as each is to have at least `least` items.
    #[expect(clippy::too_many_arguments, reason = "only the class for shards calls it")]
    fn _insert_part(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        priorities: Option<&Bound<'_, PyAny>>,
        version: Option<u64>,
        timeout: Option<f64>,
        cut: (usize, usize, usize),
        skip: usize,
    ) -> PyResult<usize> {
        let (part, parts, least) = cut;
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let mut worth = 1;
        self.shape.with_many(tree, priorities, |items, priorities| {
            let count = priorities.len();
            worth = parts.min(count / least.max(1)).max(1);
            let edge = |part: usize| count * part.min(worth) / worth;
            let start = (edge(part) + skip).min(edge(part + 1));
            let own = &priorities[start..edge(part + 1)];
            self.insert_rows(py, items, start, own, version, deadline)
        })?;
        Ok(worth)
    }

    /// Samples a batch.
    #[pyo3(signature = (count, timeout=None, beta=1.0))]
    fn sample(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<f64>,
        beta: f64,
    ) -> PyResult<Batch> {
        check_draw(count, beta)?;
        let deadline = wait::deadline(timeout)?;
        let batch = self
            .ask_until(py, deadline, |requests, wait| requests.sample(self.number, count, wait))?;
        Batch::of_remote(py, &self.shape, batch, beta)
    }

    /// Asks for a batch, which may be taken later.
    fn start_sample(slf: Bound<'_, Self>, count: usize) -> PyResult<PendingBatch> {
        let py = slf.py();
        check_size(count)?;
        let this = slf.get();
        this.process.check(py)?;
        let ticket = this.connection.requests().start_sample(this.number, count, None);
        Ok(PendingBatch::new(slf.unbind(), ticket.or_raise(py)?))
    }

    /// Changes priorities; how many of the items were there, if that is waited for.
    #[pyo3(signature = (keys, priorities, wait=true))]
    fn update_priorities(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
        wait: bool,
    ) -> PyResult<Option<u64>> {
        let keys = key_numbers(keys)?;
        let priorities = float_numbers(priorities)?;
        if wait {
            let updated = self.ask(py, |requests, wait| {
                requests.update_priorities(self.number, &keys, &priorities, wait)
            });
            return updated.map(Some);
        }
        self.process.check(py)?;
        let (number, connection) = (self.number, &self.connection);
        if !connection.try_start_update(number, &keys, &priorities).or_raise(py)? {
            wait::until(py, None, |wait| {
                connection.start_update(number, &keys, &priorities, wait)
            })?;
        }
        Ok(None)
    }

    /// What is known about items.
    #[pyo3(signature = (limit=None))]
    fn items(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Py<BatchInfo>> {
        let most = limit.unwrap_or(usize::MAX);
        let infos = self.ask(py, |requests, wait| requests.list_all(self.number, most, wait))?;
        BatchInfo::of(py, infos)
    }

    /// Reads items by their names, without sampling them.
    fn get(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let keys = key_numbers(keys)?;
        let batch = self.ask(py, |requests, wait| requests.get(self.number, &keys, wait))?;
        Batch::of_remote(py, &self.shape, batch, 1.0)
    }

    /// Removes items; how many were there.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let keys = key_numbers(keys)?;
        self.ask(py, |requests, wait| requests.delete(self.number, &keys, wait))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |requests, wait| requests.reset(self.number, wait))
    }

    fn pause(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |requests, wait| requests.pause(self.number, wait))
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |requests, wait| requests.resume(self.number, wait))
    }

    fn advance(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.ask(py, |requests, wait| requests.advance(self.number, version, wait))
    }

    #[pyo3(name = "_set_limiter")]
    fn set_limiter(&self, py: Python<'_>, limiter: Settings) -> PyResult<()> {
        let parameters = *limiter.limiter(py)?.parameters();
        self.ask(py, |requests, wait| requests.set_limiter(self.number, parameters, wait))
    }

    fn can_sample(&self, py: Python<'_>, count: usize) -> PyResult<bool> {
        self.ask(py, |requests, wait| requests.can_sample(self.number, count, wait))
    }

    #[pyo3(signature = (count=1))]
    fn can_insert(&self, py: Python<'_>, count: usize) -> PyResult<bool> {
        self.ask(py, |requests, wait| requests.can_insert(self.number, count, wait))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let numbers = self.ask(py, |requests, wait| requests.table_info(self.number, wait))?;
        Ok(numbers.size as usize)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.entry.name
    }

    #[getter]
    fn metadata(&self) -> &[u8] {
        &self.entry.metadata
    }

    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Option<Spec>> {
        Spec::of_form(py, &self.entry.form)
    }

    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let numbers = self.ask(py, |requests, wait| requests.table_info(self.number, wait))?;
        info_dict(py, &self.entry.name, self.entry.max_size, &numbers)
    }

    fn __repr__(&self) -> String {
        format!("RemoteTable({:?} at {})", self.entry.name, self.connection.requests().address())
    }
}

impl RemoteTable {
    /// The connection, and the table's number there.
    pub fn place(&self) -> (&Arc<TableConnection>, u32) {
        (&self.connection, self.number)
    }

    /// How its items become bytes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What the server said of the table.
    pub fn entry(&self) -> &TableEntry {
        &self.entry
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&Requests, Wait<'_>) -> Result<T, TablesError> + Send,
    ) -> PyResult<T> {
        self.ask_until(py, None, ask)
    }

    fn ask_until<T: Send>(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        ask: impl FnOnce(&Requests, Wait<'_>) -> Result<T, TablesError> + Send,
    ) -> PyResult<T> {
        self.process.check(py)?;
        let requests = self.connection.requests();
        wait::until(py, deadline, |wait| ask(requests, wait))
    }

    /// Sends items from `first` on, one for each priority, waiting for room in the window where it must.
    fn insert_rows(
        &self,
        py: Python<'_>,
        items: &Items<'_>,
        first: usize,
        priorities: &[f64],
        version: Option<u64>,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let (writer, stride) = (self.connection.writer(), items.row_bytes());
        let block = (BLOCK_BYTES / stride.max(1)).max(1);
        let mut done = 0;
        while done < priorities.len() {
            let part = &priorities[done..priorities.len().min(done + block)];
            let stored = |error: PyErr| set(py, error, "stored", done);
            items.recheck(py)?;
            // SAFETY: there is an item for each priority, and all was rechecked just now.
            let fill = |rows: &mut [u8]| unsafe { items.copy_to(first + done, rows) };
            let send = || writer.try_insert_rows(self.number, part, version, fill);
            let large = part.len().saturating_mul(stride) >= DETACH_BYTES;
            let sent = if large { py.detach(send) } else { send() };
            if sent.or_raise(py).map_err(stored)? {
                done += part.len();
                continue;
            }
            let weight = part.len().saturating_mul(stride) + size_of_val(part);
            wait::until(py, deadline, |wait| writer.wait_for_room(weight, wait))
                .and_then(|()| py.check_signals())
                .map_err(stored)?;
        }
        Ok(())
    }
}

/// A batch that was asked for. Dropped before it was taken, it is given up.
#[pyclass(frozen, module = "echoic._native")]
pub struct PendingBatch {
    table: Py<RemoteTable>,
    /// None once the batch was taken, and while somebody waits for it.
    ticket: Mutex<Option<Ticket<RemoteBatch>>>,
}

impl PendingBatch {
    pub fn new(table: Py<RemoteTable>, ticket: Ticket<RemoteBatch>) -> Self {
        Self { table, ticket: Mutex::new(Some(ticket)) }
    }
}

#[pymethods]
impl PendingBatch {
    /// Waits for the batch. May be called again after it timed out or was interrupted.
    fn take(&self, py: Python<'_>, timeout: Option<f64>, beta: f64) -> PyResult<Batch> {
        check_beta(beta)?;
        let deadline = wait::deadline(timeout)?;
        let ticket = self.ticket.lock().take();
        let mut ticket = ticket.ok_or_else(|| {
            PyRuntimeError::new_err("the batch was taken, or another thread waits for it")
        })?;
        let batch = wait::until(py, deadline, |wait| ticket.wait(wait));
        if !ticket.is_answered() {
            *self.ticket.lock() = Some(ticket);
        }
        Batch::of_remote(py, self.table.get().shape(), batch?, beta)
    }
}

impl Raise for TablesError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::TimedOut(reason) => {
                let what = match reason {
                    WaitReason::Away => "there is no connection to the server",
                    WaitReason::Network => "the server has not answered",
                    _ => "the table does not allow it now",
                };
                let error = timeout_error(py, format!("timed out: {what} ({reason})"));
                set(py, error, "reason", reason.name())
            }
            Self::Closed => closed_error(py, text),
            Self::Failed(failure) => link_error(py, &failure.error, text),
            Self::Refused { code, .. } => match code {
                FailureCode::Closed | FailureCode::Cancelled => closed_error(py, text),
                FailureCode::Table => table_not_found_error(py, text),
                FailureCode::Limiter => limiter_error(py, text),
                FailureCode::Mixed => spec_error(py, text),
                FailureCode::Checkpoint => checkpoint_error(py, text),
                FailureCode::Journal => PyOSError::new_err(text),
                _ => PyValueError::new_err(text),
            },
            Self::Table(error) => error.raise(py),
            Self::Rollout(error) => error.raise(py),
            Self::Wire(_) => spec_error(py, text),
            Self::System(_) => PyOSError::new_err(text),
            _ => PyRuntimeError::new_err(text),
        }
    }
}
