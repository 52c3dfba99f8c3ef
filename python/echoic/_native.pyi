"""Types of the native core. The classes are documented here; the core is in `crates/python`."""

from typing import Any, final

from typing_extensions import Self, disjoint_base

__all__ = [
    "Histogram",
    "LeafSpec",
    "Sample",
    "SampleInfo",
    "Server",
    "Spec",
    "TrajectoryAccumulator",
    "allocation_count",
    "empty_call",
]

def allocation_count() -> int:
    """How often Rust code of this module has allocated memory since it was loaded."""

def empty_call(tree: Any) -> None:
    """Do nothing with the argument: the cost of a call into this module, for benchmarks."""

@disjoint_base
class Server:
    """The native part of :class:`echoic.Server`: everything that runs per sample."""

    def __new__(
        cls, example: Any, batch_size: int, num_buffers: int, held_warning_after: float
    ) -> Self: ...
    def submit(self, tree: Any, timeout: float | None = None) -> None:
        """Store one sample.

        Its bytes are copied before this returns. Waits, without the GIL, while the ring is full.

        Args:
            tree: A sample like the example. dtypes must match exactly; Python numbers fit any dtype
                of their kind; arrays that are not contiguous or have another byte order are
                converted.
            timeout: Seconds to wait for room; ``None`` waits for ever, 0 not at all.

        Raises:
            SpecError: The sample does not fit. Nothing of it is stored.
            WaitTimeoutError: There was no room in time; ``reason`` says why.
            ClosedError: The server is closed.
        """

    def submit_batch(self, tree: Any, timeout: float | None = None) -> None:
        """Store many samples, given as leaves with a leading axis.

        The axis may be longer than a batch, or than the whole ring: this returns when all samples
        are stored.

        Args:
            tree: Like the example, each leaf with the same leading axis.
            timeout: Seconds to wait for room in total; ``None`` waits for ever.

        Raises:
            SpecError: A leaf does not fit. Nothing is stored.
            WaitTimeoutError: Not all samples had room in time; ``stored`` says how many had.
            ClosedError: The server is closed; ``stored`` says how many samples came before.
        """

    def sample(self, timeout: float | None = None) -> Sample:
        """Take the next batch, waiting for it without the GIL.

        After a close, the complete batches that are left can still be taken.

        Raises:
            WaitTimeoutError: No batch was complete in time.
            ClosedError: The server is closed and has no complete batch.
        """

    def remainder(self, timeout: float | None = None) -> Sample | None:
        """Take the samples of a closed server that do not fill a batch; ``None`` if there are none.

        Waits for submits that are under way. Only the first call gets them.
        """

    def close(self) -> None:
        """End intake and wake everyone who waits. Batches already taken stay valid."""

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    @property
    def info(self) -> SampleInfo:
        """A snapshot of the numbers, without taking a batch."""

    @property
    def spec(self) -> Spec:
        """What samples look like."""

    @property
    def batch_size(self) -> int:
        """How many samples make a batch."""

@final
class Sample:
    """A batch, and what can be said about the stream it came from.

    The arrays are views of the ring's own memory. They stay valid and unchanged for as long as any
    of them is alive; only then is the memory used again. ``len(sample)`` is the number of rows.
    """

    @property
    def batch(self) -> Any:
        """A tree like the example, every leaf of shape ``(batch_size, *leaf.shape)``."""

    @property
    def sequence(self) -> int:
        """Position of the batch in the stream, from 0."""

    @property
    def info(self) -> SampleInfo:
        """Numbers about the stream, as of the first time they are asked for."""

    def __len__(self) -> int: ...

@final
class Histogram:
    """Durations in seconds, all zero while ``count`` is.

    Quantiles are within 1/16 of their value.
    """

    @property
    def count(self) -> int:
        """How many were recorded."""

    @property
    def min(self) -> float:
        """The shortest."""

    @property
    def mean(self) -> float:
        """Their mean."""

    @property
    def p50(self) -> float:
        """The median."""

    @property
    def p90(self) -> float:
        """Nine of ten are at most this long."""

    @property
    def p99(self) -> float:
        """99 of 100 are at most this long."""

    @property
    def max(self) -> float:
        """The longest."""

@final
class SampleInfo:
    """A snapshot of a stream's numbers. Exact while nothing moves; times are in seconds."""

    @property
    def sequence(self) -> int:
        """Position of the batch that this came with, or of the next one."""

    @property
    def batch_size(self) -> int:
        """Samples per batch."""

    @property
    def num_buffers(self) -> int:
        """Batches that fit."""

    @property
    def capacity(self) -> int:
        """Samples that fit."""

    @property
    def store_size(self) -> int:
        """Samples stored and not yet taken."""

    @property
    def partial(self) -> int:
        """Samples in batches that are not complete."""

    @property
    def batches_ready(self) -> int:
        """Complete batches that wait for a consumer."""

    @property
    def batches_held(self) -> int:
        """Batches whose memory someone still holds."""

    @property
    def batches_free(self) -> int:
        """Buffers that are free."""

    @property
    def oldest_hold(self) -> float:
        """How long the batch that was taken first has been held."""

    @property
    def inserted_total(self) -> int:
        """Samples stored since the start."""

    @property
    def batches_total(self) -> int:
        """Batches completed since the start."""

    @property
    def delivered_total(self) -> int:
        """Complete batches taken since the start."""

    @property
    def blocked_pushes(self) -> int:
        """Times that a push had to wait for room."""

    @property
    def blocked_time(self) -> float:
        """How long pushes waited, in total."""

    @property
    def sample_waits(self) -> int:
        """Calls of ``sample`` that had to wait."""

    @property
    def sample_wait_time(self) -> float:
        """How long they waited, in total."""

    @property
    def contention(self) -> int:
        """Times a producer looked again because another was opening a batch."""

    @property
    def aborted(self) -> int:
        """Reserved slots whose writer gave up; other samples filled them."""

    @property
    def refused(self) -> int:
        """Submits that were refused because they did not fit the example."""

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of one sample."""

    @property
    def memory_bytes(self) -> int:
        """Bytes allocated for the ring."""

    @property
    def submit_to_available(self) -> Histogram:
        """From the submit of a sample to the completion of its batch."""

    @property
    def copy_time(self) -> Histogram:
        """Copying one submitted run of samples into the ring."""

    @property
    def hold_time(self) -> Histogram:
        """From taking a batch to the end of its last view."""

    def as_dict(self) -> dict[str, int | float]:
        """All numbers in one flat dict, histograms as ``copy_time.p99`` and so on."""

@final
class LeafSpec:
    """Path, dtype and shape of one leaf."""

    @property
    def path(self) -> str:
        """Keys joined by ``/``; empty for a sample that is a single leaf."""

    @property
    def dtype(self) -> str:
        """The dtype, by numpy's name for it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape without a batch axis."""

    @property
    def nbytes(self) -> int:
        """Bytes of this leaf in one sample."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Spec:
    """The leaves of a sample, in the order of their columns. ``str()`` gives a table."""

    @property
    def leaves(self) -> tuple[LeafSpec, ...]:
        """The leaves."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""

    def __len__(self) -> int: ...

@final
class TrajectoryAccumulator:
    """Puts trajectories together step by step, in memory that is made once.

    The example has named parts. In each, a leaf whose values have the leaf's shape without its
    first axis is filled step by step along that axis; a leaf that gets values of its full shape is
    set as a whole. The first value of a trajectory decides which.

    Examples:
        >>> import numpy as np
        >>> from echoic import TrajectoryAccumulator
        >>> steps = {"obs": np.zeros((3, 2), np.float32), "reward": np.zeros(3, np.float32)}
        >>> buf = TrajectoryAccumulator({"step": steps, "last_obs": np.zeros(2, np.float32)})
        >>> for t in range(3):
        ...     buf.add("step", {"obs": np.full(2, t, np.float32), "reward": float(t)})
        >>> buf.add("last_obs", np.full(2, 3, np.float32))
        >>> buf.fill
        {'step': (3, 3), 'last_obs': (1, 1)}
        >>> buf.build()["step"]["reward"]
        array([0., 1., 2.], dtype=float32)
    """

    def __new__(cls, example: dict[str, Any]) -> Self: ...
    def add(self, name: str, step: Any) -> None:
        """Add one step to a part, or set it.

        Raises:
            TrajectoryError: The part is full, or there is no such part.
            SpecError: The value does not fit. Nothing of it is kept.
        """

    def build(self) -> dict[str, Any]:
        """Hand out the finished trajectory, without copying it, and begin a new one.

        The arrays are the accumulator's own. Whoever keeps them keeps them unchanged: the next
        trajectory then goes into fresh memory, otherwise into the same.

        Raises:
            TrajectoryError: A part is not full; the message says which and by how much.
        """

    def reset(self) -> None:
        """Forget the steps of the unfinished trajectory."""

    @property
    def fill(self) -> dict[str, tuple[int, int | None]]:
        """For each part, how much it has of how much; ``None`` before its first value."""

    @property
    def is_full(self) -> bool:
        """Whether :meth:`build` would succeed."""
