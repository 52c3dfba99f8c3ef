//! From the outputs of an actor to actions, and how likely these were.

use echoic_replay::rng::Rng;

/// Half of ln 2π.
const HALF_LN_2_PI: f32 = 0.918_938_5;

/// Draws one of the actions whose logits these are, and the logarithm of its probability.
///
/// Logits that are not numbers, which only a network that has overflowed gives, are as good as any:
/// the result is then some action, with a probability that is not a number.
///
/// # Panics
///
/// When there are no logits.
#[inline]
pub fn categorical(rng: &mut Rng, logits: &[f32]) -> (usize, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let mut left = rng.unit() as f32 * sum;
    let last = logits.len() - 1;
    let mut chosen = last;
    for (at, logit) in logits[..last].iter().enumerate() {
        left -= (logit - largest).exp();
        if left < 0.0 {
            chosen = at;
            break;
        }
    }
    (chosen, logits[chosen] - largest - sum.ln())
}

/// Draws an action whose numbers are normally distributed around `means`, and the logarithm of its
/// density.
#[inline]
pub fn gaussian(rng: &mut Rng, means: &[f32], log_std: &[f32], action: &mut [f32]) -> f32 {
    let mut log_density = 0.0;
    for ((action, mean), log_std) in action.iter_mut().zip(means).zip(log_std) {
        let distance = normal(rng) as f32;
        *action = log_std.exp().mul_add(distance, *mean);
        log_density -= 0.5 * distance * distance + log_std + HALF_LN_2_PI;
    }
    log_density
}

/// A number from the standard normal distribution, of two draws (Box and Muller, 1958).
#[inline]
pub fn normal(rng: &mut Rng) -> f64 {
    // From above 0 to 1, whose logarithm there is.
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_come_as_often_as_their_logits_say() {
        let (logits, mut rng) = ([0.0f32, 1.0, -1.0], Rng::new(1));
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        let mut counts = [0.0f32; 3];
        for _ in 0..100_000 {
            let (action, log_probability) = categorical(&mut rng, &logits);
            counts[action] += 1.0;
            assert!((log_probability.exp() - logits[action].exp() / sum).abs() < 1e-6);
        }
        for (count, logit) in counts.into_iter().zip(logits) {
            // Six standard deviations are at most 950.
            assert!((count - 1e5 * logit.exp() / sum).abs() < 950.0, "{counts:?}");
        }
    }

    #[test]
    fn huge_logits_are_no_trouble_and_nonsense_does_not_panic() {
        let mut rng = Rng::new(1);
        assert_eq!(categorical(&mut rng, &[1e30, -1e30]), (0, 0.0));
        assert!(categorical(&mut rng, &[f32::NAN, f32::NAN]).1.is_nan());
        assert!(categorical(&mut rng, &[f32::INFINITY, f32::INFINITY]).1.is_nan());
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let mut rng = Rng::new(2);
        let numbers: Vec<f64> = (0..100_000).map(|_| normal(&mut rng)).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|number| number * number).sum::<f64>() / 1e5;
        // Six standard deviations of each.
        assert!(mean.abs() < 0.019 && (variance - 1.0).abs() < 0.027, "{mean} {variance}");
    }

    #[test]
    fn densities_are_those_of_the_action() {
        let (mut rng, mut action) = (Rng::new(3), [0.0; 2]);
        let (means, log_std) = ([1.0, -2.0], [0.5, -0.5]);
        let got = gaussian(&mut rng, &means, &log_std, &mut action);
        let terms = (0..2).map(|at| {
            let distance = f64::from(action[at] - means[at]) / f64::from(log_std[at]).exp();
            let constant = 0.5 * std::f64::consts::TAU.ln();
            -0.5 * distance * distance - f64::from(log_std[at]) - constant
        });
        assert!((f64::from(got) - terms.sum::<f64>()).abs() < 1e-5);
    }
}
