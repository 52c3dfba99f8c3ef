"""Sample items one after the other, or in batches, as soon as the table allows it.

Items are fetched several at a time: as many again as were taken before, and in total no more than
were requested, so a client that takes few items of a queue leaves the rest to others. If the table
does not allow that many now, the sampler waits for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import Ragged
from echoic.errors import LimiterError, WaitTimeoutError
from echoic.reverb import _nest
from echoic.reverb._engine.errors import as_reverb
from echoic.reverb._engine.values import mixed, texts_as_objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic import Batch, Table

__all__ = ["Items", "Sampler"]

# The most items that are fetched at once when they are taken one by one.
_MOST = 64


class Items:
    """Fetched items: the numbers of each, and its columns."""

    def __init__(self, table: str, batch: Batch, max_times_sampled: int) -> None:
        info = batch.info
        keys = mixed(table, batch.keys)
        table_sizes = np.full(len(batch), info.table_size, np.int64)
        if max_times_sampled > 0:
            # An item that was removed by its last sample does not count for those drawn after it.
            gone = info.times_sampled == max_times_sampled
            table_sizes[1:] -= np.cumsum(gone)[:-1]
        # In the order of `SampleInfo`.
        self.numbers = (keys, info.probabilities, table_sizes, info.priorities, info.times_sampled)
        data = batch.data
        # Items that differ in form come as a list; others as leaves with a leading axis.
        self._items = data if isinstance(data, list) else None
        self._leaves = [] if self._items is not None else _nest.flatten(data)

    def __len__(self) -> int:
        return len(self.numbers[0])

    @property
    def columns(self) -> list[np.ndarray[Any, Any]] | None:
        """Return each column of all items with a leading axis; ``None`` if items differ in form."""
        if self._items is not None or any(isinstance(leaf, Ragged) for leaf in self._leaves):
            return None
        return [texts_as_objects(leaf) for leaf in self._leaves]

    def leaves(self, at: int) -> list[np.ndarray[Any, Any]]:
        """Return the columns of one item."""
        if self._items is not None:
            return [texts_as_objects(leaf) for leaf in _nest.flatten(self._items[at])]
        # With an ellipsis a scalar stays an array.
        return [
            texts_as_objects(leaf[at] if isinstance(leaf, Ragged) else leaf[at, ...])
            for leaf in self._leaves
        ]

    def unpack(self) -> list[list[Any]]:
        """Return a list for each item: its numbers, then its columns."""
        numbers = zip(*(number.tolist() for number in self.numbers), strict=True)
        return [[*five, *self.leaves(at)] for at, five in enumerate(numbers)]


class Sampler:
    """A sampler of one table: see the module.

    Args:
        find: Returns the table and its ``max_times_sampled``; called for the first item.
        name: The table's name.
        max_samples: How many items to fetch in total; -1 means no limit.
        timeout: Seconds to wait for an item; ``None`` waits for ever.
    """

    # How many values precede the columns of an item.
    NUM_INFO_TENSORS = 5

    def __init__(
        self,
        find: Callable[[], tuple[Table, int]],
        name: str,
        max_samples: int = -1,
        timeout: float | None = None,
    ) -> None:
        self._find = find
        self._name = name
        self._left = None if max_samples < 0 else max_samples
        self._timeout = timeout
        self._source: tuple[Table, int] | None = None
        self._ready: list[list[Any]] = []
        self._ask = 1

    def GetNextTrajectory(self) -> list[Any]:
        """Return key, probability, table size, priority and times sampled, then the columns.

        Raises:
            StopIteration: If ``max_samples`` items were fetched.
            WaitTimeoutError: If there was none in time.
        """
        if not self._ready:
            items = self.fetch(min(self._ask, _MOST))
            self._ask = 2 * len(items)
            self._ready = items.unpack()
            self._ready.reverse()
        return self._ready.pop()

    def fetch(self, count: int) -> Items:
        """Fetch up to this many items: all at once, or one. Raises as :meth:`GetNextTrajectory`."""
        if self._left is not None:
            count = min(count, self._left)
            if count == 0:
                raise StopIteration
        with as_reverb(self._name):
            if self._source is None:
                self._source = self._find()
            table, max_times_sampled = self._source
            batch = self._try(table, count) if count > 1 else None
            if batch is None:
                batch = table.sample(1, self._timeout)
        if self._left is not None:
            self._left -= len(batch)
        return Items(self._name, batch, max_times_sampled)

    @staticmethod
    def _try(table: Table, count: int) -> Batch | None:
        try:
            return table.sample(count, 0)
        except (WaitTimeoutError, LimiterError):
            return None
