//! What every store returns from `sample`: a tree of arrays, and what is known about its rows.

use echoic_replay::table::Infos;
use numpy::{Element, PyArray1};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

use crate::sample::Taken;

/// Rows that were drawn from a store.
///
/// ``len(batch)`` is their number, and ``batch["obs"]`` is ``batch.data["obs"]``.
/// The arrays of a stream's batch are views of the stream's own memory. They stay valid and
/// unchanged for as long as any of them is alive; only then is the memory used again. Other batches
/// have memory of their own.
#[pyclass(frozen, module = "echoic")]
pub struct Batch {
    /// A tree like the items, every leaf with a leading axis.
    ///
    /// A leaf of which the items have different lengths is a :class:`~echoic.Ragged`. Items of
    /// different forms, which a table without a spec may have, make a list of trees. It is ``None``
    /// in what ``table.items()`` returns.
    #[pyo3(get)]
    pub data: Py<PyAny>,
    len: usize,
    keys: PyOnceLock<Py<PyAny>>,
    weights: PyOnceLock<Py<PyAny>>,
    origin: Origin,
}

/// Where a batch comes from.
pub enum Origin {
    Buffer,
    Table(Py<BatchInfo>),
    Stream(Taken),
}

impl Origin {
    pub fn table(py: Python<'_>, infos: Infos, beta: f64) -> PyResult<Self> {
        Ok(Self::Table(Py::new(py, BatchInfo::new(infos, beta))?))
    }

    fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Buffer => Self::Buffer,
            Self::Table(info) => Self::Table(info.clone_ref(py)),
            Self::Stream(taken) => Self::Stream(taken.clone_ref(py)),
        }
    }
}

/// More about the items of a table's batch; each array is made when it is first asked for.
#[pyclass(frozen, module = "echoic.batches")]
pub struct BatchInfo {
    infos: Infos,
    beta: f64,
    probabilities: PyOnceLock<Py<PyAny>>,
    priorities: PyOnceLock<Py<PyAny>>,
    times_sampled: PyOnceLock<Py<PyAny>>,
    versions: PyOnceLock<Py<PyAny>>,
}

impl BatchInfo {
    fn new(infos: Infos, beta: f64) -> Self {
        Self {
            infos,
            beta,
            probabilities: PyOnceLock::new(),
            priorities: PyOnceLock::new(),
            times_sampled: PyOnceLock::new(),
            versions: PyOnceLock::new(),
        }
    }
}

/// The array of `values`, made when it is first asked for.
fn array<T: Element>(
    py: Python<'_>,
    column: &PyOnceLock<Py<PyAny>>,
    values: impl FnOnce() -> Vec<T>,
) -> Py<PyAny> {
    column.get_or_init(py, || vector(py, values())).clone_ref(py)
}

fn vector<T: Element>(py: Python<'_>, values: Vec<T>) -> Py<PyAny> {
    PyArray1::from_vec(py, values).into_any().unbind()
}

#[pymethods]
impl BatchInfo {
    /// How likely it was to draw each item.
    #[getter]
    fn probabilities(&self, py: Python<'_>) -> Py<PyAny> {
        array(py, &self.probabilities, || self.infos.probabilities.clone())
    }

    /// Priorities of the items.
    #[getter]
    fn priorities(&self, py: Python<'_>) -> Py<PyAny> {
        array(py, &self.priorities, || self.infos.priorities.clone())
    }

    /// How often each item was sampled, this time included.
    #[getter]
    fn times_sampled(&self, py: Python<'_>) -> Py<PyAny> {
        array(py, &self.times_sampled, || self.infos.times_sampled.clone())
    }

    /// The policy versions that made the items.
    #[getter]
    fn versions(&self, py: Python<'_>) -> Py<PyAny> {
        array(py, &self.versions, || self.infos.versions.clone())
    }

    /// How many items the table had.
    #[getter]
    fn table_size(&self) -> u64 {
        self.infos.table_size
    }

    /// What its items weigh: ``sum(p**e)`` if the sampler is prioritized, else their number.
    #[getter]
    fn total_weight(&self) -> f64 {
        self.infos.total_weight
    }

    /// The exponent of the weights.
    #[getter]
    fn beta(&self) -> f64 {
        self.beta
    }

    fn __len__(&self) -> usize {
        self.infos.keys.len()
    }

    fn __repr__(&self) -> String {
        let (len, size) = (self.infos.keys.len(), self.infos.table_size);
        format!("BatchInfo(items={len}, table_size={size})")
    }
}

/// Where a dict of arrays to draw into has the keys and weights.
pub const KEYS: &str = "keys";
pub const WEIGHTS: &str = "weights";

impl Batch {
    pub fn new(data: Bound<'_, PyAny>, len: usize, origin: Origin) -> Self {
        let (keys, weights) = (PyOnceLock::new(), PyOnceLock::new());
        Self { data: data.unbind(), len, keys, weights, origin }
    }

    /// The batch of a local buffer, of what `draw` puts into a dict.
    ///
    /// `draw` is given a dict to write into where there is an `out`: an earlier batch, which is then
    /// returned, or a dict of arrays.
    pub fn drawn<'py>(
        py: Python<'py>,
        len: i64,
        prioritized: bool,
        out: Option<&Bound<'py, PyAny>>,
        device: Option<Device<'py>>,
        draw: impl FnOnce(Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, Self>> {
        if out.is_some() && device.is_some() {
            let text = "out has the arrays to write into, so there is no device: give one of them";
            return Err(PyValueError::new_err(text));
        }
        if let Some(Ok(batch)) = out.map(Bound::cast::<Self>) {
            draw(Some(batch.get().target(py)?.as_any()))?;
            return Ok(batch.clone());
        }
        let target = match out.map(Bound::cast::<PyDict>) {
            None => None,
            Some(Ok(dict)) if prioritized => Some(dict.copy()?),
            Some(Ok(dict)) => Some(dict.clone()),
            Some(Err(_)) => return Err(no_target()),
        };
        let data = draw(target.as_ref().map(|target| target.as_any()))?;
        let take = |name: &Bound<'py, PyString>| -> PyResult<PyOnceLock<Py<PyAny>>> {
            let column = PyOnceLock::new();
            if prioritized && let Some(found) = data.get_item(name)? {
                data.del_item(name)?;
                let (Ok(()) | Err(_)) = column.set(py, found.unbind());
            }
            Ok(column)
        };
        let (keys, weights) = (take(intern!(py, KEYS))?, take(intern!(py, WEIGHTS))?);
        let (data, len) = (data.into_any().unbind(), len as usize);
        Self { data, len, keys, weights, origin: Origin::Buffer }.on(py, device)
    }

    /// A dict of all arrays of a buffer's batch.
    fn target<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (Origin::Buffer, Ok(data)) = (&self.origin, self.data.bind(py).cast::<PyDict>()) else {
            return Err(no_target());
        };
        let all = data.copy()?;
        if let Some(keys) = self.keys.get(py) {
            all.set_item(intern!(py, KEYS), keys)?;
            all.set_item(intern!(py, WEIGHTS), self.weights(py))?;
        }
        Ok(all)
    }

    /// The batch on a device, if one is given.
    pub fn on<'py>(
        self,
        py: Python<'py>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Self>> {
        let batch = Bound::new(py, self)?;
        match device {
            None => Ok(batch),
            Some(Device(device)) => {
                let moved = Self::as_torch(&batch, Some(device))?;
                Ok(moved.cast_into::<Self>()?)
            }
        }
    }
}

fn no_target() -> PyErr {
    PyTypeError::new_err("out must be an earlier batch of this buffer, or a dict of arrays")
}

/// A device of torch, checked before anything is drawn for it.
pub struct Device<'py>(Bound<'py, PyAny>);

impl<'py> FromPyObject<'_, 'py> for Device<'py> {
    type Error = PyErr;

    fn extract(device: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let tensors = device.py().import("echoic.tensors")?;
        Ok(Self(tensors.call_method1("torch_device", (device,))?))
    }
}

#[pymethods]
impl Batch {
    /// A batch of a local buffer, of fields that were drawn in another way.
    #[staticmethod]
    fn _of(data: Bound<'_, PyDict>, n: usize) -> Self {
        Self::new(data.into_any(), n, Origin::Buffer)
    }

    /// The same rows as other arrays.
    fn _with(
        &self,
        data: Bound<'_, PyAny>,
        keys: Option<Bound<'_, PyAny>>,
        weights: Option<Bound<'_, PyAny>>,
    ) -> Self {
        let py = data.py();
        let batch = Self::new(data, self.len, self.origin.clone_ref(py));
        for (column, given) in [(&batch.keys, keys), (&batch.weights, weights)] {
            if let Some(given) = given {
                column.get_or_init(py, || given.unbind());
            }
        }
        batch
    }

    /// Keys of the rows, for ``update_priorities``, ``get`` and ``remove``.
    ///
    /// ``None`` in a batch of a stream, or of a buffer without priorities.
    #[getter]
    fn keys(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &self.origin {
            Origin::Table(info) => Some(array(py, &self.keys, || info.get().infos.keys.clone())),
            _ => self.keys.get(py).map(|keys| keys.clone_ref(py)),
        }
    }

    /// Importance weights ``(size * probability) ** -beta``, the largest of which is 1.
    ///
    /// ``None`` in a batch of a stream.
    #[getter]
    fn weights(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &self.origin {
            Origin::Table(info) => {
                let BatchInfo { infos, beta, .. } = info.get();
                Some(array(py, &self.weights, || infos.weights(*beta)))
            }
            Origin::Buffer => Some(array(py, &self.weights, || vec![1f32; self.len])),
            Origin::Stream(_) => None,
        }
    }

    /// More about the rows and their store.
    ///
    /// A :class:`~echoic.batches.BatchInfo` of a table; the :class:`~echoic.batches.StreamStats` of
    /// a stream, as of the first time they are read; ``None`` of a local buffer.
    #[getter]
    fn info(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match &self.origin {
            Origin::Buffer => Ok(None),
            Origin::Table(info) => Ok(Some(info.clone_ref(py).into_any())),
            Origin::Stream(taken) => Ok(Some(taken.stats(py)?.into_any())),
        }
    }

    /// Return the batch with ``data``, ``keys`` and ``weights`` as tensors of PyTorch.
    ///
    /// On the CPU they share the memory of the arrays. To a CUDA device they are copied through
    /// page-locked memory on the current stream, and this batch need not be kept for the copy.
    /// A :class:`~echoic.Ragged` gets tensors for its values and offsets.
    ///
    /// Args:
    ///     device: A ``torch.device`` or its name. The CPU when ``None``.
    ///
    /// Raises:
    ///     ImportError: If PyTorch is not installed.
    #[pyo3(signature = (device=None))]
    fn as_torch<'py>(
        this: &Bound<'py, Self>,
        device: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("echoic.tensors")?.call_method1("to_torch", (this, device))
    }

    /// Return the batch with ``data`` and ``weights`` as arrays of JAX.
    ///
    /// They are on JAX's default device, and have 32 bits instead of 64 if JAX has no 64-bit types
    /// enabled. ``keys`` stay a numpy array, since they need all of their bits.
    ///
    /// Raises:
    ///     ImportError: If JAX is not installed.
    fn as_jax<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("echoic.tensors")?.call_method1("to_jax", (this,))
    }

    /// Return what the data has under a key, without a copy.
    ///
    /// Raises:
    ///     KeyError: If the data has no such key.
    ///     TypeError: If the data is not a dict.
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let data = self.data.bind(key.py());
        let Ok(dict) = data.cast::<PyDict>() else {
            let (key, class) = (key.repr()?, data.get_type());
            let text = format!(
                "batch[{key}] needs data that is a dict, and this batch has data of type {}: use batch.data",
                class.name()?
            );
            return Err(PyTypeError::new_err(text));
        };
        dict.get_item(key)?.ok_or_else(|| {
            let keys: Vec<String> = dict.keys().iter().map(|key| format!("{key:?}")).collect();
            let known = keys.join(", ");
            PyKeyError::new_err(format!("the batch has no {key:?}; its data has {known}"))
        })
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// Lets the garbage collector see a batch that was made to refer to itself.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.data)
    }

    fn _repr_html_(slf: &Bound<'_, Self>) -> PyResult<String> {
        slf.py().import("echoic.views.notebook")?.call_method1("batch_html", (slf,))?.extract()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let data = self.data.bind(py);
        let data = match data.cast::<PyDict>() {
            Ok(dict) => {
                let field = |(name, value): (Bound<'_, _>, _)| {
                    Ok(format!("{}: {}", name.str()?, form(&value)?))
                };
                let fields = dict.iter().map(field).collect::<PyResult<Vec<_>>>()?;
                format!("{{{}}}", fields.join(", "))
            }
            Err(_) => form(data)?,
        };
        Ok(format!("Batch(len={}, data={data})", self.len))
    }
}

/// What a leaf is in few words: its dtype and shape, or its class if it has none.
fn form(leaf: &Bound<'_, PyAny>) -> PyResult<String> {
    let (dtype, shape) = (leaf.getattr_opt("dtype")?, leaf.getattr_opt("shape")?);
    match (dtype, shape) {
        (Some(dtype), Some(shape)) => {
            let shape: Vec<usize> = shape.extract()?;
            Ok(format!("{}{shape:?}", dtype.str()?))
        }
        _ => Ok(leaf.get_type().name()?.to_string()),
    }
}
