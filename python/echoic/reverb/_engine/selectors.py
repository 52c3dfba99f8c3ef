"""Convert selectors and the rate limiter to settings of our tables and to Reverb's messages."""

from __future__ import annotations

import logging
import math
import operator
import sys
from typing import Any

from echoic import limiters, selectors
from echoic.reverb._engine.values import real
from echoic.reverb.cc.schema_pb2 import KeyDistributionOptions

__all__ = [
    "FifoSelector",
    "HeapSelector",
    "ItemSelector",
    "LifoSelector",
    "PrioritizedSelector",
    "RateLimiter",
    "UniformSelector",
    "selector_from_proto",
]

_log = logging.getLogger(__name__)

# From this number on, Reverb means that there is no bound.
_UNBOUNDED = sys.float_info.max / 2


class ItemSelector:
    """Base of the selectors.

    Attributes:
        form: The field of its message that is set, and its number if it has one.
    """

    form: tuple[Any, ...]
    _setting: selectors.Selector

    def options(self) -> KeyDistributionOptions:
        """Return the selector as a message."""
        return options_of(*self.form)

    def __repr__(self) -> str:
        return type(self).__name__


class FifoSelector(ItemSelector):
    """Select the oldest item."""

    form = ("fifo",)
    _setting = selectors.Fifo()


class LifoSelector(ItemSelector):
    """Select the newest item."""

    form = ("lifo",)
    _setting = selectors.Lifo()


class UniformSelector(ItemSelector):
    """Select every item with the same probability."""

    form = ("uniform",)
    _setting = selectors.Uniform()


class PrioritizedSelector(ItemSelector):
    """Select an item with probability proportional to its priority to the power of an exponent."""

    def __init__(self, priority_exponent: float) -> None:
        exponent = real(priority_exponent, "priority_exponent")
        self.form = ("prioritized", exponent)
        self._setting = selectors.Prioritized(exponent)

    def __repr__(self) -> str:
        return f"PrioritizedSelector(priority_exponent={self.form[1]:g})"


class HeapSelector(ItemSelector):
    """Select the item of lowest or highest priority; of equal ones, the one longest unchanged."""

    def __init__(self, min_heap: bool) -> None:
        self.form = ("heap", bool(min_heap))
        self._setting = selectors.MinHeap() if min_heap else selectors.MaxHeap()

    def __repr__(self) -> str:
        return f"HeapSelector(sign={1 if self.form[1] else -1})"


def options_of(kind: str, *value: Any) -> KeyDistributionOptions:
    """Return the message of the selector of a form."""
    if kind == "prioritized":
        prioritized = KeyDistributionOptions.Prioritized(priority_exponent=value[0])
        return KeyDistributionOptions(prioritized=prioritized)
    if kind == "heap":
        heap = KeyDistributionOptions.Heap(min_heap=value[0])
        return KeyDistributionOptions(heap=heap, is_deterministic=True)
    return KeyDistributionOptions(**{kind: True}, is_deterministic=kind != "uniform")


def selector_from_proto(options: KeyDistributionOptions) -> ItemSelector:
    """Return the selector that a message describes."""
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return PrioritizedSelector(options.prioritized.priority_exponent)
    if kind == "heap":
        return HeapSelector(options.heap.min_heap)
    simple = {"fifo": FifoSelector, "lifo": LifoSelector, "uniform": UniformSelector}
    if kind not in simple:
        raise ValueError(f"expected the options of a selector, got {options!r}")
    return simple[kind]()


class RateLimiter:
    """The four numbers of a rate limiter; see :mod:`echoic.reverb.rate_limiters`."""

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float
    ) -> None:
        self.samples_per_insert = real(samples_per_insert, "samples_per_insert")
        self.min_size_to_sample = operator.index(min_size_to_sample)
        self.min_diff = real(min_diff, "min_diff")
        self.max_diff = real(max_diff, "max_diff")

    def setting(self, max_size: int) -> limiters.Limiter:
        """Return the limiter of a table with this ``max_size``."""
        min_diff = -math.inf if self.min_diff <= -_UNBOUNDED else self.min_diff
        max_diff = math.inf if self.max_diff >= _UNBOUNDED else self.max_diff
        min_size = self.min_size_to_sample
        if min_size > max_size:
            # Nothing will ever be sampled. Our tables reject that; Reverb's do not.
            _log.warning("min_size_to_sample %d is never reached: max_size %d", min_size, max_size)
            min_size, min_diff = max_size, _UNBOUNDED
        return limiters.RateLimiter(min_size, self.samples_per_insert, min_diff, max_diff)

    def __repr__(self) -> str:
        return (
            f"RateLimiter(samples_per_insert={self.samples_per_insert:g}, "
            f"min_diff_={self.min_diff:g}, max_diff={self.max_diff:g}, "
            f"min_size_to_sample={self.min_size_to_sample})"
        )
