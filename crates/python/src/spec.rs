//! The contract of a sample, as Python sees it.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::spec_error;
use crate::leaf::display;
use crate::tree::Tree;

/// Path, dtype and shape of one leaf.
#[pyclass(frozen, get_all, eq, hash, module = "echoic")]
#[derive(PartialEq, Eq, Hash)]
pub struct LeafSpec {
    path: String,
    dtype: String,
    shape: Vec<usize>,
    nbytes: usize,
}

#[pymethods]
impl LeafSpec {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    fn __repr__(&self) -> String {
        let Self { path, dtype, shape, nbytes } = self;
        format!("LeafSpec(path={path:?}, dtype={dtype:?}, shape={shape:?}, nbytes={nbytes})")
    }
}

/// The leaves of a sample.
#[pyclass(frozen, module = "echoic")]
pub struct Spec {
    leaves: Vec<Py<LeafSpec>>,
    text: String,
    nbytes: usize,
}

impl Spec {
    pub fn new(py: Python<'_>, core: &echoic_replay::Spec) -> PyResult<Self> {
        let leaves = core.leaves().iter().zip(core.leaf_bytes()).map(|(leaf, bytes)| {
            let (path, dtype) = (leaf.path.clone(), leaf.dtype.to_string());
            Py::new(py, LeafSpec { path, dtype, shape: leaf.shape.clone(), nbytes: *bytes })
        });
        let width = core.leaves().iter().map(|leaf| display(&leaf.path).chars().count()).max();
        let rows = core.leaves().iter().zip(core.leaf_bytes()).map(|(leaf, bytes)| {
            let (path, width) = (display(&leaf.path), width.unwrap_or(0));
            format!("{path:width$}  {}{:?}  {bytes} bytes\n", leaf.dtype, leaf.shape)
        });
        let text = format!("{}{} bytes a sample", rows.collect::<String>(), core.nbytes());
        Ok(Self { leaves: leaves.collect::<PyResult<_>>()?, text, nbytes: core.nbytes() })
    }
}

#[pymethods]
impl Spec {
    #[getter]
    fn leaves<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.leaves)
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("Spec({} leaves, {} bytes)", self.leaves.len(), self.nbytes)
    }

    fn __len__(&self) -> usize {
        self.leaves.len()
    }
}

/// The core's spec of a compiled tree.
pub fn core_spec(py: Python<'_>, tree: &Tree) -> PyResult<echoic_replay::Spec> {
    let leaves = tree.rules.iter().map(|rule| rule.leaf.clone()).collect();
    echoic_replay::Spec::new(leaves).map_err(|error| spec_error(py, error.to_string()))
}
