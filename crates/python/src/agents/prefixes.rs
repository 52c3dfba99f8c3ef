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

/// FNV-1a in 64 bits over the numbers of an array, in C order.
///
/// Numbers are hashed as float64, so equal numbers have one hash in whatever precision they are
/// stored; so have both zeros, and all NaN. Shapes are not hashed.
///
/// Hashes can collide: with a million of them, in one of 40 million cases. Compare what was hashed,
/// too, before anything is taken for the same.
///
/// Raises:
///     DtypeError: Not real numbers, or not on the CPU.
///
/// Examples:
///     >>> import numpy as np
///     >>> from echoic.agents.kernels import state_hash
///     >>> state_hash([0.5, 1.0]) == state_hash(np.float32([0.5, 1.0]))
///     True
#[pyfunction]
pub fn state_hash(vec: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (input, _) = Input::leading("vec", vec)?;
    in_precision!(input.precision(), T => {
        let numbers = input.numbers::<T>();
        Ok(detached(vec.py(), numbers.len(), || hash(numbers)))
    })
}

/// :func:`state_hash` of each row of ``(n, ...)``: uint64 ``(n,)``.
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

/// The entry of a cache that has the longest beginning of a sequence, and how long that is.
///
/// Of ``n`` steps at most ``n - 1`` are reused: the last has to be run to know what follows
/// it. An entry that has the whole sequence therefore gives ``n - 1``.
///
/// Args:
///     sequence_hashes: ``sequence_hashes[i]`` is the hash of the first ``i + 1`` steps.
///     cache_entries: Pairs of the hash of a beginning and the index of its entry. Of several with
///         one hash, the first counts.
///     min_prefix_len: Shorter beginnings are not worth it.
///
/// Returns:
///     ``(index, length)``, or ``(-1, 0)``.
///
/// Raises:
///     ArgumentError: ``min_prefix_len`` is below 1, or a hash negative.
///     DtypeError: Hashes or entries are something else.
///
/// Examples:
///     >>> from echoic.agents.kernels import prefix_match
///     >>> prefix_match([10, 20, 30], [(20, 0), (10, 1)])
///     (0, 2)
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

/// :func:`prefix_match` of each of several sequences, in a cache that is read once.
///
/// Returns:
///     ``(indices, lengths)``, int64, each as long as ``sequences``.
///
/// Examples:
///     >>> from echoic.agents.kernels import prefix_match_batch
///     >>> prefix_match_batch([[10, 20, 30], [7, 8]], [(20, 0), (10, 1)])
///     (array([ 0, -1]), array([2, 0]))
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
