//! How long the chunks of a column should be.

use super::config::{ChunkLength, ColumnConfig};

/// What a chunk costs beside its values: its header in memory and in a frame, and its entry in items.
const HEADER_BYTES: u64 = 128;

/// At this length headers are few per cent of the smallest values, and an item waits for no more steps.
const MOST_STEPS: u32 = 256;

/// Who reads a part of an encoded chunk decodes all of it, which should stay in the processor's cache.
const MOST_BYTES: usize = 64 << 10;

/// Chunks that are looked at before the length changes.
const ROUND: u32 = 4;

/// Measures what chunks cost, and doubles or halves their length.
///
/// A chunk costs its header, and the values that no item ever named but that had to go along. The first
/// cost falls with the length, the second grows with it; their sum is least where they are about equal.
/// So the length is halved when the values dragged along cost more than twice the headers, and doubled
/// when they cost less than half. Where items cover all steps nothing is dragged along, and chunks get as
/// long as they may: 256 steps, 64 KiB, or what is kept alive, whichever is least. They begin so.
#[derive(Debug)]
pub struct Tuner {
    length: u32,
    /// `None` when the length is fixed.
    most: Option<u32>,
    chunks: u32,
    dragged: u64,
}

impl Tuner {
    /// The rule for a column whose steps have so many bytes.
    pub(super) fn new(config: &ColumnConfig, step_bytes: usize) -> Self {
        let (length, most) = match config.chunk_length {
            ChunkLength::Fixed(length) => (length, None),
            ChunkLength::Auto => {
                let fit = (MOST_BYTES / step_bytes.max(1)).max(1);
                let fit = u32::try_from(fit).unwrap_or(u32::MAX);
                let most = fit.min(MOST_STEPS).min(config.keep_alive);
                (most, Some(most))
            }
        };
        Self { length, most, chunks: 0, dragged: 0 }
    }

    /// Steps of the next chunk.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// A chunk that was handed over can't be named any more; `dragged` of its bytes never were.
    pub(super) fn retired(&mut self, dragged: u64) {
        let Some(most) = self.most else { return };
        self.chunks += 1;
        self.dragged = self.dragged.saturating_add(dragged);
        if self.chunks < ROUND {
            return;
        }
        let headers = u64::from(ROUND) * HEADER_BYTES;
        if self.dragged > 2 * headers {
            self.length = (self.length / 2).max(1);
        } else if self.dragged < headers / 2 {
            self.length = self.length.saturating_mul(2).min(most);
        }
        (self.chunks, self.dragged) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuner(keep_alive: u32, chunk_length: ChunkLength, step_bytes: usize) -> Tuner {
        let encoding = crate::encoding::Policy::Never;
        Tuner::new(&ColumnConfig { keep_alive, chunk_length, encoding }, step_bytes)
    }

    #[test]
    fn begins_at_the_least_bound() {
        assert_eq!(tuner(1000, ChunkLength::Auto, 4).length(), 256);
        assert_eq!(tuner(100, ChunkLength::Auto, 4).length(), 100);
        assert_eq!(tuner(1000, ChunkLength::Auto, 28_224).length(), 2);
        assert_eq!(tuner(1000, ChunkLength::Auto, 1 << 20).length(), 1);
        assert_eq!(tuner(1000, ChunkLength::Auto, 0).length(), 256);
        assert_eq!(tuner(1000, ChunkLength::Fixed(7), 1 << 20).length(), 7);
    }

    #[test]
    fn dragged_steps_shorten_and_full_use_lengthens() {
        let mut tuner = tuner(256, ChunkLength::Auto, 8);
        (0..ROUND).for_each(|_| tuner.retired(1000));
        assert_eq!(tuner.length(), 128);
        (0..ROUND).for_each(|_| tuner.retired(HEADER_BYTES));
        assert_eq!(tuner.length(), 128, "the costs are equal");
        (0..2 * ROUND).for_each(|_| tuner.retired(0));
        assert_eq!(tuner.length(), 256);
        (0..100 * ROUND).for_each(|_| tuner.retired(u64::MAX));
        assert_eq!(tuner.length(), 1);
    }

    #[test]
    fn a_fixed_length_stays() {
        let mut tuner = tuner(256, ChunkLength::Fixed(9), 8);
        (0..100).for_each(|_| tuner.retired(u64::MAX));
        assert_eq!(tuner.length(), 9);
    }
}
