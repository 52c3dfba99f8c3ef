//! A network without a system: links whose other end is the fuzzer.

pub mod damage;
pub mod ledgers;

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use echoic_net::Address;
use echoic_net::transport::{Link, Listen, Listener};
use echoic_replay::{Dtype, Leaf, Spec};

/// How long anything may take. More is a hang.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How many reads and writes of a link are cut; the rest is fast.
const CUT: usize = 300;

/// How a link cuts what goes over it.
#[derive(Debug, Clone, Copy)]
pub struct Cuts {
    /// The most bytes of a read; then the next one would block.
    pub read: usize,
    /// The most bytes of a write; then the next one would block.
    pub write: usize,
    /// Whether it tells how many bytes are there.
    pub tells: bool,
    /// Whether a read fills several pieces.
    pub vectored: bool,
}

impl From<u8> for Cuts {
    fn from(byte: u8) -> Self {
        let size = |bits: u8| [usize::MAX, 1, 3, 20, 64, 100, 1000, 4096][usize::from(bits & 7)];
        Self {
            read: size(byte),
            write: size(byte >> 3),
            tells: byte & 64 != 0,
            vectored: byte & 128 != 0,
        }
    }
}

#[derive(Debug, Default)]
struct Wire {
    /// Pieces, and no read crosses from one to the next.
    input: VecDeque<VecDeque<u8>>,
    ended: bool,
    output: Vec<u8>,
    /// The next read or write would block.
    reading_pauses: bool,
    writing_pauses: bool,
    /// How many reads and writes were cut.
    cut: usize,
    /// All of the input was read, and more was asked for.
    is_idle: bool,
    is_dropped: bool,
}

/// The end of a link that the fuzzer holds.
pub struct Far {
    wire: Arc<(Mutex<Wire>, Condvar)>,
    waker: UnixStream,
}

/// The end of a link that is under test.
pub struct Near {
    wire: Arc<(Mutex<Wire>, Condvar)>,
    waker: UnixStream,
    wakes: UnixStream,
    cuts: Cuts,
}

/// A link.
pub fn link(cuts: Cuts) -> (Far, Near) {
    let wire = Arc::default();
    let (waker, wakes) = UnixStream::pair().expect("a pair of sockets");
    for end in [&waker, &wakes] {
        end.set_nonblocking(true).expect("a socket that does not block");
    }
    let far = Far { wire: Arc::clone(&wire), waker: waker.try_clone().expect("a socket") };
    (far, Near { wire, waker, wakes, cuts })
}

fn ring(mut waker: &UnixStream) {
    // One that is full rings already.
    let _ = waker.write(&[1]);
}

impl Far {
    fn lock(&self) -> MutexGuard<'_, Wire> {
        self.wire.0.lock().expect("nobody panics with it")
    }

    /// Says something, in pieces that no read joins.
    pub fn say(&self, pieces: &[&[u8]]) {
        let mut wire = self.lock();
        let pieces = pieces.iter().filter(|piece| !piece.is_empty());
        wire.input.extend(pieces.map(|piece| piece.iter().copied().collect::<VecDeque<_>>()));
        wire.is_idle = false;
        ring(&self.waker);
    }

    /// Says that nothing more will come.
    pub fn end(&self) {
        let mut wire = self.lock();
        wire.ended = true;
        wire.is_idle = false;
        ring(&self.waker);
    }

    /// What the other end has said, once it is enough.
    pub fn hear(&self, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let wire = self.lock();
        let waiting = |wire: &mut Wire| !wire.is_dropped && !enough(&wire.output);
        let waited = self.wire.1.wait_timeout_while(wire, PATIENCE, waiting);
        let (mut wire, late) = waited.expect("nobody panics with it");
        assert!(!late.timed_out(), "a link that stands says nothing");
        std::mem::take(&mut wire.output)
    }

    /// Whether the other end has closed the link.
    pub fn is_dropped(&self) -> bool {
        self.lock().is_dropped
    }

    /// Waits until the other end has used what was said, or has closed the link. Calls `meanwhile`
    /// again and again.
    pub fn settle(&self, mut meanwhile: impl FnMut()) {
        let deadline = Instant::now() + PATIENCE;
        let mut wire = self.lock();
        while !wire.is_idle && !wire.is_dropped {
            assert!(Instant::now() < deadline, "nobody reads from a link that stands");
            drop(wire);
            meanwhile();
            wire = self.lock();
            if !wire.is_idle && !wire.is_dropped {
                let pause = Duration::from_micros(200);
                (wire, _) = self.wire.1.wait_timeout(wire, pause).expect("nobody panics with it");
            }
        }
    }
}

impl Wire {
    /// How much of a read or write that is cut to `most` goes through.
    fn cut(&mut self, most: usize) -> usize {
        if most == usize::MAX || self.cut == CUT {
            return usize::MAX;
        }
        self.cut += 1;
        most
    }
}

impl Near {
    fn with<T>(&self, call: impl FnOnce(&mut Wire) -> T) -> T {
        let result = call(&mut self.wire.0.lock().expect("nobody panics with it"));
        self.wire.1.notify_all();
        result
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.with(|wire| wire.is_dropped = true);
    }
}

impl Read for Near {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let _ = { &self.wakes }.read(&mut [0; 64]);
        self.with(|wire| {
            if wire.input.is_empty() && wire.ended {
                ring(&self.waker);
                return Ok(0);
            }
            if std::mem::take(&mut wire.reading_pauses) || wire.input.is_empty() {
                if wire.input.is_empty() {
                    wire.is_idle = true;
                } else {
                    ring(&self.waker);
                }
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let cut = wire.cut(self.cuts.read);
            let Some(input) = wire.input.front_mut() else { return Ok(0) };
            let mut read = 0;
            for piece in pieces.iter_mut().filter(|piece| !piece.is_empty()) {
                let most = piece.len().min(cut - read);
                read += input.read(&mut piece[..most])?;
                if !self.cuts.vectored || input.is_empty() {
                    break;
                }
            }
            if input.is_empty() {
                wire.input.pop_front();
            }
            wire.reading_pauses = cut != usize::MAX;
            ring(&self.waker);
            Ok(read)
        })
    }
}

impl Write for Near {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with(|wire| {
            if std::mem::take(&mut wire.writing_pauses) {
                ring(&self.waker);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let cut = wire.cut(self.cuts.write);
            let taken = bytes.len().min(cut);
            wire.output.extend_from_slice(&bytes[..taken]);
            wire.writing_pauses = cut != usize::MAX;
            Ok(taken)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Near {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}

impl Link for Near {
    fn available(&self) -> Option<usize> {
        let front = |wire: &mut Wire| wire.input.front().map_or(0, VecDeque::len);
        self.cuts.tells.then(|| self.with(front).min(self.cuts.read))
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn peer(&self) -> String {
        "the fuzzer".into()
    }
}

/// An address that the fuzzer dials.
pub struct Nearby {
    links: Mutex<Option<(Receiver<Near>, UnixStream)>>,
}

/// What dials it.
pub struct Dialler {
    links: Sender<Near>,
    waker: UnixStream,
}

struct Opened {
    links: Receiver<Near>,
    wakes: UnixStream,
}

/// A transport without a system.
pub fn listener() -> (Dialler, Nearby) {
    let (sender, links) = channel();
    let (waker, wakes) = UnixStream::pair().expect("a pair of sockets");
    (Dialler { links: sender, waker }, Nearby { links: Mutex::new(Some((links, wakes))) })
}

impl Dialler {
    /// Connects.
    pub fn dial(&self, cuts: Cuts) -> Far {
        let (far, near) = link(cuts);
        self.links.send(near).expect("the server lives");
        ring(&self.waker);
        far
    }
}

impl Listen for Nearby {
    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let once = self.links.lock().expect("nobody panics with it").take();
        let (links, wakes) = once.ok_or(io::ErrorKind::AddrInUse)?;
        Ok(Box::new(Opened { links, wakes }))
    }

    fn is_public(&self) -> bool {
        false
    }
}

impl Listener for Opened {
    fn accept(&mut self) -> io::Result<Box<dyn Link>> {
        match self.links.try_recv() {
            Ok(near) => {
                self.wakes.read_exact(&mut [0])?;
                Ok(Box::new(near))
            }
            Err(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn address(&self) -> Address {
        Address::Shm { name: "fuzz".into() }
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}

/// Samples of a number and `filling` bytes.
pub fn spec(filling: usize) -> Spec {
    let leaf =
        |path: &str, dtype, shape: &[usize]| Leaf { path: path.into(), dtype, shape: shape.into() };
    let leaves =
        vec![leaf("number", Dtype::UInt(8), &[]), leaf("filling", Dtype::UInt(1), &[filling])];
    Spec::new(leaves).expect("a spec that is good")
}
