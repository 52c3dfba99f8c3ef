//! The store of weights of a server elsewhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use echoic_memory::sync::Mutex;
use echoic_net::client::Options;
use echoic_net::client::weights::{
    PublishError, SharedPublisher, WeightPublisher, WeightSource, WeightSubscriber,
};
use echoic_replay::stream::Wait;
use echoic_replay::weights::{
    Publication as CorePublication, WeightStore as CoreStore, WeightsConfig,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::form::LastForm;
use super::store::{publish, publish_version};
use super::subscription::Subscription;
use crate::connect::{self, Peer, link_error};
use crate::error::{OrRaise, closed_error, set, spec_error, timeout_error};
use crate::fork::Process;
use crate::server::size;
use crate::wait;

/// A connection to a store of weights, for learners and workers.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct WeightClient {
    peer: Peer,
    options: Options,
    most: usize,
    forms: Arc<LastForm>,
    /// What is published, while it is on its way: so the learner's arrays may change meanwhile.
    outgoing: CoreStore,
    publisher: SharedPublisher,
    subscriber: Mutex<Subscribed>,
    process: Process,
}

#[derive(Default)]
enum Subscribed {
    #[default]
    NotYet,
    Since(Arc<WeightSubscriber>),
    Closed,
}

#[pymethods]
impl WeightClient {
    #[new]
    #[pyo3(signature = (
        address, token, max_publications, deadline, max_retry, connect_timeout, ca, certificate, key,
        server_name, name
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        address: &str,
        token: Option<&[u8]>,
        max_publications: i64,
        deadline: Option<f64>,
        max_retry: Option<u32>,
        connect_timeout: f64,
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        server_name: Option<String>,
        name: Option<String>,
    ) -> PyResult<Self> {
        let peer = Peer::new(address, ca, certificate, key, server_name)?;
        let options = connect::options(token, deadline, max_retry, connect_timeout, name)?;
        let most = size("max_publications", max_publications)?;
        if most < 2 {
            let text = format!("max_publications must be at least 2, got {most}");
            return Err(PyValueError::new_err(text));
        }
        let config = WeightsConfig { most: 2, shared: false, follows: true };
        let outgoing = CoreStore::new(config).or_raise(py)?;
        // What can't be an address is found out now.
        let dial = peer.dial(py)?;
        let publisher = SharedPublisher::new(
            WeightPublisher::new(dial, options.token.clone()).with_name(options.name.clone()),
        );
        Ok(Self {
            peer,
            options,
            most,
            forms: Arc::default(),
            outgoing,
            publisher,
            subscriber: Mutex::default(),
            process: Process::current(),
        })
    }

    /// Publishes a tree there.
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
        let publication = publish(tree, version, deadline, &self.outgoing, &self.forms)?;
        self.send(py, &publication, deadline)
    }

    /// Publishes a version alone there.
    #[pyo3(signature = (version, *, timeout=None))]
    fn publish_version(&self, py: Python<'_>, version: u64, timeout: Option<f64>) -> PyResult<()> {
        self.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let publication = publish_version(py, version, &self.outgoing)?;
        self.send(py, &publication, deadline)
    }

    /// Somebody who is told of what is published there.
    fn subscribe(&self, py: Python<'_>) -> PyResult<Subscription> {
        self.process.check(py)?;
        let known = match &*self.subscriber.lock() {
            Subscribed::Closed => return Err(closed_error(py, "the client is closed")),
            Subscribed::Since(known) => Some(Arc::clone(known)),
            Subscribed::NotYet => None,
        };
        if let Some(known) = known {
            return Ok(Subscription::new(WeightSource::Remote(known), &self.forms));
        }
        let made = WeightSubscriber::new(self.peer.dial(py)?, self.options.clone(), self.most);
        let made = Arc::new(made.or_raise(py)?);
        wait::until(py, None, |wait| made.wait_until_connected(wait))?;
        let mut subscriber = self.subscriber.lock();
        let source = match &*subscriber {
            Subscribed::Closed => None,
            // Another thread was faster.
            Subscribed::Since(known) => Some(Arc::clone(known)),
            Subscribed::NotYet => {
                *subscriber = Subscribed::Since(Arc::clone(&made));
                Some(made)
            }
        };
        drop(subscriber);
        let source = source.ok_or_else(|| closed_error(py, "the client is closed"))?;
        Ok(Subscription::new(WeightSource::Remote(source), &self.forms))
    }

    #[getter]
    fn address(&self) -> String {
        self.peer.address.to_string()
    }

    /// Lets go of the server, and ends what is being published. What has come is there for as long as
    /// somebody has it.
    fn close(&self, py: Python<'_>) {
        if !self.process.is_current() {
            return;
        }
        let subscribed = std::mem::replace(&mut *self.subscriber.lock(), Subscribed::Closed);
        py.detach(|| {
            if let Subscribed::Since(subscriber) = subscribed {
                subscriber.close();
            }
            self.outgoing.close();
            self.publisher.close();
        });
    }

    #[getter]
    fn closed(&self) -> bool {
        matches!(&*self.subscriber.lock(), Subscribed::Closed)
    }
}

impl WeightClient {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        match &*self.subscriber.lock() {
            Subscribed::Closed => Err(closed_error(py, "the client is closed")),
            _ => Ok(()),
        }
    }

    fn send(
        &self,
        py: Python<'_>,
        publication: &CorePublication,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let sent = wait::detached(py, deadline, None, |wait: Wait<'_>| {
            self.publisher.publish(publication, wait)
        });
        if self.publisher.is_closed() && matches!(sent, Err(wait::Stopped::Failed(_))) {
            return Err(closed_error(py, "the client is closed"));
        }
        sent.map_err(|stopped| stopped.raise_with(|error| self.error(py, &error)))
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
