//! A section: a stream of bytes under a name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use echoic_memory::sync::Mutex;

use super::blocks::{BlockReader, BlockWriter};
use super::manifest::SectionEntry;
use crate::Error;
use crate::files::Output;

/// The first bytes of a section's file.
pub(super) const MAGIC: [u8; 8] = *b"EchoSect";

/// Sections of one writer: `None` while being written.
pub(super) type Sections = Arc<Mutex<BTreeMap<usize, (String, Option<SectionEntry>)>>>;

/// Writes one section, while others and blobs are written too. [Finish](SectionWriter::finish) it.
#[must_use = "a section that is not finished can't be committed"]
#[derive(Debug)]
pub struct SectionWriter {
    blocks: BlockWriter,
    name: String,
    file: String,
    number: usize,
    sections: Sections,
    failed: bool,
}

impl SectionWriter {
    pub(super) fn begin(
        output: Output,
        name: &str,
        file: String,
        number: usize,
        sections: Sections,
    ) -> Result<Self, Error> {
        let blocks = BlockWriter::begin(output, &MAGIC)?;
        Ok(Self { blocks, name: name.into(), file, number, sections, failed: false })
    }

    /// Makes the section durable, and part of the checkpoint. Returns its bytes.
    ///
    /// # Errors
    ///
    /// [`Error::File`], or [`Error::Unfit`] after a write that went wrong.
    pub fn finish(self) -> Result<u64, Error> {
        if self.failed {
            return Err(ended());
        }
        let entry = self.blocks.finish(self.name.clone(), self.file)?;
        let data_bytes = entry.data_bytes;
        self.sections.lock().insert(self.number, (self.name, Some(entry)));
        Ok(data_bytes)
    }
}

/// Nothing that an earlier error left is used.
pub(super) fn ended() -> Error {
    Error::Unfit("an earlier error ended this work on a checkpoint".into())
}

impl Write for SectionWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            return Err(ended().into());
        }
        if let Err(error) = self.blocks.write(bytes) {
            self.failed = true;
            return Err(error.into());
        }
        Ok(bytes.len())
    }

    /// Does nothing: a block is written when it is full, and the last one by
    /// [`SectionWriter::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads one section. Bytes that it hands out agreed with the checksum of their block; that no block is
/// missing is known when it ends without an error.
#[derive(Debug)]
pub struct SectionReader {
    blocks: BlockReader,
    entry: SectionEntry,
    /// How much of the block was handed out.
    taken: usize,
    progress: Progress,
}

#[derive(Debug, Clone, Copy)]
enum Progress {
    Reading,
    Ended,
    Failed,
}

impl SectionReader {
    pub(super) fn begin(
        file: File,
        path: PathBuf,
        entry: &SectionEntry,
        magic: &[u8; 8],
    ) -> Result<Self, Error> {
        let blocks = BlockReader::begin(file, path, magic)?;
        Ok(Self { blocks, entry: entry.clone(), taken: 0, progress: Progress::Reading })
    }

    /// Bytes of the section.
    pub fn data_bytes(&self) -> u64 {
        self.entry.data_bytes
    }

    /// The next bytes; empty at the end.
    pub fn next_bytes(&mut self) -> Result<&[u8], Error> {
        self.advance(&mut [])?;
        Ok(self.blocks.block().get(self.taken..).unwrap_or_default())
    }

    /// Turns to the next block if all of this one was handed out; how many bytes of it are in `room`.
    fn advance(&mut self, room: &mut [u8]) -> Result<usize, Error> {
        match self.progress {
            Progress::Failed => return Err(ended()),
            Progress::Reading if self.taken >= self.blocks.block().len() => {}
            Progress::Reading | Progress::Ended => return Ok(0),
        }
        // Should anything go wrong, nothing more is handed out.
        self.progress = Progress::Failed;
        self.taken = 0;
        let (taken, is_end) = self.blocks.next_block(room)?;
        self.progress = Progress::Reading;
        if is_end {
            let SectionEntry { data_bytes, file, .. } = &self.entry;
            self.blocks.check_end(*data_bytes, file.bytes, file.crc32c.0)?;
            self.progress = Progress::Ended;
        }
        Ok(taken)
    }

    /// Bytes of the file read so far.
    pub(super) fn offset(&self) -> u64 {
        self.blocks.offset()
    }

    /// Counts bytes of [`SectionReader::next_bytes`] as read.
    pub(super) fn take_bytes(&mut self, len: usize) {
        self.taken = self.taken.saturating_add(len);
    }
}

impl Read for SectionReader {
    /// A block for which there is room is read there: nothing is copied.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.advance(bytes)?;
        if len > 0 {
            return Ok(len);
        }
        let mut next = self.blocks.block().get(self.taken..).unwrap_or_default();
        let len = next.read(bytes)?;
        self.take_bytes(len);
        Ok(len)
    }

    /// Most of what is asked for is a few bytes, all of them in the block that is there.
    #[inline]
    fn read_exact(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        if matches!(self.progress, Progress::Reading)
            && let Some(rest) = self.blocks.block().get(self.taken..)
            && let Some(now) = rest.get(..bytes.len())
        {
            bytes.copy_from_slice(now);
            self.take_bytes(bytes.len());
            return Ok(());
        }
        while !bytes.is_empty() {
            let len = self.read(bytes)?;
            match bytes.get_mut(len..) {
                Some(rest) if len > 0 => bytes = rest,
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(())
    }
}
