//! Where the items of a writer go.

use std::collections::VecDeque;
use std::sync::Arc;

use echoic_replay::chunk::Chunk;
use echoic_replay::limiter::Reason;
use echoic_replay::stream::Wait;
use echoic_replay::trajectory::Trajectory;
use echoic_replay::writer::{ChunkId, OutgoingItem, Sink};

use super::destination::{Destination, Undelivered, elsewhere};
use crate::remote::Connection;

/// An item that its table has not taken yet.
struct Item {
    table: usize,
    trajectory: Arc<Trajectory>,
    priority: f64,
    /// Numbers of its chunks, for a server.
    chunks: Vec<u64>,
}

enum Entry {
    Item(Item),
    /// Chunks that no later item names.
    Release(Vec<u64>),
}

/// Tables, and the items that wait for them, in the order in which they were made.
pub struct Outlet {
    tables: Arc<[Destination]>,
    queue: VecDeque<Entry>,
    /// How many of the queue are items.
    items: usize,
    /// Items that someone is waiting with.
    taken: usize,
    /// The number of this writer's first chunk, for a server.
    first_chunk: u64,
}

impl Sink for Outlet {
    fn chunk(&mut self, _: ChunkId, _: &Arc<Chunk>) {}

    fn item(&mut self, item: OutgoingItem<'_>) {
        let chunks = match self.tables[item.table as usize] {
            Destination::Local(_) => Vec::new(),
            Destination::Remote { .. } => self.numbers(item.chunks),
        };
        self.items += 1;
        self.queue.push_back(Entry::Item(Item {
            table: item.table as usize,
            trajectory: Arc::new(item.trajectory),
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

impl Outlet {
    pub fn new(tables: Vec<Destination>) -> Self {
        let first_chunk = tables.iter().find_map(Destination::connection);
        let first_chunk = first_chunk.map_or(0, |connection| connection.range());
        Self { tables: tables.into(), queue: VecDeque::new(), items: 0, taken: 0, first_chunk }
    }

    pub fn tables(&self) -> &Arc<[Destination]> {
        &self.tables
    }

    fn connection(&self) -> Option<&Arc<Connection>> {
        self.tables.iter().find_map(Destination::connection)
    }

    fn numbers(&self, chunks: &[ChunkId]) -> Vec<u64> {
        chunks.iter().map(|chunk| self.first_chunk + chunk.0).collect()
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.items + self.taken
    }

    /// Releases chunks that come before the next item, and looks at that.
    fn next(&mut self) -> Option<&Item> {
        while let Some(Entry::Release(chunks)) = self.queue.front() {
            if let Some(connection) = self.connection() {
                connection.writer.release(chunks);
            }
            self.queue.pop_front();
        }
        match self.queue.front() {
            Some(Entry::Item(item)) => Some(item),
            _ => None,
        }
    }

    /// The item that [`Outlet::next`] looked at.
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
    pub fn pump(&mut self) -> Result<(), Undelivered> {
        let tables = Arc::clone(&self.tables);
        // What comes later may not overtake what somebody is waiting with.
        while self.taken == 0
            && let Some(item) = self.next()
        {
            match tables[item.table].try_insert(&item.trajectory, item.priority, &item.chunks) {
                Ok(true) => drop(self.pop()),
                Ok(false) => return Ok(()),
                Err(error) => {
                    if !error.is_final() {
                        self.pop();
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the oldest item away to wait for its table, unless at most `left` wait.
    pub fn take(&mut self, left: usize) -> Option<Waiting> {
        if self.len() <= left {
            return None;
        }
        self.next()?;
        let item = self.pop()?;
        self.taken += 1;
        Some(Waiting { tables: Arc::clone(&self.tables), item })
    }

    /// The wait for a table is over; the item that it did not get is the oldest again.
    pub fn settle(&mut self, item: Option<Waiting>) {
        self.taken -= 1;
        if let Some(Waiting { item, .. }) = item {
            self.items += 1;
            self.queue.push_front(Entry::Item(item));
        }
    }

    /// What to ask whether items that were handed over are in their tables, and kept.
    pub fn receipt(&self) -> Option<Receipt> {
        let may_wait = self.tables.iter().any(Destination::may_be_late);
        may_wait.then(|| Receipt(Arc::clone(&self.tables)))
    }
}

/// An item that is taken to its table.
pub struct Waiting {
    tables: Arc<[Destination]>,
    item: Item,
}

impl Waiting {
    pub fn insert(&self, wait: Wait<'_, Reason>) -> Result<(), Undelivered> {
        let Item { table, trajectory, priority, chunks } = &self.item;
        self.tables[*table].insert(trajectory, *priority, chunks, wait)
    }
}

/// Waits for a server to say that it has what it was sent, and for the journals of tables.
pub struct Receipt(Arc<[Destination]>);

impl Receipt {
    /// Until at most `left` items are not in their tables; when none is to be left, until all are kept.
    pub fn wait(&self, left: usize, wait: Wait<'_, Reason>) -> Result<(), Undelivered> {
        let Wait { deadline, tick, on_tick } = wait;
        let mut on_tick = |reason| on_tick(reason);
        if let Some(connection) = self.0.iter().find_map(Destination::connection) {
            let wait = Wait { deadline, tick, on_tick: &mut on_tick };
            let flush = |wait: Wait<'_, _>| connection.writer.flush_to(left as u64, wait);
            elsewhere(wait, flush).map_err(Undelivered::Remote)?;
        }
        for table in self.0.iter().filter_map(Destination::local) {
            if left == 0 {
                let wait = Wait { deadline, tick, on_tick: &mut on_tick };
                table.keep(wait).map_err(Undelivered::Local)?;
            }
        }
        Ok(())
    }
}
