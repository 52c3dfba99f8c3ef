//! The client's end of a connection: from samples to a connection, each delivered exactly once.
//!
//! A [`Client`] copies samples into a bounded [`Window`] and returns. A thread of its own, the
//! I/O thread (`io_thread`), carries them to the server and keeps each until the server has acknowledged it. When
//! the connection breaks, it comes back and goes on where the server says.
//!
//! # Invariants
//!
//! 1. A sample stays in the window until it is acknowledged, so nothing that was sent is lost while
//!    the client lives; what could not be delivered can be had back.
//! 2. Whoever waits is woken by an acknowledgement, a failure or a close, and can say what for.

mod io_thread;
mod link;
pub mod memory;
mod payload;
mod probe;
mod reconnector;
pub mod rollouts;
mod samples;
pub mod tables;
mod watch;
pub mod weights;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use echoic_memory::AllocError;
use echoic_memory::sync::Mutex;
use echoic_memory::window::{Reader, Rows, Window};
use echoic_replay::stream::Wait;
use echoic_replay::{Spec, WaitReason};

pub use link::LinkError;
pub use probe::{Probed, probe};
pub use watch::Watcher;

use self::reconnector::Reconnector;
use self::samples::{ENOUGH_BYTES, Samples};
use crate::address::Address;
use crate::auth::Token;
use crate::transport::Dial;
use crate::wire::frame::{samples_per_frame, stall_number};
use crate::wire::handshake::ProducerId;

/// How long threads that reserved rows may write them after the client's end.
const WRITING: Duration = Duration::from_secs(5);

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the server asks for.
    pub token: Option<Token>,
    /// How many bytes of samples may wait to be acknowledged.
    pub window_bytes: usize,
    /// How long a sample may wait for others to share a system call with.
    pub linger: Duration,
    /// How long to try to come back to a server; for ever, when `None`.
    pub deadline: Option<Duration>,
    /// How often to try; without limit, when `None`.
    pub max_retry: Option<u32>,
    /// How long to try to reach the server at first.
    pub connect_timeout: Duration,
    /// Identifies the client; chosen at random when `None`.
    pub producer: Option<ProducerId>,
    /// What people know it by; host and process when `None`.
    pub name: Option<String>,
    /// Once there was a connection, not to give up whatever the server, or another in its place, answers: what waits to be
    /// delivered may be wanted elsewhere.
    pub steadfast: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            window_bytes: 4 << 20,
            linger: Duration::from_micros(200),
            deadline: Some(Duration::from_secs(60)),
            max_retry: None,
            connect_timeout: Duration::from_secs(10),
            producer: None,
            name: None,
            steadfast: false,
        }
    }
}

/// What people know a client of this process by, unless it has a name of its own: host and process.
fn own_name() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host = host.chars().filter(|character| !character.is_control());
    // A host's name has at most 64 bytes.
    format!("{}:{}", host.take(64).collect::<String>(), std::process::id())
}

/// Why a client gave up.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Where the server should be.
    pub address: Address,
    /// What went wrong last.
    pub error: LinkError,
    /// How often it tried to connect.
    pub attempts: u32,
}

/// What a client can't do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Wait longer.
    #[error("the wait ended with nothing to be had")]
    TimedOut(WaitReason),
    /// The caller's own callback ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
    /// Use another client.
    #[error("the client is closed")]
    Closed,
    /// The server can't be reached, or does not want us.
    #[error("{}: {}", .0.address, .0.error)]
    Failed(Failure),
    /// A sample is larger than a frame.
    #[error("a sample of {0} bytes does not fit into a frame of 4 GiB")]
    SampleTooLarge(usize),
    /// The spec has more than the wire carries.
    #[error("the spec can't be used over a network: {0}")]
    Spec(crate::wire::WireError),
    /// Use a smaller window.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// The system refuses.
    #[error("{0}")]
    System(String),
}

echoic_replay::from_wait_over!(ClientError);

/// Statistics of a client.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClientInfo {
    /// Samples put into the window.
    pub samples_sent: u64,
    /// Samples that the server has stored.
    pub samples_acked: u64,
    /// Samples in the window.
    pub pending: u64,
    /// Samples that fit into the window.
    pub window: u64,
    /// Bytes of one sample.
    pub bytes_per_sample: u64,
    /// Bytes given to the system.
    pub bytes_sent: u64,
    /// System calls that took them.
    pub writes: u64,
    /// Times that it came back.
    pub reconnects: u64,
    /// Times that a call had to wait.
    pub blocked_sends: u64,
    /// Seconds that they waited, in total.
    pub blocked_time: f64,
    /// Whether a connection stands.
    pub connected: bool,
}

/// When a sending thread has to wake the I/O thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WakePolicy {
    /// It is awake, or waits for something else.
    Off,
    /// When there is enough to be worth a system call.
    AtEnough,
    /// At the first sample.
    AtOnce,
}

#[derive(Debug, Default)]
struct Stats {
    writes: AtomicU64,
    bytes: AtomicU64,
    blocked: AtomicU64,
    blocked_nanos: AtomicU64,
}

/// What a client and its I/O thread share.
struct StreamSender {
    spec: Spec,
    reconnector: Arc<Reconnector>,
    window: Arc<Window>,
    wake_policy: AtomicU8,
    stall: AtomicU8,
    /// Samples before this have been sent.
    sent: AtomicU64,
    /// Samples before this are to be sent at once.
    urgent: AtomicU64,
    stats: Stats,
}

/// See the [module](self).
pub struct Client {
    shared: Arc<StreamSender>,
    io_thread: Mutex<Option<JoinHandle<Samples>>>,
    /// The window's reading end, once the I/O thread has ended.
    remains: Mutex<Option<Reader>>,
}

impl StreamSender {
    /// Whether everything that was claimed is acknowledged.
    fn is_delivered(&self) -> bool {
        self.window.claimed() == self.window.released()
    }

    fn set_wake_policy(&self, wake_policy: WakePolicy) {
        self.wake_policy.store(wake_policy as u8, Ordering::Relaxed);
        if wake_policy != WakePolicy::Off {
            // Pairs with the fence in `announce`: either the sender sees the policy, or the I/O thread
            // sees the sample.
            fence(Ordering::SeqCst);
        }
    }

    fn set_stall(&self, stall: Option<WaitReason>) {
        self.stall.store(stall_number(stall), Ordering::Relaxed);
    }

    /// Tells the I/O thread about a sample, if it wants to know.
    fn announce(&self) {
        fence(Ordering::SeqCst);
        let wake_policy = self.wake_policy.load(Ordering::Relaxed);
        if wake_policy == WakePolicy::Off as u8 {
            return;
        }
        let enough = || {
            let waiting = self.window.claimed().saturating_sub(self.sent.load(Ordering::Relaxed));
            waiting.saturating_mul(self.spec.nbytes() as u64) >= ENOUGH_BYTES as u64
        };
        if (wake_policy == WakePolicy::AtOnce as u8 || enough())
            && self.wake_policy.swap(WakePolicy::Off as u8, Ordering::Relaxed)
                != WakePolicy::Off as u8
        {
            self.reconnector.ring();
        }
    }

    fn waiting(&self) -> WaitReason {
        if !self.reconnector.stands() {
            return WaitReason::Away;
        }
        WaitReason::of(self.stall.load(Ordering::Relaxed)).unwrap_or(WaitReason::Network)
    }

    /// Waits until `poll` has a result, or the I/O thread has ended, which is an error here.
    fn wait<T>(
        &self,
        mut wait: Wait<'_>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, ClientError> {
        // Once more after the end was seen: it may have brought the result.
        let look = &mut || {
            let found = poll();
            if found.is_some() {
                return found.map(Ok);
            }
            self.reconnector.ending().map(|ending| poll().ok_or(ending))
        };
        wait.until(|until| match self.window.wait(until, &mut *look) {
            Some(found) => ControlFlow::Break(found),
            None => ControlFlow::Continue(self.waiting()),
        })?
    }
}

impl Client {
    /// A client of the server that `dial` reaches. It connects in the background: see
    /// [`Client::wait_until_connected`].
    ///
    /// # Errors
    ///
    /// [`ClientError`] when there is no memory, or the spec can't be sent.
    pub fn new(dial: Box<dyn Dial>, spec: Spec, options: Options) -> Result<Self, ClientError> {
        let system = |error: std::io::Error| ClientError::System(error.to_string());
        crate::wire::spec::check(&spec).map_err(ClientError::Spec)?;
        let sample = spec.nbytes();
        if samples_per_frame(sample, 1).is_none() {
            return Err(ClientError::SampleTooLarge(sample));
        }
        let rows = options.window_bytes.checked_div(sample).unwrap_or(1 << 16);
        // Two samples at least, so that one can be filled while the other is sent; and no more rows than
        // their marks may reasonably weigh.
        let (window, reader) = Window::new(rows.clamp(2, 1 << 20), sample)?;
        let changed = Arc::clone(&window);
        let (reconnector, wakes) =
            Reconnector::new(dial, options, move || changed.notify()).map_err(system)?;
        let shared = Arc::new(StreamSender {
            spec,
            reconnector: Arc::new(reconnector),
            window,
            wake_policy: AtomicU8::new(WakePolicy::Off as u8),
            stall: AtomicU8::new(0),
            sent: AtomicU64::new(0),
            urgent: AtomicU64::new(0),
            stats: Stats::default(),
        });
        let samples = Samples::new(Arc::clone(&shared), reader);
        let reconnector = &shared.reconnector;
        let io_thread =
            io_thread::spawn(reconnector, wakes, samples, |driver| driver, Samples::settle);
        let io_thread = io_thread.map_err(system)?;
        Ok(Self { shared, io_thread: Mutex::new(Some(io_thread)), remains: Mutex::new(None) })
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

    /// Claims room for up to `samples` samples without waiting; fewer where there is less. `None` when
    /// there is none. Write them, then [`Client::commit`].
    #[inline]
    pub fn try_claim(&self, samples: usize) -> Result<Option<Rows<'_>>, ClientError> {
        if let Some(refusal) = self.shared.reconnector.refusal() {
            return Err(refusal);
        }
        Ok(self.shared.window.try_claim(samples))
    }

    /// Sends what was written.
    #[inline]
    pub fn commit(&self, rows: Rows<'_>) {
        rows.commit();
        self.shared.announce();
    }

    /// Waits until a claim may succeed. Another thread may be faster, so try in a loop.
    pub fn wait_for_room(&self, wait: Wait<'_>) -> Result<(), ClientError> {
        let shared = &self.shared;
        let since = Instant::now();
        let waited = shared.wait(wait, || {
            if let Some(refusal) = shared.reconnector.refusal() {
                return Some(Err(refusal));
            }
            (!shared.window.is_full()).then_some(Ok(()))
        });
        shared.stats.blocked.fetch_add(1, Ordering::Relaxed);
        let nanos = since.elapsed().as_nanos() as u64;
        shared.stats.blocked_nanos.fetch_add(nanos, Ordering::Relaxed);
        waited?
    }

    /// Waits until everything that was sent before is stored.
    pub fn flush(&self, wait: Wait<'_>) -> Result<(), ClientError> {
        let shared = &self.shared;
        let target = shared.window.claimed();
        shared.urgent.fetch_max(target, Ordering::AcqRel);
        if shared.window.released() < target {
            shared.reconnector.ring();
        }
        shared.wait(wait, || (shared.window.released() >= target).then_some(()))
    }

    /// Takes no more samples and gives up those that are left: [`Client::close`] then waits only for the
    /// attempt to connect that is under way, and [`Client::undelivered`] has them. A server that stands may have
    /// stored some of these, and not have said so yet.
    pub fn give_up(&self) {
        self.shared.reconnector.quit();
    }

    /// Takes no more samples, delivers those that are left, and ends. May be called again after it
    /// timed out or was interrupted.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when not everything could be delivered.
    pub fn close(&self, wait: Wait<'_>) -> Result<(), ClientError> {
        let shared = &self.shared;
        shared.reconnector.close();
        shared.wait(wait, || shared.reconnector.is_over().then_some(()))?;
        self.collect();
        match shared.reconnector.ending() {
            Some(ClientError::Failed(failure)) if self.pending() > 0 => {
                Err(ClientError::Failed(failure))
            }
            _ => Ok(()),
        }
    }

    /// Whether it takes no more samples.
    pub fn is_closed(&self) -> bool {
        self.shared.reconnector.refusal().is_some()
    }

    /// Samples that the server has not acknowledged.
    pub fn pending(&self) -> u64 {
        let acked = self.shared.window.released();
        self.shared.window.claimed().saturating_sub(acked)
    }

    /// Takes back the window from an I/O thread that has ended.
    fn collect(&self) {
        if !self.shared.reconnector.is_over() {
            return;
        }
        if let Some(io_thread) = self.io_thread.lock().take()
            && let Ok(samples) = io_thread.join()
        {
            *self.remains.lock() = Some(samples.into_reader());
        }
    }

    /// The samples that could not be delivered, once the client has given up: how many, and their bytes.
    /// `None` while it has not.
    pub fn undelivered(&self) -> Option<(usize, Vec<u8>)> {
        self.collect();
        let mut remains = self.remains.lock();
        let reader = remains.as_mut()?;
        // Whoever had claimed rows before the end may still be writing them.
        let (claimed, began) = (self.shared.window.claimed(), Instant::now());
        while reader.finished() < claimed && began.elapsed() < WRITING {
            std::thread::sleep(Duration::from_micros(100));
        }
        let finished = reader.finished();
        let mut next = self.shared.window.released();
        let mut bytes = Vec::new();
        let first = next;
        while next < finished {
            let (rows, part) = reader.rows(next, (finished - next) as usize);
            bytes.extend_from_slice(part);
            next += rows as u64;
        }
        Some(((finished - first) as usize, bytes))
    }

    /// A snapshot of its numbers.
    pub fn info(&self) -> ClientInfo {
        let (shared, stats) = (&self.shared, &self.shared.stats);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let acked = shared.window.released();
        let sent = shared.window.claimed();
        ClientInfo {
            samples_sent: sent,
            samples_acked: acked,
            pending: sent.saturating_sub(acked),
            window: shared.window.capacity() as u64,
            bytes_per_sample: shared.spec.nbytes() as u64,
            bytes_sent: read(&stats.bytes),
            writes: read(&stats.writes),
            reconnects: shared.reconnector.returns(),
            blocked_sends: read(&stats.blocked),
            blocked_time: read(&stats.blocked_nanos) as f64 * 1e-9,
            connected: shared.reconnector.stands(),
        }
    }
}

impl Drop for Client {
    /// Without a close, the I/O thread goes on in the background until everything is delivered, it gives
    /// up, or the process ends.
    fn drop(&mut self) {
        self.shared.reconnector.close();
    }
}
