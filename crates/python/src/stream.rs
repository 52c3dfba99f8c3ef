//! A stream of this process: samples go in one by one or many at once, batches of a fixed size come out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use echoic_memory::sync::Mutex;
use echoic_replay::stream::Wait;
use echoic_replay::{
    Incoming, Moment, Stream as CoreStream, StreamConfig, StreamError, WaitReason,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::batch::{Batch, Device};
use crate::error::{Doing, is_ours, stream_error};
use crate::fork::Process;
use crate::leaf::{Many, One, ShapeRule, Source};
use crate::listeners::Listeners;
use crate::sample::StreamStats;
use crate::server::size;
use crate::sources::{DETACH_BYTES, recheck, with_sources};
use crate::spec::{Spec, core_spec};
use crate::tree::Tree;
use crate::wait;

/// The native part of :class:`echoic.Stream`: everything that runs per sample.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct Stream {
    state: Arc<StreamState>,
    process: Process,
}

/// A stream, and how Python builds its samples.
pub struct StreamState {
    pub tree: Tree,
    config: StreamConfig,
    /// Allocated when it is first used or given to a server, which says in which kind of memory.
    stream: OnceLock<Arc<CoreStream>>,
    allocating: Mutex<()>,
    /// The listeners of the server that it was given to.
    listeners: OnceLock<Weak<Listeners>>,
    held_warning_after: Duration,
    warned: AtomicBool,
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (example, batch_size, capacity, held_warning_after))]
    fn new(
        example: &Bound<'_, PyAny>,
        batch_size: i64,
        capacity: Option<i64>,
        held_warning_after: f64,
    ) -> PyResult<Self> {
        let held_warning_after = wait::seconds("held_warning_after", held_warning_after)?;
        let config = config(batch_size, capacity)?;
        let tree = Tree::compile(example, "")?;
        core_spec(example.py(), &tree)?;
        tree.try_build(example.py(), config.batch_size)?;
        let state = StreamState {
            tree,
            config,
            stream: OnceLock::new(),
            allocating: Mutex::new(()),
            listeners: OnceLock::new(),
            held_warning_after,
            warned: AtomicBool::new(false),
        };
        Ok(Self { state: Arc::new(state), process: Process::current() })
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
    ///     ClosedError: The stream is closed.
    #[pyo3(signature = (x, *, timeout=None))]
    fn add(&self, py: Python<'_>, x: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let stream = self.state.get(py)?;
        self.state.with_sources(stream, x, &mut One, |sources, _| {
            self.state.store(py, stream, sources, 1, deadline)
        })
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
    ///     ClosedError: The stream is closed; ``stored`` says how many samples came before.
    #[pyo3(signature = (xs, *, timeout=None))]
    fn extend(&self, py: Python<'_>, xs: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let stream = self.state.get(py)?;
        self.state.with_sources(stream, xs, &mut Many::default(), |sources, shapes| {
            let samples = shapes.rows.unwrap_or(0);
            if samples == 0 && stream.is_closed() {
                let doing = Doing::Add { stored: 0, wanted: 0 };
                return Err(stream_error(py, &StreamError::Closed, &doing));
            }
            self.state.store(py, stream, sources, samples, deadline)
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
    ///     ClosedError: The stream is closed and has no complete batch.
    #[pyo3(signature = (timeout=None, *, device=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let stream = self.state.get(py)?;
        let batch = match stream.try_take() {
            Some(batch) => batch,
            None => wait::detached(py, deadline, None, |wait: Wait<'_>| stream.take(wait))
                .map_err(|stopped| Doing::Sample.stopped(py, stopped))?,
        };
        Batch::of_stream(py, &self.state, stream, batch)?.on(py, device)
    }

    /// Take the samples of a closed stream that do not fill a batch; ``None`` if there are none.
    ///
    /// Waits for calls of ``add`` that have not returned. Only the first call gets them.
    #[pyo3(signature = (timeout=None))]
    fn rest(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        self.process.check(py)?;
        let stream = self.state.get(py)?;
        if !stream.is_closed() {
            return Err(PyRuntimeError::new_err(
                "rest() is for a closed stream: before close() the batch may still fill up",
            ));
        }
        let deadline = wait::deadline(timeout)?;
        let take = |wait: Wait<'_>| stream.take_remainder(wait);
        let batch = wait::detached(py, deadline, None, take)
            .map_err(|stopped| Doing::Sample.stopped(py, stopped))?;
        batch.map(|batch| Batch::of_stream(py, &self.state, stream, batch)).transpose()
    }

    /// Return a snapshot of the numbers, without taking a batch.
    fn stats(&self, py: Python<'_>) -> PyResult<StreamStats> {
        Ok(self.state.stats(self.state.get(py)?))
    }

    /// Begin the histograms of :meth:`stats` again; counters and gauges go on.
    fn reset_histograms(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        self.state.get(py)?.reset_histograms();
        Ok(())
    }

    /// Return at once: samples are stored when ``add`` returns.
    ///
    /// A stream of a server in another process delivers here what was added.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        wait::deadline(timeout).map(drop)
    }

    /// End intake and wake all waiting calls.
    ///
    /// Batches already taken stay valid, and complete ones can still be taken. ``timeout`` has no
    /// effect: there is nothing to deliver.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        wait::deadline(timeout)?;
        if self.process.is_current() {
            self.state.get(py)?.close();
        }
        Ok(())
    }

    /// Whether the stream was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state.stream.get().is_some_and(|stream| stream.is_closed())
    }

    /// The structure, dtypes and shapes of samples.
    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Spec> {
        Spec::new(py, &core_spec(py, &self.state.tree)?)
    }

    /// Samples per batch.
    #[getter]
    fn batch_size(&self) -> usize {
        self.state.config.batch_size
    }

    /// Samples that fit.
    #[getter]
    fn capacity(&self) -> usize {
        self.state.config.batch_size.saturating_mul(self.state.config.num_buffers)
    }

    /// Samples stored and not yet taken.
    fn __len__(&self) -> usize {
        let stored = self.state.stream.get().map_or(0, |stream| stream.info().store_size);
        usize::try_from(stored).unwrap_or(usize::MAX)
    }
}

impl Stream {
    /// What a server serves; `shared` asks for memory that other processes can map.
    pub fn serve(
        &self,
        py: Python<'_>,
        shared: bool,
        listeners: &Arc<Listeners>,
    ) -> PyResult<Arc<CoreStream>> {
        self.process.check(py)?;
        let stream = Arc::clone(self.state.allocate(py, shared)?);
        if shared && stream.share().is_none() {
            return Err(PyValueError::new_err(
                "the stream was used before it was given to the server, so its memory can't be \
                 shared over shm://: make the server before anything is added to the stream",
            ));
        }
        if self.state.listeners.set(Arc::downgrade(listeners)).is_err() {
            return Err(PyValueError::new_err(
                "the stream belongs to another server: make a Stream for each server",
            ));
        }
        Ok(stream)
    }
}

impl StreamState {
    /// The stream itself, in memory of this process if it is not there yet.
    #[inline]
    fn get(&self, py: Python<'_>) -> PyResult<&Arc<CoreStream>> {
        match self.stream.get() {
            Some(stream) => Ok(stream),
            None => self.allocate(py, false),
        }
    }

    #[cold]
    fn allocate(&self, py: Python<'_>, shared: bool) -> PyResult<&Arc<CoreStream>> {
        let spec = core_spec(py, &self.tree)?;
        // Touching much memory takes a while.
        py.detach(|| {
            let _one = self.allocating.lock();
            if let Some(stream) = self.stream.get() {
                return Ok(stream);
            }
            let make = if shared { CoreStream::new_shared } else { CoreStream::new };
            let stream = make(spec, self.config)?;
            Ok(self.stream.get_or_init(|| Arc::new(stream)))
        })
        .map_err(|error| stream_error(py, &error, &Doing::Sample))
    }

    /// The numbers of this moment.
    pub fn stats(&self, stream: &CoreStream) -> StreamStats {
        StreamStats::of(stream, self.listeners.get().and_then(Weak::upgrade).as_deref())
    }

    /// Checks a tree and calls `store` with its sources. Nothing is stored if a leaf is wrong.
    #[inline]
    fn with_sources<S: ShapeRule>(
        &self,
        stream: &CoreStream,
        tree: &Bound<'_, PyAny>,
        shapes: &mut S,
        store: impl FnOnce(&[Source], &S) -> PyResult<()>,
    ) -> PyResult<()> {
        with_sources(&self.tree, tree, shapes, store, |error| {
            if is_ours(tree.py(), error) {
                stream.note_refused();
            }
        })
    }

    /// Stores samples, waiting for room where there is none.
    #[inline]
    fn store(
        &self,
        py: Python<'_>,
        stream: &CoreStream,
        sources: &[Source],
        samples: usize,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let large = samples.saturating_mul(stream.spec().nbytes()) >= DETACH_BYTES;
        let mut stored = 0;
        let mut submitted = None;
        loop {
            recheck(py, &self.tree, sources)?;
            let mut store = || store_while_room(stream, sources, samples, submitted, &mut stored);
            let result = if large { py.detach(store) } else { store() };
            match result {
                Ok(()) => return Ok(()),
                Err(StreamError::TimedOut(_)) => {}
                Err(error) => {
                    let doing = Doing::Add { stored, wanted: samples };
                    return Err(stream_error(py, &error, &doing));
                }
            }
            submitted.get_or_insert_with(|| stream.now());
            let doing = Doing::Add { stored, wanted: samples };
            self.wait_for_room(py, stream, deadline, &doing)?;
            // Many short waits may never come to a tick, however long they take together.
            py.check_signals().map_err(|raised| doing.annotate(py, raised))?;
        }
    }

    #[cold]
    fn wait_for_room(
        &self,
        py: Python<'_>,
        stream: &CoreStream,
        deadline: Option<Instant>,
        doing: &Doing,
    ) -> PyResult<()> {
        let look = |py: Python<'_>, reason| self.warn_about_held_batches(py, stream, reason);
        let room = |wait: Wait<'_>| stream.wait_for_room(wait);
        wait::detached(py, deadline, Some(&look), room)
            .map_err(|stopped| doing.stopped(py, stopped))
    }

    /// Warns once that held batches keep producers waiting.
    fn warn_about_held_batches(
        &self,
        py: Python<'_>,
        stream: &CoreStream,
        reason: WaitReason,
    ) -> PyResult<()> {
        let held = stream.oldest_hold();
        if reason != WaitReason::Leased
            || held < self.held_warning_after
            || self.warned.swap(true, Ordering::Relaxed)
        {
            return Ok(());
        }
        let info = stream.info();
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

/// Stores samples until all are stored or the next would have to wait.
#[inline]
fn store_while_room(
    stream: &CoreStream,
    sources: &[Source],
    samples: usize,
    submitted: Option<Moment>,
    stored: &mut usize,
) -> Result<(), StreamError> {
    while *stored < samples {
        let incoming = stream.try_reserve_since(submitted, samples - *stored)?;
        *stored += fill(stream, incoming, sources, *stored);
    }
    Ok(())
}

/// Copies the samples from `first` on into the room there is; how many they were.
#[inline]
fn fill(
    stream: &CoreStream,
    mut incoming: Incoming<'_>,
    sources: &[Source],
    first: usize,
) -> usize {
    let samples = incoming.len();
    let leaf_bytes = stream.spec().leaf_bytes();
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

/// Batches of so many samples, and how many of them `capacity` needs: four if it is not given.
fn config(batch_size: i64, capacity: Option<i64>) -> PyResult<StreamConfig> {
    let batch_size = size("batch_size", batch_size)?;
    if batch_size == 0 {
        return Err(PyValueError::new_err("batch_size must be at least 1, got 0"));
    }
    let Some(capacity) = capacity else { return Ok(StreamConfig { batch_size, num_buffers: 4 }) };
    let (capacity, least) = (size("capacity", capacity)?, batch_size.saturating_mul(2));
    if capacity < least {
        let text = format!("capacity must be at least 2 batches = {least} samples, got {capacity}");
        return Err(PyValueError::new_err(text));
    }
    let num_buffers = capacity.div_ceil(batch_size);
    Ok(StreamConfig { batch_size, num_buffers })
}
