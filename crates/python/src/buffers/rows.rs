//! Transitions taken from Python and put into rows.
//!
//! One of plain vectors takes a way of its own, without conversions and lists.

use echoic_memory::gather::copy_past_caches;
use echoic_memory::row_ring::RowReservation;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat};

use super::form::{Field, Form, NAMES};
use crate::array::{self, Header, scalar_bytes};
use crate::error::spec_error;
use crate::leaf::Source;
use crate::sources::DETACH_BYTES;

/// Rows are written this many bytes at a time, field by field: few enough that they stay near.
const BLOCK_BYTES: usize = 16 << 10;
/// From this size on values are written past the caches: a buffer of such rows does not fit in them.
const PAST_CACHES: usize = 4 << 10;
/// How many bytes are written at once, at most: so that memory which was changed is noticed between them.
pub const MOST_BYTES: usize = 8 << 20;

/// Runs work on so many bytes, without the GIL where that pays.
#[inline]
pub fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    if bytes < DETACH_BYTES { work() } else { py.detach(work) }
}

/// How many bytes columns have.
pub fn bytes_in(columns: &[&mut [u8]]) -> usize {
    columns.iter().map(|column| column.len()).sum()
}

/// A transition of vectors, looked at and found to be just what the form says.
pub struct Plain<'a, 'py> {
    /// Observation, action and next observation.
    vectors: [Header<'a, 'py>; 3],
    reward: [u8; 4],
    /// Terminated and truncated.
    flags: [u8; 2],
}

/// Calls `push`. A value that is refused is a `RuntimeError`, as in rlox, which has this one for its cause.
#[inline]
pub fn as_rlox(py: Python<'_>, push: impl FnOnce() -> PyResult<()>) -> PyResult<()> {
    push().map_err(|error| {
        if !error.is_instance_of::<PyValueError>(py) {
            return error;
        }
        let raised = PyRuntimeError::new_err(error.value(py).to_string());
        raised.set_cause(py, Some(error));
        raised
    })
}

impl Form {
    /// One transition of plain vectors; `None` if it is anything else.
    #[inline]
    pub fn plain<'a, 'py>(&self, values: &'a [Bound<'py, PyAny>; 6]) -> Option<Plain<'a, 'py>> {
        let (obs, act) = self.vectors?;
        let py = values[0].py();
        let [o, a, r, t, c, n] = values;
        let floats = self.rule(0).descr.bind(py);
        let flags = self.rule(3).descr.bind(py);
        let vector = |value: &'a Bound<'py, PyAny>, width| {
            let header = Header::of_exact(value)?;
            let good =
                header.has_dtype(floats) && header.shape() == [width] && header.is_c_contiguous();
            good.then_some(header)
        };
        let flag = |value: &Bound<'_, PyAny>| match value.cast_exact::<PyBool>() {
            Ok(flag) => Some(u8::from(flag.is_true())),
            Err(_) => scalar_bytes(value, flags).map(|bytes| u8::from(bytes[0] != 0)),
        };
        let number = |value: &Bound<'_, PyAny>| match value.cast::<PyFloat>() {
            Ok(number) => {
                let (wide, narrow) = (number.value(), number.value() as f32);
                (narrow.is_finite() || !wide.is_finite()).then(|| narrow.to_ne_bytes())
            }
            Err(_) => scalar_bytes(value, floats).and_then(|bytes| bytes.first_chunk().copied()),
        };
        let vectors = [vector(o, obs)?, vector(a, act)?, vector(n, obs)?];
        Some(Plain { vectors, reward: number(r)?, flags: [flag(t)?, flag(c)?] })
    }

    /// Puts a transition of plain vectors into its row.
    ///
    /// # Safety
    ///
    /// This form must have said that it is one, and no Python code have run since.
    #[inline]
    pub unsafe fn write_plain(&self, plain: &Plain<'_, '_>, row: &mut [u8]) {
        let [o_at, a_at, r_at, t_at, c_at, n_at] = self.layout.fields() else { return };
        for (at, vector) in [o_at, a_at, n_at].into_iter().zip(plain.vectors) {
            let to = &mut row[at.offset..at.offset + at.bytes];
            // SAFETY: by the caller's promise the array has so many bytes; none of them is of a row, which
            // no array has.
            unsafe { array::copy(vector.data(), 0, to) };
        }
        row[r_at.offset..r_at.offset + 4].copy_from_slice(&plain.reward);
        row[t_at.offset] = plain.flags[0];
        row[c_at.offset] = plain.flags[1];
    }

    /// The values of a transition of vectors; `None` if that is not what this form has.
    #[inline]
    pub fn six<'py>(&self, x: &Bound<'py, PyAny>) -> PyResult<Option<[Bound<'py, PyAny>; 6]>> {
        let (Some(_), Ok(dict)) = (self.vectors, x.cast_exact::<PyDict>()) else { return Ok(None) };
        let [o, a, r, t, c, n] = &self.fields[..] else { return Ok(None) };
        let value = |field: &Field| dict.get_item(field.name.bind(x.py()));
        let all = (value(o)?, value(a)?, value(r)?, value(t)?, value(c)?, value(n)?);
        let (Some(o), Some(a), Some(r), Some(t), Some(c), Some(n)) = all else { return Ok(None) };
        Ok((dict.len() == 6).then_some([o, a, r, t, c, n]))
    }

    /// The values of all fields in their order, of a dict with an entry for each.
    pub fn values<'py>(&self, x: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = x.py();
        let names = || self.fields.iter().map(|field| &*field.text).collect::<Vec<_>>().join(", ");
        let dict = x.cast::<PyDict>().map_err(|_| {
            let class = x.get_type().name().map_or("?".into(), |name| name.to_string());
            spec_error(py, format!("expected a dict with the entries {}, got a {class}", names()))
        })?;
        let values = self.fields.iter().map(|field| {
            dict.get_item(field.name.bind(py))?.ok_or_else(|| {
                let text = format!("no value was given for the field `{}`", field.text);
                spec_error(py, text)
            })
        });
        let values: Vec<_> = values.collect::<PyResult<_>>()?;
        if dict.len() > values.len() {
            let known = |key: &Bound<'_, PyAny>| {
                self.fields.iter().any(|field| key.eq(field.name.bind(py)).unwrap_or(false))
            };
            let unknown = dict.keys().iter().find(|key| !known(key));
            let name = unknown.map_or("?".into(), |key| key.to_string());
            let text = format!("a transition has the fields {}, got `{name}`, too", names());
            return Err(spec_error(py, text));
        }
        Ok(values)
    }

    /// The next observation of a transition of vectors; zeros, if it is not given.
    #[inline]
    pub fn next_obs<'py>(
        &self,
        py: Python<'py>,
        given: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match given {
            Some(given) => Ok(given),
            None => {
                let width = self.widths.map_or(0, |(obs, _)| obs);
                py.import("numpy")?.call_method1("zeros", (width, "float32"))
            }
        }
    }

    /// Checks that the fields are the six that come by position.
    pub fn check_six(&self) -> PyResult<()> {
        if self.fields.iter().map(|field| &*field.text).eq(NAMES) {
            return Ok(());
        }
        Err(PyTypeError::new_err("transitions of this buffer are no rows of six fields"))
    }

    /// How many rows are written at once, at most.
    pub fn rows_at_once(&self, room: u64) -> usize {
        (room as usize).min((MOST_BYTES / self.layout.row_bytes()).max(1))
    }

    /// Copies consecutive rows, the first of which has this number, to their places on a ring.
    ///
    /// # Safety
    ///
    /// As [`Form::copy_rows`].
    pub unsafe fn copy_to_ring(
        &self,
        py: Python<'_>,
        sources: &[Source],
        first: usize,
        reservation: &mut RowReservation<'_>,
    ) {
        let row_bytes = self.layout.row_bytes();
        let (rows, wrapped) = reservation.rows_mut();
        detached(py, rows.len() + wrapped.len(), || {
            let before = rows.len() / row_bytes;
            // SAFETY: the caller's promise; where the GIL is released, who resizes an array that is being read
            // breaks numpy's own rules.
            unsafe { self.copy_rows(sources, first, rows) };
            // SAFETY: as above.
            unsafe { self.copy_rows(sources, first + before, wrapped) };
        });
    }

    /// The bytes of a leaf in so many rows; none where it has no source.
    ///
    /// # Safety
    ///
    /// As [`Source::bytes`].
    pub unsafe fn bytes_of<'a>(&self, sources: &'a [Source], leaf: usize, rows: usize) -> &'a [u8] {
        let found = sources.iter().find(|source| source.leaf == leaf);
        // SAFETY: the caller's promise.
        found.map_or(&[], |source| unsafe { source.bytes(rows * self.leaf_bytes(leaf)) })
    }

    /// Copies consecutive rows, the first of which has this number, into their places.
    ///
    /// # Safety
    ///
    /// The form must have accepted the sources, as values of at least so many rows, and they must have
    /// been [checked again](Self::recheck) since Python code could last run in this thread.
    pub unsafe fn copy_rows(&self, sources: &[Source], first: usize, rows: &mut [u8]) {
        let row_bytes = self.layout.row_bytes();
        let block = (BLOCK_BYTES / row_bytes).max(1);
        for (number, rows) in rows.chunks_mut(block * row_bytes).enumerate() {
            let first = first + number * block;
            for source in sources {
                let place = self.layout.fields()[source.leaf];
                let offset = first * place.bytes;
                if place.bytes >= PAST_CACHES && !source.is_cast() {
                    let end = offset + rows.len() / row_bytes * place.bytes;
                    // SAFETY: the caller's promise.
                    let values = unsafe { source.bytes(end) }[offset..].chunks_exact(place.bytes);
                    for (row, value) in rows.chunks_exact_mut(row_bytes).zip(values) {
                        copy_past_caches(value, &mut row[place.offset..place.offset + place.bytes]);
                    }
                    continue;
                }
                // SAFETY: the caller's promise.
                unsafe {
                    source.copy_to_rows(offset, place.bytes, rows, row_bytes, place.offset);
                }
            }
        }
    }
}
