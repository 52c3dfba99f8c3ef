//! A table that items of a writer go to: of this process, or of a server.

use std::ops::ControlFlow;
use std::sync::Arc;

use echoic_net::client::tables::{TablesError, Waiting as Away};
use echoic_replay::limiter::Reason;
use echoic_replay::spec::Spec;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Form, Obstacle, Table, TableError};
use echoic_replay::trajectory::Trajectory;
use pyo3::prelude::*;

use crate::error::table_error;
use crate::remote::{Connection, RemoteTable, tables_error};
use crate::table::Table as LocalTable;

/// A table as Python gives it.
#[derive(FromPyObject)]
pub enum AnyTable {
    Local(Py<LocalTable>),
    Remote(Py<RemoteTable>),
}

/// See the [module](self).
pub enum Destination {
    Local(Arc<Table>),
    Remote { connection: Arc<Connection>, number: u32, name: String, form: Form },
}

/// Why an item did not get where it was to go.
pub enum Undelivered {
    Local(TableError),
    Remote(TablesError),
}

impl Undelivered {
    pub fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Local(error) => table_error(py, error),
            Self::Remote(error) => tables_error(py, error),
        }
    }

    /// Whether the item can go nowhere any more, so that others of its kind need not be tried.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Local(TableError::Closed)
                | Self::Remote(TablesError::Closed | TablesError::Failed(_))
        )
    }
}

impl From<AnyTable> for Destination {
    fn from(table: AnyTable) -> Self {
        match table {
            AnyTable::Local(table) => Self::Local(Arc::clone(table.get().core())),
            AnyTable::Remote(table) => {
                let (connection, number) = table.get().place();
                let entry = table.get().entry();
                let (name, form) = (entry.name.clone(), entry.form.clone());
                Self::Remote { connection: Arc::clone(connection), number, name, form }
            }
        }
    }
}

impl Destination {
    pub fn name(&self) -> &str {
        match self {
            Self::Local(table) => &table.config().name,
            Self::Remote { name, .. } => name,
        }
    }

    /// The leaves that its items must have, if it says so.
    pub fn spec(&self) -> Option<&Spec> {
        let form = match self {
            Self::Local(table) => &table.config().form,
            Self::Remote { form, .. } => form,
        };
        match form {
            Form::Rows(spec) | Form::Trajectories(Some(spec)) => Some(spec),
            Form::Trajectories(None) => None,
        }
    }

    pub fn connection(&self) -> Option<&Arc<Connection>> {
        match self {
            Self::Local(_) => None,
            Self::Remote { connection, .. } => Some(connection),
        }
    }

    /// Whether what it has taken may be on its way still, or not kept.
    pub fn may_be_late(&self) -> bool {
        self.local().is_none_or(|table| table.receipt().is_some())
    }

    pub fn local(&self) -> Option<&Arc<Table>> {
        match self {
            Self::Local(table) => Some(table),
            Self::Remote { .. } => None,
        }
    }

    /// Inserts an item, whose chunks have these numbers; whether it could be done without waiting.
    pub fn try_insert(
        &self,
        trajectory: &Arc<Trajectory>,
        priority: f64,
        chunks: &[u64],
    ) -> Result<bool, Undelivered> {
        match self {
            Self::Local(table) => match table.try_insert(trajectory, priority, None) {
                Ok(_) => Ok(true),
                Err(Obstacle::Blocked(_)) => Ok(false),
                Err(Obstacle::Failed(error)) => Err(Undelivered::Local(error)),
            },
            Self::Remote { connection, number, .. } => connection
                .writer
                .try_item(*number, priority, None, trajectory, chunks)
                .map_err(Undelivered::Remote),
        }
    }

    /// As [`Destination::try_insert`], waiting.
    pub fn insert(
        &self,
        trajectory: &Arc<Trajectory>,
        priority: f64,
        chunks: &[u64],
        wait: Wait<'_, Reason>,
    ) -> Result<(), Undelivered> {
        match self {
            Self::Local(table) => {
                let inserted = table.insert(trajectory, priority, None, wait);
                inserted.map(drop).map_err(Undelivered::Local)
            }
            Self::Remote { connection, number, .. } => {
                let insert = |wait: Wait<'_, Away>| {
                    connection.writer.item(*number, priority, None, trajectory, chunks, wait)
                };
                elsewhere(wait, insert).map_err(Undelivered::Remote)
            }
        }
    }
}

/// Waits for a server in the way that one waits for a table.
pub fn elsewhere<T>(
    wait: Wait<'_, Reason>,
    call: impl FnOnce(Wait<'_, Away>) -> Result<T, TablesError>,
) -> Result<T, TablesError> {
    let Wait { deadline, tick, on_tick } = wait;
    // Nobody looks at the reason but the error that ends the wait, which has its own.
    let mut on_tick = |_| -> ControlFlow<()> { on_tick(Reason::Capacity) };
    call(Wait { deadline, tick, on_tick: &mut on_tick })
}
