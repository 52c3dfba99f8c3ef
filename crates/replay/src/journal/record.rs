//! Records that are put together before they are appended, so that appending under a lock is quick.

use std::sync::Arc;

use crc32c::crc32c_append;

use super::queue::{Frame, Queue};
use super::segment::{HEAD_BYTES, Unnumbered};

/// A record to be [pushed](super::Journal::push), to which parts are added.
///
/// ```
/// use echoic_replay::journal::{Journal, Options, Record};
///
/// # let dir = std::env::temp_dir().join(format!("echoic-doc-record-{}", std::process::id()));
/// let (journal, _) = Journal::open(&dir, Options::default())?;
/// let mut record = Record::with_capacity(20);
/// record.put(b"much that takes time");
/// record.digest();
/// let mut room = journal.try_room(record.len() + 4)?.expect("the queue is empty");
/// // Here a lock would be taken.
/// record.put(&7_u32.to_le_bytes());
/// assert!(journal.push(record, Some(&mut room)));
/// // And given back.
/// journal.nudge();
/// journal.wait(0, None)?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Record {
    /// Room for the head, and the bytes.
    pub(super) frame: Frame,
    crc: u32,
    /// Bytes of the frame that `crc` covers, and the head.
    digested: usize,
}

impl Record {
    /// An empty record that will have this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut frame = Vec::with_capacity(HEAD_BYTES.saturating_add(bytes));
        frame.resize(HEAD_BYTES, 0);
        Self { frame, crc: 0, digested: HEAD_BYTES }
    }

    /// Bytes it has.
    pub fn len(&self) -> usize {
        self.frame.len().saturating_sub(HEAD_BYTES)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.frame.extend_from_slice(bytes);
    }

    /// Has others add bytes.
    pub fn put_with(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.frame.len();
        put(&mut self.frame);
        debug_assert!(self.frame.len() >= before, "bytes are only added");
    }

    /// Takes the checksum of what is there, so that it need not be taken later.
    pub fn digest(&mut self) {
        let fresh = self.frame.get(self.digested..).unwrap_or_default();
        self.crc = crc32c_append(self.crc, fresh);
        self.digested = self.frame.len();
    }

    pub(super) fn seal(mut self) -> (Frame, Unnumbered) {
        self.digest();
        let head = Unnumbered::with_crc(self.len(), self.crc);
        (self.frame, head)
    }
}

/// Room in a journal's queue, given back when dropped.
#[derive(Debug)]
pub struct Room {
    pub(super) queue: Arc<Queue>,
    pub(super) bytes: usize,
}

impl Room {
    /// Uses up to `bytes` of it; how many.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let taken = self.bytes.min(bytes);
        self.bytes -= taken;
        taken
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.queue.give_room(self.bytes);
        }
    }
}
