//! The in-process listener of a server.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use echoic_net::observe::ProgramGauges;
use echoic_net::server::{Observer, Options, Served};
use echoic_net::transport::TlsFiles;
use echoic_replay::rollouts::RolloutTable as CoreRollouts;
use echoic_replay::stream::Wait;
use echoic_replay::table::Tables;
use echoic_replay::table::saved::{Checkpointer, Contents};
use echoic_replay::weights::WeightStore as CoreWeights;
use echoic_replay::{Incoming, Moment, Stream, StreamConfig, StreamError, WaitReason};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use crate::batch::{Batch, Device};
use crate::checkpoints;
use crate::connect;
use crate::error::{Doing, OrRaise, closed_error, is_ours, stream_error};
use crate::fork::Process;
use crate::leaf::{Many, One, ShapeRule, Source};
use crate::listeners::{self, Listeners};
use crate::rollouts::RolloutTable;
use crate::sample::StreamStats;
use crate::server_metrics::ServerMetrics;
use crate::sources::{DETACH_BYTES, recheck, with_sources};
use crate::spec::{Spec, core_spec};
use crate::table::Table;
use crate::tree::Tree;
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

/// The native part of :class:`echoic.Server`: everything that runs per sample.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct Server {
    stream: Option<StreamSide>,
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

/// The stream of a server.
struct StreamSide {
    tree: Tree,
    stream: Arc<Stream>,
    held_warning_after: Duration,
    warned: AtomicBool,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        stream, held_warning_after, shared, tables, checkpoints, weights=None, rollouts=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        stream: Option<(Bound<'_, PyAny>, i64, Option<i64>)>,
        held_warning_after: f64,
        shared: bool,
        tables: Vec<Py<Table>>,
        checkpoints: Option<(PathBuf, usize)>,
        weights: Option<Py<WeightStore>>,
        rollouts: Option<Vec<Py<RolloutTable>>>,
    ) -> PyResult<Self> {
        let held_warning_after = wait::seconds("held_warning_after", held_warning_after)?;
        let stream = stream
            .map(|(example, batch_size, capacity)| {
                let config = stream_config(batch_size, capacity)?;
                StreamSide::new(&example, config, shared, held_warning_after)
            })
            .transpose()?;
        // `echoic.Server` refuses tables of other servers.
        let own = tables.iter().filter_map(|table| table.get().handle().local().cloned());
        let tables = Tables::new(own.collect()).or_raise(py)?;
        let (tables, closed) = (Arc::new(tables), AtomicBool::new(false));
        let rollouts = Arc::new(own_rollouts(&rollouts.unwrap_or_default())?);
        let checkpointer = checkpoints.map(|(root, keep)| {
            let stream = stream.as_ref().map(|side| Arc::clone(&side.stream));
            let release = env!("CARGO_PKG_VERSION");
            let checkpointer = Checkpointer::new(Arc::clone(&tables), stream, root, keep, release);
            Arc::new(checkpointer.with_rollouts(Arc::clone(&rollouts)))
        });
        let (listeners, process) = (Arc::default(), Process::current());
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

    /// Store one sample.
    ///
    /// Its bytes are copied before this returns. Waits, without the GIL, while the ring is full.
    ///
    /// Args:
    ///     x: A sample like the example. dtypes must match exactly; Python numbers fit any dtype
    ///         of their kind; arrays that are not contiguous or have another byte order are
    ///         converted.
    ///     timeout: Seconds to wait for room; ``None`` waits for ever, 0 not at all.
    ///
    /// Raises:
    ///     SpecError: The sample does not fit. Nothing of it is stored.
    ///     WaitTimeoutError: There was no room in time; ``reason`` says why.
    ///     ClosedError: The server is closed.
    #[pyo3(signature = (x, *, timeout=None))]
    fn add(&self, py: Python<'_>, x: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let side = self.side()?;
        side.with_sources(x, &mut One, |sources, _| side.store(py, sources, 1, deadline))
    }

    /// Store many samples, given as leaves with a leading axis.
    ///
    /// The axis may be longer than a batch, or than the whole ring: this returns when all samples
    /// are stored.
    ///
    /// Args:
    ///     xs: Like the example, each leaf with the same leading axis.
    ///     timeout: Seconds to wait for room in total; ``None`` waits for ever.
    ///
    /// Raises:
    ///     SpecError: A leaf does not fit. Nothing is stored.
    ///     WaitTimeoutError: Not all samples had room in time; ``stored`` says how many had.
    ///     ClosedError: The server is closed; ``stored`` says how many samples came before.
    #[pyo3(signature = (xs, *, timeout=None))]
    fn extend(&self, py: Python<'_>, xs: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let side = self.side()?;
        side.with_sources(xs, &mut Many::default(), |sources, shapes| {
            let samples = shapes.rows.unwrap_or(0);
            if samples == 0 && side.stream.is_closed() {
                let doing = Doing::Add { stored: 0, wanted: 0 };
                return Err(stream_error(py, &StreamError::Closed, &doing));
            }
            side.store(py, sources, samples, deadline)
        })
    }

    /// Take the next batch, waiting for it without the GIL.
    ///
    /// After a close, the complete batches that are left can still be taken.
    ///
    /// Args:
    ///     timeout: Seconds to wait; ``None`` waits for ever.
    ///     device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
    ///         numpy arrays when ``None``.
    ///
    /// Raises:
    ///     WaitTimeoutError: No batch was complete in time.
    ///     ClosedError: The server is closed and has no complete batch.
    #[pyo3(signature = (timeout=None, *, device=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let side = self.side()?;
        let batch = match side.stream.try_take() {
            Some(batch) => batch,
            None => wait::detached(py, deadline, None, |wait: Wait<'_>| side.stream.take(wait))
                .map_err(|stopped| Doing::Sample.stopped(py, stopped))?,
        };
        Batch::of_stream(py, &side.tree, &side.stream, &self.listeners, batch)?.on(py, device)
    }

    /// Take the samples of a closed server that do not fill a batch; ``None`` if there are none.
    ///
    /// Waits for calls of ``add`` that have not returned. Only the first call gets them.
    #[pyo3(signature = (timeout=None))]
    fn rest(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        self.process.check(py)?;
        let side = self.side()?;
        if !side.stream.is_closed() {
            return Err(pyo3::exceptions::PyRuntimeError::new_err(
                "rest() is for a closed server: before close() the batch may still fill up",
            ));
        }
        let deadline = wait::deadline(timeout)?;
        let take = |wait: Wait<'_>| side.stream.take_remainder(wait);
        let batch = wait::detached(py, deadline, None, take)
            .map_err(|stopped| Doing::Sample.stopped(py, stopped))?;
        batch
            .map(|batch| Batch::of_stream(py, &side.tree, &side.stream, &self.listeners, batch))
            .transpose()
    }

    /// Let other processes push to this server, for transports; returns the address.
    ///
    /// Raises:
    ///     OSError: The address can't be had.
    ///     ValueError: If the address is not valid, or needs a token.
    #[pyo3(signature = (
        address, token, insecure, max_connections, heartbeat, threads, certificate, key, client_ca
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
        let stream = self.stream.as_ref().map(|side| Arc::clone(&side.stream));
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

    /// Return every number by name: those of :attr:`info`, refusals by reason, those of tables.
    ///
    /// A name is of the form ``table_items.NAME``; the guide to metrics has them all.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = match &self.stream {
            Some(side) => StreamStats::of(&side.stream, &self.listeners).as_dict(py)?,
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
    ///     >>> server = echoic.Server(tables=[echoic.Table("replay", capacity=100)])
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
    ///     >>> server = echoic.Server(tables=[echoic.Table("replay", capacity=100)])
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
        let stream = self.stream.as_ref().map(|side| &*side.stream);
        let contents = Contents { tables: &self.tables, stream, rollouts: &self.rollouts };
        checkpoints::recover(py, contents, &journal, checkpoint.as_deref())
    }

    /// Close the listeners, end intake and wake all waiting calls.
    ///
    /// Batches already taken stay valid.
    ///
    /// Args:
    ///     drain: For how many seconds clients may finish what they are sending. What is not stored
    ///         by then stays with them, for a server that comes later.
    ///     restart: Whether another server takes over the rollout tables. If not, their clients
    ///         get a :class:`~echoic.errors.ClosedError` at once; else they wait for it until their
    ///         ``deadline``. By default tables with a directory are taken over, and others are not.
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
            if let Some(side) = &self.stream {
                side.stream.close();
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

    /// A snapshot of the numbers, without taking a batch.
    #[getter]
    fn info(&self) -> PyResult<StreamStats> {
        Ok(StreamStats::of(&self.side()?.stream, &self.listeners))
    }

    /// What samples look like.
    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Spec> {
        Spec::new(py, self.side()?.stream.spec())
    }

    /// How many samples make a batch.
    #[getter]
    fn batch_size(&self) -> PyResult<usize> {
        Ok(self.side()?.stream.batch_size())
    }
}

impl Server {
    /// All that there is to see.
    fn server_metrics(&self) -> ServerMetrics {
        ServerMetrics {
            incarnation: self.incarnation,
            since: self.since,
            stream: self.stream.as_ref().map(|side| Arc::clone(&side.stream)),
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
            pyo3::exceptions::PyTypeError::new_err(
                "the server has no checkpointer: give it Checkpointer(path)",
            )
        })
    }

    #[inline]
    fn side(&self) -> PyResult<&StreamSide> {
        self.stream.as_ref().ok_or_else(|| {
            pyo3::exceptions::PyTypeError::new_err(
                "the server has tables only; for a stream give it an example and a batch_size",
            )
        })
    }
}

impl StreamSide {
    fn new(
        example: &Bound<'_, PyAny>,
        config: StreamConfig,
        shared: bool,
        held_warning_after: Duration,
    ) -> PyResult<Self> {
        let py = example.py();
        let tree = Tree::compile(example, "")?;
        let spec = core_spec(py, &tree)?;
        // Touching the memory takes a while when there is much of it.
        let stream = py
            .detach(|| {
                if shared { Stream::new_shared(spec, config) } else { Stream::new(spec, config) }
            })
            .map_err(|error| stream_error(py, &error, &Doing::Sample))?;
        tree.try_build(py, config.batch_size)?;
        let (stream, warned) = (Arc::new(stream), AtomicBool::new(false));
        Ok(Self { tree, stream, held_warning_after, warned })
    }

    /// Checks a tree and calls `store` with its sources. Nothing is stored if a leaf is wrong.
    #[inline]
    fn with_sources<S: ShapeRule>(
        &self,
        tree: &Bound<'_, PyAny>,
        shapes: &mut S,
        store: impl FnOnce(&[Source], &S) -> PyResult<()>,
    ) -> PyResult<()> {
        with_sources(&self.tree, tree, shapes, store, |error| {
            if is_ours(tree.py(), error) {
                self.stream.note_refused();
            }
        })
    }

    /// Stores samples, waiting for room where there is none.
    #[inline]
    fn store(
        &self,
        py: Python<'_>,
        sources: &[Source],
        samples: usize,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let large = samples.saturating_mul(self.stream.spec().nbytes()) >= DETACH_BYTES;
        let mut stored = 0;
        let mut submitted = None;
        loop {
            recheck(py, &self.tree, sources)?;
            let mut store = || self.store_while_room(sources, samples, submitted, &mut stored);
            let result = if large { py.detach(store) } else { store() };
            match result {
                Ok(()) => return Ok(()),
                Err(StreamError::TimedOut(_)) => {}
                Err(error) => {
                    let doing = Doing::Add { stored, wanted: samples };
                    return Err(stream_error(py, &error, &doing));
                }
            }
            submitted.get_or_insert_with(|| self.stream.now());
            let doing = Doing::Add { stored, wanted: samples };
            self.wait_for_room(py, deadline, &doing)?;
            // Many short waits may never come to a tick, however long they take together.
            py.check_signals().map_err(|raised| doing.annotate(py, raised))?;
        }
    }

    /// Stores samples until all are stored or the next would have to wait.
    #[inline]
    fn store_while_room(
        &self,
        sources: &[Source],
        samples: usize,
        submitted: Option<Moment>,
        stored: &mut usize,
    ) -> Result<(), StreamError> {
        while *stored < samples {
            let incoming = self.stream.try_reserve_since(submitted, samples - *stored)?;
            *stored += self.fill(incoming, sources, *stored);
        }
        Ok(())
    }

    #[cold]
    fn wait_for_room(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        doing: &Doing,
    ) -> PyResult<()> {
        let look = |py: Python<'_>, reason| self.warn_about_held_batches(py, reason);
        let room = |wait: Wait<'_>| self.stream.wait_for_room(wait);
        wait::detached(py, deadline, Some(&look), room)
            .map_err(|stopped| doing.stopped(py, stopped))
    }

    /// Copies the samples from `first` on into the room there is; how many they were.
    #[inline]
    fn fill(&self, mut incoming: Incoming<'_>, sources: &[Source], first: usize) -> usize {
        let samples = incoming.len();
        let leaf_bytes = self.stream.spec().leaf_bytes();
        for source in sources {
            let bytes = leaf_bytes[source.leaf];
            let column = incoming.column_mut(source.leaf);
            // SAFETY: `gather` accepted this value with the rule of this leaf: it has the leaf's
            // shape, after a leading axis of the number of samples if there are many, and `first`
            // plus the room asked for never passes that number. `store` rechecked it just now.
            unsafe { source.copy_to(first * bytes, column) };
        }
        incoming.commit();
        samples
    }

    /// Says once that batches which nobody lets go of keep producers waiting.
    fn warn_about_held_batches(&self, py: Python<'_>, reason: WaitReason) -> PyResult<()> {
        let held = self.stream.oldest_hold();
        if reason != WaitReason::Leased
            || held < self.held_warning_after
            || self.warned.swap(true, Ordering::Relaxed)
        {
            return Ok(());
        }
        let info = self.stream.info();
        let message = format!(
            "producers wait because {} of {} batches are held by arrays that are still alive, the \
             oldest for {:.1} s; drop or copy them, or raise capacity",
            info.batches_held,
            info.num_buffers,
            held.as_secs_f64()
        );
        let class = py.import("echoic.errors")?.getattr("HeldBatchesWarning")?;
        py.import("warnings")?.call_method1("warn", (message, class.cast::<PyType>()?))?;
        Ok(())
    }
}

/// Batches of so many samples, and how many of them `capacity` needs: four if it is not given.
fn stream_config(batch_size: i64, capacity: Option<i64>) -> PyResult<StreamConfig> {
    let batch_size = size("batch_size", batch_size)?;
    let Some(capacity) = capacity else { return Ok(StreamConfig { batch_size, num_buffers: 4 }) };
    let (capacity, least) = (size("capacity", capacity)?, batch_size.saturating_mul(2));
    if capacity < least {
        let text = format!("capacity must be at least 2 batches = {least} samples, got {capacity}");
        return Err(PyValueError::new_err(text));
    }
    // Without samples in a batch there is no number of batches; the core refuses the size.
    let num_buffers = capacity.div_ceil(batch_size.max(1));
    Ok(StreamConfig { batch_size, num_buffers })
}

/// A size, which the core checks further.
pub fn size(name: &str, value: i64) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| {
        pyo3::exceptions::PyValueError::new_err(format!("{name} must be positive, got {value}"))
    })
}

/// Do nothing with the argument: the cost of a call into this module, for benchmarks.
#[pyfunction]
pub fn empty_call(tree: &Bound<'_, PyAny>) {
    let _ = tree;
}
