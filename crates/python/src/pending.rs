//! A batch that a server was asked for, and that may not be there yet.

use echoic_memory::sync::Mutex;
use echoic_net::client::tables::{Batch as RemoteBatch, Ticket};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::remote::RemoteTable;
use crate::table::{Batch, check_beta};
use crate::wait;

/// A batch that was asked for. Dropped before it was taken, it is given up.
#[pyclass(frozen, module = "echoic._native")]
pub struct PendingBatch {
    table: Py<RemoteTable>,
    /// None once the batch was taken, and while somebody waits for it.
    ticket: Mutex<Option<Ticket<RemoteBatch>>>,
}

impl PendingBatch {
    pub fn new(table: Py<RemoteTable>, ticket: Ticket<RemoteBatch>) -> Self {
        Self { table, ticket: Mutex::new(Some(ticket)) }
    }
}

#[pymethods]
impl PendingBatch {
    /// Waits for the batch. May be called again after it timed out or was interrupted.
    fn take(&self, py: Python<'_>, timeout: Option<f64>, beta: f64) -> PyResult<Batch> {
        check_beta(beta)?;
        let deadline = wait::deadline(timeout)?;
        let ticket = self.ticket.lock().take();
        let mut ticket = ticket.ok_or_else(|| {
            PyRuntimeError::new_err("the batch was taken, or another thread waits for it")
        })?;
        let batch = wait::until(py, deadline, |wait| ticket.wait(wait));
        if !ticket.is_answered() {
            *self.ticket.lock() = Some(ticket);
        }
        Batch::of_remote(py, self.table.get().shape(), batch?, beta)
    }
}
