//! Requests that have no answer yet, and how they are sent and answered.
//!
//! A thread that waits for an answer drives the connection itself, if no other thread does; see [`Lead`]. The I/O thread
//! does it for requests whose callers do not wait.
//!
//! # Invariants
//!
//! 1. A request is here from when it was made until it is answered or given up.
//! 2. It is in a queue or was sent on the connection that stands.
//! 3. A lock of [`Lead`] may be held when the state's is taken, and not the other way around.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use echoic_memory::arena::{AnswerBuffer, ArenaView};
use echoic_memory::event::Event;
use echoic_memory::lead::{self, Drive, Lead};
use echoic_memory::sync::Mutex;
use echoic_replay::codec::Reader;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::Form as RolloutForm;
use echoic_replay::rollouts::ledger::Want;
use echoic_replay::table::Form;
use echoic_replay::{Spec, WaitReason};

use super::batch::{Batch, Incoming};
use super::{Listed, TableEntry, TablesError, check_same};
use crate::address::Address;
use crate::buffer_pool::BufferPool;
use crate::client::io_thread::{Driver, Pipeline};
use crate::client::link::{ClientHandshake, LinkError, not_that};
use crate::client::reconnector::Reconnector;
use crate::client::rollouts::Delivered;
use crate::wire::WireError;
use crate::wire::frame::{Control, Header, kind};
use crate::wire::handshake::{Offer, Open, Purpose, Welcome};
use crate::wire::rollouts::{Bulk, Changes, DeliveryHead, Wish, write_changes};
use crate::wire::tables::{
    ALIGNMENT, Answer, Area, BatchHead, FailureCode, Layout, MAX_ARENA, MAX_BATCH, MAX_PLACED,
    MAX_WAITING, Operation, Request,
};
use crate::write_buffer::{Piece, WriteBuffer};

/// How many samples may be under way: well below what a server has places for.
const MAX_SAMPLES: usize = MAX_WAITING / 2;
/// How many requests may wait for the I/O thread to come by. More ring: the server should not have to wait for them.
const MOST_LINGERING: usize = 4;
/// After this time without a waiting caller, the I/O thread drives the connection again.
const IDLE: Duration = Duration::from_millis(20);
/// How many bytes of requests one system call is given.
const LOAD_BYTES: usize = 256 << 10;
/// The most bytes of buffers that are kept for the next batches.
const POOL_BYTES: usize = 64 << 20;

/// What came of a request, of the type that its [`PendingReply`](super::PendingReply) is for.
pub(super) type Reply = Box<dyn Any + Send>;

/// Where an answer is put.
pub(super) type Slot = lead::Slot<Result<Reply, TablesError>>;

/// When a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) enum When {
    /// At once, by the I/O thread or by the thread that drives.
    Now,
    /// With others, if something was sent before that is answered soon.
    Later,
    /// When its answer is waited for, which is at once.
    Awaited,
}

/// What is asked.
#[derive(Debug)]
pub(in crate::client) enum Question {
    /// Written when it is sent: the server learns how much time is left.
    Sample { table: u32, count: u32, deadline: Option<Instant> },
    /// In the same way, a share of a batch of rollouts.
    Rollouts { table: u32, want: Want, form: RolloutForm, deadline: Option<Instant> },
    /// A change of a rollout table that may have to wait.
    Change { table: u32, head: Vec<u8>, deadline: Option<Instant> },
    /// Changes of a rollout table whose bulk is in memory that is shared with the server. It is written when it is
    /// sent: after a lost connection, that is other memory.
    Placed { table: u32, count: u32, head: Vec<u8>, place: AnswerBuffer, len: usize },
    /// Any other.
    Other {
        frame: Arc<Vec<u8>>,
        /// The table whose items are to be the answer, if any are.
        batch_of: Option<u32>,
    },
}

impl Question {
    /// Whether the server may have it wait.
    fn waits(&self) -> bool {
        matches!(self, Self::Sample { .. } | Self::Rollouts { .. } | Self::Change { .. })
    }
}

#[derive(Debug)]
struct Pending {
    question: Question,
    slot: Arc<Slot>,
    sent: bool,
    /// Whether a thread waits for the answer, or will at once.
    is_awaited: bool,
    /// Where the server may write the answer.
    place: Option<AnswerBuffer>,
}

#[derive(Debug, Default)]
struct RequestState {
    ids: u64,
    /// How many answers came.
    answered: u64,
    /// By number.
    pending: BTreeMap<u64, Pending>,
    /// Those that the server may have wait: samples, first of all.
    samples: VecDeque<u64>,
    others: VecDeque<u64>,
    /// How many of the former were sent.
    sampling: usize,
    /// How many of all have no caller that waits for the answer.
    unattended: usize,
    /// Requests that were sent and then given up.
    cancels: Vec<u64>,
    /// Where the server may still write the answers to some of these, or read the rest of them.
    abandoned: HashMap<u64, AnswerBuffer>,
    /// Which server it was last: one that is restarted is another.
    instance: Option<[u8; 16]>,
}

/// See the [module](self).
#[derive(Default)]
pub(in crate::client) struct PendingRequests {
    state: Mutex<RequestState>,
    pub(super) lead: Lead<Driver<RequestFrames>>,
    pub(super) tables: OnceLock<Vec<TableEntry>>,
    pub(in crate::client) rollouts: OnceLock<Vec<Arc<RolloutConfig>>>,
    /// Memory that is shared with the server, while it is.
    arena: Mutex<Option<Arc<ArenaView>>>,
    /// The connection came, went, or ended.
    pub(super) changed: Event,
    /// Whoever brings something is to ring.
    wake_policy: AtomicBool,
    /// Nobody waits for an answer while there is no connection, and nothing is asked again.
    pub(super) impatient: AtomicBool,
    /// How often the server was another than before.
    pub(super) incarnations: AtomicU64,
}

impl PendingRequests {
    /// Wakes everyone, because the state of the connection has changed.
    pub(super) fn note_change(&self) {
        self.changed.notify();
        self.state.lock().pending.values().for_each(|pending| pending.slot.wake());
        self.lead.call_background();
    }

    /// Brings a request.
    pub(super) fn ask(
        &self,
        reconnector: &Reconnector,
        when: When,
        make: impl FnOnce(u64) -> Question,
    ) -> (u64, Arc<Slot>) {
        let slot = Arc::<Slot>::default();
        let id = {
            let state = &mut *self.state.lock();
            state.ids += 1;
            state.ids
        };
        // A large one is copied here, while others go on.
        let question = make(id);
        let is_awaited = when == When::Awaited;
        let lingers = {
            let state = &mut *self.state.lock();
            let may_linger = when == When::Later && state.others.len() < MOST_LINGERING;
            state.unattended += usize::from(!is_awaited);
            let lingers = is_awaited || (may_linger && state.is_under_way());
            match question.waits() {
                true => state.samples.push_back(id),
                false => state.others.push_back(id),
            }
            let (slot, place) = (Arc::clone(&slot), None);
            let pending = Pending { question, slot, sent: false, is_awaited, place };
            state.pending.insert(id, pending);
            lingers
        };
        if !lingers {
            self.announce(reconnector);
        }
        (id, slot)
    }

    /// A thread begins to wait for the answer to a request, or waits no more.
    pub(super) fn attend(&self, reconnector: &Reconnector, id: u64, is_awaited: bool) {
        {
            let state = &mut *self.state.lock();
            let Some(pending) = state.pending.get_mut(&id) else { return };
            let was_awaited = std::mem::replace(&mut pending.is_awaited, is_awaited);
            state.unattended += usize::from(was_awaited);
            state.unattended -= usize::from(is_awaited);
        }
        if !is_awaited {
            self.announce(reconnector);
        }
    }

    /// Another thread drives while one waits for the answer to this. One that lingers is sent now: what it waits
    /// behind may take its time.
    pub(super) fn hurry(&self, reconnector: &Reconnector, id: u64) {
        let lingers = self.state.lock().pending.get(&id).is_some_and(|pending| !pending.sent);
        if lingers {
            self.ring(reconnector);
        }
    }

    /// Has the driving thread look for something to send, or the I/O thread if there is none.
    fn announce(&self, reconnector: &Reconnector) {
        if !self.ring(reconnector) {
            self.lead.call_background();
        }
    }

    /// Wakes the driving thread, if it sleeps. Whether it slept.
    fn ring(&self, reconnector: &Reconnector) -> bool {
        // Pairs with the fence in `await_ring`.
        fence(Ordering::SeqCst);
        let sleeps = self.wake_policy.load(Ordering::Relaxed)
            && self.wake_policy.swap(false, Ordering::Relaxed);
        if sleeps {
            reconnector.ring();
        }
        sleeps
    }

    /// The I/O thread's part: lets callers drive while they wait, and no other thread needs it.
    pub(super) fn lend(&self, driver: Box<Driver<RequestFrames>>) -> Box<Driver<RequestFrames>> {
        self.lead.lend(driver, IDLE)
    }

    /// Gives up a request.
    pub(super) fn give_up(&self, reconnector: &Reconnector, id: u64) {
        {
            let state = &mut *self.state.lock();
            let Some(pending) = state.remove(id) else { return };
            let waits = pending.question.waits();
            if !pending.sent {
                let queue = if waits { &mut state.samples } else { &mut state.others };
                queue.retain(|other| *other != id);
                return;
            }
            if let Question::Placed { place, .. } = pending.question {
                state.abandoned.insert(id, place);
                return;
            }
            if !waits {
                return;
            }
            state.sampling -= 1;
            state.cancels.push(id);
            state.abandoned.extend(pending.place.map(|place| (id, place)));
        }
        self.announce(reconnector);
    }

    /// The server has answered.
    ///
    /// # Errors
    ///
    /// [`WireError`] when it was not asked.
    fn answer(&self, id: u64, reply: Result<Reply, TablesError>) -> Result<(), WireError> {
        let state = &mut *self.state.lock();
        state.check_sent(id)?;
        state.answered += 1;
        state.abandoned.remove(&id);
        // Nobody waits for the answer to what was given up.
        let Some(pending) = state.remove(id) else { return Ok(()) };
        if pending.question.waits() {
            state.sampling -= 1;
        }
        pending.slot.fill(reply);
        Ok(())
    }

    /// Where an answer was written that a thread waits for.
    fn place_of(&self, id: u64) -> Result<Option<AnswerBuffer>, WireError> {
        let state = &mut *self.state.lock();
        state.check_sent(id)?;
        state.abandoned.remove(&id);
        Ok(state.pending.get_mut(&id).and_then(|pending| pending.place.take()))
    }

    /// A connection to a server is about to stand.
    fn resume(&self, instance: [u8; 16]) {
        let state = &mut *self.state.lock();
        if state.instance.replace(instance).is_some_and(|before| before != instance) {
            self.incarnations.fetch_add(1, Ordering::Release);
        }
        if self.impatient.load(Ordering::Relaxed) {
            for pending in std::mem::take(&mut state.pending).into_values() {
                pending.slot.fill(Err(TablesError::TimedOut(WaitReason::Away)));
            }
            state.unattended = 0;
        }
        state.send_again();
    }

    /// A place for this many bytes in memory that is shared with the server, if there is such memory.
    pub(in crate::client) fn take_place(&self, len: usize) -> Option<AnswerBuffer> {
        let arena = self.arena.lock().clone()?;
        arena.take(len)
    }

    /// How many requests have no answer.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().pending.len()
    }
}

impl RequestState {
    fn remove(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        self.unattended -= usize::from(!pending.is_awaited);
        Some(pending)
    }

    /// Refuses the answer to a request that was not sent.
    fn check_sent(&self, id: u64) -> Result<(), WireError> {
        let is_sent = match self.pending.get(&id) {
            Some(pending) => pending.sent,
            // Answered already, or given up.
            None => (1..=self.ids).contains(&id),
        };
        let field = "number of a request that was sent";
        if is_sent { Ok(()) } else { Err(WireError::meaningless(field, id)) }
    }

    fn is_due(&self) -> bool {
        !self.others.is_empty()
            || !self.cancels.is_empty()
            || (!self.samples.is_empty() && self.sampling < MAX_SAMPLES)
    }

    /// Whether something was sent that the server answers at once.
    fn is_under_way(&self) -> bool {
        let first = self.pending.values().find(|pending| !pending.question.waits());
        first.is_some_and(|pending| pending.sent)
    }

    /// Whether something was sent that has no answer.
    fn is_any_sent(&self) -> bool {
        self.pending.values().any(|pending| pending.sent)
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
            match pending.question.waits() {
                true => self.samples.push_back(*id),
                false => self.others.push_back(*id),
            }
        }
    }

    /// Writes requests that wait to be sent.
    fn write(&mut self, out: &mut WriteBuffer, now: Instant, room: &Room<'_>) {
        for id in self.cancels.drain(..) {
            out.write(|out| Request { id, table: 0, operation: Operation::Cancel }.write(out));
        }
        while !out.is_full(LOAD_BYTES) {
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
            self.sampling += usize::from(pending.question.waits());
            let left = |deadline: &Option<Instant>| {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
                left.map(|left| left.as_micros().div_ceil(1000) as u64)
            };
            let (table, operation) = match &mut pending.question {
                Question::Other { frame, .. } => {
                    let len = frame.len();
                    out.push(Piece::Shared(Arc::clone(frame) as _, 0..len));
                    continue;
                }
                Question::Sample { table, count, deadline } => {
                    pending.place = room.for_items(*table, *count);
                    let (timeout_ms, area) = (left(deadline), pending.place.as_ref().map(whole));
                    (*table, Operation::Sample { count: *count, timeout_ms, area })
                }
                Question::Rollouts { table, want, form, deadline } => {
                    pending.place = room.for_rollouts(*table);
                    let (timeout_ms, area) = (left(deadline), pending.place.as_ref().map(whole));
                    let wish = Wish { want: *want, form: *form, timeout_ms, area };
                    (*table, Operation::RolloutSample(wish))
                }
                Question::Change { table, head, deadline } => {
                    let bulk = Bulk::Inline((&[]).into());
                    let head = (&**head).into();
                    let changes = Changes { timeout_ms: left(deadline), count: 1, head, bulk };
                    (*table, Operation::RolloutChanges(changes))
                }
                Question::Placed { table, count, head, place, len } => {
                    let is_there = room.keep(place, *len);
                    if !is_there {
                        let (table, bulk) = (*table, &place[..*len]);
                        out.write(|out| write_changes(out, (id, table), (*count, head), bulk));
                        continue;
                    }
                    let bulk = Bulk::Area(Area { start: place.start() as u64, len: *len as u64 });
                    let (timeout_ms, head) = (Some(0), (&**head).into());
                    let changes = Changes { timeout_ms, count: *count, head, bulk };
                    (*table, Operation::RolloutChanges(changes))
                }
            };
            out.write(|out| Request { id, table, operation }.write(out));
        }
    }
}

fn whole(place: &AnswerBuffer) -> Area {
    Area { start: place.start() as u64, len: place.len() as u64 }
}

/// Where answers may go.
struct Room<'a> {
    arena: Option<&'a Arc<ArenaView>>,
    tables: &'a [TableEntry],
    /// The most bytes that an item had in a batch of each table.
    item_bytes: &'a [usize],
    /// How many bytes a share of a batch of each rollout table is expected to have.
    share_bytes: &'a [Expected],
}

impl Room<'_> {
    /// Room in the arena for this many items, if they have many bytes.
    fn for_items(&self, table: u32, count: u32) -> Option<AnswerBuffer> {
        let (arena, number) = (self.arena?, table as usize);
        place(arena, self.tables.get(number)?, self.item_bytes.get(number).copied(), count)
    }

    /// Room for a share of a batch: one is about as large as another.
    fn for_rollouts(&self, table: u32) -> Option<AnswerBuffer> {
        let Expected { most, usual } = *self.share_bytes.get(table as usize)?;
        let room = |bytes: usize| {
            let bytes = bytes.checked_mul(5)? / 4;
            if bytes < PLACE_BYTES { None } else { self.arena?.take(bytes) }
        };
        room(most).or_else(|| room(usual))
    }

    /// Sees to it that the first bytes of a place are in the memory that is shared now; whether they are.
    fn keep(&self, place: &mut AnswerBuffer, len: usize) -> bool {
        let Some(arena) = self.arena else { return false };
        if !place.is_in(arena) {
            let Some(mut other) = arena.take(len) else { return false };
            other[..len].copy_from_slice(&place[..len]);
            *place = other;
        }
        true
    }
}

/// How many bytes the next share of a rollout table may have, by those that came. Both numbers fall slowly, as shares are
/// not all alike.
#[derive(Debug, Clone, Copy, Default)]
struct Expected {
    /// As many as the largest of late.
    most: usize,
    /// This rises at most to twice as many, so that one that is huge does not count: where there is no room for the
    /// former, there may be for this.
    usual: usize,
}

impl Expected {
    /// A share of this many bytes has come.
    fn learn(&mut self, bytes: usize) {
        let fallen = |known: usize| known - known / 8;
        self.most = bytes.max(fallen(self.most));
        self.usual = match self.usual {
            0 => bytes,
            usual => bytes.min(usual.saturating_mul(2)).max(fallen(usual)),
        };
    }
}

/// What the I/O thread carries.
pub(super) struct RequestFrames {
    pending: Arc<PendingRequests>,
    reconnector: Arc<Reconnector>,
    buffer_pool: Arc<BufferPool>,
    /// A payload that is read, and the type of its frame.
    incoming: Option<(u8, Incoming)>,
    /// Whether the server is to hand over an arena.
    wants_arena: bool,
    /// Memory that the server writes batches into, if it is on this machine.
    arena: Option<Arc<ArenaView>>,
    /// The most bytes that an item had in a batch of each table.
    item_bytes: Vec<usize>,
    /// How many bytes a share of a batch of each rollout table is expected to have.
    share_bytes: Vec<Expected>,
    /// Whether it is about rollout tables.
    wants_rollouts: bool,
}

impl RequestFrames {
    fn receive_arena(&mut self, handshake: &mut ClientHandshake) -> Result<(), LinkError> {
        if !self.wants_arena {
            // A server that was on this machine may have moved to another.
            self.arena = None;
            *self.pending.arena.lock() = None;
            return Ok(());
        }
        let (header, payload) = handshake.frame()?;
        let Control::Memory { layout: [bytes, ..], .. } = Control::read(header, &payload)? else {
            return Err(WireError::Unexpected { expected: "MEMORY", got: header.kind }.into());
        };
        let missing = || LinkError::Lost("the server sent no memory".into());
        let file = handshake.memory.take().ok_or_else(missing)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let arena = ArenaView::attach(file, bytes);
        let arena = arena.map_err(|error| LinkError::Memory(error.to_string()))?;
        *self.pending.arena.lock() = Some(Arc::clone(&arena));
        self.arena = Some(arena);
        Ok(())
    }

    pub(super) fn new(
        pending: Arc<PendingRequests>,
        reconnector: Arc<Reconnector>,
        wants_rollouts: bool,
    ) -> Self {
        Self {
            pending,
            reconnector,
            buffer_pool: BufferPool::new(POOL_BYTES),
            incoming: None,
            wants_arena: false,
            arena: None,
            item_bytes: Vec::new(),
            share_bytes: Vec::new(),
            wants_rollouts,
        }
    }

    /// The table that a batch was asked of, if it was asked.
    fn table_of(&self, id: u64) -> Option<(usize, Option<&Spec>)> {
        let number = match self.pending.state.lock().pending.get(&id)?.question {
            Question::Sample { table, .. } => table,
            Question::Other { batch_of, .. } => batch_of?,
            _ => return None,
        };
        let table = self.pending.tables.get()?.get(number as usize)?;
        Some(match &table.form {
            Form::Rows(spec) => (number as usize, Some(spec)),
            Form::Trajectories(_) => (number as usize, None),
        })
    }

    /// The rollout table that a share was asked of, if it was asked.
    fn rollouts_of(&self, id: u64) -> Option<(usize, &RolloutConfig)> {
        let number = match self.pending.state.lock().pending.get(&id)?.question {
            Question::Rollouts { table, .. } => table as usize,
            _ => return None,
        };
        Some((number, &**self.pending.rollouts.get()?.get(number)?))
    }

    /// Hands over a share, and learns from it how large the next one may be.
    fn deliver(&mut self, id: u64, delivered: Delivered) -> Result<(), WireError> {
        if let Some((table, _)) = self.rollouts_of(id) {
            if self.share_bytes.len() <= table {
                self.share_bytes.resize(table + 1, Expected::default());
            }
            self.share_bytes[table].learn(delivered.bytes().len());
        }
        self.pending.answer(id, Ok(Box::new(delivered)))
    }

    /// Learns which rollout tables there are. They must be those that there were.
    fn ask_for_rollouts(&self, handshake: &mut ClientHandshake) -> Result<(), LinkError> {
        let mut ask = Vec::new();
        Request { id: 0, table: 0, operation: Operation::RolloutList }.write(&mut ask);
        handshake.send(&ask)?;
        let configs = loop {
            let (header, payload) = handshake.frame()?;
            match header.kind {
                kind::PING | kind::PONG => {}
                kind::ROLLOUT_TABLES => match Answer::read(header, &payload)? {
                    Answer::RolloutTables { configs, .. } => break configs,
                    _ => return Ok(()),
                },
                kind::GOODBYE => return Err(LinkError::Lost("the server is closing".into())),
                _ => return Err(not_that(header, &payload, "ROLLOUT_TABLES")),
            }
        };
        let known = self.pending.rollouts.get_or_init(|| configs.clone());
        // A server that is started anew may choose another seed.
        let same = |(one, other): (&Arc<RolloutConfig>, &Arc<RolloutConfig>)| {
            **one == RolloutConfig { seed: one.seed, ..RolloutConfig::clone(other) }
        };
        if known.len() == configs.len() && known.iter().zip(&configs).all(same) {
            return Ok(());
        }
        let text = "the server's rollout tables are not those that it had before; connect again";
        Err(WireError::Content(text.into()).into())
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

/// What a batch needs to be worth a place of its own: less is sent about as fast. Low enough for shares of batches from
/// several servers; where exactly the two cost the same was not measured.
pub(in crate::client) const PLACE_BYTES: usize = 16 << 10;

/// Room in the arena for this many items, if they have many bytes.
fn place(
    arena: &Arc<ArenaView>,
    table: &TableEntry,
    item_bytes: Option<usize>,
    count: u32,
) -> Option<AnswerBuffer> {
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

impl Drive for Driver<RequestFrames> {
    type Reply = Result<Reply, TablesError>;

    fn drive(&mut self, until: Option<Instant>) -> ControlFlow<()> {
        let goes_on = Driver::drive(self, until);
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn is_needed(&self) -> bool {
        let is_unattended = || {
            let state = self.outbound().pending.state.lock();
            state.unattended > 0 || !state.cancels.is_empty()
        };
        self.is_busy() || is_unattended()
    }

    fn fail(&mut self) {
        Driver::fail(self, "a thread panicked while it used the connection");
    }
}

impl Pipeline for RequestFrames {
    fn open(&mut self, address: &Address) -> Open {
        self.wants_arena = matches!(address, Address::Shm { .. });
        if self.wants_arena {
            self.reconnector.open(Purpose::Gather, MAX_ARENA, None)
        } else {
            self.reconnector.open(Purpose::Request, 0, None)
        }
    }

    fn resume(&mut self, welcome: Welcome) -> Result<(), LinkError> {
        let Offer::Tables(tables) = welcome.offer else {
            return Err(WireError::Content("the server did not list its tables".into()).into());
        };
        let known = self.pending.tables.get_or_init(|| tables.clone());
        check_same(known, &tables)?;
        self.incoming = None;
        self.pending.resume(welcome.instance);
        Ok(())
    }

    fn receive(&mut self, handshake: &mut ClientHandshake) -> Result<(), LinkError> {
        self.receive_arena(handshake)?;
        if self.wants_rollouts { self.ask_for_rollouts(handshake) } else { Ok(()) }
    }

    fn is_delivered(&self) -> bool {
        // Whoever closes does not wait for answers.
        true
    }

    fn acknowledged(&self) -> u64 {
        self.pending.state.lock().answered
    }

    fn is_settled(&self) -> bool {
        !self.pending.state.lock().is_any_sent()
    }

    fn is_due(&mut self, _now: Instant) -> bool {
        self.pending.state.lock().is_due()
    }

    fn await_ring(&mut self, _now: Instant) -> Option<Instant> {
        self.pending.wake_policy.store(true, Ordering::Relaxed);
        // Pairs with the fence in `ring`: either the adding thread sees the policy, or we see what it added.
        fence(Ordering::SeqCst);
        None
    }

    fn stop_ringing(&mut self) {
        self.pending.wake_policy.store(false, Ordering::Relaxed);
    }

    fn fill(&mut self, out: &mut WriteBuffer) {
        let room = Room {
            arena: self.arena.as_ref(),
            tables: self.pending.tables.get().map(Vec::as_slice).unwrap_or_default(),
            item_bytes: &self.item_bytes,
            share_bytes: &self.share_bytes,
        };
        self.pending.state.lock().write(out, Instant::now(), &room);
    }

    fn limit(&self, kind: u8) -> Option<u32> {
        match kind {
            kind::BATCH | kind::ROLLOUT_BATCH => Some(MAX_BATCH),
            kind::PLACED | kind::ROLLOUT_PLACED => Some(MAX_PLACED),
            kind => Answer::limit(kind),
        }
    }

    fn take(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        if header.kind == kind::PLACED {
            let (head, used) = BatchHead::read(payload)?;
            if used != payload.len() {
                let extra = payload.len() - used;
                return Err(WireError::trailing("PLACED", extra).into());
            }
            let Some(place) = self.pending.place_of(head.id)? else { return Ok(()) };
            let Some((_, spec)) = self.table_of(head.id) else { return Ok(()) };
            let id = head.id;
            let batch = Batch::placed(head, place, spec)?;
            self.learn(id, &batch);
            self.pending.answer(id, Ok(Box::new(batch)))?;
            return Ok(());
        }
        if header.kind == kind::ROLLOUT_PLACED {
            let id = Reader::new(payload).u64("number of a request").map_err(WireError::from)?;
            let Some(place) = self.pending.place_of(id)? else { return Ok(()) };
            let Some((_, config)) = self.rollouts_of(id) else { return Ok(()) };
            let (told, used) = DeliveryHead::read(payload, place.len())?;
            if used != payload.len() {
                let extra = payload.len() - used;
                return Err(WireError::trailing("ROLLOUT_PLACED", extra).into());
            }
            let delivered = Delivered::placed(told, place, config)?;
            self.deliver(id, delivered)?;
            return Ok(());
        }
        let answer = Answer::read(header, payload)?;
        let id = answer.id();
        let reply: Result<Reply, _> = match answer {
            Answer::Done { count, .. } => Ok(Box::new(count)),
            Answer::Numbers { numbers, .. } => Ok(Box::new(numbers)),
            Answer::Saved { path, .. } => Ok(Box::new(path)),
            Answer::Listed { infos, next, .. } => Ok(Box::new(Listed { infos, next })),
            Answer::RolloutOutcomes { outcomes, .. } => Ok(Box::new(outcomes)),
            Answer::RolloutNumbers { info, .. } => Ok(info),
            Answer::RolloutRefused { error, .. } => Err(error.into()),
            // The one is for watchers, which have connections of their own; the other came before all else.
            Answer::Observed { .. } | Answer::RolloutTables { .. } => {
                let expected = "an answer to a request of this client";
                return Err(WireError::Unexpected { expected, got: header.kind }.into());
            }
            Answer::Failed { code, stall, text, .. } => Err(match code {
                FailureCode::TimedOut => {
                    TablesError::TimedOut(stall.unwrap_or(WaitReason::Network))
                }
                code => TablesError::Refused { code, text },
            }),
        };
        Ok(self.pending.answer(id, reply)?)
    }

    fn begin_large(&mut self, header: Header) -> bool {
        if !matches!(header.kind, kind::BATCH | kind::ROLLOUT_BATCH) {
            return false;
        }
        let bytes = self.buffer_pool.take(header.len as usize + ALIGNMENT);
        self.incoming = Some((header.kind, Incoming::new(bytes)));
        true
    }

    fn place(&mut self) -> &mut [u8] {
        self.incoming.as_mut().map_or(&mut [], |(_, incoming)| incoming.rest())
    }

    fn placed(&mut self, bytes: usize) -> Result<(), LinkError> {
        let Some((_, incoming)) = &mut self.incoming else { return Ok(()) };
        incoming.fill(bytes);
        if !incoming.rest().is_empty() {
            return Ok(());
        }
        let Some((kind, incoming)) = self.incoming.take() else { return Ok(()) };
        if kind == kind::ROLLOUT_BATCH {
            let (pooled, start, end) = incoming.into_parts();
            let config = |id| self.rollouts_of(id).map(|(_, config)| config);
            if let Some((id, delivered)) = Delivered::read(pooled, start, end, config)? {
                self.deliver(id, delivered)?;
            }
            return Ok(());
        }
        if let Some((id, batch)) = incoming.finish(|id| Some(self.table_of(id)?.1))? {
            self.learn(id, &batch);
            self.pending.answer(id, Ok(Box::new(batch)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::{Expected, PendingRequests, Question, When};
    use crate::client::{Options, Reconnector};
    use crate::transport::{TlsFiles, dial_to};

    #[test]
    fn who_waits_for_a_request_that_lingers_has_it_sent() {
        let nobody = dial_to(&"tcp://127.0.0.1:1".parse().unwrap(), &TlsFiles::default()).unwrap();
        let (reconnector, _wakes) = Reconnector::new(nobody, Options::default(), || {}).unwrap();
        let pending = PendingRequests::default();
        let question = |_| Question::Other { frame: Arc::default(), batch_of: None };
        let is_rung = || !pending.wake_policy.load(Ordering::Relaxed);
        let (slow, _slot) = pending.ask(&reconnector, When::Now, question);
        pending.state.lock().pending.get_mut(&slow).unwrap().sent = true;
        pending.state.lock().others.clear();
        pending.wake_policy.store(true, Ordering::Relaxed);
        let (late, _slot) = pending.ask(&reconnector, When::Later, question);
        assert!(!is_rung(), "it lingers behind the other");
        pending.hurry(&reconnector, slow);
        assert!(!is_rung(), "that one is sent already");
        pending.hurry(&reconnector, late);
        assert!(is_rung());
    }

    #[test]
    fn an_answer_to_what_was_not_asked_is_refused_and_counts_for_nothing() {
        let nobody = dial_to(&"tcp://127.0.0.1:1".parse().unwrap(), &TlsFiles::default()).unwrap();
        let (reconnector, _wakes) = Reconnector::new(nobody, Options::default(), || {}).unwrap();
        let pending = PendingRequests::default();
        let sample = |_| Question::Sample { table: 0, count: 1, deadline: None };
        let (id, slot) = pending.ask(&reconnector, When::Now, sample);
        for stranger in [0, id, id + 1] {
            assert!(pending.answer(stranger, Ok(Box::new(1_u64))).is_err(), "{stranger}");
            assert!(pending.place_of(stranger).is_err(), "{stranger}");
        }
        {
            let state = &mut *pending.state.lock();
            state.pending.get_mut(&id).unwrap().sent = true;
            state.sampling = 1;
        }
        pending.answer(id, Ok(Box::new(1_u64))).unwrap();
        assert!(slot.is_filled());
        assert_eq!(pending.state.lock().sampling, 0);
        // Of one that was given up, the answer may still come.
        pending.answer(id, Ok(Box::new(1_u64))).unwrap();
    }

    #[test]
    fn one_huge_share_does_not_end_delivery_in_shared_memory() {
        let usual = 1 << 20;
        let mut expected = Expected::default();
        expected.learn(usual);
        expected.learn(1 << 30);
        assert_eq!(expected.most, 1 << 30, "the next may be as large");
        assert_eq!(expected.usual, 2 * usual);
        for _ in 0..6 {
            expected.learn(usual);
        }
        assert_eq!(expected.usual, usual);
        assert!(expected.most > 1 << 28);
        for _ in 0..60 {
            expected.learn(usual);
        }
        assert_eq!(expected.most, usual, "it is forgotten");
        // Where they really are larger from now on, that is learned in a few of them.
        for _ in 0..10 {
            expected.learn(1 << 30);
        }
        assert_eq!(expected.usual, 1 << 30);
    }

    #[test]
    fn shares_of_any_size_are_expected_without_overflow() {
        let mut expected = Expected::default();
        for bytes in [0, usize::MAX, usize::MAX, 0, 1] {
            expected.learn(bytes);
        }
        assert!(expected.most >= expected.usual);
    }
}
