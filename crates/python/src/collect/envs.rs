//! Many copies of one environment, stepped together.

use echoic_collect::env::{Actions, Info, Space};
use echoic_collect::vector::{Autoreset, Envs, Outcome, open};
use echoic_memory::sync::Mutex;
use numpy::{PyArray1, PyArray2, PyReadonlyArrayDyn};
use pyo3::prelude::*;

use super::rows;
use crate::error::OrRaise;
use crate::error::spec_error;

/// Above so many environments a step takes longer than it takes to give the GIL away and get it back.
const DETACH: usize = 64;

/// The environments behind :class:`echoic.collectors.VectorEnv`, which documents them.
#[pyclass(frozen, module = "echoic._native")]
pub struct Environments {
    envs: Mutex<Box<dyn Envs>>,
    info: &'static Info,
    count: usize,
}

type Stepped<'py> = (
    Bound<'py, PyArray2<f32>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<bool>>,
    Bound<'py, PyArray1<bool>>,
    Option<Bound<'py, PyArray2<f32>>>,
);

impl Environments {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut dyn Envs) -> Result<T, echoic_collect::Error> + Send,
    ) -> PyResult<T> {
        let run = || {
            let mut envs = self.envs.lock();
            run(&mut **envs)
        };
        let result = if self.count >= DETACH { py.detach(run) } else { run() };
        result.or_raise(py)
    }
}

/// The elements of an array, which Python code may change at any time once the GIL is given away.
fn copied<T: numpy::Element + Copy>(
    actions: &Bound<'_, PyAny>,
    expected: &str,
) -> PyResult<Vec<T>> {
    let refused = || {
        let class = actions.get_type();
        let got = actions.getattr("dtype").map_or_else(|_| class.to_string(), |d| d.to_string());
        spec_error(actions.py(), format!("actions: expected an array of {expected}, got {got}"))
    };
    let array: PyReadonlyArrayDyn<'_, T> = actions.extract().map_err(|_| refused())?;
    Ok(match array.as_slice() {
        Ok(elements) => elements.to_vec(),
        Err(_) => array.as_array().iter().copied().collect(),
    })
}

#[pymethods]
impl Environments {
    #[new]
    #[pyo3(signature = (env_id, num_envs, autoreset, max_episode_steps))]
    fn new(
        py: Python<'_>,
        env_id: &str,
        num_envs: usize,
        autoreset: &str,
        max_episode_steps: Option<u32>,
    ) -> PyResult<Self> {
        let autoreset = match autoreset {
            "NextStep" => Autoreset::NextStep,
            "SameStep" => Autoreset::SameStep,
            "Disabled" => Autoreset::Disabled,
            other => {
                let expected = "`NextStep`, `SameStep` or `Disabled`";
                let message = format!("autoreset_mode: expected {expected}, got `{other}`");
                return Err(spec_error(py, message));
            }
        };
        let envs = open(env_id, num_envs, autoreset, max_episode_steps).or_raise(py)?;
        Ok(Self { info: envs.info(), count: envs.len(), envs: Mutex::new(envs) })
    }

    /// The least and the most that each number of an observation can be.
    #[getter]
    fn bounds(&self) -> (Vec<f32>, Vec<f32>) {
        self.info.observation.iter().copied().unzip()
    }

    /// How many actions there are, if they are counted.
    #[getter]
    fn discrete(&self) -> Option<usize> {
        if let Space::Discrete(count) = self.info.actions { Some(count) } else { None }
    }

    /// How many numbers an action has, and the least and the most of each, if it has any.
    #[getter]
    fn continuous(&self) -> Option<(usize, f32, f32)> {
        if let Space::Box { len, low, high } = self.info.actions {
            Some((len, low, high))
        } else {
            None
        }
    }

    /// Where each number of a first state is drawn from.
    #[getter]
    fn start(&self) -> Vec<(f64, f64)> {
        self.info.start.to_vec()
    }

    /// After how many steps an episode is cut off, if nothing else was said.
    #[getter]
    fn limit(&self) -> u32 {
        self.info.limit
    }

    /// Have environments draw from the streams of these seeds, where they have one.
    fn seed(&self, py: Python<'_>, seeds: Vec<Option<u64>>) -> PyResult<()> {
        if seeds.len() != self.count {
            let (expected, got) = (self.count, seeds.len());
            return Err(spec_error(py, format!("seed: expected {expected} seeds, got {got}")));
        }
        self.with(py, |envs| {
            for (env, seed) in seeds.into_iter().enumerate() {
                if let Some(seed) = seed {
                    envs.seed(env, seed);
                }
            }
            Ok(())
        })
    }

    /// Begin episodes, with states or at random; return all observations.
    fn reset<'py>(
        &self,
        py: Python<'py>,
        mask: Option<Vec<bool>>,
        start: Option<Vec<(f64, f64)>>,
        states: Option<Vec<f64>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let mut observations = vec![0.0; self.count * self.info.observation.len()];
        self.with(py, |envs| {
            match states {
                Some(states) => envs.set_states(mask.as_deref(), &states)?,
                None => envs.reset(mask.as_deref(), start.as_deref())?,
            }
            envs.observe(&mut observations)
        })?;
        rows(py, observations, self.info.observation.len())
    }

    /// Go on by a step; return what it gave, and the last observations of ended episodes.
    fn step<'py>(&self, py: Python<'py>, actions: &Bound<'py, PyAny>) -> PyResult<Stepped<'py>> {
        let (count, width) = (self.count, self.info.observation.len());
        let (mut observations, mut finals) = (vec![0.0; count * width], Vec::new());
        let (mut rewards, mut terminated, mut truncated) =
            (vec![0.0; count], vec![false; count], vec![false; count]);
        let outcome = Outcome {
            observations: &mut observations,
            rewards: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut truncated,
            finals: &mut finals,
        };
        match self.info.actions {
            Space::Discrete(_) => {
                let actions = copied(actions, "int64")?;
                self.with(py, |envs| envs.step(Actions::Discrete(&actions), outcome))?;
            }
            Space::Box { .. } => {
                let actions = copied(actions, "float32")?;
                self.with(py, |envs| envs.step(Actions::Continuous(&actions), outcome))?;
            }
        }
        let finals = (!finals.is_empty()).then(|| rows(py, finals, width)).transpose()?;
        Ok((
            rows(py, observations, width)?,
            PyArray1::from_vec(py, rewards),
            PyArray1::from_vec(py, terminated),
            PyArray1::from_vec(py, truncated),
            finals,
        ))
    }

    /// Return the states, a row for each environment.
    fn states<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let states = self.with(py, |envs| Ok(envs.states()))?;
        rows(py, states, self.info.start.len())
    }
}
