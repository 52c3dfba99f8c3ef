//! Who is told of what is published.

use std::sync::Arc;

use echoic_net::client::ClientError;
use echoic_net::client::weights::{Subscription as Core, SubscriptionError};
use echoic_replay::WaitReason;
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;

use super::form::LastForm;
use super::publication::Publication;
use super::store::nothing_newer;
use crate::error::{Raise, closed_error};
use crate::fork::Process;
use crate::wait;

/// A reader of publications: it gets the latest, and skips those between.
///
/// Iterating yields publications as they come, until the store or the subscription is closed.
#[pyclass(frozen, module = "echoic.weights")]
pub struct Subscription {
    core: Core,
    forms: Arc<LastForm>,
    process: Process,
}

impl Subscription {
    pub fn new(core: Core, forms: &Arc<LastForm>) -> Self {
        Self { core, forms: Arc::clone(forms), process: Process::current() }
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        match self.core.is_closed() {
            true => Err(SubscriptionError::Closed.raise(py)),
            false => Ok(()),
        }
    }
}

impl Raise for SubscriptionError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Local(error) => error.raise(py),
            Self::Remote(ClientError::TimedOut(WaitReason::Network)) => nothing_newer(py),
            Self::Remote(error) => error.raise(py),
            error => closed_error(py, error.to_string()),
        }
    }
}

#[pymethods]
impl Subscription {
    /// Return the latest publication; ``None`` before there is one.
    ///
    /// Raises:
    ///     ClosedError: The subscription is closed.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<Publication>> {
        self.check(py)?;
        let latest = self.core.latest();
        latest.map(|latest| Publication::new(py, latest, &self.forms)).transpose()
    }

    /// Wait, without the GIL, for a publication, and return the latest.
    ///
    /// Args:
    ///     newer_than: Wait for a version above this; without it, for any publication that this
    ///         subscription has not returned yet.
    ///     timeout: Seconds to wait; ``None`` waits for ever, 0 not at all.
    ///
    /// Raises:
    ///     WaitTimeoutError: If none came in time; ``reason`` says why: ``"EMPTY"`` or
    ///         ``"AWAY"``, when there is no connection.
    ///     ClosedError: The store, the client or the subscription is closed.
    ///     DisconnectedError: The client has given up.
    #[pyo3(signature = (newer_than=None, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        newer_than: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Publication> {
        self.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let found = wait::until(py, deadline, |wait| self.core.wait(newer_than, wait))?;
        Publication::new(py, found, &self.forms)
    }

    /// The latest version, without taking note of it.
    #[getter]
    fn version(&self) -> Option<u64> {
        self.core.store().latest().map(|latest| latest.version())
    }

    /// Whether a connection to the server stands; in the learner's process, always.
    #[getter]
    fn connected(&self) -> bool {
        self.core.is_connected()
    }

    /// How often the connection came back.
    #[getter]
    fn reconnects(&self) -> u64 {
        self.core.reconnects()
    }

    /// How many bytes have come over connections.
    #[getter]
    fn received_bytes(&self) -> u64 {
        self.core.received_bytes()
    }

    /// Close the subscription, and wake its waiting calls. What it returned stays valid.
    fn close(&self) {
        match self.process.is_current() {
            true => self.core.close(),
            false => self.core.abandon(),
        }
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.core.is_closed()
    }

    fn __repr__(&self) -> String {
        let version = self.version().map_or("None".into(), |version| version.to_string());
        let state = match (self.closed(), self.connected()) {
            (true, _) => ", closed",
            (false, true) => "",
            (false, false) => ", not connected",
        };
        format!("Subscription(version={version}{state})")
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Publication> {
        let found = self.wait(py, None, None);
        found.map_err(|error| {
            if error.is_instance_of::<pyo3::exceptions::PyRuntimeError>(py)
                && crate::error::is_ours(py, &error)
            {
                return PyStopIteration::new_err(());
            }
            error
        })
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}
