//! Rewards, values and ends of episodes.
//!
//! Step `t` is: observation `s_t`, then an action, then `rewards[t]`, and what came next. What the rest
//! of the episode is worth after step `t`, the *next value*, is
//!
//! - zero, if step `t` terminated the episode;
//! - else `final_values[t]`, if step `t` truncated it: the value of the last observation, which is no
//!   step's observation because the next step begins another episode;
//! - else the sequence's last value, if `t` is its last step;
//! - else `values[t + 1]`.
//!
//! Nothing runs from one episode into another. A value that is not used is not looked at, so it may be
//! NaN.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::flags::Flags;
use crate::layout::Layout;

/// Episodes that were cut off.
#[derive(Clone, Copy, Debug)]
pub struct Truncation<'a, R> {
    /// Which steps were the last before a cut.
    pub truncated: Flags<'a>,
    /// What the observation after such a step is worth; unused at all others.
    pub final_values: &'a [R],
}

/// What happened in one or several sequences of steps.
#[derive(Clone, Copy, Debug)]
pub struct Rollout<'a, R> {
    /// How the steps lie in each of the slices.
    pub layout: Layout<'a>,
    /// The reward of each step.
    pub rewards: &'a [R],
    /// The value of the observation that each step began with, or nothing for functions that have no
    /// use for it.
    pub values: Option<&'a [R]>,
    /// For each sequence, the value of the observation after its last step.
    pub last_values: &'a [R],
    /// Which steps terminated an episode.
    pub terminated: Flags<'a>,
    /// Which steps truncated one.
    pub truncation: Option<Truncation<'a, R>>,
}

impl<R: Real> Rollout<'_, R> {
    /// An error if lengths differ.
    pub fn check(&self) -> Result<(), Error> {
        self.layout.check()?;
        let expected = self.layout.len();
        let flags = |name, flags: &Flags<'_>| match flags.len() {
            Some(len) if len != expected => Err(Error::Length { name, len, expected }),
            _ => Ok(()),
        };
        Error::unless_length("rewards", self.rewards, expected)?;
        Error::unless_length("last_values", self.last_values, self.layout.sequences())?;
        flags("terminated", &self.terminated)?;
        if let Some(values) = self.values {
            Error::unless_length("values", values, expected)?;
        }
        if let Some(truncation) = &self.truncation {
            flags("truncated", &truncation.truncated)?;
            Error::unless_length("final_values", truncation.final_values, expected)?;
        }
        Ok(())
    }

    /// Writes the next values of some steps, and for each of them one or, where an episode ends with
    /// it, zero. `width` sequences lie side by side; `following` is what comes after the last row.
    #[inline(always)]
    pub(crate) fn ends(
        &self,
        at: Range<usize>,
        width: usize,
        following: Option<&[R]>,
        next: &mut [R],
        keep: &mut [R],
    ) {
        let inner = at.len() - width;
        let (next, next_last) = next.split_at_mut(inner);
        let (keep, keep_last) = keep.split_at_mut(inner);
        // Where values have no part, there are zeros.
        let zeros = [R::ZERO; ZEROS];
        let split = at.start + inner;
        match self.values {
            Some(values) => {
                let values = &values[at.start + width..at.end];
                self.ends_of(at.start..split, values, next, keep);
            }
            None => self.ends_of_zeros(at.start..split, &zeros, next, keep),
        }
        match following {
            Some(following) => self.ends_of(split..at.end, following, next_last, keep_last),
            None => self.ends_of_zeros(split..at.end, &zeros, next_last, keep_last),
        }
    }

    #[inline(always)]
    fn ends_of_zeros(&self, at: Range<usize>, zeros: &[R; ZEROS], next: &mut [R], keep: &mut [R]) {
        let mut done = 0;
        while done < at.len() {
            let len = ZEROS.min(at.len() - done);
            let start = at.start + done;
            let (next, keep) = (&mut next[done..done + len], &mut keep[done..done + len]);
            self.ends_of(start..start + len, &zeros[..len], next, keep);
            done += len;
        }
    }

    #[inline(always)]
    fn ends_of(&self, at: Range<usize>, values: &[R], next: &mut [R], keep: &mut [R]) {
        let Some(truncation) = &self.truncation else {
            return self.terminated.cut(at, values, next, keep);
        };
        let (mut ends, mut cuts) = ([R::ZERO; ZEROS], [R::ZERO; ZEROS]);
        let mut done = 0;
        while done < at.len() {
            let len = ZEROS.min(at.len() - done);
            let start = at.start + done;
            let (ends, cuts) = (&mut ends[..len], &mut cuts[..len]);
            self.terminated.mark(start..start + len, ends);
            truncation.truncated.mark(start..start + len, cuts);
            let finals = &truncation.final_values[start..start + len];
            let values = &values[done..done + len];
            choose(&mut next[done..done + len], ends, cuts, finals, values);
            neither(&mut keep[done..done + len], ends, cuts);
            done += len;
        }
    }
}

/// Steps for which zeros and marks are on the stack.
const ZEROS: usize = 64;

#[inline(always)]
fn choose<R: Real>(next: &mut [R], ends: &[R], cuts: &[R], finals: &[R], values: &[R]) {
    let len = next.len();
    let (ends, cuts) = (&ends[..len], &cuts[..len]);
    let (finals, values) = (&finals[..len], &values[..len]);
    for i in 0..len {
        let open = if cuts[i] == R::ZERO { values[i] } else { finals[i] };
        next[i] = if ends[i] == R::ZERO { open } else { R::ZERO };
    }
}

#[inline(always)]
fn neither<R: Real>(keep: &mut [R], ends: &[R], cuts: &[R]) {
    let len = keep.len();
    let (ends, cuts) = (&ends[..len], &cuts[..len]);
    for i in 0..len {
        keep[i] = if ends[i] + cuts[i] == R::ZERO { R::ONE } else { R::ZERO };
    }
}
