//! Where each blob of a checkpoint is.
//!
//! The index is a stream of blocks like a section, of 40 bytes for each blob, in the order of the ids:
//! id: u128, pack: u32 (its position in the manifest), crc32c of the bytes: u32, offset in the pack: u64,
//! length: u64.

use std::io::Read;
use std::path::Path;

use super::blocks::HEADER_BYTES;
use super::manifest::{BlobsEntry, FileEntry};
use super::pack::{HEAD_BYTES, MAX_BLOB};
use super::section::SectionReader;
use crate::Error;

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
        let mut bytes = [0; ENTRY_BYTES];
        for number in 0..entry.count {
            let bad = |what, expected: &str, got: String| {
                let offset = number.saturating_mul(ENTRY_BYTES as u64);
                Error::damaged(path, offset, what, expected, got)
            };
            reader.read_exact(&mut bytes).map_err(|error| match error.downcast() {
                Ok(error) => error,
                Err(error) => bad("an entry", "40 bytes", error.to_string()),
            })?;
            let (id, location) = parse(&bytes);
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
        let behind = reader.next_bytes()?.len();
        for (what, expected, got) in [
            ("the bytes behind the last entry", 0, behind as u64),
            ("the bytes of all blobs", entry.data_bytes, data_bytes),
        ] {
            if expected != got {
                return Err(Error::damaged(path, 0, what, expected, got));
            }
        }
        Ok(Self(entries))
    }
}

fn parse(bytes: &[u8; ENTRY_BYTES]) -> (u128, Location) {
    let [low, high, pack_and_crc, offset, len] = {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        std::array::from_fn(|_| words.next().unwrap_or_default())
    };
    let (pack, crc) = (pack_and_crc as u32, (pack_and_crc >> 32) as u32);
    (u128::from(high) << 64 | u128::from(low), Location { pack, crc, offset, len })
}
