"""Limit how far inserts and samples of a table may run ahead of each other.

Let I, S and D be the numbers of inserts, samples and deletions so far. Samples of n wait
until ``I - D >= min_size`` and ``I * samples_per_insert - S - n >= min_diff``; inserts of n until
``I + n - D <= min_size`` or ``(I + n) * samples_per_insert - S <= max_diff``.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limiter", "MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]


class Limiter:
    """Base of all limiters."""

    def _settings(self) -> tuple[str, list[float]]:
        """Return the name and the numbers that the native core expects."""
        raise NotImplementedError


@dataclass(frozen=True)
class MinSize(Limiter):
    """Block samples until the table has this many items; inserts never wait.

    Args:
        min_size: How many items, at least 1.
    """

    min_size: int = 1

    def _settings(self) -> tuple[str, list[float]]:
        return "min_size", [self.min_size]


@dataclass(frozen=True)
class SampleToInsertRatio(Limiter):
    """Keep a ratio: each item is sampled this many times on average.

    Args:
        samples_per_insert: How many times, above 0.
        min_size: Samples wait until the table has this many items.
        error_buffer: How far samples and inserts may deviate from the ratio, in samples: a
            number for both directions, or the least and the most of
            ``inserts * samples_per_insert - samples``.
    """

    samples_per_insert: float
    min_size: int
    error_buffer: float | tuple[float, float]

    def _settings(self) -> tuple[str, list[float]]:
        buffer = self.error_buffer
        bounds = list(buffer) if isinstance(buffer, tuple) else [buffer]
        return "sample_to_insert_ratio", [self.samples_per_insert, self.min_size, *bounds]


@dataclass(frozen=True)
class Queue(Limiter):
    """Make the table a queue, for items that are sampled once: inserts wait while it is full.

    Args:
        capacity: How many items fit, at least 1.
    """

    capacity: int

    def _settings(self) -> tuple[str, list[float]]:
        return "queue", [self.capacity]


@dataclass(frozen=True)
class Stack(Limiter):
    """Make the table a stack: as :class:`Queue`, with :class:`~echoic.selectors.Lifo` selectors.

    Args:
        capacity: How many items fit, at least 1.
    """

    capacity: int

    def _settings(self) -> tuple[str, list[float]]:
        return "stack", [self.capacity]


@dataclass(frozen=True)
class RateLimiter(Limiter):
    """Set the four numbers of the formulas above yourself; infinite differences are allowed.

    Args:
        min_size: At least 1.
        samples_per_insert: Above 0.
        min_diff: The lowest difference that samples may lead to.
        max_diff: The highest difference that inserts may lead to.
    """

    min_size: int
    samples_per_insert: float
    min_diff: float
    max_diff: float

    def _settings(self) -> tuple[str, list[float]]:
        return "raw", [self.min_size, self.samples_per_insert, self.min_diff, self.max_diff]
