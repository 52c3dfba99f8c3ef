//! What can be proven to wait for ever.
//!
//! Let `d = I·spi − S`. While a table has too few items inserts are free, so every table comes to
//! `min_size` items and `d = min_size·spi`. From there an insert needs `d + spi ≤ max_diff` and a
//! sample `d − 1 ≥ min_diff`; everyone waits where both fail, in `max_diff − spi < d < min_diff +
//! 1`.
//!
//! 1. When `max_diff − min_diff ≥ 1 + spi` there is no such d, and nothing ever ends.
//! 2. When it is less, there is no d where both may go. The way of a table is then forced, call by
//!    call, whatever its clients do, and following it shows whether it ends. With `spi = p/q` it
//!    comes back to where it was after p + q calls.
//! 3. Items that go because they were sampled often enough may make inserts free again, so the way
//!    is followed only as far as it is certain which items have gone: to the end when they go at their
//!    first sample, and otherwise while there were fewer samples than one item stands.
//!
//! Items that a client deletes by hand make inserts free too, and can end any wait. No proof counts
//! on that: it is no way to run a table.

use std::num::NonZeroU64;

use super::{Counts, Limiter, LimiterError, Parameters};

/// How many calls are followed: as many as take well under a millisecond. A way that ends later is
/// not refused.
const CALLS: u32 = 1 << 16;

/// Whole numbers up to here are exact as doubles; nothing is proven beyond.
const EXACT: f64 = (1u64 << 52) as f64;

/// What a table adds to its limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most items; one more makes another go.
    pub capacity: u64,
    /// How often an item is sampled before it goes; `None` when it stays.
    pub max_times_sampled: Option<NonZeroU64>,
}

impl Limiter {
    /// Whether a table with these bounds can go on under single inserts and samples.
    ///
    /// # Errors
    ///
    /// [`LimiterError::Capacity`] or [`LimiterError::Deadlock`], when it is certain that it can't.
    pub fn check_table(&self, bounds: Bounds) -> Result<(), LimiterError> {
        let (min_size, capacity) = (self.0.min_size, bounds.capacity);
        if min_size > capacity {
            return Err(LimiterError::Capacity { min_size, capacity });
        }
        match self.end(bounds) {
            Some(counts) => Err(LimiterError::Deadlock { counts, parameters: self.0 }),
            None => Ok(()),
        }
    }

    /// Whether `n` items can be sampled at once, now or after other inserts and samples.
    ///
    /// Inserts stop at `max_diff`, so more than `max_diff − min_diff` are not sampled at once,
    /// unless there is more than that already.
    ///
    /// # Errors
    ///
    /// [`LimiterError::Batch`] or [`LimiterError::Items`], when it is certain that they can't.
    pub fn check_batch(&self, counts: &Counts, n: u64, bounds: Bounds) -> Result<(), LimiterError> {
        let Bounds { capacity, max_times_sampled } = bounds;
        if let Some(times) = max_times_sampled.map(NonZeroU64::get)
            && n > capacity.saturating_mul(times)
        {
            return Err(LimiterError::Items { n, capacity, times });
        }
        let filled = Counts {
            inserts: counts.inserts.max(counts.deletions.saturating_add(self.0.min_size)),
            ..*counts
        };
        if self.can_sample(&filled, n).is_ok() {
            return Ok(());
        }
        let (step, top) = (self.step(), self.top());
        // Where items stay, `d` comes above `filled` only by an insert that `max_diff` allows, and
        // rounding keeps that order. Where each goes at its first sample, a sample takes 1 off `d`
        // and frees an insert that adds `spi`, which is no more; but then it must be free of
        // rounding.
        let is_capped = match max_times_sampled.map(NonZeroU64::get) {
            None => true,
            Some(1) => self.0.samples_per_insert <= 1.0 && step > 0.0,
            Some(_) => false,
        };
        if is_capped && top - (n as f64) < self.0.min_diff {
            return Err(LimiterError::Batch { n, top, min_diff: self.0.min_diff });
        }
        Ok(())
    }

    /// That the first sample, or an insert in its place, can go: no table has lost an item before.
    pub(super) fn check_start(&self) -> Result<(), LimiterError> {
        let counts = Counts { inserts: self.0.min_size, ..Counts::default() };
        if self.can_sample(&counts, 1).is_err() && self.can_insert(&counts, 1).is_err() {
            return Err(LimiterError::Deadlock { counts, parameters: self.0 });
        }
        Ok(())
    }

    /// Where everyone waits for ever, if the way of a table certainly leads there.
    fn end(&self, bounds: Bounds) -> Option<Counts> {
        let Parameters { min_size, samples_per_insert, min_diff, max_diff } = self.0;
        if max_diff - min_diff >= 1.0 + samples_per_insert {
            return None;
        }
        let times = bounds.max_times_sampled.map_or(u64::MAX, NonZeroU64::get);
        let mut counts = Counts { inserts: min_size, ..Counts::default() };
        if times == u64::MAX {
            self.skip(&mut counts)?;
        }
        for _ in 0..CALLS {
            match (self.can_insert(&counts, 1).is_ok(), self.can_sample(&counts, 1).is_ok()) {
                (false, false) => return Some(counts),
                // Rounding left a choice: nothing is certain.
                (true, true) => return None,
                (true, false) => counts.inserts += 1,
                (false, true) => {
                    counts.samples += 1;
                    counts.deletions += u64::from(times == 1);
                }
            }
            if 1 < times && times <= counts.samples {
                return None;
            }
            if counts.size() > bounds.capacity {
                counts.deletions += 1;
            }
        }
        None
    }

    /// Goes near to the bounds, where so far only inserts or only samples may go. `None` when that
    /// is too far to count.
    fn skip(&self, counts: &mut Counts) -> Option<()> {
        let Parameters { samples_per_insert, min_diff, max_diff, .. } = self.0;
        let start = self.0.diff(counts.inserts, counts.samples);
        let down = (start - max_diff).min(start - min_diff) - 2.0;
        let up = ((max_diff - start).min(min_diff - start) / samples_per_insert) - 2.0;
        if [down, up, counts.inserts as f64, start].into_iter().any(|count| count > EXACT) {
            return None;
        }
        counts.samples += down.max(0.0) as u64;
        counts.inserts += up.max(0.0) as u64;
        Some(())
    }

    /// What every `I·spi − S` is a whole multiple of, when that is 2⁻²⁰ or more, and 0 otherwise.
    fn step(&self) -> f64 {
        const FINEST: f64 = 1.0 / (1u64 << 20) as f64;
        let is_whole = |step: &f64| (self.0.samples_per_insert / step).fract() == 0.0;
        let steps = std::iter::successors(Some(1.0), |step| (*step > FINEST).then_some(step / 2.0));
        steps.into_iter().find(is_whole).unwrap_or(0.0)
    }

    /// The most that `I·spi − S` can be after an insert that was not free.
    fn top(&self) -> f64 {
        let (step, max_diff) = (self.step(), self.0.max_diff);
        if step == 0.0 || max_diff.abs() > EXACT {
            return max_diff;
        }
        (max_diff / step).floor() * step
    }
}
