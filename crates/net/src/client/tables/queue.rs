//! What a writer has taken and the server has not acknowledged.
//!
//! # Invariants
//!
//! 1. Rows and items have consecutive numbers, in the order in which they are here.
//! 2. `held` is what they weigh together, and those that are being filled with them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use echoic_replay::WaitReason;
use echoic_replay::trajectory::{Signature, Trajectory};

use crate::buffer_pool::{BufferPool, PooledBuffer};
use crate::client::WakePolicy;
use crate::wire::tables::MAX_ROWS;

/// From this much on it is not worth waiting for more.
pub(super) const ENOUGH_BYTES: usize = 64 << 10;
/// How much a block of small inserts takes.
pub(super) const BLOCK_BYTES: usize = 64 << 10;
/// What an item weighs, beside its chunks and slices.
const ITEM_BYTES: usize = 128;
const SLICE_BYTES: usize = 32;

/// Rows of one table and one version.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) first: u64,
    pub(super) table: u32,
    pub(super) version: Option<u64>,
    pub(super) priorities: Vec<f64>,
    pub(super) row_bytes: usize,
    /// At least as long as the rows.
    pub(super) rows: PooledBuffer,
}

/// An item that names slices of chunks.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) sequence: u64,
    pub(super) table: u32,
    pub(super) priority: f64,
    pub(super) version: Option<u64>,
    pub(super) trajectory: Trajectory,
    /// The number of the chunk of each slice.
    pub(super) chunks: Box<[u64]>,
    weight: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Rows(Arc<Block>),
    Item(Arc<Item>),
    /// Chunks that no later item names.
    Release(Arc<[u64]>),
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Queue {
    ops: VecDeque<Op>,
    /// How many of them have gone: the place of the first.
    gone: u64,
    /// Rows that are still joined by others.
    tail: Option<Block>,
    /// Number of the next row or item, and of the first that is not acknowledged.
    pub(super) next: u64,
    pub(super) acked: u64,
    pub(super) held: usize,
    /// Bytes that ever came, and that were ever given to the I/O thread.
    came: u64,
    went: u64,
    /// Chunks that items have named and that were not released.
    known: HashSet<u64>,
    signatures: HashSet<Arc<Signature>>,
    /// The signature of the last item: most have the same.
    signature: Option<Arc<Signature>>,
    pub(super) wake_policy: WakePolicy,
    /// Operations before this are to be sent at once.
    pub(super) urgent: u64,
    pub(super) stall: Option<WaitReason>,
    buffer_pool: Arc<BufferPool>,
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.rows
    }
}

impl Block {
    pub(super) fn count(&self) -> usize {
        self.priorities.len()
    }

    fn end(&self) -> u64 {
        self.first + self.count() as u64
    }

    fn weight(&self) -> usize {
        self.count() * (self.row_bytes + size_of::<f64>())
    }
}

impl Op {
    fn weight(&self) -> usize {
        match self {
            Self::Rows(block) => block.weight(),
            Self::Item(item) => item.weight,
            Self::Release(_) => 0,
        }
    }
}

impl Queue {
    pub(super) fn new(buffer_pool: Arc<BufferPool>) -> Self {
        Self {
            ops: VecDeque::new(),
            gone: 0,
            tail: None,
            next: 0,
            acked: 0,
            held: 0,
            came: 0,
            went: 0,
            known: HashSet::new(),
            signatures: HashSet::new(),
            signature: None,
            wake_policy: WakePolicy::Off,
            urgent: 0,
            stall: None,
            buffer_pool,
        }
    }

    /// Whether something of this weight may come. However heavy it is, it may when it is alone.
    pub(super) fn has_room(&self, weight: usize, window: usize) -> bool {
        self.held == 0 || self.held.saturating_add(weight) <= window
    }

    /// Adds rows that `fill` writes, few enough to be copied under the lock.
    pub(super) fn add_small(
        &mut self,
        table: u32,
        row_bytes: usize,
        priorities: &[f64],
        version: Option<u64>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let bytes = priorities.len() * row_bytes;
        let joins = |tail: &Block| {
            tail.table == table
                && tail.version == version
                && tail.count() * row_bytes + bytes <= tail.rows.len()
                && tail.count() + priorities.len() <= MAX_ROWS as usize
        };
        if !self.tail.as_ref().is_some_and(joins) {
            self.seal();
            let rows = self.buffer_pool.take(bytes.max(BLOCK_BYTES));
            let priorities = Vec::new();
            self.tail =
                Some(Block { first: self.next, table, version, priorities, row_bytes, rows });
        }
        let Some(tail) = &mut self.tail else { return };
        let start = tail.count() * row_bytes;
        // If it panics, the rows are not there.
        fill(&mut tail.rows[start..start + bytes]);
        tail.priorities.extend_from_slice(priorities);
        let weight = bytes + size_of_val(priorities);
        self.held += weight;
        self.note(priorities.len(), weight);
    }

    /// Adds rows that were filled before; their weight is held already.
    pub(super) fn add_block(
        &mut self,
        table: u32,
        row_bytes: usize,
        priorities: Vec<f64>,
        version: Option<u64>,
        rows: PooledBuffer,
    ) {
        self.seal();
        let block = Block { first: self.next, table, version, priorities, row_bytes, rows };
        self.note(block.count(), block.weight());
        self.ops.push_back(Op::Rows(Arc::new(block)));
    }

    /// What an item would weigh: of chunks, those count that no item has named.
    pub(super) fn weigh(&self, trajectory: &Trajectory, chunks: &[u64]) -> usize {
        let slices = trajectory.slices();
        let mut weight = ITEM_BYTES + slices.len() * SLICE_BYTES;
        for (index, (slice, id)) in slices.zip(chunks).enumerate() {
            if !self.known.contains(id) && !chunks[..index].ends_with(&[*id]) {
                weight += slice.chunk.memory_bytes();
            }
        }
        weight
    }

    pub(super) fn add_item(
        &mut self,
        table: u32,
        priority: f64,
        version: Option<u64>,
        trajectory: Trajectory,
        chunks: &[u64],
    ) {
        self.seal();
        let weight = self.weigh(&trajectory, chunks);
        self.known.extend(chunks);
        self.signature = Some(Arc::clone(trajectory.signature()));
        let (sequence, chunks) = (self.next, chunks.into());
        let item = Item { sequence, table, priority, version, trajectory, chunks, weight };
        self.ops.push_back(Op::Item(Arc::new(item)));
        self.held += weight;
        self.note(1, weight);
    }

    /// How many chunks may be named.
    pub(super) fn known_chunks(&self) -> usize {
        self.known.len()
    }

    /// Whether no item had this signature before.
    pub(super) fn is_new_signature(&self, signature: &Arc<Signature>) -> bool {
        let last = self.signature.as_ref();
        !last.is_some_and(|last| Arc::ptr_eq(last, signature))
            && !self.signatures.contains(signature)
    }

    /// Takes note of a signature; how many there are.
    pub(super) fn note_signature(&mut self, signature: &Arc<Signature>) -> usize {
        self.signatures.insert(Arc::clone(signature));
        self.signatures.len()
    }

    /// So many bytes were given to the I/O thread.
    pub(super) fn note_gone(&mut self, weight: usize) {
        self.went = self.came.min(self.went + weight as u64);
    }

    pub(super) fn add_release(&mut self, chunks: &[u64]) {
        let known = chunks.iter().filter(|chunk| self.known.remove(chunk));
        let chunks: Arc<[u64]> = known.copied().collect();
        if !chunks.is_empty() {
            self.seal();
            self.ops.push_back(Op::Release(chunks));
        }
    }

    fn note(&mut self, operations: usize, weight: usize) {
        self.next += operations as u64;
        self.came += weight as u64;
    }

    /// Lets no more rows join those that were joined.
    pub(super) fn seal(&mut self) {
        if let Some(tail) = self.tail.take()
            && tail.count() > 0
        {
            self.ops.push_back(Op::Rows(Arc::new(tail)));
        }
    }

    /// Whether the I/O thread is to be woken because of what was added; then it is not again.
    pub(super) fn is_alarmed(&mut self) -> bool {
        let wakes = match self.wake_policy {
            WakePolicy::Off => false,
            WakePolicy::AtEnough => self.has_enough(),
            WakePolicy::AtOnce => true,
        };
        if wakes {
            self.wake_policy = WakePolicy::Off;
        }
        wakes
    }

    /// Whether it is not worth waiting for more before sending.
    pub(super) fn has_enough(&self) -> bool {
        self.came - self.went >= ENOUGH_BYTES as u64
    }

    /// Whether there is something at a place.
    pub(super) fn has(&self, place: u64) -> bool {
        place < self.gone + self.ops.len() as u64
            || self.tail.as_ref().is_some_and(|tail| tail.count() > 0)
    }

    /// What lies from a place on, up to this many bytes and one more.
    pub(super) fn from(&mut self, place: u64, bytes: usize) -> Vec<Op> {
        self.seal();
        let mut weight = 0;
        let ops = self.ops.iter().skip((place - self.gone) as usize);
        let enough = ops.take_while(|op| {
            let taken = weight < bytes;
            weight += op.weight().max(1);
            taken
        });
        enough.cloned().collect()
    }

    /// Forgets operations before `next`, and releases before `place`.
    pub(super) fn acknowledge(&mut self, next: u64, place: u64) -> Vec<Op> {
        self.acked = next;
        let mut gone = Vec::new();
        while let Some(first) = self.ops.front() {
            let done = match first {
                Op::Rows(block) => block.end() <= next,
                Op::Item(item) => item.sequence < next,
                Op::Release(_) => self.gone < place,
            };
            if !done {
                break;
            }
            self.held -= first.weight();
            self.gone += 1;
            gone.extend(self.ops.pop_front());
        }
        // What was the last reference is freed when the lock is no longer held.
        gone
    }

    /// Where to go on over another connection, which has all before `next`: the place of an operation,
    /// and how many of its rows are there.
    pub(super) fn resume(&mut self, next: u64) -> (u64, usize) {
        self.seal();
        self.acknowledge(next, u64::MAX);
        let weight: usize = self.ops.iter().map(Op::weight).sum();
        self.went = self.came - weight as u64;
        let there = match self.ops.front() {
            Some(Op::Rows(block)) => next.saturating_sub(block.first) as usize,
            _ => 0,
        };
        (self.gone, there)
    }
}
