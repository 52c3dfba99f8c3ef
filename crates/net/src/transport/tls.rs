//! Encrypted sockets of the network: rustls over TCP.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, Connection, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::tcp::{Tcp, TcpLink};
use super::{Dial, Link, Listen, Listener, at, socket};
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

struct TlsEndpoint {
    listener: TcpListener,
    address: Address,
    config: Arc<ServerConfig>,
}

/// An encrypted socket.
pub struct TlsLink {
    tcp: TcpLink,
    tls: Connection,
    /// The session took bytes before the handshake was over.
    early: bool,
    /// The peer's end has been read from the socket.
    ended: bool,
    /// We have said that nothing more will come.
    finished: bool,
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
        Ok(Box::new(TlsEndpoint { listener, address: address(port), config }))
    }

    fn is_public(&self) -> bool {
        self.tcp.is_beyond_loopback()
    }
}

impl Dial for TlsDial {
    /// Also shakes hands, so that what is wrong with a certificate is known when this returns. What a
    /// server thinks of ours comes later, with the first `read`.
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>> {
        let deadline = Instant::now() + timeout;
        let tcp = self.tcp.connect(timeout)?;
        let tls = rustls::ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut link = TlsLink::new(tcp, tls.map_err(io::Error::other)?.into());
        link.shake_hands(deadline)?;
        Ok(Box::new(link))
    }

    fn address(&self) -> Address {
        Address::Tls { host: self.tcp.host.clone(), port: self.tcp.port }
    }
}

impl Listener for TlsEndpoint {
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

impl AsFd for TlsEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl TlsLink {
    fn new(tcp: TcpLink, mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(BUFFER));
        Self { tcp, tls, early: false, ended: false, finished: false }
    }

    /// Completes the handshake.
    fn shake_hands(&mut self, deadline: Instant) -> io::Result<()> {
        while self.tls.is_handshaking() {
            match self.push().and_then(|()| self.pull()) {
                Ok(()) if self.ended => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the connection ended in the TLS handshake; does the server speak TLS?",
                    ));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(deadline)?,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until the handshake may go on.
    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let unsent = self.tls.wants_write();
        let flags = if unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        if socket::wait(&self.tcp, flags, deadline)? {
            return Ok(());
        }
        let text = "the TLS handshake was not answered in time";
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Moves what came from the socket into the session; `WouldBlock` when nothing did.
    fn pull(&mut self) -> io::Result<()> {
        if self.tls.read_tls(&mut self.tcp)? == 0 {
            self.ended = true;
        }
        let established = !self.tls.is_handshaking();
        let processed = self.tls.process_new_packets();
        // An alert or the next step of the handshake may have to go out, also after a failure.
        let pushed = self.push();
        processed.map_err(|error| {
            if established && !is_refusal(&error) {
                // Another connection may bring what this one has damaged.
                let text = format!("the connection was damaged: {error}");
                return io::Error::new(io::ErrorKind::ConnectionAborted, text);
            }
            io::Error::new(io::ErrorKind::InvalidData, explain(&error))
        })?;
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

    /// Whether the session keeps bytes until the handshake is over.
    fn holds_back(&self) -> bool {
        self.early && self.tls.is_handshaking()
    }
}

/// Whether the other end does not accept our certificate, which a client hears when it takes the handshake for complete.
fn is_refusal(error: &rustls::Error) -> bool {
    use rustls::{AlertDescription as Alert, Error};
    matches!(
        error,
        Error::AlertReceived(
            Alert::CertificateRequired
                | Alert::UnknownCA
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateUnknown
                | Alert::CertificateExpired
                | Alert::AccessDenied
                | Alert::DecryptError
                | Alert::HandshakeFailure
        )
    )
}

/// What to do about an error, where rustls does not say so.
fn explain(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError, Error};
    let advice = match error {
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "it does not come from the authority that was given (ca)",
        Error::AlertReceived(Alert::CertificateRequired) => {
            "it asks for a certificate: give certificate and key"
        }
        Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::DecryptError,
        ) => "it does not accept our certificate",
        Error::InvalidMessage(_) => "it does not speak TLS",
        _ => return error.to_string(),
    };
    format!("{error}; {advice}")
}

impl Link for TlsLink {
    fn has_unflushed(&self) -> bool {
        self.tls.wants_write() || self.holds_back()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        self.finished = true;
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
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.finished {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let nothing = pieces.iter().all(|piece| piece.is_empty());
        loop {
            let taken = self.tls.writer().write_vectored(pieces)?;
            self.early |= taken > 0 && self.tls.is_handshaking();
            match self.push() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ if taken > 0 || nothing => return Ok(taken),
                // The session's buffer is full, and so is the socket's.
                Err(error) => return Err(error),
                // It empties once the handshake is over, with which `read` goes on.
                Ok(()) if self.tls.is_handshaking() => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(()) => {}
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()?;
        if self.holds_back() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }
}

impl AsFd for TlsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}
