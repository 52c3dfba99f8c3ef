//! Running means and variances, of numbers and of arrays.

use echoic_memory::sync::{Mutex, MutexGuard};
use echoic_primitives::stats::{Moments, NotFinite};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyTuple};

use super::input::{Input, Number, in_precision, text_of};
use super::kind::Kind;
use super::output::Output;
use super::sequences::detached;
use crate::error::argument_error;

/// Numbers that went by.
///
/// The lock is held for as long as a batch takes, and nobody waits for it with the GIL in hand.
#[pyclass(frozen, module = "echoic.primitives")]
pub struct RunningStats(Shared);

#[pymethods]
impl RunningStats {
    #[new]
    fn new() -> Self {
        Self(Shared::new(Vec::new()))
    }

    fn update(&self, py: Python<'_>, value: f64) -> PyResult<()> {
        let taken = self.0.lock(py).extend(&[value]);
        taken.map_err(|_| argument_error(py, refusal("value", &format!("is {value}"))))
    }

    fn batch_update(&self, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let (input, _) = Input::leading("values", values)?;
        self.0.extend(values.py(), &input)
    }

    fn merge(&self, other: &Bound<'_, Self>) -> PyResult<()> {
        self.0.merge(other.py(), &other.get().0)
    }

    fn count(&self, py: Python<'_>) -> u64 {
        self.0.lock(py).count()
    }

    fn mean(&self, py: Python<'_>) -> f64 {
        self.0.lock(py).mean()[0]
    }

    #[pyo3(signature = (*, ddof=0))]
    fn var(&self, py: Python<'_>, ddof: u64) -> f64 {
        self.0.lock(py).variance(0, ddof)
    }

    #[pyo3(signature = (*, ddof=0))]
    fn std(&self, py: Python<'_>, ddof: u64) -> f64 {
        self.0.lock(py).variance(0, ddof).sqrt()
    }

    #[pyo3(signature = (values, *, clip=None, min_std=1e-8))]
    fn normalize<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        clip: Option<f64>,
        min_std: f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = values.py();
        let form = Form::new(py, clip, min_std)?;
        // An array of one number has a float too, but stays an array.
        if values.is_instance_of::<PyFloat>() || values.is_instance_of::<PyInt>() {
            let mut out = [0.0];
            self.0.lock(py).normalise(&[values.extract::<f64>()?], min_std, &mut out);
            form.clip(&mut out);
            return Ok(out[0].into_pyobject(py)?.into_any());
        }
        let (input, kind) = Input::leading("values", values)?;
        in_precision!(input.precision(), normalised(py, &self.0, &input, kind, form))
    }

    fn reset(&self, py: Python<'_>) {
        self.0.lock(py).clear();
    }

    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.state(py)
    }

    fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.0.load(state)
    }

    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.state(py)
    }

    fn __setstate__(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.0.load(state)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let moments = self.0.lock(py);
        let (count, mean, std) =
            (moments.count(), moments.mean()[0], moments.variance(0, 0).sqrt());
        format!("RunningStats(count={count}, mean={mean}, std={std})")
    }
}

/// Arrays of one shape that went by.
#[pyclass(frozen, module = "echoic.primitives")]
pub struct RunningStatsVec(Shared);

#[pymethods]
impl RunningStatsVec {
    #[new]
    fn new(shape: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = shape.py();
        let shape = match shape.extract::<i64>() {
            Ok(length) => vec![length],
            Err(_) => shape.extract::<Vec<i64>>()?,
        };
        let lengths: Option<Vec<usize>> = shape
            .iter()
            .map(|length| usize::try_from(*length).ok().filter(|len| *len > 0))
            .collect();
        let size = lengths.as_ref().and_then(|lengths| {
            lengths.iter().try_fold(1usize, |size, length| size.checked_mul(*length))
        });
        match (lengths, size) {
            (Some(lengths), Some(size)) if size <= 1 << 32 => Ok(Self(Shared::new(lengths))),
            _ => {
                let text = format!("`shape` must have positive lengths, got {shape:?}");
                Err(argument_error(py, text))
            }
        }
    }

    fn update(&self, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = values.py();
        let (input, _) = Input::leading("values", values)?;
        if input.shape() != self.0.shape {
            let (got, expected) = (text_of(input.shape()), text_of(&self.0.shape));
            let text = format!("`values` has shape {got}, expected {expected}");
            return Err(argument_error(py, text));
        }
        self.0.extend(py, &input)
    }

    #[pyo3(signature = (values, batch_size=None))]
    fn batch_update(&self, values: &Bound<'_, PyAny>, batch_size: Option<usize>) -> PyResult<()> {
        let py = values.py();
        let (input, _) = Input::leading("values", values)?;
        self.0.check_batch(py, input.shape(), batch_size)?;
        self.0.extend(py, &input)
    }

    fn merge(&self, other: &Bound<'_, Self>) -> PyResult<()> {
        self.0.merge(other.py(), &other.get().0)
    }

    fn count(&self, py: Python<'_>) -> u64 {
        self.0.lock(py).count()
    }

    fn dim(&self, py: Python<'_>) -> usize {
        self.0.lock(py).dim()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    fn mean<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.array(py, |moments, at| moments.mean()[at])
    }

    #[pyo3(signature = (*, ddof=0))]
    fn var<'py>(&self, py: Python<'py>, ddof: u64) -> PyResult<Bound<'py, PyAny>> {
        self.0.array(py, |moments, at| moments.variance(at, ddof))
    }

    #[pyo3(signature = (*, ddof=0))]
    fn std<'py>(&self, py: Python<'py>, ddof: u64) -> PyResult<Bound<'py, PyAny>> {
        self.0.array(py, |moments, at| moments.variance(at, ddof).sqrt())
    }

    #[pyo3(signature = (values, *, clip=None, min_std=1e-8))]
    fn normalize<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        clip: Option<f64>,
        min_std: f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = values.py();
        let form = Form::new(py, clip, min_std)?;
        let (input, kind) = Input::leading("values", values)?;
        if !input.shape().ends_with(&self.0.shape) {
            let (got, expected) = (text_of(input.shape()), text_of(&self.0.shape));
            let text =
                format!("`values` has shape {got}, expected {expected} behind any other axes");
            return Err(argument_error(py, text));
        }
        in_precision!(input.precision(), normalised(py, &self.0, &input, kind, form))
    }

    #[pyo3(signature = (values, batch_size=None, *, clip=None, min_std=1e-8))]
    fn normalize_batch<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        batch_size: Option<usize>,
        clip: Option<f64>,
        min_std: f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = values.py();
        let form = Form::new(py, clip, min_std)?;
        let (input, kind) = Input::leading("values", values)?;
        self.0.check_batch(py, input.shape(), batch_size)?;
        in_precision!(input.precision(), normalised(py, &self.0, &input, kind, form))
    }

    fn reset(&self, py: Python<'_>) {
        self.0.lock(py).clear();
    }

    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.state(py)
    }

    fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.0.load(state)
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>,)> {
        Ok((self.shape(py)?,))
    }

    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.state(py)
    }

    fn __setstate__(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.0.load(state)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let count = self.0.lock(py).count();
        format!("RunningStatsVec(shape={}, count={count})", text_of(&self.0.shape))
    }
}

/// How numbers are normalised.
#[derive(Clone, Copy)]
struct Form {
    clip: Option<f64>,
    min_std: f64,
}

impl Form {
    fn new(py: Python<'_>, clip: Option<f64>, min_std: f64) -> PyResult<Self> {
        for (name, value) in [("clip", clip.unwrap_or_default()), ("min_std", min_std)] {
            if value.is_nan() || value < 0.0 {
                let text = format!("`{name}` must be at least 0, got {value}");
                return Err(argument_error(py, text));
            }
        }
        Ok(Self { clip, min_std })
    }

    fn clip<T: Number>(self, out: &mut [T]) {
        let Some(clip) = self.clip.map(T::from_f64) else { return };
        for value in out {
            // Comparisons with NaN are false, so NaN stays.
            *value = if *value > clip { clip } else { *value };
            *value = if *value < -clip { -clip } else { *value };
        }
    }
}

fn normalised<'py, T: Number>(
    py: Python<'py>,
    shared: &Shared,
    input: &Input<'py>,
    kind: Kind,
    form: Form,
) -> PyResult<Bound<'py, PyAny>> {
    let mut result = Output::<T>::new(py, input.shape(), kind)?;
    // A copy, so that others may update it meanwhile.
    let moments = shared.lock(py).clone();
    let (values, out) = (input.numbers::<T>(), result.numbers());
    detached(py, values.len(), move || {
        moments.normalise(values, form.min_std, out);
        form.clip(out);
    });
    result.finish(kind)
}

/// Moments that several threads use.
struct Shared {
    shape: Vec<usize>,
    moments: Mutex<Moments>,
}

impl Shared {
    fn new(shape: Vec<usize>) -> Self {
        let moments = Mutex::new(Moments::new(shape.iter().product()));
        Self { shape, moments }
    }

    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Moments> {
        loop {
            if let Some(moments) = self.moments.try_lock() {
                return moments;
            }
            // Whoever has it holds it for a batch at most, and needs no GIL for that.
            py.detach(|| drop(self.moments.lock()));
        }
    }

    fn extend(&self, py: Python<'_>, input: &Input<'_>) -> PyResult<()> {
        in_precision!(input.precision(), extend_in(py, self, input))
    }

    fn merge(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        if self.shape != other.shape {
            let (got, expected) = (text_of(&other.shape), text_of(&self.shape));
            let text = format!("`other` has shape {got}, expected {expected}");
            return Err(argument_error(py, text));
        }
        // A copy first: `other` may be `self`.
        let other = other.lock(py).clone();
        let merged = self.lock(py).merge(&other);
        merged.map_err(|_| argument_error(py, "the merged statistics would not be finite"))
    }

    /// An error unless values are a batch of arrays of our shape, or those one after the other.
    fn check_batch(&self, py: Python<'_>, shape: &[usize], count: Option<usize>) -> PyResult<()> {
        let size: usize = self.shape.iter().product();
        let whole = shape.split_first().filter(|(_, rest)| *rest == self.shape);
        let fits = match (whole, count) {
            (Some((rows, _)), count) => count.is_none_or(|count| count == *rows),
            (None, Some(count)) => shape.len() == 1 && count.checked_mul(size) == Some(shape[0]),
            (None, None) => false,
        };
        if fits {
            return Ok(());
        }
        let (got, expected) = (text_of(shape), text_of(&self.shape));
        let text = match count {
            Some(count) => format!(
                "`values` has shape {got}, expected {count} arrays of shape {expected}, or their {} \
                 numbers",
                count.saturating_mul(size)
            ),
            None => format!("`values` has shape {got}, expected (n, ...) with {expected} behind n"),
        };
        Err(argument_error(py, text))
    }

    fn array<'py>(
        &self,
        py: Python<'py>,
        value: impl Fn(&Moments, usize) -> f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let moments = self.lock(py).clone();
        let mut result = Output::<f64>::new(py, &self.shape, Kind::Numpy)?;
        for (at, out) in result.numbers().iter_mut().enumerate() {
            *out = value(&moments, at);
        }
        Ok(result.into_numpy())
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let moments = self.lock(py).clone();
        let state = PyDict::new(py);
        state.set_item("count", moments.count())?;
        for (name, numbers) in [("mean", moments.mean()), ("squares", moments.squares())] {
            let mut result = Output::<f64>::new(py, &self.shape, Kind::Numpy)?;
            result.numbers().copy_from_slice(numbers);
            state.set_item(name, result.into_numpy())?;
        }
        Ok(state)
    }

    fn load(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = state.py();
        let item = |name: &str| {
            state
                .get_item(name)?
                .ok_or_else(|| argument_error(py, format!("`state` has no {name:?}")))
        };
        let numbers = |name: &str| {
            let input = Input::following(name, &item(name)?, super::input::Precision::Double)?;
            if input.shape() != self.shape {
                let (got, expected) = (text_of(input.shape()), text_of(&self.shape));
                let text = format!("`state`[{name:?}] has shape {got}, expected {expected}");
                return Err(argument_error(py, text));
            }
            Ok(input.numbers::<f64>().to_vec())
        };
        let count = item("count")?.extract()?;
        let (mean, squares) = (numbers("mean")?, numbers("squares")?);
        let moments = Moments::from_parts(count, mean, squares).ok_or_else(|| {
            argument_error(py, "`state` has a mean or squares that no numbers can have")
        })?;
        *self.lock(py) = moments;
        Ok(())
    }
}

fn extend_in<T: Number>(py: Python<'_>, shared: &Shared, input: &Input<'_>) -> PyResult<()> {
    let values = input.numbers::<T>();
    let taken = detached(py, values.len(), || shared.moments.lock().extend(values));
    taken.map_err(|NotFinite { index }| {
        let why = match index.and_then(|index| Some((index, values.get(index)?))) {
            Some((index, value)) => format!("has {value} at flat index {index}"),
            None => "has too large a spread for a variance".to_owned(),
        };
        argument_error(py, refusal("values", &why))
    })
}

fn refusal(name: &str, why: &str) -> String {
    format!("`{name}` {why}, and statistics must stay finite: nothing of it was taken in")
}
