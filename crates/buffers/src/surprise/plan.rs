//! The moving mean of latent plans, and how far a plan is from it.
//!
//! Everything is computed in double precision, and sums in one order: a plan has the same distance on every
//! machine. A mean of nothing is zero, so the first plan of all surprises by its own length: a tracker that
//! took it in first would find it exactly expected.

use crate::error::BufferError;

/// Terms that are summed side by side.
const LANES: usize = 8;

/// See the [module](self).
///
/// ```
/// use echoic_buffers::surprise::PlanMean;
///
/// let mut mean = PlanMean::new(2, 0.9)?;
/// let bytes = |plan: [f32; 2]| plan.map(f32::to_ne_bytes).concat();
/// assert_eq!(mean.distance(&bytes([3.0, 4.0])), 25.0);
/// mean.update(&bytes([1.0, 0.0]));
/// mean.update(&bytes([0.0, 0.0]));
/// assert_eq!(mean.mean(), [0.9, 0.0]);
/// # Ok::<(), echoic_buffers::BufferError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct PlanMean {
    decay: f64,
    mean: Vec<f64>,
    count: u64,
}

impl PlanMean {
    /// Of plans with so many numbers.
    ///
    /// # Errors
    ///
    /// [`BufferError::Setting`] when the decay is not from 0 to below 1.
    pub fn new(dims: usize, decay: f64) -> Result<Self, BufferError> {
        if !(0.0..1.0).contains(&decay) {
            let range = "from 0 to below 1";
            return Err(BufferError::Setting { name: "ema_decay", range, got: decay });
        }
        Ok(Self { decay, mean: vec![0.0; dims], count: 0 })
    }

    /// How many numbers a plan has.
    pub fn dims(&self) -> usize {
        self.mean.len()
    }

    /// The mean: zeros before the first plan.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// How many plans were taken in.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Goes on from what [`PlanMean::mean`] and [`PlanMean::count`] said; whether it is of as many numbers.
    pub fn restore(&mut self, mean: &[f64], count: u64) -> bool {
        if mean.len() != self.mean.len() {
            return false;
        }
        self.mean.copy_from_slice(mean);
        self.count = count;
        true
    }

    /// `‖plan - mean‖²` of a plan of 32-bit floats, given as its bytes.
    ///
    /// # Panics
    ///
    /// When it has another number of bytes.
    pub fn distance(&self, plan: &[u8]) -> f64 {
        assert_eq!(plan.len(), 4 * self.mean.len(), "a plan of another size");
        let (plans, plan_rest) = plan.as_chunks::<{ 4 * LANES }>();
        let (means, mean_rest) = self.mean.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        for (plan, mean) in plans.iter().zip(means) {
            let (numbers, _) = plan.as_chunks::<4>();
            for lane in 0..LANES {
                let difference = f64::from(f32::from_ne_bytes(numbers[lane])) - mean[lane];
                sums[lane] += difference * difference;
            }
        }
        let (rest, _) = plan_rest.as_chunks::<4>();
        for (lane, (number, mean)) in rest.iter().zip(mean_rest).enumerate() {
            let difference = f64::from(f32::from_ne_bytes(*number)) - mean;
            sums[lane] += difference * difference;
        }
        total(sums)
    }

    /// `mean ← decay · mean + (1 - decay) · plan`; the first plan becomes the mean.
    ///
    /// # Panics
    ///
    /// When it has another number of bytes.
    pub fn update(&mut self, plan: &[u8]) {
        self.step(plan);
    }

    /// The distance of a plan from the mean before it, and then the update with it: in one pass.
    ///
    /// # Panics
    ///
    /// When it has another number of bytes.
    pub fn step(&mut self, plan: &[u8]) -> f64 {
        assert_eq!(plan.len(), 4 * self.mean.len(), "a plan of another size");
        let share = if self.count == 0 { 1.0 } else { 1.0 - self.decay };
        self.count += 1;
        let (plans, plan_rest) = plan.as_chunks::<{ 4 * LANES }>();
        let (means, mean_rest) = self.mean.as_chunks_mut::<LANES>();
        let mut sums = [0.0; LANES];
        for (plan, mean) in plans.iter().zip(means) {
            let (numbers, _) = plan.as_chunks::<4>();
            for lane in 0..LANES {
                let difference = f64::from(f32::from_ne_bytes(numbers[lane])) - mean[lane];
                sums[lane] += difference * difference;
                mean[lane] += share * difference;
            }
        }
        let (rest, _) = plan_rest.as_chunks::<4>();
        for (lane, (number, mean)) in rest.iter().zip(mean_rest).enumerate() {
            let difference = f64::from(f32::from_ne_bytes(*number)) - *mean;
            sums[lane] += difference * difference;
            *mean += share * difference;
        }
        total(sums)
    }
}

fn total([a, b, c, d, e, f, g, h]: [f64; LANES]) -> f64 {
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(plan: &[f32]) -> Vec<u8> {
        plan.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn a_step_is_a_distance_and_then_an_update() {
        let mut rng = echoic_replay::rng::Rng::new(1);
        for dims in [1, 7, 8, 9, 512] {
            let mut mean = PlanMean::new(dims, 0.9).unwrap();
            let mut plain = vec![0.0; dims];
            for round in 0..20 {
                let plan: Vec<f32> = (0..dims).map(|_| rng.unit() as f32 - 0.5).collect();
                let plan_bytes = bytes(&plan);
                let before = mean.distance(&plan_bytes);
                assert_eq!(before, mean.step(&plan_bytes));
                let naive: f64 =
                    plan.iter().zip(&plain).map(|(x, m)| (f64::from(*x) - m).powi(2)).sum();
                assert!((before - naive).abs() < 1e-12 * naive.max(1.0), "{before} {naive}");
                for (m, x) in plain.iter_mut().zip(&plan) {
                    *m = if round == 0 { f64::from(*x) } else { 0.9 * *m + 0.1 * f64::from(*x) };
                }
                let off = mean.mean().iter().zip(&plain).map(|(a, b)| (a - b).abs());
                assert!(off.fold(0.0, f64::max) < 1e-12);
            }
        }
    }

    #[test]
    fn the_first_plan_surprises_by_its_length() {
        let mut mean = PlanMean::new(3, 0.99).unwrap();
        assert_eq!(mean.step(&bytes(&[1.0, 2.0, 3.0])), 14.0);
        assert_eq!(mean.mean(), [1.0, 2.0, 3.0]);
    }
}
