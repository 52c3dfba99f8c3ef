//! Where the steps of a writer come from: Python trees in, values of columns out.
//!
//! [`Inlet`] is what all writers have in common: forms of steps, the lock, and waiting for tables. What
//! else a writer knows is its [`Core`].
//!
//! # Invariants
//!
//! 1. No Python code runs while the lock is held: a handler of signals or an object's end might come here
//!    again, in the thread that has the lock. So nothing waits for a table then, no form is dropped, and a
//!    refusal becomes an exception later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use echoic_net::client::tables::{ItemQueue, TableHandle, TablesError};
use echoic_replay::chunk::ColumnKind;
use echoic_replay::writer::structured::StructuredError;
use echoic_replay::writer::{TrajectoryWriter, WriterError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use smallvec::SmallVec;

use super::forms::RecentForms;
use crate::error::{
    OrRaise, Raise, closed_error, is_ours, priority_error, spec_error, trajectory_error,
};
use crate::fork::Process;
use crate::leaf::{LeafRule, Many, One, ShapeRule, Source, display};
use crate::sources::{recheck, with_sources};
use crate::tree::Tree;
use crate::wait;

/// How many items may wait for their tables before an append waits for them.
pub const MAX_WAITING: usize = 1024;

/// What becomes of steps.
pub trait Core: Send {
    /// The writer beneath, to look at.
    fn writer(&self) -> &TrajectoryWriter;

    /// Refuses steps with leaves of these paths and kinds.
    fn check(&self, _: &[TableHandle], _: &[(&str, ColumnKind)]) -> Result<(), WriterCallError> {
        Ok(())
    }

    fn column(&mut self, path: &str, kind: &ColumnKind) -> Result<u32, StructuredError>;

    fn emit(&mut self, queue: &mut ItemQueue);

    fn flush(&mut self, queue: &mut ItemQueue);

    /// How many items were created and not handed over yet.
    fn pending(&self) -> usize {
        self.writer().pending()
    }
}

/// A core for the steps of one environment.
pub trait Single: Core {
    fn append_with(
        &mut self,
        columns: &[u32],
        partial: bool,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), StructuredError>;

    fn append_batch(
        &mut self,
        steps: usize,
        values: &[Option<&[u8]>],
    ) -> Result<(), StructuredError>;

    /// The episode has ended, whatever is returned.
    fn end_episode(&mut self, clear: bool) -> Result<(), StructuredError>;
}

/// Why a call was refused; an exception once the lock is free.
pub enum WriterCallError {
    Core(StructuredError),
    Table(TablesError),
    Spec(String),
    Raised(PyErr),
}

impl<E: Into<StructuredError>> From<E> for WriterCallError {
    fn from(error: E) -> Self {
        Self::Core(error.into())
    }
}

impl Raise for WriterCallError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Core(error) => error.raise(py),
            Self::Table(error) => error.raise(py),
            Self::Spec(text) => spec_error(py, text),
            Self::Raised(error) => error,
        }
    }
}

impl Raise for StructuredError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Writer(
                WriterError::Config { .. }
                | WriterError::NoEnvironment
                | WriterError::Environments { .. },
            )
            | Self::Mixed(_) => PyValueError::new_err(text),
            Self::Writer(WriterError::Kind { .. } | WriterError::Length { .. })
            | Self::NotScalar { .. } => spec_error(py, text),
            Self::Writer(WriterError::Priority(_)) | Self::Priority(_) => priority_error(py, text),
            _ => trajectory_error(py, text),
        }
    }
}

impl Raise for WriterError {
    fn raise(self, py: Python<'_>) -> PyErr {
        StructuredError::from(self).raise(py)
    }
}

/// A form of steps.
pub struct StepForm {
    pub tree: Tree,
    /// The column of each leaf.
    pub columns: Vec<u32>,
}

pub struct WriterState<C> {
    pub core: C,
    pub queue: ItemQueue,
    forms: RecentForms<StepForm>,
    closed: bool,
}

impl<C: Core> WriterState<C> {
    /// Hands over what is complete, after a call of the core with this result.
    pub fn deliver(&mut self, result: Result<(), StructuredError>) -> Result<(), WriterCallError> {
        if self.core.pending() > 0 {
            self.core.emit(&mut self.queue);
        }
        let pumped = self.queue.pump();
        result?;
        pumped.map_err(WriterCallError::Table)
    }

    /// The columns of leaves.
    fn columns(&mut self, rules: &[LeafRule]) -> Result<Vec<u32>, WriterCallError> {
        let kinds: Vec<_> = rules
            .iter()
            .map(|rule| (rule.leaf.path.as_str(), ColumnKind::from(&rule.leaf)))
            .collect();
        self.core.check(self.queue.tables(), &kinds)?;
        // Those that exist first: when one of them does not fit, no other comes into being.
        for (path, kind) in &kinds {
            if self.core.writer().columns().any(|(known, _)| known == *path) {
                self.core.column(path, kind)?;
            }
        }
        let columns = kinds.iter().map(|(path, kind)| self.core.column(path, kind));
        Ok(columns.collect::<Result<_, _>>()?)
    }
}

/// See the [module](self).
pub struct Inlet<C> {
    state: Mutex<WriterState<C>>,
    process: Process,
    /// Those of the queue, to look at without the lock.
    pub tables: Arc<[TableHandle]>,
}

impl<C: Core> Inlet<C> {
    pub fn new(core: C, tables: Vec<TableHandle>) -> Self {
        let queue = ItemQueue::new(tables);
        let tables = Arc::clone(queue.tables());
        Self {
            state: Mutex::new(WriterState {
                core,
                queue,
                forms: RecentForms::default(),
                closed: false,
            }),
            process: Process::current(),
            tables,
        }
    }

    /// Refuses a forked child: its items would reach no table, and the lock may never be free.
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)
    }

    /// Takes the lock, without the GIL where that takes a while.
    pub fn lock(&self, py: Python<'_>) -> MutexGuard<'_, WriterState<C>> {
        // PyO3 has this only for std's mutex. Poisoning is ignored as in `echoic_memory::sync`.
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless the writer is closed.
    pub fn open(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, WriterState<C>>> {
        self.check(py)?;
        let state = self.lock(py);
        if state.closed {
            drop(state);
            return Err(closed_error(py, "the writer is closed"));
        }
        Ok(state)
    }

    /// The form of the last step.
    pub fn last_form(&self, py: Python<'_>) -> Option<Arc<StepForm>> {
        self.lock(py).forms.first()
    }

    /// The forms that steps had, the last one first.
    pub fn forms(&self, py: Python<'_>) -> SmallVec<[Arc<StepForm>; 4]> {
        self.lock(py).forms.all()
    }

    /// Hands over all items, and waits until at most `left` are not in their tables.
    pub fn flush(&self, py: Python<'_>, left: usize, timeout: Option<f64>) -> PyResult<()> {
        let deadline = wait::deadline(timeout)?;
        self.check(py)?;
        let mut state = self.lock(py);
        let WriterState { core, queue, .. } = &mut *state;
        core.flush(queue);
        let receipt = queue.receipt();
        drop(state);
        self.drain(py, left, deadline)?;
        if let Some(receipt) = receipt {
            // What is not on its way counts too.
            let left = left.saturating_sub(self.pending(py));
            wait::until(py, deadline, |wait| receipt.wait(left, wait))?;
        }
        Ok(())
    }

    /// A tree like the steps, in which `leaf` says what stands for each column.
    pub fn like_steps<'py>(
        &self,
        py: Python<'py>,
        mut leaf: impl FnMut(u32) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check(py)?;
        let mut merged: Option<Bound<'py, PyAny>> = None;
        // The form used last is the one that counts where they differ.
        for form in self.forms(py).iter().rev() {
            let tree = form.tree.build(py, &mut |at| leaf(form.columns[at]))?;
            merged = Some(match merged {
                Some(before) => merge(&before, tree)?,
                None => tree,
            });
        }
        Ok(merged.unwrap_or_else(|| PyDict::new(py).into_any()))
    }

    pub fn close(&self, py: Python<'_>) {
        if self.process.is_current() {
            self.lock(py).closed = true;
        }
    }

    /// How many items were created and are in no table yet.
    pub fn pending(&self, py: Python<'_>) -> usize {
        if !self.process.is_current() {
            return 0;
        }
        let state = self.lock(py);
        state.core.pending() + state.queue.len()
    }

    /// Inserts until at most `left` items wait for their tables.
    pub fn drain(&self, py: Python<'_>, left: usize, deadline: Option<Instant>) -> PyResult<()> {
        loop {
            let mut state = self.lock(py);
            let queue = &mut state.queue;
            let next = queue.pump().map(|()| queue.take(left));
            drop(state);
            let Some(item) = next.or_raise(py)? else { return Ok(()) };
            let inserted = wait::until(py, deadline, |wait| item.insert(wait));
            let rest = inserted.is_err().then_some(item);
            self.lock(py).queue.settle(rest);
            inserted?;
        }
    }

    /// Calls `store` with the form of a step, or of many, and its sources.
    pub fn with_form<S: ShapeRule>(
        &self,
        step: &Bound<'_, PyAny>,
        shapes: impl Fn() -> S,
        compile: impl Fn(&Bound<'_, PyAny>) -> PyResult<Tree>,
        store: impl FnOnce(&StepForm, &[Source], &S) -> PyResult<()>,
    ) -> PyResult<()> {
        let py = step.py();
        self.check(py)?;
        let last = self.lock(py).forms.first();
        let mut store = Some(store);
        if let Some(form) = last {
            // Most steps are like the last one, so they are not compared with its form before.
            let stored = with_sources(
                &form.tree,
                step,
                &mut shapes(),
                |sources, shapes| {
                    store.take().map_or(Ok(()), |store| store(&form, sources, shapes))
                },
                |_| {},
            );
            match stored {
                Err(error) if store.is_some() && is_ours(py, &error) => {}
                other => return other,
            }
        }
        let Some(store) = store else { return Ok(()) };
        let form = self.form(step, compile)?;
        let store = |sources: &[Source], shapes: &S| store(&form, sources, shapes);
        with_sources(&form.tree, step, &mut shapes(), store, |_| {})
    }

    /// The form of a step, or of many.
    fn form(
        &self,
        step: &Bound<'_, PyAny>,
        compile: impl Fn(&Bound<'_, PyAny>) -> PyResult<Tree>,
    ) -> PyResult<Arc<StepForm>> {
        let py = step.py();
        for form in self.forms(py) {
            if form.tree.visit(step, &mut |_, _| Ok(())).is_ok() {
                self.lock(py).forms.touch(&form);
                return Ok(form);
            }
        }
        let tree = compile(step)?;
        let columns = self.open(py)?.columns(&tree.rules);
        let columns = columns.or_raise(py)?;
        let form = Arc::new(StepForm { tree, columns });
        let dropped = self.lock(py).forms.add(&form);
        drop(dropped);
        Ok(form)
    }
}

impl<C: Single> Inlet<C> {
    pub fn append(
        &self,
        step: &Bound<'_, PyAny>,
        partial: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let py = step.py();
        let deadline = wait::deadline(timeout)?;
        let crowded = self.append_unhurried(step, partial)?;
        if crowded { self.drain(py, MAX_WAITING / 2, deadline) } else { Ok(()) }
    }

    /// The same however many items wait for their tables; whether they are many.
    pub fn append_unhurried(&self, step: &Bound<'_, PyAny>, partial: bool) -> PyResult<bool> {
        let py = step.py();
        let mut crowded = false;
        let store = |form: &StepForm, sources: &[Source], _: &One| {
            let columns: SmallVec<[u32; 16]> =
                sources.iter().map(|source| form.columns[source.leaf]).collect();
            let mut state = self.open(py)?;
            let appended = recheck(py, &form.tree, sources).map_err(WriterCallError::Raised);
            let appended = appended.and_then(|()| {
                // SAFETY: `gather` accepted each value with the rule of its leaf, whose bytes are those of
                // a step of its column, and they were rechecked just now.
                let fill = |at: usize, to: &mut [u8]| unsafe { sources[at].copy_to(0, to) };
                let result = state.core.append_with(&columns, partial, fill);
                state.deliver(result)
            });
            crowded = state.queue.len() >= MAX_WAITING;
            drop(state);
            appended.or_raise(py)
        };
        self.with_form(step, || One, compile_one, store)?;
        Ok(crowded)
    }

    pub fn append_batch(&self, steps: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let py = steps.py();
        let deadline = wait::deadline(timeout)?;
        let store = |form: &StepForm, sources: &[Source], shapes: &Many| {
            let count = shapes.rows.unwrap_or(0);
            if count == 0 {
                return Ok(());
            }
            let mut state = self.open(py)?;
            let appended = recheck(py, &form.tree, sources).map_err(WriterCallError::Raised);
            let appended = appended.and_then(|()| {
                let mut values = vec![None; state.core.writer().columns().len()];
                for source in sources {
                    let bytes = form.tree.rules[source.leaf].leaf.nbytes().unwrap_or(0) * count;
                    // SAFETY: `gather` accepted the value with the rule of its leaf after an axis of
                    // `count`, and it was rechecked just now; it is alive while this runs.
                    let bytes = unsafe { source.bytes(bytes) };
                    values[form.columns[source.leaf] as usize] = Some(bytes);
                }
                let result = state.core.append_batch(count, &values);
                state.deliver(result)
            });
            drop(state);
            appended.or_raise(py)
        };
        self.with_form(steps, Many::default, compile_many, store)?;
        self.drain(py, MAX_WAITING / 2, deadline)
    }

    pub fn end_episode(&self, py: Python<'_>, clear: bool, timeout: Option<f64>) -> PyResult<()> {
        // A timeout that is none must not end the episode.
        wait::deadline(timeout)?;
        let ended = self.open(py)?.core.end_episode(clear);
        let flushed = self.flush(py, 0, timeout);
        ended.or_raise(py)?;
        flushed
    }

    /// How many steps of this episode are complete.
    pub fn episode_steps(&self, py: Python<'_>) -> u64 {
        if !self.process.is_current() {
            return 0;
        }
        let state = self.lock(py);
        let writer = state.core.writer();
        writer.steps() - writer.episode_start()
    }
}

/// The tree of a step.
fn compile_one(step: &Bound<'_, PyAny>) -> PyResult<Tree> {
    Tree::compile(step, "")
}

/// The tree of a step, given many.
pub fn compile_many(steps: &Bound<'_, PyAny>) -> PyResult<Tree> {
    Tree::compile_with(steps, &mut |path, value| {
        let mut rule = LeafRule::from_example(path, value)?;
        if rule.leaf.shape.is_empty() {
            let name = display(&rule.leaf.path);
            let text = format!("leaf `{name}`: expected an axis of steps, got a scalar");
            return Err(spec_error(steps.py(), text));
        }
        rule.leaf.shape.remove(0);
        Ok(rule)
    })
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
