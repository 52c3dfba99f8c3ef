//! Where chunks and items go: into a table of this process, or into frames of a connection.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::trajectory::Trajectory;

/// Number of a chunk among those that a writer has handed over: 0, 1, 2, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

/// Number of an item among those that a writer has created: 0, 1, 2, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemNumber(pub u64);

/// An item whose data is complete.
#[derive(Debug)]
pub struct OutgoingItem<'a> {
    /// What [`create_item`](super::TrajectoryWriter::create_item) returned.
    pub item_number: ItemNumber,
    /// The caller's number of a table.
    pub table: u32,
    /// Finite and not negative.
    pub priority: f64,
    /// The data.
    pub trajectory: Trajectory,
    /// The chunk of each of the trajectory's slices.
    pub chunks: &'a [ChunkId],
}

/// Takes what a writer hands over. No method waits: a sink that is full says so before an item.
///
/// # Invariants
///
/// 1. A chunk is handed over once, before the first item that names it, and only when there is one.
/// 2. Items come in the order in which they were created.
/// 3. No item names a chunk after its release, and every chunk that left the writer's window is released
///    by the end of the next [`emit`](super::TrajectoryWriter::emit).
pub trait Sink {
    /// Whether another item, with its chunks, may come now; asked before each.
    fn has_room(&mut self) -> bool {
        true
    }

    /// A chunk that the next item names.
    fn chunk(&mut self, id: ChunkId, chunk: &Arc<Chunk>);

    /// The next item.
    fn item(&mut self, item: OutgoingItem<'_>);

    /// Chunks that no later item names.
    fn release(&mut self, chunks: &[ChunkId]) {
        let _ = chunks;
    }
}
