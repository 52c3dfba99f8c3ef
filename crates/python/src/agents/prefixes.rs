//! Hashes of states, and the longest beginning that a cache has.

use echoic_primitives::prefixes::{Index, state_hash as hash};
use pyo3::prelude::*;

use super::whole::Hashes;
use crate::error::{argument_error, dtype_error};
use crate::primitives::input::{Input, Number, in_precision};
use crate::primitives::kind::Kind;
use crate::primitives::output::Output;
use crate::primitives::sequences::detached;

/// FNV-1a in 64 bits over the numbers of an array, as float64.
#[pyfunction]
pub fn state_hash(vec: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (input, _) = Input::leading("vec", vec)?;
    let mut out = [0];
    in_precision!(input.precision(), hash_in(vec.py(), &input, &mut out));
    Ok(out[0])
}

/// [`state_hash`] of each row.
#[pyfunction]
pub fn state_hash_batch<'py>(states: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = states.py();
    let (input, _) = Input::leading("states", states)?;
    let Some(count) = input.shape().first() else {
        return Err(argument_error(py, "`states` must have an axis of states, got a number"));
    };
    let mut result = Output::<u64>::new(py, &[*count], Kind::Numpy)?;
    in_precision!(input.precision(), hash_in(py, &input, result.numbers()));
    Ok(result.into_numpy())
}

fn hash_in<T: Number>(py: Python<'_>, input: &Input<'_>, out: &mut [u64]) {
    let numbers = input.numbers::<T>();
    let count = out.len().max(1);
    detached(py, numbers.len(), move || {
        let length = numbers.len() / count;
        for (at, out) in out.iter_mut().enumerate() {
            *out = hash(&numbers[at * length..(at + 1) * length]);
        }
    });
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
    let shortest = shortest(sequence_hashes.py(), min_prefix_len)?;
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
    let shortest = shortest(py, min_prefix_len)?;
    let index = Index::new(entries(cache_entries)?);
    let mut indices = Output::<i64>::new(py, &[sequences.len()], Kind::Numpy)?;
    let mut lengths = Output::<i64>::new(py, &[sequences.len()], Kind::Numpy)?;
    let results = indices.numbers().iter_mut().zip(lengths.numbers());
    for (sequence, (entry, length)) in sequences.iter().zip(results) {
        (*entry, *length) = found(&index, sequence.numbers(), shortest);
    }
    Ok((indices.into_numpy(), lengths.into_numpy()))
}

fn found(index: &Index, hashes: &[u64], shortest: usize) -> (i64, i64) {
    match index.longest(hashes, shortest) {
        Some(found) => (found.entry, found.length as i64),
        None => (-1, 0),
    }
}

fn shortest(py: Python<'_>, min_prefix_len: i64) -> PyResult<usize> {
    usize::try_from(min_prefix_len).ok().filter(|length| *length > 0).ok_or_else(|| {
        let text = format!("`min_prefix_len` must be at least 1, got {min_prefix_len}");
        argument_error(py, text)
    })
}

fn entries(cache_entries: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, i64)>> {
    cache_entries.extract().map_err(|_| {
        let text = "`cache_entries` must be a sequence of pairs (hash, index): hashes from 0 to \
                    2**64 - 1, indices that fit in 64 bits";
        dtype_error(cache_entries.py(), text)
    })
}
