"""Who must wait at a table: inserts that run ahead of samples, or samples ahead of inserts.

Let I, S and D be how often the table was inserted into, sampled and deleted from. Samples of n wait
until ``I - D >= min_size`` and ``I * samples_per_insert - S - n >= min_diff``; inserts of n until
``I + n - D <= min_size`` or ``(I + n) * samples_per_insert - S <= max_diff``.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limiter", "MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]


class Limiter:
    """Base of all limiters."""

    def _settings(self) -> tuple[str, list[float]]:
        """Return what the native core knows this by."""
        raise NotImplementedError


@dataclass(frozen=True)
class MinSize(Limiter):
    """Samples wait until there are so many items; inserts never wait.

    Args:
        min_size: At least 1.
    """

    min_size: int = 1

    def _settings(self) -> tuple[str, list[float]]:
        return "min_size", [self.min_size]


@dataclass(frozen=True)
class SampleToInsertRatio(Limiter):
    """Every item is sampled so often on average.

    Args:
        samples_per_insert: Above 0.
        min_size: Samples wait until there are so many items.
        error_buffer: How far samples and inserts may be from the ratio, counted in samples: a
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
    """For items that are sampled once: inserts wait while so many are there.

    Args:
        size: At least 1.
    """

    size: int

    def _settings(self) -> tuple[str, list[float]]:
        return "queue", [self.size]


@dataclass(frozen=True)
class Stack(Limiter):
    """As :class:`Queue`, for a table whose selectors are :class:`~echoic.selectors.Lifo`.

    Args:
        size: At least 1.
    """

    size: int

    def _settings(self) -> tuple[str, list[float]]:
        return "stack", [self.size]


@dataclass(frozen=True)
class RateLimiter(Limiter):
    """The four numbers themselves; infinite differences are allowed.

    Args:
        min_size: At least 1.
        samples_per_insert: Above 0.
        min_diff: The least that samples may lead to.
        max_diff: The most that inserts may lead to.
    """

    min_size: int
    samples_per_insert: float
    min_diff: float
    max_diff: float

    def _settings(self) -> tuple[str, list[float]]:
        return "raw", [self.min_size, self.samples_per_insert, self.min_diff, self.max_diff]
