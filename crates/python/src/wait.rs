//! Waiting without the GIL: Ctrl-C within a tenth of a second, deadlines, and one warning when
//! batches that are held too long keep producers waiting.

use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::{OrRaise, Raise};

/// Longer than anybody waits, 136 years, and not so long that a clock could not hold when it is over.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// How often the main thread looks for signals, which Python delivers to it alone.
const SIGNAL_TICK: Duration = Duration::from_millis(50);
/// How often a producer in another thread looks whether held batches are worth a warning.
const WARNING_TICK: Duration = Duration::from_secs(1);

/// Checks a timeout in seconds; `None` waits for ever.
pub fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    timeout.map(|timeout| Ok(Instant::now() + seconds("timeout", timeout)?)).transpose()
}

/// Checks a number of seconds, which may be infinite. What it returns is never more than [`FOREVER`], so that it can
/// be added to any moment.
pub fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        let message = format!("{name} must be a number of seconds >= 0, got {seconds}");
        return Err(pyo3::exceptions::PyValueError::new_err(message));
    }
    Ok(Duration::try_from_secs_f64(seconds).map_or(FOREVER, |wait| wait.min(FOREVER)))
}

/// What to look at with the GIL now and then while waiting, given the reason of the wait.
pub type LookOut<'a> = &'a (dyn Fn(Python<'_>, WaitReason) -> PyResult<()> + Sync);

/// Why a wait has no result.
pub enum Stopped<E> {
    /// Python code that ran meanwhile raised.
    Raised(PyErr),
    /// What was waited for can't be had.
    Failed(E),
}

impl<E> Stopped<E> {
    /// The exception for it, given that for what failed.
    pub fn raise_with(self, failed: impl FnOnce(E) -> PyErr) -> PyErr {
        match self {
            Self::Raised(error) => error,
            Self::Failed(error) => failed(error),
        }
    }
}

impl<E: Raise> Raise for Stopped<E> {
    fn raise(self, py: Python<'_>) -> PyErr {
        self.raise_with(|error| error.raise(py))
    }
}

/// Runs `attempt` without the GIL; what came of it, or the exception.
pub fn until<T: Send, E: Raise + Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    attempt: impl FnOnce(Wait<'_>) -> Result<T, E> + Send,
) -> PyResult<T> {
    detached(py, deadline, None, attempt).or_raise(py)
}

/// Runs `attempt` without the GIL, and looks at `look_out` now and then.
pub fn detached<T: Send, E: Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    look_out: Option<LookOut<'_>>,
    attempt: impl FnOnce(Wait<'_>) -> Result<T, E> + Send,
) -> Result<T, Stopped<E>> {
    let main = is_main_thread(py).map_err(Stopped::Raised)?;
    let tick = if main { Some(SIGNAL_TICK) } else { look_out.map(|_| WARNING_TICK) };
    let mut raised: Option<PyErr> = None;
    let result = py.detach(|| {
        let mut on_tick = |reason| {
            let looked = Python::try_attach(|py| {
                if main {
                    py.check_signals()?;
                }
                look_out.map_or(Ok(()), |look| look(py, reason))
            });
            match looked {
                Some(Ok(())) => ControlFlow::Continue(()),
                Some(Err(error)) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
                // The interpreter is going away. Going back to it from here would end in an unwind
                // that Rust can't pass on; the end of the process ends this thread too.
                None => loop {
                    std::thread::park();
                },
            }
        };
        attempt(Wait { deadline, tick, on_tick: &mut on_tick })
    });
    result.map_err(|error| raised.take().map_or(Stopped::Failed(error), Stopped::Raised))
}

/// Runs `work`, which can't be interrupted, without the GIL. For the main thread another one does it, which an
/// exception of a signal handler leaves to itself: `work` has to end some time.
pub fn aside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(work));
    }
    let (done, mut result) = channel();
    let run = move || {
        // After an interrupt nothing receives it.
        let _ = done.send(work());
    };
    std::thread::Builder::new().name("echoic-aside".into()).spawn(run)?;
    loop {
        let waiting = &mut result;
        match py.detach(move || waiting.recv_timeout(SIGNAL_TICK)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let text = "the thread of a request has panicked";
                return Err(pyo3::exceptions::PyRuntimeError::new_err(text));
            }
        }
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    static MAIN_THREAD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let main = MAIN_THREAD.import(py, "threading", "main_thread")?.call0()?;
    let current = CURRENT.import(py, "threading", "get_ident")?.call0()?;
    main.getattr("ident")?.eq(current)
}
