//! What came of each step: discounted sums of rewards, and upgoing policy updates.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::recursion::{Ahead, Recursion, one_step, run};
use crate::rollout::Rollout;
use crate::simd::prefetch;

/// What each step and those after it in the episode earned: `G_t = r_t + γ G_{t+1}`.
///
/// After a truncation `G_{t+1}` is the final value, after the end of a sequence its last value. Values of
/// steps are not used.
///
/// # Errors
///
/// Lengths differ.
pub fn discounted_sums<R: Real>(
    rollout: &Rollout<'_, R>,
    gamma: R,
    sums: &mut [R],
) -> Result<(), Error> {
    Error::unless_length("sums", sums, rollout.layout.len())?;
    let rollout = Rollout { values: None, ..*rollout };
    run(&rollout, &mut Sums { rewards: rollout.rewards, gamma, sums })
}

struct Sums<'a, R> {
    rewards: &'a [R],
    gamma: R,
    sums: &'a mut [R],
}

impl<R: Real> Recursion<R> for Sums<'_, R> {
    #[inline(always)]
    fn coefficients(&self, at: Range<usize>, ahead: Ahead<'_, R>, a: &mut [R], b: &mut [R]) {
        let len = at.len();
        let (rewards, next, keep) = (&self.rewards[at], &ahead.next[..len], &ahead.keep[..len]);
        let (a, b) = (&mut a[..len], &mut b[..len]);
        for i in 0..len {
            a[i] = rewards[i] + self.gamma * next[i];
            b[i] = self.gamma * keep[i];
        }
    }

    fn prefetch(&self, at: Range<usize>) {
        prefetch(&self.sums[at]);
    }

    #[inline(always)]
    fn finish(&mut self, at: Range<usize>, _ahead: Ahead<'_, R>, now: &[R], _later: &[R]) {
        self.sums[at].copy_from_slice(now);
    }
}

/// Returns that follow the trajectory while it does at least as well as expected, and the expectation
/// from there on (Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement
/// learning"), and how much better than expected they are:
///
/// `G_t = r_t + γ (G_{t+1} if r_{t+1} + γ next_{t+1} ≥ v_{t+1} else v_{t+1})`, `A_t = G_t − v_t`.
///
/// # Errors
///
/// Lengths differ, or the rollout has no values.
pub fn upgo<R: Real>(
    rollout: &Rollout<'_, R>,
    gamma: R,
    returns: &mut [R],
    advantages: &mut [R],
) -> Result<(), Error> {
    let len = rollout.layout.len();
    let (rewards, values) = (rollout.rewards, rollout.values.unwrap_or_default());
    Error::unless_length("values", values, len)?;
    Error::unless_length("returns", returns, len)?;
    Error::unless_length("advantages", advantages, len)?;
    run(rollout, &mut Upgo { rewards, values, gamma, returns, advantages })
}

/// Writes `a - b`.
#[inline(always)]
fn differences<R: Real>(out: &mut [R], a: &[R], b: &[R]) {
    let len = out.len();
    let (a, b) = (&a[..len], &b[..len]);
    for i in 0..len {
        out[i] = a[i] - b[i];
    }
}

/// The `x` of a step is by how much the step before it sees more than the step's value: `G_t − v_t` if
/// the step did as well as expected, else nothing.
struct Upgo<'a, R> {
    rewards: &'a [R],
    values: &'a [R],
    gamma: R,
    returns: &'a mut [R],
    advantages: &'a mut [R],
}

impl<R: Real> Recursion<R> for Upgo<'_, R> {
    #[inline(always)]
    fn coefficients(&self, at: Range<usize>, ahead: Ahead<'_, R>, a: &mut [R], b: &mut [R]) {
        let len = at.len();
        let (rewards, values) = (&self.rewards[at.clone()], &self.values[at]);
        let (next, keep) = (&ahead.next[..len], &ahead.keep[..len]);
        let (a, b) = (&mut a[..len], &mut b[..len]);
        for i in 0..len {
            let expected = rewards[i] + self.gamma * next[i];
            let up = expected >= values[i];
            a[i] = if up { expected - values[i] } else { R::ZERO };
            b[i] = if up { self.gamma * keep[i] } else { R::ZERO };
        }
    }

    fn prefetch(&self, at: Range<usize>) {
        for slice in [&*self.returns, self.advantages] {
            prefetch(&slice[at.clone()]);
        }
    }

    #[inline(always)]
    fn finish(&mut self, at: Range<usize>, ahead: Ahead<'_, R>, _now: &[R], later: &[R]) {
        let returns = &mut self.returns[at.clone()];
        one_step(returns, &self.rewards[at.clone()], ahead, later, self.gamma);
        differences(&mut self.advantages[at.clone()], returns, &self.values[at]);
    }
}
