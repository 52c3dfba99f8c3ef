//! What a buffer draws: the fields, and of a draw by priority the keys and weights.

use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// Transitions drawn from a local buffer. ``len(batch)`` is how many.
#[pyclass(frozen, module = "echoic._native")]
pub struct BufferBatch {
    data: Py<PyDict>,
    len: usize,
    keys: Option<Py<PyAny>>,
    weights: Option<Py<PyAny>>,
}

impl BufferBatch {
    /// The batch of what `draw` puts into a dict, which is given one to write into where there is an `out`: an earlier
    /// batch, which is then returned, or a dict of arrays.
    pub fn drawn<'py>(
        py: Python<'py>,
        len: i64,
        prioritized: bool,
        out: Option<&Bound<'py, PyAny>>,
        draw: impl FnOnce(Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let target = match out {
            None => None,
            Some(out) => match (out.cast::<Self>(), out.cast::<PyDict>()) {
                (Ok(batch), _) => Some(batch.get().target(py)?),
                (_, Ok(dict)) if prioritized => Some(dict.copy()?),
                (_, Ok(dict)) => Some(dict.clone()),
                _ => return Err(PyTypeError::new_err("out must be a batch, or a dict of arrays")),
            },
        };
        let data = draw(target.as_ref().map(|target| target.as_any()))?;
        match out {
            Some(out) if out.is_instance_of::<Self>() => Ok(out.clone()),
            _ => {
                let take = |name: &Bound<'py, PyString>| -> PyResult<Option<Py<PyAny>>> {
                    if !prioritized {
                        return Ok(None);
                    }
                    let found = data.get_item(name)?.map(Bound::unbind);
                    data.del_item(name)?;
                    Ok(found)
                };
                let keys = take(intern!(py, KEYS))?;
                let weights = take(intern!(py, WEIGHTS))?;
                let len = len as usize;
                let batch = Self { data: data.unbind(), len, keys, weights };
                Ok(Bound::new(py, batch)?.into_any())
            }
        }
    }

    /// A dict of all its arrays.
    fn target<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = self.data.bind(py).copy()?;
        for (name, array) in [(KEYS, &self.keys), (WEIGHTS, &self.weights)] {
            if let Some(array) = array {
                all.set_item(name, array)?;
            }
        }
        Ok(all)
    }
}

/// Where a dict of arrays has the keys and weights.
pub const KEYS: &str = "keys";
pub const WEIGHTS: &str = "weights";

#[pymethods]
impl BufferBatch {
    #[new]
    fn new(data: Py<PyDict>, n: usize) -> Self {
        Self { data, len: n, keys: None, weights: None }
    }

    /// The fields, each an array, or a tree of arrays, with a leading axis.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyDict> {
        self.data.clone_ref(py)
    }

    /// Names of the transitions for ``update_priorities``; ``None`` without priorities.
    #[getter]
    fn keys(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.keys.as_ref().map(|keys| keys.clone_ref(py))
    }

    /// Importance weights, at most 1; all 1 where transitions are drawn evenly.
    #[getter]
    fn weights(&self, py: Python<'_>) -> Py<PyAny> {
        match &self.weights {
            Some(weights) => weights.clone_ref(py),
            None => PyArray1::from_vec(py, vec![1f32; self.len]).into_any().unbind(),
        }
    }

    /// Return a field of the data.
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let data = self.data.bind(py);
        data.get_item(name)?.ok_or_else(|| {
            let known = data.keys();
            PyKeyError::new_err(format!("the batch has no {name:?}; its data has {known:?}"))
        })
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("BufferBatch(len={}, fields={:?})", self.len, self.data.bind(py).keys())
    }
}
