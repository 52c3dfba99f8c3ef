//! The server's end of connections: from links to samples in a stream.
//!
//! - `event_loop`: the event loops, of which there is a fixed number whatever the number of clients.
//! - `connection`: one client, from its first byte on: the handshake, and what comes cut into frames.
//! - `session`: what a connection does for its client. `stream_session`: from data frames into the ring.
//!   `insert_session`: inserts. `request_session`: requests, `rollout_session` those about rollout tables,
//!   and `delivery` shares of their batches.
//!   `weights_session`: weights. `ring_session`: clients that write into the ring's memory.
//! - `wait_queue`: waiting requests. `loop_wakers`: what wakes an event loop. `pool`: threads for long work.
//!   `disk_queue`: answers that wait for the disk.
//! - `producers`: what each producer has delivered, so that nothing is stored twice.
//! - `meter`: the numbers.

mod connection;
mod delivery;
mod disk_queue;
mod event_loop;
mod insert_session;
mod loop_wakers;
mod meter;
mod pool;
mod producers;
mod request_session;
mod ring_session;
mod rollout_session;
mod session;
mod stream_session;
mod wait_queue;
mod weights_session;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use echoic_replay::Stream;
use echoic_replay::rollouts::{RolloutConfig, RolloutTable};
use echoic_replay::table::saved::Checkpointer;
use echoic_replay::table::{Table, Tables};
use echoic_replay::weights::WeightStore;
use tracing::info;

pub use meter::{Flow, ListenerStats};

use self::connection::{CHUNK, Connection};
use self::event_loop::EventLoop;
use self::meter::Meter;
use self::pool::Pool;
use crate::address::Address;
use crate::auth::{Token, random};
use crate::buffer_pool::BufferPool;
use crate::transport::{Link, Listen};
use crate::wire::handshake::ProducerId;
use crate::wire::observed::{Connected, Observation};
use crate::wire::rollouts::check_list as check_rollouts;
use crate::wire::tables::{TableEntry, check_list};

/// The name of a server's only stream.
pub const STREAM: &str = "stream";

/// The most bytes that one client may have on their way, and the least; and the most for all.
const CREDIT_MOST: usize = 4 << 20;
const CREDIT_LEAST: usize = 64 << 10;
const CREDIT_TOTAL: usize = 256 << 20;
/// The most bytes that all connections together keep because the ring is full, but for the least that is
/// worth a system call.
const KEPT_TOTAL: usize = 32 << 20;
const CHUNK_LEAST: usize = 16 << 10;

/// How long after its deadline an event loop may take to end.
const GRACE: Duration = Duration::from_millis(500);

/// The most bytes of buffers for batches that a listener keeps for the next.
const POOL_BYTES: usize = 64 << 20;

/// What a listener serves.
#[derive(Debug, Clone, Default)]
pub struct Served {
    /// What clients push samples into.
    pub stream: Option<Arc<Stream>>,
    /// What clients insert items into and draw them from.
    pub tables: Arc<Tables>,
    /// What a learner publishes for the workers.
    pub weights: Option<Arc<WeightStore>>,
    /// Where clients make groups of rollouts and take batches of them. Names are unique.
    pub rollouts: Arc<Vec<Arc<RolloutTable>>>,
    /// Writes the checkpoints that clients ask for.
    pub checkpointer: Option<Arc<Checkpointer>>,
    /// Collects the statistics of the server for watchers; without it they see nothing.
    pub observer: Option<Observer>,
    /// Which life of the server this is, for clients to know whether what they have of it is still good. All listeners
    /// of one server should say the same; chosen at random when `None`.
    pub instance: Option<[u8; 16]>,
}

/// Looks at a server with all its listeners. It is called by event loops, so it must not wait.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn() -> Observation + Send + Sync>);

impl Observer {
    /// An observer that looks with `look`.
    pub fn new(look: impl Fn() -> Observation + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }

    /// What there is to see now.
    pub fn look(&self) -> Observation {
        (self.0)()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

impl From<Arc<Stream>> for Served {
    fn from(stream: Arc<Stream>) -> Self {
        Self { stream: Some(stream), ..Self::default() }
    }
}

impl From<Arc<WeightStore>> for Served {
    fn from(weights: Arc<WeightStore>) -> Self {
        Self { weights: Some(weights), ..Self::default() }
    }
}

impl From<Arc<RolloutTable>> for Served {
    fn from(table: Arc<RolloutTable>) -> Self {
        Self { rollouts: Arc::new(vec![table]), ..Self::default() }
    }
}

impl From<Arc<Tables>> for Served {
    fn from(tables: Arc<Tables>) -> Self {
        Self { tables, ..Self::default() }
    }
}

/// Options of a listener.
#[derive(Debug, Clone)]
pub struct Options {
    /// What clients must have; none, and anyone may enter.
    pub token: Option<Token>,
    /// Allows an address that strangers can reach without a token.
    pub insecure: bool,
    /// How many connections may stand.
    pub max_connections: usize,
    /// After how much silence each side says that it is there; three of these are a death.
    pub heartbeat: Duration,
    /// How many event loops.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            insecure: false,
            max_connections: 4096,
            heartbeat: Duration::from_secs(5),
            threads: std::thread::available_parallelism().map_or(1, |cores| {
                // Half the cores for the listener, up to the few that fill any memory bus.
                (cores.get() / 2).clamp(1, 4)
            }),
        }
    }
}

/// Why a listener can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Give a token, or say that none is wanted.
    #[error(
        "{0} can be reached from other machines, so it needs a token; give token=… on both sides, \
         or insecure=True if everyone who can reach it may write"
    )]
    NeedsToken(Address),
    /// The listener serves nothing.
    #[error("a server needs a stream, a table, a rollout table or weights")]
    Nothing,
    /// A spec has more than the wire carries, or the list of tables.
    #[error("the spec can't be used over a network: {0}")]
    Spec(#[from] crate::wire::WireError),
    /// A sample is larger than a frame.
    #[error("a sample of {0} bytes does not fit into a frame of 4 GiB")]
    SampleTooLarge(usize),
    /// A setting is invalid.
    #[error("{what} must be at least {least}")]
    TooSmall {
        /// Which setting.
        what: &'static str,
        /// The least allowed.
        least: u64,
    },
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The settings of event loops.
pub(crate) enum Message {
    /// A client has come.
    Link(Box<dyn Link>),
    /// A client belongs to this event loop.
    Moved(Box<Connection>),
    /// Finish by this time.
    Close(Instant),
}

/// What all event loops of a listener share.
pub(crate) struct ServerContext {
    stream: Option<Arc<Stream>>,
    tables: Arc<Tables>,
    weights: Option<Arc<WeightStore>>,
    rollouts: Arc<Vec<Arc<RolloutTable>>>,
    checkpointer: Option<Arc<Checkpointer>>,
    observer: Option<Observer>,
    /// How the tables are introduced.
    entries: Vec<TableEntry>,
    rollout_configs: Vec<Arc<RolloutConfig>>,
    buffer_pool: Arc<BufferPool>,
    pool: Arc<Pool>,
    /// Whether memory can be handed over to clients, and whether they may write into the ring's.
    hands_over: bool,
    offers_memory: bool,
    options: Options,
    meter: Meter,
    instance: [u8; 16],
    event_loops: Vec<(Sender<Message>, Arc<mio::Waker>)>,
    turns: AtomicU64,
    ids: AtomicU64,
    connected: AtomicUsize,
}

impl ServerContext {
    fn send(&self, event_loop: usize, message: Message) {
        let (sender, waker) = &self.event_loops[event_loop];
        // A loop that has ended has closed its connections, and so does the one that is dropped here.
        if sender.send(message).is_ok() {
            let _ = waker.wake();
        }
    }

    /// The table of items of this number.
    fn table(&self, number: usize) -> Option<&Arc<Table>> {
        self.tables.all().get(number)
    }

    /// The rollout table of this number.
    fn rollout_table(&self, number: usize) -> Option<&Arc<RolloutTable>> {
        self.rollouts.get(number)
    }

    /// Whether there are rollout tables, and all are closed.
    fn are_rollouts_closed(&self) -> bool {
        !self.rollouts.is_empty() && self.rollouts.iter().all(|table| table.is_closed())
    }

    /// Whether all that was changed so far in tables of items is durable.
    fn is_all_durable(&self) -> bool {
        let is_durable = |table: &Arc<Table>| {
            table.receipt().is_none_or(|receipt| table.is_durable(receipt) == Ok(true))
        };
        self.tables.all().iter().all(is_durable)
    }

    /// The event loop that serves a producer.
    fn home(&self, producer: &ProducerId) -> usize {
        let mut hasher = DefaultHasher::new();
        producer.hash(&mut hasher);
        (hasher.finish() % self.event_loops.len() as u64) as usize
    }

    /// How much to read from a client at once. What finds no room in the ring is kept, so it is less when
    /// there are many.
    fn chunk(&self) -> usize {
        let connected = self.connected.load(Ordering::Relaxed).max(1);
        (KEPT_TOTAL / connected).clamp(CHUNK_LEAST, CHUNK)
    }

    /// How many bytes a client may have on their way, in either direction.
    fn credit_bytes(&self) -> usize {
        let connected = self.connected.load(Ordering::Relaxed).max(1);
        (CREDIT_TOTAL / connected).clamp(CREDIT_LEAST, CREDIT_MOST)
    }

    /// How many samples a client may have on their way.
    fn credit(&self) -> u64 {
        let sample = self.stream.as_ref().map_or(0, |stream| stream.spec().nbytes());
        let samples = self.credit_bytes().checked_div(sample).unwrap_or(1 << 16);
        samples.max(2) as u64
    }
}

/// A listener with its event loops.
pub struct Server {
    address: Address,
    shared: Arc<ServerContext>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens, and lets clients use what is `served`.
    pub fn open(
        listen: &dyn Listen,
        served: impl Into<Served>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let Served { stream, tables, rollouts, weights, checkpointer, observer, instance } =
            served.into();
        let is_empty = tables.all().is_empty() && rollouts.is_empty();
        if stream.is_none() && weights.is_none() && is_empty {
            return Err(OpenError::Nothing);
        }
        for (what, least, got) in [
            ("max_connections", 1, options.max_connections as u64),
            ("threads", 1, options.threads as u64),
        ] {
            if got < least {
                return Err(OpenError::TooSmall { what, least });
            }
        }
        if let Some(stream) = &stream {
            crate::wire::spec::check(stream.spec())?;
            let sample = stream.spec().nbytes();
            if crate::wire::frame::samples_per_frame(sample, 1).is_none() {
                return Err(OpenError::SampleTooLarge(sample));
            }
        }
        let entries: Vec<TableEntry> = tables.all().iter().map(|table| (&**table).into()).collect();
        check_list(&entries)?;
        let rollout_configs: Vec<_> =
            rollouts.iter().map(|table| Arc::clone(table.config())).collect();
        check_rollouts(&rollout_configs)?;
        let listener = listen.listen()?;
        let address = listener.address();
        if listen.is_public() && options.token.is_none() && !options.insecure {
            return Err(OpenError::NeedsToken(address));
        }
        let mut parts = Vec::new();
        let mut event_loops = Vec::new();
        for _ in 0..options.threads {
            let poll = mio::Poll::new()?;
            let waker = EventLoop::waker(&poll)?;
            let (sender, inbox) = channel();
            event_loops.push((sender, Arc::clone(&waker)));
            parts.push((poll, waker, inbox));
        }
        let shared = Arc::new(ServerContext {
            hands_over: listen.offers_memory(),
            offers_memory: listen.offers_memory()
                && stream.as_ref().is_some_and(|stream| stream.share().is_some()),
            stream,
            tables,
            weights,
            rollouts,
            checkpointer,
            observer,
            entries,
            rollout_configs,
            buffer_pool: BufferPool::new(POOL_BYTES),
            pool: Pool::new(options.threads),
            options,
            meter: Meter::default(),
            instance: instance.map_or_else(random, Ok)?,
            event_loops,
            turns: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            connected: AtomicUsize::new(0),
        });
        let mut server = Self { address, shared, threads: Vec::new() };
        info!(address = %server.address, "opened a listener");
        let mut listener = Some(listener);
        for (index, (poll, waker, inbox)) in parts.into_iter().enumerate() {
            let shared = Arc::clone(&server.shared);
            let event_loop = EventLoop::new(index, shared, inbox, poll, waker, listener.take())?;
            let name = format!("echoic-listen-{index}");
            let thread = std::thread::Builder::new().name(name).spawn(move || event_loop.run())?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Where clients connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Which life of the server it says this is.
    pub fn instance(&self) -> [u8; 16] {
        self.shared.instance
    }

    /// A snapshot of its numbers.
    pub fn info(&self) -> ListenerStats {
        self.shared.meter.info()
    }

    /// A snapshot of each connection.
    pub fn connections(&self) -> Vec<Connected> {
        self.shared.meter.connections(&self.address.to_string())
    }

    /// Accepts no more clients, asks clients to finish what they are sending, and waits for that until
    /// `deadline`. What is not stored by then stays with the clients.
    pub fn close(&mut self, deadline: Instant) {
        if !self.threads.is_empty() {
            info!(address = %self.address, "closing a listener");
        }
        for event_loop in 0..self.shared.event_loops.len() {
            self.shared.send(event_loop, Message::Close(deadline));
        }
        let own = std::thread::current().id();
        let wait_for = |thread: JoinHandle<()>| {
            // An event loop that looks at the server while all others drop it ends after this.
            if thread.thread().id() == own {
                return;
            }
            while !thread.is_finished() && Instant::now() < deadline + GRACE {
                std::thread::sleep(Duration::from_millis(1));
            }
            // One that goes on waits for a client that was stopped while it had the ring's memory. A
            // loop that panicked has printed why; there is nothing left to close.
            if thread.is_finished() {
                let _ = thread.join();
            }
        };
        self.threads.drain(..).for_each(wait_for);
        self.shared.pool.close().into_iter().for_each(wait_for);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close(Instant::now());
    }
}
