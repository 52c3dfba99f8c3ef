//! The listeners of a server to other processes, and what Python says about them.

use std::time::{Duration, Instant};

use echoic_memory::sync::Mutex;
use echoic_net::observe::{Endpoint, EndpointError, Numbers};
use echoic_net::server::{ListenerStats, OpenError, Options, Served, Server};
use echoic_net::transport::{TlsFiles, UseError, listen_at};
use echoic_net::wire::observed::Connected;
use echoic_net::{Address, Token};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::error::{Raise, spec_error};
use crate::wait;
use crate::watch::connection_dict;

/// All listeners of one server.
pub struct Listeners {
    servers: Mutex<Vec<Server>>,
    /// Held by who opens one.
    opening: Mutex<()>,
    /// None once they are closed.
    endpoints: Mutex<Option<Vec<Endpoint>>>,
}

impl Default for Listeners {
    fn default() -> Self {
        Self {
            servers: Mutex::default(),
            opening: Mutex::default(),
            endpoints: Mutex::new(Some(Vec::new())),
        }
    }
}

/// The numbers of all listeners together.
#[derive(Default)]
pub struct ListenerNumbers {
    pub connections: u64,
    pub connections_accepted: u64,
    pub connections_refused: u64,
    pub connections_malformed: u64,
    pub connections_silent: u64,
    pub accept_errors: u64,
    pub panics: u64,
    pub reconnects: u64,
    pub received_samples: u64,
    pub received_bytes: u64,
    pub receive_calls: u64,
    pub received_duplicates: u64,
    pub connections_blocked_time: f64,
}

/// Why a listener can't be opened, or an address not be used.
pub enum ListenError {
    Open(OpenError),
    Use(UseError),
}

impl From<UseError> for ListenError {
    fn from(error: UseError) -> Self {
        Self::Use(error)
    }
}

impl Raise for UseError {
    fn raise(self, py: Python<'_>) -> PyErr {
        ListenError::from(self).raise(py)
    }
}

impl Raise for ListenError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let system = |error: std::io::Error| {
            let (number, text) = (error.raw_os_error(), error.to_string());
            // With a number, Python makes it the subclass that belongs to it.
            let number = number.or_else(|| errno(error.kind()));
            match number {
                Some(number) => PyOSError::new_err((number, text)),
                None => PyOSError::new_err(text),
            }
        };
        match self {
            Self::Open(OpenError::System(error)) | Self::Use(UseError::System(error)) => {
                system(error)
            }
            Self::Open(error @ (OpenError::Spec(_) | OpenError::SampleTooLarge(_))) => {
                spec_error(py, error.to_string())
            }
            Self::Open(error) => PyValueError::new_err(error.to_string()),
            Self::Use(error) => PyValueError::new_err(error.to_string()),
        }
    }
}

/// The number of an error whose text says more than the number would.
fn errno(kind: std::io::ErrorKind) -> Option<i32> {
    use std::io::ErrorKind;
    Some(match kind {
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::NotFound => libc::ENOENT,
        _ => return None,
    })
}

impl Raise for EndpointError {
    fn raise(self, _: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::System { source, .. } => match source.raw_os_error() {
                Some(number) => PyOSError::new_err((number, text)),
                None => PyOSError::new_err(text),
            },
            _ => PyValueError::new_err(text),
        }
    }
}

impl Listeners {
    /// Opens a listener; where it is in fact.
    pub fn open(
        &self,
        address: &Address,
        files: &TlsFiles,
        served: Served,
        options: Options,
    ) -> Result<String, ListenError> {
        let listen = listen_at(address, files)?;
        // One after the other, but without the lock of all listeners, which event loops take to look at them.
        let _opening = self.opening.lock();
        // A client that goes to another listener is still at the same server.
        let instance = self.servers.lock().first().map(Server::instance);
        let served = Served { instance, ..served };
        let listener = Server::open(&*listen, served, options).map_err(ListenError::Open)?;
        let address = listener.address().to_string();
        self.servers.lock().push(listener);
        Ok(address)
    }

    /// Closes all listeners at once. Clients have this long to finish what they are sending.
    pub fn close(&self, drain: Duration) {
        // First: listeners that close have no numbers.
        let endpoints = self.endpoints.lock().take();
        drop(endpoints);
        let deadline = Instant::now() + drain;
        let mut listeners = std::mem::take(&mut *self.servers.lock());
        std::thread::scope(|scope| {
            for listener in &mut listeners {
                scope.spawn(|| listener.close(deadline));
            }
        });
        self.servers.lock().append(&mut listeners);
    }

    pub fn addresses(&self) -> Vec<String> {
        self.servers.lock().iter().map(|listener| listener.address().to_string()).collect()
    }

    /// Answers those who ask for numbers over HTTP, until the listeners are closed; where, unless they are.
    pub fn observe(
        &self,
        address: &str,
        token: Option<Token>,
        insecure: bool,
        numbers: impl Fn() -> Numbers + Send + Sync + 'static,
    ) -> Result<Option<String>, EndpointError> {
        let endpoint = Endpoint::open(address, token, insecure, numbers)?;
        let url = format!("http://{}/metrics", endpoint.address());
        let mut endpoints = self.endpoints.lock();
        Ok(endpoints.as_mut().map(|open| {
            open.push(endpoint);
            url
        }))
    }

    /// What each connection tells of itself.
    pub fn all_connections(&self) -> Vec<Connected> {
        self.servers.lock().iter().flat_map(Server::connections).collect()
    }

    /// The sum over all listeners.
    pub fn info(&self) -> ListenerStats {
        let mut sum = ListenerStats::default();
        self.servers.lock().iter().for_each(|listener| sum.add(&listener.info()));
        sum
    }

    pub fn numbers(&self) -> ListenerNumbers {
        let info = self.info();
        ListenerNumbers {
            connections: info.connections,
            connections_accepted: info.accepted,
            connections_refused: info.refused.values().sum(),
            connections_malformed: info.malformed,
            connections_silent: info.silent,
            accept_errors: info.accept_errors,
            panics: info.panics,
            reconnects: info.reconnects,
            received_samples: info.flow.samples,
            received_bytes: info.flow.bytes,
            receive_calls: info.flow.reads,
            received_duplicates: info.flow.duplicates,
            connections_blocked_time: info.flow.blocked_time,
        }
    }

    pub fn connections<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for connection in self.all_connections() {
            list.append(connection_dict(py, &connection)?)?;
        }
        Ok(list)
    }
}

/// Reads the time between signs of life.
pub fn heartbeat(seconds: f64) -> PyResult<Duration> {
    let time = wait::seconds("heartbeat", seconds)?;
    if time < Duration::from_millis(10) || time > Duration::from_secs(600) {
        let text = format!("heartbeat must be from 0.01 to 600 seconds, got {seconds}");
        return Err(PyValueError::new_err(text));
    }
    Ok(time)
}
