//! Whose arrays come in, so that the same kind goes out.

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::array::Header;
use crate::error::dtype_error;

/// Whose array something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// numpy's, or a sequence of numbers.
    Numpy,
    /// PyTorch's.
    Torch,
    /// JAX's.
    Jax,
}

impl Kind {
    /// Whose `object` is. Neither library is imported for it: who has their arrays has them.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if Header::of(object).is_some() || !object.hasattr("__dlpack__")? {
            return Ok(Self::Numpy);
        }
        for (kind, module, class) in [(Self::Torch, "torch", "Tensor"), (Self::Jax, "jax", "Array")]
        {
            if let Some(module) = loaded(object.py(), module)?
                && object.is_instance(&module.getattr(class)?)?
            {
                return Ok(kind);
            }
        }
        Ok(Self::Numpy)
    }

    /// The object as an array of numpy, over the same memory where that is possible.
    pub fn to_numpy<'py>(
        self,
        name: &str,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let py = object.py();
        let numpy = numpy(py)?;
        let array = match self {
            Self::Numpy if Header::of(object).is_some() => {
                numpy.call_method1("asarray", (object,))?
            }
            Self::Numpy if object.hasattr("__dlpack__")? => {
                on_cpu(name, object)?;
                numpy.call_method1("from_dlpack", (object,))?
            }
            Self::Numpy => numpy.call_method1("asarray", (object,)).map_err(|error| {
                // A ragged list, for one.
                let text = format!("`{name}` is no array of numbers: {}", error.value(py));
                dtype_error(py, text)
            })?,
            Self::Torch => {
                on_cpu(name, object)?;
                if object.getattr("requires_grad")?.is_truthy()? {
                    let text = format!(
                        "`{name}` requires a gradient, which ends here: pass {name}.detach()"
                    );
                    return Err(dtype_error(py, text));
                }
                // It has no array of numpy otherwise.
                let half = object.getattr("dtype")?.str()? == "torch.bfloat16";
                let object = if half { &object.call_method0("float")? } else { object };
                // What `numpy.from_dlpack` does, in a third of the time.
                object.call_method0("numpy")?
            }
            Self::Jax => {
                on_cpu(name, object)?;
                numpy.call_method1("asarray", (object,))?
            }
        };
        Ok(array.cast_into()?)
    }

    /// An array of numpy as this kind, over the same memory.
    #[expect(
        clippy::wrong_self_convention,
        reason = "what is converted is numpy's, into this kind"
    )]
    pub fn from_numpy<'py>(self, array: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        match self {
            Self::Numpy => Ok(array),
            Self::Torch => py.import("torch")?.call_method1("from_numpy", (array,)),
            Self::Jax => py.import("jax.dlpack")?.call_method1("from_dlpack", (array,)),
        }
    }
}

/// numpy itself.
pub fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Ok(NUMPY.get_or_try_init(py, || PyResult::Ok(py.import("numpy")?.unbind()))?.bind(py))
}

/// A module, if somebody has imported it.
fn loaded<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    modules.get_item(name)
}

/// DLPack's numbers for memory that this processor reads: its own, and what is pinned for others.
const CPU_DEVICES: [i64; 3] = [1, 3, 11];

fn on_cpu(name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = || object.call_method0("__dlpack_device__")?.get_item(0)?.call_method0("__int__");
    // PyTorch has devices of which DLPack knows nothing.
    let device = device().and_then(|device| device.extract::<i64>());
    if device.as_ref().is_ok_and(|device| CPU_DEVICES.contains(device)) {
        return Ok(());
    }
    let place = match (object.getattr("device"), device) {
        (Ok(place), _) => place.str()?.to_string(),
        (Err(_), Ok(device)) => format!("DLPack device type {device}"),
        (Err(_), Err(_)) => "a device that DLPack does not know".into(),
    };
    let text = format!("`{name}` is on {place}, but this runs on the CPU: move it there first");
    Err(dtype_error(object.py(), text))
}
