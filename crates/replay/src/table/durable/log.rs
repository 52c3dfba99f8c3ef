//! The effects that a table writes to its journal while it runs.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use echoic_memory::slab::RowWriter;
use echoic_memory::sync::Mutex;

use super::super::core::{Core, DeferredDrops};
use super::super::error::{Obstacle, TableError};
use super::super::key::Key;
use super::super::{Infos, Table};
use super::entry;
use crate::chunk::Chunk;
use crate::codec::Encode;
use crate::durable::Log;
use crate::journal::{Journal, Record, Room};
use crate::table::sessions::Origin;
use crate::trajectory::{Signature, Trajectory};
use crate::{Error, WaitReason};

/// The most bytes of rows in one entry, unless a row has more.
const ROWS_BYTES: usize = 4 << 20;
/// The most keys in one entry.
const MAX_KEYS: usize = 1 << 16;
/// Chunks are recorded again when those that were recorded have this many bytes, or are this many: a replay
/// keeps as many.
const KNOWN_BYTES: usize = 64 << 20;
const KNOWN_CHUNKS: usize = 1 << 16;
const KNOWN_FORMS: usize = 1 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(in crate::table) struct EffectLog {
    pub(in crate::table) log: Log,
    /// Which journal it is: positions in another one mean nothing here.
    id: String,
    known: Mutex<Known>,
    /// Numbers of forms, each used once.
    forms: AtomicU32,
    /// Samples that are not recorded yet, for lack of room.
    untold: AtomicU64,
}

/// What later entries may name. Changed under the table's lock, in the order of the entries.
#[derive(Debug, Default)]
struct Known {
    chunks: HashSet<u128>,
    bytes: usize,
    /// By their addresses, which are theirs for as long as they are here.
    forms: HashMap<usize, (Arc<Signature>, u32)>,
    /// How often all was forgotten.
    epoch: u64,
}

/// What is to be written before an item is.
struct Plan {
    epoch: u64,
    chunks: Vec<Arc<Chunk>>,
    form: u32,
    is_new_form: bool,
}

impl From<Error> for TableError {
    fn from(error: Error) -> Self {
        match error {
            Error::Closed(_) => Self::Closed,
            error => Self::Journal(error.to_string()),
        }
    }
}

impl EffectLog {
    pub(in crate::table) fn new(table: &Table, journal: Journal, id: String, forms: u32) -> Self {
        let log = Log::new(journal, vec![Arc::clone(&table.room), Arc::clone(&table.items)]);
        let (forms, untold) = (AtomicU32::new(forms), AtomicU64::new(0));
        Self { log, id, known: Mutex::default(), forms, untold }
    }

    /// Which journal it is, and what a checkpoint that is taken now need not have replayed. Under the
    /// table's lock. Later entries name nothing that was recorded before.
    pub(in crate::table) fn cut(&self) -> (String, u64) {
        self.known.lock().clear();
        // The checkpoint has counted them.
        self.untold.store(0, Ordering::Relaxed);
        (self.id.clone(), self.log.journal().next())
    }

    /// Room for entries of this many bytes.
    fn room(&self, bytes: usize) -> Result<Room, Obstacle> {
        let room = self.log.try_room(bytes).map_err(TableError::from)?;
        room.ok_or_else(|| WaitReason::Capacity.into())
    }

    /// Room for some rows of this many, and for how many.
    pub(in crate::table) fn rows_room(
        &self,
        count: usize,
        row_bytes: usize,
    ) -> Result<(Room, usize), Obstacle> {
        let count = count.min((ROWS_BYTES / (row_bytes + 64)).max(1));
        let room = self.room(entry::rows_bytes(count, row_bytes) + 64)?;
        Ok((room, count))
    }

    /// Writes an entry when what this many inserts led to is to be added, and where they are from.
    pub(in crate::table) fn push_traced(
        &self,
        core: &mut Core,
        mut record: Record,
        room: Option<&mut Room>,
        sent: Option<(&Origin, usize)>,
    ) -> bool {
        if let Some(trace) = &mut core.trace {
            record.put(trace);
            trace.clear();
        }
        let mut taken = true;
        if let Some((origin, count)) = sent {
            let called = core.sessions.advance(origin, count as u64);
            if called.is_new {
                taken = self.log.push(entry::session(called.number, origin), None);
            }
            entry::Sent::write(called, origin, &mut record);
        }
        taken & self.log.push(record, room)
    }

    /// Writes some entries.
    pub(in crate::table) fn push_all(&self, records: Vec<Record>) -> Result<(), TableError> {
        let push = |taken, record| taken & self.log.push(record, None);
        if records.into_iter().fold(true, push) { Ok(()) } else { Err(self.log.refusal().into()) }
    }

    /// An entry of rows that are filled and not published.
    pub(in crate::table) fn rows(
        of_session: bool,
        writer: &mut RowWriter,
        priorities: &[f64],
    ) -> Record {
        let row_bytes = if writer.is_empty() { 0 } else { writer.row_mut(0).len() };
        let put = |index, record: &mut Record| record.put(writer.row_mut(index));
        entry::rows(of_session, row_bytes, priorities, put)
    }

    /// Entries of removed items.
    pub(in crate::table) fn removed(keys: &[u64]) -> Vec<Record> {
        keys.chunks(MAX_KEYS).map(entry::removed).collect()
    }

    /// Entries of changed priorities.
    pub(in crate::table) fn updated(keys: &[u64], priorities: &[f64]) -> Vec<Record> {
        let pairs = keys.chunks(MAX_KEYS).zip(priorities.chunks(MAX_KEYS));
        pairs.map(|(keys, priorities)| entry::updated(keys, priorities)).collect()
    }

    /// Writes what was sampled: with the keys, when items go after `max_times` samples; whether it was taken.
    /// When the disk is slow, counts wait; of keys, samples do, before they are drawn.
    pub(in crate::table) fn sampled(&self, infos: &Infos, max_times: u32) -> bool {
        if max_times == 0 {
            let count = infos.keys.len() as u64 + self.untold.swap(0, Ordering::Relaxed);
            let record = entry::sampled(count, std::iter::empty());
            // Samples do not wait for this room.
            match self.log.journal().try_room(record.len() + 64) {
                Ok(Some(mut room)) => drop(self.log.push(record, Some(&mut room))),
                _ => self.untold.store(count, Ordering::Relaxed),
            }
            return true;
        }
        let gone = infos.times_sampled.iter().map(|times| *times >= max_times);
        let drawn: Vec<(u64, bool)> = infos.keys.iter().copied().zip(gone).collect();
        drawn.chunks(MAX_KEYS).fold(true, |taken, drawn| {
            let record = entry::sampled(drawn.len() as u64, drawn.iter().copied());
            taken & self.log.push(record, None)
        })
    }

    /// Writes that everything was removed.
    pub(in crate::table) fn reset(&self) {
        self.untold.store(0, Ordering::Relaxed);
        self.log.push(entry::begin(entry::kind::RESET, 0), None);
    }

    /// Writes the policy version of the learner.
    pub(in crate::table) fn advanced(&self, version: u64) {
        let mut record = entry::begin(entry::kind::VERSION, 8);
        record.put(&version.to_le_bytes());
        self.log.push(record, None);
    }

    /// As [`EffectLog::try_insert`]; fails when its chunks are to be recorded again, so that the caller tries again.
    fn try_insert_once(
        &self,
        table: &Arc<Table>,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
        origin: Option<&Origin>,
    ) -> Result<ControlFlow<Option<Key>>, Obstacle> {
        // Before anything is copied, and in vain.
        table.lock().gate.insertable(1)?;
        let plan = self.plan(trajectory);
        let (bytes, largest) = plan.bytes(trajectory);
        self.log.journal().check_record(largest).map_err(TableError::from)?;
        let mut room = self.room(bytes)?;
        let records = plan.records(trajectory);
        let item = entry::item(origin.is_some(), plan.form, priority, trajectory);
        let mut deferred = DeferredDrops::new();
        let core = &mut *table.lock();
        let known = &mut *self.known.lock();
        if known.epoch != plan.epoch {
            return Ok(ControlFlow::Continue(()));
        }
        if core.has(origin)? {
            return Ok(ControlFlow::Break(None));
        }
        let key = core.insert_trajectory(trajectory.clone(), priority, version, &mut deferred)?;
        let mut taken = true;
        for record in records {
            taken &= self.log.push(record, Some(&mut room));
        }
        let sent = origin.map(|origin| (origin, 1));
        taken &= self.push_traced(core, item, Some(&mut room), sent);
        known.learn(&plan, trajectory);
        if known.is_full() {
            self.log.push(entry::begin(entry::kind::FORGET, 0), None);
            known.clear();
        }
        if taken {
            Ok(ControlFlow::Break(Some(key)))
        } else {
            Err(TableError::from(self.log.refusal()).into())
        }
    }

    /// Inserts a trajectory into a table that keeps such; `None` when it is there already.
    pub(in crate::table) fn try_insert(
        &self,
        table: &Arc<Table>,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
        origin: Option<&Origin>,
    ) -> Result<Option<Key>, Obstacle> {
        loop {
            let inserted = self.try_insert_once(table, trajectory, priority, version, origin);
            self.log.journal().nudge();
            if let ControlFlow::Break(inserted) = inserted? {
                return Ok(inserted);
            }
        }
    }

    /// Has later entries name nothing that was recorded before.
    pub(super) fn forget(&self) {
        self.known.lock().clear();
        self.log.push(entry::begin(entry::kind::FORGET, 0), None);
        self.log.journal().nudge();
    }

    fn plan(&self, trajectory: &Trajectory) -> Plan {
        let signature = trajectory.signature();
        let known = self.known.lock();
        let mut chunks: Vec<Arc<Chunk>> = Vec::new();
        for slice in trajectory.slices() {
            let key = slice.chunk.key();
            let is_planned = || chunks.iter().any(|chunk| chunk.key() == key);
            if !known.chunks.contains(&key.0) && !is_planned() {
                chunks.push(Arc::clone(slice.chunk));
            }
        }
        let form = known.forms.get(&address(signature)).map(|(_, number)| *number);
        let is_new_form = form.is_none();
        let form = form.unwrap_or_else(|| self.forms.fetch_add(1, Ordering::Relaxed));
        Plan { epoch: known.epoch, chunks, form, is_new_form }
    }
}

fn address(signature: &Arc<Signature>) -> usize {
    Arc::as_ptr(signature) as usize
}

impl Plan {
    /// Bytes of all entries, and of the largest.
    fn bytes(&self, trajectory: &Trajectory) -> (usize, usize) {
        // What is around a chunk has at most 32 bytes, and 8 for each axis; frames have 8.
        let chunk =
            |chunk: &Arc<Chunk>| 80 + 8 * chunk.kind().shape.len() + chunk.encoded_bytes().len();
        let chunks = self.chunks.iter().map(chunk);
        let item = entry::item_bytes(trajectory) + 64;
        let (sum, most) = chunks.fold((0, 0), |(sum, most), bytes| (sum + bytes, most.max(bytes)));
        (sum + item, most.max(item))
    }

    fn records(&self, trajectory: &Trajectory) -> Vec<Record> {
        let mut records = Vec::with_capacity(self.chunks.len() + 1);
        if self.is_new_form {
            let mut record = entry::begin(entry::kind::FORM, 64);
            record.put_with(|bytes| (self.form, trajectory.signature()).encode(bytes));
            record.digest();
            records.push(record);
        }
        for chunk in &self.chunks {
            let bytes = 48 + 8 * chunk.kind().shape.len() + chunk.encoded_bytes().len();
            let mut record = entry::begin(entry::kind::CHUNK, bytes);
            record.put(&chunk.key().0.to_le_bytes());
            record.put_with(|bytes| chunk.write(bytes));
            record.digest();
            records.push(record);
        }
        records
    }
}

impl Known {
    fn learn(&mut self, plan: &Plan, trajectory: &Trajectory) {
        for chunk in &plan.chunks {
            if self.chunks.insert(chunk.key().0) {
                self.bytes += chunk.memory_bytes();
            }
        }
        if plan.is_new_form {
            let signature = trajectory.signature();
            self.forms.insert(address(signature), (Arc::clone(signature), plan.form));
        }
    }

    fn is_full(&self) -> bool {
        self.bytes >= KNOWN_BYTES
            || self.chunks.len() >= KNOWN_CHUNKS
            || self.forms.len() >= KNOWN_FORMS
    }

    fn clear(&mut self) {
        self.chunks = HashSet::new();
        self.forms = HashMap::new();
        self.bytes = 0;
        self.epoch += 1;
    }
}
