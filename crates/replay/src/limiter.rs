//! The rate limiter of a table: which calls have to wait.
//!
//! A table counts its I inserts, S samples and D deletions since it was empty; the limiter compares
//! them with four numbers and keeps no state of its own:
//!
//! - n samples go when `I − D ≥ min_size` and `I·spi − S − n ≥ min_diff`;
//! - n inserts go when `I + n − D ≤ min_size` or `(I + n)·spi − S ≤ max_diff`.
//!
//! These are the inequalities of Reverb, in the same arithmetic: `I·spi` is a product of doubles.
//! Counts are exact up to 2⁵³, and the product is off by half of its last place: by 10⁻⁴ after 10¹²
//! inserts. What is then an equality on paper may go either way, so leave the two bounds some room.
//!
//! Numbers that let nothing go on are refused, with the arithmetic; how that is proven is in
//! `deadlock`.

use crate::codec::{CodecError, Decode, Encode, Reader};
use crate::{WaitReason, fields};

mod deadlock;

pub use deadlock::Bounds;

/// The four numbers of a limiter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// Items that must be there before any is sampled.
    pub min_size: u64,
    /// How often an item is to be sampled on average, above 0.
    pub samples_per_insert: f64,
    /// The least `I·spi − S` that samples may lead to; −∞ when they may lead anywhere.
    pub min_diff: f64,
    /// The most `I·spi − S` that inserts may lead to; ∞ when they may lead anywhere.
    pub max_diff: f64,
}

/// What has happened to a table since it was empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Items that came.
    pub inserts: u64,
    /// Items that were sampled, each as often as it was.
    pub samples: u64,
    /// Items that went, whatever took them; never more than came.
    pub deletions: u64,
}

fields! { Counts { inserts: u64, samples: u64, deletions: u64 } }

impl Counts {
    /// How many items are there.
    pub fn size(&self) -> u64 {
        self.inserts.saturating_sub(self.deletions)
    }
}

/// How far samples may be from the ratio before someone waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ErrorBuffer {
    /// This far to both sides of `min_size · samples_per_insert`, where a table stands when the
    /// first sample may go.
    Symmetric(f64),
    /// `min_diff` and `max_diff` themselves.
    Range(f64, f64),
}

impl From<f64> for ErrorBuffer {
    fn from(error: f64) -> Self {
        Self::Symmetric(error)
    }
}

impl From<(f64, f64)> for ErrorBuffer {
    fn from((min_diff, max_diff): (f64, f64)) -> Self {
        Self::Range(min_diff, max_diff)
    }
}

/// Numbers that make no limiter, or one under which something waits for ever.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LimiterError {
    /// Ask for at least one item: nothing can be sampled from an empty table.
    #[error("min_size must be at least 1, got 0")]
    MinSize,
    /// Give the size of the queue or stack.
    #[error("the size of a queue or a stack must be at least 1, got 0")]
    QueueSize,
    /// Give a ratio; for none at all there is [`Limiter::min_size`].
    #[error("samples_per_insert must be a finite number above 0, got {0}")]
    SamplesPerInsert(f64),
    /// Give a number, or −∞ for no bound.
    #[error("min_diff must be a number below infinity, got {0}")]
    MinDiff(f64),
    /// Give a number, or ∞ for no bound.
    #[error("max_diff must be a number above minus infinity, got {0}")]
    MaxDiff(f64),
    /// Give a distance.
    #[error("error_buffer must be a number of at least 0, got {0}")]
    ErrorBuffer(f64),
    /// Make the table larger, or ask for fewer items.
    #[error("min_size {min_size} is never reached by a table of capacity {capacity}")]
    Capacity {
        /// Items asked for.
        min_size: u64,
        /// Items there can be.
        capacity: u64,
    },
    /// Widen the error buffer.
    #[error(
        "after {inserts} inserts and {samples} samples everyone would wait for ever: one more insert \
         makes {inserts} × {spi} − {samples} + {spi} = {up}, above max_diff {max}; one more sample makes \
         {inserts} × {spi} − {samples} − 1 = {down}, below min_diff {min}; a max_diff − min_diff of \
         1 + samples_per_insert = {enough} is always enough, this is {width}",
        inserts = .counts.inserts,
        samples = .counts.samples,
        spi = .parameters.samples_per_insert,
        max = .parameters.max_diff,
        min = .parameters.min_diff,
        up = .parameters.diff(.counts.inserts.saturating_add(1), .counts.samples),
        down = .parameters.diff(.counts.inserts, .counts.samples) - 1.0,
        enough = 1.0 + .parameters.samples_per_insert,
        width = .parameters.max_diff - .parameters.min_diff
    )]
    Deadlock {
        /// Where it comes to an end.
        counts: Counts,
        /// The limiter.
        parameters: Parameters,
    },
    /// Sample fewer at once, or widen the error buffer.
    #[error(
        "a batch of {n} can never be sampled: inserts stop at I·spi − S = {top} at the latest, and \
         {top} − {n} = {} is below min_diff {min_diff}; at most {} can be sampled at once",
        .top - *.n as f64,
        (.top - .min_diff).floor().max(0.0)
    )]
    Batch {
        /// Samples asked for at once.
        n: u64,
        /// Where inserts stop.
        top: f64,
        /// Where samples stop.
        min_diff: f64,
    },
    /// Sample fewer at once.
    #[error(
        "a batch of {n} can never be sampled: {capacity} items, each sampled at most {times} times, \
         give {}",
        .capacity.saturating_mul(*.times)
    )]
    Items {
        /// Samples asked for at once.
        n: u64,
        /// Items there can be.
        capacity: u64,
        /// How often each is sampled before it goes.
        times: u64,
    },
}

impl Parameters {
    /// `I·spi − S`.
    fn diff(&self, inserts: u64, samples: u64) -> f64 {
        inserts as f64 * self.samples_per_insert - samples as f64
    }
}

/// See the [module](self).
///
/// ```
/// use echoic_replay::WaitReason;
/// use echoic_replay::limiter::{Counts, Limiter};
///
/// // Two samples for each insert, once there are 10 items; 4 more or fewer are fine.
/// let limiter = Limiter::sample_to_insert_ratio(2.0, 10, 4.0)?;
/// let mut counts = Counts { inserts: 9, ..Counts::default() };
/// assert_eq!(limiter.can_sample(&counts, 1), Err(WaitReason::MinSize));
/// counts.inserts = 12;
/// assert_eq!(limiter.can_insert(&counts, 1), Err(WaitReason::Ratio));
/// assert_eq!(limiter.can_sample(&counts, 8), Ok(()));
/// # Ok::<(), echoic_replay::limiter::LimiterError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limiter(Parameters);

/// Samples wait until there is an item; inserts never wait.
impl Default for Limiter {
    fn default() -> Self {
        let (min_diff, max_diff) = (f64::NEG_INFINITY, f64::INFINITY);
        Self(Parameters { min_size: 1, samples_per_insert: 1.0, min_diff, max_diff })
    }
}

impl Encode for Limiter {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for Limiter {
    const LEAST: usize = Parameters::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let parameters: Parameters = from.get(field)?;
        let got = parameters.min_size;
        Self::raw(parameters).map_err(|_| CodecError::Meaningless { field, got })
    }
}

impl Limiter {
    /// The four numbers as they are. Only what no table could live with is refused here; what a
    /// table makes of them is for [`Limiter::check_table`].
    pub fn raw(parameters: Parameters) -> Result<Self, LimiterError> {
        let Parameters { min_size, samples_per_insert, min_diff, max_diff } = parameters;
        if min_size == 0 {
            return Err(LimiterError::MinSize);
        }
        if !(samples_per_insert.is_finite() && samples_per_insert > 0.0) {
            return Err(LimiterError::SamplesPerInsert(samples_per_insert));
        }
        if min_diff.is_nan() || min_diff == f64::INFINITY {
            return Err(LimiterError::MinDiff(min_diff));
        }
        if max_diff.is_nan() || max_diff == f64::NEG_INFINITY {
            return Err(LimiterError::MaxDiff(max_diff));
        }
        let limiter = Self(parameters);
        limiter.check_start()?;
        Ok(limiter)
    }

    /// Samples wait until there are `min_size` items; inserts never wait.
    pub fn min_size(min_size: u64) -> Result<Self, LimiterError> {
        Self::raw(Parameters { min_size, ..Self::default().0 })
    }

    /// Keeps samples and inserts in a ratio, once there are `min_size` items.
    ///
    /// An error buffer whose bounds are `1 + samples_per_insert` apart never stops everyone. A
    /// narrower one may or may not, depending on which multiples of the ratio fall between the
    /// bounds, so the way that single inserts and samples must then take is followed, and refused
    /// when it ends. It is the way in a table that keeps its items, however often they are sampled.
    pub fn sample_to_insert_ratio(
        samples_per_insert: f64,
        min_size: u64,
        error_buffer: impl Into<ErrorBuffer>,
    ) -> Result<Self, LimiterError> {
        let (min_diff, max_diff) = match error_buffer.into() {
            ErrorBuffer::Range(min_diff, max_diff) => (min_diff, max_diff),
            ErrorBuffer::Symmetric(error) if error >= 0.0 => {
                let offset = min_size as f64 * samples_per_insert;
                (offset - error, offset + error)
            }
            ErrorBuffer::Symmetric(error) => return Err(LimiterError::ErrorBuffer(error)),
        };
        let parameters = Parameters { min_size, samples_per_insert, min_diff, max_diff };
        let limiter = Self::raw(parameters)?;
        limiter.check_table(Bounds { capacity: u64::MAX, max_times_sampled: None })?;
        Ok(limiter)
    }

    /// For a table whose items go when they have been sampled once: inserts wait while `size` items
    /// are there, samples while none is. With fifo selectors it is a queue.
    pub fn queue(size: u64) -> Result<Self, LimiterError> {
        if size == 0 {
            return Err(LimiterError::QueueSize);
        }
        let (min_diff, max_diff) = (0.0, size as f64);
        Self::raw(Parameters { min_size: 1, samples_per_insert: 1.0, min_diff, max_diff })
    }

    /// As [`Limiter::queue`]: lifo selectors make the stack.
    pub fn stack(size: u64) -> Result<Self, LimiterError> {
        Self::queue(size)
    }

    /// The four numbers.
    pub fn parameters(&self) -> &Parameters {
        &self.0
    }

    /// Whether `n` items may be sampled now, all at once.
    ///
    /// # Errors
    ///
    /// Why they must wait: [`WaitReason::MinSize`] or [`WaitReason::Ratio`].
    pub fn can_sample(&self, counts: &Counts, n: u64) -> Result<(), WaitReason> {
        if counts.size() < self.0.min_size {
            return Err(WaitReason::MinSize);
        }
        let diff = self.0.diff(counts.inserts, counts.samples) - n as f64;
        if diff >= self.0.min_diff { Ok(()) } else { Err(WaitReason::Ratio) }
    }

    /// Whether `n` items may be inserted now, all at once.
    ///
    /// # Errors
    ///
    /// Why they must wait: [`WaitReason::Ratio`].
    pub fn can_insert(&self, counts: &Counts, n: u64) -> Result<(), WaitReason> {
        if counts.size().saturating_add(n) <= self.0.min_size {
            return Ok(());
        }
        let diff = self.0.diff(counts.inserts.saturating_add(n), counts.samples);
        if diff <= self.0.max_diff { Ok(()) } else { Err(WaitReason::Ratio) }
    }
}
