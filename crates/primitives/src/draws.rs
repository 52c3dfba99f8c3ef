//! Draws in proportion to the exponentials of scores, with their importance weights.
//!
//! Item `i` is drawn with the probability `p_i = exp(score_i / T) / Σ exp(score_j / T)`, with replacement.
//! The largest score is subtracted from all before anything is exponentiated, so that nothing overflows.
//! Scores are read twice and the exponentials are not kept: sums of blocks say in which block a draw falls,
//! and that block is computed again, once for all draws that fall there.
//!
//! Where random numbers come from is the caller's: [`draw`] asks for numbers from 0 to below 1.

use crate::exp::Real;
use crate::simd::vectorized;

/// Scores of a block. Fewer would make more sums, more would make the second look at a block dearer.
const BLOCK: usize = 256;

/// Why nothing can be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// A score is NaN, or infinitely large.
    #[error("scores must be numbers below infinity, but that at {0} is not")]
    Score(usize),
    /// All scores are minus infinity, or there are none.
    #[error("nothing can be drawn: there is no score above minus infinity")]
    Nothing,
}

/// Draws as many items as `indices` has room for, and weighs each by `(N p_i)^-beta`, divided by the
/// largest of these among what was drawn.
///
/// A score of minus infinity is never drawn. `temperature` must be a normal number above zero, and `beta`
/// finite and at least zero. `unit` is asked once for each draw, in their order.
///
/// ```
/// use echoic_primitives::draws::draw;
///
/// let (mut indices, mut weights) = ([0; 2], [0.0; 2]);
/// let mut numbers = [0.1, 0.9].into_iter();
/// draw(&[0.0, 2f64.ln()], 1.0, 1.0, || numbers.next().unwrap(), &mut indices, &mut weights)?;
/// assert_eq!((indices, weights), ([0, 1], [1.0, 0.5]));
/// # Ok::<(), echoic_primitives::draws::DrawError>(())
/// ```
///
/// # Errors
///
/// When a score is none, or nothing can be drawn.
///
/// # Panics
///
/// When the lengths of `indices` and `weights` differ.
pub fn draw<R: Real>(
    scores: &[R],
    temperature: f64,
    beta: f64,
    mut unit: impl FnMut() -> f64,
    indices: &mut [i64],
    weights: &mut [f32],
) -> Result<(), DrawError> {
    assert_eq!(indices.len(), weights.len(), "lengths differ");
    let top = top(scores)?;
    let masses = Masses { top, inverse: 1.0 / temperature };
    let ends = vectorized(
        #[inline(always)]
        || masses.ends(scores),
    );
    let total = ends.last().copied().unwrap_or_default();
    // In the order of the scores, each block is needed once.
    let mut targets: Vec<(f64, usize)> =
        (0..indices.len()).map(|draw| (unit() * total, draw)).collect();
    targets.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    vectorized(
        #[inline(always)]
        || masses.find(scores, &ends, &targets, indices),
    );
    weigh(scores, temperature, beta, indices, weights);
    Ok(())
}

/// The largest score.
fn top<R: Real>(scores: &[R]) -> Result<f64, DrawError> {
    let (top, sound) = vectorized(
        #[inline(always)]
        || {
            let (whole, rest) = scores.as_chunks::<8>();
            let (mut tops, mut sound) = ([f64::NEG_INFINITY; 8], [true; 8]);
            for chunk in whole {
                for at in 0..8 {
                    let score = chunk[at].to_f64();
                    // False for NaN too.
                    sound[at] &= score < f64::INFINITY;
                    tops[at] = if score > tops[at] { score } else { tops[at] };
                }
            }
            for score in rest {
                let score = score.to_f64();
                sound[0] &= score < f64::INFINITY;
                tops[0] = tops[0].max(score);
            }
            (tops.into_iter().fold(f64::NEG_INFINITY, f64::max), sound == [true; 8])
        },
    );
    if !sound {
        let none = |score: &R| score.to_f64().is_nan() || score.to_f64() == f64::INFINITY;
        return Err(DrawError::Score(scores.iter().position(none).unwrap_or_default()));
    }
    if top == f64::NEG_INFINITY { Err(DrawError::Nothing) } else { Ok(top) }
}

/// `exp((score - top) / T)`: from 0 to 1, and 1 for the largest score.
#[derive(Clone, Copy)]
struct Masses {
    top: f64,
    inverse: f64,
}

impl Masses {
    #[inline(always)]
    fn of<R: Real>(self, score: R) -> f64 {
        ((score.to_f64() - self.top) * self.inverse).exp()
    }

    /// The sum of the masses up to the end of each block.
    #[inline(always)]
    fn ends<R: Real>(self, scores: &[R]) -> Vec<f64> {
        let mut total = 0.0;
        let mut ends = Vec::with_capacity(scores.len().div_ceil(BLOCK));
        for block in scores.chunks(BLOCK) {
            let (whole, rest) = block.as_chunks::<8>();
            let mut lanes = [0.0; 8];
            for chunk in whole {
                for at in 0..8 {
                    lanes[at] += self.of(chunk[at]);
                }
            }
            for score in rest {
                lanes[0] += self.of(*score);
            }
            let [a, b, c, d, e, f, g, h] = lanes;
            total += ((a + e) + (c + g)) + ((b + f) + (d + h));
            ends.push(total);
        }
        ends
    }

    /// The item that each target falls on; targets are in order.
    #[inline(always)]
    fn find<R: Real>(
        self,
        scores: &[R],
        ends: &[f64],
        targets: &[(f64, usize)],
        indices: &mut [i64],
    ) {
        // The last block with any mass: rounding may lift a target to the total.
        let last = ends.partition_point(|end| *end < ends[ends.len() - 1]);
        let mut masses = [0.0; BLOCK];
        let (mut block, mut len) = (0, 0);
        let (mut item, mut reached) = (0, 0.0);
        for (target, draw) in targets {
            if len == 0 || *target >= ends[block] {
                let next = block + ends[block..].partition_point(|end| end <= target);
                let next = next.min(last);
                if len == 0 || next != block {
                    block = next;
                    let scores = &scores[block * BLOCK..scores.len().min((block + 1) * BLOCK)];
                    len = scores.len();
                    for at in 0..len {
                        masses[at] = self.of(scores[at]);
                    }
                    // The last items may have none, and rounding must not have them drawn.
                    while len > 1 && masses[len - 1] == 0.0 {
                        len -= 1;
                    }
                    item = 0;
                    reached = if block == 0 { 0.0 } else { ends[block - 1] };
                }
            }
            while item + 1 < len && reached + masses[item] <= *target {
                reached += masses[item];
                item += 1;
            }
            indices[*draw] = (block * BLOCK + item) as i64;
        }
    }
}

/// `(p_lowest / p_i)^beta`, by logarithms: the number of items cancels, and no probability underflows.
fn weigh<R: Real>(scores: &[R], temperature: f64, beta: f64, indices: &[i64], weights: &mut [f32]) {
    if beta == 0.0 {
        return weights.fill(1.0);
    }
    let score = |index: &i64| scores[*index as usize].to_f64();
    let lowest = indices.iter().map(score).fold(f64::INFINITY, f64::min);
    for (weight, index) in weights.iter_mut().zip(indices) {
        *weight = (-beta * ((score(index) - lowest) / temperature)).exp() as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`draw`] draws for numbers that are given.
    fn drawn(scores: &[f64], temperature: f64, units: &[f64]) -> Vec<i64> {
        let (mut indices, mut weights) = (vec![0; units.len()], vec![0.0; units.len()]);
        let mut units = units.iter();
        draw(scores, temperature, 0.4, || *units.next().unwrap(), &mut indices, &mut weights)
            .unwrap();
        indices
    }

    #[test]
    fn each_draw_falls_where_its_number_says() {
        assert_eq!(drawn(&[0.0; 4], 1.0, &[0.9, 0.0, 0.3, 0.5, 0.9]), [3, 0, 1, 2, 3]);
        let many = vec![1.0; 1000];
        let units: Vec<f64> = (0..1000).rev().map(|at| (f64::from(at) + 0.5) / 1000.0).collect();
        assert_eq!(drawn(&many, 2.0, &units), (0..1000).rev().collect::<Vec<i64>>());
    }

    #[test]
    fn nothing_overflows() {
        assert_eq!(drawn(&[1e308, -1e308, 1e308], 1e-300, &[0.4, 0.6]), [0, 2]);
        assert_eq!(drawn(&[-1e300, -2e300], 1.0, &[0.999_999]), [0]);
        let mut weights = [0.0; 2];
        draw(&[1000.0, 999.0], 1.0, 1.0, || 0.5, &mut [0; 2], &mut weights).unwrap();
        assert_eq!(weights, [1.0, 1.0]);
    }

    #[test]
    fn what_has_no_mass_is_never_drawn() {
        let none = f64::NEG_INFINITY;
        let below_one = 1.0 - f64::EPSILON / 2.0;
        assert_eq!(drawn(&[none, 0.0, none, 0.0, none], 1.0, &[0.0, below_one]), [1, 3]);
        let mut long = vec![none; 3000];
        (long[700], long[900]) = (5.0, 5.0);
        assert_eq!(drawn(&long, 1.0, &[below_one, 0.0, 0.6]), [900, 700, 900]);
    }

    #[test]
    fn scores_that_are_none_are_refused() {
        let draw = |scores: &[f64]| draw(scores, 1.0, 0.4, || 0.5, &mut [0], &mut [0.0]);
        let mut scores = vec![0.0; 20];
        scores[17] = f64::NAN;
        assert_eq!(draw(&scores), Err(DrawError::Score(17)));
        scores[3] = f64::INFINITY;
        assert_eq!(draw(&scores), Err(DrawError::Score(3)));
        assert_eq!(draw(&[]), Err(DrawError::Nothing));
        assert_eq!(draw(&[f64::NEG_INFINITY; 9]), Err(DrawError::Nothing));
    }
}
