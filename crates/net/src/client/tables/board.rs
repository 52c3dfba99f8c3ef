//! Requests that have no answer yet, and the courier's way with them.
//!
//! # Invariants
//!
//! 1. A request is on the board from when it was made until it is answered or given up.
//! 2. One that is on the board is in a queue or was sent on the connection that stands.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use echoic_memory::arena::{ArenaView, Place};
use echoic_memory::event::Event;
use echoic_replay::Spec;
use echoic_replay::table::Form;

use super::batch::{Batch, Incoming};
use super::{Listed, TableEntry, TablesError, Waiting, check_same};
use crate::address::Address;
use crate::client::courier::Cargo;
use crate::client::line::Line;
use crate::client::link::{LinkError, Opening};
use crate::client::lock;
use crate::spare::Spare;
use crate::wire::WireError;
use crate::wire::frame::{Control, Header, kind};
use crate::wire::handshake::{Offer, Open, Purpose, Welcome};
use crate::wire::tables::{
    ALIGNMENT, Answer, Area, BatchHead, FailureCode, Layout, MAX_ARENA, MAX_BATCH, MAX_PLACED,
    MAX_WAITING, Numbers, Operation, Request,
};

/// How many samples may be under way: well below what a server has places for.
const MAX_SAMPLES: usize = MAX_WAITING / 2;
/// How many bytes of requests one system call is given.
const LOAD_BYTES: usize = 256 << 10;
/// The most bytes of buffers that are kept for the next batches.
const SPARE_BYTES: usize = 64 << 20;

/// What came of a request.
#[derive(Debug)]
pub(super) enum Reply {
    Batch(Box<Batch>),
    Count(u64),
    Numbers(Vec<Numbers>),
    Path(String),
    Listed(Listed),
}

/// Where an answer is put.
#[derive(Debug, Default)]
pub(super) struct Slot {
    reply: Mutex<Option<Result<Reply, TablesError>>>,
    pub(super) answered: Event,
}

impl Slot {
    pub(super) fn take(&self) -> Option<Result<Reply, TablesError>> {
        lock(&self.reply).take()
    }

    pub(super) fn is_filled(&self) -> bool {
        lock(&self.reply).is_some()
    }

    fn fill(&self, reply: Result<Reply, TablesError>) {
        *lock(&self.reply) = Some(reply);
        self.answered.notify();
    }
}

/// What is asked.
#[derive(Debug)]
pub(super) enum Question {
    /// Written when it is sent: the server is told how much time is left.
    Sample { table: u32, count: u32, deadline: Option<Instant> },
    /// Any other.
    Other {
        frame: Vec<u8>,
        /// The table whose items are to be the answer, if any are.
        batch_of: Option<u32>,
    },
}

#[derive(Debug)]
struct Pending {
    question: Question,
    slot: Arc<Slot>,
    sent: bool,
    /// Where the server may write the answer.
    place: Option<Place>,
}

#[derive(Debug, Default)]
struct State {
    ids: u64,
    /// By number.
    pending: BTreeMap<u64, Pending>,
    samples: VecDeque<u64>,
    others: VecDeque<u64>,
    /// Samples that were sent.
    sampling: usize,
    /// Requests that were sent and then given up.
    cancels: Vec<u64>,
    /// Where the server may still write the answers to some of these.
    abandoned: HashMap<u64, Place>,
    /// Which server it was last: one that is started anew is another.
    instance: Option<[u8; 16]>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Board {
    state: Mutex<State>,
    pub(super) tables: OnceLock<Vec<TableEntry>>,
    /// The connection came, went, or ended.
    pub(super) changed: Event,
    /// Whoever brings something is to ring.
    alarm: AtomicBool,
    /// Nobody waits for an answer while there is no connection, and nothing is asked again.
    pub(super) impatient: AtomicBool,
    /// How often the server was another than before.
    pub(super) lives: AtomicU64,
}

impl Board {
    /// Wakes everyone, because the state of the connection has changed.
    pub(super) fn note_change(&self) {
        self.changed.notify();
        lock(&self.state).pending.values().for_each(|pending| pending.slot.answered.notify());
    }

    /// Brings a request.
    pub(super) fn ask(&self, line: &Line, make: impl FnOnce(u64) -> Question) -> (u64, Arc<Slot>) {
        let slot = Arc::<Slot>::default();
        let id = {
            let state = &mut *lock(&self.state);
            state.ids += 1;
            let id = state.ids;
            let question = make(id);
            match question {
                Question::Sample { .. } => state.samples.push_back(id),
                Question::Other { .. } => state.others.push_back(id),
            }
            let pending = Pending { question, slot: Arc::clone(&slot), sent: false, place: None };
            state.pending.insert(id, pending);
            id
        };
        self.ring(line);
        (id, slot)
    }

    fn ring(&self, line: &Line) {
        // Pairs with the fence in `await_ring`.
        fence(Ordering::SeqCst);
        if self.alarm.load(Ordering::Relaxed) && self.alarm.swap(false, Ordering::Relaxed) {
            line.ring();
        }
    }

    /// Gives up a request.
    pub(super) fn give_up(&self, line: &Line, id: u64) {
        {
            let state = &mut *lock(&self.state);
            let Some(pending) = state.pending.remove(&id) else { return };
            let sample = matches!(pending.question, Question::Sample { .. });
            if !pending.sent {
                let queue = if sample { &mut state.samples } else { &mut state.others };
                queue.retain(|other| *other != id);
                return;
            }
            if !sample {
                return;
            }
            state.sampling -= 1;
            state.cancels.push(id);
            state.abandoned.extend(pending.place.map(|place| (id, place)));
        }
        self.ring(line);
    }

    fn answer(&self, id: u64, reply: Result<Reply, TablesError>) {
        let state = &mut *lock(&self.state);
        state.abandoned.remove(&id);
        // Nobody waits for the answer to what was given up.
        let Some(pending) = state.pending.remove(&id) else { return };
        if matches!(pending.question, Question::Sample { .. }) {
            state.sampling -= 1;
        }
        pending.slot.fill(reply);
    }

    /// Where an answer was written that somebody waits for.
    fn place_of(&self, id: u64) -> Option<Place> {
        let state = &mut *lock(&self.state);
        state.abandoned.remove(&id);
        state.pending.get_mut(&id)?.place.take()
    }

    /// A connection to a server is about to stand.
    fn resume(&self, instance: [u8; 16]) {
        let state = &mut *lock(&self.state);
        if state.instance.replace(instance).is_some_and(|before| before != instance) {
            self.lives.fetch_add(1, Ordering::Release);
        }
        if self.impatient.load(Ordering::Relaxed) {
            for pending in std::mem::take(&mut state.pending).into_values() {
                pending.slot.fill(Err(TablesError::TimedOut(Waiting::Away)));
            }
        }
        state.send_again();
    }

    /// How many requests have no answer.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.state).pending.len()
    }
}

impl State {
    fn is_due(&self) -> bool {
        !self.others.is_empty()
            || !self.cancels.is_empty()
            || (!self.samples.is_empty() && self.sampling < MAX_SAMPLES)
    }

    /// Puts back what was sent over a connection that is gone.
    fn send_again(&mut self) {
        self.cancels.clear();
        // Nobody writes there any more.
        self.abandoned.clear();
        self.sampling = 0;
        self.samples.clear();
        self.others.clear();
        for (id, pending) in &mut self.pending {
            pending.sent = false;
            pending.place = None;
            match pending.question {
                Question::Sample { .. } => self.samples.push_back(*id),
                Question::Other { .. } => self.others.push_back(*id),
            }
        }
    }

    /// Writes requests that wait to be sent; `place` finds room for so many items of a table.
    fn write(
        &mut self,
        out: &mut Vec<u8>,
        now: Instant,
        place: impl Fn(u32, u32) -> Option<Place>,
    ) {
        for id in self.cancels.drain(..) {
            Request { id, table: 0, operation: Operation::Cancel }.write(out);
        }
        while out.len() < LOAD_BYTES {
            let id = match self.others.pop_front() {
                None if self.sampling < MAX_SAMPLES => match self.samples.pop_front() {
                    None => return,
                    id => id,
                },
                id => id,
            };
            let Some(id) = id else { return };
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            pending.sent = true;
            match &pending.question {
                Question::Other { frame, .. } => out.extend_from_slice(frame),
                Question::Sample { table, count, deadline } => {
                    self.sampling += 1;
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
                    let timeout_ms = left.map(|left| left.as_micros().div_ceil(1000) as u64);
                    pending.place = place(*table, *count);
                    let area = pending
                        .place
                        .as_ref()
                        .map(|place| Area { start: place.start() as u64, len: place.len() as u64 });
                    let operation = Operation::Sample { count: *count, timeout_ms, area };
                    Request { id, table: *table, operation }.write(out);
                }
            }
        }
    }
}

/// What the courier carries.
pub(super) struct Errands {
    board: Arc<Board>,
    line: Arc<Line>,
    spare: Arc<Spare>,
    out: Vec<u8>,
    sent: usize,
    incoming: Option<Incoming>,
    /// Memory that the server writes batches into, if it is on this machine.
    arena: Option<Arc<ArenaView>>,
    /// The most bytes that an item had in a batch of each table.
    item_bytes: Vec<usize>,
}

impl Errands {
    pub(super) fn new(board: Arc<Board>, line: Arc<Line>) -> Self {
        let spare = Spare::new(SPARE_BYTES);
        let (out, item_bytes) = (Vec::new(), Vec::new());
        Self { board, line, spare, out, sent: 0, incoming: None, arena: None, item_bytes }
    }

    /// Whether the server is to hand over an arena.
    fn wants_arena(&self) -> bool {
        matches!(self.line.dial.address(), Address::Shm { .. })
    }

    /// The table that a batch was asked of, if it was asked.
    fn table_of(&self, id: u64) -> Option<(usize, Option<&Spec>)> {
        let number = match lock(&self.board.state).pending.get(&id)?.question {
            Question::Sample { table, .. } => table,
            Question::Other { batch_of, .. } => batch_of?,
        };
        let table = self.board.tables.get()?.get(number as usize)?;
        Some(match &table.form {
            Form::Rows(spec) => (number as usize, Some(spec)),
            Form::Trajectories(_) => (number as usize, None),
        })
    }

    /// Learns from a batch how large the next one may be.
    fn learn(&mut self, id: u64, batch: &Batch) {
        let Some((table, None)) = self.table_of(id) else { return };
        if self.item_bytes.len() <= table {
            self.item_bytes.resize(table + 1, 0);
        }
        let item = batch.bytes().div_ceil(batch.len().max(1));
        self.item_bytes[table] = self.item_bytes[table].max(item);
    }
}

/// What a batch needs to be worth a place of its own: less is sent as fast.
const PLACE_BYTES: usize = 64 << 10;

/// Room in the arena for so many items, if they have many bytes.
fn place(
    arena: &Arc<ArenaView>,
    table: &TableEntry,
    item_bytes: Option<usize>,
    count: u32,
) -> Option<Place> {
    let bytes = match &table.form {
        Form::Rows(spec) => {
            let columns = Layout::Rows.columns(count as usize, 0, Some(spec)).ok()?;
            columns.last().map_or(0, |last| last.end)
        }
        // Not all are alike: some room more finds most of them a place.
        Form::Trajectories(_) => item_bytes?.checked_mul(count as usize)?.checked_mul(5)? / 4,
    };
    if bytes < PLACE_BYTES { None } else { arena.take(bytes) }
}

impl Cargo for Errands {
    fn open(&mut self) -> Open {
        if self.wants_arena() {
            self.line.open(Purpose::Gather, MAX_ARENA, None)
        } else {
            self.line.open(Purpose::Request, 0, None)
        }
    }

    fn resume(&mut self, welcome: Welcome) -> Result<(), LinkError> {
        let Offer::Tables(tables) = welcome.offer else {
            return Err(WireError::Spec("the server did not list its tables".into()).into());
        };
        let known = self.board.tables.get_or_init(|| tables.clone());
        check_same(known, &tables)?;
        self.out.clear();
        (self.sent, self.incoming) = (0, None);
        self.board.resume(welcome.instance);
        Ok(())
    }

    fn receive(&mut self, opening: &mut Opening) -> Result<(), LinkError> {
        if !self.wants_arena() {
            return Ok(());
        }
        let (header, payload) = opening.frame()?;
        let Control::Memory { layout: [bytes, ..], .. } = Control::read(header, &payload)? else {
            return Err(WireError::Unexpected { expected: "MEMORY", got: header.kind }.into());
        };
        let missing = || LinkError::Lost("the server sent no memory".into());
        let file = opening.memory.take().ok_or_else(missing)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let arena = ArenaView::attach(file, bytes);
        self.arena = Some(arena.map_err(|error| LinkError::Memory(error.to_string()))?);
        Ok(())
    }

    fn is_delivered(&self) -> bool {
        // Whoever closes does not wait for answers.
        true
    }

    fn is_due(&mut self, _now: Instant) -> bool {
        lock(&self.board.state).is_due()
    }

    fn await_ring(&mut self, _now: Instant) -> Option<Instant> {
        self.board.alarm.store(true, Ordering::Relaxed);
        // Pairs with the fence in `ring`: either who brings something sees the alarm, or we see that.
        fence(Ordering::SeqCst);
        None
    }

    fn stop_ringing(&mut self) {
        self.board.alarm.store(false, Ordering::Relaxed);
    }

    fn load(&mut self) {
        if !self.is_loaded() {
            self.out.clear();
            self.sent = 0;
            let (arena, tables) = (self.arena.as_ref(), self.board.tables.get());
            lock(&self.board.state).write(&mut self.out, Instant::now(), |table, count| {
                let item_bytes = self.item_bytes.get(table as usize).copied();
                place(arena?, tables?.get(table as usize)?, item_bytes, count)
            });
        }
    }

    fn is_loaded(&self) -> bool {
        self.sent < self.out.len()
    }

    fn is_inside_frame(&self) -> bool {
        // It may be between two frames; what waits for that waits for a moment longer.
        self.sent > 0 && self.is_loaded()
    }

    fn pieces<'a>(&'a self, pieces: &mut Vec<IoSlice<'a>>) {
        pieces.push(IoSlice::new(&self.out[self.sent..]));
    }

    fn sent(&mut self, bytes: usize, _now: Instant) {
        self.sent += bytes;
    }

    fn limit(&self, kind: u8) -> Option<u32> {
        match kind {
            kind::BATCH => Some(MAX_BATCH),
            kind::PLACED => Some(MAX_PLACED),
            kind => Answer::limit(kind),
        }
    }

    fn take(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        if header.kind == kind::PLACED {
            let (head, used) = BatchHead::read(payload)?;
            if used != payload.len() {
                let extra = payload.len() - used;
                return Err(WireError::Trailing { frame: "PLACED", extra }.into());
            }
            let Some(place) = self.board.place_of(head.id) else { return Ok(()) };
            let Some((_, spec)) = self.table_of(head.id) else { return Ok(()) };
            let id = head.id;
            let batch = Batch::placed(head, place, spec)?;
            self.learn(id, &batch);
            self.board.answer(id, Ok(Reply::Batch(Box::new(batch))));
            return Ok(());
        }
        let answer = Answer::read(header, payload)?;
        let id = answer.id();
        let reply = match answer {
            Answer::Done { count, .. } => Ok(Reply::Count(count)),
            Answer::Numbers { numbers, .. } => Ok(Reply::Numbers(numbers)),
            Answer::Saved { path, .. } => Ok(Reply::Path(path)),
            Answer::Listed { infos, next, .. } => Ok(Reply::Listed(Listed { infos, next })),
            // It is for those who watch, who have connections of their own.
            Answer::Observed { .. } => {
                let expected = "an answer to a request of this client";
                return Err(WireError::Unexpected { expected, got: header.kind }.into());
            }
            Answer::Failed { code, stall, text, .. } => Err(match code {
                FailureCode::TimedOut => TablesError::TimedOut(Waiting::of(stall)),
                code => TablesError::Refused { code, text },
            }),
        };
        self.board.answer(id, reply);
        Ok(())
    }

    fn begin_large(&mut self, header: Header) -> bool {
        if header.kind != kind::BATCH {
            return false;
        }
        let bytes = self.spare.take(header.len as usize + ALIGNMENT);
        self.incoming = Some(Incoming::new(bytes));
        true
    }

    fn place(&mut self) -> &mut [u8] {
        self.incoming.as_mut().map_or(&mut [], Incoming::rest)
    }

    fn placed(&mut self, bytes: usize) -> Result<(), LinkError> {
        let Some(incoming) = &mut self.incoming else { return Ok(()) };
        incoming.fill(bytes);
        if !incoming.rest().is_empty() {
            return Ok(());
        }
        let Some(incoming) = self.incoming.take() else { return Ok(()) };
        if let Some((id, batch)) = incoming.finish(|id| Some(self.table_of(id)?.1))? {
            self.learn(id, &batch);
            self.board.answer(id, Ok(Reply::Batch(Box::new(batch))));
        }
        Ok(())
    }
}
