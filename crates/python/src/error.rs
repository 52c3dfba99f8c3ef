//! Rust errors as the classes of `echoic.errors`, which are defined in Python so that each can also
//! be the builtin that it resembles.

use std::io;

use echoic_buffers::Error as BufferError;
use echoic_replay::Error as Stored;
use echoic_replay::StreamError;
use echoic_replay::WaitReason;
use echoic_replay::table::{Obstacle, TableError};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::checkpoints::stored_error;
use crate::wait::Stopped;

/// An error that Python sees as an exception.
pub trait Raise {
    /// The exception for it.
    fn raise(self, py: Python<'_>) -> PyErr;
}

/// Results with such errors, as Python has them.
pub trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Raise> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.raise(py))
    }
}

macro_rules! error_class {
    ($function:ident, $name:literal) => {
        pub fn $function(py: Python<'_>, message: impl Into<String>) -> PyErr {
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            match CLASS.import(py, "echoic.errors", $name) {
                Ok(class) => PyErr::from_type(class.clone(), (message.into(),)),
                Err(error) => error,
            }
        }
    };
}

error_class!(spec_error, "SpecError");
error_class!(closed_error, "ClosedError");
error_class!(timeout_error, "WaitTimeoutError");
error_class!(trajectory_error, "TrajectoryError");
error_class!(disconnected_error, "DisconnectedError");
error_class!(refused_error, "RefusedError");
error_class!(limiter_error, "LimiterError");
error_class!(replay_error, "ReplayError");
error_class!(storage_error, "StorageError");
error_class!(priority_error, "PriorityError");
error_class!(table_not_found_error, "TableNotFoundError");
error_class!(checkpoint_error, "CheckpointError");
error_class!(journal_error, "JournalError");
error_class!(argument_error, "ArgumentError");
error_class!(dtype_error, "DtypeError");
error_class!(rollout_error, "RolloutError");
error_class!(lease_error, "LeaseError");
error_class!(group_not_found_error, "GroupNotFoundError");

/// The exception for a file or directory that somebody else has: nothing is wrong with it, later it may be free.
pub fn held_error(py: Python<'_>, message: impl Into<String>) -> PyErr {
    set(py, storage_error(py, message), "errno", libc::EWOULDBLOCK)
}

/// The exception for what the system refused, with the system's number.
pub fn system_error(py: Python<'_>, message: impl Into<String>, source: &io::Error) -> PyErr {
    let error = PyOSError::new_err(message.into());
    match source.raw_os_error() {
        Some(number) => set(py, error, "errno", number),
        None => error,
    }
}

/// Whether an error is of the classes of `echoic.errors`.
pub fn is_ours(py: Python<'_>, error: &PyErr) -> bool {
    static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    BASE.import(py, "echoic.errors", "EchoicError")
        .is_ok_and(|class| error.is_instance(py, class.as_any()))
}

/// What a call on a stream was about, for its error message.
pub enum Doing {
    /// Storing samples, of which some are stored already.
    Add { stored: usize, wanted: usize },
    /// Waiting for a batch, of which some samples are there.
    Sample,
}

impl Doing {
    /// Puts the number of samples that were stored on an exception, where it has room for it.
    pub fn annotate(&self, py: Python<'_>, error: PyErr) -> PyErr {
        match error.value(py).setattr("stored", self.stored()) {
            // Whatever went wrong with the number, the error matters more.
            Ok(()) | Err(_) => error,
        }
    }

    /// The exception for a wait that has no result.
    pub fn stopped(&self, py: Python<'_>, stopped: Stopped<StreamError>) -> PyErr {
        match stopped {
            Stopped::Raised(error) => self.annotate(py, error),
            Stopped::Failed(error) => stream_error(py, &error, self),
        }
    }

    fn stored(&self) -> usize {
        match self {
            Self::Add { stored, .. } => *stored,
            Self::Sample => 0,
        }
    }

    fn progress(&self) -> String {
        match self {
            Self::Add { wanted: 1, .. } | Self::Sample => String::new(),
            Self::Add { stored, wanted } => format!(" ({stored} of {wanted} samples stored)"),
        }
    }
}

/// Turns what ended a wait into the exception for it.
pub fn stream_error(py: Python<'_>, error: &StreamError, doing: &Doing) -> PyErr {
    let progress = doing.progress();
    let error = match error {
        StreamError::TimedOut(reason) => {
            let text = match reason {
                WaitReason::Capacity => {
                    "the ring is full of complete batches that no consumer has taken"
                }
                WaitReason::Leased => {
                    "every batch is held by arrays that are still alive; drop them, copy what you \
                     keep, or raise capacity"
                }
                _ => "no batch is complete",
            };
            let error = timeout_error(py, format!("timed out: {text}{progress}"));
            set(py, error, "reason", reason.name())
        }
        StreamError::Closed => match doing {
            Doing::Add { .. } => closed_error(py, format!("the stream is closed{progress}")),
            Doing::Sample => closed_error(
                py,
                "the stream is closed and all complete batches were taken; rest() has the \
                 samples that do not fill one",
            ),
        },
        StreamError::TooSmall { .. } => pyo3::exceptions::PyValueError::new_err(error.to_string()),
        StreamError::Memory(_) => pyo3::exceptions::PyMemoryError::new_err(error.to_string()),
        other => pyo3::exceptions::PyRuntimeError::new_err(other.to_string()),
    };
    doing.annotate(py, error)
}

pub fn set<'py>(py: Python<'py>, error: PyErr, name: &str, value: impl IntoPyObject<'py>) -> PyErr {
    match error.value(py).setattr(name, value) {
        Ok(()) => error,
        Err(other) => other,
    }
}

impl Raise for TableError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::TimedOut(reason) => {
                let text = match reason {
                    WaitReason::MinSize => "the table has too few items to sample from",
                    WaitReason::Ratio => {
                        "the limiter keeps inserts and samples together, and the others are behind"
                    }
                    WaitReason::Paused => "the table is paused",
                    WaitReason::Leased => "rows that would be free are still read",
                    _ => "there is no room",
                };
                let error = timeout_error(py, format!("timed out: {text}"));
                set(py, error, "reason", reason.name())
            }
            Self::Closed => closed_error(py, text),
            Self::Unknown { .. } => table_not_found_error(py, text),
            Self::Limiter(_) => limiter_error(py, text),
            Self::Priority { .. } => priority_error(py, text),
            Self::Spec(_) => spec_error(py, text),
            Self::Trajectory(_) => trajectory_error(py, text),
            Self::Memory(_) => pyo3::exceptions::PyMemoryError::new_err(text),
            Self::Journal(_) => PyOSError::new_err(text),
            Self::Restore(_) => checkpoint_error(py, text),
            Self::Interrupted => pyo3::exceptions::PyRuntimeError::new_err(text),
            _ => pyo3::exceptions::PyValueError::new_err(text),
        }
    }
}

impl Raise for Obstacle {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Blocked(reason) => TableError::TimedOut(reason).raise(py),
            Self::Failed(error) => error.raise(py),
        }
    }
}

impl Raise for BufferError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Priority(_) => priority_error(py, text),
            Self::Memory(_) => pyo3::exceptions::PyMemoryError::new_err(text),
            Self::Closed => closed_error(py, "the buffer is closed"),
            Self::Differs(_) => spec_error(py, text),
            Self::File(Stored::File(file)) => {
                let error = storage_error(py, text);
                match file.source.raw_os_error() {
                    Some(number) => set(py, error, "errno", number),
                    None => error,
                }
            }
            Self::File(error) => stored_error(py, &error, storage_error),
            Self::Exists { path } => {
                let path = path.display();
                let text = format!(
                    "{path} exists already: it may be what a crashed process left. \
                     MmapReplayBuffer.open({path:?}) goes on with it, overwrite=True begins anew"
                );
                set(py, storage_error(py, text), "errno", libc::EEXIST)
            }
            _ => replay_error(py, text),
        }
    }
}
