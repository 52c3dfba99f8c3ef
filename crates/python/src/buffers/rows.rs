//! Transitions taken from Python and put into rows.
//!
//! One of plain vectors takes a way of its own, without conversions and lists.

use echoic_memory::row_ring::RowReservation;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat};

use super::form::{Form, NAMES};
use crate::array::{self, Header, scalar_bytes};
use crate::leaf::Source;
use crate::sources::DETACH_BYTES;

/// Rows are written this many bytes at a time, field by field: few enough that they stay near.
const BLOCK_BYTES: usize = 16 << 10;
/// How many bytes are written at once, at most: so that memory which was changed is noticed between them.
pub const MOST_BYTES: usize = 8 << 20;

/// A transition of vectors, looked at and found to be just what the form says.
pub struct Plain<'a, 'py> {
    /// Observation, action and next observation.
    vectors: [Header<'a, 'py>; 3],
    reward: [u8; 4],
    /// Terminated and truncated.
    flags: [u8; 2],
}

impl Form {
    /// One transition of plain vectors; `None` if it is anything else.
    #[inline]
    pub fn plain<'a, 'py>(&self, values: [&'a Bound<'py, PyAny>; 6]) -> Option<Plain<'a, 'py>> {
        let (obs, act) = self.widths.filter(|_| self.frames.is_none())?;
        let py = values[0].py();
        let [o, a, r, t, c, n] = values;
        let floats = self.rule(0).descr.bind(py);
        let flags = self.rule(3).descr.bind(py);
        let vector = |value, width| {
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

    /// The values of all fields in their order, of which the first six may come by position.
    pub fn values<'py>(
        &self,
        py: Python<'py>,
        given: [Option<Bound<'py, PyAny>>; 6],
        more: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut given = given;
        let mut used = 0;
        let mut values = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let own = NAMES.iter().position(|name| *name == field.text);
            let value = match own.and_then(|at| given[at].take()) {
                Some(value) => Some(value),
                None => {
                    let value = match more {
                        Some(more) => more.get_item(field.name.bind(py))?,
                        None => None,
                    };
                    used += usize::from(value.is_some());
                    value
                }
            };
            values.push(value.ok_or_else(|| {
                PyTypeError::new_err(format!("no value was given for the field `{}`", field.text))
            })?);
        }
        if let Some(at) = given.iter().position(Option::is_some) {
            let text = format!("a transition of this buffer has no field `{}`", NAMES[at]);
            return Err(PyTypeError::new_err(text));
        }
        if let Some(more) = more.filter(|more| more.len() > used) {
            let known = |key: &Bound<'_, PyAny>| {
                self.fields.iter().any(|field| key.eq(field.name.bind(py)).unwrap_or(false))
            };
            let unknown = more.keys().iter().find(|key| !known(key));
            let name = unknown.map_or("?".into(), |key| key.to_string());
            let text =
                format!("a transition of this buffer has no field `{name}`, or it came twice");
            return Err(PyTypeError::new_err(text));
        }
        Ok(values)
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
        let large = rows.len() + wrapped.len() >= DETACH_BYTES;
        let mut copy = || {
            let before = rows.len() / row_bytes;
            // SAFETY: the caller's promise; where the GIL is released, who resizes an array that is being read
            // breaks numpy's own rules.
            unsafe { self.copy_rows(sources, first, rows) };
            // SAFETY: as above.
            unsafe { self.copy_rows(sources, first + before, wrapped) };
        };
        if large { py.detach(copy) } else { copy() }
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
                // SAFETY: the caller's promise.
                unsafe {
                    source.copy_to_rows(offset, place.bytes, rows, row_bytes, place.offset);
                }
            }
        }
    }
}
