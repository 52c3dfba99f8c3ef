//! Those who wait for rollout tables, of all connections of an event loop.
//!
//! Each table has a room, where waiters are looked at in the order in which they came. Once one is kept waiting, no
//! later one that wants just the same is served before it: of admits and resumes that is any other; of samples, one
//! for the same rank of batches of the same size. Guests with other wants are tried each time: a batch that was given
//! back may be what only they can have. So who wants large batches may wait for as long as others take small ones.
//!
//! # Invariants
//!
//! 1. A waiter is here until it is answered, given up, or its connection is gone.
//! 2. Where waiters wait, what could help them wakes the loop, or the time at which it happens is known.
//! 3. Nobody is told a reason before it was looked at: a client that does not read is answered when it does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::ledger::{Blocked, Change, Outcome, Refusal, Size, Want};
use echoic_replay::rollouts::table::{CallError, Side, Waiting};

use super::delivery::deliver;
use super::refuse;
use crate::server::connection::{Connection, requesting};
use crate::server::disk_queue::{Held, Receipt};
use crate::server::loop_wakers::LoopWaker;
use crate::server::request_session::{RequestSession, fail};
use crate::server::services::Services;
use crate::wire::frame::{HEADER_BYTES, MAX_CONTROL};
use crate::wire::rollouts::Wish;
use crate::wire::tables::{Answer, FailureCode, MAX_BATCH};
use crate::write_buffer::{Piece, WriteBuffer};

/// What a waiter has come for.
#[derive(Debug)]
pub(super) enum WaitingRequest {
    /// An admit or a resume.
    Change(Change),
    /// A share of a batch.
    Sample(Wish),
    /// A version of the learner above this one.
    Version { above: i64 },
}

impl WaitingRequest {
    /// Which of the wakers is called for it.
    fn waker(&self) -> usize {
        match self.side() {
            Some(Side::Producers) => 0,
            Some(Side::Consumers) => 1,
            None => 2,
        }
    }

    fn side(&self) -> Option<Side> {
        match self {
            Self::Change(_) => Some(Side::Producers),
            Self::Sample(_) => Some(Side::Consumers),
            Self::Version { .. } => None,
        }
    }
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    id: u64,
    table: usize,
    /// Its place among the event loop's.
    connection: usize,
    request: WaitingRequest,
    deadline: Option<Instant>,
    /// It goes if it can't be served at once.
    is_hasty: bool,
    /// What for, when it was last looked at; `None`, if it never was.
    blocked: Option<Blocked>,
    /// Counts it among those that wait.
    idling: Option<Waiting>,
}

impl Waiter {
    pub(super) fn new(
        id: u64,
        table: usize,
        request: WaitingRequest,
        deadline: Option<Instant>,
        is_hasty: bool,
    ) -> Self {
        let (connection, blocked, idling) = (usize::MAX, None, None);
        Self { id, table, connection, request, deadline, is_hasty, blocked, idling }
    }

    /// Counts how long it waits, and for what.
    fn note(&mut self, blocked: Blocked, table: &RolloutTable) {
        self.blocked = Some(blocked);
        // Who has no time does not wait.
        let Some(side) = self.request.side().filter(|_| !self.is_hasty) else { return };
        match &mut self.idling {
            Some(idling) => idling.because(blocked.reason()),
            None => {
                let applicant = match &self.request {
                    WaitingRequest::Change(change) => change.applicant(),
                    _ => None,
                };
                self.idling = Some(table.begin_wait(side, applicant, blocked.reason()));
            }
        }
    }

    /// What it waited for in vain, if it has waited for as long as it may.
    fn vain(&self, now: Instant) -> Option<Blocked> {
        let is_late = self.is_hasty || self.deadline.is_some_and(|deadline| deadline <= now);
        self.blocked.filter(|_| is_late)
    }
}

/// What those before a waiter wait for.
#[derive(Debug, Default)]
struct Ahead {
    admit: Option<Blocked>,
    resume: Option<Blocked>,
    /// By the size of the batch, the rank, and how many share it.
    samples: HashMap<(Size, u32, u32), Blocked>,
}

impl Ahead {
    /// Why a waiter is not even tried: what the first of those who want the same waits for.
    fn before(&self, request: &WaitingRequest) -> Option<Blocked> {
        match request {
            WaitingRequest::Change(Change::Admit(_)) => self.admit,
            WaitingRequest::Change(_) => self.resume,
            WaitingRequest::Sample(wish) => self.samples.get(&place(&wish.want)).copied(),
            WaitingRequest::Version { .. } => None,
        }
    }

    /// A waiter has to wait for this.
    fn join(&mut self, request: &WaitingRequest, blocked: Blocked) {
        match request {
            WaitingRequest::Change(Change::Admit(_)) => self.admit = self.admit.or(Some(blocked)),
            WaitingRequest::Change(_) => self.resume = self.resume.or(Some(blocked)),
            WaitingRequest::Sample(wish) => {
                self.samples.entry(place(&wish.want)).or_insert(blocked);
            }
            WaitingRequest::Version { .. } => {}
        }
    }
}

/// What wants have to have in common to be alike.
fn place(want: &Want) -> (Size, u32, u32) {
    (want.size, want.rank, want.ranks)
}

/// A table's waiters.
#[derive(Debug)]
struct Room {
    table: Arc<RolloutTable>,
    /// For producers, for consumers, for versions.
    wakers: [LoopWaker; 3],
    /// Which of them will ring.
    is_listening: [bool; 3],
    /// In the order in which they came.
    waiters: VecDeque<Waiter>,
    /// They are to be looked at.
    is_stirred: bool,
    /// When the first of them has waited for as long as it may.
    deadline: Option<Instant>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct WaitQueue {
    rooms: Vec<Room>,
    /// When time may next change something.
    due: Option<Instant>,
}

impl WaitQueue {
    pub(crate) fn new(tables: &[Arc<RolloutTable>], waker: &Arc<mio::Waker>) -> Self {
        let room = |table: &Arc<RolloutTable>| Room {
            table: Arc::clone(table),
            wakers: std::array::from_fn(|_| LoopWaker::new(waker)),
            is_listening: [false; 3],
            waiters: VecDeque::new(),
            is_stirred: false,
            deadline: None,
        };
        Self { rooms: tables.iter().map(room).collect(), due: None }
    }

    /// Takes those that have come to a connection, and lets those go that are given up.
    pub(crate) fn receive(
        &mut self,
        index: usize,
        session: &mut RequestSession,
        out: &mut WriteBuffer,
    ) {
        for mut waiter in session.rollouts.arrivals.drain(..) {
            waiter.connection = index;
            if let Some(room) = self.rooms.get_mut(waiter.table) {
                room.is_stirred = true;
                room.waiters.push_back(waiter);
            }
        }
        for id in std::mem::take(&mut session.rollouts.cancels) {
            for room in &mut self.rooms {
                let is_it = |waiter: &Waiter| waiter.connection == index && waiter.id == id;
                if let Some(found) = room.waiters.iter().position(is_it) {
                    room.waiters.remove(found);
                    // It may have kept others waiting.
                    room.is_stirred = true;
                    session.rollouts.see_off();
                    fail(id, FailureCode::Cancelled, "the client gave it up", out);
                }
            }
        }
    }

    /// More is durable in the table of this number, or nothing more will be.
    pub(crate) fn note_durable(&mut self, number: usize) {
        self.rooms[number].stir_if_failed();
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, index: usize) {
        for room in &mut self.rooms {
            let before = room.waiters.len();
            room.waiters.retain(|waiter| waiter.connection != index);
            room.is_stirred |= room.waiters.len() < before;
        }
    }

    /// Has all be looked at again.
    pub(crate) fn stir(&mut self) {
        self.rooms.iter_mut().for_each(|room| room.is_stirred |= !room.waiters.is_empty());
    }

    /// As [`WaitQueue::stir`], also where a pass was not finished: it may have begun to listen and told nobody.
    pub(crate) fn begin_anew(&mut self) {
        for room in &mut self.rooms {
            room.is_listening = [false; 3];
        }
        self.stir();
    }

    /// When to look again at the latest: now, if there is something to be done.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Instant> {
        if self.rooms.iter().any(|room| room.is_stirred) {
            return Some(now);
        }
        let waits = |room: &&Room| {
            room.waiters.iter().any(|waiter| waiter.request.side().is_some())
                && !room.table.is_closed()
        };
        self.due = self.rooms.iter().filter(waits).filter_map(|room| room.table.next_due()).min();
        let deadlines = self.rooms.iter().filter_map(|room| room.deadline);
        deadlines.chain(self.due).min()
    }

    /// Serves whom it can; those whose connections have something to be sent are added to `told`.
    pub(crate) fn serve(
        &mut self,
        connections: &mut [Option<Connection>],
        services: &Services,
        told: &mut Vec<usize>,
    ) {
        if self.rooms.is_empty() {
            return;
        }
        if let Some(now) = self.due.map(|_| Instant::now()) {
            for room in &mut self.rooms {
                if room.table.next_due().is_some_and(|due| due <= now) {
                    // It rings if that has changed something, or never will again.
                    let _ = room.table.apply(&Change::Tick);
                }
                room.stir_if_failed();
            }
            self.due = None;
        }
        for room in &mut self.rooms {
            room.hear();
            let is_late = room.deadline.is_some_and(|deadline| deadline <= Instant::now());
            if room.is_stirred || is_late {
                room.serve(connections, services, told);
            }
        }
    }
}

impl Room {
    /// Has waiters looked at who are to be told that the table writes nothing more.
    fn stir_if_failed(&mut self) {
        self.is_stirred |= !self.waiters.is_empty() && failure(&self.table).is_some();
    }

    fn hear(&mut self) {
        for (waker, is_listening) in self.wakers.iter().zip(&mut self.is_listening) {
            if waker.take() {
                *is_listening = false;
                self.is_stirred |= !self.waiters.is_empty();
            }
        }
    }

    fn serve(
        &mut self,
        connections: &mut [Option<Connection>],
        services: &Services,
        told: &mut Vec<usize>,
    ) {
        self.is_stirred = false;
        loop {
            let ended = self.pass(connections, services, told);
            if let Some(error) = ended.or_else(|| failure(&self.table)) {
                self.dismiss(&error, connections, told);
                break;
            }
            // What happens from here on rings; what happened before is found by one more pass.
            if !self.listen() {
                break;
            }
        }
        let now = Instant::now();
        self.waiters.retain(|waiter| {
            let Some(blocked) = waiter.vain(now) else { return true };
            if let Some((session, out)) = requesting(connections, waiter.connection) {
                session.rollouts.see_off();
                refuse(waiter.id, CallError::TimedOut(blocked), out);
                told.push(waiter.connection);
            }
            // Others may no longer have to wait for it.
            self.is_stirred = true;
            false
        });
        self.is_stirred &= !self.waiters.is_empty();
        // Those that were not looked at are when their clients have read more.
        let seen = self.waiters.iter().filter(|waiter| waiter.blocked.is_some());
        self.deadline = seen.filter_map(|waiter| waiter.deadline).min();
    }

    /// Tells all waiters that the table has ended for them.
    fn dismiss(
        &mut self,
        error: &CallError,
        connections: &mut [Option<Connection>],
        told: &mut Vec<usize>,
    ) {
        for waiter in self.waiters.drain(..) {
            if let Some((session, out)) = requesting(connections, waiter.connection) {
                session.rollouts.see_off();
                refuse(waiter.id, error.clone(), out);
                told.push(waiter.connection);
            }
        }
    }

    /// Looks at each waiter once, in order. Why nothing is done for anybody any more, if so.
    fn pass(
        &mut self,
        connections: &mut [Option<Connection>],
        services: &Services,
        told: &mut Vec<usize>,
    ) -> Option<CallError> {
        let (mut ahead, mut ended, table) = (Ahead::default(), None, &self.table);
        self.waiters.retain_mut(|waiter| {
            let Some((session, out)) = requesting(connections, waiter.connection) else {
                return false;
            };
            services.serving.set(Some(waiter.connection));
            if session.is_busy(services) || out.is_full(services.most_unsent()) {
                session.rollouts.passed_over = true;
                return true;
            }
            if ended.is_some() {
                return true;
            }
            let tried = match ahead.before(&waiter.request) {
                Some(blocked) => Err(CallError::Refused(blocked.into())),
                None => attempt(waiter, table, session, services, out),
            };
            let blocked = match tried {
                Err(CallError::Refused(Refusal::Blocked(blocked))) => blocked,
                Err(error @ (CallError::Journal(_) | CallError::Closed)) => {
                    ended = Some(error);
                    return true;
                }
                answered => {
                    if let Err(error) = answered {
                        refuse(waiter.id, error, out);
                    }
                    session.rollouts.see_off();
                    told.push(waiter.connection);
                    return false;
                }
            };
            ahead.join(&waiter.request, blocked);
            waiter.note(blocked, table);
            true
        });
        ended
    }

    /// Registers the wakers that waiters wait for; whether some would not have been called before.
    fn listen(&mut self) -> bool {
        let mut is_new = false;
        for waiter in self.waiters.iter().filter(|waiter| !waiter.is_hasty) {
            let source = waiter.request.waker();
            let (Some(waker), Some(is_listening)) =
                (self.wakers.get(source), self.is_listening.get_mut(source))
            else {
                continue;
            };
            if std::mem::replace(is_listening, true) {
                continue;
            }
            is_new = true;
            match waiter.request.side() {
                Some(side) => self.table.wake_later(side, &waker.waker),
                None => self.table.wake_at_version(&waker.waker),
            }
        }
        is_new
    }
}

/// Why a table with a directory writes nothing more, if so.
fn failure(table: &RolloutTable) -> Option<CallError> {
    table.is_kept(table.receipt()?).err()
}

/// Serves a waiter, if that is possible now.
fn attempt(
    waiter: &Waiter,
    table: &Arc<RolloutTable>,
    session: &mut RequestSession,
    services: &Services,
    out: &mut WriteBuffer,
) -> Result<(), CallError> {
    let (id, number) = (waiter.id, waiter.table);
    match &waiter.request {
        WaitingRequest::Version { above } => {
            let version = table.version();
            if version > *above {
                out.write(|out| Answer::Done { id, count: version as u64 }.write(out));
                return Ok(());
            }
            if table.is_closed() {
                return Err(CallError::Closed);
            }
            let blocked = Blocked::Shipping { version, needed: above.saturating_add(1) };
            return Err(CallError::Refused(blocked.into()));
        }
        WaitingRequest::Change(change) => match table.apply(change) {
            Ok(outcome) => match tale(id, outcome) {
                Some(frame) => {
                    let receipt = Receipt::of_rollouts(number, table);
                    session.answer(id, receipt, Held::Frame(frame), services, out);
                }
                None => {
                    let text = "what is there of the group has more bytes than an answer may have";
                    fail(id, FailureCode::TooLarge, text, out);
                }
            },
            Err(CallError::Refused(refusal)) if !matches!(refusal, Refusal::Blocked(_)) => {
                let outcomes = vec![Err(refusal)];
                out.write(|out| Answer::RolloutOutcomes { id, outcomes }.write(out));
            }
            Err(error) => return Err(error),
        },
        WaitingRequest::Sample(wish) => {
            let want = Want { width: wish.form.width(), ..wish.want };
            if let Outcome::Delivered(share) = table.apply(&Change::Sample(want))? {
                deliver((id, number), table, wish, share, session, services, out);
            }
        }
    }
    Ok(())
}

/// The outcome of a change that was alone; `None`, if it is too large to be told.
fn tale(id: u64, outcome: Outcome) -> Option<Piece> {
    let mut frame = Vec::new();
    Answer::RolloutOutcomes { id, outcomes: vec![Ok(outcome)] }.write(&mut frame);
    let limit = MAX_BATCH as usize + HEADER_BYTES - MAX_CONTROL as usize;
    (frame.len() <= limit).then_some(Piece::Small(frame))
}
