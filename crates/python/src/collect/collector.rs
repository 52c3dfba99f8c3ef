//! A thread that collects rollouts.

use echoic_collect::collector::Collector as Core;
use echoic_collect::policy::Policy;
use echoic_collect::rollout::{Plan, Worker};
use numpy::{PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::rollout::as_dict;
use super::rows;
use crate::error::OrRaise;
use crate::fork::Process;
use crate::wait::{deadline, until};

/// The thread behind :class:`echoic.collectors.CandleCollector`, which documents it.
#[pyclass(frozen, module = "echoic._native")]
pub struct Collector {
    /// There until the drop.
    core: Option<Core>,
    process: Process,
}

impl Collector {
    fn core(&self, py: Python<'_>) -> PyResult<&Core> {
        self.process.check(py)?;
        Ok(self.core.as_ref().expect("it is there until the drop"))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // The thread is the parent's, and so is whoever holds the lock.
        if let Some(core) = self.core.take()
            && !self.process.is_current()
        {
            core.forget();
        }
    }
}

#[pymethods]
impl Collector {
    #[new]
    #[pyo3(signature = (
        env_id, n_envs, obs_dim, n_actions, n_steps, hidden, gamma, lam, seed, capacity
    ))]
    #[expect(clippy::too_many_arguments, reason = "the facade names them all")]
    fn new(
        py: Python<'_>,
        env_id: &str,
        n_envs: usize,
        obs_dim: usize,
        n_actions: usize,
        n_steps: usize,
        hidden: usize,
        gamma: f32,
        lam: f32,
        seed: u64,
        capacity: usize,
    ) -> PyResult<Self> {
        let env = env_id.to_owned();
        let started = py.detach(move || {
            let layout = Worker::layout(&env, obs_dim, n_actions, hidden)?;
            let plan = Plan { env, envs: n_envs, steps: n_steps, gamma, lambda: lam, seed };
            Core::start(plan, layout, capacity)
        });
        let core = Some(started.or_raise(py)?);
        Ok(Self { core, process: Process::current() })
    }

    /// Return the next rollout, waiting until it is complete.
    fn recv<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        min_version: u64,
        flat: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (core, deadline) = (self.core(py)?, deadline(timeout)?);
        let taken = until(py, deadline, |wait| core.receive(min_version, wait))?;
        as_dict(py, taken, flat)
    }

    /// Give new weights; return their version.
    fn sync_weights(&self, py: Python<'_>, weights: PyReadonlyArray1<'_, f32>) -> PyResult<u64> {
        let core = self.core(py)?;
        let weights = weights.as_array().to_vec();
        py.detach(|| core.sync(weights)).or_raise(py)
    }

    /// Return a copy of the weights that were given last.
    fn get_weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let core = self.core(py)?;
        let weights = py.detach(|| core.weights());
        Ok(PyArray1::from_slice(py, &weights))
    }

    /// Return the actor's outputs and the values of rows of observations.
    #[expect(clippy::type_complexity, reason = "two arrays")]
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        observations: PyReadonlyArray2<'_, f32>,
    ) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<f32>>)> {
        let core = self.core(py)?;
        let layout = core.layout();
        let (count, width) = observations.as_array().dim();
        if width != layout.observation {
            let expected = layout.observation;
            let message = format!("observations: expected rows of {expected}, got rows of {width}");
            return Err(crate::error::spec_error(py, message));
        }
        let observations: Vec<f32> = observations.as_array().iter().copied().collect();
        let mut outputs = vec![0.0; count * layout.outputs];
        let mut values = vec![0.0; count];
        py.detach(|| {
            core.policy()
                .map(|mut policy| policy.evaluate(&observations, &mut outputs, &mut values))
        })
        .or_raise(py)?;
        Ok((rows(py, outputs, layout.outputs)?, PyArray1::from_vec(py, values)))
    }

    /// Whether actions are numbers with a fraction.
    #[getter]
    fn continuous(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.core(py)?.layout().continuous)
    }

    /// Whether there will be no more rollouts.
    #[getter]
    fn stopped(&self, py: Python<'_>) -> PyResult<bool> {
        let core = self.core(py)?;
        Ok(py.detach(|| core.is_stopped()))
    }

    /// End the thread.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let core = self.core(py)?;
        py.detach(|| core.stop());
        Ok(())
    }
}
