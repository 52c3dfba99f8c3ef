//! Checkpoints of tables.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use echoic_replay::checkpoint::{Reader, list};
use echoic_replay::table::saved::{self, Checkpointer, Contents};
use echoic_replay::{Error, FileError, table as core};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{
    OrRaise, Raise, checkpoint_error, held_error, journal_error, rollout_error, system_error,
};
use crate::table::Table;

impl Raise for Error {
    fn raise(self, py: Python<'_>) -> PyErr {
        stored_error(py, &self, checkpoint_error)
    }
}

/// The exception for something that can't be written or brought back. Is `unfit` if the files are what does not fit.
pub fn stored_error(
    py: Python<'_>,
    error: &Error,
    unfit: fn(Python<'_>, String) -> PyErr,
) -> PyErr {
    let text = error.to_string();
    match error.innermost() {
        Error::Table(error) => error.clone().raise(py),
        Error::File(FileError { source, .. }) | Error::Thread { source, .. } => {
            system_error(py, text, source)
        }
        Error::Locked { .. } => held_error(py, text),
        Error::Used { .. } => PyValueError::new_err(text),
        Error::Settings(_) => rollout_error(py, text),
        _ if matches!(error, Error::Journal { .. }) => journal_error(py, text),
        _ => unfit(py, text),
    }
}

/// Writes a checkpoint and removes old ones; where it is.
pub fn save(py: Python<'_>, checkpointer: &Checkpointer) -> PyResult<PathBuf> {
    py.detach(|| checkpointer.save()).or_raise(py)
}

/// Loads a checkpoint; items by table.
pub fn load<'py>(
    py: Python<'py>,
    checkpointer: &Checkpointer,
    path: &Path,
) -> PyResult<Bound<'py, PyDict>> {
    let loaded = py.detach(|| checkpointer.load(path)).or_raise(py)?;
    let dict = PyDict::new(py);
    for (table, items) in loaded.items {
        dict.set_item(table, items)?;
    }
    Ok(dict)
}

/// Brings tables back from a checkpoint, if there is one, and from their journals; items by table, and what
/// a crash has cut off.
pub fn recover<'py>(
    py: Python<'py>,
    contents: Contents<'_>,
    journal: &Path,
    checkpoint: Option<&Path>,
) -> PyResult<Bound<'py, PyDict>> {
    let recovered = py.detach(|| core::recover(contents, journal, checkpoint)).or_raise(py)?;
    let dict = PyDict::new(py);
    for one in recovered {
        let lost = one.lost_at_most;
        let torn = one.torn.map(|torn| (torn.bytes, torn.what, lost));
        dict.set_item(one.table, (one.items, torn))?;
    }
    Ok(dict)
}

/// Return the checkpoints of a directory, the oldest first; none when it is not there.
#[pyfunction]
pub fn list_checkpoints(py: Python<'_>, root: PathBuf) -> PyResult<Vec<PathBuf>> {
    // A directory that somebody has just made for them is none of ours yet.
    if std::fs::read_dir(&root).map_or(!root.exists(), |mut all| all.next().is_none()) {
        return Ok(Vec::new());
    }
    let found = py.detach(|| list(&root)).or_raise(py)?;
    Ok(found.into_iter().map(|one| one.path).collect())
}

/// Make the tables of a checkpoint, without a server that has them: to look at what is in it.
///
/// Raises:
///     CheckpointError: It is damaged, or not one of Echoic's.
///     OSError: It can't be read.
#[pyfunction]
pub fn open_checkpoint(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Table>> {
    let tables = py.detach(|| saved::open(&path)).or_raise(py)?;
    tables.all().iter().map(|table| Table::of(py, Arc::clone(table).into())).collect()
}

/// Read every byte of a checkpoint and compare all checksums; what is known about it.
///
/// Args:
///     path: A checkpoint, or a directory of them: then the newest.
///     progress: Called now and then with how many bytes of how many were read.
///
/// Raises:
///     CheckpointError: What is wrong, in which file.
///     OSError: It can't be read.
#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub fn verify_checkpoint<'py>(
    py: Python<'py>,
    path: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut raised = None;
    let reader = py.detach(|| {
        let reader = Reader::open(&path)?;
        reader.verify(|step| {
            let told = Python::attach(|py| {
                py.check_signals()?;
                progress.as_ref().map_or(Ok(()), |progress| {
                    progress.call1(py, (step.done, step.total)).map(drop)
                })
            });
            match told {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        Ok::<_, Error>(reader)
    });
    if let Some(error) = raised {
        return Err(error);
    }
    let reader = reader.or_raise(py)?;
    let dict = PyDict::new(py);
    dict.set_item("path", reader.path())?;
    dict.set_item("number", reader.number())?;
    dict.set_item("chunks", reader.blob_count())?;
    for (key, value) in reader.metadata() {
        dict.set_item(key, value)?;
    }
    Ok(dict)
}
