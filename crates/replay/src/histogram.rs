//! Durations counted without a lock, in constant memory.
//!
//! Buckets are log-linear: 16 per power of two, so a quantile is off by at most 1/16 of its value.
//! Not the `hdrhistogram` crate: its recorders need a lock or a thread of their own, and ours sit on
//! the path of every batch.

use std::sync::atomic::{AtomicU64, Ordering};

const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;
const BUCKETS: usize = ((64 - SUB_BITS + 1) as usize) << SUB_BITS;

/// Counts nanoseconds. Many threads may record at once.
///
/// ```
/// use echoic_replay::Histogram;
///
/// let histogram = Histogram::default();
/// (1..=100).for_each(|micros| histogram.record(micros * 1000));
/// let summary = histogram.summary();
/// assert_eq!(summary.count, 100);
/// assert!((summary.max - 100e-6).abs() < 1e-12);
/// assert!((summary.p50 - 50e-6).abs() < 50e-6 / 16.0);
/// ```
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

/// What a histogram amounts to; times in seconds, all zero when nothing was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub count: u64,
    pub min: f64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, nanos: u64) {
        // Relaxed: nothing is published through these numbers.
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
        if nanos < self.min.load(Ordering::Relaxed) {
            self.min.fetch_min(nanos, Ordering::Relaxed);
        }
        if nanos > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Forgets what was recorded. A duration that is recorded meanwhile may be counted in part.
    pub fn reset(&self) {
        for count in &self.buckets {
            count.store(0, Ordering::Relaxed);
        }
        self.sum.store(0, Ordering::Relaxed);
        self.min.store(u64::MAX, Ordering::Relaxed);
        self.max.store(0, Ordering::Relaxed);
    }

    /// Sums up what was recorded so far.
    pub fn summary(&self) -> Summary {
        let counts: Vec<u64> =
            self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return Summary::default();
        }
        // A value may be counted an instant before the ends know of it.
        let max = self.max.load(Ordering::Relaxed);
        let min = self.min.load(Ordering::Relaxed).min(max);
        let quantile = |q: f64| {
            let rank = (q * count as f64).ceil().max(1.0) as u64;
            let mut seen = 0;
            let at = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            // The bucket's middle, but nothing that was never recorded.
            let nanos = at.map_or(max, middle).clamp(min, max);
            nanos as f64 * 1e-9
        };
        Summary {
            count,
            min: min as f64 * 1e-9,
            mean: self.sum.load(Ordering::Relaxed) as f64 * 1e-9 / count as f64,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: max as f64 * 1e-9,
        }
    }
}

/// Values below 2 × `SUB` have a bucket each; above, the top `SUB_BITS + 1` bits name the bucket.
fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - (nanos | SUB).leading_zeros()) - (SUB_BITS + 1);
    (u64::from(shift) * SUB + (nanos >> shift)) as usize
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    let lowest = (bucket - shift * SUB) << shift;
    lowest + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_values_within_a_sixteenth(nanos: u64) {
            let found = middle(bucket(nanos));
            prop_assert!(found.abs_diff(nanos) as f64 <= nanos as f64 / 16.0, "{nanos}: {found}");
        }

        #[test]
        fn buckets_keep_the_order(a: u64, b: u64) {
            prop_assert_eq!(bucket(a.min(b)) <= bucket(a.max(b)), true);
        }

        #[test]
        fn quantiles_are_near_those_of_the_sorted_list(
            mut nanos in prop::collection::vec(0u64..10_000_000, 1..500),
        ) {
            let histogram = Histogram::default();
            nanos.iter().for_each(|value| histogram.record(*value));
            nanos.sort_unstable();
            let summary = histogram.summary();
            for (q, found) in [(0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99)] {
                let rank = ((q * nanos.len() as f64).ceil() as usize).max(1) - 1;
                let exact = nanos[rank] as f64 * 1e-9;
                prop_assert!((found - exact).abs() <= exact / 16.0 + 1e-12, "{q}: {found} {exact}");
            }
        }
    }

    #[test]
    fn the_largest_value_has_a_bucket() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn nothing_recorded_is_all_zero() {
        let histogram = Histogram::default();
        assert_eq!(histogram.summary(), Summary::default());
        histogram.record(5);
        histogram.reset();
        assert_eq!(histogram.summary(), Summary::default());
    }
}
