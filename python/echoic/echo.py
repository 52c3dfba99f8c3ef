"""The API of echo on Echoic's streams: programs run with only the import changed.

``import echoic.echo as echo``. A :class:`Server` here is a server and its one stream at once. What
differs from the original, and why, is in the guide "From echo".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import echoic
from echoic._links import link_options
from echoic._native import StreamStats as SampleInfo
from echoic._native import TrajectoryAccumulator
from echoic.errors import ClosedError
from echoic.errors import DisconnectedError as ConnectionClosedError
from echoic.remote_stream import RemoteStream
from echoic.transports import ShmTransport, TcpTransport, TlsTransport, Transport, UnixTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from echoic._native import Batch

__all__ = [
    "Client",
    "ConnectionClosedError",
    "Sample",
    "SampleInfo",
    "Server",
    "ShmTransport",
    "TcpClient",
    "TcpTransport",
    "TlsTransport",
    "TrajectoryAccumulator",
    "Transport",
    "UnixTransport",
    "connect",
]


class Sample:
    """A batch of a stream."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Batch) -> None:
        """Show a batch under echo's names."""
        self._batch = batch

    @property
    def batch(self) -> Any:
        """A tree like the example, every leaf of shape ``(batch_size, *leaf.shape)``."""
        return self._batch.data

    @property
    def info(self) -> SampleInfo:
        """Numbers about the stream, as of the first time they are asked for."""
        info: SampleInfo = self._batch.info
        return info


class Server(echoic.Server):
    """A stream of samples, handed out in batches of a fixed size.

    Args:
        example: A sample as all others will be.
        batch_size: Samples of a batch.
        transport: How other processes connect, or several ways; ``None`` for this process only.
        num_buffers: Batches that fit, at least 2.
        **options: Those of :class:`echoic.Server`.
    """

    def __new__(
        cls,
        example: Any,
        batch_size: int,
        transport: Transport | Sequence[Transport] | None = None,
        num_buffers: int = 3,
        **options: Any,
    ) -> Self:
        """Allocate the memory."""
        capacity = num_buffers * batch_size
        return super().__new__(cls, example, batch_size, capacity, transport, **options)

    submit = echoic.Server.add
    submit_batch = echoic.Server.extend

    def sample(self, timeout: float | None = None) -> Sample | None:  # type: ignore[override]
        """Take the next batch; ``None`` if the server is closed and has no complete one."""
        try:
            return Sample(super().sample(timeout))
        except ClosedError:
            return None

    def dataset_iter(self) -> Iterator[Sample]:
        """Yield batches until the server is closed and all complete ones were taken."""
        try:
            while True:
                # Not through a variable: this frame would keep the batch as well.
                yield Sample(super().sample())
        except ClosedError:
            return


class Client(RemoteStream):
    """Sends samples to a server in another process.

    Args:
        address: As of :func:`echoic.connect`.
        example: A sample as all others will be, like the server's.
        **options: Those of :func:`echoic.connect`.
    """

    def __new__(cls, address: str, example: Any, **options: Any) -> Self:
        """Connect."""
        return super().__new__(cls, address, example, link_options(**options))

    send = RemoteStream.add
    send_batch = RemoteStream.extend
    wait = RemoteStream.flush


class TcpClient(Client):
    """A :class:`Client` of the server at ``host`` and ``port``.

    Args:
        host: Name or number of the server's host.
        port: Where the server listens.
        example: A sample as all others will be, like the server's.
        **options: Those of :class:`Client`.
    """

    def __new__(cls, host: str, port: int, example: Any, **options: Any) -> Self:
        """Connect."""
        host = f"[{host}]" if ":" in host else host
        return super().__new__(cls, f"tcp://{host}:{port}", example, **options)


def connect(address: str, example: Any, **options: Any) -> Client:
    """Connect to the stream of a server at any kind of address; see :class:`Client`."""
    return Client(address, example, **options)
