//! Arrays of an item as the bytes that a table keeps, and back.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use echoic_replay::Dtype;
use echoic_replay::codec::Encode;
use echoic_replay::rollouts::codec::{AppendHead, BlobHead};
use echoic_replay::rollouts::item::{Blob, ColumnUpdate, Finish, Item, Run, Segment, Updates};
use echoic_replay::rollouts::ledger::Hold;
use echoic_replay::rollouts::schema::MAX_COLUMN_NAME;
use echoic_replay::rollouts::{Late, RolloutConfig, Schema};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::array::{self, Header, copy, scalar_bytes};
use crate::dtype;
use crate::error::{is_ours, spec_error};
use crate::leaf::as_array;
use crate::numbers::{index_numbers, on_host};
use crate::sources::DETACH_BYTES;

/// The columns and fields of a table, as numpy names them.
pub struct Columns {
    columns: Vec<Named>,
    fields: Vec<Named>,
    schema: Schema,
}

struct Named {
    name: Py<PyString>,
    descr: Py<PyArrayDescr>,
    dtype: Dtype,
    /// Of a value.
    shape: Vec<usize>,
    size: usize,
}

/// An array whose values follow each other along its first axis.
struct Values<'py> {
    array: Bound<'py, PyAny>,
    len: usize,
    size: usize,
}

/// The bytes of an array, for a copy that is made before this thread runs Python code again.
struct Piece<'a> {
    data: *const u8,
    len: usize,
    /// It keeps its bytes while it is borrowed.
    _array: PhantomData<&'a Values<'a>>,
}

// SAFETY: the bytes are only read. What other threads do to the array meanwhile is under numpy's own rules: it may
// not be resized.
unsafe impl Send for Piece<'_> {}
// SAFETY: as above.
unsafe impl Sync for Piece<'_> {}

/// Such bytes with the size of a value.
type Pieces<'a> = SmallVec<[(Piece<'a>, usize); 8]>;

impl Values<'_> {
    /// Its bytes; none, if Python code that ran since the array was looked at has changed it.
    fn piece(&self) -> Piece<'_> {
        let whole = Header::of(&self.array)
            .filter(Header::is_c_contiguous)
            .filter(|header| header.nbytes() == Some(self.len * self.size));
        let data = whole.map_or(std::ptr::null(), |header| header.data().cast_const());
        let len = if data.is_null() { 0 } else { self.len * self.size };
        Piece { data, len, _array: PhantomData }
    }
}

impl Piece<'_> {
    fn copy(&self, from: usize, to: &mut [u8]) {
        if from.checked_add(to.len()).is_some_and(|end| end <= self.len) {
            // SAFETY: the array is contiguous and had these bytes, of which the range is a part, when this thread
            // could last run Python code; `to` is ours.
            unsafe { copy(self.data, from, to) };
        }
    }
}

/// Copies so many bytes: while other threads may run, if it takes long.
pub fn copying<T: Send>(py: Python<'_>, bytes: usize, copy: impl FnOnce() -> T + Send) -> T {
    if bytes >= DETACH_BYTES { py.detach(copy) } else { copy() }
}

impl Named {
    fn all(py: Python<'_>, columns: &[echoic_replay::rollouts::Column]) -> PyResult<Vec<Self>> {
        let one = |column: &echoic_replay::rollouts::Column| {
            let name = PyString::intern(py, &column.name).unbind();
            let descr = dtype::to_numpy(py, column.dtype)?;
            let (dtype, shape, size) = (column.dtype, column.shape.clone(), column.bytes());
            Ok(Self { name, descr, dtype, shape, size })
        };
        columns.iter().map(one).collect()
    }

    /// What a dict has under the name.
    fn given<'py>(
        &self,
        py: Python<'py>,
        dict: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let name = self.name.bind(py);
        let Some(value) = dict.get_item(name)? else {
            let known: Vec<String> = dict.keys().iter().map(|key| key.to_string()).collect();
            let text = format!("column {name:?} is missing; got {}", known.join(", "));
            return Err(spec_error(py, text));
        };
        Ok(value)
    }

    /// What a dict has under the name, as an array with a value for each place of its first axis.
    fn values<'py>(&self, py: Python<'py>, dict: &Bound<'py, PyDict>) -> PyResult<Values<'py>> {
        self.array(py, self.given(py, dict)?)
    }

    /// A value as an array with a value for each place of its first axis.
    fn array<'py>(&self, py: Python<'py>, value: Bound<'py, PyAny>) -> PyResult<Values<'py>> {
        let descr = self.descr.bind(py);
        let fits = |value: &Bound<'py, PyAny>| {
            Header::of(value).is_some_and(|header| {
                self.fits(header.shape()) && header.is_c_contiguous() && header.has_dtype(descr)
            })
        };
        let array = if fits(&value) { value } else { self.converted(py, &value)? };
        let len = Header::of(&array).and_then(|header| header.shape().first().copied());
        Ok(Values { array, len: len.unwrap_or(0), size: self.size })
    }

    /// Whether an array of this shape has values of ours along its first axis.
    fn fits(&self, shape: &[usize]) -> bool {
        // Of few axes: a call that compares memory costs more.
        shape.get(1..).is_some_and(|rest| rest.iter().eq(&self.shape))
    }

    /// Another array with the same values, if the dtype loses none of them.
    fn converted<'py>(
        &self,
        py: Python<'py>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (name, descr) = (self.name.bind(py), self.descr.bind(py));
        let numpy = py.import("numpy")?;
        // Python numbers have no dtype of their own, so that of a list is numpy's guess.
        let of_numbers = value.getattr_opt("dtype")?.is_none();
        let array = match of_numbers {
            true => numpy.call_method1("asarray", (value,)),
            false => readable(value),
        };
        let array = array.map_err(|error| match is_ours(py, &error) {
            true => error,
            false => {
                let class = value.get_type().name().map_or("?".into(), |name| name.to_string());
                let text = format!("column {name:?}: a {class} can't be read as an array: {error}");
                spec_error(py, text)
            }
        })?;
        let own = array.getattr("dtype")?;
        let shape: SmallVec<[usize; 4]> = array.getattr("shape")?.extract::<Vec<_>>()?.into();
        // An empty list says nothing about its dtype and its other axes.
        if of_numbers && shape[..] == [0] {
            let shape = [&[0][..], &self.shape].concat();
            return numpy.call_method1("empty", (PyTuple::new(py, shape)?, descr));
        }
        if !self.fits(&shape) {
            let got = array.getattr("shape")?;
            let axes: Vec<String> = self.shape.iter().map(|axis| format!(", {axis}")).collect();
            let text = match axes.is_empty() {
                true => {
                    format!("column {name:?}: expected one axis, that of tokens; got shape {got}")
                }
                false => {
                    let axes = axes.concat();
                    format!("column {name:?}: expected shape (tokens{axes}), got {got}")
                }
            };
            return Err(spec_error(py, text));
        }
        if let Some(narrow) = self.narrowed(&array, &shape) {
            return narrow;
        }
        let kind = |descr: &Bound<'py, PyAny>| descr.getattr("kind")?.extract::<String>();
        let (from, to) = (kind(&own)?, kind(descr)?);
        let casts = |how: &str| -> PyResult<bool> {
            numpy.call_method1("can_cast", (&own, descr, how))?.extract()
        };
        let converted = || numpy.call_method1("ascontiguousarray", (&array, descr));
        let is_whole = |kind: &str| matches!(kind, "i" | "u");
        if casts("safe")? || (of_numbers && from == "f" && casts("same_kind")?) {
            // Floats of a list are rounded as numpy rounds them.
            return converted();
        }
        if is_whole(&from) && (of_numbers || is_whole(&to)) {
            let converted = converted()?;
            let equal = array.call_method1("__eq__", (&converted,))?;
            if equal.call_method0("all")?.extract()? {
                return Ok(converted);
            }
            let at = numpy.call_method1("argmin", (&equal,))?;
            let at = numpy.call_method1("unravel_index", (at, array.getattr("shape")?))?;
            let (got, place) = (array.get_item(&at)?, at.extract::<Vec<usize>>()?);
            let place: Vec<String> = place.iter().map(usize::to_string).collect();
            let text = format!(
                "column {name:?}: expected values that fit {descr}, got {got} at [{}]",
                place.join(", ")
            );
            return Err(spec_error(py, text));
        }
        let text = format!("column {name:?}: expected dtype {descr}, got {own}");
        Err(spec_error(py, text))
    }

    /// The bytes of a list of numbers that need no more than a look; `None` for others, which numpy looks at.
    fn plain_numbers(&self, py: Python<'_>, values: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
        let (values, descr) = (values.cast::<PyList>().ok()?, self.descr.bind(py));
        let (kind, size) = (descr.kind(), self.size);
        let mut out = Vec::with_capacity(values.len() * size);
        for value in values.iter() {
            if let Some(bytes) = scalar_bytes(&value, descr) {
                out.extend_from_slice(&bytes[..size]);
                continue;
            }
            let number = match kind {
                b'f' if value.is_exact_instance_of::<PyFloat>() => value.extract::<f64>().ok()?,
                // Whole numbers up to here are floats of either size.
                b'f' | b'i' if value.is_exact_instance_of::<PyInt>() => {
                    let number = value.extract::<i32>().ok()?;
                    let is_small = number.unsigned_abs() < 1 << 24;
                    (is_small || size == 8).then_some(f64::from(number))?
                }
                _ => return None,
            };
            match (kind, size) {
                (b'f', 4) => out.extend_from_slice(&(number as f32).to_ne_bytes()),
                (b'f', 8) => out.extend_from_slice(&number.to_ne_bytes()),
                (b'i', 4) => out.extend_from_slice(&(number as i32).to_ne_bytes()),
                (b'i', 8) => out.extend_from_slice(&(number as i64).to_ne_bytes()),
                _ => return None,
            }
        }
        Some(out)
    }

    /// Token ids as most libraries have them, as most columns do: int64 as int32, in one pass. `None` for anything
    /// else, and if one does not fit.
    fn narrowed<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        shape: &[usize],
    ) -> Option<PyResult<Bound<'py, PyAny>>> {
        let header = Header::of(array).filter(Header::is_c_contiguous)?;
        if self.dtype != Dtype::Int(4) || !header.data().addr().is_multiple_of(align_of::<i64>()) {
            return None;
        }
        let values = array.cast::<PyArrayDyn<i64>>().ok()?.try_readonly().ok()?;
        let values = values.as_slice().ok()?;
        let lost = |lost: i64, value: &i64| lost | (*value ^ i64::from(*value as i32));
        if values.iter().fold(0, lost) != 0 {
            return None;
        }
        let narrow = values.iter().map(|value| *value as i32).collect();
        let narrow = numpy::PyArray1::from_vec(array.py(), narrow);
        Some(narrow.reshape(shape).map(Bound::into_any))
    }

    /// The bytes of a number under the name.
    fn scalar(&self, py: Python<'_>, dict: &Bound<'_, PyDict>, out: &mut Vec<u8>) -> PyResult<()> {
        let (name, descr) = (self.name.bind(py), self.descr.bind(py));
        let Some(value) = dict.get_item(name)? else {
            let known: Vec<String> = dict.keys().iter().map(|key| key.to_string()).collect();
            let text = format!("field {name:?} is missing; got {}", known.join(", "));
            return Err(spec_error(py, text));
        };
        if let Some(bytes) = scalar_bytes(&value, descr) {
            out.extend_from_slice(&bytes[..self.size]);
            return Ok(());
        }
        let numpy = py.import("numpy")?;
        // Numbers are read the shorter way, which tensors of some kinds do not have.
        let array = numpy.call_method1("asarray", (&value,)).or_else(|_| readable(&value))?;
        let own = array.getattr("dtype")?;
        let is_number = array.getattr("ndim")?.extract::<usize>()? == 0;
        let casts: bool = numpy.call_method1("can_cast", (&own, descr, "same_kind"))?.extract()?;
        let kind: String = own.getattr("kind")?.extract()?;
        let target: String = descr.getattr("kind")?.extract()?;
        if !is_number || !(casts || (kind == "i" && target == "u") || (kind == "b")) {
            let shape = array.getattr("shape")?;
            let text = format!("field {name:?}: expected a {descr}, got {own} of shape {shape}");
            return Err(spec_error(py, text));
        }
        // The dtype itself refuses a number that it can't hold.
        let cast = descr.getattr("type")?.call1((&value,)).or_else(|_| {
            numpy.call_method1("asarray", (&array, descr))?.call_method1("__getitem__", ((),))
        })?;
        let bytes = cast.call_method0("tobytes")?;
        let bytes = bytes.cast::<PyBytes>()?.as_bytes();
        if bytes.len() != self.size {
            let text = format!("field {name:?}: expected a {descr}, got {value}");
            return Err(spec_error(py, text));
        }
        out.extend_from_slice(bytes);
        Ok(())
    }
}

/// An array, a tensor or anything else with a dtype of its own, as an array.
fn readable<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Ok(as_array(&on_host(value)?)?.into_any())
}

/// The versions of so many tokens: one of all, or one of each.
fn runs(
    py: Python<'_>,
    versions: &Bound<'_, PyAny>,
    tokens: usize,
) -> PyResult<SmallVec<[Run; 1]>> {
    match versions.extract::<i64>() {
        Ok(version) => Ok(runs_of_one(version, tokens)),
        Err(_) => Ok(runs_of_each(&versions_of_each(py, versions, tokens)?)),
    }
}

fn runs_of_one(version: i64, tokens: usize) -> SmallVec<[Run; 1]> {
    let tokens = tokens as u32;
    Some(Run { version, tokens }).filter(|_| tokens > 0).into_iter().collect()
}

fn runs_of_each(versions: &[i128]) -> SmallVec<[Run; 1]> {
    let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
    for version in versions {
        let version = i64::try_from(*version).unwrap_or(i64::MAX);
        match runs.last_mut() {
            Some(Run { version: last, tokens }) if *last == version => *tokens += 1,
            _ => runs.push(Run { version, tokens: 1 }),
        }
    }
    runs
}

/// A version of each of so many tokens.
fn versions_of_each(
    py: Python<'_>,
    versions: &Bound<'_, PyAny>,
    tokens: usize,
) -> PyResult<Vec<i128>> {
    let versions = index_numbers(versions)?;
    if versions.len() != tokens {
        let got = versions.len();
        let text = format!("versions: expected one, or one of each of {tokens} tokens; got {got}");
        return Err(spec_error(py, text));
    }
    Ok(versions)
}

/// The place of bytes among those that differ. Those of which a few bytes are alike are compared with the last ones of
/// these only, so that it takes no time that grows with their number.
fn place_of<'py>(
    distinct: &mut Vec<Bound<'py, PyBytes>>,
    alike: &mut HashMap<(usize, [u8; 32]), usize>,
    blob: Bound<'py, PyBytes>,
) -> usize {
    let bytes = blob.as_bytes();
    let mut few = [0; 32];
    let step = (bytes.len() / few.len()).max(1);
    few.iter_mut().zip(bytes.iter().rev().step_by(step)).for_each(|(to, byte)| *to = *byte);
    match alike.get(&(bytes.len(), few)) {
        Some(place) if distinct[*place].as_bytes() == bytes => *place,
        _ => {
            alike.insert((bytes.len(), few), distinct.len());
            distinct.push(blob);
            distinct.len() - 1
        }
    }
}

/// The columns or fields that a dict leaves out, of those that it may: a bit for each place.
fn absent(py: Python<'_>, known: &[Named], late: u64, dict: &Bound<'_, PyDict>) -> PyResult<u64> {
    let mut absent = 0;
    if late != 0 {
        for (at, named) in known.iter().enumerate() {
            if late >> at & 1 == 1 && !dict.contains(named.name.bind(py))? {
                absent |= 1 << at;
            }
        }
    }
    Ok(absent)
}

/// How many tokens each item has, of so many in all.
fn whole_lengths(py: Python<'_>, lengths: &Bound<'_, PyAny>, len: usize) -> PyResult<Vec<usize>> {
    let lengths = index_numbers(lengths)?;
    let whole = |length: &i128| usize::try_from(*length).ok().filter(|one| *one <= len);
    let lengths: Option<Vec<usize>> = lengths.iter().map(whole).collect();
    let total = lengths.as_ref().map(|lengths| lengths.iter().sum::<usize>());
    let (Some(lengths), Some(total)) = (lengths, total) else {
        return Err(spec_error(py, format!("lengths: each must be from 0 to {len}")));
    };
    if total != len {
        let text = format!("lengths: expected a sum of {len}, the tokens; got {total}");
        return Err(spec_error(py, text));
    }
    Ok(lengths)
}

/// The versions of items: one of all, or one of each token of them all.
fn runs_flat(
    py: Python<'_>,
    versions: &Bound<'_, PyAny>,
    lengths: &[usize],
) -> PyResult<Vec<SmallVec<[Run; 1]>>> {
    if let Ok(version) = versions.extract::<i64>() {
        return Ok(lengths.iter().map(|length| runs_of_one(version, *length)).collect());
    }
    let versions = versions_of_each(py, versions, lengths.iter().sum())?;
    let mut rest = versions.as_slice();
    let of_item = |length: &usize| {
        let (here, behind) = rest.split_at(*length);
        rest = behind;
        runs_of_each(here)
    };
    Ok(lengths.iter().map(of_item).collect())
}

/// The versions of items: one of all, or for each item one, or one of each of its tokens.
fn runs_apart(
    py: Python<'_>,
    versions: &Bound<'_, PyAny>,
    lengths: &[usize],
) -> PyResult<Vec<SmallVec<[Run; 1]>>> {
    if versions.extract::<i64>().is_ok() {
        return runs_flat(py, versions, lengths);
    }
    let given: Vec<Bound<'_, PyAny>> = versions.try_iter()?.collect::<PyResult<_>>()?;
    if given.len() != lengths.len() {
        let (wanted, got) = (lengths.len(), given.len());
        let text = format!("versions: expected one, or those of each of {wanted} items; got {got}");
        return Err(spec_error(py, text));
    }
    given.iter().zip(lengths).map(|(versions, length)| runs(py, versions, *length)).collect()
}

fn refuse_others(
    py: Python<'_>,
    what: &str,
    known: &[Named],
    dict: &Bound<'_, PyDict>,
) -> PyResult<()> {
    if dict.len() == known.len() {
        return Ok(());
    }
    for key in dict.keys() {
        let is_known = |named: &Named| key.eq(named.name.bind(py)).unwrap_or(false);
        if !known.iter().any(is_known) {
            let names: Vec<String> =
                known.iter().map(|named| named.name.bind(py).to_string()).collect();
            let text = format!("there is no {what} {key:?}; the table has {}", names.join(", "));
            return Err(spec_error(py, text));
        }
    }
    Ok(())
}

/// Copies so many values of each column from a place on, column after column; what is left of the room.
fn gather<'a>(
    columns: &[(Piece<'_>, usize)],
    start: usize,
    count: usize,
    mut to: &'a mut [u8],
) -> &'a mut [u8] {
    for (column, size) in columns {
        let (here, behind) = to.split_at_mut(count * size);
        column.copy(start * size, here);
        to = behind;
    }
    to
}

fn gathered(columns: &[(Piece<'_>, usize)], start: usize, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; columns.iter().map(|(_, size)| count * size).sum()];
    gather(columns, start, count, &mut bytes);
    bytes
}

fn pieces<'a>(all: &'a [Values<'_>]) -> Pieces<'a> {
    all.iter().map(|values| (values.piece(), values.size)).collect()
}

/// Whole items in arrays, looked at and not copied yet.
pub struct Flat<'py> {
    /// An array for each column; or, if they come apart, for each item one after the other.
    columns: Vec<Values<'py>>,
    /// How many columns there are, if each item has arrays of its own.
    apart: Option<usize>,
    /// The fields of each item, one item after the other.
    fields: Vec<u8>,
    /// What is left out.
    absent: Late,
    lengths: Vec<usize>,
    runs: Vec<SmallVec<[Run; 1]>>,
    /// Of each item, or empty if none has any: names, and places among the following.
    blobs: Vec<Vec<(String, usize)>>,
    /// The blobs in the order in which they come, those that are alike once.
    distinct: Vec<Bound<'py, PyBytes>>,
}

/// The same while no Python code runs.
pub struct Still<'a> {
    columns: Pieces<'a>,
    apart: Option<usize>,
    fields: &'a [u8],
    absent: Late,
    lengths: &'a [usize],
    runs: &'a [SmallVec<[Run; 1]>],
    blobs: &'a [Vec<(String, usize)>],
    distinct: Vec<&'a [u8]>,
}

impl Flat<'_> {
    /// How many items.
    pub fn count(&self) -> usize {
        self.lengths.len()
    }

    /// How many bytes their tokens and blobs have.
    pub fn bytes(&self) -> usize {
        let blobs = self.distinct.iter().map(|blob| blob.as_bytes().len());
        self.columns.iter().map(|values| values.len * values.size).sum::<usize>()
            + blobs.sum::<usize>()
    }

    /// Whether the names of its blobs may be sent without being looked at.
    pub fn has_short_names(&self) -> bool {
        self.blobs.iter().flatten().all(|(name, _)| name.len() <= MAX_COLUMN_NAME)
    }

    /// For a copy that is made before this thread runs Python code again.
    pub fn still(&self) -> Still<'_> {
        // The objects are kept by `self`, and their bytes never change.
        let distinct = self.distinct.iter().map(|blob| blob.as_bytes()).collect();
        let Self { apart, fields, absent, lengths, runs, blobs, .. } = self;
        let (columns, apart, absent) = (pieces(&self.columns), *apart, *absent);
        Still { columns, apart, fields, absent, lengths, runs, blobs, distinct }
    }
}

impl<'a> Still<'a> {
    /// The fields of an item.
    fn fields_of(&self, at: usize) -> &'a [u8] {
        let size = self.fields.len().checked_div(self.lengths.len()).unwrap_or(0);
        self.fields.get(at * size..(at + 1) * size).unwrap_or_default()
    }

    /// The columns that have the tokens of an item, and where in them it begins, if they are those of all items and
    /// so many tokens are before it.
    fn columns_of(&self, at: usize, before: usize) -> (&[(Piece<'a>, usize)], usize) {
        match self.apart {
            Some(count) => (&self.columns[at * count..(at + 1) * count], 0),
            None => (&self.columns, before),
        }
    }

    /// The columns that an item of so many tokens lacks.
    fn absent_of(&self, length: usize) -> u64 {
        if length == 0 { 0 } else { self.absent.columns }
    }

    fn blobs_of(&self, at: usize) -> &'a [(String, usize)] {
        self.blobs.get(at).map_or(&[], Vec::as_slice)
    }

    /// The items, with memory of their own.
    pub fn owned(&self) -> Vec<(Segment, Finish)> {
        let distinct: Vec<Blob> =
            self.distinct.iter().map(|blob| Arc::new(blob.to_vec())).collect();
        let mut start = 0;
        let item = |(at, (length, runs)): (usize, (&usize, &SmallVec<[Run; 1]>))| {
            let (columns, from) = self.columns_of(at, start);
            let bytes = gathered(columns, from, *length);
            start += length;
            let blob =
                |(name, place): &(String, usize)| (name.clone(), Arc::clone(&distinct[*place]));
            let blobs = self.blobs_of(at).iter().map(blob).collect();
            let (tokens, fields) = (*length as u32, self.fields_of(at).to_vec());
            let absent = self.absent_of(*length);
            let segment = Segment { runs: runs.clone(), tokens, bytes, absent };
            (segment, Finish { fields, absent: self.absent.fields, blobs })
        };
        self.lengths.iter().zip(self.runs).enumerate().map(item).collect()
    }

    /// The heads of changes that bring the items, of which there is one at least, from a place in the group on.
    pub fn heads(&self, hold: Hold, first: u32, priority: f64) -> Vec<u8> {
        let row: usize = self.columns_of(0, 0).0.iter().map(|(_, size)| size).sum();
        // Less than what comes before the fields, with one version.
        let mut out = Vec::with_capacity(self.lengths.len() * 64 + self.fields.len());
        let mut sent = 0;
        for (at, (length, runs)) in self.lengths.iter().zip(self.runs).enumerate() {
            let blobs = self.blobs_of(at).iter().map(|(name, place)| {
                let head = match *place < sent {
                    true => BlobHead::Again(*place as u32),
                    false => BlobHead::Bytes(self.distinct[*place].len() as u32),
                };
                sent = sent.max(place + 1);
                (name.as_str(), head)
            });
            let blobs: SmallVec<[(&str, BlobHead); 2]> = blobs.collect();
            AppendHead {
                hold,
                item: first + at as u32,
                sequence: 0,
                priority,
                tokens: *length as u32,
                bytes: (length * row) as u32,
                absent: self.absent_of(*length),
                runs,
                finish: Some(((self.fields_of(at), self.absent.fields), &blobs)),
            }
            .encode(&mut out);
        }
        out
    }

    /// Their tokens and blobs, as such heads name them.
    pub fn fill(&self, mut to: &mut [u8]) {
        let (mut start, mut sent) = (0, 0);
        for (at, length) in self.lengths.iter().enumerate() {
            let (columns, from) = self.columns_of(at, start);
            to = gather(columns, from, *length, to);
            start += length;
            for (_, place) in self.blobs_of(at) {
                if *place < sent {
                    continue;
                }
                let (here, behind) = to.split_at_mut(self.distinct[*place].len());
                here.copy_from_slice(self.distinct[*place]);
                (to, sent) = (behind, place + 1);
            }
        }
    }
}

impl Columns {
    pub fn new(py: Python<'_>, config: &RolloutConfig) -> PyResult<Self> {
        let schema = &config.schema;
        let (columns, fields) = (Named::all(py, &schema.columns)?, Named::all(py, &schema.fields)?);
        Ok(Self { columns, fields, schema: schema.clone() })
    }

    /// The columns that a dict leaves out: a bit for each place.
    fn absent_columns(&self, py: Python<'_>, dict: &Bound<'_, PyDict>) -> PyResult<u64> {
        absent(py, &self.columns, self.schema.late.columns, dict)
    }

    /// The columns that are not left out.
    fn present(&self, absent: u64) -> impl Iterator<Item = &Named> + Clone {
        let columns = self.columns.iter().enumerate();
        columns.filter(move |(at, _)| absent >> at & 1 == 0).map(|(_, named)| named)
    }

    fn values<'py>(
        &self,
        py: Python<'py>,
        dict: &Bound<'py, PyDict>,
        absent: u64,
    ) -> PyResult<(Vec<Values<'py>>, usize)> {
        let present = self.present(absent);
        let values: Vec<Values<'_>> =
            present.clone().map(|named| named.values(py, dict)).collect::<PyResult<_>>()?;
        refuse_others(py, "column", &self.columns, dict)?;
        if values.is_empty() {
            return Err(spec_error(py, "columns: expected at least one, got none".to_owned()));
        }
        let len = values.first().map_or(0, |values| values.len);
        for (named, values) in present.clone().zip(&values) {
            if values.len != len {
                let (name, got) = (named.name.bind(py), values.len);
                let first = present.clone().next().map(|named| named.name.bind(py).to_string());
                let text = format!(
                    "column {name:?}: expected {len} values, as many as {:?} has; got {got}",
                    first.unwrap_or_default()
                );
                return Err(spec_error(py, text));
            }
        }
        Ok((values, len))
    }

    /// Tokens with a value in every column; none, if no columns are given.
    pub fn segment(
        &self,
        py: Python<'_>,
        columns: Option<&Bound<'_, PyDict>>,
        versions: &Bound<'_, PyAny>,
    ) -> PyResult<Segment> {
        let Some(columns) = columns else { return Ok(Segment::default()) };
        let absent = self.absent_columns(py, columns)?;
        let (values, len) = self.values(py, columns, absent)?;
        let runs = runs(py, versions, len)?;
        let total = values.iter().map(|values| values.len * values.size).sum();
        let pieces = pieces(&values);
        let bytes = copying(py, total, || gathered(&pieces, 0, len));
        // No tokens lack nothing.
        Ok(Segment { runs, tokens: len as u32, bytes, absent: if len == 0 { 0 } else { absent } })
    }

    /// The end of an item.
    pub fn finish(
        &self,
        py: Python<'_>,
        fields: &Bound<'_, PyDict>,
        blobs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Finish> {
        let mut bytes = Vec::new();
        let absent = absent(py, &self.fields, self.schema.late.fields, fields)?;
        for (at, named) in self.fields.iter().enumerate() {
            match absent >> at & 1 {
                0 => named.scalar(py, fields, &mut bytes)?,
                _ => bytes.resize(bytes.len() + named.size, 0),
            }
        }
        refuse_others(py, "field", &self.fields, fields)?;
        let mut named = Vec::new();
        for (name, blob) in blobs.into_iter().flat_map(|blobs| blobs.iter()) {
            let bytes = blob.cast::<PyBytes>()?.as_bytes();
            named.push((name.extract()?, Arc::new(copying(py, bytes.len(), || bytes.to_vec()))));
        }
        Ok(Finish { fields: bytes, absent, blobs: named })
    }

    /// Values of whole columns and of fields.
    pub fn updates(
        &self,
        py: Python<'_>,
        columns: Option<&Bound<'_, PyDict>>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Updates> {
        let mut updates = Updates::default();
        if let Some(columns) = columns.filter(|columns| !columns.is_empty()) {
            let absent = absent(py, &self.columns, u64::MAX, columns)?;
            let (values, len) = self.values(py, columns, absent)?;
            let places = (0..).zip(&self.columns).filter(|(at, _)| absent >> at & 1 == 0);
            for ((column, _), values) in places.zip(&values) {
                let piece = [(values.piece(), values.size)];
                let bytes = copying(py, len * values.size, || gathered(&piece, 0, len));
                let (tokens, bytes) = (len as u32, Arc::new(bytes));
                updates.columns.push(ColumnUpdate { column, tokens, bytes });
            }
        }
        if let Some(fields) = fields {
            let absent = absent(py, &self.fields, u64::MAX, fields)?;
            for (place, named) in (0..).zip(&self.fields).filter(|(at, _)| absent >> at & 1 == 0) {
                let mut bytes = Vec::with_capacity(named.size);
                named.scalar(py, fields, &mut bytes)?;
                updates.fields.push((place, bytes));
            }
            refuse_others(py, "field", &self.fields, fields)?;
        }
        if updates == Updates::default() {
            return Err(spec_error(
                py,
                "update: expected a column or a field, got none".to_owned(),
            ));
        }
        Ok(updates)
    }

    /// The columns of items that have arrays of their own: those of the first item, then those of the next; and how
    /// many tokens each item has.
    fn values_apart<'py>(
        &self,
        py: Python<'py>,
        dict: &Bound<'py, PyDict>,
        absent: u64,
    ) -> PyResult<(Vec<Values<'py>>, Vec<usize>)> {
        let present = self.present(absent);
        let mut by_column = Vec::with_capacity(self.columns.len());
        for named in present.clone() {
            let name = named.name.bind(py);
            let given = named.given(py, dict)?;
            let items = given.try_iter().map_err(|_| {
                let text = format!("column {name:?}: expected an array for each item; got {given}");
                spec_error(py, text)
            })?;
            let items = items.map(|item| named.array(py, item?));
            by_column.push(items.collect::<PyResult<Vec<Values<'_>>>>()?);
        }
        refuse_others(py, "column", &self.columns, dict)?;
        let lengths: Vec<usize> =
            by_column.first().into_iter().flatten().map(|values| values.len).collect();
        for (named, column) in present.zip(&by_column) {
            let name = named.name.bind(py);
            if column.len() != lengths.len() {
                let (wanted, got) = (lengths.len(), column.len());
                let text = format!("column {name:?}: expected {wanted} items, got {got}");
                return Err(spec_error(py, text));
            }
            let mut items = column.iter().zip(&lengths).enumerate();
            if let Some((item, (values, length))) =
                items.find(|(_, (values, length))| values.len != **length)
            {
                let got = values.len;
                let text = format!(
                    "column {name:?}: expected {length} values of item {item}, as many as the first column \
                     has; got {got}"
                );
                return Err(spec_error(py, text));
            }
        }
        if by_column.is_empty() {
            return Err(spec_error(py, "columns: expected at least one, got none".to_owned()));
        }
        let mut columns: Vec<_> = by_column.into_iter().map(Vec::into_iter).collect();
        let mut values = Vec::with_capacity(lengths.len() * columns.len());
        for _ in &lengths {
            values.extend(columns.iter_mut().filter_map(Iterator::next));
        }
        Ok((values, lengths))
    }

    /// The fields of so many items, one item after the other, with zeros for those that are left out.
    fn rows(
        &self,
        py: Python<'_>,
        fields: &Bound<'_, PyDict>,
        absent: u64,
        items: usize,
    ) -> PyResult<Vec<u8>> {
        let row: usize = self.fields.iter().map(|named| named.size).sum();
        let mut rows = vec![0; row * items];
        let mut before = 0;
        for (at, named) in self.fields.iter().enumerate() {
            let size = named.size;
            if absent >> at & 1 == 1 {
                before += size;
                continue;
            }
            let given = named.given(py, fields)?;
            let bytes = match named.plain_numbers(py, &given) {
                Some(bytes) => bytes,
                None => {
                    let values = named.array(py, given)?;
                    let mut bytes = vec![0; values.len * size];
                    values.piece().copy(0, &mut bytes);
                    bytes
                }
            };
            if bytes.len() != items * size {
                let (name, got) = (named.name.bind(py), bytes.len() / size.max(1));
                let text = format!("field {name:?}: expected {items} values, got {got}");
                return Err(spec_error(py, text));
            }
            for (row, value) in rows.chunks_exact_mut(row).zip(bytes.chunks_exact(size)) {
                row[before..before + size].copy_from_slice(value);
            }
            before += size;
        }
        refuse_others(py, "field", &self.fields, fields)?;
        Ok(rows)
    }

    /// Whole items, whose tokens follow each other in the arrays; without lengths, each column has an array for each
    /// item. Nothing of the tokens and blobs is copied yet.
    pub fn flat<'py>(
        &self,
        py: Python<'py>,
        lengths: Option<&Bound<'_, PyAny>>,
        columns: &Bound<'py, PyDict>,
        versions: &Bound<'_, PyAny>,
        fields: &Bound<'py, PyDict>,
        blobs: Option<Vec<Option<Bound<'py, PyDict>>>>,
    ) -> PyResult<Flat<'py>> {
        let absent_columns = self.absent_columns(py, columns)?;
        let (columns, lengths, apart) = match lengths {
            Some(lengths) => {
                let (values, len) = self.values(py, columns, absent_columns)?;
                (values, whole_lengths(py, lengths, len)?, None)
            }
            None => {
                let (values, lengths) = self.values_apart(py, columns, absent_columns)?;
                (values, lengths, Some(self.present(absent_columns).count()))
            }
        };
        let runs = match apart {
            Some(_) => runs_apart(py, versions, &lengths)?,
            None => runs_flat(py, versions, &lengths)?,
        };
        let absent_fields = absent(py, &self.fields, self.schema.late.fields, fields)?;
        let fields = self.rows(py, fields, absent_fields, lengths.len())?;
        let absent = Late { columns: absent_columns, fields: absent_fields };
        let blobs = blobs.unwrap_or_default();
        if !blobs.is_empty() && blobs.len() != lengths.len() {
            let (wanted, got) = (lengths.len(), blobs.len());
            let text =
                format!("blobs: expected a mapping or None for each of {wanted} items, got {got}");
            return Err(spec_error(py, text));
        }
        let (mut named, mut distinct) = (Vec::with_capacity(blobs.len()), Vec::new());
        let (mut objects, mut alike) = (HashMap::new(), HashMap::new());
        for of_item in blobs {
            let mut places = Vec::new();
            for (name, blob) in of_item.iter().flat_map(|blobs| blobs.iter()) {
                let blob = blob.cast_into::<PyBytes>()?;
                let place = match objects.get(&blob.as_ptr()) {
                    Some(place) => *place,
                    None => place_of(&mut distinct, &mut alike, blob.clone()),
                };
                objects.insert(blob.as_ptr(), place);
                places.push((name.extract()?, place));
            }
            named.push(places);
        }
        Ok(Flat { columns, apart, fields, absent, lengths, runs, blobs: named, distinct })
    }

    /// What is there of an item: its tokens by column, and their versions.
    pub fn of_item<'py>(&self, py: Python<'py>, item: &Item) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let missing = item.missing().columns;
        for (at, named) in self.columns.iter().enumerate() {
            if missing >> at & 1 == 1 {
                continue;
            }
            let axes = [&[item.tokens() as usize][..], &named.shape].concat();
            let shape = PyTuple::new(py, axes)?;
            let bytes = self.schema.of_item(item, at).collect::<Vec<_>>().concat();
            let array = array::owned(&bytes, named.descr.bind(py), &shape)?;
            dict.set_item(named.name.bind(py), array)?;
        }
        let versions: Vec<i64> = item
            .runs()
            .flat_map(|run| std::iter::repeat_n(run.version, run.tokens as usize))
            .collect();
        dict.set_item("versions", numpy::PyArray1::from_vec(py, versions))?;
        Ok(dict)
    }
}
