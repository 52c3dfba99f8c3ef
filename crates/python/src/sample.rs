//! What a consumer gets: the batch as a tree of views, and the numbers about its stream.

use std::sync::Arc;

use echoic_replay::{Batch, Stream, StreamInfo, Summary};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::array;
use crate::fork::Process;
use crate::listeners::{ListenerNumbers, Listeners};
use crate::tree::Tree;

/// The base object of every array of a batch. The memory returns to the ring when the last of them
/// is gone.
#[pyclass(frozen, module = "echoic._native")]
struct Lease {
    /// There until this is dropped.
    batch: Option<Batch>,
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

/// A batch and the state of the stream it came from.
#[pyclass(frozen, module = "echoic")]
pub struct StreamBatch {
    #[pyo3(get)]
    data: Py<PyAny>,
    #[pyo3(get)]
    sequence: u64,
    rows: usize,
    stream: Arc<Stream>,
    listeners: Arc<Listeners>,
    info: PyOnceLock<Py<StreamStats>>,
}

impl StreamBatch {
    /// Shows a batch as a tree of numpy views.
    pub fn new(
        py: Python<'_>,
        tree: &Tree,
        stream: &Arc<Stream>,
        listeners: &Arc<Listeners>,
        batch: Batch,
    ) -> PyResult<Self> {
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
        let (stream, listeners) = (Arc::clone(stream), Arc::clone(listeners));
        Ok(Self { data: data.unbind(), sequence, rows, stream, listeners, info: PyOnceLock::new() })
    }
}

#[pymethods]
impl StreamBatch {
    #[getter]
    fn info(&self, py: Python<'_>) -> PyResult<Py<StreamStats>> {
        let info = self.info.get_or_try_init(py, || {
            let info = StreamStats::of(&self.stream, &self.listeners);
            Py::new(py, StreamStats { batch_sequence: self.sequence, ..info })
        })?;
        Ok(info.clone_ref(py))
    }

    /// A part of the data.
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.data.bind(py).get_item(key)
    }

    fn __len__(&self) -> usize {
        self.rows
    }

    /// Lets the garbage collector see a batch that was made to refer to its own sample.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.data)
    }

    fn __repr__(&self) -> String {
        format!("StreamBatch(sequence={}, rows={})", self.sequence, self.rows)
    }
}

/// Durations in seconds.
#[pyclass(frozen, module = "echoic")]
pub struct Histogram(Summary);

/// A snapshot of a stream's numbers.
#[pyclass(frozen, module = "echoic")]
pub struct StreamStats {
    info: StreamInfo,
    listeners: ListenerNumbers,
    batch_sequence: u64,
}

impl StreamStats {
    /// The numbers without a batch.
    pub fn of(stream: &Stream, listeners: &Listeners) -> Self {
        let info = stream.info();
        Self { info, listeners: listeners.numbers(), batch_sequence: info.delivered_total }
    }
}

/// A class with a getter for each number of each part, `fill` over the same names, and the methods
/// given.
macro_rules! numbers {
    (
        $class:ident { $($part:tt { $($name:ident: $type:ty),* $(,)? })* }
        $($methods:tt)*
    ) => {
        #[pymethods]
        impl $class {
            $($(#[getter]
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
    0 { count: u64, min: f64, mean: f64, p50: f64, p90: f64, p99: f64, max: f64 }
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
        batch_size: usize,
        num_buffers: usize,
        capacity: usize,
        store_size: u64,
        partial: u64,
        batches_ready: u64,
        batches_held: usize,
        batches_free: usize,
        oldest_hold: f64,
        inserted_total: u64,
        batches_total: u64,
        delivered_total: u64,
        blocked_pushes: u64,
        blocked_time: f64,
        sample_waits: u64,
        sample_wait_time: f64,
        contention: u64,
        aborted: u64,
        refused: u64,
        bytes_per_sample: usize,
        memory_bytes: usize,
    }
    listeners {
        connections: u64,
        connections_accepted: u64,
        connections_refused: u64,
        connections_malformed: u64,
        connections_silent: u64,
        accept_errors: u64,
        panics: u64,
        reconnects: u64,
        received_samples: u64,
        received_bytes: u64,
        receive_calls: u64,
        received_duplicates: u64,
        connections_blocked_time: f64,
    }
}
    #[getter]
    fn sequence(&self) -> u64 {
        self.batch_sequence
    }

    #[getter]
    fn submit_to_available(&self) -> Histogram {
        Histogram(self.info.submit_to_available)
    }

    #[getter]
    fn copy_time(&self) -> Histogram {
        Histogram(self.info.copy_time)
    }

    #[getter]
    fn hold_time(&self) -> Histogram {
        Histogram(self.info.hold_time)
    }

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
