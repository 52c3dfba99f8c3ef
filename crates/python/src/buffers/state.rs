//! The content of a buffer taken out, and put into another.

use echoic_buffers::transitions::Notes;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::replay::ReplayBuffer;
use crate::columns::{Plan, view};
use crate::error::{buffer_error, replay_error};
use crate::leaf::{LeafRule, Many, Source};
use crate::memory::Memory;
use crate::numbers::{float_numbers, index_numbers, marks};

/// What the index knows of the rows, in their order.
#[derive(Default)]
struct Known {
    weights: Vec<f64>,
    largest: f64,
    envs: Vec<u32>,
    /// Whether a row is the last of an episode that ended.
    ends: Vec<bool>,
}

impl ReplayBuffer {
    /// Path, dtype and shape of each leaf.
    pub(super) fn leaves(&self) -> Vec<(String, String, Vec<usize>)> {
        let leaf = |at| &self.form.rule(at).leaf;
        let all = (0..self.form.leaf_count()).map(leaf);
        all.map(|leaf| (leaf.path.clone(), leaf.dtype.to_string(), leaf.shape.clone())).collect()
    }

    /// All rows, one array for each leaf, the state of the draws, and what is known of the rows.
    pub(super) fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let len = self.rows.len() as usize;
        let plan = Plan::new(self.form.column_bytes(len))?;
        let mut memory = Memory::new(py, plan.total)?;
        let mut known = Known::default();
        let (mut count, mut first) = (len, 0);
        let written = Memory::write(&mut memory, py, 0, plan.total, |bytes| {
            let (reader, (positions, pins, found)) =
                self.rows.all(|window, index| {
                    // Rows that came after the memory was taken are left out.
                    let positions: Vec<u64> = window.clone().take(len).collect();
                    let mut known = Known::default();
                    if let Some(priorities) = index.priorities {
                        let weight = |at: &u64| priorities.weight_of(self.rows.slot(*at));
                        known.weights = positions.iter().map(weight).collect();
                        known.largest = priorities.largest();
                    }
                    if let Some(episodes) = index.episodes {
                        for position in &positions {
                            let steps = episodes.of(*position);
                            known.envs.push(steps.map_or(0, |steps| steps.env()));
                            known.ends.push(steps.is_some_and(|steps| {
                                steps.ended() && steps.at() + 1 == steps.len()
                            }));
                        }
                    }
                    let pins = index.frames.map(|frames| frames.pin(&positions, &positions));
                    (positions, pins, known)
                });
            count = positions.len();
            first = reader.window().start;
            let mut columns = plan.split(bytes);
            for (leaf, column) in columns.iter_mut().enumerate() {
                let all = std::mem::take(column);
                *column = &mut all[..count * self.form.leaf_bytes(leaf)];
            }
            py.detach(|| {
                self.copy_leaves(&reader, &positions, &positions, pins.as_ref(), &mut columns);
            });
            known = found;
        });
        assert!(written, "the memory is new");
        let rows = PyList::empty(py);
        for leaf in 0..self.form.leaf_count() {
            let rule = self.form.rule(leaf);
            let shape: Vec<usize> = [&[len], &rule.leaf.shape[..]].concat();
            let array = view(py, &memory, &plan, leaf, rule.descr.bind(py), &shape)?;
            rows.append(array.get_item(pyo3::types::PySlice::new(py, 0, count as isize, 1))?)?;
        }
        let state = PyDict::new(py);
        state.set_item("rows", rows)?;
        state.set_item("rng", PyArray1::from_slice(py, &self.rows.rng_state()))?;
        state.set_item("first", first)?;
        if self.prioritized {
            state.set_item("weights", PyArray1::from_vec(py, known.weights))?;
            state.set_item("largest", known.largest)?;
        }
        if self.episodes {
            state.set_item("envs", PyArray1::from_vec(py, known.envs))?;
            state.set_item("ends", PyArray1::from_vec(py, known.ends))?;
        }
        Ok(state)
    }

    /// Replaces all rows. Nothing is changed if anything is wrong.
    #[expect(clippy::too_many_arguments, reason = "it is what `state` gives")]
    pub(super) fn load(
        &self,
        py: Python<'_>,
        rows: Vec<Bound<'_, PyAny>>,
        rng: Bound<'_, PyArray1<u64>>,
        first: u64,
        weights: Option<&Bound<'_, PyAny>>,
        largest: Option<f64>,
        envs: Option<&Bound<'_, PyAny>>,
        ends: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let wrong = |text: String| replay_error(py, text);
        if rows.len() != self.form.leaf_count() {
            let (got, expected) = (rows.len(), self.form.leaf_count());
            return Err(wrong(format!("expected {expected} arrays of rows, got {got}")));
        }
        let rng: [u64; 4] = rng
            .to_vec()?
            .try_into()
            .map_err(|_| wrong("the state of the draws has 4 numbers".into()))?;
        let (mut shapes, mut sources) = (Many::default(), Vec::<Source>::new());
        for (leaf, array) in rows.iter().enumerate() {
            // A state has the dtypes of its buffer, whatever the buffer casts.
            let strict = LeafRule::from_leaf(py, self.form.rule(leaf).leaf.clone())?;
            sources.push(strict.source(leaf, array, &mut shapes)?);
        }
        let count = shapes.rows.unwrap_or(0);
        let same = |what: &str, got: usize| {
            let text = format!("expected as many {what} as rows, got {got} and {count}");
            if got == count { Ok(()) } else { Err(wrong(text)) }
        };
        let weights = weights.map(float_numbers).transpose()?.unwrap_or_default();
        let mut notes = Notes::default();
        let mut cuts = Vec::new();
        if self.prioritized {
            same("weights", weights.len())?;
            for (at, weight) in weights.iter().enumerate() {
                echoic_buffers::Priorities::check(*weight, at)
                    .map_err(|error| buffer_error(py, &error))?;
            }
        }
        if self.episodes {
            let envs = envs.map(index_numbers).transpose()?.unwrap_or_else(|| vec![0; count]);
            same("environments", envs.len())?;
            let number =
                |env| u32::try_from(env).map_err(|_| wrong(format!("no environment {env}")));
            notes.envs = envs.into_iter().map(number).collect::<PyResult<_>>()?;
            let ends = ends.map(|ends| marks(ends, count)).transpose()?;
            let ends = ends.unwrap_or_else(|| vec![false; count]);
            cuts.extend(ends.iter().enumerate().filter(|(_, end)| **end).map(|(at, _)| at));
        }
        self.form.recheck(py, &sources)?;
        self.rows.restart(first);
        let first = self.rows.ring().window().end;
        let mut done = 0;
        // An episode can end without a row that says so.
        for cut in cuts {
            self.write(py, &sources, done..cut + 1, &notes)?;
            let ended = self.rows.end_episode(notes.envs[cut]);
            ended.map_err(|error| buffer_error(py, &error))?;
            done = cut + 1;
        }
        self.write(py, &sources, done..count, &notes)?;
        let known: Vec<(u64, f64)> = (first..).zip(weights).collect();
        self.rows.restore_priorities(&known, largest.unwrap_or(1.0));
        self.rows.set_rng_state(rng);
        Ok(())
    }
}
