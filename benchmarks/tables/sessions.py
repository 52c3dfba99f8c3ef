"""The sessions of the suite, on the client's side.

A session runs in a process of its own, which is the client's. The server runs in another, or, in
the sessions that are ``local``, in the same.

# What is timed

How much a repeat does follows from the rate of the one before, so that slow systems take no longer
than fast ones. Insertions run from before the first call until the last item is in the table.
Samples count when the client has the batch in hand. Off the clock, batches are checked whole,
before samples are timed and after anything else is; on the clock, the number of rows of every batch
of a client is, and now and then the content of a whole one.

The processor time is that of whole processes, this one's with the checks in it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.content import ContentError
from benchmarks.tables.draws import Draws
from benchmarks.tables.items import Items
from benchmarks.tables.server import ServerProcess
from benchmarks.timing import Measurement, UnavailableError
from benchmarks.usage import cpu_seconds, peak_mib, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from benchmarks.payload import Array, Tree
    from benchmarks.tables.engine import Drawn, Plan, TableClient, TableEngine
    from benchmarks.timing import Measure

# How many samples a producer sends in turn: a prime number, as in `benchmarks.payload`.
POOL = 61
# Insertions of a second are first taken to be so many; the warm-up corrects it.
_FIRST_RATE = 1000.0
# Rows that are stored by one call of `fill`.
_BLOCK = 4096
_CHECKED_BATCHES = 4
_CHECKED_SAMPLES = 256
# Steps that wait together until they are in a table with a limiter.
_APPENDED = 100


@contextlib.contextmanager
def insertions(
    engine: TableEngine,
    *,
    plan: Plan,
    how: Literal["insert", "append"],
    flush_every: int | None,
    seconds: float,
) -> Iterator[Measure]:
    """One client stores items one by one: items per second.

    ``flush_every`` is how many calls wait together until they are in the table; None waits at the
    end only.
    """
    items = Items(plan.kind)
    trees = itertools.cycle(items.pool(POOL).entries)
    rate, total = _FIRST_RATE, 0
    with _connected(engine, plan) as (server, client):
        put = _put(client, how)

        def measure() -> Measurement:
            nonlocal rate, total
            block = flush_every or max(1, round(rate * seconds))
            blocks = max(1, round(rate * seconds / block))
            usage = _Usage(server)
            start = time.perf_counter_ns()
            for _ in range(blocks):
                for tree in itertools.islice(trees, block):
                    put(tree)
                client.flush()
            rate = blocks * block / (time.perf_counter_ns() - start) * 1e9
            used = usage.per_million(blocks * block)
            total += blocks * block
            _check_stored(client, items, min(total, plan.capacity))
            return Measurement(rate, used)

        yield measure


@contextlib.contextmanager
def samples(
    engine: TableEngine,
    *,
    plan: Plan,
    batch: int,
    ahead: bool,
    check_every: int,
    seconds: float,
) -> Iterator[Measure]:
    """One client samples a full table: items per second; ``ahead`` lets it prefetch batches."""
    items = Items(plan.kind)
    with _connected(engine, plan) as (server, client):
        _fill(client, items, plan.capacity)
        draws = Draws(items, plan.capacity)
        take: Callable[[], Drawn] = partial(client.sample, batch)
        if ahead:
            take = partial(next, client.batches(batch))
        rate = _FIRST_RATE

        def measure() -> Measurement:
            nonlocal rate
            for _ in range(_CHECKED_BATCHES):
                draws.check(take(), batch)
            count = max(_CHECKED_BATCHES, round(rate * seconds / batch))
            usage = _Usage(server)
            start = time.perf_counter_ns()
            for index in range(count):
                drawn = take()
                if len(drawn.keys) != batch:
                    raise ContentError(f"expected {batch} rows, got {len(drawn.keys)}")
                if index % check_every == 0:
                    draws.check(drawn, batch)
            rate = count * batch / (time.perf_counter_ns() - start) * 1e9
            used = usage.per_million(count * batch)
            draws.check_distribution()
            return Measurement(rate, used)

        yield measure


@contextlib.contextmanager
def _closed_on_error(appender: Any) -> Iterator[None]:
    """Close it when something fails: nobody samples any more, so it would wait for ever."""
    try:
        yield
    except BaseException:
        appender.close()
        raise


@contextlib.contextmanager
def mixed(engine: TableEngine, *, plan: Plan, batch: int, seconds: float) -> Iterator[Measure]:
    """One thread appends, another takes batches that are fetched ahead: samples per second.

    Each has a client of its own, and the table's limiter lets neither run ahead. A repeat ends with
    as many samples for each item as are due, so that nobody waits for ever.
    """
    items = Items(plan.kind)
    trees = itertools.cycle(items.pool(POOL).entries)
    ratio, least, ahead = plan.limits
    rate, begun, taken = _FIRST_RATE, 0, 0
    with _connected(engine, plan) as (server, client):
        appender = engine.dial(server.address, plan)
        batches = client.batches(batch)

        def append(count: int) -> None:
            nonlocal begun
            for _ in range(-(-count // _APPENDED)):
                block = min(count, _APPENDED)
                begun += block
                for tree in itertools.islice(trees, block):
                    appender.append(tree)
                appender.flush()
                count -= block

        def take(count: int) -> None:
            nonlocal taken
            for index in range(count):
                drawn = next(batches)
                taken += batch
                if taken > (begun - least) * ratio + ahead:
                    raise ContentError(f"{taken} samples of {begun} items, {ratio} of each are due")
                if len(drawn.keys) != batch:
                    raise ContentError(f"expected {batch} rows, got {len(drawn.keys)}")
                if index % 32 == 0:
                    items.check(drawn.data, batch)

        def measure() -> Measurement:
            nonlocal rate, taken
            count = max(_CHECKED_BATCHES, round(rate * seconds / batch))
            usage = _Usage(server)
            start = time.perf_counter_ns()
            with ThreadPoolExecutor(1) as threads, _closed_on_error(appender):
                appending = threads.submit(append, round(count * batch / ratio))
                take(count)
                appending.result()
            rate = count * batch / (time.perf_counter_ns() - start) * 1e9
            used = usage.per_million(count * batch)
            # The check takes samples too, for which as many items are due.
            append(round(_CHECKED_SAMPLES / ratio))
            _check_stored(client, items, min(begun, plan.capacity))
            taken += _CHECKED_SAMPLES
            return Measurement(rate, used)

        with contextlib.closing(appender):
            append(least)
            yield measure


@contextlib.contextmanager
def updates(
    engine: TableEngine,
    *,
    plan: Plan,
    how: Literal["update", "post"],
    keys_per_call: int,
    seconds: float,
) -> Iterator[Measure]:
    """One client changes priorities, some keys a call, until all count: updates per second."""
    items = Items(plan.kind)
    generator = np.random.default_rng(20)
    with _connected(engine, plan) as (server, client):
        _fill(client, items, plan.capacity)
        keys, numbers = _some_keys(client, items, plan.capacity // 2, keys_per_call)
        priorities = np.ones(plan.capacity)
        draws = Draws(items, plan.capacity, priorities)
        rate = _FIRST_RATE

        def measure() -> Measurement:
            nonlocal rate
            values = generator.uniform(0.5, 1.5, keys.shape)
            pairs = itertools.cycle(list(zip(keys, values, strict=True)))
            # At least once round, so that all values are set.
            calls = max(len(keys), round(rate * seconds / keys_per_call))
            update = client.update if how == "update" else client.post
            usage = _Usage(server)
            start = time.perf_counter_ns()
            for block, value in itertools.islice(pairs, calls):
                update(block, value)
            client.flush()
            rate = calls * keys_per_call / (time.perf_counter_ns() - start) * 1e9
            used = usage.per_million(calls * keys_per_call)
            priorities[numbers] = values
            for _ in range(_CHECKED_BATCHES):
                draws.check(client.sample(256), 256)
            return Measurement(rate, used)

        yield measure


@contextlib.contextmanager
def memory(
    engine: TableEngine, *, plan: Plan, how: Literal["insert", "append"], rows: int
) -> Iterator[Measure]:
    """Fill a new server one by one: bytes by which its process grows for each item."""
    items = Items(plan.kind)

    def measure() -> Measurement:
        trees = itertools.cycle(items.pool(POOL).entries)
        warm = rows // 20
        with _connected(engine, plan) as (server, client):
            put = _put(client, how)
            sizes = []
            # What a server allocates once is not the items'.
            for count in (warm, rows):
                for index, tree in enumerate(itertools.islice(trees, count), 1):
                    put(tree)
                    if index % 100 == 0:
                        client.flush()
                client.flush()
                sizes.append(server.usage()["resident"])
            _check_stored(client, items, min(warm + rows, plan.capacity))
        return Measurement(
            (sizes[1] - sizes[0]) / rows, {"server_before_mib": sizes[0] / (1 << 20)}
        )

    yield measure


@contextlib.contextmanager
def memory_of_rows(engine: TableEngine, *, plan: Plan) -> Iterator[Measure]:
    """Fill a new table in the server's own process: bytes by which it grows for each item.

    Tables of earlier repeats are kept, so that none gets the memory of another.
    """
    items = Items(plan.kind)
    with contextlib.ExitStack() as stack:

        def measure() -> Measurement:
            # What the blocks need, and what the system allocates once.
            with _opened(engine, replace(plan, capacity=_BLOCK)) as client:
                _fill(client, items, _BLOCK)
            before = resident_bytes()
            client = stack.enter_context(_opened(engine, plan))
            _fill(client, items, plan.capacity)
            grown = resident_bytes() - before
            if grown <= 0:
                raise UnavailableError("the process did not grow: its memory was used again")
            Draws(items, plan.capacity).check(client.sample(256), 256)
            return Measurement(grown / plan.capacity, {"process_mib": before / (1 << 20)})

        yield measure


@contextlib.contextmanager
def local_inserts(
    engine: TableEngine, *, plan: Plan, rows: int, seconds: float
) -> Iterator[Measure]:
    """Insert blocks into a full table in the server's own process: items per second."""
    items = Items(plan.kind)
    blocks = itertools.cycle(
        [items.columns(np.arange(first, first + rows)) for first in range(0, POOL * rows, rows)]
    )
    with _opened(engine, plan) as client:
        _fill(client, items, plan.capacity)
        rate = _FIRST_RATE

        def measure() -> Measurement:
            nonlocal rate
            count = max(1, round(rate * seconds / rows))
            start = time.perf_counter_ns()
            for block in itertools.islice(blocks, count):
                client.fill(block)
            client.flush()
            rate = count * rows / (time.perf_counter_ns() - start) * 1e9
            drawn = client.sample(256)
            numbers = items.check(drawn.data, 256)
            if plan.capacity <= rows and len(np.unique(numbers // rows)) != 1:
                raise ContentError("items of several blocks in a table that holds one")
            return Measurement(rate)

        yield measure


@contextlib.contextmanager
def local_samples(
    engine: TableEngine, *, plan: Plan, batch: int, check_every: int, seconds: float
) -> Iterator[Measure]:
    """Sample a full table in the server's own process: µs a batch."""
    items = Items(plan.kind)
    with _opened(engine, plan) as client:
        _fill(client, items, plan.capacity)
        draws = Draws(items, plan.capacity)
        sample = client.sample
        rate = _FIRST_RATE

        def measure() -> Measurement:
            nonlocal rate
            for _ in range(_CHECKED_BATCHES):
                draws.check(sample(batch), batch)
            count, elapsed = round(rate * seconds), 0
            for first in range(0, count, check_every):
                block = min(check_every, count - first)
                start = time.perf_counter_ns()
                for _ in range(block):
                    drawn = sample(batch)
                elapsed += time.perf_counter_ns() - start
                draws.check(drawn, batch)
            rate = count / elapsed * 1e9
            draws.check_distribution()
            return Measurement(elapsed / count / 1e3)

        yield measure


@contextlib.contextmanager
def local_priorities(
    engine: TableEngine, *, plan: Plan, batch: int, seconds: float
) -> Iterator[Measure]:
    """Sample by priority and set the priorities of what came, in one process: µs for both."""
    items = Items(plan.kind)
    generator = np.random.default_rng(20)
    values = generator.uniform(0.5, 1.5, (POOL, batch))
    with _opened(engine, plan) as client:
        _fill(client, items, plan.capacity)
        priorities = np.ones(plan.capacity)
        draws = Draws(items, plan.capacity, priorities)
        sample, update = client.sample, client.update
        rate = _FIRST_RATE

        def measure() -> Measurement:
            nonlocal rate
            for _ in range(_CHECKED_BATCHES):
                draws.check(sample(batch), batch)
            count = max(POOL, round(rate * seconds))
            # Which items had their priorities changed, for the check afterwards. It costs as much
            # as a copy of the numbers does.
            log = np.empty((count, batch), np.int64)
            start = time.perf_counter_ns()
            for changed, value in zip(log, itertools.cycle(values), strict=False):
                drawn = sample(batch)
                update(drawn.keys, value)
                changed[:] = items.numbers(drawn.data)
            elapsed = time.perf_counter_ns() - start
            rate = count / elapsed * 1e9
            # An item that came twice in a batch keeps the last value, as in numpy.
            for changed, value in zip(log, itertools.cycle(values), strict=False):
                priorities[changed] = value
            for _ in range(_CHECKED_BATCHES):
                draws.check(sample(batch), batch)
            return Measurement(elapsed / count / 1e3)

        yield measure


class _Usage:
    """What both processes use from now on."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._before = server.usage()["cpu"], cpu_seconds()

    def per_million(self, count: int) -> dict[str, float]:
        """Return the processor time per million of what was done, and the peaks of memory."""
        client, server = cpu_seconds(), self._server.usage()
        return {
            "server_cpu_s_per_million": (server["cpu"] - self._before[0]) / count * 1e6,
            "client_cpu_s_per_million": (client - self._before[1]) / count * 1e6,
            "server_peak_mib": server["peak"],
            "client_peak_mib": peak_mib(),
        }


@contextlib.contextmanager
def _connected(engine: TableEngine, plan: Plan) -> Iterator[tuple[ServerProcess, TableClient]]:
    with ServerProcess(engine, plan) as server:
        client = engine.dial(server.address, plan)
        with contextlib.closing(client):
            yield server, client


@contextlib.contextmanager
def _opened(engine: TableEngine, plan: Plan) -> Iterator[TableClient]:
    with contextlib.closing(engine.serve(plan)) as server, contextlib.closing(server.client()) as c:
        yield c


def _put(client: TableClient, how: str) -> Callable[[Tree], Any]:
    """Return the call that stores a tree in one of the two ways."""
    if how == "append":
        return client.append
    insert = client.insert
    return lambda tree: insert(tree, 1.0)


def _fill(client: TableClient, items: Items, rows: int) -> None:
    """Store the items 0 to ``rows - 1``."""
    block = _BLOCK if items.nbytes < 1000 else 64
    for first in range(0, rows, block):
        client.fill(items.columns(np.arange(first, min(first + block, rows))))
    client.flush()


def _check_stored(client: TableClient, items: Items, size: int) -> None:
    """Check that a table has so many items of the pool, by a sample of them."""
    drawn = client.sample(_CHECKED_SAMPLES)
    sizes = np.unique(np.asarray(drawn.info.table_size))
    if not np.array_equal(sizes, [size]):
        raise ContentError(f"expected a table of {size} items, got {sizes}")
    numbers = items.check(drawn.data, _CHECKED_SAMPLES)
    if numbers.min() < 0 or numbers.max() >= POOL:
        raise ContentError(f"an item that was not sent: {numbers.min()} or {numbers.max()}")
    if len(np.unique(numbers)) < min(POOL, size) // 2:
        raise ContentError(f"{_CHECKED_SAMPLES} samples have only the items {np.unique(numbers)}")


def _some_keys(
    client: TableClient, items: Items, at_most: int, per_call: int
) -> tuple[Array, Array]:
    """Sample until there are keys for some calls: keys and items' numbers, a row for each call."""
    calls = min(31, at_most // per_call)
    known: dict[int, int] = {}
    batches = client.batches(256)
    while len(known) < calls * per_call:
        drawn = next(batches)
        numbers = items.check(drawn.data, 256)
        known.update(zip(np.asarray(drawn.keys).tolist(), numbers.tolist(), strict=True))
    # Keys are numbers of 64 bits without a sign, too large for the default.
    keys = np.fromiter(known.keys(), np.uint64, calls * per_call)
    numbers = np.fromiter(known.values(), np.int64, calls * per_call)
    return keys.reshape(calls, per_call), numbers.reshape(calls, per_call)
