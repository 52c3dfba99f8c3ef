//! Sending items to tables.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use echoic_memory::event::Event;
use echoic_memory::sync::{Mutex, MutexGuard};
use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;
use echoic_replay::table::TableError;
use echoic_replay::trajectory::Trajectory;

use super::insert_frames::InsertFrames;
use super::queue::Queue;
use super::requests::wait_for;
use super::{TableEntry, TablesError, check_priorities, entry, number, row_bytes};
use crate::address::Address;
use crate::buffer_pool::BufferPool;
use crate::client::link::LinkError;
use crate::client::reconnector::Reconnector;
use crate::client::{Options, io_thread};
use crate::transport::Dial;
use crate::wire::WireError;
use crate::wire::handshake::ProducerId;
use crate::wire::tables::{MAX_CHUNKS, MAX_SIGNATURES, MAX_SLICES, SignatureHead, rows_per_frame};

/// Up to this many bytes rows are written while the queue is locked: to take a buffer for them alone
/// would cost more than the copy.
const SMALL_BYTES: usize = 16 << 10;
/// The most bytes of buffers that are kept for the next rows.
const POOL_BYTES: usize = 16 << 20;

/// What a writer and its I/O thread share.
#[derive(Debug)]
pub(super) struct InsertSender {
    pub(super) reconnector: Arc<Reconnector>,
    pub(super) queue: Mutex<Queue>,
    pub(super) tables: OnceLock<Vec<TableEntry>>,
    /// Something was acknowledged, or the connection came, went, or ended.
    pub(super) changed: Arc<Event>,
    buffer_pool: Arc<BufferPool>,
    writes: AtomicU64,
    bytes: AtomicU64,
    blocked: AtomicU64,
    blocked_nanos: AtomicU64,
}

/// A connection for inserts, which many threads may share.
///
/// What is given to it is copied into a bounded queue, and kept there until the server has acknowledged
/// it: that it is in the table. When the connection breaks it comes back, within the options' `deadline`,
/// and each row and item is inserted once, in the order in which they came.
///
/// Dropped without a close, it goes on in the background until everything is delivered, it gives up, or
/// the process ends.
#[derive(Debug)]
pub struct TableWriter {
    shared: Arc<InsertSender>,
    io_thread: Mutex<Option<JoinHandle<InsertFrames>>>,
}

/// Statistics of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WriterInfo {
    /// Rows and items that were taken.
    pub taken: u64,
    /// Those of them that are in their tables.
    pub acknowledged: u64,
    /// Bytes of those that are not, and of their chunks.
    pub held_bytes: u64,
    /// Bytes given to the system.
    pub bytes_sent: u64,
    /// System calls that took them.
    pub writes: u64,
    /// Times that it came back.
    pub reconnects: u64,
    /// Times that a call had to wait.
    pub blocked: u64,
    /// Seconds that they waited, in total.
    pub blocked_time: f64,
    /// Whether a connection stands.
    pub connected: bool,
}

impl InsertSender {
    pub(super) fn count_write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Wakes the I/O thread if it wants to know of what was added; lets go of the queue first.
    fn announce(&self, mut queue: MutexGuard<'_, Queue>) {
        let wakes = queue.is_alarmed();
        drop(queue);
        if wakes {
            self.reconnector.ring();
        }
    }

    fn wait(&self, wait: Wait<'_>, mut poll: impl FnMut() -> bool) -> Result<(), TablesError> {
        let waited = wait_for(&self.changed, &self.reconnector, wait, || {
            // Once more after the end was seen: it may have brought the result.
            let over = self.reconnector.is_over();
            match poll() {
                true => Some(Ok(())),
                false if over => self.reconnector.ending().map(|ending| Err(ending.into())),
                false => None,
            }
        });
        match waited {
            // What the server said last says more.
            Err(TablesError::TimedOut(WaitReason::Network)) => {
                Err(TablesError::TimedOut(self.queue.lock().stall.unwrap_or(WaitReason::Network)))
            }
            waited => waited,
        }
    }
}

/// Weight that is held for rows while they are filled; given back if that fails.
struct Held<'a> {
    shared: &'a InsertSender,
    weight: usize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.weight > 0 {
            self.shared.queue.lock().held -= self.weight;
            self.shared.changed.notify();
        }
    }
}

impl TableWriter {
    /// Connects, and learns which tables there are.
    pub fn connect(
        dial: Box<dyn Dial>,
        options: Options,
        wait: Wait<'_>,
    ) -> Result<Self, TablesError> {
        let changed = Arc::<Event>::default();
        let noted = Arc::clone(&changed);
        let (reconnector, wakes) = Reconnector::new(dial, options, move || noted.notify())?;
        let reconnector = Arc::new(reconnector);
        let buffer_pool = BufferPool::new(POOL_BYTES);
        let shared = Arc::new(InsertSender {
            reconnector: Arc::clone(&reconnector),
            queue: Mutex::new(Queue::new(Arc::clone(&buffer_pool))),
            tables: OnceLock::new(),
            changed,
            buffer_pool,
            writes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            blocked_nanos: AtomicU64::new(0),
        });
        let frames = InsertFrames::new(Arc::clone(&shared));
        let io_thread = io_thread::spawn(&reconnector, wakes, frames, |driver| driver, |_| {})?;
        let this = Self { shared, io_thread: Mutex::new(Some(io_thread)) };
        this.shared.wait(wait, || reconnector.stands())?;
        Ok(this)
    }

    /// The tables of the server; items name them by their places here.
    pub fn tables(&self) -> &[TableEntry] {
        self.shared.tables.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The place of the table with a name.
    ///
    /// # Errors
    ///
    /// [`TableError::Unknown`], which names those that there are.
    pub fn table(&self, name: &str) -> Result<u32, TablesError> {
        number(self.tables(), name)
    }

    /// Where the server is.
    pub fn address(&self) -> Address {
        self.shared.reconnector.address()
    }

    /// From now on the server is to be found there: at another address, or where it was restarted. A connection that
    /// stands is left when what was sent over it is acknowledged, or is not in time; all that is not acknowledged is
    /// sent there. A table that has what is known of this client, from memory or its files, takes it once; another one
    /// may be the second to have it, if it was stored and the acknowledgement took longer.
    pub fn redirect(&self, dial: Box<dyn Dial>) {
        self.shared.reconnector.redirect(dial);
    }

    /// See [`Requests::trouble`](super::Requests::trouble).
    pub fn trouble(&self) -> Option<LinkError> {
        self.shared.reconnector.trouble()
    }

    /// How the server identifies this writer.
    pub fn producer(&self) -> ProducerId {
        self.shared.reconnector.producer
    }

    fn window(&self) -> usize {
        self.shared.reconnector.options.window_bytes
    }

    fn check_open(&self) -> Result<(), TablesError> {
        self.shared.reconnector.refusal().map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// Inserts a row for each priority into a table of rows. `fill` writes them one behind the other, in
    /// each its leaves one behind the other; it is not called when there is no room, which is `false`.
    /// Without a version, rows have the table's.
    ///
    /// # Errors
    ///
    /// [`TablesError`], and then nothing is inserted.
    pub fn try_insert_rows(
        &self,
        table: u32,
        priorities: &[f64],
        version: Option<u64>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<bool, TablesError> {
        self.check_open()?;
        let row = self.row_bytes(table)?;
        check_priorities(priorities)?;
        if priorities.is_empty() {
            return Ok(true);
        }
        let bytes = priorities.len().saturating_mul(row);
        let weight = bytes.saturating_add(size_of_val(priorities));
        let shared = &*self.shared;
        let mut queue = shared.queue.lock();
        if !queue.has_room(weight, self.window()) {
            return Ok(false);
        }
        if weight <= SMALL_BYTES {
            queue.add_small(table, row, priorities, version, fill);
            shared.announce(queue);
            return Ok(true);
        }
        queue.held += weight;
        drop(queue);
        let mut held = Held { shared, weight };
        let mut rows = shared.buffer_pool.take(bytes);
        fill(&mut rows);
        let mut queue = shared.queue.lock();
        queue.add_block(table, row, priorities.to_vec(), version, rows);
        // From here on the block holds it.
        held.weight = 0;
        shared.announce(queue);
        Ok(true)
    }

    /// As [`TableWriter::try_insert_rows`]; waits until there is room.
    ///
    /// # Errors
    ///
    /// [`TablesError`], and then nothing is inserted.
    pub fn insert_rows(
        &self,
        table: u32,
        priorities: &[f64],
        version: Option<u64>,
        wait: Wait<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), TablesError> {
        let weight = self.row_bytes(table)?.saturating_mul(priorities.len());
        let weight = weight.saturating_add(size_of_val(priorities));
        let mut fill = Some(fill);
        self.until(weight, wait, || {
            self.try_insert_rows(table, priorities, version, |rows| {
                if let Some(fill) = fill.take() {
                    fill(rows);
                }
            })
        })
    }

    fn row_bytes(&self, table: u32) -> Result<usize, TablesError> {
        let entry = entry(self.tables(), table)?;
        let row = row_bytes(entry).ok_or_else(|| {
            let name = &entry.name;
            TableError::Spec(format!("the table {name:?} has trajectories, not rows"))
        })?;
        match rows_per_frame(row, 1) {
            Some(_) => Ok(row),
            None => {
                let (field, limit, got) = ("bytes of a row", 1 << 30, row as u64);
                Err(WireError::too_large(field, limit, got).into())
            }
        }
    }

    /// Tries, waiting for room of this weight in between.
    fn until(
        &self,
        weight: usize,
        mut wait: Wait<'_>,
        mut attempt: impl FnMut() -> Result<bool, TablesError>,
    ) -> Result<(), TablesError> {
        while !attempt()? {
            self.wait_for_room(weight, wait.reborrow())?;
        }
        Ok(())
    }

    /// Whether something of this many bytes would be taken now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.shared.queue.lock().has_room(bytes, self.window())
    }

    /// Waits until it would be. Another thread may be faster, so try in a loop.
    pub fn wait_for_room(&self, bytes: usize, wait: Wait<'_>) -> Result<(), TablesError> {
        let (shared, since) = (&self.shared, Instant::now());
        let waited = shared.wait(wait, || self.has_room(bytes));
        shared.blocked.fetch_add(1, Ordering::Relaxed);
        let nanos = since.elapsed().as_nanos() as u64;
        shared.blocked_nanos.fetch_add(nanos, Ordering::Relaxed);
        waited
    }

    /// Inserts an item. `chunks` has a number for the chunk of each of the trajectory's slices: chosen by
    /// the caller, another for each chunk that this writer ever sends. The server gets a chunk once, with
    /// the first item that names it, and keeps it for others until it is [released](Self::release).
    /// `false` when there is no room.
    ///
    /// # Errors
    ///
    /// [`TablesError`], and then nothing is inserted.
    pub fn try_item(
        &self,
        table: u32,
        priority: f64,
        version: Option<u64>,
        trajectory: &Trajectory,
        chunks: &[u64],
    ) -> Result<bool, TablesError> {
        self.check_open()?;
        check_priorities(&[priority])?;
        if let Some(spec) = entry(self.tables(), table)?.form.spec() {
            trajectory.check(spec).map_err(TableError::Spec)?;
        }
        let too_many = |field, limit: usize, got: usize| {
            let (limit, got) = (limit as u64, got as u64);
            if got > limit { Err(WireError::too_large(field, limit, got)) } else { Ok(()) }
        };
        let (keys, values) = (trajectory.slices().len(), chunks.len());
        if keys != values {
            return Err(TableError::Lengths { keys, values }.into());
        }
        too_many("number of slices", MAX_SLICES as usize, keys)?;
        let mut queue = self.shared.queue.lock();
        let weight = queue.weigh(trajectory, chunks);
        if !queue.has_room(weight, self.window()) {
            return Ok(false);
        }
        too_many("number of chunks", MAX_CHUNKS, queue.known_chunks() + chunks.len())?;
        let signature = trajectory.signature();
        if queue.is_new_signature(signature) {
            SignatureHead::check(signature)?;
            too_many("number of signatures", MAX_SIGNATURES, queue.note_signature(signature))?;
        }
        queue.add_item(table, priority, version, trajectory.clone(), chunks);
        self.shared.announce(queue);
        Ok(true)
    }

    /// As [`TableWriter::try_item`]; waits until there is room.
    ///
    /// # Errors
    ///
    /// [`TablesError`], and then nothing is inserted.
    pub fn item(
        &self,
        table: u32,
        priority: f64,
        version: Option<u64>,
        trajectory: &Trajectory,
        chunks: &[u64],
        wait: Wait<'_>,
    ) -> Result<(), TablesError> {
        let weight = self.shared.queue.lock().weigh(trajectory, chunks);
        self.until(weight, wait, || self.try_item(table, priority, version, trajectory, chunks))
    }

    /// Says that no later item names these chunks.
    pub fn release(&self, chunks: &[u64]) {
        let mut queue = self.shared.queue.lock();
        queue.add_release(chunks);
        self.shared.announce(queue);
    }

    /// Waits until everything that was taken before is in its table.
    pub fn flush(&self, wait: Wait<'_>) -> Result<(), TablesError> {
        let shared = &self.shared;
        let target = {
            let queue = &mut *shared.queue.lock();
            queue.urgent = queue.next;
            queue.next
        };
        if shared.queue.lock().acked < target {
            shared.reconnector.ring();
        }
        shared.wait(wait, || shared.queue.lock().acked >= target)
    }

    /// Waits until at most `count` rows and items are not in their tables.
    pub fn flush_to(&self, count: u64, wait: Wait<'_>) -> Result<(), TablesError> {
        let shared = &self.shared;
        {
            let queue = &mut *shared.queue.lock();
            queue.urgent = queue.next;
        }
        shared.reconnector.ring();
        shared.wait(wait, || self.unacknowledged() <= count)
    }

    /// Takes nothing more, delivers what is left, and ends. May be called again after it timed out or was
    /// interrupted.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when not everything could be delivered.
    pub fn close(&self, wait: Wait<'_>) -> Result<(), TablesError> {
        let shared = &self.shared;
        shared.reconnector.close();
        shared.wait(wait, || shared.reconnector.is_over())?;
        if let Some(io_thread) = self.io_thread.lock().take() {
            // An I/O thread that panicked has printed why, and carries nothing any more.
            let _ = io_thread.join();
        }
        match shared.reconnector.ending() {
            Some(ending) if self.unacknowledged() > 0 => Err(ending.into()),
            _ => Ok(()),
        }
    }

    /// Whether it takes nothing more.
    pub fn is_closed(&self) -> bool {
        self.shared.reconnector.refusal().is_some()
    }

    /// Whether a connection stands to where it was [redirected](Self::redirect) last.
    pub fn has_arrived(&self) -> bool {
        self.shared.reconnector.has_arrived()
    }

    /// Whether a connection stands.
    pub fn is_connected(&self) -> bool {
        self.shared.reconnector.stands()
    }

    /// Rows and items that are not known to be in their tables.
    pub fn unacknowledged(&self) -> u64 {
        let queue = self.shared.queue.lock();
        queue.next - queue.acked
    }

    /// A snapshot of its numbers.
    pub fn info(&self) -> WriterInfo {
        let shared = &self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (taken, acknowledged, held_bytes) = {
            let queue = shared.queue.lock();
            (queue.next, queue.acked, queue.held as u64)
        };
        WriterInfo {
            taken,
            acknowledged,
            held_bytes,
            bytes_sent: read(&shared.bytes),
            writes: read(&shared.writes),
            reconnects: shared.reconnector.returns(),
            blocked: read(&shared.blocked),
            blocked_time: read(&shared.blocked_nanos) as f64 * 1e-9,
            connected: shared.reconnector.stands(),
        }
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        self.shared.reconnector.close();
    }
}
