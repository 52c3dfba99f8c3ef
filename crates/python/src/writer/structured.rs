//! A writer whose items are made by patterns: `echoic.patterns` says which, as settings.

use echoic_net::client::tables::{ItemQueue, TableHandle};
use echoic_replay::Leaf;
use echoic_replay::chunk::ColumnKind;
use echoic_replay::writer::structured::{
    Condition, Pattern, PatternLeaf, Priority, Reduce, Scalar, StructuredError,
    StructuredWriter as Writer, Take, Term, Test,
};
use echoic_replay::writer::{ChunkLength, TrajectoryWriter};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyType};
use std::collections::BTreeSet;

use super::inlet::{Core, Inlet, Single, WriterCallError};
use super::{Table, chunk_length, encoding, for_table, handles, table_number};
use crate::error::{OrRaise, spec_error, trajectory_error};
use crate::leaf::{LeafRule, display};
use crate::structure;
use crate::tree::Tree;

/// Term, name of its column, divisor, comparison and constant.
type ConditionSettings<'py> = (String, String, Option<u32>, String, Bound<'py, PyAny>);
/// Reduction, path of the leaf, whether signs are dropped, and a number.
type PrioritySettings = (String, String, bool, f64);
/// Tree, table, priority and conditions.
type Settings<'py> = (Bound<'py, PyAny>, String, PrioritySettings, Vec<ConditionSettings<'py>>);

/// Steps of which items are made by patterns.
struct Patterned {
    writer: Writer,
    /// Those of them whose tables say what their items are.
    specified: Vec<Pattern>,
}

impl Core for Patterned {
    fn writer(&self) -> &TrajectoryWriter {
        self.writer.writer()
    }

    /// A pattern whose items no table would take is refused with the first step that shows it.
    fn check(
        &self,
        tables: &[TableHandle],
        new: &[(&str, ColumnKind)],
    ) -> Result<(), WriterCallError> {
        for pattern in &self.specified {
            let table = &tables[pattern.table as usize];
            let Some(spec) = table.entry().form.spec() else { continue };
            let new = new.iter().map(|(path, kind)| (*path, kind));
            let known = self.writer.writer().columns().map(|(path, kind)| (path, &**kind));
            let all: Vec<(&str, &ColumnKind)> = new.chain(known).collect();
            let kind = |name: &str| Some(all.iter().find(|(path, _)| *path == name)?.1);
            let checked = pattern.check_items(spec, kind);
            checked.map_err(|text| WriterCallError::Spec(for_table("a pattern", table, &text)))?;
        }
        Ok(())
    }

    fn column(&mut self, path: &str, kind: &ColumnKind) -> Result<u32, StructuredError> {
        self.writer.column(path, kind)
    }

    fn emit(&mut self, queue: &mut ItemQueue) {
        self.writer.emit(queue);
    }

    fn flush(&mut self, queue: &mut ItemQueue) {
        self.writer.flush(queue);
    }
}

impl Single for Patterned {
    fn append_with(
        &mut self,
        columns: &[u32],
        partial: bool,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), StructuredError> {
        self.writer.append_with(columns, partial, fill).map(drop)
    }

    fn append_batch(
        &mut self,
        steps: usize,
        values: &[Option<&[u8]>],
    ) -> Result<(), StructuredError> {
        self.writer.append_batch(steps, values).map(drop)
    }

    fn end_episode(&mut self, clear: bool) -> Result<(), StructuredError> {
        self.writer.end_episode(clear)
    }
}

/// The native part of :class:`echoic.StructuredWriter`: everything that runs per step.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct StructuredWriter {
    inlet: Inlet<Patterned>,
    /// The columns that patterns name.
    named: BTreeSet<String>,
}

#[pymethods]
impl StructuredWriter {
    #[new]
    fn new(
        py: Python<'_>,
        tables: Vec<Py<Table>>,
        configs: Vec<Settings<'_>>,
        chunk_length: Option<&Bound<'_, PyAny>>,
        encoding: &str,
    ) -> PyResult<Self> {
        let encoding = self::encoding(encoding)?;
        if configs.is_empty() {
            return Err(trajectory_error(py, "a writer without configs would make no items"));
        }
        let tables = handles(&tables);
        let patterns = configs.into_iter().map(|config| pattern(py, &tables, config));
        let patterns: Vec<Pattern> = patterns.collect::<PyResult<_>>()?;
        let length = chunk_length.map_or(Ok(ChunkLength::Auto), self::chunk_length)?;
        let writer = Writer::new(length, encoding, patterns.clone()).or_raise(py)?;
        let named = patterns.iter().flat_map(Pattern::columns).map(str::to_owned).collect();
        let mut specified = patterns;
        specified.retain(|pattern| tables[pattern.table as usize].entry().form.spec().is_some());
        for pattern in &specified {
            let table = &tables[pattern.table as usize];
            let checked =
                table.entry().form.spec().map_or(Ok(()), |spec| pattern.check_leaves(spec));
            checked.map_err(|text| spec_error(py, for_table("a pattern", table, &text)))?;
        }
        Ok(Self { inlet: Inlet::new(Patterned { writer, specified }, tables), named })
    }

    /// Append a step, or a part of one, and make the items that are due.
    ///
    /// Never waits, unless a thousand items wait for their tables.
    ///
    /// Args:
    ///     step: A tree of arrays. Steps may differ in which leaves they have.
    ///     partial: The step goes on: the next append adds other leaves to it. A pattern is applied
    ///         as soon as all that it needs is there, and at most once at a step.
    ///     timeout: Seconds to wait where it must.
    ///
    /// Raises:
    ///     SpecError: A leaf has another dtype or shape than in the steps before, or than a
    ///         condition, a priority or a table's spec needs. The step was not appended.
    ///     TrajectoryError: A leaf was given twice in one step. The step was not appended.
    ///     PriorityError: A computed priority is negative or not finite. The step was appended, and
    ///         all items but those were made.
    ///     WaitTimeoutError: The tables took no items in time. The step was appended.
    #[pyo3(signature = (step, partial=false, timeout=None))]
    fn append(&self, step: &Bound<'_, PyAny>, partial: bool, timeout: Option<f64>) -> PyResult<()> {
        self.inlet.append(step, partial, timeout)
    }

    /// Append many consecutive steps, given as leaves with a leading axis.
    ///
    /// Items are made at each of them.
    #[pyo3(signature = (steps, timeout=None))]
    fn append_batch(&self, steps: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.inlet.append_batch(steps, timeout)
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

    /// Make the items that wait for the end, hand all over and begin another episode.
    ///
    /// Args:
    ///     clear: Items no longer have steps of this episode.
    ///     timeout: Seconds to wait for the tables.
    ///
    /// Raises:
    ///     PriorityError: As for ``append``; the episode has ended all the same.
    ///     WaitTimeoutError: The tables did not take the items in time; they stay with the writer,
    ///         and the episode has ended.
    #[pyo3(signature = (clear=true, timeout=None))]
    fn end_episode(&self, py: Python<'_>, clear: bool, timeout: Option<f64>) -> PyResult<()> {
        self.inlet.end_episode(py, clear, timeout)
    }

    /// Take nothing more; items that were not flushed are dropped.
    fn close(&self, py: Python<'_>) {
        self.inlet.close(py);
    }

    /// How many items were made and are in no table yet.
    #[getter]
    fn pending(&self, py: Python<'_>) -> usize {
        self.inlet.pending(py)
    }

    /// How many steps of this episode are complete.
    #[getter]
    fn episode_steps(&self, py: Python<'_>) -> u64 {
        self.inlet.episode_steps(py)
    }

    /// Columns that patterns name and that no step had so far: a typing error, if they stay.
    #[getter]
    fn missing_columns(&self, py: Python<'_>) -> Vec<String> {
        let state = self.inlet.lock(py);
        let mut missing = self.named.clone();
        for (path, _) in state.core.writer().columns() {
            missing.remove(path);
        }
        missing.into_iter().collect()
    }
}

/// A pattern from its settings.
fn pattern(
    py: Python<'_>,
    tables: &[TableHandle],
    (tree, table, priority, conditions): Settings<'_>,
) -> PyResult<Pattern> {
    let number = table_number(py, tables, &table)?;
    let mut leaves = Vec::new();
    let tree = Tree::compile_with(&tree, &mut |path, value| {
        let (source, take) = steps(&path, value)?;
        leaves.push(PatternLeaf { path: path.clone(), source, take });
        // Only its place in the tree counts: what its values are is known with the first step.
        let dtype = echoic_replay::Dtype::Bool;
        LeafRule::from_leaf(py, Leaf { path, dtype, shape: Vec::new() })
    })?;
    let structure = structure::write(py, &tree)?;
    let priority = self::priority(py, &leaves, &priority)?;
    let conditions = conditions.iter().map(condition).collect::<PyResult<_>>()?;
    Ok(Pattern { table: number as u32, structure, leaves, conditions, priority })
}

/// Which steps of which column a leaf stands for.
pub fn steps(path: &str, value: &Bound<'_, PyAny>) -> PyResult<(String, Take)> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = value.py();
    if !value.is_instance(CLASS.import(py, "echoic.patterns", "ColumnSteps")?)? {
        let text = format!(
            "leaf `{}` of a pattern: expected steps of a column, such as column(\"obs\")[-1], got {}",
            display(path),
            value.repr()?
        );
        return Err(trajectory_error(py, text));
    }
    let (source, start, slice): (String, i64, Option<(i64, u32)>) =
        value.call_method0("_settings")?.extract()?;
    Ok((source, slice.map_or(Take::One(start), |(stop, step)| Take::Slice { start, stop, step })))
}

fn condition(settings: &ConditionSettings<'_>) -> PyResult<Condition> {
    let (term, path, modulo, test, value) = settings;
    let term = match term.as_str() {
        "end_of_episode" => return Ok(Condition::EndOfEpisode),
        "step_index" => Term::StepIndex,
        "steps_since_applied" => Term::StepsSinceApplied,
        "data" => Term::Data(path.clone()),
        other => return Err(unknown("term", other)),
    };
    let test = match test.as_str() {
        "==" => Test::Equal,
        "!=" => Test::NotEqual,
        "<" => Test::Less,
        "<=" => Test::AtMost,
        ">" => Test::More,
        ">=" => Test::AtLeast,
        other => return Err(unknown("comparison", other)),
    };
    let value = match value.cast::<PyInt>() {
        Ok(value) => Scalar::Int(value.extract()?),
        Err(_) => Scalar::Float(value.extract()?),
    };
    Ok(Condition::Compare { term, modulo: *modulo, test, value })
}

fn priority(
    py: Python<'_>,
    leaves: &[PatternLeaf],
    (reduce, path, absolute, number): &PrioritySettings,
) -> PyResult<Priority> {
    let reduce = match reduce.as_str() {
        "constant" => return Ok(Priority::Constant(*number)),
        "max" => Reduce::Max,
        "mean" => Reduce::Mean,
        "last" => Reduce::Last,
        "mixed" => Reduce::Mixed { eta: *number },
        other => return Err(unknown("priority", other)),
    };
    let leaf = leaves.iter().position(|leaf| leaf.path == *path).ok_or_else(|| {
        let known: Vec<_> = leaves.iter().map(|leaf| display(&leaf.path)).collect();
        let path = display(path);
        let text =
            format!("the priority is of leaf `{path}`; the pattern has {}", known.join(", "));
        trajectory_error(py, text)
    })?;
    Ok(Priority::Column { leaf, reduce, absolute: *absolute })
}

fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("there is no {what} of the name {name:?}"))
}
