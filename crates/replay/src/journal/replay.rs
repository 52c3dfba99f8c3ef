//! The records of a journal that was opened.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::recovery::{Segment, inspect};
use super::segment::{self, HEAD_BYTES, Scan, Step};
use crate::Error;
use crate::files::{Dir, Lock};

/// What stands behind the last whole record. A crash in the middle of a write leaves it, and then no record
/// that was kept was in it. If the file was damaged, or the machine failed before it was made durable, some
/// may have been.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Torn {
    /// Where it began, in the last segment.
    pub offset: u64,
    /// How long it was.
    pub bytes: u64,
    /// The number of the record that was not whole.
    pub sequence: u64,
    /// Why it is no record.
    pub what: String,
}

impl Torn {
    /// How many records that were kept can have been in it.
    pub fn most_records(&self) -> u64 {
        (self.bytes / HEAD_BYTES as u64).max(1)
    }
}

/// The records that a journal had when it was opened, from the first that is needed. All were read and
/// checked before; they are read again one by one, so that they need not fit into memory.
#[derive(Debug)]
pub struct Replay {
    dir: Arc<Dir>,
    left: VecDeque<Segment>,
    scan: Option<Scan<File>>,
    from: u64,
    end: u64,
    torn: Option<Torn>,
    /// Of a journal that is only read: no process may write to it meanwhile.
    _held: Option<Lock>,
}

impl Replay {
    /// The records of a journal that no process has open, without a change to its files: from the one with this
    /// number on, or all that there are.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], [`Error::Foreign`], [`Error::Format`], [`Error::Damaged`], [`Error::File`], or
    /// [`Error::Unfit`] when a segment is missing.
    pub fn open(dir: impl AsRef<Path>, from: Option<u64>) -> Result<Self, Error> {
        let (replay, held) = inspect(dir.as_ref(), from)?;
        Ok(Self { _held: Some(held), ..replay })
    }

    pub(super) fn new(
        dir: Arc<Dir>,
        segments: Vec<Segment>,
        from: u64,
        end: u64,
        torn: Option<Torn>,
    ) -> Self {
        Self { dir, left: segments.into(), scan: None, from, end, torn, _held: None }
    }

    /// The number of the first record, if there is one.
    pub fn first(&self) -> u64 {
        self.from
    }

    /// The number behind the last record.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What a crash cut off, if it did.
    pub fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
    }

    /// The number of the next record, and the record.
    ///
    /// # Errors
    ///
    /// [`Error::File`], or [`Error::Damaged`] when a file has changed since the journal was opened.
    pub fn next_record(&mut self) -> Result<Option<(u64, &[u8])>, Error> {
        loop {
            let Some(mut scan) = self.scan.take() else {
                let Some(segment) = self.left.pop_front() else { return Ok(None) };
                let name = segment::name(segment.first);
                let (file, _) = self.dir.file(&name)?;
                let path = self.dir.at(&name);
                self.scan = Some(Scan::begin(file, path, segment.len, segment.first)?);
                continue;
            };
            let sequence = scan.next();
            match scan.step()? {
                Step::End => {}
                Step::Torn(what) => {
                    return Err(scan.damaged(what));
                }
                Step::Record if sequence < self.from => self.scan = Some(scan),
                Step::Record => {
                    let scan = self.scan.insert(scan);
                    return Ok(Some((sequence, scan.payload())));
                }
            }
        }
    }
}
