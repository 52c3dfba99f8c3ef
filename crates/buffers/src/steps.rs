//! What follows a transition in its episode: n-step returns, windows of steps, and later steps as goals.

use echoic_memory::row_ring::Reader;
use echoic_memory::slab::Field;
use echoic_replay::rng::Rng;

use crate::episodes::Episodes;

/// Runs of steps, each of one episode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// The positions of all, one run behind the other.
    pub positions: Vec<u64>,
    /// Where each run ends among them.
    pub ends: Vec<usize>,
}

/// Which later step of an episode a goal is taken from (Andrychowicz et al., "Hindsight Experience Replay",
/// 2017).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The step itself or any later one.
    Future,
    /// The last one that is there.
    Final,
    /// Any of the episode.
    Episode,
}

impl Runs {
    /// Each step with up to `count - 1` that follow it.
    pub fn following(positions: &[u64], episodes: &Episodes, count: usize) -> Self {
        let mut runs = Self::default();
        for position in positions {
            match episodes.of(*position) {
                Some(steps) => runs.positions.extend(steps.range(steps.at(), count)),
                None => runs.positions.push(*position),
            }
            runs.ends.push(runs.positions.len());
        }
        runs
    }

    /// Windows of up to `length` steps: from each step on, or from so much earlier that the window is full,
    /// or has the whole episode.
    pub fn windows(positions: &[u64], episodes: &Episodes, length: usize) -> Self {
        let mut runs = Self::default();
        for position in positions {
            match episodes.of(*position) {
                Some(steps) => {
                    let first = steps.at().min(steps.len().saturating_sub(length));
                    runs.positions.extend(steps.range(first, length));
                }
                None => runs.positions.push(*position),
            }
            runs.ends.push(runs.positions.len());
        }
        runs
    }

    /// Each run.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        let begin = |at: usize| if at == 0 { 0 } else { self.ends[at - 1] };
        (0..self.ends.len()).map(move |at| &self.positions[begin(at)..self.ends[at]])
    }

    /// The last step of each run.
    pub fn last(&self) -> Vec<u64> {
        self.iter().map(|run| run[run.len() - 1]).collect()
    }

    /// All runs made equally long by repeating their last steps.
    pub fn padded(&self, length: usize) -> Vec<u64> {
        let mut all = Vec::with_capacity(self.ends.len() * length);
        for run in self.iter() {
            all.extend_from_slice(run);
            all.resize(all.len() + length - run.len(), run[run.len() - 1]);
        }
        all
    }

    /// The discounted sum of the rewards of each run, `Σ gamma^k r_k`, and what comes behind it counts:
    /// `gamma` to the power of its length. Rewards are 32-bit floats, or of 64 bits if `wide`.
    ///
    /// # Panics
    ///
    /// When a column has not a value for each run, or a step is not in the reader's window.
    pub fn returns(
        &self,
        reader: &Reader<'_>,
        reward: Field,
        gamma: f64,
        sums: &mut [u8],
        discounts: &mut [u8],
    ) {
        let wide = reward.bytes == 8;
        assert_eq!(sums.len(), self.ends.len() * reward.bytes);
        assert_eq!(discounts.len(), self.ends.len() * 4);
        self.positions.iter().for_each(|position| reader.prefetch(*position));
        let columns = sums.chunks_exact_mut(reward.bytes).zip(discounts.chunks_exact_mut(4));
        for (run, (sum_to, discount_to)) in self.iter().zip(columns) {
            let (mut sum, mut discount) = (0.0, 1.0);
            for position in run {
                let bytes = &reader.row(*position)[reward.offset..reward.offset + reward.bytes];
                sum += discount * number(bytes);
                discount *= gamma;
            }
            if wide {
                sum_to.copy_from_slice(&sum.to_ne_bytes());
            } else {
                sum_to.copy_from_slice(&(sum as f32).to_ne_bytes());
            }
            discount_to.copy_from_slice(&(discount as f32).to_ne_bytes());
        }
    }
}

/// A float of 32 or 64 bits.
fn number(bytes: &[u8]) -> f64 {
    match bytes.first_chunk::<8>() {
        Some(bytes) => f64::from_ne_bytes(*bytes),
        None => bytes.first_chunk::<4>().map_or(0.0, |bytes| f64::from(f32::from_ne_bytes(*bytes))),
    }
}

/// For each step, with a probability of `share`, the step whose outcome becomes its goal.
pub fn goals(
    positions: &[u64],
    episodes: &Episodes,
    goal: Goal,
    share: f64,
    rng: &mut Rng,
) -> Vec<Option<u64>> {
    let mut one = |position: &u64| {
        // Both numbers are drawn for every step, so that one step's luck does not change another's.
        let (luck, place) = (rng.unit(), rng.unit());
        let steps = episodes.of(*position).filter(|_| luck < share)?;
        let first = match goal {
            Goal::Future => steps.at(),
            Goal::Final => steps.len() - 1,
            Goal::Episode => 0,
        };
        let offset = (place * (steps.len() - first) as f64) as usize;
        steps.get((first + offset).min(steps.len() - 1))
    };
    positions.iter().map(&mut one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two environments take turns; that of the even positions ends after position 6.
    fn episodes() -> Episodes {
        let mut episodes = Episodes::new(100);
        (0..12).for_each(|at| episodes.push(at, (at % 2) as u32, at == 6));
        episodes
    }

    #[test]
    fn runs_end_with_the_episode() {
        let runs = Runs::following(&[0, 4, 6, 9, 8], &episodes(), 3);
        let expected: [&[u64]; 5] = [&[0, 2, 4], &[4, 6], &[6], &[9, 11], &[8, 10]];
        assert!(runs.iter().eq(expected), "{runs:?}");
        assert_eq!(runs.last(), [4, 6, 6, 11, 10]);
    }

    #[test]
    fn windows_move_back_to_be_full() {
        let runs = Runs::windows(&[0, 6, 11, 10], &episodes(), 3);
        let expected: [&[u64]; 4] = [&[0, 2, 4], &[2, 4, 6], &[7, 9, 11], &[8, 10]];
        assert!(runs.iter().eq(expected), "{runs:?}");
        assert_eq!(runs.padded(3)[9..], [8, 10, 10]);
    }

    #[test]
    fn goals_lie_where_they_are_asked_for() {
        let (episodes, mut rng) = (episodes(), Rng::new(1));
        let positions = [2; 3000];
        let of = |goal, rng: &mut Rng| goals(&positions, &episodes, goal, 1.0, rng);
        let count = |found: &[Option<u64>], at| found.iter().filter(|f| **f == Some(at)).count();
        let found = of(Goal::Future, &mut rng);
        // Six standard deviations of a count of a third are 155.
        assert!([2, 4, 6].iter().all(|at| count(&found, *at).abs_diff(1000) < 155));
        assert_eq!(count(&of(Goal::Final, &mut rng), 6), 3000);
        let found = of(Goal::Episode, &mut rng);
        assert!([0, 2, 4, 6].iter().all(|at| count(&found, *at).abs_diff(750) < 155));
        let some = goals(&positions, &episodes, Goal::Final, 0.25, &mut rng);
        assert!(count(&some, 6).abs_diff(750) < 155);
    }
}
