//! A producer in another process than the server.

use std::time::Instant;

use echoic_net::Address;
use echoic_net::client::memory::MemoryClient;
use echoic_net::client::{Client as WindowClient, ClientError, ClientInfo, Options};
use echoic_net::transport::Dial;
use echoic_replay::Spec as CoreSpec;
use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::array;
use crate::connect::{ConnectOptions, link_error};
use crate::error::{OrRaise, Raise, closed_error, set, spec_error, timeout_error};
use crate::fork::Process;
use crate::leaf::{Many, One, Source};
use crate::sources::{DETACH_BYTES, recheck, with_sources};
use crate::spec::{Spec, core_spec};
use crate::table::offsets;
use crate::tree::Tree;
use crate::wait;

/// The native part of ``echoic.remote_stream.RemoteStream``: everything that runs per sample.
#[pyclass(frozen, subclass, module = "echoic._native")]
pub struct RemoteStream {
    tree: Tree,
    carrier: Carrier,
    process: Process,
}

/// How samples get there.
enum Carrier {
    /// Through a window and a connection.
    Window {
        client: WindowClient,
        /// Where each leaf starts in a row of the window, and where the row ends.
        offsets: Vec<usize>,
    },
    /// Written into the ring itself.
    Memory(MemoryClient),
}

/// Calls a method that both kinds of client have.
macro_rules! either {
    ($carrier:expr, $client:ident => $call:expr) => {
        match $carrier {
            Carrier::Window { client: $client, .. } => $call,
            Carrier::Memory($client) => $call,
        }
    };
}

impl Carrier {
    fn new(dial: Box<dyn Dial>, spec: CoreSpec, options: Options) -> Result<Self, ClientError> {
        if matches!(dial.address(), Address::Shm { .. }) {
            return MemoryClient::new(dial, spec, options).map(Self::Memory);
        }
        let offsets = offsets(&spec);
        WindowClient::new(dial, spec, options).map(|client| Self::Window { client, offsets })
    }

    fn spec(&self) -> &CoreSpec {
        either!(self, client => client.spec())
    }

    /// Samples that the server has not acknowledged.
    fn pending(&self) -> u64 {
        match self {
            Self::Window { client, .. } => client.pending(),
            Self::Memory(_) => 0,
        }
    }

    fn flush(&self, wait: Wait<'_>) -> Result<(), ClientError> {
        match self {
            Self::Window { client, .. } => client.flush(wait),
            Self::Memory(client) => client.flush(),
        }
    }

    /// Copies samples until all are taken, or the next would have to wait; whether all are.
    ///
    /// # Safety
    ///
    /// `sources` are of a value that the tree of this client's spec accepted, with a leading axis of
    /// `samples` or without if there is one, and they were rechecked since Python code could last run.
    #[inline]
    unsafe fn push(
        &self,
        sources: &[Source],
        samples: usize,
        pushed: &mut usize,
    ) -> Result<bool, ClientError> {
        let leaf_bytes = self.spec().leaf_bytes();
        let (client, offsets) = match self {
            Self::Window { client, offsets } => (client, offsets),
            Self::Memory(client) => {
                return client.push(samples, pushed, |writer, first| {
                    for source in sources {
                        let column = writer.column_mut(source.leaf);
                        // SAFETY: the caller's promise; `first` plus the room that there is never passes
                        // the number of samples.
                        unsafe { source.copy_to(first * leaf_bytes[source.leaf], column) };
                    }
                });
            }
        };
        let stride = self.spec().nbytes();
        while *pushed < samples {
            let Some(mut rows) = client.try_claim(samples - *pushed)? else {
                return Ok(false);
            };
            let claimed = rows.len();
            for source in sources {
                let (bytes, column) = (leaf_bytes[source.leaf], offsets[source.leaf]);
                let to = rows.bytes_mut();
                // SAFETY: the caller's promise; `pushed` plus the rows claimed never passes the number
                // of samples.
                unsafe { source.copy_to_rows(*pushed * bytes, bytes, to, stride, column) };
            }
            client.commit(rows);
            *pushed += claimed;
        }
        Ok(true)
    }
}

#[pymethods]
impl RemoteStream {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        example: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let given = ConnectOptions(options);
        let (peer, options) = (given.peer(address)?, given.options()?);
        let tree = Tree::compile(example, "")?;
        let spec = core_spec(py, &tree)?;
        let carrier = Carrier::new(peer.dial(py)?, spec, options).or_raise(py)?;
        let this = Self { tree, carrier, process: Process::current() };
        this.wait(
            py,
            None,
            |wait| either!(&this.carrier, client => client.wait_until_connected(wait)),
        )?;
        Ok(this)
    }

    /// Send one sample.
    ///
    /// Its bytes are copied before this returns; they are delivered in the background, or, over
    /// ``shm://``, stored already. Waits, without the GIL, while the window (over ``shm://``: the
    /// server's ring) is full.
    ///
    /// Args:
    ///     x: A sample like the example; the rules are those of ``Stream.add``.
    ///     timeout: Seconds to wait for room; ``None`` waits for ever, 0 not at all.
    ///
    /// Raises:
    ///     SpecError: The sample does not fit. Nothing of it is sent.
    ///     WaitTimeoutError: There was no room in time; ``reason`` says why.
    ///     ClosedError: The client is closed.
    ///     DisconnectedError: The client has given up; ``undelivered`` says how many samples it
    ///         has.
    #[pyo3(signature = (x, *, timeout=None))]
    fn add(&self, py: Python<'_>, x: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let push = |sources: &[Source], _: &One| self.push(py, sources, 1, deadline);
        with_sources(&self.tree, x, &mut One, push, |_| {})
    }

    /// Send many samples, given as leaves with a leading axis.
    ///
    /// Args:
    ///     xs: Like the example, each leaf with the same leading axis.
    ///     timeout: Seconds to wait for room in total; ``None`` waits for ever.
    ///
    /// Raises:
    ///     SpecError: A leaf does not fit. Nothing is sent.
    ///     WaitTimeoutError: Not all samples had room in time; ``stored`` says how many had.
    ///     ClosedError: The client is closed; ``stored`` says how many samples came before.
    ///     DisconnectedError: The client has given up.
    #[pyo3(signature = (xs, *, timeout=None))]
    fn extend(&self, py: Python<'_>, xs: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        let deadline = wait::deadline(timeout)?;
        let push = |sources: &[Source], shapes: &Many| {
            self.push(py, sources, shapes.rows.unwrap_or(0), deadline)
        };
        with_sources(&self.tree, xs, &mut Many::default(), push, |_| {})
    }

    /// Wait until everything that was sent before is stored in the server's ring.
    ///
    /// Raises:
    ///     WaitTimeoutError: It was not in time; ``reason`` says why. It is still being delivered.
    ///     DisconnectedError: The client has given up.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.process.check(py)?;
        self.wait(py, wait::deadline(timeout)?, |wait| self.carrier.flush(wait))
    }

    /// Take no more samples, and deliver nothing more: ``undelivered()`` has what is left.
    ///
    /// What ``close()`` waits for then is no more than an attempt to connect.
    fn _give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        either!(&self.carrier, client => client.give_up());
        Ok(())
    }

    /// Take no more samples, deliver those that are left, and end.
    ///
    /// May be called again after it timed out. In a forked child it does nothing: the client is the
    /// parent's.
    ///
    /// Raises:
    ///     WaitTimeoutError: Not everything was delivered in time; it still is being delivered.
    ///     DisconnectedError: The client has given up; :meth:`undelivered` returns what is left.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        if !self.process.is_current() {
            // The parent goes on with it.
            return Ok(());
        }
        self.wait(
            py,
            wait::deadline(timeout)?,
            |wait| either!(&self.carrier, client => client.close(wait)),
        )
    }

    /// Whether it takes no more samples.
    #[getter]
    fn closed(&self) -> bool {
        either!(&self.carrier, client => client.is_closed())
    }

    /// Where the server is.
    #[getter]
    fn address(&self) -> String {
        either!(&self.carrier, client => client.address().to_string())
    }

    /// The number that the server knows this client by.
    #[getter]
    fn producer(&self) -> [u8; 16] {
        either!(&self.carrier, client => client.producer())
    }

    /// What samples look like.
    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Spec> {
        Spec::new(py, self.carrier.spec())
    }

    /// Return the numbers of this end; it sends no request to the server.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let info: ClientInfo = either!(&self.carrier, client => client.info());
        let class = CLASS.import(py, "echoic.remote_stream", "RemoteStreamStats")?;
        let numbers = (
            info.samples_sent,
            info.samples_acked,
            info.pending,
            info.window,
            info.bytes_per_sample,
            info.bytes_sent,
            info.writes,
            info.reconnects,
            info.blocked_sends,
            info.blocked_time,
            info.connected,
        );
        class.call1(numbers)
    }

    /// Return what was not acknowledged, once the client is closed or has given up.
    ///
    /// The last of these may be stored all the same: the server had taken them, and the connection
    /// broke before it could say so. Sent again by another client, they may thus come twice.
    ///
    /// Returns:
    ///     A tree like the example with a leading axis, or ``None`` when everything was delivered.
    fn undelivered<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.process.check(py)?;
        let Carrier::Window { client, offsets } = &self.carrier else {
            // What was sent is in the ring.
            return Ok(None);
        };
        let Some((count, rows)) = py.detach(|| client.undelivered()) else {
            return Err(PyRuntimeError::new_err(
                "undelivered() is for a client that is closed or has given up: until then it still tries",
            ));
        };
        if count == 0 {
            return Ok(None);
        }
        let leaf_bytes = self.carrier.spec().leaf_bytes();
        let sample = self.carrier.spec().nbytes();
        let batch = self.tree.build(py, &mut |leaf| {
            let (rule, bytes, offset) = (&self.tree.rules[leaf], leaf_bytes[leaf], offsets[leaf]);
            let shape: Vec<usize> = [&[count], &rule.leaf.shape[..]].concat();
            let mut column = Vec::with_capacity(count * bytes);
            for row in rows.chunks_exact(sample.max(1)) {
                column.extend_from_slice(&row[offset..offset + bytes]);
            }
            array::owned(&column, rule.descr.bind(py), &PyTuple::new(py, shape)?)
        })?;
        Ok(Some(batch))
    }

    /// Return a sample of zeros, for another client like this one.
    fn _example<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        self.tree.build(py, &mut |leaf| {
            let rule = &self.tree.rules[leaf];
            let shape = PyTuple::new(py, &rule.leaf.shape)?;
            numpy.call_method1("zeros", (shape, rule.descr.bind(py)))
        })
    }
}

impl RemoteStream {
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        attempt: impl FnOnce(Wait<'_>) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        wait::detached(py, deadline, None, attempt).map_err(|stopped| {
            stopped.raise_with(|error| client_error(py, &error, "", self.carrier.pending()))
        })
    }

    /// Sends samples, waiting for room where there is none.
    #[inline]
    fn push(
        &self,
        py: Python<'_>,
        sources: &[Source],
        samples: usize,
        deadline: Option<Instant>,
    ) -> PyResult<()> {
        let large = samples.saturating_mul(self.carrier.spec().nbytes()) >= DETACH_BYTES;
        let mut pushed = 0;
        loop {
            recheck(py, &self.tree, sources)?;
            // SAFETY: `gather` accepted the value with the rules of this tree, whose leaves the spec has;
            // `samples` is what it found, and all was rechecked just now.
            let mut push = || unsafe { self.carrier.push(sources, samples, &mut pushed) };
            let done = if large { py.detach(push) } else { push() };
            match done.map_err(|error| self.failed(py, &error, pushed, samples))? {
                true => return Ok(()),
                false => self.wait_for_room(py, deadline, pushed, samples)?,
            }
        }
    }

    #[cold]
    fn wait_for_room(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        pushed: usize,
        samples: usize,
    ) -> PyResult<()> {
        let room = |wait: Wait<'_>| either!(&self.carrier, client => client.wait_for_room(wait));
        let stored = |error: PyErr| set(py, error, "stored", pushed);
        wait::detached(py, deadline, None, room)
            .map_err(|stopped| stopped.raise_with(|error| self.failed(py, &error, pushed, samples)))
            // Many short waits may never come to a tick, however long they take together.
            .and_then(|()| py.check_signals())
            .map_err(stored)
    }

    #[cold]
    fn failed(&self, py: Python<'_>, error: &ClientError, pushed: usize, samples: usize) -> PyErr {
        let progress = match samples {
            1 => String::new(),
            _ => format!(" ({pushed} of {samples} samples taken)"),
        };
        let error = client_error(py, error, &progress, self.carrier.pending());
        set(py, error, "stored", pushed)
    }
}

impl Raise for ClientError {
    fn raise(self, py: Python<'_>) -> PyErr {
        client_error(py, &self, "", 0)
    }
}

/// The exception for what a client can't do, when `undelivered` samples are not acknowledged.
fn client_error(py: Python<'_>, error: &ClientError, progress: &str, undelivered: u64) -> PyErr {
    let text = |text: String| format!("{text}{progress}");
    match error {
        ClientError::TimedOut(reason) => {
            let what = match reason {
                WaitReason::Capacity => {
                    "the server's ring is full of batches that no consumer has taken"
                }
                WaitReason::Leased => {
                    "every batch of the server is held by arrays that are still alive"
                }
                WaitReason::Away => "there is no connection to the server",
                _ => "the server has not acknowledged what was sent",
            };
            let error = timeout_error(py, text(format!("timed out: {what}")));
            set(py, error, "reason", reason.name())
        }
        ClientError::Closed => closed_error(py, text("the client is closed".into())),
        ClientError::Failed(failure) => {
            let mut what = format!("{}: {}", failure.address, failure.error);
            if failure.attempts > 1 {
                what = format!("{what}; gave up after {} attempts", failure.attempts);
            }
            if undelivered > 0 {
                what = format!(
                    "{what}; {undelivered} samples are undelivered, undelivered() returns them"
                );
            }
            set(py, link_error(py, &failure.error, text(what)), "undelivered", undelivered)
        }
        ClientError::SampleTooLarge(_) | ClientError::Spec(_) => spec_error(py, error.to_string()),
        ClientError::Memory(_) => PyMemoryError::new_err(error.to_string()),
        ClientError::System(_) => PyOSError::new_err(error.to_string()),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}
