//! An event loop: many connections, one thread.
//!
//! The loop takes turns: every connection that may have something to read gets one pass over at most
//! one buffer, then the next has its turn. When the ring is full, connections with samples wait in a
//! row, and nothing more is read from any of them, so memory does not grow; handshakes go on.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::task::Waker;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token as Key};

use super::connection::{BUFFER, Connection, Decision, Ending, Outcome, Place};
use super::sessions::Sessions;
use super::{Message, Shared};
use crate::auth::Side;
use crate::transport::{Link, Listener};
use crate::wire::frame::{Control, Stall};
use crate::wire::handshake::{Purpose, RefusalCode, Welcome};
use crate::wire::spec;

const WAKER: Key = Key(usize::MAX);
const LISTENER: Key = Key(usize::MAX - 1);

/// How often connections are looked at for what did not happen, unless hearts beat faster.
const SWEEP: Duration = Duration::from_millis(250);
/// How long to leave the listener alone after the system did not let us accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long clients that could not finish in time are given to hear so.
const FAREWELL: Duration = Duration::from_millis(200);
/// More than this unsent is a client that does not read.
const MAX_BACKLOG: usize = 1 << 20;
/// How many refused connections may be told why at a time.
const MAX_LEAVING: usize = 64;

/// Wakes an event loop because the ring has room.
pub(crate) struct Room {
    waker: Arc<mio::Waker>,
    rung: AtomicBool,
}

impl std::task::Wake for Room {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        // An event loop that is gone needs no waking.
        let _ = self.waker.wake();
    }
}

/// See the [module](self).
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    poll: Poll,
    inbox: Receiver<Message>,
    listener: Option<Box<dyn Listener>>,
    /// When to try again to accept.
    accept_again: Option<Instant>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections that may have something to read, each once.
    ready: VecDeque<usize>,
    /// Those of them that have samples while the ring is full.
    waiting: VecDeque<usize>,
    queued: Vec<bool>,
    full: Option<Stall>,
    room: Arc<Room>,
    room_waker: Waker,
    sessions: Sessions,
    buffer: Vec<u8>,
    last_sweep: Instant,
    last_excuse: Instant,
    /// When to stop, once closing.
    deadline: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        inbox: Receiver<Message>,
        poll: Poll,
        waker: Arc<mio::Waker>,
        listener: Option<Box<dyn Listener>>,
    ) -> io::Result<Self> {
        if let Some(listener) = &listener {
            let fd = listener.as_fd().as_raw_fd();
            poll.registry().register(&mut SourceFd(&fd), LISTENER, Interest::READABLE)?;
        }
        let room = Arc::new(Room { waker, rung: AtomicBool::new(false) });
        let now = Instant::now();
        Ok(Self {
            index,
            shared,
            poll,
            inbox,
            listener,
            accept_again: None,
            connections: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            queued: Vec::new(),
            full: None,
            room_waker: Waker::from(Arc::clone(&room)),
            room,
            sessions: Sessions::default(),
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
        while !self.is_over() {
            if let Err(error) = self.poll.poll(&mut events, self.timeout())
                && error.kind() != io::ErrorKind::Interrupted
            {
                // Nothing can be waited for any more; clients see that we are gone.
                break;
            }
            for event in &events {
                match event.token() {
                    WAKER => {}
                    LISTENER => self.accept(),
                    Key(index) => {
                        if event.is_writable() {
                            self.write(index);
                        }
                        if event.is_readable() || event.is_read_closed() || event.is_error() {
                            self.enqueue(index);
                        }
                    }
                }
            }
            self.take_messages();
            if self.room.rung.swap(false, Ordering::AcqRel) {
                self.open_up();
            }
            for _ in 0..self.ready.len() {
                if let Some(index) = self.ready.pop_front() {
                    self.queued[index] = false;
                    self.take_turn(index);
                }
            }
            self.sweep();
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.dismiss();
            }
        }
    }

    /// Ends what could not finish in time: each client learns what was stored, so that it sends the next
    /// server no more than the rest.
    fn dismiss(&mut self) {
        self.open_up();
        for index in 0..self.connections.len() {
            if self.connections[index].as_ref().is_some_and(|one| one.producer().is_some()) {
                self.end(index, &Ending::Goodbye);
            }
        }
    }

    fn is_over(&self) -> bool {
        // Clients that have the ring's memory are waited for, by this thread alone, until they are gone:
        // nobody else notices.
        let late = self.deadline.is_some_and(|deadline| deadline + FAREWELL <= Instant::now());
        self.deadline.is_some()
            && self.connections.iter().flatten().all(|one| late && !one.has_memory())
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let idle = self.connections.len() == self.free.len();
        let sweep = (!idle).then(|| self.last_sweep + self.sweep_pause());
        let now = Instant::now();
        let ends = self.deadline.map(|deadline| [deadline, deadline + FAREWELL]);
        let deadline = ends.into_iter().flatten().find(|end| *end > now);
        let next = [sweep, self.accept_again, deadline].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(now))
    }

    fn take_messages(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Link(link) => self.admit(link),
                Message::Moved(connection) => {
                    let outcome = Outcome::Opened;
                    if let Some(index) = self.insert(*connection) {
                        self.conclude(index, outcome);
                    }
                }
                Message::Close(deadline) => self.close(deadline),
            }
        }
    }

    /// Begins to close: nobody new, and the others are asked to finish.
    fn close(&mut self, deadline: Instant) {
        self.listener = None;
        self.accept_again = None;
        self.deadline = Some(deadline);
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            if connection.producer().is_some() || connection.has_memory() {
                let text = "the server is closing".to_owned();
                connection.say(|out| Control::Goodbye { text }.write(out));
            } else if !connection.is_leaving() {
                connection.refuse(RefusalCode::Closing, "the server is closing");
            }
            self.write(index);
        }
    }

    fn accept(&mut self) {
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
                Err(_) => {
                    // Out of file descriptors, most likely. Who waits to be accepted keeps waiting.
                    self.shared.meter.accept_errors.fetch_add(1, Ordering::Relaxed);
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Gives a new link to one of the event loops.
    fn place(&mut self, link: Box<dyn Link>) {
        let workers = self.shared.workers.len();
        let turn = self.shared.turns.fetch_add(1, Ordering::Relaxed) as usize % workers;
        if turn == self.index {
            self.admit(link);
        } else {
            self.shared.send(turn, Message::Link(link));
        }
    }

    fn admit(&mut self, link: Box<dyn Link>) {
        let limit = self.shared.options.max_connections;
        let standing = self.shared.standing.fetch_add(1, Ordering::Relaxed);
        if standing >= limit + MAX_LEAVING {
            // Not even time to say why.
            self.shared.meter.refuse(RefusalCode::Limit);
            self.shared.standing.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let id = self.shared.ids.fetch_add(1, Ordering::Relaxed) + 1;
        let mut connection = Connection::new(id, link);
        self.shared.meter.enter(id, &connection.meter);
        if standing >= limit {
            self.shared.meter.refuse(RefusalCode::Limit);
            let text = format!("the server has its {limit} connections; raise max_connections");
            connection.refuse(RefusalCode::Limit, &text);
        }
        if let Some(index) = self.insert(connection) {
            self.write(index);
            self.enqueue(index);
        }
    }

    fn insert(&mut self, connection: Connection) -> Option<usize> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.queued.push(false);
            self.connections.len() - 1
        });
        let fd = connection.link.as_fd().as_raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut SourceFd(&fd), Key(index), interest);
        if registered.is_err() {
            self.free.push(index);
            self.forget(&connection);
            return None;
        }
        self.connections[index] = Some(connection);
        Some(index)
    }

    fn remove(&mut self, index: usize) -> Option<Connection> {
        let connection = self.connections.get_mut(index)?.take()?;
        let fd = connection.link.as_fd().as_raw_fd();
        // What can't be deregistered is closed now, which deregisters it too.
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        if self.queued[index] {
            self.queued[index] = false;
            self.ready.retain(|other| *other != index);
            self.waiting.retain(|other| *other != index);
        }
        self.free.push(index);
        Some(connection)
    }

    fn forget(&self, connection: &Connection) {
        self.shared.meter.leave(connection.id);
        self.shared.standing.fetch_sub(1, Ordering::Relaxed);
    }

    fn enqueue(&mut self, index: usize) {
        if self.connections.get(index).is_some_and(Option::is_some) && !self.queued[index] {
            self.queued[index] = true;
            self.ready.push_back(index);
        }
    }

    fn write(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        if !connection.write() || connection.backlog() > MAX_BACKLOG {
            self.end(index, &Ending::Gone);
        }
    }

    /// One pass over one connection.
    fn take_turn(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        let produces = connection.producer().is_some();
        if self.full.is_some() && produces {
            self.queued[index] = true;
            self.waiting.push_back(index);
            return;
        }
        let (stream, token) = (&self.shared.stream, self.shared.options.token.as_ref());
        let chunk = self.shared.chunk();
        let mut outcome = connection.read(stream, &mut self.buffer, chunk, token);
        if matches!(outcome, Outcome::Blocked(_)) {
            // Room that comes from here on rings; room that came before is found by one more try.
            stream.wake_on_room(&self.room_waker);
            outcome = connection.read(stream, &mut self.buffer, chunk, token);
        }
        if let Some((producer, next)) = connection.producer() {
            let producer = *producer;
            self.sessions.advance(&producer, connection.id, next);
        }
        self.conclude(index, outcome);
    }

    fn conclude(&mut self, index: usize, outcome: Outcome) {
        let credit = self.shared.credit();
        let Some(connection) = &mut self.connections[index] else { return };
        match outcome {
            Outcome::Drained => connection.acknowledge(credit, true),
            Outcome::More => {
                connection.acknowledge(credit, false);
                self.enqueue(index);
            }
            Outcome::Blocked(reason) => {
                self.full = Some(match reason {
                    echoic_replay::Blocked::Leased => Stall::Leased,
                    _ => Stall::Capacity,
                });
                self.queued[index] = true;
                self.waiting.push_front(index);
                // What is stored is stored: whoever flushes need not wait for the rest.
                connection.acknowledge(credit, true);
            }
            Outcome::Opened => self.decide(index),
            Outcome::Ended(ending) => return self.end(index, &ending),
        }
        self.write(index);
    }

    /// The ring has room: those who waited come first, and of them last whoever filled it up, or nobody
    /// else would ever have a turn.
    fn open_up(&mut self) {
        self.full = None;
        if !self.waiting.is_empty() {
            self.waiting.rotate_left(1);
        }
        while let Some(index) = self.waiting.pop_back() {
            self.ready.push_front(index);
        }
    }

    /// Answers a client that said who it is.
    fn decide(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        let Some(decision) = connection.take_open() else { return };
        if let Some((code, text)) = self.objection(&decision) {
            return self.turn_away(index, code, &text);
        }
        let open = &decision.open;
        let place = match open.purpose {
            Purpose::Memory => match Place::new(&self.shared.stream) {
                None => {
                    let text = "the ring has as many writers as it can tell apart";
                    return self.turn_away(index, RefusalCode::Limit, text);
                }
                place => place,
            },
            Purpose::Produce | Purpose::Probe => None,
        };
        let Some(connection) = &mut self.connections[index] else { return };
        let (next, limit) = match open.purpose {
            Purpose::Produce => {
                let home = self.shared.home(&open.producer);
                if home != self.index {
                    connection.put_back(decision);
                    if let Some(connection) = self.remove(index) {
                        self.shared.send(home, Message::Moved(Box::new(connection)));
                    }
                    return;
                }
                let id = connection.id;
                let resumed = self.sessions.open(open.producer, open.epoch, open.first, id);
                let Some(resumed) = resumed else {
                    let text = "a later incarnation of this producer has been here";
                    return self.turn_away(index, RefusalCode::Stale, text);
                };
                if resumed.again {
                    self.shared.meter.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(old) = resumed.replaced {
                    self.end_id(old);
                }
                let limit = resumed.next.saturating_add(self.shared.credit());
                let Some(connection) = &mut self.connections[index] else { return };
                connection.produce(open.producer, resumed.next, limit);
                (resumed.next, limit)
            }
            Purpose::Probe => {
                connection.listen();
                (0, 0)
            }
            Purpose::Memory => (0, 0),
        };
        let Some(connection) = &mut self.connections[index] else { return };
        let mut welcome = Welcome {
            proof: [0; 32],
            instance: self.shared.instance,
            next,
            limit,
            heartbeat_ms: self.shared.options.heartbeat.as_millis().try_into().unwrap_or(u32::MAX),
            release: env!("CARGO_PKG_VERSION").into(),
            spec: (open.purpose == Purpose::Probe).then(|| self.shared.stream.spec().clone()),
        };
        if let Some(token) = &self.shared.options.token {
            let (client, server) = (&decision.client, &decision.server);
            welcome.proof = token.prove(Side::Server, client, server, &welcome.signed());
        }
        connection.say(|out| welcome.write(out));
        if let Some(place) = place
            && !connection.share(place)
        {
            return self.end(index, &Ending::Gone);
        }
        // Its first samples may have come with the rest.
        self.enqueue(index);
    }

    /// Why a client may not stay, if so.
    fn objection(&self, decision: &Decision) -> Option<(RefusalCode, String)> {
        let open = &decision.open;
        let stream = &self.shared.stream;
        if self.deadline.is_some() || stream.is_closed() {
            return Some((RefusalCode::Closing, "the server is closing".into()));
        }
        if open.stream != super::STREAM {
            let text =
                format!("no stream is named {:?}; there is {:?}", open.stream, super::STREAM);
            return Some((RefusalCode::Stream, text));
        }
        if open.purpose == Purpose::Memory && !self.shared.offers_memory {
            let text = "this address does not lead to the ring's memory; use shm://".to_owned();
            return Some((RefusalCode::Memory, text));
        }
        let spec = open.spec.as_ref()?;
        spec::difference(stream.spec(), spec).map(|text| (RefusalCode::Spec, text))
    }

    fn turn_away(&mut self, index: usize, code: RefusalCode, text: &str) {
        self.shared.meter.refuse(code);
        if let Some(connection) = &mut self.connections[index] {
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
        if let Some((producer, next)) = connection.producer() {
            let (producer, id) = (*producer, connection.id);
            self.sessions.advance(&producer, id, next);
            self.sessions.leave(&producer, id);
        }
        let meter = &self.shared.meter;
        match ending {
            Ending::Goodbye if !connection.is_leaving() => {
                connection.acknowledge_as(Stall::None, None);
                let text = String::new();
                connection.say(|out| Control::Goodbye { text }.write(out));
                connection.leave();
            }
            Ending::Malformed => {
                meter.malformed.fetch_add(1, Ordering::Relaxed);
            }
            Ending::Silent => {
                meter.silent.fetch_add(1, Ordering::Relaxed);
            }
            Ending::Refused(code) => meter.refuse(*code),
            _ => {}
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
        let speak = self.full.filter(|_| now.duration_since(self.last_excuse) >= heartbeat);
        if speak.is_some() {
            self.last_excuse = now;
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            if let Some(stall) = speak {
                // We do not hear them now, so we tell them that we are there.
                connection.acknowledge_as(stall, None);
            }
            if self.full.is_some() || self.queued[index] {
                connection.excuse(now);
            }
            if let Some(ending) = connection.overdue(now, heartbeat * 3) {
                self.end(index, &ending);
            } else if speak.is_some() {
                self.write(index);
            }
        }
    }
}
