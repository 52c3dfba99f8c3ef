//! Trajectories put together step by step in memory that is made once.

use echoic_replay::Leaf;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::array::{self, is_shared};
use crate::error::trajectory_error;
use crate::leaf::{ShapeRule, Source};
use crate::memory::Memory;
use crate::spec::core_spec;
use crate::tree::Tree;

/// How a leaf of a part is filled, decided by the first value it gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The leading axis is time: every value is one step.
    Step,
    /// The value is the whole leaf.
    Whole,
}

/// Steps as long as the leaf was not given as a whole, and the other way round.
struct StepOrWhole<'a> {
    decided: Option<&'a [Kind]>,
    /// Of the leaves seen in this walk.
    kinds: Vec<Kind>,
}

impl ShapeRule for StepOrWhole<'_> {
    fn accepts(&mut self, leaf: &Leaf, shape: &[usize]) -> bool {
        let kind = if shape == leaf.shape {
            Kind::Whole
        } else if leaf.shape.split_first().is_some_and(|(_, step)| shape == step) {
            Kind::Step
        } else {
            return false;
        };
        let decided = self.decided.and_then(|kinds| kinds.get(self.kinds.len()));
        if decided.is_some_and(|decided| *decided != kind) {
            return false;
        }
        self.kinds.push(kind);
        true
    }

    fn expected(&self, leaf: &Leaf) -> String {
        let whole = format!("{:?}", leaf.shape);
        let decided = self.decided.and_then(|kinds| kinds.get(self.kinds.len()));
        match (decided, leaf.shape.split_first()) {
            (Some(Kind::Step), Some((_, step))) => format!("{step:?} (one step of {whole})"),
            (None, Some((_, step))) => format!("{step:?} (one step) or {whole} (the whole leaf)"),
            _ => whole,
        }
    }
}

/// One name of the example.
struct Part {
    name: Py<PyString>,
    tree: Tree,
    /// The leaves one after the other, each aligned.
    memory: Py<Memory>,
    /// Where each leaf starts.
    offsets: Vec<usize>,
    /// Bytes of each leaf.
    leaf_bytes: Vec<usize>,
    nbytes: usize,
    /// In the order in which the leaves are walked; `None` before the first value.
    kinds: Option<Vec<Kind>>,
    /// How many values make the part full, once its kinds are known.
    capacity: Option<usize>,
    filled: usize,
}

/// Puts trajectories together step by step, in memory that is made once.
///
/// The example has named parts. In each, a leaf whose values have the leaf's shape without its
/// first axis is filled step by step along that axis; a leaf that gets values of its full shape is
/// set as a whole. The first value of a trajectory decides which.
///
/// Examples:
///     >>> import numpy as np
///     >>> from echoic.echo import TrajectoryAccumulator
///     >>> steps = {"obs": np.zeros((3, 2), np.float32), "reward": np.zeros(3, np.float32)}
///     >>> buf = TrajectoryAccumulator({"step": steps, "last_obs": np.zeros(2, np.float32)})
///     >>> for t in range(3):
///     ...     buf.add("step", {"obs": np.full(2, t, np.float32), "reward": float(t)})
///     >>> buf.add("last_obs", np.full(2, 3, np.float32))
///     >>> buf.fill
///     {'step': (3, 3), 'last_obs': (1, 1)}
///     >>> buf.build()["step"]["reward"]
///     array([0., 1., 2.], dtype=float32)
#[pyclass(module = "echoic.echo")]
pub struct TrajectoryAccumulator {
    parts: Vec<Part>,
}

#[pymethods]
impl TrajectoryAccumulator {
    #[new]
    fn new(example: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = example.py();
        if example.is_empty() {
            return Err(trajectory_error(py, "the example has no parts: give a dict of trees"));
        }
        let parts = example.iter().map(|(name, value)| {
            let Ok(name) = name.cast_into::<PyString>() else {
                return Err(trajectory_error(py, "the parts of the example need string names"));
            };
            let tree = Tree::compile(&value, &name.to_cow()?)?;
            let leaf_bytes = core_spec(py, &tree)?.leaf_bytes().to_vec();
            let mut nbytes = 0usize;
            let mut offsets = Vec::with_capacity(leaf_bytes.len());
            for bytes in &leaf_bytes {
                offsets.push(nbytes);
                let end = bytes.checked_next_multiple_of(64).and_then(|b| nbytes.checked_add(b));
                nbytes = end.ok_or_else(|| PyMemoryError::new_err("the example is too large"))?;
            }
            let memory = Memory::new(py, nbytes)?;
            let (name, kinds, capacity, filled) = (name.unbind(), None, None, 0);
            Ok(Part { name, tree, memory, offsets, leaf_bytes, nbytes, kinds, capacity, filled })
        });
        Ok(Self { parts: parts.collect::<PyResult<_>>()? })
    }

    /// Add one step to a part, or set it.
    ///
    /// Raises:
    ///     TrajectoryError: The part is full, or there is no such part.
    ///     SpecError: The value does not fit. Nothing of it is kept.
    fn add(&mut self, name: &Bound<'_, PyString>, step: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = name.py();
        let wanted = name.to_cow()?;
        let mut names = self.parts.iter().map(|part| part.name.bind(py).to_cow());
        let Some(at) = names.position(|name| name.is_ok_and(|name| name == wanted)) else {
            let names: Vec<_> = self.parts.iter().map(|part| format!("`{}`", part.name)).collect();
            let message = format!("there is no part `{wanted}`; there are {}", names.join(", "));
            return Err(trajectory_error(py, message));
        };
        self.parts[at].add(py, step)
    }

    /// Hand out the finished trajectory, without copying it, and begin a new one.
    ///
    /// The arrays are the accumulator's own. Those that are kept stay unchanged: the next
    /// trajectory then goes into fresh memory, otherwise into the same.
    ///
    /// Raises:
    ///     TrajectoryError: A part is not full; the message says which and by how much.
    fn build<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let short = self.parts.iter().filter(|part| !part.is_full());
        let short: Vec<String> = short.map(Part::describe).collect();
        if !short.is_empty() {
            let message = format!("the trajectory is not complete: {}", short.join(", "));
            return Err(trajectory_error(py, message));
        }
        let trajectory = PyDict::new(py);
        for part in &self.parts {
            trajectory.set_item(&part.name, part.build(py)?)?;
        }
        self.reset();
        Ok(trajectory)
    }

    /// Forget the steps of the unfinished trajectory.
    fn reset(&mut self) {
        for part in &mut self.parts {
            part.filled = 0;
            part.kinds = None;
            part.capacity = None;
        }
    }

    /// For each part, how much it has of how much; ``None`` before its first value.
    #[getter]
    fn fill<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fill = PyDict::new(py);
        for part in &self.parts {
            let state = (part.filled, part.capacity).into_pyobject(py)?;
            fill.set_item(&part.name, state.cast_into::<PyTuple>()?)?;
        }
        Ok(fill)
    }

    /// Whether :meth:`build` would succeed.
    #[getter]
    fn is_full(&self) -> bool {
        self.parts.iter().all(Part::is_full)
    }

    fn __repr__(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(Part::describe).collect();
        format!("TrajectoryAccumulator({})", parts.join(", "))
    }
}

impl Part {
    fn is_full(&self) -> bool {
        self.capacity == Some(self.filled)
    }

    fn describe(&self) -> String {
        match self.capacity {
            Some(capacity) => format!("`{}` has {} of {capacity}", self.name, self.filled),
            None => format!("`{}` is empty", self.name),
        }
    }

    fn add(&mut self, py: Python<'_>, step: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_full() {
            let message = format!(
                "part `{}` is full: it has {} of {}; call build() or reset() first",
                self.name, self.filled, self.filled
            );
            return Err(trajectory_error(py, message));
        }
        let mut shapes = StepOrWhole { decided: self.kinds.as_deref(), kinds: Vec::new() };
        let mut sources = Vec::with_capacity(self.offsets.len());
        self.tree.gather(step, &mut shapes, &mut sources)?;
        let kinds = shapes.kinds;
        if self.kinds.is_none() {
            self.capacity = Some(self.agree_on_capacity(py, &sources, &kinds)?);
            if self.is_full() {
                self.reset_kinds();
                let message = format!("part `{}` has a time axis of length 0", self.name);
                return Err(trajectory_error(py, message));
            }
            // Someone still has the last trajectory: it stays as it is, and this one goes elsewhere.
            if is_shared(self.memory.bind(py)) {
                self.memory = Memory::new(py, self.nbytes)?;
            }
            self.kinds = Some(kinds.clone());
        }
        for source in &sources {
            source.recheck(py, &self.tree.rules[source.leaf])?;
        }
        for (source, kind) in sources.iter().zip(kinds) {
            self.write(py, source, kind)?;
        }
        self.filled += 1;
        Ok(())
    }

    fn reset_kinds(&mut self) {
        self.kinds = None;
        self.capacity = None;
    }

    /// The common length of the time axes, or 1 when every leaf was given as a whole.
    fn agree_on_capacity(
        &self,
        py: Python<'_>,
        sources: &[Source],
        kinds: &[Kind],
    ) -> PyResult<usize> {
        let leaf = |source: &Source| &self.tree.rules[source.leaf].leaf;
        let mut steps = sources
            .iter()
            .zip(kinds)
            .filter(|(_, kind)| **kind == Kind::Step)
            .map(|(source, _)| leaf(source));
        let Some(first) = steps.next() else { return Ok(1) };
        match steps.find(|other| other.shape[0] != first.shape[0]) {
            None => Ok(first.shape[0]),
            Some(other) => {
                let message =
                    format!("the time axes of part `{}` differ: {first} and {other}", self.name);
                Err(trajectory_error(py, message))
            }
        }
    }

    fn write(&mut self, py: Python<'_>, source: &Source, kind: Kind) -> PyResult<()> {
        let bytes = self.leaf_bytes[source.leaf];
        let start = self.offsets[source.leaf];
        let (offset, len) = match kind {
            Kind::Whole => (start, bytes),
            Kind::Step => {
                let step = bytes / self.tree.rules[source.leaf].leaf.shape[0];
                (start + self.filled * step, step)
            }
        };
        // SAFETY: the shape rule accepted a value of `len` bytes, rechecked just now.
        let written = Memory::write(&mut self.memory, py, offset, len, |to| unsafe {
            source.copy_to(0, to);
        });
        // No array refers to the memory between a trajectory's first value and its `build`.
        if written { Ok(()) } else { Err(trajectory_error(py, "the memory is in use")) }
    }

    fn build<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let memory = self.memory.bind(py);
        self.tree.build(py, &mut |leaf| {
            let rule = &self.tree.rules[leaf];
            let data = memory.get().pointer().wrapping_add(self.offsets[leaf]);
            // SAFETY: the leaf's bytes are at its offset. We write to the memory only while no
            // array has it as its base.
            unsafe { array::view(py, rule.descr.bind(py), &rule.leaf.shape, data, memory.as_any()) }
        })
    }
}
