//! The client's end of tables.
//!
//! - [`Requests`] asks: samples, updates, numbers. Many threads may ask at once, and one may ask for more
//!   before it has its answer.
//! - [`TableWriter`] sends: rows and items, each inserted exactly once, in order.
//! - [`TableConnection`] is both, to one server. [`PendingUpdates`]: updates of priorities in the background.
//! - [`TableHandle`] is a table of this process or of a server, with one interface.
//! - [`ItemQueue`] has the items that a writer of steps makes, for tables of either kind.
//! - [`shards`]: one table on several servers.
//!
//! Requests and inserts have a connection each, so an insert that has to wait keeps no request waiting.

mod batch;
mod connection;
mod handle;
mod insert_frames;
mod item_queue;
pub(super) mod pending_requests;
mod pending_updates;
mod queue;
pub(super) mod requests;
pub mod shards;
mod writer;

use echoic_replay::WaitReason;
use echoic_replay::rollouts::table::CallError;
use echoic_replay::table::{Form, TableError};

pub use self::batch::Batch;
pub use self::connection::TableConnection;
pub use self::handle::{RowRoom, SampledBatch, TableHandle};
pub use self::item_queue::{ItemQueue, Receipt, TakenItem};
pub use self::pending_updates::PendingUpdates;
pub use self::requests::{Listed, PendingReply, Requests};
pub use self::writer::{TableWriter, WriterInfo};
use super::{ClientError, Failure};
use crate::wire::WireError;
pub use crate::wire::tables::{FailureCode, Layout, Numbers, TableEntry};

/// What a client of tables can't do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TablesError {
    /// Wait longer, or see to it that the reason goes away.
    #[error("the wait ended because of {0}")]
    TimedOut(WaitReason),
    /// The caller's own callback ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
    /// Use another client.
    #[error("the client is closed")]
    Closed,
    /// The server can't be reached, or does not want us.
    #[error("{}: {}", .0.address, .0.error)]
    Failed(Failure),
    /// The server did not do what was asked.
    #[error("{text}")]
    Refused {
        /// Why, for programs.
        code: FailureCode,
        /// Why, for people.
        text: String,
    },
    /// A table would not take it, so it was not sent.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A rollout table did not do it.
    #[error(transparent)]
    Rollout(#[from] CallError),
    /// It has more than the wire carries.
    #[error("it can't be sent: {0}")]
    Wire(#[from] WireError),
    /// The system refuses.
    #[error("{0}")]
    System(String),
}

impl From<ClientError> for TablesError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Failed(failure) => Self::Failed(failure),
            ClientError::System(text) => Self::System(text),
            _ => Self::Closed,
        }
    }
}

echoic_replay::from_wait_over!(TablesError);

impl From<std::io::Error> for TablesError {
    fn from(error: std::io::Error) -> Self {
        Self::System(error.to_string())
    }
}

/// A table by its number.
fn entry(tables: &[TableEntry], number: u32) -> Result<&TableEntry, TablesError> {
    tables.get(number as usize).ok_or_else(|| {
        let known = tables.iter().map(|table| table.name.clone()).collect();
        TableError::Unknown { name: format!("number {number}"), known }.into()
    })
}

/// The number of a table by its name.
fn number(tables: &[TableEntry], name: &str) -> Result<u32, TablesError> {
    let found = tables.iter().position(|table| table.name == name);
    let found = found.and_then(|found| u32::try_from(found).ok());
    found.ok_or_else(|| {
        let known = tables.iter().map(|table| table.name.clone()).collect();
        TableError::Unknown { name: name.to_owned(), known }.into()
    })
}

/// Refuses values that are no priorities.
fn check_priorities(priorities: &[f64]) -> Result<(), TablesError> {
    match crate::wire::tables::bad_priority(priorities) {
        Some(index) => Err(TableError::Priority { index, got: priorities[index] }.into()),
        None => Ok(()),
    }
}

/// Bytes of a row, of tables that have some.
fn row_bytes(table: &TableEntry) -> Option<usize> {
    match &table.form {
        Form::Rows(spec) => Some(spec.nbytes()),
        Form::Trajectories(_) => None,
    }
}

/// Whether a server has the tables that it had, for items of the same kind: what waits to be sent was made for them.
fn check_same(before: &[TableEntry], now: &[TableEntry]) -> Result<(), WireError> {
    let same = |(one, other): (&TableEntry, &TableEntry)| {
        one.name == other.name && one.form == other.form && one.structure == other.structure
    };
    if before.len() == now.len() && before.iter().zip(now).all(same) {
        return Ok(());
    }
    let names = |tables: &[TableEntry]| -> Vec<String> {
        tables.iter().map(|table| table.name.clone()).collect()
    };
    let (before, now) = (names(before), names(now));
    let how = if before == now { ", with items of another kind" } else { "" };
    let text = format!("the server has the tables {now:?}{how}, and had {before:?}");
    Err(WireError::Content(text))
}
