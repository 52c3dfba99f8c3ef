//! Replay buffers of which the newest transitions are in memory, and all others in a file.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use echoic_buffers::Error as BufferError;
use echoic_buffers::cold::{ColdFile, Geometry};
use echoic_buffers::tiered::Tiered;
use echoic_memory::sync::{Mutex, RwLock};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCFunction;

use super::form::{Casting, Form, no_form, positive};
use super::replay::seed_number;
use super::rows::{as_rlox, bytes_in, detached};
use super::written;
use crate::batch::{Batch, Device};
use crate::error::{OrRaise, Raise, replay_error, set};
use crate::fork::Process;
use crate::leaf::Source;
use crate::memory::Arena;

/// How many transitions are in memory where neither the caller nor the file says so.
const HOT_CAPACITY: usize = 10_000;

thread_local! {
    /// Used again by every draw of a thread, so that few allocate.
    static POSITIONS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// All that are open, so that the end of the interpreter closes them: it drops only some objects.
static OPEN: Mutex<Vec<Weak<Open>>> = Mutex::new(Vec::new());

/// A buffer's rows until it is closed.
struct Open {
    rows: RwLock<Option<Arc<Tiered>>>,
    keep: bool,
    process: Process,
}

impl Open {
    fn rows(&self) -> Option<Arc<Tiered>> {
        self.rows.read().clone()
    }

    fn close(&self, keep: bool) -> Result<(), BufferError> {
        let Some(rows) = self.rows() else { return Ok(()) };
        let done = match rows.close(keep) {
            // Somebody else was quicker.
            Err(BufferError::Closed) => Ok(()),
            done => done,
        };
        if rows.is_closed() {
            // Calls that are under way end with what they have.
            *self.rows.write() = None;
        }
        done
    }

    /// Closes it where nobody can be told of an error. A forked child leaves it to its parent, of whose
    /// threads one may have been in the middle of something.
    fn close_quietly(&self) {
        if self.process.is_current() {
            let _ = self.close(self.keep);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close_quietly();
    }
}

/// The native part of :class:`echoic.MmapReplayBuffer`.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct MmapReplayBuffer {
    form: Form,
    open: Arc<Open>,
    arena: Arena,
    path: PathBuf,
}

impl MmapReplayBuffer {
    fn rows(&self, py: Python<'_>) -> PyResult<Arc<Tiered>> {
        self.open.process.check(py)?;
        self.open.rows().ok_or(BufferError::Closed).or_raise(py)
    }

    /// A buffer of rows that could be had.
    fn of(
        py: Python<'_>,
        form: Form,
        path: PathBuf,
        keep: bool,
        rows: Result<Tiered, BufferError>,
    ) -> PyResult<Self> {
        let rows = rows.or_raise(py)?;
        let rows = RwLock::new(Some(Arc::new(rows)));
        let open = Arc::new(Open { rows, keep, process: Process::current() });
        let mut all = OPEN.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&open));
        drop(all);
        Ok(Self { form, open, arena: Arena::default(), path })
    }

    /// One transition of plain vectors, without a detour. False if it is anything else, or has to wait.
    #[inline]
    fn push_plain(&self, py: Python<'_>, values: &[Bound<'_, PyAny>; 6]) -> PyResult<bool> {
        let rows = self.rows(py)?;
        let Some(plain) = self.form.plain(values) else { return Ok(false) };
        let Some(mut place) = rows.try_place(1) else { return Ok(false) };
        // SAFETY: the form has just said that it is one.
        unsafe { self.form.write_plain(&plain, place.reservation.row_mut(0)) };
        if place.publish() {
            py.detach(|| rows.spill_some());
        }
        Ok(true)
    }

    /// Any rows, given as the values of all fields in their order.
    fn store(&self, py: Python<'_>, values: &[Bound<'_, PyAny>], many: bool) -> PyResult<usize> {
        let rows = self.rows(py)?;
        self.form.with_sources(py, values, many, |sources, count| {
            self.write(py, &rows, sources, count)?;
            Ok(count)
        })
    }

    fn write(
        &self,
        py: Python<'_>,
        rows: &Tiered,
        sources: &[Source],
        total: usize,
    ) -> PyResult<()> {
        let most = self.form.rows_at_once(rows.most_at_once());
        let mut done = 0;
        while done < total {
            let count = (total - done).min(most);
            let mut place = loop {
                if let Some(place) = rows.try_place(count as u64) {
                    break place;
                }
                let room = py.detach(|| rows.make_room(count as u64));
                room.map_err(|error| {
                    let stored = set(py, error.raise(py), "stored", done);
                    if total == 1 { stored } else { noted(py, stored, done, total) }
                })?;
                // Nothing is reserved meanwhile, so that a source that was changed leaves no hole.
                self.form.recheck(py, sources)?;
            };
            // SAFETY: the form has accepted the sources, as values of `total` rows, and no Python code has run in
            // this thread since they were checked again.
            unsafe { self.form.copy_to_ring(py, sources, done, &mut place.reservation) };
            if place.publish() {
                py.detach(|| rows.spill_some());
            }
            done += count;
        }
        Ok(())
    }

    /// Draws rows into columns.
    fn fill(
        &self,
        py: Python<'_>,
        rows: &Tiered,
        count: usize,
        seed: Option<u64>,
        columns: &mut [&mut [u8]],
    ) -> Result<(), BufferError> {
        let mut positions = POSITIONS.take();
        let held = rows.draw(count, seed, &mut positions);
        let done = held.and_then(|held| {
            // For rows in the file a disk may be waited for.
            let bytes = if held.are_hot(&positions) { bytes_in(columns) } else { usize::MAX };
            // Nobody who puts on rows is to wait until this thread has the GIL again.
            let gather = || {
                let done = held.gather(&positions, columns);
                drop(held);
                done
            };
            detached(py, bytes, gather)
        });
        POSITIONS.set(positions);
        done
    }
}

#[pymethods]
impl MmapReplayBuffer {
    #[new]
    #[pyo3(signature = (
        cold_path, hot_capacity=None, capacity=None, obs_dim=None, act_dim=None, *,
        example=None, cast=true, seed, keep, overwrite=false, preallocate=false, reopen=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        cold_path: PathBuf,
        hot_capacity: Option<i64>,
        capacity: Option<i64>,
        obs_dim: Option<i64>,
        act_dim: Option<i64>,
        example: Option<&Bound<'_, PyAny>>,
        cast: bool,
        seed: u64,
        keep: bool,
        overwrite: bool,
        preallocate: bool,
        reopen: bool,
    ) -> PyResult<Self> {
        let hot = hot_capacity.map(|hot| positive(py, "hot_capacity", hot)).transpose()?;
        let casting = Casting::of(cast);
        let form = Form::of_settings(py, obs_dim, act_dim, example, None, casting)?;
        if form.is_none() && !reopen {
            return Err(no_form());
        }
        if reopen {
            let cold = py.detach(|| ColdFile::open(&cold_path));
            let cold = cold.or_raise(py)?;
            let known = written::read(py, cold.text(), &cold_path, casting).and_then(
                |(found, found_hot)| match form {
                    Some(form) => Ok((written::check(py, form, &found, &cold_path)?, found_hot)),
                    None => Ok((found, found_hot)),
                },
            );
            let (form, found_hot) = match known {
                Ok(known) => known,
                Err(error) => {
                    // It need not be read as a whole by the next one who opens it.
                    let _ = py.detach(|| cold.close(true));
                    return Err(error);
                }
            };
            let total = cold.slots();
            let most = usize::try_from(total).unwrap_or(usize::MAX);
            let hot = hot.unwrap_or_else(|| found_hot.unwrap_or(HOT_CAPACITY).min(most));
            let layout = form.layout.clone();
            let rows = Tiered::new(hot as u64, total, layout, seed, || Ok(cold));
            return Self::of(py, form, cold_path, keep, rows);
        }
        let (Some(total), Some(form)) = (capacity, form) else {
            return Err(PyTypeError::new_err("give the capacity"));
        };
        let total = positive(py, "capacity", total)?;
        let hot = hot.unwrap_or(HOT_CAPACITY.min(total));
        let total = total as u64;
        let layout = form.layout.clone();
        let text = written::write(py, &form, hot)?;
        let geometry = Geometry { row_bytes: layout.row_bytes(), slots: total, text };
        let make = if overwrite { ColdFile::overwrite } else { ColdFile::create };
        let open = || {
            let cold = make(&cold_path, &geometry)?;
            if preallocate && let Err(error) = cold.preallocate() {
                // The disk is as it was, but for what was overwritten.
                let _ = cold.close(false);
                return Err(error);
            }
            Ok(cold)
        };
        let rows = py.detach(|| Tiered::new(hot as u64, total, layout, seed, open));
        Self::of(py, form, cold_path, keep, rows)
    }

    /// Add one transition.
    ///
    /// Args:
    ///     x: A dict with the fields of the example.
    ///     env: Changes nothing: every transition is drawn by itself.
    ///
    /// Raises:
    ///     SpecError: If a value does not fit its field. Nothing is stored then.
    ///     StorageError: If there is no room in memory, and the file can't be written. Nothing is
    ///         stored then, and nothing lost.
    ///     ClosedError: If the buffer is closed.
    #[pyo3(signature = (x, *, env=0))]
    fn add(&self, py: Python<'_>, x: &Bound<'_, PyAny>, env: u32) -> PyResult<()> {
        // Every transition is drawn by itself, whatever comes before it.
        let _ = env;
        if let Some(values) = self.form.six(x)?
            && self.push_plain(py, &values)?
        {
            return Ok(());
        }
        let values = self.form.values(x)?;
        self.store(py, &values, false).map(drop)
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
            if self.push_plain(py, &values)? {
                return Ok(());
            }
            self.form.check_six()?;
            self.store(py, &values, false).map(drop)
        })
    }

    /// Add many transitions.
    ///
    /// Args:
    ///     xs: A dict with the fields of the example, as arrays with a leading axis of one length.
    ///     env: Changes nothing, as in :meth:`add`.
    ///
    /// Raises:
    ///     SpecError: If a value does not fit its field, or lengths differ. Nothing is stored then.
    ///     StorageError: If the file can't be written. As many as its ``stored`` says are stored.
    ///     ClosedError: If the buffer is closed.
    #[pyo3(signature = (xs, *, env=None))]
    fn extend(
        &self,
        py: Python<'_>,
        xs: &Bound<'_, PyAny>,
        env: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = env;
        let values = self.form.values(xs)?;
        self.store(py, &values, true).map(drop)
    }

    /// Draw transitions evenly, with replacement.
    ///
    /// What is in the file is asked for all at once, and read in the order in which it lies there.
    /// The GIL is released while it is.
    ///
    /// Args:
    ///     n: How many.
    ///     seed: Of this draw; the buffer's own stream goes on when ``None``.
    ///     out: An earlier batch of this size, which is written into.
    ///     device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
    ///         numpy arrays when ``None``.
    ///
    /// Returns:
    ///     Every field as an array with one row for each transition.
    ///
    /// Raises:
    ///     ReplayError: The buffer is empty.
    ///     StorageError: The file can't be read, or was changed by another program.
    ///     ClosedError: The buffer is closed.
    #[pyo3(signature = (n, *, seed=None, out=None, device=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        n: i64,
        seed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        device: Option<Device<'py>>,
    ) -> PyResult<Bound<'py, Batch>> {
        let rows = self.rows(py)?;
        let seed = seed_number(seed)?;
        let count = usize::try_from(n).ok().filter(|count| *count > 0);
        let count =
            count.ok_or_else(|| replay_error(py, format!("n must be at least 1, got {n}")))?;
        if rows.is_empty() {
            return Err(BufferError::Empty.raise(py));
        }
        Batch::drawn(py, n, false, out, device, |out| {
            let batch = self.form.batch(py, &self.arena, &[count], &[], out, |columns| {
                self.fill(py, &rows, count, seed, columns).or_raise(py)
            });
            batch.map(|(batch, ())| batch)
        })
    }

    /// Remove all transitions, also those in the file.
    ///
    /// Raises:
    ///     StorageError: That can't be noted in the file. The buffer is empty nevertheless.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let rows = self.rows(py)?;
        py.detach(|| rows.clear()).or_raise(py)
    }

    /// Write all transitions to the file, and wait until they would survive a loss of power.
    ///
    /// Raises:
    ///     StorageError: The file can't be written.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let rows = self.rows(py)?;
        py.detach(|| rows.flush()).or_raise(py)
    }

    /// End the use of the buffer, and remove its file, or leave it there with all transitions.
    ///
    /// Batches that were drawn stay as they are. Closing again does nothing.
    ///
    /// Args:
    ///     keep: Whether to leave the file; what the buffer was made with when ``None``.
    ///
    /// Raises:
    ///     StorageError: The file can't be removed; or it is to be left and can't be written. Then
    ///         the buffer is still open.
    #[pyo3(signature = (*, keep=None))]
    fn close(&self, py: Python<'_>, keep: Option<bool>) -> PyResult<()> {
        self.open.process.check(py)?;
        let keep = keep.unwrap_or(self.open.keep);
        py.detach(|| self.open.close(keep)).or_raise(py)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.rows(py)?.len() as usize)
    }

    /// How many transitions fit.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.rows(py)?.capacity())
    }

    /// How many transitions are in memory.
    #[getter]
    fn hot_capacity(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.rows(py)?.hot_capacity())
    }

    /// Bytes of memory that hold transitions.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        let rows = self.rows(py)?;
        Ok(rows.len().min(rows.hot_capacity()) as usize * self.form.layout.row_bytes())
    }

    /// How many of the transitions are in the file, and survive the end of the process.
    #[getter]
    fn written(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.rows(py)?.written())
    }

    /// Where the file is.
    #[getter]
    fn cold_path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Whether closing leaves the file.
    #[getter]
    fn keep(&self) -> bool {
        self.open.keep
    }

    /// Whether the buffer was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.rows().is_none()
    }

    fn __repr__(&self) -> String {
        let path = self.path.display();
        let fields: Vec<&str> = self.form.fields.iter().map(|field| &*field.text).collect();
        let fields = fields.join(", ");
        match self.open.rows() {
            None => format!("MmapReplayBuffer(closed, cold_path={path})"),
            Some(rows) => {
                let (len, capacity, hot) = (rows.len(), rows.capacity(), rows.hot_capacity());
                format!(
                    "MmapReplayBuffer(len={len}, capacity={capacity}, hot_capacity={hot}, \
                     cold_path={path}, fields=[{fields}])"
                )
            }
        }
    }
}

/// Has all buffers closed when the interpreter ends. Called once, when the module is loaded.
pub fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let close = PyCFunction::new_closure(py, None, None, |arguments, _| {
        let open = std::mem::take(&mut *OPEN.lock());
        arguments.py().detach(|| {
            open.iter().filter_map(Weak::upgrade).for_each(|open| open.close_quietly());
        });
    })?;
    py.import("atexit")?.call_method1("register", (close,))?;
    Ok(())
}

/// An error with how many of several transitions were stored in its text.
fn noted(py: Python<'_>, error: PyErr, stored: usize, total: usize) -> PyErr {
    let value = error.value(py);
    let text = format!("{value} ({stored} of {total} transitions stored)");
    match value.setattr("args", (text,)) {
        // Whatever went wrong with the text, the error matters more.
        Ok(()) | Err(_) => error,
    }
}
