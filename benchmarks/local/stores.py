"""The sessions of buffers.

How much a repeat does follows from the rate of the one before. Nothing but the named calls is on
the clock; all rows of some batches are checked before and after, and that the draws are spread as
they should be.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.content import ContentError
from benchmarks.local.draws import Draws, PrioritizedDraws, checked
from benchmarks.local.items import Rows
from benchmarks.timing import Measurement, UnavailableError
from benchmarks.usage import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.local.engine import Engine, Plan, Store
    from benchmarks.timing import Measure

# How many transitions a producer pushes in turn: a prime number, as in `benchmarks.payload`.
POOL = 61
# Blocks that `extend` takes in turn.
BLOCKS = 7
# Per second, until the warm-up corrects it.
_FIRST_RATE = 100.0
_CHECKED_BATCHES = 16
# A peer refuses to draw more than it holds, which is little after the first pushes.
_CHECKED_ROWS = 32
# Six standard deviations of one uniform number from 0 to 1.
_SPREAD = 1.75
# Rows that are stored by one call while a buffer is filled.
_FILL = 4096
_FILL_IMAGES = 64


@contextlib.contextmanager
def pushes(engine: Engine, *, plan: Plan, seconds: float) -> Iterator[Measure]:
    """Push transitions one by one: µs each."""
    items = Rows(plan.kind)
    transitions = itertools.cycle(items.pushes(POOL))
    rate, total = _FIRST_RATE, 0
    with contextlib.closing(engine.store(plan)) as store:
        push = store.push

        def measure() -> Measurement:
            nonlocal rate, total
            count = max(POOL, round(rate * seconds))
            start = time.perf_counter_ns()
            for transition in itertools.islice(transitions, count):
                push(*transition)
            elapsed = time.perf_counter_ns() - start
            rate = count / elapsed * 1e9
            total += count
            _check_stored(store, items, min(total, plan.capacity), POOL)
            return Measurement(elapsed / count / 1e3)

        yield measure


@contextlib.contextmanager
def extensions(engine: Engine, *, plan: Plan, rows: int, seconds: float) -> Iterator[Measure]:
    """Store blocks of ``rows`` transitions, one call each: rows per second."""
    items = Rows(plan.kind)
    blocks = itertools.cycle(
        [items.columns(np.arange(first, first + rows)) for first in range(0, BLOCKS * rows, rows)]
    )
    rate, total = _FIRST_RATE, 0
    with contextlib.closing(engine.store(plan)) as store:
        extend = store.extend

        def measure() -> Measurement:
            nonlocal rate, total
            count = max(BLOCKS, round(rate * seconds / rows))
            start = time.perf_counter_ns()
            for block in itertools.islice(blocks, count):
                extend(block)
            rate = count * rows / (time.perf_counter_ns() - start) * 1e9
            total += count * rows
            _check_stored(store, items, min(total, plan.capacity), BLOCKS * rows)
            return Measurement(rate)

        yield measure


@contextlib.contextmanager
def samples(engine: Engine, *, plan: Plan, batch: int, seconds: float) -> Iterator[Measure]:
    """Draw batches from a full buffer: µs a batch."""
    items = Rows(plan.kind)
    with contextlib.closing(engine.store(plan)) as store:
        _fill(store, items, plan)
        draws, take = Draws(items, plan.capacity), store.draws(batch)
        rate = _FIRST_RATE

        def measure() -> Measurement:
            nonlocal rate
            for _ in range(_CHECKED_BATCHES):
                draws.check(store.columns(take()), batch)
            count = max(1, round(rate * seconds))
            start = time.perf_counter_ns()
            for _ in itertools.repeat(None, count):
                drawn = take()
            elapsed = time.perf_counter_ns() - start
            rate = count / elapsed * 1e9
            draws.check(store.columns(drawn), batch)
            draws.check_distribution()
            return Measurement(elapsed / count / 1e3)

        yield measure


@contextlib.contextmanager
def sequences(engine: Engine, *, plan: Plan, batch: int, seconds: float) -> Iterator[Measure]:
    """Draw windows of consecutive steps from a full buffer: µs a batch."""
    items, rows = Rows(plan.kind), batch * plan.length
    with contextlib.closing(engine.store(plan)) as store:
        _fill(store, items, plan)
        take = store.draws(batch)
        rate = _FIRST_RATE

        def check(drawn: Any) -> Any:
            columns = {}
            for name, leaf in items.example.items():
                column = np.asarray(store.columns(drawn)[name])
                if column.size != rows * leaf.size:
                    raise ContentError(f"{name}: {column.shape} is not of {batch} windows")
                columns[name] = column.reshape(rows, *leaf.shape)
            numbers = checked(items, columns, rows, plan.capacity).reshape(batch, plan.length)
            if (np.diff(numbers) != 1).any():
                raise ContentError(f"windows with gaps: {numbers[0]}")
            return numbers[:, 0]

        def measure() -> Measurement:
            nonlocal rate
            firsts = [check(take()) for _ in range(_CHECKED_BATCHES)]
            mean = float(np.mean(firsts)) / plan.capacity
            if abs(mean - 0.5) > _SPREAD / (_CHECKED_BATCHES * batch) ** 0.5:
                raise ContentError(f"windows begin at {mean:.3f} of the buffer on average")
            count = max(1, round(rate * seconds))
            start = time.perf_counter_ns()
            for _ in itertools.repeat(None, count):
                drawn = take()
            elapsed = time.perf_counter_ns() - start
            rate = count / elapsed * 1e9
            check(drawn)
            return Measurement(elapsed / count / 1e3)

        yield measure


@contextlib.contextmanager
def priorities(engine: Engine, *, plan: Plan, batch: int, seconds: float) -> Iterator[Measure]:
    """Draw by priority and set the priorities of what came: µs for both."""
    items = Rows(plan.kind)
    values = np.random.default_rng(20).uniform(0.5, 1.5, (POOL, batch))
    with contextlib.closing(engine.store(plan)) as store:
        _fill(store, items, plan)
        now = np.ones(plan.capacity)
        draws, take, update = PrioritizedDraws(items, now), store.draws(batch), store.update
        indices, actions = store.indices, store.actions
        first = take()
        draws.check(store.columns(first), batch)
        shape = first[actions].shape
        rate = _FIRST_RATE

        def measure() -> Measurement:
            nonlocal rate
            count = max(POOL, round(rate * seconds))
            # Which rows had their priorities changed, for the check afterwards.
            log = np.zeros((count, *shape), np.float32)
            start = time.perf_counter_ns()
            for changed, value in zip(log, itertools.cycle(values), strict=False):
                drawn = take()
                update(drawn[indices], value)
                changed[:] = drawn[actions]
            elapsed = time.perf_counter_ns() - start
            rate = count / elapsed * 1e9
            # A row that came twice in a batch keeps the last value, as in numpy.
            for numbers, value in zip(log, itertools.cycle(values), strict=False):
                now[numbers.reshape(-1).astype(np.int64)] = value
            for _ in range(_CHECKED_BATCHES):
                draws.check(store.columns(take()), batch)
            draws.check_distribution()
            return Measurement(elapsed / count / 1e3)

        yield measure


@contextlib.contextmanager
def memory(engine: Engine, *, plan: Plan) -> Iterator[Measure]:
    """Fill a new buffer: bytes by which the process grows for each transition.

    Buffers of earlier repeats are kept, so that none gets the memory of another.
    """
    items = Rows(plan.kind)
    with contextlib.ExitStack() as stack:

        def measure() -> Measurement:
            # What the blocks need, and what the library allocates once.
            small = replace(plan, capacity=_FILL_IMAGES if plan.kind == "image" else _FILL)
            _fill(stack.enter_context(contextlib.closing(engine.store(small))), items, small)
            before = resident_bytes()
            store = stack.enter_context(contextlib.closing(engine.store(plan)))
            _fill(store, items, plan)
            grown = resident_bytes() - before
            if grown <= 0:
                raise UnavailableError("its process had memory left over, and did not grow")
            checked(
                items, store.columns(store.draws(_CHECKED_ROWS)()), _CHECKED_ROWS, plan.capacity
            )
            return Measurement(grown / plan.capacity, {"process_mib": before / (1 << 20)})

        yield measure


def _fill(store: Store, items: Rows, plan: Plan) -> None:
    """Store the rows 0 to ``capacity - 1``."""
    block = _FILL_IMAGES if plan.kind == "image" else _FILL
    for first in range(0, plan.capacity, block):
        store.extend(items.columns(np.arange(first, min(first + block, plan.capacity))))
    if len(store) != plan.capacity:
        raise ContentError(f"expected {plan.capacity} transitions, got {len(store)}")


def _check_stored(store: Store, items: Rows, size: int, numbers: int) -> None:
    """Check that so many rows of the first ``numbers`` are stored, by a sample of them."""
    if len(store) != size:
        raise ContentError(f"expected {size} transitions, got {len(store)}")
    take, seen = store.draws(_CHECKED_ROWS), set[Any]()
    for _ in range(_CHECKED_BATCHES):
        seen.update(checked(items, store.columns(take()), _CHECKED_ROWS, numbers).tolist())
    draws, rows = _CHECKED_BATCHES * _CHECKED_ROWS, min(numbers, size)
    due = rows * (1 - np.exp(-draws / rows))
    if len(seen) < 0.8 * due:
        raise ContentError(f"{draws} draws have {len(seen)} different rows, {due:.0f} are due")
