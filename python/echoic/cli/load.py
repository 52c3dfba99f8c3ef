"""Put load on a server: processes that send random samples as fast as it takes them.

`run` starts the processes, lets them begin together and collects their results. Each has its own
client. A process that fails stops the others.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import echoic
from echoic.cli.spec import Field, mirror, numpy_dtype
from echoic.cli.text import why
from echoic.workers import Supervisor, Worker

if TYPE_CHECKING:
    from echoic.remote_stream import RemoteStream
    from echoic.workers import Connection

__all__ = ["Load", "LoadError", "Result", "random_leaf", "run"]

# Seconds between two measured flushes of a client. Each empties its pipeline, so they are rare.
FLUSH_EVERY = 0.1
# Seconds between two checks for messages of the clients.
LOOK_EVERY = 0.05
# Seconds in which the processes must start and connect, and further seconds for each of them.
STARTING = 60.0
STARTING_EACH = 1.0
# Samples are made beforehand, since making them takes longer than sending them: at most this many,
# and this many bytes.
POOL = 64
POOL_BYTES = 16 << 20


class LoadError(Exception):
    """A client failed; the message says which and why."""


@dataclass(frozen=True)
class Load:
    """What to send."""

    address: str  # The server's.
    spec: tuple[Field, ...]  # The fields of a sample, in the server's order.
    options: Mapping[str, Any]  # Further options of `echoic.connect`.
    seconds: float  # How long to send.
    clients: int = 1  # The number of processes.
    batch: int = 1  # Samples per call; 1 for `add`, more for `extend`.
    rate: float | None = None  # Samples per second of all clients; `None`: as many as it takes.
    timeout: float = 10.0  # Seconds without progress after which a client has failed.

    @property
    def nbytes(self) -> int:
        """The bytes of a sample."""
        return sum(field.nbytes for field in self.spec)

    @property
    def starting(self) -> float:
        """Seconds that the processes have to start and connect."""
        return STARTING + STARTING_EACH * self.clients


@dataclass(frozen=True)
class Result:
    """What one client measured."""

    samples: int  # Sent, and acknowledged by the server.
    seconds: float  # From the common start to the acknowledgement of the last sample.
    cpu: float  # Seconds of processor time, of all threads.
    flushes: list[float]  # Seconds that each flush took.
    stats: dict[str, float]  # The client's counts.


def run(load: Load, watch: Callable[[int], None]) -> list[Result]:
    """Put the load on the server.

    Args:
        load: What to send.
        watch: Called several times a second with the samples that all clients have sent.

    Raises:
        LoadError: If a client failed; all have ended.
        KeyboardInterrupt: If interrupted; all have ended.
    """
    clients = Supervisor(lambda i, _: Worker(work, load, i, name=f"client {i}"), load.clients)
    try:
        clients.start()
        return gather(load, clients.members, watch)
    finally:
        clients.stop()


def gather(load: Load, clients: list[Worker], watch: Callable[[int], None]) -> list[Result]:
    """Start all clients together when each has connected, and wait for their results."""
    deadline = time.monotonic() + load.starting
    ready: set[int] = set()
    counts = [0] * len(clients)
    results: dict[int, Result] = {}
    while len(results) < len(clients):
        for i, client in enumerate(clients):
            alive = client.alive
            for message in client.messages():
                if isinstance(message, Result):
                    results[i] = message
                elif isinstance(message, int):
                    counts[i] = message
                    ready.add(i)
                    if len(ready) == len(clients) and message == 0:
                        for one in clients:
                            one.send("go")
                else:
                    raise LoadError(f"client {i}: {message}")
            if not alive and i not in results:
                raise LoadError(f"client {i}: its process {client.ending()}")
        if len(ready) < len(clients) and time.monotonic() > deadline:
            raise LoadError("the clients took too long to start")
        watch(sum(counts))
        time.sleep(LOOK_EVERY)
    return list(results.values())


def work(connection: "Connection", load: Load, index: int) -> None:
    """Connect, wait for the other clients, send, and report; run by each process."""
    try:
        connection.send(send(connection, load, index))
    except (echoic.EchoicError, OSError, MemoryError, LoadError) as error:
        connection.send(why(error))


def send(connection: "Connection", load: Load, index: int) -> Result:
    """Send for the given time, and return the result."""
    pool = make_pool(load, np.random.default_rng(index))
    example = mirror((field, field.zeros()) for field in load.spec)
    # Not in a `with` block, which would wait forever for a server that takes nothing.
    there = echoic.connect(
        load.address, timeout=load.timeout, reconnect=load.timeout, **load.options
    )
    client = cast("RemoteStream", there.stream(example))
    connection.send(0)
    connection.recv()
    cpu = time.process_time()
    begin = time.perf_counter()
    samples, flushes = pump(connection, load, client, pool)
    client.flush(load.timeout)
    seconds = time.perf_counter() - begin
    cpu = time.process_time() - cpu
    stats = client.stats()
    client.close(load.timeout)
    if stats.samples_acked != samples:
        raise LoadError(f"sent {samples} samples, and {stats.samples_acked} were stored")
    return Result(samples, seconds, cpu, flushes, stats.as_dict())


def pump(
    connection: "Connection", load: Load, client: Any, pool: list[Any]
) -> tuple[int, list[float]]:
    """Send until the time is over; return how many samples, and how long flushes took."""
    call = client.add if load.batch == 1 else client.extend
    rate = load.rate / load.clients if load.rate else None
    flushes: list[float] = []
    sent = 0
    begin = time.perf_counter()
    next_flush = begin + FLUSH_EVERY
    while (now := time.perf_counter()) < begin + load.seconds:
        calls = len(pool)
        if rate is not None:
            due = int((now - begin) * rate) - sent
            calls = min(due // load.batch, calls)
            if calls < 1:
                time.sleep(min((load.batch - due) / rate, FLUSH_EVERY))
                continue
        for samples in pool[:calls]:
            call(samples, timeout=load.timeout)
        sent += calls * load.batch
        # Right after a send, so that a flush has something to wait for at any rate.
        if now >= next_flush:
            since = time.perf_counter()
            client.flush(load.timeout)
            flushes.append(time.perf_counter() - since)
            next_flush = since + FLUSH_EVERY
            connection.send(sent)
    return sent, flushes


def make_pool(load: Load, rng: np.random.Generator) -> list[Any]:
    """Make different arguments for the calls, to be sent in turn."""
    length = max(1, min(POOL, POOL_BYTES // max(load.nbytes * load.batch, 1)))
    axis = () if load.batch == 1 else (load.batch,)
    return [
        mirror((field, random_leaf(field, axis, rng)) for field in load.spec) for _ in range(length)
    ]


def random_leaf(
    field: Field, axis: tuple[int, ...], rng: np.random.Generator
) -> "np.ndarray[Any, Any]":
    """Make random values of a leaf, with further axes in front."""
    dtype = numpy_dtype(field.dtype)
    shape = (*axis, *field.shape)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))
    if dtype.kind == "b":
        return np.asarray(rng.integers(2, size=shape), dtype)
    if dtype.kind == "S":
        letters = rng.integers(ord("a"), ord("z"), (*shape, dtype.itemsize), np.uint8)
        return letters.view(dtype).reshape(shape)
    if dtype.kind == "c":
        return np.asarray(rng.random(shape) + 1j * rng.random(shape), dtype)
    return np.asarray(rng.random(shape), dtype)
