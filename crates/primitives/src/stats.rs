//! Means and variances of what has been seen, without keeping it.
//!
//! A batch is taken in blocks. Of each block the mean is found first and the squares of differences
//! from it second, and then it is merged with what was there (Chan, Golub and LeVeque, 1983), so
//! that nothing cancels however large the mean is. Everything is `f64`.
//!
//! # Invariants
//!
//! 1. `mean` and `squares` are finite: what would make them anything else is refused, and then
//!    nothing of it is taken.

use crate::blocks::sum_of_eighths as sum;
use crate::exp::Real;
use crate::simd::vectorized;

/// Numbers that a block has: they stay in the first cache.
const BLOCK: usize = 2048;

/// A value, or the spread of values, is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the mean or the variance of the values is not finite")]
pub struct NotFinite {
    /// The first value that is not finite itself.
    pub index: Option<usize>,
}

/// Count, mean and variance of vectors of one length, for each place of the vector; numbers are
/// vectors of length one.
///
/// ```
/// use echoic_primitives::stats::Moments;
///
/// let mut moments = Moments::new(2);
/// moments.extend(&[1.0, 10.0, 3.0, 10.0])?;
/// assert_eq!((moments.count(), moments.mean()), (2, &[2.0, 10.0][..]));
/// assert_eq!((moments.variance(0, 0), moments.variance(1, 0)), (1.0, 0.0));
/// # Ok::<(), echoic_primitives::stats::NotFinite>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    count: u64,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl Moments {
    /// Those of no vectors of this length.
    pub fn new(dim: usize) -> Self {
        Self { count: 0, mean: vec![0.0; dim], squares: vec![0.0; dim] }
    }

    /// What [`Moments::count`], [`Moments::mean`] and [`Moments::squares`] said; `None` if they
    /// can't have.
    pub fn from_parts(count: u64, mean: Vec<f64>, squares: Vec<f64>) -> Option<Self> {
        let sound = mean.len() == squares.len()
            && mean.iter().all(|mean| mean.is_finite())
            && squares.iter().all(|squares| squares.is_finite() && *squares >= 0.0);
        sound.then_some(Self { count, mean, squares })
    }

    /// How many vectors there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How long they are.
    pub fn dim(&self) -> usize {
        self.mean.len()
    }

    /// Their means, zeros before the first.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The sums of the squares of differences from the mean.
    pub fn squares(&self) -> &[f64] {
        &self.squares
    }

    /// The variance at this place: the squares by the count less `ddof`, zero for too few.
    pub fn variance(&self, at: usize, ddof: u64) -> f64 {
        if self.count <= ddof { 0.0 } else { self.squares[at] / (self.count - ddof) as f64 }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.count = 0;
        self.mean.fill(0.0);
        self.squares.fill(0.0);
    }

    /// Takes in vectors, one after the other in `values`.
    ///
    /// # Errors
    ///
    /// When a value, or what it would make of the moments, is not finite. None was taken in then.
    ///
    /// # Panics
    ///
    /// When there is a part of a vector.
    pub fn extend<R: Real>(&mut self, values: &[R]) -> Result<(), NotFinite> {
        let dim = self.dim();
        if dim == 0 || values.is_empty() {
            return Ok(());
        }
        assert!(values.len().is_multiple_of(dim), "a part of a vector");
        if values.len() == 1 {
            return self.push(values[0].to_f64());
        }
        let mut batch = Self::new(dim);
        let mut block = Self::new(dim);
        vectorized(
            #[inline(always)]
            || {
                for values in values.chunks((BLOCK / dim).max(1) * dim) {
                    if dim == 1 {
                        (block.mean[0], block.squares[0]) = moments(values);
                    } else {
                        columns(values, &mut block.mean, &mut block.squares);
                    }
                    block.count = (values.len() / dim) as u64;
                    batch.join(&block);
                }
            },
        );
        self.merge(&batch).map_err(|_| NotFinite {
            index: values.iter().position(|value| !value.to_f64().is_finite()),
        })
    }

    /// Takes in what others were made of.
    ///
    /// # Errors
    ///
    /// When the result is not finite. Nothing was taken in then.
    ///
    /// # Panics
    ///
    /// When the vectors have different lengths.
    pub fn merge(&mut self, other: &Self) -> Result<(), NotFinite> {
        assert_eq!(self.dim(), other.dim(), "vectors of different lengths");
        let mut joined = self.clone();
        joined.join(other);
        if !joined.mean.iter().chain(&joined.squares).all(|value| value.is_finite()) {
            return Err(NotFinite { index: None });
        }
        *self = joined;
        Ok(())
    }

    /// `(x - mean) / std` of vectors, one after the other; zero wherever the standard deviation is
    /// smaller than `min_std`.
    ///
    /// # Panics
    ///
    /// When the lengths differ, or there is a part of a vector.
    pub fn normalise<R: Real>(&self, values: &[R], min_std: f64, out: &mut [R]) {
        assert_eq!(values.len(), out.len(), "lengths differ");
        let dim = self.dim();
        if dim == 0 {
            return;
        }
        assert!(values.len().is_multiple_of(dim), "a part of a vector");
        let inverse = |at| {
            let std = self.variance(at, 0).sqrt();
            if std < min_std || std == 0.0 { 0.0 } else { 1.0 / std }
        };
        if dim == 1 {
            let (mean, factor) = (self.mean[0], inverse(0));
            return vectorized(
                #[inline(always)]
                || {
                    let values = &values[..out.len()];
                    for at in 0..out.len() {
                        out[at] = scaled(values[at], mean, factor);
                    }
                },
            );
        }
        let factors: Vec<f64> = (0..dim).map(inverse).collect();
        vectorized(
            #[inline(always)]
            || {
                for (values, out) in values.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
                    for at in 0..dim {
                        out[at] = scaled(values[at], self.mean[at], factors[at]);
                    }
                }
            },
        );
    }

    /// Takes in one number, the only place of a vector (Welford, 1962).
    fn push(&mut self, value: f64) -> Result<(), NotFinite> {
        let difference = value - self.mean[0];
        let mean = self.mean[0] + difference / (self.count + 1) as f64;
        let squares = self.squares[0] + difference * (value - mean);
        if !(mean.is_finite() && squares.is_finite()) {
            return Err(NotFinite { index: (!value.is_finite()).then_some(0) });
        }
        (self.count, self.mean[0], self.squares[0]) = (self.count + 1, mean, squares);
        Ok(())
    }

    #[inline(always)]
    fn join(&mut self, other: &Self) {
        let count = self.count + other.count;
        if other.count == 0 {
            return;
        }
        let part = other.count as f64 / count as f64;
        let product = self.count as f64 * part;
        for at in 0..self.mean.len() {
            let difference = other.mean[at] - self.mean[at];
            self.mean[at] += difference * part;
            self.squares[at] += other.squares[at] + difference * difference * product;
        }
        self.count = count;
    }
}

/// Zero where the factor is, of whatever is a number.
#[inline(always)]
fn scaled<R: Real>(value: R, mean: f64, factor: f64) -> R {
    R::from_f64((value.to_f64() - mean) * factor)
}

/// The mean of a block, and the sum of the squares of differences from it.
#[inline(always)]
fn moments<R: Real>(values: &[R]) -> (f64, f64) {
    let first = values[0].to_f64();
    let mean = first + sum(values, |value| value.to_f64() - first) / values.len() as f64;
    let squared = |value: R| (value.to_f64() - mean) * (value.to_f64() - mean);
    (mean, sum(values, squared))
}

/// The same for each column of a block of rows.
#[inline(always)]
fn columns<R: Real>(values: &[R], mean: &mut [f64], squares: &mut [f64]) {
    let dim = mean.len();
    let first = &values[..dim];
    mean.fill(0.0);
    squares.fill(0.0);
    for row in values.chunks_exact(dim) {
        for at in 0..dim {
            mean[at] += row[at].to_f64() - first[at].to_f64();
        }
    }
    let rows = (values.len() / dim) as f64;
    for at in 0..dim {
        mean[at] = first[at].to_f64() + mean[at] / rows;
    }
    for row in values.chunks_exact(dim) {
        for at in 0..dim {
            let difference = row[at].to_f64() - mean[at];
            squares[at] += difference * difference;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * (1.0 + b.abs())
    }

    #[test]
    fn a_large_mean_cancels_nothing() {
        // The sum of squares of such numbers has no digit left for their variance.
        let values: Vec<f64> = (0..30_000).map(|at| 1e9 + f64::from(at % 3)).collect();
        let mut whole = Moments::new(1);
        whole.extend(&values).unwrap();
        let mut single = Moments::new(1);
        values.iter().for_each(|value| single.extend(&[*value]).unwrap());
        for moments in [whole, single] {
            assert!(near(moments.mean()[0], 1e9 + 1.0));
            assert!((moments.variance(0, 0) - 2.0 / 3.0).abs() < 1e-6);
        }
    }

    #[test]
    fn what_is_not_finite_is_refused_and_changes_nothing() {
        let mut moments = Moments::new(2);
        moments.extend(&[1.0, 2.0, 3.0, 5.0]).unwrap();
        let before = moments.clone();
        let error = moments.extend(&[0.0, 0.0, 1.0, f64::NAN]).unwrap_err();
        assert_eq!((error.index, &moments), (Some(3), &before));
        assert_eq!(moments.extend(&[1e200, 0.0, -1e200, 0.0]).unwrap_err().index, None);
        assert_eq!(moments, before);
        let mut number = Moments::new(1);
        assert_eq!(number.extend(&[f64::INFINITY]).unwrap_err().index, Some(0));
        assert_eq!(number, Moments::new(1));
    }

    #[test]
    fn without_a_spread_everything_is_normal() {
        let mut moments = Moments::new(2);
        let mut out = [1.0; 2];
        moments.normalise(&[5.0, 5.0], 1e-8, &mut out);
        assert_eq!(out, [0.0, 0.0]);
        moments.extend(&[1.0, 4.0, 1.0, 8.0]).unwrap();
        moments.normalise(&[5.0, 10.0], 1e-8, &mut out);
        assert_eq!(out, [0.0, 2.0]);
    }

    #[test]
    fn parts_that_can_not_be_are_refused() {
        let moments = Moments::from_parts(2, vec![1.0], vec![4.0]).unwrap();
        assert_eq!((moments.variance(0, 0), moments.variance(0, 1)), (2.0, 4.0));
        assert_eq!(Moments::from_parts(2, vec![1.0], vec![-1.0]), None);
        assert_eq!(Moments::from_parts(2, vec![f64::NAN], vec![1.0]), None);
        assert_eq!(Moments::from_parts(2, vec![1.0], vec![]), None);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_moments_of_the_whole(
            dim in 1usize..5,
            rows in prop::collection::vec(prop::collection::vec(-50.0..50.0f64, 4), 1..60),
            split in 0usize..60,
            offset in -1e6..1e6f64,
        ) {
            let rows: Vec<Vec<f64>> = rows
                .iter()
                .map(|row| row[..dim].iter().map(|value| value + offset).collect())
                .collect();
            let split = split.min(rows.len());
            let mut moments = Moments::new(dim);
            moments.extend(&rows[..split].concat()).unwrap();
            let mut other = Moments::new(dim);
            rows[split..].iter().for_each(|row| other.extend(row).unwrap());
            moments.merge(&other).unwrap();
            prop_assert_eq!(moments.count(), rows.len() as u64);
            for at in 0..dim {
                let mean = rows.iter().map(|row| row[at]).sum::<f64>() / rows.len() as f64;
                let squares: f64 = rows.iter().map(|row| (row[at] - mean).powi(2)).sum();
                prop_assert!(near(moments.mean()[at], mean));
                prop_assert!((moments.squares()[at] - squares).abs() < 1e-6 * (1.0 + squares));
            }
        }
    }
}
