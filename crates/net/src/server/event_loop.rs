//! An event loop: many connections, one thread.
//!
//! The loop takes turns: every connection that may have something to read gets one pass over at most
//! one buffer, then the next has its turn. When the ring is full, connections with samples wait in a
//! row, and nothing more is read from any of them, so memory does not grow; handshakes go on. Connections
//! that wait for a table wait in a row of that table; the others go on.
//!
//! A panic ends the connection that was being served, if it was one, and no other: the loop keeps its listener and its
//! sessions, and checks all of them again.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use echoic_memory::arena::Arena;
use echoic_replay::stream::Wait;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use tracing::{debug, error, info, warn};

use super::connection::{BUFFER, Connection, Decision};
use super::insert_session::InsertSession;
use super::producers::Producers;
use super::request_session::RequestSession;
use super::ring_session::{RingMember, RingSession};
use super::session::{Ending, Services, Session, Stop};
use super::stream_session::StreamSession;
use super::wait_queue::{Key, Verdict, WaitQueue};
use super::weights_session::WeightsSession;
use super::{Message, ServerContext};
use crate::auth::Side;
use crate::transport::{Link, Listener};
use crate::wire::frame::Control;
use crate::wire::handshake::{Offer, Purpose, RefusalCode, Welcome};
use crate::wire::spec;
use crate::wire::tables::MAX_ARENA;

const WAKER: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);

/// How often connections are looked at for what did not happen, unless hearts beat faster.
const SWEEP: Duration = Duration::from_millis(250);
/// How long to leave the listener alone after the system did not let us accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long to do nothing after a panic for which no connection can be closed: it may come again at once.
const PANIC_PAUSE: Duration = Duration::from_millis(100);
/// How long clients that could not finish in time are given to hear so.
const FAREWELL: Duration = Duration::from_millis(200);
/// How many refused connections may get a reason at a time.
const MAX_LEAVING: usize = 64;

/// See the [module](self).
pub(crate) struct EventLoop {
    index: usize,
    shared: Arc<ServerContext>,
    poll: Poll,
    inbox: Receiver<Message>,
    listener: Option<Box<dyn Listener>>,
    /// When to try again to accept.
    accept_again: Option<Instant>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections that have something to do or to read, each once.
    ready: VecDeque<usize>,
    is_ready: Vec<bool>,
    /// Connections that can be sent more.
    writing: Vec<usize>,
    waits: WaitQueue,
    /// The connection that is being served: the one to close if that panics.
    serving: Option<usize>,
    /// Of producers of the stream, and of those that insert into tables.
    producers: Producers,
    table_producers: Producers,
    buffer: Vec<u8>,
    last_sweep: Instant,
    last_excuse: Instant,
    /// When to stop, once closing.
    deadline: Option<Instant>,
}

impl EventLoop {
    pub(crate) fn new(
        index: usize,
        shared: Arc<ServerContext>,
        inbox: Receiver<Message>,
        poll: Poll,
        waker: Arc<mio::Waker>,
        listener: Option<Box<dyn Listener>>,
    ) -> io::Result<Self> {
        if let Some(listener) = &listener {
            let fd = listener.as_fd().as_raw_fd();
            poll.registry().register(&mut SourceFd(&fd), LISTENER, Interest::READABLE)?;
        }
        let now = Instant::now();
        Ok(Self {
            index,
            waits: WaitQueue::new(waker),
            shared,
            poll,
            inbox,
            listener,
            accept_again: None,
            connections: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            is_ready: Vec::new(),
            writing: Vec::new(),
            serving: None,
            producers: Producers::default(),
            table_producers: Producers::default(),
            buffer: vec![0; BUFFER],
            last_sweep: now,
            last_excuse: now,
            deadline: None,
        })
    }

    /// The token of the waker in `poll`.
    pub(crate) fn waker(poll: &Poll) -> io::Result<Arc<mio::Waker>> {
        mio::Waker::new(poll.registry(), WAKER).map(Arc::new)
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut panic: Option<Box<dyn Any + Send>> = None;
        while !self.is_over() {
            // What a panic may have left half done is put right by `recover`, which may panic as well: what it drops
            // may be what is broken.
            let round = catch_unwind(AssertUnwindSafe(|| {
                if let Some(panic) = panic.take() {
                    self.recover(&*panic);
                }
                self.go_round(&mut events)
            }));
            match round {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    // Nothing can be waited for any more; clients see that we are gone.
                    error!(%error, "an event loop ends: it can't wait for its connections");
                    break;
                }
                Err(caught) => panic = Some(caught),
            }
        }
    }

    /// Waits until something happens, and sees to it.
    fn go_round(&mut self, events: &mut Events) -> io::Result<()> {
        let timeout = self.timeout();
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &*events {
            match event.token() {
                WAKER => {}
                LISTENER => self.accept(),
                Token(index) => {
                    if event.is_writable() {
                        self.write(index);
                    }
                    if (event.is_readable() || event.is_read_closed() || event.is_error())
                        && let Some(Some(connection)) = self.connections.get_mut(index)
                    {
                        connection.is_readable = true;
                        if connection.held.is_none() {
                            self.enqueue(index);
                        }
                    }
                }
            }
        }
        for index in std::mem::take(&mut self.writing) {
            self.write(index);
        }
        self.take_messages();
        self.hear();
        for _ in 0..self.ready.len() {
            if let Some(index) = self.ready.pop_front() {
                self.is_ready[index] = false;
                self.take_turn(index);
            }
        }
        self.serve_requests();
        self.sweep();
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.dismiss();
        }
        self.serving = None;
        Ok(())
    }

    /// Goes on after a panic: closes the connection that was being served, and has all others looked at again, since
    /// the round was not finished and may have forgotten them.
    fn recover(&mut self, panic: &(dyn Any + Send)) {
        self.shared.meter.panics.fetch_add(1, Ordering::Relaxed);
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let panic = text.unwrap_or("a value that is no text");
        let served = self.serving.take();
        let served =
            served.filter(|index| self.connections.get(*index).is_some_and(Option::is_some));
        match served {
            Some(index) => self.end(index, &Ending::Panicked { text: panic.to_owned() }),
            None => {
                error!(panic, "an event loop panicked and goes on: please report it");
                std::thread::sleep(PANIC_PAUSE);
            }
        }
        self.ready.clear();
        self.is_ready.fill(false);
        self.waits.begin_anew();
        for connection in self.connections.iter_mut().flatten() {
            (connection.held, connection.is_readable) = (None, true);
        }
        self.writing = (0..self.connections.len()).collect();
        (0..self.connections.len()).for_each(|index| self.enqueue(index));
    }

    /// Ends what could not finish in time: each client learns what was stored, so that it sends the next
    /// server no more than the rest.
    fn dismiss(&mut self) {
        for table in self.shared.tables.all() {
            // Nobody is kept from anything any more.
            let deadline = Some(Instant::now() + FAREWELL);
            let wait = Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
            // A client without an acknowledgement sends it again elsewhere.
            let _ = table.keep(wait);
        }
        for table in &**self.shared.rollouts {
            let deadline = Some(Instant::now() + FAREWELL);
            let wait = Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
            let _ = table.keep(wait);
        }
        self.resume_all();
        for index in 0..self.connections.len() {
            let session = self.connections[index].as_ref().and_then(Connection::session);
            if session.is_some_and(|session| session.leaves_because(&self.shared).is_none()) {
                self.end(index, &Ending::Goodbye);
            }
        }
    }

    /// Has all do what they can, without anything more being read.
    fn resume_all(&mut self) {
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            self.serving = Some(index);
            let services = &mut Services { waits: &mut self.waits, shared: &self.shared };
            if let Err(Stop::Ended(ending)) = connection.resume(services) {
                self.end(index, &ending);
            }
        }
    }

    fn is_over(&self) -> bool {
        // Clients that have the ring's memory are waited for, by this thread alone, until they are gone:
        // no other thread notices.
        let late = self.deadline.is_some_and(|deadline| deadline + FAREWELL <= Instant::now());
        self.deadline.is_some()
            && self.connections.iter().flatten().all(|one| late && !one.has_memory())
    }

    fn timeout(&mut self) -> Option<Duration> {
        if !self.ready.is_empty() || !self.writing.is_empty() {
            return Some(Duration::ZERO);
        }
        let idle = self.connections.len() == self.free.len();
        let sweep = (!idle).then(|| self.last_sweep + self.sweep_pause());
        let now = Instant::now();
        let ends = self.deadline.map(|deadline| [deadline, deadline + FAREWELL]);
        let deadline = ends.into_iter().flatten().find(|end| *end > now);
        let waits = self.waits.next(now, &self.shared);
        let times = [sweep, self.accept_again, deadline, waits];
        let next = times.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(now))
    }

    fn take_messages(&mut self) {
        self.serving = None;
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Link(link) => self.register(link),
                Message::Moved(connection) => {
                    if let Some(index) = self.insert(*connection) {
                        self.decide(index);
                        self.write(index);
                    }
                }
                Message::Close(deadline) => self.close(deadline),
            }
        }
    }

    /// Begins to close: no new clients, and the others are asked to finish.
    fn close(&mut self, deadline: Instant) {
        self.listener = None;
        self.accept_again = None;
        self.deadline = Some(deadline);
        if self.shared.are_rollouts_closed() {
            // Waiting requests are answered, and what was changed is durable by now: these answers come first.
            self.resume_all();
            self.waits.stir_all();
            self.serve_requests();
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            let closing = (RefusalCode::Closing, "the server is closing");
            let leaves = connection
                .session()
                .map_or(Some(closing), |session| session.leaves_because(&self.shared));
            match leaves {
                Some((code, text)) if !connection.is_leaving() => connection.refuse(code, text),
                Some(_) => {}
                None => {
                    let text = closing.1.to_owned();
                    connection.out.write(|out| Control::Goodbye { text }.write(out));
                }
            }
            self.write(index);
        }
    }

    fn accept(&mut self) {
        self.serving = None;
        self.accept_again = None;
        while let Some(listener) = &mut self.listener {
            match listener.accept() {
                Ok(link) => self.place(link),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Out of file descriptors, most likely. Clients that wait to be accepted keep waiting.
                    self.shared.meter.accept_errors.fetch_add(1, Ordering::Relaxed);
                    warn!(%error, "a connection can't be accepted");
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Gives a new link to one of the event loops.
    fn place(&mut self, link: Box<dyn Link>) {
        let event_loops = self.shared.event_loops.len();
        let turn = self.shared.turns.fetch_add(1, Ordering::Relaxed) as usize % event_loops;
        if turn == self.index {
            self.register(link);
        } else {
            self.shared.send(turn, Message::Link(link));
        }
    }

    fn register(&mut self, link: Box<dyn Link>) {
        let limit = self.shared.options.max_connections;
        let connected = self.shared.connected.fetch_add(1, Ordering::Relaxed);
        if connected >= limit + MAX_LEAVING {
            // Not even time to say why.
            self.shared.meter.refuse(RefusalCode::Limit);
            self.shared.connected.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let id = self.shared.ids.fetch_add(1, Ordering::Relaxed) + 1;
        let mut connection = Connection::new(id, link);
        self.shared.meter.enter(id, &connection.meter);
        debug!(id, peer = connection.meter.peer, "accepted a connection");
        if connected >= limit {
            self.shared.meter.refuse(RefusalCode::Limit);
            let text = format!("the server has its {limit} connections; raise max_connections");
            connection.refuse(RefusalCode::Limit, &text);
        }
        if let Some(index) = self.insert(connection) {
            self.write(index);
            self.enqueue(index);
        }
    }

    fn insert(&mut self, mut connection: Connection) -> Option<usize> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.is_ready.push(false);
            self.connections.len() - 1
        });
        let fd = connection.link.as_fd().as_raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut SourceFd(&fd), Token(index), interest);
        if registered.is_err() {
            self.free.push(index);
            self.forget(&connection);
            return None;
        }
        connection.index = index;
        self.connections[index] = Some(connection);
        Some(index)
    }

    fn remove(&mut self, index: usize) -> Option<Connection> {
        let connection = self.connections.get_mut(index)?.take()?;
        let fd = connection.link.as_fd().as_raw_fd();
        // What can't be deregistered is closed now, which deregisters it too.
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        if std::mem::take(&mut self.is_ready[index]) {
            self.ready.retain(|other| *other != index);
        }
        self.waits.forget(index);
        self.writing.retain(|other| *other != index);
        self.free.push(index);
        Some(connection)
    }

    fn forget(&self, connection: &Connection) {
        self.shared.meter.leave(connection.id);
        self.shared.connected.fetch_sub(1, Ordering::Relaxed);
    }

    fn enqueue(&mut self, index: usize) {
        if self.connections.get(index).is_some_and(Option::is_some)
            && !std::mem::replace(&mut self.is_ready[index], true)
        {
            self.ready.push_back(index);
        }
    }

    fn write(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        self.serving = Some(index);
        if !connection.write() {
            return self.end(index, &Ending::Gone);
        }
        for buffer in connection.out.take_spent() {
            // Nobody waits for it.
            drop(self.shared.pool.run(self.waits.waker(Key::Pool), || drop(buffer)));
        }
        if connection.sends_on && !self.writing.contains(&index) {
            self.writing.push(index);
        }
        if connection.is_relieved() {
            self.enqueue(index);
        }
    }

    /// One turn of one connection.
    fn take_turn(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        self.serving = Some(index);
        let services = &mut Services { waits: &mut self.waits, shared: &self.shared };
        let turn = connection.take_turn(services, &mut self.buffer);
        let (id, is_readable) = (connection.id, connection.is_readable);
        if let Some(progress) = connection.progress() {
            self.producers_of(progress.of_tables).advance(&progress.producer, id, progress.next);
        }
        match turn {
            Ok(()) if !is_readable => {}
            Ok(()) | Err(Stop::Again) => self.enqueue(index),
            Err(Stop::Opened) => self.decide(index),
            Err(Stop::Ended(ending)) => return self.end(index, &ending),
            // Something else has it go on.
            Err(_) => {}
        }
        self.write(index);
    }

    fn producers_of(&mut self, of_tables: bool) -> &mut Producers {
        if of_tables { &mut self.table_producers } else { &mut self.producers }
    }

    /// Has requests take turns that waited for what has happened.
    fn hear(&mut self) {
        for (key, count) in self.waits.hear(&self.shared) {
            for _ in 0..count {
                let Some(index) = self.waits.pop(key) else { break };
                if let Some(connection) = &mut self.connections[index] {
                    connection.held.take_if(|(held, _)| *held == key);
                }
                self.take_turn(index);
            }
        }
    }

    /// Tries requests again that wait and may have a better chance.
    fn serve_requests(&mut self) {
        let mut answered = Vec::new();
        let Self { waits, connections, shared, serving, .. } = self;
        waits.serve(shared, &mut |waiter, ahead, waits| {
            let Some(Some(connection)) = connections.get_mut(waiter.index) else {
                return Verdict::Done;
            };
            *serving = Some(waiter.index);
            let verdict = connection.attempt(waiter, ahead, &mut Services { waits, shared });
            if matches!(verdict, Verdict::Done | Verdict::Late) {
                answered.push(waiter.index);
            }
            verdict
        });
        answered.sort_unstable();
        answered.dedup();
        // An answer may have to wait for the disk or the pool.
        answered.into_iter().for_each(|index| self.take_turn(index));
    }

    /// Answers a client that has identified itself.
    fn decide(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        let Some(decision) = connection.take_open() else { return };
        if let Some((code, text)) = self.objection(&decision) {
            return self.turn_away(index, code, &text);
        }
        let open = &decision.open;
        let member = match (open.purpose, &self.shared.stream) {
            (Purpose::Memory, Some(stream)) => match RingMember::new(stream) {
                None => {
                    let text = "the ring has as many writers as it can distinguish";
                    return self.turn_away(index, RefusalCode::Limit, text);
                }
                member => member,
            },
            _ => None,
        };
        let arena = match open.purpose {
            Purpose::Gather => match Arena::new(open.first.min(MAX_ARENA) as usize) {
                Ok(arena) => Some(Arc::new(arena)),
                Err(error) => {
                    return self.turn_away(index, RefusalCode::Memory, &error.to_string());
                }
            },
            _ => None,
        };
        let (mut next, mut limit) = (0, 0);
        let of_tables = open.purpose.is_of_tables();
        if matches!(open.purpose, Purpose::Produce | Purpose::Insert) {
            let home = self.shared.home(&open.producer);
            if home != self.index {
                let Some(connection) = &mut self.connections[index] else { return };
                connection.put_back(decision);
                if let Some(connection) = self.remove(index) {
                    self.shared.send(home, Message::Moved(Box::new(connection)));
                }
                return;
            }
            let Some(connection) = &self.connections[index] else { return };
            let id = connection.id;
            let producers = self.producers_of(of_tables);
            let resumed = producers.open(open.producer, open.epoch, open.first, id);
            let Some(resumed) = resumed else {
                let text = "a later incarnation of this producer has been here";
                return self.turn_away(index, RefusalCode::Stale, text);
            };
            if resumed.again {
                self.shared.meter.reconnects.fetch_add(1, Ordering::Relaxed);
                info!(id, "a client came back");
            }
            if let Some(old) = resumed.replaced {
                self.end_id(old);
            }
            next = resumed.next;
            limit = next.saturating_add(self.shared.credit());
        }
        let shared = &*self.shared;
        let Some(connection) = &mut self.connections[index] else { return };
        connection.meter.set_client(open.purpose, open.name.clone());
        // What comes with the welcome: the identity of the client there, the layout, and the memory.
        let memory = match (&member, &arena, &shared.stream) {
            (Some(member), _, Some(stream)) => {
                let owner = member.owner;
                stream.share().map(|(memory, layout)| (owner, layout.to_words(), memory))
            }
            (_, Some(arena), _) => {
                arena.file().map(|memory| (0, [arena.bytes() as u64, 0, 0, 0], memory))
            }
            _ => None,
        };
        let session: Box<dyn Session> = match (open.purpose, &shared.stream, &shared.weights) {
            (Purpose::Produce, Some(stream), _) => {
                let stream = Arc::clone(stream);
                Box::new(StreamSession::new(open.producer, stream, next, limit))
            }
            (Purpose::Insert, ..) => {
                // What is done and perhaps not durable comes again, and is distinguished from what is new.
                let kept = if shared.is_all_durable() { next } else { open.first.min(next) };
                let producer = (open.producer, open.epoch);
                let session = InsertSession::new(producer, next, kept, shared);
                (next, limit) = (kept, session.limit());
                Box::new(session)
            }
            (Purpose::Request | Purpose::Gather | Purpose::Watch, ..) => {
                Box::new(RequestSession::new(arena.clone()))
            }
            (Purpose::Weights, _, Some(store)) => {
                Box::new(WeightsSession::new(Arc::clone(store), shared.hands_over))
            }
            _ => Box::new(RingSession::new(member)),
        };
        connection.begin(session);
        let offer = match (open.purpose, &self.shared.stream) {
            (Purpose::Probe, Some(stream)) => Offer::Spec(stream.spec().clone()),
            (Purpose::Request | Purpose::Insert | Purpose::Gather, _) | (Purpose::Probe, None) => {
                Offer::Tables(self.shared.entries.clone())
            }
            _ => Offer::Known,
        };
        let mut welcome = Welcome {
            proof: [0; 32],
            instance: self.shared.instance,
            next,
            limit,
            heartbeat_ms: self.shared.options.heartbeat.as_millis().try_into().unwrap_or(u32::MAX),
            release: env!("CARGO_PKG_VERSION").into(),
            offer,
        };
        if let Some(token) = &self.shared.options.token {
            let (client, server) = (&decision.client, &decision.server);
            welcome.proof = token.prove(Side::Server, client, server, &welcome.signed());
        }
        connection.out.write(|out| welcome.write(out));
        if matches!(open.purpose, Purpose::Memory | Purpose::Gather) {
            let handed = memory.and_then(|(owner, layout, memory)| {
                let mut frame = Vec::new();
                Control::Memory { owner, layout }.write(&mut frame);
                let services = &mut Services { waits: &mut self.waits, shared };
                connection.with_session(services, |_, turn| turn.hand_over(&frame, memory))
            });
            if !matches!(handed, Some(Ok(()))) {
                return self.end(index, &Ending::Gone);
            }
        }
        // Its first samples may have come with the rest.
        self.enqueue(index);
    }

    /// Why a client may not stay, if so.
    fn objection(&self, decision: &Decision) -> Option<(RefusalCode, String)> {
        let open = &decision.open;
        let closing = (RefusalCode::Closing, "the server is closing".to_owned());
        if self.deadline.is_some() {
            return Some(closing);
        }
        let asks_anyone = open.purpose == Purpose::Watch
            || (open.purpose == Purpose::Probe && self.shared.stream.is_none());
        if asks_anyone {
            return None;
        }
        if open.purpose == Purpose::Weights {
            return match &self.shared.weights {
                None => Some(self.lacks("weights")),
                Some(store) => store.is_closed().then_some(closing),
            };
        }
        if open.purpose.is_of_tables() {
            if open.purpose == Purpose::Gather && !self.shared.hands_over {
                let text = "this address hands over no memory; use shm://".to_owned();
                return Some((RefusalCode::Memory, text));
            }
            return match (self.shared.tables.all(), &**self.shared.rollouts) {
                ([], []) => Some(self.lacks("tables")),
                ([], _) if open.purpose == Purpose::Insert => Some(self.lacks("tables")),
                _ => None,
            };
        }
        let Some(stream) = &self.shared.stream else {
            return Some(self.lacks("stream"));
        };
        if stream.is_closed() {
            return Some(closing);
        }
        if open.stream != super::STREAM {
            let text =
                format!("no stream is named {:?}; there is {:?}", open.stream, super::STREAM);
            return Some((RefusalCode::Service, text));
        }
        if open.purpose == Purpose::Memory && !self.shared.offers_memory {
            let text = "this address does not lead to the ring's memory; use shm://".to_owned();
            return Some((RefusalCode::Memory, text));
        }
        let spec = open.spec.as_ref()?;
        spec::difference(stream.spec(), spec).map(|text| (RefusalCode::Spec, text))
    }

    /// The refusal of a client that asks for what the server does not have.
    fn lacks(&self, service: &str) -> (RefusalCode, String) {
        let has: Vec<&str> = [
            ("a stream", self.shared.stream.is_some()),
            ("tables", !self.shared.tables.all().is_empty()),
            ("rollout tables", !self.shared.rollouts.is_empty()),
            ("weights", self.shared.weights.is_some()),
        ]
        .into_iter()
        .filter_map(|(what, is_there)| is_there.then_some(what))
        .collect();
        let text = format!("the server has no {service}; it has {}", has.join(", "));
        (RefusalCode::Service, text)
    }

    fn turn_away(&mut self, index: usize, code: RefusalCode, text: &str) {
        self.shared.meter.refuse(code);
        if let Some(connection) = &mut self.connections[index] {
            let peer = &connection.meter.peer;
            warn!(id = connection.id, peer, code = code.name(), text, "refused a connection");
            connection.refuse(code, text);
        }
        self.write(index);
        self.enqueue(index);
    }

    fn end_id(&mut self, id: u64) {
        let has_id =
            |connection: &Option<Connection>| connection.as_ref().is_some_and(|c| c.id == id);
        if let Some(index) = self.connections.iter().position(has_id) {
            self.end(index, &Ending::Gone);
        }
    }

    /// Ends a connection, or lets the client read why first.
    fn end(&mut self, index: usize, ending: &Ending) {
        let Some(connection) = &mut self.connections[index] else { return };
        if let Some(progress) = connection.progress() {
            let id = connection.id;
            let producers = self.producers_of(progress.of_tables);
            producers.advance(&progress.producer, id, progress.next);
            producers.leave(&progress.producer, id);
        }
        let Some(connection) = &mut self.connections[index] else { return };
        let meter = &self.shared.meter;
        let (id, peer) = (connection.id, connection.meter.peer.clone());
        match ending {
            Ending::Goodbye if !connection.is_leaving() => {
                let services = &mut Services { waits: &mut self.waits, shared: &self.shared };
                connection.take_leave(services);
            }
            Ending::Malformed => {
                meter.malformed.fetch_add(1, Ordering::Relaxed);
                warn!(id, peer, "closed a connection: what came made no sense");
            }
            // Whoever looks seldom does not listen meanwhile.
            Ending::Silent if connection.meter.purpose() == Purpose::Watch.name() => {
                debug!(id, peer, "closed a connection: no request came for too long");
            }
            Ending::Silent => {
                meter.silent.fetch_add(1, Ordering::Relaxed);
                warn!(id, peer, "closed a connection: nothing came for too long");
            }
            Ending::Refused(code) => {
                meter.refuse(*code);
                warn!(id, peer, code = code.name(), "refused a connection");
            }
            Ending::Panicked { text } => {
                error!(
                    id,
                    peer,
                    panic = text,
                    "closed a connection: serving it panicked; please report it"
                );
            }
            Ending::Gone => debug!(id, peer, "a connection is gone"),
            Ending::Goodbye => {}
        }
        if connection.has_memory() && !matches!(ending, Ending::Gone) {
            // It may be writing: its end is the end of the link.
            connection.leave();
            connection.write();
            self.enqueue(index);
            return;
        }
        let farewell = matches!(ending, Ending::Goodbye | Ending::Malformed | Ending::Refused(_));
        if farewell && connection.is_leaving() && !connection.is_overdue() && connection.write() {
            self.enqueue(index);
            return;
        }
        if let Some(connection) = self.remove(index) {
            self.forget(&connection);
        }
    }

    fn sweep_pause(&self) -> Duration {
        SWEEP.min(self.shared.options.heartbeat / 2)
    }

    /// Looks for what did not happen: clients that say nothing, and clients to be kept waiting.
    fn sweep(&mut self) {
        let now = Instant::now();
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept();
        }
        if now.duration_since(self.last_sweep) < self.sweep_pause() {
            return;
        }
        self.last_sweep = now;
        let heartbeat = self.shared.options.heartbeat;
        let is_held = self.connections.iter().flatten().any(|connection| connection.held.is_some());
        let speaks = is_held && now.duration_since(self.last_excuse) >= heartbeat;
        if speaks {
            self.last_excuse = now;
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            self.serving = Some(index);
            if connection.held.is_some() {
                // We do not read from it now, so we report that we are alive.
                if speaks {
                    let services = &mut Services { waits: &mut self.waits, shared: &self.shared };
                    connection.reassure(services);
                }
                connection.excuse(now);
            }
            connection.rest(now);
            let is_late = connection.session().is_some_and(|session| session.is_late(now));
            if let Some(ending) = connection.overdue(now, heartbeat * 3) {
                self.end(index, &ending);
            } else if speaks {
                self.write(index);
            }
            if is_late {
                self.enqueue(index);
            }
        }
    }
}
