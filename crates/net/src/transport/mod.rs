//! Ways for bytes to come and go.
//!
//! A transport is two small things: something that [listens](Listen) and something that
//! [dials](Dial). Both give [`Link`]s: reliable, ordered byte streams that never block. The rest of
//! this crate knows nothing else about sockets, so a transport of your own (RDMA, QUIC, …) is these
//! three traits, and [`conformance::check`] checks whether it keeps their promises.

pub mod conformance;
mod socket;
pub mod tcp;
pub mod tls;
pub mod unix;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::address::Address;

/// How many connections may wait to be accepted; Linux allows no more unless `net.core.somaxconn` is raised.
/// A client that finds no place sends again after 1, 3 and 7 seconds, so it is for the crowd that comes at once.
const BACKLOG: i32 = 4096;

/// A reliable, ordered stream of bytes that never blocks.
///
/// `read` and `write` return [`io::ErrorKind::WouldBlock`] when they could only wait, and then the
/// file descriptor becomes ready when they need not any more. It need not be ready before: a link may
/// have bytes in store, so a waiting reader has read until then. A `read` of zero bytes is the
/// peer's end.
///
/// `flush` returns `WouldBlock` while bytes that `write` took are still on this side. A link that has
/// yet to agree with its peer on something goes on with that in `read`; until it has, threads that wait
/// for a flush also read.
pub trait Link: Read + Write + AsFd + Send {
    /// How many bytes a `read` with room for them would return at least, where that can be known
    /// cheaply.
    fn available(&self) -> Option<usize> {
        None
    }

    /// Whether nothing was left when a `read` has filled only a part of its room. Then a poll sees what comes later, so
    /// readers need not have `WouldBlock` to know.
    fn drains_on_short_read(&self) -> bool {
        false
    }

    /// Whether a flush would have something to do.
    fn has_unflushed(&self) -> bool {
        false
    }

    /// Tells the peer that nothing more will come, after all that was written. More may still be read.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] while bytes that `write` took are still on this side: try again
    /// after a flush. Otherwise as the system says.
    fn finish(&mut self) -> io::Result<()>;

    /// The address of the other end, for people.
    fn peer(&self) -> String;

    /// Sends bytes, as `write` does, and a file descriptor with them.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`] unless both ends are on one machine.
    fn send_with_memory(&mut self, _bytes: &[u8], _memory: BorrowedFd<'_>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Reads bytes, as `read` does, and a file descriptor if one came with them.
    ///
    /// # Errors
    ///
    /// As `read`.
    fn read_with_memory(&mut self, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        self.read(bytes).map(|read| (read, None))
    }
}

/// Where links come in.
pub trait Listener: AsFd + Send {
    /// The next link, if one waits.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] when none does.
    fn accept(&mut self) -> io::Result<Box<dyn Link>>;

    /// Where it listens in fact: with the port that was chosen.
    fn address(&self) -> Address;
}

/// The server's end of a transport.
pub trait Listen: Send + Sync {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// As the system says, with the address in the text.
    fn listen(&self) -> io::Result<Box<dyn Listener>>;

    /// Whether strangers can reach it: then a token is needed.
    fn is_public(&self) -> bool;

    /// Whether clients may write into the ring's memory.
    fn offers_memory(&self) -> bool {
        false
    }
}

/// The client's end of a transport.
pub trait Dial: Send + Sync {
    /// Connects, waiting for at most `timeout`. The link may be accepted or not when this returns.
    ///
    /// # Errors
    ///
    /// As the system says.
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>>;

    /// Where it connects to.
    fn address(&self) -> Address;
}

/// An error with the address in its text.
pub(crate) fn at(address: &Address, doing: &str, error: &io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot {doing} {address}: it is in use by another server")
        }
        io::ErrorKind::PermissionDenied => format!("cannot {doing} {address}: not permitted"),
        _ => format!("cannot {doing} {address}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

/// Files in PEM for TLS. Other transports need none of them.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// Our certificate: a server's always, a client's where the server asks for one.
    pub certificate: Option<PathBuf>,
    /// The certificate's private key.
    pub key: Option<PathBuf>,
    /// Whose certificates the other side must have: a client's choice of servers always, a server's
    /// choice of clients if it makes one.
    pub authority: Option<PathBuf>,
    /// The name in the server's certificate, when it is not that of the host.
    pub server_name: Option<String>,
}

/// Why an address can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UseError {
    /// See there.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// A file is needed.
    #[error("{address} needs {what}")]
    Missing {
        /// Which address.
        address: Address,
        /// Which file.
        what: &'static str,
    },
    /// Files for TLS were given, which this address would not use.
    #[error("{0} is not encrypted, so certificates have no use there; use tls://")]
    NotTls(Address),
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl TlsFiles {
    fn identity(&self, address: &Address) -> Result<Option<tls::Identity<'_>>, UseError> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(tls::Identity { certificate, key })),
            (None, Some(_)) => Err(missing(address, "a certificate for the key")),
            (Some(_), None) => Err(missing(address, "a key for the certificate")),
        }
    }

    fn refuse_for(&self, address: &Address) -> Result<(), UseError> {
        let Self { certificate, key, authority, server_name } = self;
        if certificate.is_none() && key.is_none() && authority.is_none() && server_name.is_none() {
            return Ok(());
        }
        Err(UseError::NotTls(address.clone()))
    }
}

fn missing(address: &Address, what: &'static str) -> UseError {
    UseError::Missing { address: address.clone(), what }
}

/// The server's end of an address.
pub fn listen_at(address: &Address, files: &TlsFiles) -> Result<Box<dyn Listen>, UseError> {
    if !matches!(address, Address::Tls { .. }) {
        files.refuse_for(address)?;
    }
    Ok(match address.clone() {
        Address::Tcp { host, port } => Box::new(tcp::Tcp { host, port }),
        Address::Unix { path } => Box::new(unix::Unix::new(path)),
        Address::Shm { name } => Box::new(unix::Unix::shared_memory(&name)?),
        Address::Tls { host, port } => {
            let identity = files.identity(address)?;
            let identity = identity.ok_or_else(|| missing(address, "a certificate and its key"))?;
            let tcp = tcp::Tcp { host, port };
            Box::new(tls::TlsListen::new(tcp, identity, files.authority.as_deref())?)
        }
    })
}

/// The client's end of an address.
pub fn dial_to(address: &Address, files: &TlsFiles) -> Result<Box<dyn Dial>, UseError> {
    if !matches!(address, Address::Tls { .. }) {
        files.refuse_for(address)?;
    }
    Ok(match address.clone() {
        Address::Tcp { host, port } => Box::new(tcp::Tcp { host, port }),
        Address::Unix { path } => Box::new(unix::Unix::new(path)),
        Address::Shm { name } => Box::new(unix::Unix::shared_memory(&name)?),
        Address::Tls { host, port } => {
            let ca = files.authority.as_deref();
            let ca = ca.ok_or_else(|| missing(address, "the certificate of its authority (ca)"))?;
            let tcp = tcp::Tcp { host, port };
            let (name, identity) = (files.server_name.as_deref(), files.identity(address)?);
            Box::new(tls::TlsDial::new(tcp, ca, name, identity)?)
        }
    })
}
