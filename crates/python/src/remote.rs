//! Tables of a server in another process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use echoic_net::client::Options;
use echoic_net::client::tables::{
    FailureCode, Numbers, Requests, TableEntry, TableWriter, TablesError, Waiting,
};
use echoic_net::transport::{TlsFiles, dial_to};
use echoic_replay::stream::Wait;
use echoic_replay::table::{Form, Infos, check_priorities};
use echoic_replay::trajectory::Trajectory;
use pyo3::exceptions::{PyIndexError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{
    checkpoint_error, closed_error, limiter_error, set, spec_error, table_error,
    table_not_found_error, timeout_error,
};
use crate::fork::Process;
use crate::listeners::{self, ListenError, link_error};
use crate::numbers::{float_numbers, key_numbers};
use crate::pending::PendingBatch;
use crate::server::size;
use crate::sources::DETACH_BYTES;
use crate::spec::Spec;
use crate::table::{Batch, BatchInfo, Items, Settings, Shape, check_beta, set_calls};
use crate::updates::Updates;
use crate::wait::{self, Stopped};

/// So many bytes of rows are taken at once from a large batch.
const BLOCK_BYTES: usize = 1 << 20;

/// The two connections to a server: what waits to be inserted keeps no request waiting.
pub struct Connection {
    pub requests: Requests,
    pub writer: TableWriter,
    updates: Updates,
    /// Numbers for chunks: each writer has a range of its own.
    ranges: AtomicU64,
    /// The next number in the first range, which is for items that are inserted without a writer.
    alone: AtomicU64,
}

/// How many chunks a writer of a connection may number.
const RANGE: u64 = 1 << 40;

impl Connection {
    /// The first number of a range of chunks.
    pub fn range(&self) -> u64 {
        self.ranges.fetch_add(1, Ordering::Relaxed).wrapping_mul(RANGE)
    }

    /// Numbers for the chunks of one item.
    fn numbers(&self, count: usize) -> Vec<u64> {
        let first = self.alone.fetch_add(count as u64, Ordering::Relaxed);
        (0..count as u64).map(|number| (first + number) % RANGE).collect()
    }
}

/// Connects to a server that has tables.
#[pyfunction]
#[pyo3(signature = (
    address, token, window_bytes, linger, deadline, max_retry, connect_timeout, producer, ca, certificate, key,
    server_name, name, steadfast=false
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub fn connect_tables(
    py: Python<'_>,
    address: &str,
    token: Option<&[u8]>,
    window_bytes: i64,
    linger: f64,
    deadline: Option<f64>,
    max_retry: Option<u32>,
    connect_timeout: f64,
    producer: Option<[u8; 16]>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
    name: Option<String>,
    steadfast: bool,
) -> PyResult<Tables> {
    let files = TlsFiles { certificate, key, authority: ca, server_name };
    let address = listeners::address(address)?;
    let dial = || dial_to(&address, &files).map_err(|error| ListenError::from(error).raise(py));
    let options = Options {
        token: listeners::token(token)?,
        window_bytes: size("window_bytes", window_bytes)?,
        linger: wait::seconds("linger", linger)?,
        deadline: deadline.map(|value| wait::seconds("deadline", value)).transpose()?,
        max_retry,
        connect_timeout: wait::seconds("connect_timeout", connect_timeout)?,
        producer,
        name: listeners::name(name)?,
        steadfast,
    };
    let dials = (dial()?, dial()?);
    let connected = wait::detached(py, None, None, |wait: Wait<'_, Waiting>| {
        let Wait { deadline, tick, on_tick } = wait;
        let part = Wait { deadline, tick, on_tick: &mut *on_tick };
        let requests = Requests::connect(dials.0, options.clone(), part)?;
        let writer = TableWriter::connect(dials.1, options, Wait { deadline, tick, on_tick })?;
        let (ranges, alone) = (AtomicU64::new(1), AtomicU64::new(0));
        Ok(Connection { requests, writer, updates: Updates::default(), ranges, alone })
    });
    let connection = connected.map_err(|stopped| stopped.raise(py, tables_error))?;
    Ok(Tables { connection: Arc::new(connection), files, process: Process::current() })
}

/// A connection to the tables of a server.
#[pyclass(frozen, module = "echoic._native")]
pub struct Tables {
    connection: Arc<Connection>,
    files: TlsFiles,
    process: Process,
}

#[pymethods]
impl Tables {
    /// How many tables the server has.
    fn __len__(&self) -> usize {
        self.connection.requests.tables().len()
    }

    /// Waits until everything that was inserted and updated before is in its table.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let flush = |wait: Wait<'_, Waiting>| self.connection.writer.flush(wait);
        wait::detached(py, deadline, None, flush)
            .and_then(|()| self.connection.updates.finish(py, deadline))
            .map_err(|stopped| stopped.raise(py, tables_error))
    }

    /// Has the server write a checkpoint; where it is, on its machine.
    #[pyo3(signature = (timeout=None))]
    fn checkpoint(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PathBuf> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let ask = |wait: Wait<'_, Waiting>| self.connection.requests.checkpoint(wait);
        wait::detached(py, deadline, None, ask)
            .map(PathBuf::from)
            .map_err(|stopped| stopped.raise(py, tables_error))
    }

    /// Delivers what was inserted, and ends.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        // The connection of a parent process is not a forked child's to close.
        if !self.process.is_current() {
            return Ok(());
        }
        let deadline = wait::deadline(timeout)?;
        let connection = &self.connection;
        // Whatever becomes of the updates, the connections are closed.
        let updated = match connection.updates.finish(py, deadline) {
            Err(Stopped::Failed(TablesError::Closed)) => Ok(()),
            updated => updated,
        };
        wait::detached(py, deadline, None, |wait: Wait<'_, Waiting>| {
            let Wait { deadline, tick, on_tick } = wait;
            connection.writer.close(Wait { deadline, tick, on_tick: &mut *on_tick })?;
            connection.requests.close(Wait { deadline, tick, on_tick })
        })
        .and(updated)
        .map_err(|stopped| stopped.raise(py, tables_error))
    }

    #[getter]
    fn address(&self) -> String {
        self.connection.requests.address().to_string()
    }

    /// From now on the server is to be found there: what it has not acknowledged goes to there.
    fn redirect(&self, py: Python<'_>, address: &str) -> PyResult<()> {
        self.process.check(py)?;
        let address = listeners::address(address)?;
        let dial =
            || dial_to(&address, &self.files).map_err(|error| ListenError::from(error).raise(py));
        let Connection { requests, writer, .. } = &*self.connection;
        let dials = (dial()?, dial()?);
        requests.redirect(dials.0);
        writer.redirect(dials.1);
        Ok(())
    }

    /// Whether the server is there where it was said to be last.
    #[getter]
    fn arrived(&self) -> bool {
        let Connection { requests, writer, .. } = &*self.connection;
        requests.has_arrived() && writer.has_arrived()
    }

    /// Why there is no connection, if that will not pass by itself.
    #[getter]
    fn trouble(&self) -> Option<String> {
        let Connection { requests, writer, .. } = &*self.connection;
        Some(requests.trouble().or_else(|| writer.trouble())?.to_string())
    }

    /// Whether it is there, and a table that items wait for is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.connection.writer.trouble().is_some_and(|trouble| trouble.is_closed())
    }

    /// Whether the server is there now.
    #[getter]
    fn connected(&self) -> bool {
        let Connection { requests, writer, .. } = &*self.connection;
        requests.is_connected() && writer.is_connected()
    }

    /// From now on, no request waits for a connection that is lost.
    fn wait_only_while_connected(&self) {
        self.connection.requests.wait_only_while_connected();
    }

    /// Whether it has ended for good.
    #[getter]
    fn over(&self) -> bool {
        self.connection.requests.is_over() || self.connection.writer.is_closed()
    }

    /// How often the server was another than before.
    #[getter]
    fn lives(&self) -> u64 {
        self.connection.requests.lives()
    }

    /// How many items are not known to be in their tables.
    #[getter]
    fn pending(&self) -> u64 {
        self.connection.writer.unacknowledged()
    }

    /// The connection's numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (info, dict) = (self.connection.writer.info(), PyDict::new(py));
        dict.set_item("items_sent", info.taken)?;
        dict.set_item("items_acked", info.acknowledged)?;
        dict.set_item("pending", info.taken - info.acknowledged)?;
        dict.set_item("held_bytes", info.held_bytes)?;
        dict.set_item("bytes_sent", info.bytes_sent)?;
        dict.set_item("writes", info.writes)?;
        dict.set_item("reconnects", info.reconnects + self.connection.requests.reconnects())?;
        dict.set_item("blocked_sends", info.blocked)?;
        dict.set_item("blocked_time", info.blocked_time)?;
        dict.set_item("connected", u8::from(info.connected))?;
        Ok(dict)
    }
}

/// A table of a server.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct RemoteTable {
    connection: Arc<Connection>,
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
        let tables = connection.requests.tables();
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
        check_priorities(&[priority]).map_err(|error| table_error(py, &error))?;
        self.shape.with_one(
            tree,
            |items| self.insert_rows(py, items, 0, &[priority], version, deadline),
            |trajectory| {
                let chunks = self.connection.numbers(trajectory.slices().len());
                self.insert_trajectory(py, trajectory, priority, version, &chunks, deadline)?;
                self.connection.writer.release(&chunks);
                Ok(())
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
        if count == 0 {
            return Err(PyValueError::new_err("a batch has at least 1 item"));
        }
        check_beta(beta)?;
        let deadline = wait::deadline(timeout)?;
        let batch = self
            .ask_until(py, deadline, |requests, wait| requests.sample(self.number, count, wait))?;
        Batch::of_remote(py, &self.shape, batch, beta)
    }

    /// Asks for a batch, which may be taken later.
    fn start_sample(slf: Bound<'_, Self>, count: usize) -> PyResult<PendingBatch> {
        let py = slf.py();
        if count == 0 {
            return Err(PyValueError::new_err("a batch has at least 1 item"));
        }
        let this = slf.get();
        this.process.check(py)?;
        let ticket = this.connection.requests.start_sample(this.number, count, None);
        let ticket = ticket.map_err(|error| tables_error(py, &error))?;
        Ok(PendingBatch::new(slf.unbind(), ticket))
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
        let Connection { requests, updates, .. } = &*self.connection;
        updates.make_room(py).map_err(|stopped| stopped.raise(py, tables_error))?;
        let update = requests.start_update(self.number, &keys, &priorities);
        updates.push(update.map_err(|error| tables_error(py, &error))?);
        Ok(None)
    }

    /// What is known about items.
    #[pyo3(signature = (limit=None))]
    fn items(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Py<BatchInfo>> {
        let (mut infos, mut place) = (Infos::default(), Some(0));
        while let Some(first) = place {
            let left = limit.map_or(usize::MAX, |limit| limit - infos.keys.len());
            if left == 0 {
                break;
            }
            let listed =
                self.ask(py, |requests, wait| requests.list(self.number, first, left, wait))?;
            infos.append(listed.infos);
            // A place that does not move would have no end.
            place = listed.next.filter(|next| *next > first);
        }
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
        self.ask(py, |requests, wait| match requests.can_sample(self.number, count, wait) {
            // As of a table of this process.
            Err(TablesError::Refused { code: FailureCode::Closed, .. }) => Ok(false),
            can => can,
        })
    }

    #[pyo3(signature = (count=1))]
    fn can_insert(&self, py: Python<'_>, count: usize) -> PyResult<bool> {
        self.ask(py, |requests, wait| requests.can_insert(self.number, count, wait))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.numbers(py)?.size as usize)
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
        match &self.entry.form {
            Form::Rows(spec) => Spec::new(py, spec).map(Some),
            Form::Trajectories(spec) => spec.as_ref().map(|spec| Spec::new(py, spec)).transpose(),
        }
    }

    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (numbers, dict) = (self.numbers(py)?, PyDict::new(py));
        dict.set_item("name", &self.entry.name)?;
        dict.set_item("size", numbers.size)?;
        dict.set_item("total_weight", numbers.total_weight)?;
        dict.set_item("max_size", self.entry.max_size)?;
        dict.set_item("max_times_sampled", numbers.max_times_sampled)?;
        dict.set_item("inserts", numbers.counts.inserts)?;
        dict.set_item("samples", numbers.counts.samples)?;
        dict.set_item("deletions", numbers.counts.deletions)?;
        set_calls(&dict, &numbers.counts, numbers.insert_waits, numbers.sample_waits)?;
        dict.set_item("unique_samples", numbers.unique_samples)?;
        dict.set_item("episodes", numbers.episodes)?;
        dict.set_item("deleted_episodes", numbers.deleted_episodes)?;
        dict.set_item("min_size", numbers.limiter.min_size)?;
        dict.set_item("samples_per_insert", numbers.limiter.samples_per_insert)?;
        dict.set_item("min_diff", numbers.limiter.min_diff)?;
        dict.set_item("max_diff", numbers.limiter.max_diff)?;
        dict.set_item("paused", numbers.paused)?;
        dict.set_item("version", numbers.version)?;
        dict.set_item("memory_bytes", numbers.row_bytes)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("RemoteTable({:?} at {})", self.entry.name, self.connection.requests.address())
    }
}

impl RemoteTable {
    /// The connection, and the table's number there.
    pub fn place(&self) -> (&Arc<Connection>, u32) {
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

    fn numbers(&self, py: Python<'_>) -> PyResult<Numbers> {
        let all = self.ask(py, |requests, wait| requests.info(Some(self.number), wait))?;
        let own = all.into_iter().find(|numbers| numbers.table == self.number);
        own.ok_or_else(|| PyRuntimeError::new_err("the server said nothing of the table"))
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&Requests, Wait<'_, Waiting>) -> Result<T, TablesError> + Send,
    ) -> PyResult<T> {
        self.ask_until(py, None, ask)
    }

    fn ask_until<T: Send>(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        ask: impl FnOnce(&Requests, Wait<'_, Waiting>) -> Result<T, TablesError> + Send,
    ) -> PyResult<T> {
        self.process.check(py)?;
        let requests = &self.connection.requests;
        wait::detached(py, deadline, None, |wait: Wait<'_, Waiting>| ask(requests, wait))
            .map_err(|stopped| stopped.raise(py, tables_error))
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
        let (writer, stride) = (&self.connection.writer, items.row_bytes());
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
            if sent.map_err(|error| stored(tables_error(py, &error)))? {
                done += part.len();
                continue;
            }
            let weight = part.len().saturating_mul(stride) + size_of_val(part);
            let room = |wait: Wait<'_, Waiting>| writer.wait_for_room(weight, wait);
            wait::detached(py, deadline, None, room)
                .map_err(|stopped| stored(stopped.raise(py, tables_error)))?;
            py.check_signals().map_err(stored)?;
        }
        Ok(())
    }

    fn insert_trajectory(
        &self,
        py: Python<'_>,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
        chunks: &[u64],
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let insert = |wait: Wait<'_, Waiting>| {
            let writer = &self.connection.writer;
            writer.item(self.number, priority, version, trajectory, chunks, wait)
        };
        wait::detached(py, deadline, None, insert)
            .map_err(|stopped| stopped.raise(py, tables_error))
    }
}

/// The exception for what a client of tables can't do.
pub fn tables_error(py: Python<'_>, error: &TablesError) -> PyErr {
    let text = error.to_string();
    match error {
        TablesError::TimedOut(waiting) => {
            let what = match waiting {
                Waiting::Away => "there is no connection to the server",
                Waiting::Network => "the server has not answered",
                Waiting::Table(_) => "the table does not allow it now",
            };
            let error = timeout_error(py, format!("timed out: {what} ({waiting})"));
            set(py, error, "reason", waiting.to_string())
        }
        TablesError::Closed => closed_error(py, text),
        TablesError::Failed(failure) => link_error(py, &failure.error, text),
        TablesError::Refused { code, .. } => match code {
            FailureCode::Closed | FailureCode::Cancelled => closed_error(py, text),
            FailureCode::Table => table_not_found_error(py, text),
            FailureCode::Limiter => limiter_error(py, text),
            FailureCode::Mixed => spec_error(py, text),
            FailureCode::Checkpoint => checkpoint_error(py, text),
            FailureCode::Journal => PyOSError::new_err(text),
            _ => PyValueError::new_err(text),
        },
        TablesError::Table(error) => table_error(py, error),
        TablesError::Wire(_) => spec_error(py, text),
        TablesError::System(_) => PyOSError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}
