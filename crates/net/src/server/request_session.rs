//! A connection for requests: each is answered, at once or when the table allows it.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::arena::{Arena, Claim};
use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::limiter::Limiter;
use echoic_replay::rollouts::table::CallError;
use echoic_replay::table::{Form, Obstacle, Sampled, Stack, Table, TableError};

use super::delivery::Delivery;
use super::disk_queue::{DiskQueue, Held, Receipt, Waiting};
use super::pool::{HEAVY, Task};
use super::rollout_session::{self, RolloutSession};
use super::session::{Accepts, Session, Stop, Turn};
use super::wait_queue::{BlockedBy, Key, Verdict, Waiter, WaitingRequest};
use super::{Observer, ServerContext};
use crate::buffer_pool::PooledBuffer;
use crate::wire::WireError;
use crate::wire::frame::{Control, HEADER_BYTES, Header, frame, kind, short};
use crate::wire::handshake::RefusalCode;
use crate::wire::tables::{
    ALL_TABLES, Answer, Area, BatchHead, FailureCode, Layout, MAX_REQUEST, MAX_WAITING, Numbers,
    Operation, Request,
};
use crate::write_buffer::{Piece, WriteBuffer};

/// Where a checkpoint is, or why there is none; once that is known.
type Saved = Arc<Mutex<Option<Result<String, String>>>>;

/// A batch that is drawn, and not gathered yet.
#[derive(Debug)]
struct Gathering {
    sampled: Sampled,
    /// Its description, before the columns.
    head: Vec<u8>,
    /// Where the columns belong: behind the head, in a frame.
    columns: Vec<Range<usize>>,
    target: Target,
}

/// Where a batch is gathered.
#[derive(Debug)]
enum Target {
    Area(Claim),
    Frame(PooledBuffer),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct RequestSession {
    /// Answers about what is not durable yet.
    disk: DiskQueue,
    /// How many of its requests are in the wait queue.
    waiting: usize,
    /// One of them was passed over, since no more could be answered.
    passed_over: bool,
    /// Checkpoints that are being written, by the requests for them.
    saving: Vec<(u64, Saved)>,
    /// A batch that is gathered elsewhere, or a share of one of rollouts. Nothing else is done meanwhile, so batches are
    /// sent in the order in which they were drawn, and there is one at a time.
    gathering: Option<Task<Gathered>>,
    /// Where batches may be written to for the client to find them.
    pub(crate) arena: Option<Arc<Arena>>,
    /// What is asked of rollout tables.
    pub(crate) rollouts: RolloutSession,
}

impl Session for RequestSession {
    fn accepts(&self, kind: u8) -> Result<Accepts, &'static str> {
        match kind {
            kind::REQUEST => Ok(Accepts::Whole(MAX_REQUEST)),
            _ => Err("REQUEST, PING, PONG or GOODBYE"),
        }
    }

    fn frame(&mut self, _header: Header, payload: &[u8], turn: &mut Turn<'_>) -> Result<(), Stop> {
        if let Some(key) = self.busy(turn.shared) {
            return Err(Stop::Wait(key, None));
        }
        let request = Request::read(payload)?;
        if lacks_room(&request, turn.shared) {
            return Err(Stop::Wait(Key::Room(request.table as usize), Some(WaitReason::Capacity)));
        }
        self.take(request, turn)
    }

    fn resume(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        self.finish(turn);
        self.report_saved(turn);
        self.settle(turn);
        if turn.is_full() {
            return Err(Stop::Unsent(turn.shared.credit_bytes()));
        }
        if self.passed_over && self.busy(turn.shared).is_none() {
            self.passed_over = false;
            turn.waits.stir(turn.index);
        }
        Ok(())
    }

    fn attempt(
        &mut self,
        waiter: &mut Waiter,
        ahead: Option<BlockedBy>,
        turn: &mut Turn<'_>,
    ) -> Verdict {
        waiter.is_passed_over = turn.is_full() || self.busy(turn.shared).is_some();
        let tried = match waiter.blocked.filter(|_| waiter.is_passed_over) {
            Some(blocked) => Err(blocked),
            None => ahead.map_or_else(|| self.serve(waiter, turn), Err),
        };
        let verdict = match tried {
            Ok(()) => Verdict::Done,
            Err(blocked) if waiter.is_late() => {
                time_out(waiter, blocked, turn.out);
                Verdict::Late
            }
            Err(_) if waiter.is_passed_over => {
                self.passed_over = true;
                return Verdict::PassedOver;
            }
            Err(blocked) => {
                waiter.note(blocked, turn.shared);
                return Verdict::Waits(blocked);
            }
        };
        self.waiting -= 1;
        verdict
    }

    fn reassure(&mut self, _stall: Option<WaitReason>, turn: &mut Turn<'_>) {
        turn.out.write(|out| Control::Ping(0).write(out));
    }

    fn leaves_because(&self, shared: &ServerContext) -> Option<(RefusalCode, &'static str)> {
        let are_closed = shared.are_rollouts_closed() && self.rollouts.is_used;
        are_closed.then_some((RefusalCode::Closed, "the server's rollout tables are closed"))
    }
}

impl RequestSession {
    /// A session whose client finds batches in this arena, if it has one.
    pub(crate) fn new(arena: Option<Arc<Arena>>) -> Self {
        Self { arena, ..Self::default() }
    }

    /// What it waits for to do anything more: a batch that is being gathered, or as much as it may remember waits for the
    /// disk.
    fn busy(&self, shared: &ServerContext) -> Option<Key> {
        if self.gathering.is_some() {
            return Some(Key::Pool);
        }
        if self.saving.len() >= MAX_WAITING {
            return Some(Key::Checkpoint);
        }
        let first = self.disk.first().filter(|_| self.disk.is_full(shared.credit_bytes()))?;
        Some(first.receipt.key())
    }

    /// Goes on with a batch that is gathered, if it is.
    fn finish(&mut self, turn: &mut Turn<'_>) {
        let Some(task) = &self.gathering else { return };
        let Some(gathered) = task.take() else {
            turn.park(Key::Pool);
            return;
        };
        self.gathering = None;
        // A panic there is one of this connection.
        match gathered.unwrap_or_else(|panic| resume_unwind(panic)) {
            Gathered::Items(items) => items.send(turn.out),
            Gathered::Share(share) => share.send(self, turn),
        }
    }

    /// Does what is asked, or has it wait.
    fn take(&mut self, request: Request<'_>, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let Request { id, table, operation } = request;
        match operation {
            Operation::Cancel => self.cancel(id, turn),
            Operation::Info => info(id, table, turn),
            Operation::Observe => observe(id, turn),
            Operation::Checkpoint => self.begin_checkpoint(id, turn),
            of_rollouts if of_rollouts.is_of_rollouts() => {
                return rollout_session::take(self, id, table, of_rollouts, turn);
            }
            of_items => return self.take_of_items(id, table, of_items, turn),
        }
        Ok(())
    }

    /// Does what is asked of a table of items.
    fn take_of_items(
        &mut self,
        id: u64,
        number: u32,
        operation: Operation<'_>,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let Some(table) = turn.shared.table(number as usize) else {
            unknown(id, number, turn.out);
            return Ok(());
        };
        let is_journalled = matches!(
            operation,
            Operation::Update { .. } | Operation::Delete { .. } | Operation::Reset
        );
        if is_journalled && let Err(error) = table.check_journal() {
            refuse(id, &error, turn.out);
            return Ok(());
        }
        let done = match operation {
            Operation::Sample { count, timeout_ms, area } => {
                if let Some(area) = area {
                    check_area(area, self.arena.as_ref())?;
                }
                let request = WaitingRequest::Items { count: count as usize, area };
                return self.begin(id, number, request, timeout_ms, turn);
            }
            Operation::Update { keys, priorities } => {
                table.update_priorities(&keys, &priorities).map(|updated| updated as u64)
            }
            Operation::Delete { keys } => Ok(table.delete(&keys) as u64),
            Operation::Reset => {
                table.reset();
                Ok(0)
            }
            Operation::Pause => {
                table.pause();
                Ok(0)
            }
            Operation::Resume => {
                table.resume();
                Ok(0)
            }
            Operation::SetLimiter(parameters) => Limiter::raw(parameters)
                .map_err(TableError::from)
                .and_then(|limiter| table.set_limiter(limiter))
                .map(|()| 0),
            Operation::Advance { version } => {
                table.advance(version);
                Ok(0)
            }
            // Whoever takes turns by asking would otherwise wait for what can never be.
            Operation::CanSample { count } => match table.can_sample(count as usize) {
                true => Ok(1),
                false if table.is_closed() => Err(TableError::Closed),
                false => table.check_batch(count as usize).map(|()| 0),
            },
            Operation::CanInsert { count } => Ok(table.can_insert(count as usize).into()),
            Operation::List { place, most } => {
                let (infos, next) = table.items_from(place, most as usize);
                turn.out.write(|out| Answer::Listed { id, next, infos }.write(out));
                return Ok(());
            }
            Operation::Get { keys } => {
                let drawn = answer(id, table, table.get(&keys), None, turn);
                self.gather(drawn, turn);
                return Ok(());
            }
            // All others are not of a table of items.
            _ => Ok(0),
        };
        match done {
            Ok(count) => {
                let receipt = table.receipt().filter(|_| is_journalled);
                let receipt = receipt.map(|receipt| Receipt::Items(number as usize, receipt));
                self.answer(id, receipt, Held::Count(count), turn);
            }
            Err(error) => refuse(id, &error, turn.out),
        }
        Ok(())
    }

    /// Serves a request, or keeps it in the wait queue until its time is over.
    pub(crate) fn begin(
        &mut self,
        id: u64,
        number: u32,
        request: WaitingRequest,
        timeout_ms: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let is_hasty = timeout_ms == Some(0);
        let mut waiter = Waiter::new(id, number as usize, turn.index, request);
        let of_items = matches!(waiter.request, WaitingRequest::Items { .. });
        // A request for items that does not wait gets what is there.
        let ahead = turn.waits.ahead(&waiter).filter(|_| !(is_hasty && of_items));
        let blocked = match ahead.map_or_else(|| self.serve(&waiter, turn), Err) {
            Ok(()) => return Ok(()),
            Err(blocked) => blocked,
        };
        if let WaitingRequest::Items { count, .. } = waiter.request
            && let Some(Err(error)) =
                turn.shared.table(waiter.table).map(|table| table.check_batch(count))
        {
            refuse(id, &error, turn.out);
            return Ok(());
        }
        if is_hasty {
            time_out(&waiter, blocked, turn.out);
            return Ok(());
        }
        if self.waiting >= MAX_WAITING {
            let (limit, got) = (MAX_WAITING as u64, self.waiting as u64 + 1);
            return Err(WireError::too_large("requests that wait", limit, got).into());
        }
        self.waiting += 1;
        // Longer than a clock can hold is for ever.
        waiter.deadline =
            timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        waiter.note(blocked, turn.shared);
        turn.waits.add(waiter, turn.shared);
        Ok(())
    }

    /// Serves a request, if that is possible now; else why not.
    fn serve(&mut self, waiter: &Waiter, turn: &mut Turn<'_>) -> Result<(), BlockedBy> {
        match waiter.request {
            WaitingRequest::Items { count, area } => {
                let Some(table) = turn.shared.table(waiter.table) else { return Ok(()) };
                let drawn = self.sample(waiter, table, (count, area), turn)?;
                self.gather(drawn, turn);
                Ok(())
            }
            _ => rollout_session::serve(self, waiter, turn),
        }
    }

    /// Draws, and answers when that fails. A batch that may not be handed on before its draws are kept is gathered then.
    fn sample(
        &mut self,
        waiter: &Waiter,
        table: &Arc<Table>,
        (count, area): (usize, Option<Area>),
        turn: &mut Turn<'_>,
    ) -> Result<Option<Gathering>, BlockedBy> {
        let (id, number) = (waiter.id, waiter.table);
        match table.try_sample(count) {
            Ok(sampled) => match sampled.receipt() {
                Some(receipt) if table.is_durable(receipt) != Ok(true) => {
                    let held = Held::Batch { table: number, sampled: Box::new(sampled), area };
                    self.disk.push(Waiting { id, receipt: Receipt::Items(number, receipt), held });
                    Ok(None)
                }
                _ => Ok(answer(id, table, sampled, area.zip(self.arena.as_ref()), turn)),
            },
            Err(Obstacle::Blocked(reason)) => Err(BlockedBy::Items(reason)),
            Err(Obstacle::Failed(error)) => {
                refuse(id, &error, turn.out);
                Ok(None)
            }
        }
    }

    /// Answers when that is durable which the receipt stands for: now, if it is already or there is none.
    pub(crate) fn answer(
        &mut self,
        id: u64,
        receipt: Option<Receipt>,
        held: Held,
        turn: &mut Turn<'_>,
    ) {
        let Some(receipt) = receipt else { return self.send(id, held, turn) };
        match receipt.is_durable(id, turn.shared) {
            Ok(true) => self.send(id, held, turn),
            Ok(false) => self.disk.push(Waiting { id, receipt, held }),
            Err(answer) => turn.out.write(|out| answer.write(out)),
        }
    }

    /// Answers what is durable, as far as there is room for it.
    fn settle(&mut self, turn: &mut Turn<'_>) {
        while let Some(Waiting { id, receipt, held }) = self.disk.first() {
            // There is one batch at a time.
            let follows = self.gathering.is_some() && matches!(held, Held::Batch { .. });
            if follows || turn.is_full() {
                return;
            }
            let durable = receipt.is_durable(*id, turn.shared);
            if let Ok(false) = durable {
                if turn.park(receipt.key()) {
                    continue;
                }
                return;
            }
            let Some(Waiting { id, held, .. }) = self.disk.pop() else { return };
            match durable {
                Ok(_) => self.send(id, held, turn),
                Err(answer) => turn.out.write(|out| answer.write(out)),
            }
        }
    }

    fn send(&mut self, id: u64, held: Held, turn: &mut Turn<'_>) {
        match held {
            Held::Count(count) => turn.out.write(|out| Answer::Done { id, count }.write(out)),
            Held::Frame(frame) => turn.out.push(frame),
            Held::Batch { table, sampled, area } => {
                let Some(table) = turn.shared.table(table) else { return };
                let drawn = answer(id, table, *sampled, area.zip(self.arena.as_ref()), turn);
                self.gather(drawn, turn);
            }
        }
    }

    fn begin_checkpoint(&mut self, id: u64, turn: &mut Turn<'_>) {
        let Some(checkpointer) = &turn.shared.checkpointer else {
            let text = "the server has no checkpointer";
            return fail(id, FailureCode::Checkpoint, text, turn.out);
        };
        let saved = Saved::default();
        self.saving.push((id, Arc::clone(&saved)));
        let waker = turn.waits.waker(Key::Checkpoint).clone();
        turn.park(Key::Checkpoint);
        checkpointer.ask(move |result| {
            let result = match result {
                Ok(path) => Ok(path.display().to_string()),
                Err(error) => Err(error.to_string()),
            };
            *saved.lock() = Some(result);
            waker.wake();
        });
    }

    /// Answers requests for checkpoints that are written.
    fn report_saved(&mut self, turn: &mut Turn<'_>) {
        self.saving.retain(|(id, saved)| {
            let saved = saved.lock().take();
            let id = *id;
            match saved {
                None => return true,
                Some(Ok(path)) => turn.out.write(|out| Answer::Saved { id, path }.write(out)),
                Some(Err(text)) => fail(id, FailureCode::Checkpoint, &text, turn.out),
            }
            false
        });
        if !self.saving.is_empty() {
            turn.park(Key::Checkpoint);
        }
    }

    /// Gathers a batch and sends it: now, or when that is done elsewhere, if it takes long.
    fn gather(&mut self, drawn: Option<Gathering>, turn: &mut Turn<'_>) {
        let Some(gathering) = drawn else { return };
        if gathering.sampled.gather_cost() < HEAVY {
            return gathering.finish().send(turn.out);
        }
        self.gathering = Some(turn.run(|| Gathered::Items(gathering.finish())));
    }

    /// Has a share of a batch of rollouts laid out elsewhere, and sends it when that is done.
    pub(crate) fn lay_out_elsewhere(
        &mut self,
        turn: &mut Turn<'_>,
        lay_out: impl FnOnce() -> Delivery + Send + 'static,
    ) {
        self.gathering = Some(turn.run(|| Gathered::Share(lay_out())));
    }

    fn cancel(&mut self, id: u64, turn: &mut Turn<'_>) {
        // One that is answered already neither waits nor is being saved.
        if self.waiting > 0 && turn.waits.cancel(turn.index, id) {
            self.waiting -= 1;
        } else if let Some(index) = self.saving.iter().position(|(saving, _)| *saving == id) {
            self.saving.remove(index);
        } else {
            return;
        }
        fail(id, FailureCode::Cancelled, "the client gave it up", turn.out);
    }
}

/// Whether there is no room in the journal of a table for what is asked of it.
fn lacks_room(request: &Request<'_>, shared: &ServerContext) -> bool {
    let is_told = matches!(
        request.operation,
        Operation::Update { .. }
            | Operation::Delete { .. }
            | Operation::Reset
            | Operation::Advance { .. }
    );
    let table = shared.table(request.table as usize).filter(|_| is_told);
    table.is_some_and(|table| table.check_room().is_err())
}

/// Tells a client why the server did not do it.
pub(crate) fn fail(id: u64, code: FailureCode, text: &str, out: &mut WriteBuffer) {
    let answer = Answer::Failed { id, code, stall: None, text: short(text) };
    out.write(|out| answer.write(out));
}

/// Tells a client why a table did not do it.
fn refuse(id: u64, error: &TableError, out: &mut WriteBuffer) {
    out.write(|out| failed(id, error).write(out));
}

/// What to answer when a table did not do it.
pub(crate) fn failed(id: u64, error: &TableError) -> Answer {
    let code = match error {
        TableError::Closed => FailureCode::Closed,
        TableError::Limiter(_) => FailureCode::Limiter,
        TableError::Journal(_) => FailureCode::Journal,
        _ => FailureCode::Value,
    };
    Answer::Failed { id, code, stall: None, text: short(&error.to_string()) }
}

fn unknown(id: u64, number: u32, out: &mut WriteBuffer) {
    let text = format!("the server has no table number {number}");
    fail(id, FailureCode::Table, &text, out);
}

/// Tells a client that its request waited for as long as it may.
fn time_out(waiter: &Waiter, blocked: BlockedBy, out: &mut WriteBuffer) {
    let id = waiter.id;
    let answer = match blocked {
        BlockedBy::Items(reason) => {
            let text = "the sample waited for as long as it may".into();
            Answer::Failed { id, code: FailureCode::TimedOut, stall: Some(reason), text }
        }
        BlockedBy::Rollouts(blocked) => {
            Answer::RolloutRefused { id, error: CallError::TimedOut(blocked) }
        }
    };
    out.write(|out| answer.write(out));
}

/// Answers what there is to see of the server.
fn observe(id: u64, turn: &mut Turn<'_>) {
    let observer = turn.shared.observer.as_ref();
    let observation = observer.map(Observer::look).unwrap_or_default();
    turn.out.write(|out| Answer::Observed { id, observation }.write(out));
}

fn info(id: u64, number: u32, turn: &mut Turn<'_>) {
    let all = turn.shared.tables.all().iter().zip(0..);
    let asked = all.filter(|(_, table)| number == ALL_TABLES || number == *table);
    let numbers: Vec<Numbers> = asked.map(|(table, number)| Numbers::of(table, number)).collect();
    if numbers.is_empty() && number != ALL_TABLES {
        return unknown(id, number, turn.out);
    }
    turn.out.write(|out| Answer::Numbers { id, numbers }.write(out));
}

/// That an area is inside the arena.
pub(crate) fn check_area(area: Area, arena: Option<&Arc<Arena>>) -> Result<(), WireError> {
    let limit = arena.map_or(0, |arena| arena.bytes() as u64);
    match area.start.checked_add(area.len) {
        Some(end) if end <= limit => Ok(()),
        end => {
            let got = end.unwrap_or(u64::MAX);
            Err(WireError::too_large("end of an area", limit, got))
        }
    }
}

/// What to gather into the area that is for it, if it fits there, or else into a frame; a batch that can't be sent is
/// refused.
fn answer(
    id: u64,
    table: &Arc<Table>,
    sampled: Sampled,
    area: Option<(Area, &Arc<Arena>)>,
    turn: &mut Turn<'_>,
) -> Option<Gathering> {
    let layout = match sampled.stack() {
        Stack::Rows => Layout::Rows,
        Stack::Trajectories { signature, steps } => Layout::Trajectories { signature, steps },
        Stack::Mixed => {
            let text = "the items drawn are trajectories of different forms";
            fail(id, FailureCode::Mixed, text, turn.out);
            return None;
        }
    };
    let count = sampled.len();
    // What is known of an item has 36 bytes.
    let mut head = Vec::with_capacity(64 + 36 * count);
    BatchHead::write(&mut head, id, sampled.infos(), &layout);
    let spec = match &table.config().form {
        Form::Rows(spec) => Some(spec),
        Form::Trajectories(_) => None,
    };
    if let Some((Area { start, len }, arena)) = area
        && let Ok(columns) = layout.columns(count, 0, spec)
        && columns.last().map_or(0, |last| last.end) as u64 <= len
        && let Some(claim) = arena.claim(start as usize..(start + len) as usize)
    {
        return Some(Gathering { sampled, head, columns, target: Target::Area(claim) });
    }
    let columns = match layout.columns(count, head.len(), spec) {
        Ok(columns) => columns,
        Err(error) => {
            let text = error.to_string();
            fail(id, FailureCode::TooLarge, &text, turn.out);
            return None;
        }
    };
    let len = columns.last().map_or(head.len(), |last| last.end);
    let frame = turn.shared.buffer_pool.take(HEADER_BYTES + len);
    Some(Gathering { sampled, head, columns, target: Target::Frame(frame) })
}

/// What was gathered elsewhere.
#[derive(Debug)]
enum Gathered {
    Items(Items),
    Share(Delivery),
}

/// A batch of items as it is sent.
#[derive(Debug)]
enum Items {
    /// The description of one that lies in the arena.
    Placed(Vec<u8>),
    Frame(PooledBuffer),
}

impl Gathering {
    fn finish(self) -> Items {
        let Self { sampled, head, columns, target } = self;
        match target {
            Target::Area(mut claim) => {
                sampled.gather(&mut cut(claim.bytes_mut(), 0, &columns));
                Items::Placed(head)
            }
            Target::Frame(mut frame) => {
                let (header, payload) = frame.split_at_mut(HEADER_BYTES);
                let len = payload.len() as u32;
                header.copy_from_slice(&Header { len, kind: kind::BATCH }.bytes());
                let (start, rest) = payload.split_at_mut(head.len());
                start.copy_from_slice(&head);
                sampled.gather(&mut cut(rest, head.len(), &columns));
                Items::Frame(frame)
            }
        }
    }
}

impl Items {
    fn send(self, out: &mut WriteBuffer) {
        match self {
            Self::Placed(head) => {
                out.write(|out| frame(out, kind::PLACED, |out| out.extend_from_slice(&head)));
            }
            Self::Frame(frame) => out.push(Piece::Pooled(frame)),
        }
    }
}

/// The bytes of columns, of which `rest` has those from `start` on; what is between them becomes zero.
fn cut<'a>(mut rest: &'a mut [u8], start: usize, columns: &[Range<usize>]) -> Vec<&'a mut [u8]> {
    let mut end = start;
    let mut places = Vec::with_capacity(columns.len());
    for column in columns {
        let (gap, after) = rest.split_at_mut(column.start - end);
        gap.fill(0);
        let (place, after) = after.split_at_mut(column.len());
        places.push(place);
        (rest, end) = (after, column.end);
    }
    places
}
