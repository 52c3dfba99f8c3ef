//! Plain sockets of the network.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{BACKLOG, Dial, Link, Listen, Listener, at, socket};
use crate::address::Address;

/// TCP at one host and port.
#[derive(Debug, Clone)]
pub struct Tcp {
    /// Name or number of the host.
    pub host: String,
    /// 0 to have one chosen.
    pub port: u16,
}

/// A connected socket.
#[derive(Debug)]
pub struct TcpLink(TcpStream);

struct TcpEndpoint {
    listener: TcpListener,
    address: Address,
}

impl Tcp {
    fn address_of(&self, port: u16) -> Address {
        Address::Tcp { host: self.host.clone(), port }
    }

    pub(crate) fn bind(&self) -> io::Result<(TcpListener, u16)> {
        let listener = TcpListener::bind((self.host.as_str(), self.port))?;
        listener.set_nonblocking(true)?;
        // The standard library lets 128 wait, and a crowd that comes at once is larger.
        rustix::net::listen(&listener, BACKLOG)?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    }

    /// Tries every number that the host's name stands for.
    pub(crate) fn connect(&self, timeout: Duration) -> io::Result<TcpLink> {
        let deadline = Instant::now() + timeout;
        let mut last = io::Error::new(
            io::ErrorKind::NotFound,
            format!("the name {:?} stands for no address", self.host),
        );
        let mut addresses = (self.host.as_str(), self.port).to_socket_addrs()?.collect::<Vec<_>>();
        addresses.reverse();
        while let Some(address) = addresses.pop() {
            // An address without an answer leaves time for the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / (addresses.len() as u32 + 1);
            if share.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, share) {
                // A port without a listener can be connected to itself.
                Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                    last = io::ErrorKind::ConnectionRefused.into();
                }
                Ok(stream) => return TcpLink::new(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether others than this machine's own programs can connect.
    pub(crate) fn is_beyond_loopback(&self) -> bool {
        let loopback = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        match (self.host.as_str(), self.port).to_socket_addrs() {
            Ok(mut addresses) => !addresses.all(loopback),
            // A name that can't be resolved can't be bound to either; that error says more.
            Err(_) => true,
        }
    }
}

impl Listen for Tcp {
    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let bound =
            self.bind().map_err(|error| at(&self.address_of(self.port), "listen at", &error));
        let (listener, port) = bound?;
        Ok(Box::new(TcpEndpoint { listener, address: self.address_of(port) }))
    }

    fn is_public(&self) -> bool {
        self.is_beyond_loopback()
    }
}

impl Dial for Tcp {
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>> {
        Ok(Box::new(self.connect(timeout)?))
    }

    fn address(&self) -> Address {
        self.address_of(self.port)
    }
}

impl Listener for TcpEndpoint {
    fn accept(&mut self) -> io::Result<Box<dyn Link>> {
        let (stream, _) = self.listener.accept()?;
        Ok(Box::new(TcpLink::new(stream)?))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl AsFd for TcpEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl TcpLink {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        socket::prepare(&stream)?;
        // What is written here is gathered already.
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }
}

impl Link for TcpLink {
    fn available(&self) -> Option<usize> {
        socket::available(&self.0)
    }

    fn drains_on_short_read(&self) -> bool {
        true
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    fn peer(&self) -> String {
        self.0.peer_addr().map_or_else(|_| "a closed socket".into(), |peer| peer.to_string())
    }
}

impl Read for TcpLink {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }

    fn read_vectored(&mut self, bytes: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read_vectored(bytes)
    }
}

impl Write for TcpLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::write(&self.0, bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::write_vectored(&self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for TcpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
