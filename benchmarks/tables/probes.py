"""Physical bounds of tables: bare gathers in memory, and bare round trips between two processes.

The process that replies is ``python -m benchmarks.tables.probes``, a child of the one that asks.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.child import Child
from benchmarks.content import ContentError
from benchmarks.timing import Measure, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.payload import Array
    from benchmarks.tables.items import Items

# More draws than a cache holds rows of, and a number that no batch size divides.
_DRAWS = 997


@contextlib.contextmanager
def gather(items: Items, *, rows: int, batch: int, seconds: float) -> Iterator[Measure]:
    """Gather random rows of a packed array into another: µs a batch.

    The indices are drawn ahead, and nothing but the rows moves. ``columns_us`` is the same from an
    array for each column, ``indices_us`` the time to draw the indices.
    """
    generator = np.random.default_rng(20)
    columns = items.columns(np.arange(rows))
    dtype = np.dtype([(name, c.dtype, c.shape[1:]) for name, c in columns.items()])
    packed = np.empty(rows, dtype)
    for name, column in columns.items():
        packed[name] = column
    # One opaque element a row, so that a row is one copy.
    sources, targets = packed.view(f"V{dtype.itemsize}"), np.empty(batch, f"V{dtype.itemsize}")
    pairs = [(c, np.empty((batch, *c.shape[1:]), c.dtype)) for c in columns.values()]
    draws = [generator.integers(0, rows, batch) for _ in range(_DRAWS)]

    def rowwise(index: Array) -> None:
        # The indices are in range; to clip them is how numpy is told not to look at them first.
        sources.take(index, out=targets, mode="clip")

    def columnwise(index: Array) -> None:
        for column, target in pairs:
            column.take(index, axis=0, out=target, mode="clip")

    def draw(_index: Array) -> None:
        generator.integers(0, rows, batch)

    def microseconds(call: Callable[[Array], None]) -> float:
        done, start = 0, time.perf_counter_ns()
        end = start + int(seconds * 1e9 / 3)
        while time.perf_counter_ns() < end:
            for index in draws[:100]:
                call(index)
            draws.append(draws.pop(0))
            done += 100
        return (time.perf_counter_ns() - start) / done / 1e3

    def measure() -> Measurement:
        value = microseconds(rowwise)
        extras = {"columns_us": microseconds(columnwise), "indices_us": microseconds(draw)}
        rowwise(draws[0])
        columnwise(draws[0])
        got = targets.view(dtype)
        items.check({name: got[name] for name in columns}, batch)
        items.check({name: pair[1] for name, pair in zip(columns, pairs, strict=True)}, batch)
        return Measurement(value, extras)

    yield measure


@contextlib.contextmanager
def payload_bytes(items: Items) -> Iterator[Measure]:
    """Tell the bytes of an item itself."""
    yield lambda: Measurement(float(items.nbytes))


@contextlib.contextmanager
def round_trips(*, request: int, reply: int, seconds: float, scale: float) -> Iterator[Measure]:
    """Ask a process over loopback TCP, one request at a time: trips per second times ``scale``."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = str(listener.getsockname()[1])
        sizes = [str(request), str(reply)]
        stack.enter_context(Child([sys.executable, "-m", "benchmarks.tables.probes", port, *sizes]))
        listener.settimeout(30)
        # Closed before the child is waited for, which ends when it is.
        link = stack.enter_context(listener.accept()[0])
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        question, answer = bytes(request), memoryview(bytearray(reply))
        asked = itertools.count(1)

        def measure() -> Measurement:
            trips, start = 0, time.perf_counter_ns()
            end = start + int(seconds * 1e9)
            while time.perf_counter_ns() < end:
                link.sendall(question)
                # The last byte counts the requests.
                if not _fill(link, answer) or answer[-1] != next(asked) % 256:
                    raise ContentError("a reply that is not to the request before it")
                trips += 1
            return Measurement(trips / (time.perf_counter_ns() - start) * 1e9 * scale)

        yield measure


def _fill(link: socket.socket, target: memoryview) -> bool:
    """Receive all of ``target``; False when the other end has closed."""
    filled = 0
    while filled < len(target):
        received = link.recv_into(target[filled:])
        if received == 0:
            return False
        filled += received
    return True


def reply(port: str, request: str, size: str) -> None:
    """Reply to every request with so many bytes: the child's end."""
    with socket.create_connection(("127.0.0.1", int(port))) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        question, answer = memoryview(bytearray(int(request))), bytearray(int(size))
        for count in itertools.count(1):
            if not _fill(link, question):
                return
            answer[-1] = count % 256
            link.sendall(answer)


if __name__ == "__main__":
    reply(*sys.argv[1:])
