//! A writer of environments that step together: a call has the steps of all of them.

use std::sync::Arc;

use echoic_net::client::tables::ItemQueue;
use echoic_replay::Leaf;
use echoic_replay::chunk::ColumnKind;
use echoic_replay::trajectory::Signature;
use echoic_replay::writer::structured::{StructuredError, Take};
use echoic_replay::writer::vector::VectorWriter as Writer;
use echoic_replay::writer::{ColumnConfig, TrajectoryWriter};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use smallvec::SmallVec;

use super::forms::RecentForms;
use super::inlet::{Core, Inlet, MAX_WAITING, StepForm, WriterCallError, compile_many};
use super::structured::steps;
use super::{Table, changed, check_item, config, handles, signature, table_number};
use crate::error::{OrRaise, trajectory_error};
use crate::leaf::{LeafRule, Many, Source};
use crate::numbers::{float_numbers, marks};
use crate::sources::recheck;
use crate::tree::Tree;
use crate::wait;

/// A form of items.
struct ItemForm {
    tree: Tree,
    signature: Arc<Signature>,
    /// The writer's column of each leaf, and its name.
    columns: Vec<(u32, String)>,
}

/// The steps of each column of an item.
type Takes = SmallVec<[(u32, Take); 8]>;

/// Steps of many environments.
struct Vector {
    writer: Writer,
    items: RecentForms<ItemForm>,
}

impl Core for Vector {
    fn writer(&self) -> &TrajectoryWriter {
        &self.writer.writers()[0]
    }

    fn column(&mut self, path: &str, kind: &ColumnKind) -> Result<u32, StructuredError> {
        Ok(self.writer.column(path, kind)?)
    }

    fn emit(&mut self, queue: &mut ItemQueue) {
        self.writer.emit(queue);
    }

    fn flush(&mut self, queue: &mut ItemQueue) {
        self.writer.flush(queue);
    }

    fn pending(&self) -> usize {
        self.writer.pending()
    }
}

/// The native part of :class:`echoic.VectorWriter`: everything that runs per step.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct VectorWriter {
    inlet: Inlet<Vector>,
    /// Of columns that have no settings of their own.
    config: ColumnConfig,
    environments: usize,
}

#[pymethods]
impl VectorWriter {
    #[new]
    fn new(
        py: Python<'_>,
        tables: Vec<Py<Table>>,
        num_envs: usize,
        keep_alive: u32,
        chunk_length: Option<&Bound<'_, PyAny>>,
        encoding: &str,
    ) -> PyResult<Self> {
        let config = config(keep_alive, chunk_length, encoding)?;
        let writer = Writer::new(num_envs, config).or_raise(py)?;
        let core = Vector { writer, items: RecentForms::default() };
        let inlet = Inlet::new(core, handles(&tables));
        Ok(Self { inlet, config, environments: num_envs })
    }

    /// Give a column settings of its own.
    fn configure(
        &self,
        py: Python<'_>,
        path: &str,
        keep_alive: Option<u32>,
        chunk_length: Option<&Bound<'_, PyAny>>,
        encoding: Option<&str>,
    ) -> PyResult<()> {
        let config = changed(self.config, keep_alive, chunk_length, encoding)?;
        let configured = self.inlet.open(py)?.core.writer.configure(path, config);
        configured.or_raise(py)
    }

    /// Append a step to each environment, or a part of one.
    ///
    /// Never waits, unless a thousand items wait for their tables, or eight of each environment.
    ///
    /// Args:
    ///     steps: A tree of arrays with a leading axis of ``num_envs``.
    ///     envs: Which environments have made a step: a mask of ``num_envs`` booleans, or indices;
    ///         all when ``None``. The values of others are ignored.
    ///     partial: The steps go on: the next append adds other leaves to them.
    ///     timeout: Seconds to wait where it must.
    ///
    /// Raises:
    ///     SpecError: A leaf has another dtype or shape than in the steps before, or not a row for
    ///         each environment. Nothing was appended.
    ///     TrajectoryError: A leaf was given twice in one step. Nothing was appended.
    ///     WaitTimeoutError: The tables took no items in time. The steps were appended.
    #[pyo3(signature = (steps, envs=None, partial=false, timeout=None))]
    fn append_batch(
        &self,
        steps: &Bound<'_, PyAny>,
        envs: Option<&Bound<'_, PyAny>>,
        partial: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let py = steps.py();
        let deadline = wait::deadline(timeout)?;
        let marked = self.marked(envs)?;
        let store = |form: &StepForm, sources: &[Source], _: &Many| {
            let mut state = self.inlet.open(py)?;
            let appended = recheck(py, &form.tree, sources).map_err(WriterCallError::Raised);
            let appended = appended.and_then(|()| {
                let mut values = vec![None; state.core.writer().columns().len()];
                for source in sources {
                    let step = form.tree.rules[source.leaf].leaf.nbytes().unwrap_or(0);
                    // SAFETY: `gather` accepted the value with the rule of its leaf after an axis of the
                    // environments, and it was rechecked just now; it is alive while this runs.
                    let bytes = unsafe { source.bytes(step * self.environments) };
                    values[form.columns[source.leaf] as usize] = Some(bytes);
                }
                let result = state.core.writer.append(&values, marked.as_deref(), partial);
                state.deliver(result.map_err(StructuredError::from))
            });
            drop(state);
            appended.or_raise(py)
        };
        let shapes = || Many { rows: Some(self.environments) };
        self.inlet.with_form(steps, shapes, compile_many, store)?;
        self.drain(py, deadline)
    }

    /// What items are cut from: a tree like the steps.
    ///
    /// Its leaves are columns as those of :mod:`echoic.patterns`: an index or a slice
    /// counts from the newest step, which is -1, of each environment.
    #[getter]
    fn history<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        self.inlet.check(py)?;
        let class = CLASS.import(py, "echoic.patterns", "Column")?;
        let paths: Vec<String> = {
            let state = self.inlet.lock(py);
            state.core.writer().columns().map(|(path, _)| path.to_owned()).collect()
        };
        self.inlet.like_steps(py, |column| class.call1((&paths[column as usize],)))
    }

    /// Make an item in each environment whose episode has all its steps. Never waits.
    ///
    /// Args:
    ///     table: Where they go.
    ///     priority: Finite and not negative: one number, or one for each environment.
    ///     trajectory: A tree whose leaves are parts of columns of the history: one step
    ///         (``column[-1]``, which has no axis of time) or a slice.
    ///     envs: In which environments, as for ``append_batch``.
    ///
    /// Returns:
    ///     A mask of those in which there is an item now.
    ///
    /// Raises:
    ///     TableNotFoundError: There is no such table.
    ///     PriorityError: If a priority is not a finite number >= 0. No item is made.
    ///     SpecError: The items are not like the table's spec.
    ///     TrajectoryError: A leaf is no part of a column of this writer.
    #[pyo3(signature = (table, priority, trajectory, envs=None))]
    fn create_items<'py>(
        &self,
        py: Python<'py>,
        table: &str,
        priority: &Bound<'py, PyAny>,
        trajectory: &Bound<'py, PyAny>,
        envs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        self.inlet.check(py)?;
        let marked = self.marked(envs)?;
        let mut priorities = float_numbers(priority)?;
        if let [priority] = priorities[..] {
            priorities.resize(self.environments, priority);
        }
        let number = table_number(py, &self.inlet.tables, table)?;
        let (form, takes) = self.item_form(trajectory)?;
        let mut state = self.inlet.open(py)?;
        let signature = &form.signature;
        let steps = takes.iter().map(|(_, take)| take.steps());
        let checked = check_item(&self.inlet.tables[number], signature, steps);
        let created = checked.and_then(|()| {
            let (table, marked) = (number as u32, marked.as_deref());
            let writer = &mut state.core.writer;
            let made = writer.create_items(table, &priorities, signature, &takes, marked)?;
            state.deliver(Ok(())).map(|()| made)
        });
        drop(state);
        let made = created.or_raise(py)?;
        Ok(PyArray1::from_vec(py, made))
    }

    /// Hand all items over to their tables, and wait until at most this many are on their way.
    ///
    /// Raises:
    ///     WaitTimeoutError: The tables did not take them in time; they stay with the writer.
    #[pyo3(signature = (block_until_num_items=0, timeout=None))]
    fn flush(
        &self,
        py: Python<'_>,
        block_until_num_items: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.inlet.flush(py, block_until_num_items, timeout)
    }

    /// Begin another episode. Items of the old one are handed over, but not waited for.
    ///
    /// Args:
    ///     envs: In which environments, as for ``append_batch``.
    ///     clear: Items can no longer name steps of this episode.
    ///     timeout: Seconds to wait where it must, as for ``append_batch``.
    #[pyo3(signature = (envs=None, clear=true, timeout=None))]
    fn end_episode(
        &self,
        py: Python<'_>,
        envs: Option<&Bound<'_, PyAny>>,
        clear: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = wait::deadline(timeout)?;
        let marked = self.marked(envs)?;
        let mut state = self.inlet.open(py)?;
        let ended = state.core.writer.end_episode(marked.as_deref(), clear);
        let ended = state.deliver(ended.map_err(StructuredError::from));
        drop(state);
        ended.or_raise(py)?;
        self.drain(py, deadline)
    }

    /// Take nothing more; items that were not flushed are dropped.
    fn close(&self, py: Python<'_>) {
        self.inlet.close(py);
    }

    /// How many items were created and are in no table yet.
    #[getter]
    fn pending(&self, py: Python<'_>) -> usize {
        self.inlet.pending(py)
    }

    /// How many environments there are.
    #[getter]
    fn num_envs(&self) -> usize {
        self.environments
    }

    /// How many steps of its episode are complete in each environment.
    #[getter]
    fn episode_steps<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let state = self.inlet.lock(py);
        let writers = state.core.writer.writers().iter();
        let steps = writers.map(|writer| (writer.steps() - writer.episode_start()) as i64);
        let steps: Vec<i64> = steps.collect();
        drop(state);
        PyArray1::from_vec(py, steps)
    }
}

impl VectorWriter {
    /// Which environments are meant; all when `None`.
    fn marked(&self, envs: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<bool>>> {
        envs.map(|envs| marks(envs, self.environments)).transpose()
    }

    /// Waits for the tables if more items wait for them than all environments make in a few steps.
    fn drain(&self, py: Python<'_>, deadline: Option<std::time::Instant>) -> PyResult<()> {
        let most = MAX_WAITING.max(8 * self.environments);
        let crowded = self.inlet.lock(py).queue.len() >= most;
        if crowded { self.inlet.drain(py, most / 2, deadline) } else { Ok(()) }
    }

    /// The form of items, and the steps of each column.
    fn item_form(&self, trajectory: &Bound<'_, PyAny>) -> PyResult<(Arc<ItemForm>, Takes)> {
        let py = trajectory.py();
        let known = self.inlet.lock(py).core.items.all();
        for (index, form) in known.iter().enumerate() {
            let mut fits = true;
            let mut takes: SmallVec<[Option<(u32, Take)>; 8]> = SmallVec::new();
            takes.resize(form.columns.len(), None);
            let walked = form.tree.visit(trajectory, &mut |leaf, value| {
                let column = &form.signature.columns[leaf];
                let (source, take) = steps(&column.path, value)?;
                fits &= column.squeezed == take.is_one();
                fits &= form.columns[leaf].1 == source;
                takes[leaf] = Some((form.columns[leaf].0, take));
                Ok(())
            });
            if walked.is_ok() && fits {
                if index > 0 {
                    self.inlet.lock(py).core.items.touch(form);
                }
                return Ok((Arc::clone(form), takes.into_iter().flatten().collect()));
            }
        }
        let kinds: Vec<(String, Arc<ColumnKind>)> = {
            let state = self.inlet.lock(py);
            let columns = state.core.writer().columns();
            columns.map(|(path, kind)| (path.to_owned(), Arc::clone(kind))).collect()
        };
        let (mut takes, mut columns) = (Takes::new(), Vec::new());
        let tree = Tree::compile_with(trajectory, &mut |path, value| {
            let (source, take) = steps(&path, value)?;
            let number = kinds.iter().position(|(known, _)| *known == source).ok_or_else(|| {
                let known: Vec<_> = kinds.iter().map(|(path, _)| path).collect();
                let text = format!("there is no column {source:?}; the writer has {known:?}");
                trajectory_error(py, text)
            })?;
            takes.push((number as u32, take));
            columns.push((number as u32, source));
            let ColumnKind { dtype, shape } = (*kinds[number].1).clone();
            LeafRule::from_leaf(py, Leaf { path, dtype, shape })
        })?;
        let squeezed = takes.iter().map(|(_, take)| take.is_one());
        let signature = signature(py, &tree, squeezed)?;
        let form = Arc::new(ItemForm { tree, signature, columns });
        let dropped = self.inlet.open(py)?.core.items.add(&form);
        drop(dropped);
        Ok((form, takes))
    }
}
