//! Data sets that do not change.

use std::ops::Range;

use echoic_buffers::Error as BufferError;
use echoic_buffers::offline::column::{Axis, Column};
use echoic_buffers::offline::episodes::Summary;
use echoic_buffers::offline::given::Given;
use echoic_buffers::offline::normal::Normal;
use echoic_buffers::offline::{Dataset, Output};
use echoic_memory::sync::Mutex;
use echoic_replay::rng::Rng;
use numpy::PyArray1;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::form::targets_of;
use super::rows::detached;
use crate::array::{self, Header};
use crate::batch::{Batch, Device};
use crate::columns::{Plan, filled, view};
use crate::error::{replay_error, spec_error};
use crate::fork::Process;
use crate::leaf::LeafRule;
use crate::memory::Arena;
use crate::tree::Tree;

/// The native part of :class:`echoic.OfflineDataset`.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct OfflineDataset {
    dataset: Dataset,
    steps: Form,
    windows: Form,
    /// What an observation looks like.
    observation: Tree,
    on_disk: bool,
    /// The addresses of columns that are not copied, which nobody may write to.
    borrowed: Vec<Range<usize>>,
    arena: Arena,
    own: Mutex<(Process, Rng)>,
}

/// The form of a batch.
struct Form {
    tree: Tree,
    /// What each leaf of the tree is.
    outputs: Vec<Output>,
}

fn dataset_error(py: Python<'_>, error: &BufferError) -> PyErr {
    match error {
        BufferError::Memory(_) => PyMemoryError::new_err(error.to_string()),
        _ => spec_error(py, error.to_string()),
    }
}

#[pymethods]
impl OfflineDataset {
    #[new]
    #[pyo3(signature = (data, step, window, *, normalize, gamma, copied, seed))]
    #[expect(clippy::too_many_arguments, reason = "most are keywords in Python")]
    fn new(
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        step: &Bound<'_, PyAny>,
        window: &Bound<'_, PyAny>,
        normalize: bool,
        gamma: f64,
        copied: bool,
        seed: u64,
    ) -> PyResult<Self> {
        static MAPPED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let mapped = MAPPED.import(py, "numpy", "memmap")?;
        let mut columns = Vec::new();
        Tree::compile_with(data, &mut |path, leaf| {
            let mut rule = LeafRule::from_example(path, leaf)?;
            if rule.leaf.shape.is_empty() {
                let text = format!("leaf `{}`: expected a row for each step", rule.leaf.path);
                return Err(spec_error(py, text));
            }
            rule.leaf.shape.remove(0);
            let row_bytes = rule.leaf.nbytes().unwrap_or(usize::MAX);
            // SAFETY: arrays that were copied for this are known to nobody else; of others, and of files that are
            // mapped, the class demands of its users that they are not changed while it is there.
            let borrowed = unsafe { Borrowed::of(leaf) }?;
            columns.push(Column {
                name: rule.leaf.path.clone(),
                dtype: rule.leaf.dtype,
                bytes: Box::new(borrowed),
                row_bytes,
                axis: Axis::Steps,
                on_disk: !copied && leaf.is_instance(mapped)?,
                normal: None,
            });
            Ok(rule)
        })?;
        let mut given = Given::new(columns);
        let mut form = |example: &Bound<'_, PyAny>| -> PyResult<Form> {
            let tree = Tree::compile(example, "")?;
            let outputs = tree.rules.iter().map(|rule| given.output(&rule.leaf.path));
            let outputs = outputs.collect::<Result<_, _>>();
            Ok(Form { outputs: outputs.map_err(|error| dataset_error(py, &error))?, tree })
        };
        let (steps, windows) = (form(step)?, form(window)?);
        let on_disk = given.on_disk();
        let borrowed = if copied { Vec::new() } else { given.addresses() };
        let observation = Tree::compile(&step.get_item("obs")?, "obs")?;
        let dataset = py.detach(|| given.dataset(copied, normalize, gamma));
        let dataset = dataset.map_err(|error| dataset_error(py, &error))?;
        Ok(Self {
            dataset,
            steps,
            windows,
            observation,
            on_disk,
            borrowed,
            arena: Arena::default(),
            own: Mutex::new((Process::current(), Rng::new(seed))),
        })
    }

    /// Draw steps, each from all of them, whatever was drawn before.
    ///
    /// Args:
    ///     n: How many, also more than there are.
    ///     seed: The same seed gives the same batch, on every machine and in every release: the
    ///         numbers ``Rng(seed).below(len)`` of xoshiro256++. Without one the steps come from
    ///         the buffer's own stream, which goes on with every call.
    ///     out: An earlier batch, which is returned, or a dict of arrays like its data, to be
    ///         written into.
    ///     device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
    ///         numpy arrays when ``None``.
    ///
    /// Returns:
    ///     Arrays with ``n`` rows: ``obs``, ``next_obs``, ``actions``, ``rewards``, ``terminated``,
    ///     ``truncated``, and the extras. They are the caller's to keep or change;
    ///     their memory is used again once none of them is held.
    ///
    /// Raises:
    ///     ReplayError: A number is out of range.
    ///     SpecError: ``out`` is not like a batch.
    #[pyo3(signature = (n, *, seed=None, out=None, device=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        n: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        let count = positive(py, "n", n)?;
        reserve(count)?;
        let steps = self.with_rng(py, seed, |rng| self.dataset.draw(rng, count))?;
        Batch::drawn(py, count as i64, false, out, device, |out| {
            self.batch(py, &self.steps, &steps, &[count], self.on_disk, out)
        })
    }

    /// Draw stretches of episodes, for models of sequences.
    ///
    /// A stretch begins at a step drawn as by :meth:`sample` and ends after ``length`` steps, or
    /// with its episode. What is missing then is zeros, in all columns.
    ///
    /// Args:
    ///     n: How many stretches.
    ///     length: How many steps of each.
    ///     seed: As of :meth:`sample`.
    ///     padding: Whether zeros stand behind the steps or before them.
    ///     out: As of :meth:`sample`.
    ///     device: As of :meth:`sample`.
    ///
    /// Returns:
    ///     Arrays of shape ``(n, length, ...)``: ``obs``, ``actions``, ``rewards``,
    ///     ``returns_to_go`` (the discounted sum of rewards to the end of the episode, also where
    ///     the stretch ends before it), ``timesteps`` (int64, from the start of the episode),
    ///     ``mask`` (whether there is a step), ``terminated``, ``truncated``, and the extras.
    ///
    /// Raises:
    ///     ReplayError: A number is out of range.
    ///     SpecError: ``out`` is not like a batch.
    #[pyo3(signature = (n, length, *, seed=None, padding="right", out=None, device=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn sample_trajectories<'py>(
        &self,
        py: Python<'py>,
        n: &Bound<'py, PyAny>,
        length: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        padding: &str,
        out: Option<&Bound<'py, PyAny>>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        let (count, length) = (positive(py, "n", n)?, positive(py, "length", length)?);
        let before = match padding {
            "right" => false,
            "left" => true,
            other => {
                let text = format!("padding: expected \"right\" or \"left\", got {other:?}");
                return Err(replay_error(py, text));
            }
        };
        reserve(count.saturating_mul(length))?;
        let steps =
            self.with_rng(py, seed, |rng| self.dataset.draw_windows(rng, count, length, before))?;
        let slow = self.on_disk || !self.dataset.has_returns_to_go();
        Batch::drawn(py, count as i64, false, out, device, |out| {
            self.batch(py, &self.windows, &steps, &[count, length], slow, out)
        })
    }

    /// Copy steps in the order of the data set.
    ///
    /// Args:
    ///     first: The first step.
    ///     n: How many.
    ///
    /// Returns:
    ///     Arrays with ``n`` rows, as of :meth:`sample`.
    ///
    /// Raises:
    ///     ReplayError: There are no such steps.
    fn _steps<'py>(&self, py: Python<'py>, first: usize, n: usize) -> PyResult<Bound<'py, PyDict>> {
        let len = self.dataset.len();
        if n == 0 || first > len || n > len - first {
            let text = format!("expected steps below {len}, got {n} from {first} on");
            return Err(replay_error(py, text));
        }
        reserve(n)?;
        let steps: Vec<usize> = (first..first + n).collect();
        self.batch(py, &self.steps, &steps, &[n], self.on_disk, None)
    }

    /// How many episodes there are, with one at the end that has no end.
    #[getter]
    fn num_episodes(&self) -> usize {
        self.dataset.episodes().len()
    }

    fn __len__(&self) -> usize {
        self.dataset.len()
    }

    /// What is known about steps and episodes.
    fn numbers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let episodes = self.dataset.episodes();
        let lengths: Vec<f64> = episodes.ranges().map(|steps| steps.len() as f64).collect();
        let (returns, lengths) = (Summary::of(self.dataset.returns()), Summary::of(&lengths));
        let numbers = PyDict::new(py);
        numbers.set_item("size", self.dataset.len())?;
        numbers.set_item("episodes", episodes.len())?;
        numbers.set_item("last_episode_complete", episodes.complete())?;
        for (name, key) in [("obs_dim", "obs"), ("act_dim", "actions")] {
            let rules = self.steps.tree.rules.iter();
            if let Some(rule) = rules.into_iter().find(|rule| rule.leaf.path == key) {
                numbers.set_item(name, rule.leaf.shape.iter().product::<usize>())?;
            }
        }
        for (name, value) in [
            ("mean_return", returns.mean),
            ("std_return", returns.std),
            ("min_return", returns.min),
            ("max_return", returns.max),
            ("mean_episode_length", lengths.mean),
        ] {
            numbers.set_item(name, value)?;
        }
        numbers.set_item("min_episode_length", lengths.min as usize)?;
        numbers.set_item("max_episode_length", lengths.max as usize)?;
        numbers.set_item("memory_bytes", self.dataset.own_bytes())?;
        Ok(numbers)
    }

    /// Return mean, standard deviation and scale of observations, each like an observation.
    fn moments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let known = py.detach(|| self.dataset.moments());
        let known = known.map_err(|error| dataset_error(py, &error))?;
        let tree = |numbers: fn(&Normal) -> &[f64]| {
            self.observation.build(py, &mut |leaf| match &known[leaf] {
                None => Ok(py.None().into_bound(py)),
                Some(normal) => {
                    let array = PyArray1::from_slice(py, numbers(normal));
                    let shape = self.observation.rules[leaf].leaf.shape.clone();
                    array.call_method1("reshape", (shape,))
                }
            })
        };
        PyTuple::new(py, [tree(Normal::mean)?, tree(Normal::std)?, tree(Normal::scale)?])
    }
}

impl OfflineDataset {
    /// Calls `draw` with the stream of a seed, or with our own.
    fn with_rng<T>(
        &self,
        py: Python<'_>,
        seed: Option<&Bound<'_, PyAny>>,
        draw: impl FnOnce(&mut Rng) -> T,
    ) -> PyResult<T> {
        if let Some(seed) = seed {
            let number = seed.extract::<u64>().map_err(|_| {
                replay_error(py, format!("seed: expected a number from 0 to 2**64 - 1, got {seed}"))
            })?;
            return Ok(draw(&mut Rng::new(number)));
        }
        let (process, rng) = &mut *self.own.lock();
        if !process.is_current() {
            // A forked child would otherwise draw what its parent and its siblings draw.
            *rng = Rng::new(rng.next() ^ u64::from(std::process::id()).rotate_left(32));
            *process = Process::current();
        }
        Ok(draw(rng))
    }

    /// What steps have, as a tree of arrays with these axes in front.
    fn batch<'py>(
        &self,
        py: Python<'py>,
        form: &Form,
        steps: &[usize],
        axes: &[usize],
        slow: bool,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let bytes = form
            .outputs
            .iter()
            .map(|output| self.dataset.bytes_of(*output).saturating_mul(steps.len()));
        let plan = Plan::new(bytes.collect())?;
        let gather = |columns: &mut [&mut [u8]]| self.dataset.gather(steps, &form.outputs, columns);
        let Some(out) = out else {
            let memory = filled(py, &self.arena, &plan, slow, gather)?;
            let batch = form.tree.build(py, &mut |leaf| {
                let rule = &form.tree.rules[leaf];
                let shape = [axes, &rule.leaf.shape[..]].concat();
                view(py, &memory, &plan, leaf, rule.descr.bind(py), &shape)
            })?;
            self.arena.give_back(memory);
            return Ok(batch.cast_into()?);
        };
        let mut targets = self.targets(py, form, axes, out)?;
        // SAFETY: contiguous, writable, apart from each other and from what is read, as was checked; they
        // are kept by `targets`, and who reads them in another thread while they are written breaks
        // numpy's own rules.
        let mut columns = unsafe { array::bytes_mut(&mut targets) };
        detached(py, if slow { usize::MAX } else { plan.total }, || gather(&mut columns));
        Ok(out.clone().cast_into()?)
    }

    /// The arrays of a batch that are to be written into.
    fn targets<'py>(
        &self,
        py: Python<'py>,
        form: &Form,
        axes: &[usize],
        out: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let targets = targets_of(&form.tree, out, axes)?;
        array::refuse_overlaps(&targets).map_err(|text| spec_error(py, text))?;
        for target in &targets {
            let Some(header) = Header::of(target) else { continue };
            let start = header.data() as usize;
            let end = start + header.nbytes().unwrap_or(usize::MAX - start);
            if self.borrowed.iter().any(|borrowed| borrowed.start < end && start < borrowed.end) {
                let text = "out has an array over the memory of the data set, which is not copied";
                return Err(spec_error(py, text));
            }
        }
        Ok(targets)
    }
}

/// A number of things, of which there must be some.
fn positive(py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<usize>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(replay_error(py, format!("{name}: expected a positive number, got {value}"))),
    }
}

/// Checks that there is memory for so many numbers of steps, which would otherwise end the process.
fn reserve(count: usize) -> PyResult<()> {
    let refused = |_| PyMemoryError::new_err(format!("there is no memory for {count} steps"));
    Vec::<usize>::new().try_reserve_exact(count).map_err(refused)
}

/// The bytes of a contiguous array, which it keeps.
struct Borrowed {
    data: *const u8,
    len: usize,
    _array: Py<PyAny>,
}

// SAFETY: the bytes are only read, and the array may be let go of in any thread.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// The bytes of an array.
    ///
    /// # Safety
    ///
    /// Nobody may write to the array while this is there.
    unsafe fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        // A header of our own: the owner of the other may be given other memory by `resize`.
        let array = array.call_method0("view")?;
        let bytes = Header::of(&array)
            .filter(Header::is_c_contiguous)
            .and_then(|header| Some((header.data().cast_const(), header.nbytes()?)));
        let Some((data, len)) = bytes else {
            return Err(PyValueError::new_err("expected an array in C order"));
        };
        Ok(Self { data, len, _array: array.unbind() })
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: a contiguous array has so many bytes, and numpy keeps them while there are references to
        // an array over them, of which this has one. Nobody else knows this array's header, and nobody writes
        // to the bytes, as whoever called `of` has promised.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}
