//! The changes that a rollout table writes to its journal while it runs, and its checkpoints.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use echoic_memory::signal::Signal;
use echoic_memory::sync::{Mutex, MutexGuard};

use super::super::ledger::{Change, ChangeError, Outcome};
use super::super::table::CallError;
use super::entry::{self, Came};
use super::sections::{self, Saved};
use super::{Durability, DurableOptions};
use crate::Error;
use crate::checkpoint::{Writer, retain};
use crate::durable::Log;
use crate::files::Lock;
use crate::journal::{Journal, Record, Torn};

/// Checkpoints that are kept: without a history those before the last are of no use, as what came after them is
/// gone; with one they are short cuts to the past.
const CHECKPOINTS: usize = 1;
const CHECKPOINTS_OF_HISTORY: usize = 8;

/// See the [module](self).
#[derive(Debug)]
pub(in crate::rollouts) struct ChangeLog {
    pub(in crate::rollouts) log: Log,
    checkpoints: PathBuf,
    pub(super) durable: DurableOptions,
    /// What was dropped at the end of the journal, as it was no whole record.
    dropped: Option<Torn>,
    /// Held while a checkpoint is written.
    writing: Mutex<()>,
    /// The right to change files; `None` once the table is closed.
    lock: Mutex<Option<Lock>>,
}

impl ChangeLog {
    pub(super) fn new(
        journal: Journal,
        checkpoints: PathBuf,
        durable: DurableOptions,
        dropped: Option<Torn>,
        lock: Lock,
        producers: &Arc<Signal>,
    ) -> Self {
        let (writing, lock) = (Mutex::default(), Mutex::new(Some(lock)));
        let log = Log::new(journal, vec![Arc::clone(producers)]);
        Self { log, checkpoints, durable, dropped, writing, lock }
    }

    pub(in crate::rollouts) fn dropped(&self) -> Option<&Torn> {
        self.dropped.as_ref()
    }

    /// Puts together what is to be written of a change, before it is known what comes of it, and before the table's
    /// lock is taken.
    pub(in crate::rollouts) fn prepare(&self, change: &Change) -> Result<Record, CallError> {
        let journal = self.log.journal();
        journal.check()?;
        // Before there is memory for all of it: a blob may be there many times.
        let bulk = change.bulk().map(<[u8]>::len).fold(entry::TAIL_BYTES, usize::saturating_add);
        let record = journal.check_record(bulk).and_then(|()| {
            let record = entry::change(change);
            journal.check_record(record.len() + entry::TAIL_BYTES)?;
            Ok(record)
        });
        record.map_err(|error| {
            let advice = match change {
                Change::Append(_) => "; bring the tokens of an item in several parts",
                _ => "",
            };
            CallError::Journal(format!("{error}{advice}"))
        })
    }

    /// Writes a change that has been made, under the table's lock; whether it was taken. One that the table has made
    /// itself was not [prepared](ChangeLog::prepare).
    pub(in crate::rollouts) fn push(
        &self,
        change: &Change,
        prepared: Option<Record>,
        applied: &Result<Outcome, ChangeError>,
        now: u64,
    ) -> bool {
        let mut record = prepared.unwrap_or_else(|| entry::change(change));
        entry::finish(&mut record, Came::of(applied), now);
        self.log.push(record, None)
    }

    /// Whether calls return before their changes are durable.
    pub(in crate::rollouts) fn is_hasty(&self) -> bool {
        self.durable.durability == Durability::None
    }

    /// One checkpoint at a time.
    pub(in crate::rollouts) fn begin_checkpoint(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// Writes a checkpoint, and lets go of what it makes superfluous; where it is.
    pub(in crate::rollouts) fn checkpoint(&self, saved: &Saved) -> Result<PathBuf, Error> {
        // Without these records the checkpoint would be ahead of the journal after a failure of the machine, and
        // what comes later would have their numbers.
        self.log.journal().sync(None)?;
        let mut writer = Writer::begin(&self.checkpoints)?;
        sections::write(&mut writer, 0, saved)?;
        let summary = writer.commit()?;
        if !self.durable.history {
            self.log.journal().truncate_before(saved.next)?;
        }
        let keep = if self.durable.history { CHECKPOINTS_OF_HISTORY } else { CHECKPOINTS };
        retain(&self.checkpoints, keep)?;
        Ok(summary.path)
    }

    /// Writes what it has, and lets others have the directory.
    pub(in crate::rollouts) fn close(&self) -> Result<(), Error> {
        let closed = self.log.journal().close();
        drop(self.lock.lock().take());
        closed
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        match error {
            Error::Closed(_) => Self::Closed,
            error => Self::Journal(error.to_string()),
        }
    }
}

/// Where the parts of a directory are.
pub(super) fn journal_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}

/// See [`journal_dir`].
pub(super) fn checkpoints_dir(dir: &Path) -> PathBuf {
    dir.join("checkpoints")
}
