//! The hyperbolic tangent, of a number or of a register of them.
//!
//! `tanh |x| = −m / (m + 2)` with `m = e^(−2|x|) − 1`. The exponent is split into a power of two, which
//! is put together from its bits, and a rest of at most half of ln 2, for which seven terms of the series
//! of `e^r − 1` are enough. Working with `m` and not with the exponential itself keeps small results
//! exact to their last places.

use pulp::Simd;

/// The most by which a result differs from the true one, in relation to it.
pub const RELATIVE_ERROR: f32 = 2.5e-7;

/// Beyond this the result is 1 in single precision.
const END: f32 = 9.5;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the first has few bits, so that small multiples of it are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Adding this rounds a small number to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

/// The hyperbolic tangent of `x`, to within [`RELATIVE_ERROR`]; not a number where `x` is not.
///
/// ```
/// use echoic_collect::policy::tanh::tanh;
///
/// assert!((tanh(0.5) - 0.5f32.tanh()).abs() < 1e-7);
/// assert_eq!(tanh(-100.0), -1.0);
/// ```
pub fn tanh(x: f32) -> f32 {
    tanhs(pulp::Scalar, x)
}

/// The same of each lane, with the same result in its last bit.
#[inline(always)]
pub fn tanhs<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |value| simd.splat_f32s(value);
    let (sign_bit, one) = (splat(-0.0), splat(1.0));
    let size_bits = splat(f32::from_bits(u32::MAX >> 1));
    let sign = simd.and_f32s(x, sign_bit);
    let size = simd.and_f32s(x, size_bits);
    // Not a minimum, which would take the end for what is not a number.
    let beyond = simd.greater_than_f32s(size, splat(END));
    let size = simd.select_f32s(beyond, splat(END), size);
    let exponent = simd.mul_f32s(size, splat(-2.0));
    let rounded = simd.mul_add_f32s(exponent, splat(LOG2_E), splat(ROUND));
    let power = simd.sub_f32s(rounded, splat(ROUND));
    let rest = simd.mul_add_f32s(power, splat(-LN_2_HIGH), exponent);
    let rest = simd.mul_add_f32s(power, splat(-LN_2_LOW), rest);
    // 2^power; the shift drops all bits of `ROUND`.
    let bits = simd.transmute_u32s_f32s(rounded);
    let bits = simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23));
    let scale = simd.transmute_f32s_u32s(simd.add_u32s(bits, simd.splat_u32s(1.0f32.to_bits())));
    let mut series = splat(1.0 / 5040.0);
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0] {
        series = simd.mul_add_f32s(series, rest, splat(term));
    }
    let series = simd.mul_f32s(series, rest);
    let less_one = simd.mul_add_f32s(scale, series, simd.sub_f32s(scale, one));
    let quotient = simd.div_f32s(less_one, simd.add_f32s(less_one, splat(2.0)));
    simd.or_f32s(simd.and_f32s(quotient, size_bits), sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_double_precision_everywhere() {
        let mut worst = 0.0f64;
        // Every 997th number of those between 0 and 16, of both signs.
        for bits in (1.0e-30f32.to_bits()..16.0f32.to_bits()).step_by(997) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let exact = f64::from(x).tanh();
                worst = worst.max(((f64::from(tanh(x)) - exact) / exact).abs());
            }
        }
        assert!(worst < f64::from(RELATIVE_ERROR), "{worst:e}");
    }

    #[test]
    fn ends_are_exact() {
        assert_eq!(tanh(0.0).to_bits(), 0.0f32.to_bits());
        assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }
}
