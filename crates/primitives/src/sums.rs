//! Discounted sums of rewards.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::prefetch::prefetch;
use crate::recursion::{Ahead, Recursion, run};
use crate::rollout::Rollout;

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
