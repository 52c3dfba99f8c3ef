//! numpy dtypes as the core's [`Dtype`].

use echoic_replay::Dtype;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

/// numpy's own object for a dtype in native byte order. There is one for each of the plain dtypes, and
/// given a name numpy finds that one, which makes the comparison with an array's dtype that of two
/// addresses.
pub fn to_numpy(py: Python<'_>, dtype: Dtype) -> PyResult<Py<PyArrayDescr>> {
    let name = match dtype {
        // numpy knows it only where this package is.
        Dtype::BFloat16 => py.import("ml_dtypes")?.getattr("bfloat16")?,
        dtype => dtype.to_string().into_pyobject(py)?.into_any(),
    };
    Ok(py.import("numpy")?.call_method1("dtype", (name,))?.cast_into()?.unbind())
}

/// The core's name for a numpy dtype, or advice why there is none. Byte order does not matter here.
pub fn from_numpy(descr: &Bound<'_, PyArrayDescr>) -> Result<Dtype, String> {
    let bytes = descr.itemsize();
    let small = u8::try_from(bytes);
    let dtype = match (descr.kind(), small) {
        (b'b', _) => Dtype::Bool,
        (b'i', Ok(bytes)) => Dtype::Int(bytes),
        (b'u', Ok(bytes)) => Dtype::UInt(bytes),
        (b'f', Ok(bytes @ (2 | 4 | 8))) => Dtype::Float(bytes),
        (b'c', Ok(bytes @ (8 | 16))) => Dtype::Complex(bytes),
        (b'S', _) if bytes > 0 => match u32::try_from(bytes) {
            Ok(bytes) => Dtype::Bytes(bytes),
            Err(_) => return Err(format!("{descr} is too wide")),
        },
        // `bfloat16` of ml_dtypes, which numpy knows as a void-like user dtype.
        _ if bytes == 2 && descr.to_string() == "bfloat16" => Dtype::BFloat16,
        (b'O', _) => {
            return Err(
                "object arrays hold pointers, not data; use a numeric dtype, or bytes of a \
                        fixed width such as 'S32'"
                    .into(),
            );
        }
        (b'U' | b'T' | b'S', _) => {
            return Err(format!(
                "{descr} is text or has no width; encode it to bytes of a fixed width such as 'S32'"
            ));
        }
        _ => {
            return Err(format!(
                "{descr} is not supported; use bool, an integer, a float of 16, 32 or 64 bits, \
                 bfloat16, a complex of 64 or 128 bits, or bytes of a fixed width"
            ));
        }
    };
    Ok(dtype)
}
