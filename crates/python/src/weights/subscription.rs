//! Who is told of what is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use echoic_net::client::weights::WeightSubscriber;
use echoic_net::client::{ClientError, Waiting};
use echoic_replay::stream::Wait;
use echoic_replay::weights::{
    Publication as CorePublication, Seat, WeightStore as CoreStore, WeightsError,
};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;

use super::form::LastForm;
use super::publication::Publication;
use super::store::nothing_newer;
use crate::error::{Raise, closed_error};
use crate::fork::Process;
use crate::wait;

/// Where publications come from.
pub enum Source {
    Local(Arc<CoreStore>),
    Remote(Arc<WeightSubscriber>),
}

/// Why there is none.
enum Missing {
    Local(WeightsError),
    Remote(ClientError),
    /// The subscription is closed.
    Closed,
}

/// A view of the latest publication of a store.
#[pyclass(frozen, module = "echoic.weights")]
pub struct Subscription {
    source: Source,
    forms: Arc<LastForm>,
    seat: Seat,
    /// The last publication that was given out.
    seen: AtomicU64,
    closed: AtomicBool,
    process: Process,
}

impl Subscription {
    pub fn new(source: Source, forms: &Arc<LastForm>) -> Self {
        let seat = store(&source).subscribe();
        Self {
            source,
            forms: Arc::clone(forms),
            seat,
            seen: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            process: Process::current(),
        }
    }

    fn store(&self) -> &CoreStore {
        store(&self.source)
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        match self.closed.load(Ordering::Acquire) {
            true => Err(closed_error(py, "the subscription is closed")),
            false => Ok(()),
        }
    }

    fn give(&self, py: Python<'_>, publication: Arc<CorePublication>) -> PyResult<Publication> {
        self.seen.fetch_max(publication.serial(), Ordering::Relaxed);
        self.seat.see(&publication);
        Publication::new(py, publication, &self.forms)
    }

    /// Waits for a publication that was not given out, above a version if one is named.
    fn next(
        &self,
        newer_than: Option<u64>,
        wait: Wait<'_>,
    ) -> Result<Arc<CorePublication>, Missing> {
        let seen = self.seen.load(Ordering::Relaxed);
        let look = |latest: Option<&Arc<CorePublication>>| {
            if self.closed.load(Ordering::Acquire) {
                return Some(None);
            }
            let latest = latest?;
            let is_new = match newer_than {
                None => latest.serial() > seen,
                Some(version) => latest.version() > version,
            };
            is_new.then(|| Some(Arc::clone(latest)))
        };
        let found = match &self.source {
            Source::Local(store) => store.wait_for(wait, look).map_err(Missing::Local),
            Source::Remote(remote) => remote.wait_for(wait, look).map_err(Missing::Remote),
        };
        found?.ok_or(Missing::Closed)
    }

    fn wait_for(
        &self,
        py: Python<'_>,
        newer_than: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Publication> {
        self.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let found = wait::until(py, deadline, |wait| self.next(newer_than, wait))?;
        self.give(py, found)
    }
}

fn store(source: &Source) -> &CoreStore {
    match source {
        Source::Local(store) => store,
        Source::Remote(remote) => remote.store(),
    }
}

impl Raise for Missing {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Local(error) => error.raise(py),
            Self::Remote(ClientError::TimedOut(Waiting::Network)) => nothing_newer(py),
            Self::Remote(error) => error.raise(py),
            Self::Closed => closed_error(py, "the subscription is closed"),
        }
    }
}

#[pymethods]
impl Subscription {
    /// The latest publication, if there is one.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<Publication>> {
        self.check(py)?;
        self.store().latest().map(|latest| self.give(py, latest)).transpose()
    }

    /// Waits for one.
    #[pyo3(signature = (newer_than=None, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        newer_than: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Publication> {
        self.wait_for(py, newer_than, timeout)
    }

    #[getter]
    fn version(&self) -> Option<u64> {
        self.store().latest().map(|latest| latest.version())
    }

    #[getter]
    fn connected(&self) -> bool {
        match &self.source {
            Source::Local(store) => !store.is_closed(),
            Source::Remote(remote) => remote.is_connected(),
        }
    }

    #[getter]
    fn reconnects(&self) -> u64 {
        match &self.source {
            Source::Local(_) => 0,
            Source::Remote(remote) => remote.returns(),
        }
    }

    #[getter]
    fn received_bytes(&self) -> u64 {
        match &self.source {
            Source::Local(_) => 0,
            Source::Remote(remote) => remote.received_bytes(),
        }
    }

    /// Ends it, and wakes who waits in it.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if self.process.is_current() {
            self.store().nudge();
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Publication> {
        let found = self.wait_for(py, None, None);
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
