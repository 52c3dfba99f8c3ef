//! A table of this process or of a server, with one interface.
//!
//! A [`TableHandle`] is for writers and programs that need not know where a table is. What begins with `try_` never
//! waits, and says so when it would have to; the same without it waits. A table of this process that keeps no journal
//! waits for its limiter alone.

use std::sync::Arc;

use echoic_replay::limiter::Limiter;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Infos, Insertion, Obstacle, Sampled, Table, TableError};
use echoic_replay::trajectory::Trajectory;

use super::{
    Batch, Numbers, Requests, TableConnection, TableEntry, TableWriter, TablesError, entry,
};

/// So many bytes of rows go to a connection at once.
const BLOCK_BYTES: usize = 1 << 20;

/// A table of this process or of a server.
#[derive(Clone)]
pub struct TableHandle {
    entry: Arc<TableEntry>,
    place: TableLocation,
}

#[derive(Clone)]
enum TableLocation {
    Local(Arc<Table>),
    /// With its number there.
    Remote(Arc<TableConnection>, u32),
}

/// A batch, as its table gives it.
pub enum SampledBatch {
    /// Of this process; to be gathered.
    Local(Sampled),
    /// Of a server.
    Remote(Batch),
}

/// Room for rows.
pub enum RowRoom<'a> {
    /// In a table of this process. Dropped, it is free again.
    Local(Insertion),
    /// On a connection, where nothing is taken before it is used.
    Remote {
        /// The connection.
        writer: &'a TableWriter,
        /// The table's number.
        table: u32,
        /// How many rows it is for.
        rows: usize,
    },
}

impl<'a> RowRoom<'a> {
    /// That for a block of rows.
    fn on(connection: &'a TableConnection, table: u32, most: usize, row_bytes: usize) -> Self {
        let rows = most.min((BLOCK_BYTES / row_bytes.max(1)).max(1));
        Self::Remote { writer: connection.writer(), table, rows }
    }

    /// How many rows it is for.
    #[inline]
    pub fn rows(&self) -> usize {
        match self {
            Self::Local(insertion) => insertion.len(),
            Self::Remote { rows, .. } => *rows,
        }
    }

    /// Inserts a row for each of as many priorities. `fill` writes one or more, one behind the other, from a row on.
    /// `false` when there is no room any more on the connection.
    #[inline]
    pub fn fill(
        self,
        priorities: &[f64],
        version: Option<u64>,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool, TablesError> {
        match self {
            Self::Local(mut insertion) => {
                for row in 0..insertion.len() {
                    fill(row, insertion.row_mut(row));
                }
                insertion.commit(priorities, version)?;
                Ok(true)
            }
            Self::Remote { writer, table, .. } => {
                writer.try_insert_rows(table, priorities, version, |rows| fill(0, rows))
            }
        }
    }
}

impl From<Arc<Table>> for TableHandle {
    fn from(table: Arc<Table>) -> Self {
        Self { entry: Arc::new(TableEntry::from(&*table)), place: TableLocation::Local(table) }
    }
}

impl TableHandle {
    /// The table of a server that has this number.
    ///
    /// # Errors
    ///
    /// [`TablesError`] if the server has no such table.
    pub fn remote(connection: &Arc<TableConnection>, number: u32) -> Result<Self, TablesError> {
        let entry = Arc::new(entry(connection.requests().tables(), number)?.clone());
        Ok(Self { entry, place: TableLocation::Remote(Arc::clone(connection), number) })
    }

    /// What it is.
    pub fn entry(&self) -> &TableEntry {
        &self.entry
    }

    /// The table, if it is of this process.
    #[inline]
    pub fn local(&self) -> Option<&Arc<Table>> {
        match &self.place {
            TableLocation::Local(table) => Some(table),
            TableLocation::Remote(..) => None,
        }
    }

    /// The connection to its server, if it is of one.
    pub fn connection(&self) -> Option<&Arc<TableConnection>> {
        match &self.place {
            TableLocation::Local(_) => None,
            TableLocation::Remote(connection, _) => Some(connection),
        }
    }

    /// The table, if it is of this process and never waits for a disk.
    #[inline]
    pub(super) fn prompt(&self) -> Option<&Arc<Table>> {
        self.local().filter(|table| table.receipt().is_none())
    }

    /// Room for up to `most` rows of this many bytes; `None` while there is no room.
    #[inline]
    pub fn try_room(
        &self,
        most: usize,
        row_bytes: usize,
    ) -> Result<Option<RowRoom<'_>>, TablesError> {
        match &self.place {
            TableLocation::Local(table) => match table.try_reserve(most) {
                Ok(insertion) => Ok(Some(RowRoom::Local(insertion))),
                Err(Obstacle::Blocked(_)) => Ok(None),
                Err(Obstacle::Failed(error)) => Err(error.into()),
            },
            TableLocation::Remote(connection, table) => {
                Ok(Some(RowRoom::on(connection, *table, most, row_bytes)))
            }
        }
    }

    /// As [`TableHandle::try_room`], waiting for some.
    pub fn room(
        &self,
        most: usize,
        row_bytes: usize,
        wait: Wait<'_>,
    ) -> Result<RowRoom<'_>, TablesError> {
        match &self.place {
            TableLocation::Local(table) => Ok(RowRoom::Local(table.reserve(most, wait)?)),
            TableLocation::Remote(connection, table) => {
                let room = RowRoom::on(connection, *table, most, row_bytes);
                let weight = room.rows().saturating_mul(row_bytes + size_of::<f64>());
                connection.writer().wait_for_room(weight, wait)?;
                Ok(room)
            }
        }
    }

    /// Inserts an item; whether it could be done without waiting. A writer has numbered its chunks, with an item alone
    /// there are `None`.
    pub fn try_insert(
        &self,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
        chunks: Option<&[u64]>,
    ) -> Result<bool, TablesError> {
        match (&self.place, chunks) {
            (TableLocation::Local(table), _) => {
                match table.try_insert(trajectory, priority, version) {
                    Ok(_) => Ok(true),
                    Err(Obstacle::Blocked(_)) => Ok(false),
                    Err(Obstacle::Failed(error)) => Err(error.into()),
                }
            }
            (TableLocation::Remote(connection, table), Some(chunks)) => {
                connection.writer().try_item(*table, priority, version, trajectory, chunks)
            }
            (TableLocation::Remote(..), None) => Ok(false),
        }
    }

    /// As [`TableHandle::try_insert`], waiting.
    pub fn insert(
        &self,
        trajectory: &Trajectory,
        priority: f64,
        version: Option<u64>,
        chunks: Option<&[u64]>,
        wait: Wait<'_>,
    ) -> Result<(), TablesError> {
        match (&self.place, chunks) {
            (TableLocation::Local(table), _) => {
                Ok(table.insert(trajectory, priority, version, wait).map(drop)?)
            }
            (TableLocation::Remote(connection, table), Some(chunks)) => {
                connection.writer().item(*table, priority, version, trajectory, chunks, wait)
            }
            (TableLocation::Remote(connection, table), None) => {
                connection.insert(*table, priority, version, trajectory, wait)
            }
        }
    }

    /// Whether there is nothing to [wait](Self::keep) for.
    #[inline]
    pub fn is_durable(&self) -> bool {
        let kept = |table: &Arc<Table>| {
            table.receipt().is_none_or(|receipt| table.is_durable(receipt) == Ok(true))
        };
        self.local().is_none_or(kept)
    }

    /// Waits until what was changed survives what a table of this process promises.
    pub fn keep(&self, wait: Wait<'_>) -> Result<(), TablesError> {
        self.local().map_or(Ok(()), |table| Ok(table.keep(wait)?))
    }

    /// Draws a batch, if that can be done without waiting.
    #[inline]
    pub fn try_sample(&self, count: usize) -> Result<Option<SampledBatch>, TablesError> {
        let Some(table) = self.prompt() else { return Ok(None) };
        match table.try_sample(count) {
            Ok(sampled) => Ok(Some(SampledBatch::Local(sampled))),
            Err(Obstacle::Blocked(_)) => Ok(None),
            Err(Obstacle::Failed(error)) => Err(error.into()),
        }
    }

    /// As [`TableHandle::try_sample`], waiting.
    pub fn sample(&self, count: usize, wait: Wait<'_>) -> Result<SampledBatch, TablesError> {
        self.ask(
            wait,
            |table, wait| Ok(SampledBatch::Local(table.sample(count, wait)?)),
            |requests, table, wait| requests.sample(table, count, wait).map(SampledBatch::Remote),
        )
    }

    /// Reads items that are there, which does not count as sampling.
    pub fn get(&self, keys: &[u64], wait: Wait<'_>) -> Result<SampledBatch, TablesError> {
        self.ask(
            wait,
            |table, _| Ok(SampledBatch::Local(table.get(keys))),
            |requests, table, wait| requests.get(table, keys, wait).map(SampledBatch::Remote),
        )
    }

    /// What is known about up to this many items.
    pub fn items(&self, most: usize, wait: Wait<'_>) -> Result<Infos, TablesError> {
        self.ask(
            wait,
            |table, _| Ok(table.items_from(0, most).0),
            |requests, table, wait| requests.list_all(table, most, wait),
        )
    }

    /// Changes priorities, if that can be done without waiting; how many of the items were there. Of a server, that
    /// is only when the answer is not `awaited`, and not known then.
    pub fn try_update(
        &self,
        keys: &[u64],
        priorities: &[f64],
        awaited: bool,
    ) -> Result<Option<u64>, TablesError> {
        match (&self.place, self.prompt()) {
            (_, Some(table)) => Ok(Some(table.update_priorities(keys, priorities)? as u64)),
            (TableLocation::Remote(connection, table), _) if !awaited => {
                let started = connection.updates.try_start(
                    connection.requests(),
                    *table,
                    keys,
                    priorities,
                )?;
                Ok(started.then_some(0))
            }
            _ => Ok(None),
        }
    }

    /// As [`TableHandle::try_update`], waiting.
    pub fn update(
        &self,
        keys: &[u64],
        priorities: &[f64],
        awaited: bool,
        wait: Wait<'_>,
    ) -> Result<u64, TablesError> {
        match &self.place {
            TableLocation::Remote(connection, table) if !awaited => {
                let requests = connection.requests();
                connection.updates.start(requests, *table, keys, priorities, wait).map(|()| 0)
            }
            _ => self.ask(
                wait,
                |table, wait| {
                    change(table, wait, || Ok(table.update_priorities(keys, priorities)? as u64))
                },
                |requests, table, wait| requests.update_priorities(table, keys, priorities, wait),
            ),
        }
    }

    /// Removes items; how many of them were there.
    pub fn delete(&self, keys: &[u64], wait: Wait<'_>) -> Result<u64, TablesError> {
        self.ask(
            wait,
            |table, wait| change(table, wait, || Ok(table.delete(keys) as u64)),
            |requests, table, wait| requests.delete(table, keys, wait),
        )
    }

    /// Removes all items, and counts from zero.
    pub fn reset(&self, wait: Wait<'_>) -> Result<(), TablesError> {
        self.ask(
            wait,
            |table, wait| {
                change(table, wait, || {
                    table.reset();
                    Ok(())
                })
            },
            |requests, table, wait| requests.reset(table, wait),
        )
    }

    /// Lets nothing be inserted or sampled, or ends that.
    pub fn set_paused(&self, paused: bool, wait: Wait<'_>) -> Result<(), TablesError> {
        match (&self.place, paused) {
            (TableLocation::Local(table), true) => table.pause(),
            (TableLocation::Local(table), false) => table.resume(),
            (TableLocation::Remote(there, table), true) => there.requests().pause(*table, wait)?,
            (TableLocation::Remote(there, table), false) => {
                there.requests().resume(*table, wait)?
            }
        }
        Ok(())
    }

    /// Tells the policy version of the learner. It never falls.
    pub fn advance(&self, version: u64, wait: Wait<'_>) -> Result<(), TablesError> {
        self.ask(
            wait,
            |table, wait| Ok(table.wait_for_room(wait).map(|()| table.advance(version))?),
            |requests, table, wait| requests.advance(table, version, wait),
        )
    }

    /// Replaces the limiter; what was counted so far still counts.
    pub fn set_limiter(&self, limiter: Limiter, wait: Wait<'_>) -> Result<(), TablesError> {
        self.ask(
            wait,
            |table, _| Ok(table.set_limiter(limiter)?),
            |requests, table, wait| requests.set_limiter(table, *limiter.parameters(), wait),
        )
    }

    /// Whether a batch could be sampled now. One that never can is an error: a caller that polls would wait
    /// for it.
    pub fn can_sample(&self, count: usize, wait: Wait<'_>) -> Result<bool, TablesError> {
        self.ask(
            wait,
            |table, _| Ok(table.can_sample(count) || table.check_batch(count).map(|()| false)?),
            |requests, table, wait| requests.can_sample(table, count, wait),
        )
    }

    /// Whether this many items could be inserted now.
    pub fn can_insert(&self, count: usize, wait: Wait<'_>) -> Result<bool, TablesError> {
        self.ask(
            wait,
            |table, _| Ok(table.can_insert(count)),
            |requests, table, wait| requests.can_insert(table, count, wait),
        )
    }

    /// Its numbers.
    pub fn numbers(&self, wait: Wait<'_>) -> Result<Numbers, TablesError> {
        self.ask(wait, |table, _| Ok(Numbers::of(table, 0)), Requests::table_info)
    }

    /// Does something here or there.
    fn ask<T>(
        &self,
        wait: Wait<'_>,
        here: impl FnOnce(&Arc<Table>, Wait<'_>) -> Result<T, TablesError>,
        there: impl FnOnce(&Requests, u32, Wait<'_>) -> Result<T, TablesError>,
    ) -> Result<T, TablesError> {
        match &self.place {
            TableLocation::Local(table) => here(table, wait),
            TableLocation::Remote(connection, table) => there(connection.requests(), *table, wait),
        }
    }
}

/// Changes a table of this process once its journal has room, and waits until that is kept.
fn change<T>(
    table: &Arc<Table>,
    mut wait: Wait<'_>,
    change: impl FnOnce() -> Result<T, TableError>,
) -> Result<T, TablesError> {
    table.check_journal()?;
    table.wait_for_room(wait.reborrow())?;
    let changed = change()?;
    table.keep(wait)?;
    Ok(changed)
}
