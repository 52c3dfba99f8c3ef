//! A server: what other processes reach, and where its numbers and checkpoints are.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use echoic_net::observe::ProgramGauges;
use echoic_net::server::{Observer, Options, Served};
use echoic_net::transport::TlsFiles;
use echoic_replay::Stream as CoreStream;
use echoic_replay::rollouts::RolloutTable as CoreRollouts;
use echoic_replay::table::Tables;
use echoic_replay::table::saved::{Checkpointer, Contents};
use echoic_replay::weights::WeightStore as CoreWeights;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::checkpoints;
use crate::connect;
use crate::error::{OrRaise, closed_error};
use crate::fork::Process;
use crate::listeners::{self, Listeners};
use crate::rollouts::RolloutTable;
use crate::sample::StreamStats;
use crate::server_metrics::ServerMetrics;
use crate::stream::Stream;
use crate::table::Table;
use crate::wait;
use crate::watch;
use crate::weights::WeightStore;

/// The tables of this process among those that Python gives, which must be all, with names of their own.
fn own_rollouts(tables: &[Py<RolloutTable>]) -> PyResult<Vec<Arc<CoreRollouts>>> {
    let mut own: Vec<Arc<CoreRollouts>> = Vec::new();
    for table in tables {
        let Some(table) = table.get().core() else {
            return Err(PyValueError::new_err("a rollout table of another server can't be served"));
        };
        let name = &table.config().name;
        if own.iter().any(|other| other.config().name == *name) {
            let text = format!("two rollout tables are named {name:?}");
            return Err(PyValueError::new_err(text));
        }
        own.push(Arc::clone(table));
    }
    Ok(own)
}

/// The native part of :class:`echoic.Server`.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct Server {
    stream: Option<Arc<CoreStream>>,
    tables: Arc<Tables>,
    rollouts: Arc<Vec<Arc<CoreRollouts>>>,
    weights: Option<Arc<CoreWeights>>,
    checkpointer: Option<Arc<Checkpointer>>,
    /// Which server it is: another number for each, here and elsewhere.
    incarnation: u64,
    /// When it was made.
    since: Instant,
    /// What the program tells of itself.
    program_gauges: Arc<ProgramGauges>,
    closed: AtomicBool,
    listeners: Arc<Listeners>,
    process: Process,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        stream, shared, tables, checkpoints, weights=None, rollouts=None
    ))]
    fn new(
        py: Python<'_>,
        stream: Option<Py<Stream>>,
        shared: bool,
        tables: Vec<Py<Table>>,
        checkpoints: Option<(PathBuf, usize)>,
        weights: Option<Py<WeightStore>>,
        rollouts: Option<Vec<Py<RolloutTable>>>,
    ) -> PyResult<Self> {
        // `echoic.Server` refuses tables of other servers.
        let own = tables.iter().filter_map(|table| table.get().handle().local().cloned());
        let tables = Tables::new(own.collect()).or_raise(py)?;
        let (tables, closed) = (Arc::new(tables), AtomicBool::new(false));
        let rollouts = Arc::new(own_rollouts(&rollouts.unwrap_or_default())?);
        let listeners: Arc<Listeners> = Arc::default();
        // The last that can fail: a stream can't be taken back from a server.
        let stream = stream.map(|stream| stream.get().serve(py, shared, &listeners)).transpose()?;
        let checkpointer = checkpoints.map(|(root, keep)| {
            let stream = stream.clone();
            let release = env!("CARGO_PKG_VERSION");
            let checkpointer = Checkpointer::new(Arc::clone(&tables), stream, root, keep, release);
            Arc::new(checkpointer.with_rollouts(Arc::clone(&rollouts)))
        });
        let process = Process::current();
        let (incarnation, since) =
            (RandomState::new().hash_one(std::process::id()), Instant::now());
        let weights = weights.map(|store| Arc::clone(store.get().core()));
        let program_gauges = Arc::default();
        Ok(Self {
            stream,
            tables,
            rollouts,
            weights,
            checkpointer,
            program_gauges,
            closed,
            listeners,
            process,
            incarnation,
            since,
        })
    }

    /// Let other processes push to this server, for transports; returns the address.
    ///
    /// Raises:
    ///     OSError: The address can't be had.
    ///     ValueError: If the address is not valid, or needs a token.
    #[pyo3(signature = (
        address, *, token=None, insecure=false, max_connections=4096, heartbeat=5.0, threads=None,
        certificate=None, key=None, client_ca=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn open_listener(
        &self,
        py: Python<'_>,
        address: &str,
        token: Option<&[u8]>,
        insecure: bool,
        max_connections: i64,
        heartbeat: f64,
        threads: Option<i64>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_ca: Option<PathBuf>,
    ) -> PyResult<String> {
        self.process.check(py)?;
        let files = TlsFiles { certificate, key, authority: client_ca, server_name: None };
        let mut options = Options {
            token: connect::token(token)?,
            insecure,
            max_connections: size("max_connections", max_connections)?,
            heartbeat: listeners::heartbeat(heartbeat)?,
            ..Options::default()
        };
        if let Some(threads) = threads {
            options.threads = size("threads", threads)?;
        }
        let address = connect::address(address)?;
        let stream = self.stream.clone();
        let (tables, checkpointer) = (Arc::clone(&self.tables), self.checkpointer.clone());
        let server_metrics = self.server_metrics();
        let observer = Some(Observer::new(move || server_metrics.look()));
        let weights = self.weights.clone();
        let rollouts = Arc::clone(&self.rollouts);
        let instance = None;
        let served = Served { stream, tables, rollouts, weights, checkpointer, observer, instance };
        py.detach(|| self.listeners.open(&address, &files, served, options)).or_raise(py)
    }

    /// Where other processes connect to, once the server was started.
    #[getter]
    fn addresses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.listeners.addresses())
    }

    /// Return what is known of each connection.
    ///
    /// ``address`` (of the server), ``id``, ``peer``, ``name`` (what the client calls itself),
    /// ``purpose``, ``age`` (seconds), ``samples``, ``bytes``, ``receive_calls``, ``duplicates``,
    /// ``blocked_time`` (seconds) and ``blocked_by`` (``"CAPACITY"``, ``"LEASED"`` or nothing).
    fn connections<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.listeners.connections(py)
    }

    /// How long it has been there, its numbers by family, and its connections.
    #[pyo3(name = "_stats")]
    fn stats<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(u64, f64, Bound<'py, PyList>, Bound<'py, PyList>)> {
        let server_metrics = self.server_metrics();
        watch::observation_dict(py, py.detach(|| server_metrics.look()))
    }

    /// Return every number by name: those of the stream, refusals by reason, those of tables.
    ///
    /// A name is of the form ``table_items.NAME``; the guide to metrics has them all.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = match &self.stream {
            Some(stream) => StreamStats::of(stream, Some(&*self.listeners)).as_dict(py)?,
            None => PyDict::new(py),
        };
        for (code, count) in self.listeners.info().refused {
            metrics.set_item(format!("connections_refused.{code}"), count)?;
        }
        let numbers = py.detach(|| self.server_metrics().numbers());
        for (name, value) in numbers.flat() {
            metrics.set_item(name, value)?;
        }
        Ok(metrics)
    }

    /// Show a number of this program beside the server's own, as ``echoic_gauge``.
    ///
    /// It replaces the number of this name; ``None`` removes it. There may be 256 names of at most
    /// 128 bytes.
    ///
    /// Raises:
    ///     ValueError: If there are too many, or the name is empty or too long.
    ///
    /// Example:
    ///     >>> import echoic
    ///     >>> server = echoic.Server(echoic.Table("replay", capacity=100))
    ///     >>> server.set_gauge("success_rate", 0.75)
    ///     >>> server.metrics()["gauge.success_rate"]
    ///     0.75
    fn set_gauge(&self, name: String, value: Option<f64>) -> PyResult<()> {
        self.program_gauges
            .set(vec![(name, value)])
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Let Prometheus and its like read all numbers over HTTP, until the server is closed.
    ///
    /// Two threads of their own answer, which never need the GIL.
    ///
    /// Args:
    ///     address: ``host:port`` to listen at; port 0 is any free one.
    ///     token: What readers must send, as ``Authorization: Bearer …``.
    ///     insecure: Allows an address that other machines can reach without a token.
    ///
    /// Returns:
    ///     The URL of the numbers.
    ///
    /// Raises:
    ///     OSError: The address can't be had.
    ///     ValueError: If the address is not valid, or needs a token.
    ///     ClosedError: The server is closed.
    ///
    /// Example:
    ///     >>> import urllib.request
    ///     >>> import echoic
    ///     >>> server = echoic.Server(echoic.Table("replay", capacity=100))
    ///     >>> with server, urllib.request.urlopen(server.serve_metrics()) as answer:
    ///     ...     lines = answer.read().decode().splitlines()
    ///     >>> 'echoic_table_capacity{table="replay"} 100' in lines
    ///     True
    #[pyo3(signature = (address="127.0.0.1:0", *, token=None, insecure=false))]
    fn serve_metrics(
        &self,
        py: Python<'_>,
        address: &str,
        token: Option<&[u8]>,
        insecure: bool,
    ) -> PyResult<String> {
        self.process.check(py)?;
        let printable = |token: &[u8]| {
            token.iter().all(|byte| matches!(byte, b' '..=b'~')) && token.trim_ascii() == token
        };
        if token.is_some_and(|token| !printable(token)) {
            let text = "a token for HTTP must be printable ASCII, with no spaces around it";
            return Err(PyValueError::new_err(text));
        }
        let token = connect::token(token)?;
        let server_metrics = self.server_metrics();
        let numbers = move || server_metrics.numbers();
        py.detach(|| self.listeners.observe(address, token, insecure, numbers))
            .or_raise(py)?
            .ok_or_else(|| closed_error(py, "the server is closed"))
    }

    /// Write a checkpoint, and remove those that are older than the ones to be kept.
    ///
    /// It has all tables, each as it was at one moment, and the samples of the
    /// stream that were not taken yet.
    ///
    /// Returns:
    ///     Where the checkpoint is.
    ///
    /// Raises:
    ///     TypeError: The server has no checkpointer.
    ///     OSError: The disk does not take it, or another process writes there. Nothing is lost.
    ///     CheckpointError: The directory has something else in it.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<PathBuf> {
        self.process.check(py)?;
        checkpoints::save(py, self.checkpointer()?)
    }

    /// Loads a checkpoint; items by table.
    #[pyo3(name = "_load")]
    fn load<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
        self.process.check(py)?;
        checkpoints::load(py, self.checkpointer()?, &path)
    }

    /// Brings tables back from a checkpoint and journals, which are written from then on; what is told of
    /// each table.
    #[pyo3(name = "_recover")]
    fn recover<'py>(
        &self,
        py: Python<'py>,
        journal: PathBuf,
        checkpoint: Option<PathBuf>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.process.check(py)?;
        let stream = self.stream.as_deref();
        let contents = Contents { tables: &self.tables, stream, rollouts: &self.rollouts };
        checkpoints::recover(py, contents, &journal, checkpoint.as_deref())
    }

    /// Close the listeners, then the stores, and wake all waiting calls.
    ///
    /// Complete batches of the stream can still be taken, and batches already taken stay valid.
    /// Calls that wait for a table end with a :class:`~echoic.errors.ClosedError`.
    ///
    /// Args:
    ///     drain: For how many seconds clients may finish what they are sending. What is not stored
    ///         by then stays with them, for a server that comes later.
    ///     restart: Whether another server takes over the rollout tables. If not, their clients
    ///         get a :class:`~echoic.errors.ClosedError` at once; else they wait for it for their
    ///         ``reconnect``. By default tables with a directory are taken over, others are not.
    ///         Clients of streams, tables and weights wait in any case.
    #[pyo3(signature = (drain=1.0, restart=None))]
    fn close(&self, py: Python<'_>, drain: f64, restart: Option<bool>) -> PyResult<()> {
        let drain = wait::seconds("drain", drain)?;
        // What a parent process has, its memory for other processes among it, is not a forked child's to close.
        if self.process.is_current() {
            py.detach(|| {
                // Listeners tell the clients of tables that are closed by then that they do not come back.
                let ends =
                    |table: &&Arc<CoreRollouts>| !restart.unwrap_or_else(|| table.has_directory());
                self.rollouts.iter().filter(ends).for_each(|table| table.close());
                self.listeners.close(drain);
            });
        }
        self.closed.store(true, Ordering::Release);
        if self.process.is_current() {
            if let Some(stream) = &self.stream {
                stream.close();
            }
            // Journals are written to their ends.
            py.detach(|| {
                if let Some(weights) = &self.weights {
                    weights.close();
                }
                self.rollouts.iter().for_each(|table| table.close());
                self.tables.close();
            });
        }
        Ok(())
    }

    /// Whether :meth:`close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Server {
    /// All that there is to see.
    fn server_metrics(&self) -> ServerMetrics {
        ServerMetrics {
            incarnation: self.incarnation,
            since: self.since,
            stream: self.stream.clone(),
            tables: Arc::clone(&self.tables),
            rollouts: Arc::clone(&self.rollouts),
            weights: self.weights.clone(),
            checkpointer: self.checkpointer.clone(),
            gauges: Arc::clone(&self.program_gauges),
            listeners: Arc::downgrade(&self.listeners),
        }
    }

    fn checkpointer(&self) -> PyResult<&Checkpointer> {
        self.checkpointer.as_deref().ok_or_else(|| {
            PyTypeError::new_err("the server has no checkpointer: give it Checkpointer(path)")
        })
    }
}

/// A size, which the core checks further.
pub fn size(name: &str, value: i64) -> PyResult<usize> {
    usize::try_from(value)
        .map_err(|_| PyValueError::new_err(format!("{name} must be positive, got {value}")))
}

/// Do nothing with the argument: the cost of a call into this module, for benchmarks.
#[pyfunction]
pub fn empty_call(tree: &Bound<'_, PyAny>) {
    let _ = tree;
}
