//! The exponential function as a short straight line of multiplications and additions, so that a
//! loop over it becomes vector instructions.
//!
//! `x = k ln 2 + r` with a whole `k` and `|r| <= ln 2 / 2`. With `q = r² P(r)`, where `P` is the
//! minimax polynomial of `(e^r - 1 - r) / r²`, the result is `2^k (1 + r + q)`. Nothing depends on
//! the width of a vector, and [`Real::exp`] fuses nothing: every machine gives the same bits.
//!
//! # Error
//!
//! [`Real::exp`] is at most 1 unit in the last place off, for `f32` and `f64`; infinities, zeros
//! and NaN are exact. [`Real::exp_residual`] is at most 32 units off, also where `exp(x) - 1 - x`
//! would have cancelled everything.

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// `f32` or `f64`, with what the functions of this crate do with it.
pub trait Real:
    Copy
    + Debug
    + Default
    + Display
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + AddAssign
    + Div<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + Sub<Output = Self>
{
    /// Nothing.
    const ZERO: Self;
    /// One.
    const ONE: Self;

    /// The number nearest to this one.
    fn from_f64(value: f64) -> Self;

    /// The same number.
    fn to_f64(self) -> f64;

    /// `e^self`.
    fn exp(self) -> Self;

    /// `self * factor + summand`, rounded once. Slow where the processor has no such instruction.
    fn fused(self, factor: Self, summand: Self) -> Self;

    /// `e^self - 1 - self`, precise near zero too, where it is about `self² / 2`; never negative.
    fn exp_residual<A: Arithmetic>(self) -> Self;
}

/// How `x * factor + summand` is computed: a kernel that consists of little else takes two thirds
/// of the time when it is fused.
pub trait Arithmetic {
    /// `x * factor + summand`.
    fn multiply_add<R: Real>(x: R, factor: R, summand: R) -> R;
}

/// With two roundings, as every processor can.
#[derive(Debug)]
pub struct Plain;

/// With one rounding, for processors that have an instruction for it.
#[derive(Debug)]
pub struct Fused;

impl Arithmetic for Plain {
    #[inline(always)]
    fn multiply_add<R: Real>(x: R, factor: R, summand: R) -> R {
        x * factor + summand
    }
}

impl Arithmetic for Fused {
    #[inline(always)]
    fn multiply_add<R: Real>(x: R, factor: R, summand: R) -> R {
        x.fused(factor, summand)
    }
}

macro_rules! real {
    (
        $module:ident: $float:ident, $bits:ident, mantissa $mantissa:literal, bias $bias:literal,
        from $low:literal or $least:literal to $high:literal,
        ln2 $ln2_high:literal + $ln2_low:literal,
        rest $sum:ident, $coefficients:expr
    ) => {
        mod $module {
            use super::{Arithmetic, Plain, Real, $sum};

            /// Adding it rounds to a whole number, which is then in the lowest bits.
            const ROUNDER: $float = 1.5 * (1u64 << $mantissa) as $float;

            /// `x = k ln 2 + r`: `k` with [`ROUNDER`] added, `k`, and `r`.
            #[inline(always)]
            fn reduced<A: Arithmetic>(x: $float) -> ($float, $float, $float) {
                let rounded = A::multiply_add(x, std::$float::consts::LOG2_E, ROUNDER);
                let k = rounded - ROUNDER;
                // The high part of ln 2 has so few bits that its product is exact.
                let r = A::multiply_add(k, -$ln2_high, x);
                (rounded, k, A::multiply_add(k, -$ln2_low, r))
            }

            /// `2^(k - one)` of a rounded `k`, which must be a normal number.
            #[inline(always)]
            fn power(rounded: $float, one: $bits) -> $float {
                $float::from_bits(rounded.to_bits().wrapping_add($bias - one) << $mantissa)
            }

            /// `e^r - 1 - r`. The sum is taken in pairs, pairs of pairs and so on: a vector of it
            /// waits for far fewer results than one that follows Horner's rule.
            #[inline(always)]
            fn rest<A: Arithmetic>(r: $float) -> $float {
                let c = $coefficients;
                let square = r * r;
                square * $sum::<A>(c, r, square)
            }

            impl Real for $float {
                const ZERO: Self = 0.0;
                const ONE: Self = 1.0;

                #[inline(always)]
                fn from_f64(value: f64) -> Self {
                    value as Self
                }

                #[inline(always)]
                fn to_f64(self) -> f64 {
                    f64::from(self)
                }

                #[inline(always)]
                fn exp(self) -> Self {
                    // Beyond the range the result is zero or infinite anyway. Comparisons with NaN
                    // are false, so that NaN stays.
                    let x = if self > $high { $high } else { self };
                    let x = if x < $low { $low } else { x };
                    let (_, k, r) = reduced::<Plain>(x);
                    // `2^k` may be too small or too large for a number where its product is not.
                    let half = k * 0.5 + ROUNDER;
                    let other = (k - (half - ROUNDER)) + ROUNDER;
                    (1.0 + (r + rest::<Plain>(r))) * power(half, 0) * power(other, 0)
                }

                #[inline(always)]
                fn fused(self, factor: Self, summand: Self) -> Self {
                    self.mul_add(factor, summand)
                }

                #[inline(always)]
                fn exp_residual<A: Arithmetic>(self) -> Self {
                    // Infinity may not be subtracted from infinity.
                    let capped = if self > $high { $high } else { self };
                    // The exponential of less is lost in the sum, and its power is no normal
                    // number.
                    let x = if capped < $least { $least } else { capped };
                    let (rounded, _, r) = reduced::<A>(x);
                    // 2^k (1 + r + q) - 1 - x, in an order in which all but `q` is zero where k is,
                    // since `r` is `x` there. Half of everything: 2^k may be too large for a
                    // number.
                    let power = power(rounded, 1);
                    let others = A::multiply_add(power, r, capped * -0.5) + (power - 0.5);
                    let half = A::multiply_add(power, rest::<A>(r), others);
                    half + half
                }
            }
        }
    };
}

/// The polynomial of degree 5 with these coefficients, lowest first.
#[inline(always)]
fn sum_of_six<A: Arithmetic>(c: [f32; 6], x: f32, square: f32) -> f32 {
    let pair = |at: usize| A::multiply_add(c[at + 1], x, c[at]);
    let low = A::multiply_add(pair(2), square, pair(0));
    A::multiply_add(pair(4), square * square, low)
}

/// The polynomial of degree 9 with these coefficients, lowest first.
#[inline(always)]
fn sum_of_ten<A: Arithmetic>(c: [f64; 10], x: f64, square: f64) -> f64 {
    let pair = |at: usize| A::multiply_add(c[at + 1], x, c[at]);
    let fourth = square * square;
    let low = A::multiply_add(pair(2), square, pair(0));
    let high = A::multiply_add(pair(6), square, pair(4));
    A::multiply_add(A::multiply_add(pair(8), fourth, high), fourth, low)
}

real!(
    narrow: f32, u32, mantissa 23, bias 127, from -104.5 or -86.0 to 89.0,
    ln2 0.691_406_25 + 0.001_740_930_6,
    rest sum_of_six,
    [0.5, 0.166_666_67, 0.041_666_465, 0.008_333_311, 0.001_393_365, 0.000_198_909_9]
);
real!(
    wide: f64, u64, mantissa 52, bias 1023, from -746.0 or -700.0 to 710.0,
    ln2 0.693_146_705_627_441_4 + 4.749_325_039_031_672_6e-7,
    rest sum_of_ten,
    [
        0.5,
        1.666_666_666_666_666_9e-1,
        4.166_666_666_662_413e-2,
        8.333_333_333_330_062e-3,
        1.388_888_891_721_371_7e-3,
        1.984_126_986_305_361_8e-4,
        2.480_152_129_595_437_6e-5,
        2.755_726_845_999_706_4e-6,
        2.762_008_844_540_974_6e-7,
        2.510_038_549_551_032e-8
    ]
);

#[cfg(test)]
mod tests {
    use super::{Fused, Plain, Real};

    /// How many numbers lie between two of the same sign.
    fn steps(a: f64, b: f64) -> u64 {
        a.to_bits().abs_diff(b.to_bits())
    }

    fn narrow_steps(a: f32, b: f32) -> u32 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn is_within_one_unit_of_the_correctly_rounded_value() {
        // The library's f64 function is itself within one unit, so two are allowed here.
        let worst = (-745_000..709_700).map(|at| {
            let x = f64::from(at) * 1e-3 + 1.7e-5;
            steps(Real::exp(x), x.exp())
        });
        assert!(worst.max() <= Some(2));
        let worst = (-103_900..88_700).map(|at| {
            let x = at as f32 * 1e-3 + 1.7e-5;
            narrow_steps(Real::exp(x), f64::from(x).exp() as f32)
        });
        assert!(worst.max() <= Some(1));
    }

    #[test]
    fn values_at_and_beyond_the_ends_are_exact() {
        for (x, expected) in [
            (0.0, 1.0),
            (f64::INFINITY, f64::INFINITY),
            (709.9, f64::INFINITY),
            (f64::NEG_INFINITY, 0.0),
            (-745.2, 0.0),
            (-745.1, 5e-324),
        ] {
            assert_eq!(Real::exp(x), expected, "exp({x})");
        }
        for (x, expected) in [
            (0.0f32, 1.0),
            (f32::INFINITY, f32::INFINITY),
            (88.8, f32::INFINITY),
            (f32::NEG_INFINITY, 0.0),
            (-104.1, 0.0),
            (-103.2, 1e-45),
        ] {
            assert_eq!(Real::exp(x), expected, "exp({x})");
        }
        assert!(Real::exp(f64::NAN).is_nan() && Real::exp(f32::NAN).is_nan());
    }

    #[test]
    fn the_residual_keeps_its_digits_where_the_plain_formula_loses_them() {
        // x²/2 + x³/6 + ... to more digits than f64 has.
        for (x, expected) in [
            (1e-9, 5.000_000_001_666_667e-19),
            (-1e-5, 4.999_983_333_375e-11),
            (0.1, 5.170_918_075_647_625e-3),
            (-0.25, 2.880_078_307_140_486_7e-2),
            (1.0, 0.718_281_828_459_045_2),
            (-3.0, 2.049_787_068_367_864),
            (-800.0, 799.0),
            (709.5, 709.5f64.exp()),
            (709.9, f64::INFINITY),
            (f64::NEG_INFINITY, f64::INFINITY),
            (f64::INFINITY, f64::INFINITY),
            (0.0, 0.0),
        ] {
            for got in [x.exp_residual::<Plain>(), x.exp_residual::<Fused>()] {
                assert!(steps(got, expected) <= 32, "{x}: {got}");
            }
        }
        assert!(f64::NAN.exp_residual::<Fused>().is_nan());
        assert!(f32::NAN.exp_residual::<Plain>().is_nan());
    }

    #[test]
    fn the_residual_is_never_negative() {
        for at in -40_000..40_000 {
            let x = f64::from(at) * 2.3e-4;
            assert!(x.exp_residual::<Plain>() >= 0.0 && x.exp_residual::<Fused>() >= 0.0, "{x}");
            let x = x as f32;
            let reference = f64::from(x).exp_residual::<Plain>() as f32;
            for got in [x.exp_residual::<Plain>(), x.exp_residual::<Fused>()] {
                assert!(got >= 0.0 && narrow_steps(got, reference) <= 32, "{x} in f32: {got}");
            }
        }
    }
}
