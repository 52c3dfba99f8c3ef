"""Who must wait: samples, or inserts.

With I inserts, S samples and D deletions so far, a sample goes when ``I - D`` is at least
``min_size_to_sample`` and ``I * samples_per_insert - S`` stays at ``min_diff`` or above; an insert
goes while the table is below ``min_size_to_sample``, or when ``I * samples_per_insert - S`` stays
at ``max_diff`` or below.
"""

from __future__ import annotations

import logging
import sys
from numbers import Real

from echoic.reverb import pybind

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

_log = logging.getLogger(__name__)


class RateLimiter:
    """The four numbers themselves."""

    def __init__(
        self,
        samples_per_insert: float,
        min_size_to_sample: int,
        min_diff: float,
        max_diff: float,
    ) -> None:
        self._samples_per_insert = samples_per_insert
        self._min_size_to_sample = min_size_to_sample
        self._min_diff = min_diff
        self._max_diff = max_diff
        self.internal_limiter = pybind.RateLimiter(
            samples_per_insert=samples_per_insert,
            min_size_to_sample=min_size_to_sample,
            min_diff=min_diff,
            max_diff=max_diff,
        )

    def __repr__(self) -> str:
        return repr(self.internal_limiter)


def _check_min_size(min_size_to_sample: int) -> None:
    if min_size_to_sample < 1:
        raise ValueError(f"min_size_to_sample ({min_size_to_sample}) must be a positive integer")


class MinSize(RateLimiter):
    """Samples wait until there are so many items; inserts never wait."""

    def __init__(self, min_size_to_sample: int) -> None:
        _check_min_size(min_size_to_sample)
        largest = sys.float_info.max
        super().__init__(1.0, min_size_to_sample, min_diff=-largest, max_diff=largest)


class SampleToInsertRatio(RateLimiter):
    """Every item is sampled so often on average.

    Args:
        samples_per_insert: Above 0.
        min_size_to_sample: Samples wait until there are so many items; up to then inserts are free.
        error_buffer: How far ``inserts * samples_per_insert - samples`` may be from what it is when
            the first sample may go, ``min_size_to_sample * samples_per_insert``; or the least and
            the most that it may be.

    Raises:
        ValueError: The numbers make no limiter, or one under which everybody waits for ever.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size_to_sample: int,
        error_buffer: float | tuple[float, float],
    ) -> None:
        start = samples_per_insert * min_size_to_sample
        if isinstance(error_buffer, Real):
            min_diff, max_diff = start - float(error_buffer), start + float(error_buffer)
        else:
            min_diff, max_diff = error_buffer  # type: ignore[misc]
        if samples_per_insert <= 0:
            raise ValueError(f"samples_per_insert ({samples_per_insert}) must be > 0")
        if max_diff - min_diff < 2 * max(1.0, samples_per_insert):
            raise ValueError(
                "The size of error_buffer must be >= max(1.0, samples_per_insert) as "
                "smaller values could completely block samples and/or insert calls."
            )
        if max_diff < start:
            _log.warning(
                "error_buffer ends at %s, below samples_per_insert * min_size_to_sample = %s: "
                "inserts wait for samples as soon as the first sample may go",
                max_diff,
                start,
            )
        if min_diff > start:
            raise ValueError(
                "The range covered by error_buffer is above "
                "samples_per_insert * min_size_to_sample. This will result in a "
                "deadlock as soon as min_size_to_sample items have been inserted."
            )
        _check_min_size(min_size_to_sample)
        super().__init__(samples_per_insert, min_size_to_sample, min_diff, max_diff)


class Queue(RateLimiter):
    """For :meth:`Table.queue`: inserts wait while so many items are there."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, min_diff=0.0, max_diff=size)


class Stack(RateLimiter):
    """For :meth:`Table.stack`: inserts wait while so many items are there."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, min_diff=0.0, max_diff=size)
