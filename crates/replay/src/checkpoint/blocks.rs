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
//! that comes too early.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crc32c::{crc32c, crc32c_append};

use super::error::Error;
use super::manifest::VERSION;
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

fn checksum(data: &[u8], number: u64) -> u32 {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let crc = crc32c_append(crc32c(data), &number.to_le_bytes());
    crc32c_append(crc, &len.to_le_bytes())
}

/// A file being written, and the checksum of all its bytes.
#[derive(Debug)]
pub(super) struct Summed {
    output: Output,
    crc: u32,
}

impl Summed {
    /// Begins a file with its header.
    pub(super) fn begin(output: Output, magic: &[u8; 8]) -> Result<Self, Error> {
        let mut summed = Self { output, crc: 0 };
        summed.write(&header(magic))?;
        Ok(summed)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.output.write(bytes)?;
        self.crc = crc32c_append(self.crc, bytes);
        Ok(())
    }

    pub(super) fn len(&self) -> u64 {
        self.output.len()
    }

    /// Makes it durable: its length and checksum.
    pub(super) fn finish(self) -> Result<(u64, u32), Error> {
        self.output.sync()?;
        Ok((self.output.len(), self.crc))
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
        while !bytes.is_empty() {
            let room = (BLOCK_HEAD + MAX_BLOCK).saturating_sub(self.block.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block.extend_from_slice(now);
            self.data_bytes += now.len() as u64;
            bytes = later;
            if self.block.len() == BLOCK_HEAD + MAX_BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the block so far, also an empty one.
    fn flush(&mut self) -> Result<(), Error> {
        let (head, data) = self.block.split_at_mut(BLOCK_HEAD);
        let (len, crc) = head.split_at_mut(4);
        len.copy_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
        crc.copy_from_slice(&checksum(data, self.number).to_le_bytes());
        self.file.write(&self.block)?;
        self.block.truncate(BLOCK_HEAD);
        self.number += 1;
        Ok(())
    }

    /// Ends the stream, durably: bytes of the stream, bytes of the file, and the file's checksum.
    pub(super) fn finish(mut self) -> Result<(u64, u64, u32), Error> {
        if self.block.len() > BLOCK_HEAD {
            self.flush()?;
        }
        self.flush()?;
        let (bytes, crc) = self.file.finish()?;
        Ok((self.data_bytes, bytes, crc))
    }
}

/// Reads a stream block by block.
#[derive(Debug)]
pub(super) struct BlockReader<R> {
    file: R,
    path: PathBuf,
    offset: u64,
    crc: u32,
    number: u64,
    block: Vec<u8>,
    data_bytes: u64,
}

impl<R: Read> BlockReader<R> {
    pub(super) fn begin(file: R, path: PathBuf, magic: &[u8; 8]) -> Result<Self, Error> {
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

    /// The next block, whose checksum is right. An empty one is the end.
    pub(super) fn next_block(&mut self) -> Result<&[u8], Error> {
        let start = self.offset;
        let [len, expected] = [self.array::<4>()?, self.array::<4>()?].map(u32::from_le_bytes);
        let len = len as usize;
        if len > MAX_BLOCK {
            let limit = format!("at most {MAX_BLOCK}");
            return Err(Error::damaged(&self.path, start, "the length of a block", limit, len));
        }
        self.block.resize(len, 0);
        read_exact(&mut self.file, &mut self.block, &self.path, self.offset)?;
        self.offset += len as u64;
        let got = checksum(&self.block, self.number);
        if got != expected {
            return Err(Error::checksum(
                &self.path,
                start,
                "the checksum of a block",
                expected,
                got,
            ));
        }
        self.crc = crc32c_append(self.crc, &self.block);
        self.number += 1;
        self.data_bytes += len as u64;
        Ok(&self.block)
    }

    /// The block that [`BlockReader::next_block`] returned last.
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
