//! What changed in a chunk since another version of it, where that is less than the chunk.
//!
//! Two forms, of which the smaller is taken. *Sparse*: the elements that changed, each behind the number of those before it
//! that did not. *Xor*: the exclusive or of both versions, all first bytes of its elements, then all second ones, and so
//! on, compressed; steps of an optimiser change the low bits of most numbers, so the other planes are zeros.
//!
//! # Invariants
//!
//! 1. A part of a chunk is tried before all of it, and after chunks that did not become smaller by half, ever more go
//!    untried: weights that do not compress cost next to nothing.
//! 2. Reading takes no memory but for the length of a chunk that is known already, and never panics.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::plan::Plan;
use super::publication::{Content, Publication};

/// Level of zstd.
const LEVEL: i32 = 1;
/// Chunks with fewer bytes are not worth it.
const LEAST: usize = 1 << 10;
/// Parts of a chunk that are tried, and bytes of each.
const PARTS: usize = 4;
const PART: usize = 4 << 10;
/// A form is used that leaves at most this share of a chunk.
const WORTH: f64 = 0.5;
/// Where the sparse form leaves at most this share, the other is not tried.
const SMALL: f64 = 0.125;
/// The most chunks that go untried, as a power of two.
const MOST_UNTRIED: u32 = 6;
/// Bytes of each buffer that a thread keeps.
const KEPT: usize = 1 << 20;

/// How the bytes of a chunk are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkForm {
    /// As they are.
    Whole,
    /// The elements that changed.
    Sparse,
    /// The bits that changed, compressed.
    Xor,
}

/// Earlier publications of a store, as far as they are still in memory.
#[derive(Debug, Default)]
pub struct Bases(pub(super) Vec<Weak<Publication>>);

impl Bases {
    /// The one whose chunk at this place has this sum.
    pub fn find(&self, index: usize, sum: u64) -> Option<Arc<Publication>> {
        self.0.iter().rev().filter_map(Weak::upgrade).find(|publication| {
            publication.content().is_some_and(|content| content.sum(index) == Some(sum))
        })
    }
}

/// Writes chunks of a publication for a receiver that has other versions of them.
#[derive(Debug, Default)]
pub struct DeltaWriter {
    bases: Bases,
    /// How many chunks go untried, and how many trials failed in a row.
    untried: u32,
    failed: u32,
}

impl DeltaWriter {
    /// Of what is to be sent, where these are the versions that receivers may have.
    pub fn new(bases: Bases) -> Self {
        Self { bases, untried: 0, failed: 0 }
    }

    /// Appends a chunk for a receiver whose chunk has the sum `base`, if that makes it smaller by half. What would have to
    /// be compressed is, if the link `is_slow`: over others they go sooner as they are.
    pub fn write(
        &mut self,
        content: &Content,
        index: usize,
        base: u64,
        is_slow: bool,
        out: &mut Vec<u8>,
    ) -> ChunkForm {
        if self.untried > 0 {
            self.untried -= 1;
            return ChunkForm::Whole;
        }
        let base = self.bases.find(index, base);
        let old = base.as_ref().and_then(|base| base.content()?.chunk(index));
        let form = match old.zip(content.chunk(index)) {
            Some((old, new)) if old.len() == new.len() && new.len() >= LEAST => {
                encode(old, new, width(content.plan(), index), is_slow, out)
            }
            _ => ChunkForm::Whole,
        };
        self.failed = if form == ChunkForm::Whole { self.failed + 1 } else { 0 };
        self.untried = (1 << self.failed.min(MOST_UNTRIED)) - 1;
        form
    }
}

/// Bytes of an element of most of a chunk.
fn width(plan: &Plan, index: usize) -> usize {
    let Some(range) = plan.chunk(index) else { return 1 };
    let middle = range.start + range.len() / 2;
    let leaf = plan.offsets().partition_point(|start| *start <= middle).saturating_sub(1);
    match plan.spec().leaves().get(leaf).map_or(1, |leaf| leaf.dtype.itemsize()) {
        width @ (1 | 2 | 4 | 8) if range.len() % width == 0 => width,
        16 if range.len() % 8 == 0 => 8,
        _ => 1,
    }
}

#[derive(Default)]
struct Scratch {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    planes: Vec<u8>,
    packed: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Appends the smaller form of what changed.
fn encode(old: &[u8], new: &[u8], width: usize, compresses: bool, out: &mut Vec<u8>) -> ChunkForm {
    let parts: (Vec<u8>, Vec<u8>) = (parts(old), parts(new));
    let all = parts.0.len() as f64;
    let sparse = (changed(&parts.0, &parts.1, width) * (width + 1)) as f64 / all;
    let xor = match compresses && sparse > SMALL {
        false => 1.0,
        true => with_xor(&parts.0, &parts.1, width, |packed| packed.len() as f64 / all),
    };
    let (start, most) = (out.len(), (new.len() as f64 * WORTH) as usize);
    let (form, done) = if sparse.min(xor) > WORTH {
        return ChunkForm::Whole;
    } else if sparse <= xor {
        (ChunkForm::Sparse, write_sparse(old, new, width, most, out))
    } else {
        out.push(width as u8);
        let done = with_xor(old, new, width, |packed| {
            let fits = packed.len() < most;
            out.extend_from_slice(if fits { packed } else { &[] });
            f64::from(u8::from(fits))
        });
        (ChunkForm::Xor, done == 1.0)
    };
    if done {
        return form;
    }
    out.truncate(start);
    ChunkForm::Whole
}

/// Some parts of a chunk, one behind the other; all of a small one.
fn parts(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() <= PARTS * PART {
        return bytes.to_vec();
    }
    let step = (bytes.len() - PART) / (PARTS - 1) / 64 * 64;
    let mut parts = Vec::with_capacity(PARTS * PART);
    (0..PARTS).for_each(|at| parts.extend_from_slice(&bytes[at * step..][..PART]));
    parts
}

/// How many elements differ.
fn changed(old: &[u8], new: &[u8], width: usize) -> usize {
    fn count<const W: usize>(old: &[u8], new: &[u8]) -> usize {
        let (old, new) = (old.as_chunks::<W>().0, new.as_chunks::<W>().0);
        old.iter().zip(new).map(|(old, new)| usize::from(old != new)).sum()
    }
    match width {
        2 => count::<2>(old, new),
        4 => count::<4>(old, new),
        8 => count::<8>(old, new),
        _ => count::<1>(old, new),
    }
}

/// Appends the elements that changed; `false` when they would have more than `most` bytes.
fn write_sparse(old: &[u8], new: &[u8], width: usize, most: usize, out: &mut Vec<u8>) -> bool {
    let end = out.len() + most;
    out.push(width as u8);
    let mut gap = 0_usize;
    for (old, new) in old.chunks_exact(width).zip(new.chunks_exact(width)) {
        if old == new {
            gap += 1;
            continue;
        }
        while gap >= 0x80 {
            out.push(gap as u8 | 0x80);
            gap >>= 7;
        }
        out.push(gap as u8);
        out.extend_from_slice(new);
        gap = 0;
        if out.len() > end {
            return false;
        }
    }
    true
}

/// Calls `then` with the compressed planes of what changed.
fn with_xor(old: &[u8], new: &[u8], width: usize, then: impl FnOnce(&[u8]) -> f64) -> f64 {
    fn split<const W: usize>(old: &[u8], new: &[u8], planes: &mut [u8]) {
        let (old, new) = (old.as_chunks::<W>().0, new.as_chunks::<W>().0);
        for (byte, plane) in planes.chunks_exact_mut(old.len().max(1)).enumerate() {
            for ((old, new), place) in old.iter().zip(new).zip(plane) {
                *place = old[byte % W] ^ new[byte % W];
            }
        }
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { zstd, planes, packed, .. } = scratch;
        planes.resize(new.len(), 0);
        match width {
            2 => split::<2>(old, new, planes),
            4 => split::<4>(old, new, planes),
            8 => split::<8>(old, new, planes),
            _ => split::<1>(old, new, planes),
        }
        packed.resize(zstd::zstd_safe::compress_bound(planes.len()), 0);
        if zstd.is_none() {
            *zstd = zstd::bulk::Compressor::new(LEVEL).ok();
        }
        let len = zstd.as_mut().and_then(|zstd| zstd.compress_to_buffer(planes, packed).ok());
        // As large as it was, if it can't be done.
        let share = len.map_or(1.0, |len| then(&packed[..len]));
        scratch.forget();
        share
    })
}

/// Makes a chunk of an older one and what changed since; whether that was well formed. What `to` has before does not
/// matter, and nothing is said about it if it was not.
pub(super) fn apply(form: ChunkForm, delta: &[u8], old: &[u8], to: &mut [u8]) -> bool {
    let Some((width, delta)) = delta.split_first() else { return false };
    let width = usize::from(*width);
    if !matches!(width, 1 | 2 | 4 | 8) || old.len() != to.len() || !to.len().is_multiple_of(width) {
        return false;
    }
    match form {
        ChunkForm::Whole => false,
        ChunkForm::Sparse => apply_sparse(delta, width, old, to),
        ChunkForm::Xor => apply_xor(delta, width, old, to),
    }
}

fn apply_sparse(mut delta: &[u8], width: usize, old: &[u8], to: &mut [u8]) -> bool {
    to.copy_from_slice(old);
    let mut rest = to;
    while !delta.is_empty() {
        let (mut gap, mut shift) = (0_usize, 0);
        loop {
            let Some((byte, left)) = delta.split_first() else { return false };
            delta = left;
            gap |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift > 28 {
                return false;
            }
        }
        let place =
            gap.checked_mul(width).and_then(|gap| rest.get_mut(gap..)?.split_at_mut_checked(width));
        let (Some((place, after)), Some((value, left))) = (place, delta.split_at_checked(width))
        else {
            return false;
        };
        place.copy_from_slice(value);
        (rest, delta) = (after, left);
    }
    true
}

fn apply_xor(packed: &[u8], width: usize, old: &[u8], to: &mut [u8]) -> bool {
    fn join<const W: usize>(old: &[u8], planes: &[u8], to: &mut [u8]) {
        let (old, to) = (old.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
        for (byte, plane) in planes.chunks_exact(old.len().max(1)).enumerate() {
            for ((old, bits), to) in old.iter().zip(plane).zip(&mut *to) {
                to[byte % W] = old[byte % W] ^ bits;
            }
        }
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { unzstd, planes, .. } = scratch;
        planes.resize(to.len(), 0);
        if unzstd.is_none() {
            *unzstd = zstd::bulk::Decompressor::new().ok();
        }
        let unpacked =
            unzstd.as_mut().and_then(|unzstd| unzstd.decompress_to_buffer(packed, planes).ok());
        let is_whole = unpacked == Some(to.len());
        if is_whole {
            match width {
                2 => join::<2>(old, planes, to),
                4 => join::<4>(old, planes, to),
                8 => join::<8>(old, planes, to),
                _ => join::<1>(old, planes, to),
            }
        }
        scratch.forget();
        is_whole
    })
}

impl Scratch {
    /// Frees buffers that are too large to keep.
    fn forget(&mut self) {
        for buffer in [&mut self.planes, &mut self.packed] {
            if buffer.capacity() > KEPT {
                *buffer = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers that look random, each with its place.
    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mix = |at: u64| (at ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        (0..len as u64).map(|at| (mix(mix(at)) >> 17) as u8).collect()
    }

    fn there_and_back(old: &[u8], new: &[u8], width: usize) -> (ChunkForm, usize) {
        let mut delta = vec![9];
        let form = encode(old, new, width, true, &mut delta);
        let len = delta.len() - 1;
        if form == ChunkForm::Whole {
            assert_eq!(len, 0);
        } else {
            let mut got = noise(new.len(), 5);
            assert!(apply(form, &delta[1..], old, &mut got));
            assert!(got == new && len <= new.len() / 2 + 16);
        }
        (form, len)
    }

    #[test]
    fn the_form_is_the_one_that_is_smaller() {
        let old = noise(256 << 10, 1);
        for width in [1, 2, 4, 8] {
            let mut scattered = old.clone();
            scattered.iter_mut().step_by(100 * width).for_each(|byte| *byte ^= 0x55);
            let (form, len) = there_and_back(&old, &scattered, width);
            assert_eq!(form, ChunkForm::Sparse);
            assert_eq!(len, 1 + old.len().div_ceil(100 * width) * (1 + width));
            let mut low_bits = old.clone();
            low_bits.iter_mut().step_by(width).for_each(|byte| *byte ^= *byte >> 7);
            let (form, len) = there_and_back(&old, &low_bits, width);
            assert!(form == ChunkForm::Xor && len < old.len() / 4, "{form:?} {len}");
            let idle = encode(&old, &low_bits, width, false, &mut Vec::new());
            assert_ne!(idle, ChunkForm::Xor, "over a fast link");
            assert_eq!(there_and_back(&old, &noise(256 << 10, 2), width).0, ChunkForm::Whole);
        }
        // The parts that are tried are as before, and the rest is not.
        let mut rest = noise(256 << 10, 2);
        rest[..100].copy_from_slice(&old[..100]);
        assert_eq!(there_and_back(&old, &rest, 4).0, ChunkForm::Whole);
    }

    proptest! {
        #[test]
        fn what_changed_comes_back_whatever_it_is(
            width in prop::sample::select(vec![1_usize, 2, 4, 8]),
            len in 1..5000_usize,
            changes in prop::collection::vec((0..40_000_usize, 0..=255_u8), 0..200),
        ) {
            let old = noise(len * width, 3);
            let mut new = old.clone();
            for (at, value) in changes {
                let at = at % new.len();
                new[at] = value;
            }
            there_and_back(&old, &new, width);
        }

        #[test]
        fn no_bytes_make_it_panic(
            delta in prop::collection::vec(0..=255_u8, 0..100),
            xor in prop::bool::ANY,
            width in 0..9_u8,
        ) {
            let form = if xor { ChunkForm::Xor } else { ChunkForm::Sparse };
            let delta = [&[width][..], &delta].concat();
            apply(form, &delta, &[7; 64], &mut [0; 64]);
            apply(form, &delta, &[], &mut []);
        }
    }
}
