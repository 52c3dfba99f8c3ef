//! Differences between consecutive steps, in an order that compresses.
//!
//! Each element is replaced by its difference from the same element of the step before; the first
//! step is kept, as the difference from zero. Integers are subtracted, wrapping, and the sign is
//! moved to the lowest bit, so that small steps down have high bytes of zero as small steps up
//! have. For floats, and whatever is not a number, the difference is the exclusive or of the bits:
//! close numbers share sign, exponent and the first digits. Then all lowest bytes are stored, all
//! second ones, and so on: high bytes are nearly always zero, low ones are noise, and together they
//! would hide that.

use crate::spec::Dtype;

/// What differences are taken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elements {
    /// Bytes of one: 1, 2, 4 or 8.
    width: usize,
    /// Whether it is subtracted; otherwise its bits are compared.
    is_integer: bool,
}

impl Elements {
    pub(super) fn of(dtype: Dtype) -> Self {
        let (width, is_integer) = match dtype {
            Dtype::Int(width) | Dtype::UInt(width) => (usize::from(width), true),
            Dtype::Float(width) => (usize::from(width), false),
            // Its two parts are alike in size only.
            Dtype::Complex(width) => (usize::from(width) / 2, false),
            Dtype::BFloat16 => (2, false),
            Dtype::Bool | Dtype::Bytes(_) => (1, false),
        };
        Self { width, is_integer }
    }

    /// Bytes of one.
    pub(super) fn width(self) -> usize {
        self.width
    }

    /// Writes the differences of `raw`, whose steps have `step` bytes, to `planes`, which is as
    /// long.
    pub(super) fn split(self, step: usize, raw: &[u8], planes: &mut [u8]) {
        match (self.width, self.is_integer) {
            (1, true) => split::<1, Integer>(step, raw, planes),
            (2, true) => split::<2, Integer>(step, raw, planes),
            (4, true) => split::<4, Integer>(step, raw, planes),
            (8, true) => split::<8, Integer>(step, raw, planes),
            (2, false) => split::<2, Bits>(step, raw, planes),
            (4, false) => split::<4, Bits>(step, raw, planes),
            (8, false) => split::<8, Bits>(step, raw, planes),
            _ => split::<1, Bits>(step, raw, planes),
        }
    }

    /// The reverse for the first steps, as many as fit in `raw`.
    pub(super) fn join(self, step: usize, planes: &[u8], raw: &mut [u8]) {
        match (self.width, self.is_integer) {
            (1, true) => join::<1, Integer>(step, planes, raw),
            (2, true) => join::<2, Integer>(step, planes, raw),
            (4, true) => join::<4, Integer>(step, planes, raw),
            (8, true) => join::<8, Integer>(step, planes, raw),
            (2, false) => join::<2, Bits>(step, planes, raw),
            (4, false) => join::<4, Bits>(step, planes, raw),
            (8, false) => join::<8, Bits>(step, planes, raw),
            _ => join::<1, Bits>(step, planes, raw),
        }
    }
}

/// A difference of words of `W` bytes and its reverse.
trait Difference<const W: usize> {
    fn split(value: [u8; W], before: [u8; W]) -> [u8; W];
    fn join(difference: [u8; W], before: [u8; W]) -> [u8; W];
}

struct Bits;
struct Integer;

impl<const W: usize> Difference<W> for Bits {
    #[inline(always)]
    fn split(value: [u8; W], before: [u8; W]) -> [u8; W] {
        std::array::from_fn(|byte| value[byte] ^ before[byte])
    }

    #[inline(always)]
    fn join(difference: [u8; W], before: [u8; W]) -> [u8; W] {
        <Self as Difference<W>>::split(difference, before)
    }
}

macro_rules! integer {
    ($($width:literal: $word:ty, $signed:ty;)*) => {$(
        impl Difference<$width> for Integer {
            #[inline(always)]
            fn split(value: [u8; $width], before: [u8; $width]) -> [u8; $width] {
                let apart = <$word>::from_le_bytes(value).wrapping_sub(<$word>::from_le_bytes(before));
                ((apart << 1) ^ (apart as $signed >> (<$word>::BITS - 1)) as $word).to_le_bytes()
            }

            #[inline(always)]
            fn join(difference: [u8; $width], before: [u8; $width]) -> [u8; $width] {
                let folded = <$word>::from_le_bytes(difference);
                let apart = (folded >> 1) ^ (folded & 1).wrapping_neg();
                apart.wrapping_add(<$word>::from_le_bytes(before)).to_le_bytes()
            }
        }
    )*};
}
integer! { 1: u8, i8; 2: u16, i16; 4: u32, i32; 8: u64, i64; }

fn split<const W: usize, D: Difference<W>>(step: usize, raw: &[u8], planes: &mut [u8]) {
    let count = raw.len() / W;
    let zeros = vec![0; step.min(raw.len())];
    let before = |start: usize| if start == 0 { &zeros[..] } else { &raw[start - step..start] };
    for (row, values) in raw.chunks_exact(step).enumerate() {
        let (values, _) = values.as_chunks::<W>();
        let (before, _) = before(row * step).as_chunks::<W>();
        let at = row * values.len();
        for byte in 0..W {
            let plane = &mut planes[byte * count + at..][..values.len()];
            for ((to, value), before) in plane.iter_mut().zip(values).zip(before) {
                *to = D::split(*value, *before)[byte];
            }
        }
    }
}

fn join<const W: usize, D: Difference<W>>(step: usize, planes: &[u8], raw: &mut [u8]) {
    let count = planes.len() / W;
    let row = step / W;
    let difference = |at: usize| std::array::from_fn(|byte| planes[byte * count + at]);
    if row == 1 {
        // One element a step, as rewards are: the loop below would be all overhead.
        let mut before = [0; W];
        for (at, value) in raw.as_chunks_mut::<W>().0.iter_mut().enumerate() {
            before = D::join(difference(at), before);
            *value = before;
        }
        return;
    }
    let first = raw.get_mut(..step).unwrap_or_default();
    for (at, value) in first.as_chunks_mut::<W>().0.iter_mut().enumerate() {
        *value = D::join(difference(at), [0; W]);
    }
    for start in (step..raw.len()).step_by(step) {
        let (before, values) = raw.split_at_mut(start);
        let (before, _) = before[start - step..].as_chunks::<W>();
        let (values, _) = values[..step].as_chunks_mut::<W>();
        let at = start / W;
        let planes: [&[u8]; W] = std::array::from_fn(|byte| &planes[byte * count + at..][..row]);
        for (at, (value, before)) in values.iter_mut().zip(before).enumerate() {
            *value = D::join(std::array::from_fn(|byte| planes[byte][at]), *before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes(dtype: Dtype, step: usize, raw: &[u8]) -> Vec<u8> {
        let mut planes = vec![0; raw.len()];
        Elements::of(dtype).split(step, raw, &mut planes);
        planes
    }

    #[test]
    fn a_ramp_becomes_equal_small_numbers_with_high_bytes_apart() {
        let up: Vec<u8> = [1000u32, 1003, 1006].into_iter().flat_map(u32::to_le_bytes).collect();
        let down: Vec<u8> = [0i16, -1, -3].into_iter().flat_map(i16::to_le_bytes).collect();
        // 1000 moved up by the sign's bit is 0x7d0.
        assert_eq!(planes(Dtype::UInt(4), 4, &up), [0xd0, 6, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(planes(Dtype::Int(2), 2, &down), [0, 1, 3, 0, 0, 0]);
    }

    #[test]
    fn floats_that_stay_become_zeros() {
        let raw: Vec<u8> =
            [1.5f32, -2.5, 1.5, -2.5].into_iter().flat_map(f32::to_le_bytes).collect();
        let split = planes(Dtype::Float(4), 8, &raw);
        assert!(split.chunks(4).all(|plane| plane[2..] == [0, 0]), "{split:?}");
    }
}
