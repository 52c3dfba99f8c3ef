//! Every function on rollouts gives the same in each layout, and refuses slices that do not fit.

use echoic_primitives::corrections::{Clips, retrace, vtrace};
use echoic_primitives::gae::gae;
use echoic_primitives::returns::{discounted_sums, nstep_returns, upgo};
use echoic_primitives::rollout::Truncation;
use echoic_primitives::{Error, Flags, Layout, Rollout};
use proptest::prelude::*;

/// Some numbers by chance, the same for the same seed.
fn numbers(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

/// Rows become columns.
fn transposed<T: Copy>(array: &[T], rows: usize) -> Vec<T> {
    let columns = array.len() / rows.max(1);
    (0..array.len()).map(|i| array[i % rows * columns + i / rows]).collect()
}

/// All results on one rollout of `numbers(0..)`, with its arrays as `arrange` lays them out.
fn all(
    layout: Layout<'_>,
    len: usize,
    arrange: impl Fn(Vec<f64>) -> Vec<f64>,
    n: usize,
) -> Vec<Vec<f64>> {
    let array = |seed| arrange(numbers(seed, len));
    let flags = |seed| array(seed).iter().map(|x| u8::from(*x > 0.35)).collect::<Vec<_>>();
    let (rewards, values, log_rhos, q_values) = (array(1), array(2), array(3), array(4));
    let (ends, cuts, finals) = (flags(5), flags(6), array(7));
    let last_values = numbers(8, layout.sequences());
    let truncation = Some(Truncation { truncated: Flags::Bytes(&cuts), final_values: &finals });
    let rollout = Rollout {
        layout,
        rewards: &rewards,
        values: Some(&values),
        last_values: &last_values,
        terminated: Flags::Bytes(&ends),
        truncation,
    };
    let mut out = vec![vec![0.0; len]; 9];
    let [a, b, c, d, e, f, g, h, i] = &mut out[..] else { unreachable!("there are nine") };
    let clips = Clips { rho: 1.1, c: 0.9, advantage: 1.3, lam: 0.9 };
    gae(&rollout, 0.9, 0.8, Some(a), Some(b)).unwrap();
    vtrace(&rollout, &log_rhos, 0.9, clips, c, d).unwrap();
    retrace(&rollout, &log_rhos, &q_values, 0.9, 0.8, e).unwrap();
    upgo(&rollout, 0.9, f, g).unwrap();
    discounted_sums(&rollout, 0.9, h).unwrap();
    nstep_returns(&rollout, n, 0.9, i).unwrap();
    out
}

fn assert_close(got: &[f64], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len());
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!((got - wanted).abs() < 1e-12, "element {i} is {got}, expected {wanted}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn layouts_give_the_same(
        sequences in prop_oneof![1usize..9, 250usize..260],
        steps in prop_oneof![1usize..9, 250usize..260],
        n in 1usize..20,
    ) {
        let len = sequences * steps;
        let one = all(Layout::SequenceMajor { sequences, steps }, len, |array| array, n);
        let arrange = |array: Vec<f64>| transposed(&array, sequences);
        let other = all(Layout::TimeMajor { steps, sequences }, len, arrange, n);
        let offsets: Vec<_> = (0..=sequences).map(|row| row * steps).collect();
        let third = all(Layout::Ragged { offsets: &offsets }, len, |array| array, n);
        for ((one, other), third) in one.iter().zip(&other).zip(&third) {
            assert_close(&transposed(other, steps), one);
            prop_assert_eq!(one, third);
        }
    }
}

#[test]
fn more_sequences_than_a_panel_are_taken_in_parts() {
    let (sequences, steps) = (4099, 3);
    let len = sequences * steps;
    let one = all(Layout::SequenceMajor { sequences, steps }, len, |array| array, 2);
    let arrange = |array: Vec<f64>| transposed(&array, sequences);
    let other = all(Layout::TimeMajor { steps, sequences }, len, arrange, 2);
    for (one, other) in one.iter().zip(&other) {
        assert_close(&transposed(other, steps), one);
    }
}

#[test]
fn flags_of_all_forms_are_set_where_they_are_not_zero() {
    let sums = |terminated| {
        let rollout = Rollout {
            layout: Layout::one(4),
            rewards: &[1.0; 4],
            values: None,
            last_values: &[1.0],
            terminated,
            truncation: None,
        };
        let mut sums = [0.0; 4];
        discounted_sums(&rollout, 1.0, &mut sums).unwrap();
        sums
    };
    assert_eq!(sums(Flags::None), [5.0, 4.0, 3.0, 2.0]);
    let expected = [2.0, 1.0, 1.0, 2.0];
    assert_eq!(sums(Flags::Bytes(&[0, 255, 1, 0])), expected);
    assert_eq!(sums(Flags::Single(&[-0.0, 0.5, f32::NAN, 0.0])), expected);
    assert_eq!(sums(Flags::Double(&[0.0, -1.0, 1e-300, 0.0])), expected);
}

#[test]
fn slices_of_another_length_are_an_error_that_names_them() {
    let rollout = Rollout {
        layout: Layout::one(2),
        rewards: &[1.0f32, 2.0],
        values: Some(&[0.0]),
        last_values: &[0.0],
        terminated: Flags::None,
        truncation: None,
    };
    let error = gae(&rollout, 0.9, 0.9, None, None).unwrap_err();
    assert_eq!(error, Error::Length { name: "values", len: 1, expected: 2 });
    assert_eq!(error.to_string(), "`values` has 1 elements, expected 2");
    let rollout = Rollout { values: Some(&[0.0; 2]), ..rollout };
    let error = nstep_returns(&rollout, 0, 0.9, &mut [0.0; 2]).unwrap_err();
    assert_eq!(error, Error::NoSteps);
    let error = gae(&rollout, 0.9, 0.9, Some(&mut [0.0]), None).unwrap_err();
    assert_eq!(error, Error::Length { name: "advantages", len: 1, expected: 2 });
}

#[test]
fn offsets_that_fall_are_an_error_that_says_where() {
    for (offsets, index, offset) in [(&[1usize, 2][..], 0, 1), (&[0, 2, 1, 2][..], 2, 1)] {
        let error = Layout::Ragged { offsets }.check().unwrap_err();
        assert_eq!(error, Error::Offsets { index, offset });
    }
    assert!(Layout::Ragged { offsets: &[] }.check().is_err());
}
