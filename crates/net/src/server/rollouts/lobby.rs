//! Those who wait for rollout tables, of all connections of an event loop.
//!
//! Each table has a room, where guests are looked at in the order in which they came. Once one is kept waiting, no
//! later one is served with what it waits for: of admits and resumes that is any other; of samples, any but those for
//! the other ranks of the same batches. So nobody waits for ever because others who want less are faster.
//!
//! # Invariants
//!
//! 1. A guest is here until it is answered, given up, or its connection is gone.
//! 2. Where guests wait, what could help them rings, or the time at which it happens is known.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::idle::Idling;
use echoic_replay::rollouts::ledger::{Admit, Blocked, Change, Outcome, Refusal, Want};
use echoic_replay::rollouts::table::{CallError, Side};

use super::delivery::deliver;
use super::holding::Frame;
use super::{fail, refuse};
use crate::server::bells::Rope;
use crate::server::connection::Connection;
use crate::server::outbox::Outbox;
use crate::server::tables::{Context, Desk};
use crate::wire::frame::{HEADER_BYTES, MAX_CONTROL};
use crate::wire::rollouts::Wish;
use crate::wire::tables::{Answer, FailureCode, MAX_BATCH};

/// What a guest has come for.
#[derive(Debug)]
pub(super) enum Matter {
    /// An admit or a resume.
    Change(Change),
    /// A share of a batch.
    Sample(Wish),
    /// A version of the learner above this one.
    Version { above: i64 },
}

impl Matter {
    /// Which of the bells rings for it.
    fn bell(&self) -> usize {
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
pub(crate) struct Guest {
    id: u64,
    table: usize,
    /// Its place among the event loop's.
    connection: usize,
    matter: Matter,
    deadline: Option<Instant>,
    /// It goes if it can't be served at once.
    is_hasty: bool,
    /// What for, when it was last looked at.
    blocked: Blocked,
    /// Counts it among those that wait.
    idling: Option<Idling>,
}

impl Guest {
    pub(super) fn new(
        id: u64,
        table: usize,
        matter: Matter,
        deadline: Option<Instant>,
        is_hasty: bool,
    ) -> Self {
        let (connection, blocked, idling) = (usize::MAX, Blocked::Paused, None);
        Self { id, table, connection, matter, deadline, is_hasty, blocked, idling }
    }

    /// Counts how long it waits, and for what.
    fn note(&mut self, blocked: Blocked, table: &RolloutTable) {
        self.blocked = blocked;
        // Who has no time does not wait.
        let Some(side) = self.matter.side().filter(|_| !self.is_hasty) else { return };
        match &mut self.idling {
            Some(idling) => idling.because(blocked.reason()),
            None => self.idling = Some(table.begin_wait(side, blocked.reason())),
        }
    }
}

/// What those before a guest wait for.
#[derive(Debug, Default)]
struct Line {
    admit: Option<Blocked>,
    resume: Option<Blocked>,
    sample: Option<(Want, Blocked)>,
}

impl Line {
    /// Why a guest is not even tried.
    fn before(&self, matter: &Matter) -> Option<Blocked> {
        match matter {
            // Who asks for a group that runs gets it, whatever the others wait for.
            Matter::Change(Change::Admit(Admit { key, .. })) if !key.is_empty() => None,
            Matter::Change(Change::Admit(_)) => self.admit,
            Matter::Change(_) => self.resume,
            Matter::Sample(Wish { want, .. }) => {
                let (first, blocked) = self.sample.as_ref()?;
                let is_other_rank =
                    want.size == first.size && want.ranks == first.ranks && want.rank != first.rank;
                (!is_other_rank).then_some(*blocked)
            }
            Matter::Version { .. } => None,
        }
    }

    /// A guest has to wait for this.
    fn join(&mut self, matter: &Matter, blocked: Blocked) {
        match matter {
            Matter::Change(Change::Admit(_)) => self.admit = self.admit.or(Some(blocked)),
            Matter::Change(_) => self.resume = self.resume.or(Some(blocked)),
            Matter::Sample(wish) => self.sample = self.sample.or(Some((wish.want, blocked))),
            Matter::Version { .. } => {}
        }
    }
}

/// A table's guests.
#[derive(Debug)]
struct Room {
    table: Arc<RolloutTable>,
    /// For producers, for consumers, for versions.
    ropes: [Rope; 3],
    /// Which of them will ring.
    is_listening: [bool; 3],
    /// Rings when more of what has changed is kept.
    kept: Rope,
    /// Connections with answers that wait for that.
    keeping: Vec<usize>,
    /// In the order in which they came.
    guests: VecDeque<Guest>,
    /// They are to be looked at.
    is_stirred: bool,
    /// When the first of them has waited for as long as it may.
    deadline: Option<Instant>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Lobby {
    rooms: Vec<Room>,
    /// When time may next change something.
    due: Option<Instant>,
}

impl Lobby {
    pub(crate) fn new(tables: &[Arc<RolloutTable>], waker: &Arc<mio::Waker>) -> Self {
        let room = |table: &Arc<RolloutTable>| Room {
            table: Arc::clone(table),
            ropes: std::array::from_fn(|_| Rope::new(waker)),
            is_listening: [false; 3],
            kept: Rope::new(waker),
            keeping: Vec::new(),
            guests: VecDeque::new(),
            is_stirred: false,
            deadline: None,
        };
        Self { rooms: tables.iter().map(room).collect(), due: None }
    }

    /// Takes those that have come to a connection, lets those go that are given up, and answers what is kept.
    pub(crate) fn receive(
        &mut self,
        index: usize,
        desk: &mut Desk,
        context: &Context<'_>,
        out: &mut Outbox,
    ) {
        self.settle(index, desk, context, out);
        for mut guest in desk.counter.take_arrivals() {
            guest.connection = index;
            if let Some(room) = self.rooms.get_mut(guest.table) {
                room.is_stirred = true;
                room.guests.push_back(guest);
            }
        }
        for id in desk.counter.take_cancels() {
            for room in &mut self.rooms {
                let is_it = |guest: &Guest| guest.connection == index && guest.id == id;
                if let Some(found) = room.guests.iter().position(is_it) {
                    room.guests.remove(found);
                    // It may have kept others waiting.
                    room.is_stirred = true;
                    desk.counter.see_off();
                    fail(id, FailureCode::Cancelled, "the client gave it up", out);
                }
            }
        }
    }

    /// Sends the answers that tell of what is kept, and sees to it that a bell rings for the others.
    fn settle(&mut self, index: usize, desk: &mut Desk, context: &Context<'_>, out: &mut Outbox) {
        let mut listened = None;
        while let Some(number) = desk.counter.holding.settle(context.rollouts, out) {
            if listened == Some(number) {
                return;
            }
            listened = Some(number);
            let Some(room) = self.rooms.get_mut(number) else { return };
            if !room.keeping.contains(&index) {
                room.keeping.push(index);
            }
            // What is kept from here on rings; what was kept before is found by one more look.
            room.table.wake_on_kept(&room.kept.waker);
        }
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, index: usize) {
        for room in &mut self.rooms {
            room.keeping.retain(|other| *other != index);
            let before = room.guests.len();
            room.guests.retain(|guest| guest.connection != index);
            room.is_stirred |= room.guests.len() < before;
        }
    }

    /// Has all be looked at again.
    pub(crate) fn stir(&mut self) {
        self.rooms.iter_mut().for_each(|room| room.is_stirred |= !room.guests.is_empty());
    }

    /// When to look again at the latest: now, if there is something to be done.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Instant> {
        if self.rooms.iter().any(|room| room.is_stirred) {
            return Some(now);
        }
        let waits = |room: &&Room| {
            room.guests.iter().any(|guest| guest.matter.side().is_some()) && !room.table.is_closed()
        };
        self.due = self.rooms.iter().filter(waits).filter_map(|room| room.table.next_due()).min();
        let deadlines = self.rooms.iter().filter_map(|room| room.deadline);
        deadlines.chain(self.due).min()
    }

    /// Serves whom it can; those whose connections have something to be sent are added to `told`.
    pub(crate) fn serve(
        &mut self,
        connections: &mut [Option<Connection>],
        context: &Context<'_>,
        told: &mut Vec<usize>,
    ) {
        if self.rooms.is_empty() {
            return;
        }
        if let Some(now) = self.due.map(|_| Instant::now()) {
            for room in &self.rooms {
                if room.table.next_due().is_some_and(|due| due <= now) {
                    // It rings if that has changed something.
                    let _ = room.table.apply(&Change::Tick);
                }
            }
            self.due = None;
        }
        let first_told = told.len();
        for room in &mut self.rooms {
            if room.kept.bell.heard() {
                told.append(&mut room.keeping);
            }
            room.hear();
            let is_late = room.deadline.is_some_and(|deadline| deadline <= Instant::now());
            if room.is_stirred || is_late {
                room.serve(connections, context, told);
            }
        }
        for index in told.get(first_told..).unwrap_or_default() {
            if let Some((desk, out)) = reach(connections, *index) {
                self.settle(*index, desk, context, out);
            }
        }
    }
}

impl Room {
    fn hear(&mut self) {
        for (rope, is_listening) in self.ropes.iter().zip(&mut self.is_listening) {
            if rope.bell.heard() {
                *is_listening = false;
                self.is_stirred |= !self.guests.is_empty();
            }
        }
    }

    fn serve(
        &mut self,
        connections: &mut [Option<Connection>],
        context: &Context<'_>,
        told: &mut Vec<usize>,
    ) {
        self.is_stirred = false;
        loop {
            self.pass(connections, context, told);
            // What happens from here on rings; what happened before is found by one more pass.
            if !self.listen() {
                break;
            }
        }
        let now = Instant::now();
        self.guests.retain(|guest| {
            let is_late = guest.is_hasty || guest.deadline.is_some_and(|deadline| deadline <= now);
            if !is_late {
                return true;
            }
            if let Some((desk, out)) = reach(connections, guest.connection) {
                desk.counter.see_off();
                refuse(guest.id, CallError::TimedOut(guest.blocked), out);
                told.push(guest.connection);
            }
            // Others may no longer have to wait for it.
            self.is_stirred = true;
            false
        });
        self.is_stirred &= !self.guests.is_empty();
        self.deadline = self.guests.iter().filter_map(|guest| guest.deadline).min();
    }

    /// Looks at each guest once, in order.
    fn pass(
        &mut self,
        connections: &mut [Option<Connection>],
        context: &Context<'_>,
        told: &mut Vec<usize>,
    ) {
        let (mut line, table) = (Line::default(), &self.table);
        self.guests.retain_mut(|guest| {
            let Some((desk, out)) = reach(connections, guest.connection) else { return false };
            if out.backlog() >= context.most_unsent {
                desk.counter.pass_over();
                return true;
            }
            let tried = match line.before(&guest.matter) {
                Some(blocked) => Err(blocked),
                None => attempt(guest, table, desk, context, out),
            };
            match tried {
                Ok(()) => {
                    desk.counter.see_off();
                    told.push(guest.connection);
                    false
                }
                Err(blocked) => {
                    line.join(&guest.matter, blocked);
                    guest.note(blocked, table);
                    true
                }
            }
        });
    }

    /// Has those bells ring that guests wait for; whether some would not have rung before.
    fn listen(&mut self) -> bool {
        let mut is_new = false;
        for guest in self.guests.iter().filter(|guest| !guest.is_hasty) {
            let bell = guest.matter.bell();
            let (Some(rope), Some(is_listening)) =
                (self.ropes.get(bell), self.is_listening.get_mut(bell))
            else {
                continue;
            };
            if std::mem::replace(is_listening, true) {
                continue;
            }
            is_new = true;
            match guest.matter.side() {
                Some(side) => self.table.wake_later(side, &rope.waker),
                None => self.table.wake_at_version(&rope.waker),
            }
        }
        is_new
    }
}

fn reach(connections: &mut [Option<Connection>], index: usize) -> Option<(&mut Desk, &mut Outbox)> {
    connections.get_mut(index)?.as_mut()?.desk()
}

/// Serves a guest, also when that fails; what it must wait for, otherwise.
fn attempt(
    guest: &Guest,
    table: &Arc<RolloutTable>,
    desk: &mut Desk,
    context: &Context<'_>,
    out: &mut Outbox,
) -> Result<(), Blocked> {
    let (id, number) = (guest.id, guest.table);
    let error = match &guest.matter {
        Matter::Version { above } => {
            let version = table.version();
            if version > *above {
                out.say(|out| Answer::Done { id, count: version as u64 }.write(out));
                return Ok(());
            }
            if !table.is_closed() {
                return Err(Blocked::Shipping { version, needed: above.saturating_add(1) });
            }
            CallError::Closed
        }
        Matter::Change(change) => match table.apply(change) {
            Err(CallError::Refused(Refusal::Blocked(blocked))) => return Err(blocked),
            Ok(outcome) => {
                match tale(id, outcome) {
                    Some(frame) => desk.counter.holding.answer(id, number, table, frame, out),
                    None => {
                        let text =
                            "what is there of the group has more bytes than an answer may have";
                        fail(id, FailureCode::TooLarge, text, out);
                    }
                }
                return Ok(());
            }
            Err(CallError::Refused(refusal)) => {
                let outcomes = vec![Err(refusal)];
                out.say(|out| Answer::RolloutOutcomes { id, outcomes }.write(out));
                return Ok(());
            }
            Err(error) => error,
        },
        Matter::Sample(wish) => match table.apply(&Change::Sample(wish.want)) {
            Ok(Outcome::Delivered(share)) => {
                let Desk { arena, counter, .. } = desk;
                let place = (arena.as_mut(), &mut counter.holding);
                deliver((id, number), table, wish, &share, place, context, out);
                return Ok(());
            }
            Ok(_) => return Ok(()),
            Err(error) => error,
        },
    };
    match error {
        CallError::Refused(Refusal::Blocked(blocked)) => return Err(blocked),
        error => refuse(id, error, out),
    }
    Ok(())
}

/// The outcome of a change that was alone; `None`, if it is too large to be told.
fn tale(id: u64, outcome: Outcome) -> Option<Frame> {
    let mut frame = Vec::new();
    Answer::RolloutOutcomes { id, outcomes: vec![Ok(outcome)] }.write(&mut frame);
    let limit = MAX_BATCH as usize + HEADER_BYTES - MAX_CONTROL as usize;
    (frame.len() <= limit).then_some(Frame::Small(frame))
}
