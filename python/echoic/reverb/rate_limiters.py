"""Limit how far samples and inserts may run ahead of each other.

With I inserts, S samples and D deletions so far, a sample is allowed if ``I - D`` is at least
``min_size_to_sample`` and ``I * samples_per_insert - S`` stays at ``min_diff`` or above; an insert
is allowed while the table is below ``min_size_to_sample``, or if ``I * samples_per_insert - S``
stays at ``max_diff`` or below.
"""

from __future__ import annotations

import logging
import sys
from numbers import Real
from typing import Any

from echoic.reverb import pybind
from echoic.reverb._engine.values import positive

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

_log = logging.getLogger(__name__)


class RateLimiter(pybind.RateLimiter):
    """Set the four numbers of the formulas above yourself."""

    @property
    def internal_limiter(self) -> pybind.RateLimiter:
        """The limiter that a table uses: this one."""
        return self


def rate_limiter_from_proto(proto: Any) -> RateLimiter:
    """Make a rate limiter from its message."""
    return RateLimiter(
        proto.samples_per_insert, proto.min_size_to_sample, proto.min_diff, proto.max_diff
    )


class MinSize(RateLimiter):
    """Block samples until the table has this many items; inserts never wait."""

    def __init__(self, min_size_to_sample: int) -> None:
        positive(min_size_to_sample=min_size_to_sample)
        largest = sys.float_info.max
        super().__init__(1.0, min_size_to_sample, min_diff=-largest, max_diff=largest)


class SampleToInsertRatio(RateLimiter):
    """Keep a ratio: each item is sampled this many times on average.

    Args:
        samples_per_insert: How many times, above 0.
        min_size_to_sample: Samples wait until there are this many items; until then inserts are
            free.
        error_buffer: How far ``inserts * samples_per_insert - samples`` may deviate from its value
            at the first sample, ``min_size_to_sample * samples_per_insert``; or its lowest and
            highest value.

    Raises:
        ValueError: If the numbers are out of range, or every call would wait for ever.
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
        positive(min_size_to_sample=min_size_to_sample)
        super().__init__(samples_per_insert, min_size_to_sample, min_diff, max_diff)


class Queue(RateLimiter):
    """Block inserts while there are this many items; for :meth:`Table.queue`."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, min_diff=0.0, max_diff=size)


class Stack(RateLimiter):
    """Block inserts while there are this many items; for :meth:`Table.stack`."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, min_diff=0.0, max_diff=size)
