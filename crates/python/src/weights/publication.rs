//! What was published, as numpy views.

use std::sync::Arc;

use echoic_replay::weights::Publication as CorePublication;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::form::LastForm;
use crate::array;
use crate::spec::Spec;

/// The base object of every array of a publication, which is kept while one of them is there.
#[pyclass(frozen, module = "echoic._native")]
struct Hold {
    _publication: Arc<CorePublication>,
}

/// A version, and the weights that belong to it.
///
/// The arrays can't be written. They are there, and do not change, for as long as one of them or
/// the publication is referred to: also when the store, the client or the server is closed.
#[pyclass(frozen, module = "echoic.weights")]
pub struct Publication {
    publication: Arc<CorePublication>,
    /// The weights as a tree of numpy views; ``None`` where only a version was published.
    #[pyo3(get)]
    tree: Py<PyAny>,
}

impl Publication {
    pub fn new(
        py: Python<'_>,
        publication: Arc<CorePublication>,
        forms: &LastForm,
    ) -> PyResult<Self> {
        let tree = build(py, &publication, forms)?.unbind();
        Ok(Self { publication, tree })
    }
}

/// The tree of a publication; `None` of a version alone.
fn build<'py>(
    py: Python<'py>,
    publication: &Arc<CorePublication>,
    forms: &LastForm,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(content) = publication.content() else { return Ok(py.None().into_bound(py)) };
    let form = forms.of(py, content.plan())?;
    let hold = Bound::new(py, Hold { _publication: Arc::clone(publication) })?;
    let (plan, start) = (content.plan(), content.pointer().as_ptr());
    form.tree.build(py, &mut |leaf| {
        let rule = &form.tree.rules[leaf];
        // SAFETY: leaves lie inside the content by its plan.
        let data = unsafe { start.add(plan.offsets()[leaf]) };
        let (descr, shape) = (rule.descr.bind(py), &rule.leaf.shape);
        // SAFETY: the leaf has so many elements there, and nobody changes them while the publication is
        // there, which the array sees to by holding it.
        unsafe { array::view_to_read(py, descr, shape, data, hold.as_any()) }
    })
}

#[pymethods]
impl Publication {
    /// Which version it is.
    #[getter]
    fn version(&self) -> u64 {
        self.publication.version()
    }

    /// How many bytes the weights have, those between leaves included.
    #[getter]
    fn nbytes(&self) -> usize {
        self.publication.content().map_or(0, |content| content.plan().nbytes())
    }

    /// Path, dtype and shape of every leaf.
    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Option<Spec>> {
        let content = self.publication.content();
        content.map(|content| Spec::new(py, content.plan().spec())).transpose()
    }

    /// Lets the garbage collector see weights that were made to refer to their own publication.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tree)
    }

    fn __repr__(&self) -> String {
        format!("Publication(version={}, nbytes={})", self.publication.version(), self.nbytes())
    }
}
