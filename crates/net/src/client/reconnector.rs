//! What a client shares with the thread that keeps its connection, whatever goes over it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use echoic_memory::sync::Mutex;
use echoic_replay::Spec;
use rustix::event::{PollFd, PollFlags, poll};

use super::link::{LinkError, timespec};
use super::{ClientError, Failure, Options, own_name};
use crate::address::Address;
use crate::auth::random;
use crate::transport::Dial;
use crate::wire::handshake::{Open, ProducerId, Purpose};

/// The first pause after a failed attempt to connect, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Where a connection is.
#[derive(Debug)]
pub(super) enum ConnectionState {
    /// None stands.
    Away,
    Established,
    /// All is delivered, and the client is closed.
    Closed,
    /// The client gave up.
    Failed(Failure),
}

/// What a client has spent on one place of a server since it was last served there. It goes on from one connection to the
/// next: one that is made and ends before anything is acknowledged is an attempt like those that fail.
#[derive(Debug)]
pub(super) struct Patience {
    /// How often the server had moved.
    moves: u64,
    /// Time without a connection.
    spent: Duration,
    attempts: u32,
    pause: Duration,
}

impl Patience {
    fn at(moves: u64) -> Self {
        Self { moves, spent: Duration::ZERO, attempts: 0, pause: FIRST_BACKOFF }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::at(0)
    }
}

/// See the [module](self).
pub(super) struct Reconnector {
    /// Where the server is, and how often that was another place.
    dial: Mutex<Arc<dyn Dial>>,
    moves: AtomicU64,
    /// How often it had moved when it was last reached.
    reached: AtomicU64,
    pub(super) options: Options,
    pub(super) producer: ProducerId,
    epoch: u64,
    state: Mutex<ConnectionState>,
    /// Wakes the threads that wait for a change of state.
    changed: Box<dyn Fn() + Send + Sync>,
    /// No more samples are taken.
    closing: AtomicBool,
    /// What is left is not to be delivered there.
    quitting: AtomicBool,
    /// The thread has ended.
    over: AtomicBool,
    /// How many connections have stood.
    connections: AtomicU64,
    /// Why the last attempt failed, if that will not pass by itself.
    trouble: Mutex<Option<LinkError>>,
    waker: UnixStream,
}

impl std::fmt::Debug for Reconnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// Where the thread is woken.
pub(super) struct WakeReceiver(UnixStream);

impl Reconnector {
    pub(super) fn new(
        dial: Box<dyn Dial>,
        options: Options,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<(Self, WakeReceiver)> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let producer = options.producer.map_or_else(random, Ok)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let reconnector = Self {
            dial: Mutex::new(dial.into()),
            moves: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            options,
            producer,
            epoch: now.as_nanos() as u64,
            state: Mutex::new(ConnectionState::Away),
            changed: Box::new(changed),
            closing: AtomicBool::new(false),
            quitting: AtomicBool::new(false),
            over: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            trouble: Mutex::new(None),
            waker,
        };
        Ok((reconnector, WakeReceiver(wakes)))
    }

    /// How to reach the server.
    pub(super) fn dial(&self) -> Arc<dyn Dial> {
        Arc::clone(&self.dial.lock())
    }

    /// Where it is.
    pub(super) fn address(&self) -> Address {
        self.dial.lock().address()
    }

    /// From now on the server is to be found there: a connection that stands is left, and what it has not
    /// delivered goes over the next one.
    pub(super) fn redirect(&self, dial: Box<dyn Dial>) {
        {
            let current = &mut *self.dial.lock();
            if current.address() == dial.address() {
                return;
            }
            *current = dial.into();
            // While the lock is held: a thread that has read the number finds the place that belongs to it, or a later one.
            self.moves.fetch_add(1, Ordering::Release);
        }
        self.ring();
    }

    /// How often the server has moved. Whoever asks for this first, and then for [`Reconnector::dial`], knows by it whether
    /// that is still the place.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// A connection is about to stand to where the server was after this many moves.
    pub(super) fn note_reached(&self, moves: u64) {
        self.reached.store(moves, Ordering::Release);
    }

    /// Whether a connection stands to where the server is said to be now.
    pub(super) fn has_arrived(&self) -> bool {
        self.stands() && self.reached.load(Ordering::Acquire) == self.moves()
    }

    /// Whether an error need not be the end, because the owner of this client may know another address.
    pub(super) fn bears(&self, error: &LinkError) -> bool {
        // A client that is closing hardly gets another address.
        error.is_temporary() || (self.options.steadfast && !self.is_closing())
    }

    /// Why there is no connection, if that will not pass by itself.
    pub(super) fn trouble(&self) -> Option<LinkError> {
        self.trouble.lock().clone()
    }

    /// Takes note of an error that is borne.
    pub(super) fn note_trouble(&self, error: &LinkError) {
        *self.trouble.lock() = (!error.is_temporary()).then(|| error.clone());
    }

    pub(super) fn set_state(&self, state: ConnectionState) {
        let over = matches!(state, ConnectionState::Closed | ConnectionState::Failed(_));
        *self.state.lock() = state;
        if over {
            self.over.store(true, Ordering::Release);
        }
        (self.changed)();
    }

    pub(super) fn stands(&self) -> bool {
        matches!(*self.state.lock(), ConnectionState::Established)
    }

    /// Takes no more samples, and lets the thread finish.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.ring();
        (self.changed)();
    }

    /// Takes no more samples, and has the thread give up what is left.
    pub(super) fn quit(&self) {
        self.quitting.store(true, Ordering::Release);
        self.close();
    }

    /// Why the thread is to give up, if it is.
    pub(super) fn quits(&self) -> Option<LinkError> {
        let quitting = self.quitting.load(Ordering::Acquire);
        quitting.then(|| LinkError::Lost("the client was asked to give up".into()))
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// How often the client came back.
    pub(super) fn returns(&self) -> u64 {
        self.connections.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// Wakes the thread.
    pub(super) fn ring(&self) {
        // A full socket wakes already, and one that is broken has no reader.
        let _ = (&self.waker).write(&[1]);
    }

    /// Why nothing can be awaited any more, if so.
    pub(super) fn ending(&self) -> Option<ClientError> {
        if !self.is_over() {
            return None;
        }
        match &*self.state.lock() {
            ConnectionState::Failed(failure) => Some(ClientError::Failed(failure.clone())),
            _ => Some(ClientError::Closed),
        }
    }

    /// Why no sample is taken any more, if so.
    #[inline]
    pub(super) fn refusal(&self) -> Option<ClientError> {
        if !self.is_closing() && !self.is_over() {
            return None;
        }
        Some(self.ending().unwrap_or(ClientError::Closed))
    }

    /// The server has acknowledged something, so nothing of what it refused before is left.
    pub(super) fn note_served(&self) {
        *self.trouble.lock() = None;
    }

    /// That the client gives up because of an error.
    pub(super) fn failure(&self, error: LinkError, attempts: u32) -> Failure {
        Failure { address: self.address(), error, attempts }
    }

    /// How the client introduces itself.
    pub(super) fn open(&self, purpose: Purpose, first: u64, spec: Option<&Spec>) -> Open {
        Open {
            proof: [0; 32],
            purpose,
            producer: self.producer,
            epoch: self.epoch,
            first,
            stream: spec.map(|_| crate::server::STREAM.into()).unwrap_or_default(),
            spec: spec.cloned(),
            name: self.options.name.clone().unwrap_or_else(own_name),
        }
    }

    /// Connects, again and again; `None` when an attempt finds that it need not.
    pub(super) fn connect<T>(
        &self,
        wakes: &WakeReceiver,
        patience: &mut Patience,
        mut attempt: impl FnMut(Instant) -> Result<Option<T>, LinkError>,
    ) -> Result<Option<T>, Failure> {
        let returning = self.connections.load(Ordering::Relaxed) > 0;
        loop {
            if let Some(error) = self.quits() {
                return Err(self.failure(error, patience.attempts));
            }
            let moves = self.moves();
            if patience.moves != moves {
                // Another place deserves all the patience.
                *patience = Patience::at(moves);
            }
            let began = Instant::now();
            let left = self.limit().map(|limit| limit.saturating_sub(patience.spent));
            let attempted = attempt(began + left.map_or(ATTEMPT, |left| left.min(ATTEMPT)));
            patience.spent += began.elapsed();
            let error = match attempted {
                Ok(None) => return Ok(None),
                Ok(connection) => {
                    self.connections.fetch_add(1, Ordering::Relaxed);
                    // That something is closed was found out by sending to it, and is true until that is taken.
                    self.trouble.lock().take_if(|trouble| !trouble.is_closed());
                    self.set_state(ConnectionState::Established);
                    return Ok(connection);
                }
                Err(error) => error,
            };
            if self.moves() != moves {
                continue;
            }
            let borne = error.is_temporary() || (returning && self.bears(&error));
            if !borne {
                return Err(self.failure(error, patience.attempts + 1));
            }
            self.rest(wakes, patience, error)?;
        }
    }

    /// How long to try to come to the server, or to come back.
    fn limit(&self) -> Option<Duration> {
        match self.connections.load(Ordering::Relaxed) {
            0 => Some(self.options.connect_timeout),
            _ => self.options.deadline,
        }
    }

    /// Takes note of an attempt that came to nothing, and rests before the next one.
    ///
    /// # Errors
    ///
    /// [`Failure`] when there is to be none.
    pub(super) fn rest(
        &self,
        wakes: &WakeReceiver,
        patience: &mut Patience,
        error: LinkError,
    ) -> Result<(), Failure> {
        patience.attempts += 1;
        let tired = self.limit().is_some_and(|limit| patience.spent + patience.pause >= limit)
            || self.options.max_retry.is_some_and(|most| patience.attempts > most);
        if tired {
            return Err(self.failure(error, patience.attempts));
        }
        self.note_trouble(&error);
        if !error.is_temporary() {
            // Another server is there now; asking often would only annoy it.
            patience.pause = LAST_BACKOFF;
        }
        let began = Instant::now();
        // Not all at the same moment, when a thousand clients lose one server.
        wakes.listen(jittered(patience.pause));
        patience.spent += began.elapsed();
        patience.pause = (patience.pause * 2).min(LAST_BACKOFF);
        Ok(())
    }
}

impl WakeReceiver {
    /// Sleeps for a while, or until it is woken.
    pub(super) fn listen(&self, pause: Duration) {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        // An interrupted pause is a shorter one.
        let _ = poll(&mut fds, Some(&timespec(pause)));
        self.drain();
    }

    /// Takes the wake-ups that came off the socket.
    pub(super) fn drain(&self) {
        let mut rings = [0; 64];
        while matches!((&self.0).read(&mut rings), Ok(read) if read == rings.len()) {}
    }
}

impl AsFd for WakeReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Has a client fail if its thread dies without having said how it ended: whoever waits would wait for
/// ever.
pub(super) fn on_death(reconnector: &Reconnector) -> impl Drop {
    struct Mourned<'a>(&'a Reconnector);
    impl Drop for Mourned<'_> {
        fn drop(&mut self) {
            if !self.0.is_over() {
                let error = LinkError::Lost("the client's thread has died".into());
                self.0.set_state(ConnectionState::Failed(self.0.failure(error, 0)));
            }
        }
    }
    Mourned(reconnector)
}

/// Half to all of a duration.
fn jittered(pause: Duration) -> Duration {
    let random = random::<1>().map_or(u8::MAX, |[byte]| byte);
    pause.mul_f64(0.5 + f64::from(random) / 510.0)
}
