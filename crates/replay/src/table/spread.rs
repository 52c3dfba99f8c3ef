//! How numbers are spread, by powers of two or four, in a few counters.

/// How many counters, the last one of numbers beyond all bounds.
pub const BUCKETS: usize = 16;

/// How many there are of each size. Bucket `i` has those that are at most its bound, and more than the
/// bound before it; the last has the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread([u64; BUCKETS]);

impl Spread {
    /// The counts: at most 0, 1, 2, 4, … 8192, more; or at most 0, 4⁻⁷, 4⁻⁶, … 4⁶, more.
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.0
    }

    pub(super) fn add(&mut self, bucket: usize) {
        self.0[bucket] += 1;
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Takes out what was added.
    pub(super) fn remove(&mut self, bucket: usize) {
        self.0[bucket] -= 1;
    }
}

/// How many versions old samples were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lags {
    /// By how many.
    pub spread: Spread,
    /// All together.
    pub sum: u64,
}

impl Lags {
    /// Notes samples of items of these versions, while the learner's is this one.
    pub(super) fn note(&mut self, learner: u64, versions: &[u64]) {
        // Most are of the newest version; those are counted many at once.
        let newest = versions.iter().filter(|version| **version >= learner).count();
        self.spread.0[0] += newest as u64;
        if newest < versions.len() {
            for lag in versions.iter().filter_map(|version| learner.checked_sub(*version)) {
                if lag > 0 {
                    self.spread.add(of_count(lag));
                    self.sum = self.sum.saturating_add(lag);
                }
            }
        }
    }
}

/// How the items of a table are spread, and what was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spreads {
    /// Items by how often they were sampled.
    pub times_sampled: Spread,
    /// Items by priority.
    pub priorities: Spread,
    /// Samples by how many policy versions older than the learner's the item was.
    pub lags: Lags,
}

/// The bucket of a whole number.
pub(super) fn of_count(count: u64) -> usize {
    match count {
        0 => 0,
        // The power of two that it is at most.
        _ => ((u64::BITS - (count - 1).leading_zeros()) as usize + 1).min(BUCKETS - 1),
    }
}

/// The largest count of each bucket but the last.
pub fn count_bounds() -> [f64; BUCKETS - 1] {
    std::array::from_fn(|bucket| match bucket {
        0 => 0.0,
        _ => 2f64.powi(bucket as i32 - 1),
    })
}

/// The bucket of a priority: finite, and not negative.
pub(super) fn of_priority(priority: f64) -> usize {
    if priority <= 0.0 {
        return 0;
    }
    // The exponent of the power of two that it is at most: one less than a power of two has, and one more.
    let exponent = ((priority.to_bits() - 1) >> 52) as i64 - 1023 + 1;
    // The bound of bucket 8 is 1, and each is four times the one before.
    let bucket = (exponent + 16 + 1) >> 1;
    bucket.clamp(1, BUCKETS as i64 - 1) as usize
}

/// The highest priority of each bucket but the last.
pub fn priority_bounds() -> [f64; BUCKETS - 1] {
    std::array::from_fn(|bucket| match bucket {
        0 => 0.0,
        _ => 4f64.powi(bucket as i32 - 8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it belongs, found by looking.
    fn place(value: f64, bounds: &[f64]) -> usize {
        bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len())
    }

    #[test]
    fn a_count_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let bounds = count_bounds();
        for count in (0..20_000).chain([u64::from(u32::MAX), u64::MAX]) {
            assert_eq!(of_count(count), place(count as f64, &bounds), "{count}");
        }
    }

    #[test]
    fn so_is_a_priority() {
        let bounds = priority_bounds();
        let near = bounds.iter().flat_map(|bound| [bound.next_down(), *bound, bound.next_up()]);
        let others = [f64::MIN_POSITIVE, 5e-324, 0.3, 1.5, 7.0, 1e9, f64::MAX];
        for priority in near.chain(others).filter(|priority| *priority >= 0.0) {
            assert_eq!(of_priority(priority), place(priority, &bounds), "{priority:e}");
        }
    }
}
