//! A rollout as arrays over its own memory, which goes back to the collector when the last is gone.
//!
//! # Invariants
//!
//! 1. A [`Place`] is that of a vector of the rollout that the owner of its array has, and `as_dict`, the
//!    only one who makes any, gives each to one array.
//! 2. The owner neither touches nor moves what its vectors hold before it is dropped, and every array
//!    keeps it.
//! 3. Whoever fills a rollout again writes each element before anyone reads it: Python code may have
//!    left any bytes there, also where flags are.

use echoic_collect::collector::Taken;
use echoic_collect::rollout;
use numpy::{Element, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array;
use crate::fork::Process;

/// What keeps the memory of a rollout.
#[pyclass(frozen, module = "echoic._native")]
struct RolloutMemory {
    taken: Option<Taken>,
    process: Process,
}

impl Drop for RolloutMemory {
    fn drop(&mut self) {
        // In a forked child nobody gives the memory back, and its lock may never be free.
        if let Some(taken) = self.taken.take()
            && !self.process.is_current()
        {
            std::mem::forget(taken);
        }
    }
}

/// Where a vector's elements are, and how many.
struct Place<T> {
    start: *mut T,
    len: usize,
}

impl<T: Element> Place<T> {
    fn of(elements: &mut [T]) -> Self {
        Self { start: elements.as_mut_ptr(), len: elements.len() }
    }

    /// An array over all of them.
    fn array<'py>(
        self,
        owner: &Bound<'py, RolloutMemory>,
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, start) = (owner.py(), self.start.cast());
        assert_eq!(shape.iter().product::<usize>(), self.len, "the shape of a rollout");
        // SAFETY: the elements are as many as the shape has. By invariants 1 and 2 they are valid until
        // the owner is dropped, and nobody else reads or writes them.
        unsafe { array::view(py, &T::get_dtype(py), shape, start, owner.as_any()) }
    }
}

/// The rollout as a dict. Arrays have an axis for steps and one for environments, or one for both.
pub fn as_dict<'py>(py: Python<'py>, mut taken: Taken, flat: bool) -> PyResult<Bound<'py, PyDict>> {
    enum Actions {
        Discrete(Place<i64>),
        Continuous(Place<f32>),
    }
    let (steps, envs, version) = (taken.steps, taken.envs, taken.version);
    let batch = PyDict::new(py);
    let episode_returns = PyArray1::from_slice(py, &taken.episode_returns);
    let episode_lengths = PyArray1::from_slice(py, &taken.episode_lengths);
    let observations = Place::of(&mut taken.observations);
    let actions = match &mut taken.actions {
        rollout::Taken::Discrete(actions) => Actions::Discrete(Place::of(actions)),
        rollout::Taken::Continuous(actions) => Actions::Continuous(Place::of(actions)),
    };
    let numbers = [
        ("rewards", Place::of(&mut taken.rewards)),
        ("dones", Place::of(&mut taken.dones)),
        ("log_probs", Place::of(&mut taken.log_probs)),
        ("values", Place::of(&mut taken.values)),
        ("advantages", Place::of(&mut taken.advantages)),
        ("returns", Place::of(&mut taken.returns)),
    ];
    let flags = [
        ("terminated", Place::of(&mut taken.terminated)),
        ("truncated", Place::of(&mut taken.truncated)),
    ];
    let last_values = Place::of(&mut taken.last_values);
    let memory = RolloutMemory { taken: Some(taken), process: Process::current() };
    let owner = &Bound::new(py, memory)?;

    let lead = if flat { vec![steps * envs] } else { vec![steps, envs] };
    let rows = |len: usize| [&lead[..], &[len / (steps * envs)]].concat();
    let shape = rows(observations.len);
    batch.set_item("observations", observations.array(owner, &shape)?)?;
    let actions = match actions {
        Actions::Discrete(actions) => actions.array(owner, &lead)?,
        Actions::Continuous(actions) => {
            let shape = rows(actions.len);
            actions.array(owner, &shape)?
        }
    };
    batch.set_item("actions", actions)?;
    for (name, elements) in numbers {
        batch.set_item(name, elements.array(owner, &lead)?)?;
    }
    for (name, elements) in flags {
        batch.set_item(name, elements.array(owner, &lead)?)?;
    }
    batch.set_item("last_values", last_values.array(owner, &[envs])?)?;
    batch.set_item("episode_returns", episode_returns)?;
    batch.set_item("episode_lengths", episode_lengths)?;
    batch.set_item("n_steps", steps)?;
    batch.set_item("n_envs", envs)?;
    batch.set_item("version", version)?;
    Ok(batch)
}
