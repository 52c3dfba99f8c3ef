//! What a writer remembers, for Python to cut items from.

use std::sync::Arc;

use echoic_replay::chunk::ColumnKind;
use echoic_replay::writer::Span;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};
use smallvec::SmallVec;

use super::{Runs, TrajectoryWriter};

/// The steps of one column that new items may still name, the newest last.
#[pyclass(frozen, module = "echoic.trajectory_writer")]
pub struct ColumnHistory {
    pub writer: Py<TrajectoryWriter>,
    pub column: u32,
    pub kind: Arc<ColumnKind>,
}

/// Some steps of a column. The bytes stay where they are; :meth:`numpy` copies them.
#[pyclass(frozen, module = "echoic")]
pub struct Steps {
    pub writer: Py<TrajectoryWriter>,
    pub kind: Arc<ColumnKind>,
    pub spans: SmallVec<[Span; 1]>,
    /// Whether it is one step without an axis of time.
    pub squeezed: bool,
}

#[pymethods]
impl ColumnHistory {
    fn __len__(&self, py: Python<'_>) -> usize {
        self.runs(py).iter().map(|run| (run.end - run.start) as usize).sum()
    }

    /// Name one step (without an axis of time), a slice of them, or a list.
    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<Steps> {
        let runs = self.runs(py);
        let len: usize = runs.iter().map(|run| (run.end - run.start) as usize).sum();
        let steps = |spans, squeezed| {
            let (writer, kind) = (self.writer.clone_ref(py), Arc::clone(&self.kind));
            Ok(Steps { writer, kind, spans, squeezed })
        };
        if let Ok(slice) = index.cast::<PySlice>() {
            let slice = slice.indices(len.try_into()?)?;
            let mut spans = SmallVec::new();
            if slice.step == 1 {
                cut(self.column, &runs, slice.start as u64, slice.slicelength as u64, &mut spans);
            } else {
                for number in 0..slice.slicelength as isize {
                    let at = slice.start + number * slice.step;
                    cut(self.column, &runs, at as u64, 1, &mut spans);
                }
            }
            return steps(spans, false);
        }
        let position = |index: isize| {
            let at = if index < 0 { index + len as isize } else { index };
            if at < 0 || at >= len as isize {
                return Err(PyIndexError::new_err(format!("step {index} of a history of {len}")));
            }
            Ok(at as u64)
        };
        let mut spans = SmallVec::new();
        if let Ok(index) = index.extract::<isize>() {
            cut(self.column, &runs, position(index)?, 1, &mut spans);
            return steps(spans, true);
        }
        let indices: Vec<isize> = index.extract().map_err(|_| {
            PyTypeError::new_err("the steps of a history are named by an index, a slice or a list")
        })?;
        for index in indices {
            cut(self.column, &runs, position(index)?, 1, &mut spans);
        }
        steps(spans, false)
    }

    /// Type of the elements.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<numpy::PyArrayDescr>> {
        crate::dtype::to_numpy(py, self.kind.dtype)
    }

    /// Shape of one step.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.kind.shape)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (len, kind) = (self.__len__(py), &self.kind);
        format!("ColumnHistory({len} steps of {}{:?})", kind.dtype, kind.shape)
    }
}

impl ColumnHistory {
    fn runs(&self, py: Python<'_>) -> Runs {
        self.writer.get().runs(py, self.column)
    }
}

/// Appends `len` steps of a column from position `at` of its runs on.
pub(super) fn cut(
    column: u32,
    runs: &[std::ops::Range<u64>],
    mut at: u64,
    mut len: u64,
    spans: &mut SmallVec<[Span; 1]>,
) {
    for run in runs {
        let steps = run.end - run.start;
        if at >= steps {
            at -= steps;
            continue;
        }
        let part = len.min(steps - at);
        if part == 0 {
            return;
        }
        spans.push(Span { column, first: run.start + at, len: part as u32 });
        (at, len) = (0, len - part);
    }
}

impl Steps {
    /// How many steps there are.
    pub fn count(&self) -> u64 {
        self.spans.iter().map(|span| u64::from(span.len)).sum()
    }
}

#[pymethods]
impl Steps {
    fn __len__(&self) -> usize {
        self.count() as usize
    }

    /// The shape that this has in an item.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let kind = &self.kind;
        let time = (!self.squeezed).then(|| self.count() as usize);
        let shape: Vec<usize> = time.into_iter().chain(kind.shape.iter().copied()).collect();
        PyTuple::new(py, shape)
    }

    /// Type of the elements.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<numpy::PyArrayDescr>> {
        crate::dtype::to_numpy(py, self.kind.dtype)
    }

    /// Whether a step is gone, so that no item can be made of these.
    #[getter]
    fn expired(&self, py: Python<'_>) -> bool {
        !self.writer.get().has(py, &self.spans)
    }

    /// Put steps one after the other; squeezed, take one step without an axis of time.
    ///
    /// Raises:
    ///     ValueError: They are of different dtypes, shapes or writers, or none.
    #[staticmethod]
    fn join(steps: Vec<PyRef<'_, Self>>, squeezed: bool) -> PyResult<Self> {
        let Some(first) = steps.first() else {
            return Err(PyValueError::new_err("expected steps to join, got none"));
        };
        let (writer, kind) = (first.writer.clone_ref(first.py()), Arc::clone(&first.kind));
        let mut spans: SmallVec<[Span; 1]> = SmallVec::new();
        for (number, part) in steps.iter().enumerate() {
            if !part.writer.is(&writer) || part.kind != kind {
                let text = format!("steps {number} are of another dtype, shape or writer than 0");
                return Err(PyValueError::new_err(text));
            }
            for span in &part.spans {
                match spans.last_mut() {
                    Some(last)
                        if last.column == span.column
                            && last.first + u64::from(last.len) == span.first =>
                    {
                        last.len += span.len;
                    }
                    _ => spans.push(*span),
                }
            }
        }
        let joined = Self { writer, kind, spans, squeezed };
        match joined.count() {
            got if squeezed && got != 1 => {
                let text = format!("expected 1 step without an axis of time, got {got}");
                Err(PyValueError::new_err(text))
            }
            _ => Ok(joined),
        }
    }

    /// Copy the values.
    ///
    /// Raises:
    ///     TrajectoryError: A step is gone.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.writer.get().read(py, &self.kind, &self.spans)?;
        crate::array::owned(&bytes, self.dtype(py)?.bind(py), &self.shape(py)?)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Steps(shape={}, dtype={})", self.shape(py)?, self.dtype(py)?))
    }
}
