"""Convert selectors and the rate limiter to settings of our tables and to Reverb's messages."""

from __future__ import annotations

import logging
import math
import operator
import sys

from echoic import limiters, selectors
from echoic.reverb._engine.arguments import real
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
    """Base of the selectors."""

    _setting: selectors.Selector
    _text: str

    def options(self) -> KeyDistributionOptions:
        """Return the selector as a message."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._text


class FifoSelector(ItemSelector):
    """Select the oldest item."""

    _setting = selectors.Fifo()
    _text = "FifoSelector"

    def options(self) -> KeyDistributionOptions:
        """Return the selector as a message."""
        return KeyDistributionOptions(fifo=True, is_deterministic=True)


class LifoSelector(ItemSelector):
    """Select the newest item."""

    _setting = selectors.Lifo()
    _text = "LifoSelector"

    def options(self) -> KeyDistributionOptions:
        """Return the selector as a message."""
        return KeyDistributionOptions(lifo=True, is_deterministic=True)


class UniformSelector(ItemSelector):
    """Select every item with the same probability."""

    _setting = selectors.Uniform()
    _text = "UniformSelector"

    def options(self) -> KeyDistributionOptions:
        """Return the selector as a message."""
        return KeyDistributionOptions(uniform=True)


class PrioritizedSelector(ItemSelector):
    """Select an item with probability proportional to its priority to the power of an exponent."""

    def __init__(self, priority_exponent: float) -> None:
        exponent = real(priority_exponent, "priority_exponent")
        self._setting = selectors.Prioritized(exponent)
        self._exponent = exponent
        self._text = f"PrioritizedSelector(priority_exponent={exponent:g})"

    def options(self) -> KeyDistributionOptions:
        """Return the selector as a message."""
        prioritized = KeyDistributionOptions.Prioritized(priority_exponent=self._exponent)
        return KeyDistributionOptions(prioritized=prioritized)


class HeapSelector(ItemSelector):
    """Select the item of lowest or highest priority; of equal ones, the one longest unchanged."""

    def __init__(self, min_heap: bool) -> None:
        self._min_heap = bool(min_heap)
        self._setting = selectors.MinHeap() if min_heap else selectors.MaxHeap()
        self._text = f"HeapSelector(sign={1 if min_heap else -1})"

    def options(self) -> KeyDistributionOptions:
        """Return the selector as a message."""
        heap = KeyDistributionOptions.Heap(min_heap=self._min_heap)
        return KeyDistributionOptions(heap=heap, is_deterministic=True)


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
        self,
        samples_per_insert: float,
        min_size_to_sample: int,
        min_diff: float,
        max_diff: float,
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
