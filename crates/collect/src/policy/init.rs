//! The weights that a seed begins with.
//!
//! Matrices are orthogonal (Saxe et al., 2014), as is usual for policy gradients: those of hidden layers
//! times √2, that of the actor's outputs times 0.01, so that all actions are about equally likely at
//! first, and that of the critic's times 1. Biases and `log_std` are 0.

use echoic_replay::rng::Rng;

use super::head::normal;
use super::layout::Layout;
use crate::error::Error;

/// Tells the stream of weights from those of environments, which are near their seed.
const STREAM: u64 = 0x7765_6967_6874_7300;

/// The weights of a seed.
///
/// # Errors
///
/// When a dimension is zero, or there is no memory for this many.
pub fn initial(layout: &Layout, seed: u64) -> Result<Vec<f32>, Error> {
    let dimensions =
        [("obs_dim", layout.observation), ("n_actions", layout.outputs), ("hidden", layout.hidden)];
    if let Some((name, _)) = dimensions.into_iter().find(|(_, len)| *len == 0) {
        return Err(Error::Zero(name));
    }
    let memory = || Error::Memory("the weights");
    let len = layout.len().ok_or_else(memory)?;
    let mut weights = Vec::new();
    weights.try_reserve_exact(len).map_err(|_| memory())?;
    weights.resize(len, 0.0);
    let mut rng = Rng::new(seed ^ STREAM);
    let (_, actor, critic) = layout.parts();
    let root = std::f64::consts::SQRT_2;
    for (layers, last) in [(actor, 0.01), (critic, 1.0)] {
        for (layer, gain) in layers.iter().zip([root, root, last]) {
            let matrix = &mut weights[layer.matrix.clone()];
            orthogonal(&mut rng, matrix, layer.outputs, layer.inputs, gain)?;
        }
    }
    Ok(weights)
}

/// Fills a matrix of `rows` by `columns` whose shorter side is orthogonal vectors of length `gain`.
fn orthogonal(
    rng: &mut Rng,
    matrix: &mut [f32],
    rows: usize,
    columns: usize,
    gain: f64,
) -> Result<(), Error> {
    let (count, len) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<f64> = Vec::new();
    vectors.try_reserve_exact(count * len).map_err(|_| Error::Memory("the weights"))?;
    for at in 0..count {
        // Almost every draw is far enough from what the others span.
        loop {
            vectors.truncate(at * len);
            vectors.extend((0..len).map(|_| normal(rng)));
            let (others, this) = vectors.split_at_mut(at * len);
            // Twice, because rounding leaves a little of the others behind.
            for other in others.chunks_exact(len).chain(others.chunks_exact(len)) {
                let shared = product(this, other);
                this.iter_mut().zip(other).for_each(|(a, b)| *a -= shared * b);
            }
            let size = product(this, this).sqrt();
            if size > 1e-6 {
                this.iter_mut().for_each(|a| *a /= size);
                break;
            }
        }
    }
    for (at, weight) in matrix.iter_mut().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let (vector, place) = if rows <= columns { (row, column) } else { (column, row) };
        *weight = (gain * vectors[vector * len + place]) as f32;
    }
    Ok(())
}

/// The inner product, in several sums, so that they need not wait for each other.
fn product(one: &[f64], other: &[f64]) -> f64 {
    const SUMS: usize = 8;
    let ((ones, one_rest), (others, other_rest)) =
        (one.as_chunks::<SUMS>(), other.as_chunks::<SUMS>());
    let mut sums = [0.0; SUMS];
    for (one, other) in ones.iter().zip(others) {
        for ((sum, a), b) in sums.iter_mut().zip(one).zip(other) {
            *sum += a * b;
        }
    }
    let rest = one_rest.iter().zip(other_rest).map(|(a, b)| a * b);
    sums.into_iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_side_is_orthogonal() {
        for (rows, columns) in [(5, 8), (8, 5), (6, 6), (1, 4)] {
            let mut matrix = vec![0.0; rows * columns];
            orthogonal(&mut Rng::new(1), &mut matrix, rows, columns, 2.0).unwrap();
            let (count, len) = (rows.min(columns), rows.max(columns));
            let at = |vector: usize, place: usize| {
                let (row, column) = if rows <= columns { (vector, place) } else { (place, vector) };
                matrix[row * columns + column]
            };
            for one in 0..count {
                for other in 0..count {
                    let product: f32 =
                        (0..len).map(|place| at(one, place) * at(other, place)).sum();
                    let expected = if one == other { 4.0 } else { 0.0 };
                    assert!((product - expected).abs() < 1e-5, "{product} against {expected}");
                }
            }
        }
    }

    #[test]
    fn a_seed_tells_all_weights_and_another_tells_others() {
        let layout = Layout { observation: 4, hidden: 8, outputs: 2, continuous: true };
        assert_eq!(initial(&layout, 5), initial(&layout, 5));
        let (one, other) = (initial(&layout, 5).unwrap(), initial(&layout, 6).unwrap());
        assert!(one.iter().zip(&other).filter(|(a, b)| a != b).count() > 100);
        assert_eq!(one[layout.parts().0], [0.0; 2]);
    }

    #[test]
    fn no_dimension_may_be_zero() {
        let layout = Layout { observation: 4, hidden: 0, outputs: 2, continuous: false };
        assert_eq!(initial(&layout, 5), Err(Error::Zero("hidden")));
    }
}
