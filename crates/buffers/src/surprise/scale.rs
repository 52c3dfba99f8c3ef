//! From a score to a weight in a draw: what a temperature means, and why draws do not collapse.
//!
//! The probability of an experience within its tier is `softmax(logit / T)`. A logit is not the score
//! itself: the squared distances of plans of 512 numbers differ by hundreds, so that the softmax of them puts
//! everything on one experience. [`Mode`] says what it is instead.
//!
//! Weights are powers of `e` relative to the largest logit at the time when all were last computed, so that
//! none is too large for a number, whatever the temperature.

/// What of a score counts in a draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// By how many standard deviations of all scores it is away from their mean, but at most this many.
    Standard {
        /// At most this many, in both directions.
        clip: f64,
    },
    /// The score itself.
    Plain,
    /// `alpha · ln(score)`: probabilities are powers of scores, `score^(alpha / T)`.
    Power {
        /// The exponent.
        alpha: f64,
    },
}

/// How a score is made: `surprise_weight · distance + reward_weight · |reward|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreRule {
    /// What the distance of a plan from the mean counts.
    pub surprise_weight: f64,
    /// What the size of a reward counts.
    pub reward_weight: f64,
    /// Whether the distance is divided by how many numbers a plan has.
    pub mean_over_dims: bool,
}

impl ScoreRule {
    /// The score of an experience, given the squared distance of its plan.
    pub fn score(&self, distance: f64, dims: usize, reward: f64) -> f64 {
        let distance = if self.mean_over_dims { distance / dims.max(1) as f64 } else { distance };
        self.surprise_weight * distance + self.reward_weight * reward.abs()
    }
}

/// A score of zero has this in its place where its logarithm is taken.
const LEAST_SCORE: f64 = 1e-6;

/// Weights above `e` to the power of this ask for all to be computed again.
const MOST_EXPONENT: f64 = 500.0;

/// No exponent is further from zero, so that their differences are numbers.
const MOST_LOGIT: f64 = 1e300;

/// Mean and spread of numbers that come and go.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    /// How many there are.
    pub count: f64,
    /// Their mean.
    pub mean: f64,
    /// The sum of the squares of their differences from it.
    pub squares: f64,
}

impl Moments {
    /// Of all these, in two passes.
    pub fn of(numbers: impl Iterator<Item = f64> + Clone) -> Self {
        let (mut count, mut sum) = (0.0, 0.0);
        numbers.clone().for_each(|number| {
            count += 1.0;
            sum += number;
        });
        let mean = if count > 0.0 { sum / count } else { 0.0 };
        Self { count, mean, squares: numbers.map(|number| (number - mean).powi(2)).sum() }
    }

    /// One more.
    pub fn add(&mut self, number: f64) {
        self.count += 1.0;
        let before = number - self.mean;
        self.mean += before / self.count;
        self.squares += before * (number - self.mean);
    }

    /// One less.
    pub fn remove(&mut self, number: f64) {
        if self.count <= 1.0 {
            *self = Self::default();
            return;
        }
        self.count -= 1.0;
        let before = number - self.mean;
        self.mean -= before / self.count;
        self.squares = (self.squares - before * (number - self.mean)).max(0.0);
    }

    /// The standard deviation.
    pub fn spread(&self) -> f64 {
        if self.count > 0.0 { (self.squares / self.count).sqrt() } else { 0.0 }
    }
}

/// What all weights of a buffer were computed with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    mode: Mode,
    /// What a difference of one in a logit means.
    pub temperature: f64,
    /// The mean of all scores when this was made.
    pub mean: f64,
    /// Their standard deviation.
    pub spread: f64,
    /// The exponent that has the weight one, in each tier.
    pub bases: [f64; 2],
}

impl Scale {
    /// Of scores with these moments; bases are to be set.
    pub fn new(mode: Mode, temperature: f64, moments: &Moments) -> Self {
        let (mean, spread) = (moments.mean, moments.spread());
        Self { mode, temperature, mean, spread, bases: [0.0; 2] }
    }

    /// The exponent of a score.
    #[inline]
    pub fn exponent(&self, score: f64) -> f64 {
        let logit = match self.mode {
            // Scores that are all the same, up to rounding, are alike.
            Mode::Standard { .. } if self.spread <= 1e-12 * self.mean.abs() => 0.0,
            Mode::Standard { clip } => ((score - self.mean) / self.spread).clamp(-clip, clip),
            Mode::Plain => score,
            Mode::Power { alpha } => alpha * score.max(LEAST_SCORE).ln(),
        };
        // Of two infinities nobody knows which is larger, and by how much.
        (logit / self.temperature).clamp(-MOST_LOGIT, MOST_LOGIT)
    }

    /// The weight of a score in a tier, if it is a number that sums are made of.
    #[inline]
    pub fn weight(&self, score: f64, tier: usize) -> Option<f64> {
        let exponent = self.exponent(score) - self.bases[tier];
        (exponent <= MOST_EXPONENT).then(|| exponent.exp())
    }

    /// Whether it fits scores that have these moments now.
    pub fn fits(&self, moments: &Moments) -> bool {
        let Mode::Standard { .. } = self.mode else { return true };
        let spread = moments.spread();
        let near = 0.1 * self.spread;
        (spread - self.spread).abs() <= near && (moments.mean - self.mean).abs() <= near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_what_is_left() {
        let mut rng = echoic_replay::rng::Rng::new(3);
        let (mut moments, mut numbers) = (Moments::default(), Vec::new());
        for _ in 0..2000 {
            let number = rng.unit() * 100.0;
            moments.add(number);
            numbers.push(number);
            if numbers.len() > 50 {
                moments.remove(numbers.swap_remove(rng.below(51) as usize));
            }
        }
        let exact = Moments::of(numbers.iter().copied());
        assert_eq!(exact.count, moments.count);
        assert!((exact.mean - moments.mean).abs() < 1e-9);
        assert!((exact.spread() - moments.spread()).abs() < 1e-9);
    }

    #[test]
    fn a_huge_score_counts_no_more_than_the_clip() {
        let moments = Moments { count: 100.0, mean: 1.0, squares: 100.0 };
        let scale = Scale::new(Mode::Standard { clip: 3.0 }, 1.0, &moments);
        assert_eq!((scale.exponent(1e9), scale.exponent(2.0)), (3.0, 1.0));
    }

    #[test]
    fn exponents_are_numbers_at_any_temperature() {
        for mode in [Mode::Plain, Mode::Power { alpha: 1.0 }] {
            let scale = Scale::new(mode, f64::MIN_POSITIVE, &Moments::default());
            let [low, high] = [0.0, 1e9].map(|score| scale.exponent(score));
            assert!(low < high && (high - low).is_finite(), "{low} {high}");
        }
    }

    #[test]
    fn powers_are_powers() {
        let mut scale = Scale::new(Mode::Power { alpha: 0.5 }, 1.0, &Moments::default());
        assert!((scale.weight(4.0, 0).unwrap() - 2.0).abs() < 1e-12);
        scale.bases = [0.0, -1e6];
        assert_eq!(scale.weight(4.0, 1), None, "too large for a sum");
    }
}
