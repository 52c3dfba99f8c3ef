//! The compressors, with the buffers that each thread keeps for them.

use std::cell::RefCell;
use std::io;

use lz4_flex::block::get_maximum_output_size;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};

use super::Encoding;
use super::delta::Elements;
use crate::chunk::ColumnKind;

/// Level of zstd. Higher ones cost several times as much and gain a few percent.
const LEVEL: i32 = 1;

/// Bytes of each buffer that a thread keeps between calls; larger ones are freed after use.
const KEPT: usize = 4 << 20;

/// What a thread keeps, so that nothing is allocated for each chunk.
#[derive(Default)]
struct Codec {
    lz4: CompressTable,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    /// Differences.
    planes: Vec<u8>,
    /// Steps of which only some are wanted, or compressed bytes whose number is not known before.
    other: Vec<u8>,
}

thread_local! {
    static CODEC: RefCell<Codec> = RefCell::default();
}

/// `raw`, not empty, in this form, if the compressor takes it.
pub(crate) fn pack(encoding: Encoding, kind: &ColumnKind, raw: &[u8]) -> Option<Box<[u8]>> {
    if encoding == Encoding::Raw {
        return Some(raw.into());
    }
    packed(encoding, Elements::of(kind.dtype), kind.step_bytes()?, raw, |packed| packed.into())
}

/// How many bytes `raw`, steps of `step` bytes, would have in a form.
pub(super) fn size(encoding: Encoding, elements: Elements, step: usize, raw: &[u8]) -> usize {
    packed(encoding, elements, step, raw, <[u8]>::len).unwrap_or(usize::MAX)
}

fn packed<T>(
    encoding: Encoding,
    elements: Elements,
    step: usize,
    raw: &[u8],
    then: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    CODEC.with_borrow_mut(|codec| {
        let Codec { lz4, zstd, planes, other, .. } = codec;
        let source = if encoding.is_delta() {
            let planes = buffer(planes, raw.len());
            elements.split(step, raw, planes);
            planes
        } else {
            raw
        };
        let len = if encoding.is_zstd() {
            let to = buffer(other, zstd::zstd_safe::compress_bound(source.len()));
            if zstd.is_none() {
                *zstd = Some(zstd::bulk::Compressor::new(LEVEL).ok()?);
            }
            zstd.as_mut()?.compress_to_buffer(source, to).ok()?
        } else {
            let to = buffer(other, get_maximum_output_size(source.len()));
            compress_into_with_table(source, to, lz4).ok()?
        };
        let result = then(other.get(..len)?);
        codec.forget();
        Some(result)
    })
}

/// Writes `to`, which starts `start` bytes into the chunk's `len` raw bytes, from their packed
/// form.
///
/// # Errors
///
/// What is wrong with the packed form. It is read to its end, so what was right once stays right.
pub(crate) fn unpack(
    encoding: Encoding,
    kind: &ColumnKind,
    packed: &[u8],
    len: usize,
    start: usize,
    to: &mut [u8],
) -> io::Result<()> {
    CODEC.with_borrow_mut(|codec| {
        let Codec { unzstd, planes, other, .. } = codec;
        let end = start + to.len();
        if encoding.is_delta() {
            let planes = buffer(planes, len);
            decompress(encoding, unzstd, packed, planes)?;
            let (elements, step) = (Elements::of(kind.dtype), kind.step_bytes().unwrap_or(1));
            // Every step builds on the one before; what comes after the wanted ones does not
            // matter.
            let whole = end.next_multiple_of(step);
            if start == 0 && end == whole {
                elements.join(step, planes, to);
            } else {
                let steps = buffer(other, whole);
                elements.join(step, planes, steps);
                to.copy_from_slice(&steps[start..end]);
            }
        } else if to.len() == len {
            decompress(encoding, unzstd, packed, to)?;
        } else {
            let raw = buffer(other, len);
            decompress(encoding, unzstd, packed, raw)?;
            to.copy_from_slice(&raw[start..end]);
        }
        codec.forget();
        Ok(())
    })
}

/// The most bytes that `packed` of them can stand for.
///
/// In lz4 a byte adds at most 255 to the length of a match. In zstd a block is at least 4 bytes for
/// at most 128 KiB.
fn most(encoding: Encoding, packed: usize) -> usize {
    if encoding.is_zstd() {
        (packed / 4).saturating_mul(128 << 10)
    } else {
        packed.saturating_mul(255)
    }
}

/// Whether a packed form is one of `len` bytes. Memory is taken only if it can be.
///
/// # Errors
///
/// What is wrong with it.
pub(crate) fn check(encoding: Encoding, packed: &[u8], len: usize) -> io::Result<()> {
    let most = most(encoding, packed.len());
    if len > most {
        return Err(io::Error::other(format!("at most {most} bytes can come of so few")));
    }
    CODEC.with_borrow_mut(|codec| {
        let Codec { unzstd, other, .. } = codec;
        let result = decompress(encoding, unzstd, packed, buffer(other, len));
        codec.forget();
        result
    })
}

/// Fills `to` to its end.
fn decompress(
    encoding: Encoding,
    unzstd: &mut Option<zstd::bulk::Decompressor<'static>>,
    packed: &[u8],
    to: &mut [u8],
) -> io::Result<()> {
    let got = if encoding.is_zstd() {
        if unzstd.is_none() {
            *unzstd = Some(zstd::bulk::Decompressor::new()?);
        }
        match unzstd {
            Some(unzstd) => unzstd.decompress_to_buffer(packed, to)?,
            None => 0,
        }
    } else {
        decompress_into(packed, to).map_err(io::Error::other)?
    };
    if got != to.len() {
        return Err(io::Error::other(format!("{got} bytes come of it")));
    }
    Ok(())
}

/// The first `len` bytes of a buffer, whatever is in them.
fn buffer(vec: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if vec.len() < len {
        // Zeros of a new allocation cost nothing until they are touched, and the old bytes are
        // garbage.
        let room = if len > KEPT { len } else { len.next_power_of_two() };
        *vec = Vec::new();
        *vec = vec![0; room];
    }
    &mut vec[..len]
}

impl Codec {
    /// Frees buffers that are too large to keep.
    fn forget(&mut self) {
        for buffer in [&mut self.planes, &mut self.other] {
            if buffer.capacity() > KEPT {
                *buffer = Vec::new();
            }
        }
    }
}
