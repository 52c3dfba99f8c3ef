"""The API of echo on Echoic's streams: programs run with only the import changed.

``import echoic.echo as echo``. A :class:`Server` here is a server and its one stream at once. What
differs from the original, and why, is in the guide "From echo".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import echoic
from echoic._links import link_options
from echoic._native import StreamStats as SampleInfo
from echoic._native import TrajectoryAccumulator
from echoic.errors import ClosedError
from echoic.errors import DisconnectedError as ConnectionClosedError
from echoic.remote_stream import RemoteStream
from echoic.transports import Listener, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from echoic import _native
    from echoic._native import Batch

__all__ = [
    "Client",
    "ConnectionClosedError",
    "Sample",
    "SampleInfo",
    "Server",
    "TcpClient",
    "TcpTransport",
    "TrajectoryAccumulator",
    "Transport",
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


@dataclass(frozen=True)
class TcpTransport:
    """Plain TCP.

    Args:
        port: Where to listen; 0 for any free port.
        host: Name or number of the interface. One that other machines can reach needs a ``token``.
        token: A secret that clients must have.
        insecure: Allow such an interface without a token.
        threads: Event loops that serve the connections.
    """

    port: int
    host: str = "127.0.0.1"
    token: str | bytes | None = field(default=None, kw_only=True, repr=False)
    insecure: bool = field(default=False, kw_only=True)
    threads: int | None = field(default=None, kw_only=True)

    def open(self, server: _native.Server) -> str:
        """Listen."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        listener = Listener(
            f"tcp://{host}:{self.port}",
            token=self.token,
            insecure=self.insecure,
            threads=self.threads,
        )
        return listener.open(server)


class Server(echoic.Server):
    """A stream of samples, handed out in batches of a fixed size.

    Args:
        example: A sample as all others will be.
        batch_size: Samples of a batch.
        transport: A :class:`TcpTransport` or address for other processes, or several; ``None`` for
            this process only.
        num_buffers: Batches that fit, at least 2.
        **options: Those of :class:`echoic.Server`.
    """

    _stream: echoic.Stream
    # The stream's native methods.
    submit: Callable[..., None]
    submit_batch: Callable[..., None]

    def __new__(
        cls,
        example: Any,
        batch_size: int,
        transport: str | Transport | Sequence[str | Transport] | None = None,
        num_buffers: int = 3,
        **options: Any,
    ) -> Self:
        """Allocate the memory."""
        capacity = num_buffers * batch_size
        stream = echoic.Stream(example, batch_size=batch_size, capacity=capacity)
        self = super().__new__(cls, stream, listen=transport, **options)
        self._stream = stream
        self.submit = stream.add
        self.submit_batch = stream.extend
        return self

    @property
    def port(self) -> int:
        """The port of the transport, once the server was started."""
        return int(self.address.rpartition(":")[2])

    @property
    def info(self) -> SampleInfo:
        """A snapshot of the numbers, without taking a batch."""
        return self._stream.stats()

    def sample(self, timeout: float | None = None) -> Sample | None:
        """Take the next batch; ``None`` if the server is closed and has no complete one."""
        try:
            return Sample(self._stream.sample(timeout))
        except ClosedError:
            return None

    def dataset_iter(self) -> Iterator[Sample]:
        """Yield batches until the server is closed and all complete ones were taken."""
        try:
            while True:
                # Not through a variable: this frame would keep the batch as well.
                yield Sample(self._stream.sample())
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
