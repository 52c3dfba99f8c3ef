//! Where the items of a writer go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::chunk::Chunk;
use echoic_replay::limiter::Reason;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Obstacle, Table, TableError};
use echoic_replay::trajectory::Trajectory;
use echoic_replay::writer::{ChunkId, OutgoingItem, Sink};
use pyo3::prelude::*;

use crate::error::table_error;
use crate::wait;

/// An item that its table has not taken yet.
struct Item {
    table: usize,
    trajectory: Arc<Trajectory>,
    priority: f64,
}

/// Tables of this process, and the items that wait for them.
pub struct Outlet {
    tables: Vec<Arc<Table>>,
    queue: VecDeque<Item>,
}

impl Sink for Outlet {
    fn chunk(&mut self, _: ChunkId, _: &Arc<Chunk>) {}

    fn item(&mut self, item: OutgoingItem<'_>) {
        self.queue.push_back(Item {
            table: item.table as usize,
            trajectory: Arc::new(item.trajectory),
            priority: item.priority,
        });
    }
}

impl Outlet {
    pub fn new(tables: Vec<Arc<Table>>) -> Self {
        Self { tables, queue: VecDeque::new() }
    }

    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Inserts what can be inserted without waiting. An item that its table refuses is dropped.
    pub fn pump(&mut self) -> Result<(), TableError> {
        while let Some(item) = self.queue.front() {
            match self.tables[item.table].try_insert(&item.trajectory, item.priority, None) {
                Err(Obstacle::Blocked(_)) => return Ok(()),
                Err(Obstacle::Failed(error)) => {
                    if error != TableError::Closed {
                        self.queue.pop_front();
                    }
                    return Err(error);
                }
                Ok(_) => self.queue.pop_front(),
            };
        }
        Ok(())
    }

    /// Inserts until at most `left` items wait.
    pub fn drain(
        &mut self,
        py: Python<'_>,
        left: usize,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        loop {
            self.pump().map_err(|error| table_error(py, &error))?;
            if self.queue.len() <= left {
                return Ok(());
            }
            let Some(item) = self.queue.front() else { return Ok(()) };
            let table = &self.tables[item.table];
            let insert =
                |wait: Wait<'_, Reason>| table.insert(&item.trajectory, item.priority, None, wait);
            wait::detached(py, deadline, None, insert)
                .map_err(|stopped| stopped.raise(py, table_error))?;
            self.queue.pop_front();
        }
    }
}
