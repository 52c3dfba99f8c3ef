"""InstaDeep's echo (`id-echo`) as an engine, in process.

Its batches are views that the next `sample` invalidates. The workloads keep no batch
longer than that, so they suit both sides.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from benchmarks.peers.worker import serve
from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.engine import Stream
    from benchmarks.payload import Tree


class IdEcho:
    """The peer's server without a transport, which needs no start."""

    name = "id-echo"

    def open(self, example: Tree, *, batch_size: int, num_buffers: int) -> Stream:
        """Open an in-process server with the same ring."""
        # Only the peer's own environment has this package.
        echo = importlib.import_module("echo")
        server: Stream = echo.Server(example, batch_size=batch_size, num_buffers=num_buffers)
        return server

    def submit_batch(self, _stream: Stream) -> Callable[[Tree], Any]:
        """Refuse: it takes one sample a call."""
        raise UnavailableError("id-echo has no call that submits many samples")

    def empty_call(self) -> Callable[[Tree], Any]:
        """Refuse: it exports no empty function."""
        raise UnavailableError("id-echo has no empty native call")


if __name__ == "__main__":
    serve(IdEcho())
