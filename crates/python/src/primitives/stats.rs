//! Running means and variances, of numbers and of arrays.

use echoic_memory::sync::{Mutex, MutexGuard};
use echoic_primitives::stats::{Moments, NotFinite};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyTuple};

use super::input::{
    Input, Number, entry, entry_numbers, in_precision, not_negative, text_of, wrong_shape,
};
use super::kind::Kind;
use super::output::{copied, detached, filled};
use crate::error::argument_error;

/// Count, mean and variance of numbers that went by, without keeping them.
///
/// By the formulas of Welford (1962) and Chan, Golub and LeVeque (1983) in float64, so that nothing
/// cancels however large the mean is. Safe to use from several threads; can be pickled and copied.
///
/// What is not finite is refused, since statistics would never recover from it.
///
/// Examples:
///     >>> from echoic.primitives import RunningStats
///     >>> stats = RunningStats()
///     >>> stats.update(1.0)
///     >>> stats.batch_update([2.0, 3.0])
///     >>> stats.mean(), stats.count()
///     (2.0, 3)
///     >>> round(stats.normalize(3.0), 4)
///     1.2247
#[pyclass(frozen, module = "echoic.primitives")]
pub struct RunningStats(SharedMoments);

#[pymethods]
impl RunningStats {
    #[new]
    fn new() -> Self {
        Self(SharedMoments::new(Vec::new()))
    }

    /// Take in a number.
    ///
    /// Raises:
    ///     ArgumentError: It is not finite.
    fn update(&self, py: Python<'_>, value: f64) -> PyResult<()> {
        let taken = self.0.lock(py).extend(&[value]);
        taken.map_err(|_| argument_error(py, refusal("value", &format!("is {value}"))))
    }

    /// Take in the numbers of an array of any shape, all or none.
    ///
    /// Raises:
    ///     ArgumentError: One of them is not finite.
    ///     DtypeError: Not real numbers, or not on the CPU.
    fn batch_update(&self, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let (input, _) = Input::leading("values", values)?;
        self.0.extend(values.py(), &input)
    }

    /// Take in what another one was made of, as if its numbers had been seen here.
    fn merge(&self, other: &Bound<'_, Self>) -> PyResult<()> {
        self.0.merge(other.py(), &other.get().0)
    }

    /// How many numbers there were.
    fn count(&self, py: Python<'_>) -> u64 {
        self.0.lock(py).count()
    }

    /// Their mean; 0 before the first.
    fn mean(&self, py: Python<'_>) -> f64 {
        self.0.lock(py).mean()[0]
    }

    /// Their variance: the squares of differences from the mean by the count less ``ddof``.
    ///
    /// 0 for too few.
    #[pyo3(signature = (*, ddof=0))]
    fn var(&self, py: Python<'_>, ddof: u64) -> f64 {
        self.0.lock(py).variance(0, ddof)
    }

    /// The root of the variance.
    #[pyo3(signature = (*, ddof=0))]
    fn std(&self, py: Python<'_>, ddof: u64) -> f64 {
        self.0.lock(py).variance(0, ddof).sqrt()
    }

    /// ``(values - mean) / std``, within ``-clip`` and ``clip``; 0 while ``std < min_std``.
    ///
    /// A Python number gives a float, an array one of its shape, dtype and library. NaN stays NaN
    /// unless there is no spread yet.
    ///
    /// Raises:
    ///     ArgumentError: ``clip`` or ``min_std`` is negative.
    ///     DtypeError: Not real numbers, or not on the CPU.
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
        self.0.normalised(py, &input, kind, form)
    }

    /// Forget everything.
    fn reset(&self, py: Python<'_>) {
        self.0.lock(py).clear();
    }

    /// What :meth:`load_state_dict` takes: ``count``, ``mean`` and ``squares``.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.state(py)
    }

    /// Become what :meth:`state_dict` was taken from.
    ///
    /// Raises:
    ///     ArgumentError: A part is missing, has another shape, or can't be. Nothing changes then.
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

/// Count, means and variances of arrays of one shape that went by, for each place of them.
///
/// As :class:`RunningStats`, with arrays of float64 for floats.
///
/// Args:
///     shape: Of each array: a length, or several.
///
/// Examples:
///     >>> from echoic.primitives import RunningStatsVec
///     >>> stats = RunningStatsVec(2)
///     >>> stats.batch_update([[1.0, 10.0], [3.0, 30.0]])
///     >>> stats.mean(), stats.std()
///     (array([ 2., 20.]), array([ 1., 10.]))
///     >>> stats.normalize([[3.0, 0.0]])
///     array([[ 1., -2.]])
#[pyclass(frozen, module = "echoic.primitives")]
pub struct RunningStatsVec(SharedMoments);

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
            (Some(lengths), Some(size)) if size <= 1 << 32 => Ok(Self(SharedMoments::new(lengths))),
            _ => {
                let text = format!("`shape` must have positive lengths, got {shape:?}");
                Err(argument_error(py, text))
            }
        }
    }

    /// Take in one array of our shape.
    ///
    /// Raises:
    ///     ArgumentError: It has another shape, or one of its numbers is not finite.
    ///     DtypeError: Not real numbers, or not on the CPU.
    fn update(&self, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = values.py();
        let (input, _) = Input::leading("values", values)?;
        if input.shape() != self.0.shape {
            return Err(wrong_shape(py, "values", input.shape(), &text_of(&self.0.shape)));
        }
        self.0.extend(py, &input)
    }

    /// Take in ``(n, *shape)``, or the numbers of ``batch_size`` arrays; all or none.
    ///
    /// Raises:
    ///     ArgumentError: The shape is another, or a number is not finite.
    ///     DtypeError: Not real numbers, or not on the CPU.
    #[pyo3(signature = (values, batch_size=None))]
    fn batch_update(&self, values: &Bound<'_, PyAny>, batch_size: Option<usize>) -> PyResult<()> {
        let py = values.py();
        let (input, _) = Input::leading("values", values)?;
        self.0.check_batch(py, input.shape(), batch_size)?;
        self.0.extend(py, &input)
    }

    /// Take in what another one was made of, as if its arrays had been seen here.
    ///
    /// Raises:
    ///     ArgumentError: It is of another shape.
    fn merge(&self, other: &Bound<'_, Self>) -> PyResult<()> {
        self.0.merge(other.py(), &other.get().0)
    }

    /// How many arrays there were.
    fn count(&self, py: Python<'_>) -> u64 {
        self.0.lock(py).count()
    }

    /// How many numbers each of them has.
    fn dim(&self, py: Python<'_>) -> usize {
        self.0.lock(py).dim()
    }

    /// Of each of them.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    /// Their means; 0 before the first.
    fn mean<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.array(py, |moments, at| moments.mean()[at])
    }

    /// Their variances; 0 for too few.
    #[pyo3(signature = (*, ddof=0))]
    fn var<'py>(&self, py: Python<'py>, ddof: u64) -> PyResult<Bound<'py, PyAny>> {
        self.0.array(py, |moments, at| moments.variance(at, ddof))
    }

    /// The roots of the variances.
    #[pyo3(signature = (*, ddof=0))]
    fn std<'py>(&self, py: Python<'py>, ddof: u64) -> PyResult<Bound<'py, PyAny>> {
        self.0.array(py, |moments, at| moments.variance(at, ddof).sqrt())
    }

    /// ``(values - mean) / std`` of ``(..., *shape)``; 0 wherever ``std < min_std``.
    ///
    /// Raises:
    ///     ArgumentError: The shape is another, or ``clip`` or ``min_std`` is negative.
    ///     DtypeError: Not real numbers, or not on the CPU.
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
            let expected = format!("{} behind any other axes", text_of(&self.0.shape));
            return Err(wrong_shape(py, "values", input.shape(), &expected));
        }
        self.0.normalised(py, &input, kind, form)
    }

    /// The same for what :meth:`batch_update` takes.
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
        self.0.normalised(py, &input, kind, form)
    }

    /// Forget everything.
    fn reset(&self, py: Python<'_>) {
        self.0.lock(py).clear();
    }

    /// What :meth:`load_state_dict` takes: ``count``, ``mean`` and ``squares``.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.state(py)
    }

    /// Become what :meth:`state_dict` was taken from.
    ///
    /// Raises:
    ///     ArgumentError: A part is missing, has another shape, or can't be. Nothing changes then.
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
        not_negative(py, "clip", clip.unwrap_or_default())?;
        not_negative(py, "min_std", min_std)?;
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

/// Moments that several threads use.
struct SharedMoments {
    shape: Vec<usize>,
    moments: Mutex<Moments>,
}

impl SharedMoments {
    fn new(shape: Vec<usize>) -> Self {
        let moments = Mutex::new(Moments::new(shape.iter().product()));
        Self { shape, moments }
    }

    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Moments> {
        lock(py, &self.moments)
    }

    fn extend(&self, py: Python<'_>, input: &Input<'_>) -> PyResult<()> {
        in_precision!(input.precision(), T => {
            let values = input.numbers::<T>();
            let taken = detached(py, values.len(), || self.moments.lock().extend(values));
            taken.map_err(|NotFinite { index }| {
                let why = match index.and_then(|index| Some((index, values.get(index)?))) {
                    Some((index, value)) => format!("has {value} at flat index {index}"),
                    None => "has too large a spread for a variance".to_owned(),
                };
                argument_error(py, refusal("values", &why))
            })
        })
    }

    fn normalised<'py>(
        &self,
        py: Python<'py>,
        input: &Input<'py>,
        kind: Kind,
        form: Form,
    ) -> PyResult<Bound<'py, PyAny>> {
        // A copy, so that others may update it meanwhile.
        let moments = self.lock(py).clone();
        in_precision!(input.precision(), T => {
            let values = input.numbers::<T>();
            filled(py, input.shape(), kind, values.len(), |out| {
                moments.normalise(values, form.min_std, out);
                form.clip(out);
            })
        })
    }

    fn merge(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        if self.shape != other.shape {
            return Err(wrong_shape(py, "other", &other.shape, &text_of(&self.shape)));
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
        let own = text_of(&self.shape);
        let expected = match count {
            Some(count) => {
                let numbers = count.saturating_mul(size);
                format!("{count} arrays of shape {own}, or their {numbers} numbers")
            }
            None => format!("(n, ...) with {own} behind n"),
        };
        Err(wrong_shape(py, "values", shape, &expected))
    }

    fn array<'py>(
        &self,
        py: Python<'py>,
        value: impl Fn(&Moments, usize) -> f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let moments = self.lock(py).clone();
        let numbers: Vec<f64> = (0..moments.dim()).map(|at| value(&moments, at)).collect();
        copied(py, &self.shape, &numbers)
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let moments = self.lock(py).clone();
        let state = PyDict::new(py);
        state.set_item("count", moments.count())?;
        for (name, numbers) in [("mean", moments.mean()), ("squares", moments.squares())] {
            state.set_item(name, copied(py, &self.shape, numbers)?)?;
        }
        Ok(state)
    }

    fn load(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = state.py();
        let count = entry(state, "count")?.extract()?;
        let mean = entry_numbers(state, "mean", &self.shape)?;
        let squares = entry_numbers(state, "squares", &self.shape)?;
        let moments = Moments::from_parts(count, mean, squares).ok_or_else(|| {
            argument_error(py, "`state` has a mean or squares that no numbers can have")
        })?;
        *self.lock(py) = moments;
        Ok(())
    }
}

/// Locks something that is held for as long as a batch takes, at most, by threads that do not wait for the GIL.
pub fn lock<'a, T: Send>(py: Python<'_>, shared: &'a Mutex<T>) -> MutexGuard<'a, T> {
    loop {
        if let Some(locked) = shared.try_lock() {
            return locked;
        }
        py.detach(|| drop(shared.lock()));
    }
}

fn refusal(name: &str, why: &str) -> String {
    format!("`{name}` {why}, and statistics must stay finite: nothing of it was taken in")
}
