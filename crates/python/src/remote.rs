//! Tables of a server in another process.

use std::path::PathBuf;
use std::sync::Arc;

use echoic_memory::sync::Mutex;
use echoic_net::client::tables::{
    Batch as RemoteBatch, FailureCode, PendingReply, TableConnection, TableHandle, TablesError,
};
use echoic_replay::WaitReason;
use pyo3::exceptions::{PyIndexError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::Batch;
use crate::connect::{self, ConnectOptions, Peer, link_error};
use crate::error::{
    OrRaise, Raise, checkpoint_error, closed_error, limiter_error, set, spec_error,
    table_not_found_error, timeout_error,
};
use crate::fork::Process;
use crate::table::{Table, check_beta, check_size};
use crate::wait;

/// Connect to a server that has tables, for :func:`echoic.connect`.
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
#[pyclass(frozen, weakref, module = "echoic._native")]
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

    /// Wait until what was inserted is in its table, and survives what that promises.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        wait::until(py, wait::deadline(timeout)?, |wait| self.connection.flush(wait))
    }

    /// Have the server write a checkpoint; see ``Connection.checkpoint``.
    #[pyo3(signature = (timeout=None))]
    fn checkpoint(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PathBuf> {
        self.process.check(py)?;
        let requests = self.connection.requests();
        let path = wait::until(py, wait::deadline(timeout)?, |wait| requests.checkpoint(wait));
        path.map(PathBuf::from)
    }

    /// Deliver what was inserted, and end.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        // The connection of a parent process is not a forked child's to close.
        if !self.process.is_current() {
            return Ok(());
        }
        wait::until(py, wait::deadline(timeout)?, |wait| self.connection.close(wait))
    }

    /// Where the server is.
    #[getter]
    fn address(&self) -> String {
        self.connection.requests().address().to_string()
    }

    /// Find the server there from now on; what it has not acknowledged goes to there.
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

    /// Whether it has ended for good: it was closed, or gave up.
    #[getter]
    fn over(&self) -> bool {
        self.connection.is_over()
    }

    /// How many restarts of the server the connection has seen.
    #[getter]
    fn incarnations(&self) -> u64 {
        self.connection.requests().incarnations()
    }

    /// How many items are not known to be in their tables.
    #[getter]
    fn pending(&self) -> u64 {
        self.connection.writer().unacknowledged()
    }

    /// Return the link's numbers by name.
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

/// A table whose items are in another process.
#[pyclass(frozen, subclass, extends = Table, module = "echoic._native")]
pub struct RemoteTable {
    connection: Arc<TableConnection>,
    number: u32,
    /// Keeps the connection open, and in the list of those that deliver when the process ends.
    _link: Py<Tables>,
}

#[pymethods]
impl RemoteTable {
    #[new]
    fn new(link: &Bound<'_, Tables>, number: u32) -> PyResult<PyClassInitializer<Self>> {
        let (py, connection) = (link.py(), Arc::clone(&link.get().connection));
        let handle = TableHandle::remote(&connection, number).map_err(|_| {
            let count = connection.requests().tables().len();
            PyIndexError::new_err(format!("the server has {count} tables, got number {number}"))
        })?;
        Ok(PyClassInitializer::from(Table::of(py, handle)?).add_subclass(Self {
            connection,
            number,
            _link: link.clone().unbind(),
        }))
    }

    /// Send part ``cut[0]`` of ``cut[1]`` of many items, from item ``skip`` of it on.
    ///
    /// There are fewer parts when they would have less than ``cut[2]`` items; it returns how many.
    fn _insert_part(
        slf: &Bound<'_, Self>,
        tree: &Bound<'_, PyAny>,
        priorities: Option<&Bound<'_, PyAny>>,
        version: Option<u64>,
        timeout: Option<f64>,
        cut: (usize, usize, usize),
        skip: usize,
    ) -> PyResult<usize> {
        let ((part, parts, least), py) = (cut, slf.py());
        let table = slf.as_super().get();
        table.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let mut worth = 1;
        table.shape.with_many(tree, priorities, |items, priorities| {
            let count = priorities.len();
            worth = parts.min(count / least.max(1)).max(1);
            let edge = |part: usize| count * part.min(worth) / worth;
            let start = (edge(part) + skip).min(edge(part + 1));
            let own = &priorities[start..edge(part + 1)];
            table.insert_rows(py, items, start, own, version, deadline)
        })?;
        Ok(worth)
    }

    /// Ask for a batch, and go on; it counts as sampled when it is drawn.
    fn start_sample(slf: &Bound<'_, Self>, count: usize) -> PyResult<PendingBatch> {
        let (py, this, table) = (slf.py(), slf.get(), slf.as_super());
        check_size(count)?;
        table.get().process.check(py)?;
        let reply = this.connection.requests().start_sample(this.number, count, None);
        let reply = Mutex::new(Some(reply.or_raise(py)?));
        Ok(PendingBatch { table: table.clone().unbind(), reply })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let address = slf.get().connection.requests().address();
        format!("RemoteTable({:?} at {address})", slf.as_super().get().handle().entry().name)
    }
}

impl RemoteTable {
    /// The connection, and the table's number there.
    pub fn place(&self) -> (&Arc<TableConnection>, u32) {
        (&self.connection, self.number)
    }
}

/// A batch that a server was asked for; dropped before it was taken, it is given up.
#[pyclass(frozen, module = "echoic._native")]
pub struct PendingBatch {
    table: Py<Table>,
    /// None once the batch was taken, and while somebody waits for it.
    reply: Mutex<Option<PendingReply<RemoteBatch>>>,
}

#[pymethods]
impl PendingBatch {
    /// Wait for the batch; may be called again after it timed out.
    fn take(&self, py: Python<'_>, timeout: Option<f64>, beta: f64) -> PyResult<Batch> {
        check_beta(beta)?;
        let deadline = wait::deadline(timeout)?;
        let reply = self.reply.lock().take();
        let mut reply = reply.ok_or_else(|| {
            PyRuntimeError::new_err("the batch was taken, or another thread waits for it")
        })?;
        let batch = wait::until(py, deadline, |wait| reply.wait(wait));
        if !reply.is_answered() {
            *self.reply.lock() = Some(reply);
        }
        Batch::of_remote(py, &self.table.get().shape, batch?, beta)
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
