//! A connection for inserts: what it sends is inserted once each, in order, and when a table does not
//! take more, nothing more is read from it.
//!
//! A frame stays where it is until all of it is inserted; the session knows how far it got. One that takes long to use is
//! used elsewhere, and comes back when that is done. What went into a table with a journal is acknowledged when it is
//! kept, and more is taken meanwhile.
//!
//! Where the session went on is known to the event loop only as long as it lives, and at this listener. What was done
//! before that, or at another listener, is known to the tables, which are asked before the first operation for
//! each, and once more when it is done.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;

use echoic_replay::WaitReason;
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::codec::Reader;
use echoic_replay::durable::Receipt;
use echoic_replay::table::{Call, Form, Insertion, Obstacle, Origin, Table, TableError, Waiting};
use echoic_replay::trajectory::{Sharing, Signature, Trajectory};

use super::ServerContext;
use super::pool::{HEAVY, Task};
use super::session::{Accepts, AckDue, Progress, Session, Stop, Turn};
use super::wait_queue::Key;
use crate::wire::WireError;
use crate::wire::frame::{Control, HEADER_BYTES, Header, kind};
use crate::wire::handshake::{ProducerId, RefusalCode};
use crate::wire::tables::{
    ItemHead, MAX_CHUNK_BYTES, MAX_CHUNKS, MAX_INSERT, MAX_ITEM, MAX_SIGNATURES, Release, RowsHead,
    SignatureHead, bad_priority,
};

/// The greatest number of an operation: no client gets there by counting, and what is counted on from there does not
/// begin again at 0.
const LAST: u64 = u64::MAX >> 1;
/// How many operations may be on their way. What they weigh is limited by what the sockets hold: the
/// event loop keeps no more than one frame.
const CREDIT: u64 = 1 << 18;
/// After how many bytes an acknowledgement is due, though more is there to be read.
const DUE_BYTES: usize = 256 << 10;

/// How many operations may be acknowledged together for the sake of a short list.
const MARKED: u64 = 256;

/// Operations that are in a table and perhaps not kept yet.
#[derive(Debug)]
struct Mark {
    /// The first of them; they end where the next mark begins.
    first: u64,
    table: usize,
    receipt: Receipt,
}

/// The kinds that chunks share.
type Kinds = HashSet<Arc<ColumnKind>>;

/// A frame that was used elsewhere: the first in `input`, which ends at `end`.
#[derive(Debug)]
struct Used {
    input: Vec<u8>,
    end: usize,
    of: Work,
}

/// What came of it.
#[derive(Debug)]
enum Work {
    /// A chunk that was read, and what was given away for it.
    Chunk(Result<Chunk, WireError>, Kinds),
    /// How many rows were inserted into a table of this number, and whether they are all.
    Rows(u32, usize, Result<Filled, Obstacle>),
}

/// Rows of a frame that are to be inserted, some of them into room that is reserved.
#[derive(Debug)]
struct Filling {
    number: u32,
    table: Arc<Table>,
    insertion: Insertion,
    version: Option<u64>,
    priorities: Vec<f64>,
    /// Where the first of them begins in the payload of their frame.
    start: usize,
    origin: Origin,
}

/// What became of rows for which there was room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// They are in.
    All,
    /// Some came through another listener just now.
    Elsewhere,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct InsertSession {
    producer: ProducerId,
    epoch: u64,
    /// Tables that were asked how far they have come, and had none of what comes now.
    asked: HashSet<u32>,
    /// Operations that were in their tables before they came through this listener.
    passed: u64,
    /// Number of the first operation that is not done.
    next: u64,
    /// Number of the first operation that is not known to be kept: what is acknowledged.
    kept: u64,
    /// The same when it was last sent.
    acknowledged: u64,
    /// Number of the first operation that did not come through this connection: a client that sends some
    /// again gets no answer for those that it has not sent again yet.
    seen: u64,
    marks: VecDeque<Mark>,
    /// Number of the first operation that may not come yet.
    pub(crate) limit: u64,
    /// Operations that came again and were dropped.
    duplicates: u64,
    /// Bytes used since the last acknowledgement.
    unspoken: usize,
    /// The frame that comes now has been looked at before.
    resumed: bool,
    /// Counts the operation of this number among those that wait.
    waiting: Option<(u64, Waiting)>,
    chunks: HashMap<u64, Arc<Chunk>>,
    chunk_bytes: usize,
    signatures: HashMap<u32, Arc<Signature>>,
    sharing: Sharing,
    /// So that chunks of one kind share it.
    kinds: Kinds,
    /// Rows that are to be inserted elsewhere.
    filling: Option<Filling>,
    /// A frame that is used elsewhere. Nothing else is done meanwhile: operations keep their order, and what comes next
    /// may name the chunk.
    working: Option<Task<Used>>,
}

impl Session for InsertSession {
    fn accepts(&self, kind: u8) -> Result<Accepts, &'static str> {
        match kind {
            kind::ROWS | kind::CHUNK => Ok(Accepts::Whole(MAX_INSERT)),
            kind::ITEM | kind::SIGNATURE | kind::RELEASE => Ok(Accepts::Whole(MAX_ITEM)),
            _ => Err("a frame of an insert, PING, PONG or GOODBYE"),
        }
    }

    fn frame(&mut self, header: Header, payload: &[u8], turn: &mut Turn<'_>) -> Result<(), Stop> {
        let before = (self.next - self.passed, self.duplicates);
        let used = self.use_frame(header, payload, turn.shared);
        turn.count(self.next - self.passed - before.0, self.duplicates - before.1);
        // An operation that is done waits no more, also when the one behind it now does.
        self.waiting.take_if(|(number, _)| *number != self.next);
        match used {
            Ok(()) => {
                self.waiting = None;
                self.resumed = false;
                self.unspoken += payload.len();
            }
            Err(Stop::Wait(Key::Room(number), _)) => {
                self.resumed = true;
                if self.waiting.is_none() {
                    let table = turn.shared.table(number);
                    self.waiting = table.map(|table| (self.next, table.begin_wait(Call::Insert)));
                }
            }
            Err(_) => self.waiting = None,
        }
        // What a table without a journal has is kept at once. What never will be is reported when the connection
        // is looked at next.
        let _ = self.note_durable(turn.shared);
        used
    }

    fn resume(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let finished = self.finish(turn);
        let refused = |error: TableError| Stop::Refused(RefusalCode::Journal, error.to_string());
        while let Some(number) = self.note_durable(turn.shared).map_err(refused)? {
            if !turn.park(Key::Durable(number)) {
                break;
            }
        }
        finished
    }

    fn work(&mut self, input: Vec<u8>, end: usize, turn: &mut Turn<'_>) {
        let payload = HEADER_BYTES..end;
        self.working = Some(match self.filling.take() {
            Some(filling) => turn.run(move || {
                let rows = input.get(payload).and_then(|payload| payload.get(filling.start..));
                let (number, rows) = (filling.number, rows.unwrap_or_default());
                let (count, filled) = filling.run(rows);
                Used { input, end, of: Work::Rows(number, count, filled) }
            }),
            None => {
                let mut kinds = std::mem::take(&mut self.kinds);
                turn.run(move || {
                    let bytes = input.get(payload).and_then(|payload| payload.get(8..));
                    let chunk = read_chunk(bytes.unwrap_or_default(), &mut kinds);
                    Used { input, end, of: Work::Chunk(chunk, kinds) }
                })
            }
        });
    }

    fn acknowledge(&mut self, due: AckDue, stall: Option<WaitReason>, turn: &mut Turn<'_>) {
        let new = self.kept.saturating_sub(self.acknowledged);
        match due {
            AckDue::Much if self.unspoken < DUE_BYTES && new < CREDIT / 4 => return,
            AckDue::Much | AckDue::Any if new == 0 => return,
            _ => {}
        }
        self.limit = self.limit.max(self.next.saturating_add(CREDIT));
        (self.acknowledged, self.unspoken) = (self.kept, 0);
        let (next, limit) = (self.kept, self.limit);
        turn.out.write(|out| Control::Ack { next, limit, stall }.write(out));
    }

    fn progress(&self) -> Option<Progress> {
        Some(Progress { producer: self.producer, next: self.next, of_tables: true })
    }

    fn rest(&mut self) {
        if self.marks.is_empty() {
            self.marks = VecDeque::new();
        }
        if self.chunks.is_empty() {
            self.chunks = HashMap::new();
        }
    }
}

impl InsertSession {
    /// Goes on with operation `next` of a life of a producer. Those from `kept` on are in their tables and
    /// perhaps not kept.
    pub(crate) fn new(
        (producer, epoch): (ProducerId, u64),
        next: u64,
        kept: u64,
        shared: &ServerContext,
    ) -> Self {
        let mut session = Self {
            producer,
            epoch,
            asked: HashSet::new(),
            passed: 0,
            next,
            kept,
            acknowledged: kept,
            seen: kept,
            marks: VecDeque::new(),
            limit: next.saturating_add(CREDIT),
            duplicates: 0,
            unspoken: 0,
            resumed: false,
            waiting: None,
            chunks: HashMap::new(),
            chunk_bytes: 0,
            signatures: HashMap::new(),
            sharing: Sharing::default(),
            kinds: Kinds::new(),
            filling: None,
            working: None,
        };
        if kept < next {
            for (number, table) in shared.tables.all().iter().enumerate() {
                let mark = |receipt| Mark { first: kept, table: number, receipt };
                session.marks.extend(table.receipt().map(mark));
            }
        }
        session
    }

    /// Number of the first operation that may not come yet.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes note of what is kept. Of what is not, the table to wait for.
    fn note_durable(&mut self, shared: &ServerContext) -> Result<Option<usize>, TableError> {
        while let Some(Mark { first, table: number, receipt }) = self.marks.front() {
            let table = shared.table(*number);
            if !table.map_or(Ok(true), |table| table.is_durable(*receipt))? {
                self.kept = self.seen.min(*first);
                return Ok(Some(*number));
            }
            self.marks.pop_front();
        }
        self.kept = self.seen.min(self.next);
        Ok(None)
    }

    /// Takes note that operations from `first` on are in a table.
    fn mark(&mut self, first: u64, number: u32, table: &Table) {
        let Some(receipt) = table.receipt() else { return };
        let number = number as usize;
        match self.marks.back_mut() {
            Some(last) if last.table == number && first - last.first < MARKED => {
                last.receipt = receipt;
            }
            _ => self.marks.push_back(Mark { first, table: number, receipt }),
        }
    }

    /// Goes on with a frame that was used elsewhere, if it was: the rest of the input comes back, with the frame if not all
    /// of it is inserted.
    fn finish(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let Some(task) = &self.working else { return Ok(()) };
        let Some(used) = task.take() else {
            turn.park(Key::Pool);
            return Err(Stop::Wait(Key::Pool, None));
        };
        self.working = None;
        // A panic there is one of this connection.
        let Used { mut input, end, of } = used.unwrap_or_else(|panic| resume_unwind(panic));
        match of {
            Work::Chunk(chunk, kinds) => {
                self.kinds = kinds;
                let id = self.begin_chunk(input.get(HEADER_BYTES..end).unwrap_or_default())?.0;
                self.put_chunk(id, chunk?, turn.shared)?;
            }
            Work::Rows(number, count, filled) => {
                self.note_filled(number, count, turn.shared)?;
                turn.count(count as u64, 0);
                match filled {
                    Ok(Filled::All) => self.resumed = false,
                    Ok(Filled::Elsewhere) | Err(Obstacle::Blocked(_)) => {
                        self.asked.remove(&number);
                        self.resumed = true;
                        *turn.input = input;
                        return Ok(());
                    }
                    Err(obstacle) => {
                        return Err(held(number, find(turn.shared, number)?, obstacle));
                    }
                }
            }
        }
        self.unspoken += end - HEADER_BYTES;
        *turn.input = input.split_off(end);
        if input.capacity() >= HEAVY {
            // To give it back to the system takes a while. Nobody waits for it.
            drop(turn.run(|| drop(input)));
        }
        Ok(())
    }

    fn use_frame(
        &mut self,
        header: Header,
        payload: &[u8],
        shared: &ServerContext,
    ) -> Result<(), Stop> {
        match header.kind {
            kind::ROWS => self.take_rows(payload, shared)?,
            kind::ITEM => self.take_item(payload, shared)?,
            // Much of it is to be copied or decoded.
            kind::CHUNK
                if payload.get(8..).is_some_and(|bytes| Chunk::read_cost(bytes) >= HEAVY) =>
            {
                return Err(Stop::Heavy);
            }
            kind::CHUNK => self.take_chunk(payload, shared)?,
            kind::SIGNATURE => self.take_signature(payload)?,
            kind::RELEASE => {
                for id in Release::read(payload)?.chunks {
                    if let Some(chunk) = self.chunks.remove(&id) {
                        self.chunk_bytes -= chunk.memory_bytes();
                    }
                }
            }
            got => {
                let expected = "ROWS, SIGNATURE, CHUNK, ITEM or RELEASE";
                return Err(WireError::Unexpected { expected, got }.into());
            }
        }
        Ok(())
    }

    /// Whether operations may come that begin and end with these numbers; how many of them were done
    /// before.
    fn check_sequence(&mut self, first: u64, end: u64) -> Result<u64, WireError> {
        if first > self.next {
            let (expected, got) = (self.next, first);
            return Err(WireError::Sequence { field: "first operation", expected, got });
        }
        let most = self.limit.min(LAST);
        if end > most {
            let (expected, got) = (most, end);
            let field = "operations within the credit";
            return Err(WireError::Sequence { field, expected, got });
        }
        self.seen = self.seen.max(end);
        Ok(self.next.min(end) - first)
    }

    /// The first operation that is not done.
    fn origin(&self) -> Origin {
        Origin { producer: self.producer, epoch: self.epoch, number: self.next }
    }

    /// Passes over those operations before `end`, all for one table, that are in it already; how many.
    fn pass(&mut self, number: u32, table: &Table, end: u64) -> Result<u64, Stop> {
        if self.asked.contains(&number) {
            return Ok(0);
        }
        let reached = table.reached(&self.producer, self.epoch);
        let reached = reached.map_err(|error| held(number, table, error.into()))?;
        let passed = reached.min(end).saturating_sub(self.next);
        if passed == 0 {
            self.asked.insert(number);
            return Ok(0);
        }
        // They may not be kept yet.
        self.mark(self.next, number, table);
        self.next += passed;
        self.passed += passed;
        self.duplicates += passed;
        Ok(passed)
    }

    fn take_rows(&mut self, payload: &[u8], shared: &ServerContext) -> Result<(), Stop> {
        let row_bytes = |number| match shared.table(number as usize) {
            Some(table) => match &table.config().form {
                Form::Rows(spec) => Ok(spec.nbytes()),
                Form::Trajectories(_) => Err(no_table("number of a table with rows", number)),
            },
            None => Err(no_table("number of a table", number)),
        };
        let (head, priorities, rows) = RowsHead::read(payload, row_bytes)?;
        let end = head.first.saturating_add(head.count.into());
        // What a table refuses is refused as a whole, before the first row is in.
        check_priorities(&priorities)?;
        let again = self.check_sequence(head.first, end)?;
        let table = find(shared, head.table)?;
        let row = rows.len() / head.count as usize;
        if !self.resumed {
            self.duplicates += again;
        }
        let mut done = again as usize;
        let count = head.count as usize;
        while done < count {
            let passed = self.pass(head.table, table, end)?;
            if passed > 0 {
                done += passed as usize;
                continue;
            }
            let insertion = match table.try_reserve(count - done) {
                Ok(insertion) => insertion,
                Err(obstacle) => return Err(held(head.table, table, obstacle)),
            };
            let rest = &rows[done * row..];
            let (number, version, origin) = (head.table, head.version, self.origin());
            if rest.len() >= HEAVY {
                let (table, priorities) = (Arc::clone(table), priorities[done..].to_vec());
                let start = payload.len() - rest.len();
                self.filling =
                    Some(Filling { number, table, insertion, version, priorities, start, origin });
                return Err(Stop::Heavy);
            }
            let (taken, filled) =
                fill(table, insertion, (&priorities[done..], version, origin), rest);
            done += taken;
            self.note_filled(number, taken, shared)?;
            if filled.map_err(|obstacle| held(number, table, obstacle))? == Filled::Elsewhere {
                self.asked.remove(&number);
            }
        }
        Ok(())
    }

    /// Takes note that this many more rows are in a table.
    fn note_filled(
        &mut self,
        number: u32,
        count: usize,
        shared: &ServerContext,
    ) -> Result<(), WireError> {
        if count > 0 {
            self.mark(self.next, number, find(shared, number)?);
            self.next += count as u64;
        }
        Ok(())
    }

    fn take_item(&mut self, payload: &[u8], shared: &ServerContext) -> Result<(), Stop> {
        let item = ItemHead::read(payload)?;
        let again = self.check_sequence(item.sequence, item.sequence.saturating_add(1))?;
        if again > 0 {
            self.duplicates += 1;
            return Ok(());
        }
        let table = find(shared, item.table)?;
        if self.pass(item.table, table, item.sequence.saturating_add(1))? > 0 {
            return Ok(());
        }
        let Some(signature) = self.signatures.get(&item.signature) else {
            let (field, got) = ("number of a signature", item.signature.into());
            return Err(WireError::meaningless(field, got).into());
        };
        let columns = item.columns.iter().map(|slices| {
            let slices = slices.iter().map(|slice| {
                let (field, got) = ("number of a chunk", slice.chunk);
                let chunk =
                    self.chunks.get(&slice.chunk).ok_or(WireError::meaningless(field, got))?;
                Ok(Slice { chunk: Arc::clone(chunk), offset: slice.offset, len: slice.len })
            });
            slices.collect::<Result<Vec<Slice>, WireError>>()
        });
        let columns = columns.collect::<Result<_, _>>()?;
        let trajectory = Trajectory::new(Arc::clone(signature), columns)
            .map_err(|error| held(item.table, table, TableError::from(error).into()))?;
        let (trajectory, origin) = (self.sharing.share(trajectory), self.origin());
        let inserted =
            table.try_insert_from(&trajectory, item.priority, item.version, Some(&origin));
        if inserted.map_err(|obstacle| held(item.table, table, obstacle))?.is_none() {
            // It came through another listener just now.
            self.passed += 1;
            self.duplicates += 1;
        }
        self.mark(self.next, item.table, table);
        self.next += 1;
        Ok(())
    }

    fn take_chunk(&mut self, payload: &[u8], shared: &ServerContext) -> Result<(), WireError> {
        let (id, bytes) = self.begin_chunk(payload)?;
        let chunk = read_chunk(bytes, &mut self.kinds)?;
        self.put_chunk(id, chunk, shared)
    }

    /// The number and the serial form of a chunk for which there is room.
    fn begin_chunk<'a>(&self, payload: &'a [u8]) -> Result<(u64, &'a [u8]), WireError> {
        let too_large =
            |field, limit: usize, got: usize| WireError::too_large(field, limit as u64, got as u64);
        let mut reader = Reader::new(payload);
        let id = reader.u64("number of a chunk")?;
        let bytes = reader.rest();
        if self.chunks.len() >= MAX_CHUNKS {
            return Err(too_large("number of chunks", MAX_CHUNKS, self.chunks.len() + 1));
        }
        let total = self.chunk_bytes.saturating_add(bytes.len());
        if total > MAX_CHUNK_BYTES {
            return Err(too_large("bytes of chunks", MAX_CHUNK_BYTES, total));
        }
        Ok((id, bytes))
    }

    fn put_chunk(
        &mut self,
        id: u64,
        chunk: Chunk,
        shared: &ServerContext,
    ) -> Result<(), WireError> {
        match self.chunks.entry(id) {
            Entry::Occupied(_) => Err(WireError::meaningless("number of a new chunk", id)),
            Entry::Vacant(place) => {
                self.chunk_bytes += chunk.memory_bytes();
                place.insert(Arc::new(chunk.metered(&shared.meter.chunks)));
                Ok(())
            }
        }
    }

    fn take_signature(&mut self, payload: &[u8]) -> Result<(), Stop> {
        let SignatureHead { id, signature } = SignatureHead::read(payload)?;
        let (limit, got) = (MAX_SIGNATURES as u64, self.signatures.len() as u64 + 1);
        match self.signatures.entry(id) {
            Entry::Occupied(_) => {
                let (field, got) = ("number of a new signature", id.into());
                Err(WireError::meaningless(field, got).into())
            }
            Entry::Vacant(_) if got > limit => {
                Err(WireError::too_large("number of signatures", limit, got).into())
            }
            Entry::Vacant(place) => {
                place.insert(Arc::new(signature));
                Ok(())
            }
        }
    }
}

impl Filling {
    fn run(self, rows: &[u8]) -> (usize, Result<Filled, Obstacle>) {
        let Self { table, insertion, version, priorities, origin, .. } = self;
        fill(&table, insertion, (&priorities, version, origin), rows)
    }
}

/// Inserts rows, the first of them into room that is reserved, as far as there is more: how many, and what of the rest.
fn fill(
    table: &Arc<Table>,
    mut insertion: Insertion,
    (mut priorities, version, mut origin): (&[f64], Option<u64>, Origin),
    mut rows: &[u8],
) -> (usize, Result<Filled, Obstacle>) {
    let row = rows.len() / priorities.len();
    let mut done = 0;
    loop {
        let taken = insertion.len();
        let (here, behind) = rows.split_at(taken * row);
        for (index, bytes) in here.chunks_exact(row.max(1)).enumerate() {
            insertion.row_mut(index).copy_from_slice(bytes);
        }
        match insertion.commit_from(&priorities[..taken], version, Some(&origin)) {
            Ok(Some(_)) => {}
            Ok(None) => return (done, Ok(Filled::Elsewhere)),
            Err(error) => return (done, Err(error.into())),
        }
        done += taken;
        (priorities, rows) = (&priorities[taken..], behind);
        origin.number += taken as u64;
        if priorities.is_empty() {
            return (done, Ok(Filled::All));
        }
        insertion = match table.try_reserve(priorities.len()) {
            Ok(insertion) => insertion,
            Err(obstacle) => return (done, Err(obstacle)),
        };
    }
}

/// The chunk of a frame.
fn read_chunk(bytes: &[u8], kinds: &mut Kinds) -> Result<Chunk, WireError> {
    let share = |kind: ColumnKind| match kinds.get(&kind) {
        Some(known) => Arc::clone(known),
        None => {
            let kind = Arc::new(kind);
            // Those that come when there are too many are not shared.
            if kinds.len() < MAX_SIGNATURES {
                kinds.insert(Arc::clone(&kind));
            }
            kind
        }
    };
    let (chunk, used) = Chunk::read_as(bytes, share)
        .map_err(|error| WireError::Content(format!("a chunk: {error}")))?;
    if used < bytes.len() {
        let extra = bytes.len() - used;
        return Err(WireError::trailing("CHUNK", extra));
    }
    Ok(chunk)
}

fn no_table(field: &'static str, number: u32) -> WireError {
    WireError::meaningless(field, number.into())
}

fn find(shared: &ServerContext, number: u32) -> Result<&Arc<Table>, WireError> {
    let found = shared.table(number as usize);
    found.ok_or_else(|| no_table("number of a table", number))
}

fn check_priorities(priorities: &[f64]) -> Result<(), Stop> {
    match bad_priority(priorities) {
        Some(index) => {
            let error = TableError::Priority { index, got: priorities[index] };
            Err(Stop::Refused(RefusalCode::Table, error.to_string()))
        }
        None => Ok(()),
    }
}

fn held(number: u32, table: &Table, obstacle: Obstacle) -> Stop {
    match obstacle {
        Obstacle::Blocked(reason) => Stop::Wait(Key::Room(number as usize), Some(reason)),
        // What was not inserted stays with the client.
        Obstacle::Failed(TableError::Closed) => Stop::Refused(
            RefusalCode::Closed,
            format!("the table {:?} is closed", table.config().name),
        ),
        Obstacle::Failed(error @ TableError::Spec(_)) => {
            Stop::Refused(RefusalCode::Spec, error.to_string())
        }
        Obstacle::Failed(error @ TableError::Stale) => {
            Stop::Refused(RefusalCode::Stale, error.to_string())
        }
        Obstacle::Failed(error @ TableError::Journal(_)) => {
            Stop::Refused(RefusalCode::Journal, error.to_string())
        }
        Obstacle::Failed(error) => Stop::Refused(RefusalCode::Table, error.to_string()),
    }
}
