//! Sequences in rows, and on ranks.

use echoic_primitives::packing::{Cost, Method, MicroBatchError, Packing, Shares, balance, pack};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::input::{choice, count, text_of, whole_numbers};
use super::kind::{Kind, numpy};
use super::output::{Output, detached, filled};
use super::plain::{self, Plain};
use crate::error::{argument_error, dtype_error};

const METHODS: [(&str, Method); 3] = [
    ("first_fit_decreasing", Method::FirstFitDecreasing),
    ("first_fit", Method::FirstFit),
    ("next_fit", Method::NextFit),
];

const COSTS: [(&str, Cost); 2] = [("tokens", Cost::Tokens), ("squared", Cost::Squared)];

type Array<'py> = Bound<'py, PyAny>;

/// Put sequences of different lengths into rows of one length.
///
/// Takes ``O(n log n)`` time to find the rows, however many there are.
///
/// Args:
///     sequences: A list of arrays of tokens (whole numbers), or the lengths of sequences.
///     max_len: The length of a row.
///     method: ``"first_fit_decreasing"``: the longest first, each into the first row with room.
///         ``"first_fit"``: in the order given. ``"next_fit"``: in the order given, and never into
///         an earlier row, so that rows keep the order.
///     segments: ``masks`` number the sequences of each row (1, 2, ...; 0 is padding) instead of
///         only saying where tokens are.
///     pad_token: What is where no token is.
///
/// Returns:
///     ``(packed, masks, positions)``, each of shape ``(rows, max_len)``. ``packed`` has the
///     tokens, in their dtype; for lengths it has, as int64, where each token is when the sequences
///     lie one after the other, so that ``tokens[packed]`` packs them (0 where ``masks`` is zero).
///     ``masks`` are booleans, or with ``segments`` int32. ``positions`` are int32, and begin with
///     0 at every sequence. Arrays of PyTorch and JAX give theirs.
///
/// Raises:
///     ArgumentError: A sequence is longer than ``max_len`` (none is cut), or has not one axis.
///     DtypeError: Tokens or lengths are not whole numbers.
///
/// rlox 1.2 takes only lists of uint32 arrays and returns a dictionary for each row.
///
/// Examples:
///     >>> from echoic.primitives import pack_sequences
///     >>> packed, masks, positions = pack_sequences([[7, 8, 9], [4, 5], [6]], 4, segments=True)
///     >>> packed
///     array([[7, 8, 9, 6],
///            [4, 5, 0, 0]])
///     >>> masks
///     array([[1, 1, 1, 2],
///            [1, 1, 0, 0]], dtype=int32)
///     >>> positions
///     array([[0, 1, 2, 0],
///            [0, 1, 0, 0]], dtype=int32)
///     >>> pack_sequences([3, 2, 1], 4)[0]
///     array([[0, 1, 2, 5],
///            [3, 4, 0, 0]])
#[pyfunction]
#[pyo3(signature = (
    sequences, max_len, *, method="first_fit_decreasing", segments=false, pad_token=0,
))]
pub fn pack_sequences<'py>(
    sequences: &Bound<'py, PyAny>,
    max_len: i64,
    method: &str,
    segments: bool,
    pad_token: i64,
) -> PyResult<(Array<'py>, Array<'py>, Array<'py>)> {
    let py = sequences.py();
    let request = Request {
        max_len: row_length(py, max_len)?,
        method: choice(py, "method", method, &METHODS)?,
        segments,
        pad_token,
    };
    match tokens(sequences)? {
        Some(tokens) => request.tokens(py, &tokens),
        None => {
            let kind = Kind::of(sequences)?;
            request.lengths(py, kind, &whole_numbers("sequences", sequences)?)
        }
    }
}

/// Say which row each sequence goes to, and where it starts there.
///
/// What :func:`pack_sequences` does before it writes anything.
///
/// Returns:
///     ``(rows, starts)``, int64, each as long as ``lengths``.
///
/// Raises:
///     ArgumentError: A sequence is longer than ``max_len``.
///     DtypeError: Lengths are not whole numbers.
///
/// Examples:
///     >>> from echoic.primitives import plan_packing
///     >>> plan_packing([3, 2, 1, 2], 4)
///     (array([0, 1, 0, 1]), array([0, 0, 3, 2]))
#[pyfunction]
#[pyo3(signature = (lengths, max_len, *, method="first_fit_decreasing"))]
pub fn plan_packing<'py>(
    lengths: &Bound<'py, PyAny>,
    max_len: i64,
    method: &str,
) -> PyResult<(Array<'py>, Array<'py>)> {
    let py = lengths.py();
    let (max_len, method) = (row_length(py, max_len)?, choice(py, "method", method, &METHODS)?);
    let kind = Kind::of(lengths)?;
    let lengths = whole_numbers("lengths", lengths)?;
    let packing = planned(py, &lengths, max_len, method)?;
    Ok((indices(py, &packing.rows, kind)?, indices(py, &packing.starts, kind)?))
}

/// Spread sequences over ranks such that all have about the same to do.
///
/// By the largest differencing method (Karmarkar and Karp, 1982), which is far closer to the best
/// than giving each sequence to the rank that has least.
///
/// Args:
///     lengths: Tokens of each sequence.
///     n_ranks: How many ranks there are.
///     cost: What is made equal: the sums of ``"tokens"``, or of ``"squared"`` lengths, as
///         attention costs.
///     equal_counts: The numbers of sequences of two ranks differ by one at most.
///
/// Returns:
///     The rank of each sequence, int64.
///
/// Raises:
///     ArgumentError: There is no rank, or a length is negative.
///     DtypeError: Lengths are not whole numbers.
///
/// Examples:
///     >>> from echoic.primitives import balance_sequences
///     >>> import numpy as np
///     >>> lengths = np.array([8, 7, 6, 5, 4])
///     >>> ranks = balance_sequences(lengths, 2)
///     >>> sorted(int(lengths[ranks == rank].sum()) for rank in range(2))
///     [14, 16]
#[pyfunction]
#[pyo3(signature = (lengths, n_ranks, *, cost="tokens", equal_counts=false))]
pub fn balance_sequences<'py>(
    lengths: &Bound<'py, PyAny>,
    n_ranks: i64,
    cost: &str,
    equal_counts: bool,
) -> PyResult<Array<'py>> {
    let py = lengths.py();
    let cost = choice(py, "cost", cost, &COSTS)?;
    let ranks = count(py, "n_ranks", n_ranks, 1)?;
    let kind = Kind::of(lengths)?;
    let lengths = whole_numbers("lengths", lengths)?;
    let costs: Vec<u64> = lengths.iter().map(|length| cost.of(*length)).collect();
    let ranks = py.detach(|| balance(&costs, ranks, equal_counts));
    indices(py, &ranks, kind)
}

/// Split the sequences of each rank into micro-batches, the same number on every rank.
///
/// As few as the method finds: first fit decreasing says how many suffice, and the largest
/// differencing method whether fewer do. The rank that needs most says how many all have. On each
/// rank they cost about the same, and the dearest come first, so that ranks which wait for each
/// other in every micro-batch wait for little.
///
/// Args:
///     lengths: Tokens of each sequence.
///     ranks: The rank of each, as :func:`balance_sequences` gives it.
///     n_ranks: How many ranks there are.
///     max_tokens: How many tokens a micro-batch may have.
///     cost: What is made equal: the sums of ``"tokens"``, or of ``"squared"`` lengths.
///     allow_empty: A rank with fewer sequences than micro-batches gets one for each, and empty
///         ones after them, instead of an error.
///
/// Returns:
///     ``(batches, count)``: the micro-batch of each sequence in its rank, int64, from 0 on; and
///     how many micro-batches each rank has. The same input always gives the same result.
///
/// Raises:
///     ArgumentError: A sequence is longer than ``max_tokens``; a rank has fewer sequences than
///         micro-batches; ``ranks`` has another length than ``lengths``, or one that is not there.
///     DtypeError: Lengths or ranks are not whole numbers.
///
/// Examples:
///     >>> from echoic.primitives import plan_micro_batches
///     >>> lengths, ranks = [6, 5, 4, 3, 2], [0, 1, 1, 0, 0]
///     >>> plan_micro_batches(lengths, ranks, 2, 8)
///     (array([0, 0, 1, 1, 1]), 2)
#[pyfunction]
#[pyo3(signature = (
    lengths, ranks, n_ranks, max_tokens, *, cost="tokens", allow_empty=false,
))]
pub fn plan_micro_batches<'py>(
    lengths: &Bound<'py, PyAny>,
    ranks: &Bound<'py, PyAny>,
    n_ranks: i64,
    max_tokens: i64,
    cost: &str,
    allow_empty: bool,
) -> PyResult<(Array<'py>, usize)> {
    let py = lengths.py();
    let cost = choice(py, "cost", cost, &COSTS)?;
    let rank_count = count(py, "n_ranks", n_ranks, 1)?;
    let max_tokens = count(py, "max_tokens", max_tokens, 1)?;
    let kind = Kind::of(lengths)?;
    let lengths = whole_numbers("lengths", lengths)?;
    let ranks = whole_numbers("ranks", ranks)?;
    if ranks.len() != lengths.len() {
        let (got, expected) = (ranks.len(), lengths.len());
        let text = format!("`ranks` has {got} elements, expected {expected}, as `lengths` has");
        return Err(argument_error(py, text));
    }
    if let Some(at) = ranks.iter().position(|rank| *rank >= rank_count) {
        let rank = ranks[at];
        let text = format!("`ranks`[{at}] must be below n_ranks={rank_count}, got {rank}");
        return Err(argument_error(py, text));
    }
    let shares = Shares { lengths: &lengths, ranks: &ranks, rank_count, cost };
    let split = py.detach(|| shares.micro_batches(max_tokens, allow_empty));
    let split = split.map_err(|error| {
        let help = match error {
            MicroBatchError::TooFew { .. } => {
                ": balance with equal_counts=True, raise `max_tokens`, or pass allow_empty=True"
            }
            _ => "",
        };
        argument_error(py, format!("{error}{help}"))
    })?;
    Ok((indices(py, &split.batches, kind)?, split.count))
}

struct Request {
    max_len: usize,
    method: Method,
    segments: bool,
    pad_token: i64,
}

impl Request {
    /// Rows of indices into the sequences one after the other.
    fn lengths<'py>(
        &self,
        py: Python<'py>,
        kind: Kind,
        lengths: &[usize],
    ) -> PyResult<(Array<'py>, Array<'py>, Array<'py>)> {
        let packing = planned(py, lengths, self.max_len, self.method)?;
        let begins = begins(lengths);
        let packed = self.rows(py, kind, lengths, &packing, 0, |index, cells: &mut [i64]| {
            for (at, cell) in cells.iter_mut().enumerate() {
                *cell = (begins[index] + at) as i64;
            }
        })?;
        let (masks, positions) = self.companions(py, kind, lengths, &packing)?;
        Ok((kind.from_numpy(packed)?, masks, positions))
    }

    /// Rows of tokens.
    fn tokens<'py>(
        &self,
        py: Python<'py>,
        tokens: &Tokens<'py>,
    ) -> PyResult<(Array<'py>, Array<'py>, Array<'py>)> {
        let packing = planned(py, &tokens.lengths, self.max_len, self.method)?;
        let packed = match plain::read::<i32>(&tokens.flat) {
            Some(flat) => self.write(py, tokens, flat, &packing)?,
            None => {
                let flat = plain::read::<i64>(&tokens.flat).unwrap_or_default();
                self.write(py, tokens, flat, &packing)?
            }
        };
        let (masks, positions) = self.companions(py, tokens.kind, &tokens.lengths, &packing)?;
        Ok((tokens.kind.from_numpy(packed)?, masks, positions))
    }

    fn write<'py, T: Plain + TryFrom<i64>>(
        &self,
        py: Python<'py>,
        tokens: &Tokens<'py>,
        flat: &[T],
        packing: &Packing,
    ) -> PyResult<Array<'py>> {
        let pad = T::try_from(self.pad_token).map_err(|_| {
            let text = format!("`pad_token`={} is no {}", self.pad_token, tokens.dtype);
            argument_error(py, text)
        })?;
        let begins = begins(&tokens.lengths);
        let fill = |index: usize, cells: &mut [T]| {
            cells.copy_from_slice(&flat[begins[index]..begins[index] + cells.len()]);
        };
        let packed = self.rows(py, tokens.kind, &tokens.lengths, packing, pad, fill)?;
        // Where only the sign differs, nothing moves.
        let same = packed.getattr("dtype")?.getattr("itemsize")?.extract::<usize>()?
            == tokens.dtype.getattr("itemsize")?.extract::<usize>()?;
        packed.call_method1(if same { "view" } else { "astype" }, (&tokens.dtype,))
    }

    /// What says where tokens are, and the position of each in its sequence.
    fn companions<'py>(
        &self,
        py: Python<'py>,
        kind: Kind,
        lengths: &[usize],
        packing: &Packing,
    ) -> PyResult<(Array<'py>, Array<'py>)> {
        let masks = if self.segments {
            let segments = packing.segments(lengths);
            self.rows(py, kind, lengths, packing, 0, |index, cells| cells.fill(segments[index]))?
        } else {
            let fill = |_, cells: &mut [u8]| cells.fill(1);
            let bytes = self.rows(py, kind, lengths, packing, 0, fill)?;
            bytes.call_method1("view", ("bool",))?
        };
        let positions = self.rows(py, kind, lengths, packing, 0, |_, cells: &mut [i32]| {
            for (at, cell) in cells.iter_mut().enumerate() {
                *cell = at as i32;
            }
        })?;
        Ok((kind.from_numpy(masks)?, kind.from_numpy(positions)?))
    }

    /// An array of numpy whose cells `fill` writes for each sequence, with room as `kind` wants it.
    fn rows<'py, T: Plain>(
        &self,
        py: Python<'py>,
        kind: Kind,
        lengths: &[usize],
        packing: &Packing,
        pad: T,
        fill: impl FnMut(usize, &mut [T]) + Send,
    ) -> PyResult<Array<'py>> {
        let mut result = Output::new(py, &self.shape(py, packing)?, kind)?;
        let out = result.numbers();
        detached(py, out.len(), || packing.write(lengths, self.max_len, pad, out, fill));
        result.finish(Kind::Numpy)
    }

    fn shape(&self, py: Python<'_>, packing: &Packing) -> PyResult<[usize; 2]> {
        // The longest elements have eight bytes.
        match packing.row_count.checked_mul(self.max_len).and_then(|cells| cells.checked_mul(8)) {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok([packing.row_count, self.max_len]),
            _ => {
                let (rows, max_len) = (packing.row_count, self.max_len);
                let text = format!("{rows} rows of max_len={max_len} are too large for memory");
                Err(argument_error(py, text))
            }
        }
    }
}

/// Sequences of tokens, one after the other.
struct Tokens<'py> {
    flat: Bound<'py, PyUntypedArray>,
    lengths: Vec<usize>,
    /// What the tokens were, and become again.
    dtype: Bound<'py, PyAny>,
    kind: Kind,
}

/// The sequences of a list of them; `None` for lengths.
fn tokens<'py>(sequences: &Bound<'py, PyAny>) -> PyResult<Option<Tokens<'py>>> {
    let py = sequences.py();
    let items: Vec<Bound<'py, PyAny>> = if let Ok(list) = sequences.cast::<PyList>() {
        list.iter().collect()
    } else if let Ok(tuple) = sequences.cast::<PyTuple>() {
        tuple.iter().collect()
    } else {
        return Ok(None);
    };
    let Some(first) = items.first() else { return Ok(None) };
    let kind = Kind::of(first)?;
    if kind.to_numpy("sequences", first)?.ndim() == 0 {
        return Ok(None);
    }
    let mut arrays = Vec::with_capacity(items.len());
    let mut dtype: Option<Bound<'py, PyArrayDescr>> = None;
    for (index, item) in items.iter().enumerate() {
        // Most are arrays of numpy, and there may be many.
        let array = match item.cast::<PyUntypedArray>() {
            Ok(array) => array.clone(),
            Err(_) => Kind::of(item)?.to_numpy("sequences", item)?,
        };
        if array.ndim() != 1 {
            let shape = text_of(array.shape());
            let text = format!("sequence {index} must have one axis, got shape {shape}");
            return Err(argument_error(py, text));
        }
        let own = array.dtype();
        // An empty list becomes floats, which say nothing.
        if array.len() > 0 {
            if !matches!(own.kind(), b'i' | b'u') {
                let text = format!("tokens must be whole numbers, but sequence {index} has {own}");
                return Err(dtype_error(py, text));
            }
            dtype = Some(match dtype {
                Some(dtype) if dtype.is_equiv_to(&own) => dtype,
                Some(dtype) => {
                    numpy(py)?.call_method1("promote_types", (dtype, own))?.cast_into()?
                }
                None => own,
            });
        }
        arrays.push(array);
    }
    // Of `uint64` and what has a sign, numpy makes floats.
    let dtype = dtype.filter(|dtype| matches!(dtype.kind(), b'i' | b'u'));
    let dtype = dtype.unwrap_or_else(|| numpy::dtype::<i64>(py));
    let lengths = arrays.iter().map(|array| array.len()).collect();
    let options = PyDict::new(py);
    options.set_item("dtype", if dtype.itemsize() == 4 { "int32" } else { "int64" })?;
    options.set_item("casting", "unsafe")?;
    let flat = numpy(py)?.call_method("concatenate", (arrays,), Some(&options))?.cast_into()?;
    Ok(Some(Tokens { flat, lengths, dtype: dtype.into_any(), kind }))
}

fn planned(py: Python<'_>, lengths: &[usize], max_len: usize, method: Method) -> PyResult<Packing> {
    let packing = if lengths.len() < 256 {
        pack(lengths, max_len, method)
    } else {
        py.detach(|| pack(lengths, max_len, method))
    };
    packing.map_err(|error| argument_error(py, error.to_string()))
}

fn row_length(py: Python<'_>, max_len: i64) -> PyResult<usize> {
    match i32::try_from(max_len) {
        Ok(len) if len > 0 => Ok(len as usize),
        _ => {
            let text = format!("`max_len` must be from 1 to 2147483647, got {max_len}");
            Err(argument_error(py, text))
        }
    }
}

fn indices<'py>(py: Python<'py>, numbers: &[usize], kind: Kind) -> PyResult<Array<'py>> {
    filled(py, &[numbers.len()], kind, numbers.len(), |out| {
        for (out, number) in out.iter_mut().zip(numbers) {
            *out = *number as i64;
        }
    })
}

/// Where each sequence begins when they lie one after the other.
fn begins(lengths: &[usize]) -> Vec<usize> {
    let next = |end: &mut usize, length: &usize| {
        let begin = *end;
        *end += length;
        Some(begin)
    };
    lengths.iter().scan(0, next).collect()
}
