//! What was done with a rollout table, once more.

use std::path::PathBuf;

use echoic_memory::sync::Mutex;
use echoic_replay::Error;
use echoic_replay::rollouts::batch::Form;
use echoic_replay::rollouts::durable::{History, Point};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::batch::{self, RolloutBatch};
use super::settings;
use crate::checkpoints::stored_error;
use crate::error::{OrRaise, Raise, journal_error};
use crate::memory::Arena;

/// How many records are gone through before it is looked for signals: some milliseconds.
const RECORDS: u64 = 1024;

/// The past of a rollout table; :class:`echoic.rollouts.History` is what users see.
#[pyclass(frozen, module = "echoic._native")]
pub struct RolloutHistory {
    history: Mutex<History>,
    arena: Arena,
}

/// What is wrong with a directory of a rollout table.
pub struct DirectoryError(pub Error);

impl Raise for DirectoryError {
    fn raise(self, py: Python<'_>) -> PyErr {
        stored_error(py, &self.0, journal_error)
    }
}

fn point(what: &str, value: u64) -> PyResult<Point> {
    match what {
        "record" => Ok(Point::Record(value)),
        "batch" => Ok(Point::Batch(value)),
        "time" => Ok(Point::Time(value)),
        other => {
            let text = format!("a point is a 'record', a 'batch' or a 'time', got {other:?}");
            Err(PyValueError::new_err(text))
        }
    }
}

impl RolloutHistory {
    /// Goes on, some records at a time, until `step` has found something. Ctrl-C ends it between two records, from where
    /// it goes on the next time.
    fn go_on<T: Send>(
        &self,
        py: Python<'_>,
        step: impl Fn(&mut History) -> Result<Option<T>, Error> + Sync,
    ) -> PyResult<T> {
        loop {
            let found = py.detach(|| step(&mut self.history.lock()));
            if let Some(found) = found.map_err(DirectoryError).or_raise(py)? {
                return Ok(found);
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl RolloutHistory {
    #[new]
    #[pyo3(signature = (directory, at=None))]
    fn new(py: Python<'_>, directory: PathBuf, at: Option<(String, u64)>) -> PyResult<Self> {
        let at = at.map(|(what, value)| point(&what, value)).transpose()?;
        let history =
            py.detach(|| History::open(directory, at)).map_err(DirectoryError).or_raise(py)?;
        let this = Self { history: Mutex::new(history), arena: Arena::default() };
        if let Some(at) = at {
            this.go_on(py, |history| history.at(at, RECORDS))?;
            this.history.lock().check(at).map_err(DirectoryError).or_raise(py)?;
        }
        Ok(this)
    }

    /// Go on to the next batch: its record, the time, and itself.
    fn next_batch(
        &self,
        py: Python<'_>,
        form: (String, u32, bool),
    ) -> PyResult<Option<(u64, f64, RolloutBatch)>> {
        let form: Form = batch::form(&form)?;
        let found = self.go_on(py, |history| {
            let next = history.next_share(RECORDS)?;
            Ok(next.map(|next| next.zip(history.config().cloned())))
        })?;
        let Some((delivered, config)) = found else { return Ok(None) };
        let laid = batch::lay_out(py, &self.arena, &delivered.share, &config, form)?;
        Ok(Some((delivered.record, delivered.time as f64 / 1e3, laid)))
    }

    /// Go on to a point; whether it is there.
    fn at(&self, py: Python<'_>, what: &str, value: u64) -> PyResult<bool> {
        let point = point(what, value)?;
        self.go_on(py, |history| history.at(point, RECORDS))
    }

    /// Return what the table had counted.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let history = self.history.lock();
        match history.ledger() {
            Some(ledger) => {
                let dict = PyDict::new(py);
                super::set_counts(&dict, &ledger.counts(), &ledger.totals())?;
                Ok(dict)
            }
            None => Ok(PyDict::new(py)),
        }
    }

    /// The table's settings.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.history.lock().config().map(|config| settings::dict(py, config)).transpose()
    }

    /// The number of the next record.
    #[getter]
    fn record(&self) -> u64 {
        self.history.lock().record()
    }

    /// The number behind the last record.
    #[getter]
    fn end(&self) -> u64 {
        self.history.lock().end()
    }

    /// The table's time, in seconds.
    #[getter]
    fn time(&self) -> f64 {
        self.history.lock().time() as f64 / 1e3
    }
}
