//! Draws in proportion to a power of a priority (Schaul et al., "Prioritized Experience Replay", 2016).
//!
//! Rows are known by their slots here. The probability of a row is `p^alpha / Σ p^alpha`, and its weight in
//! an update is `(N · P)^-beta`, divided by the largest weight that any row of the buffer could have: that
//! of the smallest priority. That one comes from a tree of minima above the leaves of the tree of sums.

use echoic_replay::rng::Rng;
use echoic_replay::selectors::prioritized::{LEAST, MOST};
use echoic_replay::selectors::sum_tree::{self, LANES, SumTree};

use crate::error::Error;

/// Children of a node of the tree of minima.
const WIDTH: usize = 16;

/// How places of the sum are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draw {
    /// One place in each of as many equal parts of the sum as rows are drawn: as the paper does it.
    #[default]
    Stratified,
    /// Each place anywhere.
    Proportional,
}

/// What a draw has found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// In which slot the row is.
    pub slot: u32,
    /// How likely it was.
    pub probability: f64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Priorities {
    alpha: f64,
    sums: SumTree,
    minima: Minima,
    /// The largest priority ever: that of new rows, so that each is likely to be seen soon.
    largest: f64,
}

impl Priorities {
    /// For this many slots.
    ///
    /// # Errors
    ///
    /// [`Error`] when `alpha` is negative or not finite, or there are more slots than are counted.
    pub fn new(slots: u64, alpha: f64) -> Result<Self, Error> {
        if !(alpha >= 0.0 && alpha.is_finite()) {
            return Err(Error::setting("alpha", "a finite number >= 0", alpha));
        }
        let most = u64::from(u32::MAX);
        let count = u32::try_from(slots).map_err(|_| Error::too_large(most, slots))?;
        let (sums, minima) = (
            SumTree::with_room(count),
            Minima::new(slots.div_ceil(sum_tree::WIDTH as u64) as usize),
        );
        Ok(Self { alpha, sums, minima, largest: 1.0 })
    }

    /// The exponent.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// The priority of a row for which none is given: the largest that any ever had.
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// The sum of all powers.
    pub fn total(&self) -> f64 {
        self.sums.total()
    }

    /// That a number can be a priority.
    ///
    /// # Errors
    ///
    /// [`Error::Priority`] when it can't.
    pub fn check(priority: f64, at: usize) -> Result<f64, Error> {
        let good = priority >= 0.0 && priority.is_finite();
        let text = || format!("a priority is a finite number >= 0, got {priority} at index {at}");
        if good { Ok(priority) } else { Err(Error::Priority(text())) }
    }

    /// That all of these can be priorities.
    ///
    /// # Errors
    ///
    /// [`Error::Priority`] for the first that can't.
    pub fn check_all(priorities: &[f64]) -> Result<(), Error> {
        priorities
            .iter()
            .enumerate()
            .try_for_each(|(at, priority)| Self::check(*priority, at).map(drop))
    }

    /// That there is a priority for each of this many indices.
    pub(crate) fn check_updates(indices: usize, priorities: &[f64]) -> Result<(), Error> {
        if indices != priorities.len() {
            let got = priorities.len();
            return Err(Error::lengths("priorities", "indices", got, indices));
        }
        Self::check_all(priorities)
    }

    /// Gives slots their priorities, which have been checked.
    pub fn set_many(&mut self, priorities: &[(u32, f64)]) {
        if let [(slot, priority)] = *priorities {
            self.largest = self.largest.max(priority);
            let weight = self.weight(priority);
            self.sums.set(slot, weight);
            return self.note_least(slot);
        }
        let weights: Vec<(u32, f64)> =
            priorities.iter().map(|(slot, priority)| (*slot, self.weight(*priority))).collect();
        self.sums.set_many(&weights);
        weights.iter().for_each(|(slot, _)| self.note_least(*slot));
        self.largest =
            priorities.iter().fold(self.largest, |most, (_, priority)| most.max(*priority));
    }

    /// Takes slots out of all draws.
    pub fn remove(&mut self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            self.sums.set(slot, 0.0);
            self.note_least(slot);
        }
    }

    /// The power of a slot's priority.
    pub fn weight_of(&self, slot: u32) -> f64 {
        self.sums.get(slot)
    }

    /// Gives slots the powers that [`Priorities::weight_of`] said.
    pub fn restore(&mut self, weights: &[(u32, f64)], largest: f64) {
        self.sums.set_many(weights);
        weights.iter().for_each(|(slot, _)| self.note_least(*slot));
        self.largest = largest;
    }

    /// Has the minima know of a slot whose power has changed.
    #[inline]
    fn note_least(&mut self, slot: u32) {
        let above_zero = |power: &f64| if *power > 0.0 { *power } else { f64::INFINITY };
        let least = self.sums.siblings(slot).iter().map(above_zero).fold(f64::INFINITY, f64::min);
        self.minima.set(slot as usize / sum_tree::WIDTH, least);
    }

    /// Draws `count` slots; none when all priorities are zero.
    pub fn draw(&self, count: usize, draw: Draw, rng: &mut Rng, drawn: &mut Vec<Drawn>) {
        let total = self.total();
        if total <= 0.0 {
            return;
        }
        drawn.reserve(count);
        let part = total / count as f64;
        let mut places = [0.0; LANES];
        let mut done = 0;
        while done < count {
            let group = &mut places[..(count - done).min(LANES)];
            for (at, place) in group.iter_mut().enumerate() {
                *place = match draw {
                    Draw::Stratified => part * ((done + at) as f64 + rng.unit()),
                    Draw::Proportional => total * rng.unit(),
                };
            }
            self.sums.find_many(group, |found| {
                drawn.push(Drawn { slot: found.index, probability: found.weight / total });
            });
            done += group.len();
        }
    }

    /// What each row that was drawn counts in an update, in a buffer of `len` rows: at most 1.
    pub fn weights(&self, drawn: &[Drawn], beta: f64, mut each: impl FnMut(f64)) {
        // (N P)^-b / (N P_min)^-b, in which N falls out.
        let least = self.minima.least() / self.total();
        for row in drawn {
            let ratio = least / row.probability;
            each(if beta == 1.0 { ratio } else { ratio.powf(beta) });
        }
    }

    fn weight(&self, priority: f64) -> f64 {
        if priority > 0.0 {
            let power = if self.alpha == 1.0 { priority } else { priority.powf(self.alpha) };
            power.clamp(LEAST, MOST)
        } else {
            0.0
        }
    }
}

/// The smallest of many numbers.
#[derive(Debug)]
struct Minima {
    /// The numbers first; each further level has the minima of groups of the one before.
    levels: Vec<Vec<f64>>,
}

impl Minima {
    fn new(count: usize) -> Self {
        let mut levels = vec![vec![f64::INFINITY; count.next_multiple_of(WIDTH)]];
        let mut len = levels[0].len() / WIDTH;
        while len > 1 {
            levels.push(vec![f64::INFINITY; len.next_multiple_of(WIDTH)]);
            len = len.div_ceil(WIDTH);
        }
        Self { levels }
    }

    #[inline]
    fn set(&mut self, index: usize, value: f64) {
        let (mut index, mut value) = (index, value);
        for level in &mut self.levels {
            let before = std::mem::replace(&mut level[index], value);
            if before == value {
                return;
            }
            let group = index / WIDTH * WIDTH;
            // Usually the number is neither the smallest of its group nor was: then nothing above changes,
            // and a look at the group says so.
            value = level[group..group + WIDTH].iter().copied().fold(f64::INFINITY, f64::min);
            index /= WIDTH;
        }
    }

    fn least(&self) -> f64 {
        let top = self.levels.last().map_or(&[][..], |level| level);
        top.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use echoic_replay::rng::Rng;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_least_is_the_smallest_above_zero(
            count in 1u32..600,
            steps in prop::collection::vec((0u32..600, prop_oneof![Just(0.0), 0.1..9.0f64]), 0..200),
        ) {
            let mut priorities = Priorities::new(count.into(), 1.0).unwrap();
            let mut plain = vec![0.0; count as usize];
            for steps in steps.chunks(3) {
                let steps: Vec<_> = steps.iter().map(|(slot, value)| (slot % count, *value)).collect();
                priorities.set_many(&steps);
                steps.iter().for_each(|(slot, value)| plain[*slot as usize] = *value);
                let least = plain.iter().copied().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
                prop_assert_eq!(priorities.minima.least(), least);
            }
        }
    }

    #[test]
    fn draws_are_in_proportion_to_powers_of_priorities() {
        for draw in [Draw::Stratified, Draw::Proportional] {
            let mut priorities = Priorities::new(8, 0.5).unwrap();
            priorities.set_many(&[(0, 1.0), (3, 4.0), (5, 9.0), (6, 0.0)]);
            let mut rng = Rng::new(4);
            let mut counts = [0u32; 8];
            for _ in 0..600 {
                let mut drawn = Vec::new();
                priorities.draw(100, draw, &mut rng, &mut drawn);
                drawn.iter().for_each(|row| counts[row.slot as usize] += 1);
            }
            // Of 60,000 draws; six standard deviations of a binomial count are below 750.
            for (slot, expected) in [(0, 10_000), (3, 20_000u32), (5, 30_000), (6, 0), (1, 0)] {
                assert!(counts[slot].abs_diff(expected) < 750, "{draw:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn weights_correct_for_how_likely_a_row_was() {
        let mut priorities = Priorities::new(4, 1.0).unwrap();
        priorities.set_many(&[(0, 1.0), (1, 2.0), (2, 5.0)]);
        let rows =
            [0, 1, 2].map(|slot| Drawn { slot, probability: priorities.weight_of(slot) / 8.0 });
        let of = |beta| {
            let mut weights = Vec::new();
            priorities.weights(&rows, beta, |weight| weights.push(weight));
            weights
        };
        assert_eq!(of(1.0), [1.0, 0.5, 0.2]);
        assert_eq!(of(0.0), [1.0, 1.0, 1.0]);
        assert!((of(0.5)[2] - 0.2f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_new_row_gets_the_largest_priority_that_ever_was() {
        let mut priorities = Priorities::new(4, 1.0).unwrap();
        assert_eq!(priorities.largest(), 1.0);
        priorities.set_many(&[(0, 7.0), (1, 3.0)]);
        priorities.set_many(&[(0, 0.5)]);
        assert_eq!(priorities.largest(), 7.0);
    }

    #[test]
    fn settings_that_mean_nothing_are_refused() {
        for alpha in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(Priorities::new(4, alpha), Err(Error::Argument(_))));
        }
        for priority in [-1.0, f64::NAN, f64::INFINITY] {
            let error = Priorities::check(priority, 3).unwrap_err();
            assert!(matches!(error, Error::Priority(_)) && error.to_string().ends_with("index 3"));
        }
    }
}
