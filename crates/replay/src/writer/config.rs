//! How a column is kept and cut.

use super::error::WriterError;
use crate::encoding::Policy;

/// The settings of a column, or of all columns that have none of their own.
///
/// ```
/// use echoic_replay::encoding::Policy;
/// use echoic_replay::writer::{ChunkLength, ColumnConfig};
///
/// let chunk_length = ChunkLength::Fixed(10);
/// let config = ColumnConfig { keep_alive: 100, chunk_length, encoding: Policy::Auto };
/// assert!(config.check().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnConfig {
    /// How many of the latest values of the column new items may still name. The writer holds this many,
    /// plus at most one chunk, plus what items that are not handed over yet name.
    pub keep_alive: u32,
    /// How many values a chunk gets.
    pub chunk_length: ChunkLength,
    /// How chunks are encoded when they are handed over. What the writer itself keeps is not.
    pub encoding: Policy,
}

/// How many values of a column make a chunk. A chunk may always be cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkLength {
    /// As measured; see [`Tuner`](super::tuner::Tuner). An item may wait until a long chunk is complete.
    Auto,
    /// As measured, but a chunk is cut as soon as an item names its last value, unless chunks get too short
    /// by that: see [`Tuner`](super::tuner::Tuner). An item waits for at most 7 steps, and at first for none.
    Prompt,
    /// So many.
    Fixed(u32),
}

impl ColumnConfig {
    /// Whether a column can be kept like this.
    ///
    /// # Errors
    ///
    /// [`WriterError::Config`] when nothing is kept, or a chunk has no step or more than are kept: the
    /// first values of such a chunk would be out of reach before it is cut.
    pub fn check(&self) -> Result<(), WriterError> {
        let length = match self.chunk_length {
            ChunkLength::Auto | ChunkLength::Prompt => 1,
            ChunkLength::Fixed(length) => length,
        };
        if self.keep_alive == 0 || length == 0 || length > self.keep_alive {
            return Err(WriterError::Config { keep_alive: self.keep_alive, length });
        }
        Ok(())
    }
}
