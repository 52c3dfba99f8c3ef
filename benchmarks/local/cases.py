"""The arguments of the primitives that are measured, random and the same every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.local.engine import Case

if TYPE_CHECKING:
    from benchmarks.payload import Array

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
