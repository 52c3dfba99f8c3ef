//! Layers of a small network for many observations at once.
//!
//! A [`Block`] has one number of each of [`LANES`] observations, so all lanes do the same with the same
//! weight, and the sum of each output runs over the inputs in order. Products are added with one rounding
//! (fused), with any instruction set: results are the same with any vector length.
//!
//! Every function is inlined into one that [`pulp`] has compiled for what the processor has. Loops that
//! the compiler was to turn into vector instructions by itself were tried first: it left most of them
//! scalar, and was twenty times slower.

use pulp::Simd;

/// How many observations are computed together. One register of AVX-512, two of AVX2, four of NEON.
pub const LANES: usize = 16;

/// How many registers of sums there are at a time, so that a number that was loaded is used several
/// times and sums do not wait for each other: half of the sixteen that AVX2 has.
const SUMS: usize = 8;

/// A number of each of some observations.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Block(pub [f32; LANES]);

impl Block {
    /// All zero.
    pub const ZERO: Self = Self([0.0; LANES]);
}

/// What follows the sum of a layer.
pub trait Activation {
    /// The activations of sums.
    fn of<S: Simd>(simd: S, sums: S::f32s) -> S::f32s;
}

/// The sum itself.
#[derive(Debug)]
pub struct Identity;

impl Activation for Identity {
    #[inline(always)]
    fn of<S: Simd>(_: S, sums: S::f32s) -> S::f32s {
        sums
    }
}

/// The hyperbolic tangent of it.
#[derive(Debug)]
pub struct Tanh;

impl Activation for Tanh {
    #[inline(always)]
    fn of<S: Simd>(simd: S, sums: S::f32s) -> S::f32s {
        super::tanh::tanhs(simd, sums)
    }
}

/// One layer: each output is the activation of its bias and the weighted inputs. `matrix` has a row for
/// each output. Only the first `lanes` lanes are computed, or a few more.
#[inline(always)]
pub fn layer<A: Activation, S: Simd>(
    simd: S,
    matrix: &[f32],
    biases: &[f32],
    inputs: &[Block],
    outputs: &mut [Block],
    lanes: usize,
) {
    let registers = lanes.div_ceil(S::F32_LANES);
    for start in (0..registers).step_by(2) {
        if registers - start == 1 {
            all_rows::<S, SUMS, 1>(simd, matrix, biases, inputs, outputs, start);
        } else {
            all_rows::<S, { SUMS / 2 }, 2>(simd, matrix, biases, inputs, outputs, start);
        }
    }
    // Not where a sum is complete: the activation's constants would take the registers of the sums.
    for output in outputs {
        for sums in &mut S::as_mut_simd_f32s(&mut output.0).0[..registers] {
            *sums = A::of(simd, *sums);
        }
    }
}

/// The sums of all outputs in `M` registers of each block, from the one at `start`; `N` outputs at a
/// time.
#[inline(always)]
fn all_rows<S: Simd, const N: usize, const M: usize>(
    simd: S,
    matrix: &[f32],
    biases: &[f32],
    inputs: &[Block],
    outputs: &mut [Block],
    start: usize,
) {
    let width = inputs.len();
    let whole = outputs.len() / N * N;
    for first in (0..whole).step_by(N) {
        let (rows, biases) = (&matrix[first * width..], &biases[first..]);
        sums::<S, N, M>(simd, rows, biases, inputs, &mut outputs[first..], start);
    }
    for first in whole..outputs.len() {
        let (row, bias) = (&matrix[first * width..], &biases[first..]);
        sums::<S, 1, M>(simd, row, bias, inputs, &mut outputs[first..], start);
    }
}

/// The sums of the first `N` outputs.
#[inline(always)]
fn sums<S: Simd, const N: usize, const M: usize>(
    simd: S,
    rows: &[f32],
    biases: &[f32],
    inputs: &[Block],
    outputs: &mut [Block],
    start: usize,
) {
    let width = inputs.len();
    let mut each = [&rows[..0]; N];
    let mut sums = [[simd.splat_f32s(0.0); M]; N];
    for row in 0..N {
        each[row] = &rows[row * width..][..width];
        sums[row] = [simd.splat_f32s(biases[row]); M];
    }
    for (at, input) in inputs.iter().enumerate() {
        let input = &S::as_simd_f32s(&input.0).0[start..start + M];
        for row in 0..N {
            let weight = simd.splat_f32s(each[row][at]);
            for register in 0..M {
                let sum = sums[row][register];
                sums[row][register] = simd.mul_add_f32s(weight, input[register], sum);
            }
        }
    }
    for row in 0..N {
        let output = &mut S::as_mut_simd_f32s(&mut outputs[row].0).0[start..start + M];
        #[expect(clippy::manual_memcpy, reason = "for it the sums would be in memory all the time")]
        for register in 0..M {
            output[register] = sums[row][register];
        }
    }
}

/// Puts rows, one for each lane, into a block for each column. Lanes without a row are zero.
///
/// # Panics
///
/// When there are more rows than lanes.
#[inline(always)]
pub fn gather(rows: &[f32], blocks: &mut [Block]) {
    let width = blocks.len();
    blocks.fill(Block::ZERO);
    for (lane, row) in rows.chunks_exact(width).enumerate() {
        for (block, value) in blocks.iter_mut().zip(row) {
            block.0[lane] = *value;
        }
    }
}

/// Puts blocks, one for each column, into rows, one for each lane, as many as there are.
#[inline(always)]
pub fn scatter(blocks: &[Block], rows: &mut [f32]) {
    for (lane, row) in rows.chunks_exact_mut(blocks.len()).enumerate() {
        for (block, value) in blocks.iter().zip(row) {
            *value = block.0[lane];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Vectors<'a>(&'a [f32], &'a [f32], &'a [Block], &'a mut [Block]);

    impl pulp::WithSimd for Vectors<'_> {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            layer::<Tanh, S>(simd, self.0, self.1, self.2, self.3, LANES);
        }
    }

    proptest! {
        #[test]
        fn a_layer_is_its_definition(
            inputs in 1usize..9,
            outputs in 1usize..12,
            numbers in prop::collection::vec(-2.0f32..2.0, 300),
        ) {
            let (matrix, numbers) = numbers.split_at(inputs * outputs);
            let (biases, numbers) = numbers.split_at(outputs);
            let rows = &numbers[..3 * inputs];
            let mut seen = vec![Block::ZERO; inputs];
            gather(rows, &mut seen);
            let mut out = vec![Block::ZERO; outputs];
            layer::<Tanh, _>(pulp::Scalar, matrix, biases, &seen, &mut out, 3);
            let mut got = vec![0.0; 3 * outputs];
            scatter(&out, &mut got);
            let mut vectors = vec![Block::ZERO; outputs];
            pulp::Arch::new().dispatch(Vectors(matrix, biases, &seen, &mut vectors));
            let alike = vectors.iter().zip(&out).all(|(one, other)| one.0[..3] == other.0[..3]);
            prop_assert!(alike, "vectors and scalars differ");
            for (at, got) in got.into_iter().enumerate() {
                let (row, output) = (&rows[at / outputs * inputs..][..inputs], at % outputs);
                let weights = &matrix[output * inputs..][..inputs];
                let products = row.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let exact = (f64::from(biases[output]) + products.sum::<f64>()).tanh();
                prop_assert!((f64::from(got) - exact).abs() < 1e-5, "{got} against {exact}");
            }
        }
    }
}
