//! The store of weights of a server elsewhere.

use std::sync::Arc;
use std::time::Instant;

use echoic_net::client::ClientError;
use echoic_net::client::weights::{PublishError, RemoteWeights};
use echoic_replay::stream::Wait;
use echoic_replay::weights::Publication;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::form::LastForm;
use super::store::{publish, publish_version};
use super::subscription::Subscription;
use crate::connect::{ConnectOptions, Peer, link_error};
use crate::error::{OrRaise, Raise, closed_error, set, spec_error, timeout_error};
use crate::fork::Process;
use crate::server::size;
use crate::wait;

/// The native part of :class:`echoic.weights.RemoteWeightStore`.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct RemoteWeightStore {
    peer: Peer,
    core: RemoteWeights,
    forms: Arc<LastForm>,
    process: Process,
}

#[pymethods]
impl RemoteWeightStore {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        capacity: i64,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let given = ConnectOptions(options);
        let (peer, options) = (given.peer(address)?, given.options()?);
        let most = size("capacity", capacity)?;
        if most < 2 {
            let text = format!("capacity must be at least 2, got {most}");
            return Err(PyValueError::new_err(text));
        }
        // What can't be an address is found out now.
        let core = RemoteWeights::new(peer.dial(py)?, options, most).or_raise(py)?;
        Ok(Self { peer, core, forms: Arc::default(), process: Process::current() })
    }

    /// Make a tree the latest of the server, and wait until it is.
    ///
    /// Chunks that the server has already are not sent.
    ///
    /// Args:
    ///     tree: As of :meth:`WeightStore.publish`.
    ///     version: Above the version before.
    ///     timeout: Seconds to wait for all of it; ``None`` waits for ever.
    ///
    /// Raises:
    ///     ValueError: The version is not above the latest.
    ///     SpecError: A leaf can't be published, and why.
    ///     WaitTimeoutError: The server's publications were all held for too long.
    ///     DisconnectedError: The server can't be reached.
    ///     RefusedError: The server does not want us; ``code`` says why.
    ///     ClosedError: The client or the server's store is closed.
    #[pyo3(signature = (tree, version, *, timeout=None))]
    fn publish(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        version: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let publication = publish(tree, version, deadline, self.core.outgoing(), &self.forms)?;
        self.send(py, &publication, deadline)
    }

    /// Publish a version alone at the server.
    ///
    /// Raises:
    ///     As :meth:`publish`.
    #[pyo3(signature = (version, *, timeout=None))]
    fn publish_version(&self, py: Python<'_>, version: u64, timeout: Option<f64>) -> PyResult<()> {
        self.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let publication = publish_version(py, version, self.core.outgoing())?;
        self.send(py, &publication, deadline)
    }

    /// Return a new subscription; the first connects.
    ///
    /// Raises:
    ///     DisconnectedError: The server can't be reached.
    ///     RefusedError: The server does not want us; ``code`` says why.
    ///     ClosedError: The client is closed.
    fn subscribe(&self, py: Python<'_>) -> PyResult<Subscription> {
        self.check(py)?;
        let dial = self.peer.dial(py)?;
        let core = wait::until(py, None, |wait| self.core.subscribe(dial, wait))?;
        Ok(Subscription::new(core, &self.forms))
    }

    /// Where the server is.
    #[getter]
    fn address(&self) -> String {
        self.peer.address.to_string()
    }

    /// Close the connection, and wake all waiting calls. What was returned stays valid.
    fn close(&self, py: Python<'_>) {
        if self.process.is_current() {
            py.detach(|| self.core.close());
        }
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.core.is_closed()
    }
}

impl RemoteWeightStore {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        if self.core.is_closed() { Err(ClientError::Closed.raise(py)) } else { Ok(()) }
    }

    fn send(
        &self,
        py: Python<'_>,
        publication: &Arc<Publication>,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let publish = |wait: Wait<'_>| self.core.publish(publication, wait);
        wait::detached(py, deadline, None, publish).map_err(|stopped| {
            stopped.raise_with(|error| match self.core.is_closed() {
                true => ClientError::Closed.raise(py),
                false => self.error(py, &error),
            })
        })
    }

    fn error(&self, py: Python<'_>, error: &PublishError) -> PyErr {
        let text = format!("{}: {error}", self.peer.address);
        match error {
            PublishError::Stale { .. } => PyValueError::new_err(text),
            PublishError::TimedOut => {
                let text = format!("timed out: {text}");
                set(py, timeout_error(py, text), "reason", "LEASED")
            }
            PublishError::Closed => closed_error(py, text),
            PublishError::Wire(_) => spec_error(py, text),
            PublishError::Link(error) => link_error(py, error, text),
            _ => PyRuntimeError::new_err(text),
        }
    }
}
