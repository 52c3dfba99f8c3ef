//! Those who wait, of all connections of an event loop.
//!
//! Each thing that can be waited for has a row, and a waker that is called when it happens. In a row are connections,
//! which then have another turn, and requests, which are then tried again.
//!
//! Connections have their turns in the order in which they came, but that whoever had the first turn has the last the
//! next time, or nobody else would ever get what there is little of.
//!
//! Requests are tried in the order in which they came. Once one is kept waiting, no later one that wants just the same
//! is served before it: of admits and resumes that is any other; of samples of rollouts, one for the same rank of batches
//! of the same size; of samples of items, one of the same connection for as many items or more. Those with other wants
//! are tried each time: a batch that was given back may be what only they can have. So who wants large batches may wait
//! for as long as others take small ones.
//!
//! # Invariants
//!
//! 1. A request is here until it is answered, given up, or its connection is gone.
//! 2. Where requests wait, what could help them wakes the loop, or the time at which it happens is known.
//! 3. Nobody is told a reason before it was looked at: a client that does not read is answered when it does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use echoic_replay::limiter::Reason;
use echoic_replay::rollouts::ledger::{self, Change, Size};
use echoic_replay::rollouts::table::{self as rollout_table, Side};
use echoic_replay::table::{self, Call};

use super::Shared;
use super::connection::Connection;
use super::loop_wakers::LoopWaker;
use super::rollouts::failure;
use crate::wire::rollouts::Wish;
use crate::wire::tables::Area;

/// What can be waited for. Tables of items and rollout tables have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// The ring has room.
    Stream,
    /// Something has happened to the weights.
    Weights,
    /// The pool has done something.
    Pool,
    /// A checkpoint is written.
    Checkpoint,
    /// A table of items has room.
    Room(usize),
    /// More may be sampled from a table of items.
    Items(usize),
    /// More is durable of what was changed in a table, or nothing more will be. Rollout tables come behind the tables of
    /// items.
    Durable(usize),
    /// A rollout table may admit more.
    Producers(usize),
    /// More may be sampled from a rollout table.
    Consumers(usize),
    /// The learner of a rollout table has another version.
    Version(usize),
}

/// A request that may have to wait.
#[derive(Debug)]
pub(crate) enum WaitingRequest {
    /// A sample of a table of items.
    Items { count: usize, area: Option<Area> },
    /// An admit or a resume.
    Change(Change),
    /// A share of a batch of rollouts.
    Share(Wish),
    /// A version of the learner above this one.
    Version { above: i64 },
}

/// Why a request waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Blocked {
    Items(Reason),
    Rollouts(ledger::Blocked),
}

/// What became of a request that was tried again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    /// It is answered.
    Done,
    /// It is answered, since its time is over.
    Late,
    /// It has to wait for this.
    Waits(Blocked),
    /// It was not tried: nothing more can be answered until its connection [says](WaitQueue::stir) so.
    PassedOver,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) id: u64,
    /// The number of its table.
    pub(crate) table: usize,
    /// The place of its connection.
    index: usize,
    pub(crate) request: WaitingRequest,
    pub(crate) deadline: Option<Instant>,
    /// What for, when it was last tried; `None`, if it was passed over since.
    pub(crate) blocked: Option<Blocked>,
    /// Counts it among those that wait.
    counted: Option<Counted>,
}

#[derive(Debug)]
enum Counted {
    Items(table::Waiting),
    Rollouts(rollout_table::Waiting),
}

/// Who wants the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Class {
    /// Of a connection.
    Items(usize),
    Admit,
    Resume,
    /// Of a size of the batch, a rank, and how many share it.
    Share(Size, u32, u32),
}

impl Waiter {
    pub(crate) fn new(id: u64, table: usize, index: usize, request: WaitingRequest) -> Self {
        Self { id, table, index, request, deadline: None, blocked: None, counted: None }
    }

    /// What it waits for.
    fn key(&self) -> Key {
        match &self.request {
            WaitingRequest::Items { .. } => Key::Items(self.table),
            WaitingRequest::Change(_) => Key::Producers(self.table),
            WaitingRequest::Share(_) => Key::Consumers(self.table),
            WaitingRequest::Version { .. } => Key::Version(self.table),
        }
    }

    /// Those of a class are served in order, unless an earlier one wants more items than a later one; all others whenever
    /// they can be.
    fn class(&self) -> Option<(Class, usize)> {
        match &self.request {
            WaitingRequest::Items { count, .. } => Some((Class::Items(self.index), *count)),
            WaitingRequest::Change(Change::Admit(_)) => Some((Class::Admit, 0)),
            WaitingRequest::Change(_) => Some((Class::Resume, 0)),
            WaitingRequest::Share(Wish { want, .. }) => {
                Some((Class::Share(want.size, want.rank, want.ranks), 0))
            }
            WaitingRequest::Version { .. } => None,
        }
    }

    /// Takes note of why it waits, and counts it among those that do.
    pub(crate) fn note(&mut self, blocked: Blocked, shared: &Shared) {
        self.blocked = Some(blocked);
        match (&mut self.counted, blocked) {
            (Some(Counted::Items(waiting)), Blocked::Items(reason)) => waiting.because(reason),
            (Some(Counted::Rollouts(waiting)), Blocked::Rollouts(blocked)) => {
                waiting.because(blocked.reason());
            }
            (_, Blocked::Items(reason)) => {
                let table = shared.table(self.table);
                self.counted = table.map(|table| {
                    let waiting = table.begin_wait(Call::Sample);
                    waiting.because(reason);
                    Counted::Items(waiting)
                });
            }
            (_, Blocked::Rollouts(blocked)) => {
                let (side, applicant) = match &self.request {
                    WaitingRequest::Change(change) => (Side::Producers, change.applicant()),
                    WaitingRequest::Share(_) => (Side::Consumers, None),
                    _ => return,
                };
                let table = shared.rollout_table(self.table);
                let begin = |table: &Arc<rollout_table::RolloutTable>| {
                    Counted::Rollouts(table.begin_wait(side, applicant, blocked.reason()))
                };
                self.counted = table.map(begin);
            }
        }
    }

    /// Whether it has waited for as long as it may.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}

/// See the [module](self).
#[derive(Debug)]
struct Row {
    key: Key,
    waker: LoopWaker,
    /// In the order in which they came.
    connections: VecDeque<usize>,
    requests: VecDeque<Waiter>,
    /// Those that were tried in a pass that is not over.
    tried: VecDeque<Waiter>,
    /// The waker will be called for the requests.
    is_listening: bool,
    /// The requests are to be tried.
    is_stirred: bool,
    /// When the first of them has waited for as long as it may, or before.
    deadline: Option<Instant>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct WaitQueue {
    tables: usize,
    rollouts: usize,
    /// At [`WaitQueue::place`] of their keys.
    rows: Vec<Row>,
    /// When time may next change something in a rollout table.
    due: Option<Instant>,
}

impl WaitQueue {
    pub(crate) fn new(shared: &Shared, event_loop: &Arc<mio::Waker>) -> Self {
        let (tables, rollouts) = (shared.tables.all().len(), shared.rollouts.len());
        let mut keys = vec![Key::Stream, Key::Weights, Key::Pool, Key::Checkpoint];
        keys.extend((0..tables).flat_map(|number| [Key::Room(number), Key::Items(number)]));
        keys.extend((0..tables + rollouts).map(Key::Durable));
        keys.extend((0..rollouts).flat_map(|number| {
            [Key::Producers(number), Key::Consumers(number), Key::Version(number)]
        }));
        let row = |key| Row {
            key,
            waker: LoopWaker::new(event_loop),
            connections: VecDeque::new(),
            requests: VecDeque::new(),
            tried: VecDeque::new(),
            is_listening: false,
            is_stirred: false,
            deadline: None,
        };
        Self { tables, rollouts, rows: keys.into_iter().map(row).collect(), due: None }
    }

    fn place(&self, key: Key) -> usize {
        let behind_tables = 4 + 2 * self.tables;
        let behind_durable = behind_tables + self.tables + self.rollouts;
        match key {
            Key::Stream => 0,
            Key::Weights => 1,
            Key::Pool => 2,
            Key::Checkpoint => 3,
            Key::Room(number) => 4 + 2 * number,
            Key::Items(number) => 5 + 2 * number,
            Key::Durable(number) => behind_tables + number,
            Key::Producers(number) => behind_durable + 3 * number,
            Key::Consumers(number) => behind_durable + 3 * number + 1,
            Key::Version(number) => behind_durable + 3 * number + 2,
        }
    }

    fn row(&mut self, key: Key) -> &mut Row {
        let place = self.place(key);
        &mut self.rows[place]
    }

    pub(crate) fn waker(&self, key: Key) -> &Waker {
        &self.rows[self.place(key)].waker.waker
    }

    /// Has this wake the event loop once it happens. What happened before is found by who looks once more after this.
    pub(crate) fn listen(&self, key: Key, shared: &Shared) {
        let waker = self.waker(key);
        match (key, &shared.stream, &shared.weights) {
            (Key::Stream, Some(stream), _) => stream.wake_on_room(waker),
            (Key::Weights, _, Some(store)) => store.wake_later(waker),
            // Whoever does it has the waker.
            (Key::Stream | Key::Weights | Key::Pool | Key::Checkpoint, ..) => {}
            (Key::Room(number), ..) => shared.tables.all()[number].wake_on_room(waker),
            (Key::Items(number), ..) => shared.tables.all()[number].wake_on_items(waker),
            (Key::Durable(number), ..) => match shared.table(number) {
                Some(table) => table.wake_on_kept(waker),
                None => shared.rollouts[number - self.tables].wake_on_kept(waker),
            },
            (Key::Producers(number), ..) => {
                shared.rollouts[number].wake_later(Side::Producers, waker);
            }
            (Key::Consumers(number), ..) => {
                shared.rollouts[number].wake_later(Side::Consumers, waker);
            }
            (Key::Version(number), ..) => shared.rollouts[number].wake_at_version(waker),
        }
    }

    /// Has a connection have another turn when this has happened, which it [listens](WaitQueue::listen) for.
    pub(crate) fn park(&mut self, key: Key, index: usize) {
        let row = self.row(key);
        if !row.connections.contains(&index) {
            row.connections.push_back(index);
        }
    }

    /// The first of the connections that wait for this.
    pub(crate) fn first(&self, key: Key) -> Option<usize> {
        self.rows[self.place(key)].connections.front().copied()
    }

    /// Why a request has to wait for one that came before it, if so.
    pub(crate) fn ahead(&self, waiter: &Waiter) -> Option<Blocked> {
        let (class, count) = waiter.class()?;
        let requests = self.rows[self.place(waiter.key())].requests.iter();
        let wants_the_same = |other: &&Waiter| {
            other.class().is_some_and(|(of, least)| of == class && least <= count)
        };
        requests.filter(wants_the_same).find_map(|other| other.blocked)
    }

    /// Keeps a request that has to wait.
    pub(crate) fn admit(&mut self, waiter: Waiter) {
        let row = self.row(waiter.key());
        // What has happened since it was tried is found by one more try.
        row.is_stirred |= !row.is_listening;
        row.deadline = [row.deadline, waiter.deadline].into_iter().flatten().min();
        row.requests.push_back(waiter);
    }

    /// Gives up a request; whether it waited.
    pub(crate) fn cancel(&mut self, index: usize, id: u64) -> bool {
        let is_it = |waiter: &Waiter| waiter.index == index && waiter.id == id;
        self.remove(is_it)
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, index: usize) {
        self.rows.iter_mut().for_each(|row| row.connections.retain(|other| *other != index));
        self.remove(|waiter| waiter.index == index);
    }

    fn remove(&mut self, is_it: impl Fn(&Waiter) -> bool) -> bool {
        let mut is_found = false;
        for row in &mut self.rows {
            let before = row.requests.len();
            row.requests.retain(|waiter| !is_it(waiter));
            if row.requests.len() < before {
                // It may have kept others waiting.
                (row.is_stirred, is_found) = (true, true);
            }
        }
        is_found
    }

    /// Has those requests tried again that were passed over for this connection.
    pub(crate) fn stir(&mut self, index: usize) {
        for row in &mut self.rows {
            row.is_stirred |= row.requests.iter().any(|waiter| waiter.index == index);
        }
    }

    /// Has all requests tried again.
    pub(crate) fn stir_all(&mut self) {
        self.rows.iter_mut().for_each(|row| row.is_stirred = !row.requests.is_empty());
    }

    /// Has all requests tried again, and no connection wait, also where a pass was not finished.
    pub(crate) fn begin_anew(&mut self) {
        for row in &mut self.rows {
            row.connections.clear();
            row.tried.append(&mut row.requests);
            std::mem::swap(&mut row.requests, &mut row.tried);
            row.is_listening = false;
        }
        self.stir_all();
    }

    /// Takes note of what has happened: what connections waited for, in the order of their turns.
    pub(crate) fn hear(&mut self, shared: &Shared) -> Vec<(Key, VecDeque<usize>)> {
        let mut heard = Vec::new();
        let mut may_have_failed = false;
        for row in self.rows.iter_mut().filter(|row| row.waker.take()) {
            row.is_listening = false;
            row.is_stirred = !row.requests.is_empty();
            may_have_failed |= matches!(row.key, Key::Durable(number) if number >= self.tables);
            if !row.connections.is_empty() {
                let mut connections = std::mem::take(&mut row.connections);
                connections.rotate_left(1);
                heard.push((row.key, connections));
            }
        }
        if may_have_failed {
            self.stir_if_failed(shared);
        }
        heard
    }

    /// Has those told who wait for a table that writes nothing more.
    fn stir_if_failed(&mut self, shared: &Shared) {
        if shared.rollouts.iter().any(|table| failure(table).is_some()) {
            self.stir_all();
        }
    }

    /// When to look again at the latest: now, if there is something to be done.
    pub(crate) fn next(&mut self, now: Instant, shared: &Shared) -> Option<Instant> {
        if self.rows.iter().any(|row| row.is_stirred) {
            return Some(now);
        }
        let waits = |(number, table): &(usize, &Arc<rollout_table::RolloutTable>)| {
            let keys = [Key::Producers(*number), Key::Consumers(*number)];
            keys.iter().any(|key| !self.rows[self.place(*key)].requests.is_empty())
                && !table.is_closed()
        };
        let tables = shared.rollouts.iter().enumerate().filter(waits);
        self.due = tables.filter_map(|(_, table)| table.next_due()).min();
        self.rows.iter().filter_map(|row| row.deadline).chain(self.due).min()
    }

    /// Tries those requests again that may have a better chance; those whose connections have something to be sent are
    /// added to `told`.
    pub(crate) fn serve(
        &mut self,
        connections: &mut [Option<Connection>],
        shared: &Shared,
        serving: &mut Option<usize>,
        told: &mut Vec<usize>,
    ) {
        if let Some(now) = self.due.take().map(|_| Instant::now()) {
            for table in shared.rollouts.iter() {
                if table.next_due().is_some_and(|due| due <= now) {
                    // It rings if that has changed something, or never will again.
                    let _ = table.apply(&Change::Tick);
                }
            }
            self.stir_if_failed(shared);
        }
        for place in 0..self.rows.len() {
            let row = &mut self.rows[place];
            let is_late = row.deadline.is_some_and(|deadline| deadline <= Instant::now());
            if !std::mem::take(&mut row.is_stirred) && !is_late {
                continue;
            }
            loop {
                self.pass(place, connections, shared, serving, told);
                let row = &mut self.rows[place];
                // What happens from here on rings; what happened before is found by one more pass.
                if row.requests.is_empty() || std::mem::replace(&mut row.is_listening, true) {
                    break;
                }
                let key = row.key;
                self.listen(key, shared);
            }
        }
    }

    /// Looks at each request of a row once, in order.
    fn pass(
        &mut self,
        place: usize,
        connections: &mut [Option<Connection>],
        shared: &Shared,
        serving: &mut Option<usize>,
        told: &mut Vec<usize>,
    ) {
        // What the first of each class that waits waits for, and how many items it wants.
        let mut ahead: HashMap<Class, (usize, Blocked)> = HashMap::new();
        self.rows[place].deadline = None;
        while let Some(mut waiter) = self.rows[place].requests.pop_front() {
            let Some(connection) = connections.get_mut(waiter.index).and_then(Option::as_mut)
            else {
                continue;
            };
            *serving = Some(waiter.index);
            let class = waiter.class();
            let before = class.and_then(|(class, count)| {
                ahead.get(&class).filter(|(least, _)| *least <= count).map(|(_, blocked)| *blocked)
            });
            let attempt = connection.attempt(&mut waiter, before, self, shared);
            let row = &mut self.rows[place];
            match attempt {
                Verdict::Waits(blocked) => {
                    if let Some((class, count)) = class.filter(|_| before.is_none()) {
                        ahead.insert(class, (count, blocked));
                    }
                }
                Verdict::PassedOver => {}
                Verdict::Done => {
                    told.push(waiter.index);
                    continue;
                }
                Verdict::Late => {
                    told.push(waiter.index);
                    // Others may no longer have to wait for it.
                    row.is_stirred = true;
                    continue;
                }
            }
            // Those that were passed over are looked at when their clients have read more.
            if waiter.blocked.is_some() {
                row.deadline = [row.deadline, waiter.deadline].into_iter().flatten().min();
            }
            row.tried.push_back(waiter);
        }
        let row = &mut self.rows[place];
        std::mem::swap(&mut row.requests, &mut row.tried);
        row.is_stirred &= !row.requests.is_empty();
    }
}
