//! A client on the server's machine, which writes samples into the ring's memory itself.
//!
//! There is no window and nothing to acknowledge: a sample is stored when its writer commits it. The
//! thread of a [`MemoryClient`], the watcher, keeps the socket over which the memory came: its end tells
//! either side of the other's death. When the server is gone, the watcher looks for the next one.
//!
//! # Invariants
//!
//! 1. The socket of a mapping is closed only after the last writer in that mapping is done: for the
//!    server, the end of the socket means that no process writes any more.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use echoic_memory::sync::{Condvar, Mutex, RwLock};
use echoic_memory::{Layout, RemoteStore, Unavailable, Writer};
use echoic_replay::stream::Wait;
use echoic_replay::{Spec, WaitReason};
use rustix::event::{PollFd, PollFlags, poll};

use super::link::{ClientHandshake, LinkError, first_frame, timespec, use_control};
use super::reconnector::{ConnectionState, Patience, Reconnector, WakeReceiver, on_death};
use super::{ClientError, ClientInfo, Options};
use crate::address::Address;
use crate::transport::{Dial, Link};
use crate::wire::WireError;
use crate::wire::frame::{Control, HEADER_BYTES, MAX_CONTROL};
use crate::wire::handshake::{ProducerId, Purpose};

/// How often what was written is reported to the server.
const REPORT: Duration = Duration::from_millis(100);
/// How often a thread that waits for room checks whether the server is still there.
const LOOK: Duration = Duration::from_millis(50);

struct MappedStream {
    spec: Spec,
    reconnector: Reconnector,
    /// The ring, while a connection stands.
    store: RwLock<Option<Arc<RemoteStore>>>,
    /// Wakes the threads that wait for a change of state.
    turn: Arc<(Mutex<u64>, Condvar)>,
    samples: AtomicU64,
    blocked: AtomicU64,
    blocked_nanos: AtomicU64,
}

/// See the [module](self).
pub struct MemoryClient {
    shared: Arc<MappedStream>,
}

impl MemoryClient {
    /// A client of the server that `dial` reaches. It connects in the background: see
    /// [`MemoryClient::wait_until_connected`].
    pub fn new(dial: Box<dyn Dial>, spec: Spec, options: Options) -> Result<Self, ClientError> {
        let system = |error: io::Error| ClientError::System(error.to_string());
        crate::wire::spec::check(&spec).map_err(ClientError::Spec)?;
        let turn = Arc::new((Mutex::new(0), Condvar::new()));
        let changed = Arc::clone(&turn);
        let changed = move || {
            *changed.0.lock() += 1;
            changed.1.notify_all();
        };
        let (reconnector, wakes) = Reconnector::new(dial, options, changed).map_err(system)?;
        let shared = Arc::new(MappedStream {
            spec,
            reconnector,
            store: RwLock::new(None),
            turn,
            samples: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            blocked_nanos: AtomicU64::new(0),
        });
        let watcher = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("echoic-watcher".into());
        let watch = move || {
            let _mourned = on_death(&watcher.reconnector);
            watcher.watch(&wakes);
        };
        thread.spawn(watch).map_err(system)?;
        Ok(Self { shared })
    }

    /// What samples look like.
    pub fn spec(&self) -> &Spec {
        &self.shared.spec
    }

    /// Where the server is.
    pub fn address(&self) -> Address {
        self.shared.reconnector.address()
    }

    /// How the server identifies this client.
    pub fn producer(&self) -> ProducerId {
        self.shared.reconnector.producer
    }

    /// Waits until the server has accepted this client.
    pub fn wait_until_connected(&self, wait: Wait<'_>) -> Result<(), ClientError> {
        let shared = &self.shared;
        shared.wait(wait, || shared.reconnector.stands().then_some(()))
    }

    /// Stores samples until `pushed` is `samples` or the next would have to wait; whether all are
    /// stored. `fill` writes those from a number on into the room that there is for them.
    #[inline]
    pub fn push(
        &self,
        samples: usize,
        pushed: &mut usize,
        mut fill: impl FnMut(&mut Writer<'_>, usize),
    ) -> Result<bool, ClientError> {
        if let Some(refusal) = self.shared.reconnector.refusal() {
            return Err(refusal);
        }
        let Some(store) = self.shared.store() else { return Ok(false) };
        while *pushed < samples {
            let Ok(mut writer) = store.try_reserve(samples - *pushed) else { return Ok(false) };
            let len = writer.len();
            fill(&mut writer, *pushed);
            // The server sets the time of completion, by its own clock.
            if writer.try_commit(|| 0).is_err() {
                // We were away for so long that our slots were given to others.
                self.shared.abandon(&store);
                return Ok(false);
            }
            *pushed += len;
            self.shared.samples.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Waits until a push may succeed. Another producer may be faster, so try in a loop.
    pub fn wait_for_room(&self, mut wait: Wait<'_>) -> Result<(), ClientError> {
        let shared = &self.shared;
        let since = Instant::now();
        let waited = wait.until(|until| {
            loop {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                let pause = left.map_or(LOOK, |left| left.min(LOOK));
                if let Some(refusal) = shared.reconnector.refusal() {
                    return ControlFlow::Break(Err(refusal));
                }
                let Err(reason) = shared.room(pause) else { return ControlFlow::Break(Ok(())) };
                if left.is_some_and(|left| left.is_zero()) {
                    return ControlFlow::Continue(reason);
                }
            }
        });
        shared.blocked.fetch_add(1, Ordering::Relaxed);
        let nanos = since.elapsed().as_nanos() as u64;
        shared.blocked_nanos.fetch_add(nanos, Ordering::Relaxed);
        waited?
    }

    /// What was pushed is stored already; an error says that the client has given up since.
    pub fn flush(&self) -> Result<(), ClientError> {
        // The server's numbers are to be up to date as well.
        self.shared.reconnector.ring();
        match self.shared.reconnector.ending() {
            Some(error @ ClientError::Failed(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes no more samples; [`MemoryClient::close`] then waits only for the attempt to connect that is under
    /// way.
    pub fn give_up(&self) {
        self.shared.reconnector.quit();
    }

    /// Takes no more samples and lets go of the ring.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the wait ended first.
    pub fn close(&self, wait: Wait<'_>) -> Result<(), ClientError> {
        let shared = &self.shared;
        shared.reconnector.close();
        match shared.wait(wait, || shared.reconnector.is_over().then_some(())) {
            // Nothing is undelivered, so it does not matter that the server is gone.
            Ok(()) | Err(ClientError::Failed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether it takes no more samples.
    pub fn is_closed(&self) -> bool {
        self.shared.reconnector.refusal().is_some()
    }

    /// A snapshot of its numbers.
    pub fn info(&self) -> ClientInfo {
        let shared = &self.shared;
        let samples = shared.samples.load(Ordering::Relaxed);
        let bytes_per_sample = shared.spec.nbytes() as u64;
        ClientInfo {
            samples_sent: samples,
            samples_acked: samples,
            bytes_per_sample,
            bytes_sent: samples.saturating_mul(bytes_per_sample),
            reconnects: shared.reconnector.returns(),
            blocked_sends: shared.blocked.load(Ordering::Relaxed),
            blocked_time: shared.blocked_nanos.load(Ordering::Relaxed) as f64 * 1e-9,
            connected: shared.reconnector.stands(),
            ..ClientInfo::default()
        }
    }
}

impl Drop for MemoryClient {
    fn drop(&mut self) {
        self.shared.reconnector.close();
    }
}

impl MappedStream {
    #[inline]
    fn store(&self) -> Option<Arc<RemoteStore>> {
        self.store.read().clone()
    }

    /// Writes no more into this ring.
    fn abandon(&self, store: &Arc<RemoteStore>) {
        let mut current = self.store.write();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, store)) {
            *current = None;
            drop(current);
            self.reconnector.ring();
        }
    }

    /// Waits for room, but not for long.
    fn room(&self, pause: Duration) -> Result<(), WaitReason> {
        let Some(store) = self.store() else {
            let turn = self.turn.0.lock();
            // A change that comes before this sleep is seen after it.
            drop(self.turn.1.wait_timeout(turn, pause));
            return Err(WaitReason::Away);
        };
        match store.wait_for_room(Some(Instant::now() + pause)) {
            Ok(()) => Ok(()),
            Err(Unavailable::Blocked(blocked)) => Err(blocked.into()),
            Err(Unavailable::Closed) => {
                self.abandon(&store);
                Err(WaitReason::Away)
            }
        }
    }

    /// Waits until `poll` has a result, or the watcher has ended, which is an error here.
    fn wait<T>(
        &self,
        mut wait: Wait<'_>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, ClientError> {
        wait.until(|until| {
            let mut turn = self.turn.0.lock();
            loop {
                if let Some(found) = poll() {
                    return ControlFlow::Break(Ok(found));
                }
                if let Some(ending) = self.reconnector.ending() {
                    // Once more: the end may have brought the result.
                    return ControlFlow::Break(poll().ok_or(ending));
                }
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                turn = match left {
                    None => self.turn.1.wait(turn),
                    Some(Duration::ZERO) => return ControlFlow::Continue(WaitReason::Away),
                    Some(left) => self.turn.1.wait_timeout(turn, left),
                };
            }
        })?
    }

    /// The watcher's life.
    fn watch(&self, wakes: &WakeReceiver) {
        let state = loop {
            let attempt = |deadline| match self.reconnector.is_closing() {
                true => Ok(None),
                false => self.attempt(deadline).map(Some),
            };
            let mut link = match self.reconnector.connect(wakes, &mut Patience::default(), attempt)
            {
                Ok(Some(link)) => link,
                Ok(None) => break ConnectionState::Closed,
                Err(failure) => break ConnectionState::Failed(failure),
            };
            let kept = self.keep(&mut *link, wakes);
            self.let_go();
            // Nobody writes any more, so the server may take back what is unfinished.
            drop(link);
            match kept {
                Ok(()) => break ConnectionState::Closed,
                Err(error) if error.is_temporary() => {
                    self.reconnector.set_state(ConnectionState::Away)
                }
                Err(error) => break ConnectionState::Failed(self.reconnector.failure(error, 0)),
            }
        };
        self.reconnector.set_state(state);
    }

    /// Connects once, and maps the ring.
    fn attempt(&self, deadline: Instant) -> Result<Box<dyn Link>, LinkError> {
        let token = self.reconnector.options.token.as_ref();
        let open = self.reconnector.open(Purpose::Memory, 0, Some(&self.spec));
        let (mut handshake, _) =
            ClientHandshake::new(&*self.reconnector.dial(), token, open, deadline)?;
        let (header, payload) = handshake.frame()?;
        let Control::Memory { owner, layout } = Control::read(header, &payload)? else {
            return Err(WireError::Unexpected { expected: "MEMORY", got: header.kind }.into());
        };
        let missing = || LinkError::Lost("the server sent no memory".into());
        let file = handshake.memory.take().ok_or_else(missing)?;
        let layout = Layout::from_words(layout);
        let store = RemoteStore::attach(file, &layout, self.spec.leaf_bytes(), owner)
            .map_err(|error| LinkError::Memory(error.to_string()))?;
        let mut current = self.store.write();
        *current = Some(Arc::new(store));
        Ok(handshake.link)
    }

    /// Takes the ring away from the pushing threads, and waits until the last of them is done with it.
    fn let_go(&self) {
        let store = self.store.write().take();
        let Some(mut store) = store else { return };
        loop {
            match Arc::try_unwrap(store) {
                Ok(_) => return,
                Err(shared) => store = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Keeps a connection until the client is closed, or it is lost.
    fn keep(&self, link: &mut dyn Link, wakes: &WakeReceiver) -> Result<(), LinkError> {
        let mut input = Vec::new();
        let mut reported = (0, 0);
        loop {
            self.report(link, &mut reported)?;
            if self.reconnector.is_closing() {
                return Ok(());
            }
            if self.store().is_none() {
                return Err(LinkError::Lost("the ring is not ours any more".into()));
            }
            let fd = link.as_fd();
            let mut fds =
                [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(wakes, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(REPORT))) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            if !fds[1].revents().is_empty() {
                wakes.drain();
            }
            listen(link, &mut input)?;
        }
    }

    /// Tells the server what was written and how long that waited, if there is something new.
    fn report(&self, link: &mut dyn Link, reported: &mut (u64, u64)) -> Result<(), LinkError> {
        let samples = self.samples.load(Ordering::Relaxed);
        let waited = self.blocked_nanos.load(Ordering::Relaxed);
        if (samples, waited) == *reported {
            return Ok(());
        }
        let mut output = Vec::new();
        Control::Report { samples, waited }.write(&mut output);
        match link.write(&output) {
            Ok(written) if written == output.len() => *reported = (samples, waited),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // A report is far smaller than any socket's buffer.
            Ok(_) => return Err(LinkError::Lost("the socket took half a report".into())),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Hears what the server has to say.
fn listen(link: &mut dyn Link, input: &mut Vec<u8>) -> Result<(), LinkError> {
    let mut bytes = [0; 512];
    loop {
        match link.read(&mut bytes) {
            Ok(0) => return Err(LinkError::Lost("the server closed the connection".into())),
            Ok(read) => input.extend_from_slice(&bytes[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        while let Some((header, payload)) = first_frame(input, |_| MAX_CONTROL)? {
            // A PING is not answered: that the socket is open says enough.
            use_control(header, payload, |_| {})?;
            input.drain(..HEADER_BYTES + header.len as usize);
        }
    }
}
