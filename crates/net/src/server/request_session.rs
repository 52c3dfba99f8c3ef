//! A connection for requests: each is answered, at once or when the table allows it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::arena::{Arena, Claim};
use echoic_memory::sync::Mutex;
use echoic_replay::limiter::Limiter;
use echoic_replay::table::{
    Call, Form, Obstacle, Sampled, Stack, Table, TableError, Waiting as WaitStart,
};

use crate::buffer_pool::PooledBuffer;
use crate::server::Observer;
use crate::server::disk_queue::{DiskQueue, Held, Receipt, Waiting};
use crate::server::pool::Task;
use crate::server::rollouts::{self, Delivery, RolloutSession};
use crate::server::services::{HEAVY, Services};
use crate::wire::WireError;
use crate::wire::frame::{HEADER_BYTES, Header, Stall, frame, kind};
use crate::wire::tables::{
    ALL_TABLES, Answer, Area, BatchHead, FailureCode, Layout, MAX_WAITING, Numbers, Operation,
    Request,
};
use crate::write_buffer::{Piece, WriteBuffer};

/// A sample that has to wait.
#[derive(Debug)]
struct Parked {
    id: u64,
    table: usize,
    count: usize,
    area: Option<Area>,
    deadline: Option<Instant>,
    /// What for, when it was last tried.
    stall: Stall,
    /// Counts it among those that wait.
    waiting: Option<WaitStart>,
}

impl Parked {
    /// Tells its table what it waits for.
    fn say_why(&self) {
        if let (Some(waiting), Some(reason)) = (&self.waiting, self.stall.reason()) {
            waiting.because(reason);
        }
    }
}

/// Where a checkpoint is, or why there is none; once that is known.
type Saved = Arc<Mutex<Option<Result<String, String>>>>;

/// A batch that is drawn, and not gathered yet.
#[derive(Debug)]
struct Gathering {
    sampled: Sampled,
    /// What is told of it, before the columns.
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
    /// Answers that tell of what is not durable yet.
    disk: DiskQueue,
    /// In the order in which they came.
    parked: Vec<Parked>,
    /// One of them may have a better chance now.
    recalled: bool,
    /// The tables on whose lists of waiting connections this one is.
    listed: BTreeSet<usize>,
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

impl RequestSession {
    /// Whether it does nothing more for now: a batch is being gathered, or as much as it may remember waits for the disk.
    pub(crate) fn is_busy(&self, services: &Services) -> bool {
        self.gathering.is_some()
            || self.saving.len() >= MAX_WAITING
            || self.disk.is_full(services.most_unsent())
    }

    /// Whether a batch is gathered elsewhere.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering.is_some()
    }

    /// Goes on with a batch that is gathered, if it is.
    pub(crate) fn finish(&mut self, services: &Services, out: &mut WriteBuffer) {
        let Some(gathered) = self.gathering.as_ref().and_then(Task::take) else { return };
        self.gathering = None;
        // A panic there is one of this connection.
        match gathered.unwrap_or_else(|panic| resume_unwind(panic)) {
            Gathered::Items(items) => items.send(out),
            Gathered::Share(share) => share.send(self, services, out),
        }
    }

    /// The table in whose journal there is no room for what is asked, if so. Its room rings once there is.
    pub(crate) fn lacks_room(&self, request: &Request<'_>, services: &Services) -> Option<usize> {
        let is_told = matches!(
            request.operation,
            Operation::Update { .. }
                | Operation::Delete { .. }
                | Operation::Reset
                | Operation::Advance { .. }
        );
        let number = request.table as usize;
        let table = services.table(number).filter(|_| is_told)?;
        table.check_room().err()?;
        table.wake_on_room(&services.wakers[number].room.waker);
        // Room that came before that is found by one more look.
        table.check_room().err().map(|_| number)
    }

    /// Does what is asked, or parks it.
    pub(crate) fn take(
        &mut self,
        request: Request<'_>,
        services: &Services,
        out: &mut WriteBuffer,
    ) -> Result<(), WireError> {
        let Request { id, table: number, operation } = request;
        if operation == Operation::Cancel {
            self.cancel(id, out);
            return Ok(());
        }
        if operation == Operation::Info {
            info(id, number, services, out);
            return Ok(());
        }
        if operation == Operation::Observe {
            let observer = services.shared.observer.as_ref();
            let observation = observer.map(Observer::look).unwrap_or_default();
            out.write(|out| Answer::Observed { id, observation }.write(out));
            return Ok(());
        }
        if operation == Operation::Checkpoint {
            self.begin_checkpoint(id, services, out);
            return Ok(());
        }
        if operation.is_of_rollouts() {
            return rollouts::take(self, id, number, operation, services, out);
        }
        let Some(table) = services.table(number as usize) else {
            unknown(id, number, out);
            return Ok(());
        };
        let is_journalled = matches!(
            operation,
            Operation::Update { .. } | Operation::Delete { .. } | Operation::Reset
        );
        if is_journalled && let Err(error) = table.check_journal() {
            refuse(id, &error, out);
            return Ok(());
        }
        let done = match operation {
            Operation::Sample { count, timeout_ms, area } => {
                let (count, table) = (count as usize, number as usize);
                let (deadline, stall, waiting) = (None, Stall::None, None);
                let wanted = Parked { id, table, count, area, deadline, stall, waiting };
                return self.begin_sample(wanted, timeout_ms, services, out);
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
                out.write(|out| Answer::Listed { id, next, infos }.write(out));
                return Ok(());
            }
            Operation::Get { keys } => {
                let drawn = answer(id, table, table.get(&keys), None, services, out);
                self.gather(drawn, services, out);
                return Ok(());
            }
            // They are done already.
            _ => Ok(0),
        };
        match done {
            Ok(count) => {
                let receipt = table.receipt().filter(|_| is_journalled);
                let receipt = receipt.map(|receipt| Receipt::Items(number as usize, receipt));
                self.answer(id, receipt, Held::Count(count), services, out);
            }
            Err(error) => refuse(id, &error, out),
        }
        Ok(())
    }

    /// Answers when that is durable which the receipt stands for: now, if it is already or there is none.
    pub(crate) fn answer(
        &mut self,
        id: u64,
        receipt: Option<Receipt>,
        held: Held,
        services: &Services,
        out: &mut WriteBuffer,
    ) {
        let Some(receipt) = receipt else { return self.send(id, held, services, out) };
        match receipt.is_durable(id, services) {
            Ok(true) => self.send(id, held, services, out),
            Ok(false) => self.disk.push(Waiting { id, receipt, held }),
            Err(answer) => out.write(|out| answer.write(out)),
        }
    }

    /// Answers what is durable, as far as there is room for it. Of what is not, the place of its table's waker.
    pub(crate) fn settle(&mut self, services: &Services, out: &mut WriteBuffer) -> Option<usize> {
        while let Some(Waiting { id, receipt, held }) = self.disk.first() {
            // There is one batch at a time.
            let follows = self.gathering.is_some() && matches!(held, Held::Batch { .. });
            if follows || out.is_full(services.most_unsent()) {
                return None;
            }
            let durable = receipt.is_durable(*id, services);
            if let Ok(false) = durable {
                return Some(receipt.place(services));
            }
            let Waiting { id, held, .. } = self.disk.pop()?;
            match durable {
                Ok(_) => self.send(id, held, services, out),
                Err(answer) => out.write(|out| answer.write(out)),
            }
        }
        None
    }

    fn send(&mut self, id: u64, held: Held, services: &Services, out: &mut WriteBuffer) {
        match held {
            Held::Count(count) => out.write(|out| Answer::Done { id, count }.write(out)),
            Held::Frame(frame) => out.push(frame),
            Held::Batch { table, sampled, area } => {
                let Some(table) = services.table(table) else { return };
                let area = area.zip(self.arena.as_ref());
                let drawn = answer(id, table, *sampled, area, services, out);
                self.gather(drawn, services, out);
            }
        }
    }

    fn begin_sample(
        &mut self,
        mut wanted: Parked,
        timeout_ms: Option<u64>,
        services: &Services,
        out: &mut WriteBuffer,
    ) -> Result<(), WireError> {
        let Parked { id, table: number, count, area, .. } = wanted;
        if let Some(area) = area {
            check_area(area, self.arena.as_ref())?;
        }
        let Some(table) = services.table(number) else { return Ok(()) };
        let (arena, disk) = (self.arena.as_ref(), &mut self.disk);
        let tried = match comes_before(&self.parked, &wanted) {
            // Who does not wait gets what is there.
            Some(stall) if timeout_ms != Some(0) => Err(stall),
            _ => sample(&wanted, table, arena, disk, services, out),
        };
        wanted.stall = match tried {
            Ok(drawn) => {
                self.gather(drawn, services, out);
                return Ok(());
            }
            Err(_) if timeout_ms != Some(0) && self.parked.len() >= MAX_WAITING => {
                let (limit, got) = (MAX_WAITING as u64, self.parked.len() as u64 + 1);
                return Err(WireError::too_large("requests that wait", limit, got));
            }
            Err(stall) => stall,
        };
        if let Err(error) = table.check_batch(count) {
            refuse(id, &error, out);
            return Ok(());
        }
        let timeout = timeout_ms.map(Duration::from_millis);
        // Longer than a clock can hold is for ever.
        wanted.deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if timeout == Some(Duration::ZERO) {
            time_out(&wanted, out);
            return Ok(());
        }
        wanted.waiting = Some(table.begin_wait(Call::Sample));
        wanted.say_why();
        self.parked.push(wanted);
        // Items that come from here on ring; those that came before are found by one more try.
        self.listen(number, services);
        self.recalled = true;
        self.retry(services, out);
        Ok(())
    }

    fn begin_checkpoint(&mut self, id: u64, services: &Services, out: &mut WriteBuffer) {
        let Some(checkpointer) = &services.shared.checkpointer else {
            let text = "the server has no checkpointer";
            return fail(id, FailureCode::Checkpoint, text, out);
        };
        let saved = Saved::default();
        self.saving.push((id, Arc::clone(&saved)));
        let waker = services.saved.waker.clone();
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
    pub(crate) fn tell_saved(&mut self, out: &mut WriteBuffer) {
        self.saving.retain(|(id, saved)| {
            let saved = saved.lock().take();
            let id = *id;
            match saved {
                None => return true,
                Some(Ok(path)) => out.write(|out| Answer::Saved { id, path }.write(out)),
                Some(Err(text)) => fail(id, FailureCode::Checkpoint, &text, out),
            }
            false
        });
    }

    fn listen(&self, number: usize, services: &Services) {
        if let Some(table) = services.table(number) {
            table.wake_on_items(&services.wakers[number].items.waker);
        }
    }

    /// Tries again what is parked, if it was recalled.
    pub(crate) fn retry(&mut self, services: &Services, out: &mut WriteBuffer) {
        if !std::mem::take(&mut self.recalled) {
            return;
        }
        let mut index = 0;
        while let Some((before, [one, ..])) = self.parked.split_at_mut_checked(index) {
            if self.gathering.is_some() || out.is_full(services.most_unsent()) {
                self.recalled = true;
                return;
            }
            let Some(table) = services.table(one.table) else { return };
            let (arena, disk) = (self.arena.as_ref(), &mut self.disk);
            let tried = match comes_before(before, one) {
                Some(stall) => Err(stall),
                None => sample(one, table, arena, disk, services, out),
            };
            match tried {
                Ok(drawn) => {
                    self.parked.remove(index);
                    self.gather(drawn, services, out);
                }
                Err(stall) => {
                    one.stall = stall;
                    one.say_why();
                    index += 1;
                }
            }
        }
    }

    /// Gathers a batch and sends it: now, or when that is done elsewhere, if it takes long.
    fn gather(&mut self, drawn: Option<Gathering>, services: &Services, out: &mut WriteBuffer) {
        let Some(gathering) = drawn else { return };
        if gathering.sampled.gather_cost() < HEAVY {
            return gathering.finish().send(out);
        }
        let gather = || Gathered::Items(gathering.finish());
        self.gathering = Some(services.run(gather));
    }

    /// Has a share of a batch of rollouts laid out elsewhere, and sends it when that is done.
    pub(crate) fn lay_out_elsewhere(
        &mut self,
        services: &Services,
        lay_out: impl FnOnce() -> Delivery + Send + 'static,
    ) {
        let gather = || Gathered::Share(lay_out());
        self.gathering = Some(services.run(gather));
    }

    /// Has parked samples of a table tried again at the next turn, and registers the waker for those after it.
    pub(crate) fn recall(&mut self, table: usize, services: &Services) {
        self.listed.remove(&table);
        if self.parked.iter().any(|one| one.table == table) {
            self.listen(table, services);
            self.recalled = true;
        }
    }

    /// Whether parked samples wait for another turn.
    pub(crate) fn is_recalled(&self) -> bool {
        self.recalled
    }

    /// Tables whose items it waits for and on whose lists it is not yet; now it is.
    pub(crate) fn enlist(&mut self) -> Vec<usize> {
        let tables = self.parked.iter().map(|one| one.table);
        tables.filter(|table| self.listed.insert(*table)).collect()
    }

    /// When the first parked sample has waited for as long as it may.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.parked.iter().filter_map(|one| one.deadline).min()
    }

    /// Answers those that have waited for as long as they may.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut WriteBuffer) {
        self.parked.retain(|one| {
            let over = one.deadline.is_some_and(|deadline| deadline <= now);
            if over {
                time_out(one, out);
            }
            !over
        });
    }

    fn cancel(&mut self, id: u64, out: &mut WriteBuffer) {
        // One that is answered already is neither parked nor being saved.
        if let Some(index) = self.parked.iter().position(|one| one.id == id) {
            self.parked.remove(index);
        } else if let Some(index) = self.saving.iter().position(|(saving, _)| *saving == id) {
            self.saving.remove(index);
        } else {
            return self.rollouts.cancel(id);
        }
        fail(id, FailureCode::Cancelled, "the client gave it up", out);
    }
}

/// Tells a client why the server did not do it.
pub(crate) fn fail(id: u64, code: FailureCode, text: &str, out: &mut WriteBuffer) {
    let answer = Answer::Failed { id, code, stall: Stall::None, text: text.to_owned() };
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
    Answer::Failed { id, code, stall: Stall::None, text: error.to_string() }
}

fn unknown(id: u64, number: u32, out: &mut WriteBuffer) {
    let text = format!("the server has no table number {number}");
    fail(id, FailureCode::Table, &text, out);
}

fn time_out(parked: &Parked, out: &mut WriteBuffer) {
    let text = "the sample waited for as long as it may".into();
    let Parked { id, stall, .. } = *parked;
    out.write(|out| Answer::Failed { id, code: FailureCode::TimedOut, stall, text }.write(out));
}

fn info(id: u64, number: u32, services: &Services, out: &mut WriteBuffer) {
    let all = services.shared.tables.all().iter().zip(0..);
    let asked = all.filter(|(_, table)| number == ALL_TABLES || number == *table);
    let numbers: Vec<Numbers> = asked.map(|(table, number)| Numbers::of(table, number)).collect();
    if numbers.is_empty() && number != ALL_TABLES {
        return unknown(id, number, out);
    }
    out.write(|out| Answer::Numbers { id, numbers }.write(out));
}

/// What another one of its table waits for, which asked before and for no more items. Such a one is served first,
/// though items may have come since it was tried.
fn comes_before(before: &[Parked], wanted: &Parked) -> Option<Stall> {
    let first = before.iter().find(|one| one.table == wanted.table && one.count <= wanted.count)?;
    Some(first.stall)
}

/// Draws, and answers when that fails; what for it must wait, otherwise. A batch that may not be handed on before its
/// draws are kept is gathered then.
fn sample(
    wanted: &Parked,
    table: &Arc<Table>,
    arena: Option<&Arc<Arena>>,
    disk: &mut DiskQueue,
    services: &Services,
    out: &mut WriteBuffer,
) -> Result<Option<Gathering>, Stall> {
    match table.try_sample(wanted.count) {
        Ok(sampled) => match sampled.receipt() {
            Some(receipt) if table.is_kept(receipt) != Ok(true) => {
                let Parked { id, table, area, .. } = *wanted;
                let held = Held::Batch { table, sampled: Box::new(sampled), area };
                disk.push(Waiting { id, receipt: Receipt::Items(table, receipt), held });
                Ok(None)
            }
            _ => {
                let area = wanted.area.zip(arena);
                Ok(answer(wanted.id, table, sampled, area, services, out))
            }
        },
        Err(Obstacle::Blocked(reason)) => Err(reason.into()),
        Err(Obstacle::Failed(error)) => {
            refuse(wanted.id, &error, out);
            Ok(None)
        }
    }
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
    services: &Services,
    out: &mut WriteBuffer,
) -> Option<Gathering> {
    let layout = match sampled.stack() {
        Stack::Rows => Layout::Rows,
        Stack::Trajectories { signature, steps } => Layout::Trajectories { signature, steps },
        Stack::Mixed => {
            let text = "the items drawn are trajectories of different forms";
            fail(id, FailureCode::Mixed, text, out);
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
            fail(id, FailureCode::TooLarge, &text, out);
            return None;
        }
    };
    let len = columns.last().map_or(head.len(), |last| last.end);
    let frame = services.shared.buffer_pool.take(HEADER_BYTES + len);
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
    /// What is told of one that lies in the arena.
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
