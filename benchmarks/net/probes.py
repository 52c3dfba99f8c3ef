"""Physical bounds of the network: bare sockets between two processes.

The sender is ``python -m benchmarks.net.probes``, a child of the receiver. Both are Python loops
around system calls that move 256 KiB each, which take so long that the loops cost nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.child import Child, Message, answer_requests
from benchmarks.content import ContentError
from benchmarks.net.engine import Papers
from benchmarks.timing import Measure, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 256 << 10
# A prime number of them, so that a ring of another size shows each in other places every time.
BLOCKS = 3


@contextlib.contextmanager
def bare_stream(transport: str, *, ring_bytes: int, total_bytes: int) -> Iterator[Measure]:
    """Move bytes from a hot source through a socket into a ring: bytes per second."""
    blocks = _blocks()
    slots = -(-ring_bytes // BLOCK)
    ring = np.zeros((slots + (slots % BLOCKS == 0), BLOCK), np.uint8)
    places = [place.data for place in ring]
    count = max(len(ring), total_bytes // BLOCK)
    with _connected(transport) as (link, child):

        def measure() -> Measurement:
            child.tell({"blocks": count})
            targets = itertools.islice(itertools.cycle(places), count)
            for target in targets:
                filled = 0
                while filled < BLOCK:
                    filled += link.recv_into(target[filled:])
            finished = time.monotonic_ns()
            started = child.hear()["started"]
            for number in range(count - len(ring), count):
                if not np.array_equal(ring[number % len(ring)], blocks[number % BLOCKS]):
                    raise ContentError(f"block {number} of a bare stream")
            return Measurement(count * BLOCK / (finished - started) * 1e9)

        yield measure


@contextlib.contextmanager
def bare_messages(transport: str, *, messages: int, pause: float) -> Iterator[Measure]:
    """Send the time through a socket to a process that waits for it: µs, p99 and median."""
    with _connected(transport) as (link, child):

        def measure() -> Measurement:
            child.tell({"messages": messages, "pause": pause})
            delays = []
            for _ in range(messages):
                stamp = link.recv(8)
                delays.append((time.monotonic_ns() - struct.unpack("q", stamp)[0]) / 1e3)
            child.hear()
            median, p99 = np.percentile(delays, [50, 99])
            return Measurement(float(p99), {"p50_us": float(median)})

        yield measure


@contextlib.contextmanager
def converted(
    probe: Callable[[], contextlib.AbstractContextManager[Measure]],
    convert: Callable[[float], float],
) -> Iterator[Measure]:
    """Give the value of a probe in another unit."""
    with probe() as measure:
        yield lambda: Measurement(convert(measure().value))


@contextlib.contextmanager
def _connected(transport: str) -> Iterator[tuple[socket.socket, Child]]:
    """Connect with a child over loopback TCP, with or without TLS, or over a Unix socket."""
    with contextlib.ExitStack() as stack:
        family = socket.AF_UNIX if transport == "unix" else socket.AF_INET
        listener = stack.enter_context(socket.socket(family))
        if transport != "unix":
            listener.bind(("127.0.0.1", 0))
            address = str(listener.getsockname()[1])
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            address = str(Path(folder) / "bare.sock")
            listener.bind(address)
        listener.listen()
        context = None
        if transport == "tls":
            papers = stack.enter_context(contextlib.closing(Papers()))
            address += f"#{papers.authority}"
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(papers.certificate)
        child = stack.enter_context(
            Child([sys.executable, "-m", "benchmarks.net.probes", transport, address])
        )
        listener.settimeout(30)
        link = listener.accept()[0]
        if transport != "unix":
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            link = context.wrap_socket(link, server_side=True)
        stack.enter_context(link)
        yield link, child


def _blocks() -> list[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    generator = np.random.default_rng(20)
    return [generator.integers(0, 256, BLOCK, np.uint8) for _ in range(BLOCKS)]


def send(transport: str, address: str) -> None:
    """Send what the parent asks for: the child's end."""
    with _dialled(transport, address) as link:
        blocks = [block.data for block in _blocks()]

        def answer(request: Message) -> Message:
            started = time.monotonic_ns()
            if "blocks" in request:
                for block in itertools.islice(itertools.cycle(blocks), request["blocks"]):
                    link.sendall(block)
            else:
                for _ in range(request["messages"]):
                    time.sleep(request["pause"])
                    link.sendall(struct.pack("q", time.monotonic_ns()))
            return {"started": started}

        answer_requests(answer)


def _dialled(transport: str, address: str) -> socket.socket:
    if transport == "unix":
        link = socket.socket(socket.AF_UNIX)
        link.connect(address)
        return link
    port, _, authority = address.partition("#")
    link = socket.create_connection(("127.0.0.1", int(port)))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if transport == "tls":
        context = ssl.create_default_context(cafile=authority)
        link = context.wrap_socket(link, server_hostname="localhost")
    return link


if __name__ == "__main__":
    send(*sys.argv[1:])
