//! Sums of functions of two slices, in an order that does not depend on the width of a vector.
//!
//! Numbers are taken in blocks, the last one filled up with zeros; of those of a block, halves are
//! added to each other until one number is left: loops of fixed lengths, which become vector
//! instructions, and an error that grows with the logarithm of a block's length. Blocks add up in
//! `f64`.

use crate::exp::Real;

/// Numbers of a block, where there are this many: they stay in the first cache.
const LONG: usize = 256;

/// Numbers of the blocks of the rest.
const SHORT: usize = 32;

/// The sum of `term` over pairs of numbers; `term` of two zeros must be zero.
#[inline(always)]
pub fn sum<R: Real>(a: &[R], b: &[R], term: impl Fn(R, R) -> R + Copy) -> f64 {
    let everything = [1; LONG];
    let (mut total, mut done) = (0.0, 0);
    while done < a.len() {
        let (step, part) = block(&a[done..], &b[done..], &everything, |a, b, _| term(a, b));
        total += part.to_f64();
        done += step;
    }
    total
}

/// The sum of `term` over those pairs where the mask is not zero, whatever the others are, and how
/// many they are; `term` of two zeros must be zero.
#[inline(always)]
pub fn masked_sum<R: Real>(
    a: &[R],
    b: &[R],
    mask: &[u8],
    term: impl Fn(R, R) -> R + Copy,
) -> (f64, usize) {
    let (mut total, mut done, mut count) = (0.0, 0, 0);
    while done < a.len() {
        let mask = &mask[done..];
        let (step, part) = block(&a[done..], &b[done..], mask, |a, b, has| {
            let value = term(a, b);
            if has { value } else { R::ZERO }
        });
        for has in &mask[..step] {
            count += usize::from(*has != 0);
        }
        total += part.to_f64();
        done += step;
    }
    (total, count)
}

/// The sum of `term` in `f64`, of partial sums of every eighth value.
#[inline(always)]
pub fn sum_of_eighths<R: Real>(values: &[R], term: impl Fn(R) -> f64) -> f64 {
    let (whole, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in whole {
        for at in 0..8 {
            lanes[at] += term(chunk[at]);
        }
    }
    let mut total = 0.0;
    for value in rest {
        total += term(*value);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    total + (((a + e) + (c + g)) + ((b + f) + (d + h)))
}

/// The sum over the first block, and how long it is.
#[inline(always)]
fn block<R: Real>(
    a: &[R],
    b: &[R],
    mask: &[u8],
    term: impl Fn(R, R, bool) -> R + Copy,
) -> (usize, R) {
    if let (Some(a), Some(b), Some(mask)) =
        (a.first_chunk::<LONG>(), b.first_chunk::<LONG>(), mask.first_chunk::<LONG>())
    {
        return (LONG, halves(a, b, mask, term));
    }
    if let (Some(a), Some(b), Some(mask)) =
        (a.first_chunk::<SHORT>(), b.first_chunk::<SHORT>(), mask.first_chunk::<SHORT>())
    {
        return (SHORT, halves(a, b, mask, term));
    }
    let len = a.len();
    let (mut padded, mut other, mut has) = ([R::ZERO; SHORT], [R::ZERO; SHORT], [0; SHORT]);
    padded[..len].copy_from_slice(a);
    other[..len].copy_from_slice(&b[..len]);
    has[..len].copy_from_slice(&mask[..len]);
    (len, halves(&padded, &other, &has, term))
}

#[inline(always)]
fn halves<const N: usize, R: Real>(
    a: &[R; N],
    b: &[R; N],
    mask: &[u8; N],
    term: impl Fn(R, R, bool) -> R + Copy,
) -> R {
    let mut sums = [R::ZERO; LONG / 2];
    let half = N / 2;
    // Two terms at a time: they share the registers of the constants of `term`.
    for at in 0..half {
        let first = term(a[at], b[at], mask[at] != 0);
        sums[at] = first + term(a[at + half], b[at + half], mask[at + half] != 0);
    }
    let mut width = half;
    while width > 1 {
        width /= 2;
        for at in 0..width {
            sums[at] += sums[at + width];
        }
    }
    sums[0]
}
