//! The journal of a table that is running: waiters for room, and receipts.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

use echoic_memory::signal::Signal;

use crate::Error;
use crate::journal::{Journal, Record, Room};

/// What was changed in a table up to a moment: ask the table whether that is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt(u64);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Log {
    journal: Journal,
    /// Wakes the threads that wait for room.
    waker: Waker,
}

struct RoomWaker(Vec<Arc<Signal>>);

impl Wake for RoomWaker {
    fn wake(self: Arc<Self>) {
        self.0.iter().for_each(|signal| signal.notify());
    }
}

impl Log {
    /// A log that notifies these signals when there may be room again.
    pub(crate) fn new(journal: Journal, waiters: Vec<Arc<Signal>>) -> Self {
        Self { journal, waker: Waker::from(Arc::new(RoomWaker(waiters))) }
    }

    /// For numbers and for the files.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Room for records of this many bytes. Without any, waiters are notified when there may be some.
    pub(crate) fn try_room(&self, bytes: usize) -> Result<Option<Room>, Error> {
        if let Some(room) = self.journal.try_room(bytes)? {
            return Ok(Some(room));
        }
        self.journal.wake_on_progress(&self.waker);
        // Finds room that came before the waker was registered.
        self.journal.try_room(bytes)
    }

    /// Whether records may come without room of their own. As few wait for the disk, then, as there are callers.
    /// If not, waiters are notified when they may.
    pub(crate) fn has_room(&self) -> bool {
        if self.journal.has_room() {
            return true;
        }
        self.journal.wake_on_progress(&self.waker);
        // As in `try_room`.
        self.journal.has_room()
    }

    /// Writes a record at its place in the order of changes, so the table must be locked. Returns whether the
    /// journal took it.
    pub(crate) fn push(&self, record: Record, room: Option<&mut Room>) -> bool {
        self.journal.push(record, room)
    }

    /// Why a record was not taken.
    pub(crate) fn refusal(&self) -> Error {
        self.journal.check().err().unwrap_or(Error::Closed("journal"))
    }

    pub(crate) fn receipt(&self) -> Receipt {
        Receipt(self.journal.next())
    }

    /// Whether all records before the receipt are kept.
    pub(crate) fn is_durable(&self, receipt: Receipt) -> Result<bool, Error> {
        if self.journal.kept() >= receipt.0 {
            return Ok(true);
        }
        self.journal.failure().map_or(Ok(false), |cause| Err(Error::Failed { cause }))
    }

    /// Waits until all records before the receipt are kept; `false` if they are not by the deadline.
    pub(crate) fn wait(&self, receipt: Receipt, deadline: Option<Instant>) -> Result<bool, Error> {
        let Some(last) = receipt.0.checked_sub(1) else { return Ok(true) };
        match self.journal.wait(last, deadline) {
            Ok(()) => Ok(true),
            Err(Error::TimedOut(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
