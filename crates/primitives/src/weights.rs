//! How much likelier actions are under one policy than under another, as weights of samples.

use crate::blocks::{masked_sum, sum};
use crate::exp::Real;
use crate::simd::vectorized;

/// What a weight belongs to, where it belongs to a whole sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The product of the ratios of its tokens: that of the sequence's probabilities.
    Product,
    /// The geometric mean of the ratios of its tokens, as in GSPO (Zheng et al. 2025,
    /// arXiv:2507.18071).
    Mean,
}

/// The smallest and the largest weight: others become these.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

impl Bounds {
    /// What no weight is beyond.
    pub const NONE: Self = Self { low: 0.0, high: f64::INFINITY };
}

/// `exp(log_new - log_old)` of each token, within the bounds; zero where the mask, if there is one,
/// is zero.
///
/// # Panics
///
/// When the lengths differ.
pub fn token_weights<R: Real>(
    log_new: &[R],
    log_old: &[R],
    mask: Option<&[u8]>,
    bounds: Bounds,
    out: &mut [R],
) {
    assert!(log_new.len() == out.len() && log_old.len() == out.len(), "lengths differ");
    assert!(mask.is_none_or(|mask| mask.len() == out.len()), "lengths differ");
    vectorized(
        #[inline(always)]
        || {
            let len = out.len();
            let (log_new, log_old) = (&log_new[..len], &log_old[..len]);
            let (low, high) = (R::from_f64(bounds.low), R::from_f64(bounds.high));
            for at in 0..len {
                out[at] = bounded((log_new[at] - log_old[at]).exp(), low, high);
            }
            if let Some(mask) = mask {
                for (out, has) in out.iter_mut().zip(mask) {
                    *out = if *has != 0 { *out } else { R::ZERO };
                }
            }
        },
    );
}

/// One weight for each sequence, of which `ends` has the ends; the first starts at 0, the others
/// where the one before ended. A sequence without a token has the weight 1.
///
/// # Panics
///
/// When the lengths differ, or the ends are not in order or beyond them.
pub fn sequence_weights<R: Real>(
    level: Level,
    log_new: &[R],
    log_old: &[R],
    mask: Option<&[u8]>,
    ends: impl Iterator<Item = usize>,
    bounds: Bounds,
    out: &mut [R],
) {
    assert_eq!(log_new.len(), log_old.len(), "lengths differ");
    assert!(mask.is_none_or(|mask| mask.len() == log_new.len()), "lengths differ");
    vectorized(
        #[inline(always)]
        || {
            let mut start = 0;
            for (out, end) in out.iter_mut().zip(ends) {
                let (new, old) = (&log_new[start..end], &log_old[start..end]);
                let (total, count) = match mask {
                    None => (sum(new, old, log_ratio), new.len()),
                    Some(mask) => masked_sum(new, old, &mask[start..end], log_ratio),
                };
                let log = match level {
                    Level::Product => total,
                    Level::Mean => total / count.max(1) as f64,
                };
                *out = R::from_f64(bounded(Real::exp(log), bounds.low, bounds.high));
                start = end;
            }
        },
    );
}

/// How many samples of equal weight would tell as much (Kish, 1965): `(sum of w)² / sum of w²`.
/// Zero if no weight is above zero.
///
/// ```
/// use echoic_primitives::weights::effective_sample_size;
///
/// assert_eq!(effective_sample_size(&[2.0, 2.0, 0.0, 2.0]), 3.0);
/// ```
pub fn effective_sample_size<R: Real>(weights: &[R]) -> f64 {
    // Relative to the largest, no square is too large or too small for a number.
    let largest = weights.iter().map(|weight| weight.to_f64()).fold(0.0, larger);
    size(weights.iter().map(|weight| weight.to_f64() / largest), largest == 0.0)
}

/// The same from the logarithms of weights, none of which need be a number's exponent.
pub fn effective_sample_size_of_logs<R: Real>(logs: &[R]) -> f64 {
    let largest = logs.iter().map(|log| log.to_f64()).fold(f64::NEG_INFINITY, larger);
    let none = largest == f64::NEG_INFINITY;
    size(logs.iter().map(|log| Real::exp(log.to_f64() - largest)), none)
}

/// The larger one; NaN if one of them is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

fn size(weights: impl Iterator<Item = f64>, none: bool) -> f64 {
    if none {
        return 0.0;
    }
    let (sum, squares) = weights
        .fold((0.0, 0.0), |(sum, squares), weight| (sum + weight, squares + weight * weight));
    sum * sum / squares
}

#[inline(always)]
fn log_ratio<R: Real>(new: R, old: R) -> R {
    new - old
}

#[inline(always)]
fn bounded<R: Real>(weight: R, low: R, high: R) -> R {
    // Comparisons with NaN are false, so NaN stays.
    let weight = if weight < low { low } else { weight };
    if weight > high { high } else { weight }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_ratios_within_their_bounds() {
        let (new, old) = ([0.0, -1.0, f64::NAN, 2.0], [-1.0, -1.0, 0.0, -1.0]);
        let mut out = [0.0; 4];
        let bounds = Bounds { low: 1.5, high: 10.0 };
        token_weights(&new, &old, None, bounds, &mut out);
        assert!((out[0] - std::f64::consts::E).abs() < 1e-15 && out[2].is_nan());
        assert_eq!((out[1], out[3]), (1.5, 10.0));
        token_weights(&new, &old, Some(&[1, 1, 0, 1]), Bounds::NONE, &mut out);
        assert_eq!((out[1], out[2]), (1.0, 0.0));
    }

    #[test]
    fn a_sequence_has_the_product_or_the_geometric_mean() {
        let (new, old) = ([0.5f32, 0.25, 1.0].map(f32::ln), [0.25f32, 0.25, 0.5].map(f32::ln));
        let mut out = [0.0f32; 3];
        let ends = || [2, 2, 3].into_iter();
        sequence_weights(Level::Product, &new, &old, None, ends(), Bounds::NONE, &mut out);
        assert_eq!(out.map(|weight| (weight * 1e6).round()), [2e6, 1e6, 2e6]);
        sequence_weights(Level::Mean, &new, &old, None, ends(), Bounds::NONE, &mut out);
        assert_eq!(out.map(|weight| (weight * 1e4).round()), [14142.0, 1e4, 2e4]);
    }

    #[test]
    fn the_effective_size_does_not_depend_on_the_scale() {
        let logs = [-800.0, -800.0 + 3.0f64.ln(), 700.0];
        assert!((effective_sample_size_of_logs(&logs[..2]) - 1.6).abs() < 1e-12);
        assert_eq!(effective_sample_size_of_logs(&logs), 1.0);
        assert!((effective_sample_size(&[1e-200, 3e-200]) - 1.6).abs() < 1e-12);
        assert_eq!(effective_sample_size::<f64>(&[]), 0.0);
        assert_eq!(effective_sample_size_of_logs(&[f64::NEG_INFINITY; 2]), 0.0);
        assert!(effective_sample_size(&[1.0, f64::NAN, 2.0]).is_nan());
    }
}
