//! Latent plans: their moving average, and how much one differs from others.

use std::sync::Arc;

use echoic_memory::sync::{Mutex, MutexGuard};
use echoic_primitives::plans::{AveragePlan, Weights, surprise, temporal_kl as divergence};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::argument_error;
use crate::primitives::input::{
    Input, Precision, divisor, entry, entry_numbers, finite, in_precision, same_shape, text_of,
    wrong_shape,
};
use crate::primitives::kind::Kind;
use crate::primitives::output::{attempt, copied, try_filled};
use crate::primitives::stats::lock;

/// The longest plan: what is longer was meant to be something else.
const MOST: usize = 1 << 28;

/// The exponential moving average of latent plans: ``ema = decay * ema + (1 - decay) * plan``.
///
/// In float64, whatever plans are stored in. The first plan initialises it. Safe to use from
/// several threads; can be pickled and copied.
///
/// Args:
///     dim: How long plans are.
///     decay: How much of the average each plan leaves, from 0 to 1.
///
/// Raises:
///     ArgumentError: An argument is out of range.
///
/// Examples:
///     >>> from echoic.agents.kernels import EMAPlanTracker
///     >>> tracker = EMAPlanTracker(2, decay=0.75)
///     >>> tracker.update([1.0, 2.0])
///     >>> tracker.update([5.0, 2.0])
///     >>> tracker.get_ema()
///     array([2., 2.])
#[pyclass(frozen, module = "echoic.agents.kernels")]
pub struct EMAPlanTracker {
    dim: usize,
    /// Buffers that compare with it have it too.
    average: Arc<Mutex<AveragePlan>>,
}

#[pymethods]
impl EMAPlanTracker {
    #[new]
    #[pyo3(signature = (dim, decay=0.99))]
    fn new(py: Python<'_>, dim: i64, decay: f64) -> PyResult<Self> {
        let length = usize::try_from(dim).ok().filter(|dim| (1..=MOST).contains(dim));
        let Some(dim) = length else {
            let text = format!("`dim` must be from 1 to {MOST}, got {dim}");
            return Err(argument_error(py, text));
        };
        if !(0.0..=1.0).contains(&decay) {
            return Err(argument_error(py, format!("`decay` must be from 0 to 1, got {decay}")));
        }
        Ok(Self { dim, average: Arc::new(Mutex::new(AveragePlan::new(dim, decay))) })
    }

    /// How long plans are.
    #[getter]
    fn dim(&self) -> usize {
        self.dim
    }

    /// How much of the average each plan leaves.
    #[getter]
    fn decay(&self, py: Python<'_>) -> f64 {
        self.lock(py).decay()
    }

    /// How many plans went by.
    #[getter]
    fn count(&self, py: Python<'_>) -> u64 {
        self.lock(py).count()
    }

    /// Whether there was a plan.
    #[getter]
    fn initialized(&self, py: Python<'_>) -> bool {
        self.lock(py).count() > 0
    }

    /// Take in a plan ``(dim,)``, or plans ``(n, dim)`` one after the other, all or none.
    ///
    /// Raises:
    ///     ArgumentError: Another shape, or a number is not finite: the average would never
    ///         recover.
    ///     DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.
    fn update(&self, plan: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = plan.py();
        let (input, _) = Input::leading("plan", plan)?;
        if !matches!(input.shape(), [dim] | [_, dim] if *dim == self.dim) {
            let expected = format!("({dim},) or (n, {dim})", dim = self.dim);
            return Err(wrong_shape(py, "plan", input.shape(), &expected));
        }
        in_precision!(input.precision(), T => {
            let plans = input.numbers::<T>();
            attempt(py, plans.len(), || self.average.lock().extend(plans))
        })
    }

    /// The average, a fresh array ``(dim,)`` of float64.
    ///
    /// Raises:
    ///     ArgumentError: There was no plan yet.
    fn get_ema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // A copy, and the lock is let go: what makes the array may run Python code.
        let plan = self.lock(py).plan().map(<[f64]>::to_vec);
        let plan = plan.ok_or_else(|| {
            let text = "there is no average before the first `update`; see `initialized`";
            argument_error(py, text)
        })?;
        copied(py, &[self.dim], &plan)
    }

    /// Forget everything but ``dim`` and ``decay``.
    fn reset(&self, py: Python<'_>) {
        self.lock(py).clear();
    }

    /// What :meth:`load_state_dict` takes: ``decay``, ``count`` and ``ema``.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let average = self.lock(py).clone();
        let state = PyDict::new(py);
        state.set_item("decay", average.decay())?;
        state.set_item("count", average.count())?;
        state.set_item("ema", copied(py, &[self.dim], average.raw())?)?;
        Ok(state)
    }

    /// Become what :meth:`state_dict` was taken from.
    ///
    /// Raises:
    ///     ArgumentError: It is of no tracker of this length.
    fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = state.py();
        let plan = entry_numbers(state, "ema", &[self.dim])?;
        let (decay, count) = (entry(state, "decay")?.extract()?, entry(state, "count")?.extract()?);
        let average = AveragePlan::from_parts(decay, count, plan).ok_or_else(|| {
            argument_error(py, "`state` has a decay or an average that no tracker can have")
        })?;
        *self.lock(py) = average;
        Ok(())
    }

    fn __getnewargs__(&self) -> (usize,) {
        (self.dim,)
    }

    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.state_dict(py)
    }

    fn __setstate__(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.load_state_dict(state)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let average = self.lock(py);
        let (decay, count) = (average.decay(), average.count());
        format!("EMAPlanTracker(dim={}, decay={decay}, count={count})", self.dim)
    }
}

impl EMAPlanTracker {
    /// The average itself, for whoever compares plans with it. Nobody who has its lock may need the GIL.
    pub fn shared(&self) -> Arc<Mutex<AveragePlan>> {
        Arc::clone(&self.average)
    }

    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, AveragePlan> {
        lock(py, &self.average)
    }
}

/// How much there may be to learn from a step: an unusual plan, or a large reward.
///
/// ``surprise_weight * |plan - ema_plan|**2 + reward_weight * |reward|``, in double precision.
///
/// Args:
///     plan: ``(dim,)``.
///     ema_plan: What is usual, ``(dim,)``.
///     reward: The reward of the step.
///     surprise_weight: Of the squared distance, which grows with ``dim``.
///     reward_weight: Of the reward's magnitude.
///
/// Raises:
///     ArgumentError: Shapes differ, or a weight is not finite.
///     DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.
///
/// A NaN makes the result NaN.
///
/// Examples:
///     >>> from echoic.agents.kernels import plan_surprise
///     >>> plan_surprise([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], -0.5, 1.0, 0.1)
///     14.05
#[pyfunction]
#[pyo3(signature = (plan, ema_plan, reward, surprise_weight=1.0, reward_weight=1.0))]
pub fn plan_surprise(
    plan: &Bound<'_, PyAny>,
    ema_plan: &Bound<'_, PyAny>,
    reward: f64,
    surprise_weight: f64,
    reward_weight: f64,
) -> PyResult<f64> {
    let py = plan.py();
    let weights = weights(py, surprise_weight, reward_weight)?;
    let (plan, _) = Input::leading("plan", plan)?;
    let average = Input::following("ema_plan", ema_plan, Precision::Double)?;
    axes(py, "plan", plan.shape(), 1)?;
    same_shape(py, "ema_plan", average.shape(), "plan", plan.shape())?;
    in_precision!(plan.precision(), T => {
        let (plan, average) = (plan.numbers::<T>(), average.numbers::<f64>());
        let mut out = [0.0];
        attempt(py, plan.len(), || surprise(plan, average, &[reward], weights, &mut out))?;
        Ok(out[0])
    })
}

/// :func:`plan_surprise` of plans ``(n, dim)`` and rewards ``(n,)``: float64 ``(n,)``.
///
/// Examples:
///     >>> from echoic.agents.kernels import plan_surprise_batch
///     >>> plan_surprise_batch([[1.0, 2.0], [0.0, 0.0]], [0.0, 0.0], [0.5, -2.0])
///     array([5.5, 2. ])
#[pyfunction]
#[pyo3(signature = (plans, ema_plan, rewards, surprise_weight=1.0, reward_weight=1.0))]
pub fn plan_surprise_batch<'py>(
    plans: &Bound<'py, PyAny>,
    ema_plan: &Bound<'py, PyAny>,
    rewards: &Bound<'py, PyAny>,
    surprise_weight: f64,
    reward_weight: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = plans.py();
    let weights = weights(py, surprise_weight, reward_weight)?;
    let (plans, _) = Input::leading("plans", plans)?;
    let average = Input::following("ema_plan", ema_plan, Precision::Double)?;
    let rewards = Input::following("rewards", rewards, Precision::Double)?;
    axes(py, "plans", plans.shape(), 2)?;
    let (count, dim) = (plans.shape()[0], plans.shape()[1]);
    let expect = |name: &str, shape: &[usize], expected: usize| {
        if shape == [expected] {
            return Ok(());
        }
        let expected = format!("({expected},) beside `plans` of shape {}", text_of(plans.shape()));
        Err(wrong_shape(py, name, shape, &expected))
    };
    expect("ema_plan", average.shape(), dim)?;
    expect("rewards", rewards.shape(), count)?;
    in_precision!(plans.precision(), T => {
        let (plans, average) = (plans.numbers::<T>(), average.numbers::<f64>());
        let rewards = rewards.numbers::<f64>();
        try_filled(py, &[count], Kind::Numpy, plans.len(), |out| {
            surprise(plans, average, rewards, weights, out)
        })
    })
}

/// How far a plan moved: the KL divergence of two normal distributions of one variance.
///
/// ``|cur - prev|**2 / (2 * sigma_squared)``, in double precision. It is a number without a
/// gradient; :mod:`echoic.agents.plans` has the divergence that is learned from.
///
/// Args:
///     cur: A plan ``(dim,)``.
///     prev: The plan before it.
///     sigma_squared: The variance in every direction.
///
/// Raises:
///     ArgumentError: Shapes differ, or the variance is not above 0.
///     DtypeError: As in :func:`plan_surprise`.
///
/// Examples:
///     >>> from echoic.agents.kernels import temporal_kl
///     >>> temporal_kl([1.0, 0.0], [0.0, 0.0], 0.01)
///     50.0
#[pyfunction]
pub fn temporal_kl(
    cur: &Bound<'_, PyAny>,
    prev: &Bound<'_, PyAny>,
    sigma_squared: f64,
) -> PyResult<f64> {
    let py = cur.py();
    let variance = divisor(py, "sigma_squared", sigma_squared)?;
    let (cur, prev) = pair(cur, prev)?;
    axes(py, "cur", cur.shape(), 1)?;
    in_precision!(cur.precision(), T => {
        let (cur, prev, mut out) = (cur.numbers::<T>(), prev.numbers::<T>(), [0.0]);
        attempt(py, cur.len(), || divergence(cur, prev, cur.len(), variance, &mut out))?;
        Ok(out[0])
    })
}

/// :func:`temporal_kl` of plans ``(n, dim)``: float64 ``(n,)``.
///
/// Examples:
///     >>> from echoic.agents.kernels import temporal_kl_batch
///     >>> temporal_kl_batch([[1.0, 0.0], [0.0, 3.0]], [[0.0, 0.0], [0.0, 1.0]], 0.01)
///     array([ 50., 200.])
#[pyfunction]
pub fn temporal_kl_batch<'py>(
    cur: &Bound<'py, PyAny>,
    prev: &Bound<'py, PyAny>,
    sigma_squared: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = cur.py();
    let variance = divisor(py, "sigma_squared", sigma_squared)?;
    let (cur, prev) = pair(cur, prev)?;
    axes(py, "cur", cur.shape(), 2)?;
    let (count, dim) = (cur.shape()[0], cur.shape()[1]);
    in_precision!(cur.precision(), T => {
        let (cur, prev) = (cur.numbers::<T>(), prev.numbers::<T>());
        try_filled(py, &[count], Kind::Numpy, cur.len(), |out| {
            divergence(cur, prev, dim, variance, out)
        })
    })
}

/// Two arguments of one shape, in the precision of the more precise one.
fn pair<'py>(
    cur: &Bound<'py, PyAny>,
    prev: &Bound<'py, PyAny>,
) -> PyResult<(Input<'py>, Input<'py>)> {
    let (mut first, mut second) = (Input::leading("cur", cur)?.0, Input::leading("prev", prev)?.0);
    same_shape(cur.py(), "prev", second.shape(), "cur", first.shape())?;
    if first.precision() != second.precision() {
        first = Input::following("cur", cur, Precision::Double)?;
        second = Input::following("prev", prev, Precision::Double)?;
    }
    Ok((first, second))
}

fn axes(py: Python<'_>, name: &str, shape: &[usize], count: usize) -> PyResult<()> {
    if shape.len() == count {
        return Ok(());
    }
    let expected = if count == 1 { "(dim,)" } else { "(n, dim)" };
    let text = format!("`{name}` must have shape {expected}, got {}", text_of(shape));
    Err(argument_error(py, text))
}

fn weights(py: Python<'_>, surprise: f64, reward: f64) -> PyResult<Weights> {
    finite(py, "surprise_weight", surprise)?;
    finite(py, "reward_weight", reward)?;
    Ok(Weights { surprise, reward })
}
