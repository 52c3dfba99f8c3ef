"""A stream: samples go in one by one, batches of a fixed size come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic import _native
from echoic.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

__all__ = ["Stream"]


class Stream(_native.Stream):
    """A stream of samples, handed out in batches of a fixed size.

    Producers call :meth:`add` from any number of threads; each sample is copied once, into its
    place in a ring of pre-allocated batches. Consumers call :meth:`sample` and get numpy views of
    that place. A :class:`~echoic.Server` lets other processes add samples too.

    The memory is allocated when the stream is first used or given to a server; there is a
    ``MemoryError`` if it does not fit.

    Args:
        example: A sample as all others will be: nested dicts, tuples, lists, namedtuples,
            dataclasses or nodes registered with optree, with arrays or scalars as leaves. Only its
            structure, dtypes and shapes matter.
        batch_size: Samples of a batch, at least 1.
        capacity: Samples that fit, rounded up to whole batches: at least 2 batches, 4 when
            ``None``. Producers wait while all are full or held.
        held_warning_after: Seconds for which a batch may be held, while producers wait for memory,
            before a :class:`~echoic.errors.HeldBatchesWarning` is issued.

    Raises:
        SpecError: If the example can't be stored.
        ValueError: If a size is out of range.

    Examples:
        >>> import numpy as np
        >>> from echoic import Stream
        >>> example = {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}
        >>> with Stream(example, batch_size=2) as stream:
        ...     for step in range(2):
        ...         obs = np.full(4, step, np.float32)
        ...         stream.add({"obs": obs, "reward": np.float32(step)})
        ...     batch = stream.sample()
        >>> batch["obs"].shape
        (2, 4)
        >>> batch["reward"]
        array([0., 1.], dtype=float32)
    """

    def __new__(
        cls,
        example: Any,
        *,
        batch_size: int,
        capacity: int | None = None,
        held_warning_after: float = 10.0,
    ) -> Self:
        """Check the arguments; see the class."""
        return super().__new__(cls, example, batch_size, capacity, held_warning_after)

    def batches(self, *, device: Any = None) -> Iterator[_native.Batch]:
        """Yield batches until the stream is closed and all complete ones were taken.

        The loop variable keeps its batch while the next one is awaited, whose memory is not free
        until then.

        Args:
            device: Where batches get tensors of PyTorch; numpy arrays when ``None``. For a device
                other than the CPU, the next batch is taken and copied while one is used, so one
                is lost where a loop ends early.
        """
        if device is not None:
            from echoic.tensors import iterate

            yield from iterate(self.sample, device)
            return
        try:
            while True:
                # Not through a variable: this frame would keep the batch as well.
                yield self.sample()
        except ClosedError:
            return

    def __enter__(self) -> Self:
        """Return the stream."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the stream."""
        self.close()

    def __repr__(self) -> str:
        """Return how full it is."""
        closed = ", closed" if self.closed else ""
        return (
            f"Stream(batch_size={self.batch_size}, {len(self)} of {self.capacity} samples{closed})"
        )

    def _repr_html_(self) -> str:
        """Show the stream in a notebook."""
        from echoic.views.notebook import stream_html

        return stream_html(self)
