"""A server with one stream, and the numbers that come with its batches."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optree

import echoic
from echoic.errors import ClosedError
from echoic.transports import Listener, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from echoic import _native

__all__ = ["HistSnapshot", "Sample", "SampleInfo", "Server", "TcpTransport"]


@dataclass(frozen=True)
class TcpTransport:
    """Plain TCP.

    Args:
        port: Where to listen; 0 for any free port.
        num_threads: Event loops that serve the connections: half the cores, at most 4, when
            ``None``.
        host: Name or number of the interface: what the environment variable ``ECHOIC_ECHO_HOST``
            has when ``None``, else this machine alone. One that other machines can reach needs a
            ``token``.
        token: A secret that clients must have: ``ECHOIC_ECHO_TOKEN`` when ``None``.
        insecure: Allow such an interface without a token.
    """

    port: int
    num_threads: int | None = None
    host: str | None = field(default=None, kw_only=True)
    token: str | bytes | None = field(default=None, kw_only=True, repr=False)
    insecure: bool = field(default=False, kw_only=True)

    def open(self, server: _native.Server) -> str:
        """Listen."""
        host = self.host or os.environ.get("ECHOIC_ECHO_HOST", "127.0.0.1")
        host = f"[{host}]" if ":" in host else host
        return Listener(
            f"tcp://{host}:{self.port}",
            token=self.token or os.environ.get("ECHOIC_ECHO_TOKEN"),
            insecure=self.insecure,
            threads=self.num_threads,
        ).open(server)


@dataclass(frozen=True)
class HistSnapshot:
    """Durations in nanoseconds, all zero while ``count`` is."""

    count: int = 0
    min_ns: int = 0
    max_ns: int = 0
    mean_ns: float = 0.0
    p50_ns: int = 0
    p90_ns: int = 0
    p99_ns: int = 0


def _number(path: str, doc: str) -> Any:
    return property(attrgetter(path), doc=doc)


@dataclass
class SampleInfo:
    """Numbers of the stream, as of the moment when its batch was taken.

    Attributes:
        stats: All numbers under Echoic's names.
    """

    stats: _native.StreamStats

    store_size = _number("stats.store_size", "Samples stored and not yet taken.")
    active_connections = _number("stats.connections", "Clients that are connected.")
    push_blocked_count = _number("stats.blocked_pushes", "Times that a sample waited for room.")
    # Without those of `submit`.
    samples_inserted_total = _number("stats.received_samples", "Samples stored for clients.")
    notify_count = _number("stats.batches_total", "Batches completed: each wakes a consumer.")
    cas_success_total = _number("stats.inserted_total", "Samples that got a place.")
    cas_failure_total = _number("stats.contention", "Times that a producer had to look again.")
    reservation_retries_total = cas_failure_total
    # There are no queues before the ring and no drainers: connections write into it themselves.
    queue_depth_sum = queue_depth_max = 0
    drain_round = HistSnapshot()

    @property
    def memcpy(self) -> HistSnapshot:
        """Copying one run of samples into the ring; of large batches, some runs are timed."""
        return self._snapshot("copy_time")

    @property
    def queue_dwell(self) -> HistSnapshot:
        """From the arrival of a sample to the completion of its batch."""
        return self._snapshot("submit_to_available")

    def _snapshot(self, name: str) -> HistSnapshot:
        all_ = getattr(self.stats, name)
        names = ("min", "max", "p50", "p90", "p99")
        low, high, *quantiles = (round(1e9 * getattr(all_, one)) for one in names)
        return HistSnapshot(all_.count, low, high, 1e9 * all_.mean, *quantiles)


class Sample(NamedTuple):
    """A batch and the stream's numbers.

    Attributes:
        batch: A tree like the example, every leaf of shape ``(batch_size, *leaf.shape)``.
        info: The numbers.
    """

    batch: Any
    info: SampleInfo


class _StartError(OSError, RuntimeError):
    """A port can't be had."""


class Server(echoic.Server):
    """A stream of samples, handed out in batches of a fixed size.

    Args:
        example: A sample as all others will be.
        batch_size: Samples of a batch.
        transport: A :class:`TcpTransport` or address for other processes, or several; ``None`` for
            this process only.
        num_buffers: Batches that fit, at least 2.
        num_drainers: Without effect: connections write into the ring themselves.
        producer_queue_size: Without effect: there are no queues before the ring.
        pin_host_memory: Without effect but a warning: the ring is not page-locked.
        **options: Those of :class:`echoic.Server`.
    """

    _stream: echoic.Stream
    _num_buffers: int
    # The stream's native methods.
    submit: Callable[..., None]
    submit_batch: Callable[..., None]

    def __new__(
        cls,
        example: Any,
        batch_size: int,
        transport: str | Transport | Sequence[str | Transport] | None = None,
        num_buffers: int = 3,
        num_drainers: int = 8,
        producer_queue_size: int = 8,
        pin_host_memory: bool = False,
        **options: Any,
    ) -> Self:
        """Allocate the memory."""
        del num_drainers, producer_queue_size
        if pin_host_memory:
            warnings.warn("pin_host_memory has no effect: the ring is not pinned", stacklevel=2)
        stream = echoic.Stream(example, batch_size=batch_size, capacity=num_buffers * batch_size)
        self = super().__new__(cls, stream, listen=transport, **options)
        self._stream = stream
        self._num_buffers = num_buffers
        self.submit = stream.add
        self.submit_batch = stream.extend
        return self

    def start(self) -> Self:
        """Open the transport; returns the server.

        Raises:
            RuntimeError: If the port can't be had. It is an ``OSError`` too.
        """
        try:
            return super().start()
        except OSError as error:
            raise _StartError(*error.args) from error

    @property
    def port(self) -> int:
        """The port of the transport, once the server was started.

        Raises:
            RuntimeError: If it was not started, or has no transport.
        """
        if not self.addresses:
            raise RuntimeError("the transport was not started, or there is none: see start()")
        return int(self.addresses[0].rpartition(":")[2])

    @property
    def info(self) -> SampleInfo:
        """A snapshot of the numbers, without taking a batch."""
        return SampleInfo(self._stream.stats())

    def reset_histograms(self) -> None:
        """Begin the histograms again; counters and gauges go on."""
        self._stream.reset_histograms()

    def sample(self, timeout: float | None = None) -> Sample | None:
        """Take the next batch; ``None`` if the server is closed and has no complete one."""
        try:
            return self._take(timeout, copy=False)
        except ClosedError:
            return None

    def dataset_iter(self, *, copy: bool = False) -> Iterator[Sample]:
        """Yield batches until the server is closed and all complete ones were taken.

        Args:
            copy: Yield copies, so that the ring has the memory back at once. Other batches remain
                valid too, for as long as they are kept.
        """
        try:
            while True:
                # Not through a variable: this frame would keep the batch as well.
                yield self._take(None, copy=copy)
        except ClosedError:
            return

    def _take(self, timeout: float | None, *, copy: bool) -> Sample:
        batch = self._stream.sample(timeout)
        info, data = self.info, batch.data
        # A program that keeps batches must not have the whole ring, which would end its samples.
        if copy or info.stats.batches_held >= self._num_buffers:
            data = optree.tree_map(np.copy, data)
        return Sample(data, info)


class _Server(Server):
    """A server of samples that are lists of bytes, one for each array."""

    def __new__(
        cls, shapes: Sequence[Sequence[int]], dtype_sizes: Sequence[int], *rest: Any, **options: Any
    ) -> Self:
        """Allocate the memory."""
        sizes = [math.prod(shape) * size for shape, size in zip(shapes, dtype_sizes, strict=True)]
        self = super().__new__(cls, [np.zeros(size, np.uint8) for size in sizes], *rest, **options)
        add = self._stream.add
        self.submit = lambda data: add([np.frombuffer(one, np.uint8) for one in data])
        return self

    def sample(self, timeout: float | None = None) -> Any:
        """Take the bytes of the next batch, and the numbers."""
        sample = super().sample(timeout)
        return sample and ([leaf.reshape(-1) for leaf in sample.batch], sample.info)

    shutdown = Server.close
