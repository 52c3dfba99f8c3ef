//! Packs: files of blobs, written once and referred to by many checkpoints.
//!
//! ```text
//! header   as in a section, with a magic of its own
//! blob     id: u128, length: u64, crc32c of the bytes: u32, crc32c of these 28: u32, the bytes
//! ```
//!
//! The checksum of the file is that of its header and of the heads of its blobs.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crc32c::{crc32c, crc32c_append};

use super::blocks::{HEADER_BYTES, Summed, check_header, read_exact};
use super::index::Location;
use super::manifest::FileEntry;
use crate::Error;
use crate::files::{FileError, Output};

/// The first bytes of a pack.
pub(super) const MAGIC: [u8; 8] = *b"EchoPack";
/// Bytes before each blob.
pub(super) const HEAD_BYTES: u64 = 32;
/// Bytes of the longest blob.
pub(super) const MAX_BLOB: u64 = 1 << 30;

/// What stands before a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: u128,
    pub(super) len: u64,
    pub(super) crc: u32,
}

impl Head {
    pub(super) fn of(id: u128, blob: &[u8]) -> Self {
        Self { id, len: blob.len() as u64, crc: crc32c(blob) }
    }

    fn write(self) -> [u8; HEAD_BYTES as usize] {
        let mut bytes = [0; HEAD_BYTES as usize];
        let (fields, own) = bytes.split_at_mut(28);
        let (id, rest) = fields.split_at_mut(16);
        let (len, crc) = rest.split_at_mut(8);
        id.copy_from_slice(&self.id.to_le_bytes());
        len.copy_from_slice(&self.len.to_le_bytes());
        crc.copy_from_slice(&self.crc.to_le_bytes());
        own.copy_from_slice(&crc32c(fields).to_le_bytes());
        bytes
    }

    /// `None` when its own checksum is wrong.
    fn read(bytes: &[u8; HEAD_BYTES as usize]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (crc, _) = rest.split_first_chunk()?;
        let head = Self {
            id: u128::from_le_bytes(*id),
            len: u64::from_le_bytes(*len),
            crc: u32::from_le_bytes(*crc),
        };
        (head.write() == *bytes).then_some(head)
    }

    fn show(&self) -> String {
        format!("blob {:032x} of {} bytes with checksum {:08x}", self.id, self.len, self.crc)
    }
}

/// Writes one pack.
#[derive(Debug)]
pub(super) struct PackWriter {
    file: Summed,
    name: String,
    /// Small blobs that are written together: a system call for each would take longer than all the rest.
    waiting: Vec<u8>,
}

impl PackWriter {
    pub(super) fn begin(output: Output, name: String) -> Result<Self, Error> {
        Ok(Self { file: Summed::begin(output, &MAGIC)?, name, waiting: Vec::new() })
    }

    pub(super) fn len(&self) -> u64 {
        self.file.output.len().saturating_add(self.waiting.len() as u64)
    }

    /// Where the blob is in this pack, from its head on.
    pub(super) fn write(&mut self, head: Head, blob: &[u8]) -> Result<u64, Error> {
        let offset = self.len();
        let head = head.write();
        self.file.sum(&head);
        self.waiting.extend_from_slice(&head);
        if blob.len() < PIECE {
            self.waiting.extend_from_slice(blob);
        }
        if self.waiting.len() >= PIECE || blob.len() >= PIECE {
            self.flush()?;
        }
        if blob.len() >= PIECE {
            self.file.write(blob)?;
        }
        Ok(offset)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.write(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<FileEntry, Error> {
        self.flush()?;
        self.file.finish(self.name)
    }
}

fn check_head(
    found: &[u8; HEAD_BYTES as usize],
    expected: Head,
    path: &Path,
    offset: u64,
) -> Result<(), Error> {
    match Head::read(found) {
        Some(head) if head == expected => Ok(()),
        head => {
            let got = head.map_or_else(|| "no head of a blob".into(), |head| head.show());
            Err(Error::damaged(path, offset, "the head", expected.show(), got))
        }
    }
}

/// A pack from which blobs are read.
#[derive(Debug)]
pub(super) struct PackReader {
    file: File,
    path: PathBuf,
    /// Bytes of the file, from `start` on: small blobs that follow each other are read together.
    piece: Vec<u8>,
    start: u64,
    /// Where the blob ends that was read last.
    next: u64,
}

/// Bytes that are read or written at once when blobs are small and follow each other.
const PIECE: usize = 256 << 10;

impl PackReader {
    pub(super) fn new(file: File, path: PathBuf) -> Self {
        Self { file, path, piece: Vec::new(), start: 0, next: 0 }
    }

    /// Replaces `blob` by a blob whose place is known to be within the file. It is empty after an error.
    pub(super) fn read(
        &mut self,
        id: u128,
        at: &Location,
        blob: &mut Vec<u8>,
    ) -> Result<(), Error> {
        blob.clear();
        let mut head = [0; HEAD_BYTES as usize];
        let read = self.fetch(at, &mut head, blob);
        let path = &self.path;
        let checked =
            read.map_err(|source| FileError::new("read", path, source).into()).and_then(|()| {
                check_head(&head, Head { id, len: at.len, crc: at.crc }, path, at.offset)?;
                let got = crc32c(blob);
                if got == at.crc {
                    return Ok(());
                }
                let start = at.offset.saturating_add(HEAD_BYTES);
                Err(Error::checksum(path, start, "the checksum of a blob", at.crc, got))
            });
        if checked.is_err() {
            blob.clear();
        }
        checked
    }

    fn fetch(
        &mut self,
        at: &Location,
        head: &mut [u8; HEAD_BYTES as usize],
        blob: &mut Vec<u8>,
    ) -> io::Result<()> {
        let follows = at.offset == self.next;
        self.next = at.offset.saturating_add(at.stored());
        // The length was compared with the file's.
        let stored = usize::try_from(at.stored()).unwrap_or(usize::MAX);
        if stored > PIECE {
            blob.resize(stored.saturating_sub(head.len()), 0);
            self.file.read_exact_at(head, at.offset)?;
            return self.file.read_exact_at(blob, at.offset.saturating_add(HEAD_BYTES));
        }
        if self.piece_at(at.offset, stored).is_none() {
            self.read_piece(at.offset, stored, if follows { PIECE } else { stored })?;
        }
        let bytes = self.piece_at(at.offset, stored).and_then(|bytes| bytes.split_first_chunk());
        let (found, bytes) = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        *head = *found;
        blob.extend_from_slice(bytes);
        Ok(())
    }

    fn piece_at(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let begin = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.piece.get(begin..begin.checked_add(bytes)?)
    }

    /// Reads at least `least` bytes, and up to `most` if the file has them.
    fn read_piece(&mut self, offset: u64, least: usize, most: usize) -> io::Result<()> {
        let mut piece = std::mem::take(&mut self.piece);
        piece.resize(most, 0);
        let mut end = 0;
        while end < least {
            let room = piece.get_mut(end..).unwrap_or_default();
            match self.file.read_at(room, offset.saturating_add(end as u64)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => end = end.saturating_add(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        piece.truncate(end);
        (self.piece, self.start) = (piece, offset);
        Ok(())
    }
}

/// Reads a whole pack and compares all of it: the blobs that a checkpoint has in it, in the order of
/// their offsets, and the checksum of the file. Others may be between these.
pub(super) fn verify(
    file: &mut impl Read,
    path: &Path,
    entry: &FileEntry,
    blobs: &[(u128, Location)],
    progress: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut header = [0; HEADER_BYTES];
    read_exact(file, &mut header, path, 0)?;
    check_header(&MAGIC, &header, path)?;
    let (mut offset, mut crc) = (HEADER_BYTES as u64, crc32c(&header));
    let mut piece = vec![0; 64 << 10];
    let mut blobs = blobs.iter().peekable();
    while offset < entry.bytes {
        let mut bytes = [0; HEAD_BYTES as usize];
        read_exact(file, &mut bytes, path, offset)?;
        if let Some((id, at)) = blobs.next_if(|(_, at)| at.offset == offset) {
            check_head(&bytes, Head { id: *id, len: at.len, crc: at.crc }, path, offset)?;
        }
        let Some(head) = Head::read(&bytes) else {
            return Err(Error::damaged(
                path,
                offset,
                "the head",
                "that of a blob",
                "something else",
            ));
        };
        crc = crc32c_append(crc, &bytes);
        offset = offset.saturating_add(HEAD_BYTES);
        let start = offset;
        let (mut left, mut got) = (head.len, 0);
        while left > 0 {
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            let piece = piece.get_mut(..len).unwrap_or_default();
            read_exact(file, piece, path, offset)?;
            got = crc32c_append(got, piece);
            left = left.saturating_sub(len as u64);
            offset = offset.saturating_add(len as u64);
            progress(len as u64)?;
        }
        if got != head.crc {
            return Err(Error::checksum(path, start, "the checksum of a blob", head.crc, got));
        }
        progress(HEAD_BYTES)?;
    }
    if let Some((id, at)) = blobs.next() {
        let expected = Head { id: *id, len: at.len, crc: at.crc }.show();
        return Err(Error::damaged(
            path,
            at.offset,
            "the head",
            expected,
            "inside of another blob",
        ));
    }
    if crc != entry.crc32c.0 {
        return Err(Error::checksum(path, 0, "the checksum of the file", entry.crc32c.0, crc));
    }
    Ok(())
}
