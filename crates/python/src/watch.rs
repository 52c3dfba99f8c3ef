//! Looking at a server from elsewhere.

use std::sync::Arc;
use std::time::Instant;

use echoic_memory::sync::Mutex;
use echoic_net::client::Watcher as NetWatcher;
use echoic_net::wire::observed::{Connected, Family, Number, Observation};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::connect::{ConnectOptions, Peer};
use crate::wait;

/// A connection that asks a server for its state.
#[pyclass(frozen, module = "echoic._native")]
pub struct Watcher {
    watcher: Arc<Mutex<NetWatcher>>,
    peer: Peer,
}

/// When a wait that begins now is over.
fn deadline(timeout: f64) -> PyResult<Instant> {
    Ok(Instant::now() + wait::seconds("timeout", timeout)?)
}

#[pymethods]
impl Watcher {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        options: &Bound<'_, PyDict>,
        timeout: f64,
    ) -> PyResult<Self> {
        let given = ConnectOptions(options);
        let (peer, token, name) = (given.peer(address)?, given.token()?, given.name()?);
        let dial = peer.dial(py)?;
        let deadline = deadline(timeout)?;
        let connect = move || NetWatcher::connect(&*dial, token.as_ref(), name, deadline);
        let watcher = wait::aside(py, connect)?.map_err(|error| peer.error(py, &error))?;
        Ok(Self { watcher: Arc::new(Mutex::new(watcher)), peer })
    }

    /// Which release the server is.
    #[getter]
    fn release(&self) -> String {
        self.watcher.lock().release().to_owned()
    }

    /// Return the server's incarnation and age, its numbers by family, and its connections.
    fn look<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
    ) -> PyResult<(u64, f64, Bound<'py, PyList>, Bound<'py, PyList>)> {
        let deadline = deadline(timeout)?;
        let watcher = Arc::clone(&self.watcher);
        let look = move || watcher.lock().look(deadline);
        let seen = wait::aside(py, look)?.map_err(|error| self.peer.error(py, &error))?;
        observation_dict(py, seen)
    }
}

/// What Python is told of a server that was looked at.
pub fn observation_dict<'py>(
    py: Python<'py>,
    seen: Observation,
) -> PyResult<(u64, f64, Bound<'py, PyList>, Bound<'py, PyList>)> {
    let families = PyList::empty(py);
    for Family { name, help, kind, numbers } in seen.families {
        let values = PyList::empty(py);
        for Number { suffix, labels, value } in numbers {
            let about = PyDict::new(py);
            for (label, value) in labels {
                about.set_item(label, value)?;
            }
            values.append((suffix, about, value))?;
        }
        families.append((name, help, kind.name(), values))?;
    }
    let connections = PyList::empty(py);
    for connection in seen.connections {
        connections.append(connection_dict(py, &connection)?)?;
    }
    Ok((seen.incarnation, seen.age, families, connections))
}

/// What Python is told of a connection.
pub fn connection_dict<'py>(py: Python<'py>, info: &Connected) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("address", &info.listener)?;
    dict.set_item("id", info.id)?;
    dict.set_item("peer", &info.peer)?;
    dict.set_item("name", &info.name)?;
    dict.set_item("purpose", &info.purpose)?;
    dict.set_item("age", info.age)?;
    dict.set_item("samples", info.samples)?;
    dict.set_item("bytes", info.bytes)?;
    dict.set_item("receive_calls", info.reads)?;
    dict.set_item("duplicates", info.duplicates)?;
    dict.set_item("blocked_time", info.blocked_time)?;
    dict.set_item("blocked_by", &info.blocked_by)?;
    Ok(dict)
}
