//! numpy dtypes as the core's [`Dtype`].

use echoic_replay::Dtype;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

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
