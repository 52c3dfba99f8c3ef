"""What sampling gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["ReplaySample", "SampleInfo"]


class SampleInfo(NamedTuple):
    """What is known about a sampled item: Python numbers, or arrays of them.

    Attributes:
        key: Names the item in :meth:`Client.mutate_priorities`.
        probability: Of being sampled, at that moment.
        table_size: How many items the table had.
        priority: Of the item.
        times_sampled: How often the item was sampled, this time included.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any

    @classmethod
    def tf_dtypes(cls) -> SampleInfo:
        """What the fields are in a dataset: dtypes of numpy, under upstream's name."""
        return cls(
            np.dtype(np.uint64),
            np.dtype(np.float64),
            np.dtype(np.int64),
            np.dtype(np.float64),
            np.dtype(np.int32),
        )

    @classmethod
    def tf_shapes(cls) -> SampleInfo:
        """Scalars."""
        return cls((), (), (), (), ())

    @classmethod
    def zeros(cls) -> SampleInfo:
        """Nothing is known."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """A sampled item, or one step of it.

    Attributes:
        info: A :class:`SampleInfo`.
        data: The values: nested as the table's signature where that was asked for, a list
            otherwise.
    """

    info: SampleInfo
    data: Any
