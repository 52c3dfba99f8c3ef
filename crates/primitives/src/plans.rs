//! Latent plans: vectors that say where an agent is heading, and how much one differs from others.
//!
//! [`AveragePlan`] is what an agent usually plans. [`surprise`] is how far a plan is from that, and
//! [`temporal_kl`] how far it is from the plan before it. Everything is computed in `f64`, whatever the
//! plans are stored in, and sums have a fixed order.

use crate::error::Error;
use crate::exp::Real;

/// The exponential moving average of plans that went by.
///
/// The first plan initialises it; each later one moves it by `1 - decay` of the way.
///
/// ```
/// use echoic_primitives::plans::AveragePlan;
///
/// let mut average = AveragePlan::new(2, 0.75);
/// assert_eq!(average.plan(), None);
/// average.extend(&[1.0, 2.0, 5.0, 2.0])?;
/// assert_eq!(average.plan(), Some(&[2.0, 2.0][..]));
/// # Ok::<(), echoic_primitives::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct AveragePlan {
    decay: f64,
    count: u64,
    /// Finite, since what is not is refused. Zeros before the first plan.
    mean: Vec<f64>,
}

impl AveragePlan {
    /// That of no plans of this length.
    pub fn new(dim: usize, decay: f64) -> Self {
        Self { decay, count: 0, mean: vec![0.0; dim] }
    }

    /// What [`AveragePlan::decay`], [`AveragePlan::count`] and [`AveragePlan::raw`] said; `None` if
    /// they can't have.
    pub fn from_parts(decay: f64, count: u64, mean: Vec<f64>) -> Option<Self> {
        let sound = (0.0..=1.0).contains(&decay) && mean.iter().all(|value| value.is_finite());
        sound.then_some(Self { decay, count, mean })
    }

    /// How much of it each plan leaves.
    pub fn decay(&self) -> f64 {
        self.decay
    }

    /// How many plans went by.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How long plans are.
    pub fn dim(&self) -> usize {
        self.mean.len()
    }

    /// The average; `None` before the first plan.
    pub fn plan(&self) -> Option<&[f64]> {
        (self.count > 0).then_some(&self.mean)
    }

    /// The average, or zeros before the first plan.
    pub fn raw(&self) -> &[f64] {
        &self.mean
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.count = 0;
        self.mean.fill(0.0);
    }

    /// `‖plan - average‖²`, where the average of no plans is zero.
    ///
    /// # Panics
    ///
    /// When the plan is shorter than the average.
    #[inline]
    pub fn distance<R: Real>(&self, plan: &[R]) -> f64 {
        squared_distance(&plan[..self.mean.len()], &self.mean)
    }

    /// The distance of a plan of finite numbers from the average of those before it, which then takes it in.
    ///
    /// # Panics
    ///
    /// When the plan is shorter than the average.
    #[inline]
    pub fn step<R: Real>(&mut self, plan: &[R]) -> f64 {
        let distance = self.distance(plan);
        self.take_in(plan);
        distance
    }

    /// Takes in plans, one after the other.
    ///
    /// # Errors
    ///
    /// When there is a part of a plan, or a number is not finite: the average would never recover from
    /// it. None was taken in then.
    pub fn extend<R: Real>(&mut self, plans: &[R]) -> Result<(), Error> {
        let dim = self.dim();
        if dim == 0 || !plans.len().is_multiple_of(dim) {
            return Err(Error::Length { name: "plan", len: plans.len(), expected: dim });
        }
        Error::unless_finite("plan", plans)?;
        plans.chunks_exact(dim).for_each(|plan| self.take_in(plan));
        Ok(())
    }

    fn take_in<R: Real>(&mut self, plan: &[R]) {
        if self.count == 0 {
            for (mean, value) in self.mean.iter_mut().zip(plan) {
                *mean = value.to_f64();
            }
        } else {
            for (mean, value) in self.mean.iter_mut().zip(plan) {
                *mean = self.decay * *mean + (1.0 - self.decay) * value.to_f64();
            }
        }
        self.count += 1;
    }
}

/// How much a squared distance and a reward count in [`surprise`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Of the squared distance from the average plan.
    pub surprise: f64,
    /// Of the reward's magnitude.
    pub reward: f64,
}

/// `w_s ‖plan - average‖² + w_r |reward|` of each plan; plans lie one after the other.
///
/// ```
/// use echoic_primitives::plans::{Weights, surprise};
///
/// let mut scores = [0.0];
/// let weights = Weights { surprise: 1.0, reward: 0.1 };
/// surprise(&[1.0, 2.0, 3.0], &[0.0; 3], &[-0.5], weights, &mut scores)?;
/// assert!((scores[0] - 14.05).abs() < 1e-12);
/// # Ok::<(), echoic_primitives::Error>(())
/// ```
///
/// # Errors
///
/// When lengths differ.
pub fn surprise<R: Real>(
    plans: &[R],
    average: &[f64],
    rewards: &[f64],
    weights: Weights,
    out: &mut [f64],
) -> Result<(), Error> {
    Error::unless_length("rewards", rewards, out.len())?;
    Error::unless_length("plans", plans, out.len() * average.len())?;
    for (at, out) in out.iter_mut().enumerate() {
        let plan = &plans[at * average.len()..(at + 1) * average.len()];
        let distance = squared_distance(plan, average);
        *out = weights.surprise * distance + weights.reward * rewards[at].abs();
    }
    Ok(())
}

/// The divergence of each plan from the one before it, both normal with the variance `variance` in
/// every direction: `‖current - previous‖² / (2 variance)`. Plans have `dim` numbers.
///
/// # Errors
///
/// When lengths differ.
pub fn temporal_kl<R: Real>(
    current: &[R],
    previous: &[R],
    dim: usize,
    variance: f64,
    out: &mut [f64],
) -> Result<(), Error> {
    Error::unless_length("current", current, out.len() * dim)?;
    Error::unless_length("previous", previous, current.len())?;
    for (at, out) in out.iter_mut().enumerate() {
        let range = at * dim..(at + 1) * dim;
        *out = squared_distance(&current[range.clone()], &previous[range]) / (2.0 * variance);
    }
    Ok(())
}

/// The sum of partial sums of every eighth square.
#[inline]
fn squared_distance<A: Real, B: Real>(a: &[A], b: &[B]) -> f64 {
    let square = |a: A, b: B| {
        let difference = a.to_f64() - b.to_f64();
        difference * difference
    };
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for at in 0..8 {
            lanes[at] += square(a[at], b[at]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| square(*a, *b)).sum();
    let [a, b, c, d, e, f, g, h] = lanes;
    rest + (((a + e) + (c + g)) + ((b + f) + (d + h)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_plan_and_what_is_not_finite_change_nothing() {
        let mut average = AveragePlan::new(2, 0.5);
        average.extend(&[1.0, 2.0]).unwrap();
        let before = average.clone();
        let error = average.extend(&[1.0, 2.0, 3.0]).unwrap_err();
        assert_eq!(error, Error::Length { name: "plan", len: 3, expected: 2 });
        let error = average.extend(&[1.0, 2.0, f64::NAN, 0.0]).unwrap_err();
        assert_eq!(error, Error::NotFinite { name: "plan", index: 2 });
        assert_eq!(average, before);
    }

    #[test]
    fn single_precision_plans_are_summed_in_double() {
        // In f32, the ones would be lost beside the first square.
        let mut plan = [1.0f32; 1025];
        plan[0] = 65536.0;
        let mut out = [0.0];
        let weights = Weights { surprise: 1.0, reward: 1.0 };
        surprise(&plan, &[0.0; 1025], &[0.0], weights, &mut out).unwrap();
        assert_eq!(out, [4_294_968_320.0]);
    }

    #[test]
    fn a_step_is_a_distance_and_then_an_update() {
        let (mut steps, mut apart) = (AveragePlan::new(9, 0.9), AveragePlan::new(9, 0.9));
        for round in 0..20u16 {
            let plan: [f32; 9] = std::array::from_fn(|at| f32::from(round * 7 % 5) - at as f32);
            assert_eq!(steps.step(&plan), apart.distance(&plan));
            apart.extend(&plan).unwrap();
            assert_eq!(steps, apart);
        }
        assert_eq!(AveragePlan::new(3, 0.9).step(&[1.0, 2.0, 3.0]), 14.0, "from zero");
    }

    #[test]
    fn divergence_of_neighbours() {
        let mut out = [0.0; 2];
        temporal_kl(&[1.0, 0.0, 0.0, 3.0], &[0.0, 0.0, 0.0, 1.0], 2, 0.01, &mut out).unwrap();
        assert_eq!(out, [50.0, 200.0]);
    }
}
