//! The generator behind every random choice: xoshiro256++ (Blackman and Vigna, 2019), seeded with
//! SplitMix64.
//!
//! It is written down here, and not taken from a library, so that a seed gives the same draws in every
//! release, on every machine, and after a checkpoint.

/// A seeded stream of random numbers.
///
/// ```
/// use echoic_replay::rng::Rng;
///
/// let mut rng = Rng::new(7);
/// let mut copy = Rng::from_state(rng.state());
/// assert_eq!(rng.next(), copy.next());
/// assert!(rng.below(10) < 10 && rng.unit() < 1.0);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    /// What [`Rng::state`] said. All zeros, which no seed leads to, would stay zeros: they stand for
    /// the seed 0.
    pub fn from_state(state: [u64; 4]) -> Self {
        if state == [0; 4] { Self::new(0) } else { Self(state) }
    }

    /// Where the stream is.
    pub fn state(&self) -> [u64; 4] {
        self.0
    }

    /// The next 64 random bits.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it never ends, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.0;
        let result = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A number below `end`, each equally likely (Lemire, 2019).
    ///
    /// # Panics
    ///
    /// When `end` is zero.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below zero");
        let mut wide = u128::from(self.next()) * u128::from(end);
        if (wide as u64) < end {
            // The few values that would make some results likelier than others.
            let threshold = end.wrapping_neg() % end;
            while (wide as u64) < threshold {
                wide = u128::from(self.next()) * u128::from(end);
            }
        }
        (wide >> 64) as u64
    }

    /// A number from 0 to below 1, of 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with the reference implementation in C, from the state 1, 2, 3, 4.
    #[test]
    fn gives_the_numbers_of_the_published_generator() {
        let mut rng = Rng::from_state([1, 2, 3, 4]);
        let got: Vec<u64> = (0..4).map(|_| rng.next()).collect();
        assert_eq!(got, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn below_is_even() {
        let mut rng = Rng::new(1);
        let mut counts = [0u32; 6];
        (0..60_000).for_each(|_| counts[rng.below(6) as usize] += 1);
        // Six standard deviations are 548.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 548), "{counts:?}");
    }
}
