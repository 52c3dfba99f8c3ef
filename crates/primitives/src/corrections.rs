//! Corrections for another policy having acted: V-trace for values of states, Retrace(λ) for those of actions.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::gae::sums;
use crate::recursion::{Ahead, Recursion, one_step, run};
use crate::rollout::Rollout;
use crate::simd::prefetch;

/// How ratios of probabilities are clipped.
#[derive(Clone, Copy, Debug)]
pub struct Clips<R> {
    /// The largest weight of a step's own error, `ρ̄`.
    pub rho: R,
    /// The largest weight with which a later error counts, `c̄`.
    pub c: R,
    /// The largest weight of an advantage.
    pub advantage: R,
    /// With which all weights of later errors are multiplied, `λ`.
    pub lam: R,
}

/// V-trace targets and the advantages for the policy's gradient (Espeholt et al. 2018,
/// arXiv:1802.01561). With `w_t = exp(log_rhos[t])`, `ρ_t = min(ρ̄, w_t)` and `c_t = λ min(c̄, w_t)`:
///
/// `δ_t = ρ_t (r_t + γ next_t − v_t)`, `vs_t − v_t = δ_t + γ c_t (vs_{t+1} − v_{t+1})`,
/// `A_t = min(ρ̄_A, w_t) (r_t + γ vs_{t+1} − v_t)`.
///
/// At the end of an episode or sequence `vs_{t+1}` is the next value.
///
/// # Errors
///
/// Lengths differ, or the rollout has no values.
pub fn vtrace<R: Real>(
    rollout: &Rollout<'_, R>,
    log_rhos: &[R],
    gamma: R,
    clips: Clips<R>,
    targets: &mut [R],
    advantages: &mut [R],
) -> Result<(), Error> {
    let len = rollout.layout.len();
    let (rewards, values) = (rollout.rewards, rollout.values.unwrap_or_default());
    Error::unless_length("log_rhos", log_rhos, len)?;
    Error::unless_length("values", values, len)?;
    Error::unless_length("targets", targets, len)?;
    Error::unless_length("advantages", advantages, len)?;
    run(rollout, &mut Vtrace { log_rhos, rewards, values, gamma, clips, targets, advantages })
}

/// The `x` of a step is `vs_t − v_t`.
struct Vtrace<'a, R> {
    log_rhos: &'a [R],
    rewards: &'a [R],
    values: &'a [R],
    gamma: R,
    clips: Clips<R>,
    targets: &'a mut [R],
    advantages: &'a mut [R],
}

/// `out = (out - values) min(limit, exp(log_rhos))`.
#[inline(always)]
fn weigh<R: Real>(out: &mut [R], values: &[R], log_rhos: &[R], limit: R) {
    let len = out.len();
    let (values, log_rhos) = (&values[..len], &log_rhos[..len]);
    for i in 0..len {
        out[i] = (out[i] - values[i]) * at_most(limit, log_rhos[i].exp());
    }
}

/// The smaller one. NaN stays NaN, so that a broken ratio is seen.
#[inline(always)]
fn at_most<R: Real>(limit: R, value: R) -> R {
    if value > limit { limit } else { value }
}

impl<R: Real> Recursion<R> for Vtrace<'_, R> {
    #[inline(always)]
    fn coefficients(&self, at: Range<usize>, ahead: Ahead<'_, R>, a: &mut [R], b: &mut [R]) {
        let len = at.len();
        let (rewards, values) = (&self.rewards[at.clone()], &self.values[at.clone()]);
        let (log_rhos, next, keep) = (&self.log_rhos[at], &ahead.next[..len], &ahead.keep[..len]);
        let (a, b) = (&mut a[..len], &mut b[..len]);
        let (Clips { rho, c, lam, .. }, gamma) = (self.clips, self.gamma);
        for i in 0..len {
            let weight = log_rhos[i].exp();
            a[i] = at_most(rho, weight) * (rewards[i] + gamma * next[i] - values[i]);
            b[i] = gamma * lam * at_most(c, weight) * keep[i];
        }
    }

    fn prefetch(&self, at: Range<usize>) {
        for slice in [self.log_rhos, self.targets, self.advantages] {
            prefetch(&slice[at.clone()]);
        }
    }

    #[inline(always)]
    fn finish(&mut self, at: Range<usize>, ahead: Ahead<'_, R>, now: &[R], later: &[R]) {
        let (values, log_rhos) = (&self.values[at.clone()], &self.log_rhos[at.clone()]);
        sums(&mut self.targets[at.clone()], now, values);
        let advantages = &mut self.advantages[at.clone()];
        one_step(advantages, &self.rewards[at], ahead, later, self.gamma);
        weigh(advantages, values, log_rhos, self.clips.advantage);
    }
}

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
