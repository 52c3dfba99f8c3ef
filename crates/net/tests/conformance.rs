//! The conformance suite, for each transport of this crate and for one of somebody else, which is also
//! broken in many ways to see that the suite tells.

mod common;

use std::collections::HashMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use common::{Authority, files};
use echoic_net::Address;
use echoic_net::transport::conformance::{Promise, Violation, check};
use echoic_net::transport::{Dial, Link, Listen, Listener, TlsFiles, dial_to, listen_at};
use tempfile::TempDir;

fn check_at(address: &str, server: &TlsFiles, client: TlsFiles) -> Result<(), Violation> {
    let listen = listen_at(&address.parse().unwrap(), server).unwrap();
    check(listen.into(), Arc::new(move |address| dial_to(address, &client).unwrap()))
}

#[test]
fn tcp_keeps_its_promises() {
    let none = TlsFiles::default();
    check_at("tcp://127.0.0.1:0", &none, none.clone()).unwrap();
}

#[test]
fn unix_sockets_keep_their_promises() {
    let (folder, none) = (TempDir::new().unwrap(), TlsFiles::default());
    check_at(&format!("unix://{}/socket", folder.path().display()), &none, none.clone()).unwrap();
}

#[test]
fn tls_keeps_its_promises() {
    let authority = Authority::new();
    let server = files(Some(&authority.sign("localhost")), None);
    check_at("tls://localhost:0", &server, files(None, Some(&authority))).unwrap();
}

#[test]
fn tls_with_certificates_of_both_sides_keeps_its_promises() {
    let authority = Authority::new();
    let server = files(Some(&authority.sign("localhost")), Some(&authority));
    let client = files(Some(&authority.sign("worker")), Some(&authority));
    check_at("tls://localhost:0", &server, client).unwrap();
}

#[test]
fn a_transport_of_somebody_else_keeps_its_promises() {
    check_memory(None).unwrap();
}

#[test]
fn what_is_broken_is_told() {
    let cases = [
        (Fault::AcceptFails, Promise::Listening, "accepting nobody failed"),
        (Fault::NoAddress, Promise::Listening, "different addresses"),
        (Fault::StaysOpen, Promise::Dialling, "nobody listens any more"),
        (Fault::Changes, Promise::Order, "byte 50000 of 400000 is another"),
        (Fault::Loses, Promise::Order, "no end became ready"),
        (Fault::TakesNothing, Promise::Order, "took none"),
        (Fault::HoldsBack, Promise::Order, "is another"),
        (Fault::TakesAll, Promise::WouldBlock, "bytes were taken that nobody reads"),
        (Fault::AlwaysReady, Promise::Readiness, "always ready"),
        (Fault::ForgetsUnflushed, Promise::WouldBlock, "no end became ready"),
        (Fault::NeverFlushed, Promise::Flush, "has_unflushed said false"),
        (Fault::FinishesBothWays, Promise::Finish, "writing failed"),
        (Fault::NeverFinishes, Promise::Finish, "no end became ready"),
        (Fault::Overstates, Promise::Available, "said to be there"),
    ];
    std::thread::scope(|scope| {
        for (fault, promise, found) in cases {
            scope.spawn(move || {
                let violation = check_memory(Some(fault)).expect_err(found);
                assert_eq!(violation.promise, promise, "{fault:?}: {violation}");
                assert!(violation.found.contains(found), "{fault:?}: {violation}");
            });
        }
    });
}

/// What may be wrong with a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    AcceptFails,
    NoAddress,
    StaysOpen,
    Changes,
    Loses,
    TakesNothing,
    HoldsBack,
    TakesAll,
    AlwaysReady,
    ForgetsUnflushed,
    NeverFlushed,
    FinishesBothWays,
    NeverFinishes,
    Overstates,
}

/// A transport within one process: names stand for listeners, and links are pairs of sockets.
#[derive(Clone)]
struct Memory {
    name: String,
    fault: Option<Fault>,
}

struct MemoryEndpoint {
    memory: Memory,
    links: Receiver<UnixStream>,
    /// Has a byte for each link that waits.
    wakes: UnixStream,
}

struct MemoryLink {
    stream: UnixStream,
    fault: Option<Fault>,
    written: usize,
    /// What a faulty link keeps.
    held: Vec<u8>,
    /// Readable for ever.
    noise: (UnixStream, UnixStream),
}

type Listeners = HashMap<String, (Sender<UnixStream>, UnixStream)>;

fn listeners() -> MutexGuard<'static, Listeners> {
    static LISTENERS: OnceLock<Mutex<Listeners>> = OnceLock::new();
    LISTENERS.get_or_init(Mutex::default).lock().unwrap()
}

fn check_memory(fault: Option<Fault>) -> Result<(), Violation> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("memory-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let memory = Memory { name, fault };
    let dialled = memory.clone();
    check(Arc::new(memory), Arc::new(move |_| Box::new(dialled.clone())))
}

impl Memory {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn link(&self, stream: UnixStream) -> io::Result<Box<dyn Link>> {
        stream.set_nonblocking(true)?;
        let noise = UnixStream::pair()?;
        (&noise.0).write_all(&[1])?;
        let (fault, held) = (self.fault, Vec::new());
        Ok(Box::new(MemoryLink { stream, fault, written: 0, held, noise }))
    }
}

impl Listen for Memory {
    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let (sender, links) = channel();
        let (waker, wakes) = UnixStream::pair()?;
        wakes.set_nonblocking(true)?;
        listeners().insert(self.name.clone(), (sender, waker));
        Ok(Box::new(MemoryEndpoint { memory: self.clone(), links, wakes }))
    }

    fn is_public(&self) -> bool {
        false
    }
}

impl Dial for Memory {
    fn dial(&self, _timeout: Duration) -> io::Result<Box<dyn Link>> {
        let (here, there) = UnixStream::pair()?;
        let mut listeners = listeners();
        let (sender, waker) = listeners.get_mut(&self.name).ok_or(io::ErrorKind::NotFound)?;
        sender.send(there).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        waker.write_all(&[1])?;
        self.link(here)
    }

    fn address(&self) -> Address {
        let other = if self.has(Fault::NoAddress) { "-other" } else { "" };
        Address::Shm { name: format!("{}{other}", self.name) }
    }
}

impl Listener for MemoryEndpoint {
    fn accept(&mut self) -> io::Result<Box<dyn Link>> {
        match (&self.wakes).read(&mut [0]) {
            Err(_) if self.memory.has(Fault::AcceptFails) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(error),
            Ok(_) => self.memory.link(self.links.recv().map_err(io::Error::other)?),
        }
    }

    fn address(&self) -> Address {
        Address::Shm { name: self.memory.name.clone() }
    }
}

impl Drop for MemoryEndpoint {
    fn drop(&mut self) {
        if self.memory.has(Fault::StaysOpen) {
            // The receiver goes on living, so that nobody who dials is refused.
            let (_, links) = channel();
            std::mem::forget(std::mem::replace(&mut self.links, links));
            std::mem::forget(self.wakes.try_clone());
        } else {
            listeners().remove(&self.memory.name);
        }
    }
}

impl AsFd for MemoryEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}

impl Read for MemoryLink {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(bytes);
        self.make_noise(read.is_err());
        read
    }
}

impl Write for MemoryLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let before = self.written;
        self.written += bytes.len();
        let taken = match self.fault {
            Some(Fault::TakesNothing) if before > 50_000 => Ok(0),
            Some(Fault::Loses) if before > 50_000 => Ok(bytes.len()),
            Some(Fault::Changes) if (before..self.written).contains(&50_000) => {
                let mut wrong = bytes.to_vec();
                wrong[50_000 - before] ^= 1;
                self.stream.write(&wrong)
            }
            Some(Fault::HoldsBack) if before > 0 && bytes.len() == 1 => {
                self.held.extend_from_slice(bytes);
                Ok(1)
            }
            Some(Fault::TakesAll | Fault::ForgetsUnflushed) => {
                self.held.extend_from_slice(bytes);
                let _ = self.push();
                if self.held.len() > 1 << 20 && self.fault == Some(Fault::ForgetsUnflushed) {
                    self.held.truncate(self.held.len() - bytes.len());
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(bytes.len())
            }
            _ => self.stream.write(bytes),
        };
        self.make_noise(taken.is_err());
        self.written = before + *taken.as_ref().unwrap_or(&0);
        taken
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.fault.is_some() {
            return self
                .write(&pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<_>>());
        }
        self.stream.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.fault {
            Some(Fault::ForgetsUnflushed) if self.held.len() > 1 << 19 => {
                self.held.clear();
                Ok(())
            }
            Some(Fault::HoldsBack) => Ok(()),
            Some(Fault::NeverFlushed) => Err(io::ErrorKind::WouldBlock.into()),
            _ => self.push(),
        }
    }
}

impl MemoryLink {
    /// Readable for `poll`, and news for a selector.
    fn make_noise(&self, noisy: bool) {
        if noisy && self.fault == Some(Fault::AlwaysReady) {
            let _ = (&self.noise.1).read(&mut [0]).unwrap();
            (&self.noise.0).write_all(&[1]).unwrap();
        }
    }

    fn push(&mut self) -> io::Result<()> {
        while !self.held.is_empty() {
            let written = self.stream.write(&self.held)?;
            self.held.drain(..written);
        }
        Ok(())
    }
}

impl Link for MemoryLink {
    fn available(&self) -> Option<usize> {
        (self.fault == Some(Fault::Overstates)).then_some(1 << 20)
    }

    fn has_unflushed(&self) -> bool {
        !self.held.is_empty() && self.fault != Some(Fault::HoldsBack)
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.fault {
            Some(Fault::FinishesBothWays) => self.stream.shutdown(Shutdown::Both),
            Some(Fault::NeverFinishes) => Ok(()),
            _ => self.stream.shutdown(Shutdown::Write),
        }
    }

    fn peer(&self) -> String {
        "this process".into()
    }
}

impl AsFd for MemoryLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.fault == Some(Fault::AlwaysReady) {
            return self.noise.1.as_fd();
        }
        self.stream.as_fd()
    }
}
