//! The journal of a rollout table that is running.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

use echoic_memory::signal::Signal;
use echoic_memory::sync::{Mutex, MutexGuard};

use super::super::ledger::{Change, Outcome, Refusal};
use super::super::table::CallError;
use super::entry::{self, Came};
use super::error::DurableError;
use super::sections::{self, Saved};
use super::{Durability, DurableOptions};
use crate::checkpoint::{Writer, retain};
use crate::files::Lock;
use crate::journal::{self, Error, Journal, Record, Torn};

/// Checkpoints that are kept: without a history those before the last are of no use, as what came after them is
/// gone; with one they are short cuts to the past.
const CHECKPOINTS: usize = 1;
const CHECKPOINTS_OF_HISTORY: usize = 8;

/// What was changed in a table up to a moment; see [`RolloutTable::receipt`](crate::rollouts::RolloutTable::receipt).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt(pub(super) u64);

/// See the [module](self).
#[derive(Debug)]
pub(in crate::rollouts) struct Log {
    journal: Journal,
    checkpoints: PathBuf,
    pub(super) durable: DurableOptions,
    /// What was dropped at the end of the journal, as it was no whole record.
    dropped: Option<Torn>,
    /// Held while a checkpoint is written.
    writing: Mutex<()>,
    /// Whoever has it may change files; none once the table is closed.
    lock: Mutex<Option<Lock>>,
    /// Wakes producers, who wait for room.
    waker: Waker,
}

/// Rings for those who wait for room in a journal.
struct DurableWaker(Arc<Signal>);

impl Wake for DurableWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

impl Log {
    pub(super) fn new(
        journal: Journal,
        checkpoints: PathBuf,
        durable: DurableOptions,
        dropped: Option<Torn>,
        lock: Lock,
        producers: &Arc<Signal>,
    ) -> Self {
        let (writing, lock) = (Mutex::default(), Mutex::new(Some(lock)));
        let waker = Waker::from(Arc::new(DurableWaker(Arc::clone(producers))));
        Self { journal, checkpoints, durable, dropped, writing, lock, waker }
    }

    #[cfg(test)]
    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(in crate::rollouts) fn dropped(&self) -> Option<&Torn> {
        self.dropped.as_ref()
    }

    /// Puts together what is to be written of a change, before it is known what comes of it, and before the table's
    /// lock is taken.
    pub(in crate::rollouts) fn prepare(&self, change: &Change) -> Result<Record, CallError> {
        self.journal.check().map_err(refusal)?;
        let record = entry::change(change);
        let (got, most) = (record.len() + entry::TAIL_BYTES, self.journal.max_record());
        if got > most {
            let error = Error::TooLarge { limit: most, got };
            let advice = match change {
                Change::Append(_) => "; bring the tokens of an item in several parts",
                _ => "",
            };
            return Err(CallError::Journal(format!("{error}{advice}")));
        }
        Ok(record)
    }

    /// Whether there is room for what one more producer does. If not, producers are woken when there is.
    pub(in crate::rollouts) fn has_room(&self) -> bool {
        // An error is for who writes to be told.
        let has_room = || !matches!(self.journal.try_room(1 << 10), Ok(None));
        if has_room() {
            return true;
        }
        self.journal.wake_on_progress(&self.waker);
        // Room that came before the waker was there is found by one more try.
        has_room()
    }

    /// Writes a change that has been made, under the table's lock; whether it was taken. One that the table has made
    /// itself was not [prepared](Log::prepare).
    pub(in crate::rollouts) fn push(
        &self,
        change: &Change,
        prepared: Option<Record>,
        applied: &Result<Outcome, Refusal>,
        now: u64,
    ) -> bool {
        let mut record = prepared.unwrap_or_else(|| entry::change(change));
        entry::finish(&mut record, Came::of(applied), now);
        self.journal.push(record, None)
    }

    /// Has what was pushed written. Without the table's lock.
    pub(in crate::rollouts) fn nudge(&self) {
        self.journal.nudge();
    }

    /// Whether nothing more is written.
    pub(in crate::rollouts) fn has_failed(&self) -> bool {
        self.journal.check().is_err()
    }

    /// Why nothing more is taken.
    pub(in crate::rollouts) fn refusal(&self) -> CallError {
        self.journal.check().err().map_or(CallError::Closed, refusal)
    }

    pub(in crate::rollouts) fn receipt(&self) -> Receipt {
        Receipt(self.journal.next())
    }

    pub(in crate::rollouts) fn is_kept(&self, receipt: Receipt) -> Result<bool, CallError> {
        if self.journal.kept() >= receipt.0 {
            return Ok(true);
        }
        match self.journal.failure() {
            Some(cause) => Err(refusal(Error::Failed { cause })),
            None => Ok(false),
        }
    }

    /// Waits until all that a receipt stands for is kept; whether it is by the deadline.
    pub(in crate::rollouts) fn wait(
        &self,
        receipt: Receipt,
        deadline: Option<Instant>,
    ) -> Result<bool, CallError> {
        let Some(last) = receipt.0.checked_sub(1) else { return Ok(true) };
        match self.journal.wait(last, deadline) {
            Ok(()) => Ok(true),
            Err(Error::TimedOut { .. }) => Ok(false),
            Err(error) => Err(refusal(error)),
        }
    }

    /// Whether a caller is told before what it did is kept.
    pub(in crate::rollouts) fn is_hasty(&self) -> bool {
        self.durable.durability == Durability::None
    }

    pub(in crate::rollouts) fn wake_on_kept(&self, waker: &Waker) {
        self.journal.wake_on_progress(waker);
    }

    pub(in crate::rollouts) fn info(&self) -> journal::Info {
        self.journal.info()
    }

    /// The number of the next record. Under the table's lock, of the moment.
    pub(in crate::rollouts) fn next(&self) -> u64 {
        self.journal.next()
    }

    /// One checkpoint at a time.
    pub(in crate::rollouts) fn begin_checkpoint(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// Writes a checkpoint, and lets go of what it makes superfluous; where it is.
    pub(in crate::rollouts) fn checkpoint(&self, saved: &Saved) -> Result<PathBuf, DurableError> {
        // Without these records the checkpoint would be ahead of the journal after a failure of the machine, and
        // what comes later would have their numbers.
        self.journal.sync(None)?;
        let mut writer = Writer::begin(&self.checkpoints)?;
        sections::write(&mut writer, 0, saved)?;
        let summary = writer.commit()?;
        if !self.durable.history {
            self.journal.truncate_before(saved.next)?;
        }
        let keep = if self.durable.history { CHECKPOINTS_OF_HISTORY } else { CHECKPOINTS };
        retain(&self.checkpoints, keep)?;
        Ok(summary.path)
    }

    /// Writes what it has, and lets others have the directory.
    pub(in crate::rollouts) fn close(&self) -> Result<(), Error> {
        let closed = self.journal.close();
        drop(self.lock.lock().take());
        closed
    }
}

fn refusal(error: Error) -> CallError {
    match error {
        Error::Closed => CallError::Closed,
        error => CallError::Journal(error.to_string()),
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
