//! Retrace(λ): action values of one policy from the steps of another.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::prefetch::prefetch;
use crate::recursion::{Ahead, Recursion, one_step, run};
use crate::rollout::Rollout;
use crate::vtrace::at_most;

/// Retrace targets for the values of the actions taken (Munos et al. 2016, arXiv:1606.02647).
///
/// The rollout's values are `v_t = E_π Q(s_t, ·)`, and `q_values[t] = Q(s_t, a_t)`. With
/// `c_t = λ min(1, exp(log_rhos[t]))`:
///
/// `δ_t = r_t + γ next_t − q_t`, `G_t − q_t = δ_t + γ c_{t+1} (G_{t+1} − q_{t+1})`.
///
/// # Errors
///
/// Lengths differ, or the rollout has no values.
pub fn retrace<R: Real>(
    rollout: &Rollout<'_, R>,
    log_rhos: &[R],
    q_values: &[R],
    gamma: R,
    lam: R,
    targets: &mut [R],
) -> Result<(), Error> {
    let len = rollout.layout.len();
    Error::unless_length("log_rhos", log_rhos, len)?;
    Error::unless_length("values", rollout.values.unwrap_or_default(), len)?;
    Error::unless_length("q_values", q_values, len)?;
    Error::unless_length("targets", targets, len)?;
    run(rollout, &mut Retrace { rewards: rollout.rewards, log_rhos, q_values, gamma, lam, targets })
}

/// The `x` of a step is what the step before it sees of it: `c_t (G_t − q_t)`.
struct Retrace<'a, R> {
    rewards: &'a [R],
    log_rhos: &'a [R],
    q_values: &'a [R],
    gamma: R,
    lam: R,
    targets: &'a mut [R],
}

impl<R: Real> Recursion<R> for Retrace<'_, R> {
    #[inline(always)]
    fn coefficients(&self, at: Range<usize>, ahead: Ahead<'_, R>, a: &mut [R], b: &mut [R]) {
        let len = at.len();
        let (rewards, q_values) = (&self.rewards[at.clone()], &self.q_values[at.clone()]);
        let (log_rhos, next, keep) = (&self.log_rhos[at], &ahead.next[..len], &ahead.keep[..len]);
        let (a, b) = (&mut a[..len], &mut b[..len]);
        for i in 0..len {
            let trace = self.lam * at_most(R::ONE, log_rhos[i].exp());
            a[i] = trace * (rewards[i] + self.gamma * next[i] - q_values[i]);
            b[i] = self.gamma * trace * keep[i];
        }
    }

    fn prefetch(&self, at: Range<usize>) {
        for slice in [self.log_rhos, self.q_values, self.targets] {
            prefetch(&slice[at.clone()]);
        }
    }

    #[inline(always)]
    fn finish(&mut self, at: Range<usize>, ahead: Ahead<'_, R>, _now: &[R], later: &[R]) {
        one_step(&mut self.targets[at.clone()], &self.rewards[at], ahead, later, self.gamma);
    }
}
