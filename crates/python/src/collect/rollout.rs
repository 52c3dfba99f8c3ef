//! A rollout as arrays over its own memory, which goes back to the collector when the last is gone.
//!
//! # Invariants
//!
//! 1. A [`RawSlice`] is that of a vector of the rollout that the owner of its array has, and `as_dict`, the
//!    only one who makes any, gives each to one array.
//! 2. The owner neither touches nor moves what its vectors hold before it is dropped, and every array
//!    keeps it.
//! 3. Whoever fills a rollout again writes each element before anyone reads it: Python code may have
//!    left any bytes there, also where flags are.

use echoic_collect::collector::Taken;
use echoic_collect::rollout;
use numpy::{Element, PyArray1, PyArrayDescr};
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

/// Where a vector's elements are, how many, and of which dtype.
struct RawSlice<'py> {
    start: *mut u8,
    len: usize,
    descr: Bound<'py, PyArrayDescr>,
}

impl<'py> RawSlice<'py> {
    fn of<T: Element>(py: Python<'py>, elements: &mut [T]) -> Self {
        let (start, len) = (elements.as_mut_ptr().cast(), elements.len());
        Self { start, len, descr: T::get_dtype(py) }
    }

    /// An array over all of them.
    fn array(
        self,
        owner: &Bound<'py, RolloutMemory>,
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        assert_eq!(shape.iter().product::<usize>(), self.len, "the shape of a rollout");
        // SAFETY: the elements are as many as the shape has. By invariants 1 and 2 they are valid until
        // the owner is dropped, and nobody else reads or writes them.
        unsafe { array::view(owner.py(), &self.descr, shape, self.start, owner.as_any()) }
    }
}

/// The rollout as a dict. Arrays have an axis for steps and one for environments, or one for both.
pub fn as_dict<'py>(py: Python<'py>, mut taken: Taken, flat: bool) -> PyResult<Bound<'py, PyDict>> {
    let (steps, envs, version) = (taken.steps, taken.envs, taken.version);
    let episode_returns = PyArray1::from_slice(py, &taken.episode_returns);
    let episode_lengths = PyArray1::from_slice(py, &taken.episode_lengths);
    let (actions, are_rows) = match &mut taken.actions {
        rollout::Taken::Discrete(actions) => (RawSlice::of(py, actions), false),
        rollout::Taken::Continuous(actions) => (RawSlice::of(py, actions), true),
    };
    // What there is for each step, and whether that is a row of numbers.
    let columns = [
        ("observations", RawSlice::of(py, &mut taken.observations), true),
        ("actions", actions, are_rows),
        ("rewards", RawSlice::of(py, &mut taken.rewards), false),
        ("dones", RawSlice::of(py, &mut taken.dones), false),
        ("log_probs", RawSlice::of(py, &mut taken.log_probs), false),
        ("values", RawSlice::of(py, &mut taken.values), false),
        ("advantages", RawSlice::of(py, &mut taken.advantages), false),
        ("returns", RawSlice::of(py, &mut taken.returns), false),
        ("terminated", RawSlice::of(py, &mut taken.terminated), false),
        ("truncated", RawSlice::of(py, &mut taken.truncated), false),
    ];
    let last_values = RawSlice::of(py, &mut taken.last_values);
    let memory = RolloutMemory { taken: Some(taken), process: Process::current() };
    let owner = &Bound::new(py, memory)?;
    let batch = PyDict::new(py);
    for (name, elements, are_rows) in columns {
        let mut shape = if flat { vec![steps * envs] } else { vec![steps, envs] };
        shape.extend(are_rows.then_some(elements.len / (steps * envs)));
        batch.set_item(name, elements.array(owner, &shape)?)?;
    }
    batch.set_item("last_values", last_values.array(owner, &[envs])?)?;
    batch.set_item("episode_returns", episode_returns)?;
    batch.set_item("episode_lengths", episode_lengths)?;
    batch.set_item("n_steps", steps)?;
    batch.set_item("n_envs", envs)?;
    batch.set_item("version", version)?;
    Ok(batch)
}
