//! Arrays of an item as the bytes that a table keeps, and back.

use std::marker::PhantomData;

use echoic_replay::Dtype;
use echoic_replay::codec::Encode;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::codec::AppendHead;
use echoic_replay::rollouts::item::{Finish, Item, Run, Segment};
use echoic_replay::rollouts::ledger::Hold;
use numpy::{PyArrayDescr, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
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

    /// What a dict has under the name, as an array with a value for each place of its first axis.
    fn values<'py>(&self, py: Python<'py>, dict: &Bound<'py, PyDict>) -> PyResult<Values<'py>> {
        let name = self.name.bind(py);
        let Some(value) = dict.get_item(name)? else {
            let known: Vec<String> = dict.keys().iter().map(|key| key.to_string()).collect();
            let text = format!("column {name:?} is missing; got {}", known.join(", "));
            return Err(spec_error(py, text));
        };
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
    let mut runs = SmallVec::new();
    if let Ok(version) = versions.extract::<i64>() {
        if tokens > 0 {
            runs.push(Run { version, tokens: tokens as u32 });
        }
        return Ok(runs);
    }
    let versions = index_numbers(versions)?;
    if versions.len() != tokens {
        let got = versions.len();
        let text = format!("versions: expected one, or one of each of {tokens} tokens; got {got}");
        return Err(spec_error(py, text));
    }
    for version in versions {
        let version = i64::try_from(version).unwrap_or(i64::MAX);
        match runs.last_mut() {
            Some(Run { version: last, tokens }) if *last == version => *tokens += 1,
            _ => runs.push(Run { version, tokens: 1 }),
        }
    }
    Ok(runs)
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
    columns: Vec<Values<'py>>,
    fields: Vec<Values<'py>>,
    lengths: Vec<usize>,
    runs: Vec<SmallVec<[Run; 1]>>,
}

/// The same while no Python code runs.
pub struct Still<'a> {
    columns: Pieces<'a>,
    fields: Pieces<'a>,
    lengths: &'a [usize],
    runs: &'a [SmallVec<[Run; 1]>],
}

impl Flat<'_> {
    /// How many items.
    pub fn count(&self) -> usize {
        self.lengths.len()
    }

    /// How many bytes their tokens have.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|values| values.len * values.size).sum()
    }

    /// For a copy that is made before this thread runs Python code again.
    pub fn still(&self) -> Still<'_> {
        let (columns, fields) = (pieces(&self.columns), pieces(&self.fields));
        Still { columns, fields, lengths: &self.lengths, runs: &self.runs }
    }
}

impl Still<'_> {
    /// The items, with memory of their own.
    pub fn owned(&self) -> Vec<(Segment, Finish)> {
        let mut start = 0;
        let item = |(at, (length, runs)): (usize, (&usize, &SmallVec<[Run; 1]>))| {
            let bytes = gathered(&self.columns, start, *length);
            start += length;
            let fields = gathered(&self.fields, at, 1);
            let segment = Segment { runs: runs.clone(), tokens: *length as u32, bytes };
            (segment, Finish { fields, blobs: Vec::new() })
        };
        self.lengths.iter().zip(self.runs).enumerate().map(item).collect()
    }

    /// The heads of changes that bring the items, from a place in the group on.
    pub fn heads(&self, hold: Hold, first: u32, priority: f64) -> Vec<u8> {
        let row: usize = self.columns.iter().map(|(_, size)| size).sum();
        let mut fields: SmallVec<[u8; 32]> = SmallVec::new();
        fields.resize(self.fields.iter().map(|(_, size)| size).sum(), 0);
        // Less than what comes before the fields, with one version.
        let mut out = Vec::with_capacity(self.lengths.len() * (64 + fields.len()));
        for (at, (length, runs)) in self.lengths.iter().zip(self.runs).enumerate() {
            gather(&self.fields, at, 1, &mut fields);
            AppendHead {
                hold,
                item: first + at as u32,
                sequence: 0,
                priority,
                tokens: *length as u32,
                bytes: (length * row) as u32,
                runs,
                finish: Some((&fields, &[])),
            }
            .encode(&mut out);
        }
        out
    }

    /// Their tokens, as such heads name them.
    pub fn fill(&self, mut to: &mut [u8]) {
        let mut start = 0;
        for length in self.lengths {
            to = gather(&self.columns, start, *length, to);
            start += length;
        }
    }
}

impl Columns {
    pub fn new(py: Python<'_>, config: &RolloutConfig) -> PyResult<Self> {
        let schema = &config.schema;
        let (columns, fields) = (Named::all(py, &schema.columns)?, Named::all(py, &schema.fields)?);
        Ok(Self { columns, fields })
    }

    fn values<'py>(
        &self,
        py: Python<'py>,
        dict: &Bound<'py, PyDict>,
    ) -> PyResult<(Vec<Values<'py>>, usize)> {
        let values: Vec<Values<'_>> =
            self.columns.iter().map(|named| named.values(py, dict)).collect::<PyResult<_>>()?;
        refuse_others(py, "column", &self.columns, dict)?;
        let len = values.first().map_or(0, |values| values.len);
        for (named, values) in self.columns.iter().zip(&values) {
            if values.len != len {
                let (name, got) = (named.name.bind(py), values.len);
                let first = self.columns.first().map(|named| named.name.bind(py).to_string());
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
        let (values, len) = self.values(py, columns)?;
        let runs = runs(py, versions, len)?;
        let total = values.iter().map(|values| values.len * values.size).sum();
        let pieces = pieces(&values);
        let bytes = copying(py, total, || gathered(&pieces, 0, len));
        Ok(Segment { runs, tokens: len as u32, bytes })
    }

    /// The end of an item.
    pub fn finish(
        &self,
        py: Python<'_>,
        fields: &Bound<'_, PyDict>,
        blobs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Finish> {
        let mut bytes = Vec::new();
        for named in &self.fields {
            named.scalar(py, fields, &mut bytes)?;
        }
        refuse_others(py, "field", &self.fields, fields)?;
        let mut named = Vec::new();
        for (name, blob) in blobs.into_iter().flat_map(|blobs| blobs.iter()) {
            let bytes = blob.cast::<PyBytes>()?.as_bytes();
            named.push((name.extract()?, copying(py, bytes.len(), || bytes.to_vec())));
        }
        Ok(Finish { fields: bytes, blobs: named })
    }

    /// Whole items, whose tokens follow each other in the arrays. Nothing is copied yet.
    pub fn flat<'py>(
        &self,
        py: Python<'py>,
        lengths: &Bound<'_, PyAny>,
        columns: &Bound<'py, PyDict>,
        versions: &Bound<'_, PyAny>,
        fields: &Bound<'py, PyDict>,
    ) -> PyResult<Flat<'py>> {
        let lengths = index_numbers(lengths)?;
        let (values, len) = self.values(py, columns)?;
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
        let each = versions.extract::<i64>().is_err();
        let versions_of = |from: usize, to: usize| match each {
            true => versions.get_item(pyo3::types::PySlice::new(py, from as isize, to as isize, 1)),
            false => Ok(versions.clone()),
        };
        let of_fields: Vec<Values<'_>> =
            self.fields.iter().map(|named| named.values(py, fields)).collect::<PyResult<_>>()?;
        refuse_others(py, "field", &self.fields, fields)?;
        for (named, values) in self.fields.iter().zip(&of_fields) {
            if values.len != lengths.len() {
                let (name, wanted, got) = (named.name.bind(py), lengths.len(), values.len);
                let text = format!("field {name:?}: expected {wanted} values, got {got}");
                return Err(spec_error(py, text));
            }
        }
        let mut all_runs = Vec::with_capacity(lengths.len());
        let mut start = 0;
        for length in &lengths {
            all_runs.push(runs(py, &versions_of(start, start + length)?, *length)?);
            start += length;
        }
        Ok(Flat { columns: values, fields: of_fields, lengths, runs: all_runs })
    }

    /// What is there of an item: its tokens by column, and their versions.
    pub fn of_item<'py>(&self, py: Python<'py>, item: &Item) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let mut before = 0;
        for named in &self.columns {
            let axes = [&[item.tokens() as usize][..], &named.shape].concat();
            let shape = PyTuple::new(py, axes)?;
            let mut bytes = Vec::with_capacity(item.tokens() as usize * named.size);
            for segment in &item.segments {
                let tokens = segment.tokens as usize;
                let column = tokens * before..tokens * (before + named.size);
                bytes.extend_from_slice(segment.bytes.get(column).unwrap_or_default());
            }
            before += named.size;
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
