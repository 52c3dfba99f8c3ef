//! The end of a journal that is written: the last segment, and the list of all of them.

use std::collections::VecDeque;
use std::sync::Arc;

use echoic_memory::sync::Mutex;

use super::queue::Frame;
use super::segment::{self, HEADER_BYTES};
use crate::Error;
use crate::files::{Dir, FileError, Output};

/// Bytes that are collected before a write.
const WRITE_BYTES: usize = 1 << 20;

/// All segments: the number of the first record of each.
pub(super) type Segments = Arc<Mutex<VecDeque<u64>>>;

/// Writes records. Only the journal's thread has it.
#[derive(Debug)]
pub(super) struct Appender {
    dir: Arc<Dir>,
    segments: Segments,
    file: Output,
    /// The first record of that file.
    first: u64,
    segment_bytes: u64,
    /// Collected for one write.
    buffer: Vec<u8>,
    /// All records before were durable when the last mark was written.
    marked: u64,
}

/// Begins a segment: it is there with its whole header, durably, or not at all.
pub(super) fn begin_segment(dir: &Dir, first: u64) -> Result<Output, FileError> {
    let (part, name) = (segment::part_name(first), segment::name(first));
    let mut file = dir.create(&part)?;
    file.write(&segment::header(first))?;
    file.sync()?;
    dir.rename(&part, &name)?;
    dir.sync()?;
    dir.extend(&name, HEADER_BYTES as u64)
}

impl Appender {
    /// Writes on in the segment that begins with record `first`.
    pub(super) fn new(
        dir: Arc<Dir>,
        segments: Segments,
        (first, file): (u64, Output),
        segment_bytes: u64,
    ) -> Self {
        // What was durable when the journal was opened is said before the first record that comes.
        Self { dir, segments, file, first, segment_bytes, buffer: Vec::new(), marked: first }
    }

    /// Says in the log that all records before `durable` are.
    pub(super) fn mark(&mut self, durable: u64) {
        if durable > self.marked {
            self.buffer.extend(segment::mark(durable));
            self.marked = durable;
        }
    }

    /// Writes records, of which the first has the number `first`, and makes them durable if so. What
    /// an error leaves of them is cut off, if that is possible; a reader knows what is not whole.
    pub(super) fn write(&mut self, frames: &[Frame], first: u64, sync: bool) -> Result<(), Error> {
        let before = (self.first, self.file.len());
        let mut written = self.write_all(frames, first);
        if sync && written.is_ok() {
            written = self.file.sync().map_err(Error::from);
        }
        if written.is_err() && self.first == before.0 {
            // The error was reported already.
            let _ = self.file.cut(before.1);
        }
        written
    }

    fn write_all(&mut self, frames: &[Frame], first: u64) -> Result<(), Error> {
        for (sequence, frame) in (first..).zip(frames) {
            let len = self.file.len() + self.buffer.len() as u64;
            if len >= self.segment_bytes && sequence > self.first {
                self.flush()?;
                self.rotate(sequence)?;
            }
            self.buffer.extend_from_slice(frame);
            if self.buffer.len() >= WRITE_BYTES {
                self.flush()?;
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.write(&self.buffer)?;
        self.buffer.clear();
        // One large record must not hold memory for ever.
        self.buffer.shrink_to(2 * WRITE_BYTES);
        Ok(())
    }

    /// Ends the segment, which has to be durable before the next one is there.
    fn rotate(&mut self, first: u64) -> Result<(), Error> {
        self.file.sync()?;
        self.file = begin_segment(&self.dir, first)?;
        self.first = first;
        self.segments.lock().push_back(first);
        Ok(())
    }
}
