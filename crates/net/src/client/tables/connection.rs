//! The two connections to a server that has tables, as one.

use std::sync::atomic::{AtomicU64, Ordering};

use echoic_replay::stream::Wait;
use echoic_replay::trajectory::Trajectory;

use super::{PendingUpdates, Requests, TableWriter, TablesError};
use crate::client::Options;
use crate::client::link::LinkError;
use crate::transport::Dial;

/// How many chunks a writer of a connection may number.
const RANGE: u64 = 1 << 40;

/// A client of a server's tables, which many threads may share: requests and inserts have a connection each, so what
/// waits to be inserted keeps no request waiting.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use echoic_net::client::Options;
/// use echoic_net::client::tables::{TableConnection, TableHandle, TablesError};
/// use echoic_net::transport::{TlsFiles, dial_to};
/// use echoic_replay::stream::Wait;
///
/// fn learn(mut wait: Wait<'_>) -> Result<(), TablesError> {
///     let address = "tcp://learner:7777".parse().expect("an address");
///     let dial = || dial_to(&address, &TlsFiles::default()).expect("no files are needed");
///     let client = TableConnection::connect([dial(), dial()], Options::default(), wait.reborrow())?;
///     let client = Arc::new(client);
///     let table = TableHandle::remote(&client, client.requests().table("replay")?)?;
///     let keys = table.items(256, wait.reborrow())?.keys;
///     table.update(&keys, &vec![1.0; keys.len()], false, wait.reborrow())?;
///     client.close(wait)
/// }
/// ```
pub struct TableConnection {
    requests: Requests,
    writer: TableWriter,
    pub(super) updates: PendingUpdates,
    /// Numbers for chunks: each writer has a range of its own.
    ranges: AtomicU64,
    /// The next number in the first range, which is for items that are inserted without a writer.
    alone: AtomicU64,
}

impl TableConnection {
    /// Connects twice, and learns which tables there are.
    pub fn connect(
        dials: [Box<dyn Dial>; 2],
        options: Options,
        mut wait: Wait<'_>,
    ) -> Result<Self, TablesError> {
        let [to_ask, to_insert] = dials;
        let requests = Requests::connect(to_ask, options.clone(), wait.reborrow())?;
        let writer = TableWriter::connect(to_insert, options, wait)?;
        let (ranges, alone) = (AtomicU64::new(1), AtomicU64::new(0));
        Ok(Self { requests, writer, updates: PendingUpdates::default(), ranges, alone })
    }

    /// The one for requests.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// The one for inserts. Chunks of items must be numbered as [`TableConnection::first_chunk`] says.
    pub fn writer(&self) -> &TableWriter {
        &self.writer
    }

    /// The number of the first chunk of a writer that makes items over this connection, and numbers up to 2^40 of them.
    pub fn first_chunk(&self) -> u64 {
        self.ranges.fetch_add(1, Ordering::Relaxed).wrapping_mul(RANGE)
    }

    /// Inserts an item that shares no chunk with another; waits until there is room.
    pub fn insert(
        &self,
        table: u32,
        priority: f64,
        version: Option<u64>,
        trajectory: &Trajectory,
        wait: Wait<'_>,
    ) -> Result<(), TablesError> {
        let count = trajectory.slices().len() as u64;
        let first = self.alone.fetch_add(count, Ordering::Relaxed);
        let chunks: Vec<u64> = (first..first + count).map(|number| number % RANGE).collect();
        self.writer.item(table, priority, version, trajectory, &chunks, wait)?;
        self.writer.release(&chunks);
        Ok(())
    }

    /// Waits until everything that was inserted and updated before is in its table.
    pub fn flush(&self, mut wait: Wait<'_>) -> Result<(), TablesError> {
        self.writer.flush(wait.reborrow())?;
        self.updates.flush(wait)
    }

    /// Delivers what was inserted and updated, and ends. Whatever becomes of the updates, the connections are closed. May
    /// be called again after it timed out or was interrupted.
    ///
    /// # Errors
    ///
    /// [`TablesError`] when not everything could be delivered.
    pub fn close(&self, mut wait: Wait<'_>) -> Result<(), TablesError> {
        let updated = match self.updates.flush(wait.reborrow()) {
            Err(TablesError::Closed) => Ok(()),
            updated => updated,
        };
        self.writer.close(wait.reborrow())?;
        self.requests.close(wait)?;
        updated
    }

    /// From now on the server is to be found there: see [`Requests::redirect`] and [`TableWriter::redirect`].
    pub fn redirect(&self, dials: [Box<dyn Dial>; 2]) {
        let [to_ask, to_insert] = dials;
        self.requests.redirect(to_ask);
        self.writer.redirect(to_insert);
    }

    /// Whether both stand to where it was [redirected](Self::redirect) last.
    pub fn has_arrived(&self) -> bool {
        self.requests.has_arrived() && self.writer.has_arrived()
    }

    /// Whether both stand.
    pub fn is_connected(&self) -> bool {
        self.requests.is_connected() && self.writer.is_connected()
    }

    /// Whether one has ended for good.
    pub fn is_over(&self) -> bool {
        self.requests.is_over() || self.writer.is_closed()
    }

    /// Why there is no connection, if that will not pass by itself: see [`Requests::trouble`].
    pub fn trouble(&self) -> Option<LinkError> {
        self.requests.trouble().or_else(|| self.writer.trouble())
    }

    /// How often they came back.
    pub fn reconnects(&self) -> u64 {
        self.requests.reconnects() + self.writer.info().reconnects
    }
}
