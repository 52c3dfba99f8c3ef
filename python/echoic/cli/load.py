"""Load on a server: processes that send random samples as fast as it takes them.

`run` starts the processes, lets them begin together and gathers what each measured. Every one has
its own client. A process that fails stops the others; so does a call of `Board.stop`.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from threading import BrokenBarrierError
from typing import Any

import numpy as np

import echoic
from echoic.cli.spec import Field, mirror, numpy_dtype
from echoic.cli.text import why

__all__ = ["Load", "LoadError", "Result", "random_leaf", "run"]

# Between two measured flushes of a client. Each lets its pipeline run empty, so they are rare.
FLUSH_EVERY = 0.1
# How long the processes may take to start and connect, and how much longer for each of them.
STARTING = 60.0
STARTING_EACH = 1.0
# Samples are made beforehand, since making them takes longer than sending them: so many, if they
# stay below so many bytes.
POOL = 64
POOL_BYTES = 16 << 20


class LoadError(Exception):
    """A client failed; the message says which and why."""


@dataclass(frozen=True)
class Load:
    """What to send.

    Attributes:
        address: Where to.
        spec: What samples look like, in the server's order.
        options: Further options of `echoic.connect`.
        seconds: For how long.
        clients: From how many processes.
        batch: Samples per call; 1 for `add`, more for `extend`.
        rate: Samples per second of all clients together; `None` for as many as the server takes.
        timeout: Seconds without progress after which a client has failed.
    """

    address: str
    spec: tuple[Field, ...]
    options: Mapping[str, Any]
    seconds: float
    clients: int = 1
    batch: int = 1
    rate: float | None = None
    timeout: float = 10.0

    @property
    def starting(self) -> float:
        """Seconds that the processes have to start and connect."""
        return STARTING + STARTING_EACH * self.clients


@dataclass(frozen=True)
class Result:
    """What one client measured.

    Attributes:
        samples: Sent, and acknowledged by the server.
        seconds: From the common start to the acknowledgement of the last sample.
        cpu: Seconds of processor time, of all threads.
        flushes: Seconds that each flush took.
        stats: What the client counted.
    """

    samples: int
    seconds: float
    cpu: float
    flushes: list[float]
    stats: dict[str, float]


class Board:
    """Numbers that all processes see: samples sent by each client, and whether to stop.

    Each number has one writer, and a glance costs less than sending a sample.
    """

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def count(self, index: int, samples: int) -> None:
        """Say how many samples a client has sent."""
        self.numbers[index] = samples

    @property
    def samples(self) -> int:
        """Samples sent by all."""
        return int(sum(self.numbers[:-1]))

    def stop(self) -> None:
        """Ask all clients to end."""
        self.numbers[-1] = 1

    @property
    def stopped(self) -> bool:
        """Whether they were asked."""
        return bool(self.numbers[-1])


def run(load: Load, watch: Callable[[Board], None]) -> list[Result]:
    """Put the load on the server.

    Args:
        load: What to send.
        watch: Called several times a second while the clients send.

    Raises:
        LoadError: A client failed; all have ended.
        KeyboardInterrupt: All have ended.
    """
    context = get_context("spawn")
    board = Board(context.RawArray("Q", load.clients + 1))
    start = context.Barrier(load.clients)
    with ExitStack() as stack:
        crew = []
        for index in range(load.clients):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=work,
                args=(load, index, board.numbers, start, theirs),
                name=f"echoic-bench-{index}",
                daemon=True,
            )
            process.start()
            # Closed last: a process that still reports when it is to end must have a reader.
            stack.enter_context(ours)
            stack.callback(process.join)
            stack.callback(process.terminate)
            # Now only the process has the writing end, and its death ends the pipe.
            theirs.close()
            crew.append((process, ours))
        try:
            return gather(crew, board, watch)
        finally:
            board.stop()
            start.abort()


def gather(
    crew: list[tuple[Any, "Connection[Any, Any]"]], board: Board, watch: Callable[[Board], None]
) -> list[Result]:
    """Wait for all results."""
    waiting: dict[Any, int] = {pipe: index for index, (_, pipe) in enumerate(crew)}
    results: list[Result] = []
    while waiting:
        for pipe in wait(list(waiting), timeout=0.1):
            index = waiting.pop(pipe)
            try:
                outcome = crew[index][1].recv()
            except EOFError:
                process = crew[index][0]
                process.join()
                outcome = f"its process ended with status {process.exitcode}"
            if isinstance(outcome, Result):
                results.append(outcome)
            elif outcome is not None:
                raise LoadError(f"client {index}: {outcome}")
        watch(board)
    if len(results) < len(crew):
        raise LoadError("the clients took too long to start")
    return results


def work(load: Load, index: int, numbers: Any, start: Any, outcome: "Connection[Any, Any]") -> None:
    """What a process does: connects, waits for the others, sends, reports."""
    # Ctrl-C reaches every process of the terminal; the parent tells this one what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome.send(send(load, index, Board(numbers), start))
    except BrokenBarrierError:
        # Another one failed, and says why.
        outcome.send(None)
    except (echoic.EchoicError, OSError, MemoryError, LoadError) as error:
        outcome.send(why(error))
        start.abort()


def send(load: Load, index: int, board: Board, start: Any) -> Result:
    """Send for as long as is wanted."""
    pool = make_pool(load, np.random.default_rng(index))
    example = mirror((field, field.zeros()) for field in load.spec)
    patience = {"connect_timeout": load.timeout, "deadline": load.timeout}
    # Not in a `with` block, which would wait for ever for a server that takes nothing.
    client = echoic.connect(load.address, example, **patience, **load.options)
    start.wait(load.starting)
    cpu = time.process_time()
    begin = time.perf_counter()
    flushes = pump(load, index, board, client, pool)
    client.flush(load.timeout)
    seconds = time.perf_counter() - begin
    cpu = time.process_time() - cpu
    stats = client.stats()
    client.close(load.timeout)
    samples = int(board.numbers[index])
    if stats["samples_acked"] != samples:
        raise LoadError(f"sent {samples} samples, and {stats['samples_acked']:.0f} were stored")
    return Result(samples, seconds, cpu, flushes, stats)


def pump(load: Load, index: int, board: Board, client: Any, pool: list[Any]) -> list[float]:
    """Send until the time is over; returns how long flushes took."""
    call = client.add if load.batch == 1 else client.extend
    rate = load.rate / load.clients if load.rate else None
    flushes: list[float] = []
    sent = 0
    begin = time.perf_counter()
    next_flush = begin + FLUSH_EVERY
    while not board.stopped:
        now = time.perf_counter()
        if now >= begin + load.seconds:
            break
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
        board.count(index, sent)
        # Right after a send, so that there is something to wait for at any rate.
        if now >= next_flush:
            since = time.perf_counter()
            client.flush(load.timeout)
            flushes.append(time.perf_counter() - since)
            next_flush = since + FLUSH_EVERY
    return flushes


def make_pool(load: Load, rng: np.random.Generator) -> list[Any]:
    """Different arguments for the calls, to be sent in turn."""
    nbytes = sum(field.nbytes for field in load.spec) * load.batch
    length = max(1, min(POOL, POOL_BYTES // max(nbytes, 1)))
    axis = () if load.batch == 1 else (load.batch,)
    return [
        mirror((field, random_leaf(field, axis, rng)) for field in load.spec) for _ in range(length)
    ]


def random_leaf(
    field: Field, axis: tuple[int, ...], rng: np.random.Generator
) -> "np.ndarray[Any, Any]":
    """Random values of a leaf, with further axes in front."""
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
