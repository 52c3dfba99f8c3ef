//! Latent plans: their moving average, and how much one differs from others.

use std::sync::Arc;

use echoic_memory::sync::{Mutex, MutexGuard};
use echoic_primitives::plans::{AveragePlan, Weights, surprise, temporal_kl as divergence};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{divisor, refused};
use crate::error::argument_error;
use crate::primitives::input::{
    Input, Number, Precision, finite, in_precision, same_shape, text_of,
};
use crate::primitives::kind::Kind;
use crate::primitives::output::Output;
use crate::primitives::sequences::detached;

/// The longest plan: what is longer was meant to be something else.
const MOST: usize = 1 << 28;

/// The exponential moving average of plans.
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

    #[getter]
    fn dim(&self) -> usize {
        self.dim
    }

    #[getter]
    fn decay(&self, py: Python<'_>) -> f64 {
        self.lock(py).decay()
    }

    #[getter]
    fn count(&self, py: Python<'_>) -> u64 {
        self.lock(py).count()
    }

    #[getter]
    fn initialized(&self, py: Python<'_>) -> bool {
        self.lock(py).count() > 0
    }

    fn update(&self, plan: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = plan.py();
        let (input, _) = Input::leading("plan", plan)?;
        if !matches!(input.shape(), [dim] | [_, dim] if *dim == self.dim) {
            let (got, dim) = (text_of(input.shape()), self.dim);
            let text = format!("`plan` has shape {got}, expected ({dim},) or (n, {dim})");
            return Err(argument_error(py, text));
        }
        in_precision!(input.precision(), extend_in(py, self, &input))
    }

    fn get_ema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // A copy, and the lock is let go: what makes the array may run Python code.
        let plan = self.lock(py).plan().map(<[f64]>::to_vec);
        let plan = plan.ok_or_else(|| {
            let text = "there is no average before the first `update`; `initialized` tells";
            argument_error(py, text)
        })?;
        array(py, &plan)
    }

    fn reset(&self, py: Python<'_>) {
        self.lock(py).clear();
    }

    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let average = self.lock(py).clone();
        let state = PyDict::new(py);
        state.set_item("decay", average.decay())?;
        state.set_item("count", average.count())?;
        state.set_item("ema", array(py, average.raw())?)?;
        Ok(state)
    }

    fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = state.py();
        let item = |name: &str| {
            state
                .get_item(name)?
                .ok_or_else(|| argument_error(py, format!("`state` has no {name:?}")))
        };
        let plan = Input::following("ema", &item("ema")?, Precision::Double)?;
        if plan.shape() != [self.dim] {
            let (got, dim) = (text_of(plan.shape()), self.dim);
            let text = format!("`state`[\"ema\"] has shape {got}, expected ({dim},)");
            return Err(argument_error(py, text));
        }
        let (decay, count) = (item("decay")?.extract()?, item("count")?.extract()?);
        let plan = plan.numbers::<f64>().to_vec();
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
        loop {
            if let Some(average) = self.average.try_lock() {
                return average;
            }
            // Whoever has it holds it for a batch at most, and needs no GIL for that.
            py.detach(|| drop(self.average.lock()));
        }
    }
}

fn extend_in<T: Number>(
    py: Python<'_>,
    tracker: &EMAPlanTracker,
    input: &Input<'_>,
) -> PyResult<()> {
    let plans = input.numbers::<T>();
    detached(py, plans.len(), || tracker.average.lock().extend(plans))
        .map_err(|error| refused(py, error))
}

fn array<'py>(py: Python<'py>, numbers: &[f64]) -> PyResult<Bound<'py, PyAny>> {
    let mut result = Output::<f64>::new(py, &[numbers.len()], Kind::Numpy)?;
    result.numbers().copy_from_slice(numbers);
    Ok(result.into_numpy())
}

/// ``surprise_weight * |plan - ema_plan|**2 + reward_weight * |reward|``, in double precision.
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
    let mut out = [0.0];
    in_precision!(plan.precision(), score_in(py, &plan, &average, &[reward], weights, &mut out))?;
    Ok(out[0])
}

/// [`plan_surprise`] of each row of plans.
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
        let (got, plans) = (text_of(shape), text_of(plans.shape()));
        let text = format!(
            "`{name}` has shape {got}, expected ({expected},) beside `plans` of shape {plans}"
        );
        Err(argument_error(py, text))
    };
    expect("ema_plan", average.shape(), dim)?;
    expect("rewards", rewards.shape(), count)?;
    let mut result = Output::<f64>::new(py, &[count], Kind::Numpy)?;
    let (rewards, out) = (rewards.numbers::<f64>(), result.numbers());
    in_precision!(plans.precision(), score_in(py, &plans, &average, rewards, weights, out))?;
    Ok(result.into_numpy())
}

fn score_in<T: Number>(
    py: Python<'_>,
    plans: &Input<'_>,
    average: &Input<'_>,
    rewards: &[f64],
    weights: Weights,
    out: &mut [f64],
) -> PyResult<()> {
    let (plans, average) = (plans.numbers::<T>(), average.numbers::<f64>());
    detached(py, plans.len(), move || surprise(plans, average, rewards, weights, out))
        .map_err(|error| refused(py, error))
}

/// ``|cur - prev|**2 / (2 * sigma_squared)``: the KL divergence of two normal distributions.
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
    let mut out = [0.0];
    let dim = cur.len();
    in_precision!(cur.precision(), diverge_in(py, &cur, &prev, dim, variance, &mut out))?;
    Ok(out[0])
}

/// [`temporal_kl`] of each pair of rows.
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
    let mut result = Output::<f64>::new(py, &[count], Kind::Numpy)?;
    let out = result.numbers();
    in_precision!(cur.precision(), diverge_in(py, &cur, &prev, dim, variance, out))?;
    Ok(result.into_numpy())
}

fn diverge_in<T: Number>(
    py: Python<'_>,
    cur: &Input<'_>,
    prev: &Input<'_>,
    dim: usize,
    variance: f64,
    out: &mut [f64],
) -> PyResult<()> {
    let (cur, prev) = (cur.numbers::<T>(), prev.numbers::<T>());
    detached(py, cur.len(), move || divergence(cur, prev, dim, variance, out))
        .map_err(|error| refused(py, error))
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
