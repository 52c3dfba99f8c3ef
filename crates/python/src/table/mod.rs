//! A table in this process or of a server.

mod batch;
mod settings;
mod shape;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use echoic_net::client::tables::{SampledBatch, TableHandle, TablesError};
use echoic_replay::stream::Wait;
use echoic_replay::table::{self as core, Form, TableConfig};
use echoic_replay::trajectory::Signature;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

pub use self::batch::{check_beta, check_draw, check_size};
pub use self::settings::Settings;
pub use self::shape::{Forms, Items, Shape, offsets};
use crate::batch::{Batch, Device};
use crate::error::{OrRaise, Raise, set};
use crate::fork::Process;
use crate::memory::Arena;
use crate::numbers::{float_numbers, key_numbers};
use crate::server::size;
use crate::sources::DETACH_BYTES;
use crate::spec::{Spec, core_spec, trajectory_spec};
use crate::structure;
use crate::tree::Tree;
use crate::wait;

/// The native part of :class:`echoic.Table`: everything that runs per item.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct Table {
    handle: TableHandle,
    pub shape: Shape,
    arena: Arena,
    pub process: Process,
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (
        name, example, sampler, remover, limiter, capacity, max_times_sampled, seed,
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
        capacity: i64,
        max_times_sampled: Option<i64>,
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
        if max_times_sampled == Some(0) {
            let text = "max_times_sampled must be at least 1, or None for no limit, got 0";
            return Err(pyo3::exceptions::PyValueError::new_err(text));
        }
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
            capacity: count("capacity", capacity)?,
            max_times_sampled: count("max_times_sampled", max_times_sampled.unwrap_or(0))?,
            seed,
        };
        let metadata = metadata.unwrap_or_default().to_vec();
        let table = core::Table::new(config).and_then(|table| table.with_metadata(metadata));
        let handle = TableHandle::from(Arc::new(table.or_raise(py)?.durable(durability)));
        let (arena, process) = (Arena::default(), Process::current());
        Ok(Self { handle, shape, arena, process })
    }

    /// Add one item.
    ///
    /// Its bytes are copied before this returns. Waits, without the GIL, while the limiter says so.
    /// When there are more than ``capacity`` items then, the remover says which goes.
    ///
    /// Args:
    ///     x: An item like the spec; the rules are those of ``Stream.add``.
    ///     priority: Finite and not negative.
    ///     version: The policy version that made the item; the table's when ``None``.
    ///     timeout: Seconds to wait; ``None`` waits for ever, 0 not at all.
    ///
    /// Raises:
    ///     SpecError: The item does not fit.
    ///     PriorityError: If the priority is not a finite number >= 0.
    ///     WaitTimeoutError: The limiter did not allow it in time; ``reason`` says why.
    ///     ClosedError: The table is closed.
    ///     OSError: The table's journal takes nothing more. The table can still be sampled.
    #[pyo3(signature = (x, priority=1.0, version=None, timeout=None))]
    fn add(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        priority: f64,
        version: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        core::check_priorities(&[priority]).or_raise(py)?;
        let handle = &self.handle;
        self.shape.with_one(
            x,
            |items| self.insert_rows(py, items, 0, &[priority], version, deadline),
            |trajectory| match handle
                .try_insert(trajectory, priority, version, None)
                .or_raise(py)?
            {
                true => Ok(()),
                false => wait::until(py, deadline, |wait| {
                    handle.insert(trajectory, priority, version, None, wait)
                }),
            },
        )?;
        self.keep(py)
    }

    /// Add many items, given as leaves with a leading axis.
    ///
    /// Args:
    ///     xs: Like the spec, each leaf with the same leading axis.
    ///     priorities: One for each item; 1 when ``None``.
    ///     version: The policy version that made the items; the table's when ``None``.
    ///     timeout: Seconds to wait in total; ``None`` waits for ever.
    ///
    /// Raises:
    ///     SpecError: A leaf does not fit, or the table has no spec. Nothing is inserted.
    ///     PriorityError: If a priority is not a finite number >= 0. Nothing is added.
    ///     WaitTimeoutError: Not all were allowed in time; ``stored`` says how many were.
    ///     ClosedError: The table is closed.
    #[pyo3(signature = (xs, priorities=None, version=None, timeout=None))]
    fn extend(
        &self,
        py: Python<'_>,
        xs: &Bound<'_, PyAny>,
        priorities: Option<&Bound<'_, PyAny>>,
        version: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        self.shape.with_many(xs, priorities, |items, priorities| {
            self.insert_rows(py, items, 0, priorities, version, deadline)
        })?;
        self.keep(py)
    }

    /// Draw a batch, all of it at one moment.
    ///
    /// The arrays belong to the batch and do not change later. Waits, without the GIL, while the
    /// limiter does not allow a sample.
    ///
    /// Args:
    ///     n: How many items, at least 1.
    ///     timeout: Seconds to wait; ``None`` waits for ever, 0 not at all.
    ///     beta: The exponent of the importance weights ``batch.weights``: finite, at least 0.
    ///     device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
    ///         numpy arrays when ``None``.
    ///
    /// Raises:
    ///     ValueError: ``n`` or ``beta`` is out of range. Nothing is drawn.
    ///     WaitTimeoutError: The limiter did not allow it in time; ``reason`` says why.
    ///     LimiterError: If the limiter can never allow ``n`` at once; the message has the
    ///         arithmetic.
    ///     ClosedError: The table is closed.
    #[pyo3(signature = (n, timeout=None, beta=1.0, *, device=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        n: usize,
        timeout: Option<f64>,
        beta: f64,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        check_draw(n, beta)?;
        let sampled = match self.handle.try_sample(n).or_raise(py)? {
            Some(sampled) => sampled,
            None => wait::until(py, deadline, |wait| self.handle.sample(n, wait))?,
        };
        self.batch(py, sampled, beta)?.on(py, device)
    }

    /// Change priorities, all at one moment; returns how many keys named items that are there.
    ///
    /// Keys of items that have gone are passed over. Of a key that is there twice the last value
    /// counts.
    ///
    /// Args:
    ///     keys: Which items.
    ///     priorities: One for each.
    ///     wait: Whether to wait for a server elsewhere to answer. ``False`` returns ``None`` at
    ///         once: what is asked of the connection later comes after the update, an update that
    ///         fails raises in a later call, and ``Connection.flush`` waits for all of them. For
    ///         a table of this process only the result differs.
    ///
    /// Raises:
    ///     PriorityError: A priority is negative, infinite or not a number. Nothing is changed.
    ///     OSError: The table's journal takes nothing more; so do ``remove`` and ``clear``.
    #[pyo3(signature = (keys, priorities, wait=true))]
    fn update_priorities(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
        wait: bool,
    ) -> PyResult<Option<u64>> {
        self.process.check(py)?;
        let (keys, priorities, awaited) = (key_numbers(keys)?, float_numbers(priorities)?, wait);
        let updated = match self.handle.try_update(&keys, &priorities, awaited).or_raise(py)? {
            Some(updated) => updated,
            None => self.ask(py, |table, wait| table.update(&keys, &priorities, awaited, wait))?,
        };
        Ok(awaited.then_some(updated))
    }

    /// List the items, or at most ``limit`` of them, without their data and without sampling.
    ///
    /// Returns:
    ///     A batch whose ``data`` is ``None``.
    #[pyo3(signature = (limit=None))]
    fn items(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Batch> {
        let most = limit.unwrap_or(usize::MAX);
        Batch::of_infos(py, self.ask(py, |table, wait| table.items(most, wait))?)
    }

    /// Read the items of these names that are there; they do not count as sampled.
    fn get(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let keys = key_numbers(keys)?;
        self.batch(py, self.ask(py, |table, wait| table.get(&keys, wait))?, 1.0)
    }

    /// Remove items; returns how many of them were there.
    fn remove(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let keys = key_numbers(keys)?;
        self.ask(py, |table, wait| table.delete(&keys, wait))
    }

    /// Remove all items and count inserts, samples and deletions from zero.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, TableHandle::reset)
    }

    /// Let inserts and samples wait until :meth:`resume`.
    fn pause(&self, py: Python<'_>) -> PyResult<()> {
        self.at_once(py, |table, wait| table.set_paused(true, wait))
    }

    /// End a pause.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.at_once(py, |table, wait| table.set_paused(false, wait))
    }

    /// Set the learner's policy version, which items added without a version get.
    ///
    /// It never falls: a lower version than the last one changes nothing.
    fn publish_version(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.ask(py, |table, wait| table.advance(version, wait))
    }

    #[pyo3(name = "_set_limiter")]
    fn set_limiter(&self, py: Python<'_>, limiter: Settings) -> PyResult<()> {
        let limiter = limiter.limiter(py)?;
        self.at_once(py, |table, wait| table.set_limiter(limiter, wait))
    }

    /// Return whether a batch of ``n`` items could be sampled now without waiting.
    ///
    /// Raises:
    ///     LimiterError: It never could; the message has the arithmetic.
    fn can_sample(&self, py: Python<'_>, n: usize) -> PyResult<bool> {
        self.at_once(py, |table, wait| table.can_sample(n, wait))
    }

    /// Return whether ``n`` items could be added now without waiting.
    #[pyo3(signature = (n=1))]
    fn can_add(&self, py: Python<'_>, n: usize) -> PyResult<bool> {
        self.at_once(py, |table, wait| table.can_insert(n, wait))
    }

    /// End adds and samples, and wake all waiting calls.
    ///
    /// Priorities can still be changed: a learner need not know which of its batches was the last.
    fn close(&self, py: Python<'_>) {
        // A journal is written to its end.
        if let Some(table) = self.handle.local() {
            py.detach(|| table.close());
        }
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.at_once(py, TableHandle::numbers)?.size as usize)
    }

    /// What the table is called.
    #[getter]
    fn name(&self) -> &str {
        &self.handle.entry().name
    }

    /// What acknowledged changes survive: ``"none"``, ``"async"`` or ``"sync"``.
    #[getter]
    fn durability(&self) -> &'static str {
        settings::durability_name(self.handle.local().and_then(|table| table.durability()))
    }

    /// What the program keeps with the table.
    #[getter]
    fn metadata(&self) -> &[u8] {
        &self.handle.entry().metadata
    }

    /// What items look like; ``None`` when they may be of any form.
    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Option<Spec>> {
        Spec::of_form(py, &self.handle.entry().form)
    }

    /// How many items there may be.
    #[getter]
    fn capacity(&self) -> u32 {
        self.handle.entry().capacity
    }

    /// Return a snapshot of the table's numbers and settings.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let entry = self.handle.entry();
        let numbers = self.at_once(py, TableHandle::numbers)?;
        let dict = PyDict::new(py);
        let counts = &numbers.counts;
        dict.set_item("name", &entry.name)?;
        dict.set_item("size", numbers.size)?;
        dict.set_item("total_weight", numbers.total_weight)?;
        dict.set_item("capacity", entry.capacity)?;
        let most = (numbers.max_times_sampled > 0).then_some(numbers.max_times_sampled);
        dict.set_item("max_times_sampled", most)?;
        dict.set_item("inserts", counts.inserts)?;
        dict.set_item("samples", counts.samples)?;
        dict.set_item("deletions", counts.deletions)?;
        for (calls, waits) in [("add", numbers.insert_waits), ("sample", numbers.sample_waits)] {
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
        let local = self.handle.local();
        if let Some(table) = local {
            dict.set_item("sampler", table.config().sampler.to_string())?;
            dict.set_item("remover", table.config().remover.to_string())?;
            dict.set_item("seed", table.config().seed)?;
        }
        if let Some(journal) = local.and_then(|table| table.journal()) {
            dict.set_item("journal_records", journal.next)?;
            dict.set_item("journal_kept", journal.kept)?;
            dict.set_item("journal_held_bytes", journal.held_bytes)?;
            dict.set_item("journal_segments", journal.segments)?;
        }
        CLASS.import(py, "echoic.table_stats", "TableStats")?.call((), Some(&dict))
    }
}

impl Table {
    /// The engine's part.
    pub fn handle(&self) -> &TableHandle {
        &self.handle
    }

    /// A table that was made by the engine.
    pub fn of(py: Python<'_>, handle: TableHandle) -> PyResult<Self> {
        let shape = Shape::of(py, &handle.entry().form, &handle.entry().structure)?;
        Ok(Self { handle, shape, arena: Arena::default(), process: Process::current() })
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&TableHandle, Wait<'_>) -> Result<T, TablesError> + Send,
    ) -> PyResult<T> {
        self.process.check(py)?;
        wait::until(py, None, |wait| ask(&self.handle, wait))
    }

    /// As [`Table::ask`], for what a table of this process does at once.
    fn at_once<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&TableHandle, Wait<'_>) -> Result<T, TablesError> + Send,
    ) -> PyResult<T> {
        if self.handle.local().is_none() {
            return self.ask(py, ask);
        }
        self.process.check(py)?;
        let on_tick = &mut |_| ControlFlow::Continue(());
        ask(&self.handle, Wait { deadline: None, tick: None, on_tick }).or_raise(py)
    }

    /// Waits until what was inserted survives what the table promises. There is no deadline: it is inserted.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        match self.handle.is_durable() {
            true => Ok(()),
            false => wait::until(py, None, |wait| self.handle.keep(wait)),
        }
    }

    fn batch(&self, py: Python<'_>, sampled: SampledBatch, beta: f64) -> PyResult<Batch> {
        match (sampled, &self.shape) {
            (SampledBatch::Remote(batch), shape) => Batch::of_remote(py, shape, batch, beta),
            (SampledBatch::Local(sampled), Shape::Rows { tree, .. }) => {
                Batch::of_rows(py, tree, &self.arena, sampled, beta)
            }
            (SampledBatch::Local(sampled), Shape::Chunks(known)) => {
                let tree = |signature: &Arc<Signature>| Shape::known(py, known, signature);
                Batch::of_trajectories(py, &tree, &self.arena, sampled, beta)
            }
        }
    }

    /// Inserts items from `first` on, one for each priority, waiting where it must.
    pub fn insert_rows(
        &self,
        py: Python<'_>,
        items: &Items<'_>,
        first: usize,
        priorities: &[f64],
        version: Option<u64>,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let (handle, stride) = (&self.handle, items.row_bytes());
        let (mut done, mut full) = (0, false);
        while done < priorities.len() {
            let left = priorities.len() - done;
            let stored = |error: PyErr| set(py, error, "stored", done);
            let tried = match full {
                true => Ok(None),
                false => handle.try_room(left, stride),
            };
            let room = match tried {
                Ok(Some(room)) => room,
                Ok(None) => {
                    let found = wait::until(py, deadline, |wait| handle.room(left, stride, wait));
                    // Many short waits may never come to a tick, however long they take together.
                    py.check_signals().map_err(stored)?;
                    found.map_err(stored)?
                }
                Err(error) => return Err(stored(error.raise(py))),
            };
            items.recheck(py)?;
            let count = room.rows();
            let part = &priorities[done..done + count];
            let fill = |row: usize, rows: &mut [u8]| {
                // SAFETY: there is an item for each priority, and all was rechecked just now.
                unsafe { items.copy_to(first + done + row, rows) };
            };
            let store = || room.fill(part, version, fill);
            let large = count.saturating_mul(stride) >= DETACH_BYTES;
            let filled = if large { py.detach(store) } else { store() };
            full = !filled.or_raise(py).map_err(stored)?;
            done += if full { 0 } else { count };
        }
        Ok(())
    }
}
