//! Sockets between two processes of this machine: loopback TCP, or a Unix socket.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process;

use crate::Outcome;

/// A connected socket.
pub enum Link {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Where the other process connects.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub fn open(kind: &str) -> Outcome<Self> {
        match kind {
            "tcp" => Ok(Self::Tcp(TcpListener::bind(("127.0.0.1", 0))?)),
            "unix" => {
                let path = env::temp_dir().join(format!("echoic-limits-{}.sock", process::id()));
                Ok(Self::Unix(UnixListener::bind(&path)?, path))
            }
            other => Err(format!("expected tcp or unix, got {other}").into()),
        }
    }

    /// What [`Link::connect`] needs.
    pub fn address(&self) -> Outcome<String> {
        match self {
            Self::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            Self::Unix(_, path) => Ok(path.display().to_string()),
        }
    }

    pub fn accept(&self) -> Outcome<Link> {
        match self {
            Self::Tcp(listener) => Link::tcp(listener.accept()?.0),
            Self::Unix(listener, _) => Ok(Link::Unix(listener.accept()?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl Link {
    pub fn connect(address: &str) -> Outcome<Self> {
        if address.starts_with('/') {
            return Ok(Self::Unix(UnixStream::connect(address)?));
        }
        Self::tcp(TcpStream::connect(address)?)
    }

    fn tcp(stream: TcpStream) -> Outcome<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
