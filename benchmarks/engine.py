"""What a workload needs of a system that moves samples, and Echoic as such a system.

The workloads are written once against this small interface. A peer runs the very same
code in its own environment (`benchmarks.peers`), so both sides do identical work.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.net.engine import Learner, Papers, Sender
from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Tree


class Stream(Protocol):
    """A server with one stream, used in process."""

    def add(self, x: Tree, /) -> Any:
        """Store one sample, waiting while the ring is full."""
        ...

    def sample(self) -> Any:
        """Wait for a whole batch; its tree is the attribute ``data`` of the result."""
        ...

    def close(self) -> Any:
        """End the stream."""
        ...


class Engine(Protocol):
    """Opens streams."""

    @property
    def name(self) -> str:
        """How the engine is called in the results."""
        ...

    def open(self, example: Tree, *, batch_size: int, num_buffers: int) -> Stream:
        """Open a stream whose ring holds ``num_buffers`` batches."""
        ...

    def extend(self, stream: Stream) -> Callable[[Tree], Any]:
        """Return the call that stores many samples at once.

        Raises:
            UnavailableError: the engine has no such call.
        """
        ...

    def empty_call(self) -> Callable[[Tree], Any]:
        """Return a native function that takes the tree and does nothing.

        Raises:
            UnavailableError: the engine has no such function.
        """
        ...


class Echoic:
    """The project itself."""

    name = "echoic"

    def open(self, example: Tree, *, batch_size: int, num_buffers: int) -> Stream:
        """Open a stream of this process."""
        # Imported here: a peer's environment runs the workloads without Echoic.
        import echoic

        capacity = num_buffers * batch_size
        stream: Stream = echoic.Stream(example, batch_size=batch_size, capacity=capacity)
        return stream

    def extend(self, stream: Stream) -> Callable[[Tree], Any]:
        """Return the stream's own method."""
        method: Callable[[Tree], Any] = stream.extend  # type: ignore[attr-defined]
        return method

    def empty_call(self) -> Callable[[Tree], Any]:
        """Return the empty function that the native module offers for this purpose."""
        try:
            from echoic._native import empty_call
        except ImportError as error:
            raise UnavailableError(f"echoic._native.empty_call is missing: {error}") from error
        function: Callable[[Tree], Any] = empty_call
        return function

    def listen(
        self, example: Tree, *, transport: str, batch_size: int, num_buffers: int
    ) -> Learner:
        """Open a server with one listener, at an address of its own."""
        import echoic

        name = f"echoic-bench-{os.getpid()}-{next(_numbers)}"
        if transport == "tcp":
            address = "tcp://127.0.0.1:0"
        elif transport == "tls":
            return self._listen_with_tls(example, batch_size, num_buffers)
        elif transport == "unix":
            address = f"unix://{tempfile.gettempdir()}/{name}.sock"
        else:
            address = f"shm://{name}"
        stream = echoic.Stream(example, batch_size=batch_size, capacity=num_buffers * batch_size)
        server = echoic.Server(stream, listen=address).start()
        return Learner(server.address, stream.sample, server.close)

    def connect(self, address: str, example: Tree) -> Sender:
        """Connect with the defaults."""
        import echoic

        address, _, authority = address.partition("#")
        client = echoic.connect(address, tls=echoic.Tls(ca=authority or None)).stream(example)
        return Sender(client.add, client.extend, client.flush, client.close)

    def _listen_with_tls(self, example: Tree, batch_size: int, num_buffers: int) -> Learner:
        """Open a listener with a certificate; its address also tells who vouches for that."""
        import echoic

        papers = Papers()
        tls = echoic.Tls(certificate=papers.certificate, key=papers.certificate)
        stream = echoic.Stream(example, batch_size=batch_size, capacity=num_buffers * batch_size)
        server = echoic.Server(stream, listen="tls://localhost:0", tls=tls).start()

        def close() -> None:
            server.close()
            papers.close()

        return Learner(f"{server.address}#{papers.authority}", stream.sample, close)


ENGINE = Echoic()

_numbers = itertools.count()
