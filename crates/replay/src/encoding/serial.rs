//! A chunk as bytes of a file or a message, with a checksum. All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | format: 1, or 2 of a chunk that knows its episode |
//! | 1 | encoding: 0 raw, 1 lz4, 2 zstd, 3 differences as lz4, 4 differences as zstd |
//! | 1 | kind of dtype: `b` bool, `i` signed, `u` unsigned, `f` float, `B` bfloat16, `c` complex, `S` bytes |
//! | 1 | number of axes, at most 64 |
//! | 4 | bytes of an element |
//! | 4 | number of steps, at least 1 |
//! | 4 | CRC-32C of all other bytes |
//! | 8 | length of the encoded bytes |
//! | 8 | only in format 2: the episode that the steps are from, not 0 |
//! | 8 each | length of each axis |
//! | | the encoded bytes |
//!
//! There is one form of each chunk: what was read is written again byte for byte.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![deny(clippy::arithmetic_side_effects)]

use std::sync::Arc;

use crc32c::{crc32c, crc32c_append};

use super::Encoding;
use crate::chunk::{Chunk, ChunkError, ColumnKind, MAX_AXES};
use crate::codec::{CodecError, Reader};
use crate::episode::Episode;
use crate::spec::Dtype;

const FORMAT: u8 = 1;
const FORMAT_WITH_EPISODE: u8 = 2;

impl Chunk {
    /// Appends its serial form to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (kind, payload) = (self.kind(), self.encoded_bytes());
        let (letter, size) = (kind.dtype.letter(), kind.dtype.itemsize());
        let format = if self.episode().is_some() { FORMAT_WITH_EPISODE } else { FORMAT };
        let episode = self.episode().map(Episode::number);
        let axes = kind.shape.iter().map(|axis| *axis as u64);
        let numbers: Vec<u8> = episode.into_iter().chain(axes).flat_map(u64::to_le_bytes).collect();
        let mut head = Vec::with_capacity(12);
        // A chunk has at most `MAX_AXES`, and numbers that fit.
        head.extend([format, code(self.encoding()), letter, kind.shape.len() as u8]);
        head.extend((size as u32).to_le_bytes());
        head.extend(self.len().to_le_bytes());
        let length = (payload.len() as u64).to_le_bytes();
        let sum = checksum(&head, &length, &numbers, payload);
        for part in [&head[..], &sum.to_le_bytes(), &length, &numbers, payload] {
            out.extend_from_slice(part);
        }
    }

    /// Reads a chunk from the start of `bytes`, and says how many of them it took. Everything is
    /// checked: the numbers before memory is taken, the checksum, and that the encoded bytes can be
    /// decoded.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), ChunkError> {
        Self::read_as(bytes, Arc::new)
    }

    /// About how many bytes [`Chunk::read`] has to copy and decode. Nothing is checked: what is invalid is found
    /// soon.
    pub fn read_cost(bytes: &[u8]) -> usize {
        let Some([format, encoding, _, axes, s0, s1, s2, s3, l0, l1, l2, l3]) = bytes.first_chunk()
        else {
            return 0;
        };
        if decode(*encoding).is_none_or(|encoding| encoding == Encoding::Raw) {
            return bytes.len();
        }
        let size = u64::from(u32::from_le_bytes([*s0, *s1, *s2, *s3]));
        let len = u64::from(u32::from_le_bytes([*l0, *l1, *l2, *l3]));
        // Behind the head: checksum and length, and the episode if there is one.
        let start = if *format == FORMAT_WITH_EPISODE { 32 } else { 24 };
        let shape = bytes.get(start..).unwrap_or_default().as_chunks().0.iter();
        let axes = shape.take((*axes).into()).map(|axis| u64::from_le_bytes(*axis));
        let values = axes.fold(size.saturating_mul(len), u64::saturating_mul);
        usize::try_from(values).unwrap_or(usize::MAX).saturating_add(bytes.len())
    }

    /// As [`Chunk::read`]; `share` may give a kind that it has already, so that chunks share one.
    /// It is called only for chunks whose checksum is right.
    pub fn read_as(
        bytes: &[u8],
        share: impl FnOnce(ColumnKind) -> Arc<ColumnKind>,
    ) -> Result<(Self, usize), ChunkError> {
        let mut reader = Reader::new(bytes);
        let head: [u8; 12] = reader.array("head")?;
        let [format, encoding, letter, axes, s0, s1, s2, s3, l0, l1, l2, l3] = head;
        let meaningless = |field, got| CodecError::Meaningless { field, got };
        let has_episode = match format {
            FORMAT => false,
            FORMAT_WITH_EPISODE => true,
            _ => return Err(meaningless("format", format.into()).into()),
        };
        let encoding = decode(encoding).ok_or_else(|| meaningless("encoding", encoding.into()))?;
        let size = u32::from_le_bytes([s0, s1, s2, s3]);
        let dtype = Dtype::of(letter, size)?;
        if usize::from(axes) > MAX_AXES {
            return Err(ChunkError::Axes { got: axes.into() });
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let got = reader.u32("checksum")?;
        // Everything behind the checksum lies together.
        let behind = reader.unread();
        let length = reader.u64("length")?;
        let episode = if has_episode {
            let number = reader.u64("episode")?;
            Some(Episode::from_number(number).ok_or_else(|| meaningless("episode", number))?)
        } else {
            None
        };
        let shape = reader.many("shape", axes.into(), 8, |reader| {
            let axis = reader.u64("axis")?;
            usize::try_from(axis).map_err(|_| meaningless("axis", axis))
        })?;
        let payload = reader.bytes("values", usize::try_from(length).unwrap_or(usize::MAX))?;
        let behind = behind.get(..behind.len().saturating_sub(reader.left())).unwrap_or_default();
        let expected = crc32c_append(crc32c(&head), behind);
        if got != expected {
            return Err(ChunkError::Checksum { expected, got });
        }
        let kind = share(ColumnKind { dtype, shape });
        let chunk = Self::from_encoded(kind, len, encoding, payload.into())?.of_episode(episode);
        Ok((chunk, bytes.len().saturating_sub(reader.left())))
    }
}

fn checksum(head: &[u8], length: &[u8], numbers: &[u8], payload: &[u8]) -> u32 {
    [length, numbers, payload].into_iter().fold(crc32c(head), crc32c_append)
}

fn code(encoding: Encoding) -> u8 {
    match encoding {
        Encoding::Raw => 0,
        Encoding::Lz4 => 1,
        Encoding::Zstd => 2,
        Encoding::DeltaLz4 => 3,
        Encoding::DeltaZstd => 4,
    }
}

fn decode(byte: u8) -> Option<Encoding> {
    Encoding::ALL.into_iter().find(|encoding| code(*encoding) == byte)
}
