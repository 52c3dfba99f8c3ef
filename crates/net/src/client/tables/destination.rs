//! A table that items of a writer go to: of this process, or of a server.

use std::sync::Arc;

use echoic_replay::spec::Spec;
use echoic_replay::stream::Wait;
use echoic_replay::table::{Form, Obstacle, Table};
use echoic_replay::trajectory::Trajectory;

use super::{TableConnection, TablesError, entry};

/// A table that takes items of a writer, here or elsewhere.
pub enum Destination {
    /// Of this process.
    Local(Arc<Table>),
    /// Of a server.
    Remote(RemoteDestination),
}

/// A table of a server, and what must be known of it to make items for it.
pub struct RemoteDestination {
    connection: Arc<TableConnection>,
    number: u32,
    name: String,
    form: Form,
}

impl Destination {
    /// The table of a server that has this number.
    ///
    /// # Errors
    ///
    /// [`TablesError`] if the server has no such table.
    pub fn remote(connection: &Arc<TableConnection>, number: u32) -> Result<Self, TablesError> {
        let entry = entry(connection.requests().tables(), number)?;
        let (name, form) = (entry.name.clone(), entry.form.clone());
        let connection = Arc::clone(connection);
        Ok(Self::Remote(RemoteDestination { connection, number, name, form }))
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Local(table) => &table.config().name,
            Self::Remote(remote) => &remote.name,
        }
    }

    /// The leaves that its items must have, if it says so.
    pub fn spec(&self) -> Option<&Spec> {
        match self {
            Self::Local(table) => table.config().form.spec(),
            Self::Remote(remote) => remote.form.spec(),
        }
    }

    pub(super) fn connection(&self) -> Option<&Arc<TableConnection>> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(&remote.connection),
        }
    }

    pub(super) fn local(&self) -> Option<&Arc<Table>> {
        match self {
            Self::Local(table) => Some(table),
            Self::Remote(_) => None,
        }
    }

    /// Whether what it has taken may be on its way still, or not kept.
    pub(super) fn may_be_late(&self) -> bool {
        self.local().is_none_or(|table| table.receipt().is_some())
    }

    /// Inserts an item, whose chunks have these numbers; whether it could be done without waiting.
    pub(super) fn try_insert(
        &self,
        trajectory: &Trajectory,
        priority: f64,
        chunks: &[u64],
    ) -> Result<bool, TablesError> {
        match self {
            Self::Local(table) => match table.try_insert(trajectory, priority, None) {
                Ok(_) => Ok(true),
                Err(Obstacle::Blocked(_)) => Ok(false),
                Err(Obstacle::Failed(error)) => Err(error.into()),
            },
            Self::Remote(RemoteDestination { connection, number, .. }) => {
                connection.writer().try_item(*number, priority, None, trajectory, chunks)
            }
        }
    }

    /// As [`Destination::try_insert`], waiting.
    pub(super) fn insert(
        &self,
        trajectory: &Trajectory,
        priority: f64,
        chunks: &[u64],
        wait: Wait<'_>,
    ) -> Result<(), TablesError> {
        match self {
            Self::Local(table) => Ok(table.insert(trajectory, priority, None, wait).map(drop)?),
            Self::Remote(RemoteDestination { connection, number, .. }) => {
                connection.writer().item(*number, priority, None, trajectory, chunks, wait)
            }
        }
    }
}
