//! Hashes of states, and the longest beginning that a cache has.

use echoic_primitives::prefixes::{Index, state_hash as hash};
use numpy::{PyArray1, PyArrayDescrMethods, PyUntypedArray};
use pyo3::prelude::*;

use crate::array::Header;
use crate::error::{argument_error, dtype_error};
use crate::primitives::input::{Input, count, in_precision};
use crate::primitives::kind::Kind;
use crate::primitives::output::{detached, filled};
use crate::primitives::plain;

/// FNV-1a in 64 bits over the numbers of an array, as float64.
#[pyfunction]
pub fn state_hash(vec: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (input, _) = Input::leading("vec", vec)?;
    in_precision!(input.precision(), T => {
        let numbers = input.numbers::<T>();
        Ok(detached(vec.py(), numbers.len(), || hash(numbers)))
    })
}

/// [`state_hash`] of each row.
#[pyfunction]
pub fn state_hash_batch<'py>(states: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = states.py();
    let (input, _) = Input::leading("states", states)?;
    let Some(&count) = input.shape().first() else {
        return Err(argument_error(py, "`states` must have an axis of states, got a number"));
    };
    in_precision!(input.precision(), T => {
        let numbers = input.numbers::<T>();
        filled(py, &[count], Kind::Numpy, numbers.len(), |out| {
            let length = numbers.len() / count.max(1);
            for (at, out) in out.iter_mut().enumerate() {
                *out = hash(&numbers[at * length..(at + 1) * length]);
            }
        })
    })
}

/// The entry that has the longest beginning of a sequence, and how long it is.
#[pyfunction]
#[pyo3(signature = (sequence_hashes, cache_entries, min_prefix_len=1))]
pub fn prefix_match(
    sequence_hashes: &Bound<'_, PyAny>,
    cache_entries: &Bound<'_, PyAny>,
    min_prefix_len: i64,
) -> PyResult<(i64, i64)> {
    let hashes = Hashes::new("sequence_hashes", sequence_hashes)?;
    let shortest = count(sequence_hashes.py(), "min_prefix_len", min_prefix_len, 1)?;
    let index = Index::new(entries(cache_entries)?);
    Ok(found(&index, hashes.numbers(), shortest))
}

/// [`prefix_match`] of each sequence.
#[pyfunction]
#[pyo3(signature = (sequences, cache_entries, min_prefix_len=1))]
pub fn prefix_match_batch<'py>(
    sequences: &Bound<'py, PyAny>,
    cache_entries: &Bound<'py, PyAny>,
    min_prefix_len: i64,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = sequences.py();
    let sequences = sequences
        .try_iter()?
        .map(|sequence| Hashes::new("sequences", &sequence?))
        .collect::<PyResult<Vec<_>>>()?;
    let shortest = count(py, "min_prefix_len", min_prefix_len, 1)?;
    let index = Index::new(entries(cache_entries)?);
    let all = sequences.iter().map(|sequence| found(&index, sequence.numbers(), shortest));
    let (indices, lengths): (Vec<i64>, Vec<i64>) = all.unzip();
    let [indices, lengths] = [indices, lengths].map(|all| PyArray1::from_vec(py, all).into_any());
    Ok((indices, lengths))
}

fn found(index: &Index, hashes: &[u64], shortest: usize) -> (i64, i64) {
    match index.longest(hashes, shortest) {
        Some(found) => (found.entry, found.length as i64),
        None => (-1, 0),
    }
}

fn entries(cache_entries: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, i64)>> {
    cache_entries.extract().map_err(|_| {
        let text = "`cache_entries` must be a sequence of pairs (hash, index): hashes from 0 to \
                    2**64 - 1, indices that fit in 64 bits";
        dtype_error(cache_entries.py(), text)
    })
}

/// Hashes of one sequence: an array in one axis, or a sequence of Python's numbers.
enum Hashes<'py> {
    Array(Bound<'py, PyUntypedArray>),
    List(Vec<u64>),
}

impl<'py> Hashes<'py> {
    fn new(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let Some(header) = Header::of(object) else {
            // numpy would make floats of whole numbers that fit in no one type.
            return object.extract().map(Self::List).map_err(|_| {
                let text = format!("`{name}` must be hashes: whole numbers from 0 to 2**64 - 1");
                dtype_error(py, text)
            });
        };
        let (kind, shape) = (header.descr().kind(), header.shape());
        if shape.len() != 1 || !(matches!(kind, b'i' | b'u') || shape == [0]) {
            let text = format!(
                "`{name}` must be whole numbers in one axis, got {} in {}",
                header.descr(),
                shape.len()
            );
            return Err(dtype_error(py, text));
        }
        if kind == b'i' && shape != [0] && object.call_method0("min")?.lt(0)? {
            return Err(argument_error(py, format!("`{name}` must be at least 0")));
        }
        Ok(Self::Array(plain::readable::<u64>(object.cast()?)?))
    }

    /// The hashes.
    fn numbers(&self) -> &[u64] {
        match self {
            Self::Array(array) => plain::read(array).unwrap_or_default(),
            Self::List(list) => list,
        }
    }
}
