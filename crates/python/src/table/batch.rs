//! Batches of tables: rows, trajectories, and what servers send.

use std::sync::Arc;

use echoic_net::client::tables::shards::Gathered;
use echoic_net::client::tables::{Batch as RemoteBatch, Layout};
use echoic_replay::table::{Infos, Sampled, Stack};
use echoic_replay::trajectory::{Signature, Trajectory};
use numpy::{PyArray1, PyArrayDescr};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::shape::{Known, Shape};
use crate::array;
use crate::batch::{Batch, Origin};
use crate::columns::{Plan, filled, view};
use crate::memory::Arena;
use crate::tree::Tree;

/// Refuses an exponent of importance weights that is none.
pub fn check_beta(beta: f64) -> PyResult<()> {
    if beta.is_finite() && beta >= 0.0 {
        return Ok(());
    }
    let text = format!("beta must be a finite number of at least 0, got {beta}");
    Err(pyo3::exceptions::PyValueError::new_err(text))
}

/// Refuses a batch without items.
pub fn check_size(count: usize) -> PyResult<()> {
    if count == 0 {
        return Err(pyo3::exceptions::PyValueError::new_err("a batch has at least 1 item"));
    }
    Ok(())
}

/// Refuses what is no batch to draw.
pub fn check_draw(count: usize, beta: f64) -> PyResult<()> {
    check_size(count).and_then(|()| check_beta(beta))
}

/// What keeps the memory of a batch that came from a server.
#[pyclass(frozen, module = "echoic._native")]
struct Received {
    _batch: RemoteBatch,
}

impl Batch {
    /// Items of a table of rows.
    pub(super) fn of_rows(
        py: Python<'_>,
        tree: &Tree,
        arena: &Arena,
        sampled: Sampled,
        beta: f64,
    ) -> PyResult<Self> {
        let len = sampled.len();
        let leaf_bytes = tree.rules.iter().map(|rule| {
            rule.leaf.nbytes().and_then(|bytes| bytes.checked_mul(len)).unwrap_or(usize::MAX)
        });
        let plan = Plan::new(leaf_bytes.collect())?;
        let memory = filled(py, arena, &plan, false, |columns| sampled.gather(columns))?;
        let data = tree.build(py, &mut |leaf| {
            let rule = &tree.rules[leaf];
            let shape: Vec<usize> = [&[len], &rule.leaf.shape[..]].concat();
            view(py, &memory, &plan, leaf, rule.descr.bind(py), &shape)
        })?;
        arena.give_back(memory);
        Self::of_table(py, data, sampled.into_infos(), beta)
    }

    /// Trajectories: stacked where all have the same lengths, ragged where these differ, and a list of
    /// trees where they are of different forms.
    pub(super) fn of_trajectories(
        py: Python<'_>,
        known: &dyn Fn(&Arc<Signature>) -> PyResult<Arc<Known>>,
        arena: &Arena,
        sampled: Sampled,
        beta: f64,
    ) -> PyResult<Self> {
        let data = match sampled.stack() {
            Stack::Trajectories { signature, steps } => {
                let known = known(&signature)?;
                let encoded = sampled.trajectories().iter().any(|one| one.is_encoded());
                let gather = |columns: &mut [&mut [u8]]| sampled.gather(columns);
                stacked(py, &known, arena, &steps, encoded, gather)?
            }
            _ => {
                let items = sampled.trajectories().iter().map(|trajectory| {
                    let known = known(trajectory.signature())?;
                    alone(py, &known, arena, trajectory)
                });
                pyo3::types::PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)?.into_any()
            }
        };
        Self::of_table(py, data, sampled.into_infos(), beta)
    }

    /// Items that came from a server, as views of the memory that they were read into.
    pub fn of_remote<'py>(
        py: Python<'py>,
        shape: &Shape,
        mut batch: RemoteBatch,
        beta: f64,
    ) -> PyResult<Self> {
        let len = batch.len();
        let (infos, layout) = (batch.infos().clone(), batch.layout().clone());
        let columns = 0..batch.columns();
        let starts: Vec<*mut u8> =
            columns.map(|column| batch.column_mut(column).as_mut_ptr()).collect();
        let owner = Bound::new(py, Received { _batch: batch })?;
        let view = |column: usize, descr: &Bound<'py, PyArrayDescr>, shape: &[usize]| {
            // SAFETY: the client has checked that the column has the bytes of so many values. They are
            // the batch's alone, which the array keeps and nobody else looks at any more.
            unsafe { array::view(py, descr, shape, starts[column], owner.as_any()) }
        };
        let data = match (&layout, shape) {
            (Layout::Rows, Shape::Rows { tree, .. }) => tree.build(py, &mut |leaf| {
                let rule = &tree.rules[leaf];
                let shape: Vec<usize> = [&[len], &rule.leaf.shape[..]].concat();
                view(leaf, rule.descr.bind(py), &shape)
            })?,
            (Layout::Trajectories { signature, steps }, Shape::Chunks(known)) => {
                let known = Shape::known(py, known, signature)?;
                stack(py, &known, steps, view)?
            }
            // Trajectories that are not there have no form.
            (Layout::Rows, Shape::Chunks(_)) if len == 0 => {
                pyo3::types::PyList::empty(py).into_any()
            }
            _ => {
                return Err(crate::error::spec_error(
                    py,
                    "the server sent a batch of another form",
                ));
            }
        };
        Self::of_table(py, data, infos, beta)
    }

    /// Items that came from several servers, copied into one batch.
    pub fn of_shards<'py>(
        py: Python<'py>,
        shape: &Shape,
        arena: &Arena,
        gathered: Gathered,
        beta: f64,
    ) -> PyResult<Self> {
        let Gathered { mut parts, infos } = gathered;
        // A part without items has no form to compare; one is needed all the same.
        if parts.iter().any(|part| !part.is_empty()) {
            parts.retain(|part| !part.is_empty());
        } else {
            parts.truncate(1);
        }
        let [first, rest @ ..] = &parts[..] else {
            return Err(crate::error::spec_error(py, "a batch without parts"));
        };
        if rest.is_empty() {
            let batch = parts.remove(0);
            let data = Self::of_remote(py, shape, batch, beta)?.data.into_bound(py);
            return Self::of_table(py, data, infos, beta);
        }
        let gather = |columns: &mut [&mut [u8]]| {
            for (number, column) in columns.iter_mut().enumerate() {
                let mut left = &mut **column;
                for part in &parts {
                    let from = part.column(number);
                    let (to, after) = left.split_at_mut(from.len());
                    to.copy_from_slice(from);
                    left = after;
                }
            }
        };
        let mixed = || crate::error::spec_error(py, "the shards sent batches of different forms");
        let data = match (first.layout(), shape) {
            (Layout::Rows, Shape::Rows { tree, .. }) => {
                if rest.iter().any(|part| *part.layout() != Layout::Rows) {
                    return Err(mixed());
                }
                let bytes = (0..first.columns())
                    .map(|column| parts.iter().map(|part| part.column(column).len()).sum());
                let plan = Plan::new(bytes.collect())?;
                let memory = filled(py, arena, &plan, false, gather)?;
                let data = tree.build(py, &mut |leaf| {
                    let rule = &tree.rules[leaf];
                    let shape: Vec<usize> = [&[infos.keys.len()], &rule.leaf.shape[..]].concat();
                    view(py, &memory, &plan, leaf, rule.descr.bind(py), &shape)
                })?;
                arena.give_back(memory);
                data
            }
            (Layout::Trajectories { signature, .. }, Shape::Chunks(forms)) => {
                let mut steps: Vec<Vec<u64>> = vec![Vec::new(); signature.columns.len()];
                for part in &parts {
                    match part.layout() {
                        Layout::Trajectories { signature: own, steps: more }
                            if own == signature =>
                        {
                            steps.iter_mut().zip(more).for_each(|(all, more)| all.extend(more));
                        }
                        _ => return Err(mixed()),
                    }
                }
                let known = Shape::known(py, forms, signature)?;
                stacked(py, &known, arena, &steps, false, gather)?
            }
            _ => return Err(mixed()),
        };
        Self::of_table(py, data, infos, beta)
    }

    /// What is known about items that were not drawn, without the items.
    pub fn of_infos(py: Python<'_>, infos: Infos) -> PyResult<Self> {
        Self::of_table(py, py.None().into_bound(py), infos, 1.0)
    }

    fn of_table(py: Python<'_>, data: Bound<'_, PyAny>, infos: Infos, beta: f64) -> PyResult<Self> {
        let len = infos.keys.len();
        Ok(Self::new(data, len, Origin::table(py, infos, beta)?))
    }
}

fn stacked<'py>(
    py: Python<'py>,
    known: &Known,
    arena: &Arena,
    steps: &[Vec<u64>],
    encoded: bool,
    gather: impl Fn(&mut [&mut [u8]]) + Sync,
) -> PyResult<Bound<'py, PyAny>> {
    let columns = &known.signature.columns;
    let totals: Vec<usize> = steps.iter().map(|steps| steps.iter().sum::<u64>() as usize).collect();
    let bytes = columns.iter().zip(&totals).map(|(column, total)| {
        column.kind.step_bytes().and_then(|bytes| bytes.checked_mul(*total)).unwrap_or(usize::MAX)
    });
    let plan = Plan::new(bytes.collect())?;
    let memory = filled(py, arena, &plan, encoded, gather)?;
    let data = stack(py, known, steps, |column, descr, shape| {
        view(py, &memory, &plan, column, descr, shape)
    })?;
    arena.give_back(memory);
    Ok(data)
}

/// Trajectories of one form as a tree of arrays, of which `view` gives each column.
fn stack<'py>(
    py: Python<'py>,
    known: &Known,
    steps: &[Vec<u64>],
    view: impl Fn(usize, &Bound<'py, PyArrayDescr>, &[usize]) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    known.tree.build(py, &mut |leaf| {
        let (column, steps) = (&known.signature.columns[leaf], &steps[leaf]);
        let descr = known.tree.rules[leaf].descr.bind(py);
        let first = steps.first().copied().unwrap_or(0);
        let even = steps.iter().all(|count| *count == first);
        let lead = match (column.squeezed, even) {
            (true, _) => vec![steps.len()],
            (false, true) => vec![steps.len(), first as usize],
            (false, false) => vec![steps.iter().sum::<u64>() as usize],
        };
        let shape: Vec<usize> = [&lead[..], &column.kind.shape].concat();
        let values = view(leaf, descr, &shape)?;
        if column.squeezed || even {
            return Ok(values);
        }
        let mut offsets = vec![0];
        offsets.extend(steps.iter().scan(0, |end, count| {
            *end += *count as i64;
            Some(*end)
        }));
        ragged(py, values, offsets)
    })
}

/// One trajectory by itself.
fn alone<'py>(
    py: Python<'py>,
    known: &Known,
    arena: &Arena,
    trajectory: &Trajectory,
) -> PyResult<Bound<'py, PyAny>> {
    let columns = 0..known.signature.columns.len();
    let plan = Plan::new(columns.clone().map(|column| trajectory.column_bytes(column)).collect())?;
    let memory = filled(py, arena, &plan, trajectory.is_encoded(), |targets| {
        for (column, target) in targets.iter_mut().enumerate() {
            trajectory.copy_column(column, target);
        }
    })?;
    let data = known.tree.build(py, &mut |leaf| {
        let column = &known.signature.columns[leaf];
        let time = (!column.squeezed).then(|| trajectory.steps(leaf) as usize);
        let shape: Vec<usize> = time.into_iter().chain(column.kind.shape.clone()).collect();
        view(py, &memory, &plan, leaf, known.tree.rules[leaf].descr.bind(py), &shape)
    })?;
    arena.give_back(memory);
    Ok(data)
}

fn ragged<'py>(
    py: Python<'py>,
    values: Bound<'py, PyAny>,
    offsets: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<pyo3::types::PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "echoic.ragged", "Ragged")?;
    class.call1((values, PyArray1::from_vec(py, offsets)))
}
