//! How far one policy is from another, from the log-probabilities of tokens.
//!
//! A token `x` was drawn from `p`. With `d = log q(x) - log p(x)`, each [`Estimator`] is a number
//! whose mean over many tokens is, or is near, `KL(p || q)`. None of them is weighted by `p(x)`
//! again: that the token was drawn from `p` is the weight. [`categorical`] is for those who have
//! the whole vocabulary, and there the sum is weighted.
//!
//! Terms are computed a block at a time, in vectors, and a block is summed in a fixed order; blocks
//! add up in `f64`. Results are the same on all machines that fuse a multiplication and an addition,
//! as those since 2013 do; on others [`Estimator::K3`] differs in the last digits.

use std::any::TypeId;

use pulp::{Arch, Scalar, Simd, WithSimd};

use crate::blocks::{masked_sum, sum};
use crate::exp::{Arithmetic, Fused, Plain, Real};
use crate::simd::vectorized;

/// What to compute of each token (Schulman, 2020, "Approximating KL divergence").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimator {
    /// `-d`: without bias, and with the largest variance; terms may be negative.
    K1,
    /// `d² / 2`: with a bias that is small where the policies are near each other.
    K2,
    /// `exp(d) - 1 - d`: without bias, and never negative.
    K3,
}

/// How the terms of a sequence become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean; zero where there are none.
    Mean,
}

/// The term of each token; zero where the mask, if there is one, is zero.
///
/// # Panics
///
/// When the lengths differ.
pub fn terms<R: Real>(
    estimator: Estimator,
    log_p: &[R],
    log_q: &[R],
    mask: Option<&[u8]>,
    out: &mut [R],
) {
    assert!(log_p.len() == log_q.len() && log_p.len() == out.len(), "lengths differ");
    assert!(mask.is_none_or(|mask| mask.len() == out.len()), "lengths differ");
    Arch::new().dispatch(Terms { estimator, log_p, log_q, mask, out });
}

/// One number for each sequence, of which `ends` has the ends; the first starts at 0, the others
/// where the one before ended.
///
/// ```
/// use echoic_primitives::kl::{Estimator, Reduction, reduce};
///
/// let (log_p, log_q) = ([-1.0, -2.0, -0.5], [-1.5, -1.0, -0.5]);
/// let mut kl = [0.0; 2];
/// reduce(Estimator::K1, Reduction::Sum, &log_p, &log_q, None, [2, 3].into_iter(), &mut kl);
/// assert_eq!(kl, [-0.5, 0.0]);
/// ```
///
/// # Panics
///
/// When the lengths differ, or the ends are not in order or beyond them.
pub fn reduce<R: Real>(
    estimator: Estimator,
    reduction: Reduction,
    log_p: &[R],
    log_q: &[R],
    mask: Option<&[u8]>,
    ends: impl Iterator<Item = usize>,
    out: &mut [R],
) {
    assert_eq!(log_p.len(), log_q.len(), "lengths differ");
    assert!(mask.is_none_or(|mask| mask.len() == log_p.len()), "lengths differ");
    Arch::new().dispatch(Reduce { estimator, reduction, log_p, log_q, mask, ends, out });
}

/// `sum over x of p(x) (log p(x) - log q(x))` for each row of `vocabulary` log-probabilities: the
/// divergence itself. What `p` never does counts as zero, whatever `q` says.
///
/// # Panics
///
/// When the lengths are not those of this many rows.
pub fn categorical<R: Real>(log_p: &[R], log_q: &[R], vocabulary: usize, out: &mut [R]) {
    assert!(log_p.len() == log_q.len() && log_p.len() == out.len() * vocabulary, "lengths differ");
    vectorized(
        #[inline(always)]
        || {
            for (row, out) in out.iter_mut().enumerate() {
                let range = row * vocabulary..(row + 1) * vocabulary;
                *out = R::from_f64(sum(
                    &log_p[range.clone()],
                    &log_q[range],
                    #[inline(always)]
                    |p, q| {
                        let probability = p.exp();
                        let value = probability * (p - q);
                        if probability == R::ZERO { R::ZERO } else { value }
                    },
                ));
            }
        },
    );
}

/// The arguments of [`terms`].
struct Terms<'a, R> {
    estimator: Estimator,
    log_p: &'a [R],
    log_q: &'a [R],
    mask: Option<&'a [u8]>,
    out: &'a mut [R],
}

impl<R: Real> WithSimd for Terms<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        match self.estimator {
            Estimator::K1 => self.run(k1),
            Estimator::K2 => self.run(k2),
            Estimator::K3 if has_fused::<S>() => self.run(k3::<R, Fused>),
            Estimator::K3 => self.run(k3::<R, Plain>),
        }
    }
}

impl<R: Real> Terms<'_, R> {
    #[inline(always)]
    fn run(self, term: impl Fn(R, R) -> R) {
        let len = self.out.len();
        let (log_p, log_q) = (&self.log_p[..len], &self.log_q[..len]);
        for at in 0..len {
            self.out[at] = term(log_p[at], log_q[at]);
        }
        if let Some(mask) = self.mask {
            for (out, has) in self.out.iter_mut().zip(mask) {
                *out = if *has != 0 { *out } else { R::ZERO };
            }
        }
    }
}

/// The arguments of [`reduce`].
struct Reduce<'a, R, I> {
    estimator: Estimator,
    reduction: Reduction,
    log_p: &'a [R],
    log_q: &'a [R],
    mask: Option<&'a [u8]>,
    ends: I,
    out: &'a mut [R],
}

impl<R: Real, I: Iterator<Item = usize>> WithSimd for Reduce<'_, R, I> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        match self.estimator {
            Estimator::K1 => self.run(k1),
            Estimator::K2 => self.run(k2),
            Estimator::K3 if has_fused::<S>() => self.run(k3::<R, Fused>),
            Estimator::K3 => self.run(k3::<R, Plain>),
        }
    }
}

impl<R: Real, I: Iterator<Item = usize>> Reduce<'_, R, I> {
    #[inline(always)]
    fn run(self, term: impl Fn(R, R) -> R + Copy) {
        let mut start = 0;
        for (out, end) in self.out.iter_mut().zip(self.ends) {
            let (p, q) = (&self.log_p[start..end], &self.log_q[start..end]);
            let (sum, count) = match self.mask {
                None => (sum(p, q, term), p.len()),
                Some(mask) => masked_sum(p, q, &mask[start..end], term),
            };
            *out = R::from_f64(match self.reduction {
                Reduction::Sum => sum,
                Reduction::Mean if count == 0 => 0.0,
                Reduction::Mean => sum / count as f64,
            });
            start = end;
        }
    }
}

/// Whether the instructions have a fused multiplication and addition: the scalar ones of x86-64 do
/// not, all others that are dispatched to do.
#[inline(always)]
fn has_fused<S: Simd>() -> bool {
    TypeId::of::<S>() != TypeId::of::<Scalar>()
}

#[inline(always)]
fn k1<R: Real>(p: R, q: R) -> R {
    p - q
}

#[inline(always)]
fn k2<R: Real>(p: R, q: R) -> R {
    (q - p) * (q - p) * R::from_f64(0.5)
}

#[inline(always)]
fn k3<R: Real, A: Arithmetic>(p: R, q: R) -> R {
    (q - p).exp_residual::<A>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Estimator; 3] = [Estimator::K1, Estimator::K2, Estimator::K3];

    fn term(estimator: Estimator, p: f64, q: f64) -> f64 {
        let d = q - p;
        match estimator {
            Estimator::K1 => -d,
            Estimator::K2 => d * d / 2.0,
            Estimator::K3 => d.exp_m1() - d,
        }
    }

    #[test]
    fn expected_terms_are_the_divergence_of_known_distributions() {
        // Every token weighted as often as `p` draws it: no estimate is left, only the formula.
        let (p, q) = ([0.7, 0.2, 0.1], [0.5, 0.2, 0.3]);
        let (log_p, log_q) = (p.map(f64::ln), q.map(f64::ln));
        let mut kl = [0.0];
        categorical(&log_p, &log_q, 3, &mut kl);
        let exact: f64 = (0..3).map(|at| p[at] * (p[at] / q[at]).ln()).sum();
        assert!((kl[0] - exact).abs() < 1e-15);
        for estimator in [Estimator::K1, Estimator::K3] {
            let mut out = [0.0; 3];
            terms(estimator, &log_p, &log_q, None, &mut out);
            let expected: f64 = (0..3).map(|at| p[at] * out[at]).sum();
            assert!((expected - exact).abs() < 1e-15, "{estimator:?}: {expected} and {exact}");
        }
    }

    #[test]
    fn impossible_tokens_are_infinitely_far() {
        let mut out = [0.0; 2];
        let inf = f64::INFINITY;
        for (estimator, expected) in
            [(Estimator::K1, [inf, -inf]), (Estimator::K2, [inf, inf]), (Estimator::K3, [inf, inf])]
        {
            terms(estimator, &[-1.0, -inf], &[-inf, -1.0], None, &mut out);
            assert_eq!(out, expected, "{estimator:?}");
        }
        let mut kl = [0.0];
        categorical(&[-inf, 0.0], &[-inf, 0.0], 2, &mut kl);
        assert_eq!(kl, [0.0]);
    }

    #[test]
    fn what_is_masked_does_not_matter() {
        let (log_p, log_q) = ([-1.0, f64::NAN, -2.0], [-2.0, -1.0, -4.0]);
        let mask = [1, 0, 1];
        let mut out = [0.0; 3];
        terms(Estimator::K1, &log_p, &log_q, Some(&mask), &mut out);
        assert_eq!(out, [1.0, 0.0, 2.0]);
        for (reduction, expected) in [(Reduction::Sum, 3.0), (Reduction::Mean, 1.5)] {
            let mut kl = [7.0; 2];
            let ends = [3, 3].into_iter();
            reduce(Estimator::K1, reduction, &log_p, &log_q, Some(&mask), ends, &mut kl);
            assert_eq!(kl, [expected, 0.0]);
        }
    }

    proptest! {
        #[test]
        fn sequences_are_the_sums_of_their_terms(
            tokens in prop::collection::vec((-6.0..0.0f64, -6.0..0.0f64, any::<bool>()), 0..900),
            cut in 0usize..900,
        ) {
            let log_p: Vec<f64> = tokens.iter().map(|token| token.0).collect();
            let log_q: Vec<f64> = tokens.iter().map(|token| token.1).collect();
            let mask: Vec<u8> = tokens.iter().map(|token| u8::from(token.2)).collect();
            let cut = cut.min(tokens.len());
            for estimator in ALL {
                for mask in [None, Some(&mask[..])] {
                    let mut got = [0.0; 2];
                    let ends = [cut, tokens.len()].into_iter();
                    reduce(estimator, Reduction::Sum, &log_p, &log_q, mask, ends, &mut got);
                    let range = |range: std::ops::Range<usize>| -> f64 {
                        range
                            .filter(|at| mask.is_none_or(|mask| mask[*at] != 0))
                            .map(|at| term(estimator, log_p[at], log_q[at]))
                            .sum()
                    };
                    let expected = [range(0..cut), range(cut..tokens.len())];
                    for (got, expected) in got.iter().zip(expected) {
                        prop_assert!((got - expected).abs() <= 1e-11 * (1.0 + expected.abs()));
                    }
                }
            }
        }
    }
}
