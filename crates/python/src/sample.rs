//! What a consumer gets: the batch as a tree of views, and the numbers about its stream.

use std::sync::Arc;

use echoic_replay::{Batch as Filled, Stream as CoreStream, StreamInfo, Summary};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::array;
use crate::batch::{Batch, Origin};
use crate::fork::Process;
use crate::listeners::{ListenerNumbers, Listeners};
use crate::stream::StreamState;

/// The base object of every array of a batch. The memory returns to the ring when the last of them
/// is gone.
#[pyclass(frozen, module = "echoic._native")]
struct Lease {
    /// There until this is dropped.
    batch: Option<Filled>,
    process: Process,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The parent of a forked child still has the batch: the child's copy of its arrays gives nothing back.
        if let Some(batch) = self.batch.take()
            && !self.process.is_current()
        {
            std::mem::forget(batch);
        }
    }
}

/// The batch that a stream's batch of arrays was, and its stream.
pub struct Taken {
    sequence: u64,
    state: Arc<StreamState>,
    stream: Arc<CoreStream>,
    stats: PyOnceLock<Py<StreamStats>>,
}

impl Taken {
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        let stats = PyOnceLock::new();
        if let Some(known) = self.stats.get(py) {
            stats.get_or_init(py, || known.clone_ref(py));
        }
        let (state, stream) = (Arc::clone(&self.state), Arc::clone(&self.stream));
        Self { sequence: self.sequence, state, stream, stats }
    }

    /// Numbers about the stream, as of the first time they are asked for.
    pub fn stats(&self, py: Python<'_>) -> PyResult<Py<StreamStats>> {
        let stats = self.stats.get_or_try_init(py, || {
            let stats = self.state.stats(&self.stream);
            Py::new(py, StreamStats { batch_sequence: self.sequence, ..stats })
        })?;
        Ok(stats.clone_ref(py))
    }
}

impl Batch {
    /// Shows a batch of a stream as a tree of numpy views.
    pub fn of_stream(
        py: Python<'_>,
        state: &Arc<StreamState>,
        stream: &Arc<CoreStream>,
        batch: Filled,
    ) -> PyResult<Self> {
        let tree = &state.tree;
        let (sequence, rows) = (batch.sequence(), batch.rows());
        let lease = Bound::new(py, Lease { batch: Some(batch), process: Process::current() })?;
        let mut shape = Vec::with_capacity(8);
        let data = tree.build(py, &mut |leaf| {
            let rule = &tree.rules[leaf];
            shape.clear();
            shape.push(rows);
            shape.extend_from_slice(&rule.leaf.shape);
            let Some(batch) = &lease.get().batch else { unreachable!("it goes with the lease") };
            let column = batch.column_pointer(leaf);
            // SAFETY: the column has room for `rows` values of this leaf and is the lease's alone
            // until the lease is dropped, which the array prevents by holding it.
            unsafe { array::view(py, rule.descr.bind(py), &shape, column, lease.as_any()) }
        })?;
        let (state, stream) = (Arc::clone(state), Arc::clone(stream));
        let taken = Taken { sequence, state, stream, stats: PyOnceLock::new() };
        Ok(Self::new(data, rows, Origin::Stream(taken)))
    }
}

/// Durations in seconds, all zero while ``count`` is.
///
/// Quantiles are within 1/16 of their value.
#[pyclass(frozen, module = "echoic.batches")]
pub struct Histogram(Summary);

/// A snapshot of a stream's numbers. Exact while nothing moves; times are in seconds.
#[pyclass(frozen, module = "echoic.batches")]
pub struct StreamStats {
    info: StreamInfo,
    listeners: ListenerNumbers,
    batch_sequence: u64,
}

impl StreamStats {
    /// The numbers without a batch.
    pub fn of(stream: &CoreStream, listeners: Option<&Listeners>) -> Self {
        let info = stream.info();
        let listeners = listeners.map(Listeners::numbers).unwrap_or_default();
        Self { info, listeners, batch_sequence: info.delivered_total }
    }
}

/// A class with a getter for each number of each part, `fill` over the same names, and the methods
/// given.
macro_rules! numbers {
    (
        $class:ident { $($part:tt { $($(#[$doc:meta])* $name:ident: $type:ty),* $(,)? })* }
        $($methods:tt)*
    ) => {
        #[pymethods]
        impl $class {
            $($($(#[$doc])*
            #[getter]
            fn $name(&self) -> $type {
                self.$part.$name
            })*)*

            $($methods)*
        }

        impl $class {
            fn fill(&self, dict: &Bound<'_, PyDict>, prefix: &str) -> PyResult<()> {
                $($(dict.set_item(format!("{prefix}{}", stringify!($name)), self.$part.$name)?;)*)*
                Ok(())
            }
        }
    };
}

numbers!(Histogram {
    0 {
        /// How many were recorded.
        count: u64,
        /// The shortest.
        min: f64,
        /// Their mean.
        mean: f64,
        /// The median.
        p50: f64,
        /// Nine of ten are at most this long.
        p90: f64,
        /// 99 of 100 are at most this long.
        p99: f64,
        /// The longest.
        max: f64,
    }
}
    fn __repr__(&self) -> String {
        let Summary { count, min, mean, p50, p90, p99, max } = self.0;
        format!(
            "Histogram(count={count}, min={min:.3e}, mean={mean:.3e}, p50={p50:.3e}, \
             p90={p90:.3e}, p99={p99:.3e}, max={max:.3e})"
        )
    }
);

numbers!(StreamStats {
    info {
        /// Samples per batch.
        batch_size: usize,
        /// Samples that fit.
        capacity: usize,
        /// Samples stored and not yet taken.
        store_size: u64,
        /// Samples in batches that are not complete.
        partial: u64,
        /// Complete batches that wait for a consumer.
        batches_ready: u64,
        /// Batches whose memory someone still holds.
        batches_held: usize,
        /// Buffers that are free.
        batches_free: usize,
        /// How long the batch that was taken first has been held.
        oldest_hold: f64,
        /// Samples stored since the start.
        inserted_total: u64,
        /// Batches completed since the start.
        batches_total: u64,
        /// Complete batches taken since the start.
        delivered_total: u64,
        /// Times that a push had to wait for room, in this process or over a connection.
        ///
        /// Pushes that wait now are included. The waits of a ``shm://`` client are counted with its
        /// next report, as one.
        blocked_pushes: u64,
        /// How long pushes waited, in total; those that wait now included.
        blocked_time: f64,
        /// Calls of ``sample`` that had to wait.
        sample_waits: u64,
        /// How long they waited, in total.
        sample_wait_time: f64,
        /// Times a producer looked again because another was opening a batch.
        contention: u64,
        /// Reserved slots whose writer gave up; other samples filled them.
        aborted: u64,
        /// Samples that were refused because they did not fit the example.
        refused: u64,
        /// Bytes of one sample.
        bytes_per_sample: usize,
        /// Bytes allocated for the ring.
        memory_bytes: usize,
    }
    listeners {
        /// Clients that are connected.
        connections: u64,
        /// Connections since the start, refused ones included.
        connections_accepted: u64,
        /// Connections that were refused; ``Server.metrics`` has them by reason.
        connections_refused: u64,
        /// Connections closed because of bytes that made no sense.
        connections_malformed: u64,
        /// Connections closed because nothing came for too long.
        connections_silent: u64,
        /// Times that the system did not let us accept: out of file descriptors, most likely.
        accept_errors: u64,
        /// Connections closed because serving them panicked, a bug; the log has the message.
        panics: u64,
        /// Clients that came back.
        reconnects: u64,
        /// Samples stored for clients; those of ``shm://`` clients as of their last report.
        received_samples: u64,
        /// Bytes received over sockets.
        received_bytes: u64,
        /// System calls that received them.
        receive_calls: u64,
        /// Samples that came twice and were dropped.
        received_duplicates: u64,
        /// Seconds for which clients' samples waited for room, summed over clients.
        connections_blocked_time: f64,
    }
}
    /// Position of the batch that this came with, or of the next one.
    #[getter]
    fn sequence(&self) -> u64 {
        self.batch_sequence
    }

    /// From the call that adds a sample to the completion of its batch.
    #[getter]
    fn submit_to_available(&self) -> Histogram {
        Histogram(self.info.submit_to_available)
    }

    /// Copying one submitted run of samples into the ring.
    #[getter]
    fn copy_time(&self) -> Histogram {
        Histogram(self.info.copy_time)
    }

    /// From taking a batch to the end of its last view.
    #[getter]
    fn hold_time(&self) -> Histogram {
        Histogram(self.info.hold_time)
    }

    /// All numbers by name; those of histograms have names such as ``copy_time.p99``.
    pub fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("sequence", self.batch_sequence)?;
        self.fill(&dict, "")?;
        self.submit_to_available().fill(&dict, "submit_to_available.")?;
        self.copy_time().fill(&dict, "copy_time.")?;
        self.hold_time().fill(&dict, "hold_time.")?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let fields = self.as_dict(py)?;
        let fields = fields.iter().map(|(name, value)| format!("{name}={value}"));
        Ok(format!("StreamStats({})", fields.collect::<Vec<_>>().join(", ")))
    }
);
