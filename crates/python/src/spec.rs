//! The contract of a sample, as Python sees it.

use echoic_replay::Leaf;
use echoic_replay::spec::ANY_LENGTH;
use echoic_replay::table::Form;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use crate::error::spec_error;
use crate::leaf::{LeafRule, display};
use crate::tree::Tree;

/// Path, dtype and shape of one leaf.
#[pyclass(frozen, get_all, eq, hash, module = "echoic")]
#[derive(PartialEq, Eq, Hash)]
pub struct LeafSpec {
    /// Keys joined by ``/``; empty for a sample that is a single leaf.
    path: String,
    /// The dtype, by numpy's name for it.
    dtype: String,
    /// `None` for an axis of any length.
    shape: Vec<Option<usize>>,
    /// Bytes of this leaf in one sample, or of one step where it may have any length.
    nbytes: usize,
}

#[pymethods]
impl LeafSpec {
    /// Shape without a batch axis; ``None`` for an axis of any length, which is the first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    fn __repr__(&self) -> String {
        let Self { path, dtype, shape, nbytes } = self;
        let shape = shape_text(shape);
        format!("LeafSpec(path={path:?}, dtype={dtype:?}, shape={shape}, nbytes={nbytes})")
    }
}

/// The leaves of a sample, in the order of their columns. ``str()`` gives a table.
#[pyclass(frozen, module = "echoic")]
pub struct Spec {
    leaves: Vec<Py<LeafSpec>>,
    text: String,
    nbytes: usize,
}

impl Spec {
    /// What items of a table must have, if it says so.
    pub fn of_form(py: Python<'_>, form: &Form) -> PyResult<Option<Self>> {
        form.spec().map(|spec| Self::new(py, spec)).transpose()
    }

    pub fn new(py: Python<'_>, core: &echoic_replay::Spec) -> PyResult<Self> {
        let leaves = core.leaves().iter().zip(core.leaf_bytes()).map(|(leaf, bytes)| {
            let (path, dtype) = (leaf.path.clone(), leaf.dtype.to_string());
            Py::new(py, LeafSpec { path, dtype, shape: shape(leaf), nbytes: *bytes })
        });
        let width = core.leaves().iter().map(|leaf| display(&leaf.path).chars().count()).max();
        let rows = core.leaves().iter().zip(core.leaf_bytes()).map(|(leaf, bytes)| {
            let (path, width) = (display(&leaf.path), width.unwrap_or(0));
            let (shape, each) = (shape_text(&shape(leaf)), per_step(leaf.has_any_length()));
            format!("{path:width$}  {}{shape}  {bytes} bytes{each}\n", leaf.dtype)
        });
        let any = core.leaves().iter().any(|leaf| leaf.has_any_length());
        let total = if any { String::new() } else { format!("{} bytes a sample", core.nbytes()) };
        let text = format!("{}{total}", rows.collect::<String>()).trim_end().to_owned();
        Ok(Self { leaves: leaves.collect::<PyResult<_>>()?, text, nbytes: core.nbytes() })
    }
}

#[pymethods]
impl Spec {
    /// The leaves.
    #[getter]
    fn leaves<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.leaves)
    }

    /// Bytes of one sample; of leaves that may have any length, one step counts.
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

fn shape(leaf: &Leaf) -> Vec<Option<usize>> {
    leaf.shape.iter().map(|axis| (*axis != ANY_LENGTH).then_some(*axis)).collect()
}

fn shape_text(shape: &[Option<usize>]) -> String {
    let axes = shape.iter().map(|axis| axis.map_or("?".to_owned(), |axis| axis.to_string()));
    format!("[{}]", axes.collect::<Vec<_>>().join(", "))
}

fn per_step(any_length: bool) -> &'static str {
    if any_length { " a step" } else { "" }
}

/// The core's spec of trajectories like this one, in which `AnyLength` stands for any number of steps.
pub fn trajectory_spec(example: &Bound<'_, PyAny>) -> PyResult<echoic_replay::Spec> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = example.py();
    let class = CLASS.import(py, "echoic.table", "AnyLength")?;
    let tree = Tree::compile_with(example, &mut |path, value| {
        if !value.is_instance(class)? {
            return LeafRule::from_example(path, value);
        }
        let mut rule = LeafRule::from_example(path, &value.getattr("step")?)?;
        rule.leaf.shape.insert(0, ANY_LENGTH);
        Ok(rule)
    })?;
    let leaves = tree.rules.into_iter().map(|rule| rule.leaf).collect();
    echoic_replay::Spec::of_trajectories(leaves).map_err(|error| spec_error(py, error.to_string()))
}

/// The core's spec of a compiled tree.
pub fn core_spec(py: Python<'_>, tree: &Tree) -> PyResult<echoic_replay::Spec> {
    let leaves = tree.rules.iter().map(|rule| rule.leaf.clone()).collect();
    echoic_replay::Spec::new(leaves).map_err(|error| spec_error(py, error.to_string()))
}
