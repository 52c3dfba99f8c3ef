//! What is known of tokens that were added.

use echoic_net::client::rollouts::{AppendError, PendingAppend};
use pyo3::prelude::*;

use crate::error::Raise;
use crate::wait;

/// What is known of tokens that were added.
#[derive(IntoPyObject)]
pub enum Added {
    /// Where the group has come to.
    Known(&'static str),
    OnItsWay(RolloutCall),
}

/// Tokens that are on their way to a server's table.
#[pyclass(frozen, module = "echoic._native")]
pub struct RolloutCall(pub PendingAppend);

#[pymethods]
impl RolloutCall {
    /// Whether the answer is there.
    #[getter]
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    /// Wait for the answer: where the group has come to.
    fn wait(&self, py: Python<'_>) -> PyResult<&'static str> {
        wait::until(py, None, |wait| self.0.wait(wait)).map(|status| status.name())
    }

    /// Keep its error from being raised by later calls.
    fn forget(&self) {
        self.0.forget();
    }
}

impl Raise for AppendError {
    /// The exception names the group: it may be raised far from there.
    fn raise(self, py: Python<'_>) -> PyErr {
        let error = self.error.raise(py);
        if let Some(group) = self.group {
            let note = format!("an answer of group {group} that was not waited for");
            // Python 3.10 knows no notes.
            let _ = error.value(py).call_method1("add_note", (note,));
        }
        error
    }
}
