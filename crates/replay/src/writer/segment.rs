//! A run of a column's values that is one chunk, or is to become one.

use std::sync::Arc;

use super::sink::ChunkId;
use crate::chunk::Chunk;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Segment {
    /// Number of its first value in the column.
    pub first: u64,
    /// The values, once it is cut.
    pub chunk: Option<Arc<Chunk>>,
    /// Its number, once it was handed over.
    pub id: Option<ChunkId>,
    /// How many slices of items that are not handed over yet name it.
    pub named: u32,
    /// From the first to the last value that an item ever named.
    used: (u32, u32),
}

impl Segment {
    /// One without values.
    pub fn open(first: u64) -> Self {
        Self { first, chunk: None, id: None, named: 0, used: (u32::MAX, 0) }
    }

    /// Number after its last value, once it is cut.
    pub fn end(&self) -> Option<u64> {
        self.chunk.as_ref().map(|chunk| self.first + u64::from(chunk.len()))
    }

    /// Notes that an item names these values.
    pub fn name(&mut self, offset: u32, len: u32) {
        self.named += 1;
        self.used = (self.used.0.min(offset), self.used.1.max(offset + len));
    }

    /// How many of its values no item ever named, those between others not counted.
    pub fn unused(&self) -> u32 {
        let len = self.chunk.as_ref().map_or(0, |chunk| chunk.len());
        len - self.used.1.saturating_sub(self.used.0)
    }
}
