"""InstaDeep's echo (`id-echo`) as an engine, in process and over TCP.

Its batches are views that the next `sample` invalidates. The workloads keep no batch
longer than that, so they suit both sides.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.net.engine import Learner, Sender
from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.engine import Stream
    from benchmarks.payload import Tree


class _Batch(NamedTuple):
    data: Any


class _Stream:
    """The peer's server under the names of the workloads."""

    def __init__(self, server: Any) -> None:
        self.add = server.submit
        self.close = server.close
        self._sample = server.sample

    def sample(self) -> _Batch:
        """Wait for a whole batch."""
        return _Batch(self._sample().batch)


class IdEcho:
    """The peer's server without a transport, which needs no start."""

    name = "id-echo"

    def open(self, example: Tree, *, batch_size: int, num_buffers: int) -> Stream:
        """Open an in-process server with the same ring."""
        # Only the peer's own environment has this package.
        echo = importlib.import_module("echo")
        return _Stream(echo.Server(example, batch_size=batch_size, num_buffers=num_buffers))

    def extend(self, _stream: Stream) -> Callable[[Tree], Any]:
        """Refuse: it takes one sample a call."""
        raise UnavailableError("id-echo has no call that submits many samples")

    def empty_call(self) -> Callable[[Tree], Any]:
        """Refuse: it exports no empty function."""
        raise UnavailableError("id-echo has no empty native call")

    def listen(
        self,
        example: Tree,
        *,
        transport: str,
        batch_size: int,
        num_buffers: int,
    ) -> Learner:
        """Open a server at a free port with the same ring, else with its own defaults."""
        echo = importlib.import_module("echo")
        server = echo.Server(
            example,
            batch_size=batch_size,
            num_buffers=num_buffers,
            transport=echo.TcpTransport(port=0),
        )
        server.start()
        return Learner(f"tcp://127.0.0.1:{server.port}", _Stream(server).sample, server.close)

    def connect(self, address: str, example: Tree) -> Sender:
        """Connect with its defaults."""
        echo = importlib.import_module("echo")
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        client = echo.TcpClient(host, int(port), example)
        return Sender(client.send, None, client.wait, client.close)


ENGINE = IdEcho()
