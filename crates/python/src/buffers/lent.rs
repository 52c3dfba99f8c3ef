//! The bytes of a numpy array, lent to code that knows nothing of Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::array::Header;

/// The bytes of a contiguous array, which it keeps.
pub struct Lent {
    data: *const u8,
    len: usize,
    _array: Py<PyAny>,
}

// SAFETY: the bytes are only read, and the array may be let go of in any thread.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// The bytes of an array.
    ///
    /// # Safety
    ///
    /// Nobody may write to the array while this is there.
    pub unsafe fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        // A header of our own: the owner of the other may be given other memory by `resize`.
        let array = array.call_method0("view")?;
        let bytes = Header::of(&array)
            .filter(Header::is_c_contiguous)
            .and_then(|header| Some((header.data().cast_const(), header.nbytes()?)));
        let Some((data, len)) = bytes else {
            return Err(PyValueError::new_err("expected an array in C order"));
        };
        Ok(Self { data, len, _array: array.unbind() })
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: a contiguous array has so many bytes, and numpy keeps them while there are references to
        // an array over them, of which this has one. Nobody else knows this array's header, and nobody writes
        // to the bytes, as whoever called `of` has promised.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}
