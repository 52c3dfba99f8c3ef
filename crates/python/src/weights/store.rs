//! A store of weights in this process.

use std::sync::Arc;
use std::time::Instant;

use echoic_net::client::weights::{Subscription as Core, WeightSource};
use echoic_replay::WaitReason;
use echoic_replay::weights::{
    Publication as CorePublication, WeightStore as CoreStore, WeightsConfig, WeightsError,
};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::form::{LastForm, fill};
use super::publication::Publication;
use super::subscription::Subscription;
use crate::error::{OrRaise, Raise, closed_error, set, spec_error, timeout_error};
use crate::fork::Process;
use crate::server::size;
use crate::wait;

/// The native part of :class:`echoic.weights.WeightStore`.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct WeightStore {
    store: Arc<CoreStore>,
    forms: Arc<LastForm>,
    process: Process,
}

impl WeightStore {
    pub fn core(&self) -> &Arc<CoreStore> {
        &self.store
    }
}

impl Raise for WeightsError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::TimedOut(WaitReason::Leased) => {
                let error = timeout_error(
                    py,
                    "timed out: all publications that there may be are held by arrays that are still \
                     alive; drop them, copy what you keep, or raise capacity",
                );
                set(py, error, "reason", "LEASED")
            }
            Self::TimedOut(_) => nothing_newer(py),
            Self::Closed => closed_error(py, text),
            Self::Plan(_) => spec_error(py, text),
            Self::Memory(_) => PyMemoryError::new_err(text),
            Self::Interrupted => PyRuntimeError::new_err(text),
            _ => PyValueError::new_err(text),
        }
    }
}

/// The exception for a publication that did not come.
pub fn nothing_newer(py: Python<'_>) -> PyErr {
    let error = timeout_error(py, "timed out: nothing newer was published");
    set(py, error, "reason", "EMPTY")
}

/// Publishes a tree.
pub fn publish(
    tree: &Bound<'_, PyAny>,
    version: u64,
    deadline: Option<Instant>,
    store: &CoreStore,
    forms: &LastForm,
) -> PyResult<Arc<CorePublication>> {
    let py = tree.py();
    let (form, sources) = forms.gather(tree)?;
    let mut builder = wait::until(py, deadline, |wait| store.builder(version, &form.plan, wait))?;
    fill(py, &form, &sources, &mut builder)?;
    py.detach(|| builder.publish()).or_raise(py)
}

/// Publishes a version alone.
pub fn publish_version(
    py: Python<'_>,
    version: u64,
    store: &CoreStore,
) -> PyResult<Arc<CorePublication>> {
    py.detach(|| store.publish_version(version)).or_raise(py)
}

#[pymethods]
impl WeightStore {
    #[new]
    #[pyo3(signature = (capacity))]
    fn new(py: Python<'_>, capacity: i64) -> PyResult<Self> {
        let most = size("capacity", capacity)?;
        let config = WeightsConfig { most, ..WeightsConfig::default() };
        let store = CoreStore::new(config).or_raise(py)?;
        Ok(Self { store: Arc::new(store), forms: Arc::default(), process: Process::current() })
    }

    /// Make a tree the latest.
    ///
    /// Its leaves are copied before this returns, once, without the GIL.
    ///
    /// Args:
    ///     tree: Nested dicts, tuples, lists and the like, with arrays, torch tensors on the CPU,
    ///         or numbers as leaves. It may differ from the one before.
    ///     version: Above the version before.
    ///     timeout: Seconds to wait while all publications are held; ``None`` waits for ever.
    ///
    /// Raises:
    ///     ValueError: The version is not above the latest.
    ///     SpecError: A leaf can't be published, and why.
    ///     WaitTimeoutError: All publications were held for too long.
    ///     MemoryError: There is no memory for it.
    ///     ClosedError: The store is closed.
    #[pyo3(signature = (tree, version, *, timeout=None))]
    fn publish(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        version: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        publish(tree, version, wait::deadline(timeout)?, &self.store, &self.forms).map(drop)
    }

    /// Publish a version alone, for programs that carry the weights by other means.
    ///
    /// Raises:
    ///     ValueError: The version is not above the latest.
    ///     ClosedError: The store is closed.
    fn publish_version(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.process.check(py)?;
        publish_version(py, version, &self.store).map(drop)
    }

    /// Return the latest publication; ``None`` before there is one.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<Publication>> {
        self.process.check(py)?;
        let latest = self.store.latest();
        latest.map(|latest| Publication::new(py, latest, &self.forms)).transpose()
    }

    /// Return a new subscription in this process.
    fn subscribe(&self, py: Python<'_>) -> PyResult<Subscription> {
        self.process.check(py)?;
        let core = Core::new(WeightSource::Local(Arc::clone(&self.store)));
        Ok(Subscription::new(core, &self.forms))
    }

    /// The latest version; ``None`` before there is one.
    #[getter]
    fn version(&self) -> Option<u64> {
        self.store.latest().map(|latest| latest.version())
    }

    /// Return its numbers by name: versions, bytes, subscribers and how far they are behind.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.store.info();
        let dict = PyDict::new(py);
        dict.set_item("version", info.version)?;
        dict.set_item("publications", info.published)?;
        dict.set_item("versions_only", info.versions_only)?;
        dict.set_item("published_bytes", info.published_bytes)?;
        dict.set_item("bytes", info.latest_bytes)?;
        dict.set_item("held_publications", info.alive)?;
        dict.set_item("capacity", info.most)?;
        dict.set_item("blocked_publications", info.blocked)?;
        dict.set_item("blocked_time", info.blocked_time.as_secs_f64())?;
        dict.set_item("subscribers", info.subscribers)?;
        dict.set_item("lag", info.lag)?;
        dict.set_item("sent_bytes", info.sent_bytes)?;
        dict.set_item("saved_bytes", info.saved_bytes)?;
        Ok(dict)
    }

    /// End publishing, and wake all waiting calls. What was returned stays valid.
    fn close(&self, py: Python<'_>) {
        if self.process.is_current() {
            py.detach(|| self.store.close());
        }
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.store.is_closed()
    }
}
