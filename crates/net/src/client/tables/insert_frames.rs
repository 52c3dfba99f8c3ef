//! What an I/O thread carries for a writer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::trajectory::Signature;

use super::check_same;
use super::queue::{Block, Item, Op};
use super::writer::InsertSender;
use crate::address::Address;
use crate::client::WakePolicy;
use crate::client::io_thread::Pipeline;
use crate::client::link::LinkError;
use crate::wire::WireError;
use crate::wire::frame::{Control, Header, kind};
use crate::wire::handshake::{Offer, Open, Purpose, Welcome};
use crate::wire::tables::{
    ItemHead, Release, RowsHead, SignatureHead, SliceHead, rows_per_frame, write_chunk,
};
use crate::write_buffer::{Piece, WriteBuffer};

/// What a frame of rows should weigh at most: little enough that what the server can't use at once of
/// it is cheap to keep.
const FRAME_BYTES: usize = 128 << 10;
/// How many bytes one system call is given.
const LOAD_BYTES: usize = 512 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct InsertFrames {
    shared: Arc<InsertSender>,
    /// The place of the operation that is next in the queue, and how many of its rows are loaded.
    place: u64,
    rows: usize,
    /// Number of the first operation that is not loaded, and of the first that may not be.
    next: u64,
    limit: u64,
    last_carried: Option<Instant>,
    /// What this connection knows.
    chunks: HashSet<u64>,
    signatures: HashMap<Arc<Signature>, u32>,
    /// The last of them: most items have the same.
    signature: Option<(Arc<Signature>, u32)>,
}

impl InsertFrames {
    pub(super) fn new(shared: Arc<InsertSender>) -> Self {
        Self {
            shared,
            place: 0,
            rows: 0,
            next: 0,
            limit: 0,
            last_carried: None,
            chunks: HashSet::new(),
            signatures: HashMap::new(),
            signature: None,
        }
    }

    /// Loads rows; whether that was all of them.
    fn load_rows(&mut self, block: &Arc<Block>, out: &mut WriteBuffer, weight: &mut usize) -> bool {
        let row = block.row_bytes;
        // A table whose rows do not fit into a frame is refused before.
        let most = rows_per_frame(row, FRAME_BYTES).unwrap_or(1) as usize;
        while self.rows < block.count() {
            let allowed = usize::try_from(self.limit.saturating_sub(self.next));
            let left = block.count() - self.rows;
            let count = left.min(most).min(allowed.unwrap_or(usize::MAX));
            if count == 0 || *weight >= LOAD_BYTES {
                return false;
            }
            let rows = self.rows..self.rows + count;
            let Block { table, version, .. } = **block;
            let head = RowsHead { first: self.next, table, count: count as u32, version };
            let priorities = &block.priorities[rows.clone()];
            let mut is_written = false;
            out.write(|out| is_written = head.write(out, priorities, row).is_some());
            if !is_written {
                return false;
            }
            let bytes = rows.start * row..rows.end * row;
            out.push(Piece::Shared(Arc::clone(block) as _, bytes));
            self.rows += count;
            self.next += count as u64;
            *weight += count * (row + size_of::<f64>());
        }
        self.rows = 0;
        true
    }

    /// Loads an item, and before it what it names and the server does not have.
    fn load_item(&mut self, item: &Item, out: &mut WriteBuffer, weight: &mut usize) -> bool {
        if self.next >= self.limit || *weight >= LOAD_BYTES {
            return false;
        }
        let start = out.len();
        let signature = self.name(item.trajectory.signature(), out);
        for (slice, id) in item.trajectory.slices().zip(&item.chunks) {
            if self.chunks.insert(*id) {
                // One that does not fit into a frame is refused before.
                out.write(|out| {
                    write_chunk(out, *id, |out| slice.chunk.write(out));
                });
            }
        }
        let mut ids = item.chunks.iter();
        let columns = 0..item.trajectory.signature().columns.len();
        let columns = columns.map(|column| {
            let slices = item.trajectory.column(column).zip(ids.by_ref());
            let head = slices.map(|(slice, id)| SliceHead {
                chunk: *id,
                offset: slice.offset,
                len: slice.len,
            });
            head.collect()
        });
        let (sequence, columns) = (self.next, columns.collect());
        let Item { table, priority, version, .. } = *item;
        let head = ItemHead { sequence, table, priority, version, signature, columns };
        out.write(|out| head.write(out));
        *weight += out.len() - start;
        self.next += 1;
        true
    }

    /// The number of a signature, which is sent to the server first if it does not know it.
    fn name(&mut self, signature: &Arc<Signature>, out: &mut WriteBuffer) -> u32 {
        match &self.signature {
            Some((last, id)) if Arc::ptr_eq(last, signature) => return *id,
            _ => {}
        }
        let new = self.signatures.len() as u32;
        let id = *self.signatures.entry(Arc::clone(signature)).or_insert(new);
        if id == new {
            out.write(|out| SignatureHead::write(out, id, signature));
        }
        self.signature = Some((Arc::clone(signature), id));
        id
    }

    fn load_release(&mut self, chunks: &[u64], out: &mut WriteBuffer) {
        let here: Vec<u64> =
            chunks.iter().copied().filter(|chunk| self.chunks.remove(chunk)).collect();
        if !here.is_empty() {
            out.write(|out| Release::write(out, &here));
        }
    }
}

impl Pipeline for InsertFrames {
    fn open(&mut self, _address: &Address) -> Open {
        let first = self.shared.queue.lock().acked;
        self.shared.reconnector.open(Purpose::Insert, first, None)
    }

    fn resume(&mut self, welcome: Welcome) -> Result<(), LinkError> {
        let Offer::Tables(tables) = welcome.offer else {
            return Err(WireError::Content("the server did not list its tables".into()).into());
        };
        let known = self.shared.tables.get_or_init(|| tables.clone());
        check_same(known, &tables)?;
        let queue = &mut *self.shared.queue.lock();
        if welcome.next < queue.acked || welcome.next > queue.next {
            let (field, expected) = ("next operation of the welcome", queue.next);
            return Err(WireError::Sequence { field, expected, got: welcome.next }.into());
        }
        (self.next, self.limit) = (welcome.next, welcome.limit);
        (self.place, self.rows) = queue.resume(welcome.next);
        self.last_carried = None;
        self.chunks.clear();
        self.signatures.clear();
        self.signature = None;
        Ok(())
    }

    fn is_delivered(&self) -> bool {
        let queue = self.shared.queue.lock();
        queue.acked == queue.next
    }

    fn acknowledged(&self) -> u64 {
        self.shared.queue.lock().acked
    }

    fn is_settled(&self) -> bool {
        self.shared.queue.lock().acked == self.next
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let shared = &self.shared;
        let queue = shared.queue.lock();
        let waited = || {
            let linger = shared.reconnector.options.linger;
            self.last_carried.is_none_or(|carried| now.duration_since(carried) >= linger)
        };
        self.next < self.limit
            && queue.has(self.place)
            && (queue.urgent > self.next
                || shared.reconnector.is_closing()
                || queue.has_enough()
                || waited())
    }

    fn await_ring(&mut self, now: Instant) -> Option<Instant> {
        if self.next >= self.limit {
            return None;
        }
        let linger = self.shared.reconnector.options.linger;
        let since = self.last_carried.filter(|carried| now.duration_since(*carried) < linger);
        let wake_policy = if since.is_some() { WakePolicy::AtEnough } else { WakePolicy::AtOnce };
        self.shared.queue.lock().wake_policy = wake_policy;
        since?.checked_add(linger)
    }

    fn stop_ringing(&mut self) {
        self.shared.queue.lock().wake_policy = WakePolicy::Off;
    }

    fn fill(&mut self, out: &mut WriteBuffer) {
        // Written without the lock: chunks are large, and inserting threads should not wait for that.
        let ops = self.shared.queue.lock().from(self.place, LOAD_BYTES);
        let mut weight = 0;
        for op in &ops {
            let whole = match op {
                Op::Rows(block) => self.load_rows(block, out, &mut weight),
                Op::Item(item) => self.load_item(item, out, &mut weight),
                Op::Release(chunks) => {
                    self.load_release(chunks, out);
                    true
                }
            };
            if !whole {
                break;
            }
            self.place += 1;
        }
        let queue = &mut *self.shared.queue.lock();
        queue.note_gone(weight);
    }

    fn wrote(&mut self, bytes: usize, _of_rows: usize, now: Instant) {
        self.shared.count_write(bytes);
        self.last_carried = Some(now);
    }

    fn take(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        let (kind::ACK, Control::Ack { next, limit, stall }) =
            (header.kind, Control::read(header, payload)?)
        else {
            let (expected, got) = ("ACK, PING, PONG or GOODBYE", header.kind);
            return Err(WireError::Unexpected { expected, got }.into());
        };
        let gone = {
            let queue = &mut *self.shared.queue.lock();
            // Of what is loaded, some may be stored before all of it is out.
            if next < queue.acked || next > self.next || limit < next {
                let (field, expected) = ("acknowledged operation", self.next);
                return Err(WireError::Sequence { field, expected, got: next }.into());
            }
            queue.stall = stall;
            queue.acknowledge(next, self.place)
        };
        self.limit = self.limit.max(limit);
        self.shared.changed.notify();
        drop(gone);
        Ok(())
    }
}
