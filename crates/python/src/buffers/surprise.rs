//! Experiences in two tiers, drawn by how much they surprise.

use std::path::PathBuf;
use std::time::Duration;

use echoic_buffers::Error as BufferError;
use echoic_buffers::Priorities;
use echoic_buffers::surprise::{
    Ask, Mode, Saved, ScoreRule, Sizes, SurpriseReplay as Rows, SurpriseSettings,
};
use echoic_replay::Dtype;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::form::{Casting, Form, positive};
use super::replay::seed_number;
use super::rows::detached;
use super::written;
use crate::agents::plans::EMAPlanTracker;
use crate::error::{OrRaise, Raise, argument_error, replay_error, spec_error};
use crate::fork::Process;
use crate::leaf::Source;
use crate::memory::Arena;
use crate::numbers::{float_numbers, index_numbers};

/// The fields that are looked at.
const PLAN: &str = "latent_plan";
const REWARD: &str = "reward";

/// How long a wait is before signals are looked for.
const TICK: Duration = Duration::from_millis(50);

/// The native part of :class:`echoic.agents.PrioritizedReplayBuffer`.
#[pyclass(frozen, module = "echoic._native")]
pub struct SurpriseReplay {
    form: Form,
    rows: Rows,
    arena: Arena,
    plan: usize,
    reward: usize,
    /// A forked child would write over the file of its parent.
    process: Process,
}

impl SurpriseReplay {
    fn store(
        &self,
        py: Python<'_>,
        sources: &[Source],
        count: usize,
        scores: Option<&[f64]>,
    ) -> PyResult<Vec<u64>> {
        for (leaf, name) in [(self.plan, PLAN), (self.reward, REWARD)] {
            // SAFETY: the form has accepted the sources, as values of so many rows, and no Python code has
            // run since they were checked again.
            let bytes = unsafe { self.form.bytes_of(sources, leaf, count) };
            if !are_finite(bytes) {
                let text = format!("`{name}` has finite numbers, got NaN or an infinity");
                return Err(spec_error(py, text));
            }
        }
        let mut keys = Vec::with_capacity(count);
        let row_bytes = self.form.layout.row_bytes();
        let mut done = 0;
        while done < count {
            // Whoever has the last rows, as a reader or a writer, may want the GIL before they are free.
            let reserved = py.detach(|| self.rows.reserve_within(count - done, TICK));
            let mut reserved = reserved.or_raise(py)?;
            if reserved.is_empty() {
                py.check_signals()?;
                continue;
            }
            self.form.recheck(py, sources)?;
            let part = done..done + reserved.len();
            done = part.end;
            let own = scores.map(|scores| &scores[part.clone()]);
            let keys = &mut keys;
            detached(py, part.len() * row_bytes, move || {
                reserved.fill(|at, row| {
                    // SAFETY: as above; where the GIL is released, who resizes an array that is being read
                    // breaks numpy's own rules.
                    unsafe { self.form.copy_rows(sources, part.start + at, row) };
                });
                self.rows.add(reserved, own, keys);
            });
        }
        Ok(keys)
    }
}

#[pymethods]
impl SurpriseReplay {
    #[new]
    #[pyo3(signature = (
        example, mean, *, hot, cold, total, age_threshold, max_age, mode, mode_number,
        surprise_weight, reward_weight, mean_over_dims, computes_scores, moves_mean, refresh, seed,
        path=None, overwrite=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        example: &Bound<'_, PyAny>,
        mean: &EMAPlanTracker,
        hot: i64,
        cold: i64,
        total: i64,
        age_threshold: u64,
        max_age: u64,
        mode: &str,
        mode_number: f64,
        surprise_weight: f64,
        reward_weight: f64,
        mean_over_dims: bool,
        computes_scores: bool,
        moves_mean: bool,
        refresh: usize,
        seed: u64,
        path: Option<PathBuf>,
        overwrite: bool,
    ) -> PyResult<Self> {
        let form = Form::of_example(example, None, Casting::Apart)?;
        let mean = mean.shared();
        let dims = mean.lock().dim();
        let floats = |name: &str, shape: &[usize]| match form.only_leaf(name) {
            Some((leaf, rule)) if rule.dtype == Dtype::Float(4) && rule.shape == shape => Ok(leaf),
            _ => Err(spec_error(py, format!("`{name}` must be float32 of shape {shape:?}"))),
        };
        let (plan, reward) = (floats(PLAN, &[dims])?, floats(REWARD, &[])?);
        let mode = match mode {
            "standard" => Mode::Standard { clip: mode_number },
            "plain" => Mode::Plain,
            "power" => Mode::Power { alpha: mode_number },
            other => return Err(argument_error(py, format!("no mode {other:?}"))),
        };
        let sizes = Sizes {
            hot: positive(py, "hot_buffer_size", hot)?,
            cold: usize::try_from(cold).unwrap_or(0),
            total: positive(py, "max_experiences", total)?,
        };
        let settings = SurpriseSettings {
            sizes,
            age_threshold,
            max_age,
            mode,
            rule: computes_scores.then_some(ScoreRule {
                surprise_weight,
                reward_weight,
                mean_over_dims,
            }),
            plan,
            reward,
            refresh,
            moves_mean,
            seed,
            archive: path.map(|path| (path, overwrite)),
            text: written::write(py, &form, sizes.hot)?,
        };
        let layout = form.layout.clone();
        let rows = Rows::new(layout, mean, settings);
        let rows = rows.or_raise(py)?;
        let (arena, process) = (Arena::default(), Process::current());
        Ok(Self { form, rows, arena, plan, reward, process })
    }

    /// Add one experience or many, and give their indices.
    #[pyo3(signature = (fields, *, many, scores=None))]
    fn add<'py>(
        &self,
        py: Python<'py>,
        fields: &Bound<'py, PyDict>,
        many: bool,
        scores: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let values = self.form.values(fields)?;
        let scores = scores.map(float_numbers).transpose()?;
        Priorities::check_all(scores.as_deref().unwrap_or_default()).or_raise(py)?;
        let keys = self.form.with_sources(py, &values, many, |sources, count| {
            if let Some(scores) = scores.as_ref().filter(|scores| scores.len() != count) {
                let text = format!("expected a score for each of {count}, got {}", scores.len());
                return Err(argument_error(py, text));
            }
            self.store(py, sources, count, scores.as_deref())
        })?;
        Ok(PyArray1::from_vec(py, keys.into_iter().map(|key| key as i64).collect()))
    }

    /// Draw a batch, hot experiences first, and compute its scores again.
    #[pyo3(signature = (batch_size, *, temperature, hot_ratio, beta, seed=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        batch_size: i64,
        temperature: f64,
        hot_ratio: f64,
        beta: f64,
        seed: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let count = positive(py, "batch_size", batch_size)?;
        let seed = seed_number(seed)?;
        let ask = Ask { count, temperature, hot_share: hot_ratio, beta, seed };
        let batch = self.form.batch(py, &self.arena, &[count], &[], None, |columns| {
            // With another temperature this looks at all experiences, and a file may be waited for.
            let drawn = py.detach(|| -> Result<_, BufferError> {
                let drawn = self.rows.draw(ask)?;
                drawn.gather(self.form.layout.fields(), columns)?;
                let drawn = drawn.found;
                let scores =
                    self.rows.rescore(&drawn.keys, columns[self.plan], columns[self.reward]);
                Ok((scores.unwrap_or_else(|| drawn.priorities.clone()), drawn))
            });
            drawn.or_raise(py)
        });
        let (batch, (scores, drawn)) = batch?;
        let whole = |numbers: Vec<u64>| -> Vec<i64> {
            numbers.into_iter().map(|number| number as i64).collect()
        };
        let weights = drawn.weights.iter().map(|weight| *weight as f32).collect();
        let is_hot = (0..count).map(|at| at < drawn.hot).collect();
        batch.set_item("timestamp", PyArray1::from_vec(py, whole(drawn.moments)))?;
        batch.set_item("surprise_score", PyArray1::from_vec(py, scores))?;
        batch.set_item("priority", PyArray1::from_vec(py, drawn.priorities))?;
        batch.set_item("age", PyArray1::from_vec(py, whole(drawn.ages)))?;
        batch.set_item("index", PyArray1::from_vec(py, whole(drawn.keys)))?;
        batch.set_item("probability", PyArray1::from_vec(py, drawn.probabilities))?;
        batch.set_item("weight", PyArray1::<f32>::from_vec(py, weights))?;
        batch.set_item("hot", PyArray1::<bool>::from_vec(py, is_hot))?;
        Ok(batch)
    }

    /// Give experiences scores, and say how many were there.
    fn update_priorities(
        &self,
        py: Python<'_>,
        indices: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (indices, priorities) = (index_numbers(indices)?, float_numbers(priorities)?);
        let updated = self.rows.update_priorities(&indices, &priorities);
        updated.or_raise(py)
    }

    /// Let experiences age: how many migrated, expired, and were scored again.
    fn tick(&self, py: Python<'_>, updates: u64) -> PyResult<(usize, usize, usize)> {
        self.process.check(py)?;
        let ticked = py.detach(|| self.rows.tick(updates));
        let ticked = ticked.or_raise(py)?;
        Ok((ticked.migrated, ticked.expired, ticked.refreshed))
    }

    /// Give the effective sample size over all, of hot and of cold experiences.
    fn effective_sizes(
        &self,
        py: Python<'_>,
        temperature: f64,
        hot_ratio: f64,
    ) -> PyResult<(f64, f64, f64)> {
        let sizes = py.detach(|| self.rows.effective_sizes(temperature, hot_ratio));
        let (all, [hot, cold]) = sizes.or_raise(py)?;
        Ok((all, hot, cold))
    }

    /// Give sizes, what has happened, scores and bytes.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let numbers = PyDict::new(py);
        let [hot, cold] = self.rows.lens();
        let (counts, (mean, spread)) = (self.rows.counts(), self.rows.score_moments());
        let (row, known, in_memory, archived) = self.rows.bytes();
        numbers.set_item("hot_size", hot)?;
        numbers.set_item("cold_size", cold)?;
        numbers.set_item("total_size", hot + cold)?;
        numbers.set_item("updates", self.rows.updates())?;
        numbers.set_item("added", counts.added)?;
        numbers.set_item("migrated", counts.migrated)?;
        numbers.set_item("expired", counts.expired)?;
        numbers.set_item("evicted", counts.evicted)?;
        numbers.set_item("refreshed", counts.refreshed)?;
        numbers.set_item("rescaled", counts.rescaled)?;
        numbers.set_item("mean_score", mean)?;
        numbers.set_item("std_score", spread)?;
        numbers.set_item("row_bytes", row)?;
        numbers.set_item("bytes_per_item", row as f64 + known)?;
        numbers.set_item("memory_bytes", in_memory)?;
        numbers.set_item("file_bytes", archived)?;
        Ok(numbers)
    }

    /// Give path, dtype and shape of each leaf.
    fn leaves(&self) -> Vec<(String, String, Vec<usize>)> {
        self.form.leaf_texts()
    }

    /// Give all that the buffer holds, copied.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // Everything is copied, and a file may be waited for. Inside the GIL is taken, so nobody may wait with it for
        // what may be moved.
        let (saved, rows) = py.detach(|| {
            self.rows.save(|count, copy| {
                Python::attach(|py| {
                    let copied = |columns: &mut [&mut [u8]]| {
                        let copied = py.detach(|| copy(columns));
                        copied.map(|()| count).or_raise(py)
                    };
                    self.form.saved_rows(py, count, copied).map(Bound::unbind)
                })
            })
        });
        let state = PyDict::new(py);
        state.set_item("rows", rows?)?;
        state.set_item("scores", PyArray1::from_vec(py, saved.scores))?;
        state.set_item("births", PyArray1::from_vec(py, saved.births))?;
        state.set_item("moments", PyArray1::from_vec(py, saved.moments))?;
        state.set_item("generations", PyArray1::from_vec(py, saved.generations))?;
        state.set_item("kinds", PyArray1::from_vec(py, saved.kinds))?;
        state.set_item("free", PyArray1::from_vec(py, saved.free))?;
        state.set_item("numbers", PyArray1::from_slice(py, &saved.numbers))?;
        state.set_item("reals", PyArray1::from_slice(py, &saved.reals))?;
        state.set_item("rng", PyArray1::from_slice(py, &saved.rng))?;
        state.set_item("mean", PyArray1::from_vec(py, saved.mean))?;
        state.set_item("mean_count", saved.mean_count)?;
        Ok(state)
    }

    /// Become what another buffer was.
    fn load(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.process.check(py)?;
        let wrong = |text: String| replay_error(py, text);
        let get = |name: &str| {
            let missing = || replay_error(py, format!("the state has no `{name}`"));
            state.get_item(name)?.ok_or_else(missing)
        };
        fn all<T: numpy::Element + Clone>(value: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
            Ok(value.cast::<PyArray1<T>>()?.to_vec()?)
        }
        fn some<T, const N: usize>(all: Vec<T>, py: Python<'_>) -> PyResult<[T; N]> {
            let got = all.len();
            let text = || replay_error(py, format!("expected {N} numbers in the state, got {got}"));
            all.try_into().map_err(|_| text())
        }
        let rows: Vec<Bound<'_, PyAny>> = get("rows")?.extract()?;
        let (sources, count) = self.form.saved_sources(py, &rows)?;
        let saved = Saved {
            scores: all(&get("scores")?)?,
            births: all(&get("births")?)?,
            moments: all(&get("moments")?)?,
            generations: all(&get("generations")?)?,
            kinds: all(&get("kinds")?)?,
            free: all(&get("free")?)?,
            numbers: some(all(&get("numbers")?)?, py)?,
            reals: some(all(&get("reals")?)?, py)?,
            rng: some(all(&get("rng")?)?, py)?,
            mean: all(&get("mean")?)?,
            mean_count: get("mean_count")?.extract()?,
        };
        let live = saved.kinds.iter().filter(|kind| **kind != 0).count();
        if live != count {
            return Err(wrong(format!("expected {live} rows, got {count}")));
        }
        self.form.recheck(py, &sources)?;
        let sources = &sources;
        // SAFETY: the rules have accepted the sources, as values of `count` rows, and no Python code has run
        // since they were checked again: `restore` asks for rows below `live`. Where the GIL is released, who
        // resizes an array that is being read breaks numpy's own rules.
        let fill = |at: usize, row: &mut [u8]| unsafe { self.form.copy_rows(sources, at, row) };
        match py.detach(|| self.rows.restore(&saved, fill)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(wrong(
                "the state does not fit this buffer: it has more experiences than there is room for, \
                 plans of another size, or is damaged"
                    .into(),
            )),
            Err(error) => Err(error.raise(py)),
        }
    }

    /// Forget all experiences.
    fn clear(&self, py: Python<'_>) {
        // Who moves experiences may want the GIL before it is done.
        py.detach(|| self.rows.clear());
    }

    /// Remove the file, if there is one.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        py.detach(|| self.rows.close()).or_raise(py)
    }

    fn __len__(&self) -> usize {
        self.rows.lens().iter().sum()
    }
}

impl Drop for SurpriseReplay {
    fn drop(&mut self) {
        if self.process.is_current() {
            // Nobody is left who could be told.
            let _ = self.rows.close();
        }
    }
}

/// Whether all of these 32-bit floats are numbers.
fn are_finite(bytes: &[u8]) -> bool {
    let (numbers, _) = bytes.as_chunks::<4>();
    // Without an end before the last one, so that it becomes vector instructions.
    numbers.iter().fold(true, |good, number| good & f32::from_ne_bytes(*number).is_finite())
}
