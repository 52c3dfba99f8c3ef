//! A table in this process.

mod arena;
mod batch;
mod settings;
mod shape;

use std::sync::Arc;
use std::time::Instant;

use echoic_replay::limiter::Reason;
use echoic_replay::stream::Wait;
use echoic_replay::table::{
    self as core, Form, Insertion, Obstacle, Sampled, TableConfig, TableError,
};
use echoic_replay::trajectory::{Signature, Trajectory};
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub use self::arena::Arena;
pub use self::batch::{Batch, BatchInfo};
pub use self::settings::Settings;
pub use self::shape::{Forms, Shape, offsets};
use crate::array::Header;
use crate::error::{set, spec_error, table_error};
use crate::fork::Process;
use crate::leaf::{Many, One, Source};
use crate::server::size;
use crate::sources::{DETACH_BYTES, recheck, with_sources};
use crate::spec::{Spec, core_spec};
use crate::structure;
use crate::tree::Tree;
use crate::wait;

/// A table in this process.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct Table {
    table: Arc<core::Table>,
    shape: Shape,
    arena: Arena,
    process: Process,
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (
        name, example, sampler, remover, limiter, max_size, max_times_sampled, seed
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        name: String,
        example: Option<&Bound<'_, PyAny>>,
        sampler: Settings,
        remover: Settings,
        limiter: Settings,
        max_size: i64,
        max_times_sampled: i64,
        seed: u64,
    ) -> PyResult<Self> {
        let count = |name: &str, value: i64| {
            u32::try_from(size(name, value)?).map_err(|_| {
                let message = format!("{name} must be below {}, got {value}", u32::MAX);
                pyo3::exceptions::PyValueError::new_err(message)
            })
        };
        let (form, structure, shape) = match example {
            Some(example) => {
                let tree = Tree::compile(example, "")?;
                let spec = core_spec(py, &tree)?;
                let offsets = offsets(&spec);
                let structure = structure::write(py, &tree)?;
                (Form::Rows(spec), structure, Shape::Rows { tree, offsets })
            }
            None => (Form::Trajectories(None), String::new(), Shape::Chunks(Forms::default())),
        };
        let config = TableConfig {
            name,
            form,
            structure,
            sampler: sampler.selector()?,
            remover: remover.selector()?,
            limiter: limiter.limiter(py)?,
            max_size: count("max_size", max_size)?,
            max_times_sampled: count("max_times_sampled", max_times_sampled)?,
            seed,
        };
        let table = core::Table::new(config).map_err(|error| table_error(py, &error))?;
        let (arena, process) = (Arena::default(), Process::current());
        Ok(Self { table: Arc::new(table), shape, arena, process })
    }

    /// Inserts one item.
    #[pyo3(signature = (tree, priority=1.0, version=None, timeout=None))]
    fn insert(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        priority: f64,
        version: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        core::check_priorities(&[priority]).map_err(|error| table_error(py, &error))?;
        match &self.shape {
            Shape::Rows { tree: example, offsets } => with_sources(
                example,
                tree,
                &mut One,
                |sources, _| {
                    let rows = Rows { table: self, example, offsets, sources };
                    rows.insert(py, 0, &[priority], version, deadline)
                },
                |_| {},
            ),
            Shape::Chunks(known) => {
                let trajectory = Shape::trajectory_of(known, tree)?;
                self.insert_trajectory(py, &trajectory, priority, version, deadline)
            }
        }
    }

    /// Inserts many items.
    #[pyo3(signature = (tree, priorities=None, version=None, timeout=None))]
    fn insert_batch(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        priorities: Option<Vec<f64>>,
        version: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let Shape::Rows { tree: example, offsets } = &self.shape else {
            return Err(spec_error(
                py,
                "insert_batch() is for tables with a spec, whose items are all alike",
            ));
        };
        with_sources(
            example,
            tree,
            &mut Many::default(),
            |sources, shapes| {
                let count = shapes.rows.unwrap_or(0);
                let priorities = priorities.unwrap_or_else(|| vec![1.0; count]);
                if priorities.len() != count {
                    let (keys, values) = (count, priorities.len());
                    let message = format!("{keys} items and {values} priorities");
                    return Err(pyo3::exceptions::PyValueError::new_err(message));
                }
                core::check_priorities(&priorities).map_err(|error| table_error(py, &error))?;
                let rows = Rows { table: self, example, offsets, sources };
                rows.insert(py, 0, &priorities, version, deadline)
            },
            |_| {},
        )
    }

    /// Samples a batch.
    #[pyo3(signature = (count, timeout=None, beta=1.0))]
    fn sample(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<f64>,
        beta: f64,
    ) -> PyResult<Batch> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        if count == 0 {
            return Err(pyo3::exceptions::PyValueError::new_err("a batch has at least 1 item"));
        }
        let sampled = match self.table.try_sample(count) {
            Ok(sampled) => sampled,
            Err(Obstacle::Failed(error)) => return Err(table_error(py, &error)),
            Err(Obstacle::Blocked(_)) => {
                let sample = |wait: Wait<'_, Reason>| self.table.sample(count, wait);
                wait::detached(py, deadline, None, sample)
                    .map_err(|stopped| stopped.raise(py, table_error))?
            }
        };
        self.batch(py, sampled, beta)
    }

    /// Changes priorities; how many of the items were there.
    fn update_priorities(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        self.process.check(py)?;
        let (keys, priorities) = (key_numbers(keys)?, numbers::<f64>(priorities, "float64")?);
        self.table.update_priorities(&keys, &priorities).map_err(|error| table_error(py, &error))
    }

    /// What is known about all items.
    fn items(&self, py: Python<'_>) -> PyResult<Py<BatchInfo>> {
        BatchInfo::of(py, py.detach(|| self.table.items()))
    }

    /// Reads items by their names, without sampling them.
    fn get(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Batch> {
        self.process.check(py)?;
        let keys = key_numbers(keys)?;
        self.batch(py, self.table.get(&keys), 1.0)
    }

    /// Removes items; how many were there.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.process.check(py)?;
        let keys = key_numbers(keys)?;
        Ok(py.detach(|| self.table.delete(&keys)))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        py.detach(|| self.table.reset());
        Ok(())
    }

    fn pause(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        self.table.pause();
        Ok(())
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        self.table.resume();
        Ok(())
    }

    fn advance(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.process.check(py)?;
        self.table.advance(version);
        Ok(())
    }

    #[pyo3(name = "_set_limiter")]
    fn set_limiter(&self, py: Python<'_>, limiter: Settings) -> PyResult<()> {
        self.process.check(py)?;
        let limiter = limiter.limiter(py)?;
        self.table.set_limiter(limiter).map_err(|error| table_error(py, &error))
    }

    fn can_sample(&self, py: Python<'_>, count: usize) -> PyResult<bool> {
        if self.table.can_sample(count) {
            return Ok(true);
        }
        // Whoever takes turns by asking would otherwise wait for what can never be.
        self.table.check_batch(count).map_err(|error| table_error(py, &error))?;
        Ok(false)
    }

    fn can_insert(&self, count: usize) -> bool {
        self.table.can_insert(count)
    }

    fn close(&self) {
        self.table.close();
    }

    fn __len__(&self) -> usize {
        self.table.info().size as usize
    }

    #[getter]
    fn name(&self) -> &str {
        &self.table.config().name
    }

    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Option<Spec>> {
        match &self.table.config().form {
            Form::Rows(spec) => Spec::new(py, spec).map(Some),
            Form::Trajectories(spec) => spec.as_ref().map(|spec| Spec::new(py, spec)).transpose(),
        }
    }

    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (config, info) = (self.table.config(), self.table.info());
        let dict = PyDict::new(py);
        dict.set_item("name", &config.name)?;
        dict.set_item("size", info.size)?;
        dict.set_item("max_size", config.max_size)?;
        dict.set_item("max_times_sampled", config.max_times_sampled)?;
        dict.set_item("inserts", info.counts.inserts)?;
        dict.set_item("samples", info.counts.samples)?;
        dict.set_item("deletions", info.counts.deletions)?;
        dict.set_item("sampler", config.sampler.to_string())?;
        dict.set_item("remover", config.remover.to_string())?;
        let limiter = info.limiter.parameters();
        dict.set_item("min_size", limiter.min_size)?;
        dict.set_item("samples_per_insert", limiter.samples_per_insert)?;
        dict.set_item("min_diff", limiter.min_diff)?;
        dict.set_item("max_diff", limiter.max_diff)?;
        dict.set_item("paused", info.paused)?;
        dict.set_item("version", info.version)?;
        dict.set_item("memory_bytes", info.row_bytes)?;
        Ok(dict)
    }
}

impl Table {
    /// The engine's part.
    pub fn core(&self) -> &Arc<core::Table> {
        &self.table
    }

    /// A table that was made by the engine.
    pub fn of(py: Python<'_>, table: Arc<core::Table>) -> PyResult<Self> {
        let shape = Shape::of(py, &table.config().form, &table.config().structure)?;
        Ok(Self { table, shape, arena: Arena::default(), process: Process::current() })
    }

    fn batch(&self, py: Python<'_>, sampled: Sampled, beta: f64) -> PyResult<Batch> {
        match &self.shape {
            Shape::Rows { tree, .. } => Batch::of_rows(py, tree, &self.arena, sampled, beta),
            Shape::Chunks(known) => {
                let tree = |signature: &Arc<Signature>| Shape::known(py, known, signature);
                Batch::of_trajectories(py, &tree, &self.arena, sampled, beta)
            }
        }
    }

    fn insert_trajectory(
        &self,
        py: Python<'_>,
        trajectory: &Arc<Trajectory>,
        priority: f64,
        version: Option<u64>,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        match self.table.try_insert(trajectory, priority, version) {
            Ok(_) => Ok(()),
            Err(Obstacle::Failed(error)) => Err(table_error(py, &error)),
            Err(Obstacle::Blocked(_)) => {
                let insert =
                    |wait: Wait<'_, Reason>| self.table.insert(trajectory, priority, version, wait);
                wait::detached(py, deadline, None, insert)
                    .map(drop)
                    .map_err(|stopped| stopped.raise(py, table_error))
            }
        }
    }
}

/// Checked items on their way into rows.
struct Rows<'a> {
    table: &'a Table,
    example: &'a Tree,
    offsets: &'a [usize],
    sources: &'a [Source],
}

impl Rows<'_> {
    /// Inserts the items from `first` on, one for each priority, waiting where it must.
    fn insert(
        &self,
        py: Python<'_>,
        first: usize,
        priorities: &[f64],
        version: Option<u64>,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let table = &self.table.table;
        let mut done = first;
        while done < priorities.len() {
            let left = priorities.len() - done;
            let insertion = match table.try_reserve(left) {
                Ok(insertion) => insertion,
                Err(Obstacle::Failed(error)) => return Err(table_error(py, &error)),
                Err(Obstacle::Blocked(_)) => {
                    let reserve = |wait: Wait<'_, Reason>| table.reserve(left, wait);
                    wait::detached(py, deadline, None, reserve).map_err(|stopped| {
                        set(py, stopped.raise(py, table_error), "stored", done)
                    })?
                }
            };
            recheck(py, self.example, self.sources)?;
            let count = insertion.len();
            let priorities = &priorities[done..done + count];
            let store = || self.store(insertion, done, priorities, version);
            let large = count.saturating_mul(self.row_bytes()) >= DETACH_BYTES;
            let stored = if large { py.detach(store) } else { store() };
            stored.map_err(|error| set(py, table_error(py, &error), "stored", done))?;
            done += count;
        }
        Ok(())
    }

    fn row_bytes(&self) -> usize {
        match &self.table.table.config().form {
            Form::Rows(spec) => spec.nbytes(),
            Form::Trajectories(_) => 0,
        }
    }

    fn store(
        &self,
        mut insertion: Insertion,
        first: usize,
        priorities: &[f64],
        version: Option<u64>,
    ) -> Result<(), TableError> {
        let row_bytes = self.row_bytes();
        for index in 0..priorities.len() {
            let row = insertion.row_mut(index);
            for source in self.sources {
                let start = self.offsets[source.leaf];
                let end = self.offsets.get(source.leaf + 1).copied().unwrap_or(row_bytes);
                let bytes = end - start;
                // SAFETY: `gather` accepted this value with the rule of this leaf, after a leading
                // axis of the number of items if there are many, and it was rechecked just now.
                unsafe { source.copy_to((first + index) * bytes, &mut row[start..end]) };
            }
        }
        insertion.commit(priorities, version).map(drop)
    }
}

/// The keys of an array or a sequence: whole numbers, as `batch.info.key` gives them.
pub fn key_numbers(values: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let py = values.py();
    let array = py.import("numpy")?.call_method1("asarray", (values,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let empty = array.getattr("size")?.extract::<usize>()? == 0;
    let negative = || array.call_method0("min")?.lt(0);
    if !(empty || kind == "u" || (kind == "i" && !negative()?)) {
        let dtype = array.getattr("dtype")?;
        let text = format!("keys are whole numbers >= 0, as in batch.info.key; got {dtype}");
        return Err(pyo3::exceptions::PyValueError::new_err(text));
    }
    numbers(&array, "uint64")
}

/// The numbers of an array or a sequence.
pub fn numbers<T: Copy>(values: &Bound<'_, PyAny>, dtype: &str) -> PyResult<Vec<T>> {
    let py = values.py();
    let numpy = py.import("numpy")?;
    let keywords = PyDict::new(py);
    keywords.set_item("dtype", dtype)?;
    let array = numpy
        .call_method("ascontiguousarray", (values,), Some(&keywords))?
        .call_method0("ravel")?;
    let Some(header) = Header::of(&array) else { return Ok(Vec::new()) };
    let count = header.shape().first().copied().unwrap_or(0);
    // SAFETY: the array is contiguous, one-dimensional, of a dtype of this size, and alive.
    let slice = unsafe { std::slice::from_raw_parts(header.data().cast::<T>(), count) };
    Ok(slice.to_vec())
}
