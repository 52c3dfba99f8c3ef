//! Advantages of answers over the others to the same prompt, as critic-free methods use them.
//!
//! With the rewards `r_1 ... r_n` of a group, the advantage is `(r_i - baseline_i) / scale`:
//!
//! - GRPO (Shao et al. 2024, arXiv:2402.03300): [`Baseline::Mean`], [`Scale::Group`];
//! - Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): [`Baseline::Mean`], [`Scale::None`];
//! - RLOO (Ahmadian et al. 2024, arXiv:2402.14740): [`Baseline::LeaveOneOut`], [`Scale::None`].
//!
//! Rewards are taken relative to the first of their group before anything is added up. Equal
//! rewards therefore give zeros exactly, and not rounding errors divided by rounding errors.

use crate::blocks::sum_of_eighths as sum;
use crate::exp::Real;
use crate::simd::vectorized;

/// What a reward is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// The mean of the group, the reward itself included.
    Mean,
    /// The mean of the others. Who is alone is compared with itself.
    LeaveOneOut,
}

/// What a difference is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// The standard deviation of the group.
    Group,
    /// The standard deviation of all rewards.
    Batch,
    /// Nothing.
    None,
}

/// How advantages are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// What a reward is compared with.
    pub baseline: Baseline,
    /// What a difference is divided by.
    pub scale: Scale,
    /// A variance is the sum of squares by the count less this: 0 for that of the group itself, 1
    /// for an estimate of what the group was drawn from.
    pub ddof: usize,
    /// Where the standard deviation is smaller, advantages are zero.
    pub min_std: f64,
}

/// The advantages of groups, of which `ends` has the ends; the first starts at 0, the others where
/// the one before ended.
///
/// A reward that is no number makes its group's advantages NaN, and all of them with
/// [`Scale::Batch`].
///
/// ```
/// use echoic_primitives::groups::{Baseline, Options, Scale, advantages};
///
/// let options =
///     Options { baseline: Baseline::Mean, scale: Scale::Group, ddof: 0, min_std: 1e-8 };
/// let mut out = [0.0; 4];
/// advantages(&[1.0, 3.0, 5.0, 5.0], [2, 4].into_iter(), &options, &mut out);
/// assert_eq!(out, [-1.0, 1.0, 0.0, 0.0]);
/// ```
///
/// # Panics
///
/// When the lengths differ, or the ends are not in order or beyond them.
pub fn advantages<R: Real>(
    rewards: &[R],
    ends: impl Iterator<Item = usize>,
    options: &Options,
    out: &mut [R],
) {
    assert_eq!(rewards.len(), out.len(), "lengths differ");
    vectorized(
        #[inline(always)]
        || {
            let mut start = 0;
            for end in ends {
                group(&rewards[start..end], options, &mut out[start..end]);
                start = end;
            }
            if options.scale == Scale::Batch {
                let mean = mean_after(rewards);
                let first = first(rewards);
                let squares = sum(rewards, |reward| {
                    let difference = (reward - first).to_f64() - mean;
                    difference * difference
                });
                multiply(out, inverse_std(squares, rewards.len(), options));
            }
        },
    );
}

#[inline(always)]
fn group<R: Real>(rewards: &[R], options: &Options, out: &mut [R]) {
    let first = first(rewards);
    let mean = R::from_f64(mean_after(rewards));
    for at in 0..rewards.len() {
        out[at] = (rewards[at] - first) - mean;
    }
    let mut factor = match options.scale {
        Scale::Group => {
            let squares = sum(out, |difference| difference.to_f64() * difference.to_f64());
            inverse_std(squares, out.len(), options)
        }
        Scale::Batch | Scale::None => 1.0,
    };
    if options.baseline == Baseline::LeaveOneOut && out.len() > 1 {
        // The mean of the others is as much farther away.
        factor *= out.len() as f64 / (out.len() - 1) as f64;
    }
    if factor != 1.0 {
        multiply(out, factor);
    }
}

#[inline(always)]
fn first<R: Real>(rewards: &[R]) -> R {
    rewards.first().copied().unwrap_or(R::ZERO)
}

/// How much the mean is above the first.
#[inline(always)]
fn mean_after<R: Real>(rewards: &[R]) -> f64 {
    let first = first(rewards);
    sum(rewards, |reward| (reward - first).to_f64()) / rewards.len() as f64
}

/// One by the standard deviation; zero where that is too small.
#[inline(always)]
fn inverse_std(squares: f64, count: usize, options: &Options) -> f64 {
    let std = (squares / count.saturating_sub(options.ddof) as f64).sqrt();
    // Of too few there is none, whatever they are.
    if std < options.min_std || std == 0.0 || count <= options.ddof { 0.0 } else { 1.0 / std }
}

/// A factor of zero gives zeros, of whatever.
#[inline(always)]
fn multiply<R: Real>(out: &mut [R], factor: f64) {
    if factor == 0.0 {
        return out.fill(R::ZERO);
    }
    let factor = R::from_f64(factor);
    for out in out {
        *out = *out * factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRPO: Options =
        Options { baseline: Baseline::Mean, scale: Scale::Group, ddof: 0, min_std: 1e-8 };

    fn of<R: Real>(rewards: &[R], ends: &[usize], options: &Options) -> Vec<R> {
        let mut out = vec![R::ZERO; rewards.len()];
        advantages(rewards, ends.iter().copied(), options, &mut out);
        out
    }

    #[test]
    fn equal_rewards_give_zeros_whatever_they_are() {
        for reward in [0.1, 1e300, -3.3, 1e-300] {
            assert_eq!(of(&[reward; 7], &[3, 7], &GRPO), [0.0; 7]);
        }
        assert_eq!(of(&[0.1f32; 7], &[3, 7], &GRPO), [0.0; 7]);
    }

    #[test]
    fn leaving_one_out_compares_with_the_mean_of_the_others() {
        let options = Options { baseline: Baseline::LeaveOneOut, scale: Scale::None, ..GRPO };
        assert_eq!(of(&[1.0, 2.0, 6.0, 5.0], &[3, 4], &options), [-3.0, -1.5, 4.5, 0.0]);
    }

    #[test]
    fn the_batch_can_be_the_scale() {
        let options = Options { scale: Scale::Batch, ..GRPO };
        // The differences are 1 and those of all rewards from 3 are 3, 1, 1, 3: a variance of 5.
        let by = 1.0 / 5.0f64.sqrt();
        let got = of(&[0.0, 2.0, 4.0, 6.0], &[2, 4], &options);
        for (got, expected) in got.iter().zip([-by, by, -by, by]) {
            assert!((got - expected).abs() < 1e-15);
        }
    }

    #[test]
    fn what_is_no_number_stays_in_its_group() {
        let got = of(&[1.0, f64::NAN, 1.0, 2.0], &[2, 4], &GRPO);
        assert!(got[0].is_nan() && got[1].is_nan());
        assert_eq!(got[2..], [-1.0, 1.0]);
    }

    #[test]
    fn a_spread_of_too_few_is_none() {
        let options = Options { ddof: 1, ..GRPO };
        assert_eq!(of(&[4.0], &[1], &options), [0.0]);
        assert_eq!(of::<f64>(&[], &[0, 0], &options), [0.0; 0]);
    }

    proptest! {
        #[test]
        fn each_group_is_what_its_definition_says(
            groups in prop::collection::vec(prop::collection::vec(-100.0..100.0f64, 1..40), 0..6),
            ddof in 0usize..2,
        ) {
            let options = Options { ddof, ..GRPO };
            let flat: Vec<f64> = groups.concat();
            let mut ends = Vec::new();
            for group in &groups {
                ends.push(ends.last().unwrap_or(&0) + group.len());
            }
            let got = of(&flat, &ends, &options);
            let mut start = 0;
            for group in &groups {
                let mean = group.iter().sum::<f64>() / group.len() as f64;
                let squares: f64 = group.iter().map(|r| (r - mean) * (r - mean)).sum();
                for reward in group {
                    let std = (squares / (group.len() as f64 - ddof as f64)).sqrt();
                    let expected = if group.len() > 1 { (reward - mean) / std } else { 0.0 };
                    prop_assert!((got[start] - expected).abs() < 1e-9);
                    start += 1;
                }
            }
        }
    }
}
