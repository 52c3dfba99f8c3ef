//! The items of a writer, on their way to their tables.

use std::collections::VecDeque;
use std::sync::Arc;

use echoic_replay::chunk::Chunk;
use echoic_replay::stream::Wait;
use echoic_replay::table::TableError;
use echoic_replay::trajectory::Trajectory;
use echoic_replay::writer::{ChunkId, OutgoingItem, Sink};

use super::{TableConnection, TableHandle, TablesError};

/// An item that its table has not taken yet.
struct Item {
    table: usize,
    trajectory: Trajectory,
    priority: f64,
    /// Numbers of its chunks, for a server.
    chunks: Vec<u64>,
}

enum Entry {
    Item(Item),
    /// Chunks that no later item names.
    Release(Vec<u64>),
}

/// Tables, in this process or of one server, and the items that wait for them, in the order in which they were made.
///
/// A writer gives it its items, as a [`Sink`]. It is for one thread; threads that share it under a lock need not hold
/// that while an item waits: see [`ItemQueue::take`].
///
/// ```no_run
/// use echoic_net::client::tables::{ItemQueue, TablesError};
/// use echoic_replay::stream::Wait;
/// use echoic_replay::writer::TrajectoryWriter;
///
/// fn end_episode(
///     writer: &mut TrajectoryWriter,
///     queue: &mut ItemQueue,
///     wait: Wait<'_>,
/// ) -> Result<(), TablesError> {
///     writer.end_episode(true);
///     writer.flush(queue);
///     queue.flush(wait)
/// }
/// ```
pub struct ItemQueue {
    tables: Arc<[TableHandle]>,
    queue: VecDeque<Entry>,
    /// How many of the queue are items.
    items: usize,
    /// Items that someone is waiting with.
    taken: usize,
    /// The number of this writer's first chunk, for a server.
    first_chunk: u64,
}

impl Sink for ItemQueue {
    fn chunk(&mut self, _: ChunkId, _: &Arc<Chunk>) {}

    fn item(&mut self, item: OutgoingItem<'_>) {
        let chunks = match self.tables[item.table as usize].local() {
            Some(_) => Vec::new(),
            None => self.numbers(item.chunks),
        };
        self.items += 1;
        self.queue.push_back(Entry::Item(Item {
            table: item.table as usize,
            trajectory: item.trajectory,
            priority: item.priority,
            chunks,
        }));
    }

    fn release(&mut self, chunks: &[ChunkId]) {
        if self.connection().is_some() {
            self.queue.push_back(Entry::Release(self.numbers(chunks)));
        }
    }
}

impl ItemQueue {
    /// An empty queue for items of these tables, which they name by their places here. Those that are of a server must
    /// be of the same connection.
    pub fn new(tables: Vec<TableHandle>) -> Self {
        let first_chunk = tables.iter().find_map(TableHandle::connection);
        let first_chunk = first_chunk.map_or(0, |connection| connection.first_chunk());
        Self { tables: tables.into(), queue: VecDeque::new(), items: 0, taken: 0, first_chunk }
    }

    /// The tables.
    pub fn tables(&self) -> &Arc<[TableHandle]> {
        &self.tables
    }

    fn connection(&self) -> Option<&Arc<TableConnection>> {
        self.tables.iter().find_map(TableHandle::connection)
    }

    fn numbers(&self, chunks: &[ChunkId]) -> Vec<u64> {
        chunks.iter().map(|chunk| self.first_chunk + chunk.0).collect()
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.items + self.taken
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Releases chunks that come before the next item, and looks at that.
    fn next(&mut self) -> Option<&Item> {
        while let Some(Entry::Release(chunks)) = self.queue.front() {
            if let Some(connection) = self.connection() {
                connection.writer().release(chunks);
            }
            self.queue.pop_front();
        }
        match self.queue.front() {
            Some(Entry::Item(item)) => Some(item),
            _ => None,
        }
    }

    /// The item that [`ItemQueue::next`] looked at.
    fn pop(&mut self) -> Option<Item> {
        match self.queue.pop_front() {
            Some(Entry::Item(item)) => {
                self.items -= 1;
                Some(item)
            }
            _ => None,
        }
    }

    /// Inserts what can be inserted without waiting. An item that its table refuses is dropped.
    ///
    /// # Errors
    ///
    /// [`TablesError`], of the oldest item; others wait behind it.
    pub fn pump(&mut self) -> Result<(), TablesError> {
        let tables = Arc::clone(&self.tables);
        // Later items may not overtake one that a thread is waiting to add.
        while self.taken == 0
            && let Some(item) = self.next()
        {
            let Item { table, trajectory, priority, chunks } = item;
            match tables[*table].try_insert(trajectory, *priority, None, Some(chunks)) {
                Ok(true) => drop(self.pop()),
                Ok(false) => return Ok(()),
                Err(error) => {
                    if !is_final(&error) {
                        self.pop();
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the oldest item away to wait for its table, unless at most `left` wait. It comes back with
    /// [`ItemQueue::settle`].
    pub fn take(&mut self, left: usize) -> Option<TakenItem> {
        if self.len() <= left {
            return None;
        }
        self.next()?;
        let item = self.pop()?;
        self.taken += 1;
        Some(TakenItem { tables: Arc::clone(&self.tables), item })
    }

    /// The wait for a table is over; the item that it did not get is the oldest again.
    pub fn settle(&mut self, item: Option<TakenItem>) {
        self.taken -= 1;
        if let Some(TakenItem { item, .. }) = item {
            self.items += 1;
            self.queue.push_front(Entry::Item(item));
        }
    }

    /// What to ask whether items that were handed over are in their tables, and kept.
    pub fn receipt(&self) -> Option<Receipt> {
        let may_wait = self.tables.iter().any(|table| table.prompt().is_none());
        may_wait.then(|| Receipt(Arc::clone(&self.tables)))
    }

    /// Waits until all items are in their tables, and kept as those promise.
    pub fn flush(&mut self, mut wait: Wait<'_>) -> Result<(), TablesError> {
        loop {
            self.pump()?;
            let Some(item) = self.take(0) else { break };
            let mut taken = Taken { queue: self, item: Some(item) };
            if let Some(item) = &taken.item {
                item.insert(wait.reborrow())?;
            }
            taken.item = None;
        }
        self.receipt().map_or(Ok(()), |receipt| receipt.wait(0, wait))
    }
}

/// Whether the item can go nowhere any more, so that others of its kind need not be tried.
fn is_final(error: &TablesError) -> bool {
    matches!(
        error,
        TablesError::Table(TableError::Closed) | TablesError::Closed | TablesError::Failed(_)
    )
}

/// An item that is taken to its table.
pub struct TakenItem {
    tables: Arc<[TableHandle]>,
    item: Item,
}

impl TakenItem {
    /// Inserts it; waits until that can be done.
    pub fn insert(&self, wait: Wait<'_>) -> Result<(), TablesError> {
        let Item { table, trajectory, priority, chunks } = &self.item;
        self.tables[*table].insert(trajectory, *priority, None, Some(chunks), wait)
    }
}

/// Gives an item back to its queue, whatever ends the wait for its table.
struct Taken<'a> {
    queue: &'a mut ItemQueue,
    item: Option<TakenItem>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.queue.settle(self.item.take());
    }
}

/// Waits for a server to say that it has what it was sent, and for the journals of tables.
pub struct Receipt(Arc<[TableHandle]>);

impl Receipt {
    /// Waits until at most `left` items are not in their tables; when none is to be left, until all are kept.
    pub fn wait(&self, left: usize, mut wait: Wait<'_>) -> Result<(), TablesError> {
        if let Some(connection) = self.0.iter().find_map(TableHandle::connection) {
            connection.writer().flush_to(left as u64, wait.reborrow())?;
        }
        for table in self.0.iter().filter_map(TableHandle::local) {
            if left == 0 {
                table.keep(wait.reborrow())?;
            }
        }
        Ok(())
    }
}
