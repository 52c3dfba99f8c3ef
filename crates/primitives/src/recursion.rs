//! Running backwards through time: `x_t = a_t + b_t x_{t+1}`, with `x = 0` after the end of a sequence.
//!
//! Nearly every return and advantage is such a recursion, and they differ in `a`, `b` and what is made
//! of `x`. Steps are taken in tiles that stay in the processor's first cache. In a tile everything but
//! the recursion itself runs along memory, in vector instructions, for every layout alike: a tile has
//! whole rows of `width` sequences side by side, which is one where sequences follow each other.
//!
//! # Limitations
//!
//! A NaN or an infinity spreads to all earlier steps of its sequence, across the ends of episodes too,
//! because zero times it is NaN.

use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::layout::Layout;
use crate::rollout::Rollout;
use crate::simd::vectorized;

/// Steps of a tile. The scratch below and what it is made from fit into 32 KiB, even in `f64`.
const TILE: usize = 256;

/// Sequences side by side of which rows are taken as a whole. A wider panel would not stay in the
/// second cache from one row to the next; a narrower one touches more pages than it has to.
const PANEL: usize = 4096;

/// What follows each of some steps: see [`rollout`](crate::rollout).
#[derive(Clone, Copy)]
pub struct Ahead<'a, R> {
    /// What the rest of the episode is worth.
    pub next: &'a [R],
    /// One, or zero where an episode ends with the step.
    pub keep: &'a [R],
}

/// What is run, given in slices of the same few steps.
pub trait Recursion<R: Real> {
    /// Writes `a` and `b`.
    fn coefficients(&self, at: Range<usize>, ahead: Ahead<'_, R>, a: &mut [R], b: &mut [R]);

    /// Makes outputs of `now`, the `x` of the steps, and `later`, those of the steps after them.
    fn finish(&mut self, at: Range<usize>, ahead: Ahead<'_, R>, now: &[R], later: &[R]);
}

/// Writes `r_t + γ (next_t + x_{t+1})`, without the `x` where an episode ends.
#[inline(always)]
pub(crate) fn one_step<R: Real>(
    out: &mut [R],
    rewards: &[R],
    ahead: Ahead<'_, R>,
    later: &[R],
    gamma: R,
) {
    let len = out.len();
    let (rewards, later) = (&rewards[..len], &later[..len]);
    let (next, keep) = (&ahead.next[..len], &ahead.keep[..len]);
    for i in 0..len {
        out[i] = rewards[i] + gamma * (next[i] + keep[i] * later[i]);
    }
}

/// Runs it over all sequences of a rollout.
pub fn run<R: Real>(
    rollout: &Rollout<'_, R>,
    recursion: &mut impl Recursion<R>,
) -> Result<(), Error> {
    rollout.check()?;
    vectorized(
        #[inline(always)]
        || run_all(rollout, recursion),
    );
    Ok(())
}

#[inline(always)]
fn run_all<R: Real>(rollout: &Rollout<'_, R>, recursion: &mut impl Recursion<R>) {
    let mut scratch = Scratch::new();
    match rollout.layout {
        Layout::SequenceMajor { sequences, steps } => {
            for row in 0..sequences {
                run_one(rollout, recursion, &mut scratch, row, row * steps..(row + 1) * steps);
            }
        }
        Layout::Ragged { offsets } => {
            for (row, pair) in offsets.windows(2).enumerate() {
                run_one(rollout, recursion, &mut scratch, row, pair[0]..pair[1]);
            }
        }
        Layout::TimeMajor { sequences: 1, steps } => {
            run_one(rollout, recursion, &mut scratch, 0, 0..steps);
        }
        Layout::TimeMajor { steps, sequences } if sequences <= TILE => {
            run_narrow(rollout, recursion, &mut scratch, steps, sequences);
        }
        Layout::TimeMajor { steps, sequences } => {
            run_wide(rollout, recursion, &mut scratch, steps, sequences);
        }
    }
}

/// One sequence, whose steps follow each other.
#[inline(always)]
fn run_one<R: Real>(
    rollout: &Rollout<'_, R>,
    recursion: &mut impl Recursion<R>,
    scratch: &mut Scratch<R>,
    row: usize,
    all: Range<usize>,
) {
    let mut carry = [R::ZERO];
    let mut following = Some(&rollout.last_values[row..=row]);
    let mut end = all.end;
    while end > all.start {
        let start = all.start.max(end.saturating_sub(TILE));
        scratch.tile(rollout, recursion, start..end, 1, following, &mut carry);
        following = rollout.values.map(|values| &values[start..=start]);
        end = start;
    }
}

/// Sequences side by side, of which at least one whole row fits into a tile.
#[inline(always)]
fn run_narrow<R: Real>(
    rollout: &Rollout<'_, R>,
    recursion: &mut impl Recursion<R>,
    scratch: &mut Scratch<R>,
    steps: usize,
    width: usize,
) {
    if width == 0 {
        return;
    }
    let rows = TILE / width;
    let mut carry = [R::ZERO; TILE];
    let mut following = Some(rollout.last_values);
    let mut end = steps;
    while end > 0 {
        let start = end.saturating_sub(rows);
        let at = start * width..end * width;
        scratch.tile(rollout, recursion, at.clone(), width, following, &mut carry[..width]);
        following = rollout.values.map(|values| &values[at.start..at.start + width]);
        end = start;
    }
}

/// More sequences side by side than fit into a tile.
#[inline(always)]
fn run_wide<R: Real>(
    rollout: &Rollout<'_, R>,
    recursion: &mut impl Recursion<R>,
    scratch: &mut Scratch<R>,
    steps: usize,
    sequences: usize,
) {
    let mut carry = vec![R::ZERO; PANEL.min(sequences)];
    for panel in (0..sequences).step_by(PANEL) {
        let width = PANEL.min(sequences - panel);
        let carry = &mut carry[..width];
        carry.fill(R::ZERO);
        for step in (0..steps).rev() {
            let mut done = 0;
            while done < width {
                let column = panel + done;
                let carry = &mut carry[done..width.min(done + TILE)];
                done += carry.len();
                let columns = column..column + carry.len();
                let start = step * sequences + column;
                let after = start + sequences;
                let following = if step + 1 == steps {
                    Some(&rollout.last_values[columns])
                } else {
                    rollout.values.map(|values| &values[after..after + carry.len()])
                };
                let at = start..start + carry.len();
                scratch.tile(rollout, recursion, at, carry.len(), following, carry);
            }
        }
    }
}

/// What a tile needs.
struct Scratch<R> {
    next: [R; TILE],
    keep: [R; TILE],
    a: [R; TILE],
    b: [R; TILE],
    /// The `x` of the tile's steps, and behind them those of the row after it.
    x: [R; 2 * TILE],
}

impl<R: Real> Scratch<R> {
    #[inline(always)]
    fn new() -> Self {
        let zeros = [R::ZERO; TILE];
        Self { next: zeros, keep: zeros, a: zeros, b: zeros, x: [R::ZERO; 2 * TILE] }
    }

    /// Takes the steps at `at`, whole rows of `width`. `carry` is the `x` of the row after them, and
    /// becomes that of their first.
    #[inline(always)]
    fn tile(
        &mut self,
        rollout: &Rollout<'_, R>,
        recursion: &mut impl Recursion<R>,
        at: Range<usize>,
        width: usize,
        following: Option<&[R]>,
        carry: &mut [R],
    ) {
        let len = at.len();
        let (next, keep) = (&mut self.next[..len], &mut self.keep[..len]);
        rollout.ends(at.clone(), width, following, next, keep);
        let ahead = Ahead { next, keep };
        let (a, b) = (&mut self.a[..len], &mut self.b[..len]);
        recursion.coefficients(at.clone(), ahead, a, b);
        let x = &mut self.x[..len + width];
        x[len..].copy_from_slice(carry);
        if width == 1 {
            run_serial(a, b, x);
        } else {
            run_rows(a, b, x, width);
        }
        recursion.finish(at, ahead, &x[..len], &x[width..]);
        carry.copy_from_slice(&x[..width]);
    }
}

/// `x[i] = a[i] + b[i] x[i + 1]`.
///
/// Taken literally, each step waits for a multiplication and an addition of the one after it. So four
/// steps are put together first, `x[i] = A + B x[i + 4]`, which waits for nothing, and only every fourth
/// step waits for another. (Doubling the distance three times in vector instructions takes longer: it
/// writes all coefficients again each time.)
#[inline(always)]
fn run_serial<R: Real>(a: &[R], b: &[R], x: &mut [R]) {
    let mut at = a.len();
    let mut later = x[at];
    let (b, x) = (&b[..at], &mut x[..at]);
    while at >= 4 {
        at -= 4;
        let (a, b, x) = (&a[at..at + 4], &b[at..at + 4], &mut x[at..at + 4]);
        let (a3, b3) = (a[3], b[3]);
        let (a2, b2) = (a[2] + b[2] * a3, b[2] * b3);
        let (a1, b1) = (a[1] + b[1] * a2, b[1] * b2);
        let (a0, b0) = (a[0] + b[0] * a1, b[0] * b1);
        x[3] = a3 + b3 * later;
        x[2] = a2 + b2 * later;
        x[1] = a1 + b1 * later;
        later = a0 + b0 * later;
        x[0] = later;
    }
    while at > 0 {
        at -= 1;
        later = a[at] + b[at] * later;
        x[at] = later;
    }
}

/// `x[i] = a[i] + b[i] x[i + width]`, row by row.
#[inline(always)]
fn run_rows<R: Real>(a: &[R], b: &[R], x: &mut [R], width: usize) {
    let mut end = a.len();
    while end > 0 {
        let start = end - width;
        let (now, later) = x[start..].split_at_mut(width);
        run_row(now, &a[start..end], &b[start..end], later);
        end = start;
    }
}

#[inline(always)]
fn run_row<R: Real>(now: &mut [R], a: &[R], b: &[R], later: &[R]) {
    let len = now.len();
    let (a, b, later) = (&a[..len], &b[..len], &later[..len]);
    for i in 0..len {
        now[i] = a[i] + b[i] * later[i];
    }
}
