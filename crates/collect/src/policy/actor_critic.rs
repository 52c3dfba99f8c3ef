//! An actor and a critic: two networks of two hidden layers of hyperbolic tangents each.

use pulp::{Arch, Simd, WithSimd};

use super::kernel::{Block, Identity, LANES, Tanh, gather, layer, scatter};
use super::layout::{Layer, Layout};
use super::{Policy, initial};
use crate::error::Error;

/// See the module of the [kernel](super::kernel) for how it is evaluated.
///
/// ```
/// use echoic_collect::policy::{ActorCritic, Layout, Policy};
///
/// let layout = Layout { observation: 4, hidden: 64, outputs: 2, continuous: false };
/// let mut policy = ActorCritic::new(layout, 7)?;
/// let (mut logits, mut values) = ([0.0; 4], [0.0; 2]);
/// policy.evaluate(&[0.0, 0.1, 0.2, 0.3, 0.0, 0.1, 0.2, 0.3], &mut logits, &mut values);
/// assert_eq!(logits[..2], logits[2..]);
/// # Ok::<(), echoic_collect::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ActorCritic {
    layout: Layout,
    actor: [Layer; 3],
    log_std: Vec<f32>,
    log_std_at: std::ops::Range<usize>,
    critic: [Layer; 3],
    weights: Vec<f32>,
    scratch: Scratch,
    arch: Arch,
}

/// Where layers put what they compute.
#[derive(Debug, Clone)]
struct Scratch {
    seen: Vec<Block>,
    hidden: [Vec<Block>; 2],
    outputs: Vec<Block>,
    value: [Block; 1],
}

impl ActorCritic {
    /// With the [initial] weights of a seed.
    ///
    /// # Errors
    ///
    /// When a dimension is zero, or there is no memory for the weights.
    pub fn new(layout: Layout, seed: u64) -> Result<Self, Error> {
        let weights = initial(&layout, seed)?;
        Self::with_weights(layout, weights)
    }

    /// With these weights.
    ///
    /// # Errors
    ///
    /// As for [`Policy::load`].
    pub fn with_weights(layout: Layout, weights: Vec<f32>) -> Result<Self, Error> {
        layout.check(&weights)?;
        let (log_std_at, actor, critic) = layout.parts();
        let log_std = weights[log_std_at.clone()].to_vec();
        let zeros = |len| vec![Block::ZERO; len];
        let scratch = Scratch {
            seen: zeros(layout.observation),
            hidden: [zeros(layout.hidden), zeros(layout.hidden)],
            outputs: zeros(layout.outputs),
            value: [Block::ZERO],
        };
        let arch = Arch::new();
        Ok(Self { layout, actor, log_std, log_std_at, critic, weights, scratch, arch })
    }

    fn run(&mut self, observations: &[f32], outputs: Option<&mut [f32]>, values: &mut [f32]) {
        let count = values.len();
        assert_eq!(observations.len(), count * self.layout.observation, "a row for each value");
        if let Some(outputs) = &outputs {
            assert_eq!(outputs.len(), count * self.layout.outputs, "outputs for each value");
        }
        let Self { layout, actor, critic, weights, scratch, arch, .. } = self;
        arch.dispatch(Forward {
            layout: *layout,
            actor,
            critic,
            weights,
            scratch,
            observations,
            outputs,
            values,
        });
    }
}

impl Policy for ActorCritic {
    fn evaluate(&mut self, observations: &[f32], outputs: &mut [f32], values: &mut [f32]) {
        self.run(observations, Some(outputs), values);
    }

    fn values(&mut self, observations: &[f32], values: &mut [f32]) {
        self.run(observations, None, values);
    }

    fn log_std(&self) -> &[f32] {
        &self.log_std
    }

    fn load(&mut self, weights: &[f32]) -> Result<(), Error> {
        self.layout.check(weights)?;
        self.weights.copy_from_slice(weights);
        self.log_std.copy_from_slice(&weights[self.log_std_at.clone()]);
        Ok(())
    }
}

/// Both networks, or the critic alone, for all observations.
struct Forward<'a> {
    layout: Layout,
    actor: &'a [Layer; 3],
    critic: &'a [Layer; 3],
    weights: &'a [f32],
    scratch: &'a mut Scratch,
    observations: &'a [f32],
    outputs: Option<&'a mut [f32]>,
    values: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { layout, weights, scratch, mut outputs, .. } = self;
        let Scratch { seen, hidden, outputs: raw, value } = scratch;
        let rows = self.observations.chunks(LANES * layout.observation);
        for (number, (rows, values)) in rows.zip(self.values.chunks_mut(LANES)).enumerate() {
            gather(rows, seen);
            if let Some(outputs) = &mut outputs {
                network(simd, weights, self.actor, seen, hidden, raw, values.len());
                let start = number * LANES * layout.outputs;
                scatter(raw, &mut outputs[start..][..values.len() * layout.outputs]);
            }
            network(simd, weights, self.critic, seen, hidden, value, values.len());
            scatter(value, values);
        }
    }
}

#[inline(always)]
fn network<S: Simd>(
    simd: S,
    weights: &[f32],
    layers: &[Layer; 3],
    seen: &[Block],
    [first, second]: &mut [Vec<Block>; 2],
    outputs: &mut [Block],
    lanes: usize,
) {
    let of = |at: usize| {
        let Layer { matrix, biases, .. } = &layers[at];
        (&weights[matrix.clone()], &weights[biases.clone()])
    };
    let (matrix, biases) = of(0);
    layer::<Tanh, S>(simd, matrix, biases, seen, first, lanes);
    let (matrix, biases) = of(1);
    layer::<Tanh, S>(simd, matrix, biases, first, second, lanes);
    let (matrix, biases) = of(2);
    layer::<Identity, S>(simd, matrix, biases, second, outputs, lanes);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { observation: 3, hidden: 9, outputs: 5, continuous: true };

    /// The same in double precision, one observation at a time.
    fn oracle(weights: &[f32], layers: &[Layer; 3], row: &[f32]) -> Vec<f64> {
        let mut now: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        for (at, layer) in layers.iter().enumerate() {
            let matrix = &weights[layer.matrix.clone()];
            let sums = weights[layer.biases.clone()].iter().enumerate().map(|(output, bias)| {
                let row = &matrix[output * layer.inputs..][..layer.inputs];
                f64::from(*bias) + row.iter().zip(&now).map(|(w, x)| f64::from(*w) * x).sum::<f64>()
            });
            now = sums.map(|sum| if at < 2 { sum.tanh() } else { sum }).collect();
        }
        now
    }

    #[test]
    fn agrees_with_double_precision_for_any_number_of_observations() {
        let mut policy = ActorCritic::new(LAYOUT, 3).unwrap();
        let (_, actor, critic) = LAYOUT.parts();
        for count in [1, 15, 16, 17, 40] {
            let seen: Vec<f32> = (0..count * 3).map(|at| (at % 13) as f32 / 4.0 - 1.5).collect();
            let (mut outputs, mut values) = (vec![0.0; count * 5], vec![0.0; count]);
            policy.evaluate(&seen, &mut outputs, &mut values);
            let mut again = vec![0.0; count];
            policy.values(&seen, &mut again);
            assert_eq!(values, again);
            for (at, row) in seen.chunks(3).enumerate() {
                let exact = oracle(&policy.weights, &actor, row);
                for (got, exact) in outputs[at * 5..][..5].iter().zip(exact) {
                    assert!((f64::from(*got) - exact).abs() < 1e-6, "{got} against {exact}");
                }
                let exact = oracle(&policy.weights, &critic, row)[0];
                assert!((f64::from(values[at]) - exact).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn wrong_weights_leave_the_old_ones() {
        let mut policy = ActorCritic::new(LAYOUT, 3).unwrap();
        let before = policy.weights.clone();
        let mut wrong = vec![0.0; before.len()];
        assert!(policy.load(&wrong[1..]).is_err());
        wrong[7] = f32::NAN;
        let Err(Error::NotFinite { index, .. }) = policy.load(&wrong) else { panic!("loaded") };
        assert_eq!((index, &policy.weights), (7, &before));
    }
}
