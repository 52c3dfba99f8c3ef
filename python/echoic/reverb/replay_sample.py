"""Samples and their metadata."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["ReplaySample", "SampleInfo"]


class SampleInfo(NamedTuple):
    """The metadata of a sampled item: Python numbers, or arrays of them.

    Attributes:
        key: Identifies the item in :meth:`Client.mutate_priorities`.
        probability: The probability with which it was sampled.
        table_size: How many items the table had.
        priority: The item's priority.
        times_sampled: How many times the item was sampled, this time included.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    # Programs of older versions, such as Acme 0.4, leave it out.
    times_sampled: Any = 0

    @classmethod
    def tf_dtypes(cls) -> SampleInfo:
        """Return the dtypes of the fields: numpy's, under upstream's name."""
        return cls(*map(np.dtype, ("uint64", "float64", "int64", "float64", "int32")))

    @classmethod
    def tf_shapes(cls) -> SampleInfo:
        """Scalars."""
        return cls((), (), (), (), ())

    @classmethod
    def zeros(cls) -> SampleInfo:
        """Return metadata of which nothing is known: all zero."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """A sampled item, or one step of it.

    Attributes:
        info: A :class:`SampleInfo`.
        data: The values: nested as the table's signature if that was requested, else a list.
    """

    info: SampleInfo
    data: Any
