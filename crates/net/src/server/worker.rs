//! An event loop: many connections, one thread.
//!
//! The loop takes turns: every connection that may have something to read gets one pass over at most
//! one buffer, then the next has its turn. When the ring is full, connections with samples wait in a
//! row, and nothing more is read from any of them, so memory does not grow; handshakes go on. Connections
//! that wait for a table wait in a row of that table; the others go on.
//!
//! A panic ends the connection that was being served, if it was one, and no other: the loop keeps its listener and its
//! sessions, and looks at everybody again.

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
use mio::{Events, Interest, Poll, Token as Key};
use tracing::{debug, error, info, warn};

use super::connection::{BUFFER, Connection, Decision, Ending, Outcome, Phase, Place, requesting};
use super::insert_session::InsertSession;
use super::loop_wakers::LoopWaker;
use super::request_session::RequestSession;
use super::rollouts::WaitQueue;
use super::services::Services;
use super::sessions::Sessions;
use super::stream_session::StreamSession;
use super::weights_session::WeightsSession;
use super::{Message, Shared};
use crate::auth::Side;
use crate::transport::{Link, Listener};
use crate::wire::frame::{Control, Stall};
use crate::wire::handshake::{Offer, Purpose, RefusalCode, Welcome};
use crate::wire::spec;
use crate::wire::tables::MAX_ARENA;

const WAKER: Key = Key(usize::MAX);
const LISTENER: Key = Key(usize::MAX - 1);

/// How often connections are looked at for what did not happen, unless hearts beat faster.
const SWEEP: Duration = Duration::from_millis(250);
/// How long to leave the listener alone after the system did not let us accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long to do nothing after a panic for which no connection can be closed: it may come again at once.
const PANIC_PAUSE: Duration = Duration::from_millis(100);
/// How long clients that could not finish in time are given to hear so.
const FAREWELL: Duration = Duration::from_millis(200);
/// More than this unsent is a client that does not read.
const MAX_BACKLOG: usize = 1 << 20;
/// How many refused connections may be told why at a time.
const MAX_LEAVING: usize = 64;

/// Connections that wait for a table.
#[derive(Default)]
struct Row {
    /// For items.
    sampling: Vec<usize>,
    /// For room. Nothing is read from them.
    inserting: VecDeque<usize>,
}

/// See the [module](self).
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    services: Services,
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
    /// The ring has room.
    room: LoopWaker,
    /// Something has happened to the weights.
    weights: LoopWaker,
    /// Connections for which nothing is done until the pool has done something, or until enough is durable of what they
    /// have changed. Nothing is read from them.
    busy: Vec<usize>,
    /// Connections whose batch is gathered elsewhere though they did not just ask for it: it had to be durable, or they
    /// had to wait for it. So they may be in another row meanwhile.
    gathering: Vec<usize>,
    /// Connections that can be sent more.
    writing: Vec<usize>,
    rows: Vec<Row>,
    /// Connections that wait for what they have changed to be durable, as in [`Services::durable`]: each once, though it
    /// may wait for several tables.
    unsettled: Vec<Vec<usize>>,
    /// Those who wait for rollout tables.
    wait_queue: WaitQueue,
    /// When the first of the parked samples has waited for as long as it may, or before.
    due: Option<Instant>,
    /// Of those who fill the stream, and of those who insert into tables.
    sessions: Sessions,
    table_sessions: Sessions,
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
        let services = Services::new(Arc::clone(&shared), &waker);
        let wait_queue = WaitQueue::new(&shared.rollouts, &waker);
        let now = Instant::now();
        let weights = LoopWaker::new(&waker);
        if let Some(store) = &shared.weights {
            store.wake_later(&weights.waker);
        }
        Ok(Self {
            index,
            rows: services.wakers.iter().map(|_| Row::default()).collect(),
            unsettled: vec![Vec::new(); services.durable.len()],
            services,
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
            room: LoopWaker::new(&waker),
            weights,
            busy: Vec::new(),
            gathering: Vec::new(),
            writing: Vec::new(),
            wait_queue,
            due: None,
            sessions: Sessions::default(),
            table_sessions: Sessions::default(),
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
        for index in std::mem::take(&mut self.writing) {
            self.write(index);
        }
        self.take_messages();
        if self.room.take() {
            self.open_up();
        }
        self.hear_tables();
        self.hear_disk();
        self.hear_checkpointer();
        self.hear_weights();
        self.resume();
        for _ in 0..self.ready.len() {
            if let Some(index) = self.ready.pop_front() {
                self.queued[index] = false;
                self.take_turn(index);
            }
        }
        self.serve_wait_queue();
        self.expire();
        self.sweep();
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.dismiss();
        }
        self.services.serving.set(None);
        Ok(())
    }

    /// Goes on after a panic: closes the connection that was being served, and has all others looked at again, since
    /// the round was not finished and may have forgotten them.
    fn recover(&mut self, panic: &(dyn Any + Send)) {
        self.shared.meter.panics.fetch_add(1, Ordering::Relaxed);
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let panic = text.unwrap_or("a value that is no text");
        let served = self
            .services
            .serving
            .take()
            .filter(|index| self.connections.get(*index).is_some_and(Option::is_some));
        match served {
            Some(index) => self.end(index, &Ending::Panicked { text: panic.to_owned() }),
            None => {
                error!(panic, "an event loop panicked and goes on: please report it");
                std::thread::sleep(PANIC_PAUSE);
            }
        }
        self.full = None;
        self.ready.clear();
        self.waiting.clear();
        self.busy.clear();
        self.gathering.clear();
        self.rows.fill_with(Row::default);
        self.unsettled.fill(Vec::new());
        self.queued.fill(false);
        for connection in self.connections.iter_mut().flatten() {
            let Some((session, _)) = connection.request_session() else { continue };
            (0..self.rows.len()).for_each(|table| session.recall(table, &self.services));
        }
        self.writing = (0..self.connections.len()).collect();
        (0..self.connections.len()).for_each(|index| self.enqueue(index));
        self.services.saved.set();
        self.weights.set();
        self.wait_queue.begin_anew();
        self.due = Some(Instant::now());
    }

    /// Ends what could not finish in time: each client learns what was stored, so that it sends the next
    /// server no more than the rest.
    fn dismiss(&mut self) {
        self.open_up();
        for table in self.shared.tables.all() {
            // Nobody is kept from anything any more.
            let deadline = Some(Instant::now() + FAREWELL);
            let wait = Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
            // Who is not told that something is kept, sends it again elsewhere.
            let _ = table.keep(wait);
        }
        for table in &**self.shared.rollouts {
            let deadline = Some(Instant::now() + FAREWELL);
            let wait = Wait { deadline, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
            let _ = table.keep(wait);
        }
        for index in 0..self.connections.len() {
            if self.connections[index].is_some() {
                self.settle(index);
                self.enlist(index);
            }
        }
        for index in 0..self.connections.len() {
            if self.connections[index].as_ref().is_some_and(|one| one.is_at_work()) {
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

    fn timeout(&mut self) -> Option<Duration> {
        if !self.ready.is_empty() || !self.writing.is_empty() {
            return Some(Duration::ZERO);
        }
        let idle = self.connections.len() == self.free.len();
        let sweep = (!idle).then(|| self.last_sweep + self.sweep_pause());
        let now = Instant::now();
        let ends = self.deadline.map(|deadline| [deadline, deadline + FAREWELL]);
        let deadline = ends.into_iter().flatten().find(|end| *end > now);
        let wait_queue = self.wait_queue.next(now);
        let times = [sweep, self.accept_again, deadline, self.due, wait_queue];
        let next = times.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(now))
    }

    fn take_messages(&mut self) {
        self.services.serving.set(None);
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
        let rollouts = &self.shared.rollouts;
        let is_ended = !rollouts.is_empty() && rollouts.iter().all(|table| table.is_closed());
        if is_ended {
            // Whoever waits is told so, and what was changed is durable by now: these answers come first.
            for index in 0..self.connections.len() {
                if self.settle(index) {
                    self.enlist(index);
                }
            }
            self.wait_queue.stir();
            self.serve_wait_queue();
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            let of_rollouts =
                connection.request_session().is_some_and(|(session, _)| session.rollouts.is_used);
            if is_ended && of_rollouts {
                connection.refuse(RefusalCode::Closed, "the server's rollout tables are closed");
            } else if connection.is_at_work() {
                let text = "the server is closing".to_owned();
                connection.out.write(|out| Control::Goodbye { text }.write(out));
            } else if !connection.is_leaving() {
                connection.refuse(RefusalCode::Closing, "the server is closing");
            }
            self.write(index);
        }
    }

    fn accept(&mut self) {
        self.services.serving.set(None);
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
                    // Out of file descriptors, most likely. Who waits to be accepted keeps waiting.
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
            self.rows.iter_mut().for_each(|row| row.inserting.retain(|other| *other != index));
            self.busy.retain(|other| *other != index);
        }
        self.unsettled.iter_mut().for_each(|waiting| waiting.retain(|other| *other != index));
        self.gathering.retain(|other| *other != index);
        self.rows.iter_mut().for_each(|row| row.sampling.retain(|other| *other != index));
        self.wait_queue.forget(index);
        self.writing.retain(|other| *other != index);
        self.free.push(index);
        Some(connection)
    }

    fn forget(&self, connection: &Connection) {
        self.shared.meter.leave(connection.id);
        self.shared.connected.fetch_sub(1, Ordering::Relaxed);
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
        self.services.serving.set(Some(index));
        if !connection.write() || connection.is_flooded(MAX_BACKLOG) {
            self.end(index, &Ending::Gone);
        } else if connection.is_relieved(self.shared.credit_bytes()) {
            // One that waits for something else is not read from now, and yet told what is durable.
            let waits = self.queued[index];
            self.enqueue(index);
            if waits && self.settle(index) && !self.writing.contains(&index) {
                self.writing.push(index);
            }
        }
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        for buffer in connection.out.take_spent() {
            // Nobody waits for it.
            drop(self.services.run(|| drop(buffer)));
        }
        if connection.sends_on && !self.writing.contains(&index) {
            self.writing.push(index);
        }
        if !connection.out.is_full(self.shared.credit_bytes())
            && let Some((session, _)) = connection.request_session()
            && !session.is_busy(&self.services)
            && std::mem::take(&mut session.rollouts.passed_over)
        {
            self.wait_queue.stir();
        }
    }

    /// One pass over one connection.
    fn take_turn(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        self.services.serving.set(Some(index));
        if self.full.is_some() && connection.fills_stream() {
            self.queued[index] = true;
            self.waiting.push_back(index);
            return;
        }
        let mut outcome = connection.read(&self.services, &mut self.buffer);
        if matches!(outcome, Outcome::Blocked(_))
            && let Some(stream) = &self.shared.stream
        {
            // Room that comes from here on rings; room that came before is found by one more try.
            stream.wake_on_room(&self.room.waker);
            outcome = connection.read(&self.services, &mut self.buffer);
        }
        if let Some(progress) = connection.progress() {
            let id = connection.id;
            self.sessions_of(progress.of_tables).advance(&progress.producer, id, progress.next);
        }
        self.conclude(index, outcome);
    }

    fn sessions_of(&mut self, of_tables: bool) -> &mut Sessions {
        if of_tables { &mut self.table_sessions } else { &mut self.sessions }
    }

    /// Lets those who wait for tables try again whose wakers were called.
    fn hear_tables(&mut self) {
        for table in 0..self.rows.len() {
            if self.services.wakers[table].items.take() {
                let row = &mut self.rows[table];
                for index in row.sampling.drain(..) {
                    if let Some((session, _)) = requesting(&mut self.connections, index) {
                        self.services.serving.set(Some(index));
                        session.recall(table, &self.services);
                        if !self.queued[index] {
                            self.queued[index] = true;
                            self.ready.push_back(index);
                        }
                    }
                }
            }
            if self.services.wakers[table].room.take() {
                // Last comes whoever took the room before, or nobody else would ever have a turn.
                let row = &mut self.rows[table].inserting;
                if !row.is_empty() {
                    row.rotate_left(1);
                }
                self.ready.extend(row.drain(..));
            }
        }
    }

    /// Tells those what is durable who wait for that.
    fn hear_disk(&mut self) {
        for place in 0..self.unsettled.len() {
            if !self.services.durable[place].take() {
                continue;
            }
            for index in std::mem::take(&mut self.unsettled[place]) {
                if self.settle(index) {
                    let credit = self.shared.credit();
                    if let Some(connection) = &mut self.connections[index] {
                        connection.acknowledge(credit, true);
                    }
                    self.write(index);
                }
            }
            if let Some(number) = place.checked_sub(self.rows.len()) {
                self.wait_queue.note_durable(number);
            }
        }
    }

    /// Tells those who asked for a checkpoint that is written now.
    fn hear_checkpointer(&mut self) {
        if !self.services.saved.take() {
            return;
        }
        for index in 0..self.connections.len() {
            let Some((session, out)) = requesting(&mut self.connections, index) else { continue };
            self.services.serving.set(Some(index));
            session.tell_saved(out);
            self.write(index);
        }
    }

    /// Lets those go on for whom nothing more is to be awaited.
    fn resume(&mut self) {
        // What rings from here on has the loop come by again.
        self.services.worked.take();
        for index in std::mem::take(&mut self.gathering) {
            self.services.serving.set(Some(index));
            let Some((session, out)) = requesting(&mut self.connections, index) else { continue };
            session.finish(&self.services, out);
            if self.settle(index) {
                self.enlist(index);
                self.write(index);
            }
        }
        for index in std::mem::take(&mut self.busy) {
            let Some(connection) = &mut self.connections[index] else { continue };
            self.services.serving.set(Some(index));
            match connection.finish_work(&self.services) {
                Ok(false) => self.busy.push(index),
                Ok(true) => {
                    self.queued[index] = false;
                    // What became durable meanwhile is told now.
                    if self.settle(index) {
                        self.enqueue(index);
                        self.write(index);
                    }
                }
                Err(outcome) => {
                    self.queued[index] = false;
                    self.conclude(index, outcome);
                }
            }
        }
    }

    /// Lets those go on who are told of weights or publish them.
    fn hear_weights(&mut self) {
        if !self.weights.take() {
            return;
        }
        // What happens from here on rings; what happened before is found by those who are let go on.
        if let Some(store) = &self.shared.weights {
            store.wake_later(&self.weights.waker);
        }
        for index in 0..self.connections.len() {
            if self.connections[index].as_ref().is_some_and(Connection::is_of_weights) {
                self.enqueue(index);
            }
        }
    }

    /// Takes note of what is durable of what a client of tables has changed, and sees to it that the loop is
    /// woken when more is. `false` when the connection is over, because nothing more will be.
    fn settle(&mut self, index: usize) -> bool {
        let Some(connection) = &mut self.connections[index] else { return false };
        self.services.serving.set(Some(index));
        let mut listened = None;
        let settled = loop {
            match connection.settle(&self.services) {
                // What is durable from here on wakes the loop; what was before is found by one more look.
                Ok(Some(place)) if listened != Some(place) => {
                    self.services.wake_on_durable(place);
                    listened = Some(place);
                }
                settled => break settled,
            }
        };
        self.note_gathering(index);
        match settled {
            Ok(Some(place)) if !self.unsettled[place].contains(&index) => {
                self.unsettled[place].push(index);
            }
            Ok(_) => {}
            Err(Outcome::Ended(ending)) => {
                self.end(index, &ending);
                return false;
            }
            Err(_) => return false,
        }
        true
    }

    /// Takes note of a batch that is gathered elsewhere for a connection, if one is.
    fn note_gathering(&mut self, index: usize) {
        let session = requesting(&mut self.connections, index);
        if session.is_some_and(|(session, _)| session.is_gathering())
            && !self.gathering.contains(&index)
        {
            self.gathering.push(index);
        }
    }

    /// Takes note of what a client of tables waits for.
    fn enlist(&mut self, index: usize) {
        let Some((session, out)) = requesting(&mut self.connections, index) else { return };
        self.services.serving.set(Some(index));
        self.wait_queue.receive(index, session, out);
        for table in session.enlist() {
            self.rows[table].sampling.push(index);
        }
        if let Some(deadline) = session.deadline() {
            self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
        }
    }

    /// Serves those who wait for rollout tables, if something has changed for them.
    fn serve_wait_queue(&mut self) {
        self.services.serving.set(None);
        let mut told = Vec::new();
        self.wait_queue.serve(&mut self.connections, &self.services, &mut told);
        told.sort_unstable();
        told.dedup();
        for index in told {
            if self.settle(index) {
                self.write(index);
            }
        }
    }

    /// Answers samples that have waited for as long as they may.
    fn expire(&mut self) {
        let now = Instant::now();
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        for index in 0..self.connections.len() {
            let Some((session, out)) = requesting(&mut self.connections, index) else { continue };
            self.services.serving.set(Some(index));
            if session.deadline().is_some_and(|deadline| deadline <= now) {
                session.expire(now, out);
                self.write(index);
            }
            self.enlist(index);
        }
    }

    fn conclude(&mut self, index: usize, outcome: Outcome) {
        let credit = self.shared.credit();
        let is_over = matches!(outcome, Outcome::Ended(_) | Outcome::Opened);
        if !is_over && !self.settle(index) {
            return;
        }
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
            Outcome::Held { table, .. } => {
                self.queued[index] = true;
                self.rows[table].inserting.push_back(index);
                // What is stored is stored: whoever flushes need not wait for the rest.
                connection.acknowledge(credit, true);
            }
            // It goes on when enough is sent.
            Outcome::Choked => {}
            // The disk has followed meanwhile, so nothing more would have the loop come by.
            Outcome::Busy if !connection.is_busy(&self.services) => self.enqueue(index),
            Outcome::Busy => {
                self.queued[index] = true;
                self.busy.push(index);
                // What is stored is stored: whoever flushes need not wait for the rest.
                connection.acknowledge(credit, true);
            }
            Outcome::Opened => self.decide(index),
            Outcome::Ended(ending) => return self.end(index, &ending),
        }
        self.enlist(index);
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
        let place = match (open.purpose, &self.shared.stream) {
            (Purpose::Memory, Some(stream)) => match Place::new(stream) {
                None => {
                    let text = "the ring has as many writers as it can tell apart";
                    return self.turn_away(index, RefusalCode::Limit, text);
                }
                place => place,
            },
            _ => None,
        };
        let arena = match open.purpose {
            Purpose::Gather => match Arena::new(open.first.min(MAX_ARENA) as usize) {
                Ok(arena) => Some(arena),
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
            let sessions = self.sessions_of(of_tables);
            let resumed = sessions.open(open.producer, open.epoch, open.first, id);
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
        let Some(connection) = &mut self.connections[index] else { return };
        connection.meter.set_client(open.purpose, open.name.clone());
        let phase = match (open.purpose, &self.shared.stream, &self.shared.weights) {
            (Purpose::Produce, Some(stream), _) => {
                let (producer, stream) = (open.producer, Arc::clone(stream));
                Phase::Producing { producer, stream, session: StreamSession::new(next, limit) }
            }
            (Purpose::Insert, ..) => {
                // What is done and perhaps not durable comes again, and is told from what is new.
                let kept = if self.services.is_all_durable() { next } else { open.first.min(next) };
                let producer = (open.producer, open.epoch);
                let session = Box::new(InsertSession::new(producer, next, kept, &self.services));
                (next, limit) = (kept, session.limit);
                Phase::Inserting { producer: open.producer, session }
            }
            (Purpose::Request | Purpose::Gather | Purpose::Watch, ..) => {
                Phase::Requesting(RequestSession::default())
            }
            (Purpose::Weights, _, Some(store)) => {
                let session = WeightsSession::new(Arc::clone(store), self.shared.hands_over);
                Phase::Weights(Box::new(session))
            }
            _ => Phase::Listening,
        };
        connection.begin(phase, next);
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
        if let Some(place) = place
            && !connection.share_ring(place)
        {
            return self.end(index, &Ending::Gone);
        }
        if let Some(arena) = arena
            && !connection.share_arena(arena)
        {
            return self.end(index, &Ending::Gone);
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
            let text = "the server has no weights to give or to take".to_owned();
            return match &self.shared.weights {
                None => Some((RefusalCode::Stream, text)),
                Some(store) => store.is_closed().then_some(closing),
            };
        }
        if open.purpose.is_of_tables() {
            if open.purpose == Purpose::Gather && !self.shared.hands_over {
                let text = "this address hands over no memory; use shm://".to_owned();
                return Some((RefusalCode::Memory, text));
            }
            let text = match (self.shared.tables.all(), &**self.shared.rollouts) {
                ([], []) => "the server has no tables, only a stream",
                ([], _) if open.purpose == Purpose::Insert => {
                    "the server has no tables that items are inserted into, only rollout tables"
                }
                _ => return None,
            };
            return Some((RefusalCode::Stream, text.to_owned()));
        }
        let Some(stream) = &self.shared.stream else {
            let text = "the server has no stream, only tables".to_owned();
            return Some((RefusalCode::Stream, text));
        };
        if stream.is_closed() {
            return Some(closing);
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
            let sessions = self.sessions_of(progress.of_tables);
            sessions.advance(&progress.producer, id, progress.next);
            sessions.leave(&progress.producer, id);
        }
        let Some(connection) = &mut self.connections[index] else { return };
        let meter = &self.shared.meter;
        let (id, peer) = (connection.id, connection.meter.peer.clone());
        match ending {
            Ending::Goodbye if !connection.is_leaving() => {
                connection.acknowledge_as(Stall::None, None);
                let text = String::new();
                connection.out.write(|out| Control::Goodbye { text }.write(out));
                connection.leave();
            }
            Ending::Malformed => {
                meter.malformed.fetch_add(1, Ordering::Relaxed);
                warn!(id, peer, "closed a connection: what came made no sense");
            }
            // Whoever looks seldom does not listen meanwhile.
            Ending::Silent if connection.meter.purpose() == Purpose::Watch.name() => {
                debug!(id, peer, "closed a connection: nobody looked for too long");
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
        let held = !self.busy.is_empty() || self.rows.iter().any(|row| !row.inserting.is_empty());
        let speak =
            (self.full.is_some() || held) && now.duration_since(self.last_excuse) >= heartbeat;
        if speak {
            self.last_excuse = now;
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            self.services.serving.set(Some(index));
            let waits = self.queued[index];
            if speak && (waits || connection.fills_stream()) {
                // We do not hear them now, so we tell them that we are there.
                let stall = match self.full {
                    Some(stall) if connection.fills_stream() => stall,
                    _ => connection.meter.stall(),
                };
                connection.reassure(stall);
            }
            if self.full.is_some() || waits {
                connection.excuse(now);
            }
            connection.rest(now);
            let publishes = connection.waits_to_publish();
            if let Some(ending) = connection.overdue(now, heartbeat * 3) {
                self.end(index, &ending);
            } else if speak {
                self.write(index);
            }
            if publishes {
                // It may have waited for long enough.
                self.enqueue(index);
            }
        }
    }
}
