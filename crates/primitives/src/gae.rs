//! Generalised advantage estimation.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::recursion::{Ahead, Recursion, run};
use crate::rollout::Rollout;
use crate::simd::prefetch;

/// Advantages by GAE, and the λ-returns that they amount to (Schulman et al. 2016, arXiv:1506.02438):
///
/// `δ_t = r_t + γ next_t − v_t`, `A_t = δ_t + γλ A_{t+1}` inside an episode, `G_t = A_t + v_t`.
///
/// Either output may be left out.
///
/// # Errors
///
/// Lengths differ, or the rollout has no values.
///
/// ```
/// use echoic_primitives::gae::gae;
/// use echoic_primitives::{Flags, Layout, Rollout};
///
/// let rollout = Rollout {
///     layout: Layout::one(2),
///     rewards: &[1.0, 1.0],
///     values: Some(&[0.5, 0.25]),
///     last_values: &[4.0],
///     terminated: Flags::Bytes(&[0, 1]),
///     truncation: None,
/// };
/// let (mut advantages, mut returns) = ([0.0; 2], [0.0; 2]);
/// gae(&rollout, 1.0, 0.5, Some(&mut advantages), Some(&mut returns)).unwrap();
/// assert_eq!(advantages, [0.75 + 0.5 * 0.75, 0.75]);
/// assert_eq!(returns, [1.625, 1.0]);
/// ```
pub fn gae<R: Real>(
    rollout: &Rollout<'_, R>,
    gamma: R,
    lam: R,
    advantages: Option<&mut [R]>,
    returns: Option<&mut [R]>,
) -> Result<(), Error> {
    let len = rollout.layout.len();
    let (rewards, values) = (rollout.rewards, rollout.values.unwrap_or_default());
    Error::unless_length("values", values, len)?;
    if let Some(advantages) = &advantages {
        Error::unless_length("advantages", advantages, len)?;
    }
    if let Some(returns) = &returns {
        Error::unless_length("returns", returns, len)?;
    }
    run(rollout, &mut Gae { rewards, values, gamma, decay: gamma * lam, advantages, returns })
}

/// Writes `a + b`.
#[inline(always)]
pub(crate) fn sums<R: Real>(out: &mut [R], a: &[R], b: &[R]) {
    let len = out.len();
    let (a, b) = (&a[..len], &b[..len]);
    for i in 0..len {
        out[i] = a[i] + b[i];
    }
}

struct Gae<'a, R> {
    rewards: &'a [R],
    values: &'a [R],
    gamma: R,
    decay: R,
    advantages: Option<&'a mut [R]>,
    returns: Option<&'a mut [R]>,
}

impl<R: Real> Recursion<R> for Gae<'_, R> {
    #[inline(always)]
    fn coefficients(&self, at: Range<usize>, ahead: Ahead<'_, R>, a: &mut [R], b: &mut [R]) {
        let len = at.len();
        let (rewards, values) = (&self.rewards[at.clone()], &self.values[at]);
        let (next, keep, a, b) =
            (&ahead.next[..len], &ahead.keep[..len], &mut a[..len], &mut b[..len]);
        for i in 0..len {
            a[i] = rewards[i] + self.gamma * next[i] - values[i];
            b[i] = self.decay * keep[i];
        }
    }

    fn prefetch(&self, at: Range<usize>) {
        let outputs = [self.advantages.as_deref(), self.returns.as_deref()];
        outputs.into_iter().flatten().for_each(|output| prefetch(&output[at.clone()]));
    }

    #[inline(always)]
    fn finish(&mut self, at: Range<usize>, _ahead: Ahead<'_, R>, now: &[R], _later: &[R]) {
        if let Some(advantages) = &mut self.advantages {
            advantages[at.clone()].copy_from_slice(now);
        }
        if let Some(returns) = &mut self.returns {
            sums(&mut returns[at.clone()], now, &self.values[at]);
        }
    }
}
