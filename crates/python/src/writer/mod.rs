//! Writers: steps in, items that name them out.
//!
//! [`TrajectoryWriter`] is here; [`StructuredWriter`] makes its items by itself, and [`VectorWriter`] takes
//! the steps of many environments. What they have in common is in `inlet`.

mod forms;
mod history;
mod inlet;
mod structured;
mod vector;

use std::sync::Arc;

use echoic_net::client::tables::{ItemQueue, TableHandle};
use echoic_replay::Leaf;
use echoic_replay::chunk::ColumnKind;
use echoic_replay::encoding::{Policy, UnknownEncoding};
use echoic_replay::table::check_priorities;
use echoic_replay::trajectory::Signature;
use echoic_replay::writer::structured::StructuredError;
use echoic_replay::writer::{
    ChunkLength, ColumnConfig, ItemSteps, Span, StepRef, TrajectoryWriter as Writer,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyList};
use smallvec::SmallVec;

use self::forms::RecentForms;
pub use self::history::{ColumnHistory, Steps};
use self::inlet::{Core, Inlet, Single, WriterCallError, WriterState};
pub use self::structured::StructuredWriter;
pub use self::vector::VectorWriter;
use crate::error::{OrRaise, table_not_found_error, trajectory_error};
use crate::leaf::{LeafRule, display};
use crate::structure;
use crate::table::Table;
use crate::tree::Tree;

/// Tables as writers know them.
fn handles(tables: &[Py<Table>]) -> Vec<TableHandle> {
    tables.iter().map(|table| table.get().handle().clone()).collect()
}

/// A form of items.
struct ItemForm {
    tree: Tree,
    signature: Arc<Signature>,
}

/// The steps of each column of an item.
type ItemColumns = SmallVec<[SmallVec<[Span; 1]>; 8]>;

/// Steps of which items are made one by one.
struct Free {
    writer: Writer,
    items: RecentForms<ItemForm>,
    /// Of items that have the last steps of every column, and of those that have the last step.
    whole: [Option<Arc<Whole>>; 2],
    /// Used again by each item.
    spans: ItemSteps,
}

/// A form of items that have every column.
struct Whole {
    form: Arc<ItemForm>,
    /// The column of each leaf.
    columns: Vec<u32>,
}

/// Steps that can be named, in pieces without a gap.
type Runs = SmallVec<[std::ops::Range<u64>; 2]>;

impl Core for Free {
    fn writer(&self) -> &Writer {
        &self.writer
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
}

impl Single for Free {
    fn append_with(
        &mut self,
        columns: &[u32],
        partial: bool,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), StructuredError> {
        self.writer.append_with(columns, partial, fill)?;
        Ok(())
    }

    fn append_batch(
        &mut self,
        steps: usize,
        values: &[Option<&[u8]>],
    ) -> Result<(), StructuredError> {
        self.writer.append_batch(steps, values)?;
        Ok(())
    }

    fn end_episode(&mut self, clear: bool) -> Result<(), StructuredError> {
        self.writer.end_episode(clear);
        Ok(())
    }
}

/// The native part of :class:`echoic.TrajectoryWriter`: everything that runs per step.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct TrajectoryWriter {
    inlet: Inlet<Free>,
    /// Of columns that have no settings of their own.
    config: ColumnConfig,
}

#[pymethods]
impl TrajectoryWriter {
    #[new]
    fn new(
        py: Python<'_>,
        tables: Vec<Py<Table>>,
        keep_alive: u32,
        chunk_length: Option<&Bound<'_, PyAny>>,
        encoding: &str,
    ) -> PyResult<Self> {
        let config = config(keep_alive, chunk_length, encoding)?;
        let writer = Writer::new(config).or_raise(py)?;
        let core = Free {
            writer,
            items: RecentForms::default(),
            whole: [None, None],
            spans: ItemSteps::default(),
        };
        Ok(Self { inlet: Inlet::new(core, handles(&tables)), config })
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

    /// Append a step, or a part of one.
    ///
    /// Never waits, unless a thousand items wait for their tables.
    ///
    /// Args:
    ///     step: A tree of arrays. Steps may differ in which leaves they have.
    ///     partial: The step goes on: the next append adds other leaves to it.
    ///     timeout: Seconds to wait where it must.
    ///
    /// Raises:
    ///     SpecError: A leaf has another dtype or shape than in the steps before.
    ///     TrajectoryError: A leaf was given twice in one step.
    ///     WaitTimeoutError: The tables took no items in time. The step was appended.
    #[pyo3(signature = (step, partial=false, timeout=None))]
    fn append(&self, step: &Bound<'_, PyAny>, partial: bool, timeout: Option<f64>) -> PyResult<()> {
        self.inlet.append(step, partial, timeout)
    }

    /// Append many consecutive steps, given as leaves with a leading axis.
    #[pyo3(signature = (steps, timeout=None))]
    fn append_batch(&self, steps: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.inlet.append_batch(steps, timeout)
    }

    /// Append a step of columns that have numbers for names, and name what was appended.
    ///
    /// For layers above that keep a history of their own. A value that is ``None`` is left out.
    /// Never waits, however many items wait for their tables.
    #[pyo3(signature = (values, partial=false))]
    fn append_columns<'py>(
        slf: &Bound<'py, Self>,
        values: &Bound<'py, PyList>,
        partial: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, this) = (slf.py(), slf.get());
        let step = PyDict::new(py);
        for (number, value) in values.iter().enumerate() {
            if !value.is_none() {
                step.set_item(number.to_string(), value)?;
            }
        }
        // A writer is for one thread, so this is the step that the values become.
        let first = this.inlet.open(py)?.core.writer.steps();
        this.inlet.append_unhurried(step.as_any(), partial)?;
        let cells = PyList::new(py, (0..values.len()).map(|_| py.None()))?;
        let Some(form) = this.inlet.last_form(py) else { return Ok(cells) };
        let kinds = this.kinds(py);
        for (rule, column) in form.tree.rules.iter().zip(&form.columns) {
            let Ok(number) = rule.leaf.path.parse::<usize>() else { continue };
            let steps = Steps {
                writer: slf.clone().unbind(),
                kind: Arc::clone(&kinds[*column as usize]),
                spans: SmallVec::from_buf([Span { column: *column, first, len: 1 }]),
                squeezed: true,
            };
            cells.set_item(number, Bound::new(py, steps)?)?;
        }
        Ok(cells)
    }

    /// What items are cut from: a tree like the steps, of :class:`ColumnHistory`.
    #[getter]
    fn history<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let kinds = slf.get().kinds(py);
        slf.get().inlet.like_steps(py, |column| {
            let kind = Arc::clone(&kinds[column as usize]);
            let history = ColumnHistory { writer: slf.clone().unbind(), column, kind };
            Ok(Bound::new(py, history)?.into_any())
        })
    }

    /// Make an item of steps of the history. Never waits.
    ///
    /// Args:
    ///     table: Where it goes.
    ///     priority: Finite and not negative.
    ///     trajectory: A tree whose leaves are parts of columns of the history: one step
    ///         (``column[-1]``, which has no axis of time), a slice or a list of steps. Without it
    ///         the item is the last step of the history, all of it: ``[-1]`` of every column.
    ///     last: Instead of a trajectory: this number of last steps, ``[-last:]`` of every column.
    ///
    /// Raises:
    ///     TableNotFoundError: There is no such table.
    ///     PriorityError: If the priority is not a finite number >= 0.
    ///     SpecError: The item is not like the table's spec.
    ///     TrajectoryError: If there are fewer steps, one is gone, or a leaf is not of this
    ///         writer's history.
    #[pyo3(signature = (table, priority, trajectory=None, *, last=None))]
    fn create_item(
        slf: &Bound<'_, Self>,
        table: &str,
        priority: f64,
        trajectory: Option<&Bound<'_, PyAny>>,
        last: Option<u32>,
    ) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        this.inlet.check(py)?;
        check_priorities(&[priority]).or_raise(py)?;
        let number = table_number(py, &this.inlet.tables, table)?;
        match (trajectory, last) {
            (Some(trajectory), None) => {
                let (form, columns) = this.item_form(slf, trajectory)?;
                let mut state = this.inlet.open(py)?;
                state.core.spans.clear();
                for spans in columns {
                    state.core.spans.column(spans);
                }
                let created = create(&mut state, number, priority, &form.signature);
                drop(state);
                created.or_raise(py)
            }
            (None, Some(0)) => Err(PyValueError::new_err("an item has at least 1 step")),
            (None, last) => {
                let whole = this.whole(slf, last.is_none())?;
                let mut state = this.inlet.open(py)?;
                let Free { writer, spans, .. } = &mut state.core;
                let named = writer.last_steps(&whole.columns, last.unwrap_or(1), spans);
                let created = named
                    .map_err(WriterCallError::from)
                    .and_then(|()| create(&mut state, number, priority, &whole.form.signature));
                drop(state);
                created.or_raise(py)
            }
            _ => Err(PyTypeError::new_err("give either a trajectory, or last=N steps")),
        }
    }

    /// Hand all items over to their tables, and wait until at most this many are on their way.
    ///
    /// With 0, those that are there then survive what their tables' durability says.
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

    /// Hand all items over and begin another episode.
    ///
    /// Args:
    ///     clear: Items can no longer name steps of this episode.
    ///     timeout: Seconds to wait for the tables.
    #[pyo3(signature = (clear=true, timeout=None))]
    fn end_episode(&self, py: Python<'_>, clear: bool, timeout: Option<f64>) -> PyResult<()> {
        self.inlet.end_episode(py, clear, timeout)
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

    /// How many steps of this episode are complete.
    #[getter]
    fn episode_steps(&self, py: Python<'_>) -> u64 {
        self.inlet.episode_steps(py)
    }
}

impl TrajectoryWriter {
    /// What the values of each column are.
    fn kinds(&self, py: Python<'_>) -> SmallVec<[Arc<ColumnKind>; 16]> {
        let state = self.inlet.lock(py);
        state.core.writer.columns().map(|(_, kind)| Arc::clone(kind)).collect()
    }

    /// The steps of a column that can be named.
    fn runs(&self, py: Python<'_>, column: u32) -> Runs {
        self.inlet.lock(py).core.writer.history(column).map(Iterator::collect).unwrap_or_default()
    }

    /// Whether all these steps can still be named.
    fn has(&self, py: Python<'_>, spans: &[Span]) -> bool {
        spans.iter().all(|span| {
            let end = span.first + u64::from(span.len);
            self.runs(py, span.column).iter().any(|run| run.start <= span.first && end <= run.end)
        })
    }

    /// The bytes of steps.
    fn read(&self, py: Python<'_>, kind: &ColumnKind, spans: &[Span]) -> PyResult<Vec<u8>> {
        let bytes = kind.step_bytes().unwrap_or(0);
        let steps = spans.iter().flat_map(|span| {
            let steps = span.first..span.first + u64::from(span.len);
            steps.map(|step| StepRef { column: span.column, step })
        });
        let mut all = Vec::new();
        let state = self.inlet.lock(py);
        let read = steps.into_iter().try_for_each(|at| {
            let start = all.len();
            all.resize(start + bytes, 0);
            state.core.writer.read(at, &mut all[start..])
        });
        drop(state);
        read.or_raise(py)?;
        Ok(all)
    }

    /// The form of items of the last steps of every column; `squeezed`, of one step without an axis of time.
    fn whole(&self, slf: &Bound<'_, Self>, squeezed: bool) -> PyResult<Arc<Whole>> {
        let py = slf.py();
        let state = self.inlet.lock(py);
        let columns = state.core.writer.columns().len();
        let known = state.core.whole[usize::from(squeezed)].clone();
        drop(state);
        if let Some(whole) = known.filter(|whole| whole.columns.len() == columns) {
            return Ok(whole);
        }
        let kinds = self.kinds(py);
        let tree = self.inlet.like_steps(py, |column| {
            let kind = Arc::clone(&kinds[column as usize]);
            // Any step, for the form.
            let spans = SmallVec::from_buf([Span { column, first: 0, len: 1 }]);
            let steps = Steps { writer: slf.clone().unbind(), kind, spans, squeezed };
            Ok(Bound::new(py, steps)?.into_any())
        })?;
        let (form, columns) = self.item_form(slf, &tree)?;
        let columns = columns.iter().filter_map(|spans| spans.first().map(|span| span.column));
        let whole = Arc::new(Whole { form, columns: columns.collect() });
        let mut state = self.inlet.lock(py);
        let before = state.core.whole[usize::from(squeezed)].replace(Arc::clone(&whole));
        drop(state);
        drop(before);
        Ok(whole)
    }

    /// The form of an item and the steps of each column.
    fn item_form(
        &self,
        slf: &Bound<'_, Self>,
        trajectory: &Bound<'_, PyAny>,
    ) -> PyResult<(Arc<ItemForm>, ItemColumns)> {
        let py = slf.py();
        let known = self.inlet.lock(py).core.items.all();
        let mut columns = ItemColumns::new();
        for (index, form) in known.iter().enumerate() {
            let mut fits = true;
            columns.clear();
            columns.resize_with(form.tree.rules.len(), SmallVec::new);
            let walked = form.tree.visit(trajectory, &mut |leaf, value| {
                let column = &form.signature.columns[leaf];
                let steps = own(slf, &column.path, value)?;
                fits &= column.squeezed == steps.squeezed && column.kind == *steps.kind;
                columns[leaf] = steps.spans.clone();
                Ok(())
            });
            if walked.is_ok() && fits {
                if index > 0 {
                    self.inlet.lock(py).core.items.touch(form);
                }
                return Ok((Arc::clone(form), columns));
            }
        }
        columns.clear();
        let mut squeezed = Vec::new();
        let tree = Tree::compile_with(trajectory, &mut |path, value| {
            let steps = own(slf, &path, value)?;
            squeezed.push(steps.squeezed);
            columns.push(steps.spans.clone());
            let kind = &steps.kind;
            LeafRule::from_leaf(py, Leaf { path, dtype: kind.dtype, shape: kind.shape.clone() })
        })?;
        let signature = signature(py, &tree, squeezed.into_iter())?;
        let form = Arc::new(ItemForm { tree, signature });
        let dropped = self.inlet.open(py)?.core.items.add(&form);
        drop(dropped);
        Ok((form, columns))
    }
}

/// A leaf of a trajectory, which must be steps of this writer.
fn own<'a>(
    writer: &Bound<'_, TrajectoryWriter>,
    path: &str,
    value: &'a Bound<'_, PyAny>,
) -> PyResult<&'a Steps> {
    let py = writer.py();
    let steps = value.cast::<Steps>().map_err(|_| {
        let class = value.get_type().name().map_or("?".into(), |name| name.to_string());
        let text = format!(
            "leaf `{}` of a trajectory: expected steps of the writer's history, got a {class}",
            display(path)
        );
        trajectory_error(py, text)
    })?;
    let steps = steps.get();
    if !steps.writer.bind(py).is(writer) {
        let name = display(path);
        let text = format!("leaf `{name}` of a trajectory has steps of another writer");
        return Err(trajectory_error(py, text));
    }
    Ok(steps)
}

/// Makes an item of the steps in `spans`.
fn create(
    state: &mut WriterState<Free>,
    table: usize,
    priority: f64,
    signature: &Arc<Signature>,
) -> Result<(), WriterCallError> {
    let Free { writer, spans, .. } = &mut state.core;
    let steps = spans.iter().map(|spans| spans.iter().map(|span| u64::from(span.len)).sum());
    check_item(&state.queue.tables()[table], signature, steps)?;
    writer.create_item(table as u32, priority, signature, spans)?;
    state.deliver(Ok(()))
}

/// Refuses an item, with so many steps of each column, that its table would not take.
fn check_item(
    table: &TableHandle,
    signature: &Signature,
    steps: impl Iterator<Item = u64>,
) -> Result<(), WriterCallError> {
    let Some(spec) = table.entry().form.spec() else { return Ok(()) };
    let steps: SmallVec<[u64; 8]> = steps.collect();
    let checked = signature.check(spec, &steps);
    checked.map_err(|text| WriterCallError::Spec(for_table("an item", table, &text)))
}

fn for_table(what: &str, table: &TableHandle, text: &str) -> String {
    format!("{what} for table {:?}: {text}", table.entry().name)
}

/// Which of the writer's tables has this name.
fn table_number(py: Python<'_>, tables: &[TableHandle], table: &str) -> PyResult<usize> {
    tables.iter().position(|known| known.entry().name == table).ok_or_else(|| {
        let names: Vec<&str> = tables.iter().map(|table| table.entry().name.as_str()).collect();
        let known = format!("there is no table {table:?}; the writer has {names:?}");
        table_not_found_error(py, known)
    })
}

/// The form of items like a tree, whose leaves are one step without an axis of time where they are `squeezed`.
fn signature(
    py: Python<'_>,
    tree: &Tree,
    squeezed: impl Iterator<Item = bool>,
) -> PyResult<Arc<Signature>> {
    if tree.rules.is_empty() {
        let text = "a trajectory has no leaves: its item would have no data";
        return Err(trajectory_error(py, text));
    }
    structure::signature(py, tree, squeezed).map(Arc::new)
}

fn config(
    keep_alive: u32,
    chunk_length: Option<&Bound<'_, PyAny>>,
    encoding: &str,
) -> PyResult<ColumnConfig> {
    let chunk_length = chunk_length.map_or(Ok(ChunkLength::Auto), self::chunk_length)?;
    Ok(ColumnConfig { keep_alive, chunk_length, encoding: self::encoding(encoding)? })
}

/// How long chunks are: a number, or `"prompt"`.
fn chunk_length(given: &Bound<'_, PyAny>) -> PyResult<ChunkLength> {
    match given.extract::<PyBackedStr>() {
        Ok(name) if *name == *"prompt" => Ok(ChunkLength::Prompt),
        Ok(name) => Err(PyValueError::new_err(format!(
            "chunk_length: expected a number of steps, \"prompt\" or None, got {:?}",
            &*name
        ))),
        Err(_) => given.extract().map(ChunkLength::Fixed),
    }
}

/// Settings of one column: what is not given is that of all, as far as it goes with the window.
fn changed(
    all: ColumnConfig,
    keep_alive: Option<u32>,
    chunk_length: Option<&Bound<'_, PyAny>>,
    encoding: Option<&str>,
) -> PyResult<ColumnConfig> {
    let keep_alive = keep_alive.unwrap_or(all.keep_alive);
    let chunk_length = match (chunk_length, all.chunk_length) {
        (Some(given), _) => self::chunk_length(given)?,
        (None, ChunkLength::Fixed(length)) => ChunkLength::Fixed(length.min(keep_alive)),
        (None, measured) => measured,
    };
    let encoding = encoding.map_or(Ok(all.encoding), self::encoding)?;
    Ok(ColumnConfig { keep_alive, chunk_length, encoding })
}

/// How chunks are encoded, by its name.
fn encoding(name: &str) -> PyResult<Policy> {
    name.parse().map_err(|error: UnknownEncoding| PyValueError::new_err(error.to_string()))
}
