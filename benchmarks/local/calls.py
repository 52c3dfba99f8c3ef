"""The sessions of primitives: one call again and again, its results compared with plain loops.

Arguments are random, and the same every time.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.content import ContentError
from benchmarks.local.engine import Case
from benchmarks.timing import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.local.engine import Engine
    from benchmarks.payload import Array
    from benchmarks.timing import Measure

GAMMA = 0.99
LAMBDA = 0.95
# Sequences to pack are so long at most, and a bin holds so many tokens.
LONGEST = 512
BIN = 2048


def gae(steps: int) -> Case:
    """One sequence, in float64."""
    return Case("compute_gae", (*_steps((steps,), "f8"), 0.5, GAMMA, LAMBDA))


def gae_batched(count: int, steps: int, *, time_major: bool) -> Case:
    """Many sequences, in float32."""
    arrays = _steps((steps, count) if time_major else (count * steps,), "f4")
    last = np.linspace(-1, 1, count, dtype=np.float32)
    return Case("compute_gae_batched_f32", (*arrays, last, steps, GAMMA, LAMBDA), time_major)


def vtrace(steps: int) -> Case:
    """One sequence, in float32."""
    log_rhos = np.random.default_rng(21).normal(0, 0.5, steps).astype(np.float32)
    return Case("compute_vtrace", (log_rhos, *_steps((steps,), "f4"), 0.5, GAMMA, 1.0, 1.0))


def token_kl(function: str, count: int, length: int) -> Case:
    """Logarithms of probabilities of sampled tokens, in float64."""
    generator = np.random.default_rng(20)
    log_p = -generator.exponential(2.0, count * length)
    log_q = np.minimum(log_p + generator.normal(0, 0.3, len(log_p)), 0)
    return Case(function, (log_p, log_q, length))


def group_advantages(groups: int, size: int) -> Case:
    """Rewards of groups, in float64."""
    rewards = np.random.default_rng(20).normal(size=groups * size)
    return Case("compute_batch_group_advantages", (rewards, size))


def packing(count: int) -> Case:
    """Sequences of tokens, each token being the number of its sequence."""
    lengths = np.random.default_rng(20).integers(1, LONGEST, count)
    sequences = [np.full(length, i, np.uint32) for i, length in enumerate(lengths)]
    return Case("pack_sequences", (sequences, BIN))


def _steps(shape: tuple[int, ...], dtype: str) -> tuple[Array, Array, Array]:
    """Rewards, values and ends of episodes."""
    generator = np.random.default_rng(20)
    rewards, values = (generator.standard_normal(shape, np.float32) for _ in range(2))
    dones = generator.random(shape, np.float32) < 0.01
    return rewards.astype(dtype), values.astype(dtype), dones.astype(dtype)


_FIRST_RATE = 10.0
# Of what float32 rounds in sums over a thousand steps, relative to values of about 1.
_TOLERANCE = {np.dtype(np.float32): 2e-3, np.dtype(np.float64): 1e-9}


@contextlib.contextmanager
def calls(engine: Engine, *, make: Callable[[], Case], seconds: float) -> Iterator[Measure]:
    """Call a primitive: µs a call."""
    case = make()
    call = engine.call(case)
    due = engine.oracle(case.function)(*case.arguments)
    rate = _FIRST_RATE

    def measure() -> Measurement:
        nonlocal rate
        count = max(1, round(rate * seconds))
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, count):
            result = call()
        elapsed = time.perf_counter_ns() - start
        rate = count / elapsed * 1e9
        _check(engine.outputs(case, result), due, case)
        return Measurement(elapsed / count / 1e3)

    yield measure


@contextlib.contextmanager
def packings(
    engine: Engine, *, make: Callable[[], Case], bins: int, seconds: float
) -> Iterator[Measure]:
    """Pack sequences: µs a call; ``bins`` is the most that a good packing needs."""
    case = make()
    call = engine.call(case)
    rate = _FIRST_RATE

    def measure() -> Measurement:
        nonlocal rate
        count = max(1, round(rate * seconds))
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, count):
            result = call()
        elapsed = time.perf_counter_ns() - start
        rate = count / elapsed * 1e9
        tokens, positions = engine.outputs(case, result)
        _check_packing(tokens, positions, case, bins)
        return Measurement(elapsed / count / 1e3)

    yield measure


def _check(got: tuple[Array, ...], due: tuple[Array, ...], case: Case) -> None:
    dtype = next(each.dtype for each in case.arguments if isinstance(each, np.ndarray))
    for index, (one, other) in enumerate(zip(got, due, strict=True)):
        limit = _TOLERANCE[dtype] * max(1.0, float(np.abs(other).max()) / 10)
        if one.shape != other.shape or one.dtype != dtype:
            raise ContentError(
                f"{case.function}, result {index}: expected {other.shape} {dtype}, got {one.shape} "
                f"{one.dtype}"
            )
        worst = float(np.abs(one - other).max())
        if not worst <= limit:
            raise ContentError(f"{case.function}, result {index}: off by {worst:.3g}")


def _check_packing(tokens: Any, positions: Any, case: Case, most: int) -> None:
    """Check that every sequence is whole in one bin: its tokens tell which it is."""
    sequences, size = case.arguments
    if len(tokens) > most:
        raise ContentError(f"{len(tokens)} bins where {most} are enough")
    if max(len(each) for each in tokens) > size:
        raise ContentError(f"a bin of {max(len(each) for each in tokens)} tokens, of {size}")
    flat, places = np.concatenate(tokens), np.concatenate(positions)
    starts = np.concatenate([[0], np.cumsum([len(each) for each in tokens])])
    firsts = np.flatnonzero(places == 0)
    # All tokens of a sequence are its number.
    order = np.argsort(flat[firsts], kind="stable")
    lengths = np.diff(np.append(firsts, len(flat)))
    wanted = np.array([len(each) for each in sequences])
    if not np.array_equal(flat[firsts][order], np.arange(len(sequences))):
        raise ContentError("a sequence is missing, cut or there twice")
    if not np.array_equal(lengths[order], wanted):
        raise ContentError("a sequence is not whole")
    if not np.array_equal(flat, np.repeat(flat[firsts], lengths)):
        raise ContentError("tokens of a sequence among those of another")
    if not np.isin(starts[:-1], firsts).all():
        raise ContentError("a sequence that goes on in another bin")
