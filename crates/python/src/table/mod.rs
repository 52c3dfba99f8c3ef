//! A table in this process.

mod batch;
mod settings;
mod shape;

use std::sync::Arc;
use std::time::Instant;

use echoic_net::client::tables::Numbers;
use echoic_replay::table::{self as core, Form, Obstacle, Sampled, TableConfig};
use echoic_replay::trajectory::{Signature, Trajectory};
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub use self::batch::{Batch, BatchInfo, check_beta, check_draw, check_size};
pub use self::settings::Settings;
pub use self::shape::{Forms, Items, Shape, offsets};
use crate::error::{OrRaise, set};
use crate::fork::Process;
use crate::memory::Arena;
use crate::numbers::{float_numbers, key_numbers};
use crate::server::size;
use crate::sources::DETACH_BYTES;
use crate::spec::{Spec, core_spec, trajectory_spec};
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
        name, example, sampler, remover, limiter, max_size, max_times_sampled, seed,
        trajectories=None, durability="none", metadata=None
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
        trajectories: Option<&Bound<'_, PyAny>>,
        durability: &str,
        metadata: Option<&[u8]>,
    ) -> PyResult<Self> {
        let durability = settings::durability(durability)?;
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
            None => {
                let spec = trajectories.map(trajectory_spec).transpose()?;
                (Form::Trajectories(spec), String::new(), Shape::Chunks(Forms::default()))
            }
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
        let metadata = metadata.unwrap_or_default().to_vec();
        let table = core::Table::new(config).and_then(|table| table.with_metadata(metadata));
        let table = table.or_raise(py)?.durable(durability);
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
        core::check_priorities(&[priority]).or_raise(py)?;
        self.shape.with_one(
            tree,
            |items| self.insert_rows(py, items, &[priority], version, deadline),
            |trajectory| self.insert_trajectory(py, trajectory, priority, version, deadline),
        )?;
        self.keep(py)
    }

    /// Inserts many items.
    #[pyo3(signature = (tree, priorities=None, version=None, timeout=None))]
    fn insert_batch(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, PyAny>,
        priorities: Option<&Bound<'_, PyAny>>,
        version: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        self.shape.with_many(tree, priorities, |items, priorities| {
            self.insert_rows(py, items, priorities, version, deadline)
        })?;
        self.keep(py)
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
        check_draw(count, beta)?;
        let sampled = match self.table.try_sample(count) {
            Err(Obstacle::Blocked(_)) => {
                wait::until(py, deadline, |wait| self.table.sample(count, wait))?
            }
            sampled => sampled.or_raise(py)?,
        };
        if sampled.receipt().is_some_and(|receipt| self.table.is_kept(receipt) != Ok(true)) {
            // There is no deadline: the items are drawn.
            wait::until(py, None, |wait| sampled.keep(wait))?;
        }
        self.batch(py, sampled, beta)
    }

    /// Changes priorities; how many of the items were there.
    #[pyo3(signature = (keys, priorities, wait=true))]
    fn update_priorities(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
        wait: bool,
    ) -> PyResult<Option<usize>> {
        self.process.check(py)?;
        let (keys, priorities) = (key_numbers(keys)?, float_numbers(priorities)?);
        self.wait_for_room(py)?;
        let updated = self.table.update_priorities(&keys, &priorities).or_raise(py)?;
        self.keep(py)?;
        Ok(wait.then_some(updated))
    }

    /// What is known about items.
    #[pyo3(signature = (limit=None))]
    fn items(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Py<BatchInfo>> {
        let most = limit.unwrap_or(usize::MAX);
        BatchInfo::of(py, py.detach(|| self.table.items_from(0, most).0))
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
        self.table.check_journal().or_raise(py)?;
        self.wait_for_room(py)?;
        let deleted = py.detach(|| self.table.delete(&keys));
        self.keep(py)?;
        Ok(deleted)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        self.table.check_journal().or_raise(py)?;
        self.wait_for_room(py)?;
        py.detach(|| self.table.reset());
        self.keep(py)
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
        self.wait_for_room(py)?;
        self.table.advance(version);
        Ok(())
    }

    #[pyo3(name = "_set_limiter")]
    fn set_limiter(&self, py: Python<'_>, limiter: Settings) -> PyResult<()> {
        self.process.check(py)?;
        let limiter = limiter.limiter(py)?;
        self.table.set_limiter(limiter).or_raise(py)
    }

    fn can_sample(&self, py: Python<'_>, count: usize) -> PyResult<bool> {
        if self.table.can_sample(count) {
            return Ok(true);
        }
        // Whoever takes turns by asking would otherwise wait for what can never be.
        self.table.check_batch(count).or_raise(py)?;
        Ok(false)
    }

    #[pyo3(signature = (count=1))]
    fn can_insert(&self, count: usize) -> bool {
        self.table.can_insert(count)
    }

    fn close(&self, py: Python<'_>) {
        // A journal is written to its end.
        py.detach(|| self.table.close());
    }

    fn __len__(&self) -> usize {
        self.table.info().size as usize
    }

    #[getter]
    fn name(&self) -> &str {
        &self.table.config().name
    }

    #[getter]
    fn durability(&self) -> &'static str {
        settings::durability_name(self.table.durability())
    }

    #[getter]
    fn metadata(&self) -> &[u8] {
        self.table.metadata()
    }

    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Option<Spec>> {
        Spec::of_form(py, &self.table.config().form)
    }

    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let config = self.table.config();
        let dict = info_dict(py, &config.name, config.max_size, &Numbers::of(&self.table, 0))?;
        dict.set_item("sampler", config.sampler.to_string())?;
        dict.set_item("remover", config.remover.to_string())?;
        if let Some(journal) = self.table.journal_info() {
            dict.set_item("journal_records", journal.next)?;
            dict.set_item("journal_kept", journal.kept)?;
            dict.set_item("journal_held_bytes", journal.held_bytes)?;
            dict.set_item("journal_segments", journal.segments)?;
        }
        Ok(dict)
    }
}

/// The numbers of a table, by name.
pub fn info_dict<'py>(
    py: Python<'py>,
    name: &str,
    max_size: u32,
    numbers: &Numbers,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let counts = &numbers.counts;
    dict.set_item("name", name)?;
    dict.set_item("size", numbers.size)?;
    dict.set_item("total_weight", numbers.total_weight)?;
    dict.set_item("max_size", max_size)?;
    dict.set_item("max_times_sampled", numbers.max_times_sampled)?;
    dict.set_item("inserts", counts.inserts)?;
    dict.set_item("samples", counts.samples)?;
    dict.set_item("deletions", counts.deletions)?;
    // Calls each with one item, as the limiter counts them.
    for (calls, count, waits) in [
        ("insert", counts.inserts, numbers.insert_waits),
        ("sample", counts.samples, numbers.sample_waits),
    ] {
        dict.set_item(format!("{calls}_calls"), count)?;
        dict.set_item(format!("{calls}_calls_waiting"), waits.waiting)?;
        dict.set_item(format!("{calls}_calls_limited"), waits.limited)?;
        dict.set_item(format!("{calls}_wait_seconds"), waits.time().as_secs_f64())?;
    }
    dict.set_item("unique_samples", numbers.unique_samples)?;
    dict.set_item("episodes", numbers.episodes)?;
    dict.set_item("deleted_episodes", numbers.deleted_episodes)?;
    dict.set_item("min_size", numbers.limiter.min_size)?;
    dict.set_item("samples_per_insert", numbers.limiter.samples_per_insert)?;
    dict.set_item("min_diff", numbers.limiter.min_diff)?;
    dict.set_item("max_diff", numbers.limiter.max_diff)?;
    dict.set_item("paused", numbers.paused)?;
    dict.set_item("version", numbers.version)?;
    dict.set_item("memory_bytes", numbers.row_bytes)?;
    Ok(dict)
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

    /// Waits while the journal is full of what waits for the disk.
    fn wait_for_room(&self, py: Python<'_>) -> PyResult<()> {
        if self.table.check_room().is_ok() {
            return Ok(());
        }
        wait::until(py, None, |wait| self.table.wait_for_room(wait))
    }

    /// Waits until what was changed survives what the table promises. There is no deadline: it is changed.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        let Some(receipt) = self.table.receipt() else { return Ok(()) };
        if self.table.is_kept(receipt) == Ok(true) {
            return Ok(());
        }
        wait::until(py, None, |wait| self.table.keep(wait))
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

    /// Inserts items, one for each priority, waiting where it must.
    fn insert_rows(
        &self,
        py: Python<'_>,
        items: &Items<'_>,
        priorities: &[f64],
        version: Option<u64>,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let mut done = 0;
        while done < priorities.len() {
            let left = priorities.len() - done;
            let stored = |error: PyErr| set(py, error, "stored", done);
            let mut insertion = match self.table.try_reserve(left) {
                Err(Obstacle::Blocked(_)) => {
                    let reserved = wait::until(py, deadline, |wait| self.table.reserve(left, wait));
                    // Many short waits may never come to a tick, however long they take together.
                    py.check_signals().map_err(stored)?;
                    reserved.map_err(stored)?
                }
                reserved => reserved.or_raise(py).map_err(stored)?,
            };
            items.recheck(py)?;
            let count = insertion.len();
            let priorities = &priorities[done..done + count];
            let store = || {
                for index in 0..count {
                    // SAFETY: there is an item for each priority, and all was rechecked just now.
                    unsafe { items.copy_to(done + index, insertion.row_mut(index)) };
                }
                insertion.commit(priorities, version)
            };
            let large = count.saturating_mul(items.row_bytes()) >= DETACH_BYTES;
            let committed = if large { py.detach(store) } else { store() };
            committed.or_raise(py).map_err(stored)?;
            done += count;
        }
        Ok(())
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
            Err(Obstacle::Blocked(_)) => wait::until(py, deadline, |wait| {
                self.table.insert(trajectory, priority, version, wait).map(drop)
            }),
            inserted => inserted.map(drop).or_raise(py),
        }
    }
}
