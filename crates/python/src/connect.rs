//! How Python says where a server is, and how a client is to reach it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use echoic_net::auth::TokenError;
use echoic_net::client::{LinkError, Options, probe};
use echoic_net::transport::{Dial, TlsFiles, dial_to};
use echoic_net::wire::handshake::{MAX_CLIENT_NAME, check_name};
use echoic_net::{Address, Token};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{OrRaise, closed_error, disconnected_error, refused_error, set, spec_error};
use crate::wait;

/// A server elsewhere.
pub struct Peer {
    pub address: Address,
    files: TlsFiles,
}

impl Peer {
    /// At an address, with the files that TLS needs.
    pub fn new(
        address: &str,
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        server_name: Option<String>,
    ) -> PyResult<Self> {
        let files = TlsFiles { certificate, key, authority: ca, server_name };
        Ok(Self { address: self::address(address)?, files })
    }

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

/// How a client behaves that has no window.
pub fn options(
    token: Option<&[u8]>,
    deadline: Option<f64>,
    max_retry: Option<u32>,
    connect_timeout: f64,
    name: Option<String>,
) -> PyResult<Options> {
    Ok(Options {
        token: self::token(token)?,
        deadline: deadline.map(|value| wait::seconds("deadline", value)).transpose()?,
        max_retry,
        connect_timeout: wait::seconds("connect_timeout", connect_timeout)?,
        name: self::name(name)?,
        ..Options::default()
    })
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
pub fn name(name: Option<String>) -> PyResult<Option<String>> {
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

/// Asks a server what it is.
#[pyfunction]
#[pyo3(signature = (
    address, token=None, timeout=5.0, count=4, ca=None, certificate=None, key=None, server_name=None
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub fn ping<'py>(
    py: Python<'py>,
    address: &str,
    token: Option<&[u8]>,
    timeout: f64,
    count: usize,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
) -> PyResult<Bound<'py, PyDict>> {
    let peer = Peer::new(address, ca, certificate, key, server_name)?;
    let token = self::token(token)?;
    let dial = peer.dial(py)?;
    let deadline = Instant::now() + wait::seconds("timeout", timeout)?;
    let probed = py
        .detach(|| probe(&*dial, token.as_ref(), count, deadline))
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
