//! How long the chunks of a column should be.

use super::config::{ChunkLength, ColumnConfig};

/// What a chunk costs beside its values: its header in memory and in a frame, and its entry in items.
const HEADER_BYTES: u64 = 128;

/// At this length headers are few per cent of the smallest values, and an item waits for no more steps.
const MOST_STEPS: u32 = 256;

/// A reader of a part of an encoded chunk decodes all of it, which should stay in the processor's cache.
const MOST_BYTES: usize = 64 << 10;

/// Chunks that are looked at before the length changes.
const ROUND: u32 = 4;

/// A prompt column does not cut chunks for an item that are shorter than this: an item that names the newest
/// value waits for 7 steps at most, which is about as long as DeepMind's Reverb lets items wait.
const PROMPT_STEPS: u32 = 8;

/// Chunks that are cut for items, as short as they may be, before such chunks get longer by one value. So
/// the first items don't wait, and chunks have their final length after 896 steps with an item each.
const PROMPT_ROUND: u32 = 32;

/// Measures what chunks cost, and doubles or halves their length.
///
/// A chunk costs its header, and the values that no item ever named but that had to go along. The first
/// cost falls with the length, the second grows with it; their sum is least where they are about equal.
/// So the length is halved when the values dragged along cost more than twice the headers, and doubled
/// when they cost less than half. Where items cover all steps nothing is dragged along, and chunks get as
/// long as they may: 256 steps, 64 KiB, or what is kept alive, whichever is least. They begin so.
///
/// Whether an item waits until its last chunk has that length is a matter of [`ChunkLength`]. For
/// [`Auto`](ChunkLength::Auto) it does. For [`Prompt`](ChunkLength::Prompt) it waits only until the chunk has
/// a least number of values, which begins at 1 and grows while items cut chunks that short. Long chunks
/// between items that are far apart remain; chunks of items at every step are short.
#[derive(Debug)]
pub struct Tuner {
    length: u32,
    /// `None` when the length is fixed.
    most: Option<u32>,
    chunks: u32,
    dragged: u64,
    /// `None` when items wait for the whole length.
    prompt: Option<Prompt>,
}

/// How long a chunk must be before it is cut for an item.
#[derive(Debug)]
struct Prompt {
    least: u32,
    /// Chunks of this length that were cut.
    cut: u32,
}

impl Tuner {
    /// The rule for a column whose steps have this many bytes.
    pub(super) fn new(config: &ColumnConfig, step_bytes: usize) -> Self {
        let (length, most) = match config.chunk_length {
            ChunkLength::Fixed(length) => (length, None),
            ChunkLength::Auto | ChunkLength::Prompt => {
                let fit = (MOST_BYTES / step_bytes.max(1)).max(1);
                let fit = u32::try_from(fit).unwrap_or(u32::MAX);
                let most = fit.min(MOST_STEPS).min(config.keep_alive);
                (most, Some(most))
            }
        };
        let prompt =
            (config.chunk_length == ChunkLength::Prompt).then_some(Prompt { least: 1, cut: 0 });
        Self { length, most, chunks: 0, dragged: 0, prompt }
    }

    /// How many steps an item may wait for a chunk that has `values` and is to get `length`.
    pub(super) fn wait(&self, values: u64, length: u64) -> u64 {
        self.prompt
            .as_ref()
            .map_or(length, |prompt| length.min(prompt.least.into()).saturating_sub(values))
    }

    /// A chunk with this many values was cut.
    pub(super) fn cut(&mut self, values: u32) {
        let Some(prompt) = &mut self.prompt else { return };
        if values > prompt.least || prompt.least == PROMPT_STEPS {
            return;
        }
        prompt.cut += 1;
        if prompt.cut == PROMPT_ROUND {
            *prompt = Prompt { least: prompt.least + 1, cut: 0 };
        }
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
