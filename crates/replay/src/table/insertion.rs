//! Items on their way into a table of rows.

use std::sync::Arc;

use echoic_memory::slab::RowWriter;
use smallvec::SmallVec;

use super::core::DeferredDrops;
use super::durable::EffectLog;
use super::error::{TableError, check_priorities};
use super::sessions::Origin;
use super::{Form, Key, Table};
use crate::journal::Room;
use crate::trajectory::Trajectory;

/// Rows to be filled and committed. Dropped before that, they were never there.
#[derive(Debug)]
pub struct Insertion {
    table: Arc<Table>,
    /// None once committed.
    writer: Option<RowWriter>,
    generation: u64,
    /// In the journal, if the table has one.
    room: Option<Room>,
}

impl Insertion {
    pub(super) fn new(
        table: Arc<Table>,
        writer: RowWriter,
        generation: u64,
        room: Option<Room>,
    ) -> Self {
        Self { table, writer: Some(writer), generation, room }
    }

    /// How many items there is room for.
    pub fn len(&self) -> usize {
        self.writer.as_ref().map_or(0, RowWriter::len)
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of one item: its leaves, one after the other.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn row_mut(&mut self, index: usize) -> &mut [u8] {
        match &mut self.writer {
            Some(writer) => writer.row_mut(index),
            None => unreachable!("a committed insertion is gone"),
        }
    }

    /// Fills the first row with a trajectory, if that has the table's leaves.
    pub(super) fn fill(&mut self, trajectory: &Trajectory) -> Result<(), TableError> {
        let table = Arc::clone(&self.table);
        let Form::Rows(spec) = &table.config.form else {
            return Err(TableError::Spec("the table has no rows".into()));
        };
        trajectory.check(spec).map_err(TableError::Spec)?;
        let mut rest = self.row_mut(0);
        for (column, bytes) in spec.leaf_bytes().iter().enumerate() {
            let (leaf, after) = rest.split_at_mut(*bytes);
            trajectory.copy_column(column, leaf);
            rest = after;
        }
        Ok(())
    }

    /// Makes items of the rows, with a priority each; their names. Without a version they have the
    /// table's.
    ///
    /// # Errors
    ///
    /// [`TableError`] when there are not as many priorities as rows, or one is none; then nothing is
    /// inserted. [`TableError::Journal`] when the journal has failed meanwhile: the items are in the table
    /// and survive nothing.
    pub fn commit(
        self,
        priorities: &[f64],
        version: Option<u64>,
    ) -> Result<SmallVec<[Key; 4]>, TableError> {
        // What comes from nowhere never came before.
        self.commit_from(priorities, version, None).map(Option::unwrap_or_default)
    }

    /// As [`Insertion::commit`], of operations that come again until they are acknowledged; `None`, and nothing is
    /// inserted, when the first is in the table.
    ///
    /// # Errors
    ///
    /// As [`Insertion::commit`], and [`TableError::Stale`].
    pub fn commit_from(
        mut self,
        priorities: &[f64],
        version: Option<u64>,
        origin: Option<&Origin>,
    ) -> Result<Option<SmallVec<[Key; 4]>>, TableError> {
        check_priorities(priorities)?;
        let (keys, values) = (self.len(), priorities.len());
        if keys != values {
            return Err(TableError::Lengths { keys, values });
        }
        let mut deferred = DeferredDrops::new();
        let mut keys = SmallVec::new();
        let mut kept = Ok(());
        if let Some(mut writer) = self.writer.take() {
            // While no thread waits for the lock.
            let of_session = origin.is_some();
            let record =
                self.room.is_some().then(|| EffectLog::rows(of_session, &mut writer, priorities));
            let core = &mut *self.table.lock();
            if core.gate.generation != self.generation {
                // A checkpoint was loaded meanwhile, and what was inserted before is gone.
                return Ok(Some(keys));
            }
            let known = core.has(origin);
            if known != Ok(false) {
                // Given back when it is dropped.
                self.writer = Some(writer);
                return known.map(|_| None);
            }
            if core.gate.closed && record.is_some() {
                core.unreserve(writer.len());
                return Err(TableError::Closed);
            }
            for (row, priority) in writer.publish().into_iter().zip(priorities) {
                keys.push(core.insert_row(row, *priority, version, &mut deferred));
            }
            let sent = origin.map(|origin| (origin, keys.len()));
            match (record, self.table.effects()) {
                (Some(record), Some(log)) => {
                    if !log.push_traced(core, record, self.room.as_mut(), sent) {
                        kept = Err(log.log.refusal().into());
                    }
                }
                _ => core.take_note(sent),
            }
        }
        if let Some(log) = self.table.log() {
            log.journal().nudge();
        }
        kept.map(|()| Some(keys))
    }
}

impl Drop for Insertion {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            let core = &mut *self.table.lock();
            if core.gate.generation == self.generation {
                core.unreserve(writer.len());
            }
        }
    }
}
