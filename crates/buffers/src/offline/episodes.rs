//! Where episodes begin and end in a row of steps, and what they returned.
//!
//! An episode ends with a step that is terminated or truncated. Steps behind the last such step are an episode
//! too, which goes on behind the data: it counts, and its returns-to-go end where the data end.

use crate::error::Error;

/// Where each episode starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Episodes {
    /// The first step of each, and the number of all steps.
    starts: Vec<usize>,
    complete: bool,
}

impl Episodes {
    /// The episodes of this many steps, each with a byte for either flag.
    ///
    /// # Errors
    ///
    /// [`Error`] when a flag is neither 0 nor 1, or there is not one of each for each step.
    pub fn new(terminated: &[u8], truncated: &[u8]) -> Result<Self, Error> {
        if terminated.len() != truncated.len() {
            let (expected, got) = (terminated.len(), truncated.len());
            return Err(Error::rows("truncated", expected, got));
        }
        let mut starts = vec![0];
        for (step, flags) in terminated.iter().zip(truncated).enumerate() {
            let (terminated, truncated) = flags;
            if (terminated | truncated) & !1 != 0 {
                let wrong = terminated & !1 != 0;
                let (column, value) =
                    if wrong { ("terminated", *terminated) } else { ("truncated", *truncated) };
                let got = format!("got {value} at step {step}");
                return Err(Error::Argument(format!("`{column}`: expected 0 or 1, {got}")));
            }
            if terminated | truncated == 1 {
                starts.push(step + 1);
            }
        }
        let complete = starts.last() == Some(&terminated.len());
        if !complete {
            starts.push(terminated.len());
        }
        Ok(Self { starts, complete })
    }

    /// How many episodes there are.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many steps there are.
    pub fn steps(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether the last episode has an end.
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// The episode of a step.
    pub fn of(&self, step: usize) -> usize {
        self.starts.partition_point(|start| *start <= step) - 1
    }

    /// The steps of an episode.
    ///
    /// # Panics
    ///
    /// When there is no such episode.
    pub fn range(&self, episode: usize) -> std::ops::Range<usize> {
        self.starts[episode]..self.starts[episode + 1]
    }

    /// The steps of each episode.
    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.starts.windows(2).map(|ends| ends[0]..ends[1])
    }

    /// What each episode returned, undiscounted.
    pub fn returns(&self, rewards: &dyn Fn(usize) -> f64) -> Vec<f64> {
        self.ranges().map(|steps| steps.map(rewards).sum()).collect()
    }

    /// The discounted sum of rewards from each step to the end of its episode.
    pub fn returns_to_go(&self, rewards: &dyn Fn(usize) -> f64, gamma: f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.steps()];
        for steps in self.ranges() {
            let mut sum = 0.0;
            for step in steps.rev() {
                sum = rewards(step) + gamma * sum;
                sums[step] = sum;
            }
        }
        sums
    }
}

/// What is known about some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Their mean, 0 when there are none.
    pub mean: f64,
    /// Their standard deviation, of the numbers themselves and not of what they are a sample of.
    pub std: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Summary {
    /// Of these numbers.
    pub fn of(numbers: &[f64]) -> Self {
        if numbers.is_empty() {
            return Self::default();
        }
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let square = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>();
        Self {
            mean,
            std: (square / count).sqrt(),
            min: numbers.iter().copied().fold(f64::INFINITY, f64::min),
            max: numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_step_that_ends_in_either_way_ends_its_episode() {
        let episodes = Episodes::new(&[0, 1, 0, 0, 1, 0], &[0, 0, 1, 0, 1, 0]).unwrap();
        let ranges: Vec<_> = episodes.ranges().collect();
        assert_eq!(ranges, [0..2, 2..3, 3..5, 5..6]);
        assert!(!episodes.complete(), "the last step ends nothing");
        assert_eq!([0, 1, 2, 3, 4, 5].map(|step| episodes.of(step)), [0, 0, 1, 2, 2, 3]);
    }

    #[test]
    fn no_steps_are_no_episodes() {
        let episodes = Episodes::new(&[], &[]).unwrap();
        assert!(episodes.is_empty() && episodes.complete());
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn a_flag_that_is_neither_0_nor_1_is_named() {
        let error = Episodes::new(&[0, 1], &[0, 7]).unwrap_err();
        assert_eq!(error.to_string(), "`truncated`: expected 0 or 1, got 7 at step 1");
        assert!(Episodes::new(&[0], &[]).is_err());
    }

    proptest! {
        /// The sums are those of a loop that starts over at each step.
        #[test]
        fn returns_to_go_reach_to_the_end_of_the_episode(
            flags in prop::collection::vec((0u8..2, 0u8..2, -9i8..9), 0..40), gamma in 0.0f64..1.0,
        ) {
            let (terminated, truncated): (Vec<_>, Vec<_>) = flags.iter().map(|f| (f.0, f.1)).unzip();
            let reward = |step: usize| f64::from(flags[step].2);
            let episodes = Episodes::new(&terminated, &truncated).unwrap();
            let sums = episodes.returns_to_go(&reward, gamma);
            for (step, sum) in sums.iter().enumerate() {
                let (mut expected, mut weight) = (0.0, 1.0);
                for (later, (terminated, truncated, reward)) in flags.iter().enumerate().skip(step) {
                    expected += weight * f64::from(*reward);
                    weight *= gamma;
                    if terminated | truncated == 1 {
                        prop_assert_eq!(episodes.range(episodes.of(step)).end, later + 1);
                        break;
                    }
                }
                prop_assert!((sum - expected).abs() < 1e-9, "{} {}", sum, expected);
            }
            prop_assert_eq!(sums.len(), flags.len());
        }
    }
}
