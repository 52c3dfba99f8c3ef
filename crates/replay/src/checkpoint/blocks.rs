//! A stream of bytes in a file, in blocks with a checksum each.
//!
//! ```text
//! header   magic: 8 bytes, version: u32, crc32c of these 12: u32
//! block    length: u32, checksum: u32, that many bytes; as often as needed
//! end      length: u32 of 0, checksum: u32
//! ```
//!
//! Numbers are little-endian. A checksum is the CRC-32C of a block's bytes, then of its number in the
//! file (u64, from 0) and of its length (u32): blocks that changed places are found, and so is an end
//! that comes too early. The checksum of a file, which the manifest has, is that of its header and of the
//! heads of its blocks: they have the checksums of all other bytes, so no byte is summed twice.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crc32c::{crc32c, crc32c_append};

use super::manifest::{Checksum, FileEntry, SectionEntry, VERSION};
use crate::Error;
use crate::files::{FileError, Output};

/// Bytes of a file's header.
pub(super) const HEADER_BYTES: usize = 16;
/// Bytes of the longest block.
pub(super) const MAX_BLOCK: usize = 256 << 10;
const BLOCK_HEAD: usize = 8;

/// The header of a file of a kind.
pub(super) fn header(magic: &[u8; 8]) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let (head, checksum) = bytes.split_at_mut(12);
    let (kind, version) = head.split_at_mut(8);
    kind.copy_from_slice(magic);
    version.copy_from_slice(&VERSION.to_le_bytes());
    checksum.copy_from_slice(&crc32c(head).to_le_bytes());
    bytes
}

/// Compares a header with the one that a file of this kind must have. The manifest's version says what
/// to read, so that there is only one.
pub(super) fn check_header(
    magic: &[u8; 8],
    found: &[u8; HEADER_BYTES],
    path: &Path,
) -> Result<(), Error> {
    let expected = header(magic);
    if *found == expected {
        return Ok(());
    }
    let show = |bytes: &[u8; HEADER_BYTES]| bytes.escape_ascii().to_string();
    Err(Error::damaged(path, 0, "the header", show(&expected), show(found)))
}

/// The checksum of a block whose bytes have this one.
fn checksum(data: u32, number: u64, len: u32) -> u32 {
    crc32c_append(crc32c_append(data, &number.to_le_bytes()), &len.to_le_bytes())
}

/// A file being written, and its checksum.
#[derive(Debug)]
pub(super) struct Summed {
    pub(super) output: Output,
    crc: u32,
}

impl Summed {
    /// Begins a file with its header.
    pub(super) fn begin(mut output: Output, magic: &[u8; 8]) -> Result<Self, Error> {
        let header = header(magic);
        output.write(&header)?;
        Ok(Self { output, crc: crc32c(&header) })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.output.write(bytes)?;
        Ok(self.output.begin_sync()?)
    }

    /// Takes a head, written now or later, into the checksum of the file.
    pub(super) fn sum(&mut self, head: &[u8]) {
        self.crc = crc32c_append(self.crc, head);
    }

    /// Makes it durable: its entry in the manifest, under this name.
    pub(super) fn finish(mut self, file: String) -> Result<FileEntry, Error> {
        self.output.sync()?;
        Ok(FileEntry { file, bytes: self.output.len(), crc32c: Checksum(self.crc) })
    }
}

/// Writes a stream.
#[derive(Debug)]
pub(super) struct BlockWriter {
    file: Summed,
    /// Room for the head of a block, and its bytes so far.
    block: Vec<u8>,
    number: u64,
    data_bytes: u64,
}

impl BlockWriter {
    pub(super) fn begin(output: Output, magic: &[u8; 8]) -> Result<Self, Error> {
        let file = Summed::begin(output, magic)?;
        let mut block = Vec::with_capacity(BLOCK_HEAD + MAX_BLOCK);
        block.resize(BLOCK_HEAD, 0);
        Ok(Self { file, block, number: 0, data_bytes: 0 })
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.data_bytes += bytes.len() as u64;
        // What makes a block full is written from where it lies.
        let room = |block: &Vec<u8>| (BLOCK_HEAD + MAX_BLOCK).saturating_sub(block.len());
        while let Some((now, later)) = bytes.split_at_checked(room(&self.block)) {
            self.flush(now)?;
            bytes = later;
        }
        self.block.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes a block of the bytes so far and of the `rest`, also an empty one.
    fn flush(&mut self, rest: &[u8]) -> Result<(), Error> {
        let (head, data) = self.block.split_at_mut(BLOCK_HEAD);
        let len = u32::try_from(data.len() + rest.len()).unwrap_or(u32::MAX);
        let crc = checksum(crc32c_append(crc32c(data), rest), self.number, len);
        let (len_bytes, crc_bytes) = head.split_at_mut(4);
        len_bytes.copy_from_slice(&len.to_le_bytes());
        crc_bytes.copy_from_slice(&crc.to_le_bytes());
        self.file.sum(head);
        self.file.write(&self.block)?;
        if !rest.is_empty() {
            self.file.write(rest)?;
        }
        self.block.truncate(BLOCK_HEAD);
        self.number += 1;
        Ok(())
    }

    /// Ends the stream of this name, durably, in a file of that one: its entry in the manifest.
    pub(super) fn finish(mut self, name: String, file: String) -> Result<SectionEntry, Error> {
        if self.block.len() > BLOCK_HEAD {
            self.flush(&[])?;
        }
        self.flush(&[])?;
        Ok(SectionEntry { name, data_bytes: self.data_bytes, file: self.file.finish(file)? })
    }
}

/// Reads a stream block by block.
#[derive(Debug)]
pub(super) struct BlockReader {
    file: File,
    path: PathBuf,
    offset: u64,
    crc: u32,
    number: u64,
    block: Vec<u8>,
    data_bytes: u64,
}

impl BlockReader {
    pub(super) fn begin(file: File, path: PathBuf, magic: &[u8; 8]) -> Result<Self, Error> {
        let mut reader =
            Self { file, path, offset: 0, crc: 0, number: 0, block: Vec::new(), data_bytes: 0 };
        let found = reader.array::<HEADER_BYTES>()?;
        check_header(magic, &found, &reader.path)?;
        Ok(reader)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        read_exact(&mut self.file, &mut bytes, &self.path, self.offset)?;
        self.offset += N as u64;
        self.crc = crc32c_append(self.crc, &bytes);
        Ok(bytes)
    }

    /// Reads the next block, whose checksum is right: into `room` if it is as long at least, else into a
    /// block of its own. How much of `room` it took, and whether it was the end, which is empty.
    pub(super) fn next_block(&mut self, room: &mut [u8]) -> Result<(usize, bool), Error> {
        let start = self.offset;
        let [len, expected] = [self.array::<4>()?, self.array::<4>()?].map(u32::from_le_bytes);
        let len = len as usize;
        if len > MAX_BLOCK {
            let limit = format!("at most {MAX_BLOCK}");
            return Err(Error::damaged(&self.path, start, "the length of a block", limit, len));
        }
        self.block.clear();
        let (bytes, taken) = match room.get_mut(..len) {
            Some(room) => (room, len),
            None => {
                self.block.resize(len, 0);
                (&mut self.block[..], 0)
            }
        };
        read_exact(&mut self.file, bytes, &self.path, self.offset)?;
        self.offset += len as u64;
        let got = checksum(crc32c(bytes), self.number, len as u32);
        if got != expected {
            return Err(Error::checksum(
                &self.path,
                start,
                "the checksum of a block",
                expected,
                got,
            ));
        }
        self.number += 1;
        self.data_bytes += len as u64;
        Ok((taken, len == 0))
    }

    /// The block that [`BlockReader::next_block`] read last, if there was no room for it.
    pub(super) fn block(&self) -> &[u8] {
        &self.block
    }

    /// Bytes of the file read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// After the end: compares what was read with what the manifest says.
    pub(super) fn check_end(&self, data_bytes: u64, bytes: u64, crc: u32) -> Result<(), Error> {
        if self.offset != bytes {
            return Err(Error::damaged(&self.path, self.offset, "the end", bytes, self.offset));
        }
        if self.data_bytes != data_bytes {
            let (expected, got) = (data_bytes, self.data_bytes);
            return Err(Error::damaged(&self.path, 0, "the length of the data", expected, got));
        }
        if self.crc != crc {
            return Err(Error::checksum(&self.path, 0, "the checksum of the file", crc, self.crc));
        }
        Ok(())
    }
}

/// Fills `bytes`. An end before that is damage at `offset`.
pub(super) fn read_exact(
    file: &mut impl Read,
    bytes: &mut [u8],
    path: &Path,
    offset: u64,
) -> Result<(), Error> {
    file.read_exact(bytes).map_err(|source| match source.kind() {
        ErrorKind::UnexpectedEof => {
            let expected = format!("{} more bytes", bytes.len());
            Error::damaged(path, offset, "the rest", expected, "less: the file ends")
        }
        _ => FileError::new("read", path, source).into(),
    })
}
