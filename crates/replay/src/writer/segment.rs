//! A run of a column's values that is one chunk, or is to become one.

use std::sync::Arc;

use super::sink::ChunkId;
use crate::chunk::Chunk;
use crate::encoding::Chooser;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Segment {
    /// Number of its first value in the column.
    pub first: u64,
    /// The values, once it is cut, in the form in which they are handed over.
    pub chunk: Option<Arc<Chunk>>,
    /// Its number, once it was handed over.
    pub id: Option<ChunkId>,
    /// The values as they are, where that is another form: so that they can be read at no cost.
    plain: Option<Arc<Chunk>>,
    /// How many slices of groups of items that are not handed over yet name it.
    pub named: u32,
    /// From the first to the last value that an item ever named.
    used: (u32, u32),
}

impl Segment {
    /// One without values.
    pub fn open(first: u64) -> Self {
        Self { first, chunk: None, id: None, plain: None, named: 0, used: (u32::MAX, 0) }
    }

    /// Number after its last value, once it is cut.
    pub fn end(&self) -> Option<u64> {
        self.chunk.as_ref().map(|chunk| self.first + u64::from(chunk.len()))
    }

    /// Notes that items have named these values.
    pub fn note_used(&mut self, offset: u32, len: u32) {
        self.used = (self.used.0.min(offset), self.used.1.max(offset + len));
    }

    /// Chooses the form in which its values are handed over. That is done when they are, so that chunks
    /// which no item names are never encoded.
    pub fn encode(&mut self, chooser: &mut Chooser) {
        if let Some(chunk) = &mut self.chunk
            && let Some(packed) = chooser.pack(chunk)
        {
            self.plain = Some(std::mem::replace(chunk, Arc::new(packed)));
        }
    }

    /// The values as they are, once it is cut.
    pub fn values(&self) -> Option<&Arc<Chunk>> {
        self.plain.as_ref().or(self.chunk.as_ref())
    }

    /// Bytes of its values, and of their other form if they have one.
    pub fn held_bytes(&self) -> usize {
        let chunks = self.chunk.iter().chain(&self.plain);
        chunks.map(|chunk| chunk.encoded_bytes().len()).sum()
    }

    /// How many of its values no item ever named, those between others not counted.
    pub fn unused(&self) -> u32 {
        let len = self.chunk.as_ref().map_or(0, |chunk| chunk.len());
        len - self.used.1.saturating_sub(self.used.0)
    }
}
