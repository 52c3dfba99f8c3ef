//! How Python says where a server is, and how a client is to reach it.

use std::time::{Duration, Instant};

use echoic_net::auth::TokenError;
use echoic_net::client::{LinkError, Options, probe};
use echoic_net::transport::{Dial, TlsFiles, dial_to};
use echoic_net::wire::handshake::{MAX_CLIENT_NAME, check_name};
use echoic_net::{Address, Token};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::error::{OrRaise, closed_error, disconnected_error, refused_error, set, spec_error};
use crate::server::size;
use crate::wait;

/// A server elsewhere.
pub struct Peer {
    pub address: Address,
    files: TlsFiles,
}

impl Peer {
    /// A way to it.
    pub fn dial(&self, py: Python<'_>) -> PyResult<Box<dyn Dial>> {
        dial_to(&self.address, &self.files).or_raise(py)
    }

    /// A way to where the server is now, with the same files.
    pub fn dial_to(&self, py: Python<'_>, address: &Address) -> PyResult<Box<dyn Dial>> {
        dial_to(address, &self.files).or_raise(py)
    }

    /// The exception for a connection to it that does not come to stand.
    pub fn error(&self, py: Python<'_>, error: &LinkError) -> PyErr {
        link_error(py, error, format!("{}: {error}", self.address))
    }
}

/// How a server is reached, as Python says it: a dict of options, each of which may be left out.
pub struct ConnectOptions<'a, 'py>(pub &'a Bound<'py, PyDict>);

impl<'py> ConnectOptions<'_, 'py> {
    /// The value of an option; none, if it is not given or `None`.
    fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<Option<T>> {
        let Some(value) = self.0.get_item(name)?.filter(|value| !value.is_none()) else {
            return Ok(None);
        };
        value.extract().map(Some).map_err(|error: T::Error| {
            let (py, error): (_, PyErr) = (self.0.py(), error.into());
            if !error.is_instance_of::<PyTypeError>(py) {
                return error;
            }
            PyTypeError::new_err(format!("argument '{name}': {}", error.value(py)))
        })
    }

    fn seconds(&self, name: &str) -> PyResult<Option<Duration>> {
        self.get(name)?.map(|value| wait::seconds(name, value)).transpose()
    }

    /// The server at an address, with the files that TLS needs.
    pub fn peer(&self, address: &str) -> PyResult<Peer> {
        let files = TlsFiles {
            certificate: self.get("certificate")?,
            key: self.get("key")?,
            authority: self.get("ca")?,
            server_name: self.get("server_name")?,
        };
        Ok(Peer { address: self::address(address)?, files })
    }

    /// What the server asks for.
    pub fn token(&self) -> PyResult<Option<Token>> {
        token(self.get::<PyBackedBytes>("token")?.as_deref())
    }

    /// What people know the client by.
    pub fn name(&self) -> PyResult<Option<String>> {
        name(self.get("name")?)
    }

    /// How the client behaves.
    pub fn options(&self) -> PyResult<Options> {
        let known = Options::default();
        let producer = self.get::<PyBackedBytes>("producer")?.map(|id| {
            <[u8; 16]>::try_from(&*id).map_err(|_| {
                PyValueError::new_err(format!("producer must be 16 bytes, got {}", id.len()))
            })
        });
        let window_bytes = self.get("window_bytes")?.map(|bytes| size("window_bytes", bytes));
        Ok(Options {
            token: self.token()?,
            window_bytes: window_bytes.transpose()?.unwrap_or(known.window_bytes),
            linger: self.seconds("linger")?.unwrap_or(known.linger),
            deadline: self.seconds("reconnect")?,
            max_retry: None,
            connect_timeout: self.seconds("timeout")?.unwrap_or(known.connect_timeout),
            producer: producer.transpose()?,
            name: self.name()?,
            steadfast: self.get("steadfast")?.unwrap_or(false),
        })
    }
}

/// Reads an address.
pub fn address(text: &str) -> PyResult<Address> {
    text.parse().map_err(|error: echoic_net::AddressError| PyValueError::new_err(error.to_string()))
}

/// Reads a token.
pub fn token(secret: Option<&[u8]>) -> PyResult<Option<Token>> {
    let Some(secret) = secret else { return Ok(None) };
    let token = Token::new(secret).map_err(|error| match error {
        TokenError::Empty => PyValueError::new_err(format!("{error}; give None for none")),
        _ => PyValueError::new_err(error.to_string()),
    });
    token.map(Some)
}

/// Reads what people know a client by.
fn name(name: Option<String>) -> PyResult<Option<String>> {
    let Some(name) = name else { return Ok(None) };
    check_name(&name).map_err(|_| {
        PyValueError::new_err(format!(
            "name must be 1 to {MAX_CLIENT_NAME} bytes of UTF-8 without control characters, got {name:?}"
        ))
    })?;
    Ok(Some(name))
}

/// The exception for a connection that does not come to stand.
pub fn link_error(py: Python<'_>, error: &LinkError, text: String) -> PyErr {
    match error {
        error if error.is_closed() => closed_error(py, text),
        LinkError::Refused(refused) if refused.code.name() == "SPEC" => spec_error(py, text),
        LinkError::Refused(refused) => {
            set(py, refused_error(py, text), "code", refused.code.name())
        }
        LinkError::Impostor(_) => set(py, refused_error(py, text), "code", "AUTH"),
        _ => disconnected_error(py, text),
    }
}

/// Ask a server what it is, without sending it a sample.
///
/// Returns:
///     ``server_version``, ``protocol``, ``spec`` (path, dtype and shape of each leaf; ``None`` of
///     a server of tables alone), ``tables`` (the names of such a server's) and ``rtt`` (seconds
///     that each of ``count`` pings took).
#[pyfunction]
#[pyo3(signature = (address, options, timeout=5.0, count=4))]
pub fn ping<'py>(
    py: Python<'py>,
    address: &str,
    options: &Bound<'py, PyDict>,
    timeout: f64,
    count: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let peer = ConnectOptions(options).peer(address)?;
    let token = ConnectOptions(options).token()?;
    let dial = peer.dial(py)?;
    let deadline = Instant::now() + wait::seconds("timeout", timeout)?;
    let probed = wait::aside(py, move || probe(&*dial, token.as_ref(), count, deadline))?
        .map_err(|error| peer.error(py, &error))?;
    let dict = PyDict::new(py);
    dict.set_item("server_version", probed.release)?;
    dict.set_item("protocol", probed.protocol)?;
    let leaves = probed.spec.as_ref().map(|spec| {
        let leaves = spec.leaves().iter();
        let leaves = leaves.map(|leaf| (&leaf.path, leaf.dtype.to_string(), leaf.shape.clone()));
        leaves.collect::<Vec<_>>()
    });
    dict.set_item("spec", leaves)?;
    dict.set_item("tables", probed.tables)?;
    let times: Vec<f64> = probed.round_trips.iter().map(Duration::as_secs_f64).collect();
    dict.set_item("rtt", times)?;
    Ok(dict)
}
