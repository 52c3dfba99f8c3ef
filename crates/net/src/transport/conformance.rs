//! Whether a transport keeps its promises.
//!
//! [`check`] takes a transport, of this crate or your own, through what the traits of the
//! [module above](super) promise: whole streams of bytes, calls that never wait, file descriptors that
//! tell when to go on, and ends that are noticed. At last a server and its clients use it. Run it in a
//! test:
//!
//! ```
//! use std::sync::Arc;
//!
//! use echoic_net::transport::{TlsFiles, conformance, dial_to, listen_at};
//!
//! let files = TlsFiles::default();
//! let listen = listen_at(&"tcp://127.0.0.1:0".parse()?, &files)?;
//! let dial = |address: &_| dial_to(address, &TlsFiles::default()).expect("a good address");
//! conformance::check(listen.into(), Arc::new(dial))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limitations
//!
//! It does not ask how fast a transport is, nor whether strangers can listen in.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use echoic_replay::stream::Wait;
use echoic_replay::{Dtype, Leaf, Spec, Stream, StreamConfig};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Dial, Link, Listen, Listener, socket};
use crate::address::Address;
use crate::auth::Token;
use crate::client::{Client, Options as ClientOptions};
use crate::server::{Options as ServerOptions, Server};

/// How long something may take that should happen at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one promise may take to check. Whoever takes longer waits for ever.
const LIMIT: Duration = Duration::from_secs(60);
/// What a link may take, at most, while the other end does not read.
const MAX_UNREAD: usize = 64 << 20;

/// Makes what connects to an address.
pub type MakeDial = dyn Fn(&Address) -> Box<dyn Dial> + Send + Sync;

/// What a transport promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Promise {
    /// Of [`Listener`].
    #[error("a listener tells its address, accepts who dials it, and does not wait for them")]
    Listening,
    /// Of [`Dial::dial`].
    #[error("dialling ends within its timeout")]
    Dialling,
    /// Of [`Link`]: however reads and writes are cut.
    #[error("bytes arrive whole and in order")]
    Order,
    /// Of [`Link`]: also when both ends write much.
    #[error("both directions flow at once")]
    BothWays,
    /// Of [`Link`]: a reader may be slow.
    #[error("bytes wait for a slow reader, and are not lost")]
    SlowReader,
    /// Of [`Link`]: no call waits, and no memory grows without bound.
    #[error("a call that could only wait returns WouldBlock")]
    WouldBlock,
    /// Of [`Link`]: for `poll` and for edge-triggered selectors.
    #[error("the file descriptor is ready when reading or writing can go on, and not always")]
    Readiness,
    /// Of [`std::io::Write::flush`] and [`Link::has_unflushed`].
    #[error("what is flushed arrives without any further call")]
    Flush,
    /// Of [`Link::finish`].
    #[error("the end comes after all bytes, and only of one direction")]
    Finish,
    /// Of [`Link`]: the accepted end may speak first, and leave.
    #[error("an accepted link can say something and finish before it has read anything")]
    Greeting,
    /// Of [`Link`]: a peer that is gone.
    #[error("the end of the other side is noticed")]
    Vanishing,
    /// Of [`Link::available`].
    #[error("as many bytes as are said to be available can be read")]
    Available,
    /// Of [`Listener`]: links know nothing of each other.
    #[error("many links do not disturb each other")]
    Independence,
    /// Of all together.
    #[error("a server and its clients deliver each sample exactly once, in order")]
    Delivery,
    /// Of all together, with connections that break.
    #[error("what a broken connection leaves undelivered comes over the next one")]
    Recovery,
}

/// A promise that was not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a transport must keep this promise: {promise}; but {found}")]
pub struct Violation {
    /// Which.
    pub promise: Promise,
    /// What happened instead.
    pub found: String,
}

type Found<T = ()> = Result<T, String>;

type Check = fn(&Stage) -> Found;

const PROMISES: [(Promise, Check); 15] = [
    (Promise::Listening, listening),
    (Promise::Dialling, dialling),
    (Promise::Order, order),
    (Promise::WouldBlock, would_block),
    (Promise::Readiness, readiness),
    (Promise::Flush, flush),
    (Promise::BothWays, both_ways),
    (Promise::SlowReader, slow_reader),
    (Promise::Finish, finish),
    (Promise::Greeting, greeting),
    (Promise::Vanishing, vanishing),
    (Promise::Available, available),
    (Promise::Independence, independence),
    (Promise::Delivery, delivery),
    (Promise::Recovery, recovery),
];

/// Checks a transport: `listen` is its server's end, and `dial` makes the client's end for the address
/// at which that listens. Takes seconds.
///
/// # Errors
///
/// The first promise that is not kept. When a call waits for ever, so does a thread that is left
/// behind.
pub fn check(listen: Arc<dyn Listen>, dial: Arc<MakeDial>) -> Result<(), Violation> {
    let stage = Stage { listen, dial };
    for (promise, keeps) in PROMISES {
        let (say, heard) = channel();
        let stage = stage.clone();
        let checking = std::thread::spawn(move || {
            // Whoever asked has gone when it took too long.
            let _ = say.send(keeps(&stage));
        });
        let found = match heard.recv_timeout(LIMIT) {
            Ok(Ok(())) => {
                // What it opened is closed before the next begins.
                let _ = checking.join();
                continue;
            }
            Ok(Err(found)) => found,
            Err(RecvTimeoutError::Timeout) => format!("a call has not returned for {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => "a call panicked".into(),
        };
        return Err(Violation { promise, found });
    }
    Ok(())
}

/// The transport.
#[derive(Clone)]
struct Stage {
    listen: Arc<dyn Listen>,
    dial: Arc<MakeDial>,
}

/// One of the two ends of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Dialled,
    Accepted,
}

const SIDES: [Side; 2] = [Side::Dialled, Side::Accepted];

impl Side {
    fn other(self) -> Self {
        SIDES[1 - self as usize]
    }
}

/// How readiness is learned of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// From `poll`, as long as it lasts.
    Level,
    /// From a selector, when it begins.
    Edge,
}

const NOTICES: [Notice; 2] = [Notice::Level, Notice::Edge];

struct End {
    link: Box<dyn Link>,
    side: Side,
    /// Whether it did not say `WouldBlock` since it was last ready.
    may_read: bool,
    may_write: bool,
}

/// Two ends of one link.
struct Pair {
    ends: [End; 2],
    selector: Poll,
    notice: Notice,
}

/// Bytes that go one way.
struct Flow {
    from: Side,
    seed: u8,
    total: usize,
    sent: usize,
    received: usize,
    /// Sizes of reads and writes, in turn.
    sizes: &'static [usize],
    vectored: bool,
    /// Of how many chances to read one is used.
    pace: usize,
    steps: usize,
}

const ODD_SIZES: &[usize] = &[1, 2, 3, 5, 7, 13, 64, 255, 1000, 4097, 16_385, 65_537];
const LARGE_SIZES: &[usize] = &[1 << 20];

fn flow(from: Side, total: usize, sizes: &'static [usize]) -> Flow {
    let seed = from as u8;
    Flow { from, seed, total, sent: 0, received: 0, sizes, vectored: false, pace: 1, steps: 0 }
}

/// How long the pattern is that flows repeat: a prime, so that a lost or doubled buffer shifts it.
const PATTERN: usize = 65_521;

/// The bytes of a flow from a position on. Neighbours differ, and so do flows.
fn pattern(seed: u8, position: usize, size: usize) -> Vec<u8> {
    static ONCE: OnceLock<Vec<u8>> = OnceLock::new();
    let once = ONCE.get_or_init(|| {
        let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        (0..PATTERN as u64).map(byte).collect()
    });
    let start = (position + usize::from(seed) * 251) % PATTERN;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&once[start..PATTERN.min(start + size)]);
    while bytes.len() < size {
        bytes.extend_from_slice(&once[..PATTERN.min(size - bytes.len())]);
    }
    bytes
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{doing} failed: {error} ({:?})", error.kind())
}

/// `None` for a call that could only wait.
fn unless_blocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}

/// A call that is not cut short by a signal.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl Stage {
    fn open(&self) -> Found<Box<dyn Listener>> {
        self.listen.listen().map_err(failed("listening"))
    }

    /// Dials in a thread of its own: some transports need the other end for it.
    fn dialling(&self, address: &Address, timeout: Duration) -> Receiver<Dialled> {
        let (say, heard) = channel();
        let (dial, address) = ((self.dial)(address), address.clone());
        std::thread::spawn(move || {
            let result = dial.dial(timeout);
            // Whoever asked may have given up.
            let _ = say.send((result, dial.address() == address));
        });
        heard
    }

    /// A link, with nothing said on it.
    fn fresh(&self, listener: &mut dyn Listener, notice: Notice) -> Found<Pair> {
        let dialled = self.dialling(&listener.address(), PATIENCE);
        let mut accepted = accept(listener)?;
        let deadline = Instant::now() + PATIENCE;
        let dialled = loop {
            match dialled.recv_timeout(Duration::from_millis(1)) {
                Ok((result, _)) => break result.map_err(failed("dialling"))?,
                Err(_) if Instant::now() > deadline => return Err("dialling never ended".into()),
                Err(_) => expect_nothing(&mut *accepted)?,
            }
        };
        Pair::new(dialled, accepted, notice)
    }

    /// A link on which both sides have spoken.
    fn pair(&self, listener: &mut dyn Listener, notice: Notice) -> Found<Pair> {
        let mut pair = self.fresh(listener, notice)?;
        for from in SIDES {
            pair.run(&mut [flow(from, 1, &[1])])?;
        }
        Ok(pair)
    }
}

type Dialled = (io::Result<Box<dyn Link>>, bool);

fn accept(listener: &mut dyn Listener) -> Found<Box<dyn Link>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ready = socket::wait(listener.as_fd(), PollFlags::IN, deadline);
        if !ready.map_err(failed("polling the listener"))? {
            return Err("a listener that was dialled never became ready".into());
        }
        match uninterrupted(|| unless_blocked(listener.accept())).map_err(failed("accepting"))? {
            Some(link) => return Ok(link),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Reads from a link whose other end said nothing. It may use that to get ready.
fn expect_nothing(link: &mut dyn Link) -> Found {
    match uninterrupted(|| unless_blocked(link.read(&mut [0]))).map_err(failed("reading"))? {
        None => Ok(()),
        Some(0) => Err("the end came, which nobody said".into()),
        Some(_) => Err("bytes came that nobody sent".into()),
    }
}

impl End {
    fn new(link: Box<dyn Link>, side: Side) -> Self {
        Self { link, side, may_read: true, may_write: true }
    }

    /// One read of a flow: how many bytes, or `None` for `WouldBlock`.
    fn read(&mut self, size: usize, vectored: bool) -> Found<Option<Vec<u8>>> {
        let mut bytes = vec![0xee; size];
        let read = uninterrupted(|| {
            if !vectored {
                return unless_blocked(self.link.read(&mut bytes));
            }
            let (first, second) = bytes.split_at_mut(size / 3);
            let mut pieces =
                [IoSliceMut::new(&mut []), IoSliceMut::new(first), IoSliceMut::new(second)];
            unless_blocked(self.link.read_vectored(&mut pieces))
        });
        let Some(read) = read.map_err(failed("reading"))? else {
            self.may_read = false;
            return Ok(None);
        };
        if read > size {
            return Err(format!("a read into {size} bytes returned {read}"));
        }
        bytes.truncate(read);
        Ok(Some(bytes))
    }

    /// One write of a flow: how many bytes were taken, or `None` for `WouldBlock`.
    fn write(&mut self, bytes: &[u8], vectored: bool) -> Found<Option<usize>> {
        let taken = uninterrupted(|| {
            if !vectored {
                return unless_blocked(self.link.write(bytes));
            }
            let (first, second) = bytes.split_at(bytes.len() / 3);
            let pieces = [&[], first, &[], second].map(IoSlice::new);
            unless_blocked(self.link.write_vectored(&pieces))
        });
        match taken.map_err(failed("writing"))? {
            Some(0) => Err(format!("a write of {} bytes took none", bytes.len())),
            Some(taken) if taken > bytes.len() => {
                Err(format!("a write of {} bytes took {taken}", bytes.len()))
            }
            None => {
                self.may_write = false;
                Ok(None)
            }
            taken => Ok(taken),
        }
    }

    /// One flush: whether it went through.
    fn flush(&mut self) -> Found<bool> {
        let promised = !self.link.has_unflushed();
        let flushed = uninterrupted(|| unless_blocked(self.link.flush()));
        let flushed = flushed.map_err(failed("flushing"))?.is_some();
        if promised && !flushed {
            return Err("flush said WouldBlock after has_unflushed said false".into());
        }
        if flushed && self.link.has_unflushed() {
            return Err("has_unflushed says true after a flush went through".into());
        }
        self.may_write &= flushed;
        Ok(flushed)
    }
}

impl Flow {
    fn is_done(&self) -> bool {
        self.received == self.total
    }

    fn size(&mut self) -> usize {
        self.steps += 1;
        self.sizes[self.steps % self.sizes.len()]
    }

    /// Writes what can be written: whether that was anything.
    fn send(&mut self, end: &mut End) -> Found<bool> {
        if !end.may_write {
            return Ok(false);
        }
        let size = self.size().min(self.total - self.sent);
        if size == 0 {
            return Ok(end.link.has_unflushed() && end.flush()?);
        }
        let bytes = pattern(self.seed, self.sent, size);
        let taken = end.write(&bytes, self.vectored)?;
        self.sent += taken.unwrap_or(0);
        Ok(taken.is_some())
    }

    /// Reads what can be read: whether that was anything.
    fn receive(&mut self, end: &mut End) -> Found<bool> {
        if !end.may_read || self.is_done() {
            return Ok(false);
        }
        let size = self.size();
        if !self.steps.is_multiple_of(self.pace) {
            return Ok(true);
        }
        let Some(bytes) = end.read(size, self.vectored)? else { return Ok(false) };
        if bytes.is_empty() {
            return Err(format!("the end came after {} of {} bytes", self.received, self.total));
        }
        let expected = pattern(self.seed, self.received, bytes.len());
        if bytes != expected {
            let same =
                bytes.iter().zip(&expected).take_while(|(got, wanted)| got == wanted).count();
            let at = self.received + same;
            return Err(format!("byte {at} of {} is another than was sent", self.total));
        }
        self.received += bytes.len();
        if self.received > self.sent {
            return Err(format!("{} bytes came of {} that were sent", self.received, self.sent));
        }
        Ok(true)
    }
}

impl Pair {
    fn new(dialled: Box<dyn Link>, accepted: Box<dyn Link>, notice: Notice) -> Found<Self> {
        let selector = Poll::new().map_err(failed("making a selector"))?;
        let ends = [End::new(dialled, Side::Dialled), End::new(accepted, Side::Accepted)];
        for end in &ends {
            let fd = end.link.as_fd().as_raw_fd();
            let interest = Interest::READABLE | Interest::WRITABLE;
            selector
                .registry()
                .register(&mut SourceFd(&fd), mio::Token(end.side as usize), interest)
                .map_err(failed("registering a link with a selector"))?;
        }
        Ok(Self { ends, selector, notice })
    }

    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    /// Carries flows until they have arrived.
    fn run(&mut self, flows: &mut [Flow]) -> Found {
        let mut moved = Instant::now();
        while flows.iter().any(|flow| !flow.is_done()) {
            let mut progress = false;
            for flow in &mut *flows {
                progress |= flow.send(self.end(flow.from))?;
                progress |= flow.receive(self.end(flow.from.other()))?;
            }
            let receives =
                |side: Side| flows.iter().any(|flow| flow.from != side && !flow.is_done());
            for end in &mut self.ends {
                // Whoever waits for a flush also reads.
                if end.link.has_unflushed() && end.may_read && !receives(end.side) {
                    expect_nothing(&mut *end.link)?;
                    end.may_read = false;
                }
            }
            if progress {
                moved = Instant::now();
                continue;
            }
            let waited = if moved.elapsed() > PATIENCE {
                Err("both ends are ready, and nothing moves".into())
            } else {
                self.wait(PATIENCE, true)
            };
            let left: usize = flows.iter().map(|flow| flow.total - flow.received).sum();
            waited.map_err(|found| format!("{found}, with {left} bytes to go"))?;
        }
        Ok(())
    }

    /// Waits until a side that said `WouldBlock` may go on; for writing only if `writers`.
    fn wait(&mut self, patience: Duration, writers: bool) -> Found {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let news = match self.notice {
                Notice::Edge => self.select(left)?,
                Notice::Level => self.poll(left, writers)?,
            };
            if news {
                return Ok(());
            }
            if left.is_zero() {
                return Err(format!("no end became ready ({:?})", self.notice));
            }
        }
    }

    fn select(&mut self, left: Duration) -> Found<bool> {
        let mut events = Events::with_capacity(8);
        match self.selector.poll(&mut events, Some(left)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(failed("selecting")(error));
            }
            _ => {}
        }
        let mut news = false;
        for event in &events {
            let end = &mut self.ends[event.token().0];
            let over = event.is_read_closed() || event.is_error();
            let (read, write) = (event.is_readable() || over, event.is_writable() || over);
            news |= (read && !end.may_read) || (write && !end.may_write);
            end.may_read |= read;
            end.may_write |= write;
        }
        Ok(news)
    }

    fn poll(&mut self, left: Duration, writers: bool) -> Found<bool> {
        let flags = |end: &End| {
            let read = if end.may_read { PollFlags::empty() } else { PollFlags::IN };
            let write = writers && !end.may_write;
            if write { read | PollFlags::OUT } else { read }
        };
        let mut fds: Vec<_> =
            self.ends.iter().map(|end| PollFd::new(&end.link, flags(end))).collect();
        let left = socket::timespec(left);
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("polling")(error.into())),
        }
        let over = PollFlags::HUP | PollFlags::ERR;
        let ready: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let mut news = false;
        for (end, ready) in self.ends.iter_mut().zip(ready) {
            let read = ready.intersects(PollFlags::IN | over);
            let write = ready.intersects(PollFlags::OUT | over);
            news |= (read && !end.may_read) || (write && !end.may_write);
            end.may_read |= read;
            end.may_write |= write;
        }
        Ok(news)
    }

    /// Reads at one side until something comes or ends: the bytes, or how the read failed.
    fn read_at(&mut self, side: Side) -> Found<io::Result<Vec<u8>>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let end = self.end(side);
            if end.may_read {
                let mut bytes = vec![0; 4096];
                match uninterrupted(|| unless_blocked(end.link.read(&mut bytes))) {
                    Ok(None) => end.may_read = false,
                    Ok(Some(read)) => {
                        bytes.truncate(read);
                        return Ok(Ok(bytes));
                    }
                    Err(error) => return Ok(Err(error)),
                }
                continue;
            }
            self.wait(deadline.saturating_duration_since(Instant::now()), false)?;
        }
    }

    /// Reads at one side until it could only wait, with nothing to be read.
    fn exhaust(&mut self, side: Side) -> Found {
        let end = self.end(side);
        expect_nothing(&mut *end.link)?;
        end.may_read = false;
        Ok(())
    }

    /// Says at one side that nothing more will come.
    fn finish(&mut self, side: Side) -> Found {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let finished = uninterrupted(|| unless_blocked(self.end(side).link.finish()));
            if finished.map_err(failed("finishing"))?.is_some() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err("finish said WouldBlock for too long".into());
            }
            let end = self.end(side);
            expect_nothing(&mut *end.link)?;
            (end.may_read, end.may_write) = (false, false);
            self.wait(PATIENCE, true)?;
        }
    }

    fn expect_end(&mut self, side: Side) -> Found {
        match self.read_at(side)?.map_err(failed("reading the end"))?.len() {
            0 => Ok(()),
            more => Err(format!("{more} bytes came after the last")),
        }
    }
}

fn listening(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    let address = listener.address();
    if let Address::Tcp { port: 0, .. } | Address::Tls { port: 0, .. } = address {
        return Err(format!("{address} does not tell the port"));
    }
    let nobody = |listener: &mut dyn Listener| match unless_blocked(listener.accept()) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err("a link was accepted that nobody dialled".to_owned()),
        Err(error) => Err(failed("accepting nobody")(error)),
    };
    nobody(&mut *listener)?;
    let mut selector = Poll::new().map_err(failed("making a selector"))?;
    let fd = listener.as_fd().as_raw_fd();
    let (token, interest) = (mio::Token(0), Interest::READABLE);
    let registered = selector.registry().register(&mut SourceFd(&fd), token, interest);
    registered.map_err(failed("registering a listener with a selector"))?;
    for crowd in [1, 3] {
        let dialled: Vec<_> =
            (0..crowd).map(|_| stage.dialling(&address, Duration::from_millis(300))).collect();
        let mut accepted = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while accepted.len() < crowd {
            let mut events = Events::with_capacity(8);
            let left = deadline.saturating_duration_since(Instant::now());
            match selector.poll(&mut events, Some(left)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(failed("selecting")(error));
                }
                _ => {}
            }
            if events.is_empty() && left.is_zero() {
                return Err(format!("of {crowd} who dialled, {} were announced", accepted.len()));
            }
            while let Some(link) = unless_blocked(listener.accept()).map_err(failed("accepting"))? {
                if link.peer().is_empty() {
                    return Err("a link does not say who is at its other end".into());
                }
                accepted.push(link);
            }
        }
        nobody(&mut *listener)?;
        for dialled in dialled {
            match dialled.recv_timeout(PATIENCE) {
                Ok((_, true)) => {}
                Ok((_, false)) => return Err("dial and listener tell different addresses".into()),
                Err(_) => return Err("dialling took more than its timeout".into()),
            }
        }
    }
    Ok(())
}

fn dialling(stage: &Stage) -> Found {
    let timeout = Duration::from_millis(300);
    let listener = stage.open()?;
    let address = listener.address();
    // One that is not accepted may succeed or not.
    let ended = stage.dialling(&address, timeout).recv_timeout(timeout + PATIENCE);
    let _ = ended.map_err(|_| format!("with nobody to accept, it took more than {PATIENCE:?}"))?;
    drop(listener);
    match stage.dialling(&address, timeout).recv_timeout(timeout + PATIENCE) {
        Ok((Err(_), _)) => Ok(()),
        Ok((Ok(_), _)) => Err("an address was reached at which nobody listens any more".into()),
        Err(_) => Err(format!("with nobody to listen, it took more than {PATIENCE:?}")),
    }
}

fn order(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for notice in NOTICES {
        let mut pair = stage.fresh(&mut *listener, notice)?;
        for from in SIDES {
            for vectored in [false, true] {
                pair.run(&mut [Flow { vectored, ..flow(from, 400_000, ODD_SIZES) }])?;
            }
        }
    }
    Ok(())
}

fn both_ways(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    let mut pair = stage.pair(&mut *listener, Notice::Edge)?;
    pair.run(&mut SIDES.map(|from| flow(from, 8 << 20, LARGE_SIZES)))
}

fn slow_reader(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for (from, notice) in SIDES.into_iter().zip(NOTICES) {
        let mut pair = stage.pair(&mut *listener, notice)?;
        let mut flows = [Flow { pace: 7, ..flow(from, 4 << 20, ODD_SIZES) }];
        pair.run(&mut flows)?;
    }
    Ok(())
}

fn would_block(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for from in SIDES {
        let mut pair = stage.pair(&mut *listener, Notice::Level)?;
        pair.exhaust(from)?;
        pair.exhaust(from.other())?;
        let mut flow = flow(from, usize::MAX, LARGE_SIZES);
        while flow.send(pair.end(from))? {
            if flow.sent > MAX_UNREAD {
                return Err(format!("{} bytes were taken that nobody reads", flow.sent));
            }
        }
        flow.total = flow.sent;
        pair.run(&mut [flow])?;
    }
    Ok(())
}

fn readiness(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for notice in NOTICES {
        for from in SIDES {
            let mut pair = stage.pair(&mut *listener, notice)?;
            let to = from.other();
            // A link that has just been made may have to do with itself for a while.
            let deadline = Instant::now() + PATIENCE;
            loop {
                pair.exhaust(to)?;
                let soon = Instant::now() + Duration::from_millis(20);
                let ready = socket::wait(pair.end(to).link.as_fd(), PollFlags::IN, soon);
                if !ready.map_err(failed("polling"))? {
                    break;
                }
                if Instant::now() > deadline {
                    return Err("it is always ready for a read that always says WouldBlock".into());
                }
            }
            for _ in 0..3 {
                pair.exhaust(to)?;
                pair.run(&mut [flow(from, 1, &[1])])?;
            }
            // Until nothing more goes in, until nothing more comes out, and once again.
            let mut full = flow(from, usize::MAX, LARGE_SIZES);
            while full.sent < MAX_UNREAD && full.send(pair.end(from))? {}
            full.total = full.sent + (1 << 20);
            pair.run(&mut [full])?;
        }
    }
    Ok(())
}

fn flush(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for from in SIDES {
        let mut pair = stage.pair(&mut *listener, Notice::Level)?;
        let mut flow = flow(from, 3_000_000, ODD_SIZES);
        while flow.sent < flow.total || pair.end(from).link.has_unflushed() {
            if flow.send(pair.end(from))? || flow.receive(pair.end(from.other()))? {
                continue;
            }
            pair.wait(PATIENCE, true)?;
        }
        if !pair.end(from).flush()? {
            return Err("flush said WouldBlock with nothing to do".into());
        }
        // From here on, the sender is not touched.
        while !flow.is_done() {
            if !flow.receive(pair.end(from.other()))? {
                pair.wait(PATIENCE, false)?;
            }
        }
    }
    Ok(())
}

fn finish(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for notice in NOTICES {
        for from in SIDES {
            let mut pair = stage.pair(&mut *listener, notice)?;
            let to = from.other();
            pair.exhaust(to)?;
            let mut last = flow(from, 100_000, ODD_SIZES);
            while last.sent < last.total {
                if !last.send(pair.end(from))? && !last.receive(pair.end(to))? {
                    pair.wait(PATIENCE, true)?;
                }
            }
            while pair.end(from).link.has_unflushed() && !pair.end(from).flush()? {
                last.receive(pair.end(to))?;
            }
            pair.finish(from)?;
            pair.run(&mut [last])?;
            pair.expect_end(to)?;
            pair.expect_end(to)?;
            pair.run(&mut [flow(to, 100_000, ODD_SIZES)])?;
            // The end alone makes ready, too.
            pair.exhaust(from)?;
            pair.finish(to)?;
            pair.expect_end(from)?;
        }
    }
    Ok(())
}

fn greeting(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    let dialled = stage.dialling(&listener.address(), PATIENCE);
    let mut accepted = accept(&mut *listener)?;
    let mut words = &b"no, and the reason is this one"[..];
    let deadline = Instant::now() + PATIENCE;
    while !words.is_empty() {
        let taken = uninterrupted(|| unless_blocked(accepted.write(words)));
        let taken = taken.map_err(failed("writing"))?;
        words = &words[taken.unwrap_or(0)..];
        if taken.is_none() {
            expect_nothing(&mut *accepted)?;
        }
        if Instant::now() > deadline {
            return Err("a few bytes can't be written".into());
        }
    }
    // As a server does: the end follows once all is flushed, and reading goes on.
    let mut finished = false;
    let mut dialled_link = None;
    let mut heard = Vec::new();
    while Instant::now() < deadline {
        if !finished {
            let flushed = uninterrupted(|| unless_blocked(accepted.flush()));
            if flushed.map_err(failed("flushing"))?.is_some() {
                let ended = uninterrupted(|| unless_blocked(accepted.finish()));
                finished = ended.map_err(failed("finishing"))?.is_some();
            }
        }
        expect_nothing(&mut *accepted)?;
        if let Ok((result, _)) = dialled.recv_timeout(Duration::from_millis(1)) {
            dialled_link = Some(result.map_err(failed("dialling"))?);
        }
        let Some(link) = &mut dialled_link else { continue };
        let mut bytes = [0; 64];
        match unless_blocked(link.read(&mut bytes)).map_err(failed("reading"))? {
            None => {}
            Some(0) if heard == b"no, and the reason is this one" => return Ok(()),
            Some(0) => return Err(format!("the end came after {} of 30 bytes", heard.len())),
            Some(read) => heard.extend_from_slice(&bytes[..read]),
        }
    }
    Err(format!("{} of 30 bytes came, and no end", heard.len()))
}

fn vanishing(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for unread in [0, 100_000] {
        for (gone, notice) in SIDES.into_iter().zip(NOTICES) {
            let mut pair = stage.pair(&mut *listener, notice)?;
            let left = gone.other();
            pair.exhaust(left)?;
            let mut flow = flow(left, unread, ODD_SIZES);
            while flow.sent < flow.total && flow.send(pair.end(left))? {}
            let Pair { ends, selector, notice } = pair;
            let [dialled, accepted] = ends;
            let (here, there) =
                if gone == Side::Dialled { (accepted, dialled) } else { (dialled, accepted) };
            drop(there);
            notices(here, selector, notice)?;
        }
    }
    Ok(())
}

/// Whether an end notices that the other one is gone.
fn notices(mut here: End, mut selector: Poll, notice: Notice) -> Found {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match uninterrupted(|| unless_blocked(here.link.read(&mut [0; 64]))) {
            Ok(Some(0)) | Err(_) => break,
            Ok(Some(_)) => return Err("bytes came that nobody sent".into()),
            Ok(None) => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = match notice {
            Notice::Level => socket::wait(here.link.as_fd(), PollFlags::IN, deadline),
            Notice::Edge => {
                let mut events = Events::with_capacity(8);
                selector.poll(&mut events, Some(left)).map(|()| !events.is_empty())
            }
        };
        if !ready.map_err(failed("polling"))? && left.is_zero() {
            return Err(format!("the end that is left did not become ready ({notice:?})"));
        }
    }
    while Instant::now() < deadline {
        match unless_blocked(here.link.write(&[0; 64]).and_then(|_| here.link.flush())) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Ok(()),
            // Some systems learn of it by the answer to the first bytes.
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err("writes to an end that is gone go on".into())
}

fn available(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    for from in SIDES {
        let mut pair = stage.pair(&mut *listener, Notice::Level)?;
        let to = from.other();
        pair.exhaust(to)?;
        if let Some(bytes @ 1..) = pair.end(to).link.available() {
            expect_nothing(&mut *pair.end(to).link)?;
            return Err(format!("{bytes} bytes are said to be there, and a read says WouldBlock"));
        }
        let mut flow = flow(from, 100_000, ODD_SIZES);
        while !flow.is_done() {
            if !flow.send(pair.end(from))? && !pair.end(to).may_read {
                pair.wait(PATIENCE, true)?;
            }
            let end = pair.end(to);
            let Some(said) = end.link.available().filter(|bytes| *bytes > 0) else {
                flow.receive(end)?;
                continue;
            };
            let before = flow.received;
            (flow.sizes, end.may_read) = (LARGE_SIZES, true);
            flow.receive(end)?;
            flow.sizes = ODD_SIZES;
            let read = flow.received - before;
            if read < said {
                return Err(format!("{said} bytes were said to be there, and {read} were read"));
            }
        }
    }
    Ok(())
}

fn independence(stage: &Stage) -> Found {
    let mut listener = stage.open()?;
    let pairs = (0..64).map(|_| stage.pair(&mut *listener, Notice::Level));
    let mut pairs = pairs.collect::<Found<Vec<_>>>()?;
    let mut flows: Vec<[Flow; 2]> = (0..pairs.len())
        .map(|number| {
            SIDES.map(|from| {
                let seed = number as u8 * 2 + from as u8;
                Flow { seed, ..flow(from, 10_000, &[701, 1, 90]) }
            })
        })
        .collect();
    for _ in 0..20 {
        for (pair, flows) in pairs.iter_mut().zip(&mut flows) {
            for flow in flows {
                flow.send(pair.end(flow.from))?;
            }
        }
    }
    // Each third one goes away, which the others do not notice.
    let mut number = 0;
    let stays = |_: &_| (number % 3 != 0, number += 1).0;
    let (mut left, _gone): (Vec<_>, Vec<_>) = pairs.into_iter().zip(flows).partition(stays);
    drop(_gone);
    left.iter_mut().try_for_each(|(pair, flows)| pair.run(flows))
}

/// Samples of a number and a filling that follows from it.
fn stream(filling: usize) -> Found<Arc<Stream>> {
    let leaf =
        |path: &str, dtype, shape: &[usize]| Leaf { path: path.into(), dtype, shape: shape.into() };
    let number = leaf("number", Dtype::UInt(8), &[]);
    let filling = leaf("filling", Dtype::UInt(1), &[filling]);
    let spec = Spec::new(vec![number, filling]).map_err(|error| error.to_string())?;
    let config = StreamConfig { batch_size: 8, num_buffers: 4 };
    Stream::new(spec, config).map(Arc::new).map_err(|error| error.to_string())
}

fn patient<T>(run: impl FnOnce(Wait<'_>) -> T) -> T {
    let deadline = Some(Instant::now() + LIMIT / 6);
    run(Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) })
}

/// Sends samples `0..count`, each marked with its sender.
fn produce(client: &Client, producer: u64, count: u64) -> Found {
    let told = |error: crate::client::ClientError| format!("a client failed: {error}");
    let mut number = 0;
    while number < count {
        let wanted = (count - number).min(number % 5 + 1);
        let Some(mut rows) = client.try_claim(wanted as usize).map_err(told)? else {
            patient(|wait| client.wait_for_room(wait)).map_err(told)?;
            continue;
        };
        for row in rows.bytes_mut().chunks_exact_mut(client.spec().nbytes()) {
            let (key, filling) = row.split_at_mut(8);
            key.copy_from_slice(&(producer << 32 | number).to_le_bytes());
            filling.fill(number as u8);
            number += 1;
        }
        client.commit(rows);
    }
    patient(|wait| client.close(wait)).map_err(told)
}

/// Takes samples and checks that of every producer each comes once, in order.
fn consume(stream: &Arc<Stream>, producers: u64, count: u64) -> Found {
    let mut next = vec![0; producers as usize];
    for _ in 0..(producers * count) / stream.batch_size() as u64 {
        let batch = patient(|wait| stream.take(wait));
        let batch = batch.map_err(|error| format!("samples are missing: {error}, got {next:?}"))?;
        let (keys, fillings) = (batch.column(0), batch.column(1));
        let filling = fillings.len() / batch.rows();
        for (key, filling) in keys.chunks_exact(8).zip(fillings.chunks_exact(filling)) {
            let key = key.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let (producer, number) = (key >> 32, key & 0xffff_ffff);
            let expected = next.get_mut(producer as usize);
            let expected = expected.ok_or_else(|| format!("a sample of nobody: {key:#x}"))?;
            if number != *expected {
                return Err(format!("producer {producer}: sample {number}, not {expected}"));
            }
            *expected += 1;
            if filling.iter().any(|byte| *byte != number as u8) {
                return Err(format!("producer {producer}: sample {number} has wrong bytes"));
            }
        }
    }
    Ok(())
}

/// Has clients send to a server; `wrap` may change how they connect.
fn session(
    stage: &Stage,
    (filling, producers, count): (usize, u64, u64),
    wrap: &dyn Fn(Box<dyn Dial>) -> Box<dyn Dial>,
) -> Found {
    let stream = stream(filling)?;
    let token = Token::new(b"for a transport that strangers can reach").ok();
    let options = ServerOptions { token: token.clone(), threads: 2, ..ServerOptions::default() };
    let server = Server::open(&*stage.listen, Arc::clone(&stream), options);
    let mut server = server.map_err(|error| format!("no server could be opened: {error}"))?;
    std::thread::scope(|scope| {
        let mut sending = Vec::new();
        for producer in 0..producers {
            let dial = wrap((stage.dial)(server.address()));
            let window_bytes = 64 * stream.spec().nbytes().min(10_000);
            let options =
                ClientOptions { token: token.clone(), window_bytes, ..ClientOptions::default() };
            let client = Client::new(dial, stream.spec().clone(), options);
            let client = client.map_err(|error| format!("no client could be made: {error}"))?;
            sending.push(scope.spawn(move || produce(&client, producer, count)));
        }
        let taken = consume(&stream, producers, count);
        for sender in sending {
            // What was not taken keeps a sender waiting, and is the better reason.
            taken.clone()?;
            sender.join().map_err(|_| "a client panicked")??;
        }
        taken
    })?;
    if stream.try_take().is_some() {
        return Err("more samples came than were sent".into());
    }
    server.close(Instant::now() + PATIENCE);
    Ok(())
}

fn delivery(stage: &Stage) -> Found {
    session(stage, (24, 4, 4_000), &|dial| dial)?;
    session(stage, (300_000, 2, 48), &|dial| dial)
}

/// Breaks its first links after some bytes, each after more than the one before.
struct Breaking {
    dial: Box<dyn Dial>,
    links: AtomicUsize,
}

/// How many links break, and after how many bytes more than the one before.
const BREAKS: usize = 8;
const BREAK_AFTER: usize = 3_001;

struct Brittle {
    link: Box<dyn Link>,
    /// How many bytes it lets through, either way.
    left: usize,
}

impl Dial for Breaking {
    fn dial(&self, timeout: Duration) -> io::Result<Box<dyn Link>> {
        let link = self.dial.dial(timeout)?;
        let links = self.links.fetch_add(1, Ordering::Relaxed) + 1;
        let left = if links > BREAKS { usize::MAX } else { links * BREAK_AFTER };
        Ok(Box::new(Brittle { link, left }))
    }

    fn address(&self) -> Address {
        self.dial.address()
    }
}

impl Brittle {
    fn pass(
        &mut self,
        call: impl FnOnce(&mut dyn Link, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let passed = call(&mut *self.link, self.left)?;
        self.left -= passed;
        Ok(passed)
    }
}

impl io::Read for Brittle {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.pass(|link, left| {
            let most = bytes.len().min(left);
            link.read(&mut bytes[..most])
        })
    }
}

impl io::Write for Brittle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pass(|link, left| link.write(&bytes[..bytes.len().min(left)]))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }
}

impl AsFd for Brittle {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl Link for Brittle {
    fn has_unflushed(&self) -> bool {
        self.link.has_unflushed()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.link.finish()
    }

    fn peer(&self) -> String {
        self.link.peer()
    }
}

fn recovery(stage: &Stage) -> Found {
    let wrap = |dial| Box::new(Breaking { dial, links: AtomicUsize::new(0) }) as Box<dyn Dial>;
    session(stage, (24, 2, 4_000), &wrap)?;
    session(stage, (20_000, 1, 64), &wrap)
}
