//! What came of each step: discounted sums of rewards, n-step returns, and upgoing policy updates.
//!
//! An n-step return looks at most `n` steps ahead, so it is no recursion from the end as the others are: each is
//! summed up by itself, from the far end of its window to the near one, many side by side.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::gae::sums as add;
use crate::recursion::{Ahead, Recursion, one_step, run};
use crate::rollout::{Layout, Rollout};
use crate::simd::{prefetch, vectorized};

/// How many n-step returns are summed up side by side: enough to fill vectors, few enough to stay in registers.
const LANES: usize = 32;

/// How many n-step returns a tile has at least.
const TILE: usize = 512;

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

/// The rewards of the next `n` steps, and what the rest is worth:
///
/// `G_t = r_t + γ r_{t+1} + … + γ^{m−1} r_{t+m−1} + γ^m next_{t+m−1}`,
///
/// where `m` is `n`, or fewer if the episode or the sequence ends before (Sutton and Barto, Reinforcement
/// Learning, 7.1). Takes time proportional to `n`, but no more than if `n` were the length of a sequence.
///
/// # Errors
///
/// Lengths differ, the rollout has no values, or `n` is zero.
pub fn nstep_returns<R: Real>(
    rollout: &Rollout<'_, R>,
    n: usize,
    gamma: R,
    returns: &mut [R],
) -> Result<(), Error> {
    rollout.check()?;
    let len = rollout.layout.len();
    let values = rollout.values.unwrap_or_default();
    Error::unless_length("values", values, len)?;
    Error::unless_length("returns", returns, len)?;
    if n == 0 {
        return Err(Error::NoSteps);
    }
    Windows { rollout, values, n, gamma }.run(returns);
    Ok(())
}

struct Windows<'a, R> {
    rollout: &'a Rollout<'a, R>,
    values: &'a [R],
    n: usize,
    gamma: R,
}

/// Some columns of some rows of `stride` steps each, at a place in the rollout's slices.
#[derive(Clone, Copy)]
struct Block<'a, R> {
    first: usize,
    rows: usize,
    width: usize,
    stride: usize,
    last_values: &'a [R],
}

impl<R: Real> Windows<'_, R> {
    fn run(&self, returns: &mut [R]) {
        let mut scratch = Scratch::default();
        let last_values = self.rollout.last_values;
        let row = |row: usize, at: Range<usize>| Block {
            first: at.start,
            rows: at.len(),
            width: 1,
            stride: 1,
            last_values: &last_values[row..=row],
        };
        match self.rollout.layout {
            Layout::SequenceMajor { sequences, steps } => {
                for n in 0..sequences {
                    self.block(row(n, n * steps..(n + 1) * steps), &mut scratch, returns);
                }
            }
            Layout::Ragged { offsets } => {
                for (n, pair) in offsets.windows(2).enumerate() {
                    self.block(row(n, pair[0]..pair[1]), &mut scratch, returns);
                }
            }
            Layout::TimeMajor { steps, sequences } => {
                for first in (0..sequences).step_by(LANES) {
                    let width = LANES.min(sequences - first);
                    let last_values = &last_values[first..first + width];
                    let block = Block { first, rows: steps, width, stride: sequences, last_values };
                    self.block(block, &mut scratch, returns);
                }
            }
        }
    }

    #[inline(never)]
    fn block(&self, block: Block<'_, R>, scratch: &mut Scratch<R>, returns: &mut [R]) {
        vectorized(
            #[inline(always)]
            || self.tiles(block, scratch, returns),
        );
    }

    /// Tiles of rows, each with the windows that reach out of it.
    #[inline(always)]
    fn tiles(&self, block: Block<'_, R>, scratch: &mut Scratch<R>, returns: &mut [R]) {
        let Block { first, rows, width, stride, .. } = block;
        let n = self.n.min(rows.max(1));
        // At least as many rows as a window has, so that not more is looked at than summed up.
        let tile = (TILE / width).max(n);
        for start in (0..rows).step_by(tile) {
            let end = rows.min(start + tile);
            let seen = rows.min(end + n - 1);
            scratch.load(self, block, start..seen);
            // Beyond the sequence there is nothing to add.
            let beyond = (end + n - 1 - seen) * width;
            scratch.a.extend(std::iter::repeat_n(R::ZERO, beyond));
            scratch.b.extend(std::iter::repeat_n(R::ZERO, beyond));
            let len = (end - start) * width;
            scratch.sums.clear();
            scratch.sums.resize(len, R::ZERO);
            sum_windows(&scratch.a, &scratch.b, n, width, &mut scratch.sums);
            // One piece, if rows follow each other.
            let piece = if width == stride { len } else { width };
            let mut done = 0;
            while done < len {
                let at = first + (start + done / width) * stride;
                let values = &self.values[at..at + piece];
                let sums = &scratch.sums[done..done + piece];
                done += piece;
                add(&mut returns[at..at + piece], sums, values);
            }
        }
    }
}

/// What a tile needs: how much better each step was than expected, and the discount after it.
#[derive(Default)]
struct Scratch<R> {
    a: Vec<R>,
    b: Vec<R>,
    sums: Vec<R>,
}

impl<R: Real> Scratch<R> {
    #[inline(always)]
    fn load(&mut self, sums: &Windows<'_, R>, block: Block<'_, R>, steps: Range<usize>) {
        let Block { first, rows, width, stride, last_values } = block;
        self.a.clear();
        self.b.clear();
        if width == stride {
            // Rows follow each other: one piece.
            let end = first + steps.end * stride;
            let following =
                if steps.end == rows { last_values } else { &sums.values[end..end + width] };
            self.load_piece(sums, first + steps.start * stride..end, width, following);
            return;
        }
        for step in steps {
            let start = first + step * stride;
            let after = start + stride;
            let following =
                if step + 1 == rows { last_values } else { &sums.values[after..after + width] };
            self.load_piece(sums, start..start + width, width, following);
        }
    }

    #[inline(always)]
    fn load_piece(&mut self, sums: &Windows<'_, R>, at: Range<usize>, width: usize, next: &[R]) {
        let from = self.a.len();
        self.a.resize(from + at.len(), R::ZERO);
        self.b.resize(from + at.len(), R::ZERO);
        let (a, b) = (&mut self.a[from..], &mut self.b[from..]);
        sums.rollout.ends(at.clone(), width, Some(next), a, b);
        errors(a, b, &sums.rollout.rewards[at.clone()], &sums.values[at], sums.gamma);
    }
}

/// Makes of next values in `a` how much better a step was than expected, and discounts in `b`.
#[inline(always)]
fn errors<R: Real>(a: &mut [R], b: &mut [R], rewards: &[R], values: &[R], gamma: R) {
    let len = a.len();
    let (b, rewards, values) = (&mut b[..len], &rewards[..len], &values[..len]);
    for i in 0..len {
        a[i] = rewards[i] + gamma * a[i] - values[i];
        b[i] = gamma * b[i];
    }
}

/// `sums[i] = a[i] + b[i] (a[i + width] + b[i + width] (…))`, `n` deep.
#[inline(always)]
fn sum_windows<R: Real>(a: &[R], b: &[R], n: usize, width: usize, sums: &mut [R]) {
    let len = sums.len();
    let mut at = 0;
    while at + LANES <= len {
        let mut total = [R::ZERO; LANES];
        let mut from = at + n * width;
        while from > at {
            from -= width;
            let (a, b) = (&a[from..from + LANES], &b[from..from + LANES]);
            for i in 0..LANES {
                total[i] = a[i] + b[i] * total[i];
            }
        }
        sums[at..at + LANES].copy_from_slice(&total);
        at += LANES;
    }
    let sums = &mut sums[at..];
    let mut from = at + n * width;
    while from > at {
        from -= width;
        let (a, b) = (&a[from..from + sums.len()], &b[from..from + sums.len()]);
        for i in 0..sums.len() {
            sums[i] = a[i] + b[i] * sums[i];
        }
    }
}
