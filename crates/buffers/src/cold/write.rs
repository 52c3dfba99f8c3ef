//! Appending records.

use std::io::IoSlice;
use std::sync::atomic::Ordering;

use super::file::ColdFile;
use crate::error::Error;

/// How many long rows are written at once: each is two pieces, and a call takes 1024.
const MOST_ROWS: usize = 512;
/// How many bytes of short rows are written at once.
const STAGED_BYTES: u64 = 1 << 20;
/// Rows in slots of up to this many bytes are put behind each other first: the system takes longer for two
/// pieces than a copy of so few bytes takes.
const SHORT_SLOT: u64 = 4096;
/// How many bytes are written at once, unless one record has more: what a reader may have to be waited for.
const MOST_BYTES: u64 = 16 << 20;

impl ColdFile {
    /// Appends rows at the next positions, in the place of the oldest ones when there is no other.
    ///
    /// Other threads may read meanwhile; the threads that append wait for each other.
    ///
    /// # Errors
    ///
    /// When a row has the wrong size, or the disk refuses: then the rows of which [`ColdFile::end`] says
    /// so were appended, and the others can be appended again.
    pub fn append<'a>(&self, rows: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        let mut writing = self.open_writing()?;
        let mut rows = rows.peekable();
        let mut chunk = Vec::new();
        while rows.peek().is_some() {
            let end = self.end();
            let slot = self.header.slot(end);
            // A call writes one stretch of the file.
            let to_wrap = usize::try_from(self.header.slots - slot).unwrap_or(usize::MAX);
            let most = if self.is_short() {
                (STAGED_BYTES / self.header.slot_bytes) as usize
            } else {
                ((MOST_BYTES / self.header.slot_bytes) as usize).clamp(1, MOST_ROWS)
            };
            chunk.clear();
            chunk.extend(rows.by_ref().take(most.min(to_wrap)));
            self.write_rows(&chunk, end, slot, &mut writing.staged)?;
            self.end.store(end + chunk.len() as u64, Ordering::Release);
        }
        Ok(())
    }

    fn is_short(&self) -> bool {
        self.header.slot_bytes <= SHORT_SLOT
    }

    fn write_rows(
        &self,
        rows: &[&[u8]],
        end: u64,
        slot: u64,
        staged: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let header = &self.header;
        let expected = header.row_bytes;
        if let Some(row) = rows.iter().find(|row| row.len() != expected) {
            return Err(Error::row_bytes(expected, row.len()));
        }
        self.readers.raise((end + rows.len() as u64).saturating_sub(header.slots));
        let offset = header.offset(slot);
        let tail_bytes = header.tail_bytes();
        staged.clear();
        if self.is_short() {
            for (position, row) in (end..).zip(rows) {
                header.stage(row, position, staged);
            }
            return self.write_pieces(&mut [IoSlice::new(staged)], offset);
        }
        staged.resize(rows.len() * tail_bytes, 0);
        let mut pieces = Vec::with_capacity(2 * rows.len());
        for ((position, row), tail) in (end..).zip(rows).zip(staged.chunks_exact_mut(tail_bytes)) {
            let trailer = header.trailer(row, position);
            tail.iter_mut().zip(trailer).for_each(|(to, from)| *to = from);
            pieces.push(IoSlice::new(row));
            pieces.push(IoSlice::new(tail));
        }
        self.write_pieces(&mut pieces, offset)
    }

    fn write_pieces(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> Result<(), Error> {
        let (mut left, mut offset) = (pieces, offset);
        while !left.is_empty() {
            match rustix::io::pwritev(self.file.file(), left, offset) {
                Ok(0) => {
                    let source = std::io::Error::from(std::io::ErrorKind::WriteZero);
                    return Err(Error::io("write", self.path(), source));
                }
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(source) => return Err(Error::io("write", self.path(), source)),
            }
        }
        Ok(())
    }
}
