//! Encrypted sockets of the network: rustls over TCP.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, Connection, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::tcp::{Tcp, TcpLink};
use super::{Dial, Link, Listen, Listener, at};
use crate::address::Address;

/// How many bytes a link takes before it says that it would block.
const BUFFER: usize = 256 << 10;

/// Why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Not there, not readable, or not PEM.
    #[error("{what} {path:?}: {problem}")]
    File {
        /// What the file should have.
        what: &'static str,
        /// Which file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The host is no name that a certificate could have.
    #[error("{0:?} is no name that a certificate could have")]
    Name(String),
    /// Certificate and key do not go together, and the like.
    #[error("{0}")]
    Setup(String),
}

/// A certificate chain and its key, as files in PEM.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The certificate, then those that vouch for it.
    pub certificate: &'a Path,
    /// The private key.
    pub key: &'a Path,
}

/// The server's end.
#[derive(Clone)]
pub struct TlsListen {
    tcp: Tcp,
    config: Arc<ServerConfig>,
}

/// The client's end.
#[derive(Clone)]
pub struct TlsDial {
    tcp: Tcp,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

struct TlsDoor {
    listener: TcpListener,
    address: Address,
    config: Arc<ServerConfig>,
}

/// An encrypted socket.
pub struct TlsLink {
    tcp: TcpLink,
    tls: Connection,
    /// The peer's end has been read from the socket.
    ended: bool,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn setup(error: impl fmt::Display) -> TlsError {
    TlsError::Setup(error.to_string())
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |problem: String| TlsError::File { what, path: path.display().to_string(), problem };
    let read = CertificateDer::pem_file_iter(path).map_err(|error| file(error.to_string()))?;
    let found: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| file(error.to_string()))?;
    if found.is_empty() {
        return Err(file("no certificate in it".into()));
    }
    Ok(found)
}

fn roots(what: &'static str, path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, path)? {
        roots.add(certificate).map_err(setup)?;
    }
    Ok(Arc::new(roots))
}

impl Identity<'_> {
    fn load(self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let key = PrivateKeyDer::from_pem_file(self.key).map_err(|error| TlsError::File {
            what: "the private key",
            path: self.key.display().to_string(),
            problem: error.to_string(),
        })?;
        Ok((certificates("the certificate", self.certificate)?, key))
    }
}

impl TlsListen {
    /// Listens with this certificate; with `client_ca`, only to clients with a certificate of it.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn new(
        tcp: Tcp,
        identity: Identity<'_>,
        client_ca: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(setup)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = roots("the clients' authority", path)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                builder.with_client_cert_verifier(verifier.build().map_err(setup)?)
            }
        };
        let (chain, key) = identity.load()?;
        let config = builder.with_single_cert(chain, key).map_err(setup)?;
        Ok(Self { tcp, config: Arc::new(config) })
    }
}

impl TlsDial {
    /// Connects to a server with a certificate of `ca` for `name` (the host's unless given), and
    /// shows `identity` to servers that ask.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn new(
        tcp: Tcp,
        ca: &Path,
        name: Option<&str>,
        identity: Option<Identity<'_>>,
    ) -> Result<Self, TlsError> {
        let verifier = WebPkiServerVerifier::builder_with_provider(
            roots("the server's authority", ca)?,
            provider(),
        );
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(setup)?
            .with_webpki_verifier(verifier.build().map_err(setup)?);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = identity.load()?;
                builder.with_client_auth_cert(chain, key).map_err(setup)?
            }
        };
        let name = name.unwrap_or(&tcp.host).to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name))?.to_owned();
        Ok(Self { tcp, config: Arc::new(config), name })
    }
}

impl Listen for TlsListen {
    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let address = |port| Address::Tls { host: self.tcp.host.clone(), port };
        let bound =
            self.tcp.bind().map_err(|error| at(&address(self.tcp.port), "listen at", &error));
        let (listener, port) = bound?;
        let config = Arc::clone(&self.config);
        Ok(Box::new(TlsDoor { listener, address: address(port), config }))
    }

    fn is_public(&self) -> bool {
        self.tcp.is_beyond_loopback()
    }
}

impl Dial for TlsDial {
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>> {
        let tcp = self.tcp.connect(timeout)?;
        let tls = rustls::ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        Ok(Box::new(TlsLink::new(tcp, tls.map_err(io::Error::other)?.into())))
    }

    fn address(&self) -> Address {
        Address::Tls { host: self.tcp.host.clone(), port: self.tcp.port }
    }
}

impl Listener for TlsDoor {
    fn accept(&mut self) -> io::Result<Box<dyn Link>> {
        let (stream, _) = self.listener.accept()?;
        let tls = rustls::ServerConnection::new(Arc::clone(&self.config));
        let tls = tls.map_err(io::Error::other)?.into();
        Ok(Box::new(TlsLink::new(TcpLink::new(stream)?, tls)))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl AsFd for TlsDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl TlsLink {
    fn new(tcp: TcpLink, mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(BUFFER));
        Self { tcp, tls, ended: false }
    }

    /// Moves what came from the socket into the session; `WouldBlock` when nothing did.
    fn pull(&mut self) -> io::Result<()> {
        if self.tls.read_tls(&mut self.tcp)? == 0 {
            self.ended = true;
        }
        let processed = self.tls.process_new_packets();
        // An alert or the next step of the handshake may have to go out, also after a failure.
        let pushed = self.push();
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match pushed {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Moves what the session has to say into the socket.
    fn push(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }
}

impl Link for TlsLink {
    fn has_unflushed(&self) -> bool {
        self.tls.wants_write()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        self.push()?;
        self.tcp.finish()
    }

    fn peer(&self) -> String {
        self.tcp.peer()
    }
}

impl Read for TlsLink {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A peer that just goes away is no attack on frames that say their length.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if self.ended {
                return Ok(0);
            }
            self.pull()?;
        }
    }
}

impl Write for TlsLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let taken = self.tls.writer().write(bytes)?;
            match self.push() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                // The session's buffer is full, and so is the socket's.
                Err(error) if taken == 0 && !bytes.is_empty() => return Err(error),
                _ if taken > 0 || bytes.is_empty() => return Ok(taken),
                _ => {}
            }
            // The session takes nothing before the handshake is over, and the socket takes all.
            if self.tls.is_handshaking() {
                self.pull()?;
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

impl AsFd for TlsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}
