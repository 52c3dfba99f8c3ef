//! A writer of trajectories: steps in, items that name them out.

mod history;
mod outlet;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use echoic_replay::Leaf;
use echoic_replay::chunk::ColumnKind;
use echoic_replay::table::{Form, check_priorities};
use echoic_replay::trajectory::{Column, Signature};
use echoic_replay::writer::{
    ChunkLength, ColumnConfig, ItemSteps, Span, StepRef, TrajectoryWriter as Core, WriterError,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use smallvec::SmallVec;

pub use self::history::{ColumnHistory, Steps};
use self::outlet::Outlet;
use crate::error::{
    priority_error, spec_error, table_error, table_not_found_error, trajectory_error,
};
use crate::leaf::{LeafRule, Many, One, display};
use crate::sources::{recheck, with_sources};
use crate::structure;
use crate::table::Table;
use crate::tree::Tree;
use crate::wait;

/// How many items may wait for their tables before an append waits for them.
const MAX_WAITING: usize = 1024;
/// How many forms of steps and of items a writer knows at a time.
const MAX_FORMS: usize = 32;

/// A form of steps.
struct StepForm {
    tree: Tree,
    /// The column of each leaf.
    columns: Vec<u32>,
}

/// A form of items.
struct ItemForm {
    tree: Tree,
    signature: Arc<Signature>,
}

struct State {
    core: Core,
    outlet: Outlet,
    /// The form used last comes first.
    steps: Vec<Arc<StepForm>>,
    items: Vec<Arc<ItemForm>>,
    /// Used again by each item.
    spans: ItemSteps,
    closed: bool,
}

/// Writes trajectories.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct TrajectoryWriter {
    state: Mutex<State>,
    names: Vec<String>,
}

#[pymethods]
impl TrajectoryWriter {
    #[new]
    fn new(
        py: Python<'_>,
        tables: Vec<Py<Table>>,
        keep_alive: u32,
        chunk_length: Option<u32>,
    ) -> PyResult<Self> {
        let core = Core::new(config(keep_alive, chunk_length)).map_err(|e| writer_error(py, &e))?;
        let tables: Vec<_> = tables.iter().map(|table| Arc::clone(table.get().core())).collect();
        let names = tables.iter().map(|table| table.config().name.clone()).collect();
        let state = State {
            core,
            outlet: Outlet::new(tables),
            steps: Vec::new(),
            items: Vec::new(),
            spans: ItemSteps::default(),
            closed: false,
        };
        Ok(Self { state: Mutex::new(state), names })
    }

    /// Settings of a column.
    fn configure(
        &self,
        py: Python<'_>,
        path: &str,
        keep_alive: u32,
        chunk_length: Option<u32>,
    ) -> PyResult<()> {
        let config = config(keep_alive, chunk_length);
        self.open(py)?.core.configure(path, config).map_err(|error| writer_error(py, &error))
    }

    /// Adds a step, or a part of one.
    #[pyo3(signature = (step, partial=false, timeout=None))]
    fn append(
        &self,
        py: Python<'_>,
        step: &Bound<'_, PyAny>,
        partial: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = wait::deadline(timeout)?;
        let form = self.step_form(step, true)?;
        with_sources(
            &form.tree,
            step,
            &mut One,
            |sources, _| {
                let mut state = self.open(py)?;
                let state = &mut *state;
                recheck(py, &form.tree, sources)?;
                let columns: SmallVec<[u32; 16]> =
                    sources.iter().map(|source| form.columns[source.leaf]).collect();
                // SAFETY: `gather` accepted each value with the rule of its leaf, whose bytes are those
                // of a step of its column, and they were rechecked just now.
                let fill = |at: usize, to: &mut [u8]| unsafe { sources[at].copy_to(0, to) };
                state
                    .core
                    .append_with(&columns, partial, fill)
                    .map_err(|error| writer_error(py, &error))?;
                if state.core.pending() > 0 {
                    state.core.emit(&mut state.outlet);
                }
                state.outlet.pump().map_err(|error| table_error(py, &error))?;
                if state.outlet.len() >= MAX_WAITING {
                    state.outlet.drain(py, MAX_WAITING / 2, deadline)?;
                }
                Ok(())
            },
            |_| {},
        )
    }

    /// Adds many steps, one after the other.
    #[pyo3(signature = (steps, timeout=None))]
    fn append_batch(
        &self,
        py: Python<'_>,
        steps: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = wait::deadline(timeout)?;
        let form = self.step_form(steps, false)?;
        with_sources(
            &form.tree,
            steps,
            &mut Many::default(),
            |sources, shapes| {
                let count = shapes.rows.unwrap_or(0);
                if count == 0 {
                    return Ok(());
                }
                let mut state = self.open(py)?;
                let state = &mut *state;
                recheck(py, &form.tree, sources)?;
                let mut values = vec![None; state.core.columns().len()];
                for source in sources {
                    let bytes = form.tree.rules[source.leaf].leaf.nbytes().unwrap_or(0) * count;
                    // SAFETY: `gather` accepted the value with the rule of its leaf after an axis of
                    // `count`, and it was rechecked just now; it is alive while this runs.
                    values[form.columns[source.leaf] as usize] =
                        Some(unsafe { source.bytes(bytes) });
                }
                state
                    .core
                    .append_batch(count, &values)
                    .map_err(|error| writer_error(py, &error))?;
                state.core.emit(&mut state.outlet);
                state.outlet.drain(py, MAX_WAITING / 2, deadline)
            },
            |_| {},
        )
    }

    /// What new items may name: a tree like the steps.
    #[getter]
    fn history<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let forms = slf.get().lock(py).steps.clone();
        let mut merged: Option<Bound<'py, PyAny>> = None;
        // The form used last is the one that counts where they differ.
        for form in forms.iter().rev() {
            let tree = form.tree.build(py, &mut |leaf| {
                let column = form.columns[leaf];
                let history = ColumnHistory { writer: slf.clone().unbind(), column };
                Ok(Bound::new(py, history)?.into_any())
            })?;
            merged = Some(match merged {
                Some(before) => merge(&before, tree)?,
                None => tree,
            });
        }
        Ok(merged.unwrap_or_else(|| PyDict::new(py).into_any()))
    }

    /// Makes an item of steps.
    fn create_item(
        slf: &Bound<'_, Self>,
        table: &str,
        priority: f64,
        trajectory: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        check_priorities(&[priority]).map_err(|error| priority_error(py, error.to_string()))?;
        let number = this.names.iter().position(|name| name == table).ok_or_else(|| {
            let known = format!("there is no table {table:?}; the writer has {:?}", this.names);
            table_not_found_error(py, known)
        })?;
        let form = this.item_form(slf, trajectory)?;
        // Before the lock is taken: nodes that optree knows run Python.
        let mut columns: SmallVec<[SmallVec<[Span; 1]>; 8]> = SmallVec::new();
        columns.resize_with(form.tree.rules.len(), SmallVec::new);
        form.tree.visit(trajectory, &mut |leaf, value| {
            columns[leaf] = value.cast::<Steps>()?.get().spans.clone();
            Ok(())
        })?;
        let mut state = this.open(py)?;
        let state = &mut *state;
        state.spans.clear();
        for spans in &columns {
            state.spans.column(spans.iter().copied());
        }
        if let Form::Rows(spec) | Form::Trajectories(Some(spec)) =
            &state.outlet.tables()[number].config().form
        {
            let steps =
                columns.iter().map(|spans| spans.iter().map(|span| u64::from(span.len)).sum());
            form.signature
                .check(spec, &steps.collect::<SmallVec<[u64; 8]>>())
                .map_err(|text| spec_error(py, text))?;
        }
        state
            .core
            .create_item(number as u32, priority, &form.signature, &state.spans)
            .map_err(|error| writer_error(py, &error))?;
        state.core.emit(&mut state.outlet);
        state.outlet.pump().map_err(|error| table_error(py, &error))
    }

    /// Hands over all items, and waits until at most so many are left.
    #[pyo3(signature = (block_until_num_items=0, timeout=None))]
    fn flush(
        &self,
        py: Python<'_>,
        block_until_num_items: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = wait::deadline(timeout)?;
        let mut state = self.lock(py);
        let state = &mut *state;
        state.core.flush(&mut state.outlet);
        state.outlet.drain(py, block_until_num_items, deadline)
    }

    /// Begins another episode.
    #[pyo3(signature = (clear=true, timeout=None))]
    fn end_episode(&self, py: Python<'_>, clear: bool, timeout: Option<f64>) -> PyResult<()> {
        self.open(py)?.core.end_episode(clear);
        self.flush(py, 0, timeout)
    }

    /// Takes nothing more.
    fn close(&self, py: Python<'_>) {
        self.lock(py).closed = true;
    }

    /// How many items were created and are in no table yet.
    #[getter]
    fn pending(&self, py: Python<'_>) -> usize {
        let state = self.lock(py);
        state.core.pending() + state.outlet.len()
    }

    /// How many steps of this episode are complete.
    #[getter]
    fn episode_steps(&self, py: Python<'_>) -> u64 {
        let state = self.lock(py);
        state.core.steps() - state.core.episode_start()
    }
}

impl TrajectoryWriter {
    /// Takes the lock, without the GIL where that takes a while: whoever has it may be waiting for a table.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        let state = self.lock(py);
        if state.closed {
            return Err(crate::error::closed_error(py, "the writer is closed"));
        }
        Ok(state)
    }

    /// What the values of a column are.
    fn kind(&self, py: Python<'_>, column: u32) -> Arc<ColumnKind> {
        let state = self.lock(py);
        let kind = state.core.columns().nth(column as usize).map(|(_, kind)| Arc::clone(kind));
        kind.expect("a column of this writer")
    }

    /// The steps of a column that can be named.
    fn runs(&self, py: Python<'_>, column: u32) -> SmallVec<[std::ops::Range<u64>; 2]> {
        self.lock(py).core.history(column).map(Iterator::collect).unwrap_or_default()
    }

    /// The bytes of steps.
    fn read(&self, py: Python<'_>, spans: &[Span]) -> PyResult<Vec<u8>> {
        let Some(Span { column, .. }) = spans.first() else { return Ok(Vec::new()) };
        let bytes = self.kind(py, *column).step_bytes().unwrap_or(0);
        let state = self.lock(py);
        let mut all = Vec::new();
        for span in spans {
            for step in span.first..span.first + u64::from(span.len) {
                let start = all.len();
                all.resize(start + bytes, 0);
                state
                    .core
                    .read(StepRef { column: span.column, step }, &mut all[start..])
                    .map_err(|error| writer_error(py, &error))?;
            }
        }
        Ok(all)
    }

    /// The form of a step, or of many.
    fn step_form(&self, step: &Bound<'_, PyAny>, one: bool) -> PyResult<Arc<StepForm>> {
        let py = step.py();
        let known: SmallVec<[Arc<StepForm>; 4]> = self.lock(py).steps.iter().cloned().collect();
        for (index, form) in known.iter().enumerate() {
            if form.tree.visit(step, &mut |_, _| Ok(())).is_ok() {
                if index > 0 {
                    let mut state = self.lock(py);
                    if let Some(at) = state.steps.iter().position(|other| Arc::ptr_eq(other, form))
                    {
                        state.steps[..=at].rotate_right(1);
                    }
                }
                return Ok(Arc::clone(form));
            }
        }
        let tree = if one {
            Tree::compile(step, "")?
        } else {
            Tree::compile_with(step, &mut |path, value| {
                let mut rule = LeafRule::from_example(path, value)?;
                if rule.leaf.shape.is_empty() {
                    let name = display(&rule.leaf.path);
                    let text = format!("leaf `{name}`: expected an axis of steps, got a scalar");
                    return Err(spec_error(py, text));
                }
                rule.leaf.shape.remove(0);
                Ok(rule)
            })?
        };
        let mut state = self.open(py)?;
        let columns = tree.rules.iter().map(|rule| {
            let column = state.core.column(&rule.leaf.path, &ColumnKind::from(&rule.leaf));
            column.map_err(|error| writer_error(py, &error))
        });
        let form = Arc::new(StepForm { columns: columns.collect::<PyResult<_>>()?, tree });
        state.steps.insert(0, Arc::clone(&form));
        state.steps.truncate(MAX_FORMS);
        Ok(form)
    }

    /// The form of an item.
    fn item_form(
        &self,
        slf: &Bound<'_, Self>,
        trajectory: &Bound<'_, PyAny>,
    ) -> PyResult<Arc<ItemForm>> {
        let py = slf.py();
        let own = |path: &str, value: &Bound<'_, PyAny>| -> PyResult<Py<Steps>> {
            let steps = value.cast::<Steps>().map_err(|_| {
                let class = value.get_type().name().map_or("?".into(), |name| name.to_string());
                let text = format!(
                    "leaf `{}` of a trajectory: expected steps of the writer's history, got a {class}",
                    display(path)
                );
                trajectory_error(py, text)
            })?;
            if !steps.get().writer.bind(py).is(slf) {
                let name = display(path);
                let text = format!("leaf `{name}` of a trajectory has steps of another writer");
                return Err(trajectory_error(py, text));
            }
            Ok(steps.clone().unbind())
        };
        let known: SmallVec<[Arc<ItemForm>; 4]> = self.lock(py).items.iter().cloned().collect();
        for form in &known {
            let mut fits = true;
            let walked = form.tree.visit(trajectory, &mut |leaf, value| {
                let column = &form.signature.columns[leaf];
                let steps = own(&column.path, value)?;
                fits &= column.squeezed == steps.get().squeezed
                    && column.kind == *self.kind(py, steps.get().column);
                Ok(())
            });
            if walked.is_ok() && fits {
                return Ok(Arc::clone(form));
            }
        }
        let mut squeezed = Vec::new();
        let tree = Tree::compile_with(trajectory, &mut |path, value| {
            let steps = own(&path, value)?;
            squeezed.push(steps.get().squeezed);
            let kind = self.kind(py, steps.get().column);
            LeafRule::from_leaf(py, Leaf { path, dtype: kind.dtype, shape: kind.shape.clone() })
        })?;
        let columns = tree.rules.iter().zip(squeezed).map(|(rule, squeezed)| Column {
            path: rule.leaf.path.clone(),
            kind: ColumnKind::from(&rule.leaf),
            squeezed,
        });
        let columns = columns.collect();
        let signature = Arc::new(Signature { structure: structure::write(py, &tree)?, columns });
        let form = Arc::new(ItemForm { tree, signature });
        let mut state = self.open(py)?;
        state.items.insert(0, Arc::clone(&form));
        state.items.truncate(MAX_FORMS);
        Ok(form)
    }
}

fn config(keep_alive: u32, chunk_length: Option<u32>) -> ColumnConfig {
    let chunk_length = chunk_length.map_or(ChunkLength::Auto, ChunkLength::Fixed);
    ColumnConfig { keep_alive, chunk_length }
}

fn writer_error(py: Python<'_>, error: &WriterError) -> PyErr {
    let text = error.to_string();
    match error {
        WriterError::Config { .. } => PyValueError::new_err(text),
        WriterError::Kind { .. } | WriterError::Length { .. } => spec_error(py, text),
        WriterError::Priority(_) => priority_error(py, text),
        _ => trajectory_error(py, text),
    }
}

/// Dicts are merged key by key; of other nodes the later counts.
fn merge<'py>(before: &Bound<'py, PyAny>, after: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let (Ok(old), Ok(new)) = (before.cast::<PyDict>(), after.cast::<PyDict>()) else {
        return Ok(after);
    };
    let merged = old.copy()?;
    for (key, value) in new.iter() {
        let value = match old.get_item(&key)? {
            Some(known) => merge(&known, value)?,
            None => value,
        };
        merged.set_item(key, value)?;
    }
    Ok(merged.into_any())
}
