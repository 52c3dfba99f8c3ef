//! Where each blob of a checkpoint is.
//!
//! The index is a stream of blocks like a section, of 40 bytes for each blob, in the order of the ids:
//! id: u128, pack: u32 (its position in the manifest), crc32c of the bytes: u32, offset in the pack: u64,
//! length: u64.

use std::path::Path;

use super::blocks::HEADER_BYTES;
use super::error::Error;
use super::manifest::{BlobsEntry, FileEntry};
use super::pack::{HEAD_BYTES, MAX_BLOB};
use super::section::SectionReader;

/// The first bytes of an index.
pub(super) const MAGIC: [u8; 8] = *b"EchoIndx";
const ENTRY_BYTES: usize = 40;

/// Where a blob is, and what it is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) pack: u32,
    pub(super) crc: u32,
    /// Of its head.
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Location {
    /// Bytes that it takes in its pack.
    pub(super) fn stored(&self) -> u64 {
        self.len.saturating_add(HEAD_BYTES)
    }

    /// For messages.
    pub(super) fn show(&self) -> String {
        format!("{} bytes with checksum {:08x}", self.len, self.crc)
    }
}

/// All blobs of a checkpoint, in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct Index(Vec<(u128, Location)>);

impl Index {
    pub(super) fn new(mut entries: Vec<(u128, Location)>) -> Self {
        entries.sort_unstable_by_key(|(id, _)| *id);
        Self(entries)
    }

    pub(super) fn find(&self, id: u128) -> Option<&Location> {
        let at = self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.0.get(at).map(|(_, location)| location)
    }

    pub(super) fn entries(&self) -> &[(u128, Location)] {
        &self.0
    }

    /// As the stream has it.
    pub(super) fn write(
        &self,
        mut out: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(ENTRY_BYTES);
        for (id, at) in &self.0 {
            bytes.clear();
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&at.pack.to_le_bytes());
            bytes.extend_from_slice(&at.crc.to_le_bytes());
            bytes.extend_from_slice(&at.offset.to_le_bytes());
            bytes.extend_from_slice(&at.len.to_le_bytes());
            out(&bytes)?;
        }
        Ok(())
    }

    /// Reads all of it, and compares it with the manifest: what it says of `packs` is possible.
    pub(super) fn read(
        mut reader: SectionReader,
        path: &Path,
        entry: &BlobsEntry,
        packs: &[FileEntry],
    ) -> Result<Self, Error> {
        // As many as it says, if the file can have them.
        let most = entry.count.min(entry.index.file.bytes / ENTRY_BYTES as u64);
        let mut entries: Vec<(u128, Location)> =
            Vec::with_capacity(usize::try_from(most).unwrap_or(0));
        let mut data_bytes = 0_u64;
        let mut partial = Vec::with_capacity(ENTRY_BYTES);
        loop {
            let mut next = reader.next_bytes()?;
            let len = next.len();
            if len == 0 {
                break;
            }
            while !next.is_empty() {
                let missing = ENTRY_BYTES.saturating_sub(partial.len());
                let (now, later) = next.split_at(missing.min(next.len()));
                next = later;
                // Nearly all are whole in their block.
                let whole = if partial.is_empty() { parse(now) } else { None };
                let (id, location) = match whole {
                    Some(entry) => entry,
                    None => {
                        partial.extend_from_slice(now);
                        let Some(entry) = parse(&partial) else { continue };
                        partial.clear();
                        entry
                    }
                };
                let number = entries.len();
                let bad = |what, expected: &str, got: String| {
                    let offset = (number * ENTRY_BYTES) as u64;
                    Error::damaged(path, offset, what, expected, got)
                };
                if entries.last().is_some_and(|(last, _)| *last >= id) {
                    return Err(bad("an id", "greater than the last", format!("{id:032x}")));
                }
                let pack = packs.get(location.pack as usize);
                let end = location.offset.checked_add(location.stored());
                let fits = pack.zip(end).is_some_and(|(pack, end)| end <= pack.bytes);
                if !fits || location.len > MAX_BLOB || location.offset < HEADER_BYTES as u64 {
                    return Err(bad("a place", "within a pack", format!("{location:?}")));
                }
                data_bytes = data_bytes.saturating_add(location.len);
                entries.push((id, location));
            }
            reader.take_bytes(len);
        }
        if !partial.is_empty() {
            let (offset, got) = ((entries.len() * ENTRY_BYTES) as u64, partial.len());
            return Err(Error::damaged(path, offset, "an entry", ENTRY_BYTES, got));
        }
        for (what, expected, got) in [
            ("the number of blobs", entry.count, entries.len() as u64),
            ("the bytes of all blobs", entry.data_bytes, data_bytes),
        ] {
            if expected != got {
                return Err(Error::damaged(path, 0, what, expected, got));
            }
        }
        Ok(Self(entries))
    }
}

/// An entry, once all its bytes are there.
fn parse(bytes: &[u8]) -> Option<(u128, Location)> {
    let bytes: &[u8; ENTRY_BYTES] = bytes.try_into().ok()?;
    let (id, rest) = bytes.split_first_chunk()?;
    let (pack, rest) = rest.split_first_chunk()?;
    let (crc, rest) = rest.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (len, _) = rest.split_first_chunk()?;
    let location = Location {
        pack: u32::from_le_bytes(*pack),
        crc: u32::from_le_bytes(*crc),
        offset: u64::from_le_bytes(*offset),
        len: u64::from_le_bytes(*len),
    };
    Some((u128::from_le_bytes(*id), location))
}
