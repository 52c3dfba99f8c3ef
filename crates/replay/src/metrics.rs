//! Statistics of a stream.
//!
//! Counting must not slow down what is counted: totals are derived from the ring's own cursors, and
//! of a large batch only [`MARKS`] samples, evenly spread, are timed. Their share of the batch does
//! not depend on their contents, so the histograms are those of all samples up to chance.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::histogram::{Histogram, Summary};
use crate::waits::Tally;

/// How many samples of a batch are timed at most.
pub const MARKS: usize = 4;

/// Counters and clocks of one stream.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    /// Every `1 << shift`-th slot of a batch is timed.
    shift: u32,
    per_batch: usize,
    /// When the sample in each timed slot was submitted.
    submitted: Box<[AtomicU64]>,
    /// When each buffer was taken; 0 while it is not held.
    taken: Box<[AtomicU64]>,
    pub(crate) submit_to_available: Histogram,
    pub(crate) copy_time: Histogram,
    pub(crate) hold_time: Histogram,
    pub(crate) producer_waits: Arc<Tally>,
    pub(crate) consumer_waits: Arc<Tally>,
    pub(crate) refused: AtomicU64,
}

impl Meter {
    pub(crate) fn new(buffers: usize, batch_size: usize) -> Self {
        let shift = batch_size.div_ceil(MARKS).next_power_of_two().ilog2();
        let per_batch = ((batch_size - 1) >> shift) + 1;
        let zeros = |len| (0..len).map(|_| AtomicU64::new(0)).collect();
        Self {
            start: Instant::now(),
            shift,
            per_batch,
            submitted: zeros(buffers * per_batch),
            taken: zeros(buffers),
            submit_to_available: Histogram::default(),
            copy_time: Histogram::default(),
            hold_time: Histogram::default(),
            producer_waits: Arc::default(),
            consumer_waits: Arc::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// Begins the histograms anew.
    pub(crate) fn reset_histograms(&self) {
        for histogram in [&self.submit_to_available, &self.copy_time, &self.hold_time] {
            histogram.reset();
        }
    }

    /// Nanoseconds since the stream was made; never 0.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    /// The timed slots among `len` slots from `first`, as indices into `submitted`.
    fn timed(&self, buffer: usize, first: usize, len: usize) -> std::ops::Range<usize> {
        let base = buffer * self.per_batch;
        let before = first + (1 << self.shift) - 1;
        base + (before >> self.shift)..base + ((first + len - 1) >> self.shift) + 1
    }

    /// Whether any of these slots is timed.
    #[inline]
    pub(crate) fn is_timed(&self, first: usize, len: usize) -> bool {
        !self.timed(0, first, len).is_empty()
    }

    /// Notes when the samples of these slots were submitted. Call it before their commit.
    pub(crate) fn mark(&self, buffer: usize, first: usize, len: usize, submitted: u64) {
        for mark in &self.submitted[self.timed(buffer, first, len)] {
            mark.store(submitted, Ordering::Relaxed);
        }
    }

    /// Notes that a batch was taken. The caller holds it, so no slot of it is written meanwhile.
    pub(crate) fn take(&self, buffer: usize, available: u64) {
        self.taken[buffer].store(self.now(), Ordering::Relaxed);
        // Where rows were brought together after a close there is no such time.
        if available > 0 {
            for mark in &self.submitted[buffer * self.per_batch..][..self.per_batch] {
                // A producer in another process leaves no mark, so none may be left of another batch.
                let submitted = mark.swap(0, Ordering::Relaxed);
                if submitted > 0 {
                    self.submit_to_available.record(available.saturating_sub(submitted));
                }
            }
        }
    }

    /// Notes that a batch is about to be given back.
    pub(crate) fn give_back(&self, buffer: usize) {
        let taken = self.taken[buffer].swap(0, Ordering::Relaxed);
        self.hold_time.record(self.now().saturating_sub(taken));
    }

    /// For how long the batch that was taken first has been held.
    pub(crate) fn oldest_hold(&self) -> Duration {
        let taken = self.taken.iter().map(|taken| taken.load(Ordering::Relaxed));
        let oldest = taken.filter(|taken| *taken > 0).min();
        oldest.map_or(Duration::ZERO, |at| Duration::from_nanos(self.now().saturating_sub(at)))
    }
}

/// A snapshot of a stream. Exact while nothing moves; while samples come and go, numbers of one
/// snapshot may be apart by what moved meanwhile. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamInfo {
    /// Samples per batch.
    pub batch_size: usize,
    /// Batches that fit.
    pub num_buffers: usize,
    /// Samples that fit.
    pub capacity: usize,
    /// Samples stored and not yet taken.
    pub store_size: u64,
    /// Samples in batches that are not complete.
    pub partial: u64,
    /// Complete batches that wait for a consumer.
    pub batches_ready: u64,
    /// Batches whose memory someone still holds.
    pub batches_held: usize,
    /// Buffers that are free.
    pub batches_free: usize,
    /// How long the batch that was taken first has been held.
    pub oldest_hold: f64,
    /// Samples stored since the start.
    pub inserted_total: u64,
    /// Batches completed since the start.
    pub batches_total: u64,
    /// Complete batches taken since the start.
    pub delivered_total: u64,
    /// Times that a push had to wait for room, here or over a connection; those that wait now included. What a process
    /// that writes into the ring's memory waited for between two of its reports counts as one.
    pub blocked_pushes: u64,
    /// How long pushes waited, in total; those that wait now included.
    pub blocked_time: f64,
    /// Pushes that wait now.
    pub pushes_waiting: u64,
    /// Calls for a batch that had to wait.
    pub sample_waits: u64,
    /// How long they waited, in total; those that wait now included.
    pub sample_wait_time: f64,
    /// Calls for a batch that wait now.
    pub samples_waiting: u64,
    /// Times a producer looked again because another was opening a batch.
    pub contention: u64,
    /// Reserved slots whose writer gave up; others filled them.
    pub aborted: u64,
    /// Samples that were refused because they did not fit the spec.
    pub refused: u64,
    /// Bytes of one sample.
    pub bytes_per_sample: usize,
    /// Bytes allocated for the ring.
    pub memory_bytes: usize,
    /// From the submit of a sample to the completion of its batch.
    pub submit_to_available: Summary,
    /// Copying one submitted run of samples into the ring.
    pub copy_time: Summary,
    /// From taking a batch to the end of its last view.
    pub hold_time: Summary,
}

impl StreamInfo {
    pub(crate) fn new(
        meter: &Meter,
        store: &echoic_memory::BatchStore,
        bytes_per_sample: usize,
    ) -> Self {
        let counts = store.counts();
        let (batch_size, num_buffers) = (store.batch_size(), store.buffers());
        let (pushes, samples) = (meter.producer_waits.read(), meter.consumer_waits.read());
        Self {
            batch_size,
            num_buffers,
            capacity: batch_size * num_buffers,
            store_size: counts.stored,
            partial: counts.partial,
            batches_ready: counts.completed.saturating_sub(counts.taken),
            batches_held: counts.leased,
            batches_free: counts.free,
            oldest_hold: meter.oldest_hold().as_secs_f64(),
            inserted_total: counts.committed,
            batches_total: counts.completed,
            delivered_total: counts.taken,
            blocked_pushes: pushes.limited + pushes.waiting,
            blocked_time: pushes.time().as_secs_f64(),
            pushes_waiting: pushes.waiting,
            sample_waits: samples.limited,
            sample_wait_time: samples.time().as_secs_f64(),
            samples_waiting: samples.waiting,
            contention: counts.contention,
            aborted: counts.aborted,
            refused: meter.refused.load(Ordering::Relaxed),
            bytes_per_sample,
            memory_bytes: store.memory_bytes(),
            submit_to_available: meter.submit_to_available.summary(),
            copy_time: meter.copy_time.summary(),
            hold_time: meter.hold_time.summary(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_every_sample_of_a_small_batch_and_an_even_part_of_a_large_one() {
        let timed = |batch_size: usize| {
            let meter = Meter::new(2, batch_size);
            (0..batch_size).filter(|slot| meter.is_timed(*slot, 1)).count()
        };
        assert_eq!((timed(1), timed(4), timed(5), timed(32), timed(1000)), (1, 4, 3, 4, 4));
    }

    #[test]
    fn a_run_marks_the_timed_slots_it_covers_and_no_other() {
        let meter = Meter::new(2, 128);
        assert_eq!((meter.shift, meter.per_batch), (5, 4));
        assert_eq!(meter.timed(0, 0, 128), 0..4);
        assert_eq!(meter.timed(1, 32, 33), 5..7);
        assert!(meter.timed(1, 33, 31).is_empty());
    }
}
