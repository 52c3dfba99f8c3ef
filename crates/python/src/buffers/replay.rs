//! Replay buffers in the memory of this process.

use std::cell::RefCell;
use std::ops::Range;

use echoic_buffers::priorities::Draw;
use echoic_buffers::steps::{Goal, Runs, goals};
use echoic_buffers::transitions::{DrawnRows, Known, Notes, Request, SavedNotes, Settings};
use echoic_buffers::{Error as BufferError, Priorities, Transitions};
use echoic_memory::row_ring::Reader;
use echoic_replay::Dtype;
use echoic_replay::rng::Rng;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::form::{Casting, Field, Form, FrameForm, OBSERVATIONS, no_form, positive};
use super::rows::{MOST_BYTES, as_rlox, bytes_in, detached};
use crate::batch::{Batch, Device, KEYS, WEIGHTS};
use crate::error::{OrRaise, Raise, priority_error, replay_error, spec_error};
use crate::leaf::Source;
use crate::memory::Arena;
use crate::numbers::{float_numbers, index_numbers, marks};

thread_local! {
    /// Used again by every draw of a thread, so that few allocate.
    static DRAWN: RefCell<DrawnRows> = RefCell::new(DrawnRows::default());
}

/// Of which rows a batch is made: the drawn ones, where nothing else is said.
#[derive(Default)]
struct Chosen {
    early: Option<Vec<u64>>,
    /// Where the outcomes are from, if not from the same.
    late: Option<Vec<u64>>,
}

impl Chosen {
    fn rows<'a>(&'a self, drawn: &'a [u64]) -> (&'a [u64], &'a [u64]) {
        let early = self.early.as_deref().unwrap_or(drawn);
        (early, self.late.as_deref().unwrap_or(early))
    }
}

/// What is asked for with a batch.
struct Ask<'a, 'py> {
    n: i64,
    seed: Option<&'a Bound<'py, PyAny>>,
    out: Option<&'a Bound<'py, PyAny>>,
    draw: Draw,
    /// The exponent of weights.
    beta: f64,
}

/// The native half of :class:`echoic.ReplayBuffer`, which says what it is.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct ReplayBuffer {
    form: Form,
    rows: Transitions,
    arena: Arena,
    prioritized: bool,
    episodes: bool,
    n_step: usize,
    gamma: f64,
    /// Columns of a batch that are no leaves of the transitions.
    extras: Vec<Field>,
}

impl ReplayBuffer {
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn make(
        py: Python<'_>,
        capacity: i64,
        obs_dim: Option<i64>,
        act_dim: Option<i64>,
        example: Option<&Bound<'_, PyAny>>,
        seed: u64,
        next_obs: &str,
        stack: Option<i64>,
        n_step: i64,
        gamma: f64,
        episodes: bool,
        cast: bool,
        alpha: Option<f64>,
    ) -> PyResult<Self> {
        let shared = match (next_obs, stack) {
            ("stored", None) => None,
            ("shared", None) => Some(None),
            ("stored" | "shared", Some(frames)) => Some(Some(positive(py, "stack", frames)?)),
            (other, _) => {
                let text = format!("next_obs must be 'stored' or 'shared', got {other:?}");
                return Err(replay_error(py, text));
            }
        };
        let casting = Casting::of(cast);
        let form = Form::of_settings(py, obs_dim, act_dim, example, shared, casting)?;
        let form = form.ok_or_else(no_form)?;
        let n_step = positive(py, "n_step", n_step)?;
        let episodes = episodes || n_step > 1;
        let capacity = positive(py, "capacity", capacity)?;
        unit(py, "gamma", gamma)?;
        let ends = if episodes { Some(ends(py, &form)?) } else { None };
        if n_step > 1 {
            reward(py, &form)?;
        }
        let frames = form.frames.as_ref().map(|frames| (frames.stack, frames.layout.clone()));
        let settings = Settings { alpha, ends, frames, parts: form.parts(), seed };
        let rows =
            Transitions::new(capacity as u64, form.layout.clone(), &settings).or_raise(py)?;
        let mut extras = Vec::new();
        let mut extra = |name, dtype| -> PyResult<()> {
            extras.push(Field::number(py, name, dtype, form.leaf_count() + extras.len())?);
            Ok(())
        };
        if n_step > 1 {
            extra("discounts", Dtype::Float(4))?;
        }
        if alpha.is_some() {
            if let Some(name) = [KEYS, WEIGHTS].iter().find(|name| form.position(name).is_some()) {
                let text = format!("`{name}` is what a batch has, and no name of a field");
                return Err(spec_error(py, text));
            }
            extra(WEIGHTS, Dtype::Float(4))?;
            extra(KEYS, Dtype::Int(8))?;
        }
        Ok(Self {
            form,
            rows,
            arena: Arena::default(),
            prioritized: alpha.is_some(),
            episodes,
            n_step,
            gamma,
            extras,
        })
    }

    fn checked_priority(&self, py: Python<'_>, priority: f64) -> PyResult<f64> {
        if !self.prioritized {
            return Err(BufferError::no_priorities().raise(py));
        }
        let checked = Priorities::check(priority, 0);
        checked.map_err(|_| {
            priority_error(py, format!("a priority is a finite number >= 0, got {priority}"))
        })
    }

    /// One transition of plain vectors, without a detour. False if it is anything else, or has to wait.
    #[inline]
    fn push_plain(&self, values: &[Bound<'_, PyAny>; 6], notes: &mut Notes) -> bool {
        let Some(plain) = self.form.plain(values) else { return false };
        let Some(mut reservation) = self.rows.ring().try_reserve(1) else { return false };
        // SAFETY: the form has just said that it is one.
        unsafe { self.form.write_plain(&plain, reservation.row_mut(0)) };
        self.rows.publish(reservation, std::mem::take(notes));
        true
    }

    /// Any rows, given as the values of all fields in their order.
    fn store(
        &self,
        py: Python<'_>,
        values: &[Bound<'_, PyAny>],
        many: bool,
        notes: impl FnOnce(usize) -> PyResult<Notes>,
    ) -> PyResult<usize> {
        self.form.with_sources(py, values, many, |sources, rows| {
            let notes = notes(rows)?;
            // Reading the notes may have run Python code.
            self.form.recheck(py, sources)?;
            self.write(py, sources, 0..rows, &notes)?;
            Ok(rows)
        })
    }

    /// Writes these of the rows that the sources have.
    fn write(
        &self,
        py: Python<'_>,
        sources: &[Source],
        rows: Range<usize>,
        notes: &Notes,
    ) -> PyResult<()> {
        if let Some(form) = &self.form.frames {
            return self.write_observed(py, form, sources, rows, notes);
        }
        let ring = self.rows.ring();
        let most = self.form.rows_at_once(ring.slack());
        let mut done = rows.start;
        while done < rows.end {
            let count = (rows.end - done).min(most);
            let mut reservation = loop {
                if let Some(reservation) = ring.try_reserve(count as u64) {
                    break reservation;
                }
                py.detach(|| ring.wait_for_room(count as u64));
                // Nothing is reserved meanwhile, so that a source that was changed leaves no hole.
                self.form.recheck(py, sources)?;
            };
            // SAFETY: the form has accepted the sources, as values of at least so many rows, and they were
            // checked again after Python code could last run in this thread.
            unsafe { self.form.copy_to_ring(py, sources, done, &mut reservation) };
            self.rows.publish(reservation, notes.part(done..done + count));
            done += count;
        }
        Ok(())
    }

    /// As [`ReplayBuffer::write`], where observations are stored once.
    fn write_observed(
        &self,
        py: Python<'_>,
        form: &FrameForm,
        sources: &[Source],
        rows: Range<usize>,
        notes: &Notes,
    ) -> PyResult<()> {
        let row_bytes = 2 * form.stack * form.layout.row_bytes();
        let mut done = rows.start;
        while done < rows.end {
            // Some at a time, so that memory which was changed is noticed between them.
            let part = done..rows.end.min(done + (MOST_BYTES / row_bytes.max(1)).max(1));
            let sides = OBSERVATIONS.map(|name| -> Vec<&[u8]> {
                // SAFETY: the form has accepted the sources as values of at least so many rows, and they were
                // checked again after Python code could last run in this thread.
                let bytes = |leaf| unsafe { self.form.bytes_of(sources, leaf, rows.end) };
                self.form.leaves_of(name).map(bytes).collect()
            });
            let write = || {
                for row in part.clone() {
                    let notes = notes.part(row..row + 1);
                    let put = self.rows.put_observed([&sides[0], &sides[1]], row, notes, |to| {
                        // SAFETY: as above.
                        unsafe { self.form.copy_rows(sources, row, to) };
                    });
                    if let Err(short) = put {
                        return (row, Some(short));
                    }
                }
                (part.end, None)
            };
            let short;
            (done, short) = detached(py, part.len() * row_bytes, write);
            if let Some(short) = short {
                py.detach(|| self.rows.make_room(short));
                self.form.recheck(py, sources)?;
            }
        }
        Ok(())
    }

    /// Draws rows, lets `also` say which rows a batch with these axes is made of, and has `finish` write
    /// what is no copy of a leaf.
    fn batch<'py, T: Send + Sync>(
        &self,
        py: Python<'py>,
        ask: &Ask<'_, 'py>,
        axes: impl Fn(usize) -> Vec<usize>,
        also: impl FnOnce(&[u64], Known<'_>, &mut Rng) -> (Chosen, T),
        finish: impl Fn(&Reader<'_>, &DrawnRows, &T, &mut [&mut [u8]]) + Sync,
    ) -> PyResult<(Bound<'py, PyDict>, T)> {
        let count = usize::try_from(ask.n).unwrap_or(0);
        let request =
            Request { count, seed: seed_number(ask.seed)?, beta: ask.beta, draw: ask.draw };
        let refuse = |error: BufferError| error.raise(py);
        if count == 0 {
            return Err(replay_error(py, format!("n must be at least 1, got {}", ask.n)));
        }
        if self.rows.is_empty() {
            return Err(refuse(BufferError::Empty));
        }
        let axes = axes(count);
        // Only plain batches have these.
        let extras = if axes.len() == 1 { &self.extras[..] } else { &[] };
        let mut draws = DRAWN.take();
        let batch = self.form.batch(py, &self.arena, &axes, extras, ask.out, |columns| {
            let look = |positions: &[u64], known: Known<'_>, rng: &mut Rng| {
                let (chosen, found) = also(positions, known, rng);
                let (early, late) = chosen.rows(positions);
                let pins = known.frames.map(|frames| frames.pin(early, late));
                (chosen, pins, found)
            };
            let drawn = self.rows.draw(request, &mut draws, look).map_err(refuse)?;
            let (reader, (chosen, pins, found)) = drawn;
            detached(py, bytes_in(columns), || {
                let (early, late) = chosen.rows(&draws.positions);
                let own = &mut columns[..self.form.leaf_count()];
                self.rows.gather(&reader, early, late, pins.as_ref(), own);
                finish(&reader, &draws, &found, columns);
            });
            Ok(found)
        });
        DRAWN.set(draws);
        batch
    }

    /// A batch of single transitions.
    fn singles<'py>(&self, py: Python<'py>, ask: &Ask<'_, 'py>) -> PyResult<Bound<'py, PyDict>> {
        let leaves = self.form.leaf_count();
        let beside = |draws: &DrawnRows, columns: &mut [&mut [u8]]| {
            if let [.., weights, indices] = columns
                && self.prioritized
            {
                for (to, weight) in weights.chunks_exact_mut(4).zip(&draws.weights) {
                    to.copy_from_slice(&(*weight as f32).to_ne_bytes());
                }
                for (to, position) in indices.chunks_exact_mut(8).zip(&draws.positions) {
                    to.copy_from_slice(&position.to_ne_bytes());
                }
            }
        };
        let axes = |count| vec![count];
        if self.n_step == 1 {
            let also = |_: &[u64], _: Known<'_>, _: &mut Rng| (Chosen::default(), ());
            let (batch, ()) = self.batch(py, ask, axes, also, |_, draws, (), columns| {
                beside(draws, &mut columns[leaves..]);
            })?;
            return Ok(batch);
        }
        let reward = reward(py, &self.form)?;
        let also = |positions: &[u64], known: Known<'_>, _: &mut Rng| {
            let runs = known.episodes.map(|all| Runs::following(positions, all, self.n_step));
            let runs = runs.unwrap_or_default();
            (Chosen { early: None, late: Some(runs.last()) }, runs)
        };
        let (batch, _) = self.batch(py, ask, axes, also, |reader, draws, runs, columns| {
            let (own, extras) = columns.split_at_mut(leaves);
            if let Some((discounts, rest)) = extras.split_first_mut() {
                let place = self.form.layout.fields()[reward];
                runs.returns(reader, place, self.gamma, own[reward], discounts);
                beside(draws, rest);
            }
        })?;
        Ok(batch)
    }

    fn needs_episodes(&self, py: Python<'_>, what: &'static str) -> PyResult<()> {
        if self.episodes { Ok(()) } else { Err(BufferError::no_episodes(what).raise(py)) }
    }
}

#[pymethods]
impl ReplayBuffer {
    #[new]
    #[pyo3(signature = (
        capacity, obs_dim=None, act_dim=None, *, example=None, seed, next_obs="stored", stack=None,
        n_step=1, gamma=0.99, episodes=false, cast=true
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        capacity: i64,
        obs_dim: Option<i64>,
        act_dim: Option<i64>,
        example: Option<&Bound<'_, PyAny>>,
        seed: u64,
        next_obs: &str,
        stack: Option<i64>,
        n_step: i64,
        gamma: f64,
        episodes: bool,
        cast: bool,
    ) -> PyResult<Self> {
        Self::make(
            py, capacity, obs_dim, act_dim, example, seed, next_obs, stack, n_step, gamma,
            episodes, cast, None,
        )
    }

    /// Add one transition.
    ///
    /// Args:
    ///     x: A dict with the fields of the example.
    ///     env: The environment that it is of, where several take turns.
    ///
    /// Raises:
    ///     SpecError: If a value does not fit its field. Nothing is stored then.
    #[pyo3(signature = (x, *, env=0))]
    fn add(&self, py: Python<'_>, x: &Bound<'_, PyAny>, env: u32) -> PyResult<()> {
        self.add_one(py, x, env, None)
    }

    /// What `add` does, for the six fields by position, as rlox has them.
    #[pyo3(signature = (obs, action, reward, terminated, truncated, next_obs=None))]
    #[expect(clippy::too_many_arguments, reason = "they are the fields of a transition")]
    fn _push<'py>(
        &self,
        py: Python<'py>,
        obs: Bound<'py, PyAny>,
        action: Bound<'py, PyAny>,
        reward: Bound<'py, PyAny>,
        terminated: Bound<'py, PyAny>,
        truncated: Bound<'py, PyAny>,
        next_obs: Option<Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        as_rlox(py, || {
            let next_obs = self.form.next_obs(py, next_obs)?;
            let values = [obs, action, reward, terminated, truncated, next_obs];
            self.push_one(py, values, Notes::default())
        })
    }

    /// Add many transitions.
    ///
    /// Args:
    ///     xs: A dict with the fields of the example, as arrays with a leading axis of one length.
    ///     env: One environment for all of them, or an array of one for each.
    ///
    /// Raises:
    ///     SpecError: If a value does not fit its field. Nothing is stored then.
    #[pyo3(signature = (xs, *, env=None))]
    fn extend(
        &self,
        py: Python<'_>,
        xs: &Bound<'_, PyAny>,
        env: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.extend_all(py, xs, env, None)
    }

    /// Draw transitions evenly, with replacement, each field as one array.
    ///
    /// A seed gives the same draws on every machine and in every release: position ``k`` of a batch
    /// is the row ``(word[k] * len) >> 64`` after the oldest, of the 64-bit words of xoshiro256++
    /// seeded with SplitMix64 (words that would make some rows likelier than others are skipped).
    ///
    /// Args:
    ///     n: How many. May be more than there are.
    ///     seed: Of this draw; the buffer's own stream goes on when ``None``.
    ///     out: An earlier batch, which is returned, or a dict of arrays like its data, to be
    ///         written into.
    ///     device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
    ///         numpy arrays when ``None``.
    ///
    /// Raises:
    ///     ReplayError: If the buffer is empty, or ``n`` below 1.
    #[pyo3(signature = (n, *, seed=None, out=None, device=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        n: i64,
        seed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        Batch::drawn(py, n, false, out, device, |out| {
            self.singles(py, &Ask { n, seed, out, draw: Draw::Stratified, beta: 0.0 })
        })
    }

    /// Windows of steps, and which of their steps are there.
    #[pyo3(signature = (n, length, seed, out))]
    fn _sample_windows<'py>(
        &self,
        py: Python<'py>,
        n: i64,
        length: i64,
        seed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<usize>)> {
        self.needs_episodes(py, "sample_sequences")?;
        let length = positive(py, "length", length)?;
        let also = |positions: &[u64], known: Known<'_>, _: &mut Rng| {
            let runs = known.episodes.map(|all| Runs::windows(positions, all, length));
            let runs = runs.unwrap_or_default();
            (Chosen { early: Some(runs.padded(length)), late: None }, runs)
        };
        let ask = Ask { n, seed, out, draw: Draw::Stratified, beta: 0.0 };
        let axes = |count| vec![count, length];
        let (batch, runs) = self.batch(py, &ask, axes, also, |_, _, runs, columns| {
            for (leaf, column) in columns.iter_mut().enumerate() {
                let bytes = self.form.leaf_bytes(leaf);
                for (at, run) in runs.iter().enumerate() {
                    let end = (at + 1) * length * bytes;
                    column[end - (length - run.len()) * bytes..end].fill(0);
                }
            }
        })?;
        let lengths = runs.iter().map(<[u64]>::len).collect();
        Ok((batch, lengths))
    }

    /// A batch, which of its steps get other goals, and the next observations of the steps that those come
    /// from.
    #[pyo3(signature = (n, seed, strategy, share))]
    fn _sample_goals<'py>(
        &self,
        py: Python<'py>,
        n: i64,
        seed: Option<&Bound<'py, PyAny>>,
        strategy: &str,
        share: f64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        self.needs_episodes(py, "sample_hindsight")?;
        unit(py, "share", share)?;
        let goal = match strategy {
            "future" => Goal::Future,
            "final" => Goal::Final,
            "episode" => Goal::Episode,
            other => {
                let text =
                    format!("strategy must be 'future', 'final' or 'episode', got {other:?}");
                return Err(replay_error(py, text));
            }
        };
        // Two rows for each step: its own, and that of its goal.
        let also = |positions: &[u64], known: Known<'_>, rng: &mut Rng| {
            let found = known.episodes.map(|all| goals(positions, all, goal, share, rng));
            let found = found.unwrap_or_default();
            let other = positions.iter().zip(&found).map(|(own, goal)| goal.unwrap_or(*own));
            let both = positions.iter().copied().chain(other).collect();
            (Chosen { early: Some(both), late: None }, found)
        };
        let ask = Ask { n, seed, out: None, draw: Draw::Stratified, beta: 0.0 };
        let axes = |count| vec![2, count];
        let (batch, goals) = self.batch(py, &ask, axes, also, |_, _, _, _| ())?;
        let marks: Vec<bool> = goals.iter().map(Option::is_some).collect();
        PyTuple::new(py, [batch.into_any(), marks.into_pyobject(py)?.into_any()])
    }

    /// The rows at these positions, each of the buffer with the number in `owners`; the first row that a buffer
    /// ever had is at position 0. The buffers have the same fields.
    #[staticmethod]
    fn _rows<'py>(
        py: Python<'py>,
        buffers: Vec<Bound<'py, Self>>,
        owners: &Bound<'py, PyAny>,
        positions: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let wrong = |text: String| replay_error(py, text);
        let buffers: Vec<&Self> = buffers.iter().map(Bound::get).collect();
        let Some(first) = buffers.first() else {
            return Err(wrong("expected at least one buffer, got none".into()));
        };
        let alike =
            |other: &&Self| other.form.frames.is_none() && other.form.layout == first.form.layout;
        if !buffers.iter().all(alike) {
            return Err(wrong("expected buffers with the same fields, all stored".into()));
        }
        let (owners, positions) = (index_numbers(owners)?, index_numbers(positions)?);
        if owners.len() != positions.len() {
            let error = BufferError::lengths("positions", "owners", positions.len(), owners.len());
            return Err(error.raise(py));
        }
        let readers: Vec<Reader<'_>> =
            buffers.iter().map(|buffer| buffer.rows.ring().read()).collect();
        let mut found = Vec::with_capacity(positions.len());
        for (at, (owner, position)) in owners.iter().zip(&positions).enumerate() {
            let reader = usize::try_from(*owner).ok().and_then(|owner| readers.get(owner));
            let inside = u64::try_from(*position)
                .ok()
                .filter(|own| reader.is_some_and(|reader| reader.window().contains(own)));
            found.push(inside.ok_or_else(|| {
                wrong(format!("position {position} of buffer {owner} is not there (row {at})"))
            })?);
        }
        let fields = first.form.layout.fields();
        let axes = [found.len()];
        let (batch, ()) = first.form.batch(py, &first.arena, &axes, &[], None, |columns| {
            detached(py, bytes_in(columns), || {
                let mut rest: Vec<&mut [u8]> =
                    columns.iter_mut().map(|column| &mut **column).collect();
                let mut done = 0;
                for run in owners.chunk_by(|one, next| one == next) {
                    let mut part = Vec::with_capacity(rest.len());
                    for (column, field) in rest.iter_mut().zip(fields) {
                        let (own, later) =
                            std::mem::take(column).split_at_mut(run.len() * field.bytes);
                        part.push(own);
                        *column = later;
                    }
                    let end = done + run.len();
                    readers[run[0] as usize].gather(&found[done..end], fields, &mut part);
                    done = end;
                }
            });
            Ok(())
        })?;
        Ok(batch)
    }

    /// Path, dtype and shape of each leaf.
    fn _leaves(&self) -> Vec<(String, String, Vec<usize>)> {
        self.form.leaf_texts()
    }

    /// All rows, one array for each leaf, the state of the draws, and what is known of the rows.
    fn _state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (mut first, mut known) = (0, SavedNotes::default());
        let rows = self.form.saved_rows(py, self.rows.len() as usize, |columns| {
            // Rows that came after the memory was taken are left out.
            let (reader, positions, pins, saved) = self.rows.save(self.rows.len() as usize);
            for (leaf, column) in columns.iter_mut().enumerate() {
                let all = std::mem::take(column);
                *column = &mut all[..positions.len() * self.form.leaf_bytes(leaf)];
            }
            (first, known) = (reader.window().start, saved);
            let (positions, pins) = (&positions, pins.as_ref());
            py.detach(|| self.rows.gather(&reader, positions, positions, pins, columns));
            Ok(positions.len())
        })?;
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
    #[pyo3(signature = (rows, rng, first, weights=None, largest=None, envs=None, ends=None))]
    #[expect(clippy::too_many_arguments, reason = "it is what `_state` gives")]
    fn _load(
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
        let rng: [u64; 4] = rng
            .to_vec()?
            .try_into()
            .map_err(|_| wrong("the state of the draws has 4 numbers".into()))?;
        let (sources, count) = self.form.saved_sources(py, &rows)?;
        let same = |what: &str, got: usize| {
            let text = format!("expected as many {what} as rows, got {got} and {count}");
            if got == count { Ok(()) } else { Err(wrong(text)) }
        };
        let weights = weights.map(float_numbers).transpose()?.unwrap_or_default();
        let mut notes = Notes::default();
        let mut cuts = Vec::new();
        if self.prioritized {
            same("weights", weights.len())?;
            Priorities::check_all(&weights).or_raise(py)?;
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
            ended.or_raise(py)?;
            done = cut + 1;
        }
        self.write(py, &sources, done..count, &notes)?;
        let known: Vec<(u64, f64)> = (first..).zip(weights).collect();
        self.rows.restore_priorities(&known, largest.unwrap_or(1.0));
        self.rows.set_rng_state(rng);
        Ok(())
    }

    /// Ends the episode of an environment, of which its last transition did not say so.
    #[pyo3(signature = (env=0))]
    fn end_episode(&self, py: Python<'_>, env: u32) -> PyResult<()> {
        self.rows.end_episode(env).or_raise(py)
    }

    /// Remove all transitions.
    fn clear(&self) {
        self.rows.clear();
    }

    fn __len__(&self) -> usize {
        self.rows.len() as usize
    }

    /// How many transitions fit.
    #[getter]
    fn capacity(&self) -> u64 {
        self.rows.ring().kept()
    }

    /// How many episodes have transitions here; ``None`` without ``episodes=True``.
    #[getter]
    fn num_episodes(&self) -> Option<usize> {
        self.rows.episode_count()
    }

    /// Bytes of memory that hold transitions.
    #[getter]
    fn nbytes(&self) -> usize {
        self.rows.used_bytes()
    }

    fn __repr__(&self) -> String {
        let name = if self.prioritized { "PrioritizedReplayBuffer" } else { "ReplayBuffer" };
        let fields: Vec<&str> = self.form.fields.iter().map(|field| &*field.text).collect();
        let (len, capacity) = (self.rows.len(), self.rows.ring().kept());
        format!("{name}(len={len}, capacity={capacity}, fields=[{}])", fields.join(", "))
    }
}

impl ReplayBuffer {
    fn push_one(
        &self,
        py: Python<'_>,
        values: [Bound<'_, PyAny>; 6],
        mut notes: Notes,
    ) -> PyResult<()> {
        if self.push_plain(&values, &mut notes) {
            return Ok(());
        }
        self.form.check_six()?;
        self.store(py, &values, false, |_| Ok(notes)).map(drop)
    }

    fn add_one(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        env: u32,
        priority: Option<f64>,
    ) -> PyResult<()> {
        let mut notes = Notes::default();
        if let Some(priority) = priority {
            notes.priorities.push(self.checked_priority(py, priority)?);
        }
        if env != 0 {
            notes.envs.push(env);
        }
        if let Some(values) = self.form.six(x)?
            && self.push_plain(&values, &mut notes)
        {
            return Ok(());
        }
        let values = self.form.values(x)?;
        self.store(py, &values, false, |_| Ok(notes)).map(drop)
    }

    fn extend_all(
        &self,
        py: Python<'_>,
        xs: &Bound<'_, PyAny>,
        env: Option<&Bound<'_, PyAny>>,
        priorities: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let values = self.form.values(xs)?;
        let wrong = |what: &str, got: usize, rows: usize| {
            BufferError::lengths(what, "transitions", got, rows).raise(py)
        };
        self.store(py, &values, true, |rows| {
            let mut notes = Notes::default();
            if let Some(env) = env {
                let envs = index_numbers(env)?;
                if envs.len() != 1 && envs.len() != rows {
                    return Err(wrong("environments", envs.len(), rows));
                }
                for env in envs {
                    notes.envs.push(u32::try_from(env).map_err(|_| {
                        let text = format!("env is a number from 0 to {}, got {env}", u32::MAX);
                        replay_error(py, text)
                    })?);
                }
            }
            if let Some(priorities) = priorities {
                notes.priorities = float_numbers(priorities)?;
                if notes.priorities.len() != rows {
                    return Err(wrong("priorities", notes.priorities.len(), rows));
                }
                Priorities::check_all(&notes.priorities).or_raise(py)?;
            }
            Ok(notes)
        })
        .map(drop)
    }
}

/// The native half of :class:`echoic.PrioritizedReplayBuffer`, which says what it is.
#[pyclass(frozen, subclass, extends = ReplayBuffer, module = "echoic._native")]
pub struct PrioritizedReplayBuffer;

#[pymethods]
impl PrioritizedReplayBuffer {
    #[new]
    #[pyo3(signature = (
        capacity, obs_dim=None, act_dim=None, *, alpha, example=None, seed, next_obs="stored",
        stack=None, n_step=1, gamma=0.99, episodes=false, cast=true
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        capacity: i64,
        obs_dim: Option<i64>,
        act_dim: Option<i64>,
        alpha: f64,
        example: Option<&Bound<'_, PyAny>>,
        seed: u64,
        next_obs: &str,
        stack: Option<i64>,
        n_step: i64,
        gamma: f64,
        episodes: bool,
        cast: bool,
    ) -> PyResult<PyClassInitializer<Self>> {
        let alpha = Some(alpha);
        let base = ReplayBuffer::make(
            py, capacity, obs_dim, act_dim, example, seed, next_obs, stack, n_step, gamma,
            episodes, cast, alpha,
        )?;
        Ok(PyClassInitializer::from(base).add_subclass(Self))
    }

    /// Add one transition.
    ///
    /// Args:
    ///     x: A dict with the fields of the example.
    ///     priority: A number >= 0; the largest that any transition ever had when ``None``.
    ///     env: The environment that it is of, where several take turns.
    ///
    /// Raises:
    ///     SpecError: If a value does not fit its field. Nothing is stored then.
    ///     PriorityError: If the priority is not a finite number >= 0. Nothing is stored then.
    #[pyo3(signature = (x, *, priority=None, env=0))]
    fn add(
        this: &Bound<'_, Self>,
        x: &Bound<'_, PyAny>,
        priority: Option<f64>,
        env: u32,
    ) -> PyResult<()> {
        this.as_super().get().add_one(this.py(), x, env, priority)
    }

    /// What `add` does, for the six fields by position.
    #[pyo3(signature = (
        obs, action, reward, terminated, truncated, next_obs=None, priority=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are the fields of a transition")]
    fn _push<'py>(
        this: &Bound<'py, Self>,
        obs: Bound<'py, PyAny>,
        action: Bound<'py, PyAny>,
        reward: Bound<'py, PyAny>,
        terminated: Bound<'py, PyAny>,
        truncated: Bound<'py, PyAny>,
        next_obs: Option<Bound<'py, PyAny>>,
        priority: Option<f64>,
    ) -> PyResult<()> {
        let (py, base) = (this.py(), this.as_super().get());
        as_rlox(py, || {
            let mut notes = Notes::default();
            if let Some(priority) = priority {
                notes.priorities.push(base.checked_priority(py, priority)?);
            }
            let next_obs = base.form.next_obs(py, next_obs)?;
            let values = [obs, action, reward, terminated, truncated, next_obs];
            base.push_one(py, values, notes)
        })
    }

    /// Add many transitions.
    ///
    /// Args:
    ///     xs: A dict with the fields of the example, as arrays with a leading axis of one length.
    ///     priorities: One for each; the largest that any transition ever had when ``None``.
    ///     env: One environment for all of them, or an array of one for each.
    ///
    /// Raises:
    ///     SpecError: If a value does not fit its field. Nothing is stored then.
    ///     PriorityError: If a priority is not a finite number >= 0. Nothing is stored then.
    #[pyo3(signature = (xs, *, priorities=None, env=None))]
    fn extend(
        this: &Bound<'_, Self>,
        xs: &Bound<'_, PyAny>,
        priorities: Option<&Bound<'_, PyAny>>,
        env: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        this.as_super().get().extend_all(this.py(), xs, env, priorities)
    }

    /// Draw transitions in proportion to their priorities, with replacement.
    ///
    /// Args:
    ///     n: How many.
    ///     beta: The exponent of weights, from 0 to 1; 1 corrects all of the bias.
    ///     seed: Of this draw; the buffer's own stream goes on when ``None``.
    ///     stratified: Draw one from each of ``n`` equal parts of the sum of priorities, as the
    ///         paper does, which varies less; else each from anywhere.
    ///     out: An earlier batch to be written into and returned, or a dict of arrays like its
    ///         data, and for ``keys`` and ``weights``.
    ///     device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
    ///         numpy arrays when ``None``.
    ///
    /// Raises:
    ///     ReplayError: If the buffer is empty, ``n`` below 1, or ``beta`` not from 0 to 1.
    #[pyo3(signature = (n, *, beta=1.0, seed=None, stratified=true, out=None, device=None))]
    fn sample<'py>(
        this: &Bound<'py, Self>,
        n: i64,
        beta: f64,
        seed: Option<&Bound<'py, PyAny>>,
        stratified: bool,
        out: Option<&Bound<'py, PyAny>>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        let (py, base) = (this.py(), this.as_super().get());
        unit(py, "beta", beta)?;
        let draw = if stratified { Draw::Stratified } else { Draw::Proportional };
        Batch::drawn(py, n, true, out, device, |out| {
            base.singles(py, &Ask { n, seed, out, draw, beta })
        })
    }

    /// Set priorities of transitions: numbers >= 0, such as absolute errors.
    ///
    /// A key whose transition is not there any more is skipped. When one comes twice, the last
    /// counts. Returns how many were there.
    ///
    /// Raises:
    ///     PriorityError: If a priority is not a finite number >= 0. None is changed then.
    ///     ReplayError: If the lengths differ, or a key was never given. None is changed then.
    fn update_priorities(
        this: &Bound<'_, Self>,
        keys: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (keys, priorities) = (index_numbers(keys)?, float_numbers(priorities)?);
        let rows = &this.as_super().get().rows;
        rows.update_priorities(&keys, &priorities).or_raise(this.py())
    }

    /// The exponent of priorities.
    #[getter]
    fn alpha(this: &Bound<'_, Self>) -> f64 {
        this.as_super().get().rows.with_priorities(|known, _| known.alpha()).unwrap_or_default()
    }
}

/// The leaves that say whether an episode ends.
fn ends(py: Python<'_>, form: &Form) -> PyResult<Vec<usize>> {
    let flags = ["terminated", "truncated"].iter().filter_map(|name| {
        let (leaf, known) = form.only_leaf(name)?;
        let flag = known.shape.is_empty() && known.dtype.itemsize() == 1;
        Some(if flag {
            Ok(leaf)
        } else {
            Err(spec_error(py, format!("`{name}` must be one bool, got {known}")))
        })
    });
    let found: Vec<usize> = flags.collect::<PyResult<_>>()?;
    if found.is_empty() {
        let text = "episodes=True needs the field `terminated` or `truncated`, which is one bool";
        return Err(spec_error(py, text));
    }
    Ok(found)
}

/// The leaf of the reward, which n-step returns are computed of.
fn reward(py: Python<'_>, form: &Form) -> PyResult<usize> {
    match form.only_leaf("rewards") {
        Some((leaf, known))
            if known.shape.is_empty() && matches!(known.dtype, Dtype::Float(4 | 8)) =>
        {
            Ok(leaf)
        }
        found => {
            let got = found.map_or("no such field".into(), |(_, leaf)| leaf.to_string());
            let text =
                format!("n_step needs the field `rewards` to be one float32 or float64, got {got}");
            Err(spec_error(py, text))
        }
    }
}

fn unit(py: Python<'_>, name: &str, value: f64) -> PyResult<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(replay_error(py, format!("{name} must be from 0 to 1, got {value}")))
}

/// A seed: any whole number of 64 bits.
pub(super) fn seed_number(seed: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(seed) = seed else { return Ok(None) };
    if let Ok(number) = seed.extract::<u64>() {
        return Ok(Some(number));
    }
    let text = format!("seed must be a whole number from 0 to 2**64 - 1, got {}", seed.repr()?);
    Err(replay_error(seed.py(), text))
}
