//! A share of a batch as arrays over one piece of memory.

use std::collections::HashMap;

use echoic_net::client::rollouts::Delivered;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::{
    Array, BlobPlace, Form, GROUP_ARRAYS, Head, ITEM_ARRAYS, Layout, RUN_ARRAYS,
};
use echoic_replay::rollouts::ledger::Share;
use echoic_replay::spec::Dtype;
use numpy::PyArrayDescr;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::array;
use crate::dtype;
use crate::error::rollout_error;
use crate::memory::{Arena, Memory};
use crate::sources::DETACH_BYTES;

/// A share of a batch of rollouts; :class:`echoic.rollouts.RolloutBatch` is what users see.
#[pyclass(frozen, module = "echoic._native")]
pub struct RolloutBatch {
    /// Arrays about groups, items and runs of tokens of one version, by name.
    #[pyo3(get)]
    numbers: Py<PyDict>,
    /// Arrays with a value of each item.
    #[pyo3(get)]
    fields: Py<PyDict>,
    /// Arrays of tokens, each of rows and cells.
    #[pyo3(get)]
    columns: Py<PyDict>,
    /// Blobs by name, of those items that have some, by their place.
    #[pyo3(get)]
    blobs: Py<PyDict>,
    /// What its producer calls each group.
    #[pyo3(get)]
    keys: Py<PyList>,
    /// The source of each group.
    #[pyo3(get)]
    sources: Py<PyList>,
    /// The batch, the rank, and how often it was delivered.
    #[pyo3(get)]
    lease: (u64, u32, u32),
    /// For how long it is the consumer's.
    #[pyo3(get)]
    lease_seconds: Option<f64>,
    /// The version that the batch will update.
    #[pyo3(get)]
    target: i64,
}

/// How tokens are to lie, as the facade names it.
pub fn form((name, width, left): &(String, u32, bool)) -> PyResult<Form> {
    match name.as_str() {
        "flat" => Ok(Form::Flat),
        "padded" => Ok(Form::Padded { width: *width, left: *left }),
        "packed" if *width > 0 => Ok(Form::Packed { width: *width }),
        "packed" => Err(PyValueError::new_err("form 'packed' needs width: tokens of a row")),
        other => {
            let text = format!("form must be 'flat', 'padded' or 'packed', got {other:?}");
            Err(PyValueError::new_err(text))
        }
    }
}

/// Copies a share into memory that nobody looks at.
pub fn lay_out(
    py: Python<'_>,
    arena: &Arena,
    share: &Share,
    config: &RolloutConfig,
    form: Form,
) -> PyResult<RolloutBatch> {
    let layout =
        Layout::new(share, config, form).map_err(|error| rollout_error(py, error.to_string()))?;
    let mut memory = arena.take(py, layout.bytes())?;
    let written = Memory::write(&mut memory, py, 0, layout.bytes(), |bytes| {
        if bytes.len() >= DETACH_BYTES {
            py.detach(|| layout.write(bytes));
        } else {
            layout.write(bytes);
        }
    });
    assert!(written, "memory from the arena is nobody else's");
    let start = memory.get().pointer();
    let batch = {
        let owner = memory.bind(py).as_any();
        // SAFETY: the layout has written all arrays inside the memory, which the owner is; nobody writes there
        // before the arena finds that no array holds it any more.
        unsafe { RolloutBatch::over(py, &layout.head(), config, start, layout.bytes(), owner) }?
    };
    arena.give_back(memory);
    Ok(batch)
}

/// What keeps the memory of a share that came from a server.
#[pyclass(frozen, module = "echoic._native")]
struct Received {
    _delivered: Delivered,
}

/// A share that came from a server, where it lies.
pub fn received(
    py: Python<'_>,
    mut delivered: Delivered,
    config: &RolloutConfig,
) -> PyResult<RolloutBatch> {
    let head = delivered.head().clone();
    let bytes = delivered.bytes_mut();
    let (start, len) = (bytes.as_mut_ptr(), bytes.len());
    let owner = Bound::new(py, Received { _delivered: delivered })?;
    // SAFETY: the bytes are the share's alone, which the owner keeps where they are and nobody looks at any more.
    unsafe { RolloutBatch::over(py, &head, config, start, len, owner.as_any()) }
}

fn whole(py: Python<'_>) -> PyResult<Bound<'_, PyArrayDescr>> {
    static DTYPE: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
    Ok(DTYPE.get_or_try_init(py, || dtype::to_numpy(py, Dtype::Int(8)))?.bind(py).clone())
}

impl RolloutBatch {
    /// The arrays of a share that lies somewhere.
    ///
    /// # Safety
    ///
    /// From `start` on there must be `len` bytes that nobody else writes while `owner` is alive.
    pub unsafe fn over<'py>(
        py: Python<'py>,
        head: &Head,
        config: &RolloutConfig,
        start: *mut u8,
        len: usize,
        owner: &Bound<'py, PyAny>,
    ) -> PyResult<Self> {
        let shape = &head.shape;
        let arrays = shape.arrays(config).map_err(|error| rollout_error(py, error.to_string()))?;
        if arrays.bytes > len {
            let text = format!("the batch should have {} bytes, and has {len}", arrays.bytes);
            return Err(rollout_error(py, text));
        }
        let view = |array: &Array, descr: &Bound<'py, PyArrayDescr>, axes: &[usize]| {
            // Inside the memory, as was checked.
            let data = start.wrapping_add(array.start);
            // SAFETY: the array is inside the memory and as long as its axes say; the rest is the caller's
            // promise.
            unsafe { array::view(py, descr, axes, data, owner) }
        };
        let mut all = arrays.all.iter();
        let (numbers, fields, columns) = (PyDict::new(py), PyDict::new(py), PyDict::new(py));
        let int = whole(py)?;
        let counts = [
            (&GROUP_ARRAYS[..], shape.groups),
            (&ITEM_ARRAYS[..], shape.items),
            (&RUN_ARRAYS[..], shape.runs),
        ];
        for (names, count) in counts {
            for name in names {
                if let Some(array) = all.next() {
                    numbers.set_item(name, view(array, &int, &[count])?)?;
                }
            }
        }
        for field in &config.schema.fields {
            if let Some(array) = all.next() {
                let descr = dtype::to_numpy(py, field.dtype)?;
                fields.set_item(&field.name, view(array, descr.bind(py), &[shape.items])?)?;
            }
        }
        // What lies flat is one row, and an array of one axis.
        let axes = [shape.rows, shape.width];
        for column in &config.schema.columns {
            if let Some(array) = all.next() {
                let descr = dtype::to_numpy(py, column.dtype)?;
                columns.set_item(&column.name, view(array, descr.bind(py), &axes)?)?;
            }
        }
        let blobs = PyDict::new(py);
        let first = all.next().map_or(0, |array| array.start);
        // Items that share a blob share the object.
        let mut known: HashMap<(u64, u32), Bound<'py, PyBytes>> = HashMap::new();
        for (item, named) in head.blobs.iter().enumerate().filter(|(_, named)| !named.is_empty()) {
            let of_item = PyDict::new(py);
            for BlobPlace { name, start: place, bytes } in named {
                if let Some(blob) = known.get(&(*place, *bytes)) {
                    of_item.set_item(name, blob)?;
                    continue;
                }
                let len = *bytes as usize;
                let at = usize::try_from(*place).ok().and_then(|place| first.checked_add(place));
                let at = at.filter(|at| at.checked_add(len).is_some_and(|end| end <= arrays.bytes));
                let Some(at) = at else {
                    return Err(rollout_error(py, "the batch has fewer bytes than its blobs"));
                };
                let data = start.wrapping_add(at);
                // SAFETY: inside the memory, as was checked, initialised, and written by nobody: the caller's
                // promise.
                let blob = unsafe { std::slice::from_raw_parts(data, len) };
                let blob = PyBytes::new(py, blob);
                of_item.set_item(name, &blob)?;
                known.insert((*place, *bytes), blob);
            }
            blobs.set_item(item, of_item)?;
        }
        let lease = head.lease;
        Ok(Self {
            numbers: numbers.unbind(),
            fields: fields.unbind(),
            columns: columns.unbind(),
            blobs: blobs.unbind(),
            keys: PyList::new(py, head.names.iter().map(|(key, _)| key))?.unbind(),
            sources: PyList::new(py, head.names.iter().map(|(_, source)| source))?.unbind(),
            lease: (lease.batch, lease.rank, lease.attempt),
            lease_seconds: head.lease_ms.map(|millis| millis as f64 / 1e3),
            target: head.target,
        })
    }
}
