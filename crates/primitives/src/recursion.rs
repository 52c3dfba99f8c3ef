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

use std::hint::black_box;
use std::ops::Range;

use crate::error::Error;
use crate::exp::Real;
use crate::rollout::Layout;
use crate::rollout::Rollout;
use crate::simd::vectorized;

/// Steps of a tile. The scratch below and what it is made from fit into 32 KiB, even in `f64`.
const TILE: usize = 256;

/// Steps that are put together.
const LANES: usize = 8;

/// Room behind a tile, for [`LANES`] steps more, in whole lines of the cache.
const PAD: usize = 16;

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

    /// Has the processor fetch what only this needs of some steps, to read or to write.
    fn prefetch(&self, at: Range<usize>);

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
    let mut run = Run { rollout, recursion, scratch: Scratch::new() };
    // The last sequence first: then memory is walked through from its end to its beginning, and what
    // comes next is near.
    match rollout.layout {
        Layout::SequenceMajor { sequences, steps } => {
            (0..sequences).rev().for_each(|row| run.one(row, row * steps..(row + 1) * steps));
        }
        Layout::Ragged { offsets } => {
            let rows = offsets.windows(2).enumerate().rev();
            rows.for_each(|(row, pair)| run.one(row, pair[0]..pair[1]));
        }
        Layout::TimeMajor { sequences: 1, steps } => run.one(0, 0..steps),
        Layout::TimeMajor { steps, sequences } if sequences <= TILE => run.narrow(steps, sequences),
        Layout::TimeMajor { steps, sequences } => run.wide(steps, sequences),
    }
    Ok(())
}

/// Where one or several whole rows of sequences side by side are, and where the next ones will be, as far
/// as is known.
struct TileRanges {
    at: Range<usize>,
    soon: Range<usize>,
}

impl TileRanges {
    /// Steps whose next ones are those before them.
    fn backwards(at: Range<usize>) -> Self {
        Self { soon: at.start.saturating_sub(TILE)..at.start, at }
    }
}

struct Run<'a, R, C> {
    rollout: &'a Rollout<'a, R>,
    recursion: &'a mut C,
    scratch: Scratch<R>,
}

/// What a tile needs.
///
/// Each array begins with a line of the cache, wherever the stack begins.
#[repr(C, align(64))]
struct Scratch<R> {
    next: [R; TILE],
    keep: [R; TILE],
    a: [R; TILE + PAD],
    c: [R; TILE + PAD],
    b: [R; TILE + PAD],
    d: [R; TILE + PAD],
    /// The `x` of the tile's steps, and behind them those of the row after it.
    x: [R; 2 * TILE],
}

impl<R: Real> Scratch<R> {
    fn new() -> Self {
        let (tile, padded) = ([R::ZERO; TILE], [R::ZERO; TILE + PAD]);
        let (a, b, c, d) = (padded, padded, padded, padded);
        Self { next: tile, keep: tile, a, b, c, d, x: [R::ZERO; 2 * TILE] }
    }
}

impl<'a, R: Real, C: Recursion<R>> Run<'a, R, C> {
    /// One sequence, whose steps follow each other.
    fn one(&mut self, row: usize, all: Range<usize>) {
        let mut carry = [R::ZERO];
        let mut following = Some(&self.rollout.last_values[row..=row]);
        let mut end = all.end;
        while end > all.start {
            let start = all.start.max(end.saturating_sub(TILE));
            self.tile(TileRanges::backwards(start..end), following, &mut carry);
            following = self.values(start..start + 1);
            end = start;
        }
    }

    /// Sequences side by side, of which at least one whole row fits into a tile.
    fn narrow(&mut self, steps: usize, width: usize) {
        if width == 0 {
            return;
        }
        let rows = TILE / width;
        let mut carry = [R::ZERO; TILE];
        let mut following = Some(self.rollout.last_values);
        let mut end = steps;
        while end > 0 {
            let start = end.saturating_sub(rows);
            let at = start * width..end * width;
            self.tile(TileRanges::backwards(at.clone()), following, &mut carry[..width]);
            following = self.values(at.start..at.start + width);
            end = start;
        }
    }

    /// More sequences side by side than fit into a tile.
    fn wide(&mut self, steps: usize, sequences: usize) {
        let mut carry = vec![R::ZERO; PANEL.min(sequences)];
        for panel in (0..sequences).step_by(PANEL) {
            let width = PANEL.min(sequences - panel);
            let carry = &mut carry[..width];
            carry.fill(R::ZERO);
            for step in (0..steps).rev() {
                for start in (0..width).step_by(TILE) {
                    let carry = &mut carry[start..width.min(start + TILE)];
                    let columns = panel + start..panel + start + carry.len();
                    let at = step * sequences + columns.start..step * sequences + columns.end;
                    let following = if step + 1 == steps {
                        Some(&self.rollout.last_values[columns])
                    } else {
                        self.values(at.start + sequences..at.end + sequences)
                    };
                    let soon = at.end..self.rollout.rewards.len().min(at.end + TILE);
                    self.tile(TileRanges { at, soon }, following, carry);
                }
            }
        }
    }

    fn values(&self, at: Range<usize>) -> Option<&'a [R]> {
        self.rollout.values.map(|values| &values[at])
    }

    /// Takes some steps. `following` are the values of the row after them, and `carry` is its `x`, which
    /// becomes that of their first row.
    fn tile(&mut self, place: TileRanges, following: Option<&[R]>, carry: &mut [R]) {
        tile(self.rollout, self.recursion, &mut self.scratch, place, following, carry);
    }
}

/// See [`Run::tile`]. Arguments and not fields, so that the compiler knows that they do not overlap.
#[inline(never)]
fn tile<R: Real>(
    rollout: &Rollout<'_, R>,
    recursion: &mut impl Recursion<R>,
    scratch: &mut Scratch<R>,
    TileRanges { at, soon }: TileRanges,
    following: Option<&[R]>,
    carry: &mut [R],
) {
    let (len, width) = (at.len(), carry.len());
    rollout.prefetch(soon.clone());
    let (next, keep) = (&mut scratch.next[..len], &mut scratch.keep[..len]);
    rollout.ends(at.clone(), width, following, next, keep);
    recursion.prefetch(soon);
    let ahead = Ahead { next, keep };
    let (a, b) = (&mut scratch.a[..len + LANES], &mut scratch.b[..len + LANES]);
    let x = &mut scratch.x[..len + width];
    x[len..].copy_from_slice(carry);
    let room = Steps { sums: &mut scratch.c, products: &mut scratch.d };
    vectorized(
        #[inline(always)]
        || {
            recursion.coefficients(at.clone(), ahead, a, b);
            if width == 1 {
                run_serial(Steps { sums: a, products: b }, room, x);
            } else {
                run_rows(&a[..len], &b[..len], x, width);
            }
            recursion.finish(at, ahead, &x[..len], &x[width..]);
        },
    );
    carry.copy_from_slice(&x[..width]);
}

/// What is added to each step, and with what the one after it is multiplied.
struct Steps<'a, R> {
    sums: &'a mut [R],
    products: &'a mut [R],
}

/// `x[i] = a[i] + b[i] x[i + 1]`. `steps` and `room` have [`LANES`] more than there are steps.
///
/// Taken literally, each step waits for a multiplication and an addition of the one after it. So steps are
/// put together first, until there is `x[i] = A + B x[i + 8]`: that is done in vectors which wait for
/// nothing, and only then one vector waits for another.
#[inline(always)]
fn run_serial<'a, R: Real>(mut steps: Steps<'a, R>, mut room: Steps<'a, R>, x: &mut [R]) {
    let len = x.len() - 1;
    // Behind the end, steps that change nothing.
    for steps in [&mut steps, &mut room] {
        steps.sums[len..].fill(R::ZERO);
        steps.products[len..].fill(R::ONE);
    }
    // A compiler that knew this number would keep what it has read for the next step, which is slower
    // than vectors that read it again.
    put_together(&steps, black_box(1), &mut room, len);
    put_together(&room, 2, &mut steps, len);
    put_together(&steps, 4, &mut room, len);
    let mut later = [x[len]; LANES];
    let (first_a, a) = room.sums[..len].as_rchunks();
    let (first_b, b) = room.products[..len].as_rchunks();
    let (first_x, x) = x[..len].as_rchunks_mut();
    let mut at = a.len();
    while at > 0 {
        at -= 1;
        later = plus_product(&a[at], &b[at], &later);
        x[at] = later;
    }
    let missing = LANES - first_x.len();
    for i in 0..first_x.len() {
        first_x[i] = first_a[i] + first_b[i] * later[missing + i];
    }
}

/// `a + b c`.
#[inline(always)]
fn plus_product<R: Real>(a: &[R; LANES], b: &[R; LANES], c: &[R; LANES]) -> [R; LANES] {
    let mut sum = [R::ZERO; LANES];
    for i in 0..LANES {
        sum[i] = a[i] + b[i] * c[i];
    }
    sum
}

/// Puts each step and the one this many behind it together.
#[inline(always)]
fn put_together<R: Real>(
    steps: &Steps<'_, R>,
    distance: usize,
    out: &mut Steps<'_, R>,
    len: usize,
) {
    let (a, a_behind) = (&steps.sums[..len], &steps.sums[distance..][..len]);
    let (b, b_behind) = (&steps.products[..len], &steps.products[distance..][..len]);
    let (sums, products) = (&mut out.sums[..len], &mut out.products[..len]);
    for i in 0..len {
        sums[i] = a[i] + b[i] * a_behind[i];
        products[i] = b[i] * b_behind[i];
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
